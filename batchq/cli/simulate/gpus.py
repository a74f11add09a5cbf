"""`batchq simulate PODS.csv`: Alibaba's GPU trace; its options, runs and report."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import click
import msgspec

from batchq.cli.output.forms import show_data
from batchq.cli.output.progress import progress
from batchq.cli.output.terminal import Interrupted, echo
from batchq.cli.simulate.inputs import (
    STDIN,
    Given,
    InputKind,
    check_output,
    check_plot,
    write_whole,
)
from batchq.cli.simulate.job_logs import (
    ComparisonRow,
    RequestedRun,
    Run,
    RunProgress,
    requested_runs,
    runs_of,
    side_by_side,
    span,
    starts_csv,
)
from batchq.errors import UsageError
from batchq.lab.workload.gpu_usage import (
    GpuLevel,
    GpuUse,
    GpuWatch,
    Inflation,
    Point,
    inflate,
    openb_load,
    shape_of,
)
from batchq.lab.workload.play import play_load
from batchq.lab.workload.plot import Curve, GpuPicture
from batchq.lab.workload.schedule import Schedule, figures_of
from batchq.lab.workload.traces import WHOLE_GPU, OpenbNode, OpenbPod, read_nodes, read_pods

F = TypeVar("F", bound=Callable[..., Any])

_FILE = click.Path(path_type=Path)
_PLACEMENTS = ("binpack", "spread")
_MOST_PERCENT = 1000
_DEFAULT_SEED = 42

#: Parameter -> option, of the options for a table of pods only.
_OF_PODS = {
    "nodes": "--nodes",
    "placements": "--placement",
    "inflate": "--inflate",
    "seed": "--seed",
    "walltimes": "--walltimes",
}
#: Parameter -> option, of the options that do not apply to a table of pods.
_NOT_OF_PODS = {
    "cycles": "--cycles",
    "procs": "--procs",
    "passes": "--pass",
    "by": "--by",
    "queues": "--queues",
}
#: Options that are meaningless if pods are tried once and stay.
_NOT_WITH_INFLATE = {"policies": "--policy", "walltimes": "--walltimes", "starts": "--starts"}


class PodsRequest(NamedTuple):
    """The options of a simulation of a table of pods. `inflate` is in percent of the GPUs."""

    asked: tuple[RequestedRun, ...]
    nodes: Path
    inflate: int | None
    seed: int
    walltimes: Literal["none", "runtime"]
    jobs: int | None
    output: str
    starts: Path | None
    plot: Path | None


def pods_options(command: F) -> F:
    """Add the options of a table of pods."""
    options = (
        click.option(
            "--nodes",
            type=_FILE,
            metavar="NODES.csv",
            help="A table of pods only: the table of the cluster's nodes.",
        ),
        click.option(
            "--placement",
            "placements",
            type=click.Choice(_PLACEMENTS),
            multiple=True,
            help="A table of pods only: fill nodes up, or spread pods over them; repeatable, one"
            " run each. Without --placement, --policy and --config: both.",
        ),
        click.option(
            "--inflate",
            type=click.IntRange(1, _MOST_PERCENT),
            metavar="PERCENT",
            help="A table of pods only: pods come in random order and stay, until they request this"
            " share of the cluster's GPUs, as in 130.",
        ),
        click.option(
            "--seed",
            type=click.IntRange(min=0),
            metavar="N",
            help=f"With --inflate: the seed of the random order.  [default: {_DEFAULT_SEED}]",
        ),
        click.option(
            "--walltimes",
            type=click.Choice(["none", "runtime"]),
            help="A table of pods only: the walltime of pods: none (the default), or their actual"
            " run time.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def pods_request(context: click.Context, found: Given) -> PodsRequest | None:
    """Return the options of a table of pods; None for another input.

    Raises UsageError for options that exclude each other.
    """
    given = context.params
    if found.kind is not InputKind.PODS:
        what = f"{found.source} is {found.kind.value}"
        _refuse(given, _OF_PODS, f"is for a table of pods, but {what}")
        return None
    _refuse(
        given, _NOT_OF_PODS, f"cannot be combined with a table of pods, but {found.source} is one"
    )
    if given["nodes"] is None:
        raise UsageError(
            f"{found.source} is a table of pods, which needs the table of their nodes",
            hint="add --nodes NODES.csv",
        )
    if given["inflate"] is not None:
        _refuse(given, _NOT_WITH_INFLATE, "cannot be combined with --inflate")
    elif given["seed"] is not None:
        raise UsageError("--seed needs --inflate; without it nothing is random")
    return PodsRequest(
        asked=requested_runs(context)
        or tuple(RequestedRun("--placement", placement) for placement in _PLACEMENTS),
        nodes=given["nodes"],
        inflate=given["inflate"],
        seed=_DEFAULT_SEED if given["seed"] is None else given["seed"],
        walltimes=given["walltimes"] or "none",
        jobs=given["jobs"],
        output=given["output"],
        starts=given["starts"],
        plot=given["plot"],
    )


def _refuse(given: dict[str, Any], options: dict[str, str], why: str) -> None:
    for name, option in options.items():
        if given[name] not in (None, ()):
            raise UsageError(f"{option} {why}")


Values: TypeAlias = Mapping[str, float | None]
#: A figure's name, its title in the table, how to write it, and which value is the best.
_Line: TypeAlias = tuple[
    str, str, Callable[[float], str], Callable[[Sequence[float]], float] | None
]

_DAY_S = 86_400


class Played(NamedTuple):
    """One run in which pods came and went at their recorded times."""

    name: str
    schedule: Schedule
    use: GpuUse

    def values(self) -> Values:
        """Return every figure by its name."""
        jobs = self.schedule.jobs
        placed = sum(one.first_start_s is not None for one in jobs)
        levels: tuple[tuple[str, GpuLevel], ...] = (
            ("gpu_allocation", self.use.allocation),
            ("gpu_fragmentation", self.use.fragmentation),
            ("gpu_fragmentation_of_free", self.use.fragmentation_of_free),
            ("stranded_nodes", self.use.stranded_nodes),
        )
        found: dict[str, float | None] = msgspec.to_builtins(figures_of(self.schedule))
        found |= {"placed": placed, "waiting": len(jobs) - placed}
        for name, level in levels:
            found |= {f"{name}_{part}": value for part, value in _parts(level)}
        return found

    def data(self) -> dict[str, object]:
        """Return the figures for JSON."""
        return dict(self.values())

    @staticmethod
    def rows(columns: Sequence[Values]) -> list[ComparisonRow]:
        """Return the lines of the table, with a value for each run."""
        lines: list[_Line] = [
            ("jobs", "Pods", _count, None),
            ("placed", "Placed", _count, max),
            ("waiting", "Never placed", _count, min),
            ("mean_wait_s", "Wait, mean", span, min),
            ("median_wait_s", "Wait, median", span, min),
            ("p95_wait_s", "Wait, 95 % within", span, min),
            ("max_wait_s", "Wait, longest", span, min),
            ("gpu_allocation_mean", "GPUs allocated, mean", _percent, None),
            ("gpu_allocation_peak", "GPUs allocated, peak", _percent, None),
            ("gpu_allocation_final", "GPUs allocated, at last arrival", _percent, None),
            ("gpu_fragmentation_mean", "Fragments of all GPUs, mean", _percent, min),
            ("gpu_fragmentation_peak", "Fragments of all GPUs, peak", _percent, min),
            ("gpu_fragmentation_final", "Fragments of all GPUs, at last arrival", _percent, min),
            ("gpu_fragmentation_of_free_mean", "Fragments of free GPUs, mean", _percent, min),
            ("gpu_fragmentation_of_free_peak", "Fragments of free GPUs, peak", _percent, min),
            (
                "gpu_fragmentation_of_free_final",
                "Fragments of free GPUs, at last arrival",
                _percent,
                min,
            ),
            ("stranded_nodes_mean", "Stranded nodes, mean", _decimal, min),
            ("stranded_nodes_peak", "Stranded nodes, peak", _count, min),
            ("makespan_s", "Makespan", span, min),
            ("evictions", "Evictions", _count, min),
        ]
        return _rows(lines, columns)

    def picture(self) -> GpuPicture:
        """Return what to plot over the days since the first pod came."""
        use = self.use
        start = use.over_time[0].at_s if use.over_time else 0
        middles = [(one.at_s + one.long_s / 2 - start) / _DAY_S for one in use.over_time]

        def curve(values: Sequence[float]) -> Curve:
            return Curve(x=tuple(middles), y=tuple(100 * value for value in values))

        return GpuPicture(
            name=self.name,
            words=f"{_percent(use.allocation.mean)} allocated and"
            f" {_percent(use.fragmentation.mean)} fragmented on average,"
            f" mean wait {span(figures_of(self.schedule).mean_wait_s or 0)}",
            along="days since the first pod came",
            allocation=curve([use.allocated(one) for one in use.over_time]),
            fragmentation=curve([use.fragmented(one) for one in use.over_time]),
            of_free=curve([use.fragmented_of_free(one) for one in use.over_time]),
        )


class Inflated(NamedTuple):
    """One run in which pods came until the cluster was more than full."""

    name: str
    inflation: Inflation

    def values(self) -> Values:
        """Return every figure at the end, by its name."""
        run, last = self.inflation, self.inflation.last
        failed = run.first_failed
        return {
            "pods": last.pods,
            "placed": last.placed,
            "failed": last.pods - last.placed,
            "arrived": last.arrived / run.capacity,
            "first_failed_at": None if failed is None else failed / run.capacity,
            "gpu_allocation_at_100": run.allocation_when_all_was_asked_for,
            **_of_reading(last),
        }

    def data(self) -> dict[str, object]:
        """Return the figures for JSON, and the points on the way there."""
        points = [
            {
                "arrived": point.arrived / self.inflation.capacity,
                "pods": point.pods,
                "placed": point.placed,
                **_of_reading(point),
            }
            for point in self.inflation.points
        ]
        return {**self.values(), "points": points}

    @staticmethod
    def rows(columns: Sequence[Values]) -> list[ComparisonRow]:
        """Return the lines of the table, with a value for each run."""
        lines: list[_Line] = [
            ("pods", "Pods that came", _count, None),
            ("arrived", "GPUs asked for", _percent, None),
            ("placed", "Placed", _count, max),
            ("failed", "Not placed", _count, min),
            ("first_failed_at", "First not placed at", _percent, max),
            ("gpu_allocation_at_100", "GPUs allocated at 100 %", _hundredths, max),
            ("gpu_allocation", "GPUs allocated", _hundredths, max),
            ("gpu_fragmentation", "Fragments of all GPUs", _hundredths, min),
            ("gpu_fragmentation_of_free", "Fragments of free GPUs", _hundredths, min),
            ("stranded_nodes", "Stranded nodes", _count, min),
            ("stranded_gpus", "GPUs free on them", _decimal, min),
        ]
        return _rows(lines, columns)

    def picture(self) -> GpuPicture:
        """Return what to plot over the requested percentage of the cluster's GPUs."""
        run, last = self.inflation, self.inflation.last.reading
        points = run.points
        arrived = tuple(100 * one.arrived / run.capacity for one in points)

        def curve(values: Sequence[float]) -> Curve:
            return Curve(x=arrived, y=tuple(100 * value for value in values))

        return GpuPicture(
            name=self.name,
            words=f"{_hundredths(last.allocation)} allocated in the end,"
            f" {_hundredths(last.fragmentation)} fragments",
            along="requested GPUs, in % of all GPUs",
            allocation=curve([one.reading.allocation for one in points]),
            fragmentation=curve([one.reading.fragmentation for one in points]),
            of_free=curve([one.reading.fragmentation_of_free for one in points]),
            ideal=True,
        )


