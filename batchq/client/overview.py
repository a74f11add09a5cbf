"""Views of groups and queues: positions in line, reasons for waiting, and shares.

Computed on a session that is opened, asked and discarded. It applies the scheduler's own rules with
the default plugins; the last decisions of the real scheduler are stored in the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import structs

from batchq.api.lifecycle import ADMITTED, ON_NODE, TERMINAL, PodGroupPhase, PodPhase
from batchq.api.notation import counted, describe_age
from batchq.api.objects import (
    Amounts,
    Condition,
    Metadata,
    Pod,
    PodGroup,
    Queue,
    Task,
    gates_of,
)
from batchq.api.reasons import UNSEEN, Explanation, Leaving, Verdict, Waiting
from batchq.api.resources import PODS, describe, minus, of_pod, plus, total
from batchq.api.transaction import POD_GROUPS, queue_scope
from batchq.api.views import (
    GATED,
    Awaited,
    FirstToGo,
    GroupView,
    Loan,
    Others,
    PodCounts,
    QueuePage,
    QueueUsage,
    QueueView,
    Stop,
)
from batchq.assembly import open_undecided
from batchq.config import SchedulerConfig
from batchq.core.kept_capacity import victims_left
from batchq.core.pending_queue import blockers, waits_in_line
from batchq.core.placement.trial import verdicts_of
from batchq.core.quota import ROOT, QueueTree
from batchq.core.quota.fair_shares import (
    deserved_of_queues,
    reported_share,
    usage_of_queue,
)
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Settings, Snapshot
from batchq.core.session.state import GroupState
from batchq.plugins.gates import GATES
from batchq.scheduler.timers import lease_over_at, requeue_due_at


class Overview:
    """A view of one snapshot; `at` is its instant in milliseconds.

    `session` is a session that has decided nothing yet, of a scheduler with other plugins than the
    defaults. With `is_part` the snapshot has only some of the groups: positions are unknown, and
    the reasons are those that the scheduler has stored. `settings` returns those of the scheduler;
    None if they are unknown.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        now_ms: int,
        session: Session | None = None,
        *,
        is_part: bool = False,
        settings: Callable[[], Settings | None] = Settings,
    ) -> None:
        self.at = now_ms
        self._settings = settings
        self._is_part = is_part
        self._snapshot = snapshot
        self._session: Session = session or open_undecided(SchedulerConfig(), snapshot, now_ms)
        self._places: dict[str, dict[str, int]] = {}

    def groups(
        self, *, namespace: str = "", queue: str = "", phases: Sequence[str] = ()
    ) -> list[GroupView]:
        """Return groups by key, filtered by namespace, by queue (with the queues below it) and by
        phases (as shown).
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
        """Return unfinished groups with closed gates, oldest first, with their phases as shown.

        Filtered by namespace, and by queue with the queues below it.
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

    def group(self, key: str) -> GroupView | None:
        """Return one group; None if there is none of this key."""
        group = self._session.by_key.get(key)
        return None if group is None else self._view(group)

    def ahead(self, view: GroupView) -> tuple[str, ...]:
        """Return the keys of the groups before a group in its queue."""
        return tuple(self._line(view.queue))[: (view.position or 1) - 1]

    def queues(self) -> list[QueueView]:
        """Return every queue, each before the queues below it, siblings by name."""
        return queue_views(self._session)

    def queue_page(self, name: str) -> QueuePage | None:
        """Return one queue in detail, or None. The root has a page even if it is not stored."""
        if name == ROOT and name not in self._session.queues:
            root = Queue(metadata=Metadata(name=ROOT))
            existing = sorted((*self._snapshot.queues, root), key=lambda queue: queue.metadata.name)
            snapshot = structs.replace(self._snapshot, queues=tuple(existing))
            return Overview(snapshot, self.at, settings=self._settings).queue_page(name)
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
            not_in_line=tuple(one for one in waiting if one.position is None),
            first_to_go=tuple(first_to_go(self._session, name)),
            usage=self._usage(name),
        )

    def _usage(self, name: str) -> QueueUsage | None:
        settings = self._settings()
        if settings is None or settings.half_life_ms is None:
            return None
        session = self._session
        if settings.half_life_ms != session.settings.half_life_ms:
            config = structs.replace(SchedulerConfig(), settings=settings)
            session = open_undecided(config, self._snapshot, self.at)
        return QueueUsage(
            share=usage_of_queue(session, name).rounded(),
            half_life_ms=settings.half_life_ms,
            decides_order=settings.orders_by_usage,
        )

    def _weights(self, view: QueueView) -> dict[str, tuple[int, int]]:
        tree = self._session.tree
        siblings = [view.queue, *(tree.records[name] for name in tree.siblings(view.name))]
        weights = {}
        for resource in view.resources:
            sibling_weights = [
                one.spec.weight for one in siblings if resource not in one.spec.deserved
            ]
            if resource not in view.queue.spec.deserved:
                weights[resource] = (view.queue.spec.weight, sum(sibling_weights))
        return weights

    def _view(self, group: GroupState) -> GroupView:
        status = group.status
        reason, message = _last_reason(group)
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
            blockers=self._explanations(group),
            nodes=_nodes(group),
            created_at=group.record.metadata.creation_timestamp or 0,
            started_at=status.started_at,
            finished_at=status.finished_at,
            reason=reason,
            message=message,
            uid=group.uid,
            owner=status.submitted_by,
            evicted=None if group.phase in TERMINAL else _evicted(group),
            evictions=status.evictions,
            awaits=awaited_of(self._session, group),
            gated=tuple(verdict.message() for verdict in gated_pods(group)),
            restarts=_restarts_in_list(self._session, group),
        )

    def _position(self, group: GroupState) -> int | None:
        if group.phase != PodGroupPhase.PENDING or self._is_part:
            return None
        return self._line(group.queue).get(group.key)

    def _line(self, queue: str) -> dict[str, int]:
        """Return the positions (from 1) of a queue's groups that are in line, by key, in order."""
        if queue not in self._places:
            keys = line_of(self._session, queue)
            self._places[queue] = {key: place for place, key in enumerate(keys, start=1)}
        return self._places[queue]

    def _explanations(self, group: GroupState) -> tuple[Explanation, ...]:
        """Return the stored reasons, with the numbers of this snapshot where they still apply.

        A list says what the scheduler has decided. `why` asks a decided session instead, which may
        have other reasons; for 10,000 groups, that would make a list half as dear again, and it
        needs the scheduler's plugins.
        """
        if group.phase in TERMINAL:
            return ()
        stored = group.record.status.reasons
        pending = group.phase == PodGroupPhase.PENDING
        if pending and not stored:
            return (Explanation(verdict=UNSEEN),)
        known = verdicts_of(self._session, group) if pending and not self._is_part else ()
        return tuple(
            Explanation(
                verdict=next((other for other in known if other.same_cause(verdict)), verdict)
            )
            for verdict in stored
        )


