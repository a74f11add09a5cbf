"""Tokens, bindings and the audit trail of the HTTP API, and the connections on which it acts for
its users and signs the groups that they submit.

The text of a token is shown once; the server keeps only what `batchq.api.access` says.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType, structs

from batchq.api.access import (
    USER,
    Binding,
    Scope,
    TokenKind,
    check_account,
    digest_of_secret,
    is_signed,
    local_group,
    signature_of,
    title_of,
    token_text,
)
from batchq.api.exec_session import ExecCommand, ExecFrame
from batchq.api.lifecycle import ON_NODE
from batchq.api.node_report import PodAttempt
from batchq.api.notation import DAY, HOUR, counted, describe_age, format_instant, subdomain_problem
from batchq.api.objects import Pod, PodGroup, group_key_of
from batchq.api.transaction import Transaction
from batchq.api.views import Goal, WaitState
from batchq.client import Client
from batchq.client.connection import connect, user_of
from batchq.client.node_users import MOST_USES, check_pattern
from batchq.client.pods import SessionPlace, frames_of
from batchq.client.requests import RecentQueues
from batchq.client.user_groups import UserGroups, known_group
from batchq.client.watch import Watch, wait_state
from batchq.errors import Conflict, InvalidInput, NotFound, Rejected, UnreadableRecord, printable
from batchq.store import access_records as records
from batchq.store.access_records import (
    USUAL_LINE_MS,
    AccessState,
    Actor,
    AuditEntry,
    AuditRecord,
    BindingRecord,
    FieldChange,
    ServiceAccount,
    TokenRecord,
    UserGroupRecord,
    audit_of,
    described,
    service_accounts,
)
from batchq.store.exec_channels import ExecChannel
from batchq.store.link import read_revision

if TYPE_CHECKING:
    from typing import Literal

    from batchq.store.redis import RedisStore

__all__ = [
    "AccessControl",
    "AccessState",
    "Actor",
    "AuditEntry",
    "AuditRecord",
    "BindingRecord",
    "Delegate",
    "NewToken",
    "PodHold",
    "ServiceAccount",
    "TokenRecord",
    "UserGroupRecord",
    "service_accounts",
]  # fmt: skip

USUAL_DAYS, MOST_DAYS = 90, 365
#: Nodes that join by one token at once keep each other from it, one at a time.
_MOST_JOINS_TRIED = 100
#: How long a token may be rotated on: usually, and if it was made so.
USUAL_LINE_DAYS, MOST_LINE_DAYS = USUAL_LINE_MS // DAY, 3650
#: How long an invitation may be used.
USUAL_INVITATION_MS, LONGEST_INVITATION_MS = DAY, 7 * DAY
#: How long a token of an identity provider's user lasts: its groups are those of the login.
SESSION_MS = 12 * HOUR
#: How long an agent may join.
USUAL_JOIN_MS = HOUR
#: The names under which nodes own join tokens; no user has such a name.
OF_NODE = "node:"
#: Tokens of one user that are neither expired nor revoked, and tokens of all.
MOST_OF_ONE_USER, MOST_OF_ALL = 100, 10_000
#: How long an expired or revoked token is kept, so that its user learns why it is refused.
_KEPT_MS = 7 * DAY
_LONGEST_NOTE = 200
#: Narrows nothing.
WHOLE = Scope()
_ID_LENGTH = 10
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"


class NewToken(NamedTuple):
    """A token that was just made; `text` is shown once and never stored."""

    text: str
    record: TokenRecord


class PodHold(NamedTuple):
    """An attempt that runs: the digest of its token, and its group's key and owner."""

    digest: str
    group: str
    owner: str


