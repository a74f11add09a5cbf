"""sla (preEnqueue, groupOrder, preemptable): groups that have waited too long come first.

due = queueTime + waiting time, which is the group's annotation `batchq/sla-waiting-time`, or else
the argument `waitingTime` (a duration; without it, only annotated groups become due). A group is
overdue if it waits (Pending or InQueue) and due <= now, or runs and due <= startedAt.

groupOrder: (0, due) if overdue, else (1, 0): overdue groups come before all others, the longest
overdue first. Plugins compare in the order of `plugins`: named before `priority`, this one
overrides priority; named after it, it orders groups of equal priority. preemptable: a veto on
overdue groups, taken as a whole, that come before the preemptor in that order; otherwise such a
group, admitted first, would be evicted again at once.

Volcano's plugin of this name (#1303, #1416, #1901, #2235) also lets overdue groups past every limit
if it is in an earlier tier, orders by deadline long before any group is overdue, and ignores an
unreadable waiting time. This plugin changes only the order: limits hold, no group is evicted for an
overdue one, other queues reclaim what they deserve, and a group with an unreadable annotation is
out of line as Misconfigured until an edit unparks it. Through `due_at`, a session runs when a group
becomes overdue.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.notation import parse_duration
from batchq.api.objects import Duration, Value
from batchq.api.reasons import Verdict, Waiting
from batchq.core.extension import PluginTraits
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, Victim

#: The annotation with a group's waiting time; overrides the plugin's `waitingTime`.
WAITING_TIME_ANNOTATION = "batchq/sla-waiting-time"

_WAITS = frozenset({PodGroupPhase.PENDING, PodGroupPhase.IN_QUEUE})


class SlaArguments(Value, frozen=True):
    waiting_time: Duration | None = None


class Sla:
    name = "sla"
    traits = PluginTraits(
        lifted_by={Waiting.MISCONFIGURED: frozenset()}, only_vetoes=True, spares="overdue"
    )
    arguments = SlaArguments

    def __init__(self, arguments: SlaArguments) -> None:
        self._waiting_time_ms = arguments.waiting_time

    def pre_enqueue(self, session: Session, group: GroupState) -> list[Verdict]:
        written = group.record.metadata.annotations.get(WAITING_TIME_ANNOTATION)
        problem = "" if written is None else _read(written)[1]
        if not problem:
            return []
        detail = f"annotation {WAITING_TIME_ANNOTATION}: {problem}"
        return [Verdict(plugin=self.name, reason=Waiting.MISCONFIGURED, detail=detail)]

    def group_order(self, session: Session, group: GroupState) -> tuple[int, int]:
        since = self._overdue_since(session, group)
        return (1, 0) if since is None else (0, since)

    def preemptable(self, session: Session, preemptor: GroupState, victim: Victim) -> bool | None:
        group = victim.group
        if not victim.whole or self._overdue_since(session, group) is None:
            return None
        return False if session.group_key(group) < session.group_key(preemptor) else None

    def due_at(self, session: Session) -> Iterator[int]:
        for group in session.groups.values():
            if group.phase in _WAITS and (due := self._due(group)) is not None:
                yield due

    def _overdue_since(self, session: Session, group: GroupState) -> int | None:
        """Return since when (ms) it waits, or waited until its start, too long; or None."""
        waited_until = session.now_ms if group.phase in _WAITS else group.status.started_at
        due = self._due(group)
        return None if due is None or waited_until is None or waited_until < due else due

    def _due(self, group: GroupState) -> int | None:
        """Return until when (ms) it may wait; None if for ever."""
        written = group.record.metadata.annotations.get(WAITING_TIME_ANNOTATION)
        waiting_time = self._waiting_time_ms if written is None else _read(written)[0]
        return None if waiting_time is None else group.queue_time + waiting_time


@lru_cache(maxsize=1000)
def _read(written: str) -> tuple[int | None, str]:
    """Return a duration in ms, or None with a description of the problem."""
    try:
        return parse_duration(written), ""
    except ValueError as error:
        return None, str(error)
