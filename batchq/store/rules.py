"""The rules for transactions, as pure functions: which writes and which charges are allowed.

`MemoryStore` calls them; `lua/commit.lua` implements the same in Lua, because there the comparison
and the write must be one step. The contract suite holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from batchq.api.lifecycle import ON_NODE, POD_GROUP_MOVES, POD_MOVES, allowed
from batchq.api.objects import Object, Pod, PodGroup, key_of
from batchq.api.resources import Amounts
from batchq.api.transaction import (
    CAPACITY,
    CLUSTER,
    EVERY_NAMESPACE,
    POD_GROUPS,
    Answer,
    Charge,
    Commit,
    Refusal,
    Transaction,
    Word,
    Write,
    fence_of,
)
from batchq.errors import InvalidInput, InvariantBroken

#: No sum of the ledger passes this: above it, Lua's numbers skip integers.
MOST = 2**53 - 1

#: The subject of a conflict for a transaction that was decided under other limits.
THE_LIMITS = "the limits"
#: The subject of a conflict for a transaction that depends on a malformed sum, charge or limit: the
#: leader recounts it.
THE_LEDGER = "the ledger"

#: What a holder is charged: its scopes, and its amounts without zeros, ordered by dimension.
Held: TypeAlias = tuple[tuple[str, ...], dict[str, int]]
NOTHING: Held = ((), {})
_NONE: Amounts = {}

_GROUP_MOVES, _POD_MOVES = allowed(POD_GROUP_MOVES), allowed(POD_MOVES)


def well_formed(transaction: Transaction) -> Transaction:
    """Return the transaction itself.

    Raises InvariantBroken for a transaction that no caller may build: the same object, holder or
    scope twice, a write that compares nothing, a negative amount.
    """
    writes, charges, limits = transaction.writes, transaction.charges, transaction.limits
    if len(writes) > 1 and len({(one.kind, one.key) for one in writes}) != len(writes):
        raise _broken(transaction, "writes one object twice")
    if len(charges) > 1 and len({charge.holder for charge in charges}) != len(charges):
        raise _broken(transaction, "charges one holder twice")
    for write in writes:
        value = write.value
        if value is not None:
            _check_value(transaction, write, value)
        if write.expect is None and not write.fence:
            what = f"writes {write.kind} {write.key} without comparing anything"
            raise _broken(transaction, what)
    for charge in charges:
        if charge.amounts and min(charge.amounts.values()) < 0:
            raise _broken(transaction, f"charges {charge.holder} a negative amount")
        if charge.scopes and " " in "".join(charge.scopes):
            raise _broken(transaction, f"charges {charge.holder} in a scope with a space in it")
    if limits:
        _check_limits(transaction)
    return transaction


def _repeats(things: Sequence[object]) -> bool:
    return len(set(things)) != len(things)


def _check_limits(transaction: Transaction) -> None:
    if _repeats([limit.scope for limit in transaction.limits]):
        raise _broken(transaction, "limits one scope twice")
    for limit in transaction.limits:
        if " " in limit.scope:
            raise _broken(transaction, f"limits {limit.scope}, a scope with a space in it")
        if any(units < 0 for units in (limit.amounts or {}).values()):
            raise _broken(transaction, f"limits {limit.scope} to a negative amount")


def _check_value(transaction: Transaction, write: Write, value: Object) -> None:
    """Check that a value is the object that is written. Refuse spaces and bars in the uid of a
    group, since they separate the parts of a fence.
    """
    if type(value).__name__ != write.kind or key_of(value) != write.key:
        raise _broken(transaction, f"writes another object as {write.kind} {write.key}")
    if isinstance(value, PodGroup):
        uid = value.metadata.uid
    elif isinstance(value, Pod):
        uid = value.status.group_uid
    else:
        return
    if " " in uid or "|" in uid:
        raise InvalidInput(
            f"{write.kind} {write.key}: expected a uid without spaces and bars, found {uid[:40]!r}"
        )


def holds_node(item: Object | None) -> bool:
    """Return whether the object is a pod in a phase in which it occupies a node, and may hold a
    lease.
    """
    return isinstance(item, Pod) and item.status.phase in ON_NODE


def commit_of(
    transactions: Sequence[Transaction], answers: Sequence[Answer], revision: int
) -> Commit:
    """Pair each transaction with its answer, in order.

    Raises InvariantBroken if the two do not match: a request id was used for two requests.
    """
    if len(transactions) != len(answers):
        raise InvariantBroken(
            f"a request of {len(transactions)} transactions has the request id of"
            f" another of {len(answers)}"
        )
    applied: list[Transaction] = []
    refused: list[Refusal] = []
    if all([answer.word is Word.OK for answer in answers]):  # noqa: C419 - a list is faster
        return Commit(applied=tuple(transactions), revision=revision)
    for transaction, answer in zip(transactions, answers, strict=True):
        if answer.word == Word.OK:
            applied.append(transaction)
        else:
            refused.append(Refusal(transaction=transaction, answer=answer))
    return Commit(applied=tuple(applied), refused=tuple(refused), revision=revision)


def held_by(charge: Charge) -> Held:
    """Return what the holder is charged once the charge is set."""
    if not charge.amounts:
        return NOTHING
    stated = charge.amounts
    amounts = {name: stated[name] for name in sorted(stated) if stated[name] > 0}
    return (tuple(dict.fromkeys(charge.scopes)), amounts) if amounts else NOTHING


def refuse_write(write: Write, stored: Object | None) -> Answer | None:
    """Return why `write` is not allowed over `stored`; None if it is."""
    expect, word = write.expect, None
    if stored is None or expect == 0:
        word = None if stored is None and expect == 0 else Word.CONFLICT
    elif write.fence and write.fence != fence_of(stored):
        word = Word.FENCED
    elif expect is not None and expect != stored.metadata.revision:
        word = Word.CONFLICT
    elif write.value is not None:
        word = _refused_move(stored, write.value)
    return None if word is None else Answer(word=word, subject=f"{write.kind} {write.key}")


def _refused_move(before: Object, after: Object) -> Word | None:
    """Return FENCED if the uid differs or a counter of the fence (`fence_of`) falls; MOVE if the
    phase may not follow the former one; None if the write is allowed.
    """
    if isinstance(before, PodGroup) and isinstance(after, PodGroup):
        falls = (
            before.metadata.uid != after.metadata.uid
            or after.status.admission < before.status.admission
        )
        start, finish = before.status.phase, after.status.phase
        is_allowed = start == finish or (start, finish) in _GROUP_MOVES
    elif isinstance(before, Pod) and isinstance(after, Pod):
        old, new = before.status, after.status
        falls = (
            old.group_uid != new.group_uid
            or new.admission < old.admission
            or new.attempt < old.attempt
        )
        is_allowed = old.phase == new.phase or (old.phase, new.phase) in _POD_MOVES
    else:
        return None
    if falls:
        return Word.FENCED
    return None if is_allowed else Word.MOVE


class Weighed(Struct, frozen=True, kw_only=True):
    """What the charges of one transaction do to the sums: scope -> amounts added, and deducted.

    `growths`: every (checked, scope, amounts) in which a holder's charge grows; `held`: each
    holder's new charge. Amounts are shared, and must not change.
    """

    plus: Mapping[str, Amounts]
    minus: Mapping[str, Amounts]
    growths: Sequence[tuple[bool, str, Amounts]]
    held: Mapping[str, Held]


def weigh(charges: tuple[Charge, ...], present: Mapping[str, Held]) -> Weighed:
    """Return the differences that `charges` make, given each holder's present charge."""
    plus: dict[str, Amounts] = {}
    minus: dict[str, Amounts] = {}
    growths: list[tuple[bool, str, Amounts]] = []
    held: dict[str, Held] = {}
    for charge in charges:
        holder = charge.holder
        was = present.get(holder, NOTHING)
        now = held[holder] = held_by(charge) if charge.amounts else NOTHING
        if now[0]:
            checked = charge.checked
            for scope, more in _beyond(now, was) if was[0] else [(one, now[1]) for one in now[0]]:
                growths.append((checked, scope, more))
                plus[scope] = _sum(plus[scope], more) if scope in plus else more
        if was[0]:
            for scope, less in _beyond(was, now) if now[0] else [(one, was[1]) for one in was[0]]:
                minus[scope] = _sum(minus[scope], less) if scope in minus else less
    return Weighed(plus=plus, minus=minus, growths=growths, held=held)


