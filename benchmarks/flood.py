"""Measure how soon a tenant's `true` starts while another tenant submits 200,000 groups.

Everything is real: server, scheduler and one agent as `batchq up` starts them. One tenant submits a
file of groups that do not fit into its queue; the quotas of its namespace and queue allow them.
Before, during and after the submission another tenant, whose queue has free capacity, repeatedly
submits a `true` and waits until it has started. Then the scheduler is restarted. Finally, lists are
requested: their time is that from the start of the command to its first line.

`BATCHQ_BENCH_FLOOD` sets the number of groups, `BATCHQ_BENCH_SHAPES` the number of their shapes.
With 0 shapes the groups request nothing and end at once, so that no quota keeps them from nodes.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from batchq.api.objects import PodGroup
from batchq.client import Client
from batchq.daemon import detached
from benchmarks.table import report
from tests.builders import a_queue
from tests.e2e.machine import Machine, until

MANY = int(os.environ.get("BATCHQ_BENCH_FLOOD", "200000"))
SHAPES = int(os.environ.get("BATCHQ_BENCH_SHAPES", "1"))
TITLES = ["", "what", "times", "median s", "most s", "aimed at, s"]
STARTS, PAGE = 2.0, 0.5
_NOISY, _QUIET = "noisy", "quiet"
_PROBES, _APART_S = 5, 0.5
_WITHIN_S = 600.0

#: Lists whose first page is timed.
LISTS = (
    ("jobs", "-n", _NOISY),
    ("jobs", "-n", _QUIET),
    ("jobs", "-A"),
    ("get", "podgroups", "-n", _NOISY, "-o", "name"),
)


def main() -> None:
    rows = measure(many=MANY, shapes=SHAPES, probes=_PROBES, restart=True)
    report("flood", TITLES, rows, notes=_NOTES)


_NOTES = (
    (
        "`true`: from its submission until its command runs, by the clock of the submitter, which"
        " polls every 10 ms. After a restart of the scheduler the time counts from that start,"
        " including Python's own startup."
    ),
    "Lists: from the start of the command, including Python's own startup, to its first line.",
)


def measure(*, many: int, shapes: int, probes: int, restart: bool) -> list[list[object]]:
    """Return the rows of the table; `restart` adds the row of a restarted scheduler."""
    with Machine() as machine:
        machine.batchq("up", "--agents", "1", "--resources", "cpu=4,memory=4Gi")
        with machine.client() as client:
            client.apply([a_queue(_NOISY, capability={"cpu": 1}), a_queue(_QUIET)])
            client.set_quota(_NOISY, {"podgroups": many})
            numbers = iter(range(10**9))

            def probe() -> float:
                return start_s(client, f"t-{next(numbers)}")

            rows = [_row("`true`", "nothing waits", [probe() for _ in range(probes)], STARTS)]
            rows += _while_flooded(machine, client, probe, many=many, shapes=shapes, probes=probes)
            if restart:
                again = _restarted_s(machine, probe)
                rows.append(_row("`true`", "a new scheduler starts", [again]))
        rows += [_list_row(machine, words, probes) for words in LISTS]
    return rows


def start_s(client: Client, name: str) -> float:
    """Return the time in seconds until a `true` of the other tenant has started."""
    began = time.monotonic()
    client.submit(command=["true"], name=name, namespace=_QUIET, queue=_QUIET, cpus=1)
    until(lambda: _has_started(client, name), within_s=_WITHIN_S, every_s=0.01)
    return time.monotonic() - began


def _has_started(client: Client, name: str) -> bool:
    group = client.get("PodGroup", name, namespace=_QUIET)
    assert isinstance(group, PodGroup)
    return group.status.started_at is not None or group.status.finished_at is not None


def _while_flooded(
    machine: Machine,
    client: Client,
    probe: Callable[[], float],
    *,
    many: int,
    shapes: int,
    probes: int,
) -> Iterator[list[object]]:
    lines = "".join(f"{json.dumps(a_request(number, shapes))}\n" for number in range(many))
    flood = machine.start("submit", "--from-file", str(machine.file("flood.jsonl", lines)))
    meanwhile = []
    while flood.poll() is None:
        meanwhile.append(probe())
        _pause()
    assert flood.returncode == 0, machine.output_of(flood)
    yield _row("`true`", f"{many} come in", meanwhile, STARTS)
    yield _row("`true`", "right after", [probe() for _ in range(probes)], STARTS)
    if shapes:
        until(lambda: _is_at_rest(client, many), within_s=_WITHIN_S)
    yield _row("`true`", f"{many} wait", [probe() for _ in range(probes)], STARTS)


def a_request(number: int, shapes: int) -> dict[str, object]:
    """Return a request of the noisy tenant; only the first fits into its queue, or each if none has
    a shape.
    """
    cpus = f"{1000 + number % shapes}m" if shapes else "0"
    command = ["sleep", "3600"] if shapes else ["true"]
    return {
        "name": f"f-{number}",
        "namespace": _NOISY,
        "queue": _NOISY,
        "command": command,
        "cpus": cpus,
    }


def _is_at_rest(client: Client, many: int) -> bool:
    """Return whether the last group has a pending reason: then the scheduler is at rest."""
    group = client.get("PodGroup", f"f-{many - 1}", namespace=_NOISY)
    assert isinstance(group, PodGroup)
    return bool(group.status.reasons)


def _restarted_s(machine: Machine, probe: Callable[[], float]) -> float:
    """Restart the scheduler; return the time in seconds until a `true` starts."""
    scheduler = detached.read_record(machine.home.run / "scheduler.json")
    assert scheduler is not None
    detached.end(scheduler, patience_s=60)
    machine.start("scheduler")
    return probe()


def _list_row(machine: Machine, words: Sequence[str], probes: int) -> list[object]:
    taken = [first_line_s(machine, words) for _ in range(probes)]
    return _row(f"`{' '.join(words)}`", "first line", taken, PAGE)


def first_line_s(machine: Machine, words: Sequence[str]) -> float:
    """Return the time in seconds until a command has written its first line; then kill it."""
    began = time.monotonic()
    process = machine.piped(*words)
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), f"batchq {' '.join(words)} has printed nothing"
        return time.monotonic() - began
    finally:
        process.kill()
        process.communicate()


def _row(what: str, when: str, taken: Sequence[float], aim: float | str = "-") -> list[object]:
    median, most = statistics.median(taken), max(taken)
    print(f"{what}, {when}: {median:.3f} s, at most {most:.3f} s", file=sys.stderr, flush=True)
    return [what, when, len(taken), median, most, aim]


def _pause() -> None:
    threading.Event().wait(_APART_S)


if __name__ == "__main__":
    main()
