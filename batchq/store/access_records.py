"""Tokens, bindings, local groups and the audit trail, and the one script that writes them.

Their keys lie outside the pattern that all roles may read. A token is stored as the SHA-256 of its
secret. The script that changes a token or a binding appends the audit record of the change, so that
neither exists without the other. The digest of each audit record covers the record before it: to
remove or alter one unnoticed, all later digests would have to be replaced.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from secrets import token_hex
from typing import Any, Literal, NamedTuple, TypeVar, cast

import msgspec
import redis
from msgspec import UNSET, Struct, UnsetType, structs

from batchq.api.access import (
    OF_ACCOUNT,
    Binding,
    Scope,
    TokenKind,
    Via,
    local_group,
    namespace_of_account,
)
from batchq.api.exec_session import COMMAND_STARTED
from batchq.api.notation import DAY
from batchq.api.objects import Unreadable
from batchq.api.transaction import Transaction
from batchq.errors import Conflict, StoreUnavailable
from batchq.store import keys, scripts
from batchq.store.link import DAMAGED, Link, is_wrong_type
from batchq.store.records import DAMAGE, name_of, read_units, whole

_R = TypeVar("_R", "TokenRecord", "BindingRecord", "UserGroupRecord")

#: Audit records in one reply.
_PAGE = 1_000
#: A writer that always comes second gives up.
_TRIES = 50
#: What rights, and so the audit trail, call the kinds of objects.
_KINDS = {"PodGroup": "groups", "Queue": "queues", "Node": "nodes", "ResourceQuota": "quotas"}
#: What users call the changes that are known by their event.
_SHOWN_VERBS = {
    "Cancelled": "cancel",
    "Suspended": "suspend",
    "Resumed": "resume",
    "Cordoned": "cordon",
    "Uncordoned": "uncordon",
    "Stopped": "stop",
    "Draining": "stop",
}
#: Objects of one request that its audit record names.
_MOST_AUDITED = 10
_DIGEST = re.compile("[0-9a-f]*")
#: How long a token may be rotated on, from the first one of its line.
USUAL_LINE_MS = 365 * DAY


class TokenRecord(Struct, frozen=True, kw_only=True, rename="camel"):
    """A token as stored. `digest` is the SHA-256 of its secret, in hex. Instants in milliseconds.

    An invitation is good for one thing: to be exchanged, once, for a token of its owner. A join
    token is for the agent of `node`, and is good for making the node's user of the server, once;
    `joined_with` is the SHA-256 of that user's password, "" once it was revoked.
    A revoked token is kept for a while, so that its user learns why it is refused.
    """

    id: str
    digest: str
    owner: str
    made_by: str
    made_at: int
    expires_at: int
    revoked_at: int | None = None
    scope: Scope = Scope()
    note: str = ""
    #: Absent in tokens, as in those of earlier versions: a change compares the stored bytes.
    invitation: bool | UnsetType = UNSET
    node: str | UnsetType = UNSET
    joined_with: str | UnsetType = UNSET
    #: Of a join token for new nodes, whose names have the pattern `node`: how many there may be,
    #: and the SHA-256 of the password of each that has joined, "" once it was revoked.
    uses: int | UnsetType = UNSET
    joined: dict[str, str] | UnsetType = UNSET
    #: Of the owner, as the provider named them at the login.
    groups: tuple[str, ...] | UnsetType = UNSET
    #: The id of the first token in its line of rotations; absent in that one.
    replaces: str | UnsetType = UNSET
    #: When its line of rotations ends at most; absent in tokens of earlier versions.
    line_ends_at: int | UnsetType = UNSET

    @property
    def kind(self) -> TokenKind:
        """What it may be used for."""
        if self.node is not UNSET:
            return "join"
        return "invitation" if self.invitation is True else "token"

    def password_of(self, node: str) -> str | UnsetType:
        """The SHA-256 of the password with which a node has joined by this token; unset if none."""
        if self.uses is UNSET:
            return self.joined_with
        return UNSET if self.joined is UNSET else self.joined.get(node, UNSET)

    def with_node(self, node: str, digest: str, now_ms: int) -> TokenRecord:
        """Return the join token as a node has used it, with the SHA-256 of its password."""
        if self.uses is UNSET:
            return structs.replace(self, revoked_at=now_ms, joined_with=digest)
        joined = {**({} if self.joined is UNSET else self.joined), node: digest}
        is_last = len(joined) >= self.uses
        return structs.replace(self, joined=joined, revoked_at=now_ms if is_last else None)

    def without_node(self, node: str, now_ms: int) -> TokenRecord:
        """Return the join token as one that is of no use to a node any more."""
        if self.uses is UNSET:
            revoked_at = self.revoked_at or now_ms
            used = UNSET if self.joined_with is UNSET else ""
            return structs.replace(self, revoked_at=revoked_at, joined_with=used)
        assert self.joined is not UNSET
        return structs.replace(self, joined=self.joined | {node: ""})

    @property
    def ends_at(self) -> int:
        """When it expires or was revoked."""
        return self.expires_at if self.revoked_at is None else min(self.expires_at, self.revoked_at)

    @property
    def rotated_until(self) -> int:
        """When the last token of its line of rotations ends at most."""
        if self.line_ends_at is not UNSET:
            return self.line_ends_at
        return max(self.expires_at, self.made_at + USUAL_LINE_MS)

    @property
    def first(self) -> str:
        """The id of the first token in its line of rotations."""
        return self.id if self.replaces is UNSET else self.replaces


class BindingRecord(Struct, frozen=True, kw_only=True, rename="camel"):
    """A binding as stored."""

    binding: Binding
    made_by: str
    made_at: int


class UserGroupRecord(Struct, frozen=True, kw_only=True, rename="camel"):
    """A local group as stored: the names of its users, sorted."""

    name: str
    members: tuple[str, ...]
    made_by: str
    made_at: int
    #: How many roles it was given: a deletion that knows fewer would leave one of them. Unset in
    #: records of earlier versions, which are compared with what is stored byte for byte.
    roles_given: int | UnsetType = UNSET


class AuditRecord(Struct, frozen=True, kw_only=True, rename="camel"):
    """What was done, or refused: by which user, through which door, to what, and why it might.

    `because` names the binding that allowed it, or what was missing. `at` is the server's time.
    """

    at: int
    user: str
    via: Via | Literal["redis"]
    verb: str
    kind: str
    name: str
    outcome: Literal["done", "refused"]
    token: str = ""
    address: str = ""
    because: str = ""
    #: The user who acted in the name of `user`, and why.
    by: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    previous: str = ""


class AuditEntry(Struct, frozen=True, kw_only=True):
    """An audit record as read. `is_chained`: its digest covers it and the record before it."""

    record: AuditRecord
    digest: str
    is_chained: bool


class AccessState(Struct, frozen=True, kw_only=True):
    """All tokens by id, all bindings by key, and all local groups by name, at a revision of all.

    `memberships` are the names of the groups that each user is a member of.
    """

    revision: int = -1
    tokens: dict[str, TokenRecord] = {}
    bindings: dict[str, BindingRecord] = {}
    groups: dict[str, UserGroupRecord] = {}
    memberships: Mapping[str, Sequence[str]] = {}

    def ended_first(self, owner: str, kept: int, now_ms: int) -> list[TokenRecord]:
        """Return the tokens of a user that ended first, without the last `kept` ones."""
        ended = [
            one
            for one in self.tokens.values()
            if one.owner == owner and one.kind == "token" and one.ends_at <= now_ms
        ]
        return sorted(ended, key=lambda one: one.ends_at)[: max(0, len(ended) - kept)]

    def join_tokens_of(self, node: str) -> list[TokenRecord]:
        """Return the join tokens of a node, and those for new nodes with which it has joined."""
        return [
            one
            for one in self.tokens.values()
            if one.node == node or (one.uses is not UNSET and one.password_of(node) is not UNSET)
        ]

    def successors(self, record: TokenRecord) -> list[TokenRecord]:
        """Return the tokens that were made later in a token's line of rotations."""
        # All others follow the first, even if the clock has been set back since.
        since = 0 if record.first == record.id else record.made_at
        return [
            one
            for one in self.tokens.values()
            if one.replaces == record.first and one.id != record.id and one.made_at >= since
        ]