def _beyond(one: Held, other: Held) -> Sequence[tuple[str, Amounts]]:
    """Return the scopes in which `one` exceeds `other`, in order, and by how much."""
    scopes, amounts = one
    others, lower = other
    more = {name: units - lower.get(name, 0) for name, units in amounts.items()}
    in_both = {name: units for name, units in more.items() if units > 0}
    found = [(scope, in_both if scope in others else amounts) for scope in scopes]
    return [(scope, growth) for scope, growth in found if growth]


def _sum(one: Amounts, other: Amounts) -> Amounts:
    return {**one, **{name: one.get(name, 0) + units for name, units in other.items()}}


def is_of_node(scope: str) -> bool:
    """Return whether the scope is a node's. Such limits are no policy: each sum is checked against
    its limit here, and no decision weighs several of them together.
    """
    return scope.startswith("node:")


def refuse_outdated(weighed: Weighed, seen: int | None, changed_at: int) -> Answer | None:
    """Return the refusal of growth that was decided at revision `seen` if limits have changed
    since.

    Rules that weigh several limits against each other, such as guarantees of siblings, hold only in
    the decision, so the limits that it weighed must be unchanged. (So must the sums: only one
    leader increases them, and `epoch` identifies it.)
    """
    if seen is None or changed_at <= seen:
        return None
    grows = any(checked and not is_of_node(scope) for checked, scope, _ in weighed.growths)
    return Answer(word=Word.CONFLICT, subject=THE_LIMITS) if grows else None


