"""Where a record as stored becomes an object, or `Unreadable`: the only place that decides it.

Anybody with credentials can write bytes past our client, and a disk or an older version may leave
some. A record that cannot be read costs that record: it stays where it is, is left out of every
list and snapshot, and is named with the reason to whoever looks (`batchq doctor`, an event, a
metric), until somebody deletes it by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias, cast

from batchq.api.names import shown
from batchq.api.objects import NAMESPACED, Object, Pod, PodGroup
from batchq.api.transaction import Delivery, Event, Ledger
from batchq.api.unreadable import Unreadable
from batchq.api.validate import disorder_of
from batchq.errors import UnreadableRecord
from batchq.store import codec
from batchq.store.codec import DAMAGE
from batchq.store.keys import LAST_CHANGE
from batchq.store.rules import Held

_LONGEST_REASON = 200
_LONGEST_NAME = 120

Decode: TypeAlias = Callable[[str, bytes], Object]


def error_of(one: Unreadable) -> UnreadableRecord:
    """What whoever asks for it is told."""
    return UnreadableRecord(
        f"{one.kind} {one.key[:_LONGEST_NAME]} is unreadable: {one.why}",
        hint=f"delete it: `{one.deletion}`",
    )


def read_record(
    kind: str, key: str, stored: bytes, decode: Decode = codec.read_object
) -> Object | Unreadable:
    """The object that stands under a key, or why it is none."""
    try:
        item = decode(kind, stored)
    except DAMAGE as error:
        return _unreadable(kind, key, reason_of(error))
    meta = item.metadata
    uid = meta.uid
    if kind == "Pod":
        named, uid = uid, cast(Pod, item).status.group_uid
    else:
        named = f"{meta.namespace}/{meta.name}" if kind in NAMESPACED else meta.name
    if named != key:
        return _unreadable(kind, key, f"it says that it is {shown(named)}")
    # Uids are parts of fences, and names parts of scopes, which are told apart by these.
    if " " in key or " " in uid or "|" in uid or _names_no_scope(item):
        return _unreadable(kind, key, "there is a space in a name, or a space or bar in its uid")
    if isinstance(item, PodGroup) and (why := disorder_of(item)):
        return _unreadable(kind, key, why)
    return item


def _names_no_scope(item: Object) -> bool:
    """Whether it would be charged in a scope that is none, for the name of a queue or node."""
    if isinstance(item, PodGroup):
        status = item.status
        if " " in item.spec.queue:
            return True
        if not status.charge_path and not status.pledge.owed:
            return False
        return any(" " in name for name in (*status.charge_path, *status.pledge.owed))
    return isinstance(item, Pod) and (" " in item.status.node or " " in item.metadata.namespace)


def _unreadable(kind: str, key: str, why: str) -> Unreadable:
    return Unreadable(kind=kind, key=name_of(field_of_key(key)), why=why)


#: Sorts of records beside objects, as `Unreadable.kind` has them.
LEDGER, CHARGES, LIMITS = "Ledger", "Charge", "Limit"
DELIVERY = "Delivery"

_TAKEN_OUT = (
    "the scheduler that leads takes it out within seconds, and the node's agent hands in what is"
    " bound to it; if it stays, start a scheduler"
)
_RECOUNTED = (
    "the scheduler that leads counts it anew from the objects within seconds; if it stays, start a"
    " scheduler"
)


def read_ledger(stored: Mapping[bytes, bytes]) -> tuple[Ledger, list[Unreadable]]:
    """The sums of every scope, in order, from the fields of the ledger; and what is no sum."""
    sums: Ledger = {}
    damaged = []
    for field in sorted(stored):
        try:
            scope, name, units = codec.read_sum(field, stored[field])
        except DAMAGE as error:
            damaged.append(_in_books(LEDGER, field, error))
            continue
        sums.setdefault(scope, {})[name] = units
    return {scope: sums[scope] for scope in sorted(sums)}, damaged


def read_charges(stored: Mapping[bytes, bytes]) -> tuple[dict[str, Held], list[Unreadable]]:
    """Every holder's scopes and amounts, in order; and what is no charge."""
    charges: dict[str, Held] = {}
    damaged = []
    for field in sorted(stored):
        try:
            charges[field.decode()] = codec.read_charge(stored[field])
        except DAMAGE as error:
            damaged.append(_in_books(CHARGES, field, error))
    return charges, damaged


def read_limits(
    stored: Mapping[bytes, bytes],
) -> tuple[dict[str, dict[str, int]], list[Unreadable]]:
    """The limits of every scope; and what is none."""
    limits: dict[str, dict[str, int]] = {}
    damaged = []
    for field in sorted(stored):
        try:
            if field == LAST_CHANGE.encode():
                codec.read_units(stored[field])
            else:
                limits[field.decode()] = codec.read_limit(stored[field])
        except DAMAGE as error:
            damaged.append(_in_books(LIMITS, field, error))
    return limits, damaged


def read_event(fields: Mapping[bytes, bytes]) -> Event | None:
    """The event of an entry of the stream; None for an entry that is none, which goes with time."""
    try:
        return codec.read_event(fields.get(b"event", b""))
    except DAMAGE:
        return None


def read_outbox(
    stored: Mapping[bytes, bytes],
) -> tuple[tuple[Delivery, ...], list[Unreadable]]:
    """What is to be handed over, in order of binding; and what is no delivery."""
    found: list[tuple[tuple[int, int], Delivery]] = []
    damaged = []
    for field in sorted(stored):
        try:
            found.append(codec.read_delivery(stored[field]))
        except DAMAGE as error:
            one = Unreadable(
                kind=DELIVERY, key=name_of(field), why=reason_of(error), remedy=_TAKEN_OUT
            )
            damaged.append(one)
    return tuple(one for _, one in sorted(found, key=lambda entry: entry[0])), damaged


def _in_books(kind: str, field: bytes, error: BaseException) -> Unreadable:
    return Unreadable(kind=kind, key=name_of(field), why=reason_of(error), remedy=_RECOUNTED)


_HEAD = re.compile(rb"\d{1,16}\|[^|]*\|[^|]*\|.*", re.DOTALL)


def is_head(stored: bytes) -> bool:
    """Whether it is the head of an object."""
    return _HEAD.fullmatch(stored) is not None


def head_of(stored: bytes) -> tuple[str, str, str, str]:
    """Revision, phase, fence and stop of an object's head; all empty where it is none."""
    parts = stored.decode(errors="replace").split("|", 3)
    if len(parts) != 4:
        return "", "", "", ""
    revision, phase, fence, stop = parts
    return revision, phase, fence, stop


def reason_of(error: BaseException) -> str:
    """Why something could not be decoded, in one short line."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 (byte {error.start})"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return shown(str(error), _LONGEST_REASON)[1:-1]


_NO_PLAIN = re.compile(rb"[^!-\[\]-~]")
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")


def key_of_field(field: bytes) -> str:
    """The key that a field of a hash stands for, also where the field is not UTF-8."""
    return field.decode(errors="surrogateescape")


def field_of_key(key: str) -> bytes:
    """The other way round."""
    return key.encode(errors="surrogateescape")


def name_of(field: bytes) -> str:
    """A key for people: all but plain characters of ASCII are escaped. No two keys look alike."""
    return _NO_PLAIN.sub(lambda found: b"\\x%02x" % found[0][0], field).decode()


def field_named(name: str) -> bytes:
    """The key that `name_of` has made this name of."""
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), name.encode())
