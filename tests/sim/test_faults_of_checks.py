"""For every n, the n-th call of every process fails, in each transition of a check and of a
gate.

The next session continues, and the quota is neither leaked nor doubled: after every event the
invariant checker adds up the ledger, and at the end the ledger must be empty. One such fault is a
controller that dies between its answer and the session that reads it: its answer is in the store,
or it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
from msgspec import Struct

from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.objects import (
    AdmissionCheck,
    AdmissionCheckSpec,
    Metadata,
    Object,
    PodGroup,
    SchedulingGate,
)
from batchq.api.transaction import Transaction
from batchq.client.changes import open_gate, renew_check, set_check
from batchq.errors import InvariantBroken, StoreUnavailable
from batchq.ports import Reader
from tests.builders import a_group, a_priority, a_queue, a_task, amounts
from tests.effort import grid, sample
from tests.faults.cluster import Cluster, Ended
from tests.faults.machines import Script
from tests.faults.processes import Request
from tests.faults.scenario import AnyFault, KillScheduler, Scenario
from tests.faults.seeded_scenarios import CONFIG, cancelling, resuming, submission, suspending
from tests.faults.store_faults import Mode

START = 3_000
_HOUR_MS = 3_600_000
#: The events of a story after all requests were submitted.
Due = Callable[[PodGroup], bool]


def reserved(group: PodGroup) -> bool:
    """Wait for an answer."""
    unknown = any(check.status == "Unknown" for check in group.status.checks)
    return group.status.reserved_at is not None and unknown


def running(group: PodGroup) -> bool:
    """The group has been admitted, and runs."""
    return group.status.phase == PodGroupPhase.RUNNING


def answering(
    at: int, name: str, status: str, reason: str = "", *, once: Due = reserved, check: str = "c"
) -> Request:
    """Return a controller's answer; the controller polls until the check is asked for."""

    def build(reader: Reader, now_ms: int) -> Transaction | None:
        group = reader.get("PodGroup", f"default/{name}")
        if not isinstance(group, PodGroup) or group.status.phase in TERMINAL:
            return None
        if not once(group):
            raise StoreUnavailable("the check is not asked for yet")
        return set_check(reader, f"default/{name}", check, status, reason, now_ms=now_ms)

    return Request(at=at, what=f"{check} says {status} {reason} of {name}", build=build)


def leasing(at: int, *, until: int, check: str = "c") -> Request:
    """Return the controller's renewal of its lease."""

    def build(reader: Reader, now_ms: int) -> Transaction | None:
        return renew_check(reader, check, holder="somebody", expires_at=until, now_ms=now_ms)

    return Request(at=at, what=f"renew {check} at {at}", build=build)


def opening(at: int, name: str, gate: str) -> Request:
    """Return the opening of a gate of a group."""

    def build(reader: Reader, now_ms: int) -> Transaction | None:
        return open_gate(reader, f"default/{name}", gate, now_ms=now_ms)

    return Request(at=at, what=f"open {gate} of {name}", build=build)


def a_check(name: str = "c", **spec: object) -> AdmissionCheck:
    """Return a check whose retry delay is a minute."""
    result = {"retry_delay_minutes": 1, "unknown_timeout": _HOUR_MS, **spec}
    return AdmissionCheck(
        metadata=Metadata(name=name),
        spec=AdmissionCheckSpec(controller_name="somebody", **result),  # type: ignore[arg-type]
    )


class Story(Struct, frozen=True, kw_only=True):
    """The events of one transition, and how its groups end."""

    groups: tuple[PodGroup, ...]
    ends: dict[str, str]
    starts: int
    more: tuple[Request, ...]
    check: AdmissionCheck | None = None
    faults: tuple[AnyFault, ...] = ()
    runtime_ms: int = 1_000

    def play(self, plans: dict[str, dict[int, Mode]] | None = None) -> Ended:
        named: tuple[Object, ...] = (a_priority("high", 100),)
        if self.check is not None:
            queue = a_queue("q", admission_checks=(self.check.metadata.name,))
            named = (*named, self.check, queue)
        scenario = Scenario(
            nodes={"n1": amounts(cpu=2)},
            objects=named,
            scripts={name: Script(runtime_ms=self.runtime_ms) for name in "ab"},
            requests=(
                *([leasing(1_500, until=_HOUR_MS * 5)] if self.check is not None else []),
                *(submission(START, group) for group in self.groups),
                *self.more,
            ),
            config=CONFIG,
            faults=self.faults,
            plans=plans or {},
        )
        return Cluster(scenario).run()


def pods(name: str, count: int = 2, **spec: object) -> PodGroup:
    task = a_task("w", count, command=("run",), termination_grace=1_000)
    return a_group(name, tasks=(task,), **{"queue": "q", **spec})


LATE = a_check(preemption_policy="AfterCheckPassedOrOnDemand")
A = {"a": "Completed"}

