"""The machines of a simulated cluster: the processes that really run, whatever a server believes.

This module checks what must never happen: a pod that runs twice at once, two processes of one
attempt, a machine that runs more than it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from msgspec import Struct

from batchq.api.node_features import WHOLE
from batchq.api.node_report import PodAttempt, Runs
from batchq.api.objects import Pod
from batchq.api.resources import GPU, of_pod, plus
from batchq.api.transaction import generation_of
from batchq.errors import InvariantBroken
from batchq.ports import Clock
from batchq.worker.agent.messages import EndRecord, HorseEnd
from batchq.worker.workhorse.leases import Voucher


class Script(Struct, frozen=True, kw_only=True):
    """How the pods of a group behave: how long they run, how often they fail, and how long they
    take to stop.
    """

    runtime_ms: int
    fails: int = 0
    stops_in_ms: int = 0
    #: Whether a pod is restarted alone, if its gang has `spec.launch`.
    rejoins: bool = False


class Process(Struct, frozen=True, kw_only=True):
    """One attempt of a pod that really runs on one machine."""

    attempt: PodAttempt
    group_uid: str
    place: tuple[str, str, int]
    requests: dict[str, int]
    ends_at: int
    exit_code: int
    stops_in_ms: int
    #: The ids of its devices.
    devices: tuple[str, ...] = ()
    #: The round of its gang, if that restarts whole: the admission.
    round: int | None = None


class Truth:
    """All processes that really run, on all machines; checks that none runs which must not."""

    def __init__(self, clock: Clock, scripts: dict[str, Script]) -> None:
        self._clock = clock
        self._scripts = scripts
        self._running: dict[tuple[str, str, int], tuple[str, Process]] = {}
        self._started: dict[PodAttempt, str] = {}
        self._ended_well: dict[tuple[str, str, int], int] = {}
        #: (Group, round) -> the attempt that has started at each place.
        self._rounds: dict[tuple[str, int], dict[tuple[str, str, int], PodAttempt]] = {}
        self.starts = 0

    def start(self, machine: Machine, pod: Pod) -> Process:
        """Start a pod's command. Raises InvariantBroken if the pod then runs twice at once."""
        status, spec = pod.status, pod.spec
        place = (status.group_uid, spec.task, spec.index)
        attempt = PodAttempt(pod.metadata.uid, status.attempt)
        if place in self._running:
            where, other = self._running[place]
            raise InvariantBroken(
                f"{place} runs twice at once: attempt {attempt.id} on {machine.name} and"
                f" {other.attempt.id} on {where}"
            )
        if attempt in self._started:
            raise InvariantBroken(f"{attempt.id} is started again: on {machine.name}")
        if spec.image and spec.image not in machine.images:
            raise InvariantBroken(f"{attempt.id} starts on {machine.name} without {spec.image}")
        script = self._scripts[spec.pod_group]
        fails = self._ended_well.get(place, 0) < script.fails
        process = Process(
            attempt=attempt,
            group_uid=status.group_uid,
            place=place,
            requests=of_pod(spec.requests),
            ends_at=self._clock.now_ms() + script.runtime_ms,
            exit_code=int(fails),
            stops_in_ms=script.stops_in_ms,
            devices=status.devices,
            round=status.admission if spec.ports and not script.rejoins else None,
        )
        self._check_round(machine, process)
        machine.take_capacity(process)
        self._running[place] = (machine.name, process)
        self._started[attempt] = machine.name
        self.starts += 1
        return process

    def _check_round(self, machine: Machine, process: Process) -> None:
        """Raise InvariantBroken if a pod of a gang with `spec.launch` starts or goes on beside one
        of another round, or beside one that has met an earlier attempt of this pod.
        """
        if process.round is None:
            return
        others = [
            (where, one)
            for where, one in self._running.values()
            if one.group_uid == process.group_uid
        ]
        for where, other in others:
            if other.round != process.round:
                raise InvariantBroken(
                    f"{process.attempt.id} of round {process.round} runs on {machine.name} beside"
                    f" {other.attempt.id} of round {other.round} on {where}"
                )
        met = self._rounds.setdefault((process.group_uid, process.round), {})
        former, generation = met.get(process.place), _generation(process)
        for where, other in others:
            # A restarted server binds with other numbers, and may have lost what was bound before.
            met_former = (
                former is not None
                and former != process.attempt
                and generation_of(former.attempt) == _generation(other) == generation
            )
            if met_former or _generation(other) < generation:
                raise InvariantBroken(
                    f"{process.attempt.id} runs on {machine.name} beside {other.attempt.id} on"
                    f" {where}, which has met an earlier attempt"
                )
        met[process.place] = process.attempt

    def has_started(self, attempt: PodAttempt) -> bool:
        """Return whether a process of the attempt has run."""
        return attempt in self._started

    def end(self, process: Process, *, by_itself: bool) -> None:
        """Record that no process of the attempt is left."""
        del self._running[process.place]
        if by_itself:
            self._ended_well[process.place] = self._ended_well.get(process.place, 0) + 1

    def suspend(self, process: Process) -> None:
        """Freeze the machine: its processes make no progress."""
        del self._running[process.place]

    def resume(self, machine: Machine, process: Process) -> None:
        """Resume the machine. Raises InvariantBroken if the pod runs elsewhere meanwhile."""
        if process.place in self._running:
            where, other = self._running[process.place]
            raise InvariantBroken(
                f"{process.attempt.id} goes on on {machine.name} while {other.attempt.id} runs"
                f" on {where}"
            )
        self._check_round(machine, process)
        self._running[process.place] = (machine.name, process)

    def processes(self) -> Iterator[tuple[str, Process]]:
        """Return every process that runs now, with its machine."""
        return iter(self._running.values())

    @property
    def running(self) -> int:
        """Return the number of pods that run now."""
        return len(self._running)