class ServiceAccount(NamedTuple):
    """A service account: its roles, and its tokens that are valid."""

    name: str
    roles: Sequence[BindingRecord]
    tokens: Sequence[TokenRecord]


def service_accounts(state: AccessState, now_ms: int) -> list[ServiceAccount]:
    """Return the service accounts that have roles or valid tokens, by name."""
    roles: dict[str, list[BindingRecord]] = {}
    tokens: dict[str, list[TokenRecord]] = {}
    for _, role in sorted(state.bindings.items()):
        account = role.binding.subject.removeprefix(OF_ACCOUNT)
        if account != role.binding.subject:
            roles.setdefault(account, []).append(role)
    for token in sorted(state.tokens.values(), key=lambda one: (one.made_at, one.id)):
        is_valid = token.revoked_at is None and token.expires_at > now_ms
        if is_valid and token.node is UNSET and namespace_of_account(token.owner):
            tokens.setdefault(token.owner, []).append(token)
    return [
        ServiceAccount(name, roles.get(name, ()), tokens.get(name, ()))
        for name in sorted({*roles, *tokens})
    ]


class FieldChange(Struct, frozen=True, kw_only=True):
    """A change of a token, binding or local group: its values before and after, None if absent."""

    field: str
    before: TokenRecord | BindingRecord | UserGroupRecord | None
    after: TokenRecord | BindingRecord | UserGroupRecord | None


