"""The options of a request, which `submit` and `plan` share, and the objects that they describe."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import click

from batchq.api.node_features import RUNTIMES, parse_toleration
from batchq.api.notation import shown
from batchq.api.objects import Object, PodGroup
from batchq.api.validation import MOST_PORTS, MOST_PROCESSES
from batchq.cli.objects import Content, read_content
from batchq.cli.output.options import DURATION, WholeNumber
from batchq.cli.output.values import (
    as_env,
    as_gpus,
    as_json,
    as_pairs,
    as_quantity,
    as_resources,
    as_walltime,
)
from batchq.client import Client, Request
from batchq.client.request import LAUNCHES, array_size, marked, present_folder
from batchq.errors import InvalidInput, UsageError

F = TypeVar("F", bound=Callable[..., Any])


def _as_array(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Check a range, a click callback; return it as text."""
    if value is not None:
        try:
            array_size(value)
        except UsageError as error:
            raise UsageError(f"--{error.message}", hint=error.hint) from None
    return value


def _as_nodes(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    """Refuse a list of nodes in one word, a click callback."""
    for word in value:
        if "," in word:
            option = param.opts[-1]
            each = " ".join(f"{option} {name.strip()}" for name in word.split(",") if name.strip())
            raise UsageError(
                f"{option}: expected the name of one node, found {shown(word)}",
                hint=f"repeat it for each node: {shown(each)[1:-1]}",
            )
    return value


def _as_tolerations(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    """Check the notation of tolerations, a click callback."""
    for word in value:
        try:
            parse_toleration(word)
        except InvalidInput as error:
            raise UsageError(f"--{error.message}") from None
    return value


def _as_topology(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> dict[str, str]:
    """Read `LABEL` or `LABEL=MODE`, a click callback; the client checks the mode."""
    for word in value:
        if not word.partition("=")[0]:
            raise UsageError(
                f"--topology: the label is empty: expected LABEL or LABEL=preferred, found"
                f" {shown(word)}",
                hint="as in `--topology rack`",
            )
    pairs = (word.partition("=") for word in value)
    return {label: mode if equals else "required" for label, equals, mode in pairs}


def _as_name(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Refuse an empty name, a click callback: it is probably an unset variable."""
    if not value and ctx.get_parameter_source(param.name or "") is _TYPED:
        raise UsageError(
            f"{param.opts[-1]} is empty; is it a variable that is not set?",
            hint="leave the option out for a generated name",
        )
    return value


_TYPED = click.core.ParameterSource.COMMANDLINE
#: Options that also apply to the groups of a file.
_MARK_OPTIONS: tuple[Callable[[F], F], ...] = (
    click.option(
        "--label",
        "labels",
        multiple=True,
        metavar="KEY=VALUE",
        callback=as_pairs,
        help="A label of the group, or of every group of a file; repeatable.",
    ),
    click.option(
        "--annotation",
        "annotations",
        multiple=True,
        metavar="KEY=VALUE",
        callback=as_pairs,
        help="An annotation of the group, or of every group of a file; repeatable.",
    ),
)
_MARKS = ("labels", "annotations")

_OPTIONS: tuple[Callable[[F], F], ...] = (
    click.argument("command", nargs=-1, metavar="[-- COMMAND…]"),
    click.option("-f", "--filename", metavar="FILE", help="The groups of a file; - is stdin."),
    click.option(
        "--function",
        default="",
        metavar="MODULE:NAME",
        help="Call this Python function; `batchq result` prints its result.",
    ),
    click.option(
        "--args", callback=as_json(list), metavar="JSON", help="Its arguments, as a list."
    ),
    click.option(
        "--kwargs", callback=as_json(dict), metavar="JSON", help="Its keyword arguments, as a map."
    ),
    click.option(
        "--name",
        default="",
        callback=_as_name,
        help="The group's name.  [default: generated from the command]",
    ),
    click.option(
        "--generate-name",
        default="",
        metavar="PREFIX",
        callback=_as_name,
        help="Generate a name that begins with this.",
    ),
    *_MARK_OPTIONS,
    click.option("-n", "--namespace", default="default", show_default=True, help="The namespace."),
    click.option("-q", "--queue", default="default", show_default=True, help="The queue."),
    click.option(
        "--cpus",
        callback=as_quantity("cpu"),
        help="CPUs of each pod, as in 2 or 500m.  [default: 1]",
    ),
    click.option("--mem", callback=as_quantity("memory"), help="Memory of each pod, as in 8Gi."),
    click.option(
        "--gpus", callback=as_gpus, metavar="[MODEL:]N", help="GPUs of each pod, as in 2 or h100:2."
    ),
    click.option(
        "--res",
        "resources",
        multiple=True,
        metavar="NAME=QUANTITY",
        callback=as_resources,
        help="Another resource of each pod; repeatable.",
    ),
    click.option(
        "--selector",
        "node_selector",
        multiple=True,
        metavar="KEY=VALUE",
        callback=as_pairs,
        help="Use only nodes with this label (`batchq nodes -o wide`); repeatable.",
    ),
    click.option(
        "--node",
        "nodes",
        multiple=True,
        metavar="NAME",
        callback=_as_nodes,
        help="Use only this node, or these; repeatable.",
    ),
    click.option(
        "--exclude",
        "exclude_nodes",
        multiple=True,
        metavar="NAME",
        callback=_as_nodes,
        help="Do not use this node; repeatable.",
    ),
    click.option(
        "--toleration",
        "tolerations",
        multiple=True,
        metavar="KEY[=VALUE][:EFFECT]",
        callback=_as_tolerations,
        help="Also use nodes with this taint (`batchq nodes -o wide`); repeatable.",
    ),
    click.option(
        "--topology",
        multiple=True,
        metavar="LABEL[=preferred]",
        callback=_as_topology,
        help="Place all pods on nodes with one value of this label, such as rack; if preferred, "
        "only where that is possible now. Repeatable.",
    ),
    click.option(
        "--exclusive",
        is_flag=True,
        help="Use only nodes that have no pods of other groups, and keep other groups off them.",
    ),
    click.option(
        "--max-pods-per-node",
        type=WholeNumber(1),
        metavar="N",
        help="Place at most this many pods of the group on one node.",
    ),
    click.option("--pack", is_flag=True, help="Place the pods on as few nodes as possible."),
    click.option(
        "--env-activate",
        default="",
        metavar="PATH",
        help="Run in the virtual environment or conda environment of this folder.",
    ),
    click.option(
        "--image",
        default="",
        metavar="IMAGE",
        help="Run in a container: a folder, or an image of apptainer, enroot or podman.",
    ),
    click.option(
        "--runtime",
        type=click.Choice(("auto", *RUNTIMES)),
        default="auto",
        show_default=True,
        help="What starts the container; auto goes by the image.",
    ),
    click.option(
        "--mount",
        "mounts",
        multiple=True,
        metavar="SRC[:DST][:ro]",
        help="A file or folder of the node for the container; repeatable.",
    ),
    click.option(
        "--isolate",
        multiple=True,
        type=click.Choice(("devices",)),
        help="Hide the devices of the node that the pod has not requested.",
    ),
    click.option("-N", "--replicas", type=WholeNumber(1), help="How many pods.  [default: 1]"),
    click.option(
        "--min-member",
        type=WholeNumber(1),
        help="How many must start together.  [default: all]",
    ),
    click.option(
        "--array",
        metavar="0-LAST",
        callback=_as_array,
        help="Independent pods, each with its $BATCHQ_INDEX.",
    ),
    click.option(
        "--launch",
        type=click.Choice(tuple(LAUNCHES)),
        help="Start the pods together as one distributed job, and tell each where the others are: "
        "torch or node for a launcher in each pod, such as torchrun; rank for one process per pod.",
    ),
    click.option(
        "--ports",
        type=WholeNumber(1, MOST_PORTS),
        help="With --launch: how many ports each pod gets.  [default: 1]",
    ),
    click.option(
        "--processes",
        type=WholeNumber(1, MOST_PROCESSES),
        help="With --launch: how many processes each pod starts.  [default: one per GPU]",
    ),
    click.option(
        "--dialect",
        type=click.Choice(("slurm",)),
        help="With --launch: also set the variables of Slurm, for programs that know only these.",
    ),
    click.option(
        "--restart",
        type=click.Choice(("group", "pod")),
        help="With --launch: what starts again if a pod fails or is lost.  [default: group]",
    ),
    click.option(
        "--warn",
        metavar="SIGNAL[@TIME]",
        help="With --launch: send this signal before the walltime is over and at an eviction, as "
        "in USR2@90s; a pod that then exits with 75 costs no retry.",
    ),
    click.option(
        "--walltime",
        type=DURATION,
        metavar="TEXT",
        callback=as_walltime,
        help="The longest it may run, as in 2h.",
    ),
    click.option(
        "--grace",
        type=DURATION,
        help="The time from SIGTERM to SIGKILL, as in 2m.  [default: 30s]",
    ),
    click.option("--priority-class", default="", metavar="NAME", help="Its priority class."),
    click.option(
        "--env",
        multiple=True,
        metavar="NAME[=VALUE]",
        callback=as_env,
        help="A variable of its pods; NAME alone passes on this shell's value; repeatable.",
    ),
    click.option(
        "--after",
        multiple=True,
        metavar="NAME",
        help="Wait for this group to succeed; any:NAME to end, failed:NAME to fail; repeatable.",
    ),
    click.option(
        "--gate",
        "gates",
        multiple=True,
        metavar="NAME",
        help="Hold the group back until `batchq gates open` opens this gate; repeatable.",
    ),
    click.option("--suspend", is_flag=True, help="Hold the group back until `batchq resume`."),
    click.option(
        "--retries",
        type=WholeNumber(0),
        default=0,
        show_default=True,
        help="How often a failed pod is retried, 10 s later.",
    ),
    click.option(
        "--stdin",
        is_flag=True,
        help="Keep the input of its pods open, for `batchq attach`; otherwise it is empty.",
    ),
    click.option(
        "--external",
        is_flag=True,
        help="A program of yours runs the group (`batchq external`); a command is optional.",
    ),
    click.option(
        "--api-token",
        is_flag=True,
        help="Give its pods a token, with which they act in your name at the HTTP API, in this"
        " namespace only.",
    ),
    click.option(
        "--share",
        is_flag=True,
        help="Let everyone with a role in the namespace read its output, and the values of its "
        "environment, over the HTTP API.",
    ),
)


def request_options(command: F) -> F:
    """Decorate a command with the options of a request."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


#: Options without a use for a command whose end its user awaits at the terminal.
_NOT_AWAITED = frozenset(
    {
        *("command", "filename", "function", "args", "kwargs", "min_member", "array", "gates"),
        *("suspend", "external", "stdin"),
    }
)


def awaited_command_options(command: F) -> F:
    """Decorate a command with the options of a request that runs one command and is awaited."""
    decorated = request_options(command)
    params: list[click.Parameter] = vars(decorated)["__click_params__"]
    params[:] = [param for param in params if param.name not in _NOT_AWAITED]
    return decorated


def check_request(
    command: Sequence[str], options: dict[str, Any], *, name: str, with_file: Collection[str]
) -> None:
    """Check that a request has exactly one thing to run, and that the options apply to it.

    The options `with_file` apply to a file, too.

    Raises UsageError.
    """
    given = [bool(command), options["filename"] is not None, bool(options["function"])].count(True)
    if given != 1 and not (options["external"] and not given):
        raise UsageError(
            "expected a command after `--`, a file with -f or a --function, found "
            + ("none of them" if not given else "more than one"),
            hint=f"as in `batchq {name} --cpus 1 -- python3 train.py`",
        )
    if options["function"] and options["external"]:
        raise UsageError(
            "--function and --external are both given, but batchq's own agents run a function",
            hint="leave out --external, or give a command or nothing for your consumer to run",
        )
    if command and (options["args"] or options["kwargs"]):
        raise UsageError(
            "--args and --kwargs apply to a function, not to a command",
            hint="write the command's arguments after it, or use --function",
        )
    beside = (*with_file, *_MARKS)
    option = "" if options["filename"] is None else _given_beside_file(beside)
    if option:
        raise UsageError(
            f"{option} applies to a command, not to a file",
            hint="leave it out, or put it into the file",
        )


def _given_beside_file(with_file: Collection[str]) -> str:
    """Return the first given option that applies only to a command."""
    ctx = click.get_current_context()
    for param in ctx.command.params:
        if not isinstance(param, click.Option) or param.name in ("filename", "output", *with_file):
            continue
        if ctx.get_parameter_source(param.name or "") is _TYPED:
            return param.opts[-1]
    return ""


#: The options that are fields of a request of the same name.
OF_REQUEST = (
    *("name", "generate_name", *_MARKS, "namespace", "queue", "cpus", "mem", "gpus", "resources"),
    *("node_selector", "nodes", "exclude_nodes", "tolerations", "topology"),
    *("replicas", "min_member", "exclusive", "max_pods_per_node", "pack"),
    *("function", "array"),
    *("walltime", "grace", "priority_class", "env", "after", "gates", "suspend", "retries"),
    *("external", "api_token", "share", "launch", "ports", "processes", "dialect"),
    *("restart", "warn"),
    *("env_activate", "stdin", "image", "runtime", "mounts", "isolate"),
)


def requested(client: Client, command: Sequence[str], options: dict[str, Any]) -> Content:
    """Return the objects of the file, or the group that the options describe.

    Raises InvalidInput, UsageError.
    """
    if options.get("filename") is not None:
        content = read_content(options["filename"], in_folder=True)
        marks = options["labels"], options["annotations"]
        objects: list[Object] = [
            marked(one, *marks) if isinstance(one, PodGroup) else one for one in content.objects
        ]
        return content._replace(objects=objects)
    _check_command(command)
    request = {name: options[name] for name in OF_REQUEST if name in options}
    request |= {"args": options.get("args") or [], "kwargs": options.get("kwargs") or {}}
    request |= {"command": list(command), "working_dir": present_folder()}
    return Content([client.group_of(Request(**request))], frozenset())


def _check_command(command: Sequence[str]) -> None:
    if command and not command[0]:
        raise UsageError(
            "the command is empty: expected a program as its first word, found ''",
            hint="is it a variable that is not set?",
        )
