"""Reads what the pods of a swarm wrote about themselves."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from msgspec import Struct


class Run(Struct, kw_only=True):
    """One process of a pod, from its diary. Instants are in seconds of the monotonic clock."""

    uid: str
    attempt: int
    pid: int
    began_at: float
    last_at: float
    #: `done`, `failed`, `saved`, or empty if it was cut off.
    end: str = ""
    #: Why it was told to stop, and why the run before it was; empty if it was not told.
    stop_reason: str = ""
    after: str = ""
    found_another: bool = False
    #: The devices that it had, and those that another process had, too.
    devices: list[str] = []
    shared: list[str] = []

    def __str__(self) -> str:
        return f"{self.uid}-{self.attempt} (pid {self.pid})"


def read_runs(folder: Path) -> dict[str, list[Run]]:
    """Return the runs of every pod by the pod's name, in the order of their start."""
    return {path.name: runs_of(path.read_text()) for path in sorted(folder.iterdir())}


def runs_of(text: str) -> list[Run]:
    """Return the runs in one diary."""
    runs: dict[tuple[str, str, str], Run] = {}
    for line in text.splitlines():
        at, pid, uid, attempt, word = line.split()
        run = runs.setdefault(
            (pid, uid, attempt),
            Run(
                uid=uid,
                attempt=int(attempt),
                pid=int(pid),
                began_at=float(at),
                last_at=float(at),
            ),
        )
        run.last_at = float(at)
        run.found_another = run.found_another or word == "twice"
        if word in ("done", "failed", "saved"):
            run.end = word
        match word.split(":"):
            case ["told", reason]:
                run.stop_reason = reason
            case ["after", reason]:
                run.after = reason
            case ["has", device]:
                run.devices.append(device)
            case ["shares", device]:
                run.shared.append(device)
    return list(runs.values())


def shared_devices(diaries: Mapping[str, list[Run]]) -> list[str]:
    """Return each run with a device that another process had at the same time, or with a device
    within the time of another run that had it.
    """
    every = [run for runs in diaries.values() for run in runs]
    faults = [
        f"{run} had {device}, and another process, too" for run in every for device in run.shared
    ]
    by_device: dict[str, list[Run]] = {}
    for run in sorted(every, key=lambda one: one.began_at):
        for device in run.devices:
            by_device.setdefault(device, []).append(run)
    for device, runs in by_device.items():
        faults += [
            f"{after} got {device} while {before} had it"
            for before, after in pairwise(runs)
            if before.last_at > after.began_at
        ]
    return faults


def twice_at_once(diaries: Mapping[str, list[Run]]) -> list[str]:
    """Return each run that overlaps another run of its pod, and each attempt that ran twice."""
    faults: list[str] = []
    for pod, runs in diaries.items():
        for before, run in zip([None, *runs], runs, strict=False):
            if run.found_another or (before is not None and before.last_at > run.began_at):
                faults.append(f"{pod}: {run} began while {before} ran")
        attempts = [(run.uid, run.attempt) for run in runs]
        faults += [
            f"{pod}: attempt {attempt} of {uid} ran more than once"
            for uid, attempt in sorted(set(attempts))
            if attempts.count((uid, attempt)) > 1
        ]
    return faults
