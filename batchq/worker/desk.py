"""The desk of a node: where its agent and work-horses leave facts, and see what became of them.

They write no object. A claim and an end are facts in the inbox of the node, which the leader folds
(`batchq/scheduler/clerk.py`) within a few milliseconds, or when there is a leader again. A claim is
waited for (`batchq/worker/claims.py`), since nothing may start before the pod is Running and ours;
an end is not, since a posted fact lasts.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from batchq.api.facts import Ended, Fact, Outcome
from batchq.api.objects import Pod
from batchq.store.redis import RedisStore

log = structlog.get_logger(__name__)


class Desk:
    """The desk of one node. Every method raises StoreUnavailable."""

    def __init__(self, store: RedisStore, node: str) -> None:
        self._store = store
        self._node = node

    def post(self, fact: Fact) -> None:
        """Leave a fact in place of the last one on its subject."""
        self._store.inboxes.post(self._node, fact)

    def pending(self) -> Sequence[Fact]:
        """What has been left and is not folded yet."""
        return self._store.inboxes.own(self._node)

    def current(self, uid: str, attempt: int) -> Pod | None:
        """The pod, if this is still its attempt."""
        pod = self._store.get_if_readable("Pod", uid)
        return pod if isinstance(pod, Pod) and pod.status.attempt == attempt else None

    def ended(self, uid: str, attempt: int, outcome: Outcome, *, author: str) -> None:
        """Tell the end of an attempt, of which no process is left. Twice is harmless."""
        self.post(Ended(pod=uid, attempt=attempt, outcome=outcome, author=author))
        self.end_lease(uid, attempt)

    def end_lease(self, uid: str, attempt: int) -> None:
        """Nothing of the attempt runs any more: there is nothing left to wait for."""
        self._store.end_lease(self._node, uid, attempt)