def _ask(link: Link, name: str, command: Callable[[redis.Redis], Any]) -> Any:
    """Ask about one key; the error names it if it is of another type, because no leader repairs it.

    Raises StoreUnavailable.
    """

    def asked(client: redis.Redis) -> Any:
        try:
            return command(client)
        except redis.ResponseError as error:
            if is_wrong_type(error):
                raise redis.ResponseError(f"{DAMAGED} {name} is of another type") from error
            raise

    return link.ask(asked)


def _all_of(name: str, client: redis.Redis) -> dict[bytes, bytes]:
    return cast("dict[bytes, bytes]", client.hgetall(name))


def _state(link: Link, field: str) -> bytes | None:
    name = keys.ACCESS_STATE
    return cast("bytes | None", _ask(link, name, lambda client: client.hget(name, field)))


def read_access_revision(link: Link) -> int:
    """Return the count of changes of tokens and bindings. Raises StoreUnavailable."""
    return whole(_state(link, "revision")) or 0


def read_access(link: Link) -> AccessState:
    """Return all tokens, bindings and local groups. A record that cannot be read gives no rights.

    Raises StoreUnavailable.
    """
    # The revision comes first: a change meanwhile is read again with the next revision.
    revision = read_access_revision(link)
    tokens, bindings = (
        _ask(link, name, partial(_all_of, name)) for name in (keys.TOKENS, keys.BINDINGS)
    )
    # A group's field is its subject; the field of a binding has spaces.
    groups = {field: value for field, value in bindings.items() if _is_group(field)}
    roles = {field: value for field, value in bindings.items() if field not in groups}
    found = {
        name: group
        for subject, group in _decoded(groups, UserGroupRecord).items()
        if (name := local_group(subject)) is not None and name == group.name
    }
    memberships: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(found):
        for user in found[name].members:
            memberships[user].append(name)
    return AccessState(
        revision=revision,
        tokens=_decoded(tokens, TokenRecord),
        bindings=_decoded(roles, BindingRecord),
        groups=found,
        memberships=dict(memberships),
    )


