"""`batchq run`: a file or a command, shown to its end.

For a file, the stack is started if necessary. A command is run by `batchq.cli.foreground`.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any, TextIO

import click
from click.core import ParameterSource
from msgspec import Struct, structs

from batchq.api.exec_session import ALLOCATION_VARIABLE
from batchq.api.lifecycle import TERMINAL, PodGroupPhase, PodPhase
from batchq.api.notation import LABEL_MOST, counted, describe_age, describe_timeout
from batchq.api.objects import Object, Pod, PodGroup, key_of
from batchq.cli.allocation import run_attached, run_in_allocation
from batchq.cli.foreground import pods_of, run_command
from batchq.cli.objects import (
    GroupLimitCheck,
    located_in,
    queues_to_keep_stopped,
    warn,
    warn_of_capacity,
)
from batchq.cli.output import (
    EXIT_GROUP_CANCELLED,
    EXIT_GROUP_FAILED,
    Interrupted,
    aligned,
    comment,
    echo,
    on_interrupt,
    one_line,
    raw_option,
)
from batchq.cli.output.options import DURATION, Globals, examples, pass_globals
from batchq.cli.output.progress import display, short
from batchq.cli.output.values import ending_text, seconds_of
from batchq.cli.pod_exec import has_input
from batchq.cli.request_options import awaited_command_options
from batchq.client import Client
from batchq.client.request import marked, with_working_dir
from batchq.config.documents import Document, read_bounded, read_documents
from batchq.errors import InvalidInput, NotFound, UsageError, WaitTimedOut
from batchq.paths import Home

if TYPE_CHECKING:
    from batchq.api.views import GroupView
    from batchq.daemon.stack import StackReport


class RunPlan(Struct, frozen=True, kw_only=True):
    """The objects of a file. `others` (queues, quotas …) are applied first; `groups` are in the
    order of the file.

    `keep_stop` are the queues whose stopPolicy the file does not set, and `documents` the manifests
    of all objects.
    """

    others: tuple[Object, ...]
    groups: tuple[PodGroup, ...]
    keep_stop: frozenset[str] = frozenset()
    documents: Sequence[Document] = ()

    @property
    def pods(self) -> int:
        """The number of pods of all groups."""
        return sum(task.replicas for group in self.groups for task in group.spec.tasks)

    def marked(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> RunPlan:
        """Return the plan with these labels and annotations added to each group."""
        groups = tuple(marked(group, labels, annotations) for group in self.groups)
        return structs.replace(self, groups=groups)


def read_plan(file: Path, shared: Globals | None = None) -> RunPlan:
    """Read the objects of `file`; the default workingDir of pods is the folder of the file.

    `shared` names the server whose limits are checked while the file is read. Raises InvalidInput,
    also if there is no PodGroup to run.
    """
    try:
        content = read_bounded(file)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from None
    check = GroupLimitCheck(shared, str(file), content)
    documents = read_documents(content, str(file), check=check)
    objects = [document.decode() for document in documents]
    groups = [item for item in objects if isinstance(item, PodGroup)]
    if not groups:
        raise InvalidInput(
            f"{file}: expected at least one PodGroup to run, found none",
            hint="`batchq apply -f FILE` is for files of other objects",
        )
    return RunPlan(
        others=tuple(item for item in objects if not isinstance(item, PodGroup)),
        groups=tuple(with_working_dir(groups, str(file.resolve().parent))),
        keep_stop=queues_to_keep_stopped(documents, objects),
        documents=documents,
    )


def refuse_unless_single(plan: RunPlan) -> None:
    """Raise UsageError unless there is exactly one pod, whose exit code can be passed on."""
    if plan.pods != 1:
        raise UsageError(
            f"--exit-code passes on the exit code of a single pod, but the file has {plan.pods}",
            hint="leave it out: exit code 10 means that a group failed",
        )


def with_fresh_names(groups: Sequence[PodGroup], taken: Container[str]) -> tuple[PodGroup, ...]:
    """Return the groups under names that are not among the keys `taken`: `name-2`, `name-3` …

    All groups of one file get the same number, also in dependencies on each other.
    """
    number = 1
    while any(_key(group, number) in taken for group in groups):
        number += 1
    if number == 1:
        return tuple(groups)
    names = {key_of(group): _name(group.metadata.name, number) for group in groups}
    return with_names(groups, names)


def renamed(before: Iterable[PodGroup], after: Iterable[PodGroup]) -> list[tuple[str, str]]:
    """Return the old and new keys of the groups that were renamed."""
    pairs = [(key_of(old), key_of(new)) for old, new in zip(before, after, strict=True)]
    return [(old, new) for old, new in pairs if old != new]


def with_names(groups: Iterable[PodGroup], names: Mapping[str, str]) -> tuple[PodGroup, ...]:
    """Return the groups under other names, by their keys, also in dependencies on each other."""
    return tuple(_renamed(group, names) for group in groups)


def _renamed(group: PodGroup, names: Mapping[str, str]) -> PodGroup:
    namespace = group.metadata.namespace
    depends_on = tuple(
        structs.replace(one, name=names.get(f"{namespace}/{one.name}", one.name))
        for one in group.spec.depends_on
    )
    name = names[key_of(group)]
    return structs.replace(
        group,
        metadata=structs.replace(group.metadata, name=name),
        spec=structs.replace(group.spec, depends_on=depends_on),
    )


def _key(group: PodGroup, number: int) -> str:
    return f"{group.metadata.namespace}/{_name(group.metadata.name, number)}"


def _name(name: str, number: int) -> str:
    if number == 1:
        return name
    suffix = f"-{number}"
    return name[: LABEL_MOST - len(suffix)].rstrip("-") + suffix


#: The shortest time between two looks, and the longest one if no change is reported.
_LEAST_S = 0.2
_MOST_S = 2.0
_LAST_LINES = 3


def taken_keys(client: Client) -> frozenset[str]:
    """Return the keys of all existing groups, including those that cannot be read."""
    found = client.listing("PodGroup")
    return frozenset([*map(key_of, found.objects), *(one.key for one in found.unreadable)])


def follow(client: Client, keys: Sequence[str], *, timeout_s: float | None) -> list[GroupView]:
    """Show the groups until all of them and their processes have ended; return the last views.

    Raises Interrupted at Ctrl-C and WaitTimedOut, which name the groups that keep running, and
    NotFound if a group is deleted meanwhile.
    """
    views: list[GroupView] = []
    try:
        for found in looks(client, keys, sys.stderr, timeout_s=timeout_s):
            views = found
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {_still_active(views)}", hint=_how_to_end(views)) from None
    if all(has_ended(view) for view in views):
        return views
    after = describe_timeout(timeout_s or 0)
    raise WaitTimedOut(f"not ended after {after}; {_still_active(views)}", hint=_how_to_end(views))


def looks(
    client: Client, keys: Sequence[str], stream: TextIO, *, timeout_s: float | None = None
) -> Iterator[list[GroupView]]:
    """Show groups until they and their processes have ended, or for `timeout_s`; yield each look.

    Raises NotFound if a group is deleted meanwhile.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    with client.patiently(timeout_s), display(stream) as shown:
        while True:
            views = _look(client, keys)
            shown.show(views)
            yield views
            left_s = _MOST_S if deadline is None else deadline - time.monotonic()
            if left_s <= 0 or all(has_ended(view) for view in views):
                return
            client.wait_for_change(most_s=min(_MOST_S, left_s), least_s=_LEAST_S)


