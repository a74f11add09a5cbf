"""From what a session decided to what a store is asked: one transaction for each touched group.

Everything that happened to one group in one session becomes true together or not at all: its
record, its pods, its charge, deliveries and events. What frees comes first, so that what takes
can be granted in the same call.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from batchq.api import intents
from batchq.api.intents import Intent
from batchq.api.lifecycle import ON_NODE, TERMINAL, PodPhase
from batchq.api.names import counted
from batchq.api.objects import Node, Pod, PodGroup
from batchq.api.resources import describe, of_pod
from batchq.api.transaction import (
    Charge,
    Delivery,
    Event,
    Transaction,
    Write,
    node_scope,
)
from batchq.framework.ledger import charge_with_count, scopes_of
from batchq.framework.session import Session
from batchq.framework.state import GroupState

_set = msgspec.structs.replace


def transactions_of(session: Session) -> list[Transaction]:
    """Everything to commit, what frees before what takes, otherwise in the order decided."""
    by_group = _by_group(session.intents)
    result = [_node_falls_silent(session.nodes[name].record) for name in session.unready]
    frees: list[Transaction] = []
    moves: list[Transaction] = []
    takes: list[Transaction] = []
    for group in session.touched.values():
        transaction = _of_group(session, group, by_group.get(group.key, []))
        if transaction is None:
            continue
        if _grows(group):
            takes.append(transaction)
        elif any(charge.checked for charge in transaction.charges):
            # It binds within what it gave back: others may count on the rest of that.
            moves.append(transaction)
        else:
            frees.append(transaction)
    return [*result, *frees, *moves, *takes]


def _by_group(decided: Sequence[Intent]) -> dict[str, list[Intent]]:
    groups: dict[str, list[Intent]] = {}
    for intent in decided:
        if not isinstance(intent, intents.SetNodeReady):
            groups.setdefault(intent.group, []).append(intent)
    return groups


def _node_falls_silent(node: Node) -> Transaction:
    name = node.metadata.name
    silent = _set(node, status=_set(node.status, ready=False))
    return Transaction(
        subject=f"Node {name}",
        writes=(Write(kind="Node", key=name, expect=node.metadata.revision, value=silent),),
        charges=(Charge(holder=f"node:{name}"),),
        events=(Event(kind="Node", key=name, reason="NotReady", message="no heartbeat"),),
    )


def _of_group(session: Session, group: GroupState, story: list[Intent]) -> Transaction | None:
    before = {pod.metadata.uid: pod for pod in session.snapshot.pods.get(group.uid, ())}
    after = {} if group.uid in session.expired else group.pods
    changed = [
        (uid, before.get(uid), after.get(uid))
        for uid in {**before, **after}
        if before.get(uid) is not after.get(uid)
    ]
    charge = charge_with_count(group)
    status = group.status
    if status.charge != charge:
        status = _set(status, charge=charge)
    if status is group.record.status and not changed and group.uid not in session.expired:
        return None
    return Transaction(
        subject=group.key,
        writes=(
            _write_group(session, group, _set(group.record, status=status)),
            *(_write_pod(uid, old, new) for uid, old, new in changed),
        ),
        charges=(
            *_group_charges(session, group),
            *(charge for uid, old, new in changed for charge in _pod_charges(uid, old, new)),
        ),
        deliveries=tuple(
            Delivery(pod=uid, attempt=new.status.attempt, node=new.status.node)
            for uid, old, new in changed
            if new is not None and _newly_bound(old, new)
        ),
        events=tuple(
            Event(kind="PodGroup", key=group.key, reason=reason, message=message, at=session.now_ms)
            for reason, message in _events(group, story)
        ),
    )


def _write_group(session: Session, group: GroupState, value: PodGroup) -> Write:
    gone = group.uid in session.expired
    return Write(
        kind="PodGroup",
        key=group.key,
        expect=group.record.metadata.revision,
        value=None if gone else value,
    )


def _write_pod(uid: str, old: Pod | None, new: Pod | None) -> Write:
    return Write(kind="Pod", key=uid, expect=0 if old is None else old.metadata.revision, value=new)


def _grows(group: GroupState) -> bool:
    """Whether the group is charged more than before in any dimension."""
    was = group.record.status.charge
    return any(units > was.get(name, 0) for name, units in charge_with_count(group).items())


def _group_charges(session: Session, group: GroupState) -> list[Charge]:
    holder = f"group:{group.uid}"
    amounts = charge_with_count(group)
    charges = []
    if amounts != group.record.status.charge:
        scopes = scopes_of(group) if amounts else ()
        charges.append(Charge(holder=holder, scopes=scopes, amounts=amounts, checked=_grows(group)))
    if group.phase in TERMINAL and group.record.status.phase not in TERMINAL:
        charges.append(Charge(holder=f"object:{group.uid}"))
    return charges


def _pod_charges(uid: str, old: Pod | None, new: Pod | None) -> list[Charge]:
    """A bind takes room on the node; a pod written off gives it back."""
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


def _events(group: GroupState, story: list[Intent]) -> list[tuple[str, str]]:
    """The story in a few lines; binds and evictions of one session are told together."""
    lines: list[tuple[str, str]] = []
    bound = [intent for intent in story if isinstance(intent, intents.Bind)]
    evicted = [intent for intent in story if isinstance(intent, intents.Evict)]
    lost = [intent for intent in story if isinstance(intent, intents.LosePod)]
    for intent in story:
        match intent:
            case intents.AdmitGroup():
                reserved = describe(group.status.reservation)
                lines.append(("Admitted", f"admission {intent.admission}, reserved {reserved}"))
            case intents.RollBack():
                lines.append((intent.reason, intent.message or "back to Pending"))
            case intents.MoveGroup():
                lines.append((intent.phase, f"the group is {intent.phase}"))
            case intents.FinishGroup():
                lines.append((intent.phase, intent.message or intent.reason))
            case intents.SetReasons():
                lines.append(("Waiting", ", ".join(intent.reasons)))
            case _:
                pass
    if bound:
        nodes = sorted({intent.node for intent in bound})
        shown = ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
        lines.append(("Bound", f"{counted(len(bound), 'pod')} to {shown}"))
    if evicted:
        told = f"{counted(len(evicted), 'pod')} told to stop: {evicted[0].reason}"
        lines.append(("Evicting", told))
    if lost:
        lines.append(("NodeLost", f"{counted(len(lost), 'pod')} written off"))
    return lines
