"""The live state saved as a described world: `simulate` gives it the same outcome as the look
ahead.
"""

from __future__ import annotations

from typing import Any

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.notation import HOUR, MINUTE, SECOND
from batchq.api.objects import Dependency, PodGroupStatus, SchedulingGate
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.config.documents import print_documents
from batchq.lab.simulation import play
from batchq.lab.simulation.look_ahead import as_world, look_ahead
from batchq.lab.simulation.report import Lasting
from tests.builders import (
    a_group,
    a_node,
    a_pod,
    a_priority,
    a_queue,
    a_quota,
    a_running_group,
    a_snapshot,
    a_task,
    amounts,
    as_charged,
)

NOW = 10 * HOUR + 7 * SECOND


def saved(*objects: Any, **lasting: Any) -> str:
    """Return the file."""
    session = assemble(SchedulerConfig()).open(a_snapshot(*as_charged(*objects)), NOW)
    return print_documents(as_world(session, Lasting(**lasting)))


def ends_in_world(text: str) -> dict[str, int]:
    """Return key -> seconds from the start of the world."""
    played = play(text, "saved.yaml", config=SchedulerConfig())
    return {key: cycle.time for cycle in played.outcome.cycles for key in cycle.finished}


def ends_ahead(*objects: Any, **lasting: Any) -> dict[str, int]:
    snapshot = a_snapshot(*as_charged(*objects))
    future = look_ahead(
        snapshot, assemble(SchedulerConfig()), now_ms=NOW, lasting=Lasting(**lasting)
    )
    return {
        key: (one.ends_at - NOW) // SECOND
        for key, one in future.groups.items()
        if one.ends_at is not None
    }


def a_busy_cluster() -> list[Any]:
    """Return a cluster of running groups, waiting groups, and a preemptor with a victim."""
    bound = PodGroupStatus(
        phase=PodGroupPhase.IN_QUEUE,
        admission=3,
        reserved_at=NOW - SECOND,
        in_queue_at=NOW - SECOND,
        reservation=amounts(cpu=1, pods=1),
    )
    starting = a_group("starting", walltime=HOUR, status=bound)
    needs = (Dependency(name="low", uid="low"),)
    done = PodGroupStatus(phase=PodGroupPhase.COMPLETED, admission=1, finished_at=NOW - HOUR)
    return [
        a_node("n1", cpu=8, heartbeat=NOW - 5 * SECOND),
        a_node("n2", cpu=2, cordoned=True),
        a_queue(strict=True),
        a_queue("team", weight=3),
        a_priority("high", 10),
        a_quota(cpu=40),
        a_group("done", status=done),
        *a_running_group("low", 4, cpu=1, walltime=12 * HOUR, queue="team"),
        starting,
        a_pod(starting, phase=PodPhase.BOUND, node="n1", bound_at=NOW - SECOND),
        a_group("top", cpu=6, walltime=HOUR, priority_class_name="high", queue="team"),
        a_group("many", 5, min_member=1, walltime=20 * MINUTE, created=9000),
        a_group("next", walltime=HOUR, depends_on=needs),
        a_group("gated", scheduling_gates=(SchedulingGate(name="later"),)),
        a_group("endless", created=12_000),
    ]


def test_a_saved_world_ends_as_the_look_ahead_says() -> None:
    objects = a_busy_cluster()
    result = ends_ahead(*objects, thousandths=500, assumed_ms=90 * MINUTE)
    assert ends_in_world(saved(*objects, thousandths=500, assumed_ms=90 * MINUTE)) == result
    assert set(result) == {
        f"default/{n}" for n in ("low", "starting", "top", "many", "next", "endless")
    }


def test_a_group_without_a_length_has_no_end_in_the_world_either() -> None:
    objects = [a_node(cpu=2), *a_running_group("r"), a_group("a"), a_group("b", walltime=HOUR)]
    assert ends_in_world(saved(*objects)) == ends_ahead(*objects) == {}
    assert ends_in_world(saved(*objects, assumed_ms=HOUR)) == {
        "default/a": 3600,
        "default/b": 7200,
        "default/r": 3600,
    }


def test_ended_groups_are_left_out_unless_others_depend_on_them() -> None:
    done = PodGroupStatus(phase=PodGroupPhase.COMPLETED, admission=1, finished_at=0)
    needs = (Dependency(name="first", uid="first"),)
    text = saved(
        a_node(cpu=2),
        a_group("first", status=done),
        a_group("old", status=done),
        a_group("second", walltime=HOUR, depends_on=needs),
    )
    assert ("name: first" in text, "name: old" in text) == (True, False)
    assert ends_in_world(text) == {"default/second": 3600}


def test_commands_and_environments_of_pods_are_left_out() -> None:
    task = a_task(requests={"cpu": 1}, command=("cat", "secret"), env={"TOKEN": "secret"})
    text = saved(a_node(cpu=1), a_group("a", tasks=(task,)))
    assert "secret" not in text
    assert "cpu:" in text
