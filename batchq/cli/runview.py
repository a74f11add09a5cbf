"""How a run is shown: bars on a terminal, a line for each change in a pipe, a summary at the end.

Functions of what was seen; nothing here asks the server.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol, TextIO

from msgspec import Struct

from batchq.api.lifecycle import TERMINAL, PodGroupPhase, PodPhase
from batchq.api.names import counted
from batchq.api.objects import Pod
from batchq.api.times import describe_age
from batchq.cli.ending import ending_text
from batchq.cli.output import aligned, one_line
from batchq.cli.terminal import echo
from batchq.cli.trouble import EXIT_GROUP_CANCELLED, EXIT_GROUP_FAILED
from batchq.client.overview import GroupView

_BAR = 20
#: The output of so many pods is quoted at the end.
_PODS_QUOTED = 6
#: A shell's exit code for a program that a signal has ended.
_SIGNALLED = 128


class Display(Protocol):
    """Shows how far the groups are, again and again."""

    def show(self, views: Sequence[GroupView]) -> None:
        """What is so now."""


def display(stream: TextIO, *, color: bool) -> AbstractContextManager[Display]:
    """Bars where `stream` is a terminal, else lines."""
    lively = stream.isatty() and os.environ.get("TERM") != "dumb"
    return _bars(stream, color=color) if lively else _lines(stream)


# --- one group ------------------------------------------------------------------------------


def state_in_words(view: GroupView) -> str:
    """What a group does, or waits for: `3 of 4 pods done`, `WaitingForQuota: needs …`."""
    pods = view.pods
    ended = pods.succeeded + pods.failed
    wanted = counted(pods.wanted, "pod")
    match view.phase:
        case PodGroupPhase.PENDING:
            first = view.blockers[0] if view.blockers else None
            return f"{first.reason}: {first.message}" if first else "is about to be looked at"
        case PodGroupPhase.IN_QUEUE:
            return f"admitted; {pods.running + ended} of {counted(pods.least, 'pod')} started"
        case PodGroupPhase.COMPLETED:
            return f"{pods.succeeded} of {wanted} done"
        case PodGroupPhase.FAILED | PodGroupPhase.CANCELLED:
            stopping = f"; {counted(pods.stopping, 'pod')} still stopping" if pods.stopping else ""
            return f"{view.message or view.reason}{stopping}"
        case _:
            failed = f", {pods.failed} failed" if pods.failed else ""
            return f"{pods.succeeded} of {wanted} done{failed}, {pods.running} running"


def bar_of(view: GroupView) -> tuple[int, int]:
    """How much of a bar of `_BAR` is done, and how much beside it runs."""
    pods = view.pods
    whole = max(1, pods.wanted)
    done = _BAR * (pods.succeeded + pods.failed) // whole
    active = _BAR * (pods.succeeded + pods.failed + pods.running) // whole
    return done, active - done


def short(key: str) -> str:
    """A group's key, without the namespace where that is `default`."""
    return key.removeprefix("default/")


# --- live -----------------------------------------------------------------------------------


class _Lines:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._said: dict[str, str] = {}

    def show(self, views: Sequence[GroupView]) -> None:
        for view in views:
            line = one_line(f"{short(view.key)}: {view.shown}: {state_in_words(view)}")
            if self._said.get(view.key) != line:
                self._said[view.key] = line
                echo(line, file=self._stream)


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
                name, phase = Text(one_line(short(view.key))), Text(one_line(view.shown), style)
                table.add_row(name, bar, phase, Text(one_line(state_in_words(view)), "dim"))
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


def result(
    views: Sequence[GroupView], pods: Sequence[Pod], outputs: Sequence[PodOutput], folder: Path
) -> Iterator[str]:
    """All that is said at the end, line by line."""
    yield from aligned(summary_rows(views, pods))
    for view in views:
        if view.phase != PodGroupPhase.COMPLETED:
            ending = one_line(ending_text(view.phase, view.reason, view.message))
            if ending != view.phase:
                yield f"{short(view.key)}: {ending}"
    yield from _last_words(outputs, failed_in(pods))
    yield ""
    logs = f"Logs of {counted(len(outputs), 'pod')}: {folder}"
    yield logs if outputs else "The pods have written nothing"
    for path in announced(outputs):
        yield f"Written: {path}"


def verdict(views: Sequence[GroupView], pods: Sequence[Pod], *, exit_code: bool) -> int:
    """The command's exit code; with `exit_code` the single pod's own, as a shell has it."""
    phases = {view.phase for view in views}
    if exit_code and len(pods) == 1 and PodGroupPhase.CANCELLED not in phases:
        status = pods[0].status
        if status.signal is not None:
            return _SIGNALLED + status.signal
        if status.exit_code is not None:
            return status.exit_code
    if PodGroupPhase.FAILED in phases:
        return EXIT_GROUP_FAILED
    return EXIT_GROUP_CANCELLED if PodGroupPhase.CANCELLED in phases else 0


def failed_in(pods: Sequence[Pod]) -> frozenset[str]:
    """The names of the pods that have failed."""
    return frozenset(pod.metadata.name for pod in pods if pod.status.phase == PodPhase.FAILED)


def _last_words(outputs: Sequence[PodOutput], failed: Collection[str]) -> Iterator[str]:
    """The last lines of pods that have failed, one line of each that has not."""
    ordered = sorted(outputs, key=lambda output: output.pod not in failed)
    rows = []
    for output in ordered[:_PODS_QUOTED]:
        if output.pod not in failed:
            rows.append((f"{output.pod}:", one_line(output.last[-1]) if output.last else ""))
            continue
        yield ""
        shown = f"the last {counted(len(output.last), 'line')} of {output.count}"
        yield f"{output.pod}: {shown if output.count > len(output.last) else 'all it wrote'}"
        yield from (f"    {line}" for line in output.last)
    if rows:
        yield ""
        yield from aligned(rows)
    if len(outputs) > _PODS_QUOTED:
        yield f"… and {counted(len(outputs) - _PODS_QUOTED, 'more pod')}"


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
                short(view.key),
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
    return (
        ", ".join(f"{word} ×{counts[word]}" if counts[word] > 1 else word for word in ordered)
        or "-"
    )


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
