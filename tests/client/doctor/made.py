"""States for tests of the doctor's checks: a healthy one, and changes to it."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import (
    Node,
    NodeStatus,
    Object,
    Pod,
    PodGroup,
    PodGroupStatus,
    key_of,
    kind_of,
)
from batchq.api.views import Leading, Schedulers, SchedulerSeen
from batchq.client.doctor.system_state import HomeFacts, Installed, State
from batchq.store.books import charges_of, limits_of, sums_of
from batchq.store.inspection import Books, ServerFacts
from tests.builders import a_group, a_node, a_pod, a_queue, a_quota

NOW = 100 * 24 * 3_600_000
MINUTE = 60_000

SERVER = ServerFacts(
    place="redis://db:6379/0",
    answers_us=(90, 100, 110, 120, 400),
    skew_ms=3,
    informed=True,
    version="Redis 7.4.1",
    numbers=(7, 4, 1),
    role="primary",
    uptime_s=86_400,
    maxmemory_policy="noeviction",
    maxmemory_bytes=8 * 1024**3,
    used_bytes=1024**3,
    evicted_keys=0,
    clients=12,
    maxclients=10_000,
    rejected_connections=0,
    aof=True,
    aof_write_ok=True,
    rdb_save_ok=True,
    appendfsync="always",
    user="scheduler",
)

LEADER = Leading(identity="a:1:x", epoch=3, left_ms=4_000)
LEADS = SchedulerSeen(
    identity="a:1:x", version="0.1.0", seen_ms_ago=100, behind=0, leads=True, config="107d581d"
)
FOLLOWS = SchedulerSeen(
    identity="b:2:y", version="0.1.0", seen_ms_ago=100, behind=2, leads=False, config="107d581d"
)
SCHEDULERS = Schedulers(leader=LEADER, there=[LEADS, FOLLOWS])

HOME = HomeFacts(path="/var/batchq", free_bytes=50 * 1024**3)


def a_server(**facts: Any) -> ServerFacts:
    """Return a healthy server with these changes."""
    return structs.replace(SERVER, **facts)


def node(name: str = "n1", **changes: Any) -> Node:
    """Return a node of four cpus whose last heartbeat was a second ago."""
    heartbeat = changes.pop("heartbeat", NOW - 1_000)
    annotations = changes.pop("annotations", {"batchq/agent": f"{name}:1:1"})
    reason = changes.pop("reason", "")
    made = a_node(name, cpu=4, memory="8Gi", **changes)
    return structs.replace(
        made,
        metadata=structs.replace(made.metadata, annotations=annotations),
        status=NodeStatus(ready=made.status.ready, heartbeat=heartbeat, reason=reason),
    )


def running(name: str = "train", **pod: Any) -> tuple[PodGroup, Pod]:
    """Return a group with one pod that runs on n1."""
    status = PodGroupStatus(
        phase=PodGroupPhase.RUNNING,
        admission=1,
        charge={"cpu": 1000, "pods": 1000, "podgroups": 1000},
        started_at=NOW - MINUTE,
    )
    group = a_group(name, created=NOW - 2 * MINUTE, status=status)
    pod = {"phase": PodPhase.RUNNING, "node": "n1", "bound_at": NOW - MINUTE, **pod}
    return group, a_pod(group, **pod)


def waiting(name: str = "waits", *, age_ms: int = MINUTE, **status: Any) -> PodGroup:
    """Return a Pending group of this age."""
    spec = status.pop("spec", {})
    return a_group(name, created=NOW - age_ms, status=PodGroupStatus(**status), **spec)


HEALTHY: tuple[Object, ...] = (a_queue(capability={"cpu": 8}), a_quota(cpu=6), node(), *running())


def books_of(*objects: Object) -> Books:
    """Return books that agree with the objects."""
    by_kind: dict[str, dict[str, Object]] = {
        kind: {} for kind in ("Queue", "ResourceQuota", "Node", "PodGroup", "Pod")
    }
    for item in objects:
        by_kind[kind_of(item)][key_of(item)] = item
    bare = Books(revision=9, objects=by_kind, ledger={}, charges={}, limits={})
    charges, limits = charges_of(by_kind), limits_of(by_kind)
    return structs.replace(bare, charges=charges, ledger=sums_of(charges), limits=limits)


def a_state(*objects: Object, **changes: Any) -> State:
    """Return a healthy system with these objects (or default ones), with these changes."""
    healthy = State(
        now_ms=NOW,
        version="0.1.0",
        server=SERVER,
        schedulers=SCHEDULERS,
        books=books_of(*(objects or HEALTHY)),
        outbox=(),
        stuck_reports=(),
        home=HOME,
        libraries=(
            Installed(name="rq", version="2.12.0", least=(2, 12), below=(3,)),
            Installed(name="redis", version="8.1.0", least=(6, 2), below=(9,)),
        ),
    )
    return structs.replace(healthy, **changes)
