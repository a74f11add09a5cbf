"""A session in which one plugin at a time votes on preemptors and victims."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import PodGroupStatus
from batchq.assembly import assemble
from batchq.config import PluginEntry, SchedulerConfig
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Settings
from batchq.core.session.state import Shortage, Victim
from tests.builders import a_group, a_pod, a_snapshot, a_task, amounts


def running(
    name: str,
    pods: int = 1,
    *,
    minimum: int | None = None,
    replicas: int | None = None,
    node: str = "n1",
    cpu: str | int = 1,
    started: int = 0,
    phase: PodGroupPhase = PodGroupPhase.RUNNING,
    **spec: Any,
) -> tuple[Any, ...]:
    """Return a group charged only for this many pods on a node, and the pods."""
    least = pods if minimum is None else minimum
    status = PodGroupStatus(
        phase=phase,
        admission=1,
        reserved_at=0,
        in_queue_at=0,
        started_at=started if phase != PodGroupPhase.IN_QUEUE else None,
        reservation={key: units * least for key, units in amounts(cpu=cpu, pods=1).items()},
    )
    group = a_group(name, replicas or pods, cpu=cpu, min_member=least, status=status, **spec)
    return (
        group,
        *(
            a_pod(group, index, phase=PodPhase.RUNNING, node=node, started_at=started)
            for index in range(pods)
        ),
    )


def two_tasks(name: str, *, least: int, **counts: int) -> tuple[Any, ...]:
    """Return a running group whose tasks must each keep one pod; `counts` is task -> pods."""
    tasks = tuple(a_task(task, count, minimum=1) for task, count in counts.items())
    status = PodGroupStatus(
        phase=PodGroupPhase.RUNNING,
        admission=1,
        reserved_at=0,
        started_at=0,
        reservation=amounts(cpu=least, pods=least),
    )
    group = a_group(name, tasks=tasks, min_member=least, status=status)
    pods = [
        a_pod(group, index, task=task, phase=PodPhase.RUNNING, node="n1")
        for task, count in counts.items()
        for index in range(count)
    ]
    # The builder numbers pods within a task; the uids must be unique within the group.
    return (group, *_with_uids(pods))


def _with_uids(pods: list[Any]) -> list[Any]:
    return [
        structs.replace(pod, metadata=structs.replace(pod.metadata, uid=pod.metadata.name))
        for pod in pods
    ]


def opened(
    *objects: Any,
    plugins: tuple[str, ...],
    now_ms: int = 0,
    plugin_config: dict[str, dict[str, object]] | None = None,
    **settings: Any,
) -> Session:
    """Open a session over these objects with only these plugins, without running actions."""
    config = SchedulerConfig(
        plugins=tuple(PluginEntry(name=name) for name in plugins),
        plugin_config=plugin_config or {},
        settings=Settings(**settings),
    )
    return assemble(config).open(a_snapshot(*objects), now_ms)


def whole(session: Session, name: str, namespace: str = "default") -> Victim:
    """Return a victim of all pods of a group."""
    group = session.by_key[f"{namespace}/{name}"]
    return Victim(group, tuple(group.pods.values()), whole=True)


def some_pods(session: Session, name: str, *indices: int, task: str = "w") -> Victim:
    """Return a victim of these pods of a group."""
    group = session.by_key[f"default/{name}"]
    pods = tuple(
        pod for pod in group.pods.values() if pod.spec.task == task and pod.spec.index in indices
    )
    assert len(pods) == len(indices)
    return Victim(group, pods, whole=False)


def answer(
    session: Session, point: str, preemptor: str, victim: Victim, *, lacking: Iterable[str] = ()
) -> bool | None:
    """Return the plugin's vote at the point for a preemptor that lacks these dimensions."""
    (entry,) = session.plugins.points[point]
    group = session.by_key[f"default/{preemptor}"]
    said: bool | None = entry.function(session, group, victim, Shortage(frozenset(lacking)))
    return said
