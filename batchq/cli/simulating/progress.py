"""How far a run over a log is, on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from batchq.cli.terminal import echo

#: How many jobs of the run have finished, of how many.
Tell = Callable[[int, int], None]

#: Whoever waits no longer than this needs no line.
_FIRST_LINE_S = 5.0
_MOST_BETWEEN_S = 120.0
#: A bar is drawn no more often.
_BETWEEN_DRAWINGS_S = 0.1


class Told:
    """Passes on what is told of one run, and remembers it for who interrupts."""

    def __init__(self, run: str, tell: Callable[[str, int, int], None]) -> None:
        self.run = run
        self.finished = 0
        self._tell = tell

    def __call__(self, finished: int, jobs: int) -> None:
        self.finished = finished
        self._tell(self.run, finished, jobs)


@contextmanager
def progress(
    runs: int, *, color: bool, noun: str = "jobs"
) -> Iterator[Callable[[str, int, int], None]]:
    """Something to tell: run, jobs (or what `noun` says) that have finished, jobs in all."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield Lines(monotonic, lambda line: echo(line, err=True), noun)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True, no_color=not color)
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, int] = {}
        drawn_at = 0.0

        def tell(run: str, finished: int, jobs: int) -> None:
            nonlocal drawn_at
            if run not in tasks:
                place = f" ({len(tasks) + 1} of {runs})" if runs > 1 else ""
                tasks[run] = bars.add_task(f"{run}{place}", total=jobs)
            elif finished < jobs and monotonic() - drawn_at < _BETWEEN_DRAWINGS_S:
                return
            drawn_at = monotonic()
            bars.update(tasks[run], completed=finished)  # type: ignore[arg-type] # rich's TaskID

        yield tell


class Lines:
    """A line after some seconds, then ever fewer; owns when the next one is due."""

    def __init__(
        self, clock: Callable[[], float], say: Callable[[str], None], noun: str = "jobs"
    ) -> None:
        self._clock = clock
        self._say = say
        self._noun = noun
        self._started = clock()
        self._between = _FIRST_LINE_S
        self._due = self._started + _FIRST_LINE_S

    def __call__(self, run: str, finished: int, jobs: int) -> None:
        now = self._clock()
        if now < self._due:
            return
        self._say(f"{run}: {finished:,} of {jobs:,} {self._noun} after {now - self._started:.0f} s")
        self._between = min(2 * self._between, _MOST_BETWEEN_S)
        self._due = now + self._between
