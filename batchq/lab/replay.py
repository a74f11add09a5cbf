"""Replay a real log on the live stack: each job becomes a group of one pod that sleeps.

Submission times and durations are divided by the speed. `replay_comparison.py` compares the order
of starts with a simulation of the same log.

The run is one thread with one loop: it submits what is due, reads the groups' phases, and sleeps
until the next of both. The groups are in a namespace of their own; namespace, queue and nodes are
removed at the end.

Every pod appends a line to one file when it starts and when it ends; lines this short are appended
atomically, so their order in the file is the order of events. The file is independent of batchq, so
it can prove that each job ran exactly once.

The report is in seconds of the log: measured times, multiplied by the speed. Waits are from the
creation of the group to the start of its pod, by the server's clock. They include the daemon's
latency, which is multiplied too: 50 ms at speed 2000 are 100 seconds of the log. For the slowdown
and the utilisation, a job's run time is the log's.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median

from msgspec import Struct

from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase
from batchq.api.notation import SECOND
from batchq.api.objects import (
    Metadata,
    Node,
    Pod,
    PodGroup,
    PodGroupSpec,
    PodTemplate,
    Queue,
    QueueSpec,
    Strategy,
    Task,
    Toleration,
    key_of,
)
from batchq.api.transaction import count_of
from batchq.client import Client
from batchq.daemon.detached import Record, refuse_dead, temporary_agents
from batchq.errors import Conflict, NotFound, WaitTimedOut
from batchq.lab.schedule import bounded_slowdown, nearest_rank
from batchq.lab.traces import Trace, TraceJob
from batchq.paths import Home

#: The pod's command, after `sh -c`: $0 is the journal, $1 the job's number, $2 seconds to sleep.
SCRIPT = 'echo "start $1 $$" >> "$0" && sleep "$2" && echo "end $1 $$" >> "$0"'


class JournalLine(Struct, frozen=True):
    """One line of the journal. `word` is start or end; `pid` is the pod's process."""

    word: str
    job: int
    pid: int


def command(journal: Path, job: int, sleep_s: float) -> tuple[str, ...]:
    """Return the command of a job's pod."""
    return ("sh", "-c", SCRIPT, str(journal), str(job), f"{sleep_s:.6f}")


def read_journal(path: Path) -> list[JournalLine]:
    """Return every valid line, in order; none if the file does not exist yet."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    lines = []
    for row in text.splitlines():
        parts = row.split()
        if len(parts) == 3 and parts[0] in ("start", "end") and (parts[1] + parts[2]).isdigit():
            lines.append(JournalLine(parts[0], int(parts[1]), int(parts[2])))
    return lines


def not_exactly_once(lines: Sequence[JournalLine], jobs: Iterable[int]) -> Mapping[int, str]:
    """Return the jobs that did not start once and end once, with what happened instead."""
    counts = Counter((line.word, line.job) for line in lines)
    found = {}
    for job in jobs:
        starts, ends = counts["start", job], counts["end", job]
        if (starts, ends) != (1, 1):
            found[job] = f"started {times(starts)}, ended {times(ends)}"
    return found


def times(count: int) -> str:
    """Return `never`, `once`, or `3 times`."""
    return {0: "never", 1: "once"}.get(count, f"{count} times")


LABEL = "batchq/replay"
_CPU_MILLI = 1000
#: Added to every walltime. No speed divides the time to start a process and report its end, and
#: many jobs of a log run exactly as long as requested. It is the same for all jobs, so comparisons
#: of their ends are unaffected.
ALLOWANCE_MS = 3 * SECOND


class ReplayPlan(Struct, frozen=True, kw_only=True):
    """A replay. `name` names its namespace, label and nodes; `queue` may be the user's own.

    `speed` is how many seconds of the log pass in one; `strategy` is that of the replay's own
    queue.
    """

    name: str
    trace: Trace
    speed: float
    nodes: int
    queue: str
    journal: Path
    strategy: Strategy = Strategy()

    @property
    def processors(self) -> int:
        """The processors of all nodes together."""
        return self.nodes * self.trace.processors

    @property
    def first_submit_s(self) -> int:
        """The submit time of the log's first job, at which the replay starts."""
        return min(job.submit_s for job in self.trace.jobs)

    def node_names(self) -> tuple[str, ...]:
        """Return the names of the replay's own nodes."""
        return tuple(f"{self.name}-{number}" for number in range(1, self.nodes + 1))

    def due_s(self, job: TraceJob) -> float:
        """Return how many real seconds after the replay's start a job is submitted."""
        return (job.submit_s - self.first_submit_s) / self.speed


def queue_of(plan: ReplayPlan) -> Queue:
    """Return a queue whose capability is what the replay's nodes have, and no more."""
    capability = {"cpu": plan.processors * _CPU_MILLI}
    spec = QueueSpec(capability=capability, strategy=plan.strategy)
    return Queue(metadata=Metadata(name=plan.queue), spec=spec)


def walltime_ms(plan: ReplayPlan, job: TraceJob) -> int:
    """Return the group's walltime in ms: the scaled request plus the allowance."""
    return ALLOWANCE_MS + round(SECOND * job.request_s / plan.speed)


def group_name(job: TraceJob) -> str:
    """Return the name of a job's group."""
    return f"job-{job.number}"


