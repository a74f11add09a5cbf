"""Measure what up to a thousand agents at rest cost one server and one scheduler.

Simulated agents send to a real server the requests of agents at rest, through the
same objects as an agent and over their own connections: a wait on the node's wake-up channel, a
look at its queue every second, heartbeats, the comparison of bound pods with running ones, the
cleanup of RQ's registries, and the renewal of all pods' leases. One simulated
second takes more than one second of wall time; the figures are per simulated second. The heartbeats
of RQ's workers, measured in the same run, are the reference.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice

import redis
from msgspec import Struct
from rq import Queue, Worker

from batchq.api.node_report import AGENT_ANNOTATION, PodAttempt
from batchq.api.objects import Object, Pod, key_of, kind_of
from batchq.api.transaction import Event, Transaction, fence_of
from batchq.assembly import assemble
from batchq.client.changes import object_writes
from batchq.config import SchedulerConfig
from batchq.lab.simulation.initial_state import stated
from batchq.scheduler.cycle import Cycle
from batchq.store import liveness
from batchq.store.link import LONGEST_BLOCK_MS
from batchq.store.node_channels import WakeUpChannel
from batchq.store.pages import ANSWERS_BY_COUNT
from batchq.store.redis import RedisStore
from batchq.store.rq_link import RqLink
from batchq.system import RandomIds
from batchq.worker.agent.node import Membership, NodeOffer
from batchq.worker.agent.slots import Slots
from batchq.worker.agent.state_machine import Paces
from batchq.worker.agent.wakeups import LOOK_MS
from benchmarks.table import report
from tests.builders import a_node, a_queue, a_running_group, as_charged
from tests.harness.server import Server

SIZES = (10, 100, 1_000)
PODS_EACH = 4
TICK_MS = 50
#: The length of a lease, unless an operator sets another.
_USUAL_LEASE_MS = 30_000
#: The period of each duty, in ticks.
_LOOK, _WAIT, _RENEW, _BEAT, _TIME, _RECONCILE, _CLEAN = (
    ms // TICK_MS
    for ms in (
        *(LOOK_MS, LONGEST_BLOCK_MS, _USUAL_LEASE_MS // Paces().renew_parts),
        *(5_000, liveness.REMEASURE_AFTER_MS, 10_000, 60_000),
    )
)
_LOOK_THROUGH = (ANSWERS_BY_COUNT + 1) * _RECONCILE
#: Stores measure the server's time by the wall clock, too often for simulated seconds: disable it.
_SELDOM_MS = 24 * 60 * 60 * 1000
#: The approximate length of a measurement: simulated seconds times agents.
_AGENT_SECONDS = 4_000
_LONGEST_S = 60
_LEASE_MS = 24 * 60 * 60 * 1000
_THREADS = 4
_TURNS = 10
_TOGETHER = 200
_RQ_BEATS = 500
#: RQ's heartbeat periods: an idle worker's blocking read, and a busy worker's monitoring interval.
_RQ_IDLE_S, _RQ_BUSY_S = 405, 30

COLUMNS = [
    "", "number", "pods", "connections", "server MB", "commands/s", "kB/s in", "kB/s out",
    "server CPU ms/s", "server us/s an agent", "scheduler CPU ms/s", "server CPU for it ms/s",
]  # fmt: skip
DUTIES = ["", "times/s", "commands", "server CPU us", "bytes in", "bytes out", "us/s"]


class Cost(Struct, frozen=True, kw_only=True):
    """The work of the server in a period: CPU seconds, commands, bytes."""

    cpu_s: float
    commands: float
    bytes_in: float
    bytes_out: float

    def per(self, number: float) -> Cost:
        return Cost(
            cpu_s=self.cpu_s / number,
            commands=self.commands / number,
            bytes_in=self.bytes_in / number,
            bytes_out=self.bytes_out / number,
        )


def main() -> None:
    most = int(os.environ.get("BATCHQ_BENCH_AGENTS", SIZES[-1]))
    sizes = [size for size in SIZES if size < most] + [most]
    rows, duties = measure(sizes, agent_seconds=_AGENT_SECONDS, turns=_TURNS, beats=_RQ_BEATS)
    report("thousand", COLUMNS, rows, notes=_NOTES)
    report("thousand-duties", DUTIES, duties)


_NOTES = (
    (
        "Each agent: a look at an empty queue every second, a wait for a notification and a"
        " heartbeat every 5 s, a comparison every 10 s, of which every sixty-first looks at all"
        " pods, a cleanup of RQ's registries every 60 s; with pods, a renewal of all leases every"
        " 2.5 s."
    ),
    (
        "Scheduler: one cycle that reads all heartbeats and has nothing to decide, and one look at"
        " all report queues; the daemon does each once a second."
    ),
    (
        "RQ's rows are the heartbeats of one worker at RQ's intervals (405 s idle, 30 s with a"
        " job), times the number of workers; a worker runs one job at a time. Connections are"
        " those of an idle worker."
    ),
)


def measure(
    sizes: Sequence[int], *, agent_seconds: int, turns: int, beats: int
) -> tuple[list[list[object]], list[list[object]]]:
    """Return the rows of both tables; the second covers only the last size."""
    rows: list[list[object]] = []
    duties: list[list[object]] = []
    for number in sizes:
        seconds = max(1, min(_LONGEST_S, agent_seconds // number))
        for pods in (0, PODS_EACH):
            with Stage(number, pods) as stage:
                rows.append(stage.row(seconds, turns))
                if number == sizes[-1] and pods:
                    duties = stage.duties()
        rows += _rq_rows(number, beats)
    return rows, duties


class StandIn:
    """A simulated agent, with the connections of a real one; quiet work-horses have none."""

    def __init__(self, url: str, number: int, pods: Sequence[Pod]) -> None:
        name = _name(number)
        self._number = number
        self._name = name
        self._store = RedisStore(url)
        self._link = RqLink(url)
        self._bell = WakeUpChannel(url, name)
        self._slots = Slots(self._link, name, prefix=f"bench-{name}")
        offer = NodeOffer(name=name, resources={})
        self._member = Membership(self._store, offer, identity=_identity(name), beat_ms=5_000)
        self._running = [
            (PodAttempt(pod.metadata.uid, pod.status.attempt), fence_of(pod)) for pod in pods
        ]
        self._pods = frozenset(pod.metadata.uid for pod in pods)

    def look(self) -> None:
        assert self._slots.take(1) == ([], False)

    def wait(self) -> None:
        self._bell.hear()
        self._bell.listen()

    def beat(self) -> None:
        self._member.beat(ready=True, run=self._store.run_id())

    def reconcile(self) -> None:
        self._store.now_ms()
        self._store.pods_on(self._name, self._pods)
        self._store.alive.leased(self._name)
        self._slots.enqueue_missing([])

    def look_through(self) -> None:
        """List all pods of the node, without help of the ledger."""
        assert len(self._store.pods_on(self._name)) == len(self._pods)

    def clean(self) -> None:
        self._slots.clean()

    def ask_time(self) -> None:
        """Measure the server's time, as a store does every few seconds elsewhere."""
        self._store.link.ask(lambda client: client.time())

    def renew(self) -> None:
        """Renew the leases of all pods."""
        if self._running:
            renewals = self._store.alive.renew_all(self._name, self._running, _LEASE_MS)
            assert {renewal.word for renewal in renewals} == {"ok"}, renewals

    def live(self, tick: int) -> None:
        """Do the duties that are due in a tick; the agents' periods are offset by their numbers."""
        for duty, period in (
            (self.look, _LOOK),
            (self.wait, _WAIT),
            (self.renew, _RENEW),
            (self.beat, _BEAT),
            (self.ask_time, _TIME),
            (self.reconcile, _RECONCILE),
            (self.look_through, _LOOK_THROUGH),
            (self.clean, _CLEAN),
        ):
            if (tick + 7_919 * self._number) % period == 0:
                duty()

    def close(self) -> None:
        self._link.close()
        self._bell.close()
        self._store.close()