def _is_group(field: bytes) -> bool:
    return local_group(field.decode(errors="replace")) is not None


def _decoded(stored: dict[bytes, bytes], kind: type[_R]) -> dict[str, _R]:
    found = {}
    for field, value in stored.items():
        try:
            found[field.decode()] = msgspec.json.decode(value, type=kind)
        except DAMAGE:
            continue
    return found


def write_access(
    link: Link, record: AuditRecord, changes: Sequence[FieldChange] = (), *, of_bindings: bool
) -> None:
    """Write the changes (of bindings, or of tokens) and the audit record, in one step.

    Raises Conflict if something has changed meanwhile, StoreUnavailable.
    """
    key = keys.BINDINGS if of_bindings else keys.TOKENS
    words = (token_hex(16), *(word for change in changes for word in _words(change)))
    for _ in range(_TRIES):
        previous = _last_digest(link)
        text = msgspec.json.encode(msgspec.structs.replace(record, previous=previous))
        arguments = (previous, text, digest_of(previous, text), *words)
        names = (key, keys.ACCESS_STATE, keys.AUDIT)
        match link.run(scripts.ACCESS, names, arguments):
            case b"ok":
                return
            case b"changed":
                raise Conflict(
                    f"{record.kind} {record.name} was changed by another process just now",
                    hint="look again, and repeat it if it is still needed",
                )
    raise StoreUnavailable("the audit trail is written by too many processes at a time")


def _words(change: FieldChange) -> tuple[str, bytes, bytes]:
    before, after = (
        b"" if value is None else msgspec.json.encode(value)
        for value in (change.before, change.after)
    )
    return change.field, before, after


def _last_digest(link: Link) -> str:
    """Return the digest of the last audit record; "" for a malformed one, as the script does."""
    text = (_state(link, "digest") or b"").decode(errors="replace")
    return text if _DIGEST.fullmatch(text) else ""


def digest_of(previous: str, record: bytes, *, by_script: bool = False) -> str:
    """Return the digest of an audit record after the one with the digest `previous`.

    A script that computes it itself has SHA-1 only. It serves as well here: to put another record
    in the place of one, a second text of the same digest would have to be found.
    """
    text = previous.encode() + b"\n" + record
    if by_script:
        return hashlib.sha1(text, usedforsecurity=False).hexdigest()
    return hashlib.sha256(text).hexdigest()


def read_audit(link: Link, most: int) -> list[AuditEntry]:
    """Return the latest records of the audit trail, oldest first.

    If the newest records are not those written last, an entry that is not chained says so. Raises
    StoreUnavailable.
    """
    last, newest = link.ask(_end_of_trail)
    # One more, to check the chain of the oldest one that is returned.
    found = list(_newest_first(link, newest, most + 1))
    found.reverse()
    digests = [digest for _, digest, _ in found]
    entries = []
    for place, (text, digest, stated) in enumerate(found):
        try:
            record = msgspec.json.decode(text, type=AuditRecord)
        except DAMAGE:
            record = _UNREADABLE
        previous = record.previous if stated is None else stated
        before = digests[place - 1] if place else previous
        expected = digest_of(before, text, by_script=stated is not None)
        is_chained = previous == before and digest == expected
        entries.append(AuditEntry(record=record, digest=digest, is_chained=is_chained))
    if last != (digests[-1] if digests else ""):
        entries.append(AuditEntry(record=_MISSING, digest=last, is_chained=False))
    return entries[-most:]


_UNREADABLE = AuditRecord(
    at=0, user="", via="redis", verb="", kind="", name="an unreadable record", outcome="done"
)
_MISSING = msgspec.structs.replace(_UNREADABLE, name="the newest records, removed or replaced")


