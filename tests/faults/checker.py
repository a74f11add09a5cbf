"""The invariant checker of a cluster under faults: what must hold after every event.

`tests.faults.machines.Truth` checks the real processes where they start: no pod runs twice at once,
and no machine exceeds its size. This module checks the server's records and the writes that it
accepts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from batchq.api.lifecycle import (
    ADMITTED,
    ON_NODE,
    POD_GROUP_MOVES,
    POD_MOVES,
    TERMINAL,
    PodGroupPhase,
    PodPhase,
    allowed,
)
from batchq.api.node_report import NodeReport, PodAttempt
from batchq.api.objects import Object, Pod, PodGroup, full_name
from batchq.api.resources import of_pod, plus
from batchq.api.transaction import Commit, Transaction, Write, fence_of, phase_of
from batchq.core.quota.ledger import holders_in_store
from batchq.core.session.snapshot import Settings
from batchq.core.session.state import GroupState
from batchq.errors import InvariantBroken
from batchq.lab.simulation.world import check_charge, check_gang, oversubscribed, recount
from batchq.scheduler.pod_controller import GroupProgress
from batchq.worker.agent.state_machine import AgentState
from tests.faults.machines import Machine, Process
from tests.faults.server import Server

#: While writes fail, the delay starts again with the next leader or try.
_MOST_SHOWN_LATE = 8
_MOVES = {"PodGroup": allowed(POD_GROUP_MOVES), "Pod": allowed(POD_MOVES)}


class InvariantChecker:
    """Owns the observed epochs, admissions and attempts, and the groups whose submission was
    acknowledged.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._revision = -1
        self._epoch = 0
        #: A pod that is found running again takes its capacity at once, before the server learns
        #: which pods have ended there; the next session charges its group.
        self._forgot = False
        self._fences: dict[tuple[str, str], str] = {}
        #: Uid -> how many times in a row a group that runs was seen with the phase InQueue. That it
        #: runs only informs people, so it may be written a little later.
        self._shown_late: dict[str, int] = {}
        #: Number of pods told to stop, by reason.
        self.stopped: Counter[str] = Counter()
        #: Uid -> key of each group whose submission was acknowledged.
        self.promised: dict[str, str] = {}
        #: Whether an attempt must not be lost.
        self.must_keep: Callable[[PodAttempt], bool] = lambda _: False

    def forget(self, server: Server) -> None:
        """The server was restored from an older copy: drop what was written since."""
        self._revision = -1
        self._forgot = True
        self._fences.clear()
        self._shown_late.clear()
        there = {group.metadata.uid for group in server.store.snapshot().groups}
        self.promised = {uid: key for uid, key in self.promised.items() if uid in there}

    def witness(
        self,
        server: Server,
        transactions: Sequence[Transaction],
        epoch: int | None,
        commit: Callable[[], Commit],
    ) -> Commit:
        """Carry out a commit, and check each write that it applied."""
        before: dict[tuple[str, str], Object | None] = {
            (write.kind, write.key): server.store.get(write.kind, write.key)
            for transaction in transactions
            for write in transaction.writes
        }
        revision, current = server.revision, server.store.epoch
        result = commit()
        if server.revision == revision:
            return result
        if epoch is not None and epoch != current:
            raise InvariantBroken(f"a leader of epoch {epoch} wrote in epoch {current}")
        for transaction in result.applied:
            for write in transaction.writes:
                self._check_write(write, before[write.kind, write.key])
                before[write.kind, write.key] = write.value
        return result

    def _check_write(self, write: Write, before: Object | None) -> None:
        what = f"{write.kind} {write.key}"
        if before is None:
            if write.expect != 0:
                raise InvariantBroken(
                    f"{what} was written without an existing record, as if it were there"
                )
            return
        if write.expect is not None and write.expect != before.metadata.revision:
            raise InvariantBroken(
                f"{what} was at revision {before.metadata.revision}, and was overwritten as of"
                f" {write.expect}"
            )
        if write.fence and write.fence != fence_of(before):
            raise InvariantBroken(f"{what} of {fence_of(before)} was written as {write.fence}")
        if write.value is None:
            return
        start, finish = phase_of(before), phase_of(write.value)
        if start != finish and (start, finish) not in _MOVES[write.kind]:
            raise InvariantBroken(f"{what} went from {start} to {finish}")
        match before, write.value:
            case Pod(status=was), Pod(status=now) if now.losses > was.losses:
                if self.must_keep(PodAttempt(before.metadata.uid, was.attempt)):
                    raise InvariantBroken(f"{what} had started, and was lost: {now.message}")
            case Pod(status=was), Pod(status=now) if now.terminating and not was.terminating:
                self.stopped[now.reason] += 1
            case _:
                pass

    def look(self, server: Server) -> None:
        """Check the records after an event. Raises InvariantBroken."""
        # A restarted server that has had no leader yet has not issued an epoch.
        if server.run.led_since is not None:
            if server.store.epoch < self._epoch:
                raise InvariantBroken(f"the epoch fell from {self._epoch} to {server.store.epoch}")
            self._epoch = server.store.epoch
        if server.revision == self._revision:
            return
        self._revision = server.revision
        self._look_at_ledger(server)
        self._look_at_groups(server)
        over = oversubscribed(server.store)
        if over and not self._forgot:
            raise InvariantBroken(f"nodes are given more than they have: {over}")

    def look_at_processes(
        self, server: Server, processes: Iterable[tuple[str, Process]], now_ms: int
    ) -> None:
        """Check after an event that no process runs whose pod or lease has ended. Raises
        InvariantBroken.

        A server that was restored from an older copy may first have to learn which processes run.
        """
        if self._forgot:
            return
        for machine, process in processes:
            uid, attempt = process.attempt.pod, process.attempt.attempt
            pod = server.store.get("Pod", uid)
            if not isinstance(pod, Pod):
                raise InvariantBroken(f"{process.place} runs on {machine}, and its pod is gone")
            status = pod.status
            if (status.attempt, status.node) != (attempt, machine) or status.phase not in ON_NODE:
                raise InvariantBroken(
                    f"attempt {attempt} of {full_name(pod)} runs on {machine}, and the pod is"
                    f" {status.phase} in attempt {status.attempt} on {status.node}"
                )
            # A late call may end a lease after the agent has decided that nothing runs under it.
            until_ms = server.leases.get(machine, {}).get(process.attempt)
            if server.is_beside_agents and until_ms is not None:
                # No lease ends while the process of the server is away, and then each starts again.
                until_ms = max(until_ms, server.stopped_until + self._settings.pod_lease_ms)
            if until_ms is not None and until_ms <= now_ms:
                raise InvariantBroken(
                    f"{process.attempt.id} runs on {machine} at {now_ms}, and its lease ended at"
                    f" {until_ms}"
                )

    def _look_at_ledger(self, server: Server) -> None:
        store = server.store
        charges, kept = store.charges(), store.ledger()
        counted = recount(charges)
        if counted != kept:
            raise InvariantBroken(f"the ledger says {kept}, its charges add up to {counted}")
        snapshot = store.snapshot()
        expected: dict[str, dict[str, int]] = {}
        for pods in snapshot.pods.values():
            for pod in pods:
                if pod.status.phase in ON_NODE:
                    expected[f"pod:{pod.metadata.uid}"] = of_pod(pod.spec.requests)
        for group in snapshot.groups:
            uid = group.metadata.uid
            for holder, (_, charge) in holders_in_store(group).items():
                expected[holder] = {name: units for name, units in charge.items() if units}
            if group.status.phase not in TERMINAL:
                expected[f"object:{uid}"] = {"podgroups": 1000}
        found = {
            holder: amounts
            for holder, (_, amounts) in charges.items()
            if not holder.startswith("node:")
        }
        if found != expected:
            wrong = sorted(
                holder
                for holder in {*found, *expected}
                if found.get(holder) != expected.get(holder)
            )
            raise InvariantBroken(f"objects and what is charged for them differ: {wrong}")

    def _look_at_groups(self, server: Server) -> None:
        snapshot = server.store.snapshot()
        there = set()
        for group in snapshot.groups:
            uid, status = group.metadata.uid, group.status
            there.add(uid)
            self._look_at_fence("PodGroup", uid, group)
            restarts = group.spec.launch is not None and status.restarts > 0
            reserves_first = status.pledge.stands or bool(status.checks) or restarts
            waits = status.phase == PodGroupPhase.PENDING and reserves_first
            if status.reserved_at is not None and status.phase not in ADMITTED and not waits:
                raise InvariantBroken(f"{full_name(group)} is {status.phase} with a reservation")
            live: dict[str, int] = {}
            for pod in snapshot.pods.get(uid, ()):
                self._look_at_fence("Pod", pod.metadata.uid, pod)
                if pod.status.phase in ON_NODE:
                    live = plus(live, of_pod(pod.spec.requests))
            short = any(units > status.charge.get(name, 0) for name, units in live.items())
            if short and not self._forgot:
                raise InvariantBroken(
                    f"{full_name(group)} has pods of {live}, and is charged {status.charge}"
                )
        orphans = set(snapshot.pods) - there
        if orphans:
            raise InvariantBroken(f"there are pods of groups that do not exist: {sorted(orphans)}")
        lost = sorted(key for uid, key in self.promised.items() if uid not in there)
        if lost:
            raise InvariantBroken(f"groups are lost: {lost}")

    def _look_at_fence(self, kind: str, uid: str, item: PodGroup | Pod) -> None:
        fence, before = fence_of(item), self._fences.get((kind, uid))
        if fence == before:
            return
        if before is not None:
            pairs = zip(before.split(" ")[1:], fence.split(" ")[1:], strict=True)
            if any(int(new) < int(old) for old, new in pairs):
                raise InvariantBroken(f"the fence of {full_name(item)} fell: {before} -> {fence}")
        self._fences[kind, uid] = fence

    def look_at_rest(self, server: Server, now_ms: int) -> None:
        """Check that all rules hold after a leader's whole turn without a decision."""
        snapshot = server.store.snapshot()
        charges = server.store.charges()
        shown_late, self._shown_late = self._shown_late, {}
        for record in snapshot.groups:
            status = record.status
            if status.phase in TERMINAL and not status.charge:
                continue
            group = GroupState(record, snapshot.pods.get(record.metadata.uid, ()), 0)
            check_charge(group, charges)
            if any(
                pod.status.phase == PodPhase.BOUND and pod.status.message
                for pod in group.live_pods.values()
            ):
                # It waits for images.
                continue
            match status.phase:
                case PodGroupPhase.RUNNING:
                    check_gang(group)
                case PodGroupPhase.UNKNOWN:
                    most_ms = self._settings.recovery_timeout_ms
                    _check_time(group, status.unknown_at, most_ms, now_ms)
                case PodGroupPhase.IN_QUEUE if GroupProgress.of(group).running == group.replicas:
                    times = self._shown_late[group.uid] = shown_late.get(group.uid, 0) + 1
                    if times > _MOST_SHOWN_LATE:
                        raise InvariantBroken(f"{group.key} runs, and is shown as InQueue")
                case PodGroupPhase.IN_QUEUE:
                    most_ms = self._settings.in_queue_timeout_ms
                    _check_time(group, status.in_queue_at, most_ms, now_ms)


