"""The shell of an agent in virtual time, around the state machine of the real agent.

It carries out the machine's instructions over a line that may fail, and keeps the real heartbeat
(`batchq.worker.agent.node.Membership`). The order of its steps is that of the real agent's loop.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, structs

from batchq.api.lifecycle import PodPhase
from batchq.api.node_report import Ended, PodAttempt, StartClaim
from batchq.api.objects import Pod, PodGroup
from batchq.errors import InvariantBroken, StoreUnavailable
from batchq.ports import Clock
from batchq.worker.agent import messages
from batchq.worker.agent.node import Membership, NodeOffer
from batchq.worker.agent.pod_reports import answers_of
from batchq.worker.agent.pod_states import Paces, patience_ms, pods_of
from batchq.worker.agent.state_machine import AgentState
from batchq.worker.host.device_pool import DevicePool
from batchq.worker.host.gpu_tools import FoundDevices
from batchq.worker.host.node_resources import FIRST_PORT
from batchq.worker.rendezvous import is_complete, uids_of_gang
from batchq.worker.workhorse.leases import VoucherTable
from tests.faults.horses import Horse
from tests.faults.machines import Machine
from tests.faults.pulls import Pulls
from tests.faults.server import FaultyStore

#: No process has such a pid, so another agent on this machine counts as dead.
_NO_PID = 10**9
_SLOTS, _LAUNCHES_PER_TURN = 64, 8
ADDRESS = "127.0.0.1"
RUNTIMES = {"batchq/runtime-podman": "yes"}
PACES = Paces(
    check_first_ms=200,
    check_max_ms=1_000,
    renew_parts=6,
    patience_ms=30_000,
    pull_again_ms=1_000,
)


class AgentPaces(Struct, frozen=True, kw_only=True):
    """Intervals of an agent's periodic work, and the length of a lease; milliseconds."""

    lease_ms: int = 12_000
    beat_ms: int = 4_000
    look_ms: int = 1_000
    leases_ms: int = 3_000
    reconcile_ms: int = 10_000
    drain_timeout_ms: int = 5_000
    #: How long a stopping agent waits for a leader to apply its withdrawal.
    leave_ms: int = 3_000


