"""How a run is shown: bars on a terminal, a line for each change in a pipe, a summary at the end.

Functions of what was seen; nothing here asks the server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

import click
from msgspec import Struct

from batchq.api.lifecycle import TERMINAL, PodGroupPhase, PodPhase
from batchq.api.objects import Pod
from batchq.api.times import describe_age
from batchq.client.overview import GroupView

_BAR = 20


class Display(Protocol):
    """Shows how far the groups are, again and again."""

    def show(self, views: Sequence[GroupView]) -> None:
        """What is so now."""


def display(stream: TextIO, *, color: bool) -> AbstractContextManager[Display]:
    """Bars where `stream` is a terminal, else lines."""
    return _bars(stream, color=color) if stream.isatty() else _lines(stream)


# --- one group ------------------------------------------------------------------------------


def state_in_words(view: GroupView) -> str:
    """What a group does, or waits for: `3 of 4 pods done`, `WaitingForQuota: needs …`."""
    pods = view.pods
    ended = pods.succeeded + pods.failed
    match view.phase:
        case PodGroupPhase.PENDING:
            first = view.blockers[0] if view.blockers else None
            return f"{first.reason}: {first.message}" if first else "is about to be looked at"
        case PodGroupPhase.IN_QUEUE:
            return f"admitted; {pods.running + ended} of {pods.least} pods have started"
        case PodGroupPhase.COMPLETED:
            return f"{pods.succeeded} of {pods.wanted} pods done"
        case PodGroupPhase.FAILED | PodGroupPhase.CANCELLED:
            stopping = f"; {pods.stopping} pods are being stopped" if pods.stopping else ""
            return f"{view.message or view.reason}{stopping}"
        case _:
            failed = f", {pods.failed} failed" if pods.failed else ""
            return f"{pods.succeeded} of {pods.wanted} pods done{failed}, {pods.running} running"


def bar_of(view: GroupView) -> tuple[int, int]:
    """How much of a bar of `_BAR` is done, and how much beside it runs."""
    pods = view.pods
    whole = max(1, pods.wanted)
    done = _BAR * (pods.succeeded + pods.failed) // whole
    active = _BAR * (pods.succeeded + pods.failed + pods.running) // whole
    return done, active - done


def short_name(view: GroupView) -> str:
    """The name, with the namespace where that is not `default`."""
    return view.key.removeprefix("default/")


# --- live -----------------------------------------------------------------------------------


class _Lines:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._said: dict[str, str] = {}

    def show(self, views: Sequence[GroupView]) -> None:
        for view in views:
            line = f"{short_name(view)}: {view.shown}: {state_in_words(view)}"
            if self._said.get(view.key) != line:
                self._said[view.key] = line
                click.echo(line, file=self._stream)


@contextmanager
def _lines(stream: TextIO) -> Iterator[Display]:
    yield _Lines(stream)


@contextmanager
def _bars(stream: TextIO, *, color: bool) -> Iterator[Display]:
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
                name, phase = Text(short_name(view)), Text(view.shown, style)
                table.add_row(name, bar, phase, Text(state_in_words(view), "dim"))
            self._live.update(table, refresh=True)

    console = Console(file=stream, no_color=not color)
    with Live(console=console, auto_refresh=False, redirect_stdout=False) as live:
        yield Bars(live)


# --- the end --------------------------------------------------------------------------------


class PodOutput(Struct, frozen=True, kw_only=True):
    """A pod's last lines; `count` is how many it wrote in all."""

    pod: str
    count: int
    last: tuple[str, ...]


def summary_rows(views: Sequence[GroupView], pods: Sequence[Pod]) -> list[tuple[str, ...]]:
    """The table of the summary, its header first."""
    rows: list[tuple[str, ...]] = [("GROUP", "PHASE", "PODS", "WAIT", "RUN", "EXIT CODES")]
    for view in views:
        namespace, _, name = view.key.partition("/")
        mine = [
            pod
            for pod in pods
            if pod.metadata.namespace == namespace and pod.spec.pod_group == name
        ]
        rows.append(
            (
                short_name(view),
                view.shown,
                f"{view.pods.succeeded}/{view.pods.wanted}",
                _span(view.created_at, view.started_at or view.finished_at),
                _span(view.started_at, view.finished_at),
                exit_codes(mine),
            )
        )
    return rows


def exit_codes(pods: Sequence[Pod]) -> str:
    """`0 ×4`, `0 ×3, 1`, `signal 9`; `-` where no pod has ended."""
    counts = Counter(_ending(pod) for pod in pods)
    counts.pop("", None)
    ordered = sorted(counts, key=lambda word: (not word.isdigit(), len(word), word))
    return ", ".join(f"{word} ×{counts[word]}" if counts[word] > 1 else word for word in ordered) or "-"


def announced(outputs: Sequence[PodOutput]) -> list[str]:
    """The paths that pods have told by a last line `wrote PATH`."""
    found = []
    for output in outputs:
        word, _, path = output.last[-1].strip().partition(" ") if output.last else ("", "", "")
        if word == "wrote" and path.strip():
            found.append(path.strip())
    return list(dict.fromkeys(found))


def has_ended(view: GroupView) -> bool:
    """Whether the group has, and all of its processes too."""
    return view.phase in TERMINAL and not (
        view.pods.running or view.pods.bound or view.pods.stopping
    )


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns, nothing cut off."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _ending(pod: Pod) -> str:
    status = pod.status
    if status.phase not in (PodPhase.SUCCEEDED, PodPhase.FAILED):
        return ""
    if status.signal is not None:
        return f"signal {status.signal}"
    return "" if status.exit_code is None else str(status.exit_code)


def _span(start: int | None, end: int | None) -> str:
    if start is None or end is None:
        return "-"
    seconds = max(0, end - start) / 1000
    return f"{seconds:.1f}s" if seconds < 60 else describe_age(max(0, end - start))