def _end_of_trail(client: redis.Redis) -> tuple[str, str]:
    """Return the digest of the last record as the state has it, and the id of the newest one."""
    pipeline = client.pipeline(transaction=True)
    pipeline.hget(keys.ACCESS_STATE, "digest")
    pipeline.xrevrange(keys.AUDIT, count=1)
    last, page = pipeline.execute(raise_on_error=False)
    for answer, name in ((last, keys.ACCESS_STATE), (page, keys.AUDIT)):
        if isinstance(answer, redis.ResponseError) and is_wrong_type(answer):
            raise redis.ResponseError(f"{DAMAGED} {name} is of another type")
        if isinstance(answer, Exception):
            raise answer
    return (last or b"").decode(errors="replace"), page[0][0].decode() if page else "0"


def _newest_first(link: Link, newest: str, most: int) -> Iterator[tuple[bytes, str, str | None]]:
    """Yield records from the one with the id `newest` on, their digests, and the digest before each
    if the record does not state it.
    """
    last = newest
    while most > 0:
        count = min(most, _PAGE)
        page = _ask(link, keys.AUDIT, partial(_page, last, count))
        for _, fields in page:
            digest, stated = fields.get(b"digest", b""), fields.get(b"previous")
            yield (
                fields.get(b"record", b""),
                digest.decode(errors="replace"),
                None if stated is None else stated.decode(errors="replace"),
            )
        if len(page) < count:
            return
        most -= count
        last = f"({page[-1][0].decode()}"


def _page(last: str, count: int, client: redis.Redis) -> list[tuple[bytes, dict[bytes, bytes]]]:
    return client.xrevrange(keys.AUDIT, last, "-", count=count)  # type: ignore[return-value]  # of a synchronous client


#: How each field of a key is read.
_READERS: dict[str, Callable[[bytes], object]] = {
    keys.TOKENS: partial(msgspec.json.decode, type=TokenRecord),
    keys.TOKENS_USED: read_units,
    keys.BINDINGS: partial(msgspec.json.decode, type=BindingRecord),
}
_AS_GROUP = partial(msgspec.json.decode, type=UserGroupRecord)
_AT_NEXT_CHANGE = "the next change of a token or binding repairs it"
_IN_TRAIL = "none: the trail stays as it is, and `batchq access audit` shows the record"


def damaged_access(link: Link) -> list[Unreadable] | None:
    """Return the malformed tokens, bindings, last uses and latest audit records, and the keys of
    another type; None for a user who may not read them. Raises StoreUnavailable.
    """

    def asked(client: redis.Redis) -> list[Any]:
        pipeline = client.pipeline(transaction=False)
        for name in (*_READERS, keys.ACCESS_STATE):
            pipeline.hgetall(name)
        pipeline.xrevrange(keys.AUDIT, count=_PAGE)
        return pipeline.execute(raise_on_error=False)

    found: list[Unreadable] = []
    names = (*_READERS, keys.ACCESS_STATE, keys.AUDIT)
    for name, answer in zip(names, link.ask(asked), strict=True):
        if isinstance(answer, redis.exceptions.NoPermissionError):
            return None
        if is_wrong_type(answer):
            remedy = f"delete it as a user with all rights, `DEL {name}`: what it holds is lost"
            found.append(_damaged("Key", name, "it is of another type", remedy))
        elif isinstance(answer, Exception):
            raise link.unavailable(answer) from answer
        elif name in _READERS:
            found += _damaged_fields(name, answer)
        elif name == keys.ACCESS_STATE:
            if whole(answer.get(b"revision", b"0")) is None:
                found.append(_damaged("Key", name, "its revision is no number", _AT_NEXT_CHANGE))
        else:
            found += [
                _damaged("Entry", f"{name} {name_of(id_)}", "not an audit record", _IN_TRAIL)
                for id_, fields in answer
                if not _is_readable(_AS_AUDIT_RECORD, fields.get(b"record", b""))
            ]
    return found


_AS_AUDIT_RECORD = partial(msgspec.json.decode, type=AuditRecord)


