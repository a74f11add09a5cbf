"""What a session decides about a group, and snapshots with changed objects, for `plan` and `why`.

Nothing here is stored. A request follows the rules of a real one, on the snapshot's objects; kinds
that a snapshot does not contain are read from the server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from batchq.api import intents
from batchq.api.intents import Eviction
from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase
from batchq.api.node_report import PROTOCOL, PROTOCOL_ANNOTATION
from batchq.api.objects import Object, key_of
from batchq.api.reasons import NEVER_FITS, Explanation, Verdict
from batchq.api.transaction import (
    EVERY_NAMESPACE,
    ONE_GROUP,
    POD_GROUPS,
    Ledger,
    Refusal,
    Transaction,
    Word,
    hard_limit,
    objects_scope,
    only_groups,
)
from batchq.api.views import Awaited, ExpectedStart, GroupPlan, Outcome, Starts, StartView
from batchq.assembly import assemble
from batchq.client.changes import explain_refusal
from batchq.client.overview import awaited_of, line_of, others
from batchq.config import SchedulerConfig
from batchq.config.load import read_config
from batchq.core.eligibility import are_honoured, open_checks
from batchq.core.estimates import Expected, earliest_start, expected_starts
from batchq.core.placement.feasibility import fits_when_empty, nodes_away, why_no_known_node
from batchq.core.placement.placement import gang_of
from batchq.core.placement.trial import verdicts_of
from batchq.core.preemption.evictions import evictions_of, preemptor_of
from batchq.core.session.session import Session
from batchq.core.session.session_nodes import NodeState
from batchq.core.session.snapshot import Snapshot
from batchq.core.session.specs import TaskShape
from batchq.core.session.state import GroupState, is_admitted
from batchq.errors import InvalidInput
from batchq.ports import Reader
from batchq.scheduler.cycle import Scheduler
from batchq.store.rules import refuse_charges, weigh

if TYPE_CHECKING:
    from batchq.store.redis import RedisStore

#: Kind -> the snapshot's field with all objects of it, ordered by key. Pods are missing, because no
#: request writes them.
_FIELDS = {
    "Queue": "queues",
    "ResourceQuota": "quotas",
    "Node": "nodes",
    "PriorityClass": "priority_classes",
    "AdmissionCheck": "admission_checks",
    "PodGroup": "groups",
}


class SnapshotReader:
    """A Reader of a snapshot's objects; other kinds are read from `below`."""

    def __init__(self, snapshot: Snapshot, below: Reader) -> None:
        self._snapshot = snapshot
        self._below = below
        self._by_key: dict[str, dict[str, Object]] = {}

    def get(self, kind: str, key: str) -> Object | None:
        """Return the object, or None."""
        if kind not in _FIELDS:
            return self._below.get(kind, key)
        if kind not in self._by_key:
            self._by_key[kind] = {key_of(item): item for item in _all(self._snapshot, kind)}
        return self._by_key[kind].get(key)

    def list(self, kind: str, *, namespace: str = "") -> Sequence[Object]:
        """Return all objects of a kind (of one namespace), ordered by key."""
        if kind not in _FIELDS:
            return self._below.list(kind, namespace=namespace)
        found = _all(self._snapshot, kind)
        return tuple(item for item in found if namespace in ("", item.metadata.namespace))


def ledger_of(session: Session) -> Ledger:
    """Return the ledger's sums."""
    return {scope: dict(sums) for scope, sums in session.ledger.sums.items()}


def check_objects_allowed(
    snapshot: Snapshot, transaction: Transaction, *, per_namespace: int
) -> None:
    """Check the limits on unfinished groups per namespace: `per_namespace` unless a ResourceQuota
    sets another one.

    Raises Rejected with the message of a refused submission.
    """
    stated = {limit.scope: limit.amounts for limit in transaction.limits}
    counts = Counter(
        objects_scope(group.metadata.namespace)
        for group in snapshot.groups
        if group.status.phase not in TERMINAL
    )

    def sums(scope: str) -> Mapping[str, int]:
        return {POD_GROUPS: counts[scope] * ONE_GROUP}

    def limits(scope: str) -> Mapping[str, int] | None:
        if scope == EVERY_NAMESPACE:
            return {POD_GROUPS: per_namespace * ONE_GROUP}
        return stated[scope] if scope in stated else _allowed(snapshot, scope)

    weighed = weigh(transaction.charges, {})
    answer = refuse_charges(weighed, sums, limits, 1000)
    if answer is not None and answer.word is not Word.OK:
        raise explain_refusal(Refusal(transaction=transaction, answer=answer))


