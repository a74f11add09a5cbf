"""The stored form of values: JSON for objects, JSON of texts for the scripts; and decoding it into
objects or `Unreadable`: the only place that decides which.

Lua's numbers are doubles, so amounts and revisions travel into and out of scripts as text only.

Any user with credentials can write bytes past batchq's client, and a disk or an older version may
leave damaged ones. An unreadable record costs only that record: it stays in place, is left out of
every list and snapshot, and is reported with its reason (by `batchq doctor`, an event and a
metric), until a user deletes it by name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias, cast

import msgspec
from msgspec import Struct, structs

from batchq.api.notation import shown
from batchq.api.objects import (
    KINDS,
    NAMESPACED,
    Integer,
    Metadata,
    Node,
    Object,
    Pod,
    PodGroup,
    PodGroupSpec,
    PodGroupStatus,
    Queue,
    ResourceQuota,
    Unreadable,
)
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
from batchq.api.validation import disorder_of, disorder_of_spec, disorder_of_status, false_amount
from batchq.errors import UnreadableRecord
from batchq.store.keys import KIND_NAMES, LAST_CHANGE, heads
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
        words += charge_words(charge)
    for limit in one.limits:
        words += _limit(limit)
    for delivery in one.deliveries:
        words += _delivery(delivery)
    words += [text_of(event) for event in one.events]
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
    return f"{revision}|{_rest_of_head(item)}".encode()


def parts_of(item: Object) -> tuple[bytes, str]:
    """Return what scripts write of an object after the revision: its JSON, and its head."""
    return _after_start(item), _rest_of_head(item)


def _rest_of_head(item: Object) -> str:
    return f"{phase_of(item)}|{fence_of(item)}|{stop_of(item)}"


def _after_start(item: Object) -> bytes:
    if item.metadata.revision:
        item = structs.replace(item, metadata=structs.replace(item.metadata, revision=0))
    return _ENCODER.encode(item)[len(_START) :]


def charge_words(charge: Charge) -> tuple[str, str, str]:
    """Return the holder, its charge in its stored form, and whether limits are checked for it."""
    record = _record(charge.scopes, tuple(charge.amounts.items())) if charge.amounts else ""
    return charge.holder, record, "yes" if charge.checked else ""


@lru_cache(maxsize=4096)
def _record(scopes: tuple[str, ...], amounts: tuple[tuple[str, int], ...]) -> str:
    """Encode a charge. Cached, since many holders have equal charges."""
    held = held_by(Charge(holder="", scopes=scopes, amounts=dict(amounts)))
    if held is NOTHING:
        return ""
    scopes, counted = held
    return text_of((scopes, [(name, str(units)) for name, units in counted.items()]))


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
    return limit.scope, text_of({name: str(min(MOST, n)) for name, n in limit.amounts.items()})


def _delivery(delivery: Delivery) -> tuple[str, str]:
    return delivery_field(delivery), text_of(Carried(delivery.pod, delivery.attempt, delivery.node))


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


def text_of(value: object) -> str:
    """Return a value as JSON."""
    return _ENCODER.encode(value).decode()


_LONGEST_REASON = 200
#: Longer than any valid key of an object.
_LONGEST_KEY, _SHOWN_OF_KEY = 1024, 40
#: Longer than any uid that batchq creates. Uids of digits are compared as numbers, and Python
#: refuses numbers of more than 4,300 digits.
_LONGEST_UID = 1024
#: Uids of groups are parts of their pods', and these are parts of the ids of RQ jobs, and of the
#: names of files, on nodes: an agent would refuse the job, and take itself out of service.
_OF_UIDS = {
    "PodGroup": re.compile(r"[A-Za-z0-9_-]{1,100}"),
    "Pod": re.compile(r"[A-Za-z0-9_-]{1,160}"),
}
#: No name contains these otherwise: `name_of` escapes backslashes as `\\x5c`.
_EMPTY, _SHORTENED = "\\x", "\\..."
_LONGEST_NAME = 120

Decode: TypeAlias = Callable[[str, bytes], Object]


def error_of(one: Unreadable) -> UnreadableRecord:
    """Return the error for a caller that asks for an unreadable record."""
    return UnreadableRecord(
        f"{one.kind} {one.key[:_LONGEST_NAME]} is unreadable: {one.why}",
        hint=f"delete it: `{one.deletion}`",
    )


def read_record(
    kind: str, key: str, stored: bytes, decode: Decode = read_object
) -> Object | Unreadable:
    """Return the object stored under a key, or why it is unreadable."""
    try:
        item = decode(kind, stored)
    except DAMAGE as error:
        return _unreadable(kind, key, reason_of(error))
    meta = item.metadata
    uid = meta.uid
    if isinstance(item, PodGroup) and _is_sound(item, key):
        return item
    if kind == "Pod":
        named, uid = uid, cast(Pod, item).status.group_uid
    else:
        named = f"{meta.namespace}/{meta.name}" if kind in NAMESPACED else meta.name
    if named != key:
        return _unreadable(kind, key, f"it is named {shown(named)}")
    # Spaces and bars separate the parts of fences, which contain uids, and of scopes, which contain
    # names.
    if " " in key or " " in uid or "|" in uid or _names_no_scope(item):
        return _unreadable(kind, key, "a name contains a space, or its uid a space or bar")
    if len(uid) > _LONGEST_UID:
        return _unreadable(kind, key, f"its uid has {len(uid):,} characters")
    if kind in _OF_UIDS and not _OF_UIDS[kind].fullmatch(meta.uid):
        return _unreadable(kind, key, f"its uid is {shown(meta.uid)}, which names no RQ job")
    if isinstance(item, PodGroup) and (why := disorder_of(item)):
        return _unreadable(kind, key, why)
    if why := _false_amounts_of(item):
        return _unreadable(kind, key, why)
    return item


def _is_sound(group: PodGroup, key: str) -> bool:
    """Return whether a group passes every check of `read_record`. Most records are sound groups, so
    this does not look for the reason.
    """
    return (
        is_named(group.metadata, key)
        and is_sound_spec(group.spec)
        and is_sound_status(group.status)
    )


def is_named(meta: Metadata, key: str) -> bool:
    """Return whether the metadata of a group is sound, and that of the record with this key."""
    return (
        f"{meta.namespace}/{meta.name}" == key
        and " " not in key
        and _OF_UIDS["PodGroup"].fullmatch(meta.uid) is not None
    )


def is_sound_spec(spec: PodGroupSpec) -> bool:
    """Return whether the spec of a group passes every check of `read_record`."""
    return " " not in spec.queue and not disorder_of_spec(spec)


def is_sound_status(status: PodGroupStatus) -> bool:
    """Return whether the status of a group passes every check of `read_record`."""
    return not _names_no_scope_in(status) and not disorder_of_status(status)


def _false_amounts_of(item: Object) -> str:
    """Return the first malformed amount of a queue, quota, node or pod; "" if there is none.
    Scripts would refuse every charge below a malformed limit.
    """
    stated: dict[str, Mapping[str, int]] = {}
    match item:
        case Pod():
            stated["requests"] = item.spec.requests
        case ResourceQuota():
            stated["hard"] = item.spec.hard
        case Node():
            stated["resources"] = item.spec.resources
        case Queue(spec=spec):
            stated |= {"guarantee": spec.guarantee, "deserved": spec.deserved}
            stated["capability"] = spec.capability
            for field, number in (("weight", spec.weight), ("maxPodGroups", spec.max_pod_groups)):
                if number is not None and number < 0:
                    return f"its {field} is {number}"
    return next(filter(None, (false_amount(*one) for one in stated.items())), "")


def _names_no_scope(item: Object) -> bool:
    """Return whether the name of a queue or node would give it a malformed scope to charge."""
    if isinstance(item, PodGroup):
        return " " in item.spec.queue or _names_no_scope_in(item.status)
    return isinstance(item, Pod) and (" " in item.status.node or " " in item.metadata.namespace)


def _names_no_scope_in(status: PodGroupStatus) -> bool:
    if not status.charge_path and not status.pledge.owed:
        return False
    return " " in "".join((*status.charge_path, *status.pledge.owed))


def _unreadable(kind: str, key: str, why: str) -> Unreadable:
    return Unreadable(kind=kind, key=name_of_record(field_of_key(key)), why=why)


def name_of_record(field: bytes) -> str:
    """Return the name of an object's record: as `name_of`, but the end of a key that is too long
    for a command line is replaced by the digest of the key.
    """
    if len(field) <= _LONGEST_KEY:
        return name_of(field)
    # No secret depends on it.
    digest = hashlib.sha1(field, usedforsecurity=False).hexdigest()
    return f"{name_of(field[:_SHOWN_OF_KEY])}{_SHORTENED}{digest}"


def is_shortened(name: str) -> bool:
    """Return whether `name_of_record` has shortened this name, so that it gives no key."""
    return _SHORTENED in name


#: Kinds of records other than objects, for `Unreadable.kind`.
LEDGER, CHARGES, LIMITS = "Ledger", "Charge", "Limit"
DELIVERY = "Delivery"
HEAD = "Head"

_TAKEN_OUT = (
    "the leading scheduler removes it within seconds, and the node's agent delivers the pods bound"
    " to it; if it stays, start a scheduler"
)
_RECOUNTED = (
    "the leading scheduler recounts it from the objects within seconds; if it stays, start a"
    " scheduler"
)


def read_ledger(stored: Mapping[bytes, bytes]) -> tuple[Ledger, list[Unreadable]]:
    """Return the sums of every scope, in order, and the malformed fields."""
    sums: Ledger = {}
    damaged = []
    for field in sorted(stored):
        try:
            scope, name, units = read_sum(field, stored[field])
        except DAMAGE as error:
            damaged.append(_in_books(LEDGER, field, error))
            continue
        sums.setdefault(scope, {})[name] = units
    return {scope: sums[scope] for scope in sorted(sums)}, damaged


def read_charges(stored: Mapping[bytes, bytes]) -> tuple[dict[str, Held], list[Unreadable]]:
    """Return every holder's scopes and amounts, in order; and the malformed charges."""
    charges: dict[str, Held] = {}
    damaged = []
    for field in sorted(stored):
        try:
            charges[field.decode()] = read_charge(stored[field])
        except DAMAGE as error:
            damaged.append(_in_books(CHARGES, field, error))
    return charges, damaged


