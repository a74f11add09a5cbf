"""`batchq replay`: replay a log on the live stack, and compare it with the simulator."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from batchq.cli.output import (
    EXIT_GROUP_FAILED,
    EXIT_WARNINGS,
    Interrupted,
    comment,
    echo,
    on_interrupt,
)
from batchq.cli.output.options import Globals, PositiveNumber, WholeNumber, examples, pass_globals
from batchq.cli.output.progress import Tell as Shown
from batchq.cli.output.progress import progress
from batchq.errors import UsageError

if TYPE_CHECKING:
    from batchq.lab.replay import (
        LiveReplay,
        ReplayEnding,
        ReplayPlan,
        ReplayReport,
        ReplayStanding,
        Tell,
    )
    from batchq.lab.replay_comparison import Comparison, Differing
    from batchq.lab.traces import Trace


_MOST_PROBLEMS = 20
_MOST_PAIRS = 10


def as_table(report: ReplayReport) -> Iterator[str]:
    """Yield the report as text."""
    yield f"Jobs                   {report.jobs}"
    yield f"Finished exactly once  {report.finished_exactly_once}"
    for problem in report.problems[:_MOST_PROBLEMS]:
        yield f"    {problem}"
    if len(report.problems) > _MOST_PROBLEMS:
        yield f"    … and {len(report.problems) - _MOST_PROBLEMS} more"
    yield f"Wait, mean             {_seconds(report.mean_wait_s)}"
    yield f"Wait, median           {_seconds(report.median_wait_s)}"
    yield f"Wait, 95 % within      {_seconds(report.p95_wait_s)}"
    yield f"Bounded slowdown, mean {_decimal(report.mean_bounded_slowdown)}"
    yield f"Utilisation            {_percent(report.utilisation)}"
    yield f"Makespan               {_seconds(report.makespan_s)}"
    yield (
        f"Times are the log's: {report.speed:g} s of it in one, so 100 ms of the daemon's are"
        f" {report.speed / 10:g} s here."
    )
    yield (
        f"Real: {report.real_s:.1f} s; a pod ran {_decimal(report.mean_overhead_real_ms)} ms"
        " longer than asked, on the average."
    )


def compared(comparison: Comparison) -> Iterator[str]:
    """Yield a comparison of the order of starts with the simulator's, as text."""
    from batchq.lab.replay_comparison import CAUSES

    turned = len(comparison.differing)
    yield (
        f"Against simulate       {comparison.same} of {comparison.pairs} pairs of jobs start in the"
        f" same order; Kendall's tau {_tau(comparison.tau)}"
    )
    if not turned:
        yield "    The orders of starts agree."
        return
    yield f"    {turned} start in the other order:"
    for cause, count in comparison.causes.items():
        if count:
            yield f"    {count:>6}  {cause}: {CAUSES[cause]}"
    ranked = sorted(comparison.differing, key=lambda one: list(CAUSES).index(one.cause))
    for one in ranked[::-1][:_MOST_PAIRS]:
        yield f"    {_pair(one)}"
    if turned > _MOST_PAIRS:
        yield f"    … and {turned - _MOST_PAIRS} more; -o json lists all"
    yield f"    The slowest submit or start of a process took {comparison.latency_ms} ms (real)."


def _pair(one: Differing) -> str:
    return (
        f"job {one.first} starts {one.simulated_apart_s:,.0f} s before job {one.then} in the"
        f" simulation, and {-one.replayed_apart_s:,.1f} s after it here ({one.cause})"
    )


def as_json(report: ReplayReport, comparison: Comparison | None) -> str:
    """Return the report as JSON, with `against` if a comparison was requested."""
    import msgspec

    written = {"apiVersion": "batchq/v1", "kind": "ReplayReport", **msgspec.to_builtins(report)}
    if comparison is not None:
        written["against"] = msgspec.to_builtins(comparison)
    return json.dumps(written, indent=2)


def in_words(now: ReplayStanding) -> str:
    """Return e.g. `12 running, 3 waiting, the next in 4 s`."""
    rest = "all submitted" if now.next_in_s is None else f"the next in {now.next_in_s:.0f} s"
    return f"{now.running} running, {now.waiting} waiting, {rest}"


