"""One request as an endpoint sees it: the caller, the parameters, and the decision about it.

An endpoint names the object (`require`, `tier_of`), and the route names the operation. An answer
without a decision is never sent: see `batchq.http.application`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from batchq.api.access import (
    HIDDEN,
    AccessDecision,
    Binding,
    Identity,
    Target,
    TargetKind,
    Tier,
    TokenKind,
    Verb,
    Visibility,
    bindings_of,
    decide,
    in_local_groups,
    seen,
    without_names,
)
from batchq.api.objects import BY_ANNOTATION, PARENT_ANNOTATION, PodGroup, key_of
from batchq.api.views import GroupView
from batchq.client import Client
from batchq.client.access_control import Actor, Delegate
from batchq.errors import NotFound
from batchq.http.connections import Stream
from batchq.http.problems import ApiProblem, bad_request, forbidden

if TYPE_CHECKING:
    from batchq.client.node_users import NodeRegistrar
    from batchq.http.change_feed import ChangeFeed
    from batchq.http.id_tokens import IdTokens
    from batchq.http.identities import AccessBook

T = TypeVar("T")

MOST_BODY_BYTES = 1024 * 1024
JSON = "application/json"
NDJSON = "application/x-ndjson"
EVENT_STREAM = "text/event-stream"
PLAIN = "text/plain; charset=utf-8"


class ApiAnswer(Struct, frozen=True, kw_only=True):
    """A whole answer: a document for JSON."""

    document: object
    status: HTTPStatus = HTTPStatus.OK
    #: Whether the document is a list, sent as a line of JSON for each item.
    is_lines: bool = False
    headers: Mapping[str, str] = {}


class StreamAnswer(Struct, frozen=True, kw_only=True):
    """An answer in parts. The first part decides whether it is an error instead."""

    stream: Stream
    content_type: str
    parts: Callable[[], AsyncIterator[bytes]]


class QueryParameter(Struct, frozen=True, kw_only=True):
    """A parameter of a route's query, and what it means."""

    name: str
    about: str
    type: Literal["string", "integer", "boolean"] = "string"
    most: int | None = None


class ApiRoute(Struct, frozen=True, kw_only=True):
    """One row of the route table: from it come the route, its right, and its page in OpenAPI.

    `verb` None: every known caller may call it, and unknown ones, too, if it `is_open`.
    """

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    name: str
    about: str
    endpoint: Callable[[ApiCall], ApiAnswer | StreamAnswer]
    verb: Verb | None = None
    kind: TargetKind = TargetKind.GROUPS
    tier: Tier = Tier.FACTS
    parameters: Sequence[QueryParameter] = ()
    #: The type of the body, or else the name of its schema in the description of the API.
    body: type[Struct] | str = ""
    answer: str = ""
    is_open: bool = False
    #: Whether the caller proves who it is with the body.
    is_login: bool = False
    #: What the caller shows.
    credential: TokenKind = "token"
    is_explanation: bool = False
    most_body_bytes: int = MOST_BODY_BYTES
    #: The media type of the body.
    takes: str = JSON


#: The titles and rows of a table of groups, and which of its columns are left out when; or, in the
#: form `json`, what `-o json` prints.
GroupTable: TypeAlias = Callable[
    [Sequence[GroupView], int, bool, Literal["table", "json"]], Mapping[str, object]
]


class CallContext(Struct, frozen=True, kw_only=True):
    """What all calls share, as it was when the request came."""

    book: AccessBook
    bindings: Sequence[Binding]
    #: The local groups of each user.
    memberships: Mapping[str, Sequence[str]]
    visibility: Visibility
    #: Of each kind that can be watched.
    feeds: Mapping[str, ChangeFeed]
    connect: Callable[[], Delegate]
    is_ending: Callable[[], bool]
    why: Callable[[Client, str], object]
    #: Validates the ID tokens of the provider that this API trusts, if there is one.
    id_tokens: IdTokens | None
    #: Makes and removes the users of nodes; None if this API has no registrar.
    registrar: NodeRegistrar | None
    #: The digest by which clients recognise the API's certificate, if they do.
    certificate: str
    #: Lays out groups as `batchq jobs` does: their views, the instant, whether to name namespaces,
    #: and the form.
    table: GroupTable


