"""A world without a server, with one waiting group for every reason.

No group evicts another unless that is the reason. Each reason has its own resources, so that the
groups do not affect each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import (
    AdmissionCheck,
    AdmissionCheckSpec,
    AdmissionCheckStatus,
    Condition,
    Dependency,
    Metadata,
    PodGroup,
    PodGroupStatus,
    QueuePreemption,
    SchedulingGate,
)
from batchq.api.transaction import Event, Transaction
from batchq.api.views import NO_LEADER, Why
from batchq.assembly import assemble
from batchq.client.outcomes import TrialScheduler
from batchq.client.why import explain
from batchq.config import SchedulerConfig
from batchq.core.session.session import Session
from batchq.scheduler.transactions import transactions_of
from tests.builders import a_group, a_node, a_priority, a_queue, a_snapshot, a_task

NOW = 1_000_000
MINUTE = 60_000
NEVER = QueuePreemption(within_queue="Never", reclaim="Never")


class World:
    """A snapshot that follows the decisions of sessions; `writes` counts the transactions."""

    def __init__(
        self, *objects: Any, now_ms: int = NOW, config: SchedulerConfig | None = None
    ) -> None:
        checks = tuple(one for one in objects if isinstance(one, AdmissionCheck))
        snapshot = a_snapshot(*objects)
        self.snapshot = structs.replace(snapshot, admission_checks=checks, revision=1)
        self.scheduler = assemble(config or SchedulerConfig())
        self.now_ms = now_ms
        self.writes = 0
        self.events: list[Event] = []
        for group in self.snapshot.groups:
            self._submitted(group)

    def add(self, *groups: PodGroup) -> None:
        """Submit groups."""
        together = (*self.snapshot.groups, *groups)
        self.snapshot = structs.replace(
            self.snapshot, groups=together, revision=self.snapshot.revision + 1
        )
        for group in groups:
            self._submitted(group)

    def turn(self) -> Session:
        """Run one session; return it."""
        session = self.scheduler.decide(self.snapshot, self.now_ms)
        transactions = list(transactions_of(session))
        self.writes += len(transactions)
        self.events += [event for one in transactions for event in one.events]
        self._follow(transactions)
        return session

    def settle(self) -> None:
        """Run sessions until one has nothing to write."""
        for _ in range(20):
            before = self.writes
            self.turn()
            if before == self.writes:
                return
        raise AssertionError("the world does not come to rest")

    def start(self, name: str) -> None:
        """Let the bound pods of a group run."""
        pods = dict(self.snapshot.pods)
        for uid, some in pods.items():
            pods[uid] = tuple(
                structs.replace(
                    pod,
                    status=structs.replace(
                        pod.status, phase=PodPhase.RUNNING, started_at=self.now_ms
                    ),
                )
                if pod.spec.pod_group == name and pod.status.phase == PodPhase.BOUND
                else pod
                for pod in some
            )
        self.snapshot = structs.replace(self.snapshot, pods=pods)

    def run(self, *groups: PodGroup) -> None:
        """Submit groups and let them run."""
        self.add(*groups)
        self.settle()
        for group in groups:
            self.start(group.metadata.name)
        self.settle()

    def why(self, name: str, *, led: bool = True) -> Why:
        """Explain a group in namespace default."""
        deciding = TrialScheduler(
            snapshot=self.snapshot, scheduler=self.scheduler, now_ms=self.now_ms
        )
        key = f"default/{name}"
        events = [one for one in self.events if one.key == key]
        result = explain(deciding, key, events, unled="" if led else NO_LEADER)
        assert result is not None
        return result

    def reasons(self, name: str) -> list[str]:
        """Return the stored reasons, the most fundamental first."""
        [group] = [one for one in self.snapshot.groups if one.metadata.name == name]
        return [str(verdict.reason) for verdict in group.status.reasons]

    def _submitted(self, group: PodGroup) -> None:
        key = f"{group.metadata.namespace}/{group.metadata.name}"
        at = group.metadata.creation_timestamp or 0
        self.events.append(Event(kind="PodGroup", key=key, reason="Submitted", at=at))

    def _follow(self, transactions: Sequence[Transaction]) -> None:
        written = {
            (write.kind, write.key): write.value for one in transactions for write in one.writes
        }
        groups = [
            written.get(("PodGroup", f"{one.metadata.namespace}/{one.metadata.name}"), one)
            for one in self.snapshot.groups
        ]
        pods = {pod.metadata.uid: pod for some in self.snapshot.pods.values() for pod in some}
        pods |= {key: pod for (kind, key), pod in written.items() if kind == "Pod"}
        by_group: dict[str, tuple[Any, ...]] = {}
        for pod in pods.values():
            if pod is not None:
                uid = pod.status.group_uid
                by_group[uid] = (*by_group.get(uid, ()), pod)
        self.snapshot = structs.replace(self.snapshot, groups=tuple(groups), pods=by_group)


def asks(name: str, created: int = NOW, **more: Any) -> PodGroup:
    """Return a group of one pod; `requests` are quantities in the usual notation."""
    requests = more.pop("requests", {"cpu": 1})
    replicas = more.pop("replicas", 1)
    template = more.pop("template", {})
    task = a_task("w", replicas, requests=requests, **template)
    return a_group(name, tasks=(task,), created=created, **more)


def a_check(name: str, *, active: bool) -> AdmissionCheck:
    return AdmissionCheck(
        metadata=Metadata(name=name),
        spec=AdmissionCheckSpec(controller_name="finance"),
        status=AdmissionCheckStatus(active=active),
    )


def furniture() -> list[Any]:
    """Return nodes, queues, priority classes and checks."""
    return [
        a_node("n1", cpu=40, gpu=1, tpu=2, fpga=1),
        a_node("n2", cpu=40, tpu=2),
        a_priority("high", 100),
        a_queue("default", preemption=NEVER),
        a_queue("full", capability={"cpu": 1}, preemption=NEVER),
        a_queue("strict", strict=True, preemption=NEVER),
        a_queue("held", stop_policy="Hold", preemption=NEVER),
        a_queue("approved", admission_checks=("approval",), preemption=NEVER),
        a_queue("budgeted", admission_checks=("budget",), preemption=NEVER),
        a_queue("claims", preemption=QueuePreemption(reclaim="Never")),
        a_check("approval", active=True),
        a_check("budget", active=False),
    ]


def _sent_back() -> PodGroupStatus:
    evicted = Condition(
        type="Evicted",
        status="True",
        reason="InQueueTimeout",
        message="not Running within 5m",
        last_transition_time=NOW,
    )
    return PodGroupStatus(backoff_until=NOW + 2 * MINUTE, backoff_count=2, conditions=(evicted,))


def waiting() -> list[PodGroup]:
    """Return a group for each reason, which waits for it after the other groups run."""
    return [
        asks("misconfigured", priority_class_name="urgent"),
        asks("lost", queue="nowhere"),
        asks("huge", requests={"cpu": 100}),
        asks("over", queue="full", requests={"cpu": 2}),
        asks("stopped", queue="held"),
        asks("suspended", suspend=True),
        asks("gated", scheduling_gates=(SchedulingGate(name="data-ready"),)),
        asks("depends", depends_on=(Dependency(name="gated", uid="gated"),)),
        asks("pauses", status=_sent_back()),
        asks("unapproved", queue="approved"),
        asks("unbudgeted", queue="budgeted"),
        asks("quota", queue="full"),
        asks("resources", requests={"cpu": 1, "gpu": 1}),
        asks("head", created=NOW, queue="strict", requests={"cpu": 1, "gpu": 1}),
        asks("turn", created=NOW + 1, queue="strict"),
        asks("claimant", queue="claims", requests={"fpga": 1}, priority_class_name="high"),
        asks("homeless", requests={"tpu": 2}),
    ]


def running() -> list[PodGroup]:
    """Return the groups that hold the capacity which the waiting ones lack."""
    spread = {"requests": {"tpu": 1}, "replicas": 2}
    hour = 60 * MINUTE
    return [
        asks("fills", queue="full", walltime=hour),
        asks("has-gpu", requests={"cpu": 1, "gpu": 1}, walltime=hour),
        asks("spread", **spread),
        asks("victim", queue="claims", requests={"fpga": 1}, walltime=hour),
    ]


def everything() -> World:
    """Return the world in which all of them wait."""
    world = World(*furniture())
    world.run(*running())
    world.now_ms += MINUTE
    world.add(*waiting())
    world.settle()
    return world
