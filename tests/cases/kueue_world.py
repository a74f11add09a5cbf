"""Translate a case of Kueue's to a described cluster.

| Kueue                                   | batchq                                               |
|-----------------------------------------|------------------------------------------------------|
| ClusterQueue, Cohort                    | Queue; a cohort is its parent, named `cohort-…`      |
| nominalQuota                            | deserved; of a queue without any, what is left to it |
| borrowingLimit, and no cohort at all    | capability: nominal + limit; nominal                 |
| lendingLimit                            | guarantee: nominal − limit                           |
| a cohort's quota and its queues'        | its deserved; of the topmost also its capability     |
| withinClusterQueue, reclaimWithinCohort | preemption.withinQueue, .reclaim; Never where absent |
| borrowWithinCohort                      | preemption.borrowing: the threshold                  |
| workload with a reservation             | a Running group whose pods are on the one large node |
| pending workload                        | a Pending group                                      |
| queue timestamp after an eviction       | status.queueTime                                     |

Only quota decides: the node has enough capacity for all pods. Names become valid in batchq: lower
case and dashes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tests.cases.peers import Data
from tests.sim.worlds import group, node, pod, priority, queue, timeline

#: Times in the cases may lie before 0.
_START = 1000


def name_of(word: str) -> str:
    """Return the name in batchq: clusterqueuea for `ClusterQueueA`, a-best for `a_best`."""
    return word.lower().replace("_", "-")


def world_of(case: Mapping[str, Any]) -> list[Data]:
    """Return the queues, the admitted groups and the new groups, in the case's order."""
    coming = [case["incoming"]] if "incoming" in case else case["pending"]
    resources = _resources(case, [*case["admitted"], *coming])
    everything = [*case["admitted"], *coming]
    return [
        node("n1", **dict.fromkeys(resources | {"cpu": None}, 10**6)),
        *_queues(case, sorted(resources)),
        *_priorities(everything),
        *(item for row in case["admitted"] for item in _admitted(row)),
        *(_pending(row) for row in coming),
    ]


def _resources(case: Mapping[str, Any], rows: Iterable[Data]) -> dict[str, None]:
    """Return the requested resources in the order of their first request."""
    return {name: None for row in rows for _, request in _pod_sets(row) for name in request}


def _queues(case: Mapping[str, Any], resources: list[str]) -> list[Data]:
    stated = {cohort["id"]: cohort for cohort in case.get("cohorts", ())}
    for row in case["queues"]:
        if "cohort" in row:
            stated.setdefault(row["cohort"], {"id": row["cohort"]})
    cohorts = [_cohort(row, case, stated, resources) for row in stated.values()]
    return [*cohorts, *(_leaf(row, resources) for row in case["queues"])]


def _cohort(
    row: Data, case: Mapping[str, Any], stated: Mapping[str, Data], resources: list[str]
) -> Data:
    whole = {name: _below(row["id"], name, case, stated) for name in resources}
    if "parent" in row:
        return queue(_cohorts(row["id"]), parent=_cohorts(row["parent"]), deserved=whole)
    return queue(_cohorts(row["id"]), deserved=whole, capability=whole)


def _cohorts(word: str) -> str:
    return f"cohort-{name_of(word)}"


def _below(
    cohort: str, resource: str, case: Mapping[str, Any], stated: Mapping[str, Data]
) -> float:
    """Return the sum of a cohort's own quota and of the quotas of its queues and child cohorts."""
    own = sum(_nominal(quota) for quota in _quotas(stated[cohort], resource))
    queues = [row for row in case["queues"] if row.get("cohort") == cohort]
    below = [one for one, row in stated.items() if row.get("parent") == cohort]
    return (
        own
        + sum(_nominal(quota) for row in queues for quota in _quotas(row, resource))
        + sum(_below(one, resource, case, stated) for one in below)
    )


