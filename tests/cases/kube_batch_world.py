"""Translate a case of kube-batch's to a described cluster and a configuration.

| kube-batch                                | batchq                                              |
|-------------------------------------------|-----------------------------------------------------|
| pods of one group with the same requests  | a task; its pods that are on nodes are described    |
| and priority                              | tasks in the order of priority                      |
| pod without a group                       | a separate group with minMember 1                   |
| min 0                                     | minMember 1, the minimum                            |
| group with pods that have started         | phase Running, or InQueue below its minMember       |
| group whose pods are all being deleted    | Cancelled: their owner deleted them                 |
| a round; a grace period in rounds         | a second; terminationGrace in seconds               |
| action backfill                           | the same; allocate also binds pods without requests |
| action reclaim                            | preemption.reclaim Any, of every queue              |
| no action enqueue                         | none: groups are InQueue without a reservation      |
| plugin nodeorder                          | leastAllocated and balancedAllocation, or           |
|                                           | mostAllocated where its arguments say so            |
| drf in a second tier, with preemption     | none: kube-batch never calls it there               |
| plugins that batchq requires              | gates, dependencies, quota, capacity, predicates    |
| a tier without priority                   | with priority, which contains the rules for victims |
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from batchq.config import SchedulerConfig
from batchq.config.load import read_config
from tests.yaml_text import text_of

Manifest = dict[str, Any]

_ALWAYS = ("gates", "dependencies", "quota", "capacity", "predicates")
_PLUGINS = ("priority", "gang", "drf", "proportion", "conformance")
_STARTED = ("Running", "Succeeded", "Failed")
_NAMES = {"cpu": "cpu", "mem": "memory", "memory": "memory", "gpu": "gpu", "pods": "pods"}


def config_of(case: Mapping[str, Any], configs: Mapping[str, Any]) -> SchedulerConfig:
    """Return the case's actions and plugins as batchq's configuration."""
    stated = configs[case["config"]]
    actions = [name.strip() for name in stated["actions"].split(",")]
    entries = [entry for tier in stated["tiers"] for entry in tier]
    on = {entry if isinstance(entry, str) else entry["name"] for entry in entries} | {"priority"}
    if "preempt" in actions and "drf" not in stated["tiers"][0]:
        on.discard("drf")
    written = {
        "actions": actions,
        "plugins": [*_ALWAYS, *(name for name in _PLUGINS if name in on), *_scores(entries)],
    }
    return read_config(text_of(written), "config")


def reclaims(case: Mapping[str, Any], configs: Mapping[str, Any]) -> bool:
    """Return whether the case's configuration has the action reclaim, which serves every queue."""
    return "reclaim" in configs[case["config"]]["actions"]


def _scores(entries: list[Any]) -> list[str]:
    """Return the score plugins: nodeorder is three plugins here, selected by its arguments."""
    if "nodeorder" in entries:
        return ["leastAllocated", "balancedAllocation"]
    if any(isinstance(entry, dict) and entry["name"] == "nodeorder" for entry in entries):
        return ["mostAllocated"]
    return []


def world_of(case: Mapping[str, Any], *, reclaim: bool) -> list[Manifest]:
    """Return the case's objects in order, and a Timeline of later changes.

    `reclaim`: whether its queues reclaim from others.
    """
    objects = [_node(name, spec) for name, spec in case["nodes"].items()]
    policy = {"preemption": {"reclaim": "Any"}} if reclaim else {}
    stated = {name.strip("()"): spec["weight"] for name, spec in case["queues"].items()}
    weights = {**stated, "default": 1}
    objects += [
        _manifest("Queue", name, {"weight": weight, **policy}) for name, weight in weights.items()
    ]
    objects += [
        _manifest("PriorityClass", name, {"value": value})
        for name, value in case.get("priorityClasses", {}).items()
    ]
    steps: list[tuple[int, Manifest]] = []
    if "untaint_at_round" in case:
        at = case["untaint_at_round"] - 1
        for name, spec in case["nodes"].items():
            steps.append((at, {"at": f"{at}s", "apply": _node(name, {**spec, "taints": []})}))
    for group in _groups(case):
        first = group.pop("first")
        pods = group.pop("pods")
        last = group.pop("last")
        name = f"{group['metadata']['namespace']}/{group['metadata']['name']}"
        if first > 1:
            group["metadata"].pop("creationTimestamp")
            group["metadata"].pop("uid")
            steps.append((first - 1, {"at": f"{first - 1}s", "apply": group}))
        else:
            objects += [group, *pods]
        if last:
            gone = {"at": f"{last - 1}s", "delete": f"PodGroup/{name}"}
            steps.append((last - 1, gone))
    if steps:
        ordered = [step for _, step in sorted(steps, key=lambda pair: pair[0])]
        objects.append(_manifest("Timeline", "later", ordered))
    return objects


def _groups(case: Mapping[str, Any]) -> list[Manifest]:
    rows: dict[str, list[Manifest]] = {}
    # A gang's least is taken from its tasks in order; kube-batch takes its pods by priority.
    for row in sorted(case["pods"], key=lambda row: -(row.get("priority") or 0)):
        rows.setdefault(_group_of(row), []).append(row)
    stated = {group["name"].partition("/")[2]: group for group in case["groups"]}
    alone = {name: _shadow(name, rows[name][0]) for name in rows if name not in stated}
    return [_group(case, group, rows.get(name, [])) for name, group in {**alone, **stated}.items()]