def awaited_of(session: Session, group: GroupState) -> Awaited | None:
    """Return what a preemptor waits for; None for other groups."""
    pledge = group.status.pledge
    if not pledge.stands or group.phase in TERMINAL:
        return None
    left = victims_left(session, pledge)
    if not left:
        return None
    over_at = [
        (pod.status.terminating_at or session.now_ms) + pod.spec.termination_grace
        for _, pods, _ in left
        for pod in pods
    ]
    over_at += [one.status.claim.over_at or session.now_ms for one, pods, _ in left if not pods]
    return Awaited(
        action=pledge.action,
        pods=sum(len(pods) for _, pods, _ in left),
        groups=tuple(victim.key for victim, _, _ in left),
        until=pledge.expires,
        within_ms=max(0, max(over_at) - session.now_ms),
    )


def shown_phase(group: GroupState) -> str:
    """Return the phase as people see it."""
    if group.phase != PodGroupPhase.PENDING:
        return str(group.phase)
    found = group.record.status.reasons
    by = {verdict.plugin for verdict in found if verdict.reason == Waiting.SCHEDULING_GATED}
    held = group.gates_hold and (group.record.spec.scheduling_gates or group.lacks_ungated())
    # A gate opened since the last verdict counts as open; a scheduler without the gates plugin
    # ignores gates.
    gated = (held and (not found or GATES in by)) or by - {GATES}
    return GATED if gated else str(group.phase)