def refuse_charges(
    weighed: Weighed,
    sums: Callable[[str], Mapping[str, int] | None],
    limits: Callable[[str], Mapping[str, int] | None],
    overcommit: int,
) -> Answer | None:
    """Return the refusal of the first growth that would pass its limit, by the sums after the
    transaction; None if all fit.

    A growth that the same transaction offsets in that scope leaves the sum unchanged or smaller,
    and is not refused even if the limit has been lowered.

    `sums` are a scope's present sums, None without any. The answer's `seen` includes the
    transaction's other charges.
    """
    for checked, scope, more in weighed.growths:
        plus, minus, now = weighed.plus[scope], weighed.minus.get(scope), sums(scope) or _NONE
        limited: Mapping[str, int] = _NONE
        absent = MOST
        if checked and scope == CLUSTER:
            limited = _of_cluster(more, weighed, sums(CAPACITY) or _NONE, overcommit)
        elif checked:
            limited = limits(scope) or _NONE
            if scope.startswith("objects:"):
                limited = {**(limits(EVERY_NAMESPACE) or _NONE), **limited}
            elif is_of_node(scope):
                absent = 0
        for name, need in more.items():
            added, taken = plus[name], minus.get(name, 0) if minus else 0
            if added <= taken:
                continue
            rest = now.get(name, 0) - taken
            limit = limited.get(name, absent) if limited else absent
            if limit > MOST:
                limit = MOST
            if added > limit - rest:
                return _passed(scope, name, need=need, limit=limit, rest=rest, added=added)
    return None


def _passed(scope: str, name: str, *, need: int, limit: int, rest: int, added: int) -> Answer:
    need = min(need, MOST)
    return Answer(
        word=Word.LIMIT,
        subject=scope,
        resource=name,
        need=need,
        limit=limit,
        seen=min(MOST, rest + (min(added, MOST) - need)),
    )


def _of_cluster(
    names: Iterable[str], weighed: Weighed, there: Mapping[str, int], overcommit: int
) -> Mapping[str, int]:
    """Return the cluster's limits; `there` is its capacity before the transaction."""
    plus, minus = weighed.plus.get(CAPACITY, _NONE), weighed.minus.get(CAPACITY, _NONE)
    if plus or minus:
        there = {
            name: there.get(name, 0) + plus.get(name, 0) - minus.get(name, 0) for name in names
        }
    limits = {name: there.get(name, 0) * overcommit // 1000 for name in names}
    limits[POD_GROUPS] = MOST
    return limits


def _broken(transaction: Transaction, what: str) -> InvariantBroken:
    return InvariantBroken(f"the transaction about {transaction.subject} {what}")
