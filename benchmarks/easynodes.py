"""EASY on 100 nodes, with gangs of 1 to 64 whole nodes, jobs that share a node, and walltimes that
hold. Does the head of the queue ever start later than its reserved start, and what does it cost to
reserve capacity on nodes instead of a sum over all nodes?

The jobs come from a log of Lublin's model (256 processors), or of any other in the Standard
Workload Format: a job of four processors or more takes whole nodes of four cpus, a smaller job
takes as many cpus of one node. Walltimes are one to three times the run times. Arrival times are
scaled until the jobs request `LOAD` of the machine's capacity.

The daemon's sessions play the load in virtual time. The references are a plain simulator
(`tests/traces/easynodes.py`) that reserves capacity on nodes, and one that reserves only a sum.

BATCHQ_BENCH_JOBS=300 limits the number of jobs; BATCHQ_TRACES names the folder of the logs.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from batchq.api.notation import SECOND
from batchq.api.objects import (
    Metadata,
    Node,
    NodeSpec,
    PodGroup,
    PodGroupSpec,
    PodTemplate,
    Queue,
    QueueSpec,
    Strategy,
    Task,
)
from batchq.assembly import assemble
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Snapshot
from batchq.daemon import app
from batchq.lab.load_run import LoadRun
from batchq.lab.traces import POLICY_CONFIG, Arrival, Load
from batchq.scheduler.cycle import Scheduler
from batchq_actions.backfill import reservations_of
from benchmarks.table import report
from tests.harness.traces import trace_folder
from tests.traces.easynodes import NodeJob, NodeMachine
from tests.traces.oracle import Job, read_log

LOG = "lublin_256"
NODES, CPUS = 100, 4
LOAD = 0.85
_MOST_JOBS = 2_000
_EXACT, _LOOSE = "exact", "1 to 3 times"
TITLES = [
    *("walltimes", "jobs", "who", "mean wait s", "to ledger-only"),
    *("heads", "promises missed", "latest s", "real s"),
]


def main() -> None:
    most = int(os.environ.get("BATCHQ_BENCH_JOBS", _MOST_JOBS))
    path = trace_folder() / f"{LOG}.swf.gz"
    if not path.is_file():
        print(f"\neasynodes: {path} does not exist; BATCHQ_TRACES names the folder of the logs")
        return
    rows: list[list[object]] = []
    for walltimes in (_EXACT, _LOOSE):
        rows += compare(jobs_of(read_log(path, most)[1], loose=walltimes == _LOOSE), walltimes)
    report("easynodes", TITLES, rows, notes=[__doc__.split("\n\n")[0].replace("\n", " ")])


def jobs_of(log: Sequence[Job], *, loose: bool) -> list[NodeJob]:
    """Return the log's jobs, each converted to whole nodes or to a part of one node."""
    dice = random.Random("easynodes")
    found = []
    for job in log:
        whole = job.procs >= CPUS
        pods, cpu = (job.procs // CPUS, CPUS) if whole else (1, job.procs)
        estimate = int(job.run * dice.choice((1, 1.5, 2, 3))) if loose else job.run
        found.append(NodeJob(job.number, job.submit, job.run, estimate, pods, cpu))
    first = found[0].submit
    spread = max(1, found[-1].submit - first)
    work = sum(job.pods * job.cpu * job.run for job in found)
    factor = work / (LOAD * NODES * CPUS * spread)
    return [job._replace(submit=int((job.submit - first) * factor)) for job in found]


def compare(jobs: Sequence[NodeJob], walltimes: str) -> list[list[object]]:
    """Return a row for batchq and for each of the two plain simulators."""
    began = time.perf_counter()
    app.freeze_gc()
    starts, promised = play(jobs)
    app.restore_gc()
    runs = [("batchq", starts, promised, time.perf_counter() - began)]
    for title, ledger_only in (("plain, on nodes", False), ("plain, ledger-only", True)):
        began = time.perf_counter()
        machine = NodeMachine(NODES, CPUS, ledger_only=ledger_only)
        found = machine.play(jobs)
        runs.append((title, found, machine.promised, time.perf_counter() - began))
    beside = mean_wait_s(jobs, runs[-1][1])
    rows: list[list[object]] = []
    for title, found, heads, took_s in runs:
        late = missed(found, heads)
        wait_s = mean_wait_s(jobs, found)
        rows.append(
            [
                *(walltimes, len(jobs), title, wait_s, wait_s / max(1.0, beside)),
                *(len(heads), len(late), max(late, default=0), took_s),
            ]
        )
    return rows


def mean_wait_s(jobs: Sequence[NodeJob], starts: Mapping[int, int]) -> float:
    """Return the mean time from submission to start, in seconds."""
    return sum(starts[job.number] - job.submit for job in jobs) / max(1, len(jobs))


def missed(starts: Mapping[int, int], promised: Mapping[int, int]) -> list[int]:
    """Return the delays, in seconds, of the heads that started after their first reserved start."""
    return [starts[number] - at for number, at in promised.items() if starts[number] > at]


def play(jobs: Sequence[NodeJob]) -> tuple[dict[int, int], dict[int, int]]:
    """Play the jobs with the daemon's sessions.

    Return job -> its start, and job -> its first reserved start as the head of the queue.
    """
    load = _load(jobs)
    stage = _Stage(load)
    stage.run(per_event=False, tell=None)
    starts = {
        job.number: job.start_s for job in stage.schedule("", 0.0).jobs if job.start_s is not None
    }
    numbers = {str(place): one.number for place, one in enumerate(load.arrivals)}
    return starts, {numbers[uid]: at for uid, at in stage.promises.first_s.items()}


@dataclass
class Promises:
    """The first reserved start of each group that was the head of its queue."""

    first_s: dict[str, int] = field(default_factory=dict)

    def note(self, session: Session) -> None:
        """Record the reserved starts of the heads of the queues in a finished session."""
        for head in session.heads.strict.values():
            if head.uid not in self.first_s and head.status.phase == "Pending":
                at = reservations_of(session).get(head.uid)
                if at is not None:
                    self.first_s[head.uid] = at // SECOND


@dataclass(frozen=True)
class _Noted(Scheduler):
    """A scheduler whose reserved starts are recorded."""

    promises: Promises = field(default_factory=Promises)

    def decide(self, snapshot: Snapshot, now_ms: int, *, writes_status: bool = True) -> Session:
        session = super().decide(snapshot, now_ms, writes_status=writes_status)
        self.promises.note(session)
        return session


class _Stage(LoadRun):
    """A run of a load that records the reserved starts of heads."""

    def __init__(self, load: Load) -> None:
        super().__init__(load, POLICY_CONFIG, watch=False)
        scheduler = assemble(POLICY_CONFIG)
        noted = _Noted(scheduler.actions, scheduler.plugins, scheduler.settings)
        self.promises = noted.promises
        self._cycle.go_by(noted)


def _load(jobs: Sequence[NodeJob]) -> Load:
    strategy = Strategy(type="Backfill", order="fcfs", reservations="1")
    ordered = sorted(jobs, key=lambda job: (job.submit, job.number))
    return Load(
        title=f"{LOG} on {NODES} nodes",
        capacity=NODES * CPUS,
        nodes=tuple(
            Node(metadata=Metadata(name=f"n{k:03}"), spec=NodeSpec(resources={"cpu": CPUS * 1000}))
            for k in range(NODES)
        ),
        queues=(Queue(metadata=Metadata(name="default"), spec=QueueSpec(strategy=strategy)),),
        arrivals=tuple(_arrival(job) for job in ordered),
    )


def _arrival(job: NodeJob) -> Arrival:
    template = PodTemplate(requests={"cpu": job.cpu * 1000})
    spec = PodGroupSpec(
        walltime=job.estimate * SECOND,
        tasks=(Task(name="job", replicas=job.pods, template=template),),
    )
    metadata = Metadata(name=f"job-{job.number}", namespace="default")
    return Arrival(
        at_s=job.submit,
        group=PodGroup(metadata=metadata, spec=spec),
        run_s=job.run,
        number=job.number,
        tenant="default",
        size=job.pods * job.cpu,
    )


if __name__ == "__main__":
    main()
