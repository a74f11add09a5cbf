"""`batchq simulate TRACE`: which runs are requested, their progress, and their report.

click collects the values of --policy, --placement and --config in a tuple each; this module keeps
their common order.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import NamedTuple, TypeAlias

import click
import msgspec
from msgspec import Struct

from batchq.api.notation import counted, nearest, shown
from batchq.api.objects import Queue, Strategy, kind_of
from batchq.api.times import describe_age
from batchq.cli.config import checked_config
from batchq.cli.objects import read_objects
from batchq.cli.output.forms import show_data
from batchq.cli.output.progress import Tell, progress
from batchq.cli.output.render import aligned, one_line
from batchq.cli.output.terminal import Interrupted, echo
from batchq.cli.simulate.inputs import (
    STDIN,
    Given,
    InputKind,
    check_output,
    check_plot,
    write_whole,
)
from batchq.config.model import SchedulerConfig
from batchq.errors import InvalidInput, UsageError
from batchq.lab.workload.gpu_usage import PLACEMENTS
from batchq.lab.workload.jobs import DEFAULT_POLICY, POLICIES, POLICY_CONFIG, By, Load, swf_load
from batchq.lab.workload.play import play_load
from batchq.lab.workload.schedule import (
    Figures,
    Ran,
    Schedule,
    TenantFigures,
    fairness_of,
    figures_of,
    tenants_of,
)
from batchq.lab.workload.traces import Trace, read_swf

#: Parameter -> option, of the options that request a run.
_RUNS = {"policies": "--policy", "placements": "--placement", "configs": "--config"}
#: The key in click's context of the requested runs, in the order of their options.
_ORDER = f"{__name__}.order"

#: Parameter -> option, of the options for logs only, and for worlds only.
_OF_LOGS = {
    "policies": "--policy",
    "jobs": "--jobs",
    "procs": "--procs",
    "passes": "--pass",
    "by": "--by",
    "queues": "--queues",
    "starts": "--starts",
    "plot": "--plot",
}
_OF_WORLDS = {"cycles": "--cycles"}


class RequestedRun(NamedTuple):
    """A run as requested: the option, and its value."""

    option: str
    value: str


class RunsInOrder(click.Command):
    """A command that remembers the order of the options that request a run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse twice, the first time only for the order."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        ctx.meta[_ORDER] = [param.name for param in order if param.name in _RUNS]
        return super().parse_args(ctx, args)


def requested_runs(context: click.Context) -> tuple[RequestedRun, ...]:
    """Return the requested runs, in the order of the command line."""
    values = {name: iter(context.params[name]) for name in _RUNS}
    return tuple(
        RequestedRun(_RUNS[name], str(next(values[name]))) for name in context.meta[_ORDER]
    )


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


#: Each run is a row, a colour, and some minutes.
MOST_RUNS = 20


class Run(Struct, frozen=True, kw_only=True):
    """One run. `strategy` is for queues that do not set one; None leaves them unchanged."""

    name: str
    config: SchedulerConfig
    strategy: Strategy | None = None


def runs_of(asked: Sequence[RequestedRun]) -> tuple[Run, ...]:
    """Return the runs in their order, with unique names.

    Raises UsageError for an unknown policy, InvalidInput for a wrong configuration.
    """
    asked = asked or (RequestedRun("--policy", DEFAULT_POLICY),)
    if len(asked) > MOST_RUNS:
        raise UsageError(f"expected at most {MOST_RUNS} runs in one comparison, found {len(asked)}")
    names = _names(asked)
    return tuple(_run(one, name) for one, name in zip(asked, names, strict=True))


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


def _run(asked: RequestedRun, name: str) -> Run:
    if asked.option == "--config":
        return Run(name=name, config=checked_config(Path(asked.value)))
    if asked.option == "--placement":
        return Run(name=name, config=PLACEMENTS[asked.value])
    if asked.value not in POLICIES:
        near = nearest(asked.value, POLICIES)
        meant = f"; did you mean {near}?" if near else ""
        raise UsageError(
            f"--policy: expected one of {', '.join(POLICIES)}, found {shown(asked.value)}{meant}"
        )
    return Run(name=name, config=POLICY_CONFIG, strategy=POLICIES[asked.value])


def _names(asked: Sequence[RequestedRun]) -> list[str]:
    """Return the policies' names and the files' base names; repeated names are numbered."""
    names: list[str] = []
    for one in asked:
        plain = Path(one.value).name if one.option == "--config" else one.value
        choices = (plain, *(f"{plain} ({number})" for number in range(2, MOST_RUNS + 1)))
        names.append(next(name for name in choices if name not in names))
    return names


