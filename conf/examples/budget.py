"""A controller of admission checks: a weekly budget of cpu-hours for each namespace.

    .venv/bin/python conf/examples/budget.py conf/examples/cpu-hours.yml [LEDGER]

`.venv` is the README's environment; any Python with batchq works. The default LEDGER is next to the
budgets: conf/examples/cpu-hours.ledger.json.

A group passes if the rest of its namespace's week (from Monday, UTC) covers its cpus for its
walltime, beside the possible usage of other groups that have passed. A group without a walltime
passes while anything is left. When the budget is used up, running groups are stopped and asked
again later.

LEDGER stores the usage, one span for each admission. The server's records are not sufficient: for a
group that was stopped and started again they contain only the current run, and its owner can delete
it when it has ended. Spans are identified by uid and admission, so a restarted controller continues
to measure from the group's start. No admission is missed, since none happens without an answer.
"""

import contextlib
import json
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml

from batchq import Client
from batchq.api.objects import PodGroup, key_of
from batchq.client.checks import CheckRequest
from batchq.errors import Conflict, NotFound

CONTROLLER = "budget"
LOOK_EVERY_S = 5.0
MS_PER_HOUR = 3_600_000


def cpus(group: PodGroup) -> float:
    """Return the total cpus of a group: of a gang together, and of an array over time."""
    tasks = sum(task.replicas * task.template.requests.get("cpu", 0) for task in group.spec.tasks)
    return max(tasks, group.spec.min_resources.get("cpu", 0)) / 1000


def need_hours(group: PodGroup) -> float:
    """Return the possible usage; unknown without a walltime."""
    return cpus(group) * (group.spec.walltime or 0) / MS_PER_HOUR


def week_start(now_ms: int) -> int:
    """Monday, 00:00 UTC."""
    now = datetime.fromtimestamp(now_ms / 1000, tz=UTC)
    monday = (now - timedelta(days=now.weekday())).replace(hour=0, minute=0, second=0)
    return int(monday.timestamp()) * 1000


class Ledger:
    """The usage: "uid/admission" -> namespace, cpus, start and end (milliseconds)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spans: dict[str, tuple[str, float, int, int]] = {}
        if path.exists():
            self.spans = {key: tuple(span) for key, span in json.loads(path.read_text()).items()}

    def measure(self, group: PodGroup, now_ms: int) -> None:
        """Record the run of the group's current admission, until now or until its end."""
        status, key = group.status, self.key(group)
        _, most, start, _ = self.spans.get(key, ("", 0.0, status.started_at, 0))
        if start is None or (status.started_at is None and key not in self.spans):
            return
        left = [one.last_transition_time for one in status.conditions if one.type == "Evicted"]
        ends = [status.finished_at] if status.started_at is not None else left
        end = next((at for at in ends if at is not None), now_ms)
        # The maximum so far, which grows with an elastic group.
        most = max(most, status.charge.get("cpu", 0) / 1000) or cpus(group)
        self.spans[key] = (group.metadata.namespace, most, start, end)

    def used(self, namespace: str, now_ms: int) -> float:
        """Return the cpu-hours of a namespace in this week."""
        monday = week_start(now_ms)
        return sum(
            count * max(0, end - max(start, monday)) / MS_PER_HOUR
            for owner, count, start, end in self.spans.values()
            if owner == namespace
        )

    def used_by(self, group: PodGroup) -> float:
        """Return the cpu-hours of the group's current admission."""
        _, count, start, end = self.spans.get(self.key(group), ("", 0.0, 0, 0))
        return count * (end - start) / MS_PER_HOUR

    def save(self, now_ms: int) -> None:
        """Drop past weeks, and write the file atomically: a crash leaves the old or the new one."""
        monday = week_start(now_ms)
        self.spans = {key: span for key, span in self.spans.items() if span[3] >= monday}
        draft = self.path.with_suffix(".new")
        draft.write_text(json.dumps(self.spans))
        draft.replace(self.path)

    @staticmethod
    def key(group: PodGroup) -> str:
        """Return the key of the current admission."""
        return f"{group.metadata.uid}/{group.status.admission}"


