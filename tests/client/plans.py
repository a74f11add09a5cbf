"""Plans of new groups on a snapshot, without a server."""

from __future__ import annotations

from typing import Any

from batchq.api.objects import (
    AdmissionCheck,
    AdmissionCheckSpec,
    AdmissionCheckStatus,
    Metadata,
    Object,
    PodGroup,
)
from batchq.api.views import GroupPlan, Plan
from batchq.assembly import assemble
from batchq.client.outcomes import TrialScheduler
from batchq.client.plan import Planner
from batchq.config import SchedulerConfig
from batchq.core.session.snapshot import Snapshot
from batchq.store.memory import MemoryStore
from batchq.system import RandomIds
from tests.builders import (
    a_group,
    a_node,
    a_priority,
    a_snapshot,
    a_task,
)

NOW = 300_000
CPU_8 = a_node("n1", cpu=8)
HIGH = a_priority("high", 10)


def a_request(name: str = "x", replicas: int = 1, *, cpu: str | int = 1, **spec: Any) -> PodGroup:
    """Return a group as a user would submit it."""
    tasks = spec.pop("tasks", None) or (
        a_task("w", replicas, requests={"cpu": cpu}, command=("true",)),
    )
    return a_group(name, tasks=tasks, **spec)


def plan_on(snapshot: Snapshot, *wanted: Object, advise: bool = True, **config: Any) -> Plan:
    deciding = TrialScheduler(
        snapshot=snapshot, scheduler=assemble(SchedulerConfig(**config)), now_ms=NOW
    )
    return Planner(deciding, MemoryStore(), RandomIds().new_uid).plan(wanted, advise=advise)


def plan_of(wanted: PodGroup, *there: Any, **config: Any) -> Plan:
    """Return the plan of one group, beside these objects and a node of 8 cpus."""
    return plan_on(a_snapshot(CPU_8, *there), wanted, **config)


def only(plan: Plan) -> GroupPlan:
    [group] = plan.groups
    return group


def advices(plan: Plan) -> list[str]:
    return [advice.sentence for advice in only(plan).advice]


def a_check(name: str = "budget", *, active: bool = True) -> AdmissionCheck:
    return AdmissionCheck(
        metadata=Metadata(name=name),
        spec=AdmissionCheckSpec(controller_name="accountant"),
        status=AdmissionCheckStatus(active=active),
    )
