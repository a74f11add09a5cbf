"""Schedules of real logs, equal to published ones job for job.

The golden files are whole schedules of five thousand jobs. A later job may delay an earlier one, so
a comparison of the first thousand must submit all jobs up to the start of the last of these.
"""

from __future__ import annotations

from functools import cache

import pytest
from msgspec import structs

from batchq.lab.load_player import play_load
from batchq.lab.schedule import Schedule, figures_of
from batchq.lab.traces import (
    POLICIES,
    POLICY_CONFIG,
    Trace,
    read_swf,
    strategy_of,
    swf_load,
)
from tests.effort import grid, usually
from tests.harness.traces import golden_starts, real_log

KTH, SDSC = "KTH-SP2-1996-2", "SDSC-SP2-1998-4.2-cln"


@cache
def read(log: str) -> Trace:
    """Read the first five thousand jobs of a log, once for all tests: that takes a second."""
    return read_swf(real_log(log), most=5000)


def first_of(log: str, jobs: int) -> Trace:
    """Return the log up to this job."""
    return structs.replace(read(log), jobs=read(log).jobs[:jobs])


def played(log: str, policy: str, jobs: int, *, per_event: bool = False) -> Schedule:
    """Return the schedule of the first jobs of a log under a policy."""
    load = swf_load(first_of(log, jobs), strategy=strategy_of(policy))
    return play_load(load, POLICY_CONFIG, name=policy, per_event=per_event)


def compare(log: str, policy: str, jobs: int, *, per_event: bool = False) -> Schedule:
    """Play a log, and compare the starts of its first jobs with the published ones."""
    golden = golden_starts(log, policy, per_event=per_event)
    first = dict(list(golden.items())[:jobs])
    rest = read(log).jobs[jobs : len(golden)]
    came = jobs + sum(job.submit_s <= max(first.values()) for job in rest)
    schedule = played(log, policy, came, per_event=per_event)
    assert {one.number: one.start_s for one in schedule.jobs[:jobs]} == first
    assert schedule.refused == 0
    return schedule


@pytest.mark.parametrize(("log", "policy"), grid([KTH, SDSC], POLICIES))
def test_the_first_jobs_start_when_the_golden_file_says(log: str, policy: str) -> None:
    compare(log, policy, usually(250, 1000))


@pytest.mark.parametrize(("log", "policy"), grid([KTH, SDSC], ["easy", "easy-sjf"]))
def test_so_they_do_with_one_pass_per_event(log: str, policy: str) -> None:
    compare(log, policy, usually(200, 1000), per_event=True)


# Half a minute on a busy machine; the first jobs of the same schedule are compared above.
@pytest.mark.slow
def test_five_thousand_jobs_of_kth_under_easy_come_to_the_published_figures() -> None:
    figures = figures_of(compare(KTH, "easy", 5000))
    assert (figures.jobs, figures.finished, figures.evictions) == (5000, 5000, 0)
    assert figures.mean_wait_s == pytest.approx(9462.2484, abs=1e-6)
    assert figures.mean_bounded_slowdown == pytest.approx(138.078456, abs=1e-6)
