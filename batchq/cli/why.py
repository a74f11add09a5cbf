"""Why a group waits, as people read it, and as `-o json` has it."""

from __future__ import annotations

from collections.abc import Iterator

import click

from batchq.api.lifecycle import ADMITTED, TERMINAL, PodGroupPhase
from batchq.api.notation import counted
from batchq.api.reasons import Waiting
from batchq.api.resources import Amounts, describe, describe_quantity, format_quantity
from batchq.api.times import describe_age, format_duration, format_instant
from batchq.cli.jobs import others_row, others_text, start_row, start_text, waits_for
from batchq.cli.output import tables
from batchq.cli.output.options import (
    Globals,
    examples,
    namespace_option,
    output_option,
    pass_globals,
)
from batchq.cli.output.render import one_line, show_data, show_fields, show_section
from batchq.cli.output.terminal import echo
from batchq.cli.output.values import group_key
from batchq.client.cluster import NO_LEADER
from batchq.client.history import Spell
from batchq.client.position import Backfilling, Others
from batchq.client.why import Reason, Start, Why

#: What the ends of others give.
_ROOM = (
    Waiting.WAITING_FOR_QUOTA,
    Waiting.WAITING_FOR_RESOURCES,
    Waiting.WAITING_FOR_PREEMPTION,
)


def show_why(why: Why, *, history: bool) -> None:
    """To stdout: one sentence, the reasons, and what else decides."""
    echo(one_line(_sentence(why)))
    for place, reason in enumerate(why.reasons, start=1):
        echo(one_line(f"  {place}. {reason.reason}: {reason.message}"))
        if reason.remedy:
            echo(one_line(f"     -> {reason.remedy}"))
    for reason in why.former:
        text = f"  -  {reason.reason}, as of revision {reason.revision}, no longer: "
        echo(one_line(text + reason.message))
    echo()
    show_fields(_fields(why))
    show_section("Nobody is evicted for it", list(_spared(why)))
    show_section(
        "Conditions",
        [
            (
                one.type,
                one.status,
                one.reason,
                format_instant(one.last_transition_time),
                one.message,
            )
            for one in why.conditions
        ],
    )
    if history:
        show_section("History", [_spell_row(spell, why.at) for spell in why.history])


def _sentence(why: Why) -> str:
    age = describe_age(why.at - why.since)
    where = f" on {', '.join(why.nodes)}" if why.nodes else ""
    match why.phase:
        case PodGroupPhase.PENDING:
            place = "" if why.position is None else f", position {why.position}"
            state = f"{why.key} is {why.shown} in queue {why.queue}{place}, for {age}"
        case phase if phase in TERMINAL:
            ending = f": {why.ending}" if why.ending else ""
            state = f"{why.key} is {phase} since {age}{ending}"
        case phase:
            state = f"{why.key} is {phase} for {age}{where}"
    if why.phase in TERMINAL:
        return state
    news = f"; {why.next}" if why.next else ""
    if not news and not why.reasons and why.phase == PodGroupPhase.PENDING:
        news = "; nothing stands against it any more"
    return state + news


def _fields(why: Why) -> list[tuple[str, str]]:
    waits = why.phase == PodGroupPhase.PENDING
    start = _start(why, why.start) if why.start is not None else ""
    return [
        ("No scheduler", "" if why.led or why.phase in TERMINAL else NO_LEADER),
        ("Ahead", others_text(why.ahead) if waits else ""),
        ("Ever", _ever_text(why)),
        ("Expected", _expected(why)),
        ("Room by", start),
        ("Backfill", _backfilling(why)),
        ("Queue", _queue(why)),
        ("Borrowed", "; ".join(_borrowers(why)) if waits else ""),
        ("Pledge", "" if why.awaits is None else tables.awaited_text(why.awaits)),
        ("Backs off", "" if why.backoff_until is None else _until(why, why.backoff_until)),
        ("Evicted", why.evicted),
        ("Evictions", counted(why.evictions, "time") if why.evictions else ""),
        ("Waited", _waited(why)),
        ("As of", f"{format_instant(why.at)}, revision {why.revision}"),
    ]


def _ever_text(why: Why) -> str:
    """Whether it could run at all; of what waits, and of what is admitted and will not start."""
    if why.ever:
        return f"no: {why.ever}"
    if why.phase != PodGroupPhase.PENDING or not why.reasons:
        return ""
    if all(reason.reason in _ROOM for reason in why.reasons):
        return "yes, it fits when others have ended"
    return "yes, once nothing of the above is in its way"


def _until(why: Why, at: int) -> str:
    return f"until {format_instant(at)} (in {describe_age(at - why.at)})"