def _damaged(kind: str, key: str, why: str, remedy: str) -> Unreadable:
    return Unreadable(kind=kind, key=key, why=why, remedy=remedy)


def _damaged_fields(name: str, stored: dict[bytes, bytes]) -> list[Unreadable]:
    found = []
    for field in sorted(stored):
        read = _READERS[name]
        if name == keys.BINDINGS and _is_group(field):
            read = _AS_GROUP
        if not _is_readable(read, stored[field]) or not _is_readable(bytes.decode, field):
            shown = name_of(field)[:60]
            remedy = f"delete it as a user of the role api: `HDEL {name} {shown}`"
            found.append(_damaged("Key", name, f"its field {shown} is unreadable", remedy))
    return found


def _is_readable(read: Callable[[bytes], object], stored: bytes) -> bool:
    try:
        read(stored)
    except DAMAGE:
        return False
    return True


def read_last_uses(link: Link) -> dict[str, int]:
    """Return when each token was last used, in milliseconds. Raises StoreUnavailable."""
    stored = _ask(link, keys.TOKENS_USED, partial(_all_of, keys.TOKENS_USED))
    found = {field.decode(errors="replace"): whole(value) for field, value in stored.items()}
    return {token: at for token, at in found.items() if at is not None}


def write_last_use(link: Link, token: str, at_ms: int) -> None:
    """Record the use of a token. Raises StoreUnavailable."""
    _ask(link, keys.TOKENS_USED, lambda client: client.hset(keys.TOKENS_USED, token, str(at_ms)))


def forget_last_uses(link: Link, tokens: Sequence[str]) -> None:
    """Remove the last uses of tokens that are gone. Raises StoreUnavailable."""
    if tokens:
        _ask(link, keys.TOKENS_USED, lambda client: client.hdel(keys.TOKENS_USED, *tokens))


class Actor(Struct, frozen=True, kw_only=True):
    """The user who changes something, for the audit trail, and why it is allowed."""

    user: str
    via: Via | Literal["redis"]
    token: str = ""
    address: str = ""
    #: The user who acts in the name of `user`, if it is another one, and why.
    by: str = ""
    reason: str = ""


def audit_of(
    actor: Actor, now_ms: int, verb: str, kind: str, name: str, because: str
) -> AuditRecord:
    """Return the audit record of something that an actor has done."""
    return AuditRecord(
        at=now_ms,
        user=actor.user,
        via=actor.via,
        token=actor.token,
        address=actor.address,
        verb=verb,
        kind=kind,
        name=name,
        outcome="done",
        because=because,
        by=actor.by or UNSET,
        reason=actor.reason or UNSET,
    )


def described(transaction: Transaction) -> tuple[str, str, str]:
    """Return what a transaction does, and the kinds and names of its objects, in words."""
    written = [write for write in transaction.writes if not write.is_condition]
    # Pods follow from what is done to their group.
    writes = [write for write in written if write.kind != "Pod"] or written
    verbs = {
        "delete" if write.value is None else "create" if write.expect == 0 else "update"
        for write in writes
    }
    reasons = {event.reason for event in transaction.events}
    if COMMAND_STARTED in reasons:
        return "exec", "groups", transaction.subject
    shown = {verb for reason, verb in _SHOWN_VERBS.items() if reason in reasons}
    is_submission = verbs == {"create"} and all(write.kind == "PodGroup" for write in writes)
    if shown or is_submission:
        verbs = shown or {"submit"}
    verb = verbs.pop() if len(verbs) == 1 else "change"
    kinds = sorted({_KINDS.get(write.kind, write.kind) for write in writes})
    names = [write.key for write in writes]
    more = f" and {len(names) - _MOST_AUDITED} more" if len(names) > _MOST_AUDITED else ""
    return verb, ", ".join(kinds), f"{', '.join(names[:_MOST_AUDITED])}{more}"