def line_of(session: Session, queue: str) -> list[str]:
    """Return the keys of a queue's line, in order, before or after the session decides."""
    state = session.queues.get(queue)
    return [
        group.key
        for group in (state.line if state else ())
        if group.phase == PodGroupPhase.PENDING and _is_in_line(session, group)
    ]


def _is_in_line(session: Session, group: GroupState) -> bool:
    verdicts = session.refusals.get(group.uid) or blockers(session, group)
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
    """Return an external group's counts as its consumer reports them, per pod or for all pods."""
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
    """Return the nodes that its pods are on; if it has ended, those that they were on."""
    has_ended = group.phase in TERMINAL
    pods = (pod for pod in group.current() if has_ended or pod.status.phase in ON_NODE)
    return tuple(sorted({pod.status.node for pod in pods if pod.status.node}))


def _request_text(group: GroupState) -> str:
    """Return `cpu 1 ×40` if all pods are alike, else what the admission reserves."""
    if len(group.tasks) == 1 and not group.record.spec.min_resources:
        text = describe(group.tasks[0].requests)
        return text if group.replicas == 1 else f"{text} ×{group.replicas}"
    return describe(group.reservation)


def _last_reason(group: GroupState) -> tuple[str, str]:
    found = _true_condition(group, "Finished") if group.phase in TERMINAL else _evicted(group)
    return (found.reason, found.message) if found is not None else ("", "")


def _evicted(group: GroupState) -> Condition | None:
    return _true_condition(group, "Evicted")


def _true_condition(group: GroupState, kind: str) -> Condition | None:
    """Return the condition of this type if it is True."""
    conditions = group.record.status.conditions
    return next((one for one in conditions if one.type == kind and one.status == "True"), None)


#: How many groups are named; the others are only counted.
MOST_NAMED = 3


def others(keys: Iterable[str], namespace: str) -> Others:
    """Summarise groups, in their order, for a reader of one namespace."""
    keys = list(dict.fromkeys(keys))
    own = [key for key in keys if key.startswith(f"{namespace}/")]
    return Others(
        named=tuple(own[:MOST_NAMED]),
        more=len(own[MOST_NAMED:]),
        elsewhere=len(keys) - len(own),
    )


def gated_pods(group: GroupState) -> tuple[Verdict, ...]:
    """Return a verdict for each task (its `subject`) whose pods wait for gates."""
    if group.phase not in ADMITTED or not group.gates_hold:
        return ()
    reason = Waiting.SCHEDULING_GATED
    return tuple(
        Verdict(
            plugin=GATES, reason=reason, subject=shape.task.name, detail=_gates_message(shape.task)
        )
        for shape in group.tasks
        if shape.gated and shape.task.replicas
    )