def _group_of(row: Mapping[str, Any]) -> str:
    """Return the group's name; `(shadow, owner rs-1)` is one that kube-batch created for pods."""
    name: str = row["group"]
    return name.removeprefix("(shadow, owner ").removesuffix(")")


def _shadow(name: str, row: Mapping[str, Any]) -> Manifest:
    return {"name": f"{row['name'].partition('/')[0]}/{name}", "queue": "default", "min": 1}


def _group(case: Mapping[str, Any], group: Manifest, rows: list[Manifest]) -> Manifest:
    namespace, _, name = group["name"].partition("/")
    tasks: dict[tuple[object, ...], Manifest] = {}
    pods: list[Manifest] = []
    for row in rows:
        key = (*(row.get(field) for field in ("cpu", "mem", "gpu")), row.get("priority"))
        if key not in tasks:
            task = "t" if not tasks else f"t{len(tasks) + 1}"
            tasks[key] = {"name": task, "replicas": 0, "template": _template(case, row)}
        task = tasks[key]
        for pod_name in names_of(row):
            if row["phase"] != "Pending":
                where = {"podGroup": name, "task": task["name"], "index": task["replicas"]}
                pods.append(_pod(namespace, pod_name, where, row))
            task["replicas"] += 1
    least = case.get("least", {}).get(name, {})
    for task in tasks.values():
        if task["name"] in least:
            task["minAvailable"] = least[task["name"]]
    spec: Manifest = {"minMember": max(1, group["min"]), "tasks": list(tasks.values())}
    if group["queue"] != "(default)":
        spec["queue"] = group["queue"]
    if "priorityClass" in group:
        spec["priorityClassName"] = group["priorityClass"]
    manifest = _manifest("PodGroup", name, spec)
    manifest["metadata"] |= {
        "namespace": namespace,
        "uid": f"{namespace}-{name}",
        "creationTimestamp": group.get("created", 0),
    }
    phase = _phase(spec["minMember"], pods)
    if phase != "Pending":
        manifest["status"] = {"phase": phase}
    first = max([group.get("add_at_round", 1), *(row.get("add_at_round", 1) for row in rows)])
    last = max([0, *(row.get("delete_at_round", 0) for row in rows)])
    return {**manifest, "pods": pods, "first": first, "last": last}


def _phase(least: int, pods: list[Manifest]) -> str:
    stays = [pod for pod in pods if not pod["status"].get("terminating")]
    started = [pod for pod in stays if pod["status"]["phase"] in _STARTED]
    if pods and not stays:
        return "Cancelled"
    if not started:
        return "Pending"
    return "Running" if len(started) >= least else "InQueue"


def _template(case: Mapping[str, Any], row: Mapping[str, Any]) -> Manifest:
    grace = case.get("grace_rounds", 1)
    template: Manifest = {"requests": _amounts(row), "terminationGrace": f"{grace}s"}
    if row.get("priority") is not None:
        template["priority"] = row["priority"]
    if row.get("succeeds_after_rounds"):
        template["annotations"] = {"batchq/runtime": f"{row['succeeds_after_rounds']}s"}
    if row.get("nodeSelector"):
        template["nodeSelector"] = row["nodeSelector"]
    return template


def _pod(namespace: str, name: str, spec: Manifest, row: Mapping[str, Any]) -> Manifest:
    status: Manifest = {"phase": row["phase"], "node": row["node"]}
    if row["phase"] == "Running":
        status["startedAt"] = row.get("created", 0)
    if row.get("deleting"):
        status["terminating"] = True
    pod = _manifest("Pod", name, spec)
    pod["metadata"]["namespace"] = namespace
    return {**pod, "status": status}


def names_of(row: Mapping[str, Any]) -> list[str]:
    """Expand names: `c1/a{1..3}` means a1, a2 and a3."""
    name = row["name"].partition("/")[2]
    found = re.fullmatch(r"(.*)\{(\d+)\.\.(\d+)\}(.*)", name)
    if found is None:
        return [name]
    before, first, last, after = found.groups()
    return [f"{before}{number}{after}" for number in range(int(first), int(last) + 1)]


def _node(name: str, spec: Mapping[str, Any]) -> Manifest:
    node = _manifest("Node", name, {"resources": {"pods": 110, **_amounts(spec)}})
    if spec.get("unschedulable"):
        node["spec"]["unschedulable"] = True
    if spec.get("taints"):
        node["spec"]["taints"] = [{"key": key, "effect": "NoSchedule"} for key in spec["taints"]]
    if spec.get("notReady"):
        node["status"] = {"ready": False}
    if spec.get("labels"):
        node["metadata"]["labels"] = spec["labels"]
    return node


def _amounts(stated: Mapping[str, Any]) -> Manifest:
    return {_NAMES[name]: stated[name] for name in _NAMES if stated.get(name) is not None}


def _manifest(kind: str, name: str, spec: Any) -> Manifest:
    return {"apiVersion": "batchq/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def by_group(case: Mapping[str, Any], pods: list[str]) -> Counter[str]:
    """Count these pods of the case by group."""
    owner = {
        f"{row['name'].partition('/')[0]}/{name}": _group_of(row)
        for row in case["pods"]
        for name in names_of(row)
    }
    return Counter(owner[pod] for pod in pods)
