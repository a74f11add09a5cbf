"""The action enqueue: which groups become InQueue, in which order, and why the others wait."""

from __future__ import annotations

from batchq.api.intents import SetReasons
from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import Condition, Dependency, PodGroupStatus, SchedulingGate
from batchq.api.reasons import Verdict, Waiting
from batchq.config import DEFAULT_PLUGINS, SchedulerConfig
from tests.builders import (
    a_group,
    a_node,
    a_priority,
    a_queue,
    a_quota,
    a_running_group,
    decide,
)


def test_the_group_that_came_first_is_admitted_first() -> None:
    decided = decide(a_node(cpu=4), a_group("late", 4, created=2), a_group("early", 4, created=1))
    assert decided.admitted == ["default/early"]
    assert decided.reasons("late") == ["WaitingForResources"]


def test_the_lower_uid_comes_first_of_two_groups_of_one_instant() -> None:
    decided = decide(a_node(cpu=1), a_group("tenth", uid="10"), a_group("ninth", uid="9"))
    assert decided.admitted == ["default/ninth"]


def test_a_group_of_higher_priority_overtakes_an_earlier_group() -> None:
    decided = decide(
        a_node(cpu=4),
        a_priority("high", 100),
        a_group("early", 4, created=1),
        a_group("urgent", 4, created=2, priority_class_name="high"),
    )
    assert decided.admitted == ["default/urgent"]


def test_under_best_effort_a_small_group_passes_a_large_one_that_does_not_fit() -> None:
    decided = decide(
        a_node(cpu=8),
        a_group("runs", 6, created=1),
        a_group("large", 4, created=2),
        a_group("small", 2, created=3),
    )
    assert decided.admitted == ["default/runs", "default/small"]


def test_under_strict_a_small_group_waits_behind_a_large_one_that_does_not_fit() -> None:
    decided = decide(
        a_queue(strict=True),
        a_node(cpu=8),
        a_group("runs", 6, created=1),
        a_group("large", 4, created=2),
        a_group("small", 2, created=3),
    )
    assert decided.admitted == ["default/runs"]
    assert decided.reasons("large") == ["WaitingForResources"]
    assert decided.reasons("small") == ["WaitingForTurn"]


def test_groups_pass_a_strict_head_that_waits_only_for_its_namespace_quota() -> None:
    decided = decide(
        a_queue(strict=True),
        a_node(cpu=8),
        a_quota("team", cpu=1),
        a_group("held", 2, namespace="team", created=1, uid="1", min_member=2),
        a_group("free", 2, created=2, uid="2"),
    )
    assert decided.admitted == ["default/free"]
    assert decided.reasons("held", "team") == ["ExceedsMaxQuota"]


def test_a_strict_head_reserves_deserved_capacity_against_other_queues() -> None:
    """Both queues deserve four of eight cpus; two are free, and the head requests four."""
    objects = (
        a_node(cpu=8),
        a_queue("other"),
        *a_running_group("runs", 6, queue="other"),
        a_group("head", 4, queue="strict", created=1),
        a_group("one", 1, queue="other", created=2),
    )
    assert decide(a_queue("strict"), *objects).admitted == ["default/one"]
    assert decide(a_queue("strict", strict=True), *objects).admitted == []


def test_a_head_above_what_its_queue_deserves_gets_no_reservation() -> None:
    """A reservation of a part of its request would stay idle without letting any group start."""
    objects = (
        a_node(cpu=8),
        a_queue("other"),
        *a_running_group("runs", 2, queue="other"),
        *a_running_group("mine", 1, queue="strict"),
        a_group("head", 8, queue="strict", created=1),
        *(a_group(f"next{at}", 1, queue="other", created=2) for at in range(6)),
    )
    assert len(decide(a_queue("strict", strict=True), *objects).admitted) == 5


def test_admissions_change_the_order_of_queues_in_the_same_session() -> None:
    groups = [a_group(f"{queue}{n}", queue=queue, created=n) for queue in "ab" for n in range(4)]
    decided = decide(a_node(cpu=4), a_queue("a"), a_queue("b"), *groups)
    assert decided.admitted == ["default/a0", "default/b0", "default/a1", "default/b1"]


def test_a_queue_of_twice_the_weight_gets_twice_as_much() -> None:
    groups = [a_group(f"{queue}{n}", queue=queue, created=n) for queue in "ab" for n in range(9)]
    decided = decide(a_node(cpu=9), a_queue("a", weight=2), a_queue("b"), *groups)
    assert sum(name.startswith("default/a") for name in decided.admitted) == 6


def test_a_capability_limits_a_queue_in_an_empty_cluster() -> None:
    decided = decide(
        a_node(cpu=8),
        a_queue("small", capability={"cpu": 2}),
        a_group("one", 2, queue="small", created=1),
        a_group("two", 2, queue="small", created=2),
    )
    assert decided.admitted == ["default/one"]
    assert decided.message("two") == "needs cpu 2, and queue small has 0 free (2 of 2 in use)"


