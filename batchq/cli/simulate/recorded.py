"""`batchq simulate TRACE`: the log of a machine, its figures and those of its tenants; and
`batchq simulate PODS.csv`: Alibaba's GPU trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import click
import msgspec

from batchq.api.notation import counted
from batchq.api.objects import Queue, kind_of
from batchq.cli.objects import read_objects
from batchq.cli.output import aligned, one_line
from batchq.cli.output.options import WholeNumber
from batchq.cli.simulate.runs import (
    Destination,
    Figure,
    Given,
    InputKind,
    RequestedRun,
    Run,
    RunProgress,
    Values,
    as_csv,
    numbered,
    percent,
    play_each,
    requested_runs,
    runs_of,
    side_by_side,
    span,
    whole,
)
from batchq.errors import InvalidInput, UsageError
from batchq.lab.gpu_usage import (
    GpuLevel,
    GpuUse,
    GpuWatch,
    Inflation,
    Point,
    inflate,
    openb_load,
    shape_of,
)
from batchq.lab.load_player import play_load
from batchq.lab.plot import Curve, GpuPicture
from batchq.lab.schedule import (
    Figures,
    Ran,
    Schedule,
    TenantFigures,
    fairness_of,
    figures_of,
    tenants_of,
)
from batchq.lab.traces import (
    WHOLE_GPU,
    By,
    OpenbNode,
    OpenbPod,
    Trace,
    read_nodes,
    read_pods,
    read_swf,
    swf_load,
)

#: Parameter -> option, of the options for logs only, and for worlds only.
_OF_LOGS = {
    "policies": "--policy",
    "jobs": "--jobs",
    "procs": "--procs",
    "passes": "--pass",
    "processes": "--processes",
    "by": "--by",
    "queues": "--queues",
    "starts": "--starts",
    "plot": "--plot",
}
_OF_WORLDS = {"cycles": "--cycles"}


def refuse_for(given: Given, parameters: Mapping[str, object]) -> None:
    """Raise UsageError for an option that does not apply to the input."""
    is_world = given.kind is InputKind.WORLD
    foreign, whose = (_OF_LOGS, "a log") if is_world else (_OF_WORLDS, "a world")
    for name, option in foreign.items():
        if parameters[name] not in (None, ()):
            raise UsageError(f"{option} is for {whose}, but {given.source} is {given.kind.value}")
    if is_world and parameters["output"] == "csv":
        raise UsageError(f"-o csv is for a log, but {given.source} is {given.kind.value}")
    configs = parameters["configs"]
    if is_world and isinstance(configs, tuple) and len(configs) > 1:
        raise UsageError(
            f"{given.source} is a world, which is simulated once: expected one --config,"
            f" found {len(configs)}"
        )
    if parameters["queues"] is not None and parameters["by"] is None:
        raise UsageError(
            "--queues needs --by user, --by group or --by queue; without it there is one queue"
        )


def queues_of(file: Path | None) -> tuple[Queue, ...]:
    """Read the queues of a file of manifests. Raises InvalidInput, also for other kinds."""
    if file is None:
        return ()
    queues: dict[str, Queue] = {}
    for item in read_objects(str(file), in_folder=False):
        if not isinstance(item, Queue):
            raise InvalidInput(f"{file}: expected Queues, found a {kind_of(item)}")
        if item.metadata.name in queues:
            raise InvalidInput(f"{file}: queue {item.metadata.name} is defined twice")
        queues[item.metadata.name] = item
    return tuple(queues.values())


class LogResult(NamedTuple):
    """One run's figures. `tenants` and `fairness` are set only with --by."""

    name: str
    figures: Figures
    tenants: tuple[TenantFigures, ...] | None = None
    fairness: float | None = None

    def values(self) -> Values:
        """Return every figure by its name."""
        found: dict[str, float | None] = msgspec.to_builtins(self.figures)
        return found if self.tenants is None else {**found, "fairness": self.fairness}

    def data(self) -> dict[str, object]:
        """Return the figures for JSON, and those of each tenant."""
        tenants = {} if self.tenants is None else {"tenants": msgspec.to_builtins(self.tenants)}
        return {**self.values(), **tenants}


def result_of(schedule: Schedule, *, by_tenant: bool) -> LogResult:
    """Compute the figures of one run."""
    if not by_tenant:
        return LogResult(schedule.name, figures_of(schedule))
    tenants = tenants_of(schedule)
    return LogResult(schedule.name, figures_of(schedule), tenants, fairness_of(tenants))


def starts_csv(order: Sequence[int], schedules: Sequence[Schedule]) -> str:
    """Return the start of each job, in the order of the log; one run after the other."""
    rows: list[tuple[object, ...]] = []
    for schedule in schedules:
        of_number = {one.number: one for one in schedule.jobs}
        rows += [_start(of_number[number], schedule.name) for number in order]
    titles = ("run", "job", "submit", "start")
    if len(schedules) > 1:
        return as_csv(titles, rows)
    return as_csv(titles[1:], (row[1:] for row in rows))


def _start(one: Ran, run: str) -> tuple[object, ...]:
    return (run, one.number, one.submit_s, one.start_s)


#: How many tenants have a line of their own.
MOST_TENANTS = 10


def tenants_table(result: LogResult) -> Iterator[str]:
    """Yield one run's tenants, the largest users first; the many small ones are summed up."""
    found = sorted(result.tenants or (), key=lambda one: (-(one.used or 0.0), one.tenant))
    # A sum over a single tenant would take a line as well.
    shown = found if len(found) <= MOST_TENANTS + 1 else found[:MOST_TENANTS]
    rows = [_tenant_row(one.tenant, [one]) for one in shown]
    if len(shown) < len(found):
        rest = found[len(shown) :]
        rows.append(_tenant_row(counted(len(rest), "other"), rest))
    titles = ("TENANT", "JOBS", "MEAN WAIT", "SLOWDOWN", "USED", "WEIGHT", "DUE", "DUE MET")
    yield from aligned([titles, *rows])