def restarts_of(session: Session, group: GroupState) -> tuple[str, ...]:
    """Return which pods of an admitted group have failed, were lost or evicted, or are on nodes
    that are not ready, and when they start again, e.g. `pod r-main-0 exited with 3; retry 1 of 2
    starts in 6s`; and which wait for their images.
    """
    if group.is_external or group.phase not in ADMITTED:
        return ()
    found: dict[tuple[str, str], list[Pod]] = {}
    pulling: list[str] = []
    for pod in group.current():
        if pod.status.phase == PodPhase.BOUND and pod.status.message:
            pulling.append(_pulling(pod, session.now_ms))
        node = session.nodes.by_name.get(pod.status.node)
        if pod.status.phase in ON_NODE and node is not None and not node.ready:
            found.setdefault((f"is on node {node.name}, which is not ready", ""), []).append(pod)
            continue
        if not pod.status.attempt or pod.status.phase not in _RESTARTS or group.is_final(pod):
            continue
        retry = ""
        if pod.status.phase == PodPhase.FAILED:
            retry = f"retry {pod.status.failures} of {group.record.spec.retry.limit}"
        found.setdefault((_how_it_ended(pod), retry), []).append(pod)
    restarts = [
        f"{_named_pods(pods, how)}; {_starts_again(session, group, pods, retry)}"
        for (how, retry), pods in sorted(found.items())
    ]
    if len(pulling) > _MOST_PULLING:
        more = len(pulling) - _MOST_PULLING
        what = (
            "1 more pod waits for its image" if more == 1 else f"{more} more pods wait for images"
        )
        pulling[_MOST_PULLING:] = [what]
    return (*restarts, *pulling)


#: How many pods that wait for images are named.
_MOST_PULLING = 3


def _pulling(pod: Pod, now_ms: int) -> str:
    since_ms = max(0, now_ms - (pod.status.bound_at or now_ms))
    name = pod.metadata.name
    return f"pod {name} waits for its image, for {describe_age(since_ms)}: {pod.status.message}"


#: The phases of pods that start again, unless they have ended for good.
_RESTARTS = frozenset({PodPhase.FAILED, PodPhase.EVICTED, PodPhase.PENDING})


def _named_pods(pods: Sequence[Pod], how: str) -> str:
    if len(pods) == 1:
        return f"pod {pods[0].metadata.name} {how}"
    plural = {"was": "were", "is": "are"}
    verb, _, rest = how.partition(" ")
    return f"{len(pods)} pods {plural.get(verb, verb)} {rest}".rstrip()


def _how_it_ended(pod: Pod) -> str:
    """Return how the last attempt of a pod ended."""
    status = pod.status
    if status.reason == Leaving.NODE_LOST:
        return f"was lost with node {status.node or status.last_node}"
    if status.reason or status.phase == PodPhase.EVICTED:
        return f"was stopped ({status.reason})" if status.reason else "was stopped"
    if status.signal is not None:
        return f"was ended by signal {status.signal}"
    return "failed" if status.exit_code is None else f"exited with {status.exit_code}"


def _starts_again(session: Session, group: GroupState, pods: Sequence[Pod], retry: str) -> str:
    if pods[0].status.phase in ON_NODE:
        lost_at = min((lease_over_at(session, pod) or 0 for pod in pods), default=0)
        counts = "it counts" if len(pods) == 1 else "they count"
        when = f" in {describe_age(lost_at - session.now_ms)}" if lost_at > session.now_ms else ""
        return f"{counts} as lost{when} unless the node returns"
    due_at = min(requeue_due_at(session, group, pod) for pod in pods)
    waits = any(pod.status.phase == PodPhase.PENDING for pod in pods)
    it = retry or ("it" if len(pods) == 1 else "they")
    starts = "start" if it == "they" else "starts"
    if not waits and due_at > session.now_ms:
        return f"{it} {starts} in {describe_age(due_at - session.now_ms)}"
    return f"{it} {starts} again when nodes take {'it' if len(pods) == 1 else 'them'}"


def _restarts_in_list(session: Session, group: GroupState) -> tuple[str, ...]:
    """Return the same for a group that lacks pods it needs; others are not searched in lists."""
    return restarts_of(session, group) if group.phase == PodGroupPhase.UNKNOWN else ()


def gates_of_task(group: GroupState, task: str) -> tuple[str, ...]:
    """Return the names of the gates in a task's template."""
    shape = group.shape.by_task.get(task)
    return () if shape is None else tuple(one.name for one in shape.task.template.scheduling_gates)


