"""The pods of an elastic group, sorted into those that have ended for good and the others.

An array may have a million pods, of which few are on nodes at a time. This index is updated with
each pod that changes, and the scheduler cache hands it on from session to session. So a session
costs what runs, not what has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping

from batchq.api.lifecycle import ON_NODE, PodPhase
from batchq.api.objects import Pod, has_ended
from batchq.core.session.specs import TaskShape


class ElasticPods:
    """The index; owned by the state of its group. Valid while the spec of the group is the same."""

    __slots__ = (
        "_admission",
        "_first_ordinals",
        "_is_unsorted",
        "_open_from",
        "_retry_limit",
        "_taken",
        "failed",
        "finished",
        "live",
        "succeeded",
    )

    def __init__(self, first_ordinals: Mapping[str, int], retry_limit: int) -> None:
        """`first_ordinals` maps each task to the ordinal of its first pod."""
        self._first_ordinals = first_ordinals
        self._retry_limit = retry_limit
        #: The pods that have not ended for good, by uid.
        self.live: dict[str, Pod] = {}
        #: Task -> the number of its pods that have ended for good, and that have succeeded.
        self.finished: Counter[str] = Counter()
        self.succeeded: Counter[str] = Counter()
        #: The pods that have failed for good, by uid.
        self.failed: dict[str, Pod] = {}
        #: Ordinal -> the number of its pods on nodes or ended for good.
        self._taken: dict[int, int] = {}
        #: Task -> an ordinal before which none is open in `_admission`.
        self._open_from: dict[str, int] = {}
        self._admission = 0
        self._is_unsorted = False

    def exchange(self, uid: str, old: Pod | None, new: Pod | None) -> None:
        """Follow a pod that was added (no `old`), replaced, or removed (no `new`)."""
        if old is not None:
            self._count(uid, old, -1)
            if new is None or new.status.admission != self._admission:
                ordinal, task = self._ordinal(old), old.spec.task
                if ordinal < self._open_from.get(task, 0):
                    self._open_from[task] = ordinal
        if new is not None and self._count(uid, new, 1):
            self._is_unsorted = self._is_unsorted or uid not in self.live
            self.live[uid] = new
        elif old is not None:
            self.live.pop(uid, None)

    def _count(self, uid: str, pod: Pod, sign: int) -> bool:
        """Add a pod to the sums or remove it; return whether it is live."""
        task, phase = pod.spec.task, pod.status.phase
        ended = has_ended(pod, self._retry_limit)
        if ended:
            self.finished[task] += sign
            if phase == PodPhase.SUCCEEDED:
                self.succeeded[task] += sign
            elif sign > 0:
                self.failed[uid] = pod
            else:
                del self.failed[uid]
        if ended or phase in ON_NODE:
            ordinal = self._ordinal(pod)
            left = self._taken.get(ordinal, 0) + sign
            if left:
                self._taken[ordinal] = left
            else:
                del self._taken[ordinal]
        return not ended

    def _ordinal(self, pod: Pod) -> int:
        return self._first_ordinals.get(pod.spec.task, 0) + pod.spec.index

    def sort(self) -> None:
        """Put the live pods into the order of their uids, in which a store lists them."""
        if self._is_unsorted:
            self.live, self._is_unsorted = dict(sorted(self.live.items())), False

    def open_ordinals(
        self, shape: TaskShape, admission: int, prefix: str, uids: Container[str]
    ) -> Iterator[int]:
        """Yield the ordinals of a task whose pods may be created in an admission.

        These have no pod of this admission (its uid would be `prefix` and the ordinal), no pod that
        has ended for good, and no former pod that has not ended yet, because no pod may run twice
        at once.
        """
        if admission != self._admission:
            self._admission = admission
            self._open_from.clear()
        task, ordinals = shape.task.name, shape.ordinals
        first = max(ordinals.start, self._open_from.get(task, 0))
        is_first = True
        for ordinal in range(first, ordinals.stop):
            if ordinal in self._taken or f"{prefix}{ordinal}" in uids:
                continue
            if is_first:
                # The caller may create pods before it goes on.
                self._open_from[task], is_first = ordinal, False
            yield ordinal
        if is_first:
            self._open_from[task] = ordinals.stop