class RunProgress:
    """Passes on the progress of one of `runs`, after `before` of them, and remembers it for the
    message of an interrupt.
    """

    def __init__(self, run: str, runs: int, before: int, tell: Tell) -> None:
        self._name = f"{run} ({before + 1} of {runs})" if runs > 1 else run
        self.finished = 0
        self._tell = tell

    def __call__(self, finished: int, jobs: int) -> None:
        self.finished = finished
        self._tell(self._name, finished, jobs)


class LogResult(NamedTuple):
    """One run's figures. `tenants` and `fairness` are set only with --by."""

    name: str
    figures: Figures
    tenants: tuple[TenantFigures, ...] | None = None
    fairness: float | None = None


def result_of(schedule: Schedule, *, by_tenant: bool) -> LogResult:
    """Compute the figures of one run."""
    if not by_tenant:
        return LogResult(schedule.name, figures_of(schedule))
    tenants = tenants_of(schedule)
    return LogResult(schedule.name, figures_of(schedule), tenants, fairness_of(tenants))


def as_data(results: Sequence[LogResult]) -> dict[str, object]:
    """Return the JSON form: one run's figures, or those of all runs under `runs`."""
    if len(results) == 1:
        return _row(results[0], whole=True)
    return {"runs": [{"name": one.name, **_row(one, whole=True)} for one in results]}


def as_csv(results: Sequence[LogResult]) -> str:
    """Return a row for each run; a missing figure is an empty cell."""
    rows = [{"run": one.name, **_row(one, whole=False)} for one in results]
    return _written(rows[0], (row.values() for row in rows))


def starts_csv(order: Sequence[int], schedules: Sequence[Schedule]) -> str:
    """Return the start of each job, in the order of the log; one run after the other."""
    rows: list[tuple[object, ...]] = []
    for schedule in schedules:
        of_number = {one.number: one for one in schedule.jobs}
        rows += [_start(of_number[number], schedule.name) for number in order]
    titles = ("run", "job", "submit", "start")
    if len(schedules) > 1:
        return _written(titles, rows)
    return _written(titles[1:], (row[1:] for row in rows))


def _start(one: Ran, run: str) -> tuple[object, ...]:
    return (run, one.number, one.submit_s, one.start_s)


def _row(result: LogResult, *, whole: bool) -> dict[str, object]:
    row: dict[str, object] = msgspec.to_builtins(result.figures)
    if result.tenants is not None:
        row["fairness"] = result.fairness
        if whole:
            row["tenants"] = msgspec.to_builtins(result.tenants)
    return row


