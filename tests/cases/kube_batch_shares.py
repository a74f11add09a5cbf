"""kube-batch's probes of water-filling: what queues deserve, as `simulate` reports it.

The pending requests of a probe become several pending groups that each fit on the machine, because
groups that never fit are ineligible and do not count. `share` and `overused` cannot be compared:
in batchq shares only order queues, and refuse nothing.
"""

from __future__ import annotations

from typing import Any

from batchq.api.resources import format_quantity, parse_quantity
from batchq.config.load import read_config
from batchq.lab.simulation import play
from tests.cases.kube_batch_entry import DIFFERS, SAME, Entry, File
from tests.sim.worlds import Manifest, manifest
from tests.yaml_text import text_of_all

PER_DIMENSION = (
    "for each resource separately, the deserved amount of a queue is capped by its demand, and the"
    " rest goes to the other queues (rule: deserved and share); kube-batch caps a queue in all"
    " resources or in none (complaints 665, 666, 729)"
)
#: Queue -> dimension -> quantity.
Deserved = dict[str, dict[str, str]]


def _deserved(row: Any, file: File) -> Deserved:
    outcome = play(
        text_of_all(_world(row)),
        "case",
        config=read_config("actions: [enqueue]", "config"),
        cycles=1,
    ).outcome
    return {
        name: {
            resource: units
            for resource, units in outcome.queues[name].deserved.items()
            if resource != "pods" and units is not None
        }
        for name in row["queues"]
    }


def _world(row: Any) -> list[Manifest]:
    world: list[Manifest] = []
    if row["total"]:
        world.append(_node("n1", row["total"], ready=True))
    for name, queue in row["queues"].items():
        world.append(manifest("Queue", name, {"weight": queue["weight"]}))
        if "allocated" in queue:
            # On a silent machine: its pods stay charged, and it adds no capacity.
            held = _positive(queue["allocated"])
            where = "n1" if _fits(held, row["total"]) else "gone"
            if where == "gone":
                world.append(_node("gone", held, ready=False))
            world += _running(name, held, where)
        world += _waiting(name, queue.get("pending", {}))
    return world


def _node(name: str, resources: dict[str, str], *, ready: bool) -> Manifest:
    return manifest("Node", name, {"resources": resources}, status={"ready": ready})


def _positive(amounts: dict[str, str]) -> dict[str, str]:
    return {name: units for name, units in amounts.items() if parse_quantity(name, units)}


def _fits(amounts: dict[str, str], total: dict[str, str]) -> bool:
    return all(
        parse_quantity(name, units) <= parse_quantity(name, total.get(name, "0"))
        for name, units in amounts.items()
    )


def _running(queue: str, amounts: dict[str, str], where: str) -> list[Manifest]:
    spec = {"podGroup": f"{queue}-holds", "task": "t"}
    return [
        _group(f"{queue}-holds", queue, amounts, {"phase": "Running"}),
        manifest("Pod", f"{queue}-holds-t-0", spec, status={"phase": "Running", "node": where}),
    ]


def _waiting(queue: str, amounts: dict[str, str]) -> list[Manifest]:
    """Return a group for each requested core; the other amounts of the probes divide evenly."""
    pieces = int(amounts.get("cpu", "0"))
    each = {
        name: format_quantity(name, parse_quantity(name, units) // pieces)
        for name, units in amounts.items()
    }
    return [_group(f"{queue}-waits-{place}", queue, each, {}) for place in range(pieces)]


def _group(name: str, queue: str, requests: dict[str, str], status: Manifest) -> Manifest:
    spec = {"queue": queue, "tasks": [{"name": "t", "template": {"requests": requests}}]}
    return manifest("PodGroup", name, spec, status=status)


def _entry(case: str, word: str, does: Deserved, why: str = "") -> Entry:
    return Entry(f"shares: {case}", word, why, does, _deserved)


def _parts(cpu: str, gib: int, **more: str) -> dict[str, str]:
    return {"cpu": cpu, "memory": str(gib * 2**30), **more}


ENTRIES = (
    _entry(
        "W01 tutorial: 9cpu/27Gi, w2 req5/10Gi, w4 req10/20Gi",
        SAME,
        {"q1": _parts("3", 9), "q2": _parts("6", 18)},
    ),
    _entry("W03 both met", SAME, {"q1": _parts("2", 2), "q2": _parts("3", 3)}),
    _entry(
        "W04 three queues w1:1:2, q1 small",
        SAME,
        {
            "q1": _parts("1", 1),
            "q2": {"cpu": "3666m", "memory": "3937053354"},
            "q3": {"cpu": "7333m", "memory": "7874106709"},
        },
        "to the unit: fractions round down (rule: deserved and share)",
    ),
    _entry(
        "W06 cpu-only request below deserved: met, memory deserved 0",
        DIFFERS,
        {"q1": _parts("2", 0), "q2": _parts("4", 0)},
        f"{PER_DIMENSION}; a queue that requests no memory deserves none",
    ),
    _entry(
        "W07 request equal to deserved is NOT less -> not met",
        SAME,
        {"q1": _parts("2", 2), "q2": _parts("2", 2)},
    ),
    _entry(
        "W09 gpu total 4; q1 no gpu key, q2 wants 8 gpu",
        DIFFERS,
        {
            "q1": _parts("2", 2, **{"nvidia.com/gpu": "0"}),
            "q2": _parts("4", 4, **{"nvidia.com/gpu": "4"}),
        },
        f"{PER_DIMENSION}; q2 does not get more cpu than it requests because it lacks gpus",
    ),
    _entry(
        "W10 gpu key explicit 0 on nodes and pods",
        DIFFERS,
        {
            "q1": _parts("2", 2, **{"nvidia.com/gpu": "0"}),
            "q2": _parts("8", 8, **{"nvidia.com/gpu": "0"}),
        },
        "in a request, zero and absent are the same (rule: objects); in kube-batch a gpu request"
        " of 0 prevents the capping of a queue",
    ),
    _entry(
        "W12 request has gpu key but no node has gpus",
        DIFFERS,
        {"q1": _parts("0", 0), "q2": _parts("10", 10)},
        "a request that no node could take is not in line (rule: enqueue 1, ExceedsMaxQuota) and"
        " has no demand",
    ),
    _entry("W13 zero weight only", SAME, {"q1": _parts("0", 0)}),
    _entry(
        "W15 queue with nothing requested", SAME, {"q1": _parts("0", 0), "q2": _parts("10", 10)}
    ),
    _entry("W16 no nodes", SAME, {"q1": {}}, "without nodes, no resource has a name"),
    _entry(
        "W18 negative-ish: allocated over total after node loss",
        SAME,
        {"q1": _parts("2", 2), "q2": _parts("2", 2)},
    ),
    _entry("W19 overused boundary eps: allocated 9m short", SAME, {"q1": _parts("2", 2)}),
    _entry(
        "W21 four queues cascade w1 each, 12cpu, req 1,3,4,10",
        SAME,
        {
            "q1": _parts("1", 1),
            "q2": _parts("3", 3),
            "q3": _parts("4", 4),
            "q4": _parts("4", 4),
        },
    ),
    _entry(
        "W22 e2e Proportion: 6cpu(12 half), mem 12Gi; q2 0.5; q1 5cpu + 5Gi",
        SAME,
        {"q1": _parts("5", 5), "q2": _parts("500m", 0)},
    ),
)