def group_of(plan: ReplayPlan, job: TraceJob) -> PodGroup:
    """Return a group of one pod with the job's cpus, which sleeps the scaled run time."""
    template = PodTemplate(
        command=command(plan.journal, job.number, job.run_s / plan.speed),
        requests={"cpu": job.processors * _CPU_MILLI},
        node_selector={LABEL: plan.name},
        tolerations=(Toleration(key=LABEL, operator="Equal", value=plan.name),),
        termination_grace=1 * SECOND,
    )
    return PodGroup(
        metadata=Metadata(name=group_name(job), namespace=plan.name, labels={LABEL: plan.name}),
        spec=PodGroupSpec(
            queue=plan.queue,
            walltime=walltime_ms(plan, job),
            tasks=(Task(name="job", template=template),),
        ),
    )


class Replayed(Struct, frozen=True, kw_only=True):
    """The outcome of one job; instants in the server's milliseconds, None for what did not happen.

    `bound_at`, `running_at` and `ended_at` are the `now` of the sessions that bound its pod, saw it
    run and saw its end; decisions of one session share one instant. `started_at` and `finished_at`
    are the process's, on `node`. `admissions` and `attempts` count the group's admissions and its
    pod's binds.
    """

    job: TraceJob
    phase: str
    submitted_at: int
    bound_at: int | None = None
    running_at: int | None = None
    ended_at: int | None = None
    started_at: int | None = None
    finished_at: int | None = None
    node: str = ""
    admissions: int = 0
    attempts: int = 0


class ReplayReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """The figures; times in seconds of the log, except where the name says otherwise.

    `problems` has a text for each job that did not finish exactly once. The figures are over the
    finished jobs, and None without any.
    """

    jobs: int
    finished_exactly_once: int
    problems: tuple[str, ...]
    processors: int
    nodes: int
    speed: float
    mean_wait_s: float | None
    median_wait_s: float | None
    p95_wait_s: float | None
    mean_bounded_slowdown: float | None
    utilisation: float | None
    makespan_s: float | None
    #: How much longer than planned the pods ran on average: the cost of starting a process.
    mean_overhead_real_ms: float | None
    #: The real duration of the replay.
    real_s: float


class ReplayEnding(Struct, frozen=True, kw_only=True):
    """A completed replay: its figures, and each job in the order of submission.

    `began_at`: when it started to play, by the server's clock.
    """

    report: ReplayReport
    outcomes: tuple[Replayed, ...]
    began_at: int


def starts_csv(plan: ReplayPlan, ending: ReplayEnding) -> str:
    """Return `job,submit,start` in the log's numbers and seconds, in the order of submission.

    The submit is the log's, the start is measured (to the millisecond, which is several seconds of
    the log); empty for a job that never started.
    """
    lines = ["job,submit,start"]
    for one in ending.outcomes:
        start = log_second(plan, ending, one.started_at)
        shown = "" if start is None else f"{start:.3f}"
        lines.append(f"{one.job.number},{one.job.submit_s},{shown}")
    return "\n".join([*lines, ""])


def log_second(plan: ReplayPlan, ending: ReplayEnding, at: int | None) -> float | None:
    """Convert an instant of the server's clock to seconds of the log."""
    if at is None:
        return None
    return plan.first_submit_s + (at - ending.began_at) * plan.speed / 1000


def report_of(
    plan: ReplayPlan, outcomes: Sequence[Replayed], judged: Mapping[int, str], *, real_s: float
) -> ReplayReport:
    """Return the report. `judged` has the jobs that, by the journal, did not run exactly once."""
    problems = [text for one in outcomes if (text := _problem(one, judged))]
    done = [one for one in outcomes if one.started_at is not None and one.finished_at is not None]
    waits = [_wait_s(one, plan.speed) for one in done]
    makespan = _makespan_s(done, plan.speed)
    work = sum(one.job.processors * one.job.run_s for one in done)
    return ReplayReport(
        jobs=len(outcomes),
        finished_exactly_once=len(outcomes) - len(problems),
        problems=tuple(problems),
        processors=plan.processors,
        nodes=plan.nodes,
        speed=plan.speed,
        mean_wait_s=fmean(waits) if waits else None,
        median_wait_s=median(waits) if waits else None,
        p95_wait_s=nearest_rank(waits, 95) if waits else None,
        mean_bounded_slowdown=fmean(
            bounded_slowdown(wait, one.job.run_s) for wait, one in zip(waits, done, strict=True)
        )
        if done
        else None,
        utilisation=work / (plan.processors * makespan) if makespan else None,
        makespan_s=makespan,
        mean_overhead_real_ms=fmean(_overhead_ms(one, plan.speed) for one in done)
        if done
        else None,
        real_s=real_s,
    )


def _problem(one: Replayed, judged: Mapping[int, str]) -> str:
    """Return why a job did not finish exactly once; empty if it did."""
    found = []
    if one.phase != "Completed":
        found.append(f"its group is {one.phase}")
    if one.admissions != 1:
        found.append(f"admitted {times(one.admissions)}")
    if one.attempts != 1:
        found.append(f"bound {times(one.attempts)}")
    if one.job.number in judged:
        found.append(judged[one.job.number])
    return f"job {one.job.number}: {', '.join(found)}" if found else ""


def _wait_s(one: Replayed, speed: float) -> float:
    assert one.started_at is not None
    return max(0, one.started_at - one.submitted_at) * speed / 1000


def _overhead_ms(one: Replayed, speed: float) -> float:
    assert one.started_at is not None
    assert one.finished_at is not None
    return one.finished_at - one.started_at - 1000 * one.job.run_s / speed


def _makespan_s(done: Sequence[Replayed], speed: float) -> float | None:
    if not done:
        return None
    last = max(one.finished_at or 0 for one in done)
    return (last - min(one.submitted_at for one in done)) * speed / 1000


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
