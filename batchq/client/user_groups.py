"""Local groups: groups of users that operators make, for roles of the HTTP API.

They are named `local:NAME`, as those of the system are `unix:NAME` and those of an identity
provider `oidc:NAME`, so that a source of groups cannot name the groups of another. Membership
depends on the name of a user alone, not on how the user was identified.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from batchq.api.access import OF_LOCAL, USER, local_subject
from batchq.api.notation import counted, format_instant, label_problem
from batchq.errors import Conflict, InvalidInput, NotFound, Rejected
from batchq.store import access_records as records
from batchq.store.access_records import AccessState, Actor, FieldChange, UserGroupRecord, audit_of

if TYPE_CHECKING:
    from batchq.store.redis import RedisStore

MOST_GROUPS, MOST_MEMBERS = 1_000, 1_000
#: Members that an audit record names.
_MOST_NAMED = 10


def group_row(record: UserGroupRecord, state: AccessState) -> dict[str, object]:
    """Return a local group for programs, with its roles."""
    return {
        "name": record.name,
        "subject": local_subject(record.name),
        "members": list(record.members),
        "roles": [
            {"role": str(one.binding.role), "namespace": one.binding.namespace}
            for one in _roles_of(state, record.name)
        ],
        "madeBy": record.made_by,
        "madeAt": format_instant(record.made_at),
    }


class UserGroups:
    """Changes are made for an actor, who must be allowed to: it is decided before."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._link = store.link

    def create(
        self, name: str, members: Sequence[str], actor: Actor, *, because: str = ""
    ) -> UserGroupRecord:
        """Create a group. Raises InvalidInput, Conflict if it exists, Rejected if there are too
        many, StoreUnavailable.
        """
        if problem := label_problem(name):
            raise InvalidInput(f"group {name[:80]!r}: {problem}")
        state = records.read_access(self._link)
        if name in state.groups:
            raise Conflict(f"the group {OF_LOCAL}{name} exists already")
        if len(state.groups) >= MOST_GROUPS:
            raise Rejected(f"there are {MOST_GROUPS} local groups, which is the most there may be")
        # A role that an earlier version has accepted for this name would be given with it.
        former = [str(one.binding) for one in _roles_of(state, name)]
        if former:
            raise Conflict(
                f"the group {OF_LOCAL}{name} would have roles at once: {'; '.join(former)}",
                hint="`batchq access revoke` takes them away",
            )
        now_ms = self._store.now_ms()
        record = UserGroupRecord(
            name=name, members=_checked(members), made_by=actor.user, made_at=now_ms
        )
        what = f"{OF_LOCAL}{name}{_named(' with ', record.members)}"
        self._write(actor, now_ms, "create", what, because, [_change(name, None, record)])
        return record

    def change(
        self,
        name: str,
        actor: Actor,
        *,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        because: str = "",
    ) -> UserGroupRecord:
        """Add members and remove others; those that are members already, or are none, stay so.

        Raises InvalidInput, NotFound, Conflict, Rejected, StoreUnavailable.
        """
        if both := sorted({*add} & {*remove}):
            raise InvalidInput(f"user {both[0][:80]!r} would be added and removed")
        record = known_group(records.read_access(self._link), name)
        # A name that could be no user's is no member, and is not worth an error.
        members = tuple(sorted({*record.members, *_checked(add)} - {*remove}))
        if members == record.members:
            return record
        added = [one for one in members if one not in record.members]
        removed = [one for one in record.members if one not in members]
        what = f"{OF_LOCAL}{name}{_named(' with ', added)}{_named(' without ', removed)}"
        changed = structs.replace(record, members=_checked(members))
        change = _change(name, record, changed)
        self._write(actor, self._store.now_ms(), "update", what, because, [change])
        return changed

    def delete(self, name: str, actor: Actor, *, because: str = "") -> dict[str, object]:
        """Delete a group and take its roles away, in one step: a later group of this name has none.
        Return what it was.

        Raises NotFound, Conflict, StoreUnavailable.
        """
        state = records.read_access(self._link)
        record = known_group(state, name)
        roles = _roles_of(state, name)
        changes = [
            _change(name, record, None),
            *(FieldChange(field=one.binding.key, before=one, after=None) for one in roles),
        ]
        had = _named(" with the roles ", [str(one.binding) for one in roles])
        what = f"{OF_LOCAL}{name}{had}"
        self._write(actor, self._store.now_ms(), "delete", what, because, changes)
        return group_row(record, state)

    def _write(
        self,
        actor: Actor,
        now_ms: int,
        verb: str,
        name: str,
        because: str,
        changes: Sequence[FieldChange],
    ) -> None:
        audit = audit_of(actor, now_ms, verb, "user-groups", name, because)
        records.write_access(self._link, audit, changes, of_bindings=True)


def known_group(state: AccessState, name: str) -> UserGroupRecord:
    """Return a local group. Raises NotFound."""
    record = state.groups.get(name)
    if record is None:
        raise NotFound(
            f"there is no group {OF_LOCAL}{name[:80]}", hint="see `batchq access group list`"
        )
    return record


def _roles_of(state: AccessState, name: str) -> list[records.BindingRecord]:
    subject = local_subject(name)
    return [one for _, one in sorted(state.bindings.items()) if one.binding.subject == subject]


def _checked(members: Iterable[str]) -> tuple[str, ...]:
    found = tuple(sorted(set(members)))
    for one in found:
        if not USER.fullmatch(one):
            raise InvalidInput(
                f"member {one[:80]!r}: expected the name of a user, of letters, digits, '.', '_',"
                " '@', '+' and '-'",
                hint="service accounts and groups are not members: give them roles of their own",
            )
    if len(found) > MOST_MEMBERS:
        raise Rejected(
            f"a group has at most {counted(MOST_MEMBERS, 'member')}, and {len(found)} were named"
        )
    return found


def _change(
    name: str, before: UserGroupRecord | None, after: UserGroupRecord | None
) -> FieldChange:
    return FieldChange(field=local_subject(name), before=before, after=after)


def _named(begin: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{begin}{', '.join(names[:_MOST_NAMED])}{more}"
