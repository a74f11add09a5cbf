"""Submitted groups: `batchq wait` and `progress` follow them, `logs` and `result` print what they
wrote and returned, `cancel`, `suspend` and `resume` change their course, `resubmit` repeats them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, cast

import click
from msgspec import structs

from batchq.api.objects import PodGroup, key_of
from batchq.api.views import Result
from batchq.cli.output import (
    Table,
    comment,
    echo,
    on_interrupt,
    raw_option,
    show_table,
    show_trouble,
)
from batchq.cli.output.forms import Output, report
from batchq.cli.output.options import (
    DURATION,
    Globals,
    WholeNumber,
    examples,
    form_option,
    namespace_option,
    output_option,
    pass_globals,
)
from batchq.cli.output.values import (
    exit_code_of,
    following,
    group_key,
    group_keys,
    interruption_of,
    left_of,
    print_results,
    seconds_of,
    warn_if_no_leader,
    warn_if_not_led,
)
from batchq.client import Client
from batchq.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    Rejected,
    UnreadableRecord,
    UsageError,
    WaitTimedOut,
)

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


def refuse_unused_timeout(options: Mapping[str, Any]) -> None:
    """Raise UsageError if a command that submits has a timeout, and awaits nothing."""
    awaits = any(options.get(name) for name in ("wait", "progress", "exit_code"))
    if options["timeout"] is not None and not awaits:
        command = click.get_current_context().command_path
        raise UsageError(
            f"--timeout limits how long `{command}` waits, and nothing is awaited",
            hint="add --wait; --walltime limits how long the pods run",
        )


def await_submitted(client: Client, keys: Sequence[str], options: Mapping[str, Any]) -> int:
    """Wait for groups that a command has submitted, as its options say; return its exit code."""
    sentence, hint = interruption_of(keys)
    with on_interrupt(sentence, hint=hint):
        timeout_s = seconds_of(options["timeout"])
        if options["progress"]:
            results = follow(client, keys, err=True, timeout_s=timeout_s)
        else:
            results = client.wait(keys, timeout_s=timeout_s)
            print_results(results, err=True)
    return exit_code_of(results, pass_on=bool(options.get("exit_code")))


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


@click.command(
    epilog=examples(
        "batchq resubmit train-1",
        "batchq resubmit train-1 --as train-again --wait",
        "batchq resubmit -n research prepare train",
        "batchq resubmit train-1 -q default",
        "batchq resubmit train-1 --dry-run >again.yaml",
    )
)
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@namespace_option
@click.option(
    "--as",
    "new_name",
    metavar="NEW",
    help="The name of the new group.  [default: NAME-2, or the next number that is free]",
)
@click.option("-q", "--queue", default="", metavar="QUEUE", help="Another queue than before.")
@click.option("--wait", is_flag=True, help="Wait for its end; exit code 10 if it failed.")
@click.option("--progress", is_flag=True, help="Show the progress, and wait.")
@click.option("--timeout", type=DURATION, help="With --wait: the longest wait.")
@click.option("--dry-run", is_flag=True, help="Check it and print the manifest; submit nothing.")
@form_option("text", "json", "yaml", "name")
@pass_globals
def resubmit(
    shared: Globals,
    /,
    names: tuple[str, ...],
    namespace: str,
    new_name: str | None,
    queue: str,
    dry_run: bool,
    output: str,
    **options: Any,
) -> int | None:
    """Submit groups that have ended again, under new names.

    The new group has the specification with which the former one was submitted, and its labels and
    annotations; it belongs to the user who submits it again. Its scheduling gates are closed again,
    and it is not suspended. All groups are submitted, with the same number, or none.

    A dependency that has held once is left out, unless the group of that name is submitted again by
    the same command: `batchq resubmit prepare train` lets train-2 wait for prepare-2.

    To change something, change the manifest that --dry-run prints, and `batchq submit -f` it. It is
    printed even if it would be refused as it is.
    """
    from batchq.cli.objects import show_objects, warn, warn_of_capacity

    refuse_unused_timeout(options)
    keys = list(dict.fromkeys(group_keys(names, namespace)))
    if new_name is not None and (len(keys) > 1 or not new_name):
        found = f"{len(keys)} groups" if new_name else "an empty name"
        raise UsageError(f"--as names one new group, found {found}", hint="leave --as out")
    with shared.connect() as client:
        groups = [_in_queue(_ended_group(client, key, keys), queue) for key in keys]
        _check_that_no_processes_run(client, keys)
        wanted = _with_new_names(client, groups, new_name)
        try:
            applied = client.submit_all(wanted, dry_run=dry_run)
        except (NotFound, Rejected):
            if dry_run:
                # It is printed to be changed, for example because its queue is gone.
                show_objects(wanted, "yaml" if output == "text" else output)
            raise
        # Without the status and uid that the submission would give them.
        new = wanted if dry_run else [one.object for one in applied]
        warn(applied)
        if output != "text" or dry_run:
            show_objects(new, "yaml" if output == "text" else output)
        else:
            for before, after in zip(keys, new, strict=True):
                echo(f"podgroup {before} resubmitted as {key_of(after)}")
        warn_of_capacity(client, applied)
        if dry_run:
            return None
        warn_if_not_led(client)
        if options["wait"] or options["progress"]:
            return await_submitted(client, [key_of(one) for one in new], options)
    return None


def _ended_group(client: Client, key: str, together: Sequence[str]) -> PodGroup:
    """Return a group that has ended as it was submitted, to submit it again with others.

    Raises NotFound, Conflict, and Forbidden if the user is shown a part of it only.
    """
    from batchq.api.access import HIDDEN
    from batchq.client.changes.edits import as_submitted

    stored = client.get("PodGroup", key)
    assert isinstance(stored, PodGroup)
    again = as_submitted(stored, together, _awaited(client, stored))
    templates = [task.template for task in stored.spec.tasks]
    runs = all(one.command or one.function for one in templates)
    if any(HIDDEN in one.env.values() for one in templates) or not (
        runs or stored.spec.controller == "external"
    ):
        raise Forbidden(
            f"PodGroup {key} is another user's, and you are shown a part of its spec only",
            hint=f"ask {stored.status.submitted_by or 'its owner'} to submit it again",
        )
    return again


def _in_queue(group: PodGroup, queue: str) -> PodGroup:
    """Return the group in another queue; in its own without a name."""
    if not queue:
        return group
    return structs.replace(group, spec=structs.replace(group.spec, queue=queue))


def _check_that_no_processes_run(client: Client, keys: Sequence[str]) -> None:
    """Raise Conflict if processes of one of these groups, which have ended, still run."""
    try:
        # Together, since each wait reads the names of all groups and pods.
        client.wait(keys, timeout_s=0.0)
    except WaitTimedOut:
        for key in keys:
            try:
                client.wait(key, timeout_s=0.0)
            except WaitTimedOut:
                group = client.get("PodGroup", key)
                assert isinstance(group, PodGroup)
                raise Conflict(
                    f"PodGroup {key} is {group.status.phase}, but processes of it still run",
                    hint=f"`batchq wait {key}` waits for their end",
                ) from None


def _awaited(client: Client, group: PodGroup) -> dict[str, PodGroup]:
    """Return the groups that now have the names of a group's dependencies, by key."""
    found = {}
    for dependency in group.spec.depends_on:
        key = f"{group.metadata.namespace}/{dependency.name}"
        with suppress(NotFound):
            other = client.get("PodGroup", key)
            assert isinstance(other, PodGroup)
            found[key] = other
    return found