def _compared(by_tenant: bool) -> Iterator[Figure]:
    yield Figure("jobs", "Jobs", whole)
    yield Figure("finished", "Finished", whole, max)
    yield Figure("mean_wait_s", "Wait, mean", span, min)
    yield Figure("median_wait_s", "Wait, median", span, min)
    yield Figure("p95_wait_s", "Wait, 95 % within", span, min)
    yield Figure("max_wait_s", "Wait, longest", span, min)
    yield Figure("mean_bounded_slowdown", "Bounded slowdown, mean", _slowdown, min)
    yield Figure("utilization", "Utilisation", percent, max)
    yield Figure("makespan_s", "Makespan", span, min)
    yield Figure("evictions", "Evictions", whole, min)
    if by_tenant:
        yield Figure("fairness", "Fairness (Jain)", lambda value: f"{value:.3f}", max)


def _tenant_row(name: str, tenants: Sequence[TenantFigures]) -> tuple[str, ...]:
    """Return the line of one tenant or of several: means over their jobs, else sums."""
    weights = [one.finished for one in tenants]
    wait = _mean([one.mean_wait_s for one in tenants], weights)
    slowdown = _mean([one.mean_bounded_slowdown for one in tenants], weights)
    due = sum(one.due or 0.0 for one in tenants)
    met = sum((one.due or 0.0) * (one.due_met or 0.0) for one in tenants)
    return (
        one_line(name),
        whole(sum(one.jobs for one in tenants)),
        "-" if wait is None else span(wait),
        "-" if slowdown is None else _slowdown(slowdown),
        percent(sum(one.used or 0.0 for one in tenants)),
        str(sum(one.weight for one in tenants)),
        percent(due),
        percent(met / due) if due else "-",
    )


def _mean(values: Sequence[float | None], weights: Sequence[int]) -> float | None:
    pairs = [
        (value, weight) for value, weight in zip(values, weights, strict=True) if value is not None
    ]
    whole = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / whole if whole else None


class LogRequest(NamedTuple):
    """The options of a simulation of a log."""

    asked: tuple[RequestedRun, ...]
    jobs: int | None
    procs: int | None
    per_event: bool
    processes: int | None
    by: By | None
    queues: Path | None
    to: Destination


def simulate_log(log: Given, request: LogRequest) -> None:
    """Simulate a log, print the report, and write the requested files.

    All inputs are checked before the first run. Raises InvalidInput, UsageError; Interrupted after
    Ctrl-C.
    """
    configs = [Path(one.value) for one in request.asked if one.option == "--config"]
    request.to.check([log.path, *configs, *([request.queues] if request.queues else [])])
    runs = runs_of(request.asked)
    queues = queues_of(request.queues)
    trace = read_swf(log.path, processors=request.procs, most=request.jobs)

    def play(run: Run, progressed: RunProgress) -> Schedule:
        load = swf_load(
            trace, title=log.path.name, strategy=run.strategy, by=request.by, queues=queues
        )
        return play_load(
            load,
            run.config,
            name=run.name,
            per_event=request.per_event,
            tell=progressed,
            stopwatch=monotonic,
            processes=request.processes,
        )

    def draw(form: str) -> bytes:
        from batchq.lab.plot import drawn, picture_of

        return drawn(picture_of(schedules, tenants=request.by is not None), form)

    schedules = play_each(
        runs, play, noun="jobs", reached=lambda count: f"when {numbered(count, 'job')} had finished"
    )
    results = [result_of(one, by_tenant=request.by is not None) for one in schedules]
    request.to.write(
        results,
        starts=starts_csv([job.number for job in trace.jobs], schedules),
        draw=draw,
        title=_title_of_log(request, log, trace),
        notes=list(_notes_on_log(trace, results)),
        table=_table(request, results),
    )


def _title_of_log(request: LogRequest, log: Given, trace: Trace) -> str:
    pass_ = "one session per event" if request.per_event else "one session per instant"
    jobs, machine = numbered(len(trace.jobs), "job"), numbered(trace.processors, "processor")
    return f"{log.path.name}: {jobs} on {machine}, {pass_}"


def _table(request: LogRequest, results: Sequence[LogResult]) -> Iterator[str]:
    yield from side_by_side(results, list(_compared(request.by is not None)))
    for one in results:
        if one.tenants is not None:
            yield ""
            of = f" of {one.name}" if len(results) > 1 else ""
            yield f"By {request.by}{of}:"
            yield from tenants_table(one)


def _notes_on_log(trace: Trace, results: Sequence[LogResult]) -> Iterator[str]:
    """Yield what the figures do not show, a sentence each."""
    if trace.dropped:
        were = "was" if trace.dropped == 1 else "were"
        yield (
            f"{numbered(trace.dropped, 'job')} {were} left out: too large, or processors, run time"
            " or request unknown"
        )
    for one in results:
        missing = one.figures.jobs - one.figures.finished
        if missing:
            yield f"{one.name}: {numbered(missing, 'job')} unfinished, and not in the means"


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
    "processes": "--processes",
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
            type=WholeNumber(1, _MOST_PERCENT),
            metavar="PERCENT",
            help="A table of pods only: pods come in random order and stay, until they request this"
            " share of the cluster's GPUs, as in 130.",
        ),
        click.option(
            "--seed",
            type=WholeNumber(0),
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


def _slowdown(value: float) -> str:
    return f"{value:,.2f}"


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
        from batchq.lab.plot import drawn_gpus

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
