"""Short loads for tests: one machine, cpus and seconds."""

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
from batchq.lab.load_player import play_load
from batchq.lab.schedule import Schedule
from batchq.lab.traces import POLICY_CONFIG, Arrival, Load, strategy_of


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
    """Return a job; its walltime defaults to its run time."""
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
    """Return a load of `nodes` machines of `cpus` each, and a queue for each name in a job."""
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
    """Return a queue with this policy."""
    return Queue(metadata=Metadata(name=name), spec=QueueSpec(strategy=strategy_of(policy)))


def played(load: Load, *, name: str = "", per_event: bool = False) -> Schedule:
    """Return the load's schedule, with all invariants checked after every session."""
    return play_load(load, POLICY_CONFIG, name=name, per_event=per_event, watch=True)


def starts(schedule: Schedule) -> dict[int, int | None]:
    """Return job -> its last start."""
    return {one.number: one.start_s for one in schedule.jobs}
