"""The sections of Volcano's file whose cases are not a cluster with binds and evictions.

Each function plays a case of one section, and returns the result in the terms of its `expect`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from batchq.api.resources import parse_quantity
from batchq.config import DEFAULT_PLUGINS, SchedulerConfig
from batchq.core.extension import Plugin, everywhere
from batchq.core.preemption.protection import vote
from batchq.core.session.open_session import open_session
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Settings
from batchq.core.session.state import GroupState, Shortage, Victim
from batchq.plugins.order import Conformance, ConformanceArguments
from tests.builders import a_group, a_running_group, a_snapshot
from tests.cases.peers import Data
from tests.cases.volcano_play import agrees, came_of, play_manifests, played
from tests.cases.volcano_world import amounts_of, name_of, node_of, quota_of, world_of
from tests.sim.worlds import group, manifest, node, pod, priority, queue, timeline

_LARGE: Data = {"name": "n1", "cpu": 1000, "mem": "1000G", "pods": 1000}
_DEFAULT = tuple(entry.name for entry in DEFAULT_PLUGINS)


def enqueueable(case: Mapping[str, Any]) -> Data:
    """Return whether the group is admitted; overcommit's cases have two admitted groups like it."""
    factor = case.get("factor")
    asked = case["group"]
    before = ["open", "accounted"] if factor else []
    capability = {"capability": amounts_of(case.get("queue_capability", {}))}
    quotas = case.get("namespace_quota", {})
    world = [
        *(node_of(row) for row in case.get("nodes", [_LARGE])),
        queue(asked["queue"], **capability),
        *(quota_of(namespace, hard) for namespace, hard in quotas.items()),
        *(_pair(name, asked, status={"phase": "InQueue"}) for name in before),
        _pair("asks", asked),
    ]
    config: Data = {"actions": ["enqueue"]}
    if factor:
        config |= {
            "overcommit": factor,
            "plugins": [*_DEFAULT, "overcommit"],
            "pluginConfig": {"overcommit": {"factor": factor}},
        }
    came = played(world, config, cycles=1).podgroups["default/asks"]
    waits = {"reason": came.reasons[0].reason} if came.reasons else {}
    return {"enqueueable": came.phase == "InQueue", **waits}


def _pair(name: str, asked: Data, **more: Any) -> Data:
    """Return the group with its minResources in two pods; two pods of 2 cpu by default."""
    stated = asked.get("minRes")
    if stated is None:
        return group(name, 2, cpu=2, queue=asked["queue"], minMember=asked["min"], **more)
    return group(
        name,
        2,
        cpu=stated["cpu"] / 2,
        queue=asked["queue"],
        minMember=asked["min"],
        minResources=amounts_of(stated),
        **more,
    )


def sla(case: Mapping[str, Any]) -> Data:
    """Return the order of job1, without a waiting time, and job2, with an hour, after a day.

    Their positions in the file would give the opposite order.
    """
    own = {"batchq/sla-waiting-time": "1h"}
    job1, job2 = group("job1", created=0), group("job2", created=0)
    job2["metadata"]["annotations"] = own
    waiting = case["args"].get("sla-waiting-time")
    world = [node("n1", 2), *([job2, job1] if waiting else [job1, job2])]
    now = group("now", created=86_400, suspend=True)
    config: Data = {"actions": ["enqueue"], "plugins": ["sla", *_DEFAULT]}
    if waiting:
        config["pluginConfig"] = {"sla": {"waitingTime": waiting}}
    (cycle,) = played([*world, now], config, cycles=1).cycles
    order = cycle.admitted
    return {
        "job1_before_job2": order == ["default/job1", "default/job2"],
        "job1_enqueueable": "default/job1" in order,
    }