class Agent:
    """The agent of one node."""

    def __init__(
        self,
        store: FaultyStore,
        machine: Machine,
        clock: Clock,
        *,
        number: int,
        paces: AgentPaces,
        hire: Callable[[Agent, messages.StartPod], Horse],
        stopped: Callable[[Agent, int], None],
        say: Callable[[str], None],
    ) -> None:
        self.identity = f"{socket.gethostname()}:{_NO_PID + number}:1"
        self.machine = machine
        self.alive = True
        self.due_at = clock.now_ms()
        self._store = store
        self._clock = clock
        self._paces = paces
        self._hire = hire
        self._stopped = stopped
        #: The number of signals that ask the agent to stop, and how long the node is then without
        #: one.
        self._signals = self._back_after_ms = 0
        self._leave_by: int | None = None
        self._say = say
        self._exits: list[messages.HorseEnd] = []
        self._has_begun = self._has_heard_of_stops = False
        self._away_until = self._beat_at = self._settle_at = self._reconcile_at = 0
        self._leases_at = 0
        #: The pods that the next late notification carries, and whether the next one is late.
        self._carried: tuple[Pod, ...] = ()
        self._is_late = False
        self._last_port = FIRST_PORT
        self._own_server = store.watch()
        self._new_state()

    def _new_state(self) -> None:
        """Start over, as a new process does."""
        node = self.machine.name
        self.vouchers = VoucherTable(2 * _SLOTS)
        self._pulls = Pulls(self.machine)
        self.state = AgentState(
            node=node,
            author=self.identity,
            slots=_SLOTS,
            lease_ms=self._paces.lease_ms,
            address=ADDRESS,
            drain_timeout_ms=self._paces.drain_timeout_ms,
            paces=PACES,
        )
        self._devices = DevicePool(FoundDevices(), declared=self.machine.resources)
        self._member = Membership(
            self._store,  # type: ignore[arg-type]  # it has the methods that are used
            NodeOffer(name=node, resources=dict(self.machine.resources), labels=RUNTIMES),
            identity=self.identity,
            beat_ms=self._paces.beat_ms,
        )

    def notify(self, *, stops: bool = False) -> None:
        """Receive a wake-up: pods were delivered or are to stop, or a work-horse has ended."""
        self._has_heard_of_stops |= stops
        self.due_at = self._clock.now_ms()

    def stop(self, back_after_ms: int) -> None:
        """Receive a signal; `back_after_ms` after its end the node gets another agent."""
        self._signals += 1
        self._back_after_ms = back_after_ms
        self.notify()

    def horse_ended(self, end: messages.HorseEnd) -> None:
        """Note the end of a work-horse, a child of this process."""
        self._exits.append(end)
        self.notify()

    def step(self) -> None:
        """Do the work that is due now."""
        now_ms = self._clock.now_ms()
        if not self._has_begun:
            self._has_begun = self._succeeds(self._begin)
            if not self._has_begun:
                self._new_state()
                self.due_at = now_ms + self._paces.look_ms
                return
        for pulled in self._pulls.ended(now_ms):
            self._tell(pulled)
        self._hear_of_claims(now_ms)
        if now_ms >= self._away_until and not self._succeeds(self._claim_and_launch):
            self._away_until = now_ms + self._paces.look_ms
        if self._has_heard_of_stops:
            self._has_heard_of_stops = False
            self._succeeds(lambda: self._tell(messages.StopsAnnounced(now_ms=now_ms)))
        self._collect()
        self._do_periodic(now_ms)
        if self._signals:
            self._drain(now_ms)
        self.state.check()
        self._pulls.check(self.state)
        self._plan(now_ms)

    def _hear_of_claims(self, now_ms: int) -> None:
        """Receive the pods that run, as a notification carries them; every other one is late."""
        carried = self._store.carried(sorted(self.state.known_pods()))
        late, self._carried = self._carried, carried
        self._is_late = not self._is_late
        pods = late if self._is_late else carried
        running = tuple(pod for pod in pods if pod.status.phase == PodPhase.RUNNING)
        if running:
            event = messages.ClaimsApplied(now_ms=now_ms, pods=running)
            self._succeeds(lambda: self._tell(event))

    def _succeeds(self, do: Callable[[], object]) -> bool:
        try:
            do()
        except StoreUnavailable:
            return False
        return True

    def _plan(self, now_ms: int) -> None:
        """Deliveries and ends of work-horses wake the agent, so it need not look for them."""
        due = [self._beat_at, self._reconcile_at, *self._pulls.next_at()]
        if self.state.running() or self.state.next_check_at() is not None:
            due.append(self._leases_at)
        if self.state.ended() or self._signals:
            due.append(self._settle_at)
        if (check_at := self.state.next_check_at()) is not None:
            due.append(max(check_at, self._away_until))
        if self._away_until > now_ms:
            due.append(self._away_until)
        self.due_at = max(now_ms + 1, min(due))

    def _begin(self) -> None:
        self._member.refuse_if_served()
        former = tuple(sorted(self.machine.records, key=lambda one: one.id))
        self._tell(messages.FormerPodsFound(now_ms=self._clock.now_ms(), attempts=former))
        self._tell(messages.EndsDue(now_ms=self._clock.now_ms()))
        for attempt in former:
            if attempt not in self.state:
                self.machine.records.pop(attempt, None)
        self._reconcile()
        self._tell(messages.ServerAnswered(now_ms=self._clock.now_ms(), run=self._store.run_id()))
        self._store.beat(self.machine.name, self.state.known_to)
        self._member.register()

    def _claim_and_launch(self) -> None:
        now_ms = self._clock.now_ms()
        most = min(self.state.free(), _LAUNCHES_PER_TURN)
        if most and not self.state.is_draining:
            taken = self._store.take(self.machine.name, most)
            pods = self._store.get_many("Pod", [one.pod for one in taken]) if taken else {}
            found = pods_of([one.pod for one in taken], pods)
            deliveries = tuple(
                messages.DeliveredPod(attempt=one, pod=found[one.pod]) for one in taken
            )
            if deliveries:
                self._tell(messages.PodsDelivered(now_ms=now_ms, deliveries=deliveries))
        self._tell(messages.ClaimsDue(now_ms=now_ms))

    def _collect(self) -> None:
        ends, self._exits = tuple(self._exits), []
        for end in ends:
            if end.exit_code == 0 and (end.record is None or end.record.outcome is not None):
                self._devices.give_back(end.attempt)
        if ends:
            event = messages.HorsesEnded(now_ms=self._clock.now_ms(), ends=ends)
            self._succeeds(lambda: self._tell(event))

    def _do_periodic(self, now_ms: int) -> None:
        if now_ms >= self._leases_at:
            self._succeeds(self._renew_leases)
            self._leases_at = now_ms + self._paces.leases_ms
        if now_ms >= self._beat_at:
            is_known = self._succeeds(self._beat) and self._is_known
            self._beat_at = now_ms + (self._paces.beat_ms if is_known else self._paces.look_ms)
        if now_ms >= self._settle_at:
            self._devices.keep(self.state)
            self._succeeds(lambda: self._tell(messages.EndsDue(now_ms=now_ms)))
            self._settle_at = now_ms + self._paces.look_ms
        if now_ms >= self._reconcile_at:
            has_reconciled = self._succeeds(self._reconcile)
            pace_ms = self._paces.reconcile_ms if has_reconciled else self._paces.look_ms
            self._reconcile_at = now_ms + pace_ms

    def _renew_leases(self) -> None:
        now_ms = self._clock.now_ms()
        since_ms = now_ms - patience_ms(self._paces.lease_ms)
        silent = frozenset(
            attempt
            for attempt, horse in self.machine.horses.items()
            if horse.voucher.seen_at < since_ms
        )
        self.vouchers.tick(now_ms, self._own_server.known())
        self._tell(messages.LeasesDue(now_ms=now_ms, silent=silent))

    def _beat(self) -> None:
        self._is_known = False
        run = self._store.run_id()
        self._tell(messages.ServerAnswered(now_ms=self._clock.now_ms(), run=run))
        self._member.beat(ready=not self.state.is_draining, run=self.state.known_to)
        self._is_known = run == self.state.known_to

    def _reconcile(self) -> None:
        now_ms, node = self._clock.now_ms(), self.machine.name
        self._own_server.heard()
        pods = self._store.pods_on(node)
        ends = [one for one in self._store.pending(node) if isinstance(one, Ended)]
        event = messages.NodePodsRead(
            now_ms=now_ms,
            server_now_ms=now_ms,
            pods=pods,
            reported=frozenset(one.subject for one in ends),
            leased=self._store.leased(node),
        )
        self._tell(event)

    def _drain(self, now_ms: int) -> None:
        self._tell(messages.SignalsReceived(now_ms=now_ms, count=self._signals))
        is_announced = self._succeeds(self._withdraw) and not self.state.ended()
        if not self.state.is_drained:
            return
        if self._leave_by is None:
            self._leave_by = now_ms + self._paces.leave_ms
        if is_announced or now_ms >= self._leave_by:
            self._say(f"the agent of {self.machine.name} has stopped")
            self.alive = self.machine.agent_lives = False
            self._stopped(self, self._back_after_ms)

    def _withdraw(self) -> None:
        if not self._member.withdraw():
            raise StoreUnavailable("no leader has withdrawn the node yet")
        pods = self._store.pods_on(self.machine.name)
        self._tell(messages.UnstartedPodsRead(now_ms=self._clock.now_ms(), pods=pods))

    def _tell(self, event: messages.AgentEvent) -> None:
        self.state.drive(event, self._carry_out)

    def _carry_out(self, instruction: messages.Instruction) -> messages.AgentEvent | None:
        match instruction:
            case messages.DeclinePod(attempt, why):
                self._say(f"{self.machine.name} declines {attempt.id}: {why}")
            case messages.IgnoreDelivery(attempt):
                self._say(f"{self.machine.name} has {attempt.id} already")
            case messages.PullImage() | messages.StopPull():
                return self._carry_out_pull(instruction)
            case messages.VouchFor() | messages.StopPod() | messages.DisownPod():
                self._tell_horses(instruction)
            case (
                messages.StartPod()
                | messages.StopHorses()
                | messages.EndProcesses()
                | messages.ForgetPods()
            ):
                return self._carry_out_here(instruction)
            case (
                messages.PostClaims()
                | messages.RenewLeases()
                | messages.ReadStops()
                | messages.ReadClaimedPods()
                | messages.ReadGangs()
            ):
                return self._carry_out_claim(instruction)
            case messages.PostReport(report):
                self._store.post(self.machine.name, report)
            case messages.EnqueuePods(attempts):
                if attempts:
                    self._store.enqueue(self.machine.name, attempts)
            case messages.WritePeers():
                pass
            case messages.EndLeases(attempts):
                self._end_leases(attempts)
            case _:
                return self._carry_out_end(instruction)
        return None

    def _end_leases(self, attempts: Sequence[PodAttempt]) -> None:
        if running := self.state.running().intersection(attempts):
            raise InvariantBroken(f"{self.machine.name} ends leases of what runs there: {running}")
        self._store.end_leases(self.machine.name, attempts)

    def _carry_out_pull(
        self, instruction: messages.PullImage | messages.StopPull
    ) -> messages.AgentEvent | None:
        if isinstance(instruction, messages.PullImage):
            # The real agent reads the group.
            pod = instruction.pod
            self._store.get_many("PodGroup", [f"{pod.metadata.namespace}/{pod.spec.pod_group}"])
        return self._pulls.carry_out(instruction, self._clock.now_ms())

    def _tell_horses(
        self, instruction: messages.VouchFor | messages.StopPod | messages.DisownPod
    ) -> None:
        horses = self.machine.horses
        match instruction:
            case messages.VouchFor(attempts, asked_at):
                for attempt in attempts:
                    if attempt in horses:
                        horses[attempt].voucher.renew(asked_at=asked_at)
            case messages.StopPod(attempt, reason):
                if attempt in horses:
                    horses[attempt].voucher.stop(reason)
                    horses[attempt].wake()
            case messages.DisownPod(attempt):
                if attempt in horses:
                    horses[attempt].voucher.disown()
                    horses[attempt].wake()

    def _carry_out_here(
        self,
        instruction: messages.StartPod
        | messages.StopHorses
        | messages.EndProcesses
        | messages.ForgetPods,
    ) -> messages.AgentEvent | None:
        match instruction:
            case messages.StartPod():
                self.vouchers.tick(self._clock.now_ms(), self._own_server.known())
                self._hire(self, instruction).begin()
            case messages.StopHorses(kills):
                for horse in list(self.machine.horses.values()):
                    horse.stop(kills=kills)
            case messages.EndProcesses(attempts):
                now_ms = self._clock.now_ms()
                return messages.ProcessesEnded(now_ms=now_ms, attempts=attempts, are_left=False)
            case messages.ForgetPods(attempts):
                for attempt in attempts:
                    self._devices.give_back(attempt)
                    self.machine.records.pop(attempt, None)
        return None

    def _carry_out_claim(
        self,
        instruction: messages.PostClaims
        | messages.RenewLeases
        | messages.ReadStops
        | messages.ReadClaimedPods
        | messages.ReadGangs,
    ) -> messages.AgentEvent:
        now_ms = self._clock.now_ms()
        until_ms = now_ms + self._paces.lease_ms
        match instruction:
            case messages.ReadClaimedPods(uids):
                found = self._store.get_many("Pod", uids)
                return messages.ClaimedPodsRead(now_ms=now_ms, pods=pods_of(uids, found))
            case messages.RenewLeases(attempts):
                answers = self._renew(attempts, until_ms)
                return messages.LeasesRenewed(now_ms=now_ms, asked_at=now_ms, answers=answers)
            case messages.ReadStops(attempts):
                return messages.StopsRead(
                    now_ms=now_ms, answers=answers_of(attempts, self._store.look(attempts))
                )
            case messages.ReadGangs(keys):
                return self._read_gangs(keys)
            case messages.PostClaims():
                return self._post_claims(instruction, until_ms)

    def _renew(
        self, attempts: messages.FencedAttempts, until_ms: int
    ) -> tuple[messages.AttemptAnswer, ...]:
        try:
            renewals = self._store.renew_all(self.machine.name, attempts, until_ms)
        except StoreUnavailable:
            self._own_server.lost()
            raise
        self._own_server.heard()
        return answers_of(attempts, renewals)

    def _read_gangs(self, keys: Sequence[str]) -> messages.AgentEvent:
        found = self._store.get_many("PodGroup", keys)
        groups = {key: one for key, one in found.items() if isinstance(one, PodGroup)}
        uids = [uid for one in groups.values() if is_complete(one) for uid in uids_of_gang(one)]
        pods = pods_of(uids, self._store.get_many("Pod", uids))
        return messages.GangsRead(now_ms=self._clock.now_ms(), groups=groups, pods=pods)

    def _post_claims(self, instruction: messages.PostClaims, until_ms: int) -> messages.AgentEvent:
        claims: list[tuple[StartClaim, str, str]] = []
        lacking: list[messages.ClaimAnswer] = []
        for claim, fence, name in instruction.claims:
            attempt = PodAttempt(claim.pod, claim.attempt)
            devices = self._devices.take(attempt, instruction.devices.get(attempt, {}))
            if devices is None:
                lacking.append(messages.ClaimAnswer(attempt=attempt, word="no devices"))
                continue
            stated = structs.replace(claim, devices=tuple(one.id for one in devices))
            claims.append((self._with_ports(stated, instruction.ports), fence, name))
        for claim, _, _ in claims:
            self.machine.records[PodAttempt(claim.pod, claim.attempt)] = messages.EndRecord()
        renewals, groups = self._store.claim(self.machine.name, claims, until_ms)
        self._own_server.heard()
        answers = tuple(lacking) + tuple(
            messages.ClaimAnswer(
                attempt=PodAttempt(claim.pod, claim.attempt),
                word=renewal.word,
                reason=renewal.reason,
                is_running=renewal.is_running,
                group=groups.get(name),
                ports=claim.ports,
                devices=claim.devices,
            )
            for (claim, _, name), renewal in zip(claims, renewals, strict=True)
        )
        now_ms = self._clock.now_ms()
        return messages.ClaimsPosted(now_ms=now_ms, asked_at=now_ms, answers=answers)

    def _with_ports(self, claim: StartClaim, ports: Mapping[PodAttempt, int]) -> StartClaim:
        """Return the claim with ports for its pod, other ones for each attempt."""
        count = ports.get(PodAttempt(claim.pod, claim.attempt), 0)
        if not count:
            return claim
        self._last_port += count
        last = self._last_port
        return structs.replace(
            claim, address=ADDRESS, ports=tuple(range(last - count + 1, last + 1))
        )

    def _carry_out_end(self, instruction: messages.Instruction) -> messages.AgentEvent:
        now_ms, node = self._clock.now_ms(), self.machine.name
        match instruction:
            case messages.ReportEnds(ends):
                reports = [end.report for end in ends]
                attempts = tuple(PodAttempt(one.pod, one.attempt) for one in reports)
                for attempt in attempts:
                    self._devices.give_back(attempt)
                self._store.end(node, reports)
                return messages.EndsReported(now_ms=now_ms, attempts=attempts)
            case messages.ReadEndedPods(uids):
                found = self._store.get_many("Pod", uids)
                return messages.EndedPodsRead(now_ms=now_ms, pods=pods_of(uids, found))
            case messages.ReadRunningPods():
                return self._read_running(instruction)
            case messages.ReadDueEnds(attempts, is_unexplained):
                return self._read_due(attempts, is_unexplained=is_unexplained)
            case messages.ConcludeEnds(attempts, _):
                self._store.end_leases(node, attempts)
                return messages.EndsConcluded(now_ms=now_ms, attempts=attempts)
            case _:
                raise AssertionError(f"unknown: {instruction}")

    def _read_due(
        self, attempts: tuple[PodAttempt, ...], *, is_unexplained: bool
    ) -> messages.AgentEvent:
        now_ms, node, records = self._clock.now_ms(), self.machine.name, self.machine.records
        pending = self._store.pending(node) if is_unexplained else ()
        uids = [attempt.pod for attempt in attempts]
        found = self._store.get_many("Pod", uids)
        leases = self._store.leases(node) if is_unexplained else {}
        return messages.DueEndsRead(
            now_ms=now_ms,
            attempts=attempts,
            posted=frozenset(one.subject for one in pending if isinstance(one, StartClaim | Ended)),
            pods=pods_of(uids, found),
            leases_ms={one: leases.get(one, now_ms) - now_ms for one in attempts},
            records={one: records[one] for one in attempts if one in records},
        )

    def _read_running(self, instruction: messages.ReadRunningPods) -> messages.AgentEvent:
        horses = self.machine.horses
        found = [horses[one].runs() for one in instruction.attempts if one in horses]
        runs = tuple(
            messages.StartedRun(
                attempt=PodAttempt(one.pod, one.attempt),
                author=one.author,
                started_at=one.started_at,
            )
            for one in found
            if one is not None
        )
        uids = [one.attempt.pod for one in runs]
        pods = pods_of(uids, self._store.get_many("Pod", uids)) if uids else {}
        now_ms = self._clock.now_ms()
        return messages.RunningPodsRead(now_ms=now_ms, run=instruction.run, pods=pods, runs=runs)
