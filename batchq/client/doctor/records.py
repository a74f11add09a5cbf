"""Checks of records: whether everything that is stored can be read."""

from __future__ import annotations

from batchq.api.objects import PodGroup, key_of
from batchq.api.transaction import Event
from batchq.api.unreadable import Unreadable
from batchq.client.doctor.finding import Finding, Level, or_ok, unseen
from batchq.client.doctor.state import State

_READS = "reading (`+@read`) of batchq's keys"


def records(state: State) -> tuple[Finding, ...]:
    """Everything that is stored can be read."""
    check = "records"
    if state.unreadable is None:
        return unseen(check, "the records", _READS)
    findings = [_finding(check, one) for one in state.unreadable]
    findings += [_mended(check, one) for one in state.mended]
    findings += _of_one_uid(check, state)
    return or_ok(findings, check, "all can be read")


def _of_one_uid(check: str, state: State) -> list[Finding]:
    """Groups with the uid of another one: the scheduler goes by the first of them by name."""
    first: dict[str, PodGroup] = {}
    findings = []
    for group in state.groups():
        other = first.setdefault(group.metadata.uid, group)
        if other is not group:
            name, namespace = group.metadata.name, group.metadata.namespace
            findings.append(
                Finding(
                    check=check,
                    level=Level.ERROR,
                    subject=f"PodGroup {key_of(group)}",
                    found=f"has the uid of PodGroup {key_of(other)}, and never starts",
                    expected="a uid of its own",
                    remedy="delete it, and submit it again:"
                    f" `batchq delete podgroup {name} -n {namespace}`",
                )
            )
    return findings


def _mended(check: str, one: Event) -> Finding:
    return Finding(
        check=check,
        level=Level.NOTE,
        subject=f"{one.kind} {one.key}",
        found=f"could not be read, and was mended by the leader: {one.message}",
        expected="what batchq writes",
        remedy="nothing, it is right again; find out who writes past batchq (`ACL LOG`, `MONITOR`)",
    )


def _finding(check: str, one: Unreadable) -> Finding:
    return Finding(
        check=check,
        # An event is there for people alone.
        level=Level.NOTE if one.kind == "Event" else Level.ERROR,
        subject=f"{one.kind} {one.key}".strip(),
        found=f"is unreadable, and left out of everything: {one.why}",
        expected="what batchq writes",
        remedy=_remedy(one),
    )


def _remedy(one: Unreadable) -> str:
    if one.is_object:
        return f"delete it, and submit or apply it again: `{one.deletion}`"
    return one.remedy
