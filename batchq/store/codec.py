"""Between values and what stands in Redis: JSON for objects, JSON of texts for the scripts.

Lua's numbers are doubles, so no amount or revision travels into or out of a script other than as
text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import msgspec
from msgspec import Struct, structs

from batchq.api.objects import KINDS, Object, Pod
from batchq.api.transaction import (
    Answer,
    Charge,
    Delivery,
    Event,
    Ledger,
    Limit,
    Transaction,
    Word,
    Write,
    fence_of,
    phase_of,
    stop_of,
)
from batchq.store.keys import KIND_NAMES, LAST_CHANGE
from batchq.store.rules import MOST, NOTHING, Held, held_by

#: Every object begins so; the script puts the revision behind it.
_START = b'{"metadata":{'

_OK = Answer(word=Word.OK)

_ENCODER = msgspec.json.Encoder()
#: Unknown fields are passed over: a newer batchq may have written them.
_OBJECTS = {name: msgspec.json.Decoder(kind) for name, kind in KINDS.items()}
_EVENT = msgspec.json.Decoder(Event)
_CHARGE = msgspec.json.Decoder(tuple[tuple[str, ...], tuple[tuple[str, str], ...]])
_LIMIT = msgspec.json.Decoder(dict[str, str])


class Carried(Struct, frozen=True):
    """A delivery in the outbox."""

    pod: str
    attempt: int
    node: str


_CARRIED = msgspec.json.Decoder(Carried)
_Answers: TypeAlias = tuple[str, tuple[tuple[str, ...], ...]]
_ANSWERS = msgspec.json.Decoder(_Answers)


def read_object(kind: str, stored: bytes) -> Object:
    """The object as stored, its revision in its metadata."""
    return _OBJECTS[kind].decode(stored)


def pod_if_readable(stored: bytes | None) -> Pod | None:
    """A pod that was read with something else; None where it has to be asked for, by who can say
    what is wrong with it.
    """
    try:
        pod = read_object("Pod", stored) if stored else None
    except msgspec.MsgspecError:
        return None
    return pod if isinstance(pod, Pod) else None


def read_event(stored: bytes) -> Event:
    return _EVENT.decode(stored)


def read_charge(stored: bytes) -> Held:
    """A holder's scopes and amounts."""
    scopes, amounts = _CHARGE.decode(stored)
    return scopes, {name: int(units) for name, units in amounts}


def read_ledger(stored: Mapping[bytes, bytes]) -> Ledger:
    """The sums of every scope, in order, from the fields of the ledger."""
    sums: Ledger = {}
    for field in sorted(stored):
        scope, name = field.decode().split(" ", 1)
        sums.setdefault(scope, {})[name] = int(stored[field])
    return {scope: sums[scope] for scope in sorted(sums)}


def read_limits(stored: Mapping[bytes, bytes]) -> dict[str, dict[str, int]]:
    """The limits of every scope, from the fields of the limits."""
    return {
        field.decode(): {name: int(units) for name, units in _LIMIT.decode(amounts).items()}
        for field, amounts in stored.items()
        if field.decode() != LAST_CHANGE
    }


def read_delivery(stored: bytes) -> tuple[tuple[int, int], Delivery]:
    """Its place in the order of binding, and the delivery."""
    revision, place, rest = stored.split(b" ", 2)
    carried = _CARRIED.decode(rest)
    delivery = Delivery(pod=carried.pod, attempt=carried.attempt, node=carried.node)
    return (int(revision), int(place)), delivery


def delivery_field(delivery: Delivery) -> str:
    """Its field in the outbox."""
    return f"{delivery.pod}-{delivery.attempt}"


def read_answers(reply: bytes) -> tuple[tuple[Answer, ...], int]:
    """What `commit.lua` says: an answer for each transaction, and the revision afterwards."""
    revision, answers = _ANSWERS.decode(reply)
    return tuple(_answer(parts) for parts in answers), int(revision)


def kinds_of(transactions: Iterable[Transaction]) -> tuple[str, ...]:
    """The kinds whose objects are written, in the order in which a script is given their keys."""
    written = {write.kind for transaction in transactions for write in transaction.writes}
    return tuple(kind for kind in KIND_NAMES if kind in written)


def places_of(kinds: Sequence[str]) -> dict[str, int]:
    """Where `commit.lua` finds the keys of each of these kinds."""
    return {kind: place for place, kind in enumerate(kinds, start=1)}


class Written(Struct, frozen=True):
    """A transaction for `commit.lua`: its words, a list in JSON without its brackets, and the
    values of its writes.
    """

    words: bytes
    values: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """Its bytes, about."""
        return len(self.words) + sum(map(len, self.values))


def write_transaction(transaction: Transaction, places: Mapping[str, int]) -> Written:
    """One transaction for `commit.lua`."""
    one = transaction
    words: list[str | int] = list(
        map(len, (one.writes, one.charges, one.limits, one.deliveries, one.events))
    )
    for write in one.writes:
        words += _write(write, places[write.kind])
    for charge in one.charges:
        words += _charge(charge)
    for limit in one.limits:
        words += _limit(limit)
    for delivery in one.deliveries:
        words += _delivery(delivery)
    words += [_text(event) for event in one.events]
    values = tuple(_after_start(write.value) for write in one.writes if write.value is not None)
    return Written(_ENCODER.encode(words)[1:-1], values)


def joined(transactions: Sequence[Written]) -> bytes:
    """All their words, as JSON."""
    return b"[" + b",".join(one.words for one in transactions) + b"]"


def _write(write: Write, place: int) -> tuple[str | int, ...]:
    expect = "" if write.expect is None else str(write.expect)
    kind = (place, write.kind, write.key, expect, write.fence)
    item = write.value
    if item is None:
        return (*kind, "", "", "", "")
    return (*kind, phase_of(item), fence_of(item), stop_of(item), "yes")


def _after_start(item: Object) -> bytes:
    meta = structs.replace(item.metadata, revision=0)
    return _ENCODER.encode(structs.replace(item, metadata=meta))[len(_START) :]


def _charge(charge: Charge) -> tuple[str, str, str]:
    record = _record(charge.scopes, tuple(charge.amounts.items())) if charge.amounts else ""
    return charge.holder, record, "yes" if charge.checked else ""


@lru_cache(maxsize=4096)
def _record(scopes: tuple[str, ...], amounts: tuple[tuple[str, int], ...]) -> str:
    """What a holder counts for, as it is stored: many holders count for the same."""
    held = held_by(Charge(holder="", scopes=scopes, amounts=dict(amounts)))
    if held is NOTHING:
        return ""
    scopes, counted = held
    return _text((scopes, [(name, str(units)) for name, units in counted.items()]))


def _limit(limit: Limit) -> tuple[str, str]:
    if limit.amounts is None:
        return limit.scope, ""
    return limit.scope, _text({name: str(min(MOST, n)) for name, n in limit.amounts.items()})


def _delivery(delivery: Delivery) -> tuple[str, str]:
    return delivery_field(delivery), _text(Carried(delivery.pod, delivery.attempt, delivery.node))


def _answer(parts: tuple[str, ...]) -> Answer:
    if parts == ("ok",):
        return _OK
    if len(parts) <= 2:
        return Answer(word=Word(parts[0]), subject=parts[1] if len(parts) == 2 else "")
    word, subject, resource, need, limit, seen = parts
    return Answer(
        word=Word(word),
        subject=subject,
        resource=resource,
        need=int(need),
        limit=int(limit),
        seen=int(seen),
    )


def _text(value: object) -> str:
    return _ENCODER.encode(value).decode()