class ApiCall:
    """A request. Belongs to one thread at a time."""

    def __init__(
        self,
        route: ApiRoute,
        context: CallContext,
        identity: Identity,
        open_delegate: Callable[[], Delegate],
        *,
        path: Mapping[str, str],
        query: Mapping[str, str],
        body: bytes = b"",
        accept: str = "",
        last_event: str = "",
        if_match: str = "",
        idempotency_key: str = "",
        address: str = "",
    ) -> None:
        self.route = route
        self.context = context
        self.identity = in_local_groups(identity, context.memberships)
        self._open_delegate = open_delegate
        self.path = path
        self.accept = accept
        self.last_event = last_event
        self.if_match = if_match
        self.idempotency_key = idempotency_key
        self.address = address
        #: Whether anything has been decided: the proof that an answer may be sent.
        self.is_decided = route.verb is None
        self.allowed_by = ""
        #: What was refused, if the route names neither the verb nor the object: verb, kind, name.
        self.refused: tuple[str, str, str] | None = None
        self._query = query
        self._body = body
        self._bindings = context.bindings
        self._tiers: dict[tuple[str, bool, bool], Tier | None] = {}
        self._known: dict[str, bool] = {}

    def of(self, identity: Identity, context: CallContext | None = None) -> ApiCall:
        """Return the same call as one of another identity, or with the rights of another moment."""
        return ApiCall(
            self.route,
            context or self.context,
            identity,
            self._open_delegate,
            path=self.path,
            query=self._query,
            body=self._body,
            accept=self.accept,
            last_event=self.last_event,
            if_match=self.if_match,
            idempotency_key=self.idempotency_key,
            address=self.address,
        )

    @property
    def delegate(self) -> Delegate:
        """This thread's connection. Raises StoreUnavailable."""
        return self._open_delegate()

    @cached_property
    def client(self) -> Client:
        """A client whose requests are recorded under the caller's name, and whose changes are in
        the audit trail. Raises StoreUnavailable.
        """
        return self.delegate.client_of(
            self.identity.user, actor=self.actor, because=lambda: self.allowed_by
        )

    @property
    def actor(self) -> Actor:
        """The caller, for the audit trail."""
        identity = self.identity
        return Actor(
            user=identity.user,
            via=identity.via,
            token=identity.token,
            address=self.address,
            by="" if identity.by is None else identity.by.user,
            reason=identity.reason,
        )

    def text(self, name: str) -> str:
        """Return a parameter of the query; "" if it is not given."""
        return self._query.get(name, "")

    def flag(self, name: str) -> bool:
        """Return a parameter that is true or false."""
        found = self.text(name)
        if found not in ("", "true", "false"):
            raise bad_request(f"{name}: expected true or false, found {found[:80]!r}")
        return found == "true"

    def number(self, name: str, default: int | None, most: int) -> int | None:
        """Return a parameter that is a count, from 0 to `most`."""
        found = self.text(name)
        if not found:
            return default
        if not (found.isascii() and found.isdigit() and len(found) <= 16 and int(found) <= most):
            raise bad_request(f"{name}: expected a number from 0 to {most}, found {found[:80]!r}")
        return int(found)

    def body_as(self, kind: type[T]) -> T:
        """Return the body as an object of a type. Raises ApiProblem."""
        try:
            return msgspec.convert(self.json() or {}, kind)
        except msgspec.ValidationError as error:
            raise bad_request(f"the body: {error}") from None

    @property
    def body_bytes(self) -> int:
        """The length of the body."""
        return len(self._body)

    def lines(self) -> list[bytes]:
        """Return the lines of the body that are not empty."""
        return [line for line in self._body.split(b"\n") if line.strip()]

    def json(self) -> object:
        """Return the body, decoded; None if it is empty."""
        if not self._body:
            return None
        try:
            return msgspec.json.decode(self._body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise bad_request(f"the body: expected JSON, found something else: {error}") from None

    def renew_rights(self) -> bool:
        """Decide by the bindings of this moment from now on; return whether the caller's have
        changed. Raises ApiProblem if the caller may do nothing any more.
        """
        problem = self.context.book.recheck(self.identity)
        if problem is not None:
            raise problem
        current, memberships = self.context.book.rights
        identity = in_local_groups(self.identity, memberships)
        if self.identity.by is not None:
            assert identity.by is not None
            check_impersonation(identity.by, current, identity.user)
        if current is self._bindings:
            return False
        before = list(bindings_of(self.identity, self._bindings))
        self._bindings, self.identity = current, identity
        self._tiers.clear()
        self._known.clear()
        self.require_a_role()
        return before != list(bindings_of(self.identity, current))

    def decide(self, target: Target, verb: Verb, tier: Tier = Tier.FACTS) -> AccessDecision:
        """Decide about something else than the route's own verb."""
        visibility = self.context.visibility
        return decide(self.identity, self._bindings, verb, target, tier=tier, visibility=visibility)

    def require_a_role(self) -> None:
        """Refuse callers without any role, whether or not there is something to see."""
        self.is_decided = True
        if next(bindings_of(self.identity, self._bindings), None) is None:
            raise forbidden(f"{self.identity.title} has no role")

    def require(self, namespace: str, *, owner: str = "") -> AccessDecision:
        """Refuse the call unless the route's verb is permitted there."""
        return self._require(Target(kind=self.route.kind, namespace=namespace, owner=owner))

    def require_of(self, group: PodGroup) -> AccessDecision:
        """Refuse the call unless the route's verb is permitted for a group."""
        return self._require(_target_of(group))

    def _require(self, target: Target) -> AccessDecision:
        assert self.route.verb is not None
        self.is_decided = True
        decision = self.decide(target, self.route.verb, self.route.tier)
        if not decision.allowed:
            raise forbidden(decision.because, hint=decision.hint)
        self.allowed_by = decision.because
        return decision

    def tier_of(self, group: PodGroup) -> Tier | None:
        """Return how much of a group the caller sees; None for nothing."""
        return self._tier_of(_target_of(group))

    def tier_at(self, namespace: str, owner: str) -> Tier | None:
        """Return how much the caller sees of the groups of an owner in a namespace, if the owner
        does not share them.
        """
        return self._tier_of(Target(kind=TargetKind.GROUPS, namespace=namespace, owner=owner))

    def _tier_of(self, target: Target) -> Tier | None:
        self.is_decided = True
        place = target.namespace, target.owner in self.identity.names, target.is_shared
        if place not in self._tiers:
            self._tiers[place] = self._tier(target)
        return self._tiers[place]

    def _tier(self, target: Target) -> Tier | None:
        for tier in reversed(Tier):
            if self.decide(target, Verb.READ, tier).allowed:
                return tier
        return None

    def sees(self, namespace: str) -> bool:
        """Return whether the caller sees the schedule facts of all groups of a namespace."""
        target = Target(kind=TargetKind.GROUPS, namespace=namespace)
        return self.decide(target, Verb.READ, Tier.FACTS).allowed

    def group(self) -> PodGroup:
        """Return the group of the path, if the caller may know that it exists, and may do to it
        what the route says. `allowed_by` then says why.
        """
        self.require_a_role()
        namespace, name = self.path["namespace"], self.path["name"]
        sees_all = self.sees(namespace)
        if not sees_all and self.context.visibility is not Visibility.OWN:
            raise no_such_group(namespace, name)
        try:
            found = self.client.get("PodGroup", f"{namespace}/{name}")
        except NotFound:
            if sees_all:
                raise
            # The client's message may name a similar group.
            raise no_such_group(namespace, name) from None
        assert isinstance(found, PodGroup)
        assert key_of(found) == f"{namespace}/{name}"
        if self.tier_of(found) is None:
            raise no_such_group(namespace, name)
        self.require_of(found)
        return found

    def check_hidden_parts(self, stored: PodGroup, item: PodGroup) -> None:
        """Refuse a change of a group whose output the caller may not read, if it shares the output,
        or writes back what the caller was shown instead of a value or of the spec.
        """
        tier = self.tier_of(stored)
        if tier is Tier.OUTPUT:
            return
        title, shown = f"PodGroup {key_of(stored)}", tier or Tier.FACTS
        if item.spec.share != stored.spec.share:
            raise forbidden(
                f"{title}: only those who may read its output decide who else may (spec.share)"
            )
        is_partial = any(HIDDEN in task.template.env.values() for task in item.spec.tasks)
        if shown is Tier.FACTS and seen(stored, shown).spec != stored.spec:
            is_partial = is_partial or seen(item, shown).spec == item.spec
        if is_partial:
            raise forbidden(
                f"{title}: you are shown a part of its spec only, and this manifest would remove"
                " the rest",
                hint="apply the manifest that it was submitted with, changed",
            )

    def meant_group(self) -> PodGroup:
        """Return the group of the path; not another of the name, if the caller says its uid."""
        group = self.group()
        if self.text("uid") not in ("", group.metadata.uid):
            raise ApiProblem(
                HTTPStatus.NOT_FOUND, "NotFound",
                f"PodGroup {key_of(group)} was deleted, and another has its name now", exit_code=6,
            )  # fmt: skip
        return group

    def shown(self, document: object) -> object:
        """Return a document without the names of groups that the caller may not know."""
        if self.context.visibility is Visibility.OPEN:
            return document
        return without_names(document, self.knows)

    def signed(self, manifest: dict[str, object]) -> dict[str, object]:
        """Return the manifest of a new group. Annotations name its parent, if a pod submits it, and
        the user who submits it in the name of its owner. Raises ApiProblem if its pods may not have
        tokens.
        """
        spec = manifest.get("spec")
        self.check_pod_tokens(spec.get("token") if isinstance(spec, dict) else None)
        metadata = manifest.get("metadata")
        if not self._signature or not isinstance(metadata, dict):
            return manifest
        annotations = metadata.get("annotations") or {}
        if not isinstance(annotations, dict):
            return manifest
        annotations = {**annotations, **self._signature}
        return {**manifest, "metadata": {**metadata, "annotations": annotations}}

    def check_pod_tokens(self, token: object) -> None:
        """Refuse a group whose pods' tokens would permit more than the caller's token."""
        verbs = self.identity.scope.verbs
        if token and verbs:
            raise forbidden(
                f"spec.token: this token permits no more than {', '.join(verbs)}, and tokens of"
                " pods would permit more",
                hint="leave spec.token out, or submit with a token that permits all verbs",
            )

    @cached_property
    def _signature(self) -> Mapping[str, str]:
        identity = self.identity
        found = {PARENT_ANNOTATION: identity.group} if identity.group else {}
        return found if identity.by is None else {**found, BY_ANNOTATION: identity.by.user}

    def knows(self, key: str) -> bool:
        """Return whether the caller may know the name of a group, given as `namespace/name`."""
        if key not in self._known:
            namespace = key.partition("/")[0]
            owner = None
            if self.context.visibility is Visibility.OWN and not self.sees(namespace):
                owner = self.delegate.owner_of(key)
            self._known[key] = self.tier_at(namespace, owner or "") is not None
        return self._known[key]


def check_impersonation(identity: Identity, bindings: Sequence[Binding], user: str) -> None:
    """Raise ApiProblem unless a caller may act in the name of a user."""
    target = Target(kind=TargetKind.USERS, owner=user)
    decision = decide(identity, bindings, Verb.IMPERSONATE, target)
    if not decision.allowed:
        raise forbidden(decision.because, hint=decision.hint)


def no_such_group(namespace: str, name: str) -> ApiProblem:
    """Return 404, in the words of the client."""
    return ApiProblem(
        HTTPStatus.NOT_FOUND, "NotFound", f"PodGroup {namespace}/{name} does not exist",
        exit_code=6,
    )  # fmt: skip


def _target_of(group: PodGroup) -> Target:
    return Target(
        kind=TargetKind.GROUPS,
        namespace=group.metadata.namespace,
        owner=group.status.submitted_by,
        is_shared=group.spec.share == "namespace",
    )
