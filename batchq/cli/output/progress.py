"""The progress of long commands and of groups: bars on a terminal, else lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TextIO

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.notation import counted
from batchq.cli.output import echo, has_colors, one_line

if TYPE_CHECKING:
    from batchq.api.views import GroupView, PodCounts

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


_BAR = 20


class Display(Protocol):
    """Shows the progress of groups repeatedly."""

    def show(self, views: Sequence[GroupView]) -> None:
        """Show the current state."""


def display(stream: TextIO) -> AbstractContextManager[Display]:
    """Return bars if `stream` is a terminal, else lines."""
    lively = stream.isatty() and os.environ.get("TERM") != "dumb"
    return _bars(stream) if lively else _lines(stream)


def state_in_words(view: GroupView) -> str:
    """Return the state of a group: `3 of 4 pods done`, `WaitingForQuota: needs …`."""
    pods = view.pods
    wanted = counted(pods.wanted, "pod")
    match view.phase:
        case PodGroupPhase.PENDING:
            first = view.blockers[0] if view.blockers else None
            return first.text if first else "waits for its first session"
        case PodGroupPhase.IN_QUEUE:
            return f"admitted; {started_in_words(pods)}"
        case PodGroupPhase.COMPLETED:
            return f"{pods.succeeded} of {wanted} done"
        case PodGroupPhase.FAILED | PodGroupPhase.CANCELLED:
            stopping = f"; {counted(pods.stopping, 'pod')} still stopping" if pods.stopping else ""
            return f"{view.message or view.reason}{stopping}"
        case _:
            failed = f", {pods.failed} failed" if pods.failed else ""
            return f"{pods.succeeded} of {wanted} done{failed}, {pods.running} running"


def started_in_words(pods: PodCounts) -> str:
    """Return how far the start of an admitted group is: `1 pod started, 2 needed`."""
    started = pods.running + pods.succeeded
    failed = f", {pods.failed} failed" if pods.failed else ""
    return f"{counted(started, 'pod')} started, {pods.least} needed{failed}"


def bar_of(view: GroupView) -> tuple[int, int]:
    """Return how many of the bar's `_BAR` cells are done, and how many run."""
    pods = view.pods
    whole = max(1, pods.wanted)
    done = _BAR * (pods.succeeded + pods.failed) // whole
    active = _BAR * (pods.succeeded + pods.failed + pods.running) // whole
    return done, active - done


def short(key: str) -> str:
    """Return a group's key without the namespace `default`."""
    return key.removeprefix("default/")


class _Lines:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last_line: dict[str, str] = {}

    def show(self, views: Sequence[GroupView]) -> None:
        for view in views:
            line = one_line(f"{short(view.key)}: {view.shown}: {state_in_words(view)}")
            if self._last_line.get(view.key) != line:
                self._last_line[view.key] = line
                echo(line, file=self._stream)


@contextmanager
def _lines(stream: TextIO) -> Iterator[Display]:
    yield _Lines(stream)


@contextmanager
def _bars(stream: TextIO) -> Iterator[Display]:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    styles = {"Completed": "green", "Failed": "red", "Cancelled": "yellow", "Running": "cyan"}

    class Bars:
        def __init__(self, live: Live) -> None:
            self._live = live

        def show(self, views: Sequence[GroupView]) -> None:
            table = Table.grid(padding=(0, 2))
            for view in views:
                done, active = bar_of(view)
                style = styles.get(view.shown, "")
                bar = Text("█" * done, style).append("▒" * active, "dim")
                bar.append("░" * (_BAR - done - active), "dim")
                name, phase = Text(one_line(short(view.key))), Text(one_line(view.shown), style)
                table.add_row(name, bar, phase, Text(one_line(state_in_words(view)), "dim"))
            self._live.update(table, refresh=True)

    console = Console(file=stream, no_color=not has_colors())
    with Live(console=console, auto_refresh=False, redirect_stdout=False) as live:
        yield Bars(live)
