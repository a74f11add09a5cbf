"""Telling the store what became of a pod: claimed, started, ended.

Every write carries the pod's fence and the revision that was read, so a superseded attempt changes
nothing, and one that is told to stop meanwhile is read again. The request ids are made of who
writes, what, and over which revision: the same call after a lost reply is the same request, and
two authors never share one.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct

from batchq.api.lifecycle import ON_NODE, PodPhase
from batchq.api.objects import Pod, PodGroup, full_name
from batchq.api.transaction import Charge, Event, Transaction, Word, Write, fence_of
from batchq.errors import StoreUnavailable
from batchq.ports import Store
from batchq.worker.messenger import Renewal
from batchq.worker.outcome import Outcome, ended

#: Others change a pod a few times in its life; more conflicts than this are a broken server.
_MOST_CONFLICTS = 20


class Claimed(Struct, frozen=True, kw_only=True):
    """The pod is Running, and this attempt of it is ours."""

    pod: Pod
    group: PodGroup


class Declined(Struct, frozen=True, kw_only=True):
    """The pod is not ours to run."""

    why: str


def claim(
    store: Store,
    uid: str,
    attempt: int,
    *,
    node: str,
    author: str,
    now_ms: int,
    renew: Callable[[str], Renewal],
) -> Claimed | Declined:
    """Take a Bound pod to Running.

    The lease is taken first (`renew` with the pod's fence): a Running pod whose last attempt's
    lease has long run out would be written off at once. A pod that is told to stop before it
    started is reported Evicted. Raises StoreUnavailable.
    """
    for _ in range(_MOST_CONFLICTS):
        pod = current(store, uid, attempt)
        if pod is None:
            return Declined(why="gone or superseded")
        if pod.status.phase != PodPhase.BOUND or pod.status.node != node:
            return Declined(why=f"{pod.status.phase} on {pod.status.node or 'no node'}")
        if pod.status.terminating:
            stopped = Outcome(stopped=pod.status.reason, message="stopped before it started")
            report(store, uid, attempt, stopped, author=author, now_ms=now_ms)
            return Declined(why="terminating")
        group = store.get("PodGroup", f"{pod.metadata.namespace}/{pod.spec.pod_group}")
        if not isinstance(group, PodGroup) or group.metadata.uid != pod.status.group_uid:
            return Declined(why="its group is gone")
        if renew(fence_of(pod)).word != "ok":
            continue
        word = _commit(store, _claimed(pod, now_ms), author=author, step="claim", pod=pod)
        if word == Word.OK:
            ours = current(store, uid, attempt)
            return Declined(why="superseded") if ours is None else Claimed(pod=ours, group=group)
        if word != Word.CONFLICT:
            return Declined(why=f"refused: {word}")
    raise _unstable(uid)


def report(
    store: Store, uid: str, attempt: int, outcome: Outcome, *, author: str, now_ms: int
) -> bool:
    """Write the end of an attempt, and free what it held on its node.

    True if this call wrote it, False if it has ended already, or is superseded. A Bound pod with
    the outcome of a command (a server that lost its last second) is taken through Running first.
    Raises StoreUnavailable.
    """
    for _ in range(_MOST_CONFLICTS):
        pod = current(store, uid, attempt)
        if pod is None or pod.status.phase not in ON_NODE:
            return False
        after = ended(pod, outcome, now_ms=now_ms)
        if pod.status.phase == PodPhase.BOUND and after.status.phase == PodPhase.SUCCEEDED:
            transaction, step = _claimed(pod, now_ms), "claim"
        else:
            transaction, step = _ended(pod, after, now_ms), "end"
        word = _commit(store, transaction, author=author, step=step, pod=pod)
        if word == Word.OK and step == "end":
            return True
        if word not in (Word.OK, Word.CONFLICT):
            return False
    raise _unstable(uid)


def current(store: Store, uid: str, attempt: int) -> Pod | None:
    """The pod, if this is still its attempt."""
    pod = store.get("Pod", uid)
    return pod if isinstance(pod, Pod) and pod.status.attempt == attempt else None


def _claimed(pod: Pod, now_ms: int) -> Transaction:
    status = msgspec.structs.replace(pod.status, phase=PodPhase.RUNNING, started_at=now_ms)
    return Transaction(
        subject=f"{pod.metadata.namespace}/{pod.spec.pod_group}",
        writes=(_write(pod, msgspec.structs.replace(pod, status=status)),),
    )


def _ended(pod: Pod, after: Pod, now_ms: int) -> Transaction:
    event = Event(
        kind="Pod",
        key=pod.metadata.uid,
        reason=after.status.reason or str(after.status.phase),
        message=_story(after),
        at=now_ms,
    )
    return Transaction(
        subject=f"{pod.metadata.namespace}/{pod.spec.pod_group}",
        writes=(_write(pod, after),),
        charges=(Charge(holder=f"pod:{pod.metadata.uid}"),),
        events=(event,),
    )


def _write(before: Pod, after: Pod) -> Write:
    return Write(
        kind="Pod",
        key=before.metadata.uid,
        expect=before.metadata.revision,
        value=after,
        fence=fence_of(before),
    )


def _story(pod: Pod) -> str:
    status = pod.status
    text = f"{full_name(pod)} {status.phase} on {status.node}, attempt {status.attempt}"
    return f"{text}: {status.message}" if status.message else text


def _commit(store: Store, transaction: Transaction, *, author: str, step: str, pod: Pod) -> Word:
    request = f"{author}-{pod.metadata.uid}-{pod.status.attempt}-{step}-{pod.metadata.revision}"
    commit = store.commit([transaction], request_id=request)
    return commit.refused[0].answer.word if commit.refused else Word.OK


def _unstable(uid: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"pod {uid} changed {_MOST_CONFLICTS} times while it was being written",
        hint="see who else writes pods on this server",
    )
