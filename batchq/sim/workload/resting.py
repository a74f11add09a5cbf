"""Which sessions at one instant are spared, as another one would decide nothing.

With `watch`, a play looks whether it would indeed.
"""

from __future__ import annotations

from collections.abc import Set

from batchq.api import intents
from batchq.api.lifecycle import PodGroupPhase
from batchq.config.model import SchedulerConfig
from batchq.framework.session import Session
from batchq.framework.settings import Settings
from batchq.scheduler.cycle import CycleReport
from batchq.scheduler.timers import next_due_at
from batchq.sim.workload.load import Load


def leaves_nothing_to_do(report: CycleReport) -> bool:
    """Whether another session at the same instant would decide nothing.

    So it is when the actions have decided nothing. They come after the session's own bookkeeping
    and have seen all of it, if that was no more than groups that have started or succeeded; and
    why groups wait, which is written last, lets nobody in. Where ends are many, this spares every
    second session.
    """
    session = report.session
    return not report.commit.refused and all(
        isinstance(intent, intents.SetReasons)
        or (place < session.first_intent and _is_bookkeeping(intent))
        for place, intent in enumerate(report.intents)
    )


def is_one_line_of_equals(load: Load, config: SchedulerConfig) -> bool:
    """Whether gangs of one queue and of one importance, which depend on nobody, are all there is,
    and nobody but our own plugins has a say.

    Then nobody is anybody's victim, and no start of one lets in another: whom the actions have
    refused beside those whom they have let in, they would refuse again.
    """
    specs = [arrival.group.spec for arrival in load.arrivals]
    return (
        config == SchedulerConfig(settings=config.settings)
        and len({(spec.queue, spec.priority_class_name) for spec in specs}) == 1
        and not any(queue.spec.admission_checks or queue.spec.guarantee for queue in load.queues)
        and not any(spec.depends_on or spec.controller == "external" for spec in specs)
        and all(
            not spec.min_member or spec.min_member == sum(task.replicas for task in spec.tasks)
            for spec in specs
        )
    )


def waits_for_room_alone(load: Load, config: SchedulerConfig) -> bool:
    """Whether, of one line of equals on one machine, nobody starts whom the machine has no room
    for, and nobody starts because such a one has come: it stands behind all others.

    Then a session is spared where only such came, and where some ended and there is room for
    nobody, its actions. On several nodes, who is let in may still wait for a certain one; and in a
    line in which short ones come first, who comes may change whom the others wait for.
    """
    return (
        is_one_line_of_equals(load, config)
        and len(load.nodes) == 1
        and config.settings.overcommit == Settings().overcommit
        and all(queue.spec.strategy.order == "fcfs" for queue in load.queues)
    )


def due_without(session: Session, over: Set[str]) -> int | None:
    """When the next clock runs out, as it was at the end of a session, if these groups, by uid,
    which ran then, had been over already; in milliseconds, None if no clock runs.
    """
    others = [group for group in session.busy() if group.uid not in over]
    due = (next_due_at(session, others), session.next_at())
    return min((at for at in due if at is not None and at > session.now_ms), default=None)


def leaves_only_starts(report: CycleReport) -> bool:
    """Whether the actions of another session at the same instant would decide nothing, of one line
    of equals: these have let groups in, and found room for each. What is left is that they start.
    """
    session = report.session
    return not report.commit.refused and all(
        (
            session.by_key[intent.group].has_all_placed
            if isinstance(intent, intents.AdmitGroup)
            else isinstance(intent, intents.CreatePods | intents.Bind | intents.SetReasons)
        )
        or (place < session.first_intent and _is_bookkeeping(intent))
        for place, intent in enumerate(report.intents)
    )


def _is_bookkeeping(intent: intents.Intent) -> bool:
    """Whether nothing follows from it that the actions of the same session would not see."""
    match intent:
        case intents.MoveGroup():
            return intent.phase == PodGroupPhase.RUNNING
        case intents.FinishGroup():
            return intent.phase == PodGroupPhase.COMPLETED
        case intents.Settle() | intents.ExpireGroup():
            return True
        case _:
            return False
