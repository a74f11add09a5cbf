"""Rules about the sessions of one instant: they end, and undo none of their decisions."""

from __future__ import annotations

from batchq.api import intents
from batchq.config import SchedulerConfig
from batchq.core.session.session import Session
from batchq.lab.simulation import MOST_SESSIONS_AT_ONCE
from tests.worlds.rest import no_group_waits_that_could_start, preemptors_that_wait_for_nothing
from tests.worlds.rules import Broken, evictions


class Instants:
    """Follows the sessions of one world; owns the decisions of the present instant."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._now_ms = -1
        self._decided: list[list[intents.Intent]] = []
        #: (uid, attempt) of the pods that were bound at this instant.
        self._started: set[tuple[str, int]] = set()
        #: Pods that the world begins with; it may describe them as just started.
        self._described: set[tuple[str, int]] | None = None

    def follow(self, after: Session) -> None:
        """Check one more session. Raises Broken."""
        if after.now_ms != self._now_ms:
            self._now_ms = after.now_ms
            self._decided.clear()
            self._started.clear()
        self._no_pod_is_evicted_at_its_start(after)
        self._decided.append(list(after.intents))
        if not after.intents:
            self._no_group_waits_for_nothing(after)
        elif len(self._decided) >= MOST_SESSIONS_AT_ONCE and all(self._decided):
            last = [str(one) for one in self._decided[-2:]]
            raise Broken(
                f"{len(self._decided)} sessions at one instant all decide something, the last two"
                f" {last[0][:600]} and {last[1][:600]}"
            )

    def _no_pod_is_evicted_at_its_start(self, after: Session) -> None:
        for intent in evictions(after):
            pod = after.by_key[intent.group].pods.get(intent.uid)
            if pod is not None and (intent.uid, pod.status.attempt) in self._started:
                raise Broken(
                    f"{intent.pod} is evicted for {intent.by} at the instant at which it started"
                )
        bound = {
            (pod.metadata.uid, pod.status.attempt)
            for pods in after.snapshot.pods.values()
            for pod in pods
            if pod.status.bound_at == after.now_ms
        }
        if self._described is None:
            self._described = bound
        self._started |= bound - self._described

    def _no_group_waits_for_nothing(self, after: Session) -> None:
        wrong = [
            *no_group_waits_that_could_start(after.snapshot, after.now_ms, self._config),
            *preemptors_that_wait_for_nothing(after.snapshot, after.now_ms),
        ]
        if wrong:
            raise Broken(f"at {after.now_ms // 1000} s, {wrong[0]}")