def two_sessions(case: Mapping[str, Any]) -> Data:
    """PROP-7: a group is bound; in the next session another takes the remaining capacity."""
    first, second = case["session1"], case["session2"]
    pods = [{**row, "group": "pgA", "node": ""} for row in first["pods"]]
    added = second["add_group"]
    later = {"queues": [], "groups": [added], "nodes": [], "actions": second["actions"]}
    (newcomer,) = world_of(later)
    world = world_of({**case, "groups": first["groups"], "pods": pods, "actions": first["actions"]})
    del newcomer["status"]
    came = play_manifests(
        [*world, timeline({"at": "1s", "apply": newcomer})], {"actions": second["actions"]}
    )
    return {"first": list(came["binds"]), "second": list(came["then"])}


def picked_up(case: Mapping[str, Any]) -> Data:
    """BF-1: the order in which pods without requests are bound; the others do not fit."""
    groups = []
    for row in case["groups"]:
        name = row["id"].partition("/")[2]
        kinds = (("besteffort", {}), ("unbesteffort", {"cpu": "500m"}))
        tasks = [
            {
                "name": f"{kind}-task-{number}",
                "template": {"requests": requests, "priority": number},
            }
            for kind, requests in kinds
            for number in (1, 2, 3, 4)
        ]
        klass = f"value-{row['prio_value']}"
        groups += [
            priority(klass, row["prio_value"]),
            group(name, queue="q1", minMember=1, tasks=tasks, priorityClassName=klass),
        ]
    world = [node("n1", 0), queue("q1"), *groups]
    came = play_manifests(world, {"actions": ["allocate"]})
    return {"order": [name.partition("/")[2].rpartition("-")[0] for name in came["binds"]]}


def phase(case: Mapping[str, Any]) -> str:
    """Return the group's phase before or after the first session."""
    return played(_one_group(case), {}, cycles=1).podgroups["default/g"].phase


def skips_the_condition(case: Mapping[str, Any]) -> bool:
    """Return whether the group has no condition Unschedulable."""
    came = played(_one_group({"phase": "Running", **case}), {}, cycles=1).podgroups["default/g"]
    return "Unschedulable" not in [reason.reason for reason in came.reasons]


def _one_group(case: Mapping[str, Any]) -> list[Data]:
    """Return the group's pods on the case's nodes of one cpu each, so that no other pod fits."""
    rows = case["tasks"]
    pods = []
    for place, row in enumerate(rows):
        status = {"phase": "Running", "node": row["node"]} if row["node"] else {}
        ending = {"terminating": True} if row["status"] == "Releasing" else {}
        pods.append(pod(f"g-t-{place}", "g", place, **status, **ending))
    names = dict.fromkeys(row["node"] for row in rows if row["node"])
    replicas = max(len(rows), case["min"])
    return [
        *(node(name, 1) for name in names),
        group("g", replicas, minMember=case["min"], status={"phase": case["phase"]}),
        *pods,
    ]


class Agrees:
    """A plugin that agrees to these victims, and to no other."""

    def __init__(self, name: str, victims: list[str]) -> None:
        self.name = name
        self._victims = victims

    def preemptable(self, session: Session, preemptor: GroupState, victim: Victim) -> bool | None:
        return victim.group.key.removeprefix("default/") in self._victims


def voted(case: Mapping[str, Any]) -> list[str]:
    """Return the victims to which all plugins agree, in whatever tier they are."""
    asked = case.get("candidates") or case["preemptees"]
    policies: list[Plugin] = [
        Agrees(name, victims)
        for tier in case.get("tiers", ())
        for policy in tier
        for name, victims in policy.items()
    ]
    if "preemptees" in case:
        policies = [Conformance(ConformanceArguments()), Agrees("anybody", asked)]
    objects: list[Any] = [a_group("preemptor")]
    for name in asked:
        namespace, _, short = name.rpartition("/")
        objects += a_running_group(short, namespace=namespace or "default", uid=name)
    session = open_session(
        a_snapshot(*objects),
        now_ms=0,
        settings=Settings(),
        plugins=everywhere((policy, 1) for policy in policies),
        actions=SchedulerConfig().actions,
    )
    preemptor = session.by_key["default/preemptor"]
    return [
        name
        for name in asked
        if vote(session, "preemptable", preemptor, _whole(session.groups[name]), Shortage())
    ]


def _whole(victim: GroupState) -> Victim:
    return Victim(victim, tuple(victim.pods.values()), whole=True)


