"""A server restored from an older copy: pods that ran in the lost time do not run again."""

from __future__ import annotations

from batchq.api.transaction import JUMP
from tests.builders import a_group, a_task, amounts
from tests.faults.cluster import Cluster, Ended
from tests.faults.machines import Script
from tests.faults.scenario import AnyFault, Cut, RestartServer, Scenario
from tests.faults.seeded_scenarios import CONFIG, submission


def play(*faults: AnyFault, submitted_at: int, runtime_ms: int) -> tuple[Ended, list[str]]:
    """Play one pod on one node, with a copy of the server every 10 s; return the end and the
    story.
    """
    seen: list[str] = []
    task = a_task("w", 1, command=("run",), termination_grace=0)
    scenario = Scenario(
        nodes={"n1": amounts(cpu=1)},
        objects=(),
        scripts={"a": Script(runtime_ms=runtime_ms)},
        requests=(submission(submitted_at, a_group("a", tasks=(task,))),),
        config=CONFIG,
        faults=faults,
        chaos_ends_at=40_000,
        copies_every_ms=10_000,
    )
    return Cluster(scenario, say=seen.append).run(), seen


def starts(seen: list[str]) -> list[str]:
    return [line.partition(" starts ")[2] for line in seen if " starts " in line]


def test_a_finished_attempt_that_a_restore_binds_again_gets_a_new_number() -> None:
    # When the copy is made, at 10 s, the pod is bound, and its node has not received it yet.
    deaf = Cut(at=9_000, caller="agent n1", lasts_ms=2_000)
    restore = RestartServer(at=19_500, lasts_ms=0, forgets_ms=1)
    ended, seen = play(deaf, restore, submitted_at=8_900, runtime_ms=500)
    assert starts(seen) == ["a-1-0-1", f"a-1-0-{2 * JUMP + 2}"]
    assert ended.phases == {"a": "Completed"}


def test_a_group_lost_by_a_restore_takes_its_pods_along() -> None:
    restore = RestartServer(at=24_000, lasts_ms=0, forgets_ms=13_000)
    ended, seen = play(restore, submitted_at=12_000, runtime_ms=30_000)
    assert starts(seen) == ["a-1-0-1"]
    assert any("fenced" in line for line in seen)
    assert ended.phases == {}


def test_a_pod_that_ran_before_and_after_the_copy_continues() -> None:
    restore = RestartServer(at=24_000, lasts_ms=0, forgets_ms=1)
    ended, seen = play(restore, submitted_at=3_000, runtime_ms=40_000)
    assert starts(seen) == ["a-1-0-1"]
    assert ended.phases == {"a": "Completed"}
