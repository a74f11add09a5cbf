"""Stored objects are read faithfully; equal parts share one object, in bounded memory."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import (
    Condition,
    Metadata,
    Object,
    Pod,
    PodGroup,
    PodGroupSpec,
    PodGroupStatus,
    PodSpec,
    PodStatus,
    PodTemplate,
    Task,
    Unreadable,
)
from batchq.api.reasons import Verdict, Waiting
from batchq.store import records, sharing_reader
from batchq.store.sharing_reader import Remembered, SharingReader
from tests.builders import a_node, a_queue

ENCODER = msgspec.json.Encoder()


def stored(item: Object) -> bytes:
    return ENCODER.encode(item)


def group(number: int, *, at: int = 7, cpu: int = 1000, **meta: Any) -> PodGroup:
    """Return a group that has been waiting since `at`."""
    template = PodTemplate(command=("true",), requests={"cpu": cpu})
    return PodGroup(
        metadata=Metadata(
            name=f"g{number}", namespace="team", uid=f"u{number}", revision=number, **meta
        ),
        spec=PodGroupSpec(queue="q", tasks=(Task(name="w", template=template),)),
        status=PodGroupStatus(
            reservation={"cpu": cpu},
            conditions=(
                Condition(
                    type="Admitted", status="False", message="needs 4", last_transition_time=at
                ),
            ),
            reasons=(Verdict(plugin="quota", reason=Waiting.WAITING_FOR_QUOTA, seen=4),),
        ),
    )


def pod(number: int) -> Pod:
    return Pod(
        metadata=Metadata(name=f"p{number}", namespace="team", uid=f"p{number}"),
        spec=PodSpec(pod_group="g", task="w", index=number, requests={"cpu": 1000}),
        status=PodStatus(group_uid="u", node="n1"),
    )


def read(reader: SharingReader, item: Object) -> Object:
    found = reader.read(type(item).__name__, stored(item))
    assert found == item
    assert stored(found) == stored(item)
    return found


def read_group(reader: SharingReader, item: PodGroup) -> PodGroup:
    found = read(reader, item)
    assert isinstance(found, PodGroup)
    return found


def test_groups_that_are_alike_share_their_specs_and_their_statuses() -> None:
    reader = SharingReader()
    one, other = read_group(reader, group(1)), read_group(reader, group(2))
    assert one.spec is other.spec
    assert one.status is other.status
    assert one.metadata.namespace is other.metadata.namespace
    assert one.metadata.labels is other.metadata.labels
    assert (one.metadata.name, other.metadata.name) == ("g1", "g2")


def test_statuses_that_differ_share_what_is_equal_in_them() -> None:
    reader = SharingReader()
    one, other = read_group(reader, group(1, at=7)), read_group(reader, group(2, at=8))
    assert one.status is not other.status
    assert one.status.reasons is other.status.reasons
    assert one.status.reservation is other.status.reservation
    assert one.status.charge is other.status.charge
    assert one.status.conditions[0].message is other.status.conditions[0].message
    assert one.status.conditions[0].last_transition_time == 7
    assert other.status.conditions[0].last_transition_time == 8


def test_specs_that_differ_stay_apart() -> None:
    reader = SharingReader()
    one, other = read_group(reader, group(1, cpu=1000)), read_group(reader, group(2, cpu=2000))
    assert one.spec.tasks[0].template.requests == {"cpu": 1000}
    assert other.spec.tasks[0].template.requests == {"cpu": 2000}


def test_equal_labels_are_one_dict_and_others_are_not() -> None:
    reader = SharingReader()
    one, same, other = (
        read(reader, group(number, labels={"a": value}, annotations={"b": "c"}))
        for number, value in enumerate(("x", "x", "y"))
    )
    assert one.metadata.labels is same.metadata.labels
    assert other.metadata.labels == {"a": "y"}


def test_pods_share_their_requests_and_the_names_of_what_they_belong_to() -> None:
    reader = SharingReader()
    one, other = read(reader, pod(1)), read(reader, pod(2))
    assert isinstance(one, Pod)
    assert isinstance(other, Pod)
    assert one.spec.requests is other.spec.requests
    assert one.spec.pod_group is other.spec.pod_group
    assert one.status.group_uid is other.status.group_uid
    assert one.status.node is other.status.node


def test_other_kinds_are_read_as_they_are() -> None:
    read(SharingReader(), a_queue("q", capability={"cpu": 4}))
    read(SharingReader(), a_node("n1", cpu=4))


def test_a_group_without_fields_has_the_defaults() -> None:
    bare = PodGroup(metadata=Metadata(name="g", namespace="n"))
    assert stored(bare) == b'{"metadata":{"name":"g","namespace":"n"}}'
    assert read_group(SharingReader(), bare).status.phase == PodGroupPhase.PENDING


def test_a_task_without_fields_is_written_as_it_was() -> None:
    bare = structs.replace(group(1), spec=PodGroupSpec(tasks=(Task(name="w"), Task(name="v"))))
    assert b'"tasks":[{"name":"w"},{"name":"v"}]' in stored(bare)
    found = read_group(SharingReader(), bare)
    assert found.spec.tasks[0].template is Task(name="other").template


def test_fields_written_by_a_newer_batchq_are_ignored() -> None:
    text = b'{"metadata":{"name":"g","new":1},"spec":{"queue":"q","new":2},"new":{"a":[3]}}'
    expected = PodGroup(metadata=Metadata(name="g"), spec=PodGroupSpec(queue="q"))
    for _ in range(2):
        assert SharingReader().read("PodGroup", text) == expected


@pytest.mark.parametrize(
    "text",
    [
        b"no JSON",
        b"{}",
        b'{"metadata":{"name":"g"},"spec":{"queue":7}}',
        b'{"metadata":{"name":"g"},"spec":null}',
        b'{"metadata":{"name":"g"},"status":{"phase":"Nowhere"}}',
        b'{"metadata":{"name":"g"}} more',
    ],
)
def test_unreadable_text_is_refused_each_time(text: bytes) -> None:
    reader = SharingReader()
    for _ in range(2):
        with pytest.raises(msgspec.MsgspecError):
            reader.read("PodGroup", text)


def test_the_reader_knows_every_part_of_a_group() -> None:
    assert sharing_reader._StoredGroup.__struct_fields__ == PodGroup.__struct_fields__
    for kind, names in (*sharing_reader._DICTS.items(), *sharing_reader._TEXTS.items()):
        assert set(names) <= set(kind.__struct_fields__)


def test_a_long_spec_is_read_and_not_remembered() -> None:
    reader = SharingReader()
    template = PodTemplate(command=("x" * 5_000,))
    long = structs.replace(group(1), spec=PodGroupSpec(tasks=(Task(name="w", template=template),)))
    one, other = read_group(reader, long), read_group(reader, long)
    assert one.spec is not other.spec
    assert one.status is other.status


def test_the_memory_for_different_parts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing_reader, "MOST_BYTES", 10_000)
    reader = SharingReader()
    for number in range(1_000):
        read_group(reader, group(number, at=number, cpu=number + 1))
    assert 10 < len(reader._specs) < 200
    assert 10 < len(reader._statuses) < 200
    last = group(999, at=999, cpu=1000)
    assert read_group(reader, last).spec is read_group(reader, last).spec


def test_entries_in_use_are_not_forgotten() -> None:
    known: Remembered[int, list[int]] = Remembered(10)
    kept = [0]
    known.put(0, kept)
    for number in range(1, 1_000):
        known.put(number, [number])
        assert known.get(0) is kept
    assert known.get(999) == [999]
    assert known.get(500) is None
    assert len(known) <= 20


TEXTS = st.sampled_from(["", "a", "b"])
AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(0, 3))


@given(
    st.lists(
        st.builds(
            PodGroup,
            metadata=st.builds(
                Metadata,
                name=TEXTS,
                namespace=TEXTS,
                labels=st.dictionaries(TEXTS, TEXTS),
                annotations=st.dictionaries(TEXTS, TEXTS),
            ),
            spec=st.builds(PodGroupSpec, queue=TEXTS, min_resources=AMOUNTS),
            status=st.builds(
                PodGroupStatus,
                admission=st.integers(0, 2),
                charge=AMOUNTS,
                spent=st.dictionaries(TEXTS, st.integers(0, 1)),
            ),
        ),
        max_size=12,
    )
)
def test_reading_one_after_the_other_changes_none_of_them(groups: list[PodGroup]) -> None:
    reader = SharingReader()
    found = [reader.read("PodGroup", stored(one)) for one in groups]
    assert found == groups
    assert [stored(one) for one in found] == [stored(one) for one in groups]
    assert found == [records.read_object("PodGroup", stored(one)) for one in groups]


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (b'"requests":{"cpu":1000}', b'"requests":{"cpu":"x"}'),
        (b'"reservation":{"cpu":1000}', b'"reservation":{"cpu":"x"}'),
        (b'"name":"g1"', b'"name":7'),
    ],
)
def test_a_damaged_group_is_unreadable_for_the_reason_that_a_lone_read_gives(
    good: bytes, bad: bytes
) -> None:
    whole = stored(group(1))
    assert whole.count(good) == 1
    damaged = whole.replace(good, bad)
    alone = records.read_record("PodGroup", "team/g1", damaged)
    assert isinstance(alone, Unreadable)
    assert SharingReader().read_record("PodGroup", "team/g1", damaged) == alone


def test_a_value_of_the_wrong_type_is_named_by_its_place_with_what_was_expected_and_found() -> None:
    damaged = stored(group(1)).replace(b'"requests":{"cpu":1000}', b'"requests":{"cpu":"x"}')
    found = SharingReader().read_record("PodGroup", "team/g1", damaged)
    assert isinstance(found, Unreadable)
    assert found.why == "spec.tasks[0].template.requests[...]: expected `int`, found `str`"
