"""A few random days: everything that can run has run by the end, and nothing waits that could
start.
"""

from __future__ import annotations

import pytest

from tests.days.easy import Easy
from tests.days.making import STRATEGIES, Day, Loss, Work, day_of, manifests
from tests.days.play import Outcome, result_of
from tests.effort import sample, usually

DAYS = range(usually(1, 2))


@pytest.mark.parametrize("strategy", sample(STRATEGIES, 2))
def test_every_group_that_can_run_has_run_by_the_end_of_the_day(strategy: str) -> None:
    results = [result_of((seed, strategy)) for seed in DAYS]
    failed = [one.why for one in results if not isinstance(one, Outcome)]
    assert failed == []


def test_a_reservation_does_not_come_and_go_with_the_hold_of_a_group_that_it_refuses() -> None:
    """On this day a hold let a head of another queue be reserved for, which ended the hold, and so
    on, session after session of one instant.
    """
    assert isinstance(result_of((29, "strict")), Outcome)


def test_the_days_have_all_that_users_and_machines_do() -> None:
    works = [one for seed in range(20) for one in day_of(seed).works]
    assert {one.queue for one in works} == {"batch", "lab", "service"}
    assert any(one.least == 1 < one.pods for one in works)
    assert any(1 < one.least < one.pods for one in works)
    assert any(one.least == one.pods > 1 for one in works)
    for met in ("after", "gated", "suspended", "held", "fails_after_s", "urgent", "walltime_s"):
        assert any(getattr(one, met) for one in works), met
    days = [day_of(seed) for seed in range(20)]
    assert any(day.losses for day in days)
    assert {cut.kind for day in days for cut in day.cuts} == {"ResourceQuota", "Queue"}


def test_the_manifests_of_a_day_name_nodes_queues_and_groups_once() -> None:
    day = day_of(0)
    outcomes = manifests(day, "mixed")
    kinds = [one["kind"] for one in outcomes]
    assert kinds.count("Node") == len(day.nodes)
    assert kinds.count("Queue") == 3
    steps = next(one["spec"] for one in outcomes if one["kind"] == "Timeline")
    applied = [step["apply"]["kind"] for step in steps if "apply" in step]
    assert applied.count("PodGroup") == len(day.works)
    assert [int(step["at"][:-1]) for step in steps] == sorted(int(s["at"][:-1]) for s in steps)


def test_the_clairvoyant_backfills_only_jobs_that_end_before_the_head_starts() -> None:
    """`wide` can start at 100: a job of 90 s starts before it, a job of 200 s waits."""
    day = _day(
        _work("busy", 0, cpu=3, runtime_s=100),
        _work("wide", 1, cpu=4, runtime_s=50),
        _work("short", 2, cpu=1, runtime_s=90),
        _work("long", 3, cpu=1, runtime_s=200),
    )
    waits = Easy(day).play()
    assert waits == {
        ("ada/busy", 0): 0,
        ("ada/wide", 0): 99,
        ("ada/short", 0): 0,
        ("ada/long", 0): 147,
    }


def test_the_clairvoyant_restarts_the_pods_of_a_lost_node() -> None:
    day = _day(_work("one", 0, cpu=4, runtime_s=100), _work("next", 1, cpu=4, runtime_s=10),
               losses=(Loss("n1", 50, 80),))  # fmt: skip
    easy = Easy(day)
    assert easy.play() == {("ada/one", 0): 0, ("ada/next", 0): 179}
    assert easy.ended == {"one": 180, "next": 190}


def _work(name: str, submit_at: int, *, cpu: int, runtime_s: int) -> Work:
    return Work(
        name=name,
        namespace="ada",
        queue="batch",
        submit_at=submit_at,
        pods=1,
        least=1,
        cpu=cpu,
        runtime_s=runtime_s,
        walltime_s=None,
    )


def _day(*works: Work, losses: tuple[Loss, ...] = ()) -> Day:
    return Day(0, {"n1": 4}, works, losses, ())
