"""`batchq replay TRACE`: a real log on the live stack, faster than it happened."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from batchq.cli.options import Globals, examples, pass_globals
from batchq.cli.trouble import Interrupted, on_interrupt

if TYPE_CHECKING:
    from batchq.replaying.groups import Plan
    from batchq.replaying.live import LiveReplay, Standing, Tell
    from batchq.replaying.report import ReplayReport

#: Without a terminal, progress is told so many times.
_TOLD = 10


@click.command(
    epilog=examples(
        "batchq replay KTH-SP2-1996-2.swf.gz --jobs 300 --speed 2000",
        "batchq replay lublin_256.swf --jobs 100 --speed 5000 -o json",
    )
)
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--jobs", type=click.IntRange(1), default=300, show_default=True, help="How many jobs of it."
)
@click.option(
    "--speed",
    type=click.FloatRange(0, min_open=True),
    default=2000.0,
    show_default=True,
    help="How many seconds of the log pass in one.",
)
@click.option(
    "--procs", type=click.IntRange(1), help="The machine's processors, if not what the log says."
)
@click.option(
    "--nodes",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="How many nodes as large as the log's machine.",
)
@click.option("--queue", help="Submit to this queue; without it, to one of the replay's own.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
@pass_globals
def replay(
    shared: Globals,
    trace: Path,
    jobs: int,
    speed: float,
    procs: int | None,
    nodes: int,
    queue: str | None,
    output: str,
) -> int:
    """Submit the first jobs of TRACE, a log in the Standard Workload Format (.swf or .swf.gz), to
    the live stack, each at its moment divided by --speed, and report how long they waited.

    A job becomes a group of one pod with the job's processors as cpus, which sleeps its run time
    divided by --speed, on nodes that the replay brings along and takes away again. Server and
    scheduler are started if they do not run.

    Exit codes: 0 every job finished exactly once, 10 one did not, 130 Ctrl-C: the rest is
    cancelled.
    """
    from batchq.client import Client
    from batchq.daemon import stack
    from batchq.paths import find_home, resolve_url
    from batchq.replaying.groups import Plan
    from batchq.replaying.live import LiveReplay
    from batchq.traces import read_swf

    log = read_swf(trace, processors=procs, most=jobs)
    home = find_home()
    with on_interrupt("interrupted while the stack started; what was started is stopped again"):
        up = stack.up(home, stack.UpOptions(url=shared.redis_url, agents=0), say=_note)
    name = f"replay-{secrets.token_hex(3)}"
    plan = Plan(
        name=name,
        trace=log,
        speed=speed,
        nodes=nodes,
        queue=queue or name,
        journal=home.run / f"{name}.journal",
    )
    _note(_announcement(plan, log.dropped))
    with Client(shared.redis_url) as client, _progress(len(log.jobs), color=shared.color) as tell:
        live = LiveReplay(client, plan, own_queue=queue is None, tell=tell)
        report = _play(live, plan, lambda: live.run(home, resolve_url(shared.redis_url, home)))
    click.echo(_as_json(report) if output == "json" else "\n".join(as_table(report)))
    if up.running:
        names = ", ".join(part.name for part in up.parts)
        _note(f"Still running: {names}. `batchq down` stops them")
    return 0 if report.finished_exactly_once == report.jobs else 10


def as_table(report: ReplayReport) -> Iterator[str]:
    """The report for people."""
    yield f"Jobs                   {report.jobs}"
    yield f"Finished exactly once  {report.finished_exactly_once}"
    for problem in report.problems[:20]:
        yield f"    {problem}"
    if len(report.problems) > 20:
        yield f"    … and {len(report.problems) - 20} more"
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


def _play(live: LiveReplay, plan: Plan, run: Callable[[], ReplayReport]) -> ReplayReport:
    """Run, and leave nothing behind unsaid, however it ends."""
    try:
        return run()
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted after {live.submitted} of {len(plan.trace.jobs)} jobs were submitted:"
            f" {live.cancelled} of them were cancelled, and the replay's nodes and queue are gone",
            hint="server and scheduler run on; `batchq down` stops them",
        ) from None
    finally:
        plan.journal.unlink(missing_ok=True)
        left = live.clear()
        if left:
            _note(left)


@contextmanager
def _progress(jobs: int, *, color: bool) -> Iterator[Tell]:
    """Shows how far it is on stderr: a bar on a terminal, else some lines."""
    if not sys.stderr.isatty():
        yield _lines(jobs)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}"),
    )
    console = Console(stderr=True, no_color=not color)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("replay", total=jobs, now="")
        yield lambda now: bar.update(task, completed=now.finished, now=in_words(now))


def _lines(jobs: int) -> Tell:
    steps = {round(jobs * part / _TOLD) for part in range(1, _TOLD + 1)}

    def tell(now: Standing) -> None:
        passed = {step for step in steps if step <= now.finished}
        if passed:
            steps.difference_update(passed)
            _note(f"{now.finished} of {now.jobs} jobs finished; {in_words(now)}")

    return tell


def in_words(now: Standing) -> str:
    """`12 running, 3 waiting, the next in 4 s`."""
    rest = "all submitted" if now.next_in_s is None else f"the next in {now.next_in_s:.0f} s"
    return f"{now.running} running, {now.waiting} waiting, {rest}"


def _announcement(plan: Plan, dropped: int) -> str:
    jobs = plan.trace.jobs
    span_s = max(plan.due_s(job) for job in jobs)
    left_out = f" ({dropped} unusable ones left out)" if dropped else ""
    return (
        f"{plan.name}: {len(jobs)} jobs{left_out} for {plan.nodes} × {plan.trace.processors}"
        f" processors, submitted within {span_s:.0f} s at speed {plan.speed:g}"
    )


def _as_json(report: ReplayReport) -> str:
    import msgspec

    written = msgspec.to_builtins(report)
    return json.dumps({"apiVersion": "batchq/v1", "kind": "ReplayReport", **written}, indent=2)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} s"


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _note(sentence: str) -> None:
    click.echo(sentence, err=True)
