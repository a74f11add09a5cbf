"""A log as a load: its groups, namespaces, queues and machine."""

from __future__ import annotations

import pytest

from batchq.api.notation import label_problem
from batchq.api.objects import DEFAULT, Metadata, Queue, QueueSpec, Strategy
from batchq.errors import Rejected
from batchq.lab.load_player import play_load
from batchq.lab.traces import (
    POLICY_CONFIG,
    By,
    Load,
    Trace,
    TraceJob,
    strategy_of,
    swf_load,
)


def trace_job(number: int, submit_s: int, **known: int) -> TraceJob:
    return TraceJob(number=number, submit_s=submit_s, run_s=60, processors=4, request_s=90, **known)


TRACE = Trace(
    processors=8,
    jobs=(
        trace_job(11, 5, user=3, group=7, queue=0),
        trace_job(12, 5, user=1, group=7, queue=2),
        trace_job(13, 9, user=3),
    ),
)


def queues_of(load: Load) -> dict[str, QueueSpec]:
    return {queue.metadata.name: queue.spec for queue in load.queues}


def test_a_log_is_one_machine_one_queue_and_a_group_of_one_pod_for_each_job() -> None:
    load = swf_load(TRACE, title="a log")
    assert (load.title, load.capacity) == ("a log", 8)
    assert [node.spec.resources for node in load.nodes] == [{"cpu": 8000}]
    assert queues_of(load) == {DEFAULT: QueueSpec()}
    first = load.arrivals[0]
    assert (first.at_s, first.run_s, first.number, first.size) == (5, 60, 11, 4)
    assert first.tenant == DEFAULT
    meta, spec = first.group.metadata, first.group.spec
    assert (meta.namespace, meta.name) == (DEFAULT, "job11")
    assert (spec.queue, spec.walltime) == (DEFAULT, 90_000)
    assert [(task.replicas, task.template.requests) for task in spec.tasks] == [(1, {"cpu": 4000})]


def test_jobs_come_in_order_of_time_and_of_the_log_within_one_instant() -> None:
    late_first = Trace(
        processors=8, jobs=(trace_job(1, 9), trace_job(3, 5), trace_job(2, 5), trace_job(4, 0))
    )
    assert [one.number for one in swf_load(late_first).arrivals] == [4, 3, 2, 1]


@pytest.mark.parametrize(
    ("by", "tenants"),
    [
        ("user", ["user-3", "user-1", "user-3"]),
        ("group", ["group-7", "group-7", "group-unknown"]),
        ("queue", ["queue-0", "queue-2", "queue-unknown"]),
    ],
)
def test_tenants_have_a_namespace_and_a_queue_each(by: By, tenants: list[str]) -> None:
    load = swf_load(TRACE, by=by, strategy=strategy_of("easy"))
    assert [one.tenant for one in load.arrivals] == tenants
    assert [one.group.metadata.namespace for one in load.arrivals] == tenants
    assert [one.group.spec.queue for one in load.arrivals] == tenants
    easy = QueueSpec(strategy=Strategy(type="Backfill"))
    assert queues_of(load) == dict.fromkeys(tenants, easy)
    assert not any(label_problem(tenant) for tenant in tenants)


def test_queues_that_are_given_replace_those_of_the_same_name() -> None:
    heavy = Queue(
        metadata=Metadata(name="user-3"), spec=QueueSpec(weight=3, capability={"cpu": 4000})
    )
    load = swf_load(TRACE, by="user", queues=(heavy,), strategy=strategy_of("fcfs"))
    strict = Strategy(type="StrictFIFO")
    assert queues_of(load) == {
        "user-3": QueueSpec(weight=3, capability={"cpu": 4000}, strategy=strict),
        "user-1": QueueSpec(strategy=strict),
    }
    schedule = play_load(load, POLICY_CONFIG, watch=True)
    # Both jobs of user 3 fit the machine at once, but not its queue.
    assert [one.start_s for one in schedule.jobs] == [5, 5, 65]
    assert schedule.weights == {"user-3": 3, "user-1": 1}


def test_one_called_default_is_the_pattern_for_all_others() -> None:
    parent = Queue(metadata=Metadata(name="all"))
    pattern = Queue(metadata=Metadata(name=DEFAULT), spec=QueueSpec(parent="all", weight=2))
    load = swf_load(TRACE, by="user", queues=(pattern, parent))
    like = QueueSpec(parent="all", weight=2)
    assert queues_of(load) == {
        DEFAULT: like,
        "all": QueueSpec(),
        "user-3": like,
        "user-1": like,
    }
    assert [one.end_s for one in play_load(load, POLICY_CONFIG).jobs] == [65, 65, 125]


def test_a_queue_that_states_a_strategy_keeps_it() -> None:
    own = QueueSpec(strategy=Strategy(type="Backfill", order="shortest"))
    queues = (Queue(metadata=Metadata(name="user-1"), spec=own),)
    found = queues_of(swf_load(TRACE, by="user", queues=queues, strategy=strategy_of("fcfs")))
    assert found["user-1"] == own
    assert found["user-3"].strategy == Strategy(type="StrictFIFO")


def test_queues_that_contradict_each_other_are_refused_before_anything_runs() -> None:
    queues = (
        Queue(metadata=Metadata(name="all"), spec=QueueSpec(deserved={"cpu": 1000})),
        Queue(
            metadata=Metadata(name="user-1"),
            spec=QueueSpec(parent="all", deserved={"cpu": 2000}),
        ),
    )
    with pytest.raises(Rejected, match="all"):
        play_load(swf_load(TRACE, by="user", queues=queues), POLICY_CONFIG)
