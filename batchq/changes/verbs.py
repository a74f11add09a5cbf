"""The short requests: cancel, suspend, resume, cordon, stop a queue, set a quota."""

from __future__ import annotations

from typing import Literal

from msgspec import structs

from batchq.api.claims import stopped
from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.objects import (
    DEFAULT,
    Condition,
    Metadata,
    Node,
    PodGroup,
    PodGroupSpec,
    Queue,
    ResourceQuota,
    ResourceQuotaSpec,
    key_of,
)
from batchq.api.reasons import Finish
from batchq.api.transaction import Charge, Event, Transaction
from batchq.changes.editing import apply
from batchq.changes.lookup import find, title
from batchq.changes.records import put
from batchq.errors import Conflict
from batchq.ports import Reader


def cancel(reader: Reader, key: str, *, now_ms: int, message: str = "") -> Transaction:
    """End a group: Cancelled at once; its pods are told to stop by the next session.

    Raises NotFound, or Conflict if it has finished already.
    """
    group = _unfinished(reader, key, "be cancelled")
    uid = group.metadata.uid
    finished = Condition(
        type="Finished",
        status="True",
        reason=str(Finish.CANCELLED),
        message=message,
        last_transition_time=now_ms,
    )
    others = [condition for condition in group.status.conditions if condition.type != "Finished"]
    conditions = tuple(sorted((*others, finished), key=lambda condition: condition.type))
    status = structs.replace(
        group.status,
        phase=PodGroupPhase.CANCELLED,
        finished_at=now_ms,
        reserved_at=None,
        reservation={},
        unknown_at=None,
        backoff_until=None,
        reasons=(),
        conditions=conditions,
        claim=stopped(group.status.claim, Finish.CANCELLED, now_ms),
    )
    return put(
        reader,
        structs.replace(group, status=status),
        expect=group.metadata.revision,
        event=_event(group, "Cancelled", now_ms, message),
        charges=(Charge(holder=f"object:{uid}"),),
    )


def suspend(reader: Reader, key: str, *, now_ms: int) -> Transaction | None:
    """Hold a group back; if it runs, its pods are stopped and it waits again.

    Raises NotFound, or Conflict if it has finished already.
    """
    group = _unfinished(reader, key, "be suspended")
    if group.spec.suspend:
        return None
    spec = structs.replace(group.spec, suspend=True)
    return _with_spec(reader, group, spec, "Suspended", now_ms)


def resume(reader: Reader, key: str, *, now_ms: int) -> Transaction | None:
    """Let a suspended group stand in line again, at its former place.

    Raises NotFound, or Conflict if it has finished already.
    """
    group = _unfinished(reader, key, "be resumed")
    if not group.spec.suspend:
        return None
    spec = structs.replace(group.spec, suspend=False)
    return _with_spec(reader, group, spec, "Resumed", now_ms)


def cordon(reader: Reader, name: str, *, now_ms: int) -> Transaction | None:
    """Let no more pods come to a node; those that run there go on.

    Raises NotFound.
    """
    return _set_unschedulable(reader, name, True, "Cordoned", now_ms)


def uncordon(reader: Reader, name: str, *, now_ms: int) -> Transaction | None:
    """Let pods come to a node again.

    Raises NotFound.
    """
    return _set_unschedulable(reader, name, False, "Uncordoned", now_ms)


def set_stop_policy(
    reader: Reader, name: str, policy: Literal["None", "Hold", "HoldAndDrain"], *, now_ms: int
) -> Transaction | None:
    """Admit nothing to a queue and those below it, send back what was admitted too, or go on.

    Raises NotFound.
    """
    queue = find(reader, Queue, name)
    if queue.spec.stop_policy == policy:
        return None
    new = structs.replace(queue, spec=structs.replace(queue.spec, stop_policy=policy))
    reason = {"None": "Resumed", "Hold": "Stopped", "HoldAndDrain": "Draining"}[policy]
    event = Event(kind="Queue", key=name, reason=reason, at=now_ms)
    return put(reader, new, expect=queue.metadata.revision, event=event)


def set_quota(
    reader: Reader,
    namespace: str,
    hard: dict[str, int],
    *,
    now_ms: int,
    uid: str,
    name: str = DEFAULT,
) -> Transaction | None:
    """Replace what a namespace may hold (units as inside); its other quotas hold beside it.

    Raises InvalidInput.
    """
    quota = ResourceQuota(
        metadata=Metadata(name=name, namespace=namespace), spec=ResourceQuotaSpec(hard=hard)
    )
    return apply(reader, quota, now_ms=now_ms, uid=uid)


def _unfinished(reader: Reader, key: str, what: str) -> PodGroup:
    group = find(reader, PodGroup, key)
    if group.status.phase in TERMINAL:
        raise Conflict(f"{title(group)} is {group.status.phase} already and cannot {what}")
    return group


def _with_spec(
    reader: Reader, group: PodGroup, spec: PodGroupSpec, reason: str, now_ms: int, message: str = ""
) -> Transaction:
    return put(
        reader,
        structs.replace(group, spec=spec),
        expect=group.metadata.revision,
        event=_event(group, reason, now_ms, message),
    )


def _set_unschedulable(
    reader: Reader, name: str, unschedulable: bool, reason: str, now_ms: int
) -> Transaction | None:
    node = find(reader, Node, name)
    if node.spec.unschedulable == unschedulable:
        return None
    new = structs.replace(node, spec=structs.replace(node.spec, unschedulable=unschedulable))
    event = Event(kind="Node", key=name, reason=reason, at=now_ms)
    return put(reader, new, expect=node.metadata.revision, event=event)


def _event(group: PodGroup, reason: str, now_ms: int, message: str) -> Event:
    return Event(kind="PodGroup", key=key_of(group), reason=reason, message=message, at=now_ms)
