"""Make a day from a seed: the machines, the users' submissions and changes, and the failures.

A Day is plain values, so that a simulator that shares no code with batchq can play the same one
(`tests.days.easy`); `manifests` converts it for batchq. Instants are seconds from the day's start.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

Manifest = dict[str, Any]

QUEUES = ("batch", "lab", "service")
NAMESPACES = ("ada", "bert")
CLASSES = {"normal": 0, "urgent": 10}
HOUR = 3_600
#: How long users submit; submitted work then runs on.
SUBMITTING_S = 8 * HOUR

#: Name -> the strategy of each of the three queues.
STRATEGIES: dict[str, tuple[Manifest, ...]] = {
    "besteffort": ({"type": "BestEffortFIFO"},) * 3,
    "strict": ({"type": "StrictFIFO"},) * 3,
    "easy": ({"type": "Backfill"},) * 3,
    "conservative": ({"type": "Backfill", "reservations": "all"},) * 3,
    "mixed": (
        {"type": "Backfill", "order": "shortest"},
        {"type": "StrictFIFO"},
        {"type": "BestEffortFIFO"},
    ),
}


class Work(Struct, frozen=True, kw_only=True):
    """One pod group, as a user intends it.

    `least` of its `pods` start together. `fails_after_s`: when the first attempt of its first pod
    fails; it is retried `backoff_s` later. `after`: the group that must end before it. `opens_at`:
    when its gate opens, or it is resumed; nothing starts before. `held`: when it is suspended,
    until `resumed`.
    """

    name: str
    namespace: str
    queue: str
    submit_at: int
    pods: int
    least: int
    cpu: int
    runtime_s: int
    walltime_s: int | None
    urgent: bool = False
    gated: bool = False
    suspended: bool = False
    opens_at: int = 0
    after: str = ""
    fails_after_s: int | None = None
    backoff_s: int = 10
    held: tuple[int, int] | None = None

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def ready_at(self) -> int:
        """The time from which it waits only for other groups and resources."""
        return max(self.submit_at, self.opens_at)


class Loss(Struct, frozen=True):
    """A node fails, and returns later."""

    node: str
    at: int
    back_at: int


class Cut(Struct, frozen=True):
    """A quota or a queue's limit is lowered to this many cpus for a while."""

    kind: str
    name: str
    at: int
    until: int
    cpu: int


class Day(Struct, frozen=True):
    """Everything that goes into a day."""

    seed: int
    nodes: dict[str, int]
    works: tuple[Work, ...]
    losses: tuple[Loss, ...]
    cuts: tuple[Cut, ...]