def _leaf(row: Data, resources: list[str]) -> Data:
    alone = "cohort" not in row
    spec: Data = {} if alone else {"parent": _cohorts(row["cohort"])}
    limits: Data = {"deserved": {}, "capability": {}, "guarantee": {}}
    for name in resources if row["quota"] else ():
        quota = next(iter(_quotas(row, name)), {"nominal": 0})
        limits["deserved"][name] = quota["nominal"]
        borrowed = 0 if alone else quota.get("borrow_limit")
        if borrowed is not None:
            limits["capability"][name] = quota["nominal"] + borrowed
        if "lend_limit" in quota:
            limits["guarantee"][name] = quota["nominal"] - quota["lend_limit"]
    spec |= {field: amounts for field, amounts in limits.items() if amounts}
    policy = row.get("preemption", {})
    spec["preemption"] = {
        "withinQueue": policy.get("within_cq", "Never"),
        "reclaim": policy.get("reclaim", "Never"),
    }
    if "borrow_within_cohort" in policy:
        spec["preemption"]["borrowing"] = policy["borrow_within_cohort"]["max_prio"]
    if "strategy" in row:
        spec["strategy"] = {"type": row["strategy"]}
    return queue(name_of(row["id"]), **spec)


def _quotas(row: Data, resource: str) -> list[Data]:
    return [quota for quota in row.get("quota", ()) if quota["resource"] == resource]


def _nominal(quota: Data) -> float:
    nominal: float = quota["nominal"]
    return nominal


def _priorities(rows: Iterable[Data]) -> list[Data]:
    values = dict.fromkeys(row["prio"] for row in rows if "prio" in row)
    return [priority(class_of(value), value) for value in values]


def class_of(value: int) -> str:
    return f"minus-{-value}" if value < 0 else f"plus-{value}"


def _pod_sets(row: Data) -> list[tuple[int, Data]]:
    """Return (number of pods, requests of each)."""
    if "req" in row:
        return [(1, row["req"])]
    return [(part["count"], part["per_pod"]) for part in row["podsets"]]


def _group(row: Data, **more: Any) -> Data:
    tasks = [
        {"name": f"t{place}", "replicas": count, "template": {"requests": request}}
        for place, (count, request) in enumerate(_pod_sets(row))
    ]
    if "prio" in row:
        more["priorityClassName"] = class_of(row["prio"])
    return group(name_of(row["id"]), queue=name_of(row["cq"]), tasks=tasks, **more)


def _admitted(row: Data) -> list[Data]:
    name, since = name_of(row["id"]), _START + math.floor(row["reserved_at"])
    pods = [
        pod(f"{name}-t{place}-{index}", name, index, task=f"t{place}", phase="Running", node="n1")
        for place, (count, _) in enumerate(_pod_sets(row))
        for index in range(count)
    ]
    status = {"phase": "Running", "reservedAt": since, "startedAt": since}
    return [_group(row, created=since, status=status), *pods]


def _pending(row: Data) -> Data:
    return _group(row, created=_START + row.get("created", 0))


def run_by_others(world: Iterable[Data]) -> list[Data]:
    """Return the workloads as external groups, with minimum resources and without a node."""
    found = []
    for item in world:
        if item["kind"] == "PodGroup":
            needs: Counter[str] = Counter()
            for task in item["spec"]["tasks"]:
                for name, amount in task["template"]["requests"].items():
                    needs[name] += task["replicas"] * amount
            spec = {key: value for key, value in item["spec"].items() if key != "tasks"}
            spec |= {"controller": "external", "minResources": dict(needs)}
            found.append({**item, "spec": spec})
        elif item["kind"] not in ("Node", "Pod"):
            found.append(item)
    return found


def line_of(variant: Mapping[str, Any]) -> list[Data]:
    """K33: one queue and no node, so that all groups wait and their order can be read."""
    rows = variant["w"]
    groups = []
    for row in rows:
        evicted = row.get("evicted")
        status = {"queueTime": _START + evicted["at"]} if evicted else None
        prio = {"priorityClassName": class_of(row["prio"])} if "prio" in row else {}
        groups.append(
            group(
                row["id"],
                queue="q",
                uid=row["id"],
                created=_START + row["created"],
                status=status,
                **prio,
            )
        )
    return [queue("q", strategy={"type": "StrictFIFO"}), *_priorities(rows), *groups]


