"""The endpoints of tokens, bindings and the audit trail, and those with which agents join: a join
token, and the user of the server for one node.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from http import HTTPStatus
from typing import Literal, TypeVar

import msgspec
from msgspec import UNSET, Struct, structs

from batchq.api.access import (
    EVERYWHERE,
    OF_LOCAL,
    AccessDecision,
    Binding,
    Identity,
    Scope,
    Target,
    TargetKind,
    Tier,
    Verb,
    bindings_of,
    decide,
    in_local_groups,
    may_add_members,
    may_bind,
    namespace_of_account,
    parse_binding,
    target_of,
)
from batchq.api.notation import (
    DAY,
    format_duration,
    parse_duration,
    subdomain_problem,
)
from batchq.api_session import pinned_text
from batchq.client.access_control import (
    USUAL_DAYS,
    USUAL_INVITATION_MS,
    USUAL_JOIN_MS,
    USUAL_LINE_DAYS,
    TokenRecord,
    UserGroupRecord,
    service_accounts,
)
from batchq.client.access_rows import (
    account_row,
    audit_row,
    binding_row,
    listed_token_row,
    token_row,
)
from batchq.client.node_users import NodeRegistrar, is_for
from batchq.client.user_groups import group_row
from batchq.errors import Conflict, NotFound
from batchq.http.calls import ApiAnswer, ApiCall
from batchq.http.problems import ApiProblem, bad_request, forbidden

WordT = TypeVar("WordT", bound=StrEnum)

MOST_AUDITED = 1_000
USUALLY_AUDITED = 100


def show_me(call: ApiCall) -> ApiAnswer:
    """Return who the caller is, and its roles."""
    identity = call.identity
    record = call.context.book.state.tokens.get(identity.token)
    return ApiAnswer(
        document={
            "user": identity.user,
            "groups": list(identity.groups),
            "via": identity.via,
            "token": None if record is None else token_row(record),
            "roles": [
                {"role": str(one.role), "namespace": one.namespace, "subject": one.subject}
                for one in bindings_of(identity, call.context.bindings)
            ],
        }
    )


class TokenRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The body of a request for a token."""

    note: str = ""
    days: int = USUAL_DAYS
    rotate_days: int = USUAL_LINE_DAYS
    verbs: tuple[Verb, ...] = ()
    namespaces: tuple[str, ...] = ()


class BindingRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a grant."""

    subject: str
    role: str
    namespace: str = EVERYWHERE


def list_tokens(call: ApiCall) -> ApiAnswer:
    """Return the tokens that the caller may see."""
    call.is_decided = True
    call.context.book.renew(call.delegate.access)
    used = call.delegate.access.last_uses()
    now_ms = call.delegate.now_ms()
    rows = [
        listed_token_row(record, used.get(record.id), now_ms)
        for record in sorted(
            call.context.book.state.tokens.values(), key=lambda one: (one.made_at, one.id)
        )
        if _decide_about(call, record, Verb.READ).allowed
    ]
    return ApiAnswer(document={"kind": "TokenList", "items": rows})


def create_token(call: ApiCall) -> ApiAnswer:
    """Create a token of the caller. A token creates no tokens: its theft would outlast it."""
    decision = call.require("", owner=call.identity.user)
    if call.identity.via != "socket":
        raise forbidden(
            "a token cannot create tokens",
            hint="use the socket, or ask an operator: `batchq token create`",
        )
    return _created(call, call.identity.user, call.body_as(TokenRequest), decision)


def _created(
    call: ApiCall, owner: str, wanted: TokenRequest, decision: AccessDecision
) -> ApiAnswer:
    if wanted.rotate_days > USUAL_LINE_DAYS:
        raise bad_request(
            f"rotateDays: expected at most {USUAL_LINE_DAYS}, found {wanted.rotate_days}; only an"
            " operator of the Redis server makes tokens that are rotated for longer"
        )
    created = call.delegate.access.create_token(
        owner,
        call.actor,
        days=wanted.days,
        rotate_days=wanted.rotate_days,
        scope=Scope(verbs=wanted.verbs, namespaces=wanted.namespaces),
        note=wanted.note,
        because=decision.because,
    )
    call.context.book.renew(call.delegate.access)
    document = {"token": created.text, **token_row(created.record)}
    return ApiAnswer(document=document, status=HTTPStatus.CREATED)


class RotationRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a rotation: how long the former token stays valid."""

    overlap: str = format_duration(DAY)


