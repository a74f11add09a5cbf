"""Convert a session's decisions to transactions, one for each touched group.

All changes to one group in one session are applied together or not at all: its record, pods,
charge, deliveries and events. Transactions that free resources come first, so that those that take
resources can be granted in the same call.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TypeAlias

import msgspec

from batchq.api import intents
from batchq.api.intents import Intent
from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase, PodPhase
from batchq.api.notation import counted
from batchq.api.objects import Node, Pod, PodGroup, PodGroupStatus
from batchq.api.reasons import POD_LOST
from batchq.api.resources import Amounts, covers, describe, minus, of_pod
from batchq.api.transaction import (
    Charge,
    Delivery,
    Event,
    Transaction,
    Write,
    node_scope,
    queue_scope,
)
from batchq.core.kept_capacity import owed_by_scope, victims_left
from batchq.core.quota import ROOT
from batchq.core.quota.ledger import charge_with_count, holders_in_store, holders_of, is_booked
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState

_set = msgspec.structs.replace

#: Holder -> scopes and amounts.
Holders: TypeAlias = dict[str, tuple[tuple[str, ...], Amounts]]


def final_transactions(session: Session, *, with_events: bool = True) -> dict[str, Transaction]:
    """Return, by uid, the transactions of the groups that have ended and hold nothing any more.

    No action changes these, so they may be applied before the actions have decided. Without
    `with_events`, they have no events.
    """
    by_group = _by_group(session.intents) if with_events else {}
    tied = {uid for uids in session.effects.joined for uid in uids}
    found: dict[str, Transaction] = {}
    for uid, group in session.effects.touched.items():
        if group.phase not in TERMINAL or uid in tied:
            continue
        books = _books_of(session, group)
        if books.charge or books.owed:
            continue
        transaction = _of_group(session, group, books, by_group.get(group.key, ()))
        if transaction is not None:
            found[uid] = transaction
    return found


def transactions_of(
    session: Session, *, with_events: bool = True, without: Container[str] = ()
) -> Iterator[Transaction]:
    """Yield all transactions, except those of the groups with the uids `without`: those that free
    before those that take, else in decision order.

    Without `with_events`, those of groups have no events.
    """
    by_group = _by_group(session.intents) if with_events else {}
    for name in session.effects.unready:
        yield _node_falls_silent(session.nodes.by_name[name].record, now_ms=session.now_ms)
    moves: list[Transaction] = []
    takes: list[tuple[GroupState, _Books]] = []
    tied = {uid for uids in session.effects.joined for uid in uids}
    parts: dict[str, tuple[bool, Transaction]] = {}
    for group in session.effects.touched.values():
        if group.uid in without:
            continue
        books = _books_of(session, group)
        if books.grows and group.uid not in tied:
            takes.append((group, books))
            continue
        transaction = _of_group(session, group, books, by_group.get(group.key, ()))
        if transaction is None:
            continue
        if group.uid in tied:
            parts[group.uid] = (books.grows, transaction)
        elif any([charge.checked for charge in transaction.charges]):  # noqa: C419 - a list is faster
            # It binds within what it gave back; other groups may count on the rest of that.
            moves.append(transaction)
        else:
            yield transaction
    yield from moves
    yield from _joined(session, parts)
    for group, books in takes:
        transaction = _of_group(session, group, books, by_group.get(group.key, ()))
        if transaction is not None:
            yield transaction


def _joined(session: Session, parts: dict[str, tuple[bool, Transaction]]) -> list[Transaction]:
    """Return one transaction for each preemptor with its victims, and any groups tied to these.

    This way, no victim is evicted without a pledge, and no pledge is made without its evictions.
    """
    components: list[list[str]] = []
    for uids in session.effects.joined:
        tied = [one for one in components if any(uid in one for uid in uids)]
        merged = dict.fromkeys([uid for one in tied for uid in one] + list(uids))
        components = [component for component in components if component not in tied] + [
            list(merged)
        ]
    # Sets that give back more than they take come first, because others may count on that.
    components.sort(key=lambda component: _net_growth(session, component))
    found = []
    for component in components:
        # Here too, frees first: a reader that follows the records never sees more held than exists.
        together = sorted((parts[uid] for uid in component if uid in parts), key=itemgetter(0))
        if together:
            found.append(_merged([transaction for _, transaction in together]))
    return found


def _net_growth(session: Session, component: list[str]) -> int:
    """Return in how many dimensions these groups together are charged more than before."""
    scope = queue_scope(ROOT)
    net: dict[str, int] = {}
    for uid in component:
        group = session.groups[uid]
        stored = group.record.status
        before = minus(stored.charge, stored.pledge.owed.get(scope, {}))
        after = session.ledger.counts_for(group, scope)
        for name in {**before, **after}:
            net[name] = net.get(name, 0) + after.get(name, 0) - before.get(name, 0)
    return sum(units > 0 for units in net.values())


def _merged(parts: list[Transaction]) -> Transaction:
    return Transaction(
        subject=parts[0].subject,
        writes=tuple(write for part in parts for write in part.writes),
        charges=tuple(charge for part in parts for charge in part.charges),
        limits=tuple(limit for part in parts for limit in part.limits),
        deliveries=tuple(delivery for part in parts for delivery in part.deliveries),
        events=tuple(event for part in parts for event in part.events),
    )


def _by_group(decided: Sequence[Intent]) -> dict[str, list[Intent]]:
    groups: dict[str, list[Intent]] = {}
    for intent in decided:
        if not isinstance(intent, intents.SetNodeReady):
            groups.setdefault(intent.group, []).append(intent)
    return groups


def _node_falls_silent(node: Node, *, now_ms: int) -> Transaction:
    name = node.metadata.name
    silent = _set(node, status=_set(node.status, ready=False))
    event = Event(kind="Node", key=name, reason="NotReady", message="no heartbeat", at=now_ms)
    return Transaction(
        subject=f"Node {name}",
        writes=(Write(kind="Node", key=name, expect=node.metadata.revision, value=silent),),
        charges=(Charge(holder=f"node:{name}"),),
        events=(event,),
    )


class _Books(msgspec.Struct, frozen=True, kw_only=True):
    """What a group is charged now, beside its charge in the store; computed once.

    If both are equal (`is_booked`), the other fields are empty, except `owed`. `grows`: whether the
    group is charged more than before in any dimension of any scope; only then, `before` has what
    the scopes were charged.
    """

    is_booked: bool
    grows: bool = False
    charge: Amounts = {}
    owed: Mapping[str, Amounts] = {}
    former: Holders = {}
    holders: Holders = {}
    before: Mapping[str, Amounts] = {}


_BOOKED = _Books(is_booked=True)


def _books_of(session: Session, group: GroupState) -> _Books:
    owed = session.ledger.owed(group)
    if is_booked(group, owed):
        return _Books(is_booked=True, owed=owed) if owed else _BOOKED
    charge, stored = charge_with_count(group), group.record.status
    holders = holders_of(group.uid, group.scopes, charge, owed)
    former = _holders_before(group)
    if stored.pledge.owed:
        before = _sums(former)
        grows = any(_grows_from(before, held) for held in holders.values())
    else:
        grows = not covers(stored.charge, charge)
        before = _sums(former) if grows else {}
    return _Books(
        is_booked=False,
        grows=grows,
        charge=charge,
        owed=owed,
        former=former,
        holders=holders,
        before=before,
    )


def _holders_before(group: GroupState) -> Holders:
    """Return the holders of the group's record."""
    status = group.record.status
    if status.charge and not status.pledge.owed and status.charge_path == group.chain[1:-1]:
        # The usual case: its queue is where it was.
        return holders_of(group.uid, group.scopes, status.charge, {})
    return holders_in_store(group.record)


