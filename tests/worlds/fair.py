"""Sibling queues with endless demand: their shares converge to their weights.

Pods are of one size and nodes hold a whole number of them, so a queue that is short of a whole pod
or more is wrong.
"""

from __future__ import annotations

import random
from fractions import Fraction

from batchq.lab.simulation.report import WorldOutcome
from tests.worlds.making import Described, Manifest
from tests.worlds.rules import Broken


def fair_world(seed: int) -> tuple[Described, dict[str, Fraction]]:
    """Return a world of arrays, and the number of pods each queue should end with."""
    dice = random.Random(f"fair {seed}")
    nodes = {f"n{place}": dice.randint(2, 6) for place in range(dice.randint(1, 3))}
    total = sum(nodes.values())
    weights = {f"q{place}": dice.randint(1, 4) for place in range(dice.randint(2, 4))}
    made: list[Manifest] = [
        *(_manifest("Node", name, {"resources": {"cpu": cpu}}) for name, cpu in nodes.items()),
        *(
            _manifest("Queue", name, {"weight": weight, "preemption": {"reclaim": "Any"}})
            for name, weight in weights.items()
        ),
    ]
    free = [name for name, cpu in nodes.items() for _ in range(cpu)]
    for queue in sorted(weights, key=lambda _: dice.random()):
        count = dice.randint(1, 3)
        for place in range(count):
            name = f"{queue}-{place}"
            taken = [free.pop() for _ in range(dice.randint(0, len(free)))]
            made += _array(dice, name, queue, max(total, len(taken)), taken)
    made_up = Described(
        seed, True, made, {"actions": ["enqueue", "allocate", "reclaim", "preempt"]}
    )
    return made_up, {
        queue: Fraction(total * weight, sum(weights.values())) for queue, weight in weights.items()
    }


def _array(
    dice: random.Random, name: str, queue: str, replicas: int, nodes: list[str]
) -> list[Manifest]:
    grace = f"{dice.choice((0, 1, 5))}s"
    template = {"requests": {"cpu": 1}, "terminationGrace": grace}
    task = {"name": "t", "replicas": replicas, "template": template}
    group = _manifest("PodGroup", name, {"queue": queue, "minMember": 1, "tasks": [task]})
    group["metadata"]["namespace"] = "default"
    if nodes:
        group["status"] = {"phase": "Running", "startedAt": 0}
    pods = []
    for index, node in enumerate(nodes):
        pod = _manifest("Pod", f"{name}-t-{index}", {"podGroup": name, "task": "t", "index": index})
        pod["metadata"]["namespace"] = "default"
        pod["status"] = {"phase": "Running", "node": node, "startedAt": dice.randint(0, 3)}
        pods.append(pod)
    return [group, *pods]


def _manifest(kind: str, name: str, spec: Manifest) -> Manifest:
    return {"apiVersion": "batchq/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def shares_have_converged(outcome: WorldOutcome, wanted: dict[str, Fraction]) -> None:
    """Check that no queue is short of its weighted share by a whole pod, and nothing is idle."""
    held = {name: int(outcome.queues[name].allocated.get("cpu", "0")) for name in wanted}
    for name, pods in wanted.items():
        if pods - held[name] >= 1:
            raise Broken(f"{name} should end with {float(pods):.2f} pods: {held}")
    if sum(held.values()) != sum(wanted.values()):
        raise Broken(f"of {sum(wanted.values())} places for pods, these are used: {held}")
