"""`batchq simulate`: the command, and the simulation of a world."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from batchq.cli.output import echo, show_warning
from batchq.cli.output.options import Globals, WholeNumber, examples, pass_globals
from batchq.cli.simulate.live import live_options, live_request
from batchq.cli.simulate.recorded import pods_options, pods_request, refuse_for
from batchq.cli.simulate.runs import (
    Destination,
    Given,
    InputKind,
    RunsInOrder,
    given,
    requested_runs,
)

if TYPE_CHECKING:
    from batchq.lab.simulation import PlayedWorld


def simulate_world(
    world: Given, configs: Sequence[Path], *, cycles: int | None, output: str
) -> None:
    """Simulate a world under the defaults or one configuration; the report goes to stdout.

    Raises InvalidInput if the world or the configuration is wrong.
    """
    from batchq.cli.config import checked_config
    from batchq.lab.simulation import MOST_SESSIONS, play

    text, source = world.content, world.source
    if not _has_node(text, source):
        echo(f"{source} has no Node: nothing can run in this world", err=True)
    config = checked_config(configs[0] if configs else None)
    played = play(text, source, config=config, cycles=cycles)
    echo(_shown(played, output))
    for step in played.refused_steps:
        show_warning(f"refused: {step}")
    if played.exhausted:
        echo(f"stopped after {MOST_SESSIONS} sessions, though more was due", err=True)


def _has_node(text: bytes, source: str) -> bool:
    """Return whether the world has a node, or gets one by a step of its Timeline.

    Raises InvalidInput if the file has no manifests.
    """
    from batchq.config.documents import read_documents

    for document in read_documents(text, source):
        steps = document.data.get("spec") if document.data.get("kind") == "Timeline" else None
        brought = [step.get("apply") for step in _dicts(steps)]
        if any(item.get("kind") == "Node" for item in _dicts([document.data, *brought])):
            return True
    return False


def _dicts(items: object) -> list[dict[str, object]]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _shown(played: PlayedWorld, output: str) -> str:
    if output == "table":
        from batchq.lab.simulation.report import as_table

        return as_table(played.outcome)
    from batchq.lab.simulation.report import as_json

    return as_json(played.outcome)


_FILE = click.Path(path_type=Path)


@click.command(
    cls=RunsInOrder,
    epilog=examples(
        "batchq simulate conf/examples/world.yaml",
        "batchq simulate world.yaml --config conf/scheduler.yaml -o json",
        "batchq simulate - --cycles 1 < world.yaml",
        "batchq simulate KTH-SP2-1996-2.swf.gz --policy easy --policy fcfs --jobs 5000",
        "batchq simulate KTH-SP2-1996-2.swf.gz --policy easy --starts starts.csv -o json",
        "batchq simulate SDSC-SP2.swf.gz --by group --config mine.yaml --plot shares.png",
        "batchq simulate openb_pod_list_default.csv --nodes openb_node_list_all_node.csv"
        " --inflate 130 --plot gpus.png",
        "batchq simulate --from-live --config new.yaml --until 6h",
    ),
)
@click.argument("what", metavar="WORLD|TRACE|PODS.csv", required=False)
@click.option(
    "--config",
    "configs",
    type=_FILE,
    multiple=True,
    metavar="FILE",
    help="A scheduler configuration to try; repeatable with a log, one run each.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="A log or pods: fcfs, first-fit, easy, easy-sjf or conservative; repeatable, one run each,"
    " under the default configuration. Without --policy and --config: first-fit.",
)
@click.option(
    "--cycles",
    type=WholeNumber(1),
    metavar="N",
    help="A world only: stop after N sessions.  [default: when nothing can change any more, at most"
    " 1000]",
)
@click.option(
    "--jobs", type=WholeNumber(1), metavar="N", help="A log's first N usable jobs; N pods."
)
@click.option(
    "--procs",
    type=WholeNumber(1),
    metavar="P",
    help="A log only: the machine's processors.  [default: the log's]",
)
@click.option(
    "--pass",
    "passes",
    type=click.Choice(["instant", "event"]),
    help="A log only: one session for all events of an instant (the default), or one after each"
    " submit and each end.",
)
@click.option(
    "--processes",
    type=WholeNumber(1),
    metavar="N",
    help="A log only: how many processes simulate the parts of a long log between moments at which"
    " nothing ran. The result is the same.  [default: one per cpu]",
)
@click.option(
    "--by",
    type=click.Choice(["user", "group", "queue"]),
    help="A log only: give each user, group or queue of the log a namespace and a queue of its own,"
    " and report on each.",
)
@click.option(
    "--queues",
    type=_FILE,
    metavar="FILE",
    help="With --by: Queues (weight, deserved, capability …) that replace generated ones, by name;"
    " one named default is the pattern for the others.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="The output format; csv, for a log or pods, has a row for each run.",
)
@click.option(
    "--starts",
    type=_FILE,
    metavar="FILE.csv",
    help="A log or pods: write each job's start (job,submit,start); - replaces the report.",
)
@click.option(
    "--plot",
    type=_FILE,
    metavar="FILE.png",
    help="A log or pods: plot utilisation, queue length and waits; also .svg and .pdf.",
)
@pods_options
@live_options
@pass_globals
@click.pass_context
def simulate(
    context: click.Context,
    shared: Globals,
    /,
    what: str,
    configs: tuple[Path, ...],
    policies: tuple[str, ...],
    cycles: int | None,
    jobs: int | None,
    procs: int | None,
    passes: str | None,
    processes: int | None,
    by: Literal["user", "group", "queue"] | None,
    queues: Path | None,
    output: str,
    starts: Path | None,
    plot: Path | None,
    **_other_options: object,
) -> None:
    """Simulate a described cluster, or the log of a real machine, in virtual time.

    The scheduler's own sessions run over queues, nodes and pod groups, without a server and without
    starting any process.

    WORLD is a file of manifests that describe the cluster and its groups, or - for standard input.
    A pod whose template has the annotation
    batchq/runtime succeeds that long after its start; a document of kind Timeline describes events
    from outside and their times.

    TRACE is a log in the Standard Workload Format (.swf, .swf.gz): one machine, one queue, and for
    each job a group of one pod, with the job's processors as cpus and its request as walltime. Each
    --policy and each --config is one run, in the order given; all share one table and one plot.

    -o json for one run of a log is one object: jobs, finished, mean_wait_s, median_wait_s,
    p95_wait_s, max_wait_s, mean_bounded_slowdown, utilization, makespan_s, evictions; with --by
    also fairness and tenants. For several runs it is {"runs": [{"name": …, and the same}]}. Figures
    are over the jobs that finished, null if there are none. -o csv has the same columns after
    `run`. --starts writes a row for each job, in the log's order, with the log's job numbers and
    seconds; with several runs, the first column is `run`. The start is empty for a job that never
    started. For a job that was evicted, it is the last start.

    PODS.csv is the table of pods of Alibaba's GPU trace, and --nodes that of its nodes: each pod
    becomes a group of one, with cpu, memory and GPUs in thousandths. Each --placement, --policy and
    --config is one run; without any, both placements. Pods come and go at their recorded times;
    with --inflate they come until the cluster is more than full, and stay. The report has the GPU
    allocation ratio, the fragmentation of Weng et al. (USENIX ATC 2023), and the number of nodes
    with free GPUs but too little cpu or memory. docs/gpu-trace.md describes the figures and the
    JSON.

    --from-live takes no file: it begins with the state of the live server, which it reads and does
    not change. Groups end at their walltimes, no groups are submitted, no admission checks are
    answered, and no nodes return. It reports when groups start and which are evicted, under the
    scheduler's own configuration and under each --config. docs/what-if.md has the assumptions and
    the JSON.

    Exit code 0 even if groups still wait at the end, 1 if a file or a configuration is wrong, 2 if
    an option does not apply to the input, 9 if --from-live finds no server, 130 after Ctrl-C.
    """
    live = live_request(context.params)
    if live is not None:
        from batchq.cli.simulate.live import simulate_live

        simulate_live(shared, live)
        return
    found = given(what)
    pods = pods_request(context, found)
    if pods is not None:
        from batchq.cli.simulate.recorded import simulate_pods

        simulate_pods(found, pods)
        return
    refuse_for(found, context.params)
    if found.kind is InputKind.WORLD:
        simulate_world(found, configs, cycles=cycles, output=output)
        return
    from batchq.cli.simulate.recorded import LogRequest, simulate_log

    request = LogRequest(
        asked=requested_runs(context),
        jobs=jobs,
        procs=procs,
        per_event=passes == "event",
        processes=processes,
        by=by,
        queues=queues,
        to=Destination(output, starts, plot),
    )
    simulate_log(found, request)