def rotate_token(call: ApiCall) -> ApiAnswer:
    """Replace the caller's token. The new one's text is in this answer only."""
    identity = call.identity
    if identity.via != "token" or identity.by is not None:
        raise forbidden("only the owner of a token rotates it, by the token itself")
    return _rotated(call, identity.token)


def rotate_named_token(call: ApiCall) -> ApiAnswer:
    """Replace another token: of the account behind the socket, or of a service account.

    By a token, a user's own ones are not rotated: a stolen token of a narrow scope would get one of
    a wider scope.
    """
    call.context.book.renew(call.delegate.access)
    record = call.context.book.state.tokens.get(call.path["id"])
    call.is_decided = True
    if record is None or not _decide_about(call, record, Verb.READ).allowed:
        raise NotFound(f"there is no token {call.path['id'][:80]!r}")
    decision = _decide_about(call, record, Verb.CREATE)
    if not decision.allowed:
        raise forbidden(decision.because, hint=decision.hint)
    if call.identity.by is not None:
        raise forbidden("tokens are not rotated in the name of another user")
    if namespace_of_account(record.owner):
        _check_made_by(call, record.scope.verbs)
    elif call.identity.via != "socket":
        raise forbidden(
            "a token rotates no token but itself",
            hint="`batchq token rotate` without an ID; or use the socket of the API's machine",
        )
    return _rotated(call, record.id)


def _rotated(call: ApiCall, token: str) -> ApiAnswer:
    overlap_ms = _duration("overlap", call.body_as(RotationRequest).overlap)
    access = call.delegate.access
    created = access.rotate(token, call.actor, overlap_ms=overlap_ms)
    call.context.book.renew(access)
    document = {"token": created.text, **token_row(created.record)}
    return ApiAnswer(document=document, status=HTTPStatus.CREATED)


def _duration(field: str, text: str) -> int:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise bad_request(f"{field}: {error}") from None


def redeem_invitation(call: ApiCall) -> ApiAnswer:
    """Exchange the caller's invitation for a token, whose text is in this answer only."""
    book = call.context.book
    record = book.state.tokens[call.identity.token]
    created = call.delegate.access.redeem(record, call.actor)
    book.renew(call.delegate.access)
    document = {"token": created.text, **token_row(created.record)}
    return ApiAnswer(document=document, status=HTTPStatus.CREATED)


class LoginRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a login: the ID token of the identity provider."""

    token: str


def show_login(call: ApiCall) -> ApiAnswer:
    """Return the identity provider that this API trusts, and its own id there; or null."""
    trusted = call.context.id_tokens
    if trusted is None:
        return ApiAnswer(document={"oidc": None})
    settings = trusted.settings
    oidc = {"issuer": settings.issuer, "client": settings.client, "scope": settings.scope}
    return ApiAnswer(document={"oidc": oidc})


def log_in(call: ApiCall) -> ApiAnswer:
    """Exchange an ID token, once, for a token whose text is in this answer only."""
    trusted = call.context.id_tokens
    if trusted is None:
        raise NotFound("this API trusts no identity provider", hint="see `batchq api --help`")
    login = trusted.login_of(call.body_as(LoginRequest).token)
    actor = structs.replace(call.actor, user=login.user)
    created = call.delegate.access.log_in(login.user, login.groups, login.proof, actor)
    call.context.book.renew(call.delegate.access)
    document = {"token": created.text, **token_row(created.record)}
    return ApiAnswer(document=document, status=HTTPStatus.CREATED)


class InvitationRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of an invitation. It `lasts` some hours; `role` is given to the user, too."""

    lasts: str = format_duration(USUAL_INVITATION_MS)
    role: str = ""
    namespace: str = EVERYWHERE
    note: str = ""