class Stage:
    """A context manager: a server with nodes, their simulated agents, and running pods."""

    def __init__(self, number: int, pods: int) -> None:
        self._number, self._pods = number, pods
        self._server = Server("--appendonly", "yes")
        self._measured_after_ms = liveness.REMEASURE_AFTER_MS

    def __enter__(self) -> Stage:
        liveness.REMEASURE_AFTER_MS = _SELDOM_MS
        self._server.start()
        self._client = redis.Redis(unix_socket_path=str(self._server.socket))
        self._store = RedisStore(self._server.url, heartbeats_every_ms=0)
        of_node = self._create_cluster()
        self._before = _connections(self._client)
        self._agents = [
            StandIn(self._server.url, number, of_node[number]) for number in range(self._number)
        ]
        self._threads = ThreadPoolExecutor(_THREADS)
        for duty in (StandIn.wait, StandIn.look, StandIn.beat, StandIn.renew, StandIn.reconcile):
            self._all(duty)
        return self

    def __exit__(self, *_: object) -> None:
        liveness.REMEASURE_AFTER_MS = self._measured_after_ms
        self._threads.shutdown()
        for agent in self._agents:
            agent.close()
        self._store.close()
        self._client.close()
        self._server.discard()

    def row(self, seconds: int, turns: int) -> list[object]:
        second = self._cost(lambda: self._live(seconds)).per(seconds)
        connections = _connections(self._client) - self._before
        memory = self._client.info("memory")["used_memory"] / 1e6
        here_s, there_s = self._schedule(turns)
        return [
            f"agents, {self._pods} pods each" if self._pods else "agents, idle",
            self._number,
            self._number * self._pods,
            connections,
            round(memory, 1),
            second.commands,
            second.bytes_in / 1000,
            second.bytes_out / 1000,
            1000 * second.cpu_s,
            1e6 * second.cpu_s / self._number,
            1000 * here_s,
            1000 * there_s,
        ]

    def duties(self) -> list[list[object]]:
        """Return the cost of each duty, per call and per second of one agent with its pods."""
        rows: list[list[object]] = []
        for name, duty, period, each in (
            ("look at the queue", StandIn.look, _LOOK, 1),
            ("beat", StandIn.beat, _BEAT, 1),
            ("the server's time", StandIn.ask_time, _TIME, 1),
            ("compare what runs", StandIn.reconcile, _RECONCILE, 1),
            ("look through all pods", StandIn.look_through, _LOOK_THROUGH, 1),
            ("RQ's registries", StandIn.clean, _CLEAN, 1),
            ("renewal of all leases", StandIn.renew, _RENEW, 1),
        ):
            repeats = max(1, 4_000 // self._number // each)

            def again(duty: Callable[[StandIn], None] = duty, repeats: int = repeats) -> None:
                for _ in range(repeats):
                    self._all(duty)

            cost = self._cost(again).per(repeats * self._number * each)
            often = each * 1000 / (period * TICK_MS)
            rows.append(
                [
                    name if each == 1 else f"{name}, {each} times",
                    often,
                    cost.commands,
                    1e6 * cost.cpu_s,
                    cost.bytes_in,
                    cost.bytes_out,
                    1e6 * cost.cpu_s * often,
                ]
            )
        return rows

    def _create_cluster(self) -> list[list[Pod]]:
        """Write the nodes and their running groups; return the pods of each node, as stored."""
        names = [_name(number) for number in range(self._number)]
        served = [{AGENT_ANNOTATION: _identity(name)} for name in names]
        nodes = [
            a_node(name, annotations=by, cpu=64) for name, by in zip(names, served, strict=True)
        ]
        items: list[Object] = [a_queue(), *nodes]
        parts = [self._put(item) for item in items]
        found: list[list[Pod]] = []
        for number in range(self._number):
            pods: list[Pod] = []
            if self._pods:
                name, node = f"group-{number:05}", names[number]
                uid = f"u{number:015}"
                group, *pods = as_charged(*a_running_group(name, self._pods, node=node, uid=uid))
                parts.append(stated(group, tuple(pods)))
            found.append(pods)
        for part in _some(parts):
            self._write(part)
        return found

    def _put(self, item: Object) -> Transaction:
        event = Event(kind=kind_of(item), key=key_of(item), reason="Created")
        return object_writes.put(self._store, item, expect=0, event=event)

    def _write(self, parts: Sequence[Transaction]) -> None:
        commit = self._store.commit(parts, request_id=RandomIds().new_uid())
        if commit.refused:
            raise RuntimeError(f"a write was refused: {commit.refused[0].answer}")

    def _all(self, duty: Callable[[StandIn], None]) -> None:
        """Do a duty for every agent, in a few threads."""

        def in_turn(agents: Sequence[StandIn]) -> None:
            for agent in agents:
                duty(agent)

        parts = [self._agents[thread::_THREADS] for thread in range(_THREADS)]
        list(self._threads.map(in_turn, parts))

    def _live(self, seconds: int) -> None:
        """Simulate all agents for some seconds, tick by tick."""
        for tick in range(seconds * 1000 // TICK_MS):
            self._all(partial(StandIn.live, tick=tick))

    def _cost(self, run: Callable[[], None]) -> Cost:
        """Return the server's cost of `run`."""
        before = _spent(self._client)
        run()
        after = _spent(self._client)
        return Cost(**{part: after[part] - before[part] for part in before})

    def _schedule(self, turns: int) -> tuple[float, float]:
        """Time a cycle that reads all heartbeats, and a look at all report queues.

        Return the median CPU seconds of this process and of the server.
        """
        config = SchedulerConfig()
        self._store.judge_silence_by(config.settings.pod_lease_ms)
        epoch = self._store.lead("benchmark", _LEASE_MS)
        cycle = Cycle(self._store, assemble(config), self._store, RandomIds())
        while cycle.run_once(epoch).commit.applied:
            self._all(StandIn.beat)
        here: list[float] = []
        there: list[float] = []
        for _ in range(turns):
            self._all(StandIn.beat)
            before, started_at = _spent(self._client), time.process_time()
            report = cycle.run_once(epoch)
            queues = self._store.report_queues
            entries = queues.look(sorted(queues.nodes()))
            here.append(time.process_time() - started_at)
            there.append(_spent(self._client)["cpu_s"] - before["cpu_s"])
            if report.intents or entries:
                raise RuntimeError("the cluster is not at rest, so the figures would be wrong")
        return statistics.median(here), statistics.median(there)


def _rq_rows(number: int, beats: int) -> list[list[object]]:
    """Return a row for as many idle RQ workers as agents, and for as many busy ones as pods."""
    with Server("--appendonly", "yes") as server:
        client = redis.Redis(unix_socket_path=str(server.socket))
        before = _connections(client)
        connection = redis.Redis(unix_socket_path=str(server.socket))
        queue = Queue("jobs", connection=connection)
        worker = Worker([queue], connection=connection)
        worker.register_birth()  # type: ignore[no-untyped-call]  # RQ has none
        worker.subscribe()  # type: ignore[no-untyped-call]  # RQ has none
        job = queue.enqueue("os.getpid")
        worker.prepare_execution(job)
        connections = _connections(client) - before
        idle = _cost_of(client, worker.heartbeat, beats)
        busy = _cost_of(client, lambda: worker.maintain_heartbeats(job), beats)
        worker.unsubscribe()  # type: ignore[no-untyped-call]  # RQ has none
        worker.register_death()  # type: ignore[no-untyped-call]  # RQ has none
        connection.close()
        client.close()
    return [
        _rq_row("RQ workers, idle", number, 0, connections, idle, _RQ_IDLE_S),
        _rq_row("RQ workers, a job each", PODS_EACH * number, 1, "-", busy, _RQ_BUSY_S),
    ]


def _rq_row(
    title: str, number: int, jobs: int, connections: int | str, beat: Cost, every_s: int
) -> list[object]:
    second = beat.per(every_s / number)
    held = "-" if isinstance(connections, str) else number * connections
    return [
        title,
        number,
        number * jobs,
        held,
        "-",
        second.commands,
        second.bytes_in / 1000,
        second.bytes_out / 1000,
        1000 * second.cpu_s,
        1e6 * second.cpu_s / number,
        "-",
        "-",
    ]


def _cost_of(client: redis.Redis, step: Callable[[], object], times: int) -> Cost:
    """Return the server's mean cost of a step."""
    before = _spent(client)
    for _ in range(times):
        step()
    after = _spent(client)
    return Cost(**{part: after[part] - before[part] for part in before}).per(times)


def _spent(client: redis.Redis) -> dict[str, float]:
    """Return the server's work since its start."""
    cpu, stats = client.info("cpu"), client.info("stats")
    return {
        "cpu_s": cpu["used_cpu_user"] + cpu["used_cpu_sys"],
        "commands": stats["total_commands_processed"],
        "bytes_in": stats["total_net_input_bytes"],
        "bytes_out": stats["total_net_output_bytes"],
    }


def _connections(client: redis.Redis) -> int:
    return int(client.info("clients")["connected_clients"])


def _some(parts: Sequence[Transaction]) -> Iterator[list[Transaction]]:
    rest = iter(parts)
    while some := list(islice(rest, _TOGETHER)):
        yield some


def _name(number: int) -> str:
    return f"n{number:05}"


def _identity(name: str) -> str:
    return f"{name}:1:1"


if __name__ == "__main__":
    main()