def output_folder(home: Home, name: str) -> Path:
    """Create a new folder for the output of a run's pods.

    Raises InvalidInput if it cannot be created.
    """
    now = datetime.now(UTC)
    folder = home.root / "runs" / f"{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03}-{name}"
    try:
        folder.mkdir(parents=True, mode=0o700)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be created: {error.strerror}") from None
    return folder


def collect_output(client: Client, keys: Sequence[str], folder: Path) -> list[PodOutput]:
    """Write each pod's kept output to a file in `folder`; return the last lines of each.

    Raises OSError if a file cannot be written.
    """
    outputs = []
    for key in keys:
        texts: dict[str, list[str]] = {}
        for line in client.logs(key):
            texts.setdefault(line.pod, []).append(line.text)
        for pod, lines in texts.items():
            prefix = "" if key.startswith("default/") else f"{key.partition('/')[0]}."
            folder.joinpath(f"{prefix}{pod}.log").write_text("\n".join(lines) + "\n")
            last = tuple(lines[-_LAST_LINES:])
            outputs.append(PodOutput(pod=pod, count=len(lines), last=last))
    return outputs


def _look(client: Client, keys: Sequence[str]) -> list[GroupView]:
    namespaces = {key.partition("/")[0] for key in keys}
    overview = client.overview()
    found = {
        view.key: view
        for namespace in sorted(namespaces)
        for view in overview.groups(namespace=namespace)
    }
    gone = [key for key in keys if key not in found]
    if gone:
        raise NotFound(f"PodGroup {gone[0]} was deleted while it was followed")
    return [found[key] for key in keys]