def test_a_capability_that_does_not_name_a_dimension_does_not_limit_it() -> None:
    decided = decide(
        a_node(cpu=8, memory="8Gi"),
        a_queue("small", capability={"memory": "1Gi"}),
        a_group("wide", 8, queue="small"),
    )
    assert decided.admitted == ["default/wide"]


def test_max_pod_groups_counts_groups_whatever_their_size() -> None:
    decided = decide(
        a_node(cpu=8),
        a_queue("few", max_pod_groups=1),
        a_group("one", queue="few", created=1),
        a_group("two", queue="few", created=2),
    )
    assert decided.admitted == ["default/one"]
    assert decided.message("two") == "needs podgroups 1, and queue few has 0 free (1 of 1 in use)"


def test_all_quotas_of_a_namespace_apply_together() -> None:
    decided = decide(
        a_node(cpu=8, memory="8Gi"),
        a_quota(name="wide", cpu=6),
        a_quota(name="narrow", cpu=3),
        a_group("one", 2, created=1),
        a_group("two", 2, created=2),
    )
    assert decided.admitted == ["default/one"]
    assert decided.message("two") == (
        "needs cpu 2, and the quota of namespace default has 1 free (2 of 3 in use)"
    )


def test_a_group_larger_than_all_nodes_exceeds_the_capacity_and_blocks_no_other_group() -> None:
    decided = decide(
        a_queue(strict=True),
        a_node(cpu=8),
        a_group("giant", 9, created=1),
        a_group("small", 1, created=2),
    )
    assert decided.admitted == ["default/small"]
    assert decided.reasons("giant") == ["ExceedsCapacity"]


def test_a_request_for_a_resource_that_no_node_has_never_fits() -> None:
    decided = decide(a_node(cpu=8), a_group("fpga", min_resources={"fpga": 1000}))
    assert decided.reasons("fpga") == ["ExceedsCapacity"]


def test_without_any_node_groups_wait_for_resources() -> None:
    assert decide(a_group("early")).reasons("early") == ["WaitingForResources"]


def test_every_reason_is_recorded_with_the_most_fundamental_first() -> None:
    decided = decide(
        a_node(cpu=8),
        a_group("gated", 9, suspend=True, scheduling_gates=(SchedulingGate(name="budget"),)),
    )
    assert decided.reasons("gated") == ["ExceedsCapacity", "Suspended", "SchedulingGated"]


def test_the_reason_of_a_group_in_a_missing_queue_names_the_existing_queues() -> None:
    decided = decide(a_node(cpu=8), a_queue("real"), a_group("lost", queue="reel"))
    assert decided.admitted == []
    # Such a group is in no pending queue; the last step of the cycle sets its reason.
    assert decided.reasons("lost") == ["QueueNotFound"]
    assert decided.message("lost") == "there is no queue reel; there are: default, real"


def test_groups_of_two_missing_queues_are_told_of_their_own() -> None:
    decided = decide(a_node(), a_group("lost", queue="reel"), a_group("gone", queue="rael"))
    assert decided.message("lost") == "there is no queue reel; there are: default"
    assert decided.message("gone") == "there is no queue rael; there are: default"


def test_a_stopped_queue_admits_no_group() -> None:
    decided = decide(
        a_node(cpu=8), a_queue("held", stop_policy="Hold"), a_group("one", queue="held")
    )
    assert decided.reasons("one") == ["QueueStopped"]


def test_a_group_of_a_namespace_that_its_queue_does_not_accept_is_out_of_line() -> None:
    decided = decide(
        a_node(cpu=8),
        a_queue("gpu", strict=True, namespaces=("lab", "ml")),
        a_group("other", queue="gpu", namespace="home", created=1),
        a_group("own", queue="gpu", namespace="lab", created=2),
    )
    # They ask for the same, and the one that is refused holds up no other.
    assert decided.admitted == ["lab/own"]
    assert decided.reasons("other", "home") == ["Misconfigured"]
    assert decided.message("other", "home") == (
        "queue gpu accepts only groups of namespaces lab and ml, not of home"
    )


def test_the_namespace_of_a_group_must_be_accepted_above_its_queue_too() -> None:
    decided = decide(
        a_node(cpu=8),
        a_queue("root", namespaces=("lab", "home")),
        a_queue("school", namespaces=("lab", "course")),
        a_queue("gpu", parent="school"),
        *(a_group(name, queue="gpu", namespace=name) for name in ("lab", "course", "home")),
    )
    assert decided.admitted == ["lab/lab"]
    assert decided.message("course", "course") == (
        "queue gpu accepts only groups of namespace lab, not of course"
    )
    assert (
        decided.message("home", "home")
        == "queue gpu accepts only groups of namespace lab, not of home"
    )


def test_a_dependent_group_waits_for_the_group_it_names() -> None:
    depends = (Dependency(name="first", uid="first"),)
    decided = decide(a_node(cpu=8), a_group("first"), a_group("second", depends_on=depends))
    assert decided.admitted == ["default/first"]
    assert decided.message("second") == "waits for first to complete"


