"""Run a replay: start its nodes, submit every job on time, and remove everything at the end.

One thread, one loop: submit what is due, read the groups' phases, sleep until the next of both. The
groups are in a namespace of their own; namespace, queue and nodes are removed at the end.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import Struct

from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase
from batchq.api.objects import Node, Pod, PodGroup, key_of
from batchq.api.transaction import count_of
from batchq.client import Client
from batchq.daemon.detached import Record, refuse_dead, temporary_agents
from batchq.errors import Conflict, NotFound, WaitTimedOut
from batchq.lab.replay.replay_plan import (
    LABEL,
    Replayed,
    ReplayEnding,
    ReplayPlan,
    group_name,
    group_of,
    not_exactly_once,
    queue_of,
    read_journal,
    report_of,
)
from batchq.lab.workload.swf import TraceJob
from batchq.paths import Home

#: Interval between looks at the groups.
_LOOK_S = 0.5
_NODES_READY_WITHIN_S = 30.0
_POLL_S = 0.05
#: If nothing starts or ends for this long plus the longest job, nothing ever will.
_STUCK_AFTER_S = 120.0
_CANCELLED_WITHIN_S = 10.0
_DELETED_AT_ONCE = 100


class ReplayStanding(Struct, frozen=True, kw_only=True):
    """The progress of a replay, in jobs; `next_in_s` is None after the last submit."""

    jobs: int
    submitted: int
    waiting: int
    running: int
    finished: int
    next_in_s: float | None


Tell = Callable[[ReplayStanding], None]


class LiveReplay:
    """One replay on the stack of `client`; call `run` once, and `clear` always."""

    def __init__(self, client: Client, plan: ReplayPlan, *, own_queue: bool, tell: Tell) -> None:
        self._client = client
        self._plan = plan
        self._own_queue = own_queue
        self._tell = tell
        self._submitted: list[TraceJob] = []
        self._found = 0
        self._cancelled = 0

    @property
    def submitted(self) -> int:
        """How many jobs have been submitted.

        After an interruption between a submit and its answer, the groups that exist count.
        """
        return max(len(self._submitted), self._found)

    @property
    def cancelled(self) -> int:
        """How many groups were cancelled because the replay was interrupted."""
        return self._cancelled

    def run(self, home: Home, url: str) -> ReplayEnding:
        """Play the log to its end; if that fails, cancel the rest.

        Raises BatchqError if an agent dies, WaitTimedOut if nothing progresses any more, and the
        client's errors.
        """
        with temporary_agents(home, url, self._agents()) as agents:
            try:
                self._await_nodes(agents)
                if self._own_queue:
                    self._client.apply([queue_of(self._plan)])
                began_at, started = self._client.now_ms(), time.monotonic()
                self._play(agents, started)
                return self._ending(began_at, time.monotonic() - started)
            except BaseException:  # on Ctrl-C too: pods can be stopped only while the agents run
                self._cancel_rest()
                raise

    def clear(self) -> str:
        """Delete everything that the replay has created; return a sentence on what is left."""
        try:
            self._delete_everything()
        except Conflict as still_held:
            return f"{still_held.message}. What is left is in namespace {self._plan.name}"
        return ""

    # --- before and after -------------------------------------------------------------------

    def _agents(self) -> dict[str, list[str]]:
        size = self._plan.trace.processors
        options = [
            *("--resources", f"cpu={size}", "--slots", str(size), "--drain-timeout", "0s"),
            *("--label", f"{LABEL}={self._plan.name}"),
            *("--taint", f"{LABEL}={self._plan.name}:NoSchedule"),
        ]
        return dict.fromkeys(self._plan.node_names(), options)

    def _await_nodes(self, agents: Sequence[Record]) -> None:
        deadline = time.monotonic() + _NODES_READY_WITHIN_S
        while not all(self._is_ready(name) for name in self._plan.node_names()):
            refuse_dead(agents)
            if time.monotonic() >= deadline:
                raise WaitTimedOut(
                    f"the nodes of {self._plan.name} are not ready after"
                    f" {_NODES_READY_WITHIN_S:.0f} s",
                    hint=f"the logs are {', '.join(agent.log for agent in agents)}",
                )
            time.sleep(_POLL_S)

    def _is_ready(self, name: str) -> bool:
        try:
            node = self._client.get("Node", name)
        except NotFound:
            return False
        return isinstance(node, Node) and node.status.ready

    def _cancel_rest(self) -> None:
        """Cancel what has not ended, and give its processes time to end."""
        groups = self._groups()
        self._found = len(groups)
        for group in groups:
            if group.status.phase not in TERMINAL:
                # The group may have ended meanwhile.
                with suppress(Conflict):
                    self._client.cancel(key_of(group))
                    self._cancelled += 1
        deadline = time.monotonic() + _CANCELLED_WITHIN_S
        while any(pod.status.phase in ON_NODE for pod in self._pods()):
            if time.monotonic() >= deadline:
                return
            time.sleep(_POLL_S)

    def _delete_everything(self) -> None:
        keys = [key_of(group) for group in self._groups()]
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            some = keys[start : start + _DELETED_AT_ONCE]
            self._client.delete_all([("PodGroup", key) for key in some])
        places = [("Node", name) for name in self._plan.node_names()]
        if self._own_queue:
            places.append(("Queue", self._plan.queue))
        for kind, name in places:
            # An interrupted replay may not have created it.
            with suppress(NotFound):
                self._client.delete(kind, name)

    # --- the play ---------------------------------------------------------------------------

    def _play(self, agents: Sequence[Record], started: float) -> None:
        plan = self._plan
        # Jobs of one instant stay in the order of the log, as in the simulator.
        waiting = sorted(plan.trace.jobs, key=lambda job: job.submit_s)
        longest_s = max(job.run_s for job in waiting) / plan.speed
        moved_at, before, look_at = started, Counter[str](), started
        while True:
            now = time.monotonic()
            while waiting and plan.due_s(waiting[0]) <= now - started:
                job = waiting.pop(0)
                self._client.submit(group_of(plan, job))
                self._submitted.append(job)
            if now >= look_at:
                look_at = now + _LOOK_S
                phases = Counter(str(group.status.phase) for group in self._groups())
                if phases != before or waiting:
                    moved_at, before = now, phases
                self._tell(self._standing(phases, waiting, now - started))
                if not waiting and sum(phases[phase] for phase in TERMINAL) == len(self._submitted):
                    return
                refuse_dead(agents)
                if now - moved_at > longest_s + _STUCK_AFTER_S:
                    raise self._stuck(phases)
            due = started + plan.due_s(waiting[0]) if waiting else look_at
            time.sleep(max(0.0, min(due, look_at) - time.monotonic()))

    def _standing(
        self, phases: Counter[str], waiting: Sequence[TraceJob], passed_s: float
    ) -> ReplayStanding:
        finished = sum(phases[phase] for phase in TERMINAL)
        pending = phases[PodGroupPhase.PENDING] + phases[PodGroupPhase.IN_QUEUE]
        return ReplayStanding(
            jobs=len(self._plan.trace.jobs),
            submitted=len(self._submitted),
            waiting=pending,
            running=max(0, len(self._submitted) - pending - finished),
            finished=finished,
            next_in_s=max(0.0, self._plan.due_s(waiting[0]) - passed_s) if waiting else None,
        )

    def _stuck(self, phases: Counter[str]) -> WaitTimedOut:
        shown = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items()))
        return WaitTimedOut(
            f"Nothing has moved for {_STUCK_AFTER_S:.0f} s ({shown})",
            hint=f"`batchq jobs -n {self._plan.name}` says what the groups wait for",
        )

    # --- results ----------------------------------------------------------------------------

    def _ending(self, began_at: int, real_s: float) -> ReplayEnding:
        groups = {group.metadata.name: group for group in self._groups()}
        pods: dict[str, list[Pod]] = {}
        for pod in self._pods():
            pods.setdefault(pod.spec.pod_group, []).append(pod)
        outcomes = []
        for job in self._submitted:
            name = group_name(job)
            outcomes.append(_outcome(job, groups.get(name), pods.get(name, [])))
        numbers = [job.number for job in self._submitted]
        judged = not_exactly_once(read_journal(self._plan.journal), numbers)
        report = report_of(self._plan, outcomes, judged, real_s=real_s)
        return ReplayEnding(report=report, outcomes=tuple(outcomes), began_at=began_at)

    def _groups(self) -> list[PodGroup]:
        found = self._client.list("PodGroup", namespace=self._plan.name)
        return [group for group in found if isinstance(group, PodGroup)]

    def _pods(self) -> list[Pod]:
        found = self._client.list("Pod", namespace=self._plan.name)
        return [pod for pod in found if isinstance(pod, Pod)]


def _outcome(job: TraceJob, group: PodGroup | None, pods: Sequence[Pod]) -> Replayed:
    if group is None:
        return Replayed(job=job, phase="gone", submitted_at=0)
    last = max(pods, key=lambda pod: pod.status.admission, default=None)
    return Replayed(
        job=job,
        phase=str(group.status.phase),
        submitted_at=group.metadata.creation_timestamp or 0,
        bound_at=last.status.bound_at if last else None,
        running_at=group.status.started_at,
        ended_at=group.status.finished_at,
        started_at=last.status.started_at if last else None,
        finished_at=last.status.finished_at if last else None,
        node=last.status.node or last.status.last_node if last else "",
        admissions=group.status.admission,
        attempts=sum(count_of(pod.status.attempt) for pod in pods),
    )
