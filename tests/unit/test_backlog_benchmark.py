"""The benchmark `backlog` measures a cluster at rest and one change."""

from __future__ import annotations

from collections import Counter

import pytest

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import PodGroup
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.store.memory import MemoryStore
from benchmarks import backlog
from benchmarks.backlog_scenarios import SCENARIOS, Stage, play
from benchmarks.backlog_world import (
    CPUS,
    Spec,
    StoppedClock,
    as_settled,
    submit,
    waiting,
    write_full_cluster,
)

_AT_MS = 1_800_000_000_000


def _stage(spec: Spec) -> Stage:
    store, clock = MemoryStore(), StoppedClock(_AT_MS)
    write_full_cluster(store, spec, _AT_MS)
    submit(store, as_settled(waiting(spec, _AT_MS), spec, _AT_MS))
    return Stage(store, assemble(SchedulerConfig()), clock, spec)


def _phases(stage: Stage) -> Counter[PodGroupPhase]:
    groups = stage.store.list("PodGroup")
    return Counter(group.status.phase for group in groups if isinstance(group, PodGroup))


@pytest.mark.parametrize(
    "spec",
    [
        Spec(waiting=60, queues=1),
        Spec(waiting=60, queues=10),
        Spec(waiting=60, queues=100),
        Spec(waiting=60, queues=10, shapes=60),
    ],
    ids=["one queue", "ten queues", "more queues than groups", "all shapes different"],
)
def test_the_cluster_is_full_and_at_rest_before_its_first_session(spec: Spec) -> None:
    stage = _stage(spec)
    assert _phases(stage) == {"Running": CPUS, "Pending": 60}
    assert stage.turn().writes == 0
    assert stage.settle() == 0


def test_waiting_groups_have_ten_shapes_and_use_all_namespaces_and_classes() -> None:
    groups = list(waiting(Spec(waiting=1_000, queues=10), _AT_MS))
    assert len({group.metadata.namespace for group in groups}) == 10
    assert len({group.spec.priority_class_name for group in groups}) == 3
    assert len({group.spec.queue for group in groups}) == 10
    assert {group.spec.tasks[0].template.requests["cpu"] for group in groups} == {
        1000 * cpu for cpu in range(1, 11)
    }


@pytest.mark.parametrize(
    ("scenario", "writes", "admitted"),
    [("quiet", 0, 0), ("freed", 3, 1), ("submitted", 1000, 0), ("full", 0, 0)],
    ids=[
        "nothing changes and nothing is written",
        "one pod ends: its group, an admitted group and its pod are written",
        "each of a thousand new groups receives a reason",
        "limits that do not bind change: all groups are evaluated with the same results",
    ],
)
def test_a_scenario_has_the_same_result_each_time(
    scenario: str, writes: int, admitted: int
) -> None:
    stage = _stage(Spec(waiting=60, queues=10))
    stage.settle()
    assert [(one.writes, one.admitted) for one in play(stage, scenario, 2)] == [
        (writes, admitted)
    ] * 2
    assert stage.turn().rested
    phases = _phases(stage)
    assert (phases["Running"], phases["Pending"]) == (CPUS, 60 - 2 * admitted)


def test_a_slow_scenario_is_not_repeated_after_its_time_limit() -> None:
    stage = _stage(Spec(waiting=10, queues=1))
    stage.settle()
    assert len(play(stage, "quiet", 5, most_s=0.0)) == 1


def test_a_separate_process_measures_each_scenario_on_a_real_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BATCHQ_BENCH_REPEATS", "1")
    answers = backlog.measure(Spec(waiting=60, queues=10), ("cold", *SCENARIOS))
    assert [(one.scenario, one.took.writes) for one in answers] == [
        ("cold", 0),
        ("quiet", 0),
        ("freed", 3),
        ("submitted", 1000),
        ("full", 0),
    ]
    assert answers[1].took.rested
    assert 10 < answers[0].mb < 1_000
