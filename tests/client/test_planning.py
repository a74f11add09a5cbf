"""Plans on a snapshot: nodes, victims, reasons, and advice."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import (
    AdmissionCheck,
    AdmissionCheckSpec,
    Dependency,
    GroupClaim,
    Metadata,
    PodGroup,
    PodGroupStatus,
    SchedulingGate,
)
from batchq.api.views import Outcome, Plan
from batchq.cli.plan import show_plan
from batchq.core.session.snapshot import Snapshot
from batchq.errors import Conflict, InvalidInput, NotFound, Rejected
from tests.builders import (
    RECLAIMS,
    a_group,
    a_node,
    a_queue,
    a_quota,
    a_running_group,
    a_snapshot,
    amounts,
)
from tests.client.plans import CPU_8, HIGH, a_check, a_request, advices, only, plan_of, plan_on


def test_a_request_that_fits_starts_now_and_the_plan_says_where() -> None:
    there = a_snapshot(a_node("n1", cpu=3), a_node("n2", cpu=3))
    plan = plan_on(there, a_request(replicas=3, cpu=2, min_member=2))
    group = only(plan)
    assert (plan.outcome, plan.exit_code) == (Outcome.NOW, 0)
    assert (group.nodes, group.phase, group.blockers) == ({"n1": 1, "n2": 1}, "InQueue", ())


def test_an_external_group_that_fits_is_admitted_now() -> None:
    wanted = PodGroup(
        metadata=Metadata(name="x"),
        spec=structs.replace(
            a_group("x").spec, tasks=(), controller="external", min_resources=amounts(cpu=4)
        ),
    )
    plan = plan_of(wanted)
    assert (plan.outcome, only(plan).external, only(plan).nodes) == (Outcome.NOW, True, {})


def test_a_group_of_higher_priority_names_its_victims_and_what_they_lose() -> None:
    plan = plan_of(
        a_request(cpu=4, priority_class_name="high"), HIGH, *a_running_group("low", cpu=6)
    )
    [victim], group = plan.evicted, only(plan)
    assert (plan.outcome, plan.exit_code) == (Outcome.EVICTS, 3)
    assert (victim.key, victim.whole, victim.pods) == ("default/low", True, ("default/low-w-0",))
    assert (victim.by, victim.action, victim.reason) == ("default/x", "preempt", "Preempted")
    assert victim.lost == {"cpu": 6000 * 300, "pods": 1000 * 300}
    assert group.awaits is not None
    assert (group.awaits.pods, group.awaits.groups) == (1, ("default/low",))
    assert group.awaits.within_ms == 30_000
    # The nodes where it goes after its victims have ended.
    assert (group.nodes, group.reserved) == ({"n1": 1}, True)


def test_an_external_victim_loses_what_it_has_held_since_its_start() -> None:
    status = PodGroupStatus(
        phase=PodGroupPhase.RUNNING,
        admission=1,
        reserved_at=0,
        in_queue_at=0,
        started_at=0,
        reservation=amounts(cpu=3),
        claim=GroupClaim(phase="Running", holder="render", claimed_at=0, holding=amounts(cpu=3)),
    )
    low = a_group(
        "low", tasks=(), controller="external", min_resources=amounts(cpu=3), status=status
    )
    plan = plan_of(
        a_request(cpu=3, priority_class_name="high"),
        HIGH,
        a_queue("default", capability={"cpu": 3}),
        low,
    )
    [victim] = plan.evicted
    assert (victim.key, victim.whole, victim.pods) == ("default/low", True, ())
    assert victim.lost == {"cpu": 3000 * 300}


def test_pods_beyond_min_member_go_before_whole_groups() -> None:
    wanted = a_request(cpu=2, priority_class_name="high")
    plan = plan_of(wanted, HIGH, *a_running_group("wide", 4, cpu=2, min_member=1))
    [victim] = plan.evicted
    assert (victim.key, victim.whole, len(victim.pods)) == ("default/wide", False, 1)


def test_reclaim_and_preempt_are_distinguished() -> None:
    plan = plan_of(
        a_request(cpu=4, queue="b"),
        a_queue("a"),
        a_queue("b", preemption=RECLAIMS),
        *a_running_group("r", 4, cpu=2, queue="a"),
    )
    assert [(one.action, one.queue) for one in plan.evicted] == [("reclaim", "a")]
    assert plan.exit_code == 3


def test_a_victim_of_another_preemptor_is_not_evicted_for_the_request() -> None:
    plan = plan_of(
        a_request(cpu=2),
        HIGH,
        *a_running_group("low", cpu=6),
        a_group("other", cpu=8, priority_class_name="high"),
    )
    assert (plan.evicted, plan.outcome) == ((), Outcome.WAITS)


def test_a_group_delayed_by_the_request_is_named() -> None:
    plan = plan_of(a_request(cpu=8, priority_class_name="high"), HIGH, a_group("other", cpu=8))
    assert (plan.outcome, plan.evicted, plan.delayed) == (Outcome.NOW, (), ("default/other",))


def test_a_waiting_request_has_all_reasons_its_position_and_the_groups_ahead() -> None:
    plan = plan_of(
        a_request(cpu=4, scheduling_gates=()),
        a_quota(cpu=9),
        *a_running_group("r", cpu=6),
        a_group("first", cpu=3),
        advise=False,
    )
    group = only(plan)
    assert (plan.outcome, plan.exit_code, group.phase) == (Outcome.WAITS, 4, "Pending")
    assert [(one.reason, one.message) for one in group.blockers] == [
        (
            "WaitingForQuota",
            "needs cpu 4, and the quota of namespace default has 3 free (6 of 9 in use)",
        ),
        ("WaitingForResources", "needs cpu 4, and the cluster has 2 free (6 of 8 in use)"),
    ]
    assert (group.position, group.ahead) == (2, ("default/first",))


def test_a_request_waiting_for_walltimes_says_when_they_end() -> None:
    plan = plan_of(a_request(cpu=4), *a_running_group("r", cpu=6, walltime=600_000))
    group = only(plan)
    assert (group.earliest_start, group.after) == (600_000, ("default/r",))


def test_a_request_behind_a_group_without_walltime_has_no_expected_start() -> None:
    group = only(plan_of(a_request(cpu=4), *a_running_group("r", cpu=6)))
    assert (group.earliest_start, group.after) == (None, ())


def test_a_request_no_node_takes_never_starts_and_says_why() -> None:
    there = a_snapshot(a_node("n1", cpu=3), a_node("n2", cpu=3))
    plan = plan_on(there, a_request(cpu=4))
    group = only(plan)
    assert (plan.outcome, group.phase, group.position) == (Outcome.NEVER, "Pending", None)
    [verdict] = group.blockers
    assert verdict.reason == "ExceedsCapacity"
    assert verdict.message.startswith(
        "not even empty nodes take it: task w: 0/2 nodes fit: 2 insufficient cpu"
    )
    assert advices(plan) == ["asking for cpu 3 instead of 4, it would start now"]


def test_a_request_exceeding_the_whole_cluster_never_starts() -> None:
    plan = plan_of(a_request(cpu=9))
    assert (plan.outcome, plan.exit_code) == (Outcome.NEVER, 5)
    assert only(plan).blockers[0].reason == "ExceedsCapacity"


def test_never_is_worse_than_waiting_and_waiting_worse_than_evicting() -> None:
    there = a_snapshot(CPU_8, HIGH, *a_running_group("low", cpu=6))
    now = a_request("now", cpu=2)
    evicts = a_request("evicts", cpu=4, priority_class_name="high")
    waits = a_request("waits", cpu=8)
    never = a_request("never", cpu=9)

    def outcome(*wanted: PodGroup) -> str:
        return str(plan_on(there, *wanted, advise=False).outcome)

    assert outcome(now) == "Now"
    assert outcome(now, evicts) == "Evicts"
    assert outcome(evicts, waits) == "Waits"
    assert outcome(waits, never) == "Never"


def test_all_groups_of_a_request_are_planned_together() -> None:
    plan = plan_on(a_snapshot(CPU_8), a_request("a", cpu=5), a_request("b", cpu=5), advise=False)
    assert [(one.key, str(one.outcome)) for one in plan.groups] == [
        ("default/a", "Now"),
        ("default/b", "Waits"),
    ]


def test_a_group_waits_for_another_of_its_own_request() -> None:
    after = a_request("b", depends_on=(Dependency(name="a"),))
    plan = plan_on(a_snapshot(CPU_8), after, a_request("a"))
    assert [(one.key, str(one.outcome)) for one in plan.groups] == [
        ("default/b", "Waits"),
        ("default/a", "Now"),
    ]
    assert [one.reason for one in plan.groups[0].blockers] == ["DependencyNotMet"]


def test_gates_and_suspension_wait_and_the_advice_says_what_comes_after() -> None:
    gated = a_request(
        scheduling_gates=(SchedulingGate(name="a"), SchedulingGate(name="b")), suspend=True
    )
    plan = plan_of(gated)
    assert [one.reason for one in only(plan).blockers] == ["Suspended", "SchedulingGated"]
    assert (plan.exit_code, only(plan).position) == (4, None)
    assert advices(plan) == [
        "once gate a, b is open and it is resumed, it would start, if nothing else changes"
    ]


def test_a_gated_request_says_what_it_would_wait_for_once_its_gate_is_open() -> None:
    gated = a_request(cpu=4, scheduling_gates=(SchedulingGate(name="a"),))
    plan = plan_of(gated, *a_running_group("r", cpu=6))
    [sentence] = advices(plan)
    assert sentence == (
        "once gate a is open, it would still wait: WaitingForResources, needs cpu 4, and"
        " the cluster has 2 free (6 of 8 in use)"
    )


def with_checks(*checks: AdmissionCheck) -> Snapshot:
    queue = a_queue("default", admission_checks=("budget",))
    return structs.replace(a_snapshot(CPU_8, queue), admission_checks=checks)


def test_a_group_with_checks_reserves_its_quota_and_waits_for_them() -> None:
    plan = plan_on(with_checks(a_check()), a_request())
    group = only(plan)
    assert (plan.exit_code, group.reserved, group.checks) == (4, True, ("budget",))
    assert [one.reason for one in group.blockers] == ["WaitingForChecks"]


def test_no_group_is_evicted_before_a_late_check_has_passed() -> None:
    check = structs.replace(
        a_check(),
        spec=AdmissionCheckSpec(
            controller_name="accountant", preemption_policy="AfterCheckPassedOrOnDemand"
        ),
    )
    there = a_snapshot(
        *(CPU_8, HIGH, a_queue("default", admission_checks=("budget",))),
        *a_running_group("low", cpu=6),
    )
    wanted = a_request(cpu=4, priority_class_name="high")
    plan = plan_on(structs.replace(there, admission_checks=(check,)), wanted, advise=False)
    group = only(plan)
    assert (plan.exit_code, plan.evicted, group.reserved) == (4, (), True)
    assert group.checks == ("budget",)
    assert group.awaits is not None
    assert group.awaits.groups == ("default/low",)
    assert any(line == LATE for line in _told(plan))


LATE = (
    "Would:     reserve its quota, and wait for the check budget; others are evicted for it only"
    " then"
)


def test_victims_may_be_evicted_before_a_check_has_passed_without_a_start() -> None:
    there = a_snapshot(
        *(CPU_8, HIGH, a_queue("default", admission_checks=("budget",))),
        *a_running_group("low", cpu=6),
    )
    wanted = a_request(cpu=4, priority_class_name="high")
    plan = plan_on(structs.replace(there, admission_checks=(a_check(),)), wanted, advise=False)
    assert (plan.exit_code, [one.key for one in plan.evicted]) == (4, ["default/low"])
    assert any(line == EARLY for line in _told(plan))


EARLY = (
    "Would:     reserve its quota, and wait for the check budget; others are evicted for it already"
    " now"
)


def _told(plan: Plan) -> list[str]:
    """Return the plan as text."""
    written = io.StringIO()
    with redirect_stdout(written):
        show_plan(plan)
    return written.getvalue().splitlines()


def test_a_check_without_a_controller_reserves_nothing() -> None:
    plan = plan_on(with_checks(a_check(active=False)), a_request())
    group = only(plan)
    assert (plan.exit_code, group.reserved) == (4, False)
    assert [one.reason for one in group.blockers] == ["CheckInactive"]


def test_a_check_in_the_request_exists_without_a_controller() -> None:
    queue = a_queue("team", admission_checks=("budget",))
    plan = plan_on(a_snapshot(CPU_8), a_check(), queue, a_request(queue="team"))
    assert [one.message for one in only(plan).blockers] == [
        "check budget is inactive: accountant holds no lease on it"
    ]


def test_a_queue_of_the_request_is_taken_as_applied() -> None:
    stored = a_queue("team", capability={"cpu": 2})
    more = a_queue("team", capability={"cpu": 6})
    plan = plan_on(a_snapshot(CPU_8, stored), more, a_request(cpu=4, queue="team"))
    assert plan.outcome == "Now"
    assert plan.changes == ("queue team configured: capability cpu 2 -> 6",)


def test_a_quota_in_a_planned_file_limits_its_groups() -> None:
    plan = plan_on(a_snapshot(CPU_8), a_quota(cpu=2), a_request(cpu=4))
    assert (plan.outcome, only(plan).blockers[0].reason) == ("Never", "ExceedsMaxQuota")
    assert plan.changes == ("resourcequota default/quota created",)


def test_a_group_sent_back_by_a_planned_queue_edit_is_evicted_without_a_preemptor() -> None:
    there = a_snapshot(CPU_8, a_queue("team"), *a_running_group("r", cpu=4, queue="team"))
    drained = a_queue("team", stop_policy="HoldAndDrain")
    plan = plan_on(there, drained, a_request(cpu=2))
    assert [(one.key, one.by, one.action, one.reason) for one in plan.evicted] == [
        ("default/r", "", "", "QueueStopped")
    ]
    assert plan.exit_code == 3


def test_the_wait_for_victims_is_shown_in_whole_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(a_request(cpu=8, priority_class_name="high"), HIGH, *a_running_group("r"))
    group = only(plan)
    assert group.awaits is not None
    awaits = structs.replace(group.awaits, within_ms=11_978)
    show_plan(structs.replace(plan, groups=(structs.replace(group, awaits=awaits),)))
    result = capsys.readouterr().out.splitlines()
    assert "Would:     start when 1 pod of default/r has ended, within 12s" in result


def test_a_request_without_groups_cannot_be_planned() -> None:
    with pytest.raises(InvalidInput, match="expected at least one PodGroup to plan, found none"):
        plan_on(a_snapshot(CPU_8), a_queue("team"))


def test_a_name_that_is_taken_is_refused_as_at_submission() -> None:
    with pytest.raises(Conflict, match="PodGroup default/x exists already and is Running"):
        plan_of(a_request(), *a_running_group("x"))


def test_a_queue_that_is_not_there_is_refused_as_at_submission() -> None:
    with pytest.raises(NotFound, match="nowhere"):
        plan_of(a_request(queue="nowhere"))


def test_a_plan_respects_the_limit_on_groups_of_a_namespace() -> None:
    quota = a_quota(podgroups=1)
    with pytest.raises(
        Rejected, match="namespace default allows at most 1 unfinished pod group, and has 1"
    ):
        plan_of(a_request(), quota, a_group("other"))
    with pytest.raises(Rejected, match="pod group, has 0, and the request adds 2"):
        plan_on(a_snapshot(CPU_8, quota), a_request("a"), a_request("b"))
    assert plan_of(a_request(), quota).outcome == "Now"
