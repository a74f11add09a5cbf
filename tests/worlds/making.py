"""From a seed to a described world: manifests as `batchq simulate` reads them, and their config.

Queues form trees, with guarantees, deserved amounts and capabilities that `apply` would accept;
groups are gangs, arrays and elastic groups, and some already run. In a *static* world no pod
ends and no group is submitted: every change is a decision of the scheduler.
"""

from __future__ import annotations

import random
from typing import Any

from msgspec import Struct

from tests.yaml_text import text_of, text_of_all

Manifest = dict[str, Any]

NAMESPACES = ("red", "blue", "kube-system")
CLASSES = {"low": 0, "mid": 5, "high": 10, "polite": 10}
_ORDERS = (
    ["enqueue", "allocate", "reclaim", "preempt"],
    ["enqueue", "allocate", "preempt", "reclaim"],
    ["enqueue", "reclaim", "preempt", "allocate"],
    ["reclaim", "preempt", "enqueue", "allocate"],
    ["enqueue", "allocate", "preempt"],
    ["enqueue", "allocate", "reclaim"],
)
#: The probability that a queue states each of these.
_STATES = {"guarantee": 0.3, "deserved": 0.25, "capability": 0.2}
_WITHOUT_ENQUEUE = (["allocate", "reclaim", "preempt"], ["allocate", "preempt"])


class Described(Struct, frozen=True):
    """A world as text; `static` means that no pod ends and nothing comes from outside."""

    seed: int
    static: bool
    manifests: list[Manifest]
    config: dict[str, Any]

    @property
    def text(self) -> str:
        """Return the world as the text of a file."""
        return text_of_all(self.manifests)

    @property
    def config_text(self) -> str:
        """Return the configuration as scheduler.yaml."""
        return text_of(self.config)


def described(seed: int) -> Described:
    """Return the world of a seed."""
    return _Making(seed).world()