def _gates_message(task: Task) -> str:
    names = ", ".join(gate.name for gate in task.template.scheduling_gates)
    kind = "gate" if len(task.template.scheduling_gates) == 1 else "gates"
    wait = "waits" if task.replicas == 1 else "wait"
    return f"{counted(task.replicas, 'pod')} of task {task.name} {wait} for {kind} {names}"


__all__ = ["ROOT", "FirstToGo", "Loan", "QueueView", "Stop"]


def queue_views(session: Session) -> list[QueueView]:
    """Return every queue, each before the queues below it, siblings by name."""
    tree = session.tree
    sums = _Sums(session)
    deserved = deserved_of_queues(session)
    return [_view(session, tree, sums, deserved, name) for name in _in_tree_order(session)]


def lenders(views: Sequence[QueueView], tree: QueueTree, name: str) -> list[Loan]:
    """Return the siblings of the queue and of its ancestors that deserve more than they hold, in
    resources that this queue borrows.
    """
    by_name = {view.name: view for view in views}
    borrowed = by_name[name].borrowed
    found = []
    for other in _beside(tree, name):
        view = by_name[other]
        rest = _only(_resources(minus(view.deserved, view.charged)), borrowed)
        if rest:
            found.append(Loan(other, rest))
    return found


def borrowers(views: Sequence[QueueView], tree: QueueTree, name: str) -> list[Loan]:
    """Return the siblings of the queue and of its ancestors that hold more than they deserve, in
    resources of which this queue holds less than it deserves.
    """
    by_name = {view.name: view for view in views}
    lent = _resources(minus(by_name[name].deserved, by_name[name].charged))
    found = []
    for other in _beside(tree, name):
        over = _only(by_name[other].borrowed, lent)
        if over:
            found.append(Loan(other, over))
    return found


def first_to_go(session: Session, name: str) -> list[FirstToGo]:
    """Return a queue's groups in the order in which preemption would choose victims.

    The order is that of batchq.core.preemption.candidates: pods beyond minMember first, then whole
    groups; among these by lowest priority, largest share of the queue, latest start, uid. Groups
    that are stopping already are left out; groups that a policy protects are not.
    """
    from batchq.core.preemption.candidates import share_path, victim_key

    groups = [
        group
        for group in session.groups.values()
        if name in group.chain and group.phase not in TERMINAL and group.charge()
    ]
    groups = [group for group in groups if not _is_leaving(session, group)]
    groups.sort(key=victim_key)
    groups.sort(key=lambda group: share_path(session, group.queue), reverse=True)
    groups.sort(key=lambda group: group.priority)
    extras = [(group, _beyond_minimum(group)) for group in groups]
    return [
        *(_first_to_go(group, pods, whole=False) for group, pods in extras if pods),
        *(_first_to_go(group, _on_nodes(group), whole=True) for group in groups),
    ]


class _Sums:
    """Counts and sums per queue; each group counts in its queue and in all queues above it."""

    def __init__(self, session: Session) -> None:
        self.used: dict[str, Amounts] = {}
        self.pending: dict[str, Amounts] = {}
        self.waiting: dict[str, int] = {}
        self.admitted: dict[str, int] = {}
        self.running: dict[str, int] = {}
        for group in session.groups.values():
            self._count(group)
        for queue in session.queues.values():
            asked = total(group.reservation for group in queue.line)
            for name in session.tree.chain(queue.name):
                self.pending[name] = plus(self.pending.get(name, {}), asked)
                self.waiting[name] = self.waiting.get(name, 0) + len(queue.line)

    def _count(self, group: GroupState) -> None:
        held, phase = group.held, group.phase
        for name in group.chain:
            if held:
                self.used[name] = plus(self.used.get(name, {}), held)
            if phase in ADMITTED:
                self.admitted[name] = self.admitted.get(name, 0) + 1
            if phase == PodGroupPhase.RUNNING:
                self.running[name] = self.running.get(name, 0) + 1


