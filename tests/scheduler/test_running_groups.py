"""Groups that run with all of their pods cost a session no calls."""

from __future__ import annotations

from batchq.api.objects import PodGroup
from batchq.config import SchedulerConfig
from batchq.store.memory import MemoryStore
from tests.builders import a_group, a_node, a_queue, a_task
from tests.harness.calls import counting_calls
from tests.scheduler.conftest import Stack


def test_a_session_calls_as_many_functions_whether_few_groups_run_or_many() -> None:
    few, many = (calls_for_one_more_group(running) for running in (20, 220))
    # Chunks, and sums over what changes, may take some more; a call for each group would be 200.
    assert many - few < 50


def calls_for_one_more_group(running: int) -> int:
    """Return how many functions a session calls that starts one more group in the second queue."""
    stack = Stack(MemoryStore(), SchedulerConfig())
    stack.apply(a_queue("first"), a_queue("second"))
    stack.ready(a_node(cpu=1_000))
    stack.apply(*(runnable(f"runs-{place}", queue="first") for place in range(running)))
    stack.until_idle()
    stack.start_pods()
    stack.until_idle()
    stack.apply(runnable("new", queue="second"))
    report, calls = counting_calls(stack.turn)
    assert report.session.by_key["default/new"].has_all_placed
    return calls


def runnable(name: str, *, queue: str) -> PodGroup:
    return a_group(name, tasks=(a_task(command=("true",)),), queue=queue)
