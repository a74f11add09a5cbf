"""Writing down a look ahead, session by session: starts, ends and evictions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from batchq.api import intents
from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.objects import Pod
from batchq.api.reasons import Leaving
from batchq.api.resources import Amounts, of_pod, plus, times
from batchq.framework.session import Session
from batchq.framework.state import GroupState
from batchq.scheduler.cycle import CycleReport
from batchq.sim.fromlive.future import Eviction, GroupFuture, Present, Reason
from batchq.sim.report import Outcome

#: Who leaves for one of these is evicted; who has ended and is cleared away is not.
_LEAVING = frozenset(str(reason) for reason in Leaving)
_ACTIONS = {str(Leaving.PREEMPTED): "preempt", str(Leaving.RECLAIMED): "reclaim"}


class Chronicle:
    """Owns what is known so far of the groups that had not ended at the beginning."""

    def __init__(self, present: Sequence[Present]) -> None:
        self.groups = {one.key: GroupFuture(key=one.key, phase=one.phase) for one in present}
        self.evictions: list[Eviction] = []
        self.ended = 0

    def note(self, report: CycleReport) -> bool:
        """Write down what a session decided; whether anything started or ended."""
        session = report.session
        changed = False
        stopped: dict[str, list[intents.Evict | intents.LosePod]] = {}
        left: dict[str, intents.RollBack] = {}
        for intent in report.intents:
            match intent:
                case intents.MoveGroup(group=key, phase=phase):
                    changed |= self._moved(session, key, PodGroupPhase(phase))
                case intents.AdmitGroup(group=key):
                    self._set(key, phase=PodGroupPhase.IN_QUEUE)
                case intents.FinishGroup(group=key, phase=phase, reason=reason):
                    self._ended(key, PodGroupPhase(phase), reason, session.now_ms)
                    changed = True
                case intents.Evict(group=key, reason=reason) if reason in _LEAVING:
                    stopped.setdefault(key, []).append(intent)
                case intents.LosePod(group=key):
                    stopped.setdefault(key, []).append(intent)
                case intents.RollBack(group=key):
                    left[key] = intent
                    self._set(key, phase=PodGroupPhase.PENDING)
                case _:
                    pass
        for key in dict.fromkeys((*stopped, *left)):
            self._evicted(session.by_key[key], session, stopped.get(key, []), left.get(key))
        return changed

    def close(self, outcome: Outcome) -> None:
        """Write down for what those wait that do not run in the end."""
        for key, group in outcome.podgroups.items():
            known = self.groups.get(key)
            runs = known is not None and known.phase == PodGroupPhase.RUNNING
            if known is None or runs or known.phase in TERMINAL:
                continue
            open_checks = [name for name, status in group.checks.items() if status != "True"]
            self._set(
                key,
                phase=PodGroupPhase(group.phase),
                waits_for=tuple(Reason(one.reason, one.message) for one in group.reasons),
                unanswered=tuple(sorted(open_checks)),
            )

    # ----------------------------------------------------------------------------------------

    def _moved(self, session: Session, key: str, phase: PodGroupPhase) -> bool:
        """Whether it has started: one that has recovered runs on."""
        recovers = session.by_key[key].record.status.phase == PodGroupPhase.UNKNOWN
        starts = phase == PodGroupPhase.RUNNING and not recovers
        self._set(key, phase=phase)
        if starts and key in self.groups:
            self._set(key, starts=(*self.groups[key].starts, session.now_ms))
        return starts

    def _ended(self, key: str, phase: PodGroupPhase, reason: str, now_ms: int) -> None:
        self.ended += 1
        self._set(key, phase=phase, ends_at=now_ms, ending=str(reason))

    def _evicted(
        self,
        group: GroupState,
        session: Session,
        stopped: Sequence[intents.Evict | intents.LosePod],
        left: intents.RollBack | None,
    ) -> None:
        if not stopped and not (left is not None and group.is_external):
            return
        reason = left.reason if left is not None else _reason_of(group, stopped[0])
        pods = [group.pods[one.uid] for one in stopped if one.uid in group.pods]
        self.evictions.append(
            Eviction(
                at=session.now_ms,
                key=group.key,
                queue=group.queue,
                whole=left is not None,
                pods=len(stopped),
                by=_taken_by(group),
                action=_ACTIONS.get(str(reason), ""),
                reason=str(reason),
                lost=_claimed_work(group, session)
                if group.is_external
                else _work_of(pods, session),
            )
        )
        if group.key in self.groups:
            self._set(group.key, evictions=self.groups[group.key].evictions + 1)

    def _set(self, key: str, **changes: object) -> None:
        if key in self.groups:
            self.groups[key] = structs.replace(self.groups[key], **changes)


def _reason_of(group: GroupState, one: intents.Evict | intents.LosePod) -> str:
    if isinstance(one, intents.Evict):
        return one.reason
    pod = group.pods.get(one.uid)
    return (pod.status.reason if pod is not None else "") or str(Leaving.NODE_LOST)


def _taken_by(group: GroupState) -> str:
    """For whom it was evicted, if that was in this session."""
    now, before = group.status.evictions, group.record.status.evictions
    return now.last_by if now != before else ""


def _work_of(pods: Sequence[Pod], session: Session) -> Amounts:
    """What pods have worked until now, in resource-seconds."""
    lost: Amounts = {}
    for pod in pods:
        if pod.status.started_at is not None:
            seconds = max(0, session.now_ms - pod.status.started_at) // 1000
            lost = plus(lost, times(of_pod(pod.spec.requests), seconds))
    return {name: units for name, units in lost.items() if units}


def _claimed_work(group: GroupState, session: Session) -> Amounts:
    """The same of an external group, whose pods nobody sees: what it held since it started."""
    before = group.record.status
    if not group.is_external or before.started_at is None:
        return {}
    seconds = max(0, session.now_ms - before.started_at) // 1000
    return times(before.reservation, seconds)