STORIES = {
    "passed": Story(
        groups=(pods("a"),),
        ends=A,
        starts=2,
        check=a_check(),
        more=(answering(4_000, "a", "True"),),
    ),
    "an answer taken back before a session reads it": Story(
        groups=(pods("a"),),
        ends=A,
        starts=2,
        check=a_check(),
        more=(
            answering(4_000, "a", "Unknown", "PreemptionRequired"),
            answering(4_100, "a", "Unknown"),
            answering(6_000, "a", "True"),
        ),
    ),
    "retry": Story(
        groups=(pods("a"), pods("b")),
        ends={"a": "Completed", "b": "Completed"},
        starts=4,
        check=a_check(),
        more=(
            answering(4_000, "a", "False", "Retry"),
            answering(5_000, "b", "True"),
            answering(6_000, "a", "True"),
        ),
    ),
    "reject": Story(
        groups=(pods("a"), pods("b")),
        ends={"a": "Failed", "b": "Completed"},
        starts=2,
        check=a_check(),
        more=(answering(4_000, "a", "False", "Reject"), answering(5_000, "b", "True")),
    ),
    "a retry for a running group": Story(
        groups=(pods("a"),),
        ends=A,
        starts=4,
        check=a_check(),
        runtime_ms=8_000,
        more=(
            answering(4_000, "a", "True"),
            answering(6_000, "a", "False", "Retry", once=running),
            answering(7_000, "a", "True"),
        ),
    ),
    "a reject for a running group": Story(
        groups=(pods("a"),),
        ends={"a": "Failed"},
        starts=2,
        check=a_check(),
        runtime_ms=60_000,
        more=(
            answering(4_000, "a", "True"),
            answering(6_000, "a", "False", "Reject", once=running),
        ),
    ),
    "an answer that does not come in time": Story(
        groups=(pods("a"), pods("b")),
        ends={"a": "Failed", "b": "Completed"},
        starts=2,
        check=a_check(unknown_timeout=20_000, on_timeout="Reject"),
        more=(answering(5_000, "b", "True"),),
    ),
    "an eviction after the check has passed": Story(
        groups=(pods("a"),),
        ends={"a": "Completed", "b": "Completed"},
        starts=6,
        check=LATE,
        runtime_ms=12_000,
        more=(
            answering(4_000, "a", "True"),
            submission(7_000, pods("b", priority_class_name="high")),
            answering(9_000, "b", "True"),
            answering(9_500, "a", "True"),
        ),
    ),
    "reserved and preempted": Story(
        groups=(pods("a"),),
        ends={"a": "Completed", "b": "Completed"},
        starts=4,
        check=a_check(),
        more=(
            submission(8_000, pods("b", priority_class_name="high")),
            answering(9_000, "b", "True"),
            answering(10_000, "a", "True"),
        ),
    ),
    "reserved and suspended": Story(
        groups=(pods("a"),),
        ends=A,
        starts=2,
        check=a_check(),
        more=(suspending(6_000, "a"), resuming(8_000, "a"), answering(9_000, "a", "True")),
    ),
    "reserved and cancelled": Story(
        groups=(pods("a"),),
        ends={"a": "Cancelled"},
        starts=0,
        check=a_check(),
        more=(cancelling(6_000, "a"),),
    ),
    "a lease that lapses and is renewed": Story(
        groups=(pods("a"), pods("b")),
        ends={"a": "Completed", "b": "Completed"},
        starts=4,
        check=a_check(),
        more=(
            leasing(3_500, until=6_000),
            leasing(30_000, until=5 * _HOUR_MS),
            answering(31_000, "a", "True"),
            answering(32_000, "b", "True"),
        ),
    ),
    "a scheduler that dies after the answer": Story(
        groups=(pods("a"), pods("b")),
        ends={"a": "Completed", "b": "Completed"},
        starts=4,
        check=a_check(),
        faults=tuple(
            KillScheduler(at=6_001, name=name, back_after_ms=4_000)
            for name in ("scheduler a", "scheduler b")
        ),
        more=(
            answering(6_000, "a", "False", "Retry"),
            answering(7_000, "b", "True"),
            answering(8_000, "a", "True"),
        ),
    ),
    "two gates": Story(
        groups=(
            pods(
                "a",
                queue="default",
                scheduling_gates=(SchedulingGate(name="x"), SchedulingGate(name="y")),
            ),
        ),
        ends=A,
        starts=2,
        more=(opening(4_000, "a", "y"), opening(6_000, "a", "x")),
    ),
    "a gate, and then a check": Story(
        groups=(pods("a", scheduling_gates=(SchedulingGate(name="x"),)),),
        ends=A,
        starts=2,
        check=a_check(),
        more=(opening(4_000, "a", "x"), answering(5_000, "a", "True")),
    ),
}


@cache
def without_faults(name: str) -> Ended:
    """Play a story once for all tests of it."""
    return STORIES[name].play()


def each_call(name: str, mode: Mode) -> Iterator[tuple[str, int]]:
    """Return every call of the processes that take part; a read can only fail in one way."""
    for caller, (count, writes) in without_faults(name).calls.items():
        if caller in ("scheduler a", "client"):
            for n in range(1, count + 1) if mode == Mode.BEFORE else writes:
                yield caller, n


@pytest.mark.parametrize("name", STORIES)
def test_without_faults_the_story_ends_as_expected(name: str) -> None:
    story, ended = STORIES[name], without_faults(name)
    assert ended.phases == story.ends
    assert ended.starts == story.starts
    assert all(ended.granted.values())


@pytest.mark.parametrize(("name", "mode"), grid(STORIES, Mode))
def test_the_story_ends_as_expected_whichever_call_fails(name: str, mode: Mode) -> None:
    story = STORIES[name]
    wrong = []
    for caller, n in sample(each_call(name, mode), 6):
        try:
            ended = story.play({caller: {n: mode}})
        except InvariantBroken as broken:
            wrong.append(f"call {n} of {caller}: {broken}")
            continue
        refused = [what for what, granted in ended.granted.items() if not granted]
        if ended.phases != story.ends and not refused:
            wrong.append(f"call {n} of {caller}: {ended.phases}")
    assert wrong == []
