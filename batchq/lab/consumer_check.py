"""A conformance check for consumers of external groups (docs/external.md).

`check_consumer` starts a server and a scheduler, runs the consumer's program, and tests its
promises one by one. The groups run `consumer_work.py`, which records when it starts and ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.notation import SECOND
from batchq.api.objects import Metadata, PodGroup, PodGroupSpec, PodTemplate, Queue, Task
from batchq.client import Client
from batchq.daemon import detached, stack
from batchq.daemon.detached import Record
from batchq.errors import BatchqError, InvalidInput, NotFound
from batchq.lab import consumer_work
from batchq.paths import URL_VARIABLE, Home, default_url

#: The queue that the consumers must serve, and one that they must leave alone.
SERVED, OTHERS = "served", "others"
QUEUE_VARIABLE, TTL_VARIABLE = "BATCHQ_QUEUE", "BATCHQ_TTL"
#: The claim's time to live that consumers are asked for, and the grace of their work.
ASKED_TTL_S = 3
GRACE_S = 2
#: How long anything unobstructed may take by default.
USUAL_PATIENCE_S = 30.0
#: Least interval between starts of consumers that end at once.
_RESTART_AFTER_S = 1.0
_POLL_S = 0.05
_ENDS_WITHIN_S = 5.0
_CPU = {"cpu": 1000}


class Broken(Exception):
    """A promise is broken; the text says how."""


class CheckEnvironment:
    """A temporary stack with consumers; owns the consumers' processes."""

    def __init__(
        self,
        client: Client,
        url: str,
        folder: Path,
        command: Sequence[str],
        *,
        patience_s: float = USUAL_PATIENCE_S,
    ) -> None:
        self.client = client
        self.patience_s = patience_s
        self._url = url
        self._folder = folder
        self._command = tuple(command)
        self._running: list[Record] = []
        self._wanted = 0
        self._started = 0
        self._started_at = 0.0
        self._last_output = ""

    def submit(
        self, name: str, *, queue: str = SERVED, exit_code: int = 0, gated: bool = False
    ) -> None:
        """Submit a group with one pod; if `gated`, it runs until `open_gate`."""
        gate = self._gate(name)
        if not gated:
            gate.touch()
        command = (
            *(sys.executable, "-P", str(Path(consumer_work.__file__).resolve())),
            *(str(self._journal(name)), str(gate), str(exit_code)),
        )
        template = PodTemplate(command=command, termination_grace=GRACE_S * SECOND)
        self.client.submit(
            PodGroup(
                metadata=Metadata(name=name, namespace="default"),
                spec=PodGroupSpec(
                    controller="external",
                    queue=queue,
                    min_resources=_CPU,
                    tasks=(Task(name="main", template=template),),
                ),
            )
        )

    def submit_ours(self, name: str) -> None:
        """Submit a group of the served queue that batchq itself runs."""
        template = PodTemplate(command=("true",), requests=_CPU)
        spec = PodGroupSpec(queue=SERVED, tasks=(Task(name="main", template=template),))
        metadata = Metadata(name=name, namespace="default")
        self.client.submit(PodGroup(metadata=metadata, spec=spec))

    def open_gate(self, name: str) -> None:
        """Let the work of a group end."""
        self._gate(name).touch()

    def group(self, name: str) -> PodGroup:
        """Return the group's present state."""
        group = self.client.get("PodGroup", name)
        assert isinstance(group, PodGroup)
        return group

    def ttl_s(self, name: str) -> float:
        """Return the time to live of the group's claim, in seconds."""
        return self.group(name).status.claim.ttl / 1000

    def starts(self, name: str) -> int:
        """Return how often the work of a group has started."""
        return self._journal_text(name).count("start ")

    def works(self, name: str) -> bool:
        """Return whether any work of the group still runs."""
        return any(
            consumer_work.lives(pid) for pid in consumer_work.running_in(self._journal_text(name))
        )

    def refuse_twice(self, name: str) -> None:
        """Raise Broken if the group's work ran twice at once."""
        if "twice" in self._journal_text(name):
            raise Broken(f"the work of {name} ran twice at once")

    def run_consumers(self, count: int) -> None:
        """Keep this many consumers running from now on."""
        self._wanted = count
        while len(self._running) < count:
            self._running.append(self._start())

    def kill_all(self) -> None:
        """Kill all consumers (SIGKILL) without replacement, and leave alone what they started."""
        self._wanted = 0
        for record in self._running:
            detached.send(record, signal.SIGKILL)
        detached.await_end(self._running, patience_s=_ENDS_WITHIN_S)
        self._running = []

    def end_all(self) -> None:
        """Ask all consumers to end, and kill what they leave behind."""
        self._wanted = 0
        detached.end_all(self._running, patience_s=_ENDS_WITHIN_S)
        for record in self._running:
            with suppress(ProcessLookupError):
                os.killpg(record.pid, signal.SIGKILL)
        self._running = []

    def await_(self, true: Callable[[], bool], what: str, *, after_s: float = 0.0) -> None:
        """Wait, and replace consumers that have ended; `after_s` is the expected duration.

        Raises Broken when it takes longer than that by the patience.
        """
        within_s = after_s + self.patience_s
        deadline = time.monotonic() + within_s
        while not true():
            self._replace()
            if time.monotonic() >= deadline:
                output = f"; its last output: {self._last_output}" if self._last_output else ""
                raise Broken(f"{what} (waited {within_s:.0f} s{output})")
            time.sleep(_POLL_S)

    def await_phase(self, name: str, phase: PodGroupPhase, *, after_s: float = 0.0) -> None:
        """Wait until the group is in this phase."""
        self.await_(
            lambda: self.group(name).status.phase == phase,
            f"{name} is not {phase}, as it should be",
            after_s=after_s,
        )

    def pause(self, seconds: float) -> None:
        """Wait, and keep the consumers running."""
        over_at = time.monotonic() + seconds
        self.await_(lambda: time.monotonic() >= over_at, "the pause did not end", after_s=seconds)

    def await_work(self, name: str) -> None:
        """Wait until the work of the group runs."""
        self.await_(lambda: self.works(name), f"no consumer has started the work of {name}")

    def clear(self, names: Sequence[str]) -> None:
        """Cancel submitted groups, so that the next promise starts with an empty queue."""
        for name in names:
            self.open_gate(name)
            with suppress(NotFound):
                group = self.group(name)
                if group.status.finished_at is None:
                    self.client.cancel(name)

    def _start(self) -> Record:
        self._started += 1
        self._started_at = time.monotonic()
        log = self._folder / f"consumer-{self._started}.log"
        environ = {
            **os.environ,
            URL_VARIABLE: self._url,
            QUEUE_VARIABLE: SERVED,
            TTL_VARIABLE: f"{ASKED_TTL_S}s",
        }
        pid = detached.spawn(self._command, log=log, environ=environ)
        return Record(
            name=f"consumer-{self._started}",
            pid=pid,
            birth=detached.birth_of(pid) or "",
            log=str(log),
            started_at=time.time_ns() // 1_000_000,
        )

    def _replace(self) -> None:
        for record in [one for one in self._running if not detached.is_running(one)]:
            self._last_output = detached.tail(Path(record.log), lines=1) or self._last_output
            self._running.remove(record)
        if time.monotonic() >= self._started_at + _RESTART_AFTER_S:
            self.run_consumers(self._wanted)

    def _journal_text(self, name: str) -> str:
        try:
            return self._journal(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def _journal(self, name: str) -> Path:
        return self._folder / f"{name}.journal"

    def _gate(self, name: str) -> Path:
        return self._folder / f"{name}.gate"


_COMPLETED, _FAILED, _RUNNING, _PENDING = (
    PodGroupPhase.COMPLETED,
    PodGroupPhase.FAILED,
    PodGroupPhase.RUNNING,
    PodGroupPhase.PENDING,
)
_ALONE_S = 2.0
#: What two consumers share.
_SHARED = tuple(f"shared-{number}" for number in range(6))


def completes(environment: CheckEnvironment) -> None:
    """A group is claimed, its work runs once, and its success is reported."""
    environment.submit("plain")
    environment.run_consumers(1)
    environment.await_phase("plain", _COMPLETED)
    if environment.starts("plain") != 1:
        raise Broken(f"the work of plain was started {environment.starts('plain')} times, not once")


def reports_running(environment: CheckEnvironment) -> None:
    """While the work runs, the group is Running."""
    environment.submit("runs", gated=True)
    environment.run_consumers(1)
    environment.await_work("runs")
    environment.await_phase("runs", _RUNNING)
    environment.open_gate("runs")
    environment.await_phase("runs", _COMPLETED)


def reports_failure(environment: CheckEnvironment) -> None:
    """Work that fails is reported as failed, and only then."""
    environment.submit("fails", exit_code=3)
    environment.run_consumers(1)
    environment.await_(
        lambda: environment.group("fails").status.finished_at is not None, "fails has not ended"
    )
    phase = environment.group("fails").status.phase
    if phase != _FAILED:
        raise Broken(f"work that ended with exit code 3 has left the group {phase}, not Failed")


def renews(environment: CheckEnvironment) -> None:
    """Work that takes longer than the time to live keeps its claim."""
    environment.submit("long", gated=True)
    environment.run_consumers(1)
    environment.await_work("long")
    first = environment.group("long").status.claim.token
    longer_s = environment.ttl_s("long") + GRACE_S + 2
    # Open the gate only after the first claim and its grace would have been over.
    environment.pause(longer_s)
    environment.open_gate("long")
    environment.await_phase("long", _COMPLETED)
    group = environment.group("long")
    if group.status.claim.token != first or group.status.admission != 1:
        raise Broken(f"its claim lapsed while the work ran for {longer_s:.0f} s")


def stops(environment: CheckEnvironment) -> None:
    """After a suspension it stops the work and reports the eviction; the group can run again."""
    environment.submit("held", gated=True)
    environment.run_consumers(1)
    environment.await_work("held")
    environment.await_phase("held", _RUNNING)
    environment.client.suspend("held")
    environment.await_(
        lambda: not environment.group("held").status.claim.is_open,
        "its claim stays open after a suspension",
        after_s=environment.ttl_s("held") + GRACE_S,
    )
    if environment.works("held"):
        raise Broken("after the suspension, its work still ran when the claim was over")
    claim = environment.group("held").status.claim
    if claim.phase != "Released":
        raise Broken(
            f"after the suspension, its claim ended as {claim.phase}; expected a report of evicted"
        )
    environment.client.resume("held")
    environment.open_gate("held")
    environment.await_phase("held", _COMPLETED)


def shares(environment: CheckEnvironment) -> None:
    """Two consumers never run one group at once, and all groups run."""
    for name in _SHARED:
        environment.submit(name, gated=True)
    environment.run_consumers(2)
    environment.await_(
        lambda: any(map(environment.works, _SHARED)), "no consumer has started any of six groups"
    )
    # Gives a consumer that ignores the other time to start a group twice.
    environment.pause(_ALONE_S)
    for name in _SHARED:
        environment.open_gate(name)
    for name in _SHARED:
        environment.await_phase(name, _COMPLETED)
        environment.refuse_twice(name)
        if environment.starts(name) != 1:
            raise Broken(
                f"the work of {name} was started {environment.starts(name)} times, not once"
            )


def dies_with_its_work(environment: CheckEnvironment) -> None:
    """If it is killed, its work ends too, before another consumer may start it again."""
    environment.submit("killed", gated=True)
    environment.run_consumers(1)
    environment.await_work("killed")
    environment.kill_all()
    environment.await_phase("killed", _PENDING, after_s=environment.ttl_s("killed") + GRACE_S)
    if environment.works("killed"):
        raise Broken("its work ran on when its claim had lapsed: another would have run it twice")


def is_replaced(environment: CheckEnvironment) -> None:
    """If it is killed, its claim lapses, and another instance finishes the group."""
    environment.submit("taken-over", gated=True)
    environment.run_consumers(1)
    environment.await_work("taken-over")
    environment.kill_all()
    environment.await_phase(
        "taken-over", _PENDING, after_s=environment.ttl_s("taken-over") + GRACE_S
    )
    environment.open_gate("taken-over")
    environment.run_consumers(1)
    environment.await_phase("taken-over", _COMPLETED)


def keeps_to_its_queue(environment: CheckEnvironment) -> None:
    """Groups of other queues, and groups that batchq runs, are left alone."""
    environment.submit("not-yours", queue=OTHERS)
    environment.submit_ours("batchqs-own")
    environment.submit("yours")
    environment.run_consumers(1)
    environment.await_phase("yours", _COMPLETED)
    environment.submit("yours-too")
    environment.await_phase("yours-too", _COMPLETED)
    if environment.group("not-yours").status.claim.phase != "None":
        raise Broken("it is configured for queue served, and has claimed a group of queue others")
    ours = environment.group("batchqs-own").status
    if ours.phase != _PENDING:
        raise Broken(f"a group that batchq runs itself is {ours.phase}, and there is no node")


#: The promise's text, its test, and the names of the test's groups.
PROMISES: tuple[tuple[str, Callable[[CheckEnvironment], None], tuple[str, ...]], ...] = (
    ("claims a group, runs it once and reports its success", completes, ("plain",)),
    ("reports running while the work runs", reports_running, ("runs",)),
    ("reports failed work as failed", reports_failure, ("fails",)),
    ("renews its claim while the work outlasts it", renews, ("long",)),
    ("stops the work when the group is suspended, and releases it", stops, ("held",)),
    ("two of them never run one group at once", shares, _SHARED),
    ("killed (-9), its work ends with it", dies_with_its_work, ("killed",)),
    ("killed (-9), its claim lapses and another finishes the group", is_replaced, ("taken-over",)),
    (
        "leaves other queues' and batchq's own groups alone",
        keeps_to_its_queue,
        ("not-yours", "batchqs-own", "yours", "yours-too"),
    ),
)


#: Shortens the wait until a requeued group is admitted again.
_CONFIG = "backoffFirst: 1s\nschedulePeriod: 200ms\n"


class PromiseFinding(Struct, frozen=True, kw_only=True):
    """The verdict on one promise; `why` says what was seen if it is broken."""

    promise: str
    ok: bool
    why: str
    seconds: float

    def __str__(self) -> str:
        """Return one line for people."""
        word = "ok      " if self.ok else "FAILED  "
        return f"{word}{self.promise}{f': {self.why}' if self.why else ''}"


def check_consumer(
    command: Sequence[str],
    *,
    tell: Callable[[PromiseFinding], None],
    patience_s: float = USUAL_PATIENCE_S,
    only: Sequence[str] = (),
) -> list[PromiseFinding]:
    """Test the promises (with `only`, those of these names), and call `tell` for each.

    `patience_s` is how long anything unobstructed may take.

    Raises InvalidInput if the program does not exist, BatchqError if the stack cannot start.
    """
    program = shutil.which(command[0])
    if program is None:
        raise InvalidInput(
            f"there is no program {command[0]}", hint="give its path, or put it on PATH"
        )
    # Not under TMPDIR, because a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="bq-check-", dir="/tmp") as place:
        folder = Path(place)
        home, config = Home(folder / "home"), folder / "scheduler.yaml"
        config.write_text(_CONFIG, encoding="utf-8")
        url = default_url(home)
        try:
            stack.up(home, stack.UpOptions(url=url, agents=0, config=config))
            with Client(url) as client:
                client.apply([Queue(metadata=Metadata(name=name)) for name in (SERVED, OTHERS)])
                words = (program, *command[1:])
                environment = CheckEnvironment(client, url, folder, words, patience_s=patience_s)
                return _findings(environment, tell, only)
        finally:
            stack.down(home, url=url)


def _findings(
    environment: CheckEnvironment, tell: Callable[[PromiseFinding], None], only: Sequence[str]
) -> list[PromiseFinding]:
    findings = []
    for promise, test, names in PROMISES:
        if only and test.__name__ not in only:
            continue
        started = time.monotonic()
        why = _verdict(environment, test)
        environment.clear(names)
        finding = PromiseFinding(
            promise=promise, ok=not why, why=why, seconds=time.monotonic() - started
        )
        findings.append(finding)
        tell(finding)
    return findings


def _verdict(environment: CheckEnvironment, test: Callable[[CheckEnvironment], None]) -> str:
    """Return why the promise is broken, or an empty text."""
    try:
        test(environment)
    except Broken as broken:
        return str(broken)
    except BatchqError as problem:
        # For example, the consumer has deleted a group.
        return problem.message
    finally:
        environment.end_all()
    return ""
