"""Use over time in a bounded number of steps, exact in each step and in sum."""

from __future__ import annotations

from batchq.lab.schedule import MOST_STEPS, WAITING, Meter, Sample

CPU = ("a", "cpu")


def test_a_short_time_has_one_step_per_second() -> None:
    meter = Meter(100)
    meter.add(CPU, 4, 100)
    meter.add(WAITING, 2, 101)
    meter.add(CPU, -3, 102)
    assert meter.samples(103) == (
        Sample(at_s=100, long_s=1, used={"a": {"cpu": 4.0}}, waiting=0.0),
        Sample(at_s=101, long_s=1, used={"a": {"cpu": 4.0}}, waiting=2.0),
        Sample(at_s=102, long_s=1, used={"a": {"cpu": 1.0}}, waiting=2.0),
    )


def test_a_long_time_has_steps_of_equal_length_with_the_mean_of_each() -> None:
    meter = Meter(0)
    meter.add(CPU, 1, 0)
    meter.add(CPU, 2, MOST_STEPS + 1)
    samples = meter.samples(3 * MOST_STEPS)
    assert len(samples) == 3 * MOST_STEPS // 4
    assert {sample.long_s for sample in samples} == {4}
    assert samples[MOST_STEPS // 4 - 1].total("cpu") == 1.0
    # One second at 1, three at 3.
    assert samples[MOST_STEPS // 4].total("cpu") == 2.5
    assert samples[-1].total("cpu") == 3.0


def test_nothing_is_lost_however_often_steps_are_put_together() -> None:
    meter = Meter(7)
    expected = 0
    for turn in range(200):
        begins, ends = 7 + turn * 97, 7 + turn * 97 + 1 + turn * 13 % 90
        meter.add(CPU, turn, begins)
        meter.add(CPU, -turn, ends)
        expected += turn * (ends - begins)
    samples = meter.samples(7 + 200 * 97)
    assert MOST_STEPS // 2 < len(samples) <= MOST_STEPS
    assert round(sum(sample.total("cpu") * sample.long_s for sample in samples)) == expected


def test_the_last_step_may_be_shorter() -> None:
    meter = Meter(0)
    meter.add(CPU, 3, 0)
    samples = meter.samples(MOST_STEPS + 1)
    assert [(one.at_s, one.long_s) for one in samples[-2:]] == [
        (MOST_STEPS - 2, 2),
        (MOST_STEPS, 1),
    ]
    assert samples[-1].total("cpu") == 3.0


def test_an_empty_span_of_time_has_no_samples() -> None:
    assert Meter(5).samples(5) == ()
