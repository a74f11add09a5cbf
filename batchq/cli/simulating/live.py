"""`batchq simulate --from-live`: the live state, played on under one configuration or several.

Reads only: the snapshot is taken, and the connection is let go of before anything is played.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from batchq.api.lifecycle import TERMINAL
from batchq.api.times import describe_age
from batchq.cli.ending import tell_nobody_leads
from batchq.cli.options import Globals
from batchq.cli.output import show_data
from batchq.cli.simulating.liveasked import LIVE, AskedOfLive
from batchq.cli.simulating.outputs import check_output, write_whole
from batchq.cli.simulating.progress import Lines
from batchq.cli.terminal import echo
from batchq.cli.trouble import on_interrupt

if TYPE_CHECKING:
    from batchq.client.deciding import Deciding
    from batchq.config.model import SchedulerConfig
    from batchq.sim.fromlive import Future, Lasting, WhatIf
    from batchq.sim.fromlive.stage import Tell


def simulate_live(shared: Globals, asked: AskedOfLive) -> None:
    """Look ahead and show it: the answer to stdout, notes to stderr.

    Raises InvalidInput for a configuration that is wrong, StoreUnavailable.
    """
    from batchq.sim.fromlive import Lasting, compared

    others = _configurations(asked.configs)
    if asked.save is not None:
        check_output(asked.save, "--save", inputs=asked.configs)
    with shared.connect() as client:
        deciding = client.deciding()
        led = client.schedulers().led
    lasting = Lasting(thousandths=asked.thousandths, assumed_ms=asked.assumed_ms)
    if asked.save is not None:
        _save(deciding, lasting, asked.save)
    with on_interrupt("interrupted; nothing was changed"):
        futures = _futures(shared, asked, deciding, lasting, others)
    _show(shared, asked, compared(deciding.session(), futures), lasting)
    if not led:
        tell_nobody_leads()


def _futures(
    shared: Globals,
    asked: AskedOfLive,
    deciding: Deciding,
    lasting: Lasting,
    others: Mapping[str, SchedulerConfig],
) -> dict[str, Future]:
    """By the name of their configuration, the live one first."""
    from batchq.assembly import assemble
    from batchq.sim.fromlive import look_ahead

    schedulers = {LIVE: deciding.scheduler}
    schedulers |= {name: assemble(config) for name, config in others.items()}
    with _progress(deciding, shared) as telling:
        return {
            name: look_ahead(
                deciding.snapshot,
                scheduler,
                now_ms=deciding.now_ms,
                lasting=lasting,
                until_ms=asked.until_ms,
                tell=telling(name),
            )
            for name, scheduler in schedulers.items()
        }


def _show(shared: Globals, asked: AskedOfLive, found: WhatIf, lasting: Lasting) -> None:
    from batchq.cli.simulating.livedata import as_data
    from batchq.cli.simulating.liveview import notes, show_tables

    if asked.output == "json":
        until_ms, differences = asked.until_ms, asked.differences
        show_data(as_data(found, lasting, until_ms=until_ms, differences=differences), "json")
    else:
        show_tables(found, differences=asked.differences, color=shared.color)
    for note in notes(found, assumed_ms=asked.assumed_ms):
        echo(note, err=True)


def _save(deciding: Deciding, lasting: Lasting, file: Path) -> None:
    """Raises InvalidInput where it cannot be written."""
    from batchq.config.documents import print_documents
    from batchq.sim.fromlive import as_world

    text = print_documents(as_world(deciding.session(), lasting))
    write_whole(file, text.encode(), "--save")
    echo(f"{file} has the live state; `batchq simulate {file}` plays it", err=True)


def _configurations(configs: Sequence[Path]) -> dict[str, SchedulerConfig]:
    """By the file's name, or by its path where two have the same name.

    Raises InvalidInput.
    """
    from batchq.cli.config import checked_config

    names = [path.name for path in configs]
    found = {}
    for path in configs:
        alone = names.count(path.name) == 1 and path.name != LIVE
        found[path.name if alone else str(path)] = checked_config(path)
    return found


@contextmanager
def _progress(deciding: Deciding, shared: Globals) -> Iterator[Callable[[str], Tell]]:
    """Shows on stderr how far each future is: a bar on a terminal, else a line now and then; what
    is quick is over before.
    """
    groups = [one for one in deciding.snapshot.groups if one.status.phase not in TERMINAL]
    if not sys.stderr.isatty():
        say = Lines(monotonic, lambda line: echo(line, err=True), "groups")
        yield lambda name: lambda ended, now_ms: say(name, ended, len(groups))
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[ahead]}"),
    )
    console = Console(stderr=True, no_color=not shared.color)
    with Progress(*columns, console=console, transient=True) as bar:

        def telling(name: str) -> Tell:
            task = bar.add_task(name, total=len(groups), ahead="")

            def tell(ended: int, now_ms: int) -> None:
                ahead = f"{describe_age(now_ms - deciding.now_ms)} ahead"
                bar.update(task, completed=ended, ahead=ahead)

            return tell

        yield telling