def _still_active(views: Sequence[GroupView]) -> str:
    """Return the groups that have not ended."""
    active = [f"{short(view.key)} ({view.shown})" for view in views if not has_ended(view)]
    return f"still active: {', '.join(active)}" if active else "all groups have ended"


def _how_to_end(views: Sequence[GroupView]) -> str:
    names = " ".join(short(view.key) for view in views if view.phase not in TERMINAL)
    if not names:
        return ""
    return f"`batchq progress {names}` follows them, `batchq cancel {names}` ends them"


#: How many pods' output is quoted at the end.
_PODS_QUOTED = 6
#: Added to a signal's number, this is the exit code that a shell reports.
_SIGNALLED = 128


class PodOutput(Struct, frozen=True, kw_only=True):
    """A pod's last lines; `count` is the number of all its lines."""

    pod: str
    count: int
    last: tuple[str, ...]


def result(
    views: Sequence[GroupView], pods: Sequence[Pod], outputs: Sequence[PodOutput], folder: Path
) -> Iterator[str]:
    """Yield the lines of the final report."""
    yield from aligned(summary_rows(views, pods))
    for view in views:
        if view.phase != PodGroupPhase.COMPLETED:
            ending = one_line(ending_text(view.phase, view.reason, view.message))
            if ending != view.phase:
                yield f"{short(view.key)}: {ending}"
    yield from _last_lines(outputs, failed_in(pods))
    yield ""
    logs = f"Logs of {counted(len(outputs), 'pod')}: {folder}"
    yield logs if outputs else "The pods have no output"
    for path in announced(outputs):
        yield f"Written: {path}"


def verdict(views: Sequence[GroupView], pods: Sequence[Pod], *, exit_code: bool) -> int:
    """Return the command's exit code; with `exit_code`, the single pod's, as a shell reports it."""
    phases = {view.phase for view in views}
    if exit_code and len(pods) == 1 and PodGroupPhase.CANCELLED not in phases:
        status = pods[0].status
        if status.signal is not None:
            return _SIGNALLED + status.signal
        if status.exit_code is not None:
            return status.exit_code
    if PodGroupPhase.FAILED in phases:
        return EXIT_GROUP_FAILED
    return EXIT_GROUP_CANCELLED if PodGroupPhase.CANCELLED in phases else 0


def failed_in(pods: Sequence[Pod]) -> frozenset[str]:
    """Return the names of the failed pods."""
    return frozenset(pod.metadata.name for pod in pods if pod.status.phase == PodPhase.FAILED)


def _last_lines(outputs: Sequence[PodOutput], failed: Collection[str]) -> Iterator[str]:
    """Yield the last lines of failed pods, and one line of each other pod."""
    ordered = sorted(outputs, key=lambda output: output.pod not in failed)
    rows = []
    for output in ordered[:_PODS_QUOTED]:
        if output.pod not in failed:
            rows.append((f"{output.pod}:", one_line(output.last[-1]) if output.last else ""))
            continue
        yield ""
        shown = f"the last {counted(len(output.last), 'line')} of {output.count}"
        yield f"{output.pod}: {shown if output.count > len(output.last) else 'its whole output'}"
        yield from (f"    {line}" for line in output.last)
    if rows:
        yield ""
        yield from aligned(rows)
    if len(outputs) > _PODS_QUOTED:
        yield f"… and {counted(len(outputs) - _PODS_QUOTED, 'more pod')}"


def summary_rows(views: Sequence[GroupView], pods: Sequence[Pod]) -> list[tuple[str, ...]]:
    """Return the rows of the summary, the header first."""
    rows: list[tuple[str, ...]] = [("GROUP", "PHASE", "PODS", "WAIT", "RUN", "EXIT CODES")]
    for view in views:
        namespace, _, name = view.key.partition("/")
        pods_of_group = [
            pod
            for pod in pods
            if pod.metadata.namespace == namespace and pod.spec.pod_group == name
        ]
        rows.append(
            (
                short(view.key),
                view.shown,
                f"{view.pods.succeeded}/{view.pods.wanted}",
                _span(view.created_at, view.started_at or view.finished_at),
                _span(view.started_at, view.finished_at),
                exit_codes(pods_of_group),
            )
        )
    return rows


def exit_codes(pods: Sequence[Pod]) -> str:
    """Return e.g. `0 ×4`, `0 ×3, 1`, `signal 9`; `-` if no pod has ended."""
    counts = Counter(_ending(pod) for pod in pods)
    counts.pop("", None)
    ordered = sorted(counts, key=lambda word: (not word.isdigit(), len(word), word))
    return (
        ", ".join(f"{word} ×{counts[word]}" if counts[word] > 1 else word for word in ordered)
        or "-"
    )