def _expected(why: Why) -> str:
    """When it starts, those ahead counted; '' where nobody knows for what is told anyway."""
    expected, start = why.expected, why.start
    if expected is None:
        return ""
    if expected.at is None:
        told = not expected.behind.count and (
            start is None
            or start.at is None
            or any(expected.why.startswith(f"{reason.reason}: ") for reason in why.reasons)
        )
        return "" if told else f"not known: {waits_for(expected)}"
    if expected.at <= why.at:
        return "with the next session"
    return f"{start_text(expected, why.at)}, those ahead counted"


def _backfilling(why: Why) -> str:
    """What is kept for it, and why it does not go ahead."""
    standing = why.backfilling
    if standing is None:
        return ""
    if standing.head_at is None:
        mine = standing.head == why.key
        return f"nobody knows when {'it' if mine else standing.head} can start: nobody goes ahead"
    parts = []
    if standing.reserved_at is not None:
        at = _at(why, standing.reserved_at)
        parts.append(f"has a reservation at {at}: nobody who is backfilled delays it")
    if standing.delays and standing.delayed_at is not None:
        at = _at(why, standing.delayed_at)
        parts.append(f"now it would delay {standing.delays}, which has a reservation at {at}")
    elif standing.fits_now and standing.head != why.key:
        parts.append(f"by the limits it fits beside {standing.head}, and no node takes it now")
    elif standing.head != why.key:
        parts.append("does not fit beside what runs now")
    return "; ".join(parts)


def _at(why: Why, at: int) -> str:
    return f"{format_instant(at)} (in {describe_age(at - why.at)})"


def _start(why: Why, start: Start) -> str:
    if why.ever:
        return ""
    if why.reserved and not _counts_on_ends(why):
        return "its quota is reserved"
    if start.at is None:
        # What no end of anybody's changes is the first of the reasons already.
        told = any(start.why.startswith(f"{reason.reason}: ") for reason in why.reasons)
        return "" if told else f"not known: {start.why}"
    if start.at <= why.at:
        return "there is room now"
    when = f"{format_instant(start.at)} (in {describe_age(start.at - why.at)})"
    ends = f", when {others_text(start.ends)} {_ended(start.ends)}" if start.ends.count else ""
    unless = ", unless those ahead take it" if why.ahead.count else ""
    return f"{when}{ends}{unless}"


def _counts_on_ends(why: Why) -> bool:
    """Whether victims are all that a group with a reservation waits for."""
    checks = any(reason.reason == Waiting.WAITING_FOR_CHECKS for reason in why.reasons)
    return why.awaits is not None and not checks


def _ended(others: Others) -> str:
    return "has ended" if others.count == 1 else "have ended"


def _queue(why: Why) -> str:
    share = why.queue_share
    if share is None:
        return ""
    held = [
        f"{name} {describe_quantity(name, share.charged.get(name, 0))}"
        f" of {describe_quantity(name, units)}"
        for name, units in share.deserved.items()
    ]
    holds = f" holds {', '.join(held)} deserved;" if held else ""
    return f"{share.name}{holds} share {share.share}"


def _borrowers(why: Why) -> Iterator[str]:
    """Who holds what the group's queue deserves."""
    share = why.queue_share
    for name, amounts in share.borrowers.items() if share is not None else ():
        yield f"queue {name} holds {describe(amounts)} that {why.queue} deserves"


def _spared(why: Why) -> Iterator[tuple[str, ...]]:
    for spared in why.spared:
        for line in spared.reasons:
            yield spared.action, line


def _waited(why: Why) -> str:
    """How long it has waited for what, the longest first."""
    parts = [
        f"{describe_age(units)} for {name}" for name, units in why.waited.items() if units >= 1000
    ]
    return ", ".join(parts)


def _spell_row(spell: Spell, now_ms: int) -> tuple[str, ...]:
    lasted = describe_age(spell.lasted(now_ms))
    still = " so far" if spell.until is None and spell.phase not in TERMINAL else ""
    reasons = ", ".join(spell.reasons)
    lasts = "" if spell.until is None and spell.phase in TERMINAL else f"{lasted}{still}"
    return format_instant(spell.at), lasts, str(spell.phase), reasons, spell.note


# --- -o json ------------------------------------------------------------------------------------