def read_limits(
    stored: Mapping[bytes, bytes], revision: int
) -> tuple[dict[str, dict[str, int]], list[Unreadable]]:
    """Return the limits of every scope; and the malformed ones. `revision`: the count of writes,
    which bounds the revision of their last change.
    """
    limits: dict[str, dict[str, int]] = {}
    damaged = []
    for field in sorted(stored):
        try:
            if field == LAST_CHANGE.encode():
                read_last_change(stored[field], revision)
            else:
                limits[field.decode()] = read_limit(stored[field])
        except DAMAGE as error:
            damaged.append(_in_books(LIMITS, field, error))
    return limits, damaged


def read_last_change(stored: bytes, revision: int) -> int:
    """Return the revision at which limits changed last. Raises ValueError for a malformed one: a
    future revision would refuse every later decision as outdated.
    """
    changed_at = read_units(stored)
    if not 0 <= changed_at <= revision:
        raise ValueError(f"expected one of {revision} writes, found {changed_at}")
    return changed_at


def read_event(fields: Mapping[bytes, bytes]) -> Event | None:
    """Return the event of a stream entry; None for a malformed one, which is trimmed in time."""
    try:
        return _EVENT.decode(fields.get(b"event", b""))
    except DAMAGE:
        return None


def read_outbox(
    stored: Mapping[bytes, bytes],
) -> tuple[tuple[Delivery, ...], list[Unreadable]]:
    """Return the pods to deliver, in order of binding; and the malformed entries."""
    found: list[tuple[tuple[int, int], Delivery]] = []
    damaged = []
    for field in sorted(stored):
        try:
            found.append(read_delivery(stored[field]))
        except DAMAGE as error:
            one = Unreadable(
                kind=DELIVERY, key=name_of(field), why=reason_of(error), remedy=_TAKEN_OUT
            )
            damaged.append(one)
    return tuple(one for _, one in sorted(found, key=lambda entry: entry[0])), damaged


