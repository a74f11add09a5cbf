"""Which waiting groups are preemptors after what a session has changed."""

from __future__ import annotations

from dataclasses import replace

from batchq.api.objects import PodGroup
from batchq.api.reasons import Verdict, Waiting
from batchq.assembly import assemble
from batchq.client import changes
from batchq.config import SchedulerConfig
from batchq.core.preemption.preemptors import PREEMPT, gang_preemptors
from batchq.core.session.session import Session
from batchq.core.session.statement import Statement
from batchq.store.memory import MemoryStore
from tests.builders import a_group, a_node, a_quota, a_task
from tests.scheduler.conftest import Stack


class AskForPreemptors:
    """An action that notes the preemptors, as if each could evict."""

    name = "ask"

    def __init__(self) -> None:
        self.found: list[str] = []
        #: The group that gives way before that to one that comes first.
        self.gives_way = ""

    def execute(self, session: Session) -> None:
        if self.gives_way:
            group = session.by_key[self.gives_way]
            with Statement(session) as statement:
                statement.put_status(group, group.record.status)
                statement.commit()
            session.refuse(group, [Verdict(plugin="pledge", reason=Waiting.WAITING_FOR_TURN)])
        preemptors = gang_preemptors(session, lambda _: lambda _: True, PREEMPT)
        self.found = [group.key for line in preemptors.by_queue(session).values() for group in line]


def _startable(name: str) -> PodGroup:
    return a_group(name, tasks=(a_task(requests={"cpu": 4}, command=("true",)),))


def a_full_stack(ask: AskForPreemptors) -> Stack:
    """Return a stack in which one group runs and a second one waits for its quota. Its sessions ask
    for preemptors after the action `enqueue`.
    """
    stack, scheduler = Stack(MemoryStore(), SchedulerConfig()), assemble(SchedulerConfig())
    actions = scheduler.actions
    place = [action.name for action in actions].index("allocate")
    stack.go_by(replace(scheduler, actions=(*actions[:place], ask, *actions[place:])))
    stack.ready(a_node(cpu=4))
    stack.apply(a_quota(cpu=4), _startable("first"), _startable("second"))
    stack.turn()
    stack.start_pods()
    stack.turn()
    return stack


def test_a_group_that_the_session_has_admitted_is_a_preemptor_once() -> None:
    ask = AskForPreemptors()
    stack = a_full_stack(ask)
    assert ask.found == ["default/second"]
    stack.end_pods()
    stack.turn()
    # It waits for nodes now: alone, no more with the class that the former session refused.
    assert ask.found == ["default/second"]


def test_a_group_that_has_given_way_in_the_session_is_no_preemptor() -> None:
    ask = AskForPreemptors()
    stack = a_full_stack(ask)
    stack.end_pods()
    ask.gives_way = "default/second"
    stack.turn()
    assert ask.found == []


def test_a_group_that_has_been_suspended_is_no_preemptor() -> None:
    ask = AskForPreemptors()
    stack = a_full_stack(ask)
    stack.commit(changes.suspend(stack.store, "default/second", now_ms=0))
    stack.turn()
    assert ask.found == []
