"""How things stand: groups with their place in line and why they wait, queues with their shares.

Worked out on a session that is opened, asked and thrown away: the rules are the scheduler's own,
with its default plugins; what it last decided stands in the groups themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs

from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase, PodPhase
from batchq.api.objects import Condition, Evictions, Metadata, PodGroup, Queue, gates_of
from batchq.api.reasons import UNSEEN, Verdict, Waiting
from batchq.api.resources import Amounts, describe
from batchq.assembly import assemble
from batchq.client.position import gated_pods
from batchq.client.queues import (
    FirstToGo,
    Lien,
    QueueView,
    borrowers,
    first_to_go,
    lenders,
    queue_views,
)
from batchq.config.model import SchedulerConfig
from batchq.core.pending.queue import blockers, waits_in_line
from batchq.core.placement.trial import refused_by_nodes
from batchq.core.preemption.pledges import victims_left
from batchq.core.quota.queue_tree import ROOT
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Snapshot
from batchq.core.session.state import GroupState
from batchq.plugins.gates import GATES

GATED = "SchedulingGated"


class PodCounts(Struct, frozen=True, kw_only=True):
    """A group's pods by phase. `wanted` is all of its replicas, `least` its minMember."""

    wanted: int
    least: int
    pending: int = 0
    bound: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    #: On a node, and told to stop.
    stopping: int = 0


class Blocker(Struct, frozen=True, kw_only=True):
    """One reason for which a group waits.

    `stored` is the verdict as the scheduler wrote it down; `now` the same with the ledger's
    numbers of this moment, or None where it would no longer be refused for this.
    """

    stored: Verdict
    now: Verdict | None

    @property
    def reason(self) -> Waiting:
        """The word."""
        return self.stored.reason

    @property
    def message(self) -> str:
        """The sentence, with the numbers of this moment."""
        return (self.now or self.stored).message()


class Awaited(Struct, frozen=True, kw_only=True):
    """What a claimant waits for: pods of other groups that are to stop for it.

    `pods` are those that have not ended; `groups` the keys of the groups they belong to. `until`:
    when the claim is given up, None as long as nobody has been told to stop.
    """

    action: str
    pods: int
    groups: tuple[str, ...]
    until: int | None


class GroupView(Struct, frozen=True, kw_only=True):
    """A pod group as lists show it. Instants are in milliseconds, amounts in integer units."""

    key: str
    queue: str
    priority: int
    phase: PodGroupPhase
    #: The phase, or SchedulingGated for a Pending group with gates.
    shown: str
    pods: PodCounts
    #: What an admission reserves.
    request: Amounts
    #: The same in words: `cpu 1 ×40`.
    request_text: str
    #: From 1 within its queue; None unless it is Pending and stands in line.
    position: int | None
    blockers: tuple[Blocker, ...]
    nodes: tuple[str, ...]
    created_at: int
    started_at: int | None
    finished_at: int | None
    #: How it ended, or why it was last sent back: reason and sentence.
    reason: str
    message: str
    uid: str = ""
    #: The condition Evicted while it is True of a group that has not ended: who sent it back, why.
    evicted: Condition | None = None
    #: What preempt and reclaim have cost it so far.
    evictions: Evictions = Evictions()
    awaits: Awaited | None = None
    #: Of what is admitted, which of its pods wait for gates: `2 pods of task b wait for gate late`.
    gated: tuple[str, ...] = ()


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a group is where it is. `ahead` are the keys of those before it in its queue's line."""

    group: GroupView
    ahead: tuple[str, ...]

    @property
    def blockers(self) -> tuple[Blocker, ...]:
        """All reasons, the most fundamental first."""
        return self.group.blockers


class QueuePage(Struct, frozen=True, kw_only=True):
    """All about one queue, with what waits and runs in it and in the queues below it.

    `lenders` deserve what this queue borrows, `borrowers` hold what this queue deserves. `line` are
    those that stand in line, by place; `aside` those that do not. `first_to_go`: who would have to
    give first, if somebody might take.
    """

    view: QueueView
    #: Resource -> the weights of the queue and of its siblings by which it is shared out; what the
    #: queue states itself is not among them.
    weights: dict[str, tuple[int, int]]
    lenders: tuple[Lien, ...]
    borrowers: tuple[Lien, ...]
    line: tuple[GroupView, ...]
    aside: tuple[GroupView, ...]
    first_to_go: tuple[FirstToGo, ...]


