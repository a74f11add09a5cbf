"""`batchq jobs`. Over the HTTP API, the rows of a plain table come from there, so that the command
need not load what groups are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from batchq.cli.output import Table, TableWriter, echo, is_terminal
from batchq.cli.output.options import (
    LIST_FORMATS,
    Globals,
    Paging,
    all_namespaces_option,
    examples,
    form_option,
    namespace_option,
    paging_options,
    pass_globals,
)
from batchq.errors import BatchqError, StoreUnavailable, UsageError

if TYPE_CHECKING:
    from batchq.api_session import ApiCredentials

#: How many finished groups a terminal shows, so that they do not fill the screen.
RECENT = 20
#: Stands for the caller among owners.
ME = "me"
#: The phases as shown; a test compares them with `PodGroupPhase`.
PHASES = (
    *("Pending", "InQueue", "Running", "Unknown", "Completed", "Failed", "Cancelled"),
    "SchedulingGated",
)


@click.command(
    epilog=examples(
        "batchq jobs",
        "batchq jobs --active",
        "batchq jobs -A --phase Pending --phase SchedulingGated",
        "batchq jobs --reason WaitingForQuota",
        "batchq jobs -A --mine",
        "batchq jobs -q default -o wide",
        "batchq jobs --start -q default",
        "batchq jobs -o name",
        "batchq jobs -A --limit 100",
    )
)
@namespace_option
@all_namespaces_option("The groups")
@click.option("-q", "--queue", default="", help="Only groups of this queue and those below it.")
@click.option(
    "--phase",
    "phases",
    multiple=True,
    metavar="PHASE",
    help=f"Only groups in this phase: {', '.join(PHASES)}; repeatable.",
)
@click.option(
    "--reason",
    "reasons",
    multiple=True,
    metavar="REASON",
    help="Only groups with this among their reasons for waiting; repeatable.",
)
@click.option(
    "-u",
    "--owner",
    metavar="USER",
    help="Only groups that this user has submitted, as in alice@laptop, or alice; me: you.",
)
@click.option("--mine", is_flag=True, help="As --owner me.")
@click.option("-a", "--active", is_flag=True, help="Only groups that have not finished.")
@click.option("--all", "everything", is_flag=True, help="All finished groups, on a terminal too.")
@click.option("--start", is_flag=True, help="Waiting groups, and when they are expected to start.")
@paging_options
@form_option(*LIST_FORMATS)
@pass_globals
def jobs(
    shared: Globals,
    /,
    namespace: str,
    all_namespaces: bool,
    owner: str | None,
    mine: bool,
    paging: Paging,
    output: str,
    **asked: Any,
) -> None:
    """List pod groups, oldest first.

    A terminal shows only the 20 finished groups that were submitted last. --all, --phase, a pipe,
    -o json, -o yaml and -o name show all of them.

    WHERE / WHY names the nodes of running groups. For waiting groups it has the position in line,
    the most fundamental reason with current numbers, and the preemptor of an evicted group. `batchq
    why NAME` has all reasons. With -o wide, NODES names the nodes of running groups and those on
    which ended groups ran, OWNER is the user who submitted the group, REASON is the most
    fundamental reason alone, and EVICTIONS counts how often preempt and reclaim have evicted the
    group, and the pods that they have stopped.

    More than 10,000 groups are read --chunk-size at a time, and each chunk is printed as soon as it
    is read. Positions in line are left out then, and reasons have the numbers that the scheduler
    has stored; --chunk-size 0 reads all groups at once. --limit ends a list early and prints where
    it continues (with -o json and -o yaml in metadata.continue); --continue starts there.

    With --start: waiting groups and their expected starts, earliest first, and which groups must
    end or start before. The command runs the scheduler's next session, and plans the groups in line
    in order, by the strategies of their queues. Every group is assumed to run for its walltime; a
    group without one is assumed to run for ever. It may be combined with -n, -A, -q and -o.

    Exit codes: 0 listed, 1 --start cannot use the scheduler's configuration on this machine, 6
    there is no such queue.
    """
    space = "" if all_namespaces else namespace
    asked["owner"] = _owner(owner, mine=mine)
    query = (
        None if paging.limit or paging.after or not paging.size else _query(space, output, asked)
    )
    api = None if query is None else shared.api()
    if query is not None and api is not None and _show_table(api, query, output):
        return
    from batchq.cli.group_lists import list_groups

    list_groups(shared, space, paging=paging, form=output, finished=RECENT, **asked)


def _owner(owner: str | None, *, mine: bool) -> str:
    """Return whose groups to list; "" for everyone's."""
    if owner == "":
        raise UsageError("--owner: expected a user, found an empty name")
    if mine and owner not in (None, ME):
        raise UsageError(f"--mine lists your own groups, and --owner those of {owner}: omit one")
    return ME if mine else owner or ""


def _query(namespace: str, output: str, asked: Mapping[str, Any]) -> dict[str, str] | None:
    """Return what to ask the API; None for what only the types of groups can check."""
    spelled = {phase.lower(): phase for phase in PHASES}
    phases = [spelled.get(phase.lower(), "") for phase in asked["phases"]]
    if asked["start"] or output not in ("table", "wide", "json"):
        return None
    words = [*asked["reasons"], asked["queue"]]
    if not all(phases) or any("/" in word or "," in word for word in words):
        return None
    is_json = output == "json"
    shortens = is_terminal() and not (is_json or asked["everything"] or phases)
    return {
        "namespace": namespace,
        "queue": asked["queue"],
        "phase": ",".join(phases),
        "reason": ",".join(asked["reasons"]),
        "owner": asked["owner"],
        "active": "true" if asked["active"] else "",
        "finished": str(RECENT) if shortens else "",
        "form": "json" if is_json else "",
    }


def _show_table(api: ApiCredentials, query: Mapping[str, str], output: str) -> bool:
    """Show the table that the API makes. Return False if it makes none: there are too many groups,
    or it is of another version.
    """
    from batchq.api_session import ApiSession

    asked = urlencode({name: value for name, value in query.items() if value})
    try:
        with ApiSession(api) as session:
            found = session.request("GET", f"/v1/views/jobs?{asked}")
    except BatchqError as error:
        # Otherwise the types of groups explain what is wrong, or speak with an older API.
        if isinstance(error, StoreUnavailable) and not error.lasts:
            raise
        return False
    if found.get("unreadable", True) or ("document" if query["form"] else "rows") not in found:
        return False
    if query["form"]:
        echo(json.dumps(found["document"], indent=2, ensure_ascii=False))
    elif found["rows"]:
        table = Table(
            tuple(found["titles"]),
            tuple(map(tuple, found["rows"])),
            wide=frozenset(found["wide"]),
            spare=tuple(found["spare"]),
        )
        TableWriter(wide=output == "wide").write(table)
        for note in found["notes"]:
            echo(note, err=True)
    else:
        where = f" in namespace {query['namespace']}" if query["namespace"] else ""
        echo(f"there are no such pod groups{where}", err=True)
    return True
