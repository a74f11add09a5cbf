"""The data of a plot: lines, classes and shares, before anything is drawn."""

from __future__ import annotations

from batchq.lab.plot import picture_of
from batchq.lab.schedule import (
    Ran,
    Sample,
    Schedule,
    entitled,
    fairness_of,
    jain,
    shared_out,
    tenants_of,
)
from tests.traces.loads import a_load, job, played


def ran(
    number: int,
    *,
    submit_s: int = 0,
    wait_s: int | None = 0,
    run_s: int = 100,
    size: int = 1,
    tenant: str = "a",
) -> Ran:
    """Return a job that ran once, or never, if its wait is None."""
    start_s = None if wait_s is None else submit_s + wait_s
    return Ran(
        number=number,
        tenant=tenant,
        size=size,
        submit_s=submit_s,
        run_s=run_s,
        start_s=start_s,
        end_s=None if start_s is None else start_s + run_s,
        first_start_s=start_s,
    )


def schedule(
    *jobs: Ran,
    name: str = "easy",
    usage: tuple[Sample, ...] = (),
    weights: dict[str, int] | None = None,
    cpus: int = 4,
) -> Schedule:
    return Schedule(
        name=name,
        load="by hand",
        capacity=cpus,
        resources={"cpu": cpus * 1000},
        jobs=jobs,
        usage=usage,
        weights=weights or {},
    )


def sample(at_s: int, long_s: int = 100, *, waiting: float = 0.0, **cpus: float) -> Sample:
    used = {tenant: {"cpu": 1000 * amount} for tenant, amount in cpus.items()}
    return Sample(at_s=at_s, long_s=long_s, used=used, waiting=waiting)


def test_lines_begin_with_the_first_submit_and_show_parts_of_the_machine() -> None:
    usage = (sample(5000, a=4), sample(5100, a=1, b=1, waiting=3), sample(5200, waiting=0.5))
    picture = picture_of([schedule(ran(1, submit_s=5000), usage=usage)])
    [utilisation], [waiting] = picture.utilisation, picture.waiting
    assert (utilisation.run, utilisation.at_s) == ("easy", (50, 150, 250))
    assert utilisation.values == (1.0, 0.5, 0.0)
    assert waiting.values == (0.0, 3.0, 0.5)


def test_runs_of_different_lengths_have_the_same_steps_and_their_own_ends() -> None:
    short = schedule(name="short", usage=(sample(0, 10, a=4), sample(10, 10)))
    long = schedule(name="long", usage=(sample(0, 30, a=2), sample(30, 30)))
    picture = picture_of([short, long])
    first, second = picture.utilisation
    assert (first.at_s, first.values) == ((15,), (0.5,))
    assert (second.at_s, second.values) == ((15, 45), (0.5, 0.0))


def test_a_long_log_has_a_bounded_number_of_steps() -> None:
    usage = tuple(sample(10 * place, 10, a=place % 2) for place in range(1000))
    [line] = picture_of([schedule(usage=usage)]).utilisation
    assert len(line.values) == 120
    assert line.at_s[0] == 42
    # Steps of 84 s begin and end within samples, which count for the part inside.
    assert line.values[0] == (4 * 10 + 0) / 84 / 4
    assert abs(sum(line.values) / 120 - 0.125) < 0.001


def test_a_load_that_never_ran_has_lines_without_points() -> None:
    picture = picture_of([schedule()])
    assert picture.utilisation[0].values == ()
    assert picture.sizes == ()


def test_sizes_fall_into_powers_of_two_and_waits_into_quantiles() -> None:
    waits = [ran(number, wait_s=10 * number, size=3 + number % 2) for number in range(21)]
    picture = picture_of(
        [
            schedule(*waits, ran(90, size=1, wait_s=7), ran(91, size=5, wait_s=None)),
            schedule(ran(92, size=8, wait_s=1), ran(93, size=2), name="fcfs"),
        ]
    )
    labels = [(size.label, [(one.run, one.jobs) for one in size.runs]) for size in picture.sizes]
    assert labels == [
        ("1", [("easy", 1)]),
        ("2", [("fcfs", 1)]),
        ("3-4", [("easy", 21)]),
        ("5-8", [("fcfs", 1)]),
    ]
    [four] = picture.sizes[2].runs
    assert (four.low, four.quarter, four.half) == (10, 50, 100)
    assert (four.three_quarters, four.high) == (150, 190)
    [one] = picture.sizes[0].runs
    assert (one.low, one.half, one.high) == (7, 7, 7)


