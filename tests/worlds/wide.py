"""From a seed to a busy world: the work of a shared cluster's users within some minutes.

Groups are submitted one after another, with gates that open late, suspensions, chains of
dependencies, arrays whose pods fail and are retried, walltimes, and tasks of different priority.
Nodes differ, are lost, cordoned and return; limits are edited. Every pod ends, so that a group that
still waits at the end is a fault.
"""

from __future__ import annotations

import random
from typing import Any

from msgspec import structs

from batchq.assembly import assemble
from batchq.config.load import read_config
from batchq.errors import EndlessSessions
from batchq.lab.simulation import WorldRun
from batchq.lab.simulation.world import read_world
from tests.worlds.checking import with_checks
from tests.worlds.happenings import FIRST, with_happenings, with_namespaces
from tests.worlds.making import CLASSES, Described, Manifest

#: Sessions of one such world; it comes to rest long before.
MOST_SESSIONS_OF_WIDE = 600
_NAMESPACES = ("red", "red", "blue")
_STRATEGIES = (
    {"type": "BestEffortFIFO"},
    {"type": "StrictFIFO"},
    {"type": "Backfill"},
    {"type": "Backfill", "order": "shortest"},
    {"type": "Backfill", "reservations": "all"},
)
_ACTIONS = ["enqueue", "allocate", "reclaim", "preempt", "backfill"]


def wide_world(seed: int) -> Described:
    """Return the busy world of a seed."""
    return with_namespaces(_wide_world(seed))


def _wide_world(seed: int) -> Described:
    world = _Making(seed).world()
    dice = random.Random(f"wide ends {seed}")
    if dice.random() < 0.3:
        world = structs.replace(with_checks(_without_edits_of_queues(world)), static=False)
        return with_happenings(world) if seed >= FIRST else world
    if seed >= FIRST:
        world = with_happenings(world)
    return _with_failures(world, dice) if dice.random() < 0.5 else world


def _without_edits_of_queues(world: Described) -> Described:
    """Drop edits of queues, because they would remove the checks that answers name."""
    timeline = world.manifests[-1]
    steps = [one for one in timeline["spec"] if one.get("apply", {}).get("kind") != "Queue"]
    nothing = {"at": "1s", "recoverNode": "n0"}
    changed = {**timeline, "spec": steps or [nothing]}
    return structs.replace(world, manifests=[*world.manifests[:-1], changed])


def _with_failures(world: Described, dice: random.Random) -> Described:
    """Let some pods fail while they run. A step does not change what happens before it, so each
    failure is put where a play of the world so far shows a running pod.
    """
    since = 0
    for _ in range(dice.randint(1, 3)):
        # Later than the previous failure, which would otherwise hit another pod.
        running = [one for one in _running_sometime(world) if one[0] > since]
        if not running:
            return world
        at, pod = dice.choice(running)
        since = at
        step = {"at": f"{at}s", "failPod": pod}
        manifests = [*world.manifests]
        timeline = manifests[-1]
        steps = sorted([*timeline["spec"], step], key=lambda one: int(one["at"][:-1]))
        manifests[-1] = {**timeline, "spec": steps}
        world = structs.replace(world, manifests=manifests)
    return world


def _running_sometime(world: Described) -> list[tuple[int, str]]:
    """Return (second, pod): a second after each bind, if the pod has not ended or moved by then,
    and nothing else happens.
    """
    scheduler = assemble(read_config(world.config_text, "scheduler.yaml"))
    stage = WorldRun(read_world(world.text, f"wide {world.seed}"), scheduler)
    try:
        cycles = stage.run(MOST_SESSIONS_OF_WIDE, bounded=True).outcome.cycles
    except EndlessSessions:
        # The world fails without further steps.
        return []
    times = {cycle.time for cycle in cycles}
    evicted = {(cycle.time, one.pod) for cycle in cycles for one in cycle.evicted}
    return [
        (cycle.time + 1, pod)
        for cycle in cycles
        for pod in cycle.bound
        if cycle.time + 1 not in times and (cycle.time, pod) not in evicted
    ]


