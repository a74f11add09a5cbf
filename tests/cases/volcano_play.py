"""Play a case of Volcano's, and return the result in the terms of its `expect`.

`binds` are the binds of the first instant's sessions, `waits` the reasons of the groups that they
left pending, and `phase` the groups' phases then; `evict` are the pods evicted within a minute, by
name, and `then` the binds after the victims had ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from batchq.api.reasons import Verdict, Waiting
from batchq.assembly import assemble
from batchq.config.load import read_config
from batchq.core.extension import Plugin, everywhere
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState
from batchq.lab.simulation import WorldRun
from batchq.lab.simulation.report import WorldOutcome
from batchq.lab.simulation.world import read_world
from batchq.scheduler.cycle import Scheduler
from tests.cases.peers import HORIZON_S, Data, told_reason
from tests.cases.volcano_world import actions_of, name_of, owner_of, world_of
from tests.yaml_text import text_of, text_of_all


class RefusesOne:
    """A plugin that never admits one group; it represents Volcano's `-1`."""

    name = "rejecter"

    def __init__(self, key: str) -> None:
        self._key = key

    def admissible(self, session: Session, group: GroupState) -> list[Verdict]:
        if group.key != self._key:
            return []
        return [Verdict(plugin=self.name, reason=Waiting.WAITING_FOR_QUOTA, detail="never")]


def played(
    world: Iterable[Data], config: Data, *, cycles: int, beside: Iterable[Plugin] = ()
) -> WorldOutcome:
    """Play the cluster for `cycles` sessions; `beside` are plugins that batchq does not have."""
    ours = assemble(read_config(text_of(config), "config"))
    theirs = everywhere((plugin, 1) for plugin in beside)
    both = {point: (*standing, *theirs[point]) for point, standing in ours.plugins.items()}
    scheduler = Scheduler(actions=ours.actions, plugins=both, settings=ours.settings)
    text = text_of_all(world)
    result = WorldRun(read_world(text, "case"), scheduler).run(cycles, bounded=False)
    assert result.refused == 0, "the store refused what a session decided"
    assert result.refused_steps == ()
    return result.outcome


def came_of(case: Mapping[str, Any], waiting: str = "") -> Data:
    """Return the result of a case with a cluster, under the default plugins and its own actions."""
    beside = [RefusesOne("ns1/pga")] if "rejecter" in case.get("hooks", ()) else []
    came = play_manifests(world_of(case, waiting), {"actions": actions_of(case)}, beside=beside)
    left_out = {"phase"} - set(case["expect"]) | {key for key in came if not came[key]}
    return {key: value for key, value in came.items() if key not in left_out}


def play_manifests(world: list[Data], config: Data, *, beside: Iterable[Plugin] = ()) -> Data:
    """Return the cluster's `phase`, and those of `binds`, `evict` and `then` that are not empty."""
    beside = tuple(beside)
    whole = played(world, config, cycles=200, beside=beside)
    at_once = [cycle for cycle in whole.cycles if cycle.time == 0]
    minute = [cycle for cycle in whole.cycles if cycle.time <= HORIZON_S]
    first = played(world, config, cycles=len(at_once), beside=beside)
    came = {
        "binds": {pod: node for cycle in at_once for pod, node in cycle.bound.items()},
        "evict": sorted(evicted.pod for cycle in minute for evicted in cycle.evicted),
        "then": {
            pod: node for cycle in minute[len(at_once) :] for pod, node in cycle.bound.items()
        },
    }
    phases = {name: group.phase for name, group in first.podgroups.items()}
    return {key: value for key, value in came.items() if value} | {
        "waits": _waits(world, first),
        "phase": phases,
    }


def _waits(world: Iterable[Data], first: WorldOutcome) -> dict[str, str]:
    """Return the reasons of the pending groups that had no pods at the start."""
    ran = {
        f"{item['metadata']['namespace']}/{item['metadata']['name']}"
        for item in world
        if item["kind"] == "PodGroup" and item.get("status", {}).get("phase") == "Running"
    }
    return {
        name: told_reason(group.reasons)
        for name, group in first.podgroups.items()
        if group.phase == "Pending" and name not in ran
    }


def agrees(case: Mapping[str, Any], came: Data) -> bool:
    """Return whether the result of a cluster is what Volcano expects.

    A group that Volcano expects to be Inqueue is admitted here, and may already have running pods.
    """
    expect = case["expect"]
    evicted = sorted(name_of(pod) for pod in expect.get("evict", ()))
    checks = [came.get("evict", []) == evicted]
    if "binds" in expect:
        binds = {name_of(pod): node for pod, node in expect["binds"].items()}
        checks.append(came.get("binds", {}) == binds)
    for group, nodes in expect.get("pipelined", {}).items():
        own = [name_of(pod["id"]) for pod in case["pods"] if owner_of(pod) == group]
        placed = [came.get("then", {}).get(pod) for pod in own]
        checks.append(all(node in nodes for node in placed))
    for group, phase in expect.get("phase", {}).items():
        found = came["phase"][name_of(group)]
        checks.append(found in ({"InQueue", "Running"} if phase == "Inqueue" else {phase}))
    if "session_jobs" in expect:
        checks.append(sorted(came["phase"]) == expect["session_jobs"])
    return all(checks)
