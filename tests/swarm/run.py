"""A swarm from its first process to the result of its checks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct

from batchq.api.node_features import Device
from batchq.errors import StoreUnavailable
from tests.e2e.machine import Machine
from tests.swarm import checker
from tests.swarm.cast import AGENTS, DEVICES, Cast
from tests.swarm.chaos import Chaos
from tests.swarm.diary import read_runs, shared_devices, twice_at_once
from tests.swarm.load import QUEUES, Load

_TURN_S = 0.02
_TELLS_EVERY = 10
#: How long everything may take to end after the last strike.
_SETTLES_WITHIN_S = 90.0
_READY_WITHIN_S = 60.0


class Report(Struct, frozen=True, kw_only=True):
    """What a swarm did, and the result of its checks: four lists that should be empty."""

    seed: int
    lasted_s: float
    struck: dict[str, int]
    groups: dict[str, int]
    pods: int
    runs: int
    #: How often a pod got a device.
    devices: int
    #: Why pods that ran a second time had been stopped, such as Preempted or Reclaimed.
    resumed: dict[str, int]
    unasked: dict[str, int]
    lost: list[str]
    twice: list[str]
    left_over: list[str]
    broken: list[str]

    @property
    def is_clean(self) -> bool:
        """Whether all checks have passed."""
        return not (self.lost or self.twice or self.left_over or self.broken)

    def text(self) -> str:
        """Return the report as text."""
        rows = [
            f"seed {self.seed}: {sum(self.struck.values())} strikes in {self.lasted_s:.0f} s",
            *(f"  {count:5}  {kind}" for kind, count in sorted(self.struck.items())),
            f"{sum(self.groups.values())} groups, {self.pods} pods, {self.runs} runs",
            *([f"{self.devices} times a pod got a device"] if self.devices else []),
            *(f"  {count:5}  {kind}" for kind, count in sorted(self.groups.items())),
            *(
                f"  {count:5}  runs after {reason}"
                for reason, count in sorted(self.resumed.items())
            ),
            *(f"  {count:5}  ended unasked, {what}" for what, count in self.unasked.items()),
            f"{len(self.lost)} lost, {len(self.twice)} twice at once",
            f"{len(self.left_over)} left over, {len(self.broken)} broken",
            *(f"  lost: {fault}" for fault in self.lost),
            *(f"  twice: {fault}" for fault in self.twice),
            *(f"  left over: {fault}" for fault in self.left_over),
            *(f"  broken: {fault}" for fault in self.broken),
        ]
        return "\n".join(rows)


def swarm(
    *,
    kills: int,
    seed: int,
    every_s: float,
    tell: Callable[[str], None],
    keep: Path | None = None,
    devices: bool = False,
) -> Report:
    """Strike `kills` times, let everything end, and check the result.

    `keep`: a folder for logs, diaries and stored objects if a check fails. `devices`: the agents
    share the devices of their machine, and each pod requests one.
    """
    with TemporaryDirectory() as folder:
        file = Path(folder, "gpus.json")
        made = [
            Device(index=index, id=f"GPU-{os.getpid()}-{index}", model="h100")
            for index in range(DEVICES)
        ]
        file.write_bytes(msgspec.json.encode(made))
        variables = {"BATCHQ_FAKE_GPUS": str(file)} if devices else {}
        return _on_a_machine(
            variables, kills=kills, seed=seed, every_s=every_s, tell=tell, keep=keep
        )


def _on_a_machine(
    variables: dict[str, str],
    *,
    kills: int,
    seed: int,
    every_s: float,
    tell: Callable[[str], None],
    keep: Path | None,
) -> Report:
    # Work-horses are recognised by their command line.
    with Machine(
        commands=subprocess.Popen, programs=subprocess.Popen, variables=variables
    ) as machine:
        cast = Cast(machine, devices=bool(variables))
        try:
            report = _swarm(machine, cast, kills=kills, seed=seed, every_s=every_s, tell=tell)
        finally:
            cast.resume_all()
        if keep is not None and not report.is_clean:
            _keep(machine, keep)
        return report


def _swarm(
    machine: Machine,
    cast: Cast,
    *,
    kills: int,
    seed: int,
    every_s: float,
    tell: Callable[[str], None],
) -> Report:
    began_at = time.monotonic()
    diaries = machine.root / "diaries"
    diaries.mkdir()
    (machine.root / "diaries.devices").mkdir()
    _tend_until(cast, lambda: _ready(machine), within_s=_READY_WITHIN_S)
    machine.batchq("apply", "-f", str(machine.file("queues.yaml", QUEUES)))
    load = Load(machine.url, diaries, seed=seed, devices=cast.has_devices)
    chaos = Chaos(cast, seed=seed, every_s=every_s)
    load.start()
    try:
        _strike(cast, chaos, load, kills=kills, tell=tell)
        cast.resume_all()
        load.submit_no_more()
        tell("no more strikes: everything comes to its end")
        _tend_until(cast, load.is_settled, within_s=_SETTLES_WITHIN_S)
        with machine.store() as store:
            _tend_until(
                cast,
                lambda: not checker.left_over(store, machine.url, machine.home.root),
                within_s=_SETTLES_WITHIN_S,
            )
            left_over = checker.left_over(store, machine.url, machine.home.root)
            left_over += checker.lasting_keys(machine.url)
    finally:
        load.stop()
    runs = read_runs(diaries)
    return Report(
        seed=seed,
        lasted_s=time.monotonic() - began_at,
        struck=dict(chaos.struck),
        groups=dict(
            Counter(
                f"{design.kind}: {load.ended.get(name, 'no end')}"
                for name, design in load.submitted.items()
            )
        ),
        pods=sum(design.replicas for design in load.submitted.values()),
        runs=sum(len(of_pod) for of_pod in runs.values()),
        devices=sum(len(run.devices) for of_pod in runs.values() for run in of_pod),
        resumed=dict(Counter(run.after for each in runs.values() for run in each if run.after)),
        unasked=dict(cast.unasked),
        lost=checker.lost(load.submitted, load.ended, runs),
        twice=twice_at_once(runs) + shared_devices(runs),
        left_over=left_over,
        broken=checker.broken(machine.root, machine.home.logs),
    )


def _strike(
    cast: Cast, chaos: Chaos, load: Load, *, kills: int, tell: Callable[[str], None]
) -> None:
    never = threading.Event()
    while (done := sum(chaos.struck.values())) < kills:
        cast.tend()
        if chaos.turn() and (done + 1) % _TELLS_EVERY == 0:
            tell(f"{done + 1} strikes; {len(load.submitted)} groups, {len(load.ended)} ended")
        never.wait(_TURN_S)


def _tend_until(cast: Cast, true: Callable[[], bool], *, within_s: float) -> None:
    """Tend the processes until the condition holds or the time is over; the checks tell which."""
    never = threading.Event()
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        cast.tend()
        try:
            if true():
                return
        except StoreUnavailable:
            pass
        never.wait(0.1)


def _ready(machine: Machine) -> bool:
    with machine.client() as client:
        ready = {node.metadata.name for node in client.nodes() if node.status.ready}
        return ready == set(AGENTS)


def _keep(machine: Machine, keep: Path) -> None:
    shutil.copytree(
        machine.root, keep, ignore=lambda _, names: [name for name in names if ".sock" in name]
    )
    with machine.store() as store:
        for kind in ("PodGroup", "Pod", "Node"):
            objects = [msgspec.to_builtins(item) for item in store.list(kind)]
            (keep / f"{kind}.json").write_text(json.dumps(objects, indent=1))
        events = [msgspec.to_builtins(event) for event in store.events(most=10_000)]
        (keep / "events.json").write_text("\n".join(json.dumps(event) for event in events))
