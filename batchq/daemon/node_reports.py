"""The leader's clerk at work: a thread that folds what nodes say while this process leads.

It waits for the bell, and looks through all inboxes every second for what was rung while nobody
led or was lost with a server. It folds with the leader's epoch, so a former leader folds nothing;
what nobody can fold any more is told, counted and taken out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import structlog

from batchq.api.leases import count_of
from batchq.api.node_report import SPOILED, Ended, Leaves, NodeReport, Runs, Serves, StartClaim
from batchq.api.objects import Node
from batchq.api.transaction import Commit, Event, Transaction
from batchq.daemon.services import ThreadService
from batchq.errors import StoreUnavailable
from batchq.ports import IdSource
from batchq.scheduler.node_reports import (
    Folded,
    NodeReportProcessor,
    PostedReport,
    Worked,
    out_of_service,
)
from batchq.store.node_channels import SUPERSEDED, OutboxEntry, Settled, WakeReason, ring
from batchq.store.outage import Backoff
from batchq.store.redis import RedisStore

_log = structlog.get_logger()

#: How long one wait for the bell lasts, and so how long a stop may have to wait for it.
WAIT_MS = 200
SWEEP_MS = 1_000
#: Between two looks whether this process leads.
_ELECTED_WITHIN_S = 0.05
#: One commit folds at most so many facts, each of an object that is held here meanwhile.
_FACTS_A_FOLD = 10_000
#: A fact whose object is written to all the time is left to the next look after so many tries.
_TRIES = 5
#: So long after a restart of the server nodes may tell of what it has forgotten.
_REPORTED_WITHIN_MS = 60_000
#: How long a node takes no pods after something under its own keys could not be read.
KEPT_OUT_S = 10.0
#: Of one fold, so many superseded facts become events; a flood of them must not wash others away.
_MOST_TOLD = 20


def clerk_service(
    store: RedisStore,
    *,
    epoch: Callable[[], int | None],
    ids: IdSource,
    freed: Callable[[], None] = lambda: None,
) -> ThreadService:
    """A service that folds facts while `epoch` says that this process leads, and calls `freed`
    when there is more room by that.
    """
    desk = LeaderDesk(store, ids, freed=freed)

    def work(stopping: threading.Event) -> None:
        backoff = Backoff()
        while not stopping.is_set():
            current = epoch()
            if current is None:
                stopping.wait(_ELECTED_WITHIN_S)
                continue
            try:
                desk.turn(current)
            except StoreUnavailable:
                # The deciding thread meets the same outage and says so.
                stopping.wait(backoff.next_ms() / 1000)
            else:
                backoff.reset()

    return ThreadService("clerk", work)


class LeaderDesk:
    """All inboxes, as their reader sees them; owned by one thread.

    Every method raises StoreUnavailable; what was folded by then changes nothing the next time.
    """

    def __init__(
        self, store: RedisStore, ids: IdSource, *, freed: Callable[[], None] = lambda: None
    ) -> None:
        self._store = store
        self._freed = freed
        self._inboxes = store.inboxes
        self._ids = ids
        self._clerk = NodeReportProcessor(store, ids)
        self._epoch: int | None = None
        #: Since when the server's present run has been led, in ms of its clock.
        self._led_since = 0
        self._sweep_at = 0.0
        #: Nodes that are kept out of service, and until when (monotonic clock).
        self._kept_out: dict[str, float] = {}
        #: Nodes that rang and had more to say than was taken in, or are no objects yet.
        self._left: list[str] = []

    def turn(self, epoch: int | None) -> None:
        """Wait for the bell, for a while, and fold what lies in the inboxes of those who rang.

        `epoch` None: as nobody's leader, for a store that is led by nobody.
        """
        if epoch != self._epoch:
            self._led_since = self._store.led_since()
            self._epoch, self._sweep_at = epoch, 0.0
        due_ms = round(1000 * max(0.0, self._sweep_at - time.monotonic()))
        nodes = self._inboxes.rung(0 if self._left else min(WAIT_MS, due_ms))
        if time.monotonic() >= self._sweep_at:
            nodes |= self._inboxes.nodes()
            self._sweep_at = time.monotonic() + SWEEP_MS / 1000
        left, self._left = self._left, []
        self.fold([*left, *sorted(nodes.difference(left))], epoch)

    def fold(self, nodes: Sequence[str], epoch: int | None) -> None:
        """Fold what lies in the inboxes of these nodes: some round trips, however many they are."""
        entries, more = self._inboxes.look_through(nodes)
        self._left = more
        self._take_out_of_service(epoch)
        entries = [one for one in entries if not self._is_kept_out(one)]
        for start in range(0, len(entries), _FACTS_A_FOLD):
            self._fold(entries[start : start + _FACTS_A_FOLD], epoch)

    def _take_out_of_service(self, epoch: int | None) -> None:
        """A node takes no pods for a while after something that cannot be read stood under its own
        keys; the others go on.
        """
        suspects = self._store.link.take_suspects()
        found = self._store.get_many("Node", sorted(suspects)) if suspects else {}
        changes = []
        for name, node in found.items():
            self._kept_out[name] = time.monotonic() + KEPT_OUT_S
            reason = f"{SPOILED}: {suspects[name]}"
            if isinstance(node, Node) and (change := out_of_service(node, reason)):
                _log.error("node.out_of_service", node=name, why=suspects[name])
                changes.append(change)
        if not changes:
            return
        commit = self._store.commit(changes, request_id=self._ids.new_uid(), epoch=epoch)
        for refusal in commit.refused:
            # It was written to just now.
            name = refusal.transaction.subject
            self._store.link.suspect(name, suspects[name])

    def _is_kept_out(self, entry: OutboxEntry) -> bool:
        """Whether it offers a node that is kept out of service: it is heard later."""
        if not self._kept_out or not isinstance(entry.fact, Serves):
            return False
        if time.monotonic() < self._kept_out.get(entry.node, 0.0):
            return True
        self._kept_out.pop(entry.node, None)
        return False

    def _fold(self, entries: Sequence[OutboxEntry], epoch: int | None) -> None:
        by_posted = {
            id(posted): (posted, entry)
            for entry in entries
            for posted in (PostedReport(node=entry.node, fact=entry.fact),)
        }
        left = [posted for posted, _ in by_posted.values()]
        known = {entry.pod.metadata.uid: entry.pod for entry in entries if entry.pod is not None}
        for _ in range(_TRIES):
            if not left:
                return
            now_ms = self._store.now_ms()
            worked = self._clerk.work_out(
                left,
                now_ms=now_ms,
                epoch=epoch,
                takes_in=self._takes_in(now_ms, epoch),
                known=known,
            )
            # What is applied is taken out, and rung for, in the same round trip.
            folded = self._commit(
                worked, [by_posted[id(one.posted)][1] for one in worked.steps], epoch
            )
            # Whoever waits for this comes first.
            if any(isinstance(one.fact, Ended | Serves) for one in folded.done):
                self._freed()
            applied = {id(one) for one in folded.applied}
            others = [one for one in folded.done if id(one) not in applied]
            claimed = {one.node for one in others if isinstance(one.fact, StartClaim)}
            ring(self._store.link, sorted(claimed), WakeReason.CLAIMS)
            # Told before it is taken out: who dies in between tells it twice, and not never.
            self._tell(folded, epoch)
            self._inboxes.folded([by_posted[id(posted)][1] for posted in others])
            left, known = list(folded.again), {}

    def _commit(self, worked: Worked, entries: Sequence[OutboxEntry], epoch: int | None) -> Folded:
        if not worked.steps:
            return worked.folded(Commit())
        settled = [
            Settled(entry=entry, rings=isinstance(entry.fact, StartClaim)) if step.is_last else None
            for step, entry in zip(worked.steps, entries, strict=True)
        ]
        commit = self._store.commit(
            worked.transactions, request_id=self._ids.new_uid(), epoch=epoch, settled=settled
        )
        return worked.folded(commit)

    def _takes_in(self, now_ms: int, epoch: int | None) -> bool:
        return epoch is None or now_ms < self._led_since + _REPORTED_WITHIN_MS

    def _tell(self, folded: Folded, epoch: int | None) -> None:
        if not folded.superseded:
            return
        now_ms = self._store.now_ms()
        told = folded.superseded[:_MOST_TOLD]
        for one in told:
            _log.warning("fact.superseded", node=one.node, fact=one.fact.subject)
        events = tuple(_event(one.node, one.fact, now_ms) for one in told)
        self._store.commit(
            [Transaction(subject="clerk", events=events)],
            request_id=self._ids.new_uid(),
            epoch=epoch,
        )
        self._inboxes.count(SUPERSEDED, len(folded.superseded))


def _event(node: str, fact: NodeReport, now_ms: int) -> Event:
    """What was refused, for whoever reads about the pod or node that it is about."""
    match fact:
        case StartClaim() | Ended() | Runs():
            what = {StartClaim: "start", Ended: "end", Runs: "run"}[type(fact)]
            story = f"attempt {count_of(fact.attempt)} is not, or no longer, {node}'s to {what}"
            kind, key = "Pod", fact.pod[:_LONGEST_KEY]
        case Serves() | Leaves():
            kind, key, story = "Node", node, "its agent offers what no node can have"
    return Event(kind=kind, key=key, reason="Superseded", message=story, at=now_ms)


_LONGEST_KEY = 128
