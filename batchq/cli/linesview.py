"""How far a file of many lines is, on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from batchq.cli.terminal import echo

#: Up to which line it has come.
Tell = Callable[[int], None]

#: A bar is drawn no more often.
_BETWEEN_DRAWINGS_S = 0.1


@contextmanager
def progress(doing: str, lines: int, *, color: bool) -> Iterator[Tell]:
    """Something to tell; of `lines` in all."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        from batchq.cli.simulating.progress import Lines

        said = Lines(monotonic, lambda line: echo(line, err=True), "lines")
        yield lambda done: said(doing, done, lines)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}/s"),
        TimeRemainingColumn(),
    )
    started = drawn_at = monotonic()
    with Progress(
        *columns, console=Console(stderr=True, no_color=not color), transient=True
    ) as bar:
        task = bar.add_task(doing, total=lines, rate="-")

        def tell(done: int) -> None:
            nonlocal drawn_at
            now = monotonic()
            if now - drawn_at >= _BETWEEN_DRAWINGS_S:
                drawn_at = now
                bar.update(task, completed=done, rate=f"{done / (now - started):,.0f}")

        yield tell