#: All runs of one command are of one kind.
Viewed: TypeAlias = Played | Inflated


def as_data(views: Sequence[Viewed]) -> dict[str, object]:
    """Return the JSON form: one run's figures, or those of all runs under `runs`."""
    if len(views) == 1:
        return views[0].data()
    return {"runs": [{"name": one.name, **one.data()} for one in views]}


def as_csv(views: Sequence[Viewed]) -> str:
    """Return a row for each run; a missing figure is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", *views[0].values()])
    writer.writerows([one.name, *one.values().values()] for one in views)
    return text.getvalue()


def counted(count: int, noun: str) -> str:
    """Return e.g. `1 pod` or `8,152 pods`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _of_reading(point: Point) -> dict[str, float]:
    reading = point.reading
    return {
        "gpu_allocation": reading.allocation,
        "gpu_fragmentation": reading.fragmentation,
        "gpu_fragmentation_of_free": reading.fragmentation_of_free,
        "stranded_nodes": reading.stranded,
        "stranded_gpus": reading.stranded_gpu / WHOLE_GPU,
    }


def _parts(level: GpuLevel) -> tuple[tuple[str, float], ...]:
    return (("mean", level.mean), ("peak", level.peak), ("final", level.final))


def _rows(lines: Sequence[_Line], columns: Sequence[Values]) -> list[ComparisonRow]:
    return [
        ComparisonRow(title, [values[name] for values in columns], text, best)
        for name, title, text, best in lines
    ]


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _decimal(value: float) -> str:
    return f"{value:,.1f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _hundredths(value: float) -> str:
    return f"{100 * value:.2f} %"


