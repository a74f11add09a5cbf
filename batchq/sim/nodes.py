"""An agent as a small state machine, which follows the real one step by step.

It beats, takes attempts off its queue, and tells the ends that nobody else told. Agents and
work-horses die; the machine's disk, and so its run files, stay.
"""

from __future__ import annotations

from collections.abc import Callable

from batchq.api.facts import AGENT_ANNOTATION, Ended, Outcome, Serves, subject_of_pod
from batchq.api.lifecycle import ON_NODE, PodPhase
from batchq.api.objects import Node, Pod
from batchq.api.reasons import Leaving
from batchq.errors import StoreUnavailable
from batchq.ports import Clock
from batchq.sim.horse import Horse, Paces, pod_of
from batchq.sim.machines import Attempt, Machine
from batchq.sim.server import FaultyStore

#: What the agent says of a pod whose work-horse died.
LOST = Outcome(stopped=Leaving.NODE_LOST, message="its work-horse died")


class Agent:
    """One node's agent: beats, takes attempts on, and reports what died without a word."""

    def __init__(
        self,
        store: FaultyStore,
        machine: Machine,
        clock: Clock,
        *,
        identity: str,
        paces: Paces,
        hire: Callable[[Agent, Attempt], Horse],
        say: Callable[[str], None],
    ) -> None:
        self.identity = identity
        self.machine = machine
        self.alive = True
        self.due_at = clock.now_ms()
        self._store = store
        self._clock = clock
        self._paces = paces
        self._hire = hire
        self._say = say
        self._run = 0
        #: When the server was last told of each attempt that it does not know.
        self._told_at: dict[str, int] = {}
        self._beat_at = self._reconcile_at = clock.now_ms()
        self._patience_ms = 0
        self._serves_seen = False
        self._say_at: dict[Attempt, int] = {}

    def step(self) -> None:
        """Do what is due now."""
        now_ms = self._clock.now_ms()
        self.due_at = now_ms + self._paces.look_ms
        try:
            self._settle(now_ms)
            if now_ms >= self._reconcile_at:
                self._reconcile(now_ms)
                self._reconcile_at = now_ms + self._paces.reconcile_ms
                self._patience_ms = self._paces.patience_ms
            if now_ms >= self._beat_at:
                self._beat(now_ms)
                is_settled = self._serves_seen and not self._told_at
                self._beat_at = now_ms + (
                    self._paces.beat_ms if is_settled else self._paces.look_ms
                )
            self._take_on()
        except StoreUnavailable:
            return
        if not self._has_unsettled():
            # Deliveries ring: nothing is missed by looking less often.
            self.due_at = min(self._beat_at, self._reconcile_at)

    def _has_unsettled(self) -> bool:
        return any(not horse.alive for horse in self.machine.horses.values())

    # --- the node -----------------------------------------------------------------------------

    def _beat(self, now_ms: int) -> None:
        run = self._store.beat(self.machine.name, now_ms)
        if run != self._run:
            self._answer_roll_call(run, now_ms)
        self._store.keep_leases(self.machine.name, set(self.machine.horses))
        node = self._store.get("Node", self.machine.name)
        self._serves_seen = (
            isinstance(node, Node)
            and node.status.ready
            and node.metadata.annotations.get(AGENT_ANNOTATION) == self.identity
        )
        if not self._serves_seen:
            fact = Serves(agent=self.identity, resources=dict(self.machine.resources))
            self._store.post(self.machine.name, fact)

    def _answer_roll_call(self, run: int, now_ms: int) -> None:
        """Tell a server that was started anew what runs here, until it knows all of it."""
        unknown = [
            runs
            for attempt in sorted(self.machine.horses)
            if (runs := self.machine.horses[attempt].runs()) is not None
            and not self._is_known(attempt)
        ]
        for runs in unknown:
            if now_ms >= self._told_at.get(runs.subject, 0) + self._paces.say_again_ms:
                self._store.post(self.machine.name, runs)
                self._told_at[runs.subject] = now_ms
        if not unknown:
            self._store.report_run(self.machine.name, run)
            self._run = run
            self._told_at.clear()

    def _is_known(self, attempt: Attempt) -> bool:
        pod = pod_of(self._store, attempt)
        is_here = pod is not None and pod.status.node == self.machine.name
        return is_here and pod is not None and pod.status.phase == PodPhase.RUNNING

    # --- pods -----------------------------------------------------------------------------------

    def _take_on(self) -> None:
        while (attempt := self._store.dequeue(self.machine.name)) is not None:
            if attempt in self.machine.horses:
                continue
            self.machine.horses[attempt] = self._hire(self, attempt)

    def _settle(self, now_ms: int) -> None:
        """Tell ends until they are seen; Bound pods may start anew."""
        for attempt in sorted(self.machine.horses):
            horse = self.machine.horses[attempt]
            if horse.alive:
                continue
            pod = pod_of(self._store, attempt)
            if pod is None or is_over(pod, self.machine.name):
                self._store.end_lease(self.machine.name, *attempt)
                self._forget(attempt)
            elif now_ms < self._say_at.get(attempt, 0):
                continue
            elif horse.outcome is None and self._may_start_anew(pod, attempt):
                self._forget(attempt)
            else:
                terminates = pod.status.phase == PodPhase.BOUND and pod.status.terminating
                lost = Outcome(stopped=pod.status.reason) if terminates else LOST
                self._end(attempt, horse.outcome or lost)
                self._say_at[attempt] = now_ms + self._paces.say_again_ms

    def _forget(self, attempt: Attempt) -> None:
        del self.machine.horses[attempt]
        self._say_at.pop(attempt, None)

    def _may_start_anew(self, pod: Pod, attempt: Attempt) -> bool:
        """A Bound pod may, unless a claim of it is left that would yet be folded."""
        if pod.status.phase != PodPhase.BOUND or pod.status.terminating:
            return False
        return subject_of_pod(*attempt) not in self._store.pending(self.machine.name)

    def _reconcile(self, now_ms: int) -> None:
        """Compare what the store says runs or waits here with what does."""
        waiting: list[Attempt] = []
        for pod in self._store.list("Pod"):
            assert isinstance(pod, Pod)
            status = pod.status
            attempt = (pod.metadata.uid, status.attempt)
            if status.node != self.machine.name or status.phase not in ON_NODE:
                continue
            if attempt in self.machine.horses:
                continue
            if status.phase == PodPhase.RUNNING:
                self._end(attempt, LOST)
            elif status.terminating:
                self._end(attempt, Outcome(stopped=status.reason))
            elif now_ms - (status.bound_at or 0) >= self._patience_ms:
                waiting.append(attempt)
        if waiting:
            self._store.enqueue(self.machine.name, waiting)

    def _end(self, attempt: Attempt, outcome: Outcome) -> None:
        uid, number = attempt
        fact = Ended(pod=uid, attempt=number, outcome=outcome, author=self.identity)
        self._store.post(self.machine.name, fact)
        self._store.end_lease(self.machine.name, uid, number)


def is_over(pod: Pod | None, node: str) -> bool:
    """Whether the server knows that an attempt on this node has ended, or is superseded."""
    return pod is None or pod.status.phase not in ON_NODE or pod.status.node != node
