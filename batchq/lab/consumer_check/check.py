"""The props of a check: groups whose work is watched, and the consumers that are to run them."""

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
from batchq.api.objects import Metadata, PodGroup, PodGroupSpec, PodTemplate, Queue, Task
from batchq.api.times import SECOND
from batchq.client import Client
from batchq.daemon.local_stack import detached, stack
from batchq.daemon.local_stack.detached import Record
from batchq.errors import BatchqError, InvalidInput, NotFound
from batchq.lab.consumer_check import work
from batchq.paths import URL_VARIABLE, Home, default_url

#: The queue that the consumers are told to serve, and one that is none of their business.
SERVED, OTHERS = "served", "others"
QUEUE_VARIABLE, TTL_VARIABLE = "BATCHQ_QUEUE", "BATCHQ_TTL"
#: What consumers are asked to claim for, and what their work is given to stop.
ASKED_TTL_S = 3
GRACE_S = 2
#: How long anything may take that nothing keeps from happening, unless something else is said.
USUAL_PATIENCE_S = 30.0
#: A consumer that ends at once is not started again at once.
_BREATH_S = 1.0
_POLL_S = 0.05
_ENDS_WITHIN_S = 5.0
_CPU = {"cpu": 1000}


class Broken(Exception):
    """A promise is not kept; the text says in what."""