class Budgets:
    """Namespace -> cpu-hours per week, from a watched file; an invalid file is ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.hours: dict[str, float] = {}
        self._told = ("", "")
        self.follow()
        if not self.hours:
            raise SystemExit(f"{path} names no namespace with a budget")

    def follow(self) -> None:
        """Read the file. Report an invalid one once, until it changes."""
        text = problem = ""
        try:
            text = self.path.read_text()
            self.hours = {str(name): float(most) for name, most in yaml.safe_load(text).items()}
        except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
            problem = f"{self.path}: {error}; going on with the last one"
        if problem and (text, problem) != self._told:
            print(problem, file=sys.stderr, flush=True)
        self._told = (text, problem)

    def of(self, namespace: str) -> float:
        """Return the budget; 0 for a namespace that the file does not name."""
        return self.hours.get(namespace, 0.0)


class Controller:
    """Answers requests according to the usage of all groups."""

    def __init__(self, client: Client, budgets: Budgets, ledger: Ledger) -> None:
        self.client, self.budgets, self.ledger = client, budgets, ledger

    def look(self, requests: Sequence[CheckRequest], names: Sequence[str]) -> None:
        """Measure, stop groups without budget, and answer requests. `names`: our checks."""
        self.budgets.follow()
        now_ms = self.client.now_ms()
        groups = [one for one in self.client.list("PodGroup") if isinstance(one, PodGroup)]
        passed = []
        for group in groups:
            states = [one for one in group.status.checks if one.name in names]
            if states:
                self.ledger.measure(group, now_ms)
            if group.status.reserved_at is not None:
                passed += [(group, one.name) for one in states if one.status == "True"]
        for group, check in passed:
            self.stop_if_spent(group, check, now_ms)
        promised = {key_of(group): group for group, _ in passed}
        for request in requests:
            if request.kind == "asked" and self.answer(request, list(promised.values()), now_ms):
                promised[request.key] = request.group
        self.ledger.save(now_ms)

    def stop_if_spent(self, group: PodGroup, check: str, now_ms: int) -> None:
        """Stop a running group if the budget of its namespace is used up."""
        namespace = group.metadata.namespace
        most, used = self.budgets.of(namespace), self.ledger.used(namespace, now_ms)
        if used >= most:
            spent = f"the {most:g} cpu-hours of {namespace} are spent this week ({used:.3f} used)"
            with contextlib.suppress(Conflict, NotFound):  # it has just ended
                self.client.checks.set(key_of(group), "False", "Retry", spent, check=check)
                print(f"{key_of(group)}: stopped: {spent}", flush=True)

    def answer(self, request: CheckRequest, promised: Sequence[PodGroup], now_ms: int) -> bool:
        """Answer whether a group may start, with the numbers."""
        namespace, need = request.namespace, need_hours(request.group)
        most, used = self.budgets.of(namespace), self.ledger.used(namespace, now_ms)
        open_ = sum(
            max(0.0, need_hours(group) - self.ledger.used_by(group))
            for group in promised
            if group.metadata.namespace == namespace and key_of(group) != request.key
        )
        left = most - used - open_
        passes = left > 0 and need <= left
        numbers = (
            f"{need:.3f} cpu-hours asked, {left:.3f} left this week of {most:g}"
            f" ({used:.3f} used, {open_:.3f} promised)"
        )
        with contextlib.suppress(Conflict, NotFound):  # it has lost its reservation
            answer = ("True", "") if passes else ("False", "Retry")
            self.client.checks.set(request, *answer, numbers)
            print(f"{request.key}: {answer[0]}: {numbers}", flush=True)
        return passes


def main(file: Path, ledger: Path) -> None:
    """Answer requests until a signal."""
    budgets, book = Budgets(file), Ledger(ledger)
    with Client(tell=print) as client, client.checks.watch(CONTROLLER) as watch:
        signal.signal(signal.SIGTERM, lambda *_: watch.stop())
        controller = Controller(client, budgets, book)
        while not watch.stopped:
            requests = watch.poll(LOOK_EVERY_S)
            with client.patiently():
                controller.look(requests, watch.held)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        print("usage: budget.py CPU-HOURS.yml [LEDGER.json]", file=sys.stderr)
        sys.exit(2)
    paths = [Path(argument) for argument in sys.argv[1:]]
    # Ctrl-C ends it at any point: the next run repeats an interrupted pass.
    with contextlib.suppress(KeyboardInterrupt):
        main(paths[0], paths[-1] if len(paths) == 2 else paths[0].with_suffix(".ledger.json"))
