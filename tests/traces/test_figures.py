"""The figures of schedules, with all expected numbers computed by hand."""

from __future__ import annotations

from batchq.lab.schedule import (
    Figures,
    Ran,
    Schedule,
    TenantFigures,
    figures_of,
    tenants_of,
)


def ran(
    number: int,
    submit_s: int,
    start_s: int | None,
    run_s: int | None,
    *,
    size: int = 1,
    tenant: str = "a",
    evictions: int = 0,
    end_s: int | None = None,
) -> Ran:
    """Return a job that ran as long as it requested."""
    if end_s is None and start_s is not None and run_s is not None:
        end_s = start_s + run_s
    return Ran(
        number=number,
        tenant=tenant,
        size=size,
        submit_s=submit_s,
        run_s=run_s,
        start_s=start_s,
        end_s=end_s,
        evictions=evictions,
    )


def schedule_of(*jobs: Ran, capacity: int = 4, weights: dict[str, int] | None = None) -> Schedule:
    return Schedule(
        name="mine",
        load="by hand",
        capacity=capacity,
        resources={"cpu": capacity * 1000},
        jobs=jobs,
        weights=weights or {},
        evictions=sum(one.evictions for one in jobs),
    )


def test_the_figures_are_those_that_published_comparisons_give() -> None:
    schedule = schedule_of(
        ran(1, 10, 10, 90, size=4),  # ends at 100; slowdown 1
        ran(2, 20, 100, 20, size=2),  # waits 80, ends at 120; slowdown 100 / 20
        ran(3, 30, 100, 5, size=1, evictions=1),  # waits 70; slowdown 75 / 10
    )
    assert figures_of(schedule) == Figures(
        jobs=3,
        finished=3,
        mean_wait_s=50.0,
        median_wait_s=70.0,
        p95_wait_s=80.0,
        max_wait_s=80.0,
        mean_bounded_slowdown=(1 + 5 + 7.5) / 3,
        utilization=(360 + 40 + 5) / (4 * 110),
        makespan_s=110,
        evictions=1,
    )


def test_they_have_exactly_these_names() -> None:
    assert list(Figures.__struct_fields__) == [
        "jobs",
        "finished",
        "mean_wait_s",
        "median_wait_s",
        "p95_wait_s",
        "max_wait_s",
        "mean_bounded_slowdown",
        "utilization",
        "makespan_s",
        "evictions",
    ]


def test_an_unfinished_job_counts_as_a_job_and_in_nothing_else() -> None:
    figures = figures_of(schedule_of(ran(1, 0, 0, 10), ran(2, 3, None, 10), ran(3, 4, 900, None)))
    assert (figures.jobs, figures.finished) == (3, 1)
    assert (figures.mean_wait_s, figures.makespan_s, figures.utilization) == (0.0, 10, 0.25)


def test_the_makespan_begins_with_the_first_submit_even_of_a_job_that_never_ran() -> None:
    assert figures_of(schedule_of(ran(1, 0, None, 10), ran(2, 5, 5, 10))).makespan_s == 15


def test_a_job_cut_at_its_walltime_is_counted_for_the_time_it_ran() -> None:
    figures = figures_of(schedule_of(ran(1, 0, 10, 100, size=2, end_s=50)))
    assert (figures.utilization, figures.mean_bounded_slowdown) == (80 / 200, 50 / 40)


def test_without_jobs_there_are_no_figures() -> None:
    figures = figures_of(schedule_of())
    assert (figures.jobs, figures.finished, figures.mean_wait_s) == (0, 0, None)
    assert (figures.utilization, figures.makespan_s, figures.p95_wait_s) == (None, None, None)


def test_the_95th_percentile_is_the_nearest_rank() -> None:
    jobs = [ran(number, 0, number, 10) for number in range(1, 21)]
    assert figures_of(schedule_of(*jobs)).p95_wait_s == 19


def test_each_tenant_has_its_part_against_its_weight() -> None:
    schedule = schedule_of(
        ran(1, 0, 0, 100, size=3, tenant="b"),
        ran(2, 0, 0, 100, size=1, tenant="a", evictions=2),
        ran(3, 0, None, 100, size=1, tenant="a"),
        weights={"a": 1, "b": 4, "not here": 5},
    )
    assert tenants_of(schedule) == (
        TenantFigures(
            tenant="b",
            weight=4,
            jobs=1,
            finished=1,
            mean_wait_s=0.0,
            mean_bounded_slowdown=1.0,
            used=0.75,
            deserved=0.8,
            evictions=0,
        ),
        TenantFigures(
            tenant="a",
            weight=1,
            jobs=2,
            finished=1,
            mean_wait_s=0.0,
            mean_bounded_slowdown=1.0,
            used=0.25,
            deserved=0.2,
            evictions=2,
        ),
    )