class _Making:
    """Owns the random generator, and the free capacity of the nodes while running groups are
    placed.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        #: A separate generator, so that strategies and walltimes change nothing else in a world.
        self.fill = random.Random(f"backfill {seed}")
        self.static = seed % 4 != 3
        self.dimensions = self.dice.choice((["cpu"], ["cpu"], ["cpu", "memory"], ["cpu", "gpu"]))
        if self.dice.random() < 0.1:
            self.dimensions = ["cpu", "memory", "gpu"]
        self.free: dict[str, dict[str, int]] = {}
        self.leaves: list[str] = []
        self.made: list[Manifest] = []

    def world(self) -> Described:
        self._nodes()
        self._classes()
        self._queues()
        self._quotas()
        steps: list[Manifest] = []
        for place in range(self.dice.randint(3, 10)):
            group, pods = self._group(f"g{place}", place)
            if not self.static and not pods and self.dice.random() < 0.5:
                group.pop("status", None)
                steps.append({"at": f"{self.dice.randint(0, 60)}s", "apply": group})
            else:
                self.made += [group, *pods]
        if steps:
            steps += self._happenings()
            self.made.append(
                {"apiVersion": "batchq/v1", "kind": "Timeline", "metadata": {"name": "t"},
                 "spec": sorted(steps, key=lambda step: int(step["at"][:-1]))}
            )  # fmt: skip
        config = self._config()
        applied = [step["apply"] for step in steps if "apply" in step]
        if self.fill.random() < (0.2 if self.static else 0.8):
            self._backfilled([*self.made, *applied], config)
        return Described(self.seed, self.static, self.made, config)

    def _add(self, kind: str, name: str, spec: Manifest, **metadata: Any) -> None:
        meta = {"name": name, "uid": f"{kind.lower()}-{name}", **metadata}
        meta.setdefault("creationTimestamp", 0)
        self.made.append({"apiVersion": "batchq/v1", "kind": kind, "metadata": meta, "spec": spec})

    def _chance(self, of: float) -> bool:
        return self.dice.random() < of

    def _nodes(self) -> None:
        for place in range(self.dice.choice((1, 1, 2, 2, 3, 4))):
            has = {"cpu": self.dice.randint(2, 8)}
            for name in self.dimensions[1:]:
                has[name] = self.dice.randint(1, 6)
            spec: Manifest = {"resources": dict(has)}
            if self._chance(0.1):
                has["pods"] = spec["resources"]["pods"] = self.dice.randint(2, 6)
            cordoned = place > 0 and self._chance(0.15)
            if cordoned:
                spec["unschedulable"] = True
            self._add("Node", f"n{place}", spec)
            self.free[f"n{place}"] = has

    def _classes(self) -> None:
        for name, value in CLASSES.items():
            spec: Manifest = {"value": value}
            if name == "polite":
                spec["preemptionPolicy"] = "Never"
            self._add("PriorityClass", name, spec)

    def _quotas(self) -> None:
        for name in NAMESPACES:
            if self._chance(0.12):
                hard: Manifest = {"cpu": self.dice.randint(3, 12)}
                if self._chance(0.2):
                    hard["podgroups"] = self.dice.randint(1, 4)
                self._add("ResourceQuota", "quota", {"hard": hard}, namespace=name)

    def _config(self) -> Manifest:
        orders = _WITHOUT_ENQUEUE if self._chance(0.08) else _ORDERS
        # The usual order is twice as likely as any other.
        config: Manifest = {"actions": self.dice.choice((orders[0], orders[0], *orders))}
        if self._chance(0.12):
            config["evictionBudget"] = {"pods": self.dice.randint(1, 4)}
        if self._chance(0.12):
            config["minRuntime"] = f"{self.dice.choice((5, 60))}s"
        if self._chance(0.12):
            config["overcommit"] = 1.5
        return config

    def _backfilled(self, manifests: list[Manifest], config: Manifest) -> None:
        """Let some queues backfill; where pods may end, some groups state a walltime."""
        dice = self.fill
        for one in manifests:
            spec = one["spec"]
            if one["kind"] == "Queue" and one["metadata"]["name"] in self.leaves:
                if dice.random() < 0.7:
                    order, all_of = dice.choice(("fcfs", "shortest")), dice.choice(("1", "all"))
                    strategy = {"type": "Backfill", "order": order, "reservations": all_of}
                    spec["strategy"] = strategy
            elif one["kind"] == "PodGroup" and not self.static and dice.random() < 0.7:
                spec["walltime"] = f"{dice.choice((5, 10, 20, 40, 80))}s"
        if not self.static:
            self._small_groups_behind_a_wide_one(dice.choice(self.leaves))
        if "enqueue" in config["actions"] and dice.random() < 0.9:
            after = dice.randint(config["actions"].index("enqueue") + 1, len(config["actions"]))
            config["actions"] = [*config["actions"][:after], "backfill", *config["actions"][after:]]

    def _small_groups_behind_a_wide_one(self, queue: str) -> None:
        """Add a group that takes most of the nodes, and small ones behind it."""
        dice, nodes = self.fill, [one["spec"] for one in self.made if one["kind"] == "Node"]
        total = sum(one["resources"]["cpu"] for one in nodes)
        pods = [max(1, total - dice.randint(0, 3)), *(1 for _ in range(dice.randint(1, 4)))]
        for place, count in enumerate(pods):
            template: Manifest = {"requests": {"cpu": 1}, "terminationGrace": "1s"}
            if dice.random() < 0.7:
                template["annotations"] = {"batchq/runtime": f"{dice.randint(1, 40)}s"}
            spec: Manifest = {
                "queue": queue,
                "tasks": [{"name": "t0", "replicas": count, "template": template}],
            }
            if dice.random() < 0.9:
                spec["walltime"] = f"{dice.choice((5, 10, 20, 40))}s"
            created = {"creationTimestamp": 1 if place else 0}
            name = f"line{place}"
            self._add("PodGroup", name, spec, namespace="red", uid=f"uid-{name}", **created)

    def _queues(self) -> None:
        total = {
            name: sum(has.get(name, 0) for has in self.free.values()) for name in self.dimensions
        }
        self._children("", total, total, total, depth=1)

    def _children(
        self, parent: str, guarantee: Manifest, deserved: Manifest, capability: Manifest, depth: int
    ) -> None:
        """Add the children of a parent that states these amounts; the children's amounts fit into
        them.
        """
        count = self.dice.randint(1 if parent else 2, 3)
        left = [dict(guarantee), dict(deserved)]
        for place in range(count):
            name = f"{parent}{'abc'[place]}" if parent else f"q{place}"
            spec: Manifest = {"weight": self.dice.choice((0, 1, 1, 1, 2, 3))}
            if parent:
                spec["parent"] = parent
            stated = self._stated(left, capability)
            spec.update(stated)
            if depth < 3 and self._chance(0.25):
                self._add("Queue", name, spec)
                most = {one: stated.get("capability", {}).get(one, capability[one])
                        for one in capability}  # fmt: skip
                self._children(
                    name,
                    stated.get("guarantee", {}),
                    {one: stated.get("deserved", {}).get(one, 0) for one in capability},
                    most,
                    depth + 1,
                )
                continue
            spec.update(self._manners())
            self._add("Queue", name, spec)
            self.leaves.append(name)

    def _stated(self, left: list[Manifest], most: Manifest) -> Manifest:
        """Return guarantee, deserved and capability of one queue, from the amounts left."""
        stated: dict[str, Manifest] = {name: {} for name in _STATES}
        says = {name: self._chance(of) for name, of in _STATES.items()}
        for one in most:
            floor = self.dice.randint(0, max(0, left[0].get(one, 0)) // 2)
            fair = self.dice.randint(0, max(0, left[1].get(one, 0)) * 2 // 3)
            top = self.dice.randint(most[one] // 2, most[one])
            if says["capability"]:
                stated["capability"][one] = top
                floor, fair = min(floor, top), min(fair, top)
            if says["deserved"]:
                floor = min(floor, fair)
                stated["deserved"][one] = fair
                left[1][one] = left[1].get(one, 0) - fair
            if says["guarantee"] and floor:
                stated["guarantee"][one] = floor
                left[0][one] -= floor
        return {name: amounts for name, amounts in stated.items() if amounts}

    def _manners(self) -> Manifest:
        spec: Manifest = {}
        if self._chance(0.25):
            spec["strategy"] = {"type": "StrictFIFO"}
        if self._chance(0.15):
            spec["reclaimable"] = False
        if self._chance(0.15):
            spec["maxPodGroups"] = self.dice.randint(1, 4)
        preemption: Manifest = {}
        if self._chance(0.15):
            preemption["withinQueue"] = "Never"
        preemption["reclaim"] = "Any"
        if self._chance(0.3):
            preemption["reclaim"] = self.dice.choice(("Never", "LowerPriority"))
        if self._chance(0.2):
            preemption["borrowing"] = self.dice.choice((0, 5, 100))
        spec["preemption"] = preemption
        return spec

    def _group(self, name: str, place: int) -> tuple[Manifest, list[Manifest]]:
        dice = self.dice
        spec: Manifest = {"queue": dice.choice(self.leaves)}
        metadata = {
            "name": name,
            "namespace": dice.choice((*NAMESPACES[:2], *NAMESPACES)),
            "uid": f"uid-{place:02}",
            "creationTimestamp": dice.randint(0, 3),
        }
        group = {"apiVersion": "batchq/v1", "kind": "PodGroup", "metadata": metadata, "spec": spec}
        if self._chance(0.05):
            spec["controller"] = "external"
            spec["minResources"] = {"cpu": dice.randint(1, 4)}
            if self.static or self._chance(0.5):
                # A group whose consumer never comes would be readmitted and time out for ever.
                group["status"] = {"phase": "Running", "startedAt": dice.randint(0, 3)}
            return group, []
        if self._chance(0.7):
            spec["priorityClassName"] = dice.choice(("low", "mid", "high", "high", "polite"))
        spec["tasks"] = self._tasks()
        replicas = sum(task["replicas"] for task in spec["tasks"])
        kind = dice.choice(("gang", "gang", "array", "elastic"))
        least = sum(task.get("minAvailable", 0) for task in spec["tasks"])
        if kind == "array" and least <= 1:
            spec["minMember"] = 1
        elif kind == "elastic":
            spec["minMember"] = dice.randint(max(1, least), replicas)
        if self._chance(0.08):
            spec["minResources"] = {"cpu": dice.randint(1, 5)}
        pods: list[Manifest] = []
        if self._chance(0.5):
            # Running groups have mostly low priority, so that victims exist.
            spec["priorityClassName"] = dice.choice(("low", "low", "low", "mid", "high"))
            pods = self._running(group, spec.get("minMember", replicas))
        elif self._chance(0.1):
            group["status"] = {"phase": "InQueue"}
        return group, pods

    def _tasks(self) -> list[Manifest]:
        dice = self.dice
        tasks = []
        for place in range(2 if self._chance(0.2) else 1):
            requests: Manifest = {"cpu": dice.choice((1, 1, 1, 2, 2, 3))}
            for name in self.dimensions[1:]:
                if self._chance(0.5):
                    requests[name] = dice.randint(0, 3)
            template: Manifest = {
                "requests": requests,
                "terminationGrace": f"{dice.choice((0, 1, 5, 30))}s",
            }
            if not self.static and self._chance(0.6):
                template["annotations"] = {"batchq/runtime": f"{dice.randint(1, 60)}s"}
            task = {"name": f"t{place}", "replicas": dice.randint(1, 4), "template": template}
            if self._chance(0.2):
                task["minAvailable"] = dice.randint(0, 1)
            tasks.append(task)
        return tasks

    def _running(self, group: Manifest, least: int) -> list[Manifest]:
        """Return the pods of a group on nodes with free capacity; none if no gang fits."""
        placed: list[Manifest] = []
        free = {node: dict(has) for node, has in self.free.items()}
        started = self.dice.randint(0, 3)
        tasks = group["spec"]["tasks"]
        wanted = self.dice.randint(least, sum(task["replicas"] for task in tasks))
        for task in sorted(tasks, key=lambda one: -one.get("minAvailable", 0)):
            for index in range(task["replicas"]):
                asks = {"pods": 1, **task["template"]["requests"]}
                node = next((n for n, has in free.items() if _fits(asks, has)), None)
                if node is None or len(placed) >= wanted:
                    break
                for one, units in asks.items():
                    free[node][one] = free[node].get(one, 1_000) - units
                placed.append(self._pod(group, task["name"], index, node, started))
        if not self._is_gang(tasks, placed, least):
            return []
        self.free = free
        group["status"] = {"phase": "Running", "startedAt": started}
        if len(placed) > least and self._chance(0.2):
            ending = placed[-1]["status"]
            ending["terminating"], ending["terminatingAt"] = True, started
            left = [pod for pod in placed if "terminating" not in pod["status"]]
            if not self._is_gang(tasks, left, least):
                del ending["terminating"], ending["terminatingAt"]
        return placed

    def _is_gang(self, tasks: list[Manifest], pods: list[Manifest], least: int) -> bool:
        return len(pods) >= least and all(
            sum(pod["spec"]["task"] == task["name"] for pod in pods) >= task.get("minAvailable", 0)
            for task in tasks
        )

    def _pod(self, group: Manifest, task: str, index: int, node: str, started: int) -> Manifest:
        of = group["metadata"]
        return {
            "apiVersion": "batchq/v1",
            "kind": "Pod",
            "metadata": {"name": f"{of['name']}-{task}-{index}", "namespace": of["namespace"]},
            "spec": {"podGroup": of["name"], "task": task, "index": index},
            "status": {"phase": "Running", "node": node, "startedAt": started},
        }

    def _happenings(self) -> list[Manifest]:
        """Sometimes lose a node and let it return."""
        if not self._chance(0.3):
            return []
        at, node = self.dice.randint(0, 40), self.dice.choice(sorted(self.free))
        return [{"at": f"{at}s", "failNode": node}, {"at": f"{at + 20}s", "recoverNode": node}]


def _fits(asks: Manifest, has: Manifest) -> bool:
    return all(units <= has.get(one, 1_000 if one == "pods" else 0) for one, units in asks.items())