def day_of(seed: int) -> Day:
    """Return the day of a seed."""
    dice = random.Random(f"day {seed}")
    each = dice.choice((4, 8))
    nodes = {f"n{k}": each if dice.random() < 0.8 else each // 2 for k in range(dice.randint(3, 6))}
    total = sum(nodes.values())
    demand = dice.choice((0.6, 0.9, 1.1)) * total * SUBMITTING_S
    works: list[Work] = []
    while sum(one.pods * one.cpu * one.runtime_s for one in works) < demand:
        works += _submission(dice, len(works), each // 2, total)
    works.sort(key=lambda one: (one.submit_at, one.name))
    return Day(seed, nodes, tuple(works), tuple(_losses(dice, nodes)), tuple(_cuts(dice, total)))


def _submission(dice: random.Random, place: int, most_cpu: int, total: int) -> Iterator[Work]:
    """Yield the groups of one submission: one, or a chain of them."""
    at = dice.randint(0, SUBMITTING_S)
    of = {"namespace": dice.choice(NAMESPACES), "queue": dice.choice(QUEUES), "submit_at": at}
    before = ""
    for link in range(dice.choice((1, 1, 1, 1, 2, 3))):
        one = _work(dice, f"w{place + link:03}", most_cpu, total, before, of)
        yield one
        before = one.name


def _work(
    dice: random.Random, name: str, most_cpu: int, total: int, before: str, of: Manifest
) -> Work:
    runtime_s = int(60 * 90 ** dice.random())
    cpu = dice.randint(1, most_cpu)
    kind = dice.choice(("gang", "gang", "array", "array", "elastic"))
    # At most half of the machines at once, so that a lost node leaves enough.
    pods = dice.randint(1, max(1, min(8, total // 2 // cpu)))
    least = {"gang": pods, "array": 1, "elastic": (pods + 1) // 2}[kind]
    if kind == "array":
        pods = dice.randint(2, 16)
    more: Manifest = {}
    luck = dice.random()
    if luck < 0.08:
        more = {"gated": True, "opens_at": of["submit_at"] + dice.randint(60, HOUR)}
    elif luck < 0.16:
        more = {"suspended": True, "opens_at": of["submit_at"] + dice.randint(60, HOUR)}
    elif luck < 0.2:
        begins = of["submit_at"] + dice.randint(60, HOUR)
        more = {"held": (begins, begins + dice.randint(60, HOUR))}
    elif luck < 0.35:
        more = {
            "fails_after_s": dice.randint(1, runtime_s),
            "backoff_s": dice.choice((10, 120)),
        }
    walltime_s = int(runtime_s * dice.choice((1.1, 1.5, 3))) if dice.random() < 0.85 else None
    if walltime_s is not None and kind == "elastic":
        # The walltime is the group's: pods beyond the required ones may start late.
        walltime_s *= 1 + pods
    if walltime_s is not None and "fails_after_s" in more:
        # The walltime allows for a second attempt.
        walltime_s += runtime_s + int(more["backoff_s"])
    return Work(
        name=name,
        pods=pods,
        least=least,
        cpu=cpu,
        runtime_s=runtime_s,
        walltime_s=walltime_s,
        urgent=dice.random() < 0.1,
        after=before,
        **of,
        **more,
    )


def _losses(dice: random.Random, nodes: dict[str, int]) -> Iterator[Loss]:
    """Yield losses one after another: at most one node is away."""
    at = 0
    for _ in range(dice.randint(0, 3)):
        at += dice.randint(HOUR // 4, 3 * HOUR)
        lasts = dice.randint(60, HOUR)
        yield Loss(dice.choice(sorted(nodes)), at, at + lasts)
        at += lasts


def _cuts(dice: random.Random, total: int) -> Iterator[Cut]:
    for kind, names in (("ResourceQuota", NAMESPACES), ("Queue", QUEUES)):
        for name in names:
            if dice.random() < 0.3:
                at = dice.randint(0, SUBMITTING_S)
                until = at + dice.randint(300, 2 * HOUR)
                yield Cut(kind, name, at, until, dice.randint(total // 3, total))


def manifests(day: Day, strategy: str) -> list[Manifest]:
    """Return the day under a strategy, as a described world."""
    made = [_manifest("Node", name, {"resources": {"cpu": cpu}}) for name, cpu in day.nodes.items()]
    made += [_manifest("PriorityClass", name, {"value": value}) for name, value in CLASSES.items()]
    made += [_queue(name, strategy) for name in QUEUES]
    made += [_quota(name, sum(day.nodes.values())) for name in NAMESPACES]
    steps: list[tuple[int, Manifest]] = []
    for one in day.works:
        steps += _steps(one)
    for loss in day.losses:
        steps.append((loss.at, {"failNode": loss.node}))
        steps.append((loss.back_at, {"recoverNode": loss.node}))
    for cut in day.cuts:
        steps += _cut_steps(cut, strategy, sum(day.nodes.values()))
    steps.sort(key=lambda one: one[0])
    spec = [{"at": f"{at}s", **what} for at, what in steps]
    return [*made, _manifest("Timeline", "day", spec)]


def _manifest(kind: str, name: str, spec: Any, **metadata: str) -> Manifest:
    meta = {"name": name, **metadata}
    return {"apiVersion": "batchq/v1", "kind": kind, "metadata": meta, "spec": spec}


def _queue(name: str, strategy: str, **more: Any) -> Manifest:
    form = STRATEGIES[strategy][QUEUES.index(name)]
    return _manifest("Queue", name, {"strategy": dict(form), **more})


def _quota(namespace: str, cpu: int) -> Manifest:
    return _manifest("ResourceQuota", "quota", {"hard": {"cpu": cpu}}, namespace=namespace)


def _steps(one: Work) -> Iterator[tuple[int, Manifest]]:
    template: Manifest = {
        "requests": {"cpu": one.cpu},
        "annotations": {"batchq/runtime": f"{one.runtime_s}s"},
        "terminationGrace": "10s",
    }
    spec: Manifest = {
        "queue": one.queue,
        "minMember": one.least,
        "priorityClassName": "urgent" if one.urgent else "normal",
        "tasks": [{"name": "t", "replicas": one.pods, "template": template}],
        "retry": {"limit": 2, "backoff": f"{one.backoff_s}s"},
    }
    if one.walltime_s is not None:
        spec["walltime"] = f"{one.walltime_s}s"
    if one.after:
        spec["dependsOn"] = [{"name": one.after, "condition": "any"}]
    if one.gated:
        spec["schedulingGates"] = [{"name": "data"}]
        yield one.opens_at, {"openGate": {"podGroup": one.key, "gate": "data"}}
    if one.suspended:
        spec["suspend"] = True
        yield one.opens_at, {"resume": one.key}
    if one.held is not None:
        yield one.held[0], {"suspend": one.key}
        yield one.held[1], {"resume": one.key}
    yield one.submit_at, {"apply": _manifest("PodGroup", one.name, spec, namespace=one.namespace)}


def _cut_steps(cut: Cut, strategy: str, total: int) -> Iterator[tuple[int, Manifest]]:
    if cut.kind == "Queue":
        yield cut.at, {"apply": _queue(cut.name, strategy, capability={"cpu": cut.cpu})}
        yield cut.until, {"apply": _queue(cut.name, strategy)}
    else:
        yield cut.at, {"apply": _quota(cut.name, cut.cpu)}
        yield cut.until, {"apply": _quota(cut.name, total)}
