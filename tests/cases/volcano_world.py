"""Translate a case of Volcano's to a described cluster.

| Volcano                                  | batchq                                              |
|------------------------------------------|-----------------------------------------------------|
| queue state Closed                       | stopPolicy Hold                                     |
| queue priority                           | – : queues have shares, and no priority             |
| parent `root`, and the queue of that name| no parent                                           |
| minMember 0                              | minMember 1, the minimum                            |
| pods of one kind in a group              | a task                                              |
| role with a minimum                      | its task's minAvailable, as far as minMember goes   |
| pod that is not preemptable              | a pod that its group requires: its task's           |
|                                          | minAvailable and the group's minMember              |
| pod's own priority                       | its template's priority                             |
| preemptionPolicy Never of a pod          | that of its group's PriorityClass                   |
| Running pods of a group                  | phase Running, or InQueue below its minMember       |
| group that waits, by its queue's rules   | Pending; InQueue if only `allocate` runs            |
| action reclaim                           | preemption.reclaim Any, of every queue              |
| action preempt or reclaim alone          | after enqueue and allocate, as in batchq's default  |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.cases.peers import Data
from tests.sim.worlds import manifest

_NAMES = {"cpu": "cpu", "mem": "memory"}
_ABOUT_NODES = frozenset({"name", "labels"})
_ABOUT_PODS = frozenset(
    {"id", "group", "node", "role", "prio", "preemptable", "never", "selector", "queue", "running"}
)
#: The nodes of cases that state none, where nodes do not matter.
_SOME_NODE: list[Data] = [{"name": "running-unassigned", "cpu": 100, "mem": "100G"}]
_PRIORITIES = {"low-priority": 100, "mid": 500, "high-priority": 1000, "positive": 500}


def actions_of(case: Mapping[str, Any]) -> list[str]:
    """Return the case's actions; evicting actions come after those that find a lack of capacity."""
    actions = list(case["actions"])
    if "enqueue" not in actions and {"preempt", "reclaim"} & set(actions):
        return ["enqueue", "allocate", *(name for name in actions if name != "allocate")]
    return actions


def world_of(case: Mapping[str, Any], waiting: str = "") -> list[Data]:
    """Return the case's objects in order; pods never end.

    `waiting`: the phase of groups without a running pod, if it differs from the table above.
    """
    pods = list(case.get("pods", ()))
    quotas = case.get("namespace_quota", {})
    reclaim = "reclaim" in case["actions"]
    waiting = waiting or ("InQueue" if "enqueue" not in actions_of(case) else "Pending")
    found = [
        *(node_of(row) for row in case.get("nodes", _SOME_NODE)),
        *(_queue(row, reclaim=reclaim) for row in case["queues"] if row["name"] != "root"),
        *(quota_of(namespace, hard) for namespace, hard in quotas.items()),
    ]
    classes: dict[str, Data] = {}
    for row in case["groups"]:
        own = [pod for pod in pods if owner_of(pod) == row["id"]]
        found += _group(row, own, classes, waiting)
    return [*found, *classes.values()]


def name_of(word: str) -> str:
    """Return the name in batchq: ns1/pga for `ns1/pgA`."""
    return word.lower()


def owner_of(pod: Data) -> str:
    """Return the group of a pod of the case."""
    return f"{pod['id'].partition('/')[0]}/{pod['group']}"


def amounts_of(stated: Mapping[str, Any], *without: str) -> Data:
    """Return amounts with batchq's resource names."""
    return {_NAMES.get(name, name): stated[name] for name in stated if name not in without}


def node_of(row: Data) -> Data:
    labels = {"labels": row["labels"]} if "labels" in row else {}
    resources = amounts_of(row, *_ABOUT_NODES)
    return manifest("Node", row["name"], {"resources": resources}, metadata=labels)


def quota_of(namespace: str, hard: Data) -> Data:
    where = {"namespace": namespace}
    return manifest("ResourceQuota", "quota", {"hard": amounts_of(hard)}, metadata=where)


