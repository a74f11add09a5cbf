"""The last messages and the exit codes of commands that wait for groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from batchq.api.lifecycle import TERMINAL
from batchq.api.objects import PodGroup
from batchq.cli.output.render import one_line
from batchq.cli.output.terminal import EXIT_GROUP_CANCELLED, EXIT_GROUP_FAILED, echo
from batchq.errors import NotFound, StoreUnavailable

if TYPE_CHECKING:
    from batchq.client import Client
    from batchq.client.watch import Result


def exit_code_of(results: Sequence[Result], *, pass_on: bool = False) -> int:
    """Return 0 if all groups reached the goal, 11 if one was cancelled, else 10.

    With `pass_on`, return the exit code of the only pod if there is exactly one.
    """
    if pass_on and len(results) == 1 and results[0].exit_code is not None:
        return results[0].exit_code
    missed = [result for result in results if not result.reached]
    if not missed:
        return 0
    cancelled = any(result.phase == "Cancelled" for result in missed)
    failed = any(result.phase == "Failed" for result in missed)
    return EXIT_GROUP_CANCELLED if cancelled and not failed else EXIT_GROUP_FAILED


def ending_text(phase: str, reason: str, message: str) -> str:
    """Return the text beside the phase of an ended group, without a repeated phase."""
    word = "" if reason == phase and message else reason
    return ": ".join(part for part in (word, message) if part)


def print_results(results: Sequence[Result], *, err: bool = False) -> None:
    """Print one line for each group."""
    for result in results:
        ending = ending_text(result.phase, result.reason, result.message)
        line = f"podgroup {result.key} {result.phase}"
        explains = not result.reached and ending not in ("", result.phase)
        # One line even in a pipe, so that a pod's message cannot imitate another group's line.
        echo(one_line(f"{line} ({ending})" if explains else line), err=err)


def warn_if_no_leader(client: Client, keys: Sequence[str]) -> None:
    """Warn on stderr if groups have not ended and no scheduler leads."""
    try:
        groups = [client.get("PodGroup", key) for key in keys]
        led = client.schedulers().led
    except (NotFound, StoreUnavailable):
        # The command that waits for them reports this itself.
        return
    if not led and any(
        isinstance(one, PodGroup) and one.status.phase not in TERMINAL for one in groups
    ):
        warn_no_leader()


def warn_no_leader() -> None:
    """Warn on stderr that no scheduler leads, and how to start one."""
    from batchq.client.connection import NO_LEADER

    echo(NO_LEADER, err=True)


def interruption_of(keys: Sequence[str]) -> tuple[str, str]:
    """Return the sentence and the hint for Ctrl-C."""
    names = " ".join(keys)
    if len(keys) == 1:
        return (
            f"interrupted; PodGroup {names} keeps running",
            f"stop it with `batchq cancel {names}`",
        )
    return (
        f"interrupted; the {len(keys)} pod groups keep running",
        f"stop them with `batchq cancel {names}`",
    )
