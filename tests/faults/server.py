"""The one server of a simulated cluster, as its callers see it.

In addition to a `MemoryStore` it keeps what a Redis server holds for agents: the report queue of
each node, leases and beats, the nodes' RQ queues, and the leader's lease. `FaultyStore` is one
caller's view: the same verbs over a `Line` that may fail.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct, structs

from batchq.api.lifecycle import ON_NODE, PodPhase
from batchq.api.node_report import Ended, NodeReport, PodAttempt, StartClaim
from batchq.api.objects import Object, Pod, PodGroup
from batchq.api.transaction import (
    Commit,
    Delivery,
    Event,
    Ledger,
    Transaction,
    fence_of,
    following,
)
from batchq.core.session.snapshot import ContactStanding, Snapshot
from batchq.errors import InvariantBroken
from batchq.ports import Clock
from batchq.scheduler.node_reports import PostedReport
from batchq.store.liveness import Renewal
from batchq.store.memory import MemoryStore
from batchq.worker.agent.messages import FencedAttempts
from batchq.worker.workhorse.leases import ServerWatch
from tests.faults.store_faults import Line

T = TypeVar("T")

Witness = Callable[["Server", Sequence[Transaction], int | None, Callable[[], Commit]], Commit]


class ServedStore(MemoryStore):
    """A store that records when nodes were last heard of, and whose numbers continue in a later
    generation.
    """

    def __init__(self) -> None:
        super().__init__()
        self._beats: dict[str, int] = {}

    def hear_of(self, node: str, at_ms: int) -> None:
        """Record that the node was heard of at this time."""
        self._beats[node] = max(at_ms, self._beats.get(node, 0))
        self._table.set_beats(dict(self._beats))

    @property
    def epoch(self) -> int:
        """Return the last epoch that was issued."""
        return self._epoch

    def begin_generation(self, generation: int) -> None:
        """Begin a generation in which every number is above those that an earlier run of the server
        issued.
        """
        self._epoch = following(self._epoch, generation=generation) - 1


class Run(Struct, frozen=True):
    """One run of the server's process. A new run has no leader at first."""

    number: int
    led_since: int | None = None


class Leader(Struct, frozen=True):
    """The holder of the leader's lease, and when the lease ends."""

    identity: str
    epoch: int
    until_ms: int


