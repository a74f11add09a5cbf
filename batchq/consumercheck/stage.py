"""The props of a check: groups whose work is watched, and the consumers that are to run them."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import Metadata, PodGroup, PodGroupSpec, PodTemplate, Task
from batchq.api.times import SECOND
from batchq.client import Client
from batchq.consumercheck import work
from batchq.daemon import processes
from batchq.daemon.processes import Record
from batchq.errors import NotFound
from batchq.paths import URL_VARIABLE

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


class Stage:
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
            processes.send(record, signal.SIGKILL)
        processes.await_end(self._crew, patience_s=_ENDS_WITHIN_S)
        self._crew = []

    def dismiss(self) -> None:
        """Ask them to end, and end what they leave behind."""
        self._wanted = 0
        processes.end_all(self._crew, patience_s=_ENDS_WITHIN_S)
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
        pid = processes.spawn(self._command, log=log, environ=environ)
        return Record(
            name=f"consumer-{self._hired}",
            pid=pid,
            birth=processes.birth_of(pid) or "",
            log=str(log),
            started_at=time.time_ns() // 1_000_000,
        )

    def _replace(self) -> None:
        for record in [one for one in self._crew if not processes.is_running(one)]:
            self._last_words = processes.tail(Path(record.log), lines=1) or self._last_words
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
