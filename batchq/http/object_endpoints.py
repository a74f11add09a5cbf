"""The endpoints of objects other than groups, and requests that change several objects at once.

Queues, priority classes, admission checks and nodes belong to the cluster; quotas to namespaces;
pods to their groups, so that they are seen as these are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from time import monotonic
from typing import Any, Literal

from msgspec import Struct, structs

from batchq.api.access import Target, TargetKind, Tier, Verb, bare_metadata, seen
from batchq.api.manifest import decode, encode
from batchq.api.objects import (
    API_VERSION,
    DEFAULT,
    NAMESPACED,
    Object,
    Pod,
    PodGroup,
    key_of,
    kind_of,
)
from batchq.api.views import Applied, Effect, token_of_object
from batchq.api_session import sealed
from batchq.client.request import Permit
from batchq.errors import NotFound
from batchq.http.calls import ApiAnswer, ApiCall, StreamAnswer
from batchq.http.change_feed import WATCHED_KINDS, ChangeEvent
from batchq.http.group_endpoints import (
    LONGEST_LIST_S,
    MOST_LISTED,
    USUALLY_LISTED,
    name_of_another,
    opened,
    reason_of,
    too_long,
    watch_stream,
)
from batchq.http.problems import ApiProblem, bad_request, forbidden

#: What rights call the kinds of objects.
TARGETS = {
    "Queue": TargetKind.QUEUES,
    "PriorityClass": TargetKind.QUEUES,
    "AdmissionCheck": TargetKind.QUEUES,
    "Node": TargetKind.NODES,
    "ResourceQuota": TargetKind.QUOTAS,
    "PodGroup": TargetKind.GROUPS,
    "Pod": TargetKind.GROUPS,
}
MOST_REQUEST_BYTES = 8 * 1024 * 1024
_PAGE = 500
#: A thread remembers 256 groups, so that similar ones are submitted at less cost: small ones.
_REMEMBERED_BYTES = 4 * 1024


def list_objects(kind: str) -> Callable[[ApiCall], ApiAnswer | StreamAnswer]:
    """Return the endpoint that lists the objects of a kind that the caller may see, by key."""

    def answer(call: ApiCall) -> ApiAnswer | StreamAnswer:
        call.require_a_role()
        if kind in WATCHED_KINDS and call.flag("watch"):
            return _watch(call, kind)
        namespace = call.path.get("namespace") or call.text("namespace")
        limit = call.number("limit", USUALLY_LISTED, MOST_LISTED) or USUALLY_LISTED
        revision = call.delegate.revision()
        look = _Look(call, kind)
        items: list[Object] = []
        unreadable: list[dict[str, str]] = []
        following = ""
        after = opened(call.text("continue"))
        until = monotonic() + LONGEST_LIST_S
        for page in call.client.pages(kind, namespace=namespace, after=after, size=_PAGE):
            unreadable += [
                {"name": one.key, "why": one.why}
                for one in page.unreadable
                if look.may_read(one.key.partition("/")[0] if kind in NAMESPACED else "")
            ]
            shown = [one for item in page.objects if (one := look.shown(item)) is not None]
            if len(items) + len(shown) > limit:
                items += shown[: limit - len(items)]
                following = sealed(token_of_object(items[-1]))
                break
            items += shown
            if monotonic() > until:
                raise too_long()
        return ApiAnswer(
            document={
                "apiVersion": API_VERSION,
                "kind": f"{kind}List",
                "revision": revision,
                "continue": following,
                "items": [encode(item) for item in items],
                "unreadable": unreadable,
            }
        )

    return answer


def _watch(call: ApiCall, kind: str) -> StreamAnswer:
    call.require("")

    def shown(event: ChangeEvent) -> dict[str, object] | None:
        # Rights may change during the watch.
        call.require("")
        assert event.item is not None
        return {
            "type": str(event.type),
            "revision": event.revision,
            "object": encode(event.item),
        }

    return watch_stream(call, kind, shown)


def get_object(kind: str) -> Callable[[ApiCall], ApiAnswer]:
    """Return the endpoint that returns one object of a kind."""

    def answer(call: ApiCall) -> ApiAnswer:
        call.require_a_role()
        namespace, name = call.path.get("namespace", ""), call.path["name"]
        look = _Look(call, kind)
        where = f"{namespace}/{name}" if namespace else name
        missing = NotFound(f"{kind} {where} does not exist")
        if kind != "Pod" and not look.may_read(namespace):
            if namespace:
                raise missing
            call.require("")
        try:
            item = call.client.get(kind, name, namespace=namespace or DEFAULT)
        except NotFound:
            if not look.may_read(namespace):
                # The client's message may name a similar object.
                raise missing from None
            raise
        shown = look.shown(item)
        if shown is None:
            raise missing
        etag = f'"{item.metadata.revision}"'
        return ApiAnswer(document=encode(shown), headers={"ETag": etag})

    return answer


class _Look:
    """What the caller sees of the objects of one kind."""

    def __init__(self, call: ApiCall, kind: str) -> None:
        self._call = call
        self._kind = kind
        self._allowed: dict[str, bool] = {}
        self._groups: dict[str, dict[str, PodGroup]] = {}

    def may_read(self, namespace: str) -> bool:
        """Return whether the caller may read all objects of this kind in a namespace, or in none
        ("").
        """
        if self._kind == "Pod":
            return self._call.sees(namespace)
        if namespace not in self._allowed:
            target = Target(kind=TARGETS[self._kind], namespace=namespace)
            self._allowed[namespace] = self._call.decide(target, Verb.READ).allowed
        return self._allowed[namespace]

    def shown(self, item: Object) -> Object | None:
        """Return as much of an object as the caller may see; None for nothing."""
        if isinstance(item, Pod):
            return self._pod(item)
        return item if self.may_read(item.metadata.namespace) else None

    def _pod(self, pod: Pod) -> Pod | None:
        group = self._groups_of(pod.metadata.namespace).get(pod.status.group_uid)
        call, namespace = self._call, pod.metadata.namespace
        tier = call.tier_at(namespace, "") if group is None else call.tier_of(group)
        if tier is None:
            return None
        if tier is not Tier.FACTS:
            return pod
        return structs.replace(
            pod,
            metadata=bare_metadata(pod.metadata),
            status=structs.replace(pod.status, message="", holder=""),
        )

    def _groups_of(self, namespace: str) -> dict[str, PodGroup]:
        if namespace not in self._groups:
            found = self._call.client.list("PodGroup", namespace=namespace)
            self._groups[namespace] = {
                item.metadata.uid: item for item in found if isinstance(item, PodGroup)
            }
        return self._groups[namespace]


class ObjectKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object of a request that deletes: its kind, and its key within the kind."""

    kind: str
    key: str


class ChangeRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The body of a request about several objects: all of it is done, or nothing.

    `objects` are manifests to submit or apply, `keys` objects to delete. `keepStop` names queues
    whose stopPolicy stays as it is stored.
    """

    verb: Literal["submit", "apply", "delete"]
    objects: tuple[dict[str, Any], ...] = ()
    keys: tuple[ObjectKey, ...] = ()
    keep_stop: tuple[str, ...] = ()
    dry_run: bool = False


def change_objects(call: ApiCall) -> ApiAnswer:
    """Submit, apply or delete objects."""
    wanted = call.body_as(ChangeRequest)
    call.require_a_role()
    if bool(wanted.keys) != (wanted.verb == "delete") or bool(wanted.objects) == bool(wanted.keys):
        raise bad_request("the body: expected objects to submit or apply, or keys to delete")
    applied: Sequence[Applied]
    if wanted.verb == "delete":
        for one in wanted.keys:
            if one.kind not in TARGETS or one.kind == "Pod":
                raise bad_request(f"kind: expected a kind of object, found {one.kind[:80]!r}")
        places = [(one.kind, one.key) for one in wanted.keys]
        _check_sight(call, places)
        applied = call.client.delete_all(
            places, dry_run=wanted.dry_run, permit=_permit(call, Verb.DELETE)
        )
    else:
        is_new = wanted.verb == "submit"
        manifests = [
            call.signed(one) if is_new and one.get("kind") == "PodGroup" else one
            for one in wanted.objects
        ]
        if is_new and not wanted.dry_run and call.body_bytes <= _REMEMBERED_BYTES:
            likely = _submitted_alone(call, manifests)
            if likely is not None:
                return ApiAnswer(document={"items": [_row(call, likely)]})
        objects = [decode(one) for one in manifests]
        change = call.client.submit_all if wanted.verb == "submit" else call.client.apply
        applied = change(
            objects,
            dry_run=wanted.dry_run,
            keep_stop=wanted.keep_stop,
            permit=_permit(call, Verb.CREATE if is_new else Verb.UPDATE),
        )
    return ApiAnswer(document={"items": [_row(call, one) for one in applied]})


def _submitted_alone(call: ApiCall, manifests: Sequence[dict[str, object]]) -> Applied | None:
    """Submit a single group, if it is likely to be accepted; None if it has to be planned."""
    if len(manifests) != 1 or manifests[0].get("kind") != "PodGroup":
        return None
    group = call.client.submit_likely(manifests[0], {}, permit=_permit(call, Verb.CREATE))
    return None if group is None else Applied(object=group, effect=Effect.CREATED)


def _check_sight(call: ApiCall, places: Sequence[tuple[str, str]]) -> None:
    """Refuse to delete groups that the caller may not know, as if there were none."""
    for kind, key in places:
        if kind == "PodGroup" and not call.knows(key):
            raise NotFound(f"{kind} {key} does not exist")


def _permit(call: ApiCall, change: Verb = Verb.UPDATE) -> Permit:
    """Return a function that refuses to create or to change what the caller may not.

    `change` is what is done to an object that exists. CREATE stands for a submission: it never
    changes a group, and updates other objects.
    """

    def permit(before: Object | None, item: Object) -> None:
        kind = kind_of(item)
        stored = before if isinstance(before, PodGroup) else None
        target = Target(
            kind=TARGETS[kind],
            namespace=item.metadata.namespace if kind in NAMESPACED else "",
            owner="" if stored is None else stored.status.submitted_by,
        )
        verb = Verb.CREATE if before is None else change
        if verb is Verb.CREATE and before is not None and stored is None:
            verb = Verb.UPDATE
        shown = "submit" if verb is Verb.CREATE and isinstance(item, PodGroup) else str(verb)
        decision = call.decide(target, verb)
        if not decision.allowed:
            call.refused = shown, str(target.kind), key_of(item)
            raise forbidden(decision.because, hint=decision.hint)
        if isinstance(item, PodGroup) and change is not Verb.DELETE:
            call.check_pod_tokens(item.spec.token)
            if stored is not None:
                if change is Verb.CREATE and stored.status.submitted_by not in call.identity.names:
                    raise name_of_another(call, stored)
                call.check_hidden_parts(stored, item)
        call.allowed_by = decision.because

    return permit


def _row(call: ApiCall, one: Applied) -> dict[str, object]:
    item = one.object
    if isinstance(item, PodGroup):
        item = seen(item, call.tier_of(item) or Tier.FACTS)
    return {
        "object": encode(item),
        "effect": str(one.effect),
        "changes": one.changes,
        "warnings": list(one.warnings),
    }


def suspend_group(call: ApiCall) -> ApiAnswer:
    """Suspend a group, and stop its pods."""
    group = call.meant_group()
    done = call.client.suspend(key_of(group), uid=group.metadata.uid)
    return ApiAnswer(document={"changed": done})


def resume_group(call: ApiCall) -> ApiAnswer:
    """Return a suspended group to the queue."""
    group = call.meant_group()
    done = call.client.resume(key_of(group), uid=group.metadata.uid)
    return ApiAnswer(document={"changed": done})


def cordon_node(call: ApiCall) -> ApiAnswer:
    """Stop placing pods on a node."""
    call.require("")
    done = call.client.cordon(call.path["name"], reason=reason_of(call))
    return ApiAnswer(document={"changed": done})


def uncordon_node(call: ApiCall) -> ApiAnswer:
    """Allow pods on a node again."""
    call.require("")
    return ApiAnswer(document={"changed": call.client.uncordon(call.path["name"])})


def put_object(kind: str) -> Callable[[ApiCall], ApiAnswer]:
    """Return the endpoint that creates an object of a kind, or replaces the one of `If-Match`."""

    def answer(call: ApiCall) -> ApiAnswer:
        call.require_a_role()
        item = _manifest(call, kind)
        permit = _permit(call)

        def permit_revision(before: Object | None, item: Object) -> None:
            permit(before, item)
            _check_revision(call, kind, before)

        [applied] = call.client.apply([item], permit=permit_revision)
        status = HTTPStatus.CREATED if applied.effect == "created" else HTTPStatus.OK
        document = {**encode(applied.object), "warnings": list(applied.warnings)}
        return ApiAnswer(document=document, status=status)

    return answer


def _manifest(call: ApiCall, kind: str) -> Object:
    data = call.json()
    if not isinstance(data, dict):
        raise bad_request(f"the body: expected the manifest of a {kind} as a JSON object")
    item = decode(data)
    if kind_of(item) != kind:
        raise bad_request(f"kind: expected {kind}, found {kind_of(item)}")
    stated = item.metadata.name, item.metadata.namespace or ""
    expected = call.path["name"], call.path.get("namespace", "")
    if stated != expected:
        raise bad_request(
            f"metadata: expected the name {'/'.join(filter(None, expected[::-1]))}, as in the path"
        )
    return item


def _check_revision(call: ApiCall, kind: str, before: Object | None) -> None:
    """Refuse to replace a state that the caller has not seen."""
    if before is None:
        if call.if_match:
            raise ApiProblem(
                HTTPStatus.PRECONDITION_FAILED, "Conflict", f"there is no such {kind} any more",
                exit_code=8,
            )  # fmt: skip
        return
    if not call.if_match:
        raise ApiProblem(
            HTTPStatus.PRECONDITION_REQUIRED, "Conflict",
            f"{kind} {before.metadata.name} exists: expected If-Match with its revision",
            hint="GET it, and send its ETag back as If-Match", exit_code=8,
        )  # fmt: skip
    if call.if_match != f'"{before.metadata.revision}"':
        raise ApiProblem(
            HTTPStatus.PRECONDITION_FAILED, "Conflict",
            f"{kind} {before.metadata.name} has changed since it was read",
            hint="GET it again, and repeat the change", exit_code=8,
        )  # fmt: skip
