"""What holds over the sessions of one instant: they end, and undo nothing that they have done."""

from __future__ import annotations

from batchq.api import intents
from batchq.config.model import SchedulerConfig
from batchq.core.session.session import Session
from batchq.lab.simulation.player import MOST_SESSIONS_AT_ONCE
from tests.worlds.rest import claims_that_wait_for_nothing, nothing_waits_that_could_start
from tests.worlds.rules import Broken, evictions


class Instants:
    """Follows the sessions of one world; owns what was decided at the present instant."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._now_ms = -1
        self._decided: list[list[intents.Intent]] = []
        #: (uid, attempt) of the pods that were bound at this instant.
        self._started: set[tuple[str, int]] = set()
        #: Those that the world begins with; it may say that they have started just now.
        self._described: set[tuple[str, int]] | None = None

    def follow(self, after: Session) -> None:
        """Look at one more session. Raises Broken."""
        if after.now_ms != self._now_ms:
            self._now_ms = after.now_ms
            self._decided.clear()
            self._started.clear()
        self._nothing_is_evicted_where_it_has_just_started(after)
        self._decided.append(list(after.intents))
        if not after.intents:
            self._nothing_waits_for_nothing(after)
        elif len(self._decided) >= MOST_SESSIONS_AT_ONCE and all(self._decided):
            last = [str(one) for one in self._decided[-2:]]
            raise Broken(
                f"{len(self._decided)} sessions at one instant all decide something, the last two"
                f" {last[0][:600]} and {last[1][:600]}"
            )

    def _nothing_is_evicted_where_it_has_just_started(self, after: Session) -> None:
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

    def _nothing_waits_for_nothing(self, after: Session) -> None:
        wrong = [
            *nothing_waits_that_could_start(after.snapshot, after.now_ms, self._config),
            *claims_that_wait_for_nothing(after.snapshot, after.now_ms),
        ]
        if wrong:
            raise Broken(f"at {after.now_ms // 1000} s, {wrong[0]}")