def row_of(why: Why) -> dict[str, object]:
    """Quantities in people's notation, times in RFC 3339."""
    return {
        "podGroup": why.key,
        "queue": why.queue,
        "priority": why.priority,
        "phase": str(why.phase),
        "shown": why.shown,
        "at": format_instant(why.at),
        "revision": why.revision,
        "since": format_instant(why.since),
        "submittedAt": format_instant(why.created_at),
        "startedAt": _instant(why.started_at),
        "finishedAt": _instant(why.finished_at),
        "nodes": list(why.nodes),
        "ending": why.ending,
        "schedulerLeads": why.led,
        "next": why.next,
        "reasons": [_reason_row(reason) for reason in why.reasons],
        "former": [_reason_row(reason) for reason in why.former],
        "reserved": why.reserved,
        "position": why.position,
        "ahead": others_row(why.ahead),
        "everPossible": _ever(why),
        "neverBecause": why.ever,
        "expectedStart": None if why.expected is None else start_row(why.expected, why.at),
        "earliestStart": _start_row(why.start),
        "backfill": _backfilling_row(why.backfilling),
        "spared": [
            {"action": spared.action, "reasons": list(spared.reasons)} for spared in why.spared
        ],
        "queueShare": _queue_row(why),
        "awaits": _awaits_row(why),
        "backoffUntil": _instant(why.backoff_until),
        "evictions": why.evictions,
        "evicted": why.evicted,
        "conditions": [
            {
                "type": one.type,
                "status": one.status,
                "reason": one.reason,
                "message": one.message,
                "lastTransitionTime": format_instant(one.last_transition_time),
            }
            for one in why.conditions
        ],
        "waitedSeconds": {name: units // 1000 for name, units in why.waited.items()},
        "history": [_spell_data(spell, why.at) for spell in why.history],
    }


def _ever(why: Why) -> bool | None:
    """Of what has run already the question is moot."""
    if why.ever:
        return False
    return None if why.phase in TERMINAL or why.phase in ADMITTED else True


def _instant(at: int | None) -> str | None:
    return None if at is None else format_instant(at)


def _amounts(amounts: Amounts) -> dict[str, str]:
    return {name: format_quantity(name, units) for name, units in amounts.items()}


def _reason_row(reason: Reason) -> dict[str, object]:
    numbers = {
        name: None if units is None else format_quantity(reason.resource, units)
        for name, units in (
            ("need", reason.need),
            ("limit", reason.limit),
            ("seen", reason.seen),
            ("free", reason.free),
        )
    }
    return {
        "reason": str(reason.reason),
        "message": reason.message,
        "plugin": reason.plugin,
        "subject": reason.subject,
        "resource": reason.resource,
        **numbers,
        "remedy": reason.remedy,
        "revision": reason.revision,
    }


def _start_row(start: Start | None) -> dict[str, object] | None:
    if start is None:
        return None
    return {"at": _instant(start.at), "ends": others_row(start.ends), "why": start.why}


def _backfilling_row(standing: Backfilling | None) -> dict[str, object] | None:
    if standing is None:
        return None
    longest = standing.longest_ms
    return {
        "head": standing.head,
        "headStart": _instant(standing.head_at),
        "reservation": _instant(standing.reserved_at),
        "fitsNow": standing.fits_now,
        "delays": standing.delays or None,
        "longestWalltime": None if longest is None else format_duration(longest),
    }


def _queue_row(why: Why) -> dict[str, object] | None:
    share = why.queue_share
    if share is None:
        return None
    return {
        "name": share.name,
        "share": share.share,
        "deserved": _amounts(share.deserved),
        "charged": _amounts(share.charged),
        "borrowed": _amounts(share.borrowed),
        "borrowers": {name: _amounts(amounts) for name, amounts in share.borrowers.items()},
    }


def _awaits_row(why: Why) -> dict[str, object] | None:
    awaits = why.awaits
    if awaits is None:
        return None
    return {
        "action": awaits.action,
        "pods": awaits.pods,
        "podGroups": list(awaits.groups),
        "until": _instant(awaits.until),
    }


def _spell_data(spell: Spell, now_ms: int) -> dict[str, object]:
    return {
        "at": format_instant(spell.at),
        "until": _instant(spell.until),
        "seconds": spell.lasted(now_ms) // 1000,
        "phase": str(spell.phase),
        "reasons": list(spell.reasons),
        "note": spell.note,
    }


@click.command(
    epilog=examples(
        "batchq why train-1",
        "batchq why research/train-1 -o json",
        "batchq why train-1 --history",
        "batchq explain train-1",
    )
)
@click.argument("name")
@namespace_option
@click.option("--history", is_flag=True, help="Also each change of state and of reasons, in time.")
@output_option("text", "json", "yaml")
@pass_globals
def why(shared: Globals, name: str, namespace: str, history: bool, output: str) -> None:
    """Tell why the group NAME waits, and what to do about it.

    All reasons, the most fundamental first, each with the numbers that decide it; its place in
    line, and who is ahead; why nobody is evicted for it; whether it could ever run, when there
    will be room, as far as walltimes tell, and when it is expected to start, those ahead counted;
    in a queue that is backfilled, what is kept for it, or whom it would delay. Of a group that
    waits no longer: where it runs, or how it ended, and for what it had waited.

    The numbers are of this moment: the scheduler's own session is run here, on how things stand,
    and thrown away. Of groups in other namespaces only the number is told.

    Exit codes: 0 told, 1 the scheduler's configuration cannot be followed on this machine, 6 there
    is no such group.
    """
    with shared.connect() as client:
        told = client.why(group_key(name, namespace))
    if output == "text":
        show_why(told, history=history)
    else:
        show_data(row_of(told), output)