def heads_of(entries: list[Data], *, at_eviction: bool) -> list[Data]:
    """K36: every entry is the head of a separate queue, and all fit.

    The queue of an entry that does not borrow deserves its request; that of an entry that borrows
    from the cohort deserves nothing; if it borrows from further up, its cohort deserves nothing.
    """
    found = [
        node("n1", 100),
        queue("cohort-all", deserved={"cpu": 100}, capability={"cpu": 100}),
        *_priorities(entries),
    ]
    for entry in entries:
        name = name_of(entry["id"])
        parent = "cohort-inner" if entry["borrow"] > 1 else "cohort-all"
        deserved = {"cpu": 0 if entry["borrow"] else 1}
        found.append(queue(name, parent=parent, deserved=deserved))
        evicted = entry.get("evicted")
        status = {"queueTime": _START + evicted["at"]} if evicted and at_eviction else None
        prio = {"priorityClassName": class_of(entry["prio"])} if "prio" in entry else {}
        created = _START + entry["created"]
        found.append(group(name, queue=name, created=created, status=status, **prio))
    return [*found, queue("cohort-inner", parent="cohort-all", deserved={"cpu": 0})]


def refused_head(row: Mapping[str, Any]) -> list[Data]:
    """K34: a head that does not fit into its queue, and a smaller group behind it."""
    strategy = "StrictFIFO" if row["reason"] == "any_other" else "BestEffortFIFO"
    wants_victims = row["reason"] == "PreemptionNoCandidates"
    policy = {"withinQueue": "LowerPriority" if wants_victims else "Never", "reclaim": "Never"}
    return [
        *_one_queue(cpu=2, strategy={"type": strategy}, preemption=policy),
        *_running("runs", cpu=1, prio=1),
        _waiting("head", created=1, cpu=2, prio=1),
        _waiting("follower", created=2, cpu=1),
    ]


def head_with_victims() -> list[Data]:
    """K34: a newcomer fits into the capacity of a head's first victim; the second still ends."""
    policy = {"withinQueue": "LowerPriority", "reclaim": "Never"}
    newcomer = _waiting("newcomer", created=10, cpu=1, prio=1)
    return [
        *_one_queue(cpu=2, preemption=policy),
        *_running("quick", cpu=1, grace="1s"),
        *_running("slow", cpu=1, grace="20s"),
        _waiting("head", created=1, cpu=2, prio=1),
        timeline({"at": "5s", "apply": newcomer}),
    ]


def one_shape_refused() -> list[Data]:
    """K34: three groups that do not fit, two smaller that fit, a fourth, then free capacity."""
    gpus = [_waiting(f"gpu-{place}", created=place, gpu=1) for place in (1, 2, 3)]
    cpus = [_waiting(f"cpu-{place}", created=place, cpu=1) for place in (1, 2)]
    return [
        *_one_queue(cpu=2, gpu=4),
        *_running("runs", gpu=4),
        *gpus,
        *cpus,
        timeline(
            {"at": "5s", "apply": _waiting("gpu-4", gpu=1)},
            {"at": "10s", "finishPod": "default/runs-t-0"},
        ),
    ]


def _one_queue(*, cpu: int, gpu: int = 0, **spec: Any) -> list[Data]:
    limit = {"cpu": cpu, "gpu": gpu}
    return [
        node("n1", 10**6, gpu=10**6),
        queue("q", deserved=limit, capability=limit, **spec),
        *_priorities([{"prio": 1}]),
    ]


def _running(name: str, *, prio: int = 0, grace: str = "0s", **requests: int) -> list[Data]:
    status = {"phase": "Running", "reservedAt": _START, "startedAt": _START}
    return [
        _one(name, requests, prio=prio, grace=grace, status=status),
        pod(f"{name}-t-0", name, phase="Running", node="n1"),
    ]


def _waiting(name: str, *, created: int | None = None, prio: int = 0, **requests: int) -> Data:
    return _one(name, requests, prio=prio, created=None if created is None else _START + created)


def _one(
    name: str, requests: Mapping[str, int], *, prio: int, grace: str = "30s", **more: Any
) -> Data:
    template = {"requests": dict(requests), "terminationGrace": grace}
    prioritised = {"priorityClassName": class_of(prio)} if prio else {}
    return group(
        name, queue="q", tasks=[{"name": "t", "template": template}], **prioritised, **more
    )