class Server:
    """Everything that one server knows; owned by the simulated cluster.

    `witness` observes every commit; `bell` is called with `facts`, `objects` or a node's name when
    there is news for the schedulers or for that node's agent.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        witness: Witness,
        bell: Callable[[str], None],
        is_beside_agents: bool = False,
    ) -> None:
        """`is_beside_agents`: the agents and work-horses run on the server's machine."""
        self.is_beside_agents = is_beside_agents
        #: Until when its process is stopped.
        self.stopped_until = 0
        self._clock = clock
        self._witness = witness
        self._bell = bell
        self.store = ServedStore()
        self.run = Run(number=1)
        #: Run -> the revision that the server was restored to when the run started.
        self.restored_at: dict[int, int] = {}
        self.reported: dict[str, int] = {}
        self.reports: dict[str, dict[str, NodeReport]] = {}
        #: Node -> attempt -> when its lease ends.
        self.leases: dict[str, dict[PodAttempt, int]] = {}
        self.queues: dict[str, list[PodAttempt]] = {}
        self.leader: Leader | None = None

    def saved(self) -> Server:
        """Return a copy to restore from."""
        twin = copy.copy(self)
        twin.store = copy.deepcopy(self.store)
        twin.reports = {node: dict(reports) for node, reports in self.reports.items()}
        twin.leases = {node: dict(leases) for node, leases in self.leases.items()}
        twin.queues = {node: list(queue) for node, queue in self.queues.items()}
        twin.reported = dict(self.reported)
        return twin

    def restart(self, restored_from: Server | None = None) -> None:
        """Begin another run of the server; an older copy lacks what was written since."""
        if restored_from is not None:
            old = restored_from.saved()
            self.store, self.reports, self.leases = old.store, old.reports, old.leases
            self.queues, self.leader, self.reported = old.queues, old.leader, old.reported
        self.run = Run(number=self.run.number + 1)
        if restored_from is not None:
            self.restored_at[self.run.number] = self.revision

    def is_away(self, run: int) -> bool:
        """Return whether the process of that run answers no requests now."""
        return run != self.run.number or self._clock.now_ms() < self.stopped_until

    def forgot(self, seen: int, run: int) -> bool:
        """Return whether the server has since that run been restored to a point before that
        revision.
        """
        return any(seen > at for number, at in self.restored_at.items() if number > run)

    def standing(self, *, contact_since: int, forgot: bool) -> ContactStanding:
        """Return the standing of a reader that was last in touch in that run."""
        restarted = self.run.number > 1
        here = frozenset(node for node, run in self.reported.items() if run == self.run.number)
        return ContactStanding(
            generation=self.run.number if restarted else 0,
            contact_since=contact_since,
            restarted_at=self.run.led_since if restarted else None,
            reported=here,
            forgot=forgot,
        )

    def commit(
        self,
        transactions: Sequence[Transaction],
        *,
        request_id: str,
        epoch: int | None = None,
        overcommit: int = 1000,
        seen: int | None = None,
    ) -> Commit:
        before = self.revision
        if epoch is not None and self.run.led_since is None:
            # The epoch may have been issued to another leader in the writes that were lost.
            epoch = -1
        commit = self._witness(
            self,
            transactions,
            epoch,
            lambda: self.store.commit(
                transactions,
                request_id=request_id,
                epoch=epoch,
                overcommit=overcommit,
                seen=seen,
            ),
        )
        if self.revision != before:
            self._bell("objects")
        return commit

    @property
    def revision(self) -> int:
        return self.store.snapshot().revision

    def lead(self, identity: str, lease_ms: int) -> int | None:
        """Take or renew the leader's lease: return the epoch, or None if another leads."""
        now_ms = self._clock.now_ms()
        if self.run.led_since is None:
            self.run = structs.replace(self.run, led_since=now_ms)
            if self.run.number > 1:
                self.store.begin_generation(self.run.number)
            self.leader = None
        held = self.leader
        if held is not None and held.identity != identity and now_ms < held.until_ms:
            return None
        renews = held is not None and held.identity == identity
        epoch = held.epoch if held is not None and renews else self.store.next_epoch()
        self.leader = Leader(identity, epoch, now_ms + lease_ms)
        return epoch

    def post(self, node: str, report: NodeReport) -> None:
        """Put a report into the node's queue; only the last one of each subject counts."""
        self.reports.setdefault(node, {})[report.subject] = report
        self._bell("facts")

    def queued_reports(self) -> Sequence[PostedReport]:
        """Return all unprocessed reports, by node and subject."""
        return [
            PostedReport(node=node, report=queue[subject])
            for node, queue in sorted(self.reports.items())
            for subject in sorted(queue)
        ]

    def pending(self, node: str) -> Sequence[NodeReport]:
        """Return a node's unprocessed reports."""
        return tuple(self.reports.get(node, {}).values())

    def take_out(self, done: Sequence[PostedReport]) -> None:
        """Remove the reports that have not changed since they were read."""
        for one in done:
            queue = self.reports.get(one.node, {})
            if queue.get(one.report.subject) == one.report:
                del queue[one.report.subject]

    def beat(self, node: str, run: str, at_ms: int) -> None:
        """Record a beat of the node, and that this run of the server has received everything that
        runs there.
        """
        self.store.hear_of(node, at_ms)
        if run:
            self.reported[node] = int(run)

    def has_reported(self, node: str) -> bool:
        """Return whether the node has reported to the current run of the server."""
        return self.reported.get(node) == self.run.number

    def renew(self, node: str, attempt: PodAttempt, fence: str, until_ms: int) -> Renewal:
        """Extend the lease of an attempt to that time, and return whether its work-horse may go on.

        A late renewal does not shorten a lease that a later one extended.
        """
        self._lease(node, attempt, until_ms)
        return self.look(attempt, fence)

    def look(self, attempt: PodAttempt, fence: str) -> Renewal:
        """Return whether the work-horse of an attempt may go on."""
        found = self.store.get("Pod", attempt.pod)
        if not isinstance(found, Pod) or fence_of(found) != fence:
            return Renewal(word="fenced")
        if found.status.phase not in ON_NODE:
            return Renewal(word="fenced")
        is_running = found.status.phase == PodPhase.RUNNING
        if found.status.terminating:
            return Renewal(word="stop", reason=found.status.reason, is_running=is_running)
        return Renewal(word="ok", is_running=is_running)

    def _lease(self, node: str, attempt: PodAttempt, until_ms: int) -> None:
        leases = self.leases.setdefault(node, {})
        leases[attempt] = max(until_ms, leases.get(attempt, 0))

    def claim(
        self, node: str, claims: Sequence[tuple[StartClaim, str, str]], until_ms: int
    ) -> tuple[list[Renewal], dict[str, PodGroup]]:
        """Take leases and post claims in one step; return whether each may go on, and the
        groups.
        """
        renewals = []
        for claim, fence, _ in claims:
            attempt = PodAttempt(claim.pod, claim.attempt)
            renewals.append(self.renew(node, attempt, fence, until_ms))
            self.post(node, claim)
        found = self.store.get_many("PodGroup", [name for _, _, name in claims])
        return renewals, {name: one for name, one in found.items() if isinstance(one, PodGroup)}

    def current_leases(self) -> dict[str, int]:
        """Return pod -> the end of the lease of its current attempt; leases of other attempts are
        ignored.
        """
        found = {}
        for node, leases in self.leases.items():
            for attempt, until_ms in leases.items():
                pod = self.store.get("Pod", attempt.pod)
                if not isinstance(pod, Pod) or pod.status.attempt != attempt.attempt:
                    continue
                if pod.status.node == node and pod.status.phase in ON_NODE:
                    found[attempt.pod] = until_ms
        return found

    def end(self, node: str, reports: Sequence[Ended]) -> None:
        """Post ends and end their leases in one step."""
        for report in reports:
            self.post(node, report)
        self.end_leases(node, [PodAttempt(one.pod, one.attempt) for one in reports])

    def announce_stops(self, nodes: Sequence[str]) -> None:
        """Notify these nodes that pods of theirs are to stop."""
        for node in nodes:
            self._bell(f"stops {node}")

    def end_leases(self, node: str, attempts: Sequence[PodAttempt]) -> None:
        """Record that nothing of the attempts runs any more."""
        for attempt in attempts:
            self.leases.get(node, {}).pop(attempt, None)

    def pods_on(self, node: str) -> list[Pod]:
        """Return the pods that occupy the node."""
        pods = [pod for pod in self.store.list("Pod") if isinstance(pod, Pod)]
        return [one for one in pods if one.status.node == node and one.status.phase in ON_NODE]

    def enqueue(self, node: str, attempts: Sequence[PodAttempt]) -> None:
        """Hand over attempts; one that is queued already is not queued twice."""
        queue = self.queues.setdefault(node, [])
        queue += [attempt for attempt in attempts if attempt not in queue]
        self._bell(node)

    def take(self, node: str, most: int) -> list[PodAttempt]:
        """Return the next attempts, removed from the queue."""
        queue = self.queues.get(node, [])
        taken, self.queues[node] = queue[:most], queue[most:]
        return taken