class _GpuTables:
    """The two tables, and the runs."""

    def __init__(self, found: Given, asked: PodsRequest) -> None:
        self.asked = asked
        self.title = found.path.name
        self.runs: tuple[Run, ...] = runs_of(asked.asked)
        self.nodes: tuple[OpenbNode, ...] = read_nodes(asked.nodes)
        self.pods: tuple[OpenbPod, ...] = read_pods(found.path, most=asked.jobs)


def simulate_pods(found: Given, asked: PodsRequest) -> None:
    """Simulate a table of pods, print the report, and write the requested files.

    All inputs are checked before the first run. Raises InvalidInput, UsageError; Interrupted after
    Ctrl-C.
    """
    _check_files(found, asked)
    tables = _GpuTables(found, asked)
    schedules: list[Schedule] = []
    views = _run(tables, schedules)
    starts = ""
    if asked.starts is not None:
        starts = starts_csv([one.number for one in schedules[0].jobs], schedules)
    try:
        _write_files(tables, starts, views)
    finally:
        # If a file cannot be written after all, the report is printed nevertheless.
        _show(tables, starts, views)


def _check_files(found: Given, asked: PodsRequest) -> None:
    configs = [Path(one.value) for one in asked.asked if one.option == "--config"]
    inputs = [found.path, asked.nodes, *configs]
    if asked.starts is not None and str(asked.starts) == STDIN:
        if asked.output != "table":
            raise UsageError(
                f"--starts - writes to standard output, but so does -o {asked.output}",
                hint="give --starts a file's name, or leave out -o",
            )
    elif asked.starts is not None:
        check_output(asked.starts, "--starts", inputs=inputs)
        inputs.append(asked.starts)
    if asked.plot is not None:
        check_plot(asked.plot, inputs=inputs)


