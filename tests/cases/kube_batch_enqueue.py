"""Cases of admission, which kube-batch only designed and its fork implemented, and of changes that
it never merged: the order of gangs, starvation, a limit on the number of groups.
"""

from __future__ import annotations

from typing import Any

from batchq.config.load import read_config
from tests.cases.kube_batch_entry import DIFFERS, NOT_APPLICABLE, SAME, Entry, File, Play
from tests.cases.kube_batch_play import told_of_world
from tests.sim.worlds import Manifest, group, node, pod, priority, queue, timeline

CONFIG = "{actions: [enqueue, allocate]}"
RUNNING: Manifest = {"phase": "Running"}
IN_QUEUE: Manifest = {"phase": "InQueue"}


def world(*manifests: Manifest, config: str = CONFIG) -> Play:
    """Return a play of these manifests under this configuration."""

    def played(row: Any, file: File) -> object:
        return told_of_world(list(manifests), read_config(config, "config"))

    return played


def holds(name: str, pods: int, cpu: Any = 1, on: str = "n1", **spec: Any) -> list[Manifest]:
    """Return a group whose pods all run on one node."""
    running = [
        pod(f"{name}-t-{place}", name, place, phase="Running", node=on) for place in range(pods)
    ]
    return [group(name, pods, cpu=cpu, status=RUNNING, **spec), *running]


def _at_least(name: str, cpu: Any, **more: Any) -> Manifest:
    """Return a group of one small pod that states its minimum resources."""
    return group(name, cpu="1m", minResources={"cpu": cpu}, **more)


_OVERCOMMIT = "{actions: [enqueue], overcommit: 1.2}"
_SLA = (
    "{actions: [enqueue, allocate], plugins: [gates, dependencies, quota, capacity, gang, sla,"
    " priority, proportion, predicates, leastAllocated], pluginConfig: {sla: {waitingTime: 1m}}}"
)

