"""What a store demands of a transaction, as pure functions: which write, which charge may happen.

`MemoryStore` calls them; `lua/commit.lua` says the same in Lua, because there the comparison and
the write must be one step. The contract suite holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from batchq.api.lifecycle import ON_NODE, POD_GROUP_MOVES, POD_MOVES, allowed
from batchq.api.objects import Object, Pod, PodGroup, key_of, kind_of
from batchq.api.transaction import (
    CAPACITY,
    CLUSTER,
    POD_GROUPS,
    Answer,
    Charge,
    Commit,
    Refusal,
    Transaction,
    Word,
    Write,
    fence_of,
    phase_of,
)
from batchq.errors import InvalidInput, InvariantBroken

#: No sum of the ledger passes this: above it, Lua's numbers skip integers.
MOST = 2**53 - 1

#: What a transaction is in conflict with that was decided on under other limits.
THE_LIMITS = "the limits"

#: What a holder counts for: its scopes, and its amounts without zeros, ordered by dimension.
Held: TypeAlias = tuple[tuple[str, ...], dict[str, int]]
NOTHING: Held = ((), {})

_MOVES = {"PodGroup": allowed(POD_GROUP_MOVES), "Pod": allowed(POD_MOVES)}


def well_formed(transaction: Transaction) -> Transaction:
    """The transaction itself.

    Raises InvariantBroken for one that no caller of ours may build: the same object, holder or
    scope twice, a write that compares nothing, a negative amount.
    """
    writes, charges, limits = transaction.writes, transaction.charges, transaction.limits
    if _repeats([(write.kind, write.key) for write in writes]):
        raise _broken(transaction, "writes one object twice")
    if _repeats([charge.holder for charge in charges]):
        raise _broken(transaction, "charges one holder twice")
    if _repeats([limit.scope for limit in limits]):
        raise _broken(transaction, "limits one scope twice")
    for write in writes:
        _check_write(transaction, write)
    for charge in charges:
        if charge.amounts and min(charge.amounts.values()) < 0:
            raise _broken(transaction, f"charges {charge.holder} a negative amount")
        if " " in "".join(charge.scopes):
            raise _broken(transaction, f"charges {charge.holder} in a scope with a space in it")
    for limit in limits:
        if " " in limit.scope:
            raise _broken(transaction, f"limits {limit.scope}, a scope with a space in it")
        if any(units < 0 for units in (limit.amounts or {}).values()):
            raise _broken(transaction, f"limits {limit.scope} to a negative amount")
    return transaction


def _repeats(things: Sequence[object]) -> bool:
    return len(things) > 1 and len(set(things)) != len(things)


def _check_write(transaction: Transaction, write: Write) -> None:
    if write.expect is None and not write.fence:
        raise _broken(transaction, f"writes {write.kind} {write.key} without comparing anything")
    if write.value is None:
        if write.expect == 0:
            raise _broken(transaction, f"deletes {write.kind} {write.key}, which must not exist")
        return
    if kind_of(write.value) != write.kind or key_of(write.value) != write.key:
        raise _broken(transaction, f"writes another object as {write.kind} {write.key}")
    _check_uid(write.value, write)


def _check_uid(item: Object, write: Write) -> None:
    """A uid is part of the fence, whose parts are told apart by spaces and bars."""
    if not isinstance(item, PodGroup | Pod):
        return
    uid = item.metadata.uid if isinstance(item, PodGroup) else item.status.group_uid
    if " " in uid or "|" in uid:
        raise InvalidInput(
            f"{write.kind} {write.key}: expected a uid without spaces and bars, found {uid[:40]!r}"
        )


def holds_node(item: Object | None) -> bool:
    """Whether it is a pod in a phase in which it holds a node, and may hold a lease."""
    return isinstance(item, Pod) and item.status.phase in ON_NODE


def commit_of(
    transactions: Sequence[Transaction], answers: Sequence[Answer], revision: int
) -> Commit:
    """The answers beside what they answer, in order.

    Raises InvariantBroken when the two do not match: a request id was used for two requests.
    """
    if len(transactions) != len(answers):
        raise InvariantBroken(
            f"a request of {len(transactions)} transactions has the request id of"
            f" another of {len(answers)}"
        )
    pairs = list(zip(transactions, answers, strict=True))
    return Commit(
        applied=tuple(one for one, answer in pairs if answer.word is Word.OK),
        refused=tuple(
            Refusal(transaction=one, answer=answer)
            for one, answer in pairs
            if answer.word is not Word.OK
        ),
        revision=revision,
    )


def held_by(charge: Charge) -> Held:
    """What the holder counts for once the charge is set."""
    if not charge.amounts:
        return NOTHING
    amounts = {name: units for name, units in sorted(charge.amounts.items()) if units > 0}
    return (tuple(dict.fromkeys(charge.scopes)), amounts) if amounts else NOTHING


def refuse_write(write: Write, stored: Object | None, revision: int) -> Answer | None:
    """Why `write` may not happen over `stored`, which is at `revision`; None if it may."""
    word = _refusal(write, stored, revision)
    return None if word is None else Answer(word=word, subject=f"{write.kind} {write.key}")


def _refusal(write: Write, stored: Object | None, revision: int) -> Word | None:
    if stored is None or write.expect == 0:
        return None if stored is None and write.expect == 0 else Word.CONFLICT
    if write.fence and write.fence != fence_of(stored):
        return Word.FENCED
    if write.expect is not None and write.expect != revision:
        return Word.CONFLICT
    if write.value is None:
        return None
    if _falls(stored, write.value):
        return Word.FENCED
    start, finish = phase_of(stored), phase_of(write.value)
    if start != finish and (start, finish) not in _MOVES[write.kind]:
        return Word.MOVE
    return None


def _falls(before: Object, after: Object) -> bool:
    """Whether the uid is another, or a counter of the fence (`fence_of`) lower than it was."""
    if isinstance(before, PodGroup) and isinstance(after, PodGroup):
        is_same = before.metadata.uid == after.metadata.uid
        return not is_same or after.status.admission < before.status.admission
    if isinstance(before, Pod) and isinstance(after, Pod):
        old, new = before.status, after.status
        is_same = old.group_uid == new.group_uid
        return not is_same or new.admission < old.admission or new.attempt < old.attempt
    return fence_of(before) != fence_of(after)


class Weighed(Struct, frozen=True, kw_only=True):
    """What the charges of one transaction do to the sums: by (scope, dimension), added and taken.

    `growths`: every (checked, scope, dimension, how much) in which a holder's charge grows;
    `held`: what each holder counts for then.
    """

    plus: dict[tuple[str, str], int]
    minus: dict[tuple[str, str], int]
    growths: list[tuple[bool, str, str, int]]
    held: dict[str, Held]


def weigh(charges: tuple[Charge, ...], former: Callable[[str], Held]) -> Weighed:
    """The differences that `charges` make, given what each holder counts for now."""
    plus: dict[tuple[str, str], int] = {}
    minus: dict[tuple[str, str], int] = {}
    growths: list[tuple[bool, str, str, int]] = []
    held: dict[str, Held] = {}
    for charge in charges:
        held[charge.holder] = now = held_by(charge)
        (old_scopes, old), (scopes, new) = former(charge.holder), now
        for scope in scopes:
            for name, units in new.items():
                more = units - (old.get(name, 0) if scope in old_scopes else 0)
                if more > 0:
                    plus[scope, name] = plus.get((scope, name), 0) + more
                    growths.append((charge.checked, scope, name, more))
        for scope in old_scopes:
            for name, units in old.items():
                less = units - (new.get(name, 0) if scope in scopes else 0)
                if less > 0:
                    minus[scope, name] = minus.get((scope, name), 0) + less
    return Weighed(plus=plus, minus=minus, growths=growths, held=held)


def is_of_node(scope: str) -> bool:
    """Whether it is a node's. Such limits are no policy: single sums are held against them here,
    and nothing is decided by several of them together.
    """
    return scope.startswith("node:")


def refuse_outdated(weighed: Weighed, seen: int | None, changed_at: int) -> Answer | None:
    """Why nothing may grow that was decided on at revision `seen`, as limits have changed since.

    Rules that weigh several limits against each other, as guarantees of siblings are, hold in the
    decision alone; what they weigh must still be what it was. (The sums, too: only one leader lets
    them grow, and `epoch` says which.)
    """
    if seen is None or changed_at <= seen:
        return None
    grows = any(checked and not is_of_node(scope) for checked, scope, _, _ in weighed.growths)
    return Answer(word=Word.CONFLICT, subject=THE_LIMITS) if grows else None


def refuse_charges(
    weighed: Weighed,
    seen: Callable[[str, str], int],
    limits: Callable[[str], Mapping[str, int] | None],
    overcommit: int,
) -> Answer | None:
    """The first growth that would pass its limit, as sums stand once the transaction has happened.

    What grows by no more than the same transaction takes away there leaves the sum as it is, or
    smaller, and is not refused: not even where a limit has been cut meanwhile.

    `seen` is a sum as it stands now. The answer's `seen` counts the transaction's other charges.
    """
    for checked, scope, name, more in weighed.growths:
        added = weighed.plus[scope, name]
        taken = weighed.minus.get((scope, name), 0)
        rest = seen(scope, name) - taken
        limit = _limit_of(scope, name, weighed, seen, limits, overcommit) if checked else MOST
        if added > taken and added > limit - rest:
            need = min(more, MOST)
            return Answer(
                word=Word.LIMIT,
                subject=scope,
                resource=name,
                need=need,
                limit=limit,
                seen=min(MOST, rest + (min(added, MOST) - need)),
            )
    return None


def _limit_of(
    scope: str,
    name: str,
    weighed: Weighed,
    seen: Callable[[str, str], int],
    limits: Callable[[str], Mapping[str, int] | None],
    overcommit: int,
) -> int:
    if scope == CLUSTER:
        if name == POD_GROUPS:
            return MOST
        place = (CAPACITY, name)
        units = seen(*place) - weighed.minus.get(place, 0) + weighed.plus.get(place, 0)
        return min(MOST, units * overcommit // 1000)
    stated = (limits(scope) or {}).get(name)
    if stated is None:
        return 0 if is_of_node(scope) else MOST
    return min(MOST, stated)


def _broken(transaction: Transaction, what: str) -> InvariantBroken:
    return InvariantBroken(f"the transaction about {transaction.subject} {what}")