class Overview:
    """One look at everything; `at` is its instant in milliseconds.

    `session` is one that has decided nothing yet, of a scheduler with other plugins than usual.
    `is_part`: the snapshot has some of the groups only, so that no place in line can be told, and
    reasons are as the scheduler has written them down.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        now_ms: int,
        session: Session | None = None,
        *,
        is_part: bool = False,
    ) -> None:
        self.at = now_ms
        self._is_part = is_part
        self._snapshot = snapshot
        self._session: Session = session or assemble(SchedulerConfig()).open(snapshot, now_ms)
        self._places: dict[str, dict[str, int]] = {}

    def groups(
        self, *, namespace: str = "", queue: str = "", phases: Sequence[str] = ()
    ) -> list[GroupView]:
        """Groups by key; of one namespace, of one queue and those below it, in one of some phases
        (as shown).
        """
        chosen = [
            group
            for key, group in sorted(self._session.by_key.items())
            if namespace in ("", group.namespace)
            and queue in ("", *group.chain)
            and (not phases or shown_phase(group) in phases or group.phase in phases)
        ]
        return [self._view(group) for group in chosen]

    def gated(self, *, namespace: str = "", queue: str = "") -> list[tuple[PodGroup, str]]:
        """Unfinished groups with gates that are not open, the oldest first, with their phases as
        shown; of one namespace, of one queue and those below it.
        """
        chosen = [
            group
            for group in self._session.by_key.values()
            if group.phase not in TERMINAL
            and namespace in ("", group.namespace)
            and queue in ("", *group.chain)
            and gates_of(group.record.spec)
        ]
        chosen.sort(key=lambda group: (group.record.metadata.creation_timestamp or 0, group.order))
        return [(group.record, shown_phase(group)) for group in chosen]

    def explain(self, key: str) -> Explanation | None:
        """Why a group is where it is; None if there is none."""
        group = self._session.by_key.get(key)
        if group is None:
            return None
        view = self._view(group)
        ahead = tuple(self._line(group.queue))[: (view.position or 1) - 1]
        return Explanation(group=view, ahead=ahead)

    def queues(self) -> list[QueueView]:
        """Every queue, each before those below it, siblings by name."""
        return queue_views(self._session)

    def queue_page(self, name: str) -> QueuePage | None:
        """All about one queue; None if there is none. The root is there, even if nobody has
        written it down.
        """
        if name == ROOT and name not in self._session.queues:
            root = Queue(metadata=Metadata(name=ROOT))
            there = sorted((*self._snapshot.queues, root), key=lambda queue: queue.metadata.name)
            snapshot = structs.replace(self._snapshot, queues=tuple(there))
            return Overview(snapshot, self.at).queue_page(name)
        views, tree = queue_views(self._session), self._session.tree
        view = next((one for one in views if one.name == name), None)
        if view is None:
            return None
        below = [leaf for leaf in tree.leaves_below(name) if leaf in self._session.queues]
        below.sort(key=lambda leaf: self._session.queue_key(self._session.queues[leaf]))
        states = [group for leaf in below for group in self._session.queues[leaf].line]
        waiting = [self._view(group) for group in states]
        return QueuePage(
            view=view,
            weights=self._weights(view),
            lenders=tuple(lenders(views, tree, name)),
            borrowers=tuple(borrowers(views, tree, name)),
            line=tuple(
                sorted(
                    (one for one in waiting if one.position is not None),
                    key=lambda one: one.position or 0,
                )
            ),
            aside=tuple(one for one in waiting if one.position is None),
            first_to_go=tuple(first_to_go(self._session, name)),
        )

    def _weights(self, view: QueueView) -> dict[str, tuple[int, int]]:
        tree = self._session.tree
        siblings = [view.queue, *(tree.records[name] for name in tree.siblings(view.name))]
        weights = {}
        for resource in view.resources:
            silent = [one.spec.weight for one in siblings if resource not in one.spec.deserved]
            if resource not in view.queue.spec.deserved:
                weights[resource] = (view.queue.spec.weight, sum(silent))
        return weights

    def _view(self, group: GroupState) -> GroupView:
        status = group.status
        reason, message = _last_word(group)
        return GroupView(
            key=group.key,
            queue=group.queue,
            priority=group.priority,
            phase=group.phase,
            shown=shown_phase(group),
            pods=_counts(group),
            request=group.reservation,
            request_text=_request_text(group),
            position=self._position(group),
            blockers=self._blockers(group),
            nodes=_nodes(group),
            created_at=group.record.metadata.creation_timestamp or 0,
            started_at=status.started_at,
            finished_at=status.finished_at,
            reason=reason,
            message=message,
            uid=group.uid,
            evicted=None if group.phase in TERMINAL else _evicted(group),
            evictions=status.evictions,
            awaits=self._awaits(group),
            gated=tuple(verdict.message() for verdict in gated_pods(group)),
        )

    def _awaits(self, group: GroupState) -> Awaited | None:
        pledge = group.status.pledge
        if not pledge.stands or group.phase in TERMINAL:
            return None
        left = victims_left(self._session, pledge)
        if not left:
            return None
        return Awaited(
            action=pledge.action,
            pods=sum(len(pods) for _, pods in left),
            groups=tuple(victim.key for victim, _ in left),
            until=pledge.expires,
        )

    def _position(self, group: GroupState) -> int | None:
        if group.phase != PodGroupPhase.PENDING or self._is_part:
            return None
        return self._line(group.queue).get(group.key)

    def _line(self, queue: str) -> dict[str, int]:
        """A queue's groups that stand in line, by key, each with its place from 1, in order."""
        if queue not in self._places:
            state = self._session.queues.get(queue)
            keys = [
                group.key
                for group in (state.line if state else ())
                if _in_line(blockers(self._session, group))
            ]
            self._places[queue] = {key: place for place, key in enumerate(keys, start=1)}
        return self._places[queue]

    def _blockers(self, group: GroupState) -> tuple[Blocker, ...]:
        if group.phase in TERMINAL:
            return ()
        stored = group.record.status.reasons
        pending = group.phase == PodGroupPhase.PENDING
        if pending and not stored:
            return (Blocker(stored=UNSEEN, now=UNSEEN),)
        if self._is_part:
            return tuple(Blocker(stored=verdict, now=verdict) for verdict in stored)
        session = self._session
        asked = pending and bool(stored)
        fresh = blockers(session, group) or refused_by_nodes(session, group) if asked else ()
        return tuple(
            Blocker(
                stored=verdict,
                now=next((other for other in fresh if other.same_cause(verdict)), None),
            )
            for verdict in stored
        )


