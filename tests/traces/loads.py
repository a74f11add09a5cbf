"""Loads by hand, as short as the sentence that needs them: one machine, cpus and seconds."""

from __future__ import annotations

from batchq.api.objects import (
    DEFAULT,
    Metadata,
    Node,
    NodeSpec,
    PodGroup,
    PodGroupSpec,
    PodTemplate,
    Queue,
    QueueSpec,
    Task,
)
from batchq.lab.workload.jobs import POLICY_CONFIG, Arrival, Load, strategy_of
from batchq.lab.workload.play import play_load
from batchq.lab.workload.schedule import Schedule


def job(
    number: int,
    at_s: int,
    cpus: int,
    run_s: int | None,
    *,
    walltime_s: int | None = None,
    queue: str = DEFAULT,
    pods: int = 1,
) -> Arrival:
    """A job; its walltime is its run time unless it says otherwise."""
    asked_s = run_s if walltime_s is None else walltime_s
    template = PodTemplate(requests={"cpu": cpus * 1000})
    return Arrival(
        at_s=at_s,
        group=PodGroup(
            metadata=Metadata(name=f"job-{number}", namespace=queue),
            spec=PodGroupSpec(
                queue=queue,
                walltime=None if asked_s is None else asked_s * 1000,
                tasks=(Task(name="job", replicas=pods, template=template),),
            ),
        ),
        run_s=run_s,
        number=number,
        tenant=queue,
        size=cpus * pods,
    )


def a_load(*jobs: Arrival, cpus: int = 4, nodes: int = 1, policy: str = "first-fit") -> Load:
    """`nodes` machines of `cpus` each, and a queue for each one that a job names."""
    names = dict.fromkeys(one.tenant for one in jobs)
    return Load(
        title="by hand",
        capacity=cpus * nodes,
        nodes=tuple(
            Node(
                metadata=Metadata(name=f"machine-{number}"),
                spec=NodeSpec(resources={"cpu": cpus * 1000}),
            )
            for number in range(1, nodes + 1)
        ),
        queues=tuple(a_queue(name, policy) for name in names),
        arrivals=jobs,
    )


def a_queue(name: str, policy: str = "first-fit") -> Queue:
    """A queue that is served by that policy."""
    return Queue(metadata=Metadata(name=name), spec=QueueSpec(strategy=strategy_of(policy)))


def played(load: Load, *, name: str = "", per_event: bool = False) -> Schedule:
    """The load's schedule; every invariant is looked at after every session."""
    return play_load(load, POLICY_CONFIG, name=name, per_event=per_event, watch=True)


def starts(schedule: Schedule) -> dict[int, int | None]:
    """Job -> when it started last."""
    return {one.number: one.start_s for one in schedule.jobs}
