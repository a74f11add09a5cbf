"""Submitted groups: `batchq wait` and `progress` follow them, `logs` and `result` print what they
wrote and returned, and `cancel`, `suspend` and `resume` change their course.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast

import click

from batchq.api.objects import PodGroup
from batchq.api.views import Result
from batchq.cli.output import Table, comment, echo, raw_option, show_table, show_trouble
from batchq.cli.output.forms import Output, report
from batchq.cli.output.options import (
    DURATION,
    Globals,
    WholeNumber,
    examples,
    namespace_option,
    output_option,
    pass_globals,
)
from batchq.cli.output.values import (
    exit_code_of,
    following,
    group_key,
    group_keys,
    left_of,
    print_results,
    seconds_of,
    warn_if_no_leader,
)
from batchq.client import Client
from batchq.errors import Conflict, NotFound, Rejected, UsageError

if TYPE_CHECKING:
    from batchq.api.views import Goal, LogLine


@click.command(epilog=examples("batchq progress train-1", "batchq progress train-1 train-2"))
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@namespace_option
@raw_option
@pass_globals
def progress(shared: Globals, names: tuple[str, ...], namespace: str) -> int:
    """Follow groups until they have ended; the exit code is that of `batchq wait`."""
    keys = group_keys(names, namespace)
    with following(shared, keys) as client:
        return exit_code_of(follow(client, keys))


def follow(
    client: Client, keys: Sequence[str], *, err: bool = False, timeout_s: float | None = None
) -> Sequence[Result]:
    """Show groups until all have ended; return the results.

    Raises NotFound, also if a group is deleted meanwhile, and WaitTimedOut.
    """
    from batchq.cli.run import looks

    with client.patiently():
        for key in keys:
            client.get("PodGroup", key)
    for _ in looks(client, keys, sys.stderr if err else sys.stdout, timeout_s=timeout_s):
        pass
    # They have ended by now, or the time is over.
    return client.wait(keys, timeout_s=None if timeout_s is None else 0.0)


GOALS = ("finished", "succeeded", "running", "admitted")


@click.command(
    epilog=examples(
        "batchq wait train-1",
        "batchq wait train-1 train-2 --for succeeded --timeout 2h",
        "batchq wait train-1 --for running --timeout 10m",
    )
)
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@namespace_option
@click.option(
    "--for",
    "goal",
    type=click.Choice(GOALS),
    default="finished",
    show_default=True,
    help="What to wait for. With `succeeded`, the first group that fails ends the wait.",
)
@click.option("--timeout", type=DURATION, help="The longest wait (exit code 124).")
@output_option("text", "json")
@pass_globals
def wait(
    shared: Globals,
    names: tuple[str, ...],
    namespace: str,
    goal: str,
    timeout: str | None,
    output: Output,
) -> int:
    """Wait for groups to finish: until they and all their processes have ended, or as --for says.

    Exit codes: 0 all reached the goal, 10 one has failed, 11 one was cancelled, 124 timeout.
    """
    keys = group_keys(names, namespace)
    timeout_s = seconds_of(timeout)
    with following(shared, keys, patience_s=timeout_s) as client:
        left_s = left_of(timeout_s, client.waited_s)
        warn_if_no_leader(client, keys)
        results = client.wait(keys, for_=cast("Goal", goal), timeout_s=left_s)
    output.page({"items": results}, lambda: print_results(results))
    return exit_code_of(results)


@click.command(
    epilog=examples(
        "batchq cancel train-1",
        "batchq cancel train-1 train-2 -n research --reason 'wrong data'",
    )
)
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@namespace_option
@click.option("--reason", default="", help="The reason, which is recorded.")
@output_option("text", "json")
@pass_globals
def cancel(
    shared: Globals, names: tuple[str, ...], namespace: str, reason: str, output: Output
) -> int:
    """End groups: they are Cancelled at once, and their processes get SIGTERM, then SIGKILL.

    SIGKILL follows after the grace period of the pods (`batchq submit --grace`). `batchq wait NAME`
    returns when the processes have ended. A group that cannot be cancelled is reported, and the
    others are cancelled; the exit code is that of the first error.
    """

    def act(client: Client, key: str) -> str:
        client.cancel(key, reason=reason)
        return "cancelled"

    return _act_on_each(shared, names, namespace, output, act)


@click.command(epilog=examples("batchq suspend train-1", "batchq suspend research/train-1"))
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@namespace_option
@output_option("text", "json")
@pass_globals
def suspend(shared: Globals, names: tuple[str, ...], namespace: str, output: Output) -> int:
    """Suspend groups: their running pods are stopped, and they stay Pending until `resume`.

    A group that cannot be suspended is reported, and the others are suspended.
    """

    def act(client: Client, key: str) -> str:
        return "suspended" if client.suspend(key) else "is suspended already"

    return _act_on_each(shared, names, namespace, output, act)


@click.command(epilog=examples("batchq resume train-1", "batchq resume research/train-1"))
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@namespace_option
@output_option("text", "json")
@pass_globals
def resume(shared: Globals, names: tuple[str, ...], namespace: str, output: Output) -> int:
    """Return suspended groups to the pending queue, at their former position.

    A group that cannot be resumed is reported, and the others are resumed.
    """

    def act(client: Client, key: str) -> str:
        return "resumed" if client.resume(key) else "is not suspended"

    return _act_on_each(shared, names, namespace, output, act)


def _act_on_each(
    shared: Globals,
    names: Sequence[str],
    namespace: str,
    output: Output,
    act: Callable[[Client, str], str],
) -> int:
    """Act on each group and report what was done to it, or why not.

    Return the exit code of the first error, or 0.
    """
    exit_code = 0
    with shared.connect() as client, report(output) as done:
        for key in group_keys(names, namespace):
            try:
                done("PodGroup", key, act(client, key))
            except (NotFound, Conflict, Rejected) as error:
                show_trouble(error, as_json=not output.for_people)
                exit_code = exit_code or error.exit_code
    return exit_code


def _as_attempt(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> int | Literal["all"] | None:
    if text is None:
        return None
    if text == "all":
        return "all"
    if text.isascii() and text.isdigit() and len(text) <= 6 and int(text):
        return int(text)
    raise click.BadParameter(f"expected a number from 1, or all, found {text[:80]!r}")


@click.command(
    epilog=examples(
        "batchq logs train-1",
        "batchq logs train-1 -f --prefix",
        "batchq logs train-1 --pod main-0 --tail 20",
        "batchq logs train-1 --attempt 1",
        "batchq logs train-1 --attempt all --prefix",
    )
)
@click.argument("name")
@namespace_option
@click.option("-f", "--follow", is_flag=True, help="Follow until the group's processes have ended.")
@click.option("--pod", default="", help="Only this pod: its name, or TASK-INDEX.")
@click.option("--tail", type=WholeNumber(0), help="Only the last lines of each pod.")
@click.option(
    "--attempt",
    callback=_as_attempt,
    metavar="NUMBER|all",
    help="This attempt of each pod, from 1, or all of all admissions.  [default: the latest]",
)
@raw_option
@click.option(
    "--prefix",
    is_flag=True,
    help="Begin each line with its pod; with --attempt all, also with admission and attempt.",
)
@output_option("text", "json")
@pass_globals
def logs(
    shared: Globals,
    name: str,
    namespace: str,
    follow: bool,
    pod: str,
    tail: int | None,
    attempt: int | Literal["all"] | None,
    prefix: bool,
    output: Output,
) -> None:
    """Print the output of the group NAME's pods, at most the newest MiB of each.

    stdout and stderr of a pod are merged in their order; with -o json each line names its stream.
    The output of every attempt is kept for seven days. Attempts are numbered from 1; the
    numbers begin at 1 again when the group is admitted again or the server is restarted.
    With --attempt all, a comment says where the output of an attempt begins.
    """
    if follow and attempt is not None:
        raise UsageError("--attempt and -f exclude each other: only the latest attempt goes on")
    key = group_key(name, namespace)
    with following(shared, [key], patience_s=None if follow else 0.0) as client:
        count, heading = 0, ""
        for line in client.logs(key, follow=follow, pod=pod, tail=tail, attempt=attempt):
            count += 1
            origin = _origin(line) if attempt == "all" else line.pod
            if attempt == "all" and not prefix and output.for_people and origin != heading:
                sys.stdout.flush()
                comment(f"{origin}:")
                heading = origin
            output.line(line, f"{origin}: {line.text}" if prefix else line.text)
            if follow:
                sys.stdout.flush()
        if not count:
            echo(_why_nothing(client, key, attempt), err=True)


def _origin(line: LogLine) -> str:
    """Return where a line is from: `x-main-0 admission 2 attempt 1`."""
    admission = f" admission {line.admission}" if line.admission else ""
    return f"{line.pod}{admission} attempt {line.attempt}"


def _why_nothing(client: Client, key: str, attempt: int | Literal["all"] | None) -> str:
    group = client.get("PodGroup", key)
    assert isinstance(group, PodGroup)
    if group.spec.controller == "external":
        what = "it is external: the consumer that ran it has its output"
        return f"PodGroup {key} is {group.status.phase}; {what}"
    started = any(pod.status.attempt for pod in client.pods(group))
    if started and isinstance(attempt, int):
        return (
            f"PodGroup {key} is {group.status.phase}; attempt {attempt} of its pods has no output"
        )
    what = "its pods have no output" if started else "none of its pods has started"
    was_evicted = any(one.type == "Evicted" for one in group.status.conditions)
    if not started and was_evicted and attempt != "all":
        what += " since it was evicted; --attempt all prints the output from before"
    return f"PodGroup {key} is {group.status.phase}; {what}"


@click.command(
    epilog=examples(
        "batchq result sums",
        "batchq result research/sweep -o json --partial",
        "batchq result sums --timeout 10m",
    )
)
@click.argument("name")
@namespace_option
@raw_option
@click.option(
    "--partial", is_flag=True, help="Print the existing results, even if the group failed."
)
@click.option("--timeout", type=DURATION, help="The longest wait (exit code 124).")
@output_option("text", "json")
@pass_globals
def result(
    shared: Globals, name: str, namespace: str, partial: bool, timeout: str | None, output: Output
) -> None:
    """Print what the functions of the group NAME have returned, as JSON, after it has ended.

    For a group with one pod, prints its result alone; for more pods, each with the pod's name.
    Results are kept for seven days.

    Exit codes: 6 there is none (the group runs a command, or the result has expired), 10 the group
    has failed, 11 it was cancelled, 124 timeout.
    """
    key = group_key(name, namespace)
    timeout_s = seconds_of(timeout)
    with following(shared, [key], patience_s=timeout_s) as client:
        left_s = left_of(timeout_s, client.waited_s)
        found = client.results(key, partial=partial, timeout_s=left_s)
        alone = _has_one_pod(client, key)
    items = [{"pod": pod, "result": value} for pod, value in found.items()]
    output.page({"items": items}, lambda: _show(found, alone=alone))


def _show(found: Mapping[str, object], *, alone: bool) -> None:
    if alone:
        for value in found.values():
            echo(_text(value))
    else:
        rows = tuple((pod, _text(value)) for pod, value in found.items())
        show_table(Table(("POD", "RESULT"), rows))


def _has_one_pod(client: Client, key: str) -> bool:
    group = client.get("PodGroup", key)
    assert isinstance(group, PodGroup)
    return sum(task.replicas for task in group.spec.tasks) == 1


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
