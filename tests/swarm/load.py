"""What a swarm submits, and how each group is to end."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, structs

from batchq.api.objects import PodGroup
from batchq.client import Client
from batchq.errors import Conflict, NotFound, StoreUnavailable

POD = Path(__file__).with_name("pod.py")
#: How many groups wait or run at any time.
UNFINISHED = 7
#: Finished groups are removed after this time, so that removal is tested under strikes, too.
KEPT = "60s"
_LOOKS_EVERY_S = 0.3
_FINISHED = ("Completed", "Failed", "Cancelled")
#: Kinds of pods that succeed: a single process, one that only SIGKILL ends, a parent and its child,
#: or one that writes a checkpoint when it is told to stop.
_HABITS = ("ends", "stubborn", "family", "saves")
#: A cluster of nine cpus; each queue may use what the other leaves.
QUEUES = """
apiVersion: batchq/v1
kind: Queue
metadata: {name: left}
spec: {deserved: {cpu: 4}, preemption: {reclaim: Any}}
---
apiVersion: batchq/v1
kind: Queue
metadata: {name: right}
spec: {deserved: {cpu: 5}, preemption: {reclaim: Any}}
---
apiVersion: batchq/v1
kind: PriorityClass
metadata: {name: high}
spec: {value: 10}
"""
_QUEUES = ("left", "left", "right")
_CLASSES = ("", "", "high")
#: How often each kind is drawn.
_WEIGHTS = {
    "single": 3,
    "gang": 4,
    "array": 3,
    "retry": 2,
    "broken": 1,
    "chain": 2,
    "broken-chain": 1,
    "cancelled": 3,
}


class Design(Struct, frozen=True, kw_only=True):
    """A group, and how it is to end."""

    name: str
    kind: str
    replicas: int = 1
    min_member: int = 1
    tenths: int = 15
    manner: str = "ends"
    ends: tuple[str, ...] = ("Completed",)
    after: str = ""
    queue: str = "default"
    priority: str = ""
    grace: str = "1s"
    #: How long after its submission it is cancelled.
    cancel_after_s: float | None = None

    def manifest(self, diaries: Path, *, devices: bool = False) -> dict[str, object]:
        """Return the manifest that a user would write; with `devices`, each pod requests one."""
        python = [sys.executable, "-I", "-S", str(POD)]
        template = {
            "command": [*python, str(diaries), str(self.tenths), self.manner],
            "requests": {"cpu": 1, "gpu": 1} if devices else {"cpu": 1},
            "terminationGrace": self.grace,
        }
        spec: dict[str, object] = {
            "queue": self.queue,
            "minMember": self.min_member,
            "retry": {"limit": 1, "backoff": "200ms"},
            "ttlAfterFinished": KEPT,
            "tasks": [{"name": "main", "replicas": self.replicas, "template": template}],
        }
        if self.priority:
            spec["priorityClassName"] = self.priority
        if self.after:
            spec["dependsOn"] = [{"name": self.after}]
        return {
            "apiVersion": "batchq/v1",
            "kind": "PodGroup",
            "metadata": {"name": self.name},
            "spec": spec,
        }


def designs(chance: random.Random) -> Iterator[Sequence[Design]]:
    """Yield groups without end; groups that depend on each other come together."""
    number = 0
    while True:
        number += 1
        kind = chance.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()))[0]
        queue, priority = chance.choice(_QUEUES), chance.choice(_CLASSES)
        # Saving takes a second, so a short grace kills a stubborn pod soon and a long one lets it
        # save.
        grace = chance.choice(("1s", "3s"))
        yield [
            structs.replace(design, queue=queue, priority=priority, grace=grace)
            for design in _design(chance, kind, f"{kind}-{number}")
        ]


def _design(chance: random.Random, kind: str, name: str) -> list[Design]:
    tenths = chance.randint(3, 40)
    plain = Design(name=name, kind=kind, tenths=tenths)
    match kind:
        case "gang":
            gang = _many(plain, (replicas := chance.randint(2, 4)), replicas)
            return [_ending(gang, chance.choice(_HABITS), "Completed")]
        case "array":
            array = _many(plain, chance.randint(2, 6), 1)
            return [_ending(array, chance.choice(_HABITS), "Completed")]
        case "retry":
            replicas = chance.randint(1, 2)
            return [_ending(_many(plain, replicas, replicas), "fails-once", "Completed")]
        case "broken":
            return [_ending(plain, "fails", "Failed")]
        case "chain":
            then = Design(name=f"{name}-then", kind=kind, tenths=5, after=name)
            return [_ending(plain, chance.choice(_HABITS), "Completed"), then]
        case "broken-chain":
            after = Design(name=f"{name}-then", kind=kind, ends=("Failed",), after=name)
            return [_ending(plain, "fails", "Failed"), after]
        case "cancelled":
            replicas = chance.randint(1, 3)
            return [
                Design(
                    name=name,
                    kind=kind,
                    replicas=replicas,
                    min_member=chance.choice((1, replicas)),
                    tenths=tenths,
                    manner=chance.choice(_HABITS),
                    ends=("Cancelled", "Completed"),
                    cancel_after_s=chance.uniform(0, 5),
                )
            ]
        case _:
            return [plain]


def _many(plain: Design, replicas: int, min_member: int) -> Design:
    return Design(
        name=plain.name,
        kind=plain.kind,
        tenths=plain.tenths,
        replicas=replicas,
        min_member=min_member,
    )


def _ending(plain: Design, manner: str, end: str) -> Design:
    return Design(
        name=plain.name,
        kind=plain.kind,
        tenths=plain.tenths,
        replicas=plain.replicas,
        min_member=plain.min_member,
        manner=manner,
        ends=(end,),
    )


class Load:
    """A thread that keeps the stack busy, and records how each group ends.

    `ended` maps a group's name to its last phase, or to `GONE` if the group was removed unseen.
    """

    GONE = "gone"

    def __init__(self, url: str, diaries: Path, *, seed: int, devices: bool = False) -> None:
        self._url = url
        self._devices = devices
        self._diaries = diaries
        self._designs = designs(random.Random(seed))
        self._enough = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self.submitted: dict[str, Design] = {}
        self.ended: dict[str, str] = {}
        self._waiting: list[Design] = []
        self._cancel_at: dict[str, float] = {}

    def start(self) -> None:
        """Start to submit groups."""
        self._thread.start()

    def submit_no_more(self) -> None:
        """Submit no more groups; only record how they end."""
        self._enough.set()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join()

    def unfinished(self) -> list[str]:
        """Return the groups that have been submitted and have not been seen to end."""
        return [name for name in list(self.submitted) if name not in self.ended]

    def is_settled(self) -> bool:
        """Return whether every drawn group has ended."""
        return not self._waiting and not self.unfinished()

    def _run(self) -> None:
        with Client(self._url) as client:
            while not self._stopping.wait(_LOOKS_EVERY_S):
                try:
                    self._look(client)
                    self._cancel(client)
                    self._submit(client)
                except StoreUnavailable:
                    # The next look repeats what was cut off.
                    continue

    def _submit(self, client: Client) -> None:
        while not self._enough.is_set() or self._waiting:
            if not self._waiting:
                if len(self.unfinished()) >= UNFINISHED:
                    return
                self._waiting = list(next(self._designs))
            design = self._waiting[0]
            try:
                client.submit(design.manifest(self._diaries, devices=self._devices))
            except Conflict:
                # An earlier submission succeeded, and its answer was lost.
                client.get("PodGroup", design.name)
            self.submitted[design.name] = design
            if design.cancel_after_s is not None:
                self._cancel_at[design.name] = time.monotonic() + design.cancel_after_s
            del self._waiting[0]

    def _cancel(self, client: Client) -> None:
        for name, at in list(self._cancel_at.items()):
            if time.monotonic() < at:
                continue
            # It may have ended, for example cancelled by a call whose answer was lost.
            with suppress(Conflict, NotFound):
                client.cancel(name)
            del self._cancel_at[name]

    def _look(self, client: Client) -> None:
        for name in self.unfinished():
            try:
                found = client.get("PodGroup", name)
            except NotFound:
                self.ended[name] = self.GONE
                continue
            assert isinstance(found, PodGroup)
            if found.status.phase in _FINISHED:
                self.ended[name] = str(found.status.phase)
