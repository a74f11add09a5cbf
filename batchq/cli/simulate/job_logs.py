"""`batchq simulate TRACE`: the log of a machine, its figures, and those of its tenants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import msgspec

from batchq.api.notation import counted
from batchq.api.objects import Queue, kind_of
from batchq.cli.objects import read_objects
from batchq.cli.output.render import aligned, one_line
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
    runs_of,
    side_by_side,
    span,
    whole,
)
from batchq.errors import InvalidInput, UsageError
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
from batchq.lab.workload.traces import By, Trace, read_swf, swf_load

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
    yield Figure("mean_bounded_slowdown", "Bounded slowdown, mean", _decimal, min)
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
        "-" if slowdown is None else _decimal(slowdown),
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


def _decimal(value: float) -> str:
    return f"{value:,.2f}"


class LogRequest(NamedTuple):
    """The options of a simulation of a log."""

    asked: tuple[RequestedRun, ...]
    jobs: int | None
    procs: int | None
    per_event: bool
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
        )

    def draw(form: str) -> bytes:
        from batchq.lab.workload.plot import drawn, picture_of

        return drawn(picture_of(schedules, tenants=request.by is not None), form)

    schedules = play_each(
        runs, play, noun="jobs", reached=lambda count: f"when {numbered(count, 'job')} had finished"
    )
    results = [result_of(one, by_tenant=request.by is not None) for one in schedules]
    request.to.write(
        results,
        starts=starts_csv([job.number for job in trace.jobs], schedules),
        draw=draw,
        title=_title(request, log, trace),
        notes=list(_notes(trace, results)),
        table=_table(request, results),
    )


def _title(request: LogRequest, log: Given, trace: Trace) -> str:
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


def _notes(trace: Trace, results: Sequence[LogResult]) -> Iterator[str]:
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