def test_tenants_are_drawn_on_request_and_only_the_six_with_most_work() -> None:
    jobs = [ran(number, tenant=f"user-{number}", run_s=10 * number) for number in range(1, 9)]
    one = schedule(*jobs, usage=(sample(0),))
    assert picture_of([one]).tenants == ()
    names = [tenant.tenant for tenant in picture_of([one], tenants=True).tenants]
    assert names == ["user-8", "user-7", "user-6", "user-5", "user-4", "user-3"]


def test_a_tenant_has_what_it_held_and_what_was_due_to_it_for_each_run() -> None:
    # Of four cpus, a requests 4 and b 2, at weights of 1 and 3: b gets its 2.
    jobs = (ran(1, size=4, tenant="a"), ran(2, size=2, tenant="b", wait_s=100))
    usage = (sample(0, a=4), sample(100, b=2))
    one = schedule(*jobs, usage=usage, weights={"a": 1, "b": 3})
    a, b = picture_of([one], tenants=True).tenants
    assert (a.tenant, a.weight, b.tenant, b.weight) == ("a", 1, "b", 3)
    # The panels of tenants have steps three times as long.
    assert [line.at_s for line in (*a.held, *a.deserved)] == [(150,), (150,)]
    assert (a.held[0].values, b.held[0].values) == ((0.5,), (0.25,))
    assert (a.deserved[0].values, b.deserved[0].values) == ((0.5,), (0.5,))


def test_shares_due_follow_the_tenants_present() -> None:
    jobs = (
        ran(1, size=4, tenant="a", run_s=300),
        ran(2, submit_s=100, size=1, tenant="b", wait_s=50, run_s=50),
        ran(3, submit_s=100, size=9, tenant="idle", wait_s=None),
    )
    one = schedule(*jobs, usage=(sample(0, 300),), weights={"a": 3, "b": 2, "idle": 0})
    assert entitled(one, 100) == [{"a": 1.0}, {"a": 0.75, "b": 0.25}, {"a": 1.0}]


def test_a_shorter_last_step_is_divided_by_its_own_length() -> None:
    one = schedule(ran(1, size=2, tenant="a", run_s=150), usage=(sample(0, 150),))
    assert entitled(one, 100) == [{"a": 0.5}, {"a": 0.5}]


def test_a_machine_is_divided_by_weight_and_no_tenant_gets_more_than_it_wants() -> None:
    assert shared_out(10, {"a": 9, "b": 9}, {}) == {"a": 5, "b": 5}
    assert shared_out(10, {"a": 9, "b": 9}, {"a": 4}) == {"a": 8, "b": 2}
    assert shared_out(10, {"a": 9, "b": 2, "c": 9}, {}) == {"b": 2, "a": 4, "c": 4}
    assert shared_out(10, {"a": 1, "b": 2}, {}) == {"a": 1, "b": 2}
    assert shared_out(10, {"a": 9, "b": 9}, {"a": 0}) == {"b": 9}
    assert shared_out(10, {}, {}) == {}


def test_the_index_is_one_where_all_are_alike_and_one_nth_where_one_has_all() -> None:
    assert jain([3.0, 3.0, 3.0]) == 1.0
    assert jain([5.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain([1.0, 2.0]) == 0.9
    assert (jain([]), jain([0.0])) == (None, None)


def test_fairness_covers_the_slowdowns_of_tenants_with_finished_jobs() -> None:
    # a has a slowdown of 1 and b of 2; c has none.
    jobs = (
        ran(1, tenant="a"),
        ran(2, tenant="b", wait_s=100),
        ran(3, tenant="c", wait_s=None),
    )
    tenants = tenants_of(schedule(*jobs))
    assert [one.mean_bounded_slowdown for one in tenants] == [1.0, 2.0, None]
    assert fairness_of(tenants) == 0.9


def test_a_played_load_fills_every_series() -> None:
    # Four cpus for 100 s, and two for another 100 s: a hundred steps of two seconds.
    load = a_load(job(1, 0, 4, 100, queue="a"), job(2, 0, 2, 100, queue="a"))
    picture = picture_of([played(load)], tenants=True)
    [utilisation], [waiting], [tenant] = picture.utilisation, picture.waiting, picture.tenants
    assert utilisation.values == (1.0,) * 50 + (0.5,) * 50
    assert waiting.values == (1.0,) * 50 + (0.0,) * 50
    assert [size.label for size in picture.sizes] == ["2", "3-4"]
    assert tenant.held[0].values[0] == tenant.deserved[0].values[0] == 1.0
    assert tenant.held[0].values[-1] == tenant.deserved[0].values[-1] == 0.5