# --- simulation -----------------------------------------------------------------------------


def _run(tables: _GpuTables, schedules: list[Schedule]) -> list[Viewed]:
    """Simulate one run after the other; append its schedule, if it has one."""
    views: list[Viewed] = []
    noun = "pods" if tables.asked.inflate is None else "GPUs"
    with progress(noun) as tell:
        for run in tables.runs:
            progressed = RunProgress(run.name, len(tables.runs), len(views), tell)
            try:
                views.append(
                    _inflated(tables, run, progressed)
                    or _played(tables, run, progressed, schedules)
                )
            except KeyboardInterrupt:
                place = f" ({len(views) + 1} of {len(tables.runs)})" if len(tables.runs) > 1 else ""
                raise Interrupted(
                    f"interrupted in run {run.name}{place}, after"
                    f" {progressed.finished:,} {noun}; nothing was written"
                ) from None
    return views


def _inflated(tables: _GpuTables, run: Run, progressed: RunProgress) -> Inflated | None:
    """Simulate an inflation; None without --inflate."""
    if tables.asked.inflate is None:
        return None
    inflation = inflate(
        tables.nodes,
        tables.pods,
        run.config,
        name=run.name,
        percent=tables.asked.inflate,
        seed=tables.asked.seed,
        tell=lambda arrived, most: progressed(arrived // WHOLE_GPU, most // WHOLE_GPU),
    )
    return Inflated(run.name, inflation)


def _played(
    tables: _GpuTables, run: Run, progressed: RunProgress, schedules: list[Schedule]
) -> Played:
    load = openb_load(
        tables.nodes,
        tables.pods,
        title=tables.title,
        walltimes=tables.asked.walltimes,
        strategy=run.strategy,
    )
    watch = GpuWatch(load, [shape_of(pod) for pod in tables.pods])
    schedule = play_load(
        load, run.config, name=run.name, tell=progressed, stopwatch=monotonic, look=watch
    )
    schedules.append(schedule)
    return Played(run.name, schedule, watch.use(run.name))


# --- report ---------------------------------------------------------------------------------


def _write_files(tables: _GpuTables, starts: str, views: Sequence[Viewed]) -> None:
    path, plot = tables.asked.starts, tables.asked.plot
    if path is not None and str(path) != STDIN:
        write_whole(path, starts.encode(), "--starts")
    if plot is not None:
        from batchq.lab.workload.plot import drawn_gpus

        form = plot.suffix[1:].lower()
        pictures = [one.picture() for one in views]
        write_whole(plot, drawn_gpus(_title(tables), pictures, form), "--plot")


def _show(tables: _GpuTables, starts: str, views: Sequence[Viewed]) -> None:
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


def _report(tables: _GpuTables, views: Sequence[Viewed]) -> Iterator[str]:
    yield _title(tables)
    yield from _notes(tables, views)
    yield ""
    rows = views[0].rows([one.values() for one in views])
    yield from side_by_side([one.name for one in views], rows)


def _title(tables: _GpuTables) -> str:
    gpus = counted(sum(node.gpus for node in tables.nodes), "GPU")
    there = f"{counted(len(tables.nodes), 'node')} with {gpus}"
    pods = counted(len(tables.pods), "pod")
    if tables.asked.inflate is None:
        return f"{tables.title}: {pods} on {there}"
    return (
        f"{tables.title}: {pods} on {there}, inflated to {tables.asked.inflate} %"
        f" (seed {tables.asked.seed})"
    )


def _notes(tables: _GpuTables, views: Sequence[Viewed]) -> Iterator[str]:
    """Yield what the figures do not show, a sentence each."""
    if tables.asked.inflate is not None:
        return
    unrun = sum(pod.run_s == 0 for pod in tables.pods)
    if unrun:
        yield f"{counted(unrun, 'pod')} left out: deleted in the second of their creation"
    for one in views:
        waiting = one.values()["waiting"]
        if waiting:
            yield f"{one.name}: {counted(int(waiting), 'pod')} never placed, and not in the means"
