"""A claimant waits for what still ends, and for nothing else."""

from __future__ import annotations

from tests.sim.worlds import (
    Manifest,
    admitted,
    evicted,
    group,
    node,
    outcome,
    phases,
    queue,
    timeline,
)


def test_a_claimant_does_not_wait_for_itself_once_its_former_pods_have_ended() -> None:
    """Held and resumed, it claims the room that others took meanwhile, while one of its own pods is
    in its grace until 40. The others' pods have stopped by 25.
    """
    came = outcome(
        node("n1", 6),
        queue("a", deserved={"cpu": 6}, preemption={"reclaim": "Any"}),
        queue("b", deserved={"cpu": 0}),
        group(
            "claimant", queue="a", created=0,
            tasks=[_task("quick", grace="0s"), _task("slow", grace="30s")],
        ),
        group("borrower", 6, queue="b", minMember=1, grace="5s", created=0),
        timeline(
            {"at": "10s", "suspend": "default/claimant"},
            {"at": "20s", "resume": "default/claimant"},
        ),
    )  # fmt: skip
    assert [when for when, who in admitted(came) if "default/claimant" in who] == [0, 40]
    taken = [pod for when, pods in evicted(came) if when == 20 for pod, _ in pods]
    assert sorted(taken) == ["default/borrower-t-2", "default/borrower-t-3"]
    assert phases(came)["claimant"] == "Completed"


def _task(name: str, *, grace: str) -> Manifest:
    template: Manifest = {
        "requests": {"cpu": 2},
        "terminationGrace": grace,
        "annotations": {"batchq/runtime": "100s"},
    }
    return {"name": name, "replicas": 1, "template": template}
