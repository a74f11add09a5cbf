"""A whole cluster in one process and virtual time: schedulers, agents, work-horses, a client, and
one server with unreliable connections.

Events happen one at a time, in an order that only the inputs determine; the invariant checker runs
after each. After the faults the cluster must come to rest without help, with every group ended as
its author intended.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from msgspec import Struct

from batchq.api.node_report import PodAttempt
from batchq.api.notation import HOUR, MINUTE
from batchq.api.objects import Pod
from batchq.api.transaction import CAPACITY
from batchq.assembly import assemble
from batchq.client.changes import create, found_defaults
from batchq.errors import InvariantBroken
from batchq.lab.simulation.world import CountedIds, VirtualClock
from batchq.worker.agent.messages import StartPod
from tests.faults.agents import Agent, AgentPaces
from tests.faults.checker import InvariantChecker, unrest
from tests.faults.horses import Horse, HorsePaces
from tests.faults.machines import Machine, Truth
from tests.faults.processes import Client, SchedulerProcess
from tests.faults.scenario import (
    CrashNode,
    Cut,
    DropDeliveries,
    KillAgent,
    KillHorse,
    KillScheduler,
    Outage,
    PauseAgent,
    PauseHorse,
    PauseNode,
    PauseScheduler,
    PauseServer,
    RepeatDeliveries,
    RestartServer,
    Scenario,
    StopAgent,
)
from tests.faults.server import FaultyStore, Server
from tests.faults.store_faults import Line, Mode, never

MOST_EVENTS = 50_000
#: Time after the last fault; covers the longest back-off and a few timeouts.
REST_WITHIN_MS = 2 * HOUR

Say: TypeAlias = Callable[[str], None]

#: The time of an event, and the event.
Due: TypeAlias = tuple[int, Callable[[], None]]
_NOTHING: Due = (2**62, lambda: None)


class Ended(Struct, frozen=True, kw_only=True):
    """The end of a run."""

    phases: dict[str, str]
    granted: dict[str, bool]
    #: Number of pods told to stop, by reason.
    stopped: dict[str, int]
    events: int
    starts: int
    rested_at: int
    #: Caller -> the number of its calls, and which of them were writes.
    calls: dict[str, tuple[int, tuple[int, ...]]]


class Cluster:
    """One run of a Scenario; owns everything in it."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        say: Say | None = None,
        rest_within_ms: int = REST_WITHIN_MS,
    ) -> None:
        self._rest_within_ms = rest_within_ms
        self.clock = VirtualClock(1_000)
        self._scenario = scenario
        self._tell = say
        self._checker = InvariantChecker(scenario.config.settings)
        self._ids = CountedIds()
        self._config = scenario.config
        self.server = Server(
            self.clock,
            witness=self._checker.witness,
            bell=self._ring,
            is_beside_agents=scenario.beside_server,
        )
        self.lines: dict[str, Line] = {}
        self._truth = Truth(self.clock, dict(scenario.scripts))
        if scenario.beside_server:
            self._checker.must_keep = self._truth.has_started
        self._late: list[tuple[int, int, Callable[[], object]]] = []
        self._count = 0
        self._events = 0
        self._copies: list[tuple[int, Server]] = []
        self._frozen: dict[str, int] = {}
        self._stopped: dict[str, int] = {}
        self._calm = False
        self._never_back: set[str] = set()
        self._returns: list[tuple[int, str]] = []
        self._granted: dict[str, bool] = {}
        self._faults = sorted(scenario.faults, key=lambda fault: fault.at)
        self._found()
        self.machines = {
            name: Machine(name, dict(resources), self._truth)
            for name, resources in scenario.nodes.items()
        }
        self.schedulers: dict[str, SchedulerProcess] = {}
        self.agents: dict[str, Agent] = {}
        for name in ("scheduler a", "scheduler b"):
            self._start_scheduler(name)
        for name in self.machines:
            self._start_agent(name)
        self.client = Client(
            self._store("client"),
            self.clock,
            self._ids,
            list(scenario.requests),
            answered=self._answered,
            say=self._say,
        )

    def run(self) -> Ended:
        """Run until everything is at rest. Raises InvariantBroken, also if the cluster never comes
        to rest.
        """
        while not self._is_at_rest():
            self._events += 1
            if self._events > MOST_EVENTS:
                raise InvariantBroken(f"no rest after {MOST_EVENTS} events: {self._unrest()}")
            at, act = self._next()
            if at > self._scenario.chaos_ends_at + self._rest_within_ms:
                minutes = self._rest_within_ms // MINUTE
                raise InvariantBroken(f"no rest within {minutes} minutes: {self._unrest()}")
            self.clock.jump_to(max(at, self.clock.now_ms()))
            act()
            self._checker.look(self.server)
            self._checker.look_at_processes(
                self.server, self._truth.processes(), self.clock.now_ms()
            )
        self._check_what_is_left()
        return Ended(
            phases={
                group.metadata.name: str(group.status.phase)
                for group in self.server.store.snapshot().groups
            },
            granted=self._granted,
            stopped=dict(self._checker.stopped),
            events=self._events,
            starts=self._truth.starts,
            rested_at=self.clock.now_ms(),
            calls={name: (line.calls, tuple(line.writes)) for name, line in self.lines.items()},
        )

    def _found(self) -> None:
        store = self.server.store
        transactions = [found_defaults(store, now_ms=0, uid="0")]
        transactions += [create(store, item, now_ms=0, uid="") for item in self._scenario.objects]
        for transaction in transactions:
            if transaction is not None:
                store.commit([transaction], request_id=self._ids.new_uid())

    def _line(self, caller: str) -> Line:
        if caller not in self.lines:
            self.lines[caller] = Line(
                caller,
                self.clock,
                plan=self._scenario.plans.get(caller),
                chance=never if self._calm else self._scenario.chance(caller),
                later=self._later,
                say=self._say,
            )
        return self.lines[caller]

    def _store(self, caller: str) -> FaultyStore:
        return FaultyStore(self.server, self._line(caller))

    def _start_scheduler(self, name: str) -> None:
        self._count += 1
        self._line(name).begin()
        self.schedulers[name] = SchedulerProcess(
            f"{name} {self._count}",
            self._store(name),
            assemble(self._config),
            self.clock,
            self._ids,
            turned=self._turned,
            say=self._say,
        )

    def _start_agent(self, node: str) -> None:
        self._count += 1
        machine = self.machines[node]
        agent = Agent(
            self._store(f"agent {node}"),
            machine,
            self.clock,
            number=self._count,
            paces=AgentPaces(),
            hire=self._hire,
            stopped=self._agent_stopped,
            say=self._say,
        )
        self.agents[node] = agent
        machine.agent_lives, machine.on_horse_end = True, agent.horse_ended

    def _hire(self, agent: Agent, start: StartPod) -> Horse:
        self._count += 1
        node = agent.machine.name
        voucher = agent.vouchers.take()
        assert voucher is not None
        voucher.begin(asked_at=start.lease_from, now_ms=self.clock.now_ms())
        horse = Horse(
            self._store(f"horses {node}"),
            agent.machine,
            self.clock,
            start=start,
            agent=agent.identity,
            author=f"horse {node} {self._count}",
            voucher=voucher,
            paces=HorsePaces(),
            say=self._say,
        )
        agent.machine.horses[start.attempt] = horse
        return horse

    def _say(self, text: str) -> None:
        if self._tell is not None:
            self._tell(f"{self.clock.now_ms():>8} {text}")

    def _ring(self, what: str) -> None:
        if what in ("objects", "facts"):
            for scheduler in self.schedulers.values():
                scheduler.hear()
            return
        word, _, node = what.rpartition(" ")
        agent = self.agents.get(node)
        if agent is not None and agent.alive:
            agent.notify(stops=word == "stops")

    def _turned(self, decided_nothing: bool) -> None:
        if decided_nothing:
            self._checker.look_at_rest(self.server, self.clock.now_ms())

    def _answered(self, what: str, granted: bool) -> None:
        self._granted[what] = granted
        verb, _, name = what.partition(" ")
        if verb == "submit" and granted:
            group = self.server.store.get("PodGroup", f"default/{name}")
            if group is None:
                raise InvariantBroken(f"{name} was acknowledged, and is not there")
            self._checker.promised[group.metadata.uid] = f"default/{name}"

    def _later(self, do: Callable[[], object]) -> None:
        self._count += 1
        self._late.append((self.clock.now_ms() + self._scenario.delay_ms(), self._count, do))
        self._late.sort(key=lambda one: one[:2])

    def _next(self) -> tuple[int, Callable[[], None]]:
        """Return the next event; events of one instant come in the order given here."""
        best = _NOTHING
        for due in (*self._from_outside(), *self._of_processes()):
            if due[0] < best[0]:
                best = due
        return best

    def _from_outside(self) -> list[Due]:
        due: list[Due] = []
        if self._faults:
            due.append((self._faults[0].at, self._next_fault))
        if not self._calm:
            due.append((self._scenario.chaos_ends_at, self._calm_down))
            due.append((self._copies_due_at(), self._copy))
        if self._late:
            due.append((self._late[0][0], self._arrive_late))
        if self._returns:
            due.append((min(self._returns)[0], self._return))
        return due

    def _of_processes(self) -> list[Due]:
        due: list[Due] = [
            (max(one.due_at, self._stopped.get(name, 0)), one.step)
            for name, one in self.schedulers.items()
            if one.alive
        ]
        due.append((self.client.due_at, self.client.step))
        for name, machine in self.machines.items():
            if name in self._frozen:
                due.append((self._frozen[name], partial(self._thaw, name)))
                continue
            agent = self.agents[name]
            if agent.alive:
                due.append((max(agent.due_at, machine.agent_is_stopped_until), agent.step))
            due += [(one.due_at, one.step) for one in machine.horses.values()]
        return due

    def _copies_due_at(self) -> int:
        every_ms = self._scenario.copies_every_ms
        if self._calm or every_ms is None:
            return 2**62
        return (self._copies[-1][0] if self._copies else 0) + every_ms

    def _copy(self) -> None:
        self._copies.append((self.clock.now_ms(), self.server.saved()))

    def _arrive_late(self) -> None:
        _, _, do = self._late.pop(0)
        self._say("a late call arrives")
        do()

    def _next_fault(self) -> None:
        fault = self._faults.pop(0)
        self._say(f"fault: {fault}")
        match fault:
            case KillHorse() | PauseHorse():
                self._harm_horse(fault)
            case KillAgent() | StopAgent() | CrashNode() | PauseNode() | PauseAgent():
                self._harm_node(fault)
            case PauseScheduler() | KillScheduler():
                self._harm_scheduler(fault)
            case DropDeliveries(node=node):
                self.server.queues[node] = []
            case RepeatDeliveries(node=node):
                self.server.enqueue(node, self._attempts_on(node))
            case Cut(caller=caller):
                for name, line in self.lines.items():
                    if name.endswith(caller):
                        line.cut(self.clock.now_ms() + fault.lasts_ms)
            case Outage():
                self._cut_all(fault.lasts_ms)
            case PauseServer():
                self._away(fault.lasts_ms)
            case RestartServer():
                self._restart(fault.lasts_ms, fault.forgets_ms)

    def _harm_horse(self, fault: KillHorse | PauseHorse) -> None:
        living = [
            horse
            for machine in self.machines.values()
            for horse in machine.horses.values()
            if machine.name not in self._frozen
        ]
        if not living:
            return
        horse = living[fault.which % len(living)]
        match fault:
            case KillHorse():
                horse.kill()
            case PauseHorse():
                horse.pause(fault.lasts_ms)

    def _harm_node(self, fault: KillAgent | StopAgent | CrashNode | PauseNode | PauseAgent) -> None:
        match fault:
            case KillAgent():
                self._lose_node(fault.node, fault.back_after_ms, at_once=False)
            case StopAgent():
                self._stop_agent(fault.node, fault.back_after_ms)
            case CrashNode():
                self._lose_node(fault.node, fault.back_after_ms, at_once=True)
            case PauseNode():
                self._freeze(fault.node, fault.lasts_ms)
            case PauseAgent():
                machine = self.machines[fault.node]
                machine.agent_is_stopped_until = self.clock.now_ms() + fault.lasts_ms

    def _harm_scheduler(self, fault: PauseScheduler | KillScheduler) -> None:
        name, now_ms = fault.name, self.clock.now_ms()
        match fault:
            case PauseScheduler():
                self._stopped[name] = now_ms + fault.lasts_ms
                self.lines[name].fail_next(Mode.LATE, in_calls=fault.in_calls)
            case KillScheduler() if self.schedulers[name].alive:
                self.schedulers[name].alive = False
                self._returns.append((now_ms + fault.back_after_ms, name))

    def _lose_node(self, node: str, back_after_ms: int | None, *, at_once: bool) -> None:
        agent = self.agents[node]
        if not agent.alive or node in self._frozen:
            return
        agent.alive = self.machines[node].agent_lives = False
        self.machines[node].agent_is_stopped_until = 0
        for horse in list(self.machines[node].horses.values()):
            if at_once:
                horse.kill()
            else:
                horse.end_at_once()
        if back_after_ms is None:
            self._never_back.add(node)
        else:
            self._returns.append((self.clock.now_ms() + back_after_ms, node))

    def _stop_agent(self, node: str, back_after_ms: int) -> None:
        agent = self.agents[node]
        if agent.alive:
            agent.stop(back_after_ms)

    def _agent_stopped(self, agent: Agent, back_after_ms: int) -> None:
        self._returns.append((self.clock.now_ms() + back_after_ms, agent.machine.name))

    def _return(self) -> None:
        back = min(self._returns)
        self._returns.remove(back)
        self._say(f"{back[1]} is back")
        if back[1] in self.machines:
            self._start_agent(back[1])
        else:
            self._start_scheduler(back[1])

    def _freeze(self, node: str, lasts_ms: int) -> None:
        if node in self._frozen or not self.agents[node].alive:
            return
        self._frozen[node] = self.clock.now_ms() + lasts_ms
        for horse in self.machines[node].horses.values():
            horse.freeze()

    def _thaw(self, node: str) -> None:
        del self._frozen[node]
        self._say(f"{node} goes on")
        for horse in list(self.machines[node].horses.values()):
            horse.thaw()

    def _cut_all(self, lasts_ms: int) -> None:
        until_ms = self.clock.now_ms() + lasts_ms
        self._late = [(max(at, until_ms), count, do) for at, count, do in self._late]
        for line in self.lines.values():
            line.cut(until_ms)

    def _restart(self, lasts_ms: int, forgets_ms: int) -> None:
        """Restart the server; calls under way to the run that ends are lost."""
        self._late.clear()
        wanted = self.clock.now_ms() - forgets_ms
        older = [copy for at, copy in self._copies if at <= wanted]
        restored = older[-1] if forgets_ms and older else None
        self.server.restart(restored)
        if restored is not None:
            self._checker.forget(self.server)
        self._away(lasts_ms)

    def _away(self, lasts_ms: int) -> None:
        """Let the server's process be away for a while."""
        until_ms = self.clock.now_ms() + lasts_ms
        self.server.stopped_until = max(until_ms, self.server.stopped_until)
        self._cut_all(lasts_ms)

    def _attempts_on(self, node: str) -> list[PodAttempt]:
        return [
            PodAttempt(pod.metadata.uid, pod.status.attempt)
            for pod in self.server.store.list("Pod")
            if isinstance(pod, Pod) and pod.status.node == node
        ]

    def _calm_down(self) -> None:
        """End the faults: lost nodes and schedulers that are to return do so now."""
        self._calm = True
        self._say("the faults are over")
        self.server.stopped_until = self.clock.now_ms()
        for line in self.lines.values():
            line.heal()
        for node in sorted(self._frozen):
            self._thaw(node)
        self._stopped.clear()
        for machine in self.machines.values():
            machine.agent_is_stopped_until = 0

    def _is_at_rest(self) -> bool:
        return self._calm and not self._unrest()

    def _unrest(self) -> str:
        """Return the first thing that keeps the cluster from rest."""
        if not self._calm or self._returns or self._late or self.client.waits:
            return "a client still has requests to send"
        here = [one for name, one in self.machines.items() if name not in self._never_back]
        agents = [self.agents[one.name].state for one in here]
        return unrest(self.server, here, agents)

    def _check_what_is_left(self) -> None:
        if self._truth.running:
            raise InvariantBroken(f"{self._truth.running} pods still run although all have ended")
        sums = self.server.store.ledger()
        sums.pop(CAPACITY, None)
        if sums:
            raise InvariantBroken(f"the ledger still counts {sums}")