def _of_group(
    session: Session, group: GroupState, books: _Books, decided: Sequence[Intent]
) -> Transaction | None:
    changed = _changed_pods(session, group)
    status = _booked(group, books)
    if status is group.record.status and not changed and group.uid not in session.effects.expired:
        return None
    key = group.key
    # A session may read a group that was created after its start.
    at = max(session.now_ms, group.record.metadata.creation_timestamp or 0)
    writes = [_write_group(session, group, _set(group.record, status=status))]
    charges = _group_charges(session, group, books)
    deliveries: list[Delivery] = []
    for uid, old, new in changed:
        writes.append(_write_pod(uid, old, new))
        charges += _pod_charges(uid, old, new)
        if new is not None and _newly_bound(old, new):
            attempt, node = new.status.attempt, new.status.node
            deliveries.append(Delivery(pod=uid, attempt=attempt, node=node))
    return Transaction(
        subject=key,
        writes=tuple(writes),
        charges=tuple(charges),
        deliveries=tuple(deliveries),
        events=tuple(
            [
                Event(kind="PodGroup", key=key, reason=reason, message=message, at=at)
                for reason, message in _events(group, decided)
            ]
        )
        if decided
        else (),
    )


def _changed_pods(session: Session, group: GroupState) -> list[tuple[str, Pod | None, Pod | None]]:
    """Return the pods that differ: uid, before, after; None for a pod that does not exist."""
    if group.uid in session.effects.expired:
        return [(pod.metadata.uid, pod, None) for pod in group.given_pods]
    if not group.changed_pods:
        return []
    stored: list[tuple[str, Pod | None, Pod | None]] = []
    new: list[tuple[str, Pod | None, Pod | None]] = []
    for uid, before in group.changed_pods.items():
        (stored if before is not None else new).append((uid, before, group.pods.get(uid)))
    stored.sort(key=itemgetter(0))
    return stored + new