#: Names of more groups are compared with a list of all.
_MOST_LOOKED_UP = 8


class _ExistingNames:
    """The keys of the groups that exist; each is looked up when it is asked for."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __contains__(self, key: object) -> bool:
        try:
            self._client.get("PodGroup", str(key))
        except (NotFound, InvalidInput):
            # `a-` of `a--2` is no name.
            return False
        except UnreadableRecord:
            return True
        return True


def _with_new_names(
    client: Client, groups: Sequence[PodGroup], new_name: str | None
) -> Sequence[PodGroup]:
    """Return the groups under the name that was given, or under names that are free.

    A group that was submitted again itself, as train-2, becomes train-3 and not train-2-2.
    """
    from batchq.cli.run import taken_keys, with_fresh_names, with_names

    if new_name is not None:
        return with_names(groups, {key_of(group): new_name for group in groups})
    # A name that is free costs as much as a list of all, which are searched for a similar one.
    existing = taken_keys(client) if len(groups) > _MOST_LOOKED_UP else _ExistingNames(client)
    first = {}
    for group in groups:
        name, _, number = group.metadata.name.rpartition("-")
        is_again = number.isdigit() and f"{group.metadata.namespace}/{name}" in existing
        first[key_of(group)] = name if is_again else group.metadata.name
    firsts = with_names(groups, first)
    are_apart = len({key_of(group) for group in firsts}) == len(groups)
    return with_fresh_names(firsts if are_apart else groups, existing)


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