def _tau(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} s"


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


#: Copied from `batchq.lab.traces`, which --help must not load.
POLICY_NAMES = ("fcfs", "first-fit", "easy", "easy-sjf", "conservative")
#: How many progress lines are printed without a terminal.
_PROGRESS_LINES = 10


@click.command(
    epilog=examples(
        "batchq replay KTH-SP2-1996-2.swf.gz --jobs 300 --speed 2000",
        "batchq replay lublin_256.swf --jobs 100 --speed 5000 -o json",
        "batchq replay KTH-SP2-1996-2.swf.gz --policy easy --skip 1000 --jobs 60"
        " --against simulate",
    )
)
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--jobs",
    type=WholeNumber(1),
    default=300,
    show_default=True,
    help="How many jobs to replay.",
)
@click.option(
    "--skip",
    type=WholeNumber(0),
    default=0,
    show_default=True,
    help="How many usable jobs to skip first.",
)
@click.option(
    "--speed",
    type=PositiveNumber(),
    default=2000.0,
    show_default=True,
    help="How many seconds of the log pass in one second.",
)
@click.option(
    "--procs", type=WholeNumber(1), help="The machine's processors.  [default: the log's]"
)
@click.option(
    "--nodes",
    type=WholeNumber(1, 16),
    default=1,
    show_default=True,
    help="How many nodes, each as large as the log's machine.",
)
@click.option("--queue", help="Submit to this queue.  [default: one of the replay's own]")
@click.option(
    "--policy",
    type=click.Choice(POLICY_NAMES),
    help="The strategy of the replay's own queue.  [default: first-fit]",
)
@click.option(
    "--starts",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="Write when each job started (job,submit,start), in seconds of the log.",
)
@click.option(
    "--against",
    type=click.Choice(["simulate"]),
    help="Simulate the same jobs, too, and compare the order of starts.",
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
@pass_globals
def replay(
    shared: Globals,
    trace: Path,
    jobs: int,
    skip: int,
    speed: float,
    procs: int | None,
    nodes: int,
    queue: str | None,
    policy: str | None,
    starts: Path | None,
    against: str | None,
    output: str,
) -> int:
    """Replay the first jobs of TRACE, a log in the Standard Workload Format (.swf or .swf.gz), on
    the live stack, each at its submit time divided by --speed, and report how long they waited.

    A job becomes a group of one pod with the job's processors as cpus, which sleeps for the job's
    run time divided by --speed, on nodes that exist for the replay only. Its walltime is the job's
    request divided by --speed, plus 3 s for the start of a process. Server and scheduler are
    started if they do not run.

    --against simulate runs the same jobs in virtual time, on a machine of the same shape and with
    the scheduler's own configuration. It prints how many pairs of jobs start in the same order, and
    the cause of each pair that does not.

    Exit codes: 0 every job finished exactly once, 10 one did not, 3 all did but the order of some
    starts has no known cause, 130 Ctrl-C: the other jobs are cancelled.
    """
    from batchq.cli.simulate.runs import check_output, write_whole
    from batchq.client import Client
    from batchq.daemon import stack
    from batchq.lab.replay import LiveReplay, ReplayPlan, starts_csv
    from batchq.lab.replay_comparison import check_comparable
    from batchq.lab.traces import DEFAULT_POLICY, strategy_of
    from batchq.paths import find_home, resolve_url

    _check_options(queue, policy, against)
    if starts is not None:
        check_output(starts, "--starts", inputs=(trace,))
    log = _slice(trace, processors=procs, skip=skip, jobs=jobs)
    home = find_home()
    name = f"replay-{secrets.token_hex(3)}"
    plan = ReplayPlan(
        name=name,
        trace=log,
        speed=speed,
        nodes=nodes,
        queue=queue or name,
        strategy=strategy_of(policy or DEFAULT_POLICY),
        journal=home.run / f"{name}.journal",
    )
    if against:
        check_comparable(plan)
    with on_interrupt("interrupted while the stack started; what was started is stopped again"):
        up = stack.up(home, stack.UpOptions(url=shared.redis_url, agents=0), say=comment)
    comment(_announcement(plan, log.dropped))
    with Client(shared.redis_url) as client, progress("jobs", lines=_lines(len(log.jobs))) as tell:
        live = LiveReplay(client, plan, own_queue=queue is None, tell=_telling(tell))
        ending = _play(live, plan, lambda: live.run(home, resolve_url(shared.redis_url, home)))
    comparison = _compared(shared, plan, ending) if against else None
    if starts is not None:
        write_whole(starts, starts_csv(plan, ending).encode(), "--starts")
    _show(ending.report, comparison, output)
    if up.running:
        names = ", ".join(part.name for part in up.parts)
        comment(f"Still running: {names}. `batchq down` stops them")
    if ending.report.finished_exactly_once < ending.report.jobs:
        return EXIT_GROUP_FAILED
    return EXIT_WARNINGS if comparison is not None and not comparison.explained else 0


def _check_options(queue: str | None, policy: str | None, against: str | None) -> None:
    """Raise UsageError for options that apply to the replay's own queue only."""
    for option, value in (("--policy", policy), ("--against", against)):
        if queue is not None and value is not None:
            raise UsageError(
                f"{option} {value} applies to the replay's own queue, but --queue {queue} names"
                " another",
                hint=f"leave out --queue or {option}",
            )


def _slice(path: Path, *, processors: int | None, skip: int, jobs: int) -> Trace:
    """Return the jobs to replay. Raises InvalidInput."""
    from msgspec.structs import replace

    from batchq.errors import InvalidInput
    from batchq.lab.traces import read_swf

    log = read_swf(path, processors=processors, most=skip + jobs)
    if skip >= len(log.jobs):
        raise InvalidInput(
            f"{path}: --skip {skip} leaves nothing, there {_jobs(len(log.jobs))}",
            hint=f"skip {len(log.jobs) - 1} at most",
        )
    return replace(log, jobs=log.jobs[skip:])


def _jobs(count: int) -> str:
    return "is 1 usable job" if count == 1 else f"are {count} usable jobs"


def _compared(shared: Globals, plan: ReplayPlan, ending: ReplayEnding) -> Comparison:
    from batchq.cli.config import effective_config
    from batchq.lab.replay_comparison import compare

    return compare(plan, ending, effective_config(shared))


def _show(report: ReplayReport, comparison: Comparison | None, output: str) -> None:
    if output == "json":
        echo(as_json(report, comparison))
        return
    lines = [*as_table(report), *(compared(comparison) if comparison is not None else ())]
    echo("\n".join(lines))


def _play(live: LiveReplay, plan: ReplayPlan, run: Callable[[], ReplayEnding]) -> ReplayEnding:
    """Run the replay; remove its objects, and report what could not be removed, in any case."""
    try:
        return run()
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted after {live.submitted} of {len(plan.trace.jobs)} jobs were submitted:"
            f" {live.cancelled} of them were cancelled, and the replay's nodes and queue are gone",
            hint="server and scheduler keep running; `batchq down` stops them",
        ) from None
    finally:
        plan.journal.unlink(missing_ok=True)
        left = live.clear()
        if left:
            comment(left)


def _telling(shown: Shown) -> Tell:
    return lambda now: shown("replay", now.finished, now.jobs, in_words(now))


def _lines(jobs: int) -> Shown:
    steps = {round(jobs * part / _PROGRESS_LINES) for part in range(1, _PROGRESS_LINES + 1)}

    def tell(name: str, done: int, total: int, note: str = "") -> None:
        passed = {step for step in steps if step <= done}
        if passed:
            steps.difference_update(passed)
            comment(f"{done} of {total} jobs finished; {note}")

    return tell


def _announcement(plan: ReplayPlan, dropped: int) -> str:
    jobs = plan.trace.jobs
    span_s = max(plan.due_s(job) for job in jobs)
    left_out = f" ({dropped} unusable ones left out)" if dropped else ""
    return (
        f"{plan.name}: {len(jobs)} jobs{left_out} for {plan.nodes} × {plan.trace.processors}"
        f" processors, submitted within {span_s:.0f} s at speed {plan.speed:g}"
    )
