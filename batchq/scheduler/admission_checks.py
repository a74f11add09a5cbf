"""The effect of admission checks on a group, at the start of each session (KEP-993).

    changed list of checks    new checks are added to groups that wait; removed ones are dropped
                              from all groups
    no answer in time         becomes Retry or Reject, as the check says
    Reject                    Failed, final; takes precedence over Retry
    Retry                     back to Pending at once, quota released; after the delay all checks
                              are Unknown again

Running groups follow the same rules: a check that turns False later evicts the group.
"""

from __future__ import annotations

from msgspec import structs

from batchq.api import intents
from batchq.api.lifecycle import PodGroupPhase
from batchq.api.notation import format_duration
from batchq.api.objects import CheckState
from batchq.api.reasons import Finish, Leaving, Verdict, Waiting
from batchq.core.eligibility import (
    are_honoured,
    cleared,
    names_for,
    open_checks,
    refused_with,
    retry_at,
    retry_delay_ms,
    spec_of,
    timeout_at,
)
from batchq.core.kept_capacity import awaits_victims
from batchq.core.pending_queue import waits_in_line
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, is_admitted
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import finish, roll_back, set_condition

#: Reasons that no free capacity can cure: the request exceeds a limit or the machines.
_TOO_LARGE = frozenset({Waiting.EXCEEDS_MAX_QUOTA, Waiting.EXCEEDS_CAPACITY})


def apply_checks(statement: Statement, group: GroupState) -> bool:
    """Apply the checks of an unfinished group; return whether it was rolled back or finished."""
    session = statement.session
    if not are_honoured(session):
        return False
    _update_list(statement, group)
    if not group.status.checks:
        return False
    _apply_timeouts(statement, group)
    if rejected := refused_with(group, "Reject"):
        message = _describe(rejected)
        held = group.reserved or is_admitted(group)
        finish(statement, group, PodGroupPhase.FAILED, Finish.CHECK_REJECTED, message)
        if held:
            _set_lost_conditions(statement, group, message)
        return True
    if not (asked := refused_with(group, "Retry")):
        return False
    if group.reserved or is_admitted(group):
        delay = max(retry_delay_ms(session, state) for state in asked)
        message = f"{_describe(asked)}; tries again after {format_duration(delay)}"
        roll_back(statement, group, Leaving.CHECK_RETRY, message)
        return True
    if (retry_at(session, group) or 0) <= session.now_ms:
        _set(statement, group, cleared(session, group), "all checks are Unknown again")
    return False


def _set_lost_conditions(statement: Statement, group: GroupState, message: str) -> None:
    """Set the conditions of a group that was admitted or had reserved: Reject also evicts."""
    for kind in ("Admitted", "QuotaReserved"):
        set_condition(statement, group, kind, "False", Leaving.CHECK_REJECTED, message)
    set_condition(statement, group, "Evicted", "True", Leaving.CHECK_REJECTED, message)


def roll_back_misfits(session: Session) -> None:
    """Roll back reserved groups that wait for no check and no victim but are refused by limits or
    nodes. Runs at the end of a session, because an action may have evicted for them in it.
    """
    for group in session.unsettled():
        if group.phase != PodGroupPhase.PENDING or not group.reserved:
            continue
        refusals = session.refusals.get(group.uid, ())
        if open_checks(group) or awaits_victims(session, group):
            continue
        if group.record.spec.launch is not None and group.held:
            # It restarts whole, and its former pods still occupy the nodes for the next ones.
            continue
        if not waits_in_line(refusals) and all(one.reason not in _TOO_LARGE for one in refusals):
            continue
        if all(verdict.plugin == "pledge" for verdict in refusals):
            # It would fit, but a pledge to a group with open checks covers those resources.
            continue
        with Statement(session) as statement:
            roll_back(statement, group, Leaving.CAPACITY_CUT, _short(refusals))
            statement.commit()


def _short(refusals: tuple[Verdict, ...]) -> str:
    return f"nothing else blocks it, but it no longer fits: {refusals[0].message()}"


def _update_list(statement: Statement, group: GroupState) -> None:
    """Update the list of checks to what the queue asks for; admitted groups get no new ones."""
    session, states = statement.session, group.status.checks
    if group.queue not in session.queues:
        return
    names = names_for(session, group)
    known = {state.name: state for state in states}
    if tuple(known) == names:
        return
    listed = tuple(
        known.get(name) or CheckState(name=name, since=session.now_ms)
        for name in names
        if name in known or not is_admitted(group)
    )
    if listed != states:
        _set(statement, group, listed, f"its queue asks for {', '.join(names) or 'none'}")


def _apply_timeouts(statement: Statement, group: GroupState) -> None:
    """Apply the timeouts of checks, so that a silent controller cannot hold quota for ever."""
    session = statement.session
    states = tuple(_timed_out(session, group, state) for state in group.status.checks)
    if states != group.status.checks:
        late = [
            new.name for new, old in zip(states, group.status.checks, strict=True) if new is not old
        ]
        _set(statement, group, states, f"no answer in time from {', '.join(late)}")


def _timed_out(session: Session, group: GroupState, state: CheckState) -> CheckState:
    at = timeout_at(session, group, state)
    if at is None or session.now_ms < at:
        return state
    spec = spec_of(session, state.name)
    waited = format_duration(spec.unknown_timeout)
    return structs.replace(
        state,
        status="False",
        reason=spec.on_timeout,
        message=f"no answer within {waited} (unknownTimeout)",
        since=session.now_ms,
    )


def _set(
    statement: Statement, group: GroupState, states: tuple[CheckState, ...], message: str
) -> None:
    statement.set_status(group, checks=states)
    statement.say(intents.SetChecks(group=group.key, message=message))


def _describe(states: list[CheckState]) -> str:
    return "; ".join(
        f"check {state.name} said {state.reason}" + (f": {state.message}" if state.message else "")
        for state in states
    )