def _queue(row: Data, *, reclaim: bool) -> Data:
    spec: Data = {"preemption": {"reclaim": "Any"}} if reclaim else {}
    if row.get("parent", "root") != "root":
        spec["parent"] = row["parent"]
    if "weight" in row:
        spec["weight"] = row["weight"]
    for field in ("guarantee", "deserved", "capability"):
        if field in row:
            spec[field] = amounts_of(row[field])
    if row.get("state", "Open") != "Open":
        spec["stopPolicy"] = "Hold"
    return manifest("Queue", row["name"], spec)


def _group(row: Data, pods: list[Data], classes: dict[str, Data], waiting: str) -> list[Data]:
    namespace, _, name = name_of(row["id"]).partition("/")
    if not pods:
        pods = [{"id": f"{row['id']}-0", "node": "", **row.get("minRes", {"cpu": 1})}]
    tasks, places = _tasks(row, pods)
    fixed = sum(task["minAvailable"] for task in tasks)
    least = max(1, row["min"], fixed)
    spec: Data = {"queue": row["queue"], "minMember": least, "tasks": tasks}
    if "minRes" in row:
        spec["minResources"] = amounts_of(row["minRes"])
    if word := _class(row, pods, classes):
        spec["priorityClassName"] = word
    there = [
        _pod(pod, name, place)
        for pod, place in zip(pods, places, strict=True)
        if pod["node"] or "group" in pod
    ]
    running = sum(bool(pod["node"]) for pod in pods)
    phase = "Running" if running >= least else "InQueue" if running else waiting
    metadata = {"namespace": namespace}
    group = manifest("PodGroup", name, spec, metadata=metadata, status={"phase": phase})
    return [group, *there]


def _tasks(row: Data, pods: list[Data]) -> tuple[list[Data], list[tuple[str, int]]]:
    """Return a task for each kind of pods, and (task, index) of each pod."""
    tasks: dict[str, Data] = {}
    places = []
    for pod in pods:
        key = repr([sorted((k, v) for k, v in pod.items() if k not in ("id", "node"))])
        task = tasks.get(key)
        if task is None:
            named = f"t{len(tasks) + 1}"
            task = {"name": named, "replicas": 0, "minAvailable": 0, "template": _template(pod)}
            tasks[key] = task
        places.append((task["name"], task["replicas"]))
        task["replicas"] += 1
        if not pod.get("preemptable", True):
            task["minAvailable"] += 1
    roles = row.get("roles", {})
    if sum(roles.values()) <= row["min"]:
        by_role = {pod.get("role", ""): place[0] for pod, place in zip(pods, places, strict=True)}
        for task in tasks.values():
            least = [roles.get(role, 0) for role, name in by_role.items() if name == task["name"]]
            task["minAvailable"] = max([task["minAvailable"], *least])
    return list(tasks.values()), places


def _template(pod: Data) -> Data:
    template: Data = {"requests": amounts_of(pod, *_ABOUT_PODS)}
    if "selector" in pod:
        template["nodeSelector"] = pod["selector"]
    if "prio" in pod:
        template["priority"] = _PRIORITIES.get(pod["prio"], pod["prio"])
    return template


def _pod(pod: Data, group: str, place: tuple[str, int]) -> Data:
    namespace, _, name = name_of(pod["id"]).partition("/")
    spec = {"podGroup": group, "task": place[0], "index": place[1]}
    status = {"phase": "Running", "node": pod["node"]} if pod["node"] else {"phase": "Pending"}
    return manifest("Pod", name, spec, metadata={"namespace": namespace}, status=status)


def _class(row: Data, pods: Iterable[Data], classes: dict[str, Data]) -> str:
    """Return the group's PriorityClass, created at first use; `never` creates a separate one."""
    value = row.get("prio_value", _PRIORITIES.get(row.get("prio", ""), 0))
    never = any(pod.get("never") for pod in pods)
    if not value and not never:
        return ""
    name = f"{row.get('prio', f'value-{value}')}{'-never' if never else ''}"
    spec = {"value": value, **({"preemptionPolicy": "Never"} if never else {})}
    classes.setdefault(name, manifest("PriorityClass", name, spec))
    return name