def with_objects(snapshot: Snapshot, objects: Mapping[tuple[str, str], Object | None]) -> Snapshot:
    """Return the snapshot with these objects, by kind and key; None removes an object.

    Kinds that a session does not read have no effect.
    """
    changed: dict[str, tuple[Object, ...]] = {}
    for kind, field in _FIELDS.items():
        over = {key: item for (other, key), item in objects.items() if other == kind}
        if over:
            found: dict[str, Object | None] = {key_of(one): one for one in _all(snapshot, kind)}
            found_objects = {**found, **over}
            in_order = [found_objects[key] for key in sorted(found_objects)]
            changed[field] = tuple(item for item in in_order if item is not None)
    return structs.replace(snapshot, **changed)


def writes_of(transaction: Transaction) -> dict[tuple[str, str], Object | None]:
    """Return what a transaction writes, by kind and key; None for deletions."""
    return {(write.kind, write.key): write.value for write in transaction.writes}


def _all(snapshot: Snapshot, kind: str) -> tuple[Object, ...]:
    found: tuple[Object, ...] = getattr(snapshot, _FIELDS[kind])
    return found


def _allowed(snapshot: Snapshot, scope: str) -> Mapping[str, int]:
    quotas = [one for one in snapshot.quotas if objects_scope(one.metadata.namespace) == scope]
    return only_groups(hard_limit(quotas))


def group_plan(session: Session, key: str) -> GroupPlan:
    """Return what a decided session does with one group."""
    group = session.by_key[key]
    awaits = awaited_of(session, group)
    verdicts = () if _starts(group) else verdicts_of(session, group)
    outcome = _outcome(session, group, awaits, verdicts)
    never = no_node_ever(session, group) if outcome is Outcome.WAITS else ""
    if never:
        outcome = Outcome.NEVER
    waits = outcome in (Outcome.WAITS, Outcome.NEVER)
    line = line_of(session, group.queue) if waits else []
    place = line.index(key) if key in line else None
    return GroupPlan(
        key=key,
        queue=group.queue,
        priority=group.priority,
        request=group.reservation,
        least=group.min_member,
        replicas=group.replicas,
        outcome=outcome,
        phase=group.phase,
        reserved=group.reserved,
        external=group.is_external,
        nodes=_nodes(group),
        awaits=awaits,
        checks=() if is_admitted(group) else _open_checks(group),
        blockers=tuple(Explanation(verdict=one) for one in verdicts) if waits else (),
        position=None if place is None else place + 1,
        ahead=() if place is None else tuple(line[:place]),
        ending=_ending(group),
        never=never,
    )


def with_starts(session: Session, groups: Sequence[GroupPlan]) -> tuple[GroupPlan, ...]:
    """Add the earliest and the expected start to each group that waits."""
    waiting = {one.key: session.by_key[one.key] for one in groups if one.outcome is Outcome.WAITS}
    uids = [group.uid for group in waiting.values()]
    expected = expected_starts(session, wanted=uids) if uids else {}

    def completed(one: GroupPlan) -> GroupPlan:
        group = waiting.get(one.key)
        if group is None:
            return one
        earliest = earliest_start(session, group)
        later = earliest.at is not None and earliest.at > session.now_ms
        return structs.replace(
            one,
            earliest_start=earliest.at if later else None,
            after=earliest.ended if later else (),
            expected_start=expected[group.uid].at if group.uid in expected else None,
        )

    return tuple(map(completed, groups))


def victims(session: Session, without: Session, keys: Collection[str]) -> list[Eviction]:
    """Return the victims in a session: those evicted for one of the groups `keys`, and all others
    that are not evicted in the session `without` them.
    """
    evicted_anyway = {one.uid for one in without.intents if isinstance(one, intents.Evict)}
    rolled_back_anyway = {one.group for one in without.intents if isinstance(one, intents.RollBack)}
    said = [
        one
        for one in session.intents
        if (isinstance(one, intents.Evict) and (one.by in keys or one.uid not in evicted_anyway))
        or (
            isinstance(one, intents.RollBack)
            and (
                one.group not in rolled_back_anyway
                or preemptor_of(session.by_key[one.group]) in keys
            )
        )
    ]
    return [one for one in evictions_of(session, said) if one.key not in keys]