def _view(
    session: Session,
    tree: QueueTree,
    sums: _Sums,
    deserved: Mapping[str, Amounts],
    name: str,
) -> QueueView:
    charged = dict(session.ledger.sums.get(queue_scope(name), {}))
    used, rightful = sums.used.get(name, {}), deserved.get(name, {})
    return QueueView(
        queue=session.queues[name].record,
        parent=tree.parent_of.get(name, "" if name == ROOT else ROOT),
        children=tree.children_of.get(name, ()),
        depth=max(0, len(tree.chain(name)) - (1 if ROOT in session.queues else 2)),
        used=used,
        reserved=_resources(minus(charged, used)),
        charged=charged,
        borrowed=_resources(minus(charged, rightful)),
        pending_groups=sums.waiting.get(name, 0),
        pending=sums.pending.get(name, {}),
        admitted_groups=sums.admitted.get(name, 0),
        running_groups=sums.running.get(name, 0),
        deserved=rightful,
        guarantee=dict(tree.guarantee(name)),
        share=reported_share(session, name),
        stops=_stops(session, tree.chain(name)),
        accepts=None if (accepted := tree.accepted(name)) is None else tuple(sorted(accepted)),
    )


def _in_tree_order(session: Session) -> list[str]:
    """Return the existing queues, each before the queues below it."""
    below = session.tree.children_of
    found: list[str] = []
    waiting = [ROOT]
    while waiting:
        name = waiting.pop()
        found.append(name)
        waiting.extend(reversed(below.get(name, ())))
    # Every session has the queue `default`; if the tree leaves it out, it comes last.
    rest = set(session.queues).difference(found)
    return [*(name for name in found if name in session.queues), *sorted(rest)]


def _stops(session: Session, chain: Iterable[str]) -> tuple[Stop, ...]:
    records = [session.queues[name].record for name in chain if name in session.queues]
    return tuple(
        Stop(record.metadata.name, record.spec.stop_policy)
        for record in records
        if record.spec.stop_policy != "None"
    )


def _beside(tree: QueueTree, name: str) -> list[str]:
    """Return the siblings of a queue and of its ancestors, the nearest first."""
    return [other for one in reversed(tree.chain(name)) for other in tree.siblings(one)]


def _resources(amounts: Amounts) -> Amounts:
    """Return the amounts without counts of pods and groups, which cannot be borrowed."""
    return {name: units for name, units in amounts.items() if name not in (PODS, POD_GROUPS)}


def _only(amounts: Amounts, where: Mapping[str, int]) -> Amounts:
    return {name: units for name, units in sorted(amounts.items()) if where.get(name)}


def _is_leaving(session: Session, group: GroupState) -> bool:
    pledged = session.victims.pledged
    return group.uid in pledged or any(
        pod.status.terminating or pod.metadata.uid in pledged for pod in _on_nodes(group)
    )


def _on_nodes(group: GroupState) -> list[Pod]:
    pods = [pod for pod in group.current() if pod.status.phase in ON_NODE]
    return sorted(pods, key=lambda pod: (group.shape_of(pod).first, pod.spec.index))


def _beyond_minimum(group: GroupState) -> list[Pod]:
    ended = sum(pod.status.phase == PodPhase.SUCCEEDED for pod in group.current())
    return _on_nodes(group)[max(0, group.min_member - ended) :]


def _first_to_go(group: GroupState, pods: list[Pod], *, whole: bool) -> FirstToGo:
    gives = group.charge() if whole else total(of_pod(pod.spec.requests) for pod in pods)
    return FirstToGo(
        key=group.key,
        queue=group.queue,
        priority=group.priority,
        whole=whole,
        pods=len(pods),
        gives=_resources(gives),
        started_at=group.status.started_at,
    )