def _booked(group: GroupState, books: _Books) -> PodGroupStatus:
    """Return the group's status with its charge in the ledger."""
    status = group.status
    if not books.is_booked:
        path = group.chain[1:-1] if books.charge else ()
        status = _set(status, charge=books.charge, charge_path=path)
    if status.pledge.owed != books.owed:
        status = _set(status, pledge=_set(status.pledge, owed=owed_by_scope(books.owed)))
    return status


def _write_group(session: Session, group: GroupState, value: PodGroup) -> Write:
    gone = group.uid in session.effects.expired
    return Write(
        kind="PodGroup",
        key=group.key,
        expect=group.record.metadata.revision,
        value=None if gone else value,
    )


def _write_pod(uid: str, old: Pod | None, new: Pod | None) -> Write:
    return Write(kind="Pod", key=uid, expect=0 if old is None else old.metadata.revision, value=new)


def _grows_from(before: Mapping[str, Amounts], held: tuple[tuple[str, ...], Amounts]) -> bool:
    """Return whether a holder is charged more than the group was in that scope. A charge that moves
    from one holder to another does not grow, and a limit that was cut meanwhile must not refuse it.
    """
    scopes, amounts = held
    return any(
        units > before.get(scope, {}).get(name, 0)
        for scope in scopes
        for name, units in amounts.items()
    )


def _follows_its_victims(session: Session, group: GroupState, charge: Amounts) -> bool:
    """Return whether a preemptor is charged more only where its victims are charged less by now.

    No sum grows by that, so a limit that was cut meanwhile must not refuse it.
    """
    stored, pledge = group.record.status, group.status.pledge
    if not pledge.victims and not stored.pledge.victims:
        return False
    if any(units > stored.charge.get(name, 0) for name, units in charge.items()):
        return False
    if pledge.stands:
        return pledge.holds == stored.pledge.holds
    return stored.pledge.stands and not victims_left(session, stored.pledge)


def _sums(holders: Holders) -> dict[str, Amounts]:
    return {scope: amounts for scopes, amounts in holders.values() for scope in scopes}


def _group_charges(session: Session, group: GroupState, books: _Books) -> list[Charge]:
    charges = [Charge(holder=holder) for holder in books.former if holder not in books.holders]
    grows = books.grows and not _follows_its_victims(session, group, books.charge)
    for holder, held in books.holders.items():
        checked = grows and _grows_from(books.before, held)
        scopes, amounts = held
        charges.append(Charge(holder=holder, scopes=scopes, amounts=amounts, checked=checked))
    if group.phase in TERMINAL and group.record.status.phase not in TERMINAL:
        charges.append(Charge(holder=f"object:{group.uid}"))
    return charges


def _pod_charges(uid: str, old: Pod | None, new: Pod | None) -> list[Charge]:
    """Return the charge of a bind on the node, or its release when a pod leaves the node."""
    if new is not None and _newly_bound(old, new):
        return [
            Charge(
                holder=f"pod:{uid}",
                scopes=(node_scope(new.status.node),),
                amounts=of_pod(new.spec.requests),
                checked=True,
            )
        ]
    held = old is not None and old.status.phase in ON_NODE
    holds = new is not None and new.status.phase in ON_NODE
    return [Charge(holder=f"pod:{uid}")] if held and not holds else []


