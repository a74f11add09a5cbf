"""A session's objects are freed at once, without the cyclic garbage collector, which the daemon
runs rarely.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import msgspec
import pytest

from batchq.api.objects import PodTemplate, Strategy
from batchq.config import SchedulerConfig
from batchq.core.session.session import Session
from batchq.store.memory import MemoryStore
from tests.builders import a_group, a_node, a_queue
from tests.scheduler.conftest import Stack


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _submit(stack: Stack, name: str, *, cpu: int) -> None:
    group = a_group(name, cpu=cpu)
    task = group.spec.tasks[0]
    template = PodTemplate(command=("true",), requests=task.template.requests)
    tasks = (msgspec.structs.replace(task, template=template),)
    stack.apply(
        msgspec.structs.replace(group, spec=msgspec.structs.replace(group.spec, tasks=tasks))
    )


def test_a_session_is_freed_when_the_next_has_begun(no_collector: None) -> None:
    stack = Stack(MemoryStore(), SchedulerConfig())
    queue = a_queue()
    spec = msgspec.structs.replace(queue.spec, strategy=Strategy(type="Backfill"))
    stack.apply(msgspec.structs.replace(queue, spec=spec))
    stack.ready(a_node(cpu=4))
    for name, cpu in (("runs", 3), ("waits", 3), ("fits-beside", 1)):
        _submit(stack, name, cpu=cpu)
    sessions: list[weakref.ref[Session]] = []
    for step in (stack.start_pods, stack.end_pods, stack.start_pods):
        sessions.append(weakref.ref(stack.turn().session))
        step()
    stack.turn()
    assert [one() is None for one in sessions] == [True, True, True]