def invite_user(call: ApiCall) -> ApiAnswer:
    """Create an invitation for a user, whose text is in this answer only."""
    user = call.path["name"]
    decision = call.require("")
    wanted = call.body_as(InvitationRequest)
    binding = None
    if wanted.role:
        binding = parse_binding(f"user:{user}", wanted.role, wanted.namespace)
        _may_bind(call, Verb.CREATE, binding)
    lasts_ms = _duration("lasts", wanted.lasts)
    created = call.delegate.access.invite(
        user, call.actor, lasts_ms=lasts_ms, note=wanted.note, because=decision.because
    )
    if binding is not None:
        call.delegate.access.grant(binding, call.actor, because=decision.because)
    call.context.book.renew(call.delegate.access)
    text = pinned_text(created.text, call.context.certificate)
    document = {**token_row(created.record), "invitation": text}
    return ApiAnswer(document=document, status=HTTPStatus.CREATED)


def revoke_token(call: ApiCall) -> ApiAnswer:
    """Revoke a token."""
    call.context.book.renew(call.delegate.access)
    token = call.path["id"]
    record = call.context.book.state.tokens.get(token)
    call.is_decided = True
    decision = _decide_about(call, record, Verb.DELETE)
    if record is None or not _decide_about(call, record, Verb.READ).allowed:
        raise NotFound(f"there is no token {token[:80]!r}")
    if not decision.allowed:
        raise forbidden(decision.because, hint=decision.hint)
    revoked = call.delegate.access.revoke_token(token, call.actor, because=decision.because)
    call.context.book.renew(call.delegate.access)
    return ApiAnswer(document=token_row(revoked))


def _decide_about(call: ApiCall, record: TokenRecord | None, verb: Verb) -> AccessDecision:
    """Decide about a token: its owner's right, or that of the admins of a service account."""
    # The owner of a join token is a node, although an account might have such a name.
    owner = "" if record is None or record.node is not UNSET else record.owner
    decision = call.decide(Target(kind=TargetKind.TOKENS, owner=owner), verb)
    home = namespace_of_account(owner)
    if decision.allowed or not home:
        return decision
    return call.decide(Target(kind=TargetKind.SERVICE_ACCOUNTS, namespace=home), verb)


def list_accounts(call: ApiCall) -> ApiAnswer:
    """Return the service accounts of a namespace."""
    namespace = call.path["namespace"]
    call.require(namespace)
    found = service_accounts(call.context.book.state, call.delegate.now_ms())
    rows = [account_row(one) for one in found if namespace_of_account(one.name) == namespace]
    return ApiAnswer(document={"kind": "ServiceAccountList", "items": rows})


def create_account_token(call: ApiCall) -> ApiAnswer:
    """Create a token of a service account, which permits no verb that the caller's token does
    not.
    """
    decision = call.require(call.path["namespace"])
    wanted = call.body_as(TokenRequest)
    _check_made_by(call, wanted.verbs)
    return _created(call, _account_of(call), wanted, decision)


def _check_made_by(call: ApiCall, verbs: Sequence[Verb]) -> None:
    """Refuse to make a token of a service account that permits more than the caller's own."""
    if call.identity.home:
        # What it made would outlast the revocation of its own token.
        raise forbidden(
            "a service account cannot create tokens",
            hint="`batchq token rotate` replaces its own; admins of the namespace create others",
        )
    mine = call.identity.scope.verbs
    if mine and not (verbs and set(verbs) <= set(mine)):
        raise forbidden(
            f"the scope of your own token has the verbs {', '.join(mine)} only, and a token of the"
            " service account would permit more",
            hint="name verbs of these",
        )


