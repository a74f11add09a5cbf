"""Alibaba's GPU trace, played (or inflated) under each placement and configuration asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic

from batchq.cli.output import show_data
from batchq.cli.simulating.comparison import side_by_side
from batchq.cli.simulating.figures import starts_csv
from batchq.cli.simulating.given import STDIN, Given
from batchq.cli.simulating.gpuasked import AskedOfPods
from batchq.cli.simulating.gpuview import Inflated, Played, Viewed, as_csv, as_data, counted
from batchq.cli.simulating.outputs import check_output, check_plot, write_whole
from batchq.cli.simulating.progress import Told, progress
from batchq.cli.simulating.runs import Run, runs_of
from batchq.cli.terminal import echo
from batchq.cli.trouble import Interrupted
from batchq.errors import UsageError
from batchq.sim.workload.gpus import GpuWatch
from batchq.sim.workload.inflation import inflate
from batchq.sim.workload.openb import openb_load, shape_of
from batchq.sim.workload.schedule import Schedule
from batchq.sim.workload.stage import play_load
from batchq.traces.openb import WHOLE_GPU, OpenbNode, OpenbPod, read_nodes, read_pods


class _Tables:
    """The two tables, and what is to be done with them."""

    def __init__(self, found: Given, asked: AskedOfPods) -> None:
        self.asked = asked
        self.title = found.path.name
        self.runs: tuple[Run, ...] = runs_of(asked.asked)
        self.nodes: tuple[OpenbNode, ...] = read_nodes(asked.nodes)
        self.pods: tuple[OpenbPod, ...] = read_pods(found.path, most=asked.jobs)


def simulate_pods(found: Given, asked: AskedOfPods, *, color: bool) -> None:
    """Play them, print what it came to, and write the files that are asked for.

    Whatever can be wrong is looked at before the first run. Raises InvalidInput, UsageError;
    Interrupted after Ctrl-C.
    """
    _check_files(found, asked)
    tables = _Tables(found, asked)
    schedules: list[Schedule] = []
    views = _run(tables, schedules, color=color)
    starts = ""
    if asked.starts is not None:
        starts = starts_csv([one.number for one in schedules[0].jobs], schedules)
    try:
        _write_files(tables, starts, views)
    finally:
        # Where a file cannot be written after all, the runs were not for nothing.
        _show(tables, starts, views)


def _check_files(found: Given, asked: AskedOfPods) -> None:
    configs = [Path(one.value) for one in asked.asked if one.option == "--config"]
    inputs = [found.path, asked.nodes, *configs]
    if asked.starts is not None and str(asked.starts) == STDIN:
        if asked.output != "table":
            raise UsageError(
                f"--starts - writes to standard output, and so does -o {asked.output}",
                hint="give --starts a file's name, or leave out -o",
            )
    elif asked.starts is not None:
        check_output(asked.starts, "--starts", inputs=inputs)
        inputs.append(asked.starts)
    if asked.plot is not None:
        check_plot(asked.plot, inputs=inputs)


# --- playing --------------------------------------------------------------------------------


def _run(tables: _Tables, schedules: list[Schedule], *, color: bool) -> list[Viewed]:
    """One run after the other; schedules are added where there are any."""
    views: list[Viewed] = []
    noun = "pods" if tables.asked.inflate is None else "GPUs"
    with progress(len(tables.runs), color=color, noun=noun) as tell:
        for run in tables.runs:
            told = Told(run.name, tell)
            try:
                views.append(_inflated(tables, run, told) or _played(tables, run, told, schedules))
            except KeyboardInterrupt:
                place = f" ({len(views) + 1} of {len(tables.runs)})" if len(tables.runs) > 1 else ""
                raise Interrupted(
                    f"interrupted in run {run.name}{place}, after"
                    f" {told.finished:,} {noun}; nothing was written"
                ) from None
    return views


def _inflated(tables: _Tables, run: Run, told: Told) -> Inflated | None:
    """None if the pods are to come and go as they did."""
    if tables.asked.inflate is None:
        return None
    inflation = inflate(
        tables.nodes,
        tables.pods,
        run.config,
        name=run.name,
        percent=tables.asked.inflate,
        seed=tables.asked.seed,
        tell=lambda arrived, most: told(arrived // WHOLE_GPU, most // WHOLE_GPU),
    )
    return Inflated(run.name, inflation)


def _played(tables: _Tables, run: Run, told: Told, schedules: list[Schedule]) -> Played:
    load = openb_load(
        tables.nodes,
        tables.pods,
        title=tables.title,
        walltimes=tables.asked.walltimes,
        strategy=run.strategy,
    )
    watch = GpuWatch(load, [shape_of(pod) for pod in tables.pods])
    schedule = play_load(
        load, run.config, name=run.name, tell=told, stopwatch=monotonic, look=watch
    )
    schedules.append(schedule)
    return Played(run.name, schedule, watch.use(run.name))


# --- afterwards -----------------------------------------------------------------------------


def _write_files(tables: _Tables, starts: str, views: Sequence[Viewed]) -> None:
    path, plot = tables.asked.starts, tables.asked.plot
    if path is not None and str(path) != STDIN:
        write_whole(path, starts.encode(), "--starts")
    if plot is not None:
        from batchq.sim.workload.gpuplot import drawn

        form = plot.suffix[1:].lower()
        pictures = [one.picture() for one in views]
        write_whole(plot, drawn(_title(tables), pictures, form), "--plot")


def _show(tables: _Tables, starts: str, views: Sequence[Viewed]) -> None:
    output = tables.asked.output
    if tables.asked.starts is not None and str(tables.asked.starts) == STDIN:
        echo(starts, nl=False)
    elif output == "json":
        show_data(as_data(views), "json")
    elif output == "csv":
        echo(as_csv(views), nl=False)
    else:
        echo("\n".join(_report(tables, views)))
        return
    for note in _notes(tables, views):
        echo(note, err=True)


def _report(tables: _Tables, views: Sequence[Viewed]) -> Iterator[str]:
    yield _title(tables)
    yield from _notes(tables, views)
    yield ""
    rows = views[0].rows([one.values() for one in views])
    yield from side_by_side([one.name for one in views], rows)


def _title(tables: _Tables) -> str:
    gpus = counted(sum(node.gpus for node in tables.nodes), "GPU")
    there = f"{counted(len(tables.nodes), 'node')} with {gpus}"
    pods = counted(len(tables.pods), "pod")
    if tables.asked.inflate is None:
        return f"{tables.title}: {pods} on {there}"
    return (
        f"{tables.title}: {pods} on {there}, inflated to {tables.asked.inflate} %"
        f" (seed {tables.asked.seed})"
    )


def _notes(tables: _Tables, views: Sequence[Viewed]) -> Iterator[str]:
    """What is not in the figures, a sentence each."""
    if tables.asked.inflate is not None:
        return
    unrun = sum(pod.run_s == 0 for pod in tables.pods)
    if unrun:
        yield f"{counted(unrun, 'pod')} left out: gone in the second of the creation"
    for one in views:
        waiting = one.values()["waiting"]
        if waiting:
            yield f"{one.name}: {counted(int(waiting), 'pod')} never placed, and in no mean"