class _Watch(ServerWatch):
    """One caller's watch over a server on its machine. The number of a run is its pid."""

    def __init__(self, server: Server, line: Line) -> None:
        super().__init__(
            lambda: line.call("process", lambda: server.run.number),
            connections=lambda: hash((server.run.number, line.connections)),
        )
        self._run_of = server

    def is_away(self) -> bool:
        known = self.known()
        return known is not None and self._run_of.is_away(known.pid)


class FaultyStore:
    """The server as one caller reaches it: `ports.Store`, and the verbs of agents and leaders.

    Every method raises StoreUnavailable.
    """

    def __init__(self, server: Server, line: Line) -> None:
        self._server = server
        self.line = line
        #: What another thread of the caller does before the caller's next commit, if anything.
        self.before_commit: Callable[[], None] | None = None
        self._run = self._seen = 0
        self._forgot = False

    def watch(self) -> ServerWatch:
        """Return the caller's watch over the server's process."""
        if not self._server.is_beside_agents:
            return ServerWatch(lambda: None)
        return _Watch(self._server, self.line)

    def get(self, kind: str, key: str) -> Object | None:
        return self.line.call("get", lambda: self._server.store.get(kind, key))

    def get_many(self, kind: str, keys: Sequence[str]) -> Mapping[str, Object]:
        return self.line.call("get many", lambda: self._server.store.get_many(kind, keys))

    def carried(self, pods: Sequence[str]) -> tuple[Pod, ...]:
        """Return these pods as a notification that the server sends now carries them."""
        found = self._server.store.get_many("Pod", pods)
        return tuple(one for one in found.values() if isinstance(one, Pod))

    def list(self, kind: str, *, namespace: str = "") -> Sequence[Object]:
        return self.line.call("list", lambda: self._server.store.list(kind, namespace=namespace))

    def snapshot(self) -> Snapshot:
        return self.line.call("snapshot", self._snapshot)

    def follow(self) -> None:
        """Follow the writes, as a standby scheduler does."""
        self.line.call("follow", self._keep_up)

    def _keep_up(self) -> None:
        run, revision = self._server.run.number, self._server.revision
        if run != self._run:
            self._forgot = self._server.forgot(self._seen, self._run)
            self._run, self._seen = run, 0
        self._seen = max(self._seen, revision)

    def _snapshot(self) -> Snapshot:
        self._keep_up()
        since = self.line.contact.since
        standing = self._server.standing(contact_since=since, forgot=self._forgot)
        found = self._server.store.snapshot()
        return structs.replace(found, standing=standing, leases=self._server.current_leases())

    def ledger(self) -> Ledger:
        return self.line.call("ledger", lambda: self._server.store.ledger())

    def charges(self) -> Mapping[str, tuple[tuple[str, ...], dict[str, int]]]:
        return self.line.call("charges", lambda: self._server.store.charges())

    def events(self, *, kind: str = "", key: str = "", most: int = 100) -> Sequence[Event]:
        return self.line.call(
            "events", lambda: self._server.store.events(kind=kind, key=key, most=most)
        )

    def commit(
        self,
        transactions: Sequence[Transaction],
        *,
        request_id: str,
        epoch: int | None = None,
        overcommit: int = 1000,
        seen: int | None = None,
    ) -> Commit:
        meanwhile, self.before_commit = self.before_commit, None
        if meanwhile is not None:
            meanwhile()
        answers: list[Commit] = []

        def commit() -> Commit:
            answers.append(
                self._server.commit(
                    transactions,
                    request_id=request_id,
                    epoch=epoch,
                    overcommit=overcommit,
                    seen=seen,
                )
            )
            if answers[0] != answers[-1]:
                raise InvariantBroken(
                    f"request {request_id} was repeated, and answered differently"
                )
            return answers[-1]

        return self._write("commit", commit)

    def lead(self, identity: str, lease_ms: int) -> int | None:
        return self._write("lead", lambda: self._server.lead(identity, lease_ms))

    def queued_reports(self) -> Sequence[PostedReport]:
        return self.line.call("facts", self._server.queued_reports)

    def pending(self, node: str) -> Sequence[NodeReport]:
        return self.line.call("pending", lambda: self._server.pending(node))

    def take_out(self, done: Sequence[PostedReport]) -> None:
        self._write("take out", lambda: self._server.take_out(done))

    def outbox(self) -> Sequence[Delivery]:
        return self.line.call("outbox", lambda: self._server.store.outbox())

    def delivered(self, deliveries: Sequence[Delivery]) -> None:
        self._write("delivered", lambda: self._server.store.delivered(deliveries))

    def enqueue(self, node: str, attempts: Sequence[PodAttempt]) -> None:
        self._write("enqueue", lambda: self._server.enqueue(node, attempts))

    def take(self, node: str, most: int) -> Sequence[PodAttempt]:
        """Take the next attempts. RQ does not repeat a lost call: the attempts that it took off
        are handed over again later.
        """
        return self._write("take", lambda: self._server.take(node, most))

    def post(self, node: str, report: NodeReport) -> None:
        self._write("post", lambda: self._server.post(node, report))

    def claim(
        self, node: str, claims: Sequence[tuple[StartClaim, str, str]], until_ms: int
    ) -> tuple[list[Renewal], dict[str, PodGroup]]:
        return self._write("claim", lambda: self._server.claim(node, claims, until_ms))

    def end(self, node: str, reports: Sequence[Ended]) -> None:
        self._write("end", lambda: self._server.end(node, reports))

    def renew(self, node: str, attempt: PodAttempt, fence: str, until_ms: int) -> Renewal:
        return self._write("renew", lambda: self._server.renew(node, attempt, fence, until_ms))

    def renew_all(self, node: str, attempts: FencedAttempts, until_ms: int) -> list[Renewal]:
        def renew() -> list[Renewal]:
            return [self._server.renew(node, one, fence, until_ms) for one, fence in attempts]

        return self._write("renew all", renew)

    def announce_stops(self, nodes: Sequence[str]) -> None:
        if nodes:
            self._write("announce stops", lambda: self._server.announce_stops(nodes))

    def look(self, attempts: FencedAttempts) -> list[Renewal]:
        return self.line.call(
            "look", lambda: [self._server.look(one, fence) for one, fence in attempts]
        )

    def end_leases(self, node: str, attempts: Sequence[PodAttempt]) -> None:
        self._write("end leases", lambda: self._server.end_leases(node, attempts))

    def leases(self, node: str) -> Mapping[PodAttempt, int]:
        return self.line.call("leases", lambda: dict(self._server.leases.get(node, {})))

    def leased(self, node: str) -> tuple[PodAttempt, ...]:
        return tuple(sorted(self.leases(node), key=lambda one: one.id))

    def pods_on(self, node: str) -> Sequence[Pod]:
        return self.line.call("pods on", lambda: self._server.pods_on(node))

    def run_id(self) -> str:
        return self.line.call("run id", lambda: str(self._server.run.number))

    def has_reported(self, node: str) -> bool:
        return self.line.call("has reported", lambda: self._server.has_reported(node))

    @property
    def report_queues(self) -> FaultyStore:
        return self

    def get_if_readable(self, kind: str, key: str) -> Object | None:
        return self.get(kind, key)

    def beat(self, node: str, run: str = "") -> None:
        now_ms = self.line.now_ms()
        self._write("beat", lambda: self._server.beat(node, run, now_ms))

    def beats(self, _nodes: Sequence[str]) -> Mapping[str, int]:
        return {}

    def now_ms(self) -> int:
        return self.line.now_ms()

    def _write(self, what: str, do: Callable[[], T]) -> T:
        return self.line.call(what, do, writes=True)