def announced(outputs: Sequence[PodOutput]) -> list[str]:
    """Return the paths that pods announce in a last line `wrote PATH`."""
    found = []
    for output in outputs:
        word, _, path = output.last[-1].strip().partition(" ") if output.last else ("", "", "")
        if word == "wrote" and path.strip():
            found.append(path.strip())
    return list(dict.fromkeys(found))


def has_ended(view: GroupView) -> bool:
    """Return whether the group and all its processes have ended."""
    return view.phase in TERMINAL and not (
        view.pods.running or view.pods.bound or view.pods.stopping
    )


def _ending(pod: Pod) -> str:
    status = pod.status
    if status.phase not in (PodPhase.SUCCEEDED, PodPhase.FAILED):
        return ""
    if status.signal is not None:
        return f"signal {status.signal}"
    return "" if status.exit_code is None else str(status.exit_code)


def _span(start: int | None, end: int | None) -> str:
    if start is None or end is None:
        return "-"
    seconds = max(0, end - start) / 1000
    return f"{seconds:.1f}s" if seconds < 60 else describe_age(max(0, end - start))


_IS_COMMAND = f"{__name__}.is_command"
#: Options that apply to commands and to files alike.
_OF_BOTH = frozenset({"words", "labels", "annotations", "timeout", "keep"})
_OF_FILES = frozenset({"exit_code", "down"})
#: Options that apply within an allocation.
_OF_STEPS = frozenset({"words", "pty", "prefix", "raw"})


