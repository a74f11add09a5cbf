"""Parked groups cost a session nothing, and are unparked when something changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import (
    AdmissionCheck,
    AdmissionCheckSpec,
    Dependency,
    Metadata,
    PodGroup,
    PodTemplate,
    SchedulingGate,
    Strategy,
    key_of,
)
from batchq.api.transaction import Transaction, Write
from batchq.assembly import assemble
from batchq.client import changes
from batchq.config import SchedulerConfig
from batchq.core.quota.head_reservation import deserved_of_queues
from batchq.core.session.snapshot import Settings
from batchq.scheduler.cycle import MOST_WRITTEN, CycleReport
from batchq.store.memory import MemoryStore
from tests.builders import a_group, a_node, a_priority, a_queue, a_quota, a_task, amounts
from tests.scheduler.conftest import Stack

MINUTE = 60_000


def _group(name: str, *, cpu: str | int = 1, **spec: Any) -> PodGroup:
    group = a_group(name, cpu=cpu, **spec)
    tasks = tuple(
        msgspec.structs.replace(
            task, template=PodTemplate(command=("true",), requests=task.template.requests)
        )
        for task in group.spec.tasks
    )
    return msgspec.structs.replace(group, spec=msgspec.structs.replace(group.spec, tasks=tasks))


def _gated(name: str, **spec: Any) -> PodGroup:
    return _group(name, scheduling_gates=(SchedulingGate(name="data"),), **spec)


def _stack(config: SchedulerConfig | None = None) -> Stack:
    stack = Stack(MemoryStore(), config or SchedulerConfig())
    stack.apply(a_queue())
    stack.ready(a_node(cpu=4))
    return stack


def _write(stack: Stack, groups: list[PodGroup]) -> None:
    """Write many groups at once, without the checks of a submission."""
    writes = tuple(
        Write(kind="PodGroup", key=key_of(group), expect=0, value=group) for group in groups
    )
    stack.commit(Transaction(subject="many", writes=writes))


def _with_reasons(stack: Stack, queue: str) -> list[PodGroup]:
    """Return the groups of a queue with stored reasons."""
    groups = [one for one in stack.store.list("PodGroup") if isinstance(one, PodGroup)]
    return [one for one in groups if one.spec.queue == queue and one.status.reasons]


def _evaluated(report: CycleReport) -> int:
    """Return for how many groups, about, the session asked plugins."""
    return 0 if report.rested else report.session.pending.evaluated


def _park_all(stack: Stack) -> None:
    """Run sessions until one has nothing to do; then all inadmissible groups are parked."""
    stack.until_idle()
    stack.turn()


def test_ten_thousand_gated_and_ten_thousand_impossible_groups_are_not_asked_again() -> None:
    stack = _stack()
    _write(stack, [_gated(f"gated-{number}") for number in range(10_000)])
    _write(stack, [_group(f"large-{number}", cpu=5) for number in range(10_000)])
    first = stack.turn()
    # Groups with equal requests are evaluated as one class.
    assert first.session.pending.evaluated == 10_001
    # Reasons are written in portions, so that groups that can start do not wait for them.
    assert len(first.intents) == MOST_WRITTEN == 10_000
    _park_all(stack)

    # After a change, a session evaluates only this one group.
    stack.apply(_group("small"))
    report = stack.turn()
    assert not report.rested
    assert _evaluated(report) == 1
    assert [type(intent).__name__ for intent in report.intents] == [
        "AdmitGroup",
        "CreatePods",
        "Bind",
    ]

    # Of ten thousand groups, not even the one whose gate is opened: it requests what "small" did.
    stack.commit(
        changes.open_gate(stack.store, "default/gated-77", "data", now_ms=stack.clock.at_ms)
    )
    report = stack.turn()
    assert _evaluated(report) == 0
    assert report.session.by_key["default/gated-77"].status.admission == 1


def test_the_reasons_of_a_crowded_queue_do_not_delay_those_of_others() -> None:
    stack = _stack()
    stack.apply(a_queue("crowded"), a_queue("other"))
    stack.go_by(replace(assemble(SchedulerConfig()), most_written=100))
    _write(stack, [_group(f"many-{number}", cpu=5, queue="crowded") for number in range(150)])
    _write(stack, [_gated(f"gated-{number}", queue="crowded") for number in range(150)])
    _write(stack, [_group(f"few-{number}", cpu=5, queue="other") for number in range(30)])
    _write(stack, [_gated(f"some-{number}", queue="other") for number in range(10)])
    first = stack.turn()
    assert len(first.intents) == 100
    assert len(_with_reasons(stack, "other")) == 40
    stack.until_idle()
    assert len(_with_reasons(stack, "crowded")) == 300


def test_a_session_without_changes_decides_nothing() -> None:
    stack = _stack()
    stack.apply(_group("runs", cpu=4), _group("waits", cpu=4), _gated("gated"))
    stack.until_idle()
    stack.clock.at_ms += 1_000
    report = stack.turn()
    assert (report.rested, report.intents, report.commit.applied) == (True, (), ())
    # A minute later, a clock is due.
    stack.clock.at_ms += 10 * MINUTE
    assert not stack.turn().rested


def test_a_group_is_evaluated_again_until_its_refusal_is_written() -> None:
    stack = _stack()
    stack.apply(_gated("gated"))
    report = stack.turn()
    assert _evaluated(report) == 1
    # Only a session that finds the reasons written parks the group.
    assert _evaluated(stack.turn()) == 1
    stack.apply(_group("small"))
    assert _evaluated(stack.turn()) == 1


def test_a_deleted_group_leaves_nothing_in_the_session() -> None:
    stack = _stack()
    stack.apply(_gated("gated"), _group("large", cpu=5), _gated("kept"))
    _park_all(stack)
    assert sorted(stack.turn().session.pending.parked) == [
        stack.group(n).metadata.uid for n in _KEPT
    ]
    for name in ("gated", "large"):
        group = stack.group(name)
        gone = Write(kind="PodGroup", key=key_of(group), expect=group.metadata.revision, value=None)
        stack.commit(Transaction(subject=name, writes=(gone,)))
    session = stack.turn().session
    assert sorted(session.pending.parked) == [stack.group("kept").metadata.uid]
    assert [group.record.metadata.name for group in session.groups.values()] == ["kept"]
    assert not session.queues["default"].line


#: Groups parked one by one; groups that never fit a node are parked as a class.
_KEPT = ("gated", "kept")


def _a_node_comes(stack: Stack) -> None:
    stack.ready(a_node("n2", cpu=8))


def _its_queue_goes_on(stack: Stack) -> None:
    stack.commit(changes.set_stop_policy(stack.store, "held", "None", now_ms=stack.clock.at_ms))


def _its_queue_accepts_its_namespace(stack: Stack) -> None:
    stack.apply(a_queue("gpu", namespaces=("lab", "home")))


def _it_is_resumed(stack: Stack) -> None:
    stack.commit(changes.resume(stack.store, "default/sleeper", now_ms=stack.clock.at_ms))


def _the_other_ends(stack: Stack) -> None:
    stack.commit(changes.cancel(stack.store, "default/other", now_ms=stack.clock.at_ms))


def _a_quota_is_raised(stack: Stack) -> None:
    transaction = changes.set_quota(
        stack.store, "small", amounts(cpu=2), now_ms=stack.clock.at_ms, uid="new", name="quota"
    )
    stack.commit(transaction)


def _its_check_becomes_active(stack: Stack) -> None:
    stack.commit(
        changes.renew_check(
            stack.store,
            "budget",
            holder="money",
            expires_at=stack.clock.at_ms + 10 * MINUTE,
            now_ms=stack.clock.at_ms,
        )
    )


_BUDGET = AdmissionCheck(
    metadata=Metadata(name="budget"), spec=AdmissionCheckSpec(controller_name="money")
)

_AT_HOME = {"queue": "gpu", "namespace": "home"}

#: Cause of inadmissibility -> the world, the group, the unparking change, and the result.
_WAKERS: dict[str, tuple[list[Any], PodGroup, Callable[[Stack], None], str]] = {
    "too large for every node, until one comes that is not": (
        [],
        _group("sleeper", cpu=8),
        _a_node_comes,
        "InQueue",
    ),
    "in a queue that is stopped, until it goes on": (
        [a_queue("held", stop_policy="Hold")],
        _group("sleeper", queue="held"),
        _its_queue_goes_on,
        "InQueue",
    ),
    "of a namespace that its queue does not accept, until it does": (
        # It is edited while it waits, because it could not be submitted then.
        [a_queue("gpu"), _group("sleeper", **_AT_HOME), a_queue("gpu", namespaces=("lab",))],
        _group("sleeper", **_AT_HOME, walltime=10 * MINUTE),
        _its_queue_accepts_its_namespace,
        "InQueue",
    ),
    "suspended, until it is resumed": (
        [],
        _group("sleeper", suspend=True),
        _it_is_resumed,
        "InQueue",
    ),
    "behind another group, until that has ended": (
        [_gated("other")],
        _group("sleeper", depends_on=(Dependency(name="other", condition="any"),)),
        _the_other_ends,
        "InQueue",
    ),
    "never to be started any more, once the other has failed": (
        [_gated("other")],
        _group("sleeper", depends_on=(Dependency(name="other"),)),
        _the_other_ends,
        "Failed",
    ),
    "larger than its namespace's quota, until that is raised": (
        [a_quota("small", cpu=1)],
        _group("sleeper", cpu=2, namespace="small"),
        _a_quota_is_raised,
        "InQueue",
    ),
    "in a queue with an inactive check, until a controller renews its lease": (
        [_BUDGET, a_queue("checked", admission_checks=("budget",))],
        _group("sleeper", queue="checked"),
        _its_check_becomes_active,
        "Pending",
    ),
}


@pytest.mark.parametrize("why", _WAKERS)
def test_a_group_is_parked_while_it_is(why: str) -> None:
    world, group, wake, phase = _WAKERS[why]
    stack = _stack()
    stack.apply(*world, group)
    _park_all(stack)
    stack.apply(_group("passes-by", cpu="100m"))
    stack.turn()
    # The change also unparks groups with the same cause; no other group was evaluated.
    stack.apply(_group("passes-by-too", cpu="200m"))
    assert _evaluated(stack.turn()) == 1
    wake(stack)
    report = stack.turn()
    assert "sleeper" in {
        group.record.metadata.name for group in report.session.effects.touched.values()
    }
    stored = stack.store.get("PodGroup", f"{group.metadata.namespace}/sleeper")
    assert isinstance(stored, PodGroup)
    assert stored.status.phase == phase
    assert (stored.status.reserved_at is not None) == (phase != "Failed")


def test_a_group_that_backs_off_is_parked_until_its_back_off_ends() -> None:
    # With overcommit, groups are admitted without a look at nodes.
    stack = _stack(SchedulerConfig(settings=Settings(overcommit=2000)))
    stack.ready(a_node("away", cpu=4, labels={"zone": "b"}, cordoned=True))
    picky = a_group("picky", tasks=(a_task(command=("true",), node_selector={"zone": "b"}),))
    stack.apply(picky)
    reports = stack.until_idle()
    # Admitted, then rolled back, because the only node with that label is closed; pauses for 10 s.
    answer = [type(intent).__name__ for report in reports for intent in report.intents]
    assert answer == ["AdmitGroup", "CreatePods", "SetReasons", "RollBack", "SetReasons"]
    stack.turn()
    stack.clock.at_ms += 9_999
    stack.apply(_group("passes-by"))
    assert _evaluated(stack.turn()) == 1
    stack.clock.at_ms += 1
    stack.turn()
    assert stack.group("picky").status.admission == 2


def test_a_changed_priority_class_unparks_all_groups_but_opens_no_gates() -> None:
    stack = _stack()
    stack.apply(_gated("gated"))
    _park_all(stack)
    stack.apply(a_priority("high", 7))
    report = stack.turn()
    assert (_evaluated(report), report.intents) == (1, ())


def test_a_dependent_is_unparked_when_the_last_process_of_its_dependency_has_ended(
    make_stack: Callable[..., Stack],
) -> None:
    stack = make_stack()
    stack.apply(a_queue())
    stack.ready(a_node(cpu=4))
    stack.apply(_group("first", replicas=2, min_member=1))
    stack.until_idle()
    stack.start_pods()
    after = (Dependency(name="first", condition="any"),)
    stack.apply(_group("second", depends_on=after))
    _park_all(stack)
    stack.commit(changes.cancel(stack.store, "default/first", now_ms=stack.clock.at_ms))
    _park_all(stack)
    one, other = stack.pods(PodPhase.RUNNING)
    stack.move(one, phase=PodPhase.EVICTED)
    _park_all(stack)
    assert stack.group("second").status.phase == "Pending"
    # The session that sees the last process gone admits it.
    stack.move(other, phase=PodPhase.EVICTED)
    stack.turn()
    assert stack.group("second").status.phase == "InQueue"


def test_a_group_that_no_node_takes_stays_out_of_the_demand_when_its_reasons_were_written() -> None:
    stack = Stack(MemoryStore(), SchedulerConfig())
    for name in ("qa", "qb"):
        queue = a_queue(name)
        spec = msgspec.structs.replace(queue.spec, strategy=Strategy(type="Backfill"))
        stack.apply(msgspec.structs.replace(queue, spec=spec))
    stack.ready(a_node("n0", cpu=4), a_node("n1", cpu=4), a_node("n2", cpu=8, cordoned=True))
    stack.apply(a_waiting("r1", "qb", 2), a_waiting("r2", "qb", 2))
    stack.until_idle()
    stack.start_pods()
    stack.apply(a_waiting("big", "qa", 5), a_waiting("head", "qb", 4))
    # From the second session on, it is known that no empty node takes `big`.
    stack.turn()
    for number in range(3):
        stack.clock.at_ms += 1_000
        stack.apply(a_waiting(f"more{number}", "qa", 9))
        deserved = deserved_of_queues(stack.turn().session)
        assert (deserved["qa"]["cpu"], deserved["qb"]["cpu"]) == (0, 8_000)


def a_waiting(name: str, queue: str, cpu: int) -> PodGroup:
    task = a_task("w", 1, requests={"cpu": cpu}, command=("true",))
    return a_group(name, tasks=(task,), queue=queue)


@pytest.mark.parametrize("seen", [True, False], ids=["is parked", "has just come"])
@pytest.mark.parametrize(
    "held",
    [
        pytest.param(
            _group("held", queue="qb", suspend=True, priority_class_name="high"), id="suspended"
        ),
        pytest.param(_gated("held", queue="qb", priority_class_name="high"), id="gated"),
    ],
)
def test_a_group_that_may_not_start_is_no_head_between_equal_shares(
    held: PodGroup, seen: bool
) -> None:
    stack = _stack()
    stack.apply(a_queue("qa"), a_queue("qb"), a_queue("qc"), a_priority("high", 10))
    stack.apply(_group("runs", queue="qc", cpu=4))
    stack.until_idle()
    stack.start_pods()
    stack.until_idle()
    for name, queue in (("old", "qb"), ("young", "qa")):
        stack.clock.at_ms += 1_000
        stack.apply(_group(name, queue=queue, cpu=4))
    stack.until_idle()
    stack.clock.at_ms += 1_000
    stack.apply(held)
    if seen:
        stack.until_idle()
    stack.end_pods()
    stack.turn()
    admitted = [n for n in ("old", "young") if stack.group(n).status.phase != "Pending"]
    assert admitted == ["old"]


def test_a_parked_head_counts_between_equal_shares_as_if_it_were_tried_again() -> None:
    stack = _stack()
    stack.apply(a_queue("root", capability=amounts(cpu=4)), a_priority("high", 10))
    stack.apply(a_queue("qa"), a_queue("qb"), a_queue("qc"))
    stack.apply(_group("stays", queue="qc", cpu=3), _group("ends", queue="qc"))
    stack.until_idle()
    stack.start_pods()
    stack.until_idle()
    for name, queue in (("oldest", "qa"), ("old", "qb")):
        stack.clock.at_ms += 1_000
        stack.apply(_group(name, queue=queue))
    stack.clock.at_ms += 1_000
    stack.apply(_group("young", queue="qa", cpu=4, priority_class_name="high"))
    stack.until_idle()
    [pod] = [pod for pod in stack.pods(PodPhase.RUNNING) if pod.spec.pod_group == "ends"]
    stack.move(pod, phase=PodPhase.SUCCEEDED, finished_at=stack.clock.at_ms)
    stack.turn()
    # The head of qa is the youngest of the three, so that qb is served first.
    admitted = [n for n in ("oldest", "old") if stack.group(n).status.phase != "Pending"]
    assert admitted == ["old"]