def _check_time(group: GroupState, since: int | None, most_ms: int, now_ms: int) -> None:
    if since is None or since + most_ms <= now_ms:
        raise InvariantBroken(f"{group.key} has been {group.phase} since {since}")


def unrest(server: Server, machines: Sequence[Machine], agents: Sequence[AgentState]) -> str:
    """Return the first unfinished thing on the server, on the remaining machines or with their
    agents; empty if all is done.
    """
    for found in (
        _unended(server),
        *(f"{name} is not applied yet: {sorted(left)}" for name, left in _unapplied(server)),
        *(_busy(server, machine) for machine in machines),
        *(f"an agent still knows {sorted(one.known_pods())}" for one in agents if one.known_pods()),
    ):
        if found:
            return found
    held = [one for one in server.store.charges() if not one.startswith("node:")]
    outbox = server.store.outbox()
    return f"something is held: {held} {outbox}" if held or outbox else ""


def _unapplied(server: Server) -> list[tuple[str, dict[str, NodeReport]]]:
    return [(name, facts) for name, facts in sorted(server.reports.items()) if facts]


def _unended(server: Server) -> str:
    snapshot = server.store.snapshot()
    for group in snapshot.groups:
        if group.status.phase not in TERMINAL:
            waits = "; ".join(verdict.message() for verdict in group.status.reasons)
            return f"{full_name(group)} is {group.status.phase}: {waits}"
    for pods in snapshot.pods.values():
        for pod in pods:
            if pod.status.phase in ON_NODE:
                return f"{full_name(pod)} is {pod.status.phase} on {pod.status.node}"
    return ""


def _busy(server: Server, machine: Machine) -> str:
    left = {
        *machine.horses,
        *machine.records,
        *server.queues.get(machine.name, ()),
        *server.leases.get(machine.name, {}),
    }
    names = sorted(one.id for one in left)
    return f"{machine.name} still holds something of {names}" if names else ""
