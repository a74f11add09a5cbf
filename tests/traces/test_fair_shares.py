"""Tenants of a load share the machine by weight over time, with and without evictions."""

from __future__ import annotations

import pytest
from msgspec import structs

from batchq.config import SchedulerConfig
from batchq.config.load import read_config
from batchq.lab.load_player import play_load
from batchq.lab.schedule import Schedule, dues
from batchq.lab.traces import Load, read_swf, swf_load
from tests.builders import RECLAIMS
from tests.effort import usually
from tests.harness.traces import real_log
from tests.traces.loads import a_load, job

CALM = "actions: [enqueue, allocate]\n"
EVICTING = "actions: [enqueue, allocate, reclaim, preempt]\n"

#: The seconds in which every tenant has more work than fits.
BUSY_S = 200


def config(text: str) -> SchedulerConfig:
    return read_config(text, "scheduler.yaml")


def weighted(load: Load, **weights: int) -> Load:
    queues = [
        structs.replace(
            queue, spec=structs.replace(queue.spec, weight=weights[queue.metadata.name])
        )
        for queue in load.queues
    ]
    return structs.replace(load, queues=tuple(queues))


def taking_back(load: Load) -> Load:
    """Return the same load, in which every queue reclaims what it deserves."""
    queues = [
        structs.replace(queue, spec=structs.replace(queue.spec, preemption=RECLAIMS))
        for queue in load.queues
    ]
    return structs.replace(load, queues=tuple(queues))


def played(load: Load, text: str) -> Schedule:
    """Return the schedule, with all invariants checked after every session."""
    return play_load(load, config(text), watch=True)


def always_hungry(*tenants: str, jobs: int = 120, run_s: int = 10) -> Load:
    """Each tenant has many jobs of one cpu from the start, on a machine of twelve."""
    numbers = range(1, jobs * len(tenants) + 1)
    return a_load(
        *(job(number, 0, 1, run_s, queue=tenants[number % len(tenants)]) for number in numbers),
        cpus=12,
    )


def mean_held(schedule: Schedule, tenant: str, until_s: int) -> float:
    """Return the mean number of cpus held until `until_s`."""
    held = sum(
        sample.used.get(tenant, {}).get("cpu", 0.0) / 1000 * sample.long_s
        for sample in schedule.usage
        if sample.at_s + sample.long_s <= until_s
    )
    return held / until_s


@pytest.mark.parametrize("text", [CALM, EVICTING], ids=["calm", "evicting"])
def test_a_tenant_that_always_asks_for_more_gets_a_share_by_weight(text: str) -> None:
    load = weighted(always_hungry("a", "b", "c"), a=1, b=2, c=3)
    schedule = played(load, text)
    assert [mean_held(schedule, tenant, BUSY_S) for tenant in "abc"] == [2.0, 4.0, 6.0]
    assert [due.met for due in dues(schedule).values()] == [1.0, 1.0, 1.0]
    assert (schedule.evictions, schedule.refused) == (0, 0)


def test_without_evictions_a_late_tenant_waits_for_jobs_to_end() -> None:
    """The machine is full of jobs of 100 s; from 50 s on, half of it is due to the late tenant."""
    early = [job(number, 0, 1, 100, queue="early") for number in range(1, 25)]
    late = [job(number, 50, 1, 10, queue="late") for number in range(25, 31)]
    schedule = played(a_load(*early, *late, cpus=12), CALM)
    assert {one.start_s for one in schedule.jobs if one.tenant == "late"} == {100}
    assert (schedule.evictions, schedule.lost_s) == (0, 0)


def test_with_evictions_a_late_tenant_has_its_share_within_a_grace() -> None:
    early = [job(number, 0, 1, 100, queue="early") for number in range(1, 25)]
    late = [job(number, 50, 1, 10, queue="late") for number in range(25, 31)]
    schedule = played(taking_back(a_load(*early, *late, cpus=12)), EVICTING)
    # Evicted jobs have 30 s to stop.
    assert {one.start_s for one in schedule.jobs if one.tenant == "late"} == {80}
    # Six jobs of one cpu started again after 80 s each.
    assert (schedule.evictions, schedule.lost_s) == (6, 480)
    assert all(one.end_s is not None for one in schedule.jobs)


def test_the_due_of_an_absent_tenant_goes_to_the_others() -> None:
    """`b` arrives at 100 s: until then everything is due to `a`, and then half of it."""
    first = [job(number, 0, 1, 10, queue="a") for number in range(1, 241)]
    second = [job(number, 100, 1, 10, queue="b") for number in range(241, 301)]
    schedule = played(a_load(*first, *second, cpus=12), CALM)
    due = dues(schedule)
    assert (due["a"].met, due["b"].met) == (1.0, 1.0)
    # 300 jobs of 10 s on 12 cpus take 250 s; 60 of them are b's, 5/25 of that.
    assert (due["a"].part, due["b"].part) == (pytest.approx(0.8), pytest.approx(0.2))


@pytest.mark.parametrize(("text", "evicts"), [(CALM, False), (EVICTING, True)])
def test_groups_of_a_real_log_finish_with_and_without_evictions(text: str, evicts: bool) -> None:
    log = real_log("SDSC-SP2-1998-4.2-cln")
    load = swf_load(read_swf(log, processors=128, most=usually(100, 300)), by="group")
    schedule = played(taking_back(load), text)
    assert (schedule.evictions > 0) is evicts
    assert schedule.refused == 0
    assert all(one.end_s is not None for one in schedule.jobs)
    assert all((one.end_s or 0) - (one.start_s or 0) == one.run_s for one in schedule.jobs)
