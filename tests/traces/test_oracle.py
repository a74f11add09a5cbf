"""The plain reference simulator, compared with published schedules and with hand-made ones."""

from __future__ import annotations

from statistics import fmean

import pytest

from tests.effort import sample
from tests.harness.traces import COLUMNS, golden_starts, real_log
from tests.traces.oracle import Job, read_log, starts

#: For the synthetic log, only two policies are published.
PUBLISHED = [
    (log, *column)
    for log in ("KTH-SP2-1996-2", "SDSC-SP2-1998-4.2-cln", "lublin_256")
    for column in COLUMNS
    if log != "lublin_256" or column[0] in ("fcfs", "easy")
]
#: On a machine of 10. While the first runs, 4 are free; the second and the third need more.
LINE = [
    Job(1, 0, 100, 6, 100),
    Job(2, 1, 50, 8, 50),
    Job(3, 2, 50, 10, 50),
    Job(4, 3, 180, 2, 180),
    Job(5, 3, 90, 2, 90),
    Job(6, 3, 80, 2, 80),
]


@pytest.mark.parametrize(("log", "policy", "per_event"), sample(PUBLISHED, 6))
def test_the_oracle_starts_every_job_when_the_published_schedule_does(
    log: str, policy: str, per_event: bool
) -> None:
    published = golden_starts(log, policy, per_event=per_event)
    processors, jobs = read_log(real_log(log), len(published))
    assert starts(jobs, processors, policy, per_event=per_event) == published


@pytest.mark.parametrize(
    ("policy", "slowdown"), sample([("easy", "92.57654"), ("easy-sjf", "69.40540")], 1)
)
def test_a_whole_log_has_the_published_mean_bounded_slowdown(policy: str, slowdown: str) -> None:
    processors, jobs = read_log(real_log("KTH-SP2-1996-2"))
    found = starts(jobs, processors, policy, per_event=True)
    slowdowns = [
        max(1, (found[job.number] - job.submit + job.run) / max(job.run, 10)) for job in jobs
    ]
    assert (len(jobs), f"{fmean(slowdowns):.5f}") == (28_481, slowdown)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        # No job passes the second.
        ("fcfs", {1: 0, 2: 100, 3: 150, 4: 200, 5: 200, 6: 200}),
        # Jobs that fit start: the second waits for three that arrived later.
        ("first-fit", {1: 0, 2: 173, 3: 223, 4: 3, 5: 3, 6: 93}),
        # The fourth runs beside the second's reservation at 100, and so delays the third.
        ("easy", {1: 0, 2: 100, 3: 183, 4: 3, 5: 3, 6: 233}),
        # The two short jobs first; the fourth follows beside the second's reservation.
        ("easy-sjf", {1: 0, 2: 100, 3: 263, 4: 83, 5: 3, 6: 3}),
        # The third has a reservation at 150 too, which the fourth would delay.
        ("conservative", {1: 0, 2: 100, 3: 150, 4: 200, 5: 3, 6: 3}),
    ],
)
def test_every_policy_in_small(policy: str, expected: dict[int, int]) -> None:
    assert starts(LINE, 10, policy) == expected


def test_a_pass_per_event_sees_one_end_after_the_other() -> None:
    # Both end at 10, earlier than estimated. After the first end, only the small job fits.
    line = [Job(1, 0, 10, 5, 20), Job(2, 0, 10, 5, 20), Job(3, 1, 10, 8, 10), Job(4, 2, 9, 4, 9)]
    assert starts(line, 10, "easy") == {1: 0, 2: 0, 3: 10, 4: 20}
    assert starts(line, 10, "easy", per_event=True) == {1: 0, 2: 0, 3: 19, 4: 10}