def share(row: Mapping[str, Any]) -> float | str:
    """CAP-S: the share of a queue with this spec and usage, on a node with free capacity."""
    held = amounts_of(row["allocated"])
    spec = {"deserved": amounts_of(row["deserved"])} if row["deserved"] else {}
    template = {"requests": held}
    holder = group(
        "g", queue="q", tasks=[{"name": "t", "template": template}], status={"phase": "Running"}
    )
    there = [holder, pod("g-t-0", "g", phase="Running", node="n1")] if held else []
    world = [node("n1", 10, memory="10Gi"), queue("q", **spec), *there]
    return played(world, {}, cycles=1).queues["q"].share


def tree_of_shares(case: Mapping[str, Any]) -> Data:
    """HDRF-1: the paths and weights as a tree of queues; return the usage of each group's queue."""
    found: dict[str, Data] = {}
    for path_and_weights in case["queues"].values():
        path, weights = (part.split("/") for part in path_and_weights.split(" "))
        for place in range(1, len(path)):
            parent = {"parent": path[place - 1]} if place > 1 else {}
            found[path[place]] = queue(path[place], weight=int(weights[place]), **parent)
    jobs = []
    for name, job in case["jobs"].items():
        leaf = case["queues"][job["queue"]].split(" ")[0].rpartition("/")[2]
        task = {
            "name": "t",
            "replicas": job["pods"],
            "template": {"requests": amounts_of(job["each"])},
        }
        jobs.append((name, leaf, group(name, queue=leaf, minMember=1, tasks=[task])))
    large = {**amounts_of(case["node"]), "pods": 1000}
    world = [
        manifest("Node", "n1", {"resources": large}),
        *found.values(),
        *(job for _, _, job in jobs),
    ]
    queues = played(world, {}, cycles=20).queues
    return {
        name: {key: value for key, value in queues[leaf].allocated.items() if key != "pods"}
        for name, leaf, _ in jobs
    }


def _expected_tree(case: Mapping[str, Any]) -> Data:
    """Return HDRF-1's expectation with its omitted zeros."""
    return {
        name: {
            "cpu": str(stated.get("cpu", 0)),
            "memory": str(parse_quantity("memory", stated.get("mem", 0))),
        }
        for name, stated in case["expect_allocated"].items()
    }


def _expected_sessions(case: Mapping[str, Any]) -> Data:
    """Return the expectation with batchq's name of pgB's only pod."""
    first = [name_of(name) for name in case["session1"]["expect_bound"]]
    assert case["session2"]["expect_bound"] == ["ns1/pB1"]
    return {"first": first, "second": ["ns1/pgb-t1-0"]}


#: Section -> the function that plays its cases; the cases of other sections are clusters.
SECTIONS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "overcommit": enqueueable,
    "resourcequota": enqueueable,
    "sla": sla,
    "backfill": picked_up,
    "podgroup_phase": phase,
    "gang": skips_the_condition,
    "victim_voting": voted,
    "hdrf": tree_of_shares,
}


def result_of(name: str, case: Mapping[str, Any]) -> Any:
    """Return the result of any case, in the terms of its `expect`."""
    if name == "PROP-7":
        return two_sessions(case)
    if name.startswith("CAP-S/"):
        return share(case)
    return SECTIONS.get(case["section"], came_of)(case)


def is_volcanos(name: str, case: Mapping[str, Any], came: Any) -> bool:
    """Return whether the result is what Volcano expects."""
    if name == "PROP-7":
        return bool(came == _expected_sessions(case))
    match case["section"]:
        case "hdrf":
            return bool(came == _expected_tree(case))
        case "gang":
            return bool(came == case["expect_skip"])
        case "victim_voting":
            # Without registered plugins the answer is null: no victims.
            return bool(came == (case["expect"] or []))
        case "overcommit" | "resourcequota" | "sla" | "backfill":
            return all(came[key] == value for key, value in case["expect"].items())
        case section if section in SECTIONS or name.startswith("CAP-S/"):
            return bool(came == case["expect"])
        case _:
            return agrees(case, came)