class RunCommand(click.Command):
    """`run`, which notes whether there are two dashes: a command follows them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_IS_COMMAND] = "--" in args
        return super().parse_args(ctx, args)


@click.command(
    cls=RunCommand,
    epilog=examples(
        "batchq run -- hostname",
        "batchq run -N 4 --cpus 2 -- ./simulate --steps 100",
        "batchq run --pty --gpus 1 -- bash",
        "batchq run conf/examples/mandelbrot.yaml",
        "batchq run job.yaml --timeout 10m --down",
        "batchq run one-pod.yaml --exit-code",
    ),
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="FILE | -- COMMAND…")
@awaited_command_options
@click.option("--exit-code", is_flag=True, help="End with the exit code of the file's single pod.")
@click.option(
    "--timeout",
    type=DURATION,
    help="Stop watching after this, with exit code 124; the groups keep running.",
)
@click.option(
    "--keep/--no-keep",
    default=True,
    show_default=True,
    help="Keep the ended groups for `batchq describe` and `batchq logs`.",
)
@click.option(
    "--prefix/--no-prefix",
    default=None,
    help="Begin each line of a command's output with the index of its pod.  [default: with"
    " several pods]",
)
@click.option("--pty", is_flag=True, help="Give a command a terminal, for a shell or an editor.")
@raw_option
@click.option("--down", is_flag=True, help="Stop server, scheduler and agents at the end.")
@pass_globals
def run(shared: Globals, /, words: tuple[str, ...], **options: Any) -> int:
    """Run a command on the nodes and show its output here, or run the groups of a file.

    COMMAND is submitted as a group of one pod, or of several (-N), and its output is shown as it
    comes. If the input of this command is a pipe or a file, the pods read it too; with --pty, the
    pod gets this terminal. In both cases, `batchq logs` does not have the output. The exit code is
    that of the pod, or the highest of several. The first Ctrl-C shows the state of the group, and a
    second one within a second cancels it. If there is no capacity for the group, it waits, and so
    does this command.

    For FILE, the server, the scheduler and two node agents are started on this machine if they do
    not run. Other objects of the file are applied first. A group gets a number after its name if
    the name is taken. The default workingDir of pods is the folder of FILE.

    Exit codes for FILE: 0 all groups completed, 10 one failed, 11 one was cancelled, 124 --timeout,
    130 Ctrl-C: the groups keep running.
    """
    if click.get_current_context().meta[_IS_COMMAND]:
        _refuse_options(_OF_FILES, "a file, not to a command")
        return _run_command(shared, words, options)
    file, rest = _file_of(words)
    refuse_command(file, rest)
    _refuse_options(
        {name for name in options if name not in _OF_BOTH | _OF_FILES}, "a command, not to a file"
    )
    return _run_file(shared, file, options)


def _run_command(shared: Globals, command: tuple[str, ...], options: Mapping[str, Any]) -> int:
    if not command:
        raise UsageError(
            "expected a command after `--`", hint="as in `batchq run --cpus 1 -- python3 train.py`"
        )
    allocation = os.environ.get(ALLOCATION_VARIABLE, "")
    if allocation:
        _refuse_options(
            {name for name in options if name not in _OF_STEPS},
            f"a group of its own, and this is within the allocation {allocation}",
        )
        return run_in_allocation(shared, allocation, command, options)
    if options["pty"] or has_input():
        return run_attached(shared, command, options)
    return run_command(shared, command, options)


def _refuse_options(names: Collection[str], what: str) -> None:
    """Raise UsageError if one of these options was typed."""
    context = click.get_current_context()
    for param in context.command.params:
        is_typed = context.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
        if param.name in names and is_typed:
            raise UsageError(f"{param.opts[-1]} applies to {what}", hint="leave it out")


def _file_of(words: Sequence[str]) -> tuple[Path, Sequence[str]]:
    if not words:
        raise UsageError(
            "expected a file, or a command after `--`",
            hint="as in `batchq run job.yaml` and `batchq run -- hostname`",
        )
    return Path(words[0]), words[1:]


def _run_file(shared: Globals, file: Path, options: Mapping[str, Any]) -> int:
    from batchq.cli.stack import end_stack
    from batchq.daemon import stack
    from batchq.paths import find_home

    plan = read_plan(file, shared).marked(options["labels"], options["annotations"])
    if options["exit_code"]:
        refuse_unless_single(plan)
    home = find_home()
    with on_interrupt("interrupted while the stack started; what was started is stopped again"):
        report = stack.up(home, stack.UpOptions(url=shared.redis_url), say=comment)
    comment(_found(report))
    try:
        return _run(
            shared,
            plan,
            home,
            exit_code=options["exit_code"],
            timeout_s=seconds_of(options["timeout"]),
            keep=options["keep"],
        )
    finally:
        # In every case, the user learns what still runs.
        if options["down"]:
            end_stack(home, url=shared.redis_url)
            comment("Stopped: what ran here of the server, the scheduler and the agents")
        else:
            names = ", ".join(part.name for part in report.parts)
            comment(f"Still running: {names}. `batchq down` stops them")


def refuse_command(file: Path, rest: Sequence[str]) -> None:
    """Raise UsageError if `file` is a command, or a script, saying how to run it."""
    words = [str(file), *rest]
    if _is_script(file):
        here = str(file) if file.parent.name else f"./{file}"
        words = [here, *rest] if os.access(file, os.X_OK) else ["sh", here, *rest]
    elif not rest and (file.exists() or which(str(file)) is None):
        return
    raise UsageError(
        f"run takes a file of manifests, or a command after `--`; found {shlex.join(words)}",
        hint=f"to run it: batchq run -- {shlex.join(words)}",
    )


def _is_script(file: Path) -> bool:
    try:
        with file.open("rb") as content:
            return content.read(2) == b"#!"
    except OSError:
        return False


def _run(
    shared: Globals,
    plan: RunPlan,
    home: Home,
    *,
    exit_code: bool,
    timeout_s: float | None,
    keep: bool,
) -> int:
    from batchq.client import Client

    with Client(shared.redis_url, tell=comment) as client:
        groups = with_fresh_names(plan.groups, taken_keys(client))
        for old, new in renamed(plan.groups, groups):
            comment(f"{short(old)} exists already: the new group is {short(new)}")
        hint = "`batchq jobs` shows what was submitted"
        with (
            on_interrupt("interrupted while submitting", hint=hint),
            located_in(plan.documents),
        ):
            applied = client.submit_all([*plan.others, *groups], keep_stop=plan.keep_stop)
        warn(applied)
        warn_of_capacity(client, applied)
        keys = [f"{group.metadata.namespace}/{group.metadata.name}" for group in groups]
        comment(f"Submitted {', '.join(short(key) for key in keys)}")
        views = follow(client, keys, timeout_s=timeout_s)
        with on_interrupt("interrupted while collecting logs; the groups have all ended"):
            pods = pods_of(client, keys)
            folder = output_folder(home, groups[0].metadata.name)
            outputs = collect_output(client, keys, folder)
        for line in result(views, pods, outputs, folder):
            echo(line)
        if not keep:
            client.delete_all([("PodGroup", key) for key in keys])
    return verdict(views, pods, exit_code=exit_code)


def _found(report: StackReport) -> str:
    started = [part.name for part in report.parts if part.state == "started"]
    found = [part.name for part in report.parts if part.state != "started"]
    words = [f"Started {', '.join(started)}"] if started else []
    words += [f"{'found' if started else 'Found'} running {', '.join(found)}"] if found else []
    return "; ".join(words)