class WorkHorse(Protocol):
    """A work-horse as its machine knows it."""

    attempt: PodAttempt
    due_at: int
    process: Process | None
    voucher: Voucher
    #: What its parent does when it ends.
    on_end: Callable[[HorseEnd], None]

    @property
    def alive(self) -> bool: ...

    def step(self) -> None: ...

    def wake(self) -> None: ...

    def kill(self) -> None: ...

    def pause(self, lasts_ms: int) -> None: ...

    def stop(self, *, kills: bool) -> None: ...

    def end_at_once(self) -> None: ...

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    def runs(self) -> Runs | None: ...


class Machine:
    """The hardware of one node: its capacity, its disk, and its work-horses."""

    def __init__(self, name: str, resources: dict[str, int], truth: Truth) -> None:
        self.name = name
        self.resources = resources
        self.truth = truth
        self.horses: dict[PodAttempt, WorkHorse] = {}
        #: The run files.
        self.records: dict[PodAttempt, EndRecord] = {}
        #: The images that were pulled.
        self.images: set[str] = set()
        #: Whether the parent of the work-horses lives, and what it does when one ends.
        self.agent_lives = False
        self.agent_is_stopped_until = 0
        self.on_horse_end: Callable[[HorseEnd], None] = _ignore

    def horse_ended(self, horse: WorkHorse, end: HorseEnd) -> None:
        """Remove a work-horse whose process has ended, and tell its parent, which may be an agent
        that is gone: one that has replaced it does not hear of it.
        """
        del self.horses[horse.attempt]
        horse.voucher.give_back()
        if self.agent_lives and horse.on_end is self.on_horse_end:
            horse.on_end(end)

    def take_capacity(self, process: Process) -> None:
        """Raises InvariantBroken if the running pods no longer fit, or share a device."""
        taken = process.requests
        for horse in self.horses.values():
            if horse.process is not None:
                taken = plus(taken, horse.process.requests)
                if shared := set(process.devices).intersection(horse.process.devices):
                    raise InvariantBroken(
                        f"{process.attempt.id} and {horse.process.attempt.id} both have"
                        f" {', '.join(sorted(shared))} of {self.name}"
                    )
        if len(set(process.devices)) != process.requests.get(GPU, 0) // WHOLE:
            raise InvariantBroken(
                f"{process.attempt.id} has the devices {process.devices}, and requests"
                f" {process.requests}"
            )
        for name, units in self.resources.items():
            if taken.get(name, 0) > units:
                raise InvariantBroken(f"{self.name} runs {taken}, and has {self.resources}")


def _generation(process: Process) -> int:
    return generation_of(process.attempt.attempt)


def _ignore(_end: HorseEnd) -> None:
    """Do nothing: there is no agent."""
