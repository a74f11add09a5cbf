"""Equivalence classes: their members, the iterator of a pending queue, and the wake-up index."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import PodGroupStatus, SchedulingGate, key_of
from batchq.api.reasons import Verdict
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.chunks import Rows
from batchq.core.equivalence import PendingIterator, PendingQueue, UnmetRequests, WakeUpIndex
from batchq.core.session.session import Session
from batchq.core.session.state import EquivalenceClass, GroupState, recorded_reasons
from tests.builders import a_group, a_node, a_pod, a_priority, a_queue, a_snapshot

FULL = 4


def _opened(*world: Any) -> Session:
    return assemble(SchedulerConfig()).open(a_snapshot(*world), 0)


def _classes(session: Session, queue: str = "default") -> list[list[str]]:
    """Return the names of the groups of each class, in order."""
    line = session.queues[queue].line
    return [
        [group.record.metadata.name for group in peers.members] for peers in line.classes.values()
    ]


def test_groups_of_one_queue_with_equal_requests_form_a_class_in_their_order() -> None:
    session = _opened(
        a_queue("default"),
        a_group("second", 1, created=2),
        a_group("large", 1, cpu=2, created=3),
        a_group("first", 1, created=1),
    )
    assert sorted(_classes(session)) == [["first", "second"], ["large"]]


def test_a_different_namespace_priority_or_queue_means_a_different_class() -> None:
    session = _opened(
        a_queue("default"),
        a_queue("other"),
        a_priority("high", 10),
        a_group("one", 1),
        a_group("two", 1, namespace="lab"),
        a_group("three", 1, priority_class_name="high"),
        a_group("four", 1, queue="other"),
    )
    assert sorted(_classes(session)) == [["one"], ["three"], ["two"]]
    assert _classes(session, "other") == [["four"]]


def test_a_group_that_is_gated_suspended_or_of_a_missing_priority_class_joins_no_class() -> None:
    gate = (SchedulingGate(name="data"),)
    session = _opened(
        a_queue("default"),
        a_group("gated", 1, scheduling_gates=gate),
        a_group("suspended", 1, suspend=True),
        a_group("classless", 1, priority_class_name="none"),
        a_group("plain", 1),
    )
    assert _classes(session) == [["plain"]]
    alone = session.queues["default"].line.singles.values()
    assert sorted(group.record.metadata.name for group in alone) == [
        "classless",
        "gated",
        "suspended",
    ]


def test_the_iterator_yields_each_group_once_in_order_and_can_skip_the_rest_of_a_class() -> None:
    session = _opened(
        a_queue("default"),
        *(a_group(f"small-{number}", 1, created=2 * number) for number in range(3)),
        *(a_group(f"large-{number}", 1, cpu=2, created=2 * number + 1) for number in range(3)),
    )
    line = session.queues["default"].line
    assert _names(PendingIterator(line.classes.values(), (), session.group_key)) == [
        *("small-0", "large-0", "small-1", "large-1", "small-2", "large-2"),
    ]
    walk = PendingIterator(line.classes.values(), (), session.group_key)
    assert _next(walk) == "small-0"
    walk.pass_over()
    assert [_next(walk), _next(walk)] == ["large-0", "large-1"]
    # Skipped members rejoin at the current position of the iterator.
    walk.take_up()
    assert _names(walk) == ["small-2", "large-2"]


def test_the_iterator_may_begin_with_skipped_classes() -> None:
    session = _opened(a_queue("default"), a_group("one", 1), a_group("two", 1, cpu=2))
    line = session.queues["default"].line
    first, second = line.classes.values()
    walk = PendingIterator([first], (), session.group_key, [second])
    assert _names(walk) == ["one"]
    walk.take_up()
    assert _names(walk) == ["two"]


def _next(walk: PendingIterator) -> str:
    group = walk.next()
    assert group is not None
    return group.record.metadata.name


def _names(walk: PendingIterator) -> list[str]:
    found = []
    while (group := walk.next()) is not None:
        found.append(group.record.metadata.name)
    return found


def test_classes_are_unparked_when_enough_capacity_is_free() -> None:
    index, cpu = WakeUpIndex(), ("cluster", "cpu")
    small, large, elsewhere = (
        EquivalenceClass((name,), "q") for name in ("small", "large", "elsewhere")
    )
    index.add(large, cpu, 60)
    index.add(small, cpu, 63)
    index.add(elsewhere, ("queue:q", "cpu"), 10)
    assert index.freed({"cluster": {"cpu": 64}, "queue:q": {"cpu": 11}}) == []
    assert index.freed({"cluster": {"cpu": 63}, "queue:q": {"cpu": 11}}) == [small]
    assert index.freed({"cluster": {"cpu": 60}, "queue:q": {"cpu": 11}}) == [large, small]
    index.remove(small)
    index.remove(small)
    # A scope without usage has no entry.
    assert index.freed({}) == [large, elsewhere]


def test_a_class_that_was_removed_from_the_wake_up_index_is_not_unparked() -> None:
    index, cpu = WakeUpIndex(), ("cluster", "cpu")
    small, large, other = (EquivalenceClass((name,), "q") for name in ("small", "large", "other"))
    index.add(large, cpu, 60)
    index.add(small, cpu, 63)
    index.remove(large)
    index.add(other, cpu, 61)
    index.add(large, cpu, 62)
    assert index.freed({"cluster": {"cpu": 61}}) == [small, other, large]
    index.add(EquivalenceClass(("late",), "q"), cpu, 64)
    index.clear()
    assert index.freed({}) == []


def test_a_class_is_parked_on_the_full_limit_and_new_members_get_the_same_reason() -> None:
    scheduler = assemble(SchedulerConfig())
    world = [a_node(cpu=FULL), a_queue("default")]
    waiting = [a_group(f"g{number}", 1, created=number) for number in range(FULL + 2)]
    session = scheduler.decide(a_snapshot(*world, *waiting), 0)
    (peers,) = session.queues["default"].line.classes.values()
    assert (peers.is_parked, peers.watches, peers.full_above) == (True, ("cluster", "cpu"), 3_000)
    result = {name: session.by_key[f"default/{name}"].status.reasons for name in ("g4", "g5")}
    assert result["g4"] == result["g5"]
    assert [verdict.subject for verdict in result["g4"]] == ["the cluster"]


def test_groups_with_one_spec_in_memory_are_taken_in_like_groups_with_equal_specs() -> None:
    """A scheduler that starts builds no states for members whose spec it has just seen."""
    waiting = PodGroupStatus(phase=PodGroupPhase.PENDING)
    statuses = [
        waiting,
        waiting,
        PodGroupStatus(reasons=(Verdict(plugin="capacity", reason="ExceedsCapacity"),)),
        PodGroupStatus(backoff_until=5_000),
        PodGroupStatus(domain={"zone": "a"}),
        PodGroupStatus(places={"w": ("n1",)}),
        PodGroupStatus(nodes_lacked_at=1),
        PodGroupStatus(set_aside_on={"n1": {"cpu": 1_000}}),
        PodGroupStatus(queue_time=77),
        PodGroupStatus(phase=PodGroupPhase.COMPLETED, finished_at=9),
        waiting,
    ]
    spec = a_group("first", 1).spec
    shared = [
        structs.replace(a_group(f"g{place:02}", 1, created=place), spec=spec, status=status)
        for place, status in enumerate(statuses)
    ]
    apart = [structs.replace(group, spec=structs.replace(spec)) for group in shared]
    pod = a_pod(shared[1], node="n1")
    world = (a_queue("default"), a_node("n1", cpu=FULL), pod)
    scheduler, snapshot = assemble(SchedulerConfig()), a_snapshot(*world, *shared)
    rows = Rows.of((key_of(group), group) for group in shared)
    short = scheduler.open(structs.replace(snapshot, groups=rows), 0)
    long = _opened(*world, *apart)
    assert len(short.carried.groups.unbuilt) == 3
    for uid, group in long.groups.items():
        assert _described(short.groups[uid]) == _described(group)
    assert set(short.groups) == set(long.groups)
    assert _classes(short) == _classes(long)
    assert _classes(long) == [["g00", "g02", "g05", "g06", "g07", "g10", "g08"], ["g04"]]
    for session in (short, long):
        carried = session.carried
        listed = (carried.placed, carried.waits_for_nodes, carried.heads_on_nodes)
        assert [list(groups) for groups in listed] == [
            [shared[place].metadata.uid] for place in (5, 6, 7)
        ]
    for name in ("singles", "unwritten", "demand"):
        here, there = (getattr(one.queues["default"].line, name) for one in (short, long))
        assert list(here) == list(there)


def _described(group: GroupState) -> dict[str, Any]:
    """Return all that a state has; of its class, who is in it and with which reasons."""
    recorded_reasons(group)
    found = {name: getattr(group, name) for name in GroupState.__slots__}
    if group.peers is not None:
        found["peers"] = [
            group.peers.asks,
            {reasons: list(members) for reasons, members in group.peers.by_reasons.items()},
        ]
    return found


#: The versions of the sums of queues, and what these deserve, when an action notes its result.
VERSIONS, DESERVED = {"default": 7}, {"default": {"cpu": 4000}}


def _unmet_in_default(line: PendingQueue) -> UnmetRequests:
    """Return the memory of an action that found no request that could be met."""
    unmet = UnmetRequests()
    unmet.begin("generation 1", VERSIONS, DESERVED, passing=())
    unmet.note("default", line)
    return unmet


def test_requests_stay_unmet_while_nothing_of_their_queue_changes() -> None:
    line = PendingQueue()
    unmet = _unmet_in_default(line)
    unmet.begin("generation 1", dict(VERSIONS), {"default": {"cpu": 4000}}, passing=())
    assert unmet.still_holds("default", line)
    assert not unmet.still_holds("other", line)


@pytest.mark.parametrize(
    ("generation", "versions", "deserved", "passing"),
    [
        pytest.param("generation 2", VERSIONS, DESERVED, (), id="another configuration"),
        pytest.param("generation 1", {"default": 8}, DESERVED, (), id="another sum of the queue"),
        pytest.param("generation 1", VERSIONS, {"default": {"cpu": 5000}}, (), id="deserves more"),
        pytest.param("generation 1", VERSIONS, {}, (), id="no longer deserves anything stated"),
        pytest.param("generation 1", VERSIONS, DESERVED, ("default",), id="has a pledge"),
    ],
)
def test_requests_are_tried_again_after_a_change_that_may_let_one_be_met(
    generation: str,
    versions: dict[str, int],
    deserved: dict[str, dict[str, int]],
    passing: tuple[str, ...],
) -> None:
    line = PendingQueue()
    unmet = _unmet_in_default(line)
    unmet.begin(generation, versions, deserved, passing)
    assert not unmet.still_holds("default", line)


def test_requests_are_tried_again_once_a_group_waits_that_asks_for_something_else() -> None:
    session = _opened(a_queue("default"), a_queue("other"), a_group("first", 1))
    group, line = session.by_key["default/first"], session.queues["other"].line
    unmet = _unmet_in_default(line)
    assert unmet.still_holds("default", line)
    line.join(group, session.group_key(group))
    assert not unmet.still_holds("default", line)


def test_nothing_is_kept_of_a_queue_in_which_more_decides_than_its_sums() -> None:
    line, unmet = PendingQueue(), UnmetRequests()
    unmet.begin("generation 1", VERSIONS, DESERVED, passing=("default",))
    unmet.note("default", line)
    unmet.begin("generation 1", VERSIONS, DESERVED, passing=())
    assert not unmet.still_holds("default", line)
