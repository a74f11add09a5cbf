"""The progress of long commands on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Protocol

from batchq.cli.output.terminal import echo, has_colors

#: A shorter run prints no line.
_FIRST_LINE_S = 5.0
_MOST_BETWEEN_S = 120.0
#: The shortest time between two drawings of a bar.
_BETWEEN_DRAWINGS_S = 0.1


class Tell(Protocol):
    """Reports how much of a named part of the work is done; a bar also shows the `note`."""

    def __call__(self, name: str, done: int, total: int, note: str = "") -> None: ...


@contextmanager
def progress(noun: str, *, lines: Tell | None = None) -> Iterator[Tell]:
    """Return a function that shows progress; `noun` names what is counted, as in `jobs`.

    `lines` replaces the lines that are printed without a terminal.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lines or ProgressLines(monotonic, lambda line: echo(line, err=True), noun)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    console = Console(stderr=True, no_color=not has_colors())
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {}
        drawn_at = 0.0

        def tell(name: str, done: int, total: int, note: str = "") -> None:
            nonlocal drawn_at
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total, note=note)
            elif done < total and monotonic() - drawn_at < _BETWEEN_DRAWINGS_S:
                return
            drawn_at = monotonic()
            bars.update(tasks[name], completed=done, note=note)

        yield tell


class ProgressLines:
    """Prints a line after some seconds, then less and less often."""

    def __init__(
        self, clock: Callable[[], float], say: Callable[[str], None], noun: str = "jobs"
    ) -> None:
        self._clock = clock
        self._say = say
        self._noun = noun
        self._started = clock()
        self._between = _FIRST_LINE_S
        self._due = self._started + _FIRST_LINE_S

    def __call__(self, name: str, done: int, total: int, note: str = "") -> None:
        now = self._clock()
        if now < self._due:
            return
        self._say(f"{name}: {done:,} of {total:,} {self._noun} after {now - self._started:.0f} s")
        self._between = min(2 * self._between, _MOST_BETWEEN_S)
        self._due = now + self._between
