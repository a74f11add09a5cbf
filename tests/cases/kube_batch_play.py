"""Play a cluster of kube-batch's cases, and describe in a few short lines what batchq does with it.

0s bind a: 2 (n1), b: 2 (n1)         pods bound, by group, and where
0s evict a2 for b, by preempt        a preemptor's victims
0s evict a: t-0 (Suspended)          pods that are stopped for another reason
10s requeue b (Unschedulable)        a group that goes back to Pending
end a Running 3, b Pending (...)     phase, running pods, and pending reason; after a minute
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from batchq.api.lifecycle import PodPhase
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.lab.simulation import PlayedWorld, WorldRun
from batchq.lab.simulation.report import CycleStory, WorldOutcome
from batchq.lab.simulation.world import read_world
from tests.cases.kube_batch_world import config_of, reclaims, world_of
from tests.yaml_text import text_of_all

#: Later events are not described.
HORIZON_S = 60
_MOST_SESSIONS = 50


def result_of(case: Mapping[str, Any], configs: Mapping[str, Any]) -> tuple[str, ...]:
    """Play a case for a minute with its own configuration, and return the lines."""
    return told_of_world(world_of(case, reclaim=reclaims(case, configs)), config_of(case, configs))


def told_of_world(world: list[dict[str, Any]], config: SchedulerConfig) -> tuple[str, ...]:
    """Play these manifests for a minute, and return the lines."""
    text = text_of_all(world)
    whole = _played(text, config, _MOST_SESSIONS)[0].outcome
    within = sum(cycle.time <= HORIZON_S for cycle in whole.cycles)
    assert within < _MOST_SESSIONS, "the world does not come to rest within a minute"
    played, running = _played(text, config, within)
    assert played.refused == 0
    assert played.refused_steps == ()
    names = [name for manifest in world for name in _groups_in(manifest)]
    lines = [line for cycle in played.outcome.cycles for line in _lines(cycle, names)]
    return (*lines, _end(played.outcome, running))


def _played(text: str, config: SchedulerConfig, most: int) -> tuple[PlayedWorld, Counter[str]]:
    stage = WorldRun(read_world(text, "case"), assemble(config))
    played = stage.run(most, bounded=False)
    snapshot = stage.store.snapshot()
    running = Counter(
        f"{group.metadata.namespace}/{group.metadata.name}"
        for group in snapshot.groups
        for pod in snapshot.pods.get(group.metadata.uid, ())
        if pod.status.phase == PodPhase.RUNNING and not pod.status.terminating
    )
    return played, running


def _lines(cycle: CycleStory, names: list[str]) -> list[str]:
    lines = []
    if cycle.bound:
        nodes: dict[str, Counter[str]] = {}
        for pod, node in cycle.bound.items():
            nodes.setdefault(_owner(pod, names), Counter())[node] += 1
        lines.append("bind " + ", ".join(f"{_short(g)}: {_places(n)}" for g, n in nodes.items()))
    for by, action, reason in dict.fromkeys((e.by, e.action, e.reason) for e in cycle.evicted):
        pods = [
            _short(e.pod)
            for e in cycle.evicted
            if (e.by, e.action, e.reason) == (by, action, reason)
        ]
        why = f"for {_short(by)}, by {action}" if by else f"({reason})"
        lines.append(f"evict {' '.join(pods)} {why}")
    lines += [f"requeue {_short(one.group)} ({one.reason})" for one in cycle.requeued]
    if cycle.finished:
        lines.append("finish " + ", ".join(_short(group) for group in cycle.finished))
    return [f"{cycle.time}s {line}" for line in lines]


def _end(outcome: WorldOutcome, running: Counter[str]) -> str:
    stand = []
    for key, group in outcome.podgroups.items():
        text = f"{_short(key)} {group.phase}"
        if running[key]:
            text += f" {running[key]}"
        elif group.reasons:
            text += f" ({group.reasons[0].reason})"
        stand.append(text)
    return "end " + ", ".join(stand)


def _groups_in(manifest: dict[str, Any]) -> list[str]:
    """Yield the groups that a manifest describes, or applies later."""
    if manifest["kind"] == "Timeline":
        applied = [step["apply"] for step in manifest["spec"] if "apply" in step]
        return [name for later in applied for name in _groups_in(later)]
    if manifest["kind"] != "PodGroup":
        return []
    metadata = manifest["metadata"]
    return [f"{metadata.get('namespace', 'default')}/{metadata['name']}"]


def _owner(pod: str, names: list[str]) -> str:
    """Return the group of a pod, whose name begins with the group's."""
    return max((name for name in names if pod.startswith(f"{name}-")), key=len)


def _places(nodes: Counter[str]) -> str:
    return " ".join(f"{count} on {node}" for node, count in sorted(nodes.items()))


def _short(name: str) -> str:
    return name.partition("/")[2]