def delete_account(call: ApiCall) -> ApiAnswer:
    """Revoke all tokens of a service account, and take its roles away."""
    decision = call.require(call.path["namespace"])
    found = call.delegate.access.delete_account(
        _account_of(call), call.actor, because=decision.because
    )
    call.context.book.renew(call.delegate.access)
    return ApiAnswer(document=account_row(found))


def _account_of(call: ApiCall) -> str:
    return f"{call.path['namespace']}:{call.path['name']}"


def list_bindings(call: ApiCall) -> ApiAnswer:
    """Return the bindings that the caller may see."""
    call.is_decided = True
    call.context.book.renew(call.delegate.access)
    found = [
        binding_row(one)
        for _, one in sorted(call.context.book.state.bindings.items())
        if call.decide(target_of(one.binding), Verb.READ).allowed
    ]
    return ApiAnswer(document={"kind": "BindingList", "items": found})


def grant(call: ApiCall) -> ApiAnswer:
    """Give a role to a user or a group of users."""
    wanted = call.body_as(BindingRequest)
    binding = parse_binding(wanted.subject, wanted.role, wanted.namespace)
    decision = _may_bind(call, Verb.CREATE, binding)
    is_new = call.delegate.access.grant(binding, call.actor, because=decision.because)
    call.context.book.renew(call.delegate.access)
    status = HTTPStatus.CREATED if is_new else HTTPStatus.OK
    return ApiAnswer(document=msgspec.to_builtins(binding), status=status)


def withdraw(call: ApiCall) -> ApiAnswer:
    """Take a role away."""
    namespace = call.text("namespace") or EVERYWHERE
    binding = parse_binding(call.text("subject"), call.text("role"), namespace)
    decision = _may_bind(call, Verb.DELETE, binding)
    call.delegate.access.withdraw(binding, call.actor, because=decision.because)
    call.context.book.renew(call.delegate.access)
    return ApiAnswer(document=msgspec.to_builtins(binding))


def _may_bind(call: ApiCall, verb: Verb, binding: Binding) -> AccessDecision:
    call.is_decided = True
    decision = may_bind(call.identity, call.context.bindings, verb, binding)
    if not decision.allowed:
        raise forbidden(decision.because, hint=decision.hint)
    return decision


class UserGroupRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request for a local group."""

    name: str
    members: tuple[str, ...] = ()


class MembersRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a change of a local group's members."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


def list_user_groups(call: ApiCall) -> ApiAnswer:
    """Return the local groups, with their members and roles."""
    call.require("")
    state = call.context.book.state
    rows = [group_row(one, state) for _, one in sorted(state.groups.items())]
    return ApiAnswer(document={"kind": "UserGroupList", "items": rows})


def create_user_group(call: ApiCall) -> ApiAnswer:
    """Create a local group."""
    wanted = call.body_as(UserGroupRequest)
    decision = _may_add(call, wanted.members)
    made = call.delegate.groups.create(
        wanted.name, wanted.members, call.actor, because=decision.because
    )
    return _group_answer(call, made, HTTPStatus.CREATED)


def change_user_group(call: ApiCall) -> ApiAnswer:
    """Add members to a local group, and remove others."""
    wanted = call.body_as(MembersRequest)
    decision = _may_add(call, wanted.add)
    changed = call.delegate.groups.change(
        call.path["name"], call.actor, add=wanted.add, remove=wanted.remove,
        because=decision.because,
    )  # fmt: skip
    return _group_answer(call, changed, HTTPStatus.OK)


def delete_user_group(call: ApiCall) -> ApiAnswer:
    """Delete a local group, and take its roles away."""
    decision = call.require("")
    row = call.delegate.groups.delete(call.path["name"], call.actor, because=decision.because)
    call.context.book.renew(call.delegate.access)
    return ApiAnswer(document=row)


def _group_answer(call: ApiCall, record: UserGroupRecord, status: HTTPStatus) -> ApiAnswer:
    book = call.context.book
    book.renew(call.delegate.access)
    return ApiAnswer(document=group_row(record, book.state), status=status)


def _may_add(call: ApiCall, members: Sequence[str]) -> AccessDecision:
    call.is_decided = True
    assert call.route.verb is not None
    decision = may_add_members(call.identity, call.context.bindings, call.route.verb, members)
    if not decision.allowed:
        raise forbidden(decision.because, hint=decision.hint)
    return decision


def explain_right(call: ApiCall) -> ApiAnswer:
    """Say whether a user may do something, and why: to the user, or to those who see every role."""
    user = call.text("user") or call.identity.user
    call.is_decided = True
    call.context.book.renew(call.delegate.access)
    bindings, memberships = call.context.book.rights
    identity = in_local_groups(call.identity, memberships)
    if user != identity.user:
        call.require("")
        other = Identity(user=user, via="token", groups=_groups_of(call))
        identity = in_local_groups(other, memberships)
    elif call.text("groups"):
        raise bad_request("groups: your own groups are known", hint="leave them out")
    target = Target(
        kind=_one_of(call, "kind", TargetKind),
        namespace=call.text("namespace"),
        owner=call.text("owner"),
    )
    tier = _one_of(call, "tier", Tier) if call.text("tier") else Tier.FACTS
    decision = decide(
        identity, bindings, _one_of(call, "verb", Verb), target, tier=tier,
        visibility=call.context.visibility,
    )  # fmt: skip
    return ApiAnswer(document=decision)


def _groups_of(call: ApiCall) -> tuple[str, ...]:
    groups = tuple(filter(None, call.text("groups").split(",")))
    for one in groups:
        if one.startswith(OF_LOCAL):
            raise bad_request(
                f"groups: {one[:80]}: the local groups of a user are known", hint="leave it out"
            )
    return groups


def _one_of(call: ApiCall, name: str, kind: type[WordT]) -> WordT:
    found = call.text(name)
    try:
        return kind(found)
    except ValueError:
        raise bad_request(
            f"{name}: expected one of {', '.join(map(str, kind))}, found {found[:80]!r}"
        ) from None


def read_audit(call: ApiCall) -> ApiAnswer:
    """Return the latest records of the audit trail, oldest first."""
    call.require("")
    most = call.number("limit", USUALLY_AUDITED, MOST_AUDITED) or USUALLY_AUDITED
    rows = [audit_row(entry) for entry in call.delegate.access.audit(most)]
    return ApiAnswer(document={"kind": "AuditList", "items": rows})


def record_refusal(call: ApiCall, problem: ApiProblem) -> None:
    """Record that a call was refused. Raises StoreUnavailable."""
    verb, kind, name = call.refused or _named(call)
    _record(call, (_SHOWN_VERBS.get(call.route.name, verb), kind, name), problem.detail, "refused")


def record_use(call: ApiCall, because: str) -> None:
    """Record a use of a right over what belongs to another user. Raises StoreUnavailable."""
    _record(call, _named(call), because, "done")


#: What a user calls a change for which the rights have another verb: by the name of the route.
_SHOWN_VERBS = {
    "submitGroup": "submit",
    "submitGroups": "submit",
    "suspendGroup": "suspend",
    "resumeGroup": "resume",
    "cordonNode": "cordon",
    "uncordonNode": "uncordon",
}


def _named(call: ApiCall) -> tuple[str, str, str]:
    """Return the verb, the kind and the name of what a call is about, as its route has them."""
    route = call.route
    has_tiers = route.verb is Verb.READ and route.kind is TargetKind.GROUPS
    kind = f"the {route.tier} of groups" if has_tiers else str(route.kind)
    verb = route.name if route.verb is None else str(route.verb)
    return verb, kind, "/".join(call.path.values())


def _record(
    call: ApiCall, named: tuple[str, str, str], because: str, outcome: Literal["done", "refused"]
) -> None:
    verb, kind, name = named
    call.delegate.access.record(
        call.actor, verb, kind, name[:200], because=because, outcome=outcome
    )


class NodeInvitation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request for a join token, which `lasts` a while."""

    lasts: str = format_duration(USUAL_JOIN_MS)


