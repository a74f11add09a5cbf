"""Tests of the benchmark with Kueue's loads, on a small load: its checks pass and detect faults."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from batchq.config.load import read_config
from benchmarks.kueue.load import BASELINE, LARGE_SCALE, Class, scaled, submissions
from benchmarks.kueue.run import Outcome, rows_of, run
from benchmarks.kueue.stage import CONFIG
from benchmarks.kueue.truth import Story, faults

pytestmark = pytest.mark.e2e

#: One cohort of two queues. Its large groups come while small, long ones hold everything.
SMALL = replace(
    BASELINE,
    cohorts=1,
    queues=2,
    classes=(
        Class("small", 50, 1, 3_000, 5, 25),
        Class("medium", 100, 5, 200, 400, 2),
        Class("large", 200, 20, 200, 700, 1),
    ),
)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return run(SMALL)


def test_every_group_completes_once_and_usage_never_exceeds_the_capacity(
    outcome: Outcome,
) -> None:
    assert outcome.faults == []
    assert Counter(outcome.story.phases.values()) == {"Completed": 56}
    assert outcome.story.most["0"] == 40


def test_the_namespace_may_have_all_groups_of_the_largest_load() -> None:
    settings = read_config(CONFIG, "the benchmark's").settings
    assert settings.max_pod_groups_per_namespace >= LARGE_SCALE.groups


def test_every_group_evicted_while_running_runs_again(outcome: Outcome) -> None:
    # On a slow machine no group may be evicted, because large and small ones then come together.
    lost = [run for run in outcome.runs if run[3] != "succeeded"]
    assert sum(outcome.story.evictions.values()) >= len(lost)
    assert len([run for run in outcome.runs if run[3] == "succeeded"]) == 56


def test_lost_runs_are_counted_with_the_floor(outcome: Outcome) -> None:
    twice = replace(outcome, runs=[*outcome.runs, ("large-0-0-0", 0.0, 2.0, "evicted")])
    [[_, wall_s, to_floor, *_], _, [_, floor_s, *_]] = rows_of(outcome)
    [_, _, [_, floor_with_lost_s, *_]] = rows_of(twice)
    # 20 units for 2 s, of the 40 units in total.
    assert floor_with_lost_s == pytest.approx(floor_s + 1.0)
    assert to_floor == pytest.approx(wall_s / floor_s)


def test_the_table_shows_the_figures_that_kueue_publishes(outcome: Outcome) -> None:
    ours, theirs, floor = rows_of(outcome)
    assert (ours[0], ours[-1]) == ("batchq, baseline", "holds")
    assert theirs[:2] == ["Kueue's CI, published", 351.116]
    assert floor[2] == 1.0


def test_a_lost_doubled_or_too_large_run_is_detected(outcome: Outcome) -> None:
    runs = outcome.runs
    done = next(run for run in runs if run[3] == "succeeded")
    name = done[0]
    [lost] = faults(SMALL, outcome.story, [run for run in runs if run is not done])
    assert lost.startswith(f"the runs of {name} ended like this: ")
    twice = faults(SMALL, outcome.story, [*runs, done])
    assert f"{name} ran twice at once" in twice
    many = [(f"large-0-0-{number}", 0.0, 1.0, "succeeded") for number in range(10)]
    assert "cohort 0 held 200 units of 40 by what ran" in faults(SMALL, Story(), many)


def test_the_loads_are_kueues() -> None:
    assert (BASELINE.groups, LARGE_SCALE.groups) == (15_000, 50_000)
    assert (BASELINE.cohort_units, BASELINE.queue_units) == (120, 120)
    assert (LARGE_SCALE.cohort_units, LARGE_SCALE.queue_units) == (2_000, 120)
    assert BASELINE.unit_s / 20 == 66.0
    due = submissions(scaled(BASELINE, 0.1))
    assert (len(due), due[0][0], due[-1][0]) == (1_500, 100, 6_000)