_ENQUEUE = (
    Entry(
        "enqueue design: Pending to InQueue",
        SAME,
        "",
        ("0s bind first: 3 on n1", "end first Running 3, second Pending (WaitingForResources)"),
        world(node("n1", 4), group("second", 3, created=5), group("first", 3, created=0)),
    ),
    Entry(
        "enqueue design: InQueue to Pending",
        SAME,
        "",
        ("5s requeue a (CapacityCut)", "end a Pending (ExceedsMaxQuota)"),
        world(
            node("n1", 4),
            group("a", 3, status=IN_QUEUE, queue="q"),
            queue("q", capability={"cpu": 4}),
            timeline({"at": "5s", "apply": queue("q", capability={"cpu": 2})}),
            config="{actions: [enqueue]}",
        ),
    ),
    Entry(
        "enqueue design: InQueue to Running",
        SAME,
        "",
        ("0s bind a: 3 on n1", "end a Running 3"),
        world(node("n1", 4), group("a", 3, status=IN_QUEUE, minMember=2)),
    ),
    Entry(
        "enqueue first: pending pods exist",
        DIFFERS,
        "pods do not exist before InQueue and cannot bypass the ledger (rules: lifecycle, ledger)",
        ("end a Pending (ExceedsCapacity)",),
        world(node("n1", 4), group("a", 2, minResources={"cpu": 8})),
    ),
    Entry(
        "enqueue first: no minResources",
        DIFFERS,
        "without minResources, the requests of minMember pods are reserved (rule: objects): a "
        "group without minResources is not admitted past the others",
        ("end a Running 2, b Pending (WaitingForResources)",),
        world(node("n1", 4), *holds("a", 2), group("b", 3)),
    ),
    Entry(
        "enqueue first: overcommit 1.2",
        SAME,
        "",
        ("end a InQueue",),
        world(node("n1", 10), _at_least("a", 12), config=_OVERCOMMIT),
    ),
    Entry(
        "enqueue first: overcommit exceeded",
        SAME,
        "",
        ("end a Pending (ExceedsCapacity)",),
        world(node("n1", 10), _at_least("a", "12010m"), config=_OVERCOMMIT),
    ),
    Entry(
        "enqueue first: used reduces",
        SAME,
        "",
        ("end a Pending (WaitingForResources), used Running 1",),
        world(node("n1", 10), *holds("used", 1, cpu=6), _at_least("a", 7), config=_OVERCOMMIT),
    ),
    Entry(
        "enqueue first: sequential",
        SAME,
        "",
        ("end a InQueue, b Pending (WaitingForResources), c InQueue",),
        world(
            node("n1", 10),
            _at_least("a", 7, created=0),
            _at_least("b", 7, created=1),
            _at_least("c", 5, created=2),
            config=_OVERCOMMIT,
        ),
    ),
    Entry(
        "enqueue first: phase gate",
        SAME,
        "",
        ("end a Pending (Suspended)",),
        world(node("n1", 4), group("a", suspend=True)),
    ),
    Entry(
        "enqueue first: session close, not enough allocated",
        DIFFERS,
        "it is not InQueue before nodes take it, so it holds no resources that other groups "
        "could use (rule: enqueue 4; Volcano's issue 5006)",
        ("end a Running 1, b Running 1, c Pending (WaitingForResources)",),
        world(
            node("n1", 2),
            node("n2", 2),
            *holds("a", 1),
            *holds("b", 1, on="n2"),
            group("c", cpu=2),
            config="{actions: [enqueue, allocate], inQueueTimeout: 20s}",
        ),
    ),
    Entry(
        "enqueue test: when podgroup status is inqueue",
        DIFFERS,
        "a group that does not fit the empty ready nodes returns to Pending at once, and here no"
        " node is ready (rule: lifecycle): a group that no node can take does not block others "
        "(Volcano's issue 5006)",
        ("0s requeue pg1 (Unschedulable)", "end pg1 Pending (WaitingForResources)"),
        world(
            queue("c1", capability={"cpu": 4, "memory": "4G"}),
            group("pg1", 2, queue="c1", status=IN_QUEUE),
        ),
    ),
    Entry(
        "enqueue test: when podgroup status is pending",
        DIFFERS,
        "without nodes a group waits (rule: enqueue 1, WaitingForResources); Volcano's test "
        "admits it by the capability of its queue alone",
        ("end pg1 Pending (WaitingForResources), pg2 Pending (WaitingForResources)",),
        world(
            queue("c1", capability={"cpu": 4, "memory": "4G"}),
            queue("c2", capability={"cpu": 4, "memory": "4G"}),
            group("pg1", cpu=3, queue="c1"),
            group("pg2", cpu=1, queue="c2"),
        ),
    ),
    Entry(
        "enqueue test: when podgroup status is running",
        SAME,
        "",
        ("end pg1 Running 2",),
        world(
            node("n1", 4),
            queue("c1", capability={"cpu": 4, "memory": "4G"}),
            *holds("pg1", 2, queue="c1"),
        ),
    ),
    Entry(
        "enqueue test: queue missing",
        DIFFERS,
        "a group whose queue does not exist waits with a reason (rule: reasons, QueueNotFound): "
        "complaints 388, 521 and 664 are about jobs that disappear silently",
        ("end pg1 Pending (QueueNotFound)",),
        world(node("n1", 4), queue("c2", capability={"cpu": 4}), group("pg1", queue="c1")),
    ),
    Entry(
        "enqueue test: minResources above queue capability",
        SAME,
        "",
        ("end pg1 Pending (ExceedsMaxQuota)",),
        world(
            node("n1", 10, memory="10G"),
            queue("c1", capability={"cpu": 1, "memory": "1G"}),
            group("pg1", queue="c1", minResources={"cpu": 8, "memory": "8G"}),
        ),
    ),
)

