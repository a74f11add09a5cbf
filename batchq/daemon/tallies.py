"""What one session did, in numbers for counters and histograms: only what the store has taken.

A transaction that was refused never happened, so neither did the intents of its groups; the next
session decides anew, and is counted then.
"""

from __future__ import annotations

from collections.abc import Iterable

from batchq.api import intents
from batchq.api.intents import Intent
from batchq.api.lifecycle import PodGroupPhase
from batchq.api.reasons import Finish, Leaving
from batchq.api.transaction import Word
from batchq.daemon import measures
from batchq.daemon.levels import NO_QUEUE, in_wholes, resources_of
from batchq.daemon.measures import Measure
from batchq.framework.session import Session
from batchq.framework.state import GroupState
from batchq.scheduler.cycle import CycleReport

Labels = tuple[str, ...]

#: What stands for a word that is on no closed list.
OTHER = "Other"

_LEAVING = frozenset(Leaving)
_REASONS = _LEAVING | frozenset(Finish)
_ACTIONS = frozenset({"preempt", "reclaim"})


class Tally:
    """Sums for counters, and single waits for histograms."""

    def __init__(self) -> None:
        self.counts: dict[Measure, dict[Labels, float]] = {}
        self.waits: list[tuple[Measure, Labels, float]] = []

    def add(self, measure: Measure, labels: Labels, amount: float = 1) -> None:
        """Count."""
        sums = self.counts.setdefault(measure, {})
        sums[labels] = sums.get(labels, 0) + amount

    def wait(self, measure: Measure, label: str, since: int | None, until: int) -> None:
        """Note a wait between two instants, if it has a beginning."""
        if since is not None:
            self.waits.append((measure, (label,), max(0, until - since) / 1000))


def tally_of(report: CycleReport) -> Tally:
    """Count what a cycle has decided."""
    tally, session = Tally(), report.session
    tally.add(measures.TRANSACTIONS, (Word.OK.value,), len(report.commit.applied))
    for refusal in report.commit.refused:
        tally.add(measures.TRANSACTIONS, (refusal.answer.word.value,))
    refused = _refused_groups(report)
    for intent in report.intents:
        if isinstance(intent, intents.SetNodeReady):
            tally.add(measures.INTENTS, (_kind(intent), "applied"))
            continue
        result = "refused" if intent.group in refused else "applied"
        tally.add(measures.INTENTS, (_kind(intent), result))
        if result == "applied" and (group := session.by_key.get(intent.group)) is not None:
            _tell(tally, session, group, intent)
    _count_losses(tally, session, refused)
    return tally


def _refused_groups(report: CycleReport) -> set[str]:
    return {
        write.key
        for refusal in report.commit.refused
        for write in refusal.transaction.writes
        if write.kind == "PodGroup"
    }


def _kind(intent: Intent) -> str:
    return type(intent).__name__


def _tell(tally: Tally, session: Session, group: GroupState, intent: Intent) -> None:
    queue = _queue_of(session, group)
    match intent:
        case intents.AdmitGroup():
            _tell_admission(tally, session, group, queue)
        case intents.MoveGroup(phase=PodGroupPhase.RUNNING):
            if group.record.status.started_at is None:
                began = group.record.status.in_queue_at
                tally.wait(measures.START_WAIT, queue, began, session.now_ms)
        case intents.FinishGroup(phase=phase, reason=reason):
            tally.add(measures.FINISHED, (queue, phase, _word(reason, _REASONS)))
        case intents.RollBack(reason=reason):
            tally.add(measures.REQUEUED_GROUPS, (queue, _word(reason, _LEAVING)))
        case intents.Pledge(action=action):
            tally.add(measures.PLEDGES, (queue, _word(action, _ACTIONS)))
        case intents.Evict(reason=reason, action=action) if reason in _LEAVING:
            # One that is stopped because its group has ended is no eviction.
            tally.add(measures.EVICTED_PODS, (queue, action, reason))
        case intents.LosePod(uid=uid) if not _was_stopping(session, group, uid):
            tally.add(measures.EVICTED_PODS, (queue, "", Leaving.NODE_LOST.value))
        case _:
            pass


def _tell_admission(tally: Tally, session: Session, group: GroupState, queue: str) -> None:
    """How long it stood in line, and of that, how long its checks took."""
    before, now_ms = group.record.status, session.now_ms
    tally.wait(measures.ADMISSION_WAIT, queue, _in_line_since(group), now_ms)
    if before.reserved_at is None or not before.checks:
        return
    tally.wait(measures.CHECKS_WAIT, queue, before.reserved_at, now_ms)
    for check in before.checks:
        if check.status == "True" and check.name in session.admission_checks:
            answered_at = now_ms if check.since is None else check.since
            tally.wait(measures.CHECK_WAIT, check.name, before.reserved_at, answered_at)


def _in_line_since(group: GroupState) -> int:
    """A group that was evicted keeps its queue time; it waits again since it left."""
    left = [
        condition.last_transition_time
        for condition in group.record.status.conditions
        if condition.type == "Evicted" and condition.status == "True"
    ]
    return max([group.queue_time, *left])


def _was_stopping(session: Session, group: GroupState, uid: str) -> bool:
    """Whether its eviction was counted when it was told to stop."""
    return any(
        pod.status.terminating
        for pod in session.snapshot.pods.get(group.uid, ())
        if pod.metadata.uid == uid
    )


def _count_losses(tally: Tally, session: Session, refused: set[str]) -> None:
    named: set[str] | None = None
    for group in session.touched.values():
        before, after = group.record.status.evictions.lost, group.status.evictions.lost
        if after is before or group.key in refused:
            continue
        named = set(resources_of(session)) if named is None else named
        queue = _queue_of(session, group)
        for resource, units in after.items():
            more = units - before.get(resource, 0)
            if more > 0 and resource in named:
                tally.add(measures.LOST, (queue, resource), in_wholes(resource, more))


def _queue_of(session: Session, group: GroupState) -> str:
    return group.queue if group.queue in session.queues else NO_QUEUE


def _word(word: str, known: Iterable[str]) -> str:
    return str(word) if word in known else OTHER
