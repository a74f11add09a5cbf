"""A stack with both controllers of conf/examples, and queues that ask both of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from batchq.api.lifecycle import TERMINAL
from batchq.api.objects import PodGroup, key_of
from batchq.daemon import embedded_server
from tests.e2e.machine import LONG_LEASE, STEADY, Machine, group, kill, phase, until
from tests.swarm.checker import broken, left_over
from tests.swarm.diary import Run, read_runs
from tests.swarm.load import Design

EXAMPLES = Path(__file__).resolve().parents[2] / "conf" / "examples"
#: A controller that the test itself plays, to see what it is asked.
DESK = "desk"
#: Runs until it is told to stop: no test waits for its end.
SLEEPS = ("sleep", "600")
#: The checks of a killed controller are inactive after this time.
LEASE_S = 4
#: The example uses the default of 30 seconds.
_WATCHES = "client.checks.watch(CONTROLLER)"
_CLASSES = {"kind": "PriorityClass", "metadata": {"name": "high"}, "spec": {"value": 10}}


class Admissions:
    """Server, scheduler, an agent and both controllers, for all tests of a module; a context
    manager.

    Each test has its own queue, with its own checks.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.diaries = machine.root / "diaries"
        self.diaries.mkdir()
        self.hours = machine.file("hours.yml", "default: 40\n")
        self._closing = ExitStack()
        embedded_server.ensure_server(machine.home)
        self.client = self._closing.enter_context(machine.client())
        self.approval: subprocess.Popen[str] | None = None
        self.budget: subprocess.Popen[str] | None = None
        self.start_scheduler()
        machine.agent("n1", "cpu=8,memory=1Gi", options=LONG_LEASE)
        self._apply(_CLASSES)
        self.start_controllers()

    def __enter__(self) -> Admissions:
        return self

    def __exit__(self, *_: object) -> None:
        if self.budget is not None:
            self.budget.terminate()
            self.budget.wait(90)
        self._closing.close()

    def start_controllers(self) -> None:
        """Start each controller that does not run, because a test may have ended it."""
        if self.approval is None or self.approval.poll() is not None:
            self.start_approval()
        if self.budget is None or self.budget.poll() is not None:
            self.start_budget()

    def start_scheduler(self) -> None:
        """Start another scheduler, and return once it leads or follows."""
        config = self.machine.file("steady.yaml", STEADY)
        started = self.machine.start("scheduler", "--config", str(config))
        until(
            lambda: "leader." in self.machine.output_of(started),
            what="a scheduler leads or follows",
        )

    def leader(self) -> int:
        """Return the pid of the leader."""
        with self.machine.store() as store:
            leader = store.leader()
        assert leader is not None
        return int(leader.identity.split(":")[1])

    def start_approval(self) -> None:
        """Start `batchq checks serve approval`, as its example says."""
        lease = ("--lease", f"{LEASE_S}s")
        self.approval = self.machine.start("checks", "serve", "approval", *lease)

    def start_budget(self) -> None:
        """Start `python3 budget.py FILE`, the example with a shorter lease."""
        text = (EXAMPLES / "budget.py").read_text()
        assert _WATCHES in text, "the example sets its lease in another place"
        program = self.machine.file(
            "budget.py", text.replace(_WATCHES, f"{_WATCHES[:-1]}, lease_s={LEASE_S})")
        )
        with (self.machine.root / "budget.err").open("a") as log:
            self.budget = subprocess.Popen(
                [sys.executable, str(program), str(self.hours)],
                cwd=self.machine.root,
                env={"BATCHQ_REDIS_URL": self.machine.url, "PYTHONPATH": ":".join(sys.path)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )

    def kill_controllers(self) -> None:
        """`kill -9` both controllers."""
        assert self.approval is not None
        assert self.budget is not None
        for process in (self.approval, self.budget):
            kill(process.pid)
            process.wait()

    def spans(self) -> dict[str, list[Any]]:
        """Return what the budget has recorded: "uid/admission" -> namespace, cpus, from, until."""
        text = self.hours.with_suffix(".ledger.json").read_text()
        found: dict[str, list[Any]] = json.loads(text)
        return found

    def queue(
        self, name: str, *, cpus: int = 2, controllers: Sequence[str] = ("budget", "approval")
    ) -> None:
        """Create a queue of `cpus` with a check of each controller, such as budget-NAME."""
        for controller in controllers:
            self.check(f"{controller}-{name}")
        names = [f"{controller}-{name}" for controller in controllers]
        spec = {"admissionChecks": names, "capability": {"cpu": cpus}}
        self._apply({"kind": "Queue", "metadata": {"name": name}, "spec": spec})
        ours = [one for one in names if not one.startswith(f"{DESK}-")]
        until(lambda: set(ours) <= self.active(), what=f"{ours} are active")

    def check(self, name: str, *, retry_delay_minutes: int = 30) -> None:
        """Apply or change a check; its controller is the first part of its name."""
        spec = {
            "controllerName": name.partition("-")[0],
            "retryDelayMinutes": retry_delay_minutes,
        }
        self._apply({"kind": "AdmissionCheck", "metadata": {"name": name}, "spec": spec})

    def active(self) -> set[str]:
        """Return the checks that a controller keeps active."""
        return {one.name for one in self.client.checks.records() if one.active}

    def submit(self, queue: str, name: str, *command: str, **request: Any) -> None:
        """Submit a gang of two pods of a cpu each, which runs until it is told to stop."""
        pods = {"cpus": 1, "replicas": 2, "min_member": 2}
        self.client.submit(
            command=list(command or SLEEPS), name=name, queue=queue, **{**pods, **request}
        )

    def submit_diary(self, queue: str, name: str, *, namespace: str = "default") -> None:
        """Submit a pod of a cpu that keeps a diary and writes a checkpoint when it is told to
        stop.
        """
        design = Design(
            name=name, kind="single", queue=queue, tenths=100_000, manner="saves", grace="20s"
        )
        manifest: Any = design.manifest(self.diaries)
        manifest["metadata"]["namespace"] = namespace
        self.client.submit(manifest)

    def runs_of(self, name: str) -> list[Run]:
        """Return the runs in the diary of a group's pod."""
        return read_runs(self.diaries).get(f"{name}-main-0", [])

    def set(self, name: str, check: str, *answer: str, exits: int = 0) -> str:
        """Run `batchq checks set`, and return its stderr."""
        return self.machine.batchq("checks", "set", name, check, *answer, exits=exits).stderr

    def is_reserved(self, name: str) -> bool:
        """Return whether quota is reserved for a group that waits."""
        status = group(self.client, name).status
        return status.phase == "Pending" and status.reserved_at is not None

    def check_statuses(self, name: str) -> dict[str, str]:
        """Return check -> status of a group."""
        return {state.name: state.status for state in self.client.checks.list(name)}

    def await_check(self, name: str, check: str) -> None:
        """Wait until quota is reserved for the group and only this check of it is open."""
        until(
            lambda: (
                self.is_reserved(name)
                and self.check_statuses(name)[check] == "Unknown"
                and all(
                    said == "True"
                    for one, said in self.check_statuses(name).items()
                    if one != check
                )
            ),
            what=f"{name} waits only for {check}",
        )

    def await_running(self, name: str) -> None:
        """Wait until a group runs."""
        until(lambda: phase(self.client, name) == "Running", what=f"{name} runs")

    def reasons(self, name: str) -> list[str]:
        """Return the reasons for which a group waits."""
        return [str(verdict.reason) for verdict in group(self.client, name).status.reasons]

    def events(self, name: str, *wanted: str) -> list[str]:
        """Return the wanted events of a group: the reason, and the check if it is an answer."""
        key = name if "/" in name else f"default/{name}"
        return [
            f"{event.reason} {event.message.split(':')[0].removeprefix('check ')}"
            if event.reason.startswith("Check")
            else event.reason
            for event in self.client.events(kind="PodGroup", key=key)
            if event.reason in wanted
        ]

    def assert_settled(self) -> None:
        """Cancel what has not ended; then check that nothing is left, that the ledger is even, and
        that no process has logged a bug.
        """
        for found in self.client.list("PodGroup"):
            if isinstance(found, PodGroup) and found.status.phase not in TERMINAL:
                self.client.cancel(key_of(found))
        left: list[str] = []
        with self.machine.store() as store:

            def is_settled() -> bool:
                left[:] = left_over(store, self.machine.url, self.machine.home.root)
                return not left

            until(is_settled, what=f"everything has ended except {left}")
        report = json.loads(self.machine.batchq("doctor", "-o", "json", exits=None).stdout)
        said = {one["check"]: (one["level"], one["found"]) for one in report["findings"]}
        assert {check for check, (level, _) in said.items() if level == "error"} == set(), said
        for check in ("ledger", "limits", "groups", "pods", "outbox"):
            assert said[check][0] == "ok", said[check]
        assert broken(self.machine.root, self.machine.home.logs) == []

    def _apply(self, data: dict[str, Any]) -> None:
        self.client.apply([{"apiVersion": "batchq/v1", **data}])