def delayed(session: Session, without: Session, gone: Collection[str]) -> list[str]:
    """Return the groups that would start in the session `without` the request but not in this one;
    the victims, `gone`, are left out.
    """
    return [
        key
        for key, group in sorted(without.by_key.items())
        if key not in gone
        and _starts(group)
        and key in session.by_key
        and not _starts(session.by_key[key])
    ]


def no_node_ever(session: Session, group: GroupState) -> str:
    """Return why no known nodes would take a group's gang even if empty; '' if they would, or if
    the group has started or ended.
    """
    may_start = group.phase in (PodGroupPhase.PENDING, PodGroupPhase.IN_QUEUE)
    if group.is_external or not may_start or _starts(group):
        return ""
    why = why_no_known_node(session, gang_of(session, group))
    return f"not even empty nodes take it: {why}" if why else ""


def missing_nodes(session: Session, group: GroupState) -> str:
    """Return which nodes are cordoned or not ready, if the group cannot start without some of them;
    '' if the other nodes would take its gang when empty, or if it could never run.
    """
    gang = () if group.is_external else gang_of(session, group)
    if not gang or fits_when_empty(session, gang) or why_no_known_node(session, gang):
        return ""
    return nodes_away(session, gang).text(named=True)


def agents_to_upgrade(session: Session, shape: TaskShape) -> list[str]:
    """Return the nodes that refuse a pod only because their agent is of an older protocol."""
    found = []
    for node in session.nodes.known_when_empty().nodes.values():
        meta = node.record.metadata
        spoken = meta.annotations.get(PROTOCOL_ANNOTATION, "")
        if not (spoken.isascii() and spoken.isdigit() and int(spoken[:9]) < PROTOCOL):
            continue
        annotations = {**meta.annotations, PROTOCOL_ANNOTATION: str(PROTOCOL)}
        meta = structs.replace(meta, annotations=annotations)
        upgraded = NodeState(structs.replace(node.record, metadata=meta), ready=True)
        if session.refused_by(shape, upgraded) is None:
            found.append(node.name)
    return found


def _starts(group: GroupState) -> bool:
    """Return whether it can run: its gang has nodes, or it is external and admitted."""
    if not is_admitted(group):
        return False
    return group.is_external or sum(group.placed.values()) >= group.min_member


def _outcome(
    session: Session, group: GroupState, awaits: Awaited | None, verdicts: tuple[Verdict, ...]
) -> Outcome:
    if group.phase in TERMINAL or any(verdict.reason in NEVER_FITS for verdict in verdicts):
        return Outcome.NEVER
    evicts = _evicts(session, group.key)
    # A group with open checks does not start when its victims have ended.
    passes = not (are_honoured(session) and _open_checks(group))
    if _starts(group) or (awaits is not None and evicts and passes):
        return Outcome.EVICTS if evicts else Outcome.NOW
    return Outcome.WAITS


def _evicts(session: Session, key: str) -> bool:
    """Return whether this session evicts pods for the group."""
    return any(
        one.by == key
        if isinstance(one, intents.Evict)
        else isinstance(one, intents.RollBack) and preemptor_of(session.by_key[one.group]) == key
        for one in session.intents
    )


def _nodes(group: GroupState) -> dict[str, int]:
    """Return where its pods are, and where they go after its victims have ended."""
    nodes = [pod.status.node for pod in group.current() if pod.status.phase in ON_NODE]
    on = Counter((*nodes, *group.status.pledge.plan.values()))
    return {name: on[name] for name in sorted(on)}


def _open_checks(group: GroupState) -> tuple[str, ...]:
    return tuple(state.name for state in open_checks(group))


def _ending(group: GroupState) -> str:
    if group.phase not in TERMINAL:
        return ""
    known = [one for one in group.status.conditions if one.type == "Finished"]
    return ": ".join(part for one in known for part in (one.reason, one.message) if part)


