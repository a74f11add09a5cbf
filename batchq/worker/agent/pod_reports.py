"""Carries out what the agent's state machine asks of the server and of the run files.

All claims of a turn are sent together, so that many of them cost as many round trips as one. A
work-horse gets its pod only when its claim is applied, with everything it needs in memory.

A work-horse that posts the end of its pod leaves its run file. The agent removes the run file only
when the server shows the end, so that a server that lost its last second, or was restored from an
older file, receives the report again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import structs

from batchq.api.node_report import Ended, PodAttempt, StartClaim
from batchq.api.objects import PodGroup
from batchq.errors import StoreUnavailable
from batchq.store.liveness import Renewal, leases_of, pid_of_server
from batchq.store.node_channels import AttemptEnd, Attempts
from batchq.store.redis import RedisStore
from batchq.system import structlog
from batchq.worker.agent.messages import (
    AgentEvent,
    AttemptAnswer,
    ClaimAnswer,
    ClaimedPodsRead,
    ClaimsPosted,
    ConcludeEnds,
    DueEndsRead,
    EndedPodsRead,
    EndLeases,
    EndRecord,
    EndsConcluded,
    EndsReported,
    FencedAttempts,
    ForgetPods,
    GangsRead,
    LeasesRenewed,
    NodePodsRead,
    PostClaims,
    PostReport,
    ReadClaimedPods,
    ReadDueEnds,
    ReadEndedPods,
    ReadGangs,
    ReadRunningPods,
    ReadStops,
    RenewLeases,
    ReportEnds,
    RunningPodsRead,
    StartedRun,
    StopsRead,
    WritePeers,
)
from batchq.worker.agent.pod_states import pods_of
from batchq.worker.host.device_pool import DevicePool
from batchq.worker.host.gpu_tools import FoundDevices
from batchq.worker.host.node_resources import PortPool, PortRange
from batchq.worker.rendezvous import is_complete, uids_of_gang
from batchq.worker.workhorse.leases import OwnServer, ServerWatch
from batchq.worker.workhorse.reporter import ReportSender, author_of, monotonic_ms, send_unsent
from batchq.worker.workhorse.run_file import RunFile, RunFiles, own_boot

log = structlog.get_logger(__name__)

#: The instructions that this module carries out.
OnServer: TypeAlias = (
    ReadClaimedPods
    | PostClaims
    | ReadGangs
    | RenewLeases
    | ReadStops
    | ReportEnds
    | ReadEndedPods
    | ReadDueEnds
    | ConcludeEnds
    | ForgetPods
    | EndLeases
    | ReadRunningPods
    | PostReport
    | WritePeers
)

#: How often the tokens of running pods are kept for another day.
_TOKENS_EVERY_MS = 3_600_000


class PodReports:
    """The server and the run files as one agent, `author`, uses them; owned by its loop.

    Every method raises StoreUnavailable.
    """

    def __init__(
        self,
        store: RedisStore,
        node: str,
        files: RunFiles,
        *,
        author: str,
        lease_ms: int,
        address: str = "",
        ports: PortPool | None = None,
        devices: DevicePool | None = None,
    ) -> None:
        """`address` and `ports`: where pods of gangs with `spec.launch` are reached here.
        `devices`: which devices pods may have.
        """
        self._store = store
        self._node = node
        self._files = files
        self._author = author
        self._lease_ms = lease_ms
        self._address = address
        self._ports = ports or PortPool(PortRange())
        self._devices = DevicePool(FoundDevices()) if devices is None else devices
        self._reports = ReportSender(store, node)
        self._attempts = Attempts(store.link, store.now_ms, node)
        self._boot = own_boot()
        self._tokens_due_at = monotonic_ms() + _TOKENS_EVERY_MS
        self._own_server = ServerWatch(
            lambda: pid_of_server(store.link), connections=lambda: store.link.connections
        )
        self._actions: dict[type[Any], Callable[[Any], AgentEvent | None]] = {
            ReadClaimedPods: self._read_claimed,
            PostClaims: self._post_claims,
            ReadGangs: self._read_gangs,
            RenewLeases: self._renew,
            ReadStops: self._read_stops,
            ReportEnds: self._report_ends,
            ReadEndedPods: self._read_ended,
            ReadDueEnds: self._read_due,
            ConcludeEnds: self._conclude,
            ForgetPods: self._forget,
            EndLeases: self._end_leases,
            ReadRunningPods: self._read_running,
            PostReport: self._post_report,
            WritePeers: self._write_peers,
        }

    def carry_out(self, instruction: OnServer) -> AgentEvent | None:
        """Carry out an instruction, and return the event that answers it, if one does."""
        return self._actions[type(instruction)](instruction)

    def server(self) -> OwnServer | None:
        """Return the server's process, if it is on this machine and known."""
        return self._own_server.known()

    def read_node(self, known: Collection[str]) -> NodePodsRead:
        """Return what the server has on the node; `known` are the uids that the agent knows."""
        server_now_ms = self._store.now_ms()
        self._own_server.heard()
        pods = self._store.pods_on(self._node, known)
        ends = [one for one in self._reports.pending() if isinstance(one, Ended)]
        leased = self._store.alive.leased(self._node)
        return NodePodsRead(
            now_ms=monotonic_ms(),
            server_now_ms=server_now_ms,
            pods=pods,
            reported=frozenset(one.subject for one in ends),
            leased=tuple(PodAttempt(uid, number) for uid, number in leased),
        )

    def _read_claimed(self, instruction: ReadClaimedPods) -> AgentEvent:
        pods = pods_of(instruction.pods, self._store.get_many("Pod", instruction.pods))
        return ClaimedPodsRead(now_ms=monotonic_ms(), pods=pods)

    def _post_claims(self, instruction: PostClaims) -> AgentEvent:
        asked_at = monotonic_ms()
        posted: list[tuple[StartClaim, str, str]] = []
        answers: list[ClaimAnswer] = []
        for claim, fence, name in instruction.claims:
            attempt = PodAttempt(claim.pod, claim.attempt)
            devices = self._devices.take(attempt, instruction.devices.get(attempt, {}))
            if devices is None:
                answers.append(ClaimAnswer(attempt=attempt, word="no devices"))
                continue
            count = instruction.ports.get(attempt, 0)
            ports = self._ports.take(attempt, count) if count else ()
            if count and not ports:
                answers.append(ClaimAnswer(attempt=attempt, word="no ports"))
                continue
            if ports:
                claim = structs.replace(claim, address=self._address, ports=ports)
            if devices:
                ids = tuple(one.id for one in devices)
                claim = structs.replace(claim, devices=ids)
            posted.append((claim, fence, name))
        answers += self._post(posted)
        return ClaimsPosted(now_ms=monotonic_ms(), asked_at=asked_at, answers=tuple(answers))

    def _post(self, claims: Sequence[tuple[StartClaim, str, str]]) -> list[ClaimAnswer]:
        if not claims:
            return []
        for claim, _, _ in claims:
            self._write_run_file(claim)
        renewals, groups = self._attempts.claim(
            [(claim, fence) for claim, fence, _ in claims],
            list(dict.fromkeys(name for _, _, name in claims)),
            self._lease_ms,
        )
        # Before the pods start: the server may be away from then on, until after their leases.
        self._own_server.heard()
        return [
            ClaimAnswer(
                attempt=PodAttempt(claim.pod, claim.attempt),
                word=renewal.word,
                reason=renewal.reason,
                is_running=renewal.is_running,
                group=groups.get(name),
                ports=claim.ports,
                devices=claim.devices,
            )
            for (claim, _, name), renewal in zip(claims, renewals, strict=True)
        ]

    def _read_gangs(self, instruction: ReadGangs) -> AgentEvent:
        found = self._store.get_many("PodGroup", instruction.groups)
        groups = {key: one for key, one in found.items() if isinstance(one, PodGroup)}
        # After the groups: a gang that is complete then may have lost a pod by now.
        uids = [uid for one in groups.values() if is_complete(one) for uid in uids_of_gang(one)]
        pods = pods_of(uids, self._store.get_many("Pod", uids)) if uids else {}
        return GangsRead(now_ms=monotonic_ms(), groups=groups, pods=pods)

    def _write_peers(self, instruction: WritePeers) -> None:
        attempt = instruction.attempt
        try:
            self._files.rewrite_peers(attempt.pod, attempt.attempt, instruction.peers)
        except OSError as trouble:
            # The gang is read again before long.
            log.warning("peers not written", pod=attempt.pod, trouble=str(trouble))

    def _write_run_file(self, claim: StartClaim) -> None:
        """Write a run file: it tells the next agent that no other machine runs the attempt."""
        run = RunFile(
            pod=claim.pod, attempt=claim.attempt, horse=0, horse_started_ms=0, boot=self._boot
        )
        self._files.write(run)

    def _renew(self, instruction: RenewLeases) -> AgentEvent:
        attempts, asked_at = instruction.attempts, monotonic_ms()
        try:
            renewals = self._store.alive.renew_all(self._node, attempts, self._lease_ms)
        except StoreUnavailable as trouble:
            self._own_server.lost(refused=trouble.lasts)
            raise
        self._own_server.heard()
        if asked_at >= self._tokens_due_at:
            self._tokens_due_at = asked_at + _TOKENS_EVERY_MS
            # Pods with a token are few, and their tokens are kept for much longer.
            with suppress(StoreUnavailable):
                self._keep_tokens([attempt for attempt, _ in attempts])
        answers = answers_of(attempts, renewals)
        return LeasesRenewed(now_ms=monotonic_ms(), asked_at=asked_at, answers=answers)

    def _keep_tokens(self, attempts: Sequence[PodAttempt]) -> None:
        """Keep the digests of the tokens of attempts that run. Raises StoreUnavailable."""
        for attempt in attempts:
            run = self._files.read(attempt.pod, attempt.attempt)
            if run is not None and run.token and run.outcome is None:
                self._store.alive.put_token(self._node, attempt, run.token)

    def _read_stops(self, instruction: ReadStops) -> AgentEvent:
        renewals = self._store.alive.look(instruction.attempts)
        return StopsRead(now_ms=monotonic_ms(), answers=answers_of(instruction.attempts, renewals))

    def _post_report(self, instruction: PostReport) -> None:
        self._reports.post(instruction.report)

    def _report_ends(self, instruction: ReportEnds) -> AgentEvent:
        ends = [AttemptEnd(report=end.report, result=end.result) for end in instruction.ends]
        attempts = tuple(PodAttempt(one.report.pod, one.report.attempt) for one in ends)
        for attempt in attempts:
            # None of its processes is left, and the next pod may come as soon as its end is known.
            self._devices.give_back(attempt)
            self._send_unsent(attempt)
        self._attempts.end(ends)
        for end in instruction.ends:
            if end.replaces_horse:
                stopped = end.report.outcome.stopped
                log.warning("pod ended for its work-horse", pod=end.report.pod, stopped=stopped)
        return EndsReported(now_ms=monotonic_ms(), attempts=attempts)

    def _send_unsent(self, attempt: PodAttempt) -> None:
        """Send the output that a work-horse could not send."""
        uid, number = attempt.pod, attempt.attempt
        path = self._files.unsent_file(uid, number)
        if os.path.exists(path):  # noqa: PTH110 - runs for each pod; pathlib is slower
            send_unsent(
                Path(path),
                lambda stream, data: self._store.append_log(self._node, uid, number, stream, data),
            )

    def _read_ended(self, instruction: ReadEndedPods) -> AgentEvent:
        pods = pods_of(instruction.pods, self._store.get_many("Pod", instruction.pods))
        return EndedPodsRead(now_ms=monotonic_ms(), pods=pods)

    def _read_due(self, instruction: ReadDueEnds) -> AgentEvent:
        attempts = instruction.attempts
        # Before the pods: a claim that is applied in between then shows in one of the two.
        posted = self._posted() if instruction.is_unexplained else frozenset()
        uids = list(dict.fromkeys(attempt.pod for attempt in attempts))
        pods = pods_of(uids, self._store.get_many("Pod", uids))
        leases = self._leases_ms(attempts) if instruction.is_unexplained else {}
        records = {attempt: self.record_of(attempt) for attempt in attempts}
        return DueEndsRead(
            now_ms=monotonic_ms(),
            attempts=attempts,
            posted=posted,
            pods=pods,
            leases_ms=leases,
            records={attempt: one for attempt, one in records.items() if one is not None},
        )

    def _posted(self) -> frozenset[str]:
        pending = self._reports.pending()
        return frozenset(one.subject for one in pending if isinstance(one, StartClaim | Ended))

    def _leases_ms(self, attempts: Sequence[PodAttempt]) -> dict[PodAttempt, int]:
        leases = leases_of(self._store.alive.read([self._node]))
        now_ms = self._store.now_ms()
        return {
            one: leases.get((self._node, one.pod, one.attempt), now_ms) - now_ms for one in attempts
        }

    def record_of(self, attempt: PodAttempt) -> EndRecord | None:
        """Return what the work-horse of an attempt has written; None if nothing is left."""
        run = self._files.read(attempt.pod, attempt.attempt)
        if run is None:
            return None
        return EndRecord(outcome=run.outcome, result=run.result, hands_over=run.hands_over)

    def _conclude(self, instruction: ConcludeEnds) -> AgentEvent:
        for attempt in instruction.unsent:
            self._send_unsent(attempt)
            record = self.record_of(attempt)
            if record is not None and record.result is not None:
                self._store.put_result(self._node, attempt.pod, attempt.attempt, record.result)
        self._attempts.end_leases([attempt.id for attempt in instruction.attempts])
        return EndsConcluded(now_ms=monotonic_ms(), attempts=instruction.attempts)

    def _forget(self, instruction: ForgetPods) -> None:
        for attempt in instruction.attempts:
            self._ports.give_back(attempt)
            self._devices.give_back(attempt)
        self._files.forget_each(instruction.attempts)

    def _end_leases(self, instruction: EndLeases) -> None:
        self._attempts.end_leases([attempt.id for attempt in instruction.attempts])

    def _read_running(self, instruction: ReadRunningPods) -> AgentEvent:
        # The server may have lost them.
        self._keep_tokens(instruction.attempts)
        runs = [self._files.read(one.pod, one.attempt) for one in instruction.attempts]
        # An attempt whose command has not started starts nothing before the server knows of it.
        started = [
            StartedRun(
                attempt=PodAttempt(run.pod, run.attempt),
                author=author_of(self._author, run.horse),
                started_at=run.started_at,
            )
            for run in runs
            if run is not None and run.group != 0 and run.outcome is None
        ]
        uids = [one.attempt.pod for one in started]
        pods = pods_of(uids, self._store.get_many("Pod", uids)) if uids else {}
        return RunningPodsRead(
            now_ms=monotonic_ms(), run=instruction.run, pods=pods, runs=tuple(started)
        )


def answers_of(attempts: FencedAttempts, renewals: Sequence[Renewal]) -> tuple[AttemptAnswer, ...]:
    """Return the answer about each attempt."""
    return tuple(
        AttemptAnswer(
            attempt=attempt,
            word=renewal.word,
            reason=renewal.reason,
            is_running=renewal.is_running,
        )
        for (attempt, _), renewal in zip(attempts, renewals, strict=True)
    )