_NOT_RUN = (
    Entry(
        "not run: #608 1",
        SAME,
        "",
        ("0s bind unready: 3 on n1, ready: 1 on n1", "end ready Running 2, unready Running 3"),
        world(
            node("n1", 5),
            group("ready", 5, minMember=1, status=RUNNING, created=0),
            pod("ready-t-0", "ready", phase="Running", node="n1"),
            group("unready", 3, created=1),
        ),
    ),
    Entry(
        "not run: #608 2",
        SAME,
        "",
        ("0s bind unready: 3 on n1, ready: 1 on n1", "end ready Running 2, unready Running 3"),
        world(
            node("n1", 5),
            group("unready", 3, created=0),
            group("ready", 5, minMember=1, status=RUNNING, created=1),
            pod("ready-t-0", "ready", phase="Running", node="n1"),
        ),
    ),
    Entry(
        "not run: #608 3",
        SAME,
        "",
        ("0s bind older: 2 on n1, newer: 2 on n1", "end newer Running 3, older Running 3"),
        world(
            node("n1", 6),
            group("older", 5, minMember=1, status=RUNNING, created=0),
            pod("older-t-0", "older", phase="Running", node="n1"),
            group("newer", 5, minMember=1, status=RUNNING, created=1),
            pod("newer-t-0", "newer", phase="Running", node="n1"),
        ),
    ),
    Entry(
        "not run: #608 4",
        NOT_APPLICABLE,
        "a group is never compared with itself",
    ),
    Entry(
        "not run: #608 5",
        SAME,
        "",
        ("0s bind earlier: 3 on n1", "end earlier Running 3, later Pending (WaitingForResources)"),
        world(node("n1", 4), group("later", 3, created=5), group("earlier", 3, created=0)),
    ),
    Entry(
        "not run: #686/#847 1",
        SAME,
        "",
        ("0s bind pg2: 1 on n1", "end pg1 Pending (ExceedsCapacity), pg2 Running 1"),
        world(
            node("n1", 2, memory="4Gi"),
            group("pg1", 2, cpu=2, created=0),
            group("pg2", 1, cpu=2, created=1),
        ),
    ),
    Entry(
        "not run: #686/#847 2",
        NOT_APPLICABLE,
        "a pod is bound or not: batchq does not allocate over borrowed resources",
    ),
    Entry(
        "not run: #686/#847 3",
        SAME,
        "",
        (
            "5s bind low: 5 on n1",
            "5s finish holder",
            "end high Pending (WaitingForResources), holder Completed, low Running 5",
        ),
        world(
            node("n1", 6),
            priority("worker-pri", 1),
            priority("master-pri", 100),
            *holds("holder", 5, priorityClassName="worker-pri", created=0),
            group("low", 5, priorityClassName="worker-pri", created=0),
            group("high", 5, priorityClassName="master-pri", created=90),
            timeline(*({"at": "5s", "finishPod": f"default/holder-t-{n}"} for n in range(5))),
            config=_SLA,
        ),
    ),
    Entry(
        "not run: #686/#847 4",
        NOT_APPLICABLE,
        "actions have no arguments: the plugin sla handles long waits, and backfill has no "
        "threshold (rule: configuration)",
    ),
    Entry(
        "not run: #662 1",
        DIFFERS,
        "the third group waits in line instead of being refused, and is admitted when another "
        "ends: maxPodGroups counts groups with a reservation or a charge (rule: enqueue 3); the "
        "request's own review, and complaint 452, wanted this in the scheduler",
        (
            "0s bind a: 1 on n1, b: 1 on n1",
            "10s bind c: 1 on n1",
            "10s finish b",
            "end a Running 1, b Completed, c Running 1",
        ),
        world(
            node("n1", 10),
            queue("q", maxPodGroups=2),
            group("a", queue="q", created=0),
            group("b", queue="q", created=1, runtime="10s"),
            group("c", queue="q", created=2),
        ),
    ),
)

ENTRIES = (*_ENQUEUE, *_NOT_RUN)