class AccessControl:
    """Each change names its actor; the caller has checked that the actor may make it."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._link = store.link

    def revision(self) -> int:
        """Return the count of changes of tokens and bindings. Raises StoreUnavailable."""
        return records.read_access_revision(self._link)

    def state(self) -> AccessState:
        """Return all tokens and bindings. Raises StoreUnavailable."""
        return records.read_access(self._link)

    def last_uses(self) -> dict[str, int]:
        """Return when each token was last used, in milliseconds. Raises StoreUnavailable."""
        return records.read_last_uses(self._link)

    def note_use(self, token: str) -> None:
        """Record that a token is used now. Raises StoreUnavailable."""
        records.write_last_use(self._link, token, self._store.now_ms())

    def create_token(
        self,
        owner: str,
        actor: Actor,
        *,
        days: int = USUAL_DAYS,
        rotate_days: int = USUAL_LINE_DAYS,
        scope: Scope = WHOLE,
        note: str = "",
        because: str = "",
    ) -> NewToken:
        """Create a token for a user or a service account; an account exists while it has a token or
        a role. No successor of the token by rotation lasts beyond `rotate_days`.

        Raises InvalidInput, Rejected if there are too many, StoreUnavailable.
        """
        if not 1 <= days <= MOST_DAYS:
            raise InvalidInput(f"a token lasts 1 to {MOST_DAYS} days, found {days}")
        if not 0 <= rotate_days <= MOST_LINE_DAYS:
            raise InvalidInput(
                f"a token is rotated for at most {MOST_LINE_DAYS} days, found {rotate_days}"
            )
        if ":" in owner:
            check_account(owner)
        return self._create(
            owner, actor, days * DAY, scope=scope, note=note, because=because,
            of_account=":" in owner, line_lasts_ms=max(days, rotate_days) * DAY,
        )  # fmt: skip

    def invite(
        self,
        owner: str,
        actor: Actor,
        *,
        lasts_ms: int = USUAL_INVITATION_MS,
        note: str = "",
        because: str = "",
    ) -> NewToken:
        """Create an invitation for a user: `redeem` exchanges it for a token, once.

        Raises InvalidInput, Rejected if there are too many tokens, StoreUnavailable.
        """
        if not 0 < lasts_ms <= LONGEST_INVITATION_MS:
            raise InvalidInput(
                f"an invitation lasts at most {describe_age(LONGEST_INVITATION_MS)}, found"
                f" {describe_age(lasts_ms)}"
            )
        return self._create(owner, actor, lasts_ms, note=note, because=because, kind="invitation")

    def log_in(self, user: str, groups: Sequence[str], proof: str, actor: Actor) -> NewToken:
        """Create a token of 12 hours for a user that an identity provider has named. `proof` is the
        digest of the provider's ID token, which is accepted once.

        Raises Conflict if it was used before, InvalidInput, Rejected if there are too many tokens,
        StoreUnavailable.
        """
        try:
            return self._create(
                user, actor, SESSION_MS, groups=tuple(groups), token=_id_of(proof),
                note="login", because="the identity provider",
            )  # fmt: skip
        except Conflict:
            raise Conflict("this ID token has been used already", hint="log in again") from None

    def redeem(self, invitation: TokenRecord, actor: Actor) -> NewToken:
        """Exchange an invitation for a token of its owner, which lasts 90 days.

        Raises Conflict if it has been used, Rejected if the user has too many tokens,
        StoreUnavailable.
        """
        now_ms = self._store.now_ms()
        used = structs.replace(invitation, revoked_at=now_ms)
        spent = FieldChange(field=invitation.id, before=invitation, after=used)
        try:
            return self._create(
                invitation.owner, actor, USUAL_DAYS * DAY, note=invitation.note,
                because=f"invitation {invitation.id} of {invitation.made_by}", spent=[spent],
            )  # fmt: skip
        except Conflict:
            raise Conflict(f"invitation {invitation.id} has been used already") from None

    def _create(
        self,
        owner: str,
        actor: Actor,
        lasts_ms: int,
        *,
        scope: Scope = WHOLE,
        note: str = "",
        because: str = "",
        kind: TokenKind = "token",
        of_account: bool = False,
        node: str | UnsetType = UNSET,
        uses: int | UnsetType = UNSET,
        groups: tuple[str, ...] | UnsetType = UNSET,
        replaces: str | UnsetType = UNSET,
        line_ends_at: int | UnsetType = UNSET,
        line_lasts_ms: int | None = None,
        token: str = "",
        spent: Sequence[FieldChange] = (),
    ) -> NewToken:
        if node is UNSET and not of_account and not USER.fullmatch(owner):
            raise InvalidInput(
                f"user {owner[:80]!r}: expected letters, digits, '.', '_', '@', '+' and '-'"
            )
        if len(note) > _LONGEST_NOTE or note != printable(note):
            raise InvalidInput(f"note: expected a line of at most {_LONGEST_NOTE} characters")
        now_ms, state = self._store.now_ms(), self.state()
        if line_lasts_ms is not None:
            line_ends_at = now_ms + line_lasts_ms
        # No user alone uses up the number of tokens that all may have.
        too_many = state.ended_first(owner, MOST_OF_ONE_USER, now_ms)
        stale = [one for one in state.tokens.values() if one in too_many or _is_stale(one, now_ms)]
        over = {
            one.field
            for one in spent
            if isinstance(one.after, TokenRecord) and one.after.ends_at <= now_ms
        }
        valid = [
            one
            for one in state.tokens.values()
            if one.ends_at > now_ms and one.id not in over and one.node == node
        ]
        self._refuse_too_many(owner, valid, len(state.tokens) - len(stale))
        token = token or _new_id()
        secret = secrets.token_urlsafe(32)
        record = TokenRecord(
            id=token,
            digest=digest_of_secret(secret),
            owner=owner,
            made_by=actor.user,
            made_at=now_ms,
            expires_at=now_ms + lasts_ms,
            scope=scope,
            note=note,
            invitation=True if kind == "invitation" else UNSET,
            node=node,
            uses=uses,
            groups=groups,
            replaces=replaces,
            line_ends_at=line_ends_at,
        )
        changes = [FieldChange(field=token, before=None, after=record), *spent]
        changes += [FieldChange(field=one.id, before=one, after=None) for one in stale]
        name = f"{_WORDS[kind]}{token} {_of(owner, node)}"
        audit = audit_of(actor, now_ms, "create", "tokens", name, because)
        records.write_access(self._link, audit, changes, of_bindings=False)
        records.forget_last_uses(self._link, [one.id for one in stale])
        return NewToken(token_text(kind, token, secret), record)

    def _refuse_too_many(self, owner: str, valid: Iterable[TokenRecord], kept: int) -> None:
        own = sum(one.owner == owner for one in valid)
        if own >= MOST_OF_ONE_USER:
            raise Rejected(
                f"{title_of(owner)} has {counted(own, 'token')}, which is the most there may be",
                hint="revoke those that are not used: `batchq token list`",
            )
        if kept >= MOST_OF_ALL:
            raise Rejected(f"there are {MOST_OF_ALL} tokens, which is the most there may be")

    def rotate(self, token: str, actor: Actor, *, overlap_ms: int = DAY) -> NewToken:
        """Create the successor of a token, with its owner, scope and lifetime, but not beyond the
        end of their line. The former token ends after `overlap_ms` at the latest.

        A successor that was never used is revoked, since its text may have been lost on its way.

        Raises NotFound, Conflict if the token is not valid or was rotated already, InvalidInput if
        tokens of its kind are not rotated, Rejected if there are too many, StoreUnavailable.
        """
        state, now_ms, used = self.state(), self._store.now_ms(), self.last_uses()
        record = _known(state, token)
        if record.kind != "token" or record.groups is not UNSET:
            raise InvalidInput(
                f"token {token} of a login or for one use is not rotated",
                hint="log in again, or ask for another one",
            )
        if record.revoked_at is not None or record.expires_at <= now_ms:
            raise Conflict(f"token {token} is not valid any more", hint="ask for another one")
        if not 0 <= overlap_ms <= MOST_DAYS * DAY:
            raise InvalidInput(f"overlap: expected 0s to {MOST_DAYS}d")
        former = [one for one in state.successors(record) if one.revoked_at is None]
        for one in former:
            if one.id in used:
                raise Conflict(
                    f"token {token} was rotated already, on {format_instant(one.made_at)}: token"
                    f" {one.id} replaces it, and is in use",
                    hint=f"if that was not you, `batchq token revoke {token}` revokes both",
                )
        lasts_ms = max(one.expires_at - one.made_at for one in (record, *former))
        lasts_ms = min(lasts_ms, record.rotated_until - now_ms)
        # The record changes in any case: a revocation that has not seen the new token finds that.
        ends_at = min(record.expires_at - 1, now_ms + overlap_ms)
        ended = structs.replace(record, expires_at=ends_at)
        return self._create(
            record.owner, actor, lasts_ms, scope=record.scope, note=record.note,
            because=f"rotation of token {token}", of_account=":" in record.owner,
            replaces=record.first, line_ends_at=record.rotated_until,
            spent=[
                FieldChange(field=token, before=record, after=ended),
                *_revocations(former, now_ms),
            ],
        )  # fmt: skip

    def revoke_token(self, token: str, actor: Actor, *, because: str = "") -> TokenRecord:
        """Revoke a token, and those that it was rotated to; they are refused from now on, and their
        streams are cut.

        Raises NotFound, Conflict if it is revoked already, StoreUnavailable.
        """
        state = self.state()
        record = _known(state, token)
        if record.revoked_at is not None:
            raise Conflict(f"token {token} is revoked already")
        now_ms = self._store.now_ms()
        revoked = structs.replace(record, revoked_at=now_ms)
        name = f"{_WORDS[record.kind]}{token} {_of(record.owner, record.node)}"
        audit = audit_of(actor, now_ms, "delete", "tokens", name, because)
        changes = [FieldChange(field=token, before=record, after=revoked)]
        valid = [one for one in state.successors(record) if one.revoked_at is None]
        changes += _revocations(valid, now_ms)
        records.write_access(self._link, audit, changes, of_bindings=False)
        return revoked

    def invite_node(
        self,
        node: str,
        actor: Actor,
        *,
        lasts_ms: int = USUAL_JOIN_MS,
        because: str = "",
    ) -> NewToken:
        """Create a token with which the agent of a node joins, once.

        Raises InvalidInput, Rejected if there are too many tokens, StoreUnavailable.
        """
        if problem := subdomain_problem(node):
            raise InvalidInput(f"node {node[:80]!r}: {problem}")
        _check_join(lasts_ms)
        return self._create(
            f"{OF_NODE}{node}", actor, lasts_ms, because=because, kind="join", node=node
        )

    def invite_nodes(
        self,
        pattern: str,
        actor: Actor,
        *,
        uses: int,
        lasts_ms: int = USUAL_JOIN_MS,
        because: str = "",
    ) -> NewToken:
        """Create a token with which agents of new nodes join, whose names have a pattern.

        Raises InvalidInput, Rejected if there are too many tokens, StoreUnavailable.
        """
        check_pattern(pattern)
        if not 1 <= uses <= MOST_USES:
            raise InvalidInput(f"a join token is for 1 to {MOST_USES} nodes, found {uses}")
        _check_join(lasts_ms)
        return self._create(
            f"{OF_NODE}{pattern}", actor, lasts_ms, because=because, kind="join", node=pattern,
            uses=uses,
        )  # fmt: skip

    def join(self, record: TokenRecord, node: str, digest: str, actor: Actor) -> None:
        """Use up a join token for a node and the password with this digest. A repetition with the
        same digest does nothing, because the agent may have lost the answer.

        Raises Conflict if it was used with another password or by too many nodes, or revoked, or if
        it is for new nodes and this is none; StoreUnavailable.
        """
        used = Conflict(
            f"join token {record.id} has been used already, or was revoked",
            hint=f"make another one: `batchq nodes invite {node}`",
        )
        now_ms = self._store.now_ms()
        audit = audit_of(
            actor, now_ms, "create", "nodes", f"user of node {node}",
            f"join token {record.id} of {record.made_by}",
        )  # fmt: skip
        for _ in range(_MOST_JOINS_TRIED):
            if record.password_of(node) == digest:
                return
            if record.revoked_at is not None or record.password_of(node) is not UNSET:
                raise used
            if record.uses is not UNSET and not self._is_new(node):
                raise Conflict(
                    f"join token {record.id} is for new nodes, and there is or was a node {node}",
                    hint=f"an operator lets this one join: `batchq nodes invite {node}`",
                )
            after = record.with_node(node, digest, now_ms)
            change = FieldChange(field=record.id, before=record, after=after)
            try:
                records.write_access(self._link, audit, [change], of_bindings=False)
            except Conflict:
                # Another node has joined by the token in the meantime, or it was revoked.
                record = self.state().tokens.get(record.id, structs.replace(record, revoked_at=0))
            else:
                return
        raise used

    def _is_new(self, node: str) -> bool:
        """Return whether there is no such node, and none has joined lately. Older ones have a user
        of the server, which the registrar looks for. Raises StoreUnavailable.
        """
        try:
            if self._store.get("Node", node) is not None:
                return False
        except UnreadableRecord:
            return False
        return all(one.password_of(node) is UNSET for one in self.state().join_tokens_of(node))

    def has_joined(self, token: str, node: str, digest: str) -> bool:
        """Return whether a join token is still good for a password. Raises StoreUnavailable."""
        record = self.state().tokens.get(token)
        return record is not None and record.password_of(node) == digest

    def revoke_node(self, node: str, actor: Actor, *, because: str = "") -> int:
        """Make all join tokens of a node useless, and return how many there were. The caller then
        removes the node's user of the server. Raises Conflict, StoreUnavailable.
        """
        now_ms = self._store.now_ms()
        changes = [
            FieldChange(field=one.id, before=one, after=one.without_node(node, now_ms))
            for one in self.state().join_tokens_of(node)
            if (one.uses is UNSET and one.revoked_at is None) or one.password_of(node)
        ]
        audit = audit_of(actor, now_ms, "delete", "nodes", f"user of node {node}", because)
        records.write_access(self._link, audit, changes, of_bindings=False)
        return len(changes)

    def grant(self, binding: Binding, actor: Actor, *, because: str = "") -> bool:
        """Give a role. Return False if it was given already.

        Raises NotFound for a local group that does not exist, StoreUnavailable, Conflict.
        """
        state = self.state()
        if binding.key in state.bindings:
            return False
        now_ms = self._store.now_ms()
        record = BindingRecord(binding=binding, made_by=actor.user, made_at=now_ms)
        changes = [FieldChange(field=binding.key, before=None, after=record)]
        name = local_group(binding.subject)
        if name is not None:
            # It must exist still when the role is given: a later group of this name would have it.
            group = known_group(state, name)
            given = 0 if group.roles_given is UNSET else group.roles_given
            after = structs.replace(group, roles_given=given + 1)
            changes.append(FieldChange(field=binding.subject, before=group, after=after))
        audit = audit_of(actor, now_ms, "create", "bindings", str(binding), because)
        records.write_access(self._link, audit, changes, of_bindings=True)
        return True

    def withdraw(self, binding: Binding, actor: Actor, *, because: str = "") -> None:
        """Take a role away, from the next request on.

        Raises NotFound, Conflict, StoreUnavailable.
        """
        record = self.state().bindings.get(binding.key)
        if record is None:
            raise NotFound(f"there is no such binding: {binding}", hint="see `batchq access list`")
        now_ms = self._store.now_ms()
        audit = audit_of(actor, now_ms, "delete", "bindings", str(binding), because)
        change = FieldChange(field=binding.key, before=record, after=None)
        records.write_access(self._link, audit, [change], of_bindings=True)

    def delete_account(self, account: str, actor: Actor, *, because: str = "") -> ServiceAccount:
        """Revoke all tokens of a service account and take its roles away; return what it had.

        Its tokens go first, so that it can do nothing more if this is interrupted.

        Raises NotFound if it has neither, Conflict, StoreUnavailable.
        """
        check_account(account)
        had: ServiceAccount | None = None
        # Again until nothing is left: a token may be created meanwhile.
        while (found := self._account(account)) is not None:
            now_ms = self._store.now_ms()
            audit = audit_of(actor, now_ms, "delete", "service-accounts", account, because)
            changes = _revocations(found.tokens, now_ms)
            records.write_access(self._link, audit, changes, of_bindings=False)
            for one in found.roles:
                self.withdraw(one.binding, actor, because=because)
            had = had or found
        if had is None:
            raise NotFound(
                f"there is no service account {account}", hint="see `batchq access accounts`"
            )
        return had

    def _account(self, name: str) -> ServiceAccount | None:
        found = service_accounts(self.state(), self._store.now_ms())
        return next((one for one in found if one.name == name), None)

    def record(
        self,
        actor: Actor,
        verb: str,
        kind: str,
        name: str,
        *,
        because: str,
        outcome: Literal["done", "refused"],
    ) -> None:
        """Record an action that changes no token or role. Raises StoreUnavailable."""
        audit = audit_of(actor, self._store.now_ms(), verb, kind, name, because)
        audit = structs.replace(audit, outcome=outcome)
        records.write_access(self._link, audit, of_bindings=True)

    def audit(self, most: int) -> Sequence[AuditEntry]:
        """Return the latest records of the audit trail, oldest first. Raises StoreUnavailable."""
        return records.read_audit(self._link, most)


#: What the audit trail calls tokens of each kind, in front of their ids.
_WORDS: dict[TokenKind, str] = {
    "token": "",
    "invitation": "invitation ",
    "join": "join token ",
    "pod": "",
}


def _of(owner: str, node: str | UnsetType) -> str:
    return f"of {title_of(owner)}" if node is UNSET else f"of node {node}"


def _check_join(lasts_ms: int) -> None:
    if not 0 < lasts_ms <= LONGEST_INVITATION_MS:
        raise InvalidInput(
            "a join token: expected a duration of more than 0 and at most"
            f" {describe_age(LONGEST_INVITATION_MS)}, found {describe_age(lasts_ms)}"
        )


def _known(state: AccessState, token: str) -> TokenRecord:
    record = state.tokens.get(token)
    if record is None:
        raise NotFound(f"there is no token {token[:80]!r}", hint="see `batchq token list`")
    return record


def _revocations(tokens: Iterable[TokenRecord], now_ms: int) -> list[FieldChange]:
    return [
        FieldChange(field=one.id, before=one, after=structs.replace(one, revoked_at=now_ms))
        for one in tokens
    ]


def _new_id() -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))


def _id_of(proof: str) -> str:
    """Return the id of the token for a proof. It is always the same, so a proof gives one token."""
    number, letters = int(proof, 16), []
    for _ in range(_ID_LENGTH):
        number, place = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[place])
    return "".join(letters)


def _is_stale(record: TokenRecord, now_ms: int) -> bool:
    return record.ends_at + _KEPT_MS < now_ms


class Delegate:
    """A connection on which a program acts for other users, as the HTTP API does.

    A context manager. One delegate must not be shared by threads."""

    def __init__(self, url: str | None = None, *, signing_key: bytes = b"") -> None:
        """`signing_key`: signs the groups that users submit, if given.

        Raises InvalidInput for a malformed URL, StoreUnavailable if no server answers.
        """
        self._store = connect(url)
        self._signing_key = signing_key
        #: For the submissions of all users; delegates of several threads may share them.
        self.queues = RecentQueues()

    def close(self) -> None:
        """Close the connection."""
        self._store.close()

    def __enter__(self) -> Delegate:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def client_of(
        self, user: str, *, actor: Actor | None = None, because: Callable[[], str] = str
    ) -> Client:
        """Return a client on this connection, whose requests are recorded under a user's name.

        With an `actor`, each change is recorded in the audit trail by the script that makes it;
        `because` returns what permits it. The client replaces the one before it, and need not be
        closed.
        """

        def audit(transaction: Transaction) -> bytes:
            assert actor is not None
            verb, kind, name = described(transaction)
            now_ms = self._store.now_ms()
            return msgspec.json.encode(audit_of(actor, now_ms, verb, kind, name, because()))

        def sign(transaction: Transaction) -> Transaction:
            return signed(transaction, user, self._signing_key)

        self._store.auditor = None if actor is None else audit
        self._store.signer = sign if self._signing_key else None
        # What it knows of similar groups serves the next user, too.
        self._client.user = user  # in place of the cached property
        return self._client

    @cached_property
    def _client(self) -> Client:
        return Client(store=self._store, queues=self.queues)

    @cached_property
    def access(self) -> AccessControl:
        """The tokens, bindings and the audit trail of the HTTP API."""
        return AccessControl(self._store)

    @cached_property
    def groups(self) -> UserGroups:
        """The local groups of the HTTP API."""
        return UserGroups(self._store)

    @property
    def user(self) -> str:
        """The name under which the server records this program: `alice@laptop`, or its user."""
        return user_of(self._store, "")

    def revision(self) -> int:
        """Return the count of writes: what is read from now on includes all of these."""
        return read_revision(self._store.link)

    def owner_of(self, key: str) -> str | None:
        """Return the user who submitted a group; None if there is no such group."""
        group = self._store.get("PodGroup", key)
        return group.status.submitted_by if isinstance(group, PodGroup) else None

    def pod_hold(self, attempt: PodAttempt) -> PodHold | None:
        """Return what is known of one attempt; see `pod_holds`."""
        return self.pod_holds([attempt]).get(attempt)

    def pod_holds(self, attempts: Sequence[PodAttempt]) -> Mapping[PodAttempt, PodHold]:
        """Return the holds of the attempts that have a token and still run. An attempt has ended
        when its lease is over, by which the scheduler judges, too. Raises StoreUnavailable.
        """
        pods = self._store.get_many("Pod", [one.pod for one in attempts])
        running = {
            one: pod
            for one in attempts
            if isinstance(pod := pods.get(one.pod), Pod)
            and pod.status.phase in ON_NODE
            and pod.status.attempt == one.attempt
        }
        tokens = self._store.alive.tokens([(pod.status.node, one) for one, pod in running.items()])
        now_ms = self._store.now_ms()
        keys = {one: group_key_of(pod) for one, pod in running.items()}
        groups = self._store.get_many("PodGroup", sorted(set(keys.values())))
        found = {}
        for (one, pod), (digest, until) in zip(running.items(), tokens, strict=True):
            group = groups.get(keys[one])
            if not digest or until <= now_ms or not isinstance(group, PodGroup):
                continue
            is_of_group = group.metadata.uid == pod.status.group_uid
            if is_of_group and group.spec.token and self._is_proven(group):
                found[one] = PodHold(digest, keys[one], group.status.submitted_by)
        return found

    def _is_proven(self, group: PodGroup) -> bool:
        """Return whether the recorded owner of a group has submitted it. Users of the Redis server
        can write any name, so only an API with a signing key can tell.
        """
        return not self._signing_key or is_signed(self._signing_key, group)

    def request_command(
        self, client: Client, group: PodGroup, pod: Pod, command: ExecCommand
    ) -> SessionPlace:
        """Ask the node of a pod to run a command for the user of a client, whose rights on the
        group the caller has checked; see `PodCommands`.

        The request is signed only if the owner of the group is proven and the pod's uid belongs to
        the group. An agent that runs pods as their owners refuses other requests.
        """
        is_of_group = pod.metadata.uid.rsplit("-", 2)[0] == group.metadata.uid
        signs = is_of_group and self._is_proven(group)
        key = self._signing_key if signs else b""
        return client.commands.request(pod, command, signing_key=key)

    def frames_of(self, place: SessionPlace, after: int) -> Iterator[ExecFrame | None]:
        """Yield the frames of a command's session after a number; see `frames_of`."""
        return frames_of(self._store.url, place, after)

    def send_frames(self, place: SessionPlace, frames: Sequence[ExecFrame]) -> bool:
        """Send frames of a user to a command; return whether its session is open. Raises
        StoreUnavailable.
        """
        channel = ExecChannel(self._store.link, place.node, place.session, is_node=False)
        return channel.send(frames)

    def wait_state(self, key: str, goal: Goal) -> WaitState:
        """Return how far a group is from a goal of `Client.wait`. Raises NotFound."""
        return wait_state(self._store, key, goal)

    def watcher(self, *kinds: str) -> Watch:
        """Return a reader of changes, which lists what exists and then polls for changes."""
        return Watch(self._store, kinds)

    def now_ms(self) -> int:
        """Return the server's time. Raises StoreUnavailable."""
        return self._store.now_ms()


def signed(transaction: Transaction, user: str, key: bytes) -> Transaction:
    """Return the transaction with signatures in the groups that the user creates in it.

    An edit is never signed, because others may have changed the group without this user's
    knowledge.
    """
    writes = tuple(
        structs.replace(write, value=_with_signature(write.value, key))
        if write.expect == 0
        and isinstance(write.value, PodGroup)
        and write.value.status.submitted_by == user
        else write
        for write in transaction.writes
    )
    return structs.replace(transaction, writes=writes)


def _with_signature(group: PodGroup, key: bytes) -> PodGroup:
    status = structs.replace(group.status, signature=signature_of(key, group))
    return structs.replace(group, status=status)