class CheckStage:
    """One temporary stack with its consumers; owns the processes of the consumers."""

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
        self._crew: list[Record] = []
        self._wanted = 0
        self._hired = 0
        self._hired_at = 0.0
        self._last_words = ""

    # --- groups -----------------------------------------------------------------------------

    def submit(
        self, name: str, *, queue: str = SERVED, exit_code: int = 0, gated: bool = False
    ) -> None:
        """A group with one pod of work; `gated`, it goes on until `open_gate`."""
        gate = self._gate(name)
        if not gated:
            gate.touch()
        command = (
            *(sys.executable, "-P", str(Path(work.__file__).resolve())),
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
        """A group of the served queue that batchq itself runs."""
        template = PodTemplate(command=("true",), requests=_CPU)
        spec = PodGroupSpec(queue=SERVED, tasks=(Task(name="main", template=template),))
        metadata = Metadata(name=name, namespace="default")
        self.client.submit(PodGroup(metadata=metadata, spec=spec))

    def open_gate(self, name: str) -> None:
        """Let the work of a group come to its end."""
        self._gate(name).touch()

    def group(self, name: str) -> PodGroup:
        """A group as it is now."""
        group = self.client.get("PodGroup", name)
        assert isinstance(group, PodGroup)
        return group

    def ttl_s(self, name: str) -> float:
        """For how long the group was claimed."""
        return self.group(name).status.claim.ttl / 1000

    def starts(self, name: str) -> int:
        """How often the work of a group has started."""
        return self._said(name).count("start ")

    def works(self, name: str) -> bool:
        """Whether any work of the group still runs."""
        return any(work.lives(pid) for pid in work.running_in(self._said(name)))

    def refuse_twice(self, name: str) -> None:
        """Raises Broken if the group's work ran twice at once."""
        if "twice" in self._said(name):
            raise Broken(f"the work of {name} ran twice at once")

    # --- consumers --------------------------------------------------------------------------

    def hire(self, count: int) -> None:
        """So many consumers from now on; whoever ends is replaced."""
        self._wanted = count
        while len(self._crew) < count:
            self._crew.append(self._start())

    def kill_all(self) -> None:
        """`kill -9`, and nobody takes their place; what they have started is left alone."""
        self._wanted = 0
        for record in self._crew:
            detached.send(record, signal.SIGKILL)
        detached.await_end(self._crew, patience_s=_ENDS_WITHIN_S)
        self._crew = []

    def dismiss(self) -> None:
        """Ask them to end, and end what they leave behind."""
        self._wanted = 0
        detached.end_all(self._crew, patience_s=_ENDS_WITHIN_S)
        for record in self._crew:
            with suppress(ProcessLookupError):
                os.killpg(record.pid, signal.SIGKILL)
        self._crew = []

    def await_(self, true: Callable[[], bool], what: str, *, after_s: float = 0.0) -> None:
        """Wait, replacing consumers that have ended; `after_s` is how long it takes by its nature.

        Raises Broken when it takes too long.
        """
        within_s = after_s + self.patience_s
        deadline = time.monotonic() + within_s
        while not true():
            self._replace()
            if time.monotonic() >= deadline:
                said = f"; it said: {self._last_words}" if self._last_words else ""
                raise Broken(f"{what} (waited {within_s:.0f} s{said})")
            time.sleep(_POLL_S)

    def await_phase(self, name: str, phase: PodGroupPhase, *, after_s: float = 0.0) -> None:
        """Wait until the group is in this phase."""
        self.await_(
            lambda: self.group(name).status.phase == phase,
            f"{name} is not {phase}, as it should be",
            after_s=after_s,
        )

    def pause(self, seconds: float) -> None:
        """Let time pass."""
        over_at = time.monotonic() + seconds
        self.await_(lambda: time.monotonic() >= over_at, "time stands still", after_s=seconds)

    def await_work(self, name: str) -> None:
        """Wait until the work of the group runs."""
        self.await_(lambda: self.works(name), f"nobody has started the work of {name}")

    def clear(self, names: Sequence[str]) -> None:
        """Cancel what was submitted, so that the next promise begins with an empty line."""
        for name in names:
            self.open_gate(name)
            with suppress(NotFound):
                group = self.group(name)
                if group.status.finished_at is None:
                    self.client.cancel(name)

    # --- parts ------------------------------------------------------------------------------

    def _start(self) -> Record:
        self._hired += 1
        self._hired_at = time.monotonic()
        log = self._folder / f"consumer-{self._hired}.log"
        environ = {
            **os.environ,
            URL_VARIABLE: self._url,
            QUEUE_VARIABLE: SERVED,
            TTL_VARIABLE: f"{ASKED_TTL_S}s",
        }
        pid = detached.spawn(self._command, log=log, environ=environ)
        return Record(
            name=f"consumer-{self._hired}",
            pid=pid,
            birth=detached.birth_of(pid) or "",
            log=str(log),
            started_at=time.time_ns() // 1_000_000,
        )

    def _replace(self) -> None:
        for record in [one for one in self._crew if not detached.is_running(one)]:
            self._last_words = detached.tail(Path(record.log), lines=1) or self._last_words
            self._crew.remove(record)
        if time.monotonic() >= self._hired_at + _BREATH_S:
            self.hire(self._wanted)

    def _said(self, name: str) -> str:
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


def completes(stage: CheckStage) -> None:
    """A group is claimed, its work run once, and its success reported."""
    stage.submit("plain")
    stage.hire(1)
    stage.await_phase("plain", _COMPLETED)
    if stage.starts("plain") != 1:
        raise Broken(f"the work of plain was started {stage.starts('plain')} times, not once")


def reports_running(stage: CheckStage) -> None:
    """While the work runs, the group is Running."""
    stage.submit("runs", gated=True)
    stage.hire(1)
    stage.await_work("runs")
    stage.await_phase("runs", _RUNNING)
    stage.open_gate("runs")
    stage.await_phase("runs", _COMPLETED)


def reports_failure(stage: CheckStage) -> None:
    """Work that fails is reported as failed, and only then."""
    stage.submit("fails", exit_code=3)
    stage.hire(1)
    stage.await_(lambda: stage.group("fails").status.finished_at is not None, "fails has not ended")
    phase = stage.group("fails").status.phase
    if phase != _FAILED:
        raise Broken(f"work that ended with exit code 3 has left the group {phase}, not Failed")


def renews(stage: CheckStage) -> None:
    """Work that takes longer than the time to live keeps its claim."""
    stage.submit("long", gated=True)
    stage.hire(1)
    stage.await_work("long")
    first = stage.group("long").status.claim.token
    longer_s = stage.ttl_s("long") + GRACE_S + 2
    # The gate opens when the first claim, its grace too, would have been over.
    stage.pause(longer_s)
    stage.open_gate("long")
    stage.await_phase("long", _COMPLETED)
    group = stage.group("long")
    if group.status.claim.token != first or group.status.admission != 1:
        raise Broken(f"its claim lapsed while the work ran for {longer_s:.0f} s")


def stops(stage: CheckStage) -> None:
    """Told to stop, it stops the work and reports it as evicted; then the group can run again."""
    stage.submit("held", gated=True)
    stage.hire(1)
    stage.await_work("held")
    stage.await_phase("held", _RUNNING)
    stage.client.suspend("held")
    stage.await_(
        lambda: not stage.group("held").status.claim.is_open,
        "suspended, its claim goes on",
        after_s=stage.ttl_s("held") + GRACE_S,
    )
    if stage.works("held"):
        raise Broken("suspended, its work still ran when the claim was over")
    claim = stage.group("held").status.claim
    if claim.phase != "Released":
        raise Broken(f"suspended, its claim ended as {claim.phase}: expected a report of evicted")
    stage.client.resume("held")
    stage.open_gate("held")
    stage.await_phase("held", _COMPLETED)


def shares(stage: CheckStage) -> None:
    """Two of them never run one group at once, and all groups are run."""
    for name in _SHARED:
        stage.submit(name, gated=True)
    stage.hire(2)
    stage.await_(lambda: any(map(stage.works, _SHARED)), "nobody has started any of six groups")
    # Whoever believes that it is alone has time to start what another has.
    stage.pause(_ALONE_S)
    for name in _SHARED:
        stage.open_gate(name)
    for name in _SHARED:
        stage.await_phase(name, _COMPLETED)
        stage.refuse_twice(name)
        if stage.starts(name) != 1:
            raise Broken(f"the work of {name} was started {stage.starts(name)} times, not once")


def dies_with_its_work(stage: CheckStage) -> None:
    """Killed in the middle, its work ends too, before anybody else may start it again."""
    stage.submit("killed", gated=True)
    stage.hire(1)
    stage.await_work("killed")
    stage.kill_all()
    stage.await_phase("killed", _PENDING, after_s=stage.ttl_s("killed") + GRACE_S)
    if stage.works("killed"):
        raise Broken("its work ran on when its claim had lapsed: another would have run it twice")


def is_replaced(stage: CheckStage) -> None:
    """Killed in the middle, its claim lapses, and another instance finishes the group."""
    stage.submit("taken-over", gated=True)
    stage.hire(1)
    stage.await_work("taken-over")
    stage.kill_all()
    stage.await_phase("taken-over", _PENDING, after_s=stage.ttl_s("taken-over") + GRACE_S)
    stage.open_gate("taken-over")
    stage.hire(1)
    stage.await_phase("taken-over", _COMPLETED)


def keeps_to_its_queue(stage: CheckStage) -> None:
    """Groups of other queues, and those that batchq runs itself, are left alone."""
    stage.submit("not-yours", queue=OTHERS)
    stage.submit_ours("batchqs-own")
    stage.submit("yours")
    stage.hire(1)
    stage.await_phase("yours", _COMPLETED)
    stage.submit("yours-too")
    stage.await_phase("yours-too", _COMPLETED)
    if stage.group("not-yours").status.claim.phase != "None":
        raise Broken("told to serve queue served, it has claimed a group of queue others")
    ours = stage.group("batchqs-own").status
    if ours.phase != _PENDING:
        raise Broken(f"a group that batchq runs itself is {ours.phase}, and there is no node")


#: What is said of each, what it is, and the groups that it leaves behind.
PROMISES: tuple[tuple[str, Callable[[CheckStage], None], tuple[str, ...]], ...] = (
    ("claims a group, runs it once and reports its success", completes, ("plain",)),
    ("reports running while the work runs", reports_running, ("runs",)),
    ("reports failed work as failed", reports_failure, ("fails",)),
    ("renews its claim while the work outlasts it", renews, ("long",)),
    ("stops the work when the group is suspended, and gives it back", stops, ("held",)),
    ("two of them never run one group at once", shares, _SHARED),
    ("killed (-9), its work ends with it", dies_with_its_work, ("killed",)),
    ("killed (-9), its claim lapses and another finishes the group", is_replaced, ("taken-over",)),
    (
        "leaves other queues' and batchq's own groups alone",
        keeps_to_its_queue,
        ("not-yours", "batchqs-own", "yours", "yours-too"),
    ),
)


#: A requeued group is admitted again soon: nobody wants to wait for that here.
_CONFIG = "backoffFirst: 1s\nschedulePeriod: 200ms\n"


class PromiseFinding(Struct, frozen=True, kw_only=True):
    """Whether one promise is kept; `why` says what was seen where it is not."""

    promise: str
    ok: bool
    why: str
    seconds: float

    def __str__(self) -> str:
        """One line for people."""
        word = "ok      " if self.ok else "FAILED  "
        return f"{word}{self.promise}{f': {self.why}' if self.why else ''}"


def check_consumer(
    command: Sequence[str],
    *,
    tell: Callable[[PromiseFinding], None],
    patience_s: float = USUAL_PATIENCE_S,
    only: Sequence[str] = (),
) -> list[PromiseFinding]:
    """Go through the promises (`only` those of these names), and tell of each as it is judged.

    `patience_s` is how long anything may take that nothing keeps from happening.

    Raises InvalidInput for a program that is not there, BatchqError where the stack cannot start.
    """
    program = shutil.which(command[0])
    if program is None:
        raise InvalidInput(
            f"there is no program {command[0]}", hint="give its path, or put it on PATH"
        )
    # Not under TMPDIR: the path of a socket is short.
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
                stage = CheckStage(client, url, folder, words, patience_s=patience_s)
                return _findings(stage, tell, only)
        finally:
            stack.down(home, url=url)


def _findings(
    stage: CheckStage, tell: Callable[[PromiseFinding], None], only: Sequence[str]
) -> list[PromiseFinding]:
    findings = []
    for promise, judge, names in PROMISES:
        if only and judge.__name__ not in only:
            continue
        started = time.monotonic()
        why = _judge(stage, judge)
        stage.clear(names)
        finding = PromiseFinding(
            promise=promise, ok=not why, why=why, seconds=time.monotonic() - started
        )
        findings.append(finding)
        tell(finding)
    return findings


def _judge(stage: CheckStage, judge: Callable[[CheckStage], None]) -> str:
    """Empty where the promise is kept."""
    try:
        judge(stage)
    except Broken as broken:
        return str(broken)
    except BatchqError as problem:
        # A group that the consumer has deleted, say.
        return problem.message
    finally:
        stage.dismiss()
    return ""
