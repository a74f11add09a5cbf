"""Properties of any world: the stage itself checks its invariants after every event."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchq.assembly import assemble
from batchq.config.load import read_config
from batchq.lab.simulation import MOST_SESSIONS, WorldRun
from batchq.lab.simulation.report import WorldOutcome, as_json
from batchq.lab.simulation.world import read_world
from tests.effort import usually
from tests.sim.worlds import Manifest, group, node, priority, queue, quota, timeline
from tests.yaml_text import text_of_all

CONFIGS = ("", "actions: [enqueue, allocate]\novercommit: 1.5\n", "actions: [allocate]\n")
NAMES = ("g0", "g1", "g2", "g3", "g4")

small = st.integers(1, 4)
seconds = st.integers(0, 40).map(lambda number: f"{number}s")


@st.composite
def groups(draw: st.DrawFn, name: str) -> Manifest:
    pods = draw(st.integers(1, 6))
    spec: dict[str, Any] = {
        "queue": draw(st.sampled_from(["default", "q"])),
        "minMember": draw(st.sampled_from([1, max(1, pods // 2), pods])),
        "retry": {"limit": draw(st.integers(0, 2)), "backoff": "3s"},
    }
    if draw(st.booleans()):
        spec["walltime"] = draw(st.sampled_from(["10s", "25s", "60s"]))
    if draw(st.booleans()):
        spec["priorityClassName"] = "high"
    if draw(st.booleans()):
        spec["minResources"] = {"cpu": draw(small)}
    if name > "g2" and draw(st.booleans()):
        spec["dependsOn"] = [{"name": "g0", "condition": draw(st.sampled_from(["ok", "any"]))}]
    return group(
        name,
        pods,
        draw(st.sampled_from(["500m", 1, 2])),
        runtime=draw(seconds),
        grace=draw(st.sampled_from(["0s", "1s", "7s"])),
        namespace=draw(st.sampled_from(["red", "blue"])) if "dependsOn" not in spec else "red",
        created=draw(st.integers(0, 3)),
        uid=f"uid-{name}",
        **spec,
    )


@st.composite
def steps(draw: st.DrawFn) -> list[Manifest]:
    """Nodes that fail and come back, limits that are cut and raised."""
    found: list[Manifest] = []
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, 60))
        name = draw(st.sampled_from(["n0", "n1"]))
        found += [{"at": f"{at}s", "failNode": name}, {"at": f"{at + 9}s", "recoverNode": name}]
    if draw(st.booleans()):
        found.append({"at": draw(seconds), "apply": quota("red", cpu=draw(small))})
        found.append({"at": "70s", "apply": quota("red", cpu=100)})
    if draw(st.booleans()):
        found.append({"at": draw(seconds), "apply": queue("q", stopPolicy="HoldAndDrain")})
        found.append({"at": "80s", "apply": queue("q", capability={"cpu": 5})})
    return found


@st.composite
def worlds(draw: st.DrawFn) -> list[Manifest]:
    strategy = draw(st.sampled_from(["BestEffortFIFO", "StrictFIFO", "Backfill", "Backfill"]))
    filled = {
        "order": draw(st.sampled_from(["fcfs", "shortest"])),
        "reservations": draw(st.sampled_from(["1", "all"])),
    }
    found = [
        queue("q", weight=draw(small), strategy={"type": strategy, **filled}),
        priority("high", 10),
        node("n0", draw(small)),
        node("n1", draw(st.sampled_from(["1500m", 4, 6]))),
        *(draw(groups(name)) for name in NAMES[: draw(st.integers(1, 5))]),
        timeline(*draw(steps())),
    ]
    # The first group must be in the namespace of the groups that may depend on it.
    found[4]["metadata"]["namespace"] = "red"
    return found


def played(
    manifests: list[Manifest], config: str, most: int = 300
) -> tuple[WorldRun, WorldOutcome]:
    text = text_of_all(manifests)
    stage = WorldRun(read_world(text, "world"), assemble(read_config(config, "config")))
    came = stage.run(most, bounded=True)
    # Only the scheduler writes, so the store accepts all of its decisions.
    assert came.refused == 0
    return stage, came.outcome


PROFILE = settings(
    max_examples=usually(6, 60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)


@PROFILE
@given(worlds(), st.sampled_from(CONFIGS))
def test_the_invariants_hold_after_every_event(manifests: list[Manifest], config: str) -> None:
    """InvariantBroken would end the play."""
    stage, _ = played(manifests, config)
    held = {scope for scope in stage.store.ledger() if scope.startswith("node:")}
    running = {pod.status.node for pods in stage.store.snapshot().pods.values() for pod in pods}
    assert held <= {f"node:{name}" for name in running}


@PROFILE
@given(worlds())
def test_every_group_that_can_end_ends(manifests: list[Manifest]) -> None:
    """Every pod has a runtime and every node recovers, so only groups that can never run are
    left.
    """
    stage, outcome = played(manifests, "", MOST_SESSIONS)
    left = {
        reason.reason
        for item in outcome.podgroups.values()
        if item.phase not in ("Completed", "Failed")
        for reason in item.reasons
    }
    assert left <= {"ExceedsMaxQuota", "ExceedsCapacity", "BackingOff", "Unschedulable",
                    "WaitingForResources", "DependencyNotMet", "WaitingForTurn",
                    "WaitingForQuota"}  # fmt: skip
    if len(outcome.cycles) < MOST_SESSIONS:
        blocked = {
            key for key, item in outcome.podgroups.items()
            if item.phase not in ("Completed", "Failed")
            and {r.reason for r in item.reasons}.isdisjoint(
                {"ExceedsMaxQuota", "ExceedsCapacity", "DependencyNotMet"}
            )
        }  # fmt: skip
        assert blocked == set()
        assert all(scope == "capacity" for scope in stage.store.ledger() if "objects" not in scope)


@PROFILE
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_documents_decides_nothing_once_uids_are_stated(
    manifests: list[Manifest], random: Any
) -> None:
    shuffled = [*manifests]
    random.shuffle(shuffled)
    assert as_json(played(shuffled, "")[1]) == as_json(played(manifests, "")[1])
