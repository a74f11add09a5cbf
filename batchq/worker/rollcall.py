"""The roll-call: a server that was started anew hears from every node what runs on it.

It may have forgotten the last seconds, or have been restored from an older file. An attempt that it
does not know of is told, and the leader's clerk either takes it in or lets it be fenced; its
work-horse ends its pod then. Only when everything that still runs here is known, the node counts as
having reported, and pods are bound again (`batchq/framework/contact.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from batchq.api.facts import Runs
from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Object, Pod
from batchq.store.redis import RedisStore
from batchq.worker.claims import SAY_AGAIN_MS
from batchq.worker.desk import Desk
from batchq.worker.entry import author_of
from batchq.worker.messenger import monotonic_ms
from batchq.worker.nodequeue import PodAttempt
from batchq.worker.runfile import RunFiles


class RollCall:
    """One node's answers; owned by the agent's loop. Asking the server raises StoreUnavailable."""

    def __init__(self, store: RedisStore, node: str, files: RunFiles, *, agent: str) -> None:
        self._store = store
        self._node = node
        self._desk = Desk(store, node)
        self._files = files
        self._agent = agent
        #: The run of the server that knows of everything that runs here.
        self.told_to = ""
        #: When each attempt was last told. Its work-horse waits until what was told is folded.
        self._said_at: dict[PodAttempt, int] = {}

    def answer(self, run: str, horses: Sequence[tuple[PodAttempt, int]]) -> bool:
        """Whether the server with this run id knows of all that runs; what it does not is told.

        `horses`: each attempt that runs here, and the pid of its work-horse.
        """
        if run != self.told_to:
            unknown = self._unknown(horses)
            now_ms = monotonic_ms()
            for attempt, horse in unknown:
                if now_ms >= self._said_at.get(attempt, -SAY_AGAIN_MS) + SAY_AGAIN_MS:
                    self._said_at[attempt] = now_ms
                    self._tell(attempt, horse)
            if not unknown:
                self.told_to = run
                self._said_at.clear()
        return run == self.told_to

    def _unknown(self, horses: Sequence[tuple[PodAttempt, int]]) -> list[tuple[PodAttempt, int]]:
        if not horses:
            return []
        found = self._store.get_many("Pod", [attempt.pod for attempt, _ in horses])
        return [
            (attempt, horse)
            for attempt, horse in horses
            if self._has_started(attempt) and not self._knows(found.get(attempt.pod), attempt)
        ]

    def _has_started(self, attempt: PodAttempt) -> bool:
        """One that is still claimed starts nothing that the server does not know of."""
        run = self._files.read(attempt.pod, attempt.attempt)
        return run is not None and run.group != 0 and run.outcome is None

    def _knows(self, pod: Object | None, attempt: PodAttempt) -> bool:
        if not isinstance(pod, Pod):
            return False
        status = pod.status
        is_ours = status.node == self._node and status.attempt == attempt.attempt
        return is_ours and status.phase == PodPhase.RUNNING

    def _tell(self, attempt: PodAttempt, horse: int) -> None:
        run = self._files.read(attempt.pod, attempt.attempt)
        if run is not None:
            author = author_of(self._agent, horse)
            self._desk.post(
                Runs(
                    pod=attempt.pod,
                    attempt=attempt.attempt,
                    author=author,
                    started_at=run.started_at,
                )
            )
