"""The service that applies node reports: a thread that works while this process leads.

It waits on the wake-up channel. Every second it also reads all report queues, because a
notification may have been sent while no scheduler led, or lost with a server. It applies reports
with the leader's epoch, so a former leader applies nothing. Reports that have been superseded are
logged, counted and removed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from batchq.api.lifecycle import PodPhase
from batchq.api.node_report import SPOILED, Ended, Leaves, NodeReport, Runs, Serves, StartClaim
from batchq.api.objects import Node, Pod, PodGroup, group_key_of
from batchq.api.transaction import Commit, Event, Transaction, count_of
from batchq.daemon import ThreadService
from batchq.errors import StoreUnavailable
from batchq.ports import IdSource
from batchq.scheduler.node_reports import (
    NodeReportProcessor,
    PostedReport,
    ReportPlan,
    ReportResult,
    out_of_service,
)
from batchq.store.node_channels import (
    SUPERSEDED,
    AcknowledgedReport,
    QueuedReport,
    WakeReason,
    notify,
)
from batchq.store.outage import Backoff
from batchq.store.redis import RedisStore
from batchq.system import structlog
from batchq.worker.rendezvous import is_mpi, uids_of_gang

_log = structlog.get_logger()

#: The longest single wait for a notification, and so the longest delay of a stop.
WAIT_MS = 200
SWEEP_MS = 1_000
#: Interval between looks whether this process leads.
_ELECTED_WITHIN_S = 0.05
#: The most reports in one commit; their objects are in memory meanwhile.
_REPORTS_A_COMMIT = 10_000
#: After this many conflicts, a report whose object is written all the time waits for the next turn.
_MOST_TRIES = 5
#: For this long after a restart of the server, nodes may report runs that it has forgotten.
_UNKNOWN_WITHIN_MS = 60_000
#: For how long a node takes no pods after an unreadable record under its own keys.
KEPT_OUT_S = 10.0
#: The most superseded reports of one turn that become events; a flood must not evict other events.
_MOST_SUPERSEDED_EVENTS = 20


def node_report_service(
    store: RedisStore,
    *,
    epoch: Callable[[], int | None],
    ids: IdSource,
) -> ThreadService:
    """Return a service that applies node reports while `epoch` returns one."""
    reader = NodeReportReader(store, ids)

    def work(stopping: threading.Event) -> None:
        backoff = Backoff()
        while not stopping.is_set():
            current = epoch()
            if current is None:
                stopping.wait(_ELECTED_WITHIN_S)
                continue
            try:
                reader.turn(current)
            except StoreUnavailable:
                # The session thread meets the same outage and reports it.
                stopping.wait(backoff.next_ms() / 1000)
            else:
                backoff.reset()

    return ThreadService("node-reports", work)


class NodeReportReader:
    """The reader of all report queues; owned by one thread.

    Every method raises StoreUnavailable; reports that were already applied then change nothing the
    next time.
    """

    def __init__(self, store: RedisStore, ids: IdSource) -> None:
        self._store = store
        self._inboxes = store.report_queues
        self._ids = ids
        self._processor = NodeReportProcessor(store, ids)
        self._epoch: int | None = None
        #: When the server's current run got its first leader, in ms of the server's clock.
        self._led_since = 0
        self._sweep_at = 0.0
        #: Nodes out of service, and until when (monotonic clock).
        self._kept_out: dict[str, float] = {}
        #: Nodes with reports left to read, or whose Node object does not exist yet.
        self._left: list[str] = []

    def turn(self, epoch: int | None) -> None:
        """Wait for a notification for a while, then apply the reports of the nodes that sent one.

        `epoch` None applies them without a leader, for a store that has none.
        """
        if epoch != self._epoch:
            self._led_since = self._store.led_since()
            self._epoch, self._sweep_at = epoch, 0.0
        due_ms = round(1000 * max(0.0, self._sweep_at - time.monotonic()))
        nodes = self._inboxes.notified(0 if self._left else min(WAIT_MS, due_ms))
        if time.monotonic() >= self._sweep_at:
            nodes |= self._inboxes.nodes()
            self._sweep_at = time.monotonic() + SWEEP_MS / 1000
        left, self._left = self._left, []
        self.apply([*left, *sorted(nodes.difference(left))], epoch)

    def apply(self, nodes: Sequence[str], epoch: int | None) -> None:
        """Apply the reports of these nodes, in a fixed number of round trips per 10,000 reports."""
        entries, more = self._inboxes.look_through(nodes)
        self._left = more
        self._take_out_of_service(epoch)
        entries = [one for one in entries if not self._is_kept_out(one)]
        for start in range(0, len(entries), _REPORTS_A_COMMIT):
            self._apply(entries[start : start + _REPORTS_A_COMMIT], epoch)

    def _take_out_of_service(self, epoch: int | None) -> None:
        """Take nodes with unreadable records under their own keys out of service for a while; other
        nodes are unaffected.
        """
        link = self._store.link
        suspects = link.suspects()
        found = self._store.get_many("Node", sorted(suspects)) if suspects else {}
        changes = []
        for name, node in found.items():
            self._kept_out[name] = time.monotonic() + KEPT_OUT_S
            why = "; ".join(suspects[name])
            if isinstance(node, Node) and (
                change := out_of_service(node, f"{SPOILED}: {why}", now_ms=self._store.now_ms())
            ):
                _log.error("node.out_of_service", node=name, why=why)
                changes.append(change)
        commit = Commit()
        if changes:
            commit = self._store.commit(changes, request_id=self._ids.new_uid(), epoch=epoch)
        # If the node was written to meanwhile, or the server did not answer, the next turn tries
        # again: the unreadable records may be gone by then.
        refused = {refusal.transaction.subject for refusal in commit.refused}
        for name, reasons in suspects.items():
            if name not in refused:
                link.clear_suspicions(name, reasons)

    def _is_kept_out(self, entry: QueuedReport) -> bool:
        """Return whether an entry offers a node that is out of service; it is read again later."""
        if not self._kept_out or not isinstance(entry.report, Serves):
            return False
        if time.monotonic() < self._kept_out.get(entry.node, 0.0):
            return True
        self._kept_out.pop(entry.node, None)
        return False

    def _apply(self, entries: Sequence[QueuedReport], epoch: int | None) -> None:
        by_report = {
            id(posted): (posted, entry)
            for entry in entries
            for posted in (PostedReport(node=entry.node, report=entry.report),)
        }
        left = [posted for posted, _ in by_report.values()]
        known = {entry.pod.metadata.uid: entry.pod for entry in entries if entry.pod is not None}
        for _ in range(_MOST_TRIES):
            if not left:
                return
            now_ms = self._store.now_ms()
            plan = self._processor.plan(
                left,
                now_ms=now_ms,
                epoch=epoch,
                accepts_unknown=self._accepts_unknown(now_ms, epoch),
                known=known,
            )
            # The commit also removes the applied reports and notifies their nodes.
            result = self._commit(plan, [by_report[id(one.posted)][1] for one in plan.steps], epoch)
            applied = {id(one) for one in result.applied}
            others = [one for one in result.done if id(one) not in applied]
            claimed = {one.node for one in others if isinstance(one.report, StartClaim)}
            notify(self._store.link, sorted(claimed), WakeReason.CLAIMS)
            self._wake_mpi_gangs(plan, applied)
            # Events first, removal second: after a crash in between they are repeated, not lost.
            self._report_superseded(result, epoch)
            self._inboxes.remove([by_report[id(posted)][1] for posted in others])
            left, known = list(result.again), {}

    def _commit(
        self, plan: ReportPlan, entries: Sequence[QueuedReport], epoch: int | None
    ) -> ReportResult:
        if not plan.steps:
            return plan.result_of(Commit())
        acknowledged = [
            AcknowledgedReport(entry=entry, notifies=isinstance(entry.report, StartClaim))
            if step.is_last
            else None
            for step, entry in zip(plan.steps, entries, strict=True)
        ]
        commit = self._store.commit(
            plan.transactions,
            request_id=self._ids.new_uid(),
            epoch=epoch,
            acknowledged=acknowledged,
        )
        return plan.result_of(commit)

    def _accepts_unknown(self, now_ms: int, epoch: int | None) -> bool:
        return epoch is None or now_ms < self._led_since + _UNKNOWN_WITHIN_MS

    def _wake_mpi_gangs(self, plan: ReportPlan, applied: set[int]) -> None:
        """Have the agents look at gangs of MPI whose pod 0 has just succeeded: their other pods end
        then. Without this, the agents find it out with their next look.
        """
        firsts = [
            pod
            for step in plan.steps
            for pod in (step.transaction.writes[0].value,)
            if id(step.posted) in applied
            and isinstance(pod, Pod)
            and pod.spec.ports
            and pod.status.phase == PodPhase.SUCCEEDED
        ]
        if not firsts:
            return
        ended = {pod.metadata.uid for pod in firsts}
        keys = dict.fromkeys(group_key_of(pod) for pod in firsts)
        groups = self._store.get_many("PodGroup", list(keys)).values()
        gangs = [
            uids_of_gang(group) for group in groups if isinstance(group, PodGroup) and is_mpi(group)
        ]
        others = [uid for first, *rest in gangs if first in ended for uid in rest]
        pods = self._store.get_many("Pod", others).values() if others else ()
        nodes = {pod.status.node for pod in pods if isinstance(pod, Pod)} - {""}
        notify(self._store.link, sorted(nodes), WakeReason.STOPS)

    def _report_superseded(self, result: ReportResult, epoch: int | None) -> None:
        if not result.superseded:
            return
        now_ms = self._store.now_ms()
        shown = result.superseded[:_MOST_SUPERSEDED_EVENTS]
        for one in shown:
            _log.warning("fact.superseded", node=one.node, fact=one.report.subject)
        events = tuple(_event(one.node, one.report, now_ms) for one in shown)
        self._store.commit(
            [Transaction(subject="node-reports", events=events)],
            request_id=self._ids.new_uid(),
            epoch=epoch,
        )
        self._inboxes.count(SUPERSEDED, len(result.superseded))


def _event(node: str, report: NodeReport, now_ms: int) -> Event:
    """Return the event that tells readers of the pod or node why the report was refused."""
    match report:
        case StartClaim() | Ended() | Runs():
            what = {StartClaim: "start", Ended: "end", Runs: "run"}[type(report)]
            attempt = f"attempt {count_of(report.attempt)}"
            message = (
                f"{node} reported the {what} of {attempt}, which is not, or no longer, its own"
            )
            kind, key = "Pod", report.pod[:_LONGEST_KEY]
        case Serves() | Leaves():
            kind, key, message = "Node", node, "its agent describes an invalid node"
    return Event(kind=kind, key=key, reason="Superseded", message=message, at=now_ms)


_LONGEST_KEY = 128