def _in_books(kind: str, field: bytes, error: BaseException) -> Unreadable:
    return Unreadable(kind=kind, key=name_of(field), why=reason_of(error), remedy=_RECOUNTED)


def false_head(kind: str, key: str) -> Unreadable:
    """Return the report on a missing head, or one that does not match its object."""
    return Unreadable(
        kind=HEAD,
        key=f"{kind} {name_of_record(field_of_key(key))}",
        why=f"its field in {heads(kind)} does not match the object",
        remedy=_RECOUNTED,
    )


_HEAD = re.compile(rb"\d{1,16}\|[^|]*\|[^|]*\|.*", re.DOTALL)


def is_head(stored: bytes) -> bool:
    """Return whether it is a well-formed head."""
    return _HEAD.fullmatch(stored) is not None


def head_of(stored: bytes) -> tuple[str, str, str, str]:
    """Return revision, phase, fence and stop of an object's head; all empty for a malformed one."""
    parts = stored.decode(errors="replace").split("|", 3)
    if len(parts) != 4:
        return "", "", "", ""
    revision, phase, fence, stop = parts
    return revision, phase, fence, stop


#: How msgspec reports a value of the wrong type: what was expected, and where.
_AT_PLACE = re.compile(r"(Expected .+) - at `\$\.?(\S+)`")


