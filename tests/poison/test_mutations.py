"""Every decoder under random damage returns a value or an `Unreadable`, and nothing else."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator

import msgspec
import pytest
import redis
from rq.exceptions import NoSuchJobError
from rq.serializers import JSONSerializer

from batchq.api.node_report import Ended, PodAttempt, PodOutcome, Serves, StartClaim, encode
from batchq.api.objects import Object, Unreadable, key_of, kind_of
from batchq.api.transaction import Event
from batchq.store import records
from batchq.store.liveness import beats_of, leases_of, renewal_of, runs_of
from batchq.store.node_channels import _read
from batchq.store.records import DAMAGE
from batchq.store.sharing_reader import SharingReader
from batchq.worker.rq_delivery import NotOurs, PodJob, _payload
from tests.contract.made import group, node, pod, queue

#: Inputs for each decoder; `make swarm` sets more.
INPUTS = int(os.environ.get("BATCHQ_MUTATIONS", "1000"))

OBJECTS: tuple[Object, ...] = (group(), pod(), queue(), node())
TOKENS = (
    *(b"\xff", b"\x00", b"[" * 2_000, b"{", b'"', b"\\ud800", b"9" * 400, b"1e999", b"-", b"null"),
    *(b"|", b" ", b":", b"\n", b"NaN", b"true", b"{}", b"[]", b"\xed\xa0\x80"),
)


def mutated(chance: random.Random, stored: bytes) -> bytes:
    """Return the bytes with a few of them changed, cut out, doubled, or inserted."""
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(stored))
        to = min(len(stored), at + chance.randint(0, 12))
        match chance.randint(0, 4):
            case 0:
                stored = stored[:at]
            case 1:
                stored = stored[:at] + stored[to:]
            case 2:
                stored = stored[:at] + chance.choice(TOKENS) + stored[to:]
            case 3:
                stored = stored[:at] + bytes([chance.randint(0, 255)]) + stored[at + 1 :]
            case _:
                stored = stored[:to] + stored[at:]
    return stored


def of_objects() -> Iterator[tuple[bytes, Callable[[bytes], object]]]:
    reader = SharingReader()
    for item in OBJECTS:
        kind, key, stored = kind_of(item), key_of(item), msgspec.json.encode(item)
        yield stored, lambda raw, kind=kind, key=key: records.read_record(kind, key, raw)
        yield (
            stored,
            lambda raw, kind=kind, key=key: reader.read_record(kind, key, raw),
        )


def read_job(raw: bytes) -> object:
    # The object is only created.
    job = PodJob("p-1", connection=redis.Redis(), serializer=JSONSerializer)
    try:
        job.restore({b"data": raw, b"origin": raw})
        return job.requested_attempt()
    except (NotOurs, NoSuchJobError, ValueError):
        return None


EVENT = msgspec.json.encode(Event(kind="Pod", key="p", reason="Tested", at=1))
FACTS = (
    StartClaim(pod="p", attempt=1, author="a"),
    Ended(pod="p", attempt=1, outcome=PodOutcome(exit_code=1), author="a"),
    Serves(agent="a", resources={"cpu": 1}),
)
DECODERS: dict[str, list[tuple[bytes, Callable[[bytes], object]]]] = {
    "objects": list(of_objects()),
    "ledger": [
        (b"1000", lambda raw: records.read_ledger({b"cluster cpu": raw})),
        (b"cluster cpu", lambda raw: records.read_ledger({raw: b"1"})),
    ],
    "charges": [(b'[["ns:x"],[["cpu","1"]]]', lambda raw: records.read_charges({raw[:9]: raw}))],
    "limits": [(b'{"cpu":"1"}', lambda raw: records.read_limits({raw[:9]: raw}, 2**52))],
    "outbox": [
        (b'5 1 {"pod":"p","attempt":1,"node":"n"}', lambda raw: records.read_outbox({b"p-1": raw}))
    ],
    "events": [(EVENT, lambda raw: records.read_event({b"event": raw}))],
    "heads": [
        (b"5|Bound|u 1 1|", records.head_of),
        (b"5|Bound|u 1 1|", lambda raw: renewal_of(raw, "u 1 1")),
    ],
    "names": [(b"default/a", lambda raw: records.field_named(records.name_of(raw)))],
    "beats": [
        (b"1700000000000", lambda raw: beats_of({"n": {b"beat": raw}})),
        (b"0123abcd", lambda raw: runs_of({"n": {b"run": raw}})),
        (b"u1-1-0-1", lambda raw: leases_of({"n": {raw: b"1"}})),
    ],
    "facts": [
        (encode(one), lambda raw, one=one: _read("n", one.subject.encode(), raw, raw))  # type: ignore[misc]
        for one in FACTS
    ],
    "rq jobs": [(_payload(PodAttempt("p", 1)), read_job)],
}


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_raises_nothing(name: str) -> None:
    chance = random.Random(name)
    for number in range(INPUTS):
        stored, decode = DECODERS[name][number % len(DECODERS[name])]
        raw = mutated(chance, stored)
        try:
            decode(raw)
        except BaseException as error:  # whatever it is, the message must name the input
            pytest.fail(f"input {number}: {type(error).__name__}: {error} for {raw[:200]!r}")


def test_names_of_keys_are_distinct_and_reversible() -> None:
    chance = random.Random(1)
    for _ in range(INPUTS):
        raw = mutated(chance, b"default/a")
        assert records.field_named(records.name_of(raw)) == raw
        assert records.field_of_key(records.key_of_field(raw)) == raw


def test_mutated_records_are_often_unreadable_and_sometimes_not() -> None:
    chance = random.Random(2)
    item = group()
    stored = msgspec.json.encode(item)
    found = [
        records.read_record("PodGroup", key_of(item), mutated(chance, stored)) for _ in range(500)
    ]
    unreadable = sum(isinstance(one, Unreadable) for one in found)
    assert 100 < unreadable < 500
    assert DAMAGE