def test_a_dependent_group_is_admitted_when_the_group_it_names_has_completed() -> None:
    done = PodGroupStatus(phase=PodGroupPhase.COMPLETED, finished_at=0)
    depends = (Dependency(name="first", uid="first"),)
    decided = decide(
        a_node(cpu=8), a_group("first", status=done), a_group("second", depends_on=depends)
    )
    assert decided.admitted == ["default/second"]


def test_a_pending_group_has_no_pods_and_an_admitted_one_has_min_member() -> None:
    decided = decide(
        a_node(cpu=3), a_group("in", 10, min_member=3, created=1), a_group("out", 10, created=2)
    )
    groups = decided.session.by_key
    assert len(groups["default/in"].pods) == 3
    assert len(groups["default/out"].pods) == 0


def test_without_a_queue_order_all_groups_are_in_one_pending_queue() -> None:
    plugins = tuple(entry for entry in DEFAULT_PLUGINS if entry.name != "proportion")
    groups = [a_group(f"a{n}", queue="a", created=n) for n in range(3)]
    decided = decide(
        a_node(cpu=4),
        a_queue("a"),
        a_queue("b"),
        *groups,
        a_group("b9", queue="b", created=9),
        config=SchedulerConfig(plugins=plugins),
    )
    assert decided.admitted == ["default/a0", "default/a1", "default/a2", "default/b9"]


def test_without_enqueue_the_limits_apply_at_the_bind() -> None:
    decided = decide(
        a_node(cpu=8),
        a_queue("small", capability={"cpu": 2}),
        a_group("wide", 3, queue="small", min_member=1),
        config=SchedulerConfig(actions=("allocate",)),
    )
    assert list(decided.bound) == ["default/wide-w-0", "default/wide-w-1"]


def test_an_ineligible_group_is_not_rewritten_when_free_capacity_changes() -> None:
    depends = (Dependency(name="first", uid="first"),)
    first, second = a_group("first", 4), a_group("second", 4, depends_on=depends)
    crowded = decide(a_node(cpu=4), first, second)
    assert crowded.reasons("second") == ["DependencyNotMet", "WaitingForResources"]
    result = crowded.session.by_key["default/second"].status
    roomy = decide(a_node(cpu=9), first, a_group("second", 4, depends_on=depends, status=result))
    assert [intent for intent in roomy.of(SetReasons) if intent.group == "default/second"] == []


def test_the_reason_says_that_no_node_is_ready_instead_of_a_lack_of_capacity() -> None:
    decided = decide(a_node("n1", cpu=4, ready=False), a_node("n2", ready=False), a_group("g"))
    assert decided.reasons("g") == ["WaitingForResources"]
    assert decided.message("g") == "no node is ready, of the 2 there are"


def test_the_reason_of_a_group_in_backoff_says_what_did_not_fit() -> None:
    evicted = Condition(
        type="Evicted", status="True", reason="Unschedulable", message="0/2 nodes fit: 2 cordoned"
    )
    paused = PodGroupStatus(backoff_until=20_000, backoff_count=2, conditions=(evicted,))
    decided = decide(a_node(cpu=4), a_group("g", status=paused))
    assert decided.reasons("g") == ["BackingOff"]
    assert decided.message("g") == (
        "pauses for 20s, until 1970-01-01T00:00:20Z, 2 times in a row;"
        " Unschedulable: 0/2 nodes fit: 2 cordoned"
    )


def test_a_former_head_that_is_out_of_line_now_loses_its_reservation() -> None:
    """Its namespace's quota was lowered below its request while it waited."""
    head = a_group(
        "head",
        8,
        namespace="blue",
        queue="heads",
        status=PodGroupStatus(set_aside_at=5),
    )
    decided = decide(
        a_queue("heads", strict=True), a_node(cpu=8), a_quota("blue", cpu=2), head, now_ms=10_000
    )
    assert decided.session.by_key["blue/head"].status.set_aside_at is None


def test_groups_do_not_avoid_the_nodes_of_a_head_that_is_out_of_line_now() -> None:
    """`pair` has one pod on each node then, as without `head`, which had lacked capacity before."""
    reasons = (
        Verdict(plugin="quota", reason=Waiting.EXCEEDS_MAX_QUOTA, resource="cpu"),
        Verdict(plugin="nodes", reason=Waiting.WAITING_FOR_RESOURCES, in_line=True),
    )
    head = a_group(
        "head",
        8,
        namespace="blue",
        queue="heads",
        status=PodGroupStatus(reasons=reasons, set_aside_at=5),
    )
    decided = decide(
        a_queue("heads", strict=True),
        a_queue("others"),
        a_node("n0", cpu=6),
        a_node("n1", cpu=4),
        a_quota("blue", cpu=2),
        head,
        a_group("pair", 2, queue="others", created=1),
        now_ms=10_000,
    )
    assert decided.bound == {"default/pair-w-0": "n0", "default/pair-w-1": "n1"}