def shown_phase(group: GroupState) -> str:
    """The phase as people see it."""
    if group.phase != PodGroupPhase.PENDING:
        return str(group.phase)
    said = group.record.status.reasons
    by = {verdict.plugin for verdict in said if verdict.reason == Waiting.SCHEDULING_GATED}
    held = group.gates_hold and (group.record.spec.scheduling_gates or group.lacks_ungated())
    # What has just been opened is so; and a scheduler without the plugin minds no gates.
    gated = (held and (not said or GATES in by)) or by - {GATES}
    return GATED if gated else str(group.phase)


def _in_line(verdicts: tuple[Verdict, ...]) -> bool:
    return not verdicts or waits_in_line(verdicts)


def _counts(group: GroupState) -> PodCounts:
    if group.is_external:
        return _reported_counts(group)
    phases = dict.fromkeys(PodPhase, 0)
    stopping = 0
    for pod in group.current():
        phases[pod.status.phase] += 1
        stopping += pod.status.phase in ON_NODE and pod.status.terminating
    if group.phase in TERMINAL:
        stopping = phases[PodPhase.BOUND] + phases[PodPhase.RUNNING]
    return PodCounts(
        wanted=group.replicas,
        least=group.min_member,
        pending=phases[PodPhase.PENDING],
        bound=phases[PodPhase.BOUND],
        running=phases[PodPhase.RUNNING],
        succeeded=phases[PodPhase.SUCCEEDED],
        failed=phases[PodPhase.FAILED],
        stopping=stopping,
    )


def _reported_counts(group: GroupState) -> PodCounts:
    """Of an external group, what its consumer says: of each pod, or of all in one word."""
    claim, wanted = group.status.claim, group.replicas
    reported = list(group.status.reported.values())
    in_one_word = {claim.phase: wanted} if not reported else {}
    running, succeeded, failed = (
        in_one_word.get(phase, 0) + reported.count(phase)
        for phase in ("Running", "Succeeded", "Failed")
    )
    return PodCounts(
        wanted=wanted,
        least=group.min_member,
        running=running,
        succeeded=succeeded,
        failed=failed,
        stopping=running if claim.is_open and claim.stop_reason else 0,
    )


def _nodes(group: GroupState) -> tuple[str, ...]:
    return tuple(
        sorted({pod.status.node for pod in group.current() if pod.status.phase in ON_NODE})
    )


def _request_text(group: GroupState) -> str:
    """`cpu 1 ×40` where all pods are alike, else what the admission reserves."""
    if len(group.tasks) == 1 and not group.record.spec.min_resources:
        text = describe(group.tasks[0].requests)
        return text if group.replicas == 1 else f"{text} ×{group.replicas}"
    return describe(group.reservation)


def _last_word(group: GroupState) -> tuple[str, str]:
    said = _said(group, "Finished") if group.phase in TERMINAL else _evicted(group)
    return (said.reason, said.message) if said is not None else ("", "")


def _evicted(group: GroupState) -> Condition | None:
    return _said(group, "Evicted")


def _said(group: GroupState, kind: str) -> Condition | None:
    """The condition of this kind, if it is True."""
    conditions = group.record.status.conditions
    return next((one for one in conditions if one.type == kind and one.status == "True"), None)