def reason_of(error: BaseException) -> str:
    """Return why something could not be decoded, in one short line."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 (byte {error.start})"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = str(error)
    if placed := _AT_PLACE.fullmatch(text):
        what, where = placed.groups()
        text = f"{where}: {what[0].lower()}{what[1:].replace(', got ', ', found ')}"
    return shown(text, _LONGEST_REASON)[1:-1]


_NO_PLAIN = re.compile(rb"[^!-\[\]-~]")
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")


def key_of_field(field: bytes) -> str:
    """Return the key that a hash field stands for, even if the field is not UTF-8."""
    return field.decode(errors="surrogateescape")


def field_of_key(key: str) -> bytes:
    """Return the hash field of a key, the inverse of `key_of_field`."""
    return key.encode(errors="surrogateescape")


#: One object of a list, as it sorts: its uid (a pod's is its group's), its field, and its phase.
Entry: TypeAlias = tuple[bytes, bytes, bytes]


def entries_after(entries: Sequence[Entry], token: str) -> list[Entry]:
    """Return the entries after a token's place (`UID.KEY`; the uid is "" in a list by key), whether
    or not its object still exists.
    """
    uid, _, key = token.partition(".")
    place = (uid.encode(), field_of_key(key), b"\xff")
    return [entry for entry in entries if entry > place]


def name_of(field: bytes) -> str:
    """Return a key for people, with all but plain ASCII characters escaped. Distinct keys have
    distinct names; the empty one's is a lone escape.
    """
    if not field:
        return _EMPTY
    return _NO_PLAIN.sub(lambda found: b"\\x%02x" % found[0][0], field).decode()


def field_named(name: str) -> bytes:
    """Return the field from which `name_of` made this name."""
    if name == _EMPTY:
        return b""
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), name.encode())
