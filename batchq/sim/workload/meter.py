"""How a machine was used over time, in a bounded number of steps however long it was.

What is held is added up over steps of equal length: one second at first, twice as long whenever
there would be too many of them. Integers until somebody reads them.
"""

from __future__ import annotations

from typing import TypeAlias

from batchq.sim.workload.schedule import Sample

MOST_STEPS = 2048

#: A tenant and a resource; `WAITING` counts jobs.
Gauge: TypeAlias = tuple[str, str]
WAITING: Gauge = ("", "")


class Meter:
    """Owns what each gauge shows, since when, and what that adds up to so far."""

    def __init__(self, start_s: int) -> None:
        self._start_s = start_s
        self._step_s = 1
        self._shows: dict[Gauge, tuple[int, int]] = {}
        #: Gauge -> for each step, what it showed times seconds.
        self._sums: dict[Gauge, list[int]] = {}

    def add(self, gauge: Gauge, units: int, at_s: int) -> None:
        """From `at_s` on, the gauge shows so much more (less, if negative)."""
        showed, since_s = self._shows.get(gauge, (0, at_s))
        self._fill(gauge, showed, since_s, at_s)
        self._shows[gauge] = (showed + units, at_s)

    def samples(self, until_s: int) -> tuple[Sample, ...]:
        """The steps up to `until_s`; the last may be shorter than the others."""
        for gauge, (shows, since_s) in self._shows.items():
            self._fill(gauge, shows, since_s, until_s)
            self._shows[gauge] = (shows, until_s)
        gauges = sorted(self._sums)
        steps = -(-(until_s - self._start_s) // self._step_s)
        return tuple(self._sample(step, gauges, until_s) for step in range(steps))

    def _sample(self, step: int, gauges: list[Gauge], until_s: int) -> Sample:
        at_s = self._start_s + step * self._step_s
        long_s = min(self._step_s, until_s - at_s)
        used: dict[str, dict[str, float]] = {}
        waiting = 0.0
        for gauge in gauges:
            sums = self._sums[gauge]
            shown = sums[step] / long_s if step < len(sums) else 0.0
            if gauge == WAITING:
                waiting = shown
            elif shown:
                used.setdefault(gauge[0], {})[gauge[1]] = shown
        return Sample(at_s=at_s, long_s=long_s, used=used, waiting=waiting)

    def _fill(self, gauge: Gauge, shown: int, since_s: int, until_s: int) -> None:
        while until_s - self._start_s > MOST_STEPS * self._step_s:
            self._double()
        if not shown or until_s == since_s:
            return
        sums = self._sums.setdefault(gauge, [])
        first = (since_s - self._start_s) // self._step_s
        last = (until_s - 1 - self._start_s) // self._step_s
        sums.extend([0] * (last + 1 - len(sums)))
        for step in range(first, last + 1):
            begins_s = self._start_s + step * self._step_s
            seconds = min(until_s, begins_s + self._step_s) - max(since_s, begins_s)
            sums[step] += shown * seconds

    def _double(self) -> None:
        self._step_s *= 2
        for sums in self._sums.values():
            if len(sums) % 2:
                sums.append(0)
            sums[:] = [one + other for one, other in zip(sums[::2], sums[1::2], strict=True)]