_SOURCE = "the configuration of the scheduler that leads"


class TrialScheduler(Struct, frozen=True, kw_only=True):
    """A snapshot, a scheduler that decides on it, and the server's time."""

    snapshot: Snapshot
    scheduler: Scheduler
    now_ms: int

    @classmethod
    def open(cls, store: RedisStore, *, or_defaults: bool = False) -> TrialScheduler:
        """Read the server's current state. With `or_defaults`, the default configuration replaces
        one that this machine cannot use.

        Raises StoreUnavailable, and InvalidInput if this machine lacks a plugin or an action that
        is configured there.
        """
        from batchq.store.schedulers import read_config_text

        try:
            scheduler = scheduler_of(read_config_text(store))
        except InvalidInput:
            if not or_defaults:
                raise
            scheduler = scheduler_of(None)
        return cls(
            snapshot=as_seen_by_leader(store.snapshot()),
            scheduler=scheduler,
            now_ms=store.now_ms(),
        )

    def session(self) -> Session:
        """Return a session without decisions."""
        return self.scheduler.open(self.snapshot, self.now_ms)

    def decide(self, snapshot: Snapshot | None = None) -> Session:
        """Return a decided session, on the current state or on another snapshot."""
        given = self.snapshot if snapshot is None else snapshot
        return self.scheduler.without_memory().decide(given, self.now_ms)

    def decide_variant(self, snapshot: Snapshot) -> Session:
        """Decide on one of many similar snapshots; the session is valid until the next call."""
        return self.scheduler.decide(snapshot, self.now_ms)


def scheduler_of(text: str | None) -> Scheduler:
    """Return the scheduler of a published configuration; the default one if there is none.

    Raises InvalidInput, in words for a person who has not written the configuration.
    """
    if text is None:
        return assemble(SchedulerConfig())
    try:
        return assemble(read_config(text, _SOURCE))
    except InvalidInput as problem:
        sentence = problem.message.removeprefix(f"{_SOURCE}: ")
        raise InvalidInput(
            f"{_SOURCE} cannot be used on this machine: {sentence}",
            hint="install what the scheduler's machine has, in the same version,"
            " or run the command there",
        ) from None


def as_seen_by_leader(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot as a process sees it that was connected to the server all the time.

    A newly connected process would assume that it missed the heartbeats of every silent node.
    """
    standing = structs.replace(snapshot.standing, contact_since=None)
    return structs.replace(snapshot, standing=standing)


def starts_of(deciding: TrialScheduler, *, namespace: str = "", queue: str = "") -> Starts:
    """Return the expected start of every waiting group (of a namespace, of a queue's subtree)."""
    session = deciding.decide()
    chosen = {
        uid: group
        for uid, group in session.groups.items()
        if namespace in ("", group.namespace) and queue in ("", *group.chain)
    }
    pending = [uid for uid, one in chosen.items() if one.phase == PodGroupPhase.PENDING]
    estimates = expected_starts(session, wanted=pending)
    queues = {group.queue for uid, group in chosen.items() if uid in estimates}
    places = {
        key: place
        for name in sorted(queues)
        for place, key in enumerate(line_of(session, name), start=1)
    }
    items = [
        _view(group, estimates[uid], places) for uid, group in chosen.items() if uid in estimates
    ]
    return Starts(
        at=deciding.now_ms,
        items=tuple(sorted(items, key=_first_to_start)),
        not_planned=sum(not estimates[uid].is_planned for uid in chosen if uid in estimates),
    )


def _view(group: GroupState, estimates: Expected, places: Mapping[str, int]) -> StartView:
    return StartView(
        key=group.key,
        queue=group.queue,
        position=places.get(group.key),
        expected=expected_of(estimates, group.namespace),
    )


def _first_to_start(view: StartView) -> tuple[bool, int, str, bool, int, str]:
    at, place = view.expected.at, view.position
    return (at is None, at or 0, view.queue, place is None, place or 0, view.key)


def expected_of(estimates: Expected, namespace: str) -> ExpectedStart:
    """Return an estimate for a reader of one namespace."""
    return ExpectedStart(
        at=estimates.at,
        ends=others(estimates.ended, namespace),
        behind=others([estimates.behind] if estimates.behind else [], namespace),
        why=estimates.why,
    )
