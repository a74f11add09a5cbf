"""Conversion between values and their stored form: JSON for objects, JSON of texts for the scripts.

Lua's numbers are doubles, so amounts and revisions travel into and out of scripts as text only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import msgspec
from msgspec import Struct, structs

from batchq.api.notation import shown
from batchq.api.objects import KINDS, Integer, Object, Pod
from batchq.api.transaction import (
    Answer,
    Charge,
    Delivery,
    Event,
    Limit,
    Transaction,
    Word,
    Write,
    fence_of,
    phase_of,
    stop_of,
)
from batchq.store.keys import KIND_NAMES
from batchq.store.rules import MOST, NOTHING, Held, held_by

#: What decoders raise for malformed bytes: truncated, of another type, not UTF-8, nested too
#: deeply, or with an invalid or too large number.
DAMAGE = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)

#: Every encoded object begins with this; the script inserts the revision after it.
_START = b'{"metadata":{'

_OK = Answer(word=Word.OK)

_ENCODER = msgspec.json.Encoder()
#: Unknown fields are ignored: a newer batchq may have written them.
_OBJECTS = {name: msgspec.json.Decoder(kind) for name, kind in KINDS.items()}
_EVENT = msgspec.json.Decoder(Event)
_CHARGE = msgspec.json.Decoder(tuple[tuple[str, ...], tuple[tuple[str, str], ...]])
#: Digits that the scripts read, the sign included.
_DIGITS = 17
_LIMIT = msgspec.json.Decoder(dict[str, str])


class Carried(Struct, frozen=True):
    """A delivery in the outbox."""

    pod: str
    attempt: Integer
    node: str


_CARRIED = msgspec.json.Decoder(Carried)
_Answers: TypeAlias = tuple[str, tuple[tuple[str, ...], ...]]
_ANSWERS = msgspec.json.Decoder(_Answers)


def read_object(kind: str, stored: bytes) -> Object:
    """Return the stored object, with its revision in its metadata."""
    return _OBJECTS[kind].decode(stored)


def pod_if_readable(stored: bytes | None) -> Pod | None:
    """Return a pod that was read along with something else; None if it is absent or unreadable. The
    caller that needs the reason reads the record itself.
    """
    try:
        pod = read_object("Pod", stored) if stored else None
    except DAMAGE:
        return None
    return pod if isinstance(pod, Pod) else None


def read_event(stored: bytes) -> Event:
    return _EVENT.decode(stored)


def read_charge(stored: bytes) -> Held:
    """Return a holder's scopes and amounts."""
    scopes, amounts = _CHARGE.decode(stored)
    return scopes, {name: read_amount(units) for name, units in amounts}


def read_amount(stored: str) -> int:
    """Return an amount or a limit as scripts store it. Raises ValueError for anything else."""
    if stored.startswith("-"):
        raise ValueError(f"expected no negative number, found {shown(stored)}")
    return read_units(stored)


def read_units(stored: str | bytes) -> int:
    """Return a number as scripts store it. Raises ValueError for anything else."""
    text = stored if isinstance(stored, str) else stored.decode()
    if len(text) > _DIGITS or not text.removeprefix("-").isdigit():
        raise ValueError(f"expected a whole number below 10^17, found {shown(text)}")
    return int(text)


def whole(stored: bytes | None) -> int | None:
    """Return a count or an instant; None for anything else."""
    if stored is None or len(stored) > _DIGITS or not stored.isdigit():
        return None
    return int(stored)


def read_sum(field: bytes, stored: bytes) -> tuple[str, str, int]:
    """Return the scope and resource of a ledger field, and its sum."""
    scope, name = field.decode().split(" ", 1)
    return scope, name, read_units(stored)


def read_limit(stored: bytes) -> dict[str, int]:
    """Return the limits of a scope, by resource."""
    return {name: read_amount(units) for name, units in _LIMIT.decode(stored).items()}


def read_delivery(stored: bytes) -> tuple[tuple[int, int], Delivery]:
    """Return the delivery, after its place in the order of binding."""
    revision, place, rest = stored.split(b" ", 2)
    carried = _CARRIED.decode(rest)
    delivery = Delivery(pod=carried.pod, attempt=carried.attempt, node=carried.node)
    return (read_units(revision), read_units(place)), delivery


def delivery_field(delivery: Delivery) -> str:
    """Return the delivery's field in the outbox."""
    return f"{delivery.pod}-{delivery.attempt}"


def read_answers(reply: bytes) -> tuple[tuple[Answer, ...], int]:
    """Return the answers of `commit.lua`, one for each transaction, and the revision after it."""
    revision, answers = _ANSWERS.decode(reply)
    return tuple(_answer(parts) for parts in answers), int(revision)


def kinds_of(transactions: Iterable[Transaction]) -> tuple[str, ...]:
    """Return the kinds of the objects written, in the order of the keys in a script's call."""
    written = {write.kind for transaction in transactions for write in transaction.writes}
    return tuple(kind for kind in KIND_NAMES if kind in written)


def places_of(kinds: Sequence[str]) -> dict[str, int]:
    """Return the place of each kind's keys in a call of `commit.lua`."""
    return {kind: place for place, kind in enumerate(kinds, start=1)}


class Written(Struct, frozen=True):
    """A transaction for `commit.lua`: a JSON list without brackets, and the values written."""

    words: bytes
    values: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """Its approximate size in bytes."""
        return len(self.words) + sum(map(len, self.values))


def write_transaction(transaction: Transaction, places: Mapping[str, int]) -> Written:
    """Encode one transaction for `commit.lua`."""
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
    """Join the words of all transactions, as JSON."""
    return b"[" + b",".join(one.words for one in transactions) + b"]"


def _write(write: Write, place: int) -> tuple[str | int, ...]:
    expect = "" if write.expect is None else str(write.expect)
    kind = (place, write.kind, write.key, expect, write.fence)
    item = write.value
    if item is None:
        return (*kind, "", "", "", "")
    return (*kind, phase_of(item), fence_of(item), stop_of(item), "yes")


def head_of_object(item: Object) -> bytes:
    """Return the head of an object, which scripts compare, as `commit.lua` writes it."""
    revision = item.metadata.revision
    return f"{revision}|{phase_of(item)}|{fence_of(item)}|{stop_of(item)}".encode()


def _after_start(item: Object) -> bytes:
    meta = structs.replace(item.metadata, revision=0)
    return _ENCODER.encode(structs.replace(item, metadata=meta))[len(_START) :]


def _charge(charge: Charge) -> tuple[str, str, str]:
    record = _record(charge.scopes, tuple(charge.amounts.items())) if charge.amounts else ""
    return charge.holder, record, "yes" if charge.checked else ""


@lru_cache(maxsize=4096)
def _record(scopes: tuple[str, ...], amounts: tuple[tuple[str, int], ...]) -> str:
    """Encode a charge. Cached, since many holders have equal charges."""
    held = held_by(Charge(holder="", scopes=scopes, amounts=dict(amounts)))
    if held is NOTHING:
        return ""
    scopes, counted = held
    return _text((scopes, [(name, str(units)) for name, units in counted.items()]))


def write_charge(held: Held) -> bytes:
    """Encode a holder's charge as it is stored."""
    scopes, amounts = held
    return _record(scopes, tuple(amounts.items())).encode()


def write_limit(amounts: Mapping[str, int]) -> bytes:
    """Encode the limits of a scope as they are stored."""
    return _limit(Limit(scope="", amounts=dict(amounts)))[1].encode()


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
