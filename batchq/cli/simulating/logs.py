"""The log of a real machine, played under each policy and configuration that is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from batchq.cli.output import show_data
from batchq.cli.simulating.asked import Asked
from batchq.cli.simulating.comparison import comparison, tenants_table
from batchq.cli.simulating.figures import Result, as_csv, as_data, result_of, starts_csv
from batchq.cli.simulating.given import STDIN, Given
from batchq.cli.simulating.outputs import check_output, check_plot, write_whole
from batchq.cli.simulating.progress import Told, progress
from batchq.cli.simulating.runs import Run, queues_of, runs_of
from batchq.cli.terminal import echo
from batchq.cli.trouble import Interrupted
from batchq.errors import UsageError
from batchq.sim.workload.load import By, Load, swf_load
from batchq.sim.workload.schedule import Schedule
from batchq.sim.workload.stage import play_load
from batchq.traces import Trace, read_swf

if TYPE_CHECKING:
    from collections.abc import Callable


class Wish(NamedTuple):
    """What the command line asks for; fields are its options."""

    asked: tuple[Asked, ...]
    jobs: int | None
    procs: int | None
    per_event: bool
    by: By | None
    queues: Path | None
    output: str
    starts: Path | None
    plot: Path | None


def simulate_log(log: Given, wish: Wish, *, color: bool) -> None:
    """Play it, print what it came to, and write the files that are asked for.

    Whatever can be wrong is looked at before the first run. Raises InvalidInput, UsageError;
    Interrupted after Ctrl-C.
    """
    _check_files(log, wish)
    runs = runs_of(wish.asked)
    queues = queues_of(wish.queues)
    trace = read_swf(log.path, processors=wish.procs, most=wish.jobs)

    def load(run: Run) -> Load:
        return swf_load(
            trace, title=log.path.name, strategy=run.strategy, by=wish.by, queues=queues
        )

    schedules = _play(runs, load, per_event=wish.per_event, color=color)
    results = [result_of(one, by_tenant=wish.by is not None) for one in schedules]
    starts = starts_csv([job.number for job in trace.jobs], schedules) if wish.starts else ""
    try:
        _write_files(wish, starts, schedules)
    finally:
        # Where a file cannot be written after all, the runs were not for nothing.
        _show(wish, log, trace, results, starts)


# --- before ---------------------------------------------------------------------------------


def _check_files(log: Given, wish: Wish) -> None:
    configs = [Path(one.value) for one in wish.asked if one.option == "--config"]
    inputs = [log.path, *configs, *([wish.queues] if wish.queues else [])]
    if wish.starts is not None and str(wish.starts) == STDIN:
        if wish.output != "table":
            raise UsageError(
                f"--starts - writes to standard output, and so does -o {wish.output}",
                hint="give --starts a file's name, or leave out -o",
            )
    elif wish.starts is not None:
        check_output(wish.starts, "--starts", inputs=inputs)
    if wish.plot is not None:
        check_plot(wish.plot, inputs=inputs)
        if wish.starts is not None and wish.plot.resolve() == wish.starts.resolve():
            raise UsageError(f"--plot {wish.plot}: --starts writes the same file")


# --- playing --------------------------------------------------------------------------------


def _play(
    runs: Sequence[Run], load: Callable[[Run], Load], *, per_event: bool, color: bool
) -> list[Schedule]:
    """One run after the other. Raises Interrupted, which says how far it was."""
    schedules: list[Schedule] = []
    with progress(len(runs), color=color) as tell:
        for run in runs:
            told = Told(run.name, tell)
            try:
                schedules.append(
                    play_load(
                        load(run),
                        run.config,
                        name=run.name,
                        per_event=per_event,
                        tell=told,
                        stopwatch=monotonic,
                    )
                )
            except KeyboardInterrupt:
                place = f" ({len(schedules) + 1} of {len(runs)})" if len(runs) > 1 else ""
                raise Interrupted(
                    f"interrupted in run {run.name}{place}, when"
                    f" {_number(told.finished, 'job')} had finished; nothing was written"
                ) from None
    return schedules


# --- afterwards -----------------------------------------------------------------------------


def _write_files(wish: Wish, starts: str, schedules: Sequence[Schedule]) -> None:
    if wish.starts is not None and str(wish.starts) != STDIN:
        write_whole(wish.starts, starts.encode(), "--starts")
    if wish.plot is not None:
        from batchq.sim.workload.plot import drawn
        from batchq.sim.workload.series import picture_of

        picture = picture_of(schedules, tenants=wish.by is not None)
        write_whole(wish.plot, drawn(picture, wish.plot.suffix[1:].lower()), "--plot")


def _show(wish: Wish, log: Given, trace: Trace, results: Sequence[Result], starts: str) -> None:
    if wish.starts is not None and str(wish.starts) == STDIN:
        echo(starts, nl=False)
    elif wish.output == "json":
        show_data(as_data(results), "json")
    elif wish.output == "csv":
        echo(as_csv(results), nl=False)
    else:
        echo("\n".join(_report(wish, log, trace, results)))
        return
    for note in _notes(trace, results):
        echo(note, err=True)


def _report(wish: Wish, log: Given, trace: Trace, results: Sequence[Result]) -> Iterator[str]:
    pass_ = "one session per event" if wish.per_event else "one session per instant"
    jobs, machine = _number(len(trace.jobs), "job"), _number(trace.processors, "processor")
    yield f"{log.path.name}: {jobs} on {machine}, {pass_}"
    yield from _notes(trace, results)
    yield ""
    yield from comparison(results)
    for one in results:
        if one.tenants is not None:
            yield ""
            of = f" of {one.name}" if len(results) > 1 else ""
            yield f"By {wish.by}{of}:"
            yield from tenants_table(one)


def _notes(trace: Trace, results: Sequence[Result]) -> Iterator[str]:
    """What is not in the figures, a sentence each."""
    if trace.dropped:
        were = "was" if trace.dropped == 1 else "were"
        yield (
            f"{_number(trace.dropped, 'job')} {were} left out: too large, or processors, run time"
            " or request unknown"
        )
    for one in results:
        missing = one.figures.jobs - one.figures.finished
        if missing:
            were = "is" if missing == 1 else "are"
            yield f"{one.name}: {_number(missing, 'job')} did not finish, and {were} in no mean"


def _number(count: int, noun: str) -> str:
    """`1 job`, `5,000 jobs`"""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
