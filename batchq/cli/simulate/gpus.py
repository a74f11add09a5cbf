"""`batchq simulate PODS.csv`: Alibaba's GPU trace; its options, runs and report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import click
import msgspec

from batchq.cli.simulate.job_logs import starts_csv
from batchq.cli.simulate.runs import (
    Destination,
    Figure,
    Given,
    InputKind,
    RequestedRun,
    Run,
    RunProgress,
    Values,
    numbered,
    percent,
    play_each,
    requested_runs,
    runs_of,
    side_by_side,
    span,
    whole,
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
    to: Destination


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
        to=Destination(given["output"], given["starts"], given["plot"]),
    )


def _refuse(given: dict[str, Any], options: dict[str, str], why: str) -> None:
    for name, option in options.items():
        if given[name] not in (None, ()):
            raise UsageError(f"{option} {why}")


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

    def picture(self) -> GpuPicture:
        """Return what to plot over the days since the first pod came."""
        use = self.use
        start = use.over_time[0].at_s if use.over_time else 0
        middles = [(one.at_s + one.long_s / 2 - start) / _DAY_S for one in use.over_time]
        curve = partial(_curve, middles)
        return GpuPicture(
            name=self.name,
            words=f"{percent(use.allocation.mean)} allocated and"
            f" {percent(use.fragmentation.mean)} fragmented on average,"
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

    def picture(self) -> GpuPicture:
        """Return what to plot over the requested percentage of the cluster's GPUs."""
        run, last = self.inflation, self.inflation.last.reading
        points = run.points
        curve = partial(_curve, [100 * one.arrived / run.capacity for one in points])
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


def _curve(along: Sequence[float], parts: Sequence[float]) -> Curve:
    """Return the curve of parts of one, in percent."""
    return Curve(x=tuple(along), y=tuple(100 * part for part in parts))


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


def _decimal(value: float) -> str:
    return f"{value:,.1f}"


def _hundredths(value: float) -> str:
    return f"{100 * value:.2f} %"


def _percentages(
    name: str, title: str, best: Callable[[Sequence[float]], float] | None = None
) -> Iterator[Figure]:
    for part, when in (("mean", "mean"), ("peak", "peak"), ("final", "at last arrival")):
        yield Figure(f"{name}_{part}", f"{title}, {when}", percent, best)


_PLAYED = (
    Figure("jobs", "Pods", whole),
    Figure("placed", "Placed", whole, max),
    Figure("waiting", "Never placed", whole, min),
    Figure("mean_wait_s", "Wait, mean", span, min),
    Figure("median_wait_s", "Wait, median", span, min),
    Figure("p95_wait_s", "Wait, 95 % within", span, min),
    Figure("max_wait_s", "Wait, longest", span, min),
    *_percentages("gpu_allocation", "GPUs allocated"),
    *_percentages("gpu_fragmentation", "Fragments of all GPUs", min),
    *_percentages("gpu_fragmentation_of_free", "Fragments of free GPUs", min),
    Figure("stranded_nodes_mean", "Stranded nodes, mean", _decimal, min),
    Figure("stranded_nodes_peak", "Stranded nodes, peak", whole, min),
    Figure("makespan_s", "Makespan", span, min),
    Figure("evictions", "Evictions", whole, min),
)
_INFLATED = (
    Figure("pods", "Pods that came", whole),
    Figure("arrived", "GPUs asked for", percent),
    Figure("placed", "Placed", whole, max),
    Figure("failed", "Not placed", whole, min),
    Figure("first_failed_at", "First not placed at", percent, max),
    Figure("gpu_allocation_at_100", "GPUs allocated at 100 %", _hundredths, max),
    Figure("gpu_allocation", "GPUs allocated", _hundredths, max),
    Figure("gpu_fragmentation", "Fragments of all GPUs", _hundredths, min),
    Figure("gpu_fragmentation_of_free", "Fragments of free GPUs", _hundredths, min),
    Figure("stranded_nodes", "Stranded nodes", whole, min),
    Figure("stranded_gpus", "GPUs free on them", _decimal, min),
)


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
    configs = [Path(one.value) for one in asked.asked if one.option == "--config"]
    asked.to.check([found.path, asked.nodes, *configs])
    tables = _GpuTables(found, asked)
    noun = "pods" if asked.inflate is None else "GPUs"

    def play(run: Run, progressed: RunProgress) -> Viewed:
        return (_played if asked.inflate is None else _inflated)(tables, run, progressed)

    def draw(form: str) -> bytes:
        from batchq.lab.workload.plot import drawn_gpus

        return drawn_gpus(_title(tables), [one.picture() for one in views], form)

    views = play_each(tables.runs, play, noun=noun, reached=lambda count: f"after {count:,} {noun}")
    schedules = [one.schedule for one in views if isinstance(one, Played)]
    asked.to.write(
        views,
        starts=starts_csv([one.number for one in schedules[0].jobs], schedules)
        if schedules
        else "",
        draw=draw,
        title=_title(tables),
        notes=list(_notes(tables, views)),
        table=side_by_side(views, _PLAYED if asked.inflate is None else _INFLATED),
    )


def _inflated(tables: _GpuTables, run: Run, progressed: RunProgress) -> Inflated:
    inflation = inflate(
        tables.nodes,
        tables.pods,
        run.config,
        name=run.name,
        percent=tables.asked.inflate or 0,
        seed=tables.asked.seed,
        tell=lambda arrived, most: progressed(arrived // WHOLE_GPU, most // WHOLE_GPU),
    )
    return Inflated(run.name, inflation)


def _played(tables: _GpuTables, run: Run, progressed: RunProgress) -> Played:
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
    return Played(run.name, schedule, watch.use(run.name))


def _title(tables: _GpuTables) -> str:
    gpus = numbered(sum(node.gpus for node in tables.nodes), "GPU")
    there = f"{numbered(len(tables.nodes), 'node')} with {gpus}"
    pods = numbered(len(tables.pods), "pod")
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
        yield f"{numbered(unrun, 'pod')} left out: deleted in the second of their creation"
    for one in views:
        waiting = one.values()["waiting"]
        if waiting:
            yield f"{one.name}: {numbered(int(waiting), 'pod')} never placed, and not in the means"