def _newly_bound(old: Pod | None, new: Pod) -> bool:
    if new.status.phase != PodPhase.BOUND:
        return False
    return old is None or old.status.attempt != new.status.attempt


def _events(group: GroupState, decided: Sequence[Intent]) -> list[tuple[str, str]]:
    """Summarize the intents as events; all binds, and all evictions, of a session share one."""
    lines: list[tuple[str, str]] = []
    bound: list[intents.Bind] = []
    evicted: list[intents.Evict] = []
    lost: list[intents.LosePod] = []
    for intent in decided:
        match intent:
            case intents.Bind():
                bound.append(intent)
            case intents.Evict():
                evicted.append(intent)
            case intents.LosePod():
                lost.append(intent)
            case _ if (line := _line(group, intent)) is not None:
                lines.append(line)
    if bound:
        lines.append(("Bound", _nodes_text(bound)))
    if evicted:
        lines.append(("Evicting", _evictions_text(evicted)))
    if lost:
        lines.append((POD_LOST, _losses_text(group, lost)))
    return lines


def _line(group: GroupState, intent: Intent) -> tuple[str, str] | None:
    """Return the event of one intent, as reason and message, or None."""
    match intent:
        case intents.AdmitGroup():
            reserved = describe(group.status.reservation)
            return ("Admitted", f"admission {intent.admission}, reserved {reserved}")
        case intents.ReserveQuota():
            reserved = describe(group.status.reservation)
            return ("QuotaReserved", f"reserved {reserved}, not admitted yet")
        case intents.SetChecks():
            return ("ChecksChanged", intent.message)
        case intents.Pledge():
            victims = counted(len(intent.victims), "victim")
            return ("Pledged", f"pledged the resources of {victims} ({intent.action})")
        case intents.EndPledge():
            text = "no resources of victims are kept for it any more: it was placed, or gave up"
            return ("PledgeEnded", text)
        case intents.RollBack():
            return (intent.reason, intent.message or "back to Pending")
        case intents.MoveGroup():
            return (intent.phase, _moved_text(group, intent.phase))
        case intents.FinishGroup():
            return (intent.phase, intent.message or intent.reason)
        case intents.SetReasons():
            return ("Waiting", ", ".join(intent.reasons))
        case _:
            return None


def _moved_text(group: GroupState, phase: str) -> str:
    if phase == PodGroupPhase.UNKNOWN:
        return f"fewer pods run than the {group.min_member} that it needs"
    return f"the group is {phase}"


def _losses_text(group: GroupState, lost: list[intents.LosePod]) -> str:
    statuses = [group.pods[one.uid].status for one in lost if one.uid in group.pods]
    nodes = sorted({status.node or status.last_node for status in statuses})
    on = f" with {_few_names(nodes)}" if nodes else ""
    return f"{counted(len(lost), 'pod')} lost{on}"


def _nodes_text(bound: list[intents.Bind]) -> str:
    nodes = sorted({intent.node for intent in bound})
    return f"{counted(len(bound), 'pod')} to {_few_names(nodes)}"


def _few_names(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{', '.join(names[:4])}{more}"


def _evictions_text(evicted: list[intents.Evict]) -> str:
    first = evicted[0]
    preemptor = f" for {first.by}" if first.by else ""
    return f"{counted(len(evicted), 'pod')} told to stop: {first.reason}{preemptor}"


def stopped_on(transactions: Iterable[Transaction]) -> list[str]:
    """Return the nodes with pods that these transactions stop, ordered by name."""
    pods = (write.value for one in transactions for write in one.writes)
    return sorted(
        {pod.status.node for pod in pods if isinstance(pod, Pod) and pod.status.terminating}
    )


def completed_on(session: Session) -> list[str]:
    """Return the nodes with pods of gangs with `spec.launch` that became complete in a session,
    ordered by name: their agents wait for that.
    """
    complete = [
        session.by_key[one.group]
        for one in session.intents
        if isinstance(one, intents.MoveGroup) and one.phase == PodGroupPhase.RUNNING
    ]
    launched = [group for group in complete if group.record.spec.launch is not None]
    return sorted({pod.status.node for group in launched for pod in group.current()})
