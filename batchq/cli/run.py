"""`batchq run FILE`: everything from nothing to a result, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from batchq.cli.apply import warn
from batchq.cli.options import Globals, examples, pass_globals
from batchq.cli.requesting import mark_groups
from batchq.cli.terminal import echo, raw_option
from batchq.cli.trouble import on_interrupt
from batchq.cli.values import as_duration, seconds_of

if TYPE_CHECKING:
    from batchq.cli.runplan import RunPlan
    from batchq.daemon.stack import StackReport
    from batchq.paths import Home


@click.command(
    epilog=examples(
        "batchq run conf/examples/mandelbrot.yaml",
        "batchq run job.yaml --timeout 10m --down",
        "batchq run one-pod.yaml --exit-code",
    )
)
@click.argument("file", type=click.Path(path_type=Path))
@mark_groups
@click.option("--exit-code", is_flag=True, help="End with the exit code of the file's single pod.")
@click.option(
    "--timeout",
    callback=as_duration,
    metavar="DURATION",
    help="Stop watching after this, with exit code 124; the groups go on.",
)
@click.option(
    "--keep/--no-keep",
    default=True,
    show_default=True,
    help="Keep the groups when they have ended, for `batchq describe` and `batchq logs`.",
)
@raw_option
@click.option("--down", is_flag=True, help="Stop server, scheduler and agents at the end.")
@pass_globals
def run(
    shared: Globals,
    file: Path,
    labels: dict[str, str],
    annotations: dict[str, str],
    exit_code: bool,
    timeout: str | None,
    keep: bool,
    down: bool,
) -> int:
    """Start what does not run (server, scheduler, two node agents on this machine), submit every
    PodGroup of FILE and show it to its end.

    Other objects of the file are applied first. A group whose name an earlier one has gets a
    number behind it. Pods without a workingDir start in the folder of FILE.

    Exit codes: 0 all groups completed, 10 one failed, 11 one was cancelled, 124 --timeout,
    130 Ctrl-C: the groups go on.
    """
    from batchq.cli.down import end_stack
    from batchq.cli.runplan import read_plan, refuse_unless_single
    from batchq.daemon import stack
    from batchq.paths import find_home

    plan = read_plan(file).marked(labels, annotations)
    if exit_code:
        refuse_unless_single(plan)
    home = find_home()
    with on_interrupt("interrupted while the stack started; what was started is stopped again"):
        report = stack.up(home, stack.UpOptions(url=shared.redis_url), say=_note)
    _note(_found(report))
    try:
        return _run(
            shared,
            plan,
            home,
            exit_code=exit_code,
            timeout_s=seconds_of(timeout),
            keep=keep,
        )
    finally:
        # Whatever happened: nothing is left behind unsaid.
        if down:
            end_stack(home, url=shared.redis_url)
            _note("Stopped: what ran here of the server, the scheduler and the agents")
        else:
            names = ", ".join(part.name for part in report.parts)
            _note(f"Still running: {names}. `batchq down` stops them")


def _run(
    shared: Globals,
    plan: RunPlan,
    home: Home,
    *,
    exit_code: bool,
    timeout_s: float | None,
    keep: bool,
) -> int:
    from batchq.cli import runlive, runplan, runview
    from batchq.client import Client

    with Client(shared.redis_url, tell=_note) as client:
        groups = runplan.with_fresh_names(plan.groups, runlive.taken_keys(client))
        for old, new in runplan.renamed(plan.groups, groups):
            _note(f"{runview.short(old)} is there from before: this one is {runview.short(new)}")
        with on_interrupt("interrupted while submitting", hint="`batchq jobs` shows what is there"):
            warn(client.submit_all([*plan.others, *groups], keep_stop=plan.keep_stop))
        keys = [f"{group.metadata.namespace}/{group.metadata.name}" for group in groups]
        _note(f"Submitted {', '.join(runview.short(key) for key in keys)}")
        views = runlive.follow(client, keys, timeout_s=timeout_s, color=shared.color)
        with on_interrupt("interrupted while collecting logs; the groups have all ended"):
            pods = runlive.pods_of(client, keys)
            folder = runlive.output_folder(home, groups[0].metadata.name)
            outputs = runlive.collect_output(client, keys, folder)
        for line in runview.result(views, pods, outputs, folder):
            echo(line)
        if not keep:
            client.delete_all([("PodGroup", key) for key in keys])
    return runview.verdict(views, pods, exit_code=exit_code)


def _found(report: StackReport) -> str:
    started = [part.name for part in report.parts if part.state == "started"]
    found = [part.name for part in report.parts if part.state != "started"]
    told = [f"Started {', '.join(started)}"] if started else []
    told += [f"{'found' if started else 'Found'} running {', '.join(found)}"] if found else []
    return "; ".join(told)


def _note(sentence: str) -> None:
    echo(sentence, err=True)