class NodePassword(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of an agent that joins: the SHA-256 of its password, in hexadecimal digits."""

    digest: str


def invite_node(call: ApiCall) -> ApiAnswer:
    """Make a join token for the agent of a node, whose text is in this answer only."""
    decision = call.require("")
    _registrar(call)
    wanted = call.body_as(NodeInvitation)
    lasts_ms = _duration("lasts", wanted.lasts)
    created = call.delegate.access.invite_node(
        call.path["name"], call.actor, lasts_ms=lasts_ms, because=decision.because
    )
    call.context.book.renew(call.delegate.access)
    text = pinned_text(created.text, call.context.certificate)
    document = {**token_row(created.record), "join": text}
    return ApiAnswer(document=document, status=HTTPStatus.CREATED)


class NodesInvitation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request for a join token of new nodes, whose names have a pattern."""

    pattern: str
    uses: int = 1
    lasts: str = format_duration(USUAL_JOIN_MS)


def invite_nodes(call: ApiCall) -> ApiAnswer:
    """Make a join token for agents of new nodes, whose text is in this answer only."""
    decision = call.require("")
    _registrar(call)
    wanted = call.body_as(NodesInvitation)
    created = call.delegate.access.invite_nodes(
        wanted.pattern, call.actor, uses=wanted.uses, lasts_ms=_duration("lasts", wanted.lasts),
        because=decision.because,
    )  # fmt: skip
    call.context.book.renew(call.delegate.access)
    text = pinned_text(created.text, call.context.certificate)
    return ApiAnswer(
        document={**token_row(created.record), "join": text}, status=HTTPStatus.CREATED
    )


def join_node(call: ApiCall) -> ApiAnswer:
    """Make the user of a node, and return its name and the server's URL."""
    registrar = _registrar(call)
    node, access, book = call.path["name"], call.delegate.access, call.context.book
    book.renew(access)
    record = book.state.tokens.get(call.identity.token)
    if record is None or record.node is UNSET or not is_for(record.node, node):
        place = "" if record is None else f" is for node {record.node}, and"
        raise forbidden(
            f"join token {call.identity.token}{place} does not permit joining as node {node[:80]}",
            hint="`batchq nodes invite NODE` makes one for another node",
        )
    digest = call.body_as(NodePassword).digest
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise bad_request("digest: expected 64 hexadecimal digits of a SHA-256")
    is_new = record.uses is not UNSET
    try:
        access.join(record, node, digest, call.actor)
        made = registrar.make_user(node, digest, is_new=is_new)
    except Conflict as error:
        raise forbidden(error.message, hint=error.hint) from None
    if not access.has_joined(record.id, node, digest):
        # The node was revoked after its token was used up, and maybe before there was a user.
        registrar.remove_user(node)
        raise forbidden(f"node {node} was revoked meanwhile")
    return ApiAnswer(document={"node": node, "user": made.user, "url": made.url})


def revoke_node(call: ApiCall) -> ApiAnswer:
    """Remove the user of a node, whose agent can do nothing more, and its join tokens."""
    decision = call.require("")
    registrar, node = _registrar(call), call.path["name"]
    if problem := subdomain_problem(node):
        raise bad_request(f"node {node[:80]!r}: {problem}")
    tokens = call.delegate.access.revoke_node(node, call.actor, because=decision.because)
    call.context.book.renew(call.delegate.access)
    had_user = registrar.remove_user(node)
    if not had_user and not tokens:
        raise NotFound(f"node {node} has no user of the server, and no join token")
    return ApiAnswer(document={"node": node, "user": had_user, "tokens": tokens})


def _registrar(call: ApiCall) -> NodeRegistrar:
    if call.context.registrar is None:
        raise NotFound(
            "this API makes no users of nodes, because it has no registrar",
            hint="start `batchq registrar`, and `batchq api` with its socket as --registrar",
        )
    return call.context.registrar