class _Making:
    """Owns the random generator and the documents so far."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = random.Random(f"wide {seed}")
        self.made: list[Manifest] = []
        self.steps: list[Manifest] = []
        self.leaves: list[str] = []
        self.groups: dict[str, list[str]] = {"red": [], "blue": []}
        self.nodes: dict[str, Manifest] = {}
        self.has_gpu = self._chance(0.3)

    def world(self) -> Described:
        self._nodes()
        for name, value in CLASSES.items():
            spec: Manifest = {"value": value}
            if name == "polite":
                spec["preemptionPolicy"] = "Never"
            self._add("PriorityClass", name, spec)
        self._queues()
        self._quotas()
        for place in range(self.dice.randint(4, 12)):
            self._group(f"g{place:02}")
        self._losses()
        steps = sorted(self.steps, key=lambda step: int(step["at"][:-1]))
        meta = {"apiVersion": "batchq/v1", "kind": "Timeline", "metadata": {"name": "t"}}
        self.made.append({**meta, "spec": steps or [self._nothing()]})
        return Described(self.seed, False, self.made, self._config())

    def _nothing(self) -> Manifest:
        return {"at": "1s", "recoverNode": next(iter(self.nodes))}

    def _chance(self, of: float) -> bool:
        return self.dice.random() < of

    def _add(self, kind: str, name: str, spec: Manifest, **metadata: Any) -> Manifest:
        meta = {"name": name, "uid": f"{kind.lower()}-{name}", **metadata}
        meta.setdefault("creationTimestamp", 0)
        made = {"apiVersion": "batchq/v1", "kind": kind, "metadata": meta, "spec": spec}
        self.made.append(made)
        return made

    def _at(self, latest: int = 120) -> str:
        return f"{self.dice.randint(1, latest)}s"

    def _nodes(self) -> None:
        dice = self.dice
        for place in range(dice.choice((1, 2, 2, 3, 4, 5))):
            resources: Manifest = {"cpu": dice.choice((2, 3, 4, 4, 6, 8))}
            if self.has_gpu and dice.random() < 0.6:
                resources["gpu"] = dice.randint(1, 3)
            if dice.random() < 0.1:
                resources["pods"] = dice.randint(2, 5)
            spec: Manifest = {"resources": resources}
            if place and dice.random() < 0.15:
                spec["taints"] = [{"key": "dear", "effect": "NoSchedule"}]
            labels = {"zone": dice.choice(("a", "b"))}
            name = f"n{place}"
            self.nodes[name] = self._add("Node", name, spec, labels=labels)

    def _queues(self) -> None:
        dice = self.dice
        total = sum(one["spec"]["resources"]["cpu"] for one in self.nodes.values())
        names = [f"q{place}" for place in range(dice.randint(1, 3))]
        if self._chance(0.25):
            self._add("Queue", "top", {"weight": 2, **self._limits(total)})
            names = [f"top{name}" for name in names]
        deserved = self._chance(0.35)
        for name in names:
            spec: Manifest = {"weight": dice.choice((1, 1, 2)), **self._limits(total)}
            if name.startswith("top"):
                spec["parent"] = "top"
            if deserved and not name.startswith("top") and "capability" not in spec:
                spec["deserved"] = {"cpu": total // len(names)}
            spec["strategy"] = dict(dice.choice(_STRATEGIES))
            spec["preemption"] = {
                "withinQueue": dice.choice(("LowerPriority", "Never")),
                "reclaim": dice.choice(("Never", "Never", "LowerPriority", "Any")),
            }
            if self._chance(0.1):
                spec["preemption"]["borrowing"] = dice.choice((0, 5))
            made = self._add("Queue", name, spec)
            self.leaves.append(name)
            if self._chance(0.15):
                least = spec.get("deserved", {}).get("cpu", 1)
                self._edit(made, {**spec, "capability": {"cpu": dice.randint(least, total)}})

    def _limits(self, total: int) -> Manifest:
        found: Manifest = {}
        if self._chance(0.2):
            found["capability"] = {"cpu": self.dice.randint((total + 1) // 2, total)}
        if self._chance(0.15):
            found["maxPodGroups"] = self.dice.randint(1, 3)
        if "capability" in found and self._chance(0.3):
            found["overcommit"] = 1.5
        return found

    def _edit(self, made: Manifest, spec: Manifest) -> None:
        """Apply another spec for a while."""
        begins = self.dice.randint(1, 90)
        self.steps.append({"at": f"{begins}s", "apply": {**made, "spec": spec}})
        ends = begins + self.dice.randint(5, 90)
        self.steps.append({"at": f"{ends}s", "apply": {**made, "spec": made["spec"]}})

    def _quotas(self) -> None:
        for name in ("red", "blue"):
            if not self._chance(0.2):
                continue
            hard: Manifest = {"cpu": self.dice.randint(3, 10)}
            made = self._add("ResourceQuota", "quota", {"hard": hard}, namespace=name)
            if self._chance(0.5):
                smaller: Manifest = {"cpu": self.dice.randint(1, 6)}
                self._edit(made, {"hard": smaller})

    def _losses(self) -> None:
        dice = self.dice
        for _ in range(dice.choice((0, 0, 1, 1, 2))):
            node = dice.choice(sorted(self.nodes))
            at = dice.randint(1, 90)
            self.steps.append({"at": f"{at}s", "failNode": node})
            self.steps.append({"at": f"{at + dice.randint(5, 60)}s", "recoverNode": node})
        if self._chance(0.3):
            made = self.nodes[dice.choice(sorted(self.nodes))]
            self._edit(made, {**made["spec"], "unschedulable": True})

    def _config(self) -> Manifest:
        config: Manifest = {"actions": list(_ACTIONS)}
        if self._chance(0.15):
            config["actions"] = [one for one in _ACTIONS if one != "backfill"]
        if self._chance(0.1):
            config["overcommit"] = 1.5
        if self._chance(0.1):
            config["minRuntime"] = f"{self.dice.choice((5, 30))}s"
        if self._chance(0.1):
            config["evictionBudget"] = {"pods": self.dice.randint(1, 4)}
        return config

    def _group(self, name: str) -> None:
        dice = self.dice
        namespace = dice.choice(_NAMESPACES)
        key = f"{namespace}/{name}"
        begins = dice.choice((0, 0, dice.randint(1, 60)))
        spec: Manifest = {"queue": dice.choice(self.leaves), "tasks": self._tasks()}
        replicas = sum(task["replicas"] for task in spec["tasks"])
        least = sum(task.get("minAvailable", 0) for task in spec["tasks"])
        kind = dice.choice(("gang", "gang", "array", "elastic"))
        if kind == "array" and least <= 1:
            spec["minMember"] = 1
        elif kind == "elastic":
            spec["minMember"] = dice.randint(max(1, least), replicas)
        if self._chance(0.5):
            spec["priorityClassName"] = dice.choice(("low", "mid", "high", "polite"))
        if self._chance(0.6):
            spec["walltime"] = f"{dice.choice((10, 30, 60, 90))}s"
        if self._chance(0.4):
            spec["retry"] = {"limit": dice.randint(1, 2), "backoff": f"{dice.choice((0, 5, 40))}s"}
        if self._chance(0.06):
            spec["minResources"] = {"cpu": dice.randint(1, 5)}
        if self.groups[namespace] and self._chance(0.25):
            other = dice.choice(self.groups[namespace])
            condition = dice.choice(("any", "any", "ok", "failed"))
            spec["dependsOn"] = [{"name": other, "condition": condition}]
        if self._chance(0.15):
            spec["schedulingGates"] = [{"name": "data"}]
            opened = {"podGroup": key, "gate": "data"}
            self.steps.append({"at": f"{begins + dice.randint(1, 60)}s", "openGate": opened})
        self._holds(spec, key, begins)
        metadata: Manifest = {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
        made = {"apiVersion": "batchq/v1", "kind": "PodGroup", "metadata": metadata, "spec": spec}
        if begins:
            self.steps.append({"at": f"{begins}s", "apply": made})
        else:
            metadata["creationTimestamp"] = 0
            self.made.append(made)
        self.groups[namespace].append(name)

    def _holds(self, spec: Manifest, key: str, begins: int) -> None:
        """Suspend some groups from the start, or for a while; always resume them."""
        dice = self.dice
        if self._chance(0.1):
            spec["suspend"] = True
        elif self._chance(0.12):
            begins += dice.randint(1, 40)
            self.steps.append({"at": f"{begins}s", "suspend": key})
        else:
            return
        self.steps.append({"at": f"{begins + dice.randint(1, 60)}s", "resume": key})

    def _tasks(self) -> list[Manifest]:
        dice, tasks = self.dice, []
        for place in range(2 if self._chance(0.3) else 1):
            requests: Manifest = {"cpu": dice.choice((1, 1, 1, 2, 2, 3, 4))}
            if self.has_gpu and self._chance(0.3):
                requests["gpu"] = 1
            template: Manifest = {
                "requests": requests,
                "terminationGrace": f"{dice.choice((0, 1, 5, 30))}s",
                "annotations": {"batchq/runtime": f"{dice.choice((5, 10, 20, 30, 60))}s"},
            }
            if self._chance(0.2):
                template["priority"] = dice.choice((0, 10, 20))
            if self._chance(0.1):
                template["nodeSelector"] = {"zone": dice.choice(("a", "b"))}
            if self._chance(0.2):
                template["tolerations"] = [{"key": "dear", "operator": "Exists"}]
            task: Manifest = {"name": f"t{place}", "replicas": dice.randint(1, 4)}
            if self._chance(0.15):
                task["minAvailable"] = 1
            tasks.append({**task, "template": template})
        return tasks
