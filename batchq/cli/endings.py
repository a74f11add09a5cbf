"""How commands that wait for groups end: what is said, and the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from batchq.api.lifecycle import TERMINAL
from batchq.api.objects import PodGroup
from batchq.cli.output.render import one_line
from batchq.cli.output.terminal import echo
from batchq.cli.output.trouble import EXIT_GROUP_CANCELLED, EXIT_GROUP_FAILED
from batchq.errors import NotFound, StoreUnavailable

if TYPE_CHECKING:
    from batchq.client import Client
    from batchq.client.watch import Result


def exit_code_of(results: Sequence[Result], *, pass_on: bool = False) -> int:
    """0 if all came to what was waited for, 11 if one was cancelled, else 10.

    `pass_on`: the exit code of the only pod instead, where there is one.
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
    """How a group ended, beside its phase: a reason that only repeats the phase is left out."""
    word = "" if reason == phase and message else reason
    return ": ".join(part for part in (word, message) if part)


def tell(results: Sequence[Result], *, err: bool = False) -> None:
    """One line for each group."""
    for result in results:
        ending = ending_text(result.phase, result.reason, result.message)
        line = f"podgroup {result.key} {result.phase}"
        told = not result.reached and ending not in ("", result.phase)
        # A line each, in a pipe too: what a pod has said of its end forges no other group's.
        echo(one_line(f"{line} ({ending})" if told else line), err=err)


def tell_if_nobody_leads(client: Client, keys: Sequence[str]) -> None:
    """One line on stderr where groups have not ended, and nobody is there to get on with them."""
    try:
        groups = [client.get("PodGroup", key) for key in keys]
        led = client.schedulers().led
    except (NotFound, StoreUnavailable):
        # Whoever waits for them is told so in a moment.
        return
    if not led and any(
        isinstance(one, PodGroup) and one.status.phase not in TERMINAL for one in groups
    ):
        tell_nobody_leads()


def tell_nobody_leads() -> None:
    """One line on stderr, with what to do."""
    from batchq.client.cluster import NO_LEADER

    echo(NO_LEADER, err=True)


def goes_on(keys: Sequence[str]) -> tuple[str, str]:
    """What Ctrl-C says: a sentence and a hint."""
    names = " ".join(keys)
    if len(keys) == 1:
        return f"interrupted; PodGroup {names} goes on", f"stop it with `batchq cancel {names}`"
    return (
        f"interrupted; the {len(keys)} pod groups go on",
        f"stop them with `batchq cancel {names}`",
    )