def _written(titles: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return CSV for programs; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows(rows)
    return text.getvalue()


#: The longest line; runs that do not fit are in a further block.
WIDTH = 80
#: How many tenants have a line of their own.
MOST_TENANTS = 10
_GAP = 2
_BEST = "*"

Value: TypeAlias = float | None


class _FigureLine(NamedTuple):
    """One figure: how to read it off a result, how to write it, and which value is the best."""

    title: str
    value: Callable[[LogResult], Value]
    text: Callable[[float], str]
    best: Callable[[Sequence[float]], float] | None


class ComparisonRow(NamedTuple):
    """One figure of every run, in the order of the runs; `text` and `best` as in _FigureLine."""

    title: str
    values: Sequence[Value]
    text: Callable[[float], str]
    best: Callable[[Sequence[float]], float] | None


def comparison(results: Sequence[LogResult], *, width: int = WIDTH) -> Iterator[str]:
    """Yield the table's lines; a star marks the best value of a line, unless all are equal."""
    rows = [
        ComparisonRow(line.title, [line.value(one) for one in results], line.text, line.best)
        for line in _lines(results)
    ]
    yield from side_by_side([one.name for one in results], rows, width=width)


def side_by_side(
    names: Sequence[str], rows: Sequence[ComparisonRow], *, width: int = WIDTH
) -> Iterator[str]:
    """Yield lines with a column for each name and a line for each row."""
    titles = ["", *(row.title for row in rows)]
    columns = _columns(names, rows)
    starred = any(cell.endswith(_BEST) for column in columns for cell in column)
    first = max(map(len, titles))
    for place, block in enumerate(_blocks(columns, width - first)):
        if place:
            yield ""
        widths = [max(map(len, column)) for column in block]
        for line, title in enumerate(titles):
            cells = (column[line].rjust(size) for column, size in zip(block, widths, strict=True))
            yield (" " * _GAP).join((title.ljust(first), *cells)).rstrip()
    if starred:
        yield f"{_BEST} the best of its line"


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


def span(seconds: float) -> str:
    """Return a duration for people: `0s`, `4.5s`, `12m5s`, `2h37m`, `3d4h`."""
    if seconds < 60 and seconds != int(seconds):
        return f"{seconds:.1f}s"
    return describe_age(round(seconds) * 1000)


# --- figures as lines -----------------------------------------------------------------------


def _lines(results: Sequence[LogResult]) -> Iterator[_FigureLine]:
    yield _FigureLine("Jobs", lambda one: one.figures.jobs, _count, None)
    yield _FigureLine("Finished", lambda one: one.figures.finished, _count, max)
    yield _FigureLine("Wait, mean", lambda one: one.figures.mean_wait_s, span, min)
    yield _FigureLine("Wait, median", lambda one: one.figures.median_wait_s, span, min)
    yield _FigureLine("Wait, 95 % within", lambda one: one.figures.p95_wait_s, span, min)
    yield _FigureLine("Wait, longest", lambda one: one.figures.max_wait_s, span, min)
    slowdown = "Bounded slowdown, mean"
    yield _FigureLine(slowdown, lambda one: one.figures.mean_bounded_slowdown, _decimal, min)
    yield _FigureLine("Utilisation", lambda one: one.figures.utilization, _percent, max)
    yield _FigureLine("Makespan", lambda one: one.figures.makespan_s, span, min)
    yield _FigureLine("Evictions", lambda one: one.figures.evictions, _count, min)
    if any(one.tenants is not None for one in results):
        yield _FigureLine(
            "Fairness (Jain)", lambda one: one.fairness, lambda value: f"{value:.3f}", max
        )


def _columns(names: Sequence[str], rows: Sequence[ComparisonRow]) -> list[list[str]]:
    """Return a column per run, headed by its name; cells are padded if the column has a star."""
    marked = [_marked(row) for row in rows]
    columns = []
    for place, name in enumerate(names):
        cells = [row[place] for row in marked]
        if len(names) > 1:
            cells = [cell if cell.endswith(_BEST) else f"{cell} " for cell in cells]
            columns.append([f"{one_line(name)} ", *cells])
        else:
            columns.append([one_line(name), *cells])
    return columns


def _marked(row: ComparisonRow) -> list[str]:
    known = [value for value in row.values if value is not None]
    best = row.best(known) if row.best and known and len(set(row.values)) > 1 else None
    return [
        "-" if value is None else row.text(value) + (_BEST if value == best else "")
        for value in row.values
    ]


def _blocks(columns: Sequence[list[str]], room: int) -> Iterator[list[list[str]]]:
    """Group columns that fit side by side, at least one per group."""
    block: list[list[str]] = []
    left = room
    for column in columns:
        size = _GAP + max(map(len, column))
        if block and size > left:
            yield block
            block, left = [], room
        block.append(column)
        left -= size
    yield block


# --- tenants --------------------------------------------------------------------------------


def _tenant_row(name: str, tenants: Sequence[TenantFigures]) -> tuple[str, ...]:
    """Return the line of one tenant or of several: means over their jobs, else sums."""
    weights = [one.finished for one in tenants]
    wait = _mean([one.mean_wait_s for one in tenants], weights)
    slowdown = _mean([one.mean_bounded_slowdown for one in tenants], weights)
    due = sum(one.due or 0.0 for one in tenants)
    met = sum((one.due or 0.0) * (one.due_met or 0.0) for one in tenants)
    return (
        one_line(name),
        _count(sum(one.jobs for one in tenants)),
        "-" if wait is None else span(wait),
        "-" if slowdown is None else _decimal(slowdown),
        _percent(sum(one.used or 0.0 for one in tenants)),
        str(sum(one.weight for one in tenants)),
        _percent(due),
        _percent(met / due) if due else "-",
    )


def _mean(values: Sequence[Value], weights: Sequence[int]) -> Value:
    pairs = [
        (value, weight) for value, weight in zip(values, weights, strict=True) if value is not None
    ]
    whole = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / whole if whole else None


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _decimal(value: float) -> str:
    return f"{value:,.2f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


class LogRequest(NamedTuple):
    """The options of a simulation of a log."""

    asked: tuple[RequestedRun, ...]
    jobs: int | None
    procs: int | None
    per_event: bool
    by: By | None
    queues: Path | None
    output: str
    starts: Path | None
    plot: Path | None


def simulate_log(log: Given, request: LogRequest) -> None:
    """Simulate a log, print the report, and write the requested files.

    All inputs are checked before the first run. Raises InvalidInput, UsageError; Interrupted after
    Ctrl-C.
    """
    _check_files(log, request)
    runs = runs_of(request.asked)
    queues = queues_of(request.queues)
    trace = read_swf(log.path, processors=request.procs, most=request.jobs)

    def load(run: Run) -> Load:
        return swf_load(
            trace, title=log.path.name, strategy=run.strategy, by=request.by, queues=queues
        )

    schedules = _play(runs, load, per_event=request.per_event)
    results = [result_of(one, by_tenant=request.by is not None) for one in schedules]
    starts = starts_csv([job.number for job in trace.jobs], schedules) if request.starts else ""
    try:
        _write_files(request, starts, schedules)
    finally:
        # If a file cannot be written after all, the report is printed nevertheless.
        _show(request, log, trace, results, starts)


# --- checks ---------------------------------------------------------------------------------


def _check_files(log: Given, request: LogRequest) -> None:
    configs = [Path(one.value) for one in request.asked if one.option == "--config"]
    inputs = [log.path, *configs, *([request.queues] if request.queues else [])]
    if request.starts is not None and str(request.starts) == STDIN:
        if request.output != "table":
            raise UsageError(
                f"--starts - writes to standard output, but so does -o {request.output}",
                hint="give --starts a file's name, or leave out -o",
            )
    elif request.starts is not None:
        check_output(request.starts, "--starts", inputs=inputs)
    if request.plot is not None:
        check_plot(request.plot, inputs=inputs)
        if request.starts is not None and request.plot.resolve() == request.starts.resolve():
            raise UsageError(f"--plot {request.plot}: --starts writes the same file")


# --- simulation -----------------------------------------------------------------------------


def _play(runs: Sequence[Run], load: Callable[[Run], Load], *, per_event: bool) -> list[Schedule]:
    """Simulate one run after the other. Raises Interrupted, which reports the progress."""
    schedules: list[Schedule] = []
    with progress("jobs") as tell:
        for run in runs:
            progressed = RunProgress(run.name, len(runs), len(schedules), tell)
            try:
                schedules.append(
                    play_load(
                        load(run),
                        run.config,
                        name=run.name,
                        per_event=per_event,
                        tell=progressed,
                        stopwatch=monotonic,
                    )
                )
            except KeyboardInterrupt:
                place = f" ({len(schedules) + 1} of {len(runs)})" if len(runs) > 1 else ""
                raise Interrupted(
                    f"interrupted in run {run.name}{place}, when"
                    f" {_number(progressed.finished, 'job')} had finished; nothing was written"
                ) from None
    return schedules


# --- report ---------------------------------------------------------------------------------


def _write_files(request: LogRequest, starts: str, schedules: Sequence[Schedule]) -> None:
    if request.starts is not None and str(request.starts) != STDIN:
        write_whole(request.starts, starts.encode(), "--starts")
    if request.plot is not None:
        from batchq.lab.workload.plot import drawn, picture_of

        picture = picture_of(schedules, tenants=request.by is not None)
        write_whole(request.plot, drawn(picture, request.plot.suffix[1:].lower()), "--plot")


def _show(
    request: LogRequest, log: Given, trace: Trace, results: Sequence[LogResult], starts: str
) -> None:
    if request.starts is not None and str(request.starts) == STDIN:
        echo(starts, nl=False)
    elif request.output == "json":
        show_data(as_data(results), "json")
    elif request.output == "csv":
        echo(as_csv(results), nl=False)
    else:
        echo("\n".join(_report(request, log, trace, results)))
        return
    for note in _notes(trace, results):
        echo(note, err=True)


def _report(
    request: LogRequest, log: Given, trace: Trace, results: Sequence[LogResult]
) -> Iterator[str]:
    pass_ = "one session per event" if request.per_event else "one session per instant"
    jobs, machine = _number(len(trace.jobs), "job"), _number(trace.processors, "processor")
    yield f"{log.path.name}: {jobs} on {machine}, {pass_}"
    yield from _notes(trace, results)
    yield ""
    yield from comparison(results)
    for one in results:
        if one.tenants is not None:
            yield ""
            of = f" of {one.name}" if len(results) > 1 else ""
            yield f"By {request.by}{of}:"
            yield from tenants_table(one)


def _notes(trace: Trace, results: Sequence[LogResult]) -> Iterator[str]:
    """Yield what the figures do not show, a sentence each."""
    if trace.dropped:
        were = "was" if trace.dropped == 1 else "were"
        yield (
            f"{_number(trace.dropped, 'job')} {were} left out: too large, or processors, run time"
            " or request unknown"
        )
    for one in results:
        missing = one.figures.jobs - one.figures.finished
        if missing:
            yield f"{one.name}: {_number(missing, 'job')} unfinished, and not in the means"


def _number(count: int, noun: str) -> str:
    """Return e.g. `1 job` or `5,000 jobs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
