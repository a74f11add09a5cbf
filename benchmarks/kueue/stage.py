"""Start, measure and end the processes of a benchmark, in a temporary home directory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import psutil

from batchq.daemon import embedded_server as embedded
from batchq.paths import HOME_VARIABLE, URL_VARIABLE, Home, default_url

#: As in Kueue's own run: evictions within a queue and within a cohort, no placement.
#: All groups are in one namespace, as in Kueue's load.
CONFIG = "actions: [enqueue, reclaim, preempt]\nmaxPodGroupsPerNamespace: 1000000\n"
#: The processes that `--profile` profiles; a profiler would delay the submitter.
PROFILED = ("daemon", "consumer")
_READY_WITHIN_S = 60.0
_ENDED_WITHIN_S = 120.0
_MIB = 1024 * 1024


class Cost(msgspec.Struct, frozen=True):
    """The cost of a process: CPU seconds, and its peak resident memory in MiB."""

    cpu_s: float
    peak_mib: float


class Stage:
    """A context manager: a server as `batchq up` starts it, and the processes of a benchmark."""

    def __init__(self, *, profile: bool = False) -> None:
        # Short, because the length of a socket's path is limited.
        self.folder = Path(tempfile.mkdtemp(prefix="bqk"))
        self.home = Home(self.folder / "home")
        self.url = default_url(self.home)
        self.profile = profile
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Stage:
        embedded.ensure_server(self.home)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._started.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        if kind is not None:
            for log in sorted(self.folder.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}", file=sys.stderr)
        embedded.stop_server(self.home)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def server(self) -> psutil.Process:
        """Return the server's process."""
        found = embedded.running_server(self.home)
        assert found is not None
        return psutil.Process(found.pid)

    def start(self, name: str, module: str, *arguments: str) -> None:
        """Start `python -m module` under this name; profiled if `profile` was given."""
        words = [sys.executable, "-m", module, *arguments]
        if self.profile and name in PROFILED:
            out = str(self.folder / f"{name}.profile")
            words = [sys.executable, "-m", "benchmarks.kueue.profiled", out, module, *arguments]
        environ = {key: value for key, value in os.environ.items() if not key.startswith("BATCHQ_")}
        environ |= {HOME_VARIABLE: str(self.home.root), URL_VARIABLE: self.url}
        with (self.folder / f"{name}.log").open("wb") as log:
            self._started[name] = subprocess.Popen(
                words, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def start_scheduler(self) -> None:
        """The daemon, with the settings of this benchmark."""
        config = self.folder / "scheduler.yaml"
        config.write_text(CONFIG)
        self.start("daemon", "batchq.cli", "scheduler", "--config", str(config))

    def process(self, name: str) -> psutil.Process:
        """Return the process that was started under this name."""
        return psutil.Process(self._started[name].pid)

    def check(self) -> None:
        """Raise RuntimeError if a process has failed."""
        for name, process in self._started.items():
            if process.poll() not in (None, 0):
                raise RuntimeError(f"the {name} ended with {process.returncode}")

    def await_file(self, name: str) -> None:
        """Wait until a file exists. Raises RuntimeError if a process fails."""
        deadline = time.monotonic() + _READY_WITHIN_S
        while not (self.folder / name).exists():
            self.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} does not exist after {_READY_WITHIN_S:.0f} s")
            time.sleep(0.01)

    def result_of(self, name: str) -> Mapping[str, Any]:
        """Return the JSON that a process wrote at its end."""
        self._started[name].wait(_ENDED_WITHIN_S)
        self.check()
        found: Mapping[str, Any] = msgspec.json.decode((self.folder / f"{name}.json").read_bytes())
        return found

    def end(self, name: str) -> None:
        """Send a process SIGTERM, and wait for its end."""
        self._started[name].send_signal(signal.SIGTERM)
        self._started[name].wait(_ENDED_WITHIN_S)


def cost_of(process: psutil.Process, before: Cost | None = None) -> Cost:
    """Return the cost of a process since `before`."""
    times = process.cpu_times()
    used = times.user + times.system - (before.cpu_s if before else 0.0)
    return Cost(used, peak_mib(process.pid))


def peak_mib(pid: int | None = None) -> float:
    """Return the peak resident memory of a process in MiB; None means this process."""
    status = Path("/proc", "self" if pid is None else str(pid), "status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return float(psutil.Process(pid).memory_info().rss) / _MIB
