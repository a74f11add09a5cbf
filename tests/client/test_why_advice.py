"""Explanations of groups that can never run, of gates and checks, and of a group's history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.node_report import PROTOCOL_ANNOTATION
from batchq.api.objects import (
    CheckState,
    Launch,
    PodGroupStatus,
    QueuePreemption,
    Retry,
    SchedulingGate,
    Taint,
)
from batchq.api.reasons import Verdict, Waiting
from batchq.api.transaction import Event
from batchq.cli.diagnosis import row_of, show_why
from batchq.cli.output.tables import where_or_why
from batchq.client.overview import Overview
from batchq.client.remedies import remedy_for
from batchq.client.why import periods_of, waited_for
from batchq.config.load import read_config
from tests.builders import RECLAIMS, a_node, a_pod, a_queue, a_quota, a_task
from tests.client.waits import MINUTE, NEVER, NOW, World, a_check, asks
from tests.tidy.command_lines import accept


def printed(world: World, name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the printed sections below the reasons, by their titles."""
    show_why(world.why(name), history=False)
    lines = capsys.readouterr().out.splitlines()
    parts = (line.partition(":") for line in lines if not line.startswith(" "))
    return {title: text.strip() for title, _, text in parts}


def remedies(world: World, name: str) -> list[tuple[str, str]]:
    return [(str(one.reason), one.remedy) for one in world.why(name).reasons]


def two_nodes_of_four(*more: Any) -> World:
    return World(a_node("n1", cpu=4), a_node("n2", cpu=4), a_queue("default", preemption=NEVER))


def test_a_group_larger_than_every_node_is_not_advised_to_wait(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = two_nodes_of_four()
    world.run(asks("runs", requests={"cpu": 3}))
    world.add(asks("w7", requests={"cpu": 7}))
    world.settle()
    assert remedies(world, "w7") == [
        (
            "ExceedsCapacity",
            (
                "ask for at most cpu 4 a pod, which is what the largest node has, or start a worker"
                " that has more"
            ),
        )
    ]
    result = printed(world, "w7", capsys)
    assert result["Ever"] == (
        "no: not even empty nodes take it: task w: 0/2 nodes fit: 2 insufficient cpu; a pod needs"
        " cpu 7, and the largest node has 4"
    )
    assert "Earliest" not in result
    assert "No victims" not in result
    assert row_of(world.why("w7"))["everPossible"] is False


def test_a_group_larger_than_every_node_is_never_admitted_and_sent_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = two_nodes_of_four()
    world.add(asks("w7", requests={"cpu": 7}))
    world.settle()
    result = world.why("w7")
    assert (result.phase, result.ever[:9]) == ("Pending", "not even ")
    assert printed(world, "w7", capsys)["Ever"].startswith("no: not even empty nodes take it")
    assert [reason for reason, _ in remedies(world, "w7")] == ["ExceedsCapacity"]
    assert remedies(world, "w7")[0][1].startswith("ask for at most cpu 4 a pod")
    assert "Earliest" not in printed(world, "w7", capsys)


def test_a_remedy_is_shown_once() -> None:
    world = World(
        a_node("n1", cpu=4),
        a_node("n2", cpu=4),
        a_queue("full", capability={"cpu": 7}, preemption=NEVER),
    )
    world.run(asks("runs", queue="full", requests={"cpu": 3}))
    world.add(asks("w7", queue="full", requests={"cpu": 7}))
    world.settle()
    assert [bool(remedy) for _, remedy in remedies(world, "w7")] == [True]


def test_a_cordoned_node_and_one_that_is_away_may_still_take_it() -> None:
    world = World(
        a_node("small", cpu=2),
        a_node("cordoned", cpu=4, cordoned=True),
        a_node("away", cpu=4, ready=False, heartbeat=NOW - MINUTE),
        a_node("gone", cpu=8, ready=False, heartbeat=NOW - 25 * 60 * MINUTE),
    )
    world.add(asks("four", requests={"cpu": 4}), asks("five", requests={"cpu": 5}))
    world.turn()
    assert world.why("four").ever == ""
    assert "the largest node has 4" in world.why("five").ever


def test_a_gang_that_does_not_fit_together_may_start_with_fewer_pods() -> None:
    world = World(a_node("n1", cpu=4), a_node("n2", cpu=4))
    world.add(asks("three", requests={"cpu": "2500m"}, replicas=3))
    world.settle()
    assert world.why("three").ever == (
        "not even empty nodes take it: 3 pods do not fit together on empty nodes"
    )
    assert remedies(world, "three") == [
        (
            "ExceedsCapacity",
            "let it start with fewer pods (minMember) or smaller ones, or start more workers",
        )
    ]


def test_a_gang_gets_advice_on_its_size_and_that_of_its_pods() -> None:
    world = two_nodes_of_four()
    world.add(asks("gang", requests={"cpu": 5}, replicas=2))
    world.settle()
    assert remedies(world, "gang") == [
        ("ExceedsCapacity", "ask for less cpu: at most 8 in all, and 4 a pod, can ever fit")
    ]


def test_the_remedy_for_a_resource_of_no_node_says_so() -> None:
    world = two_nodes_of_four()
    world.add(asks("g", requests={"cpu": 1, "gpu": 1}))
    world.settle()
    assert remedies(world, "g") == [
        ("ExceedsCapacity", "no node offers gpu: ask for none, or start a worker that does")
    ]


def test_an_overcommit_of_zero_is_named_where_it_keeps_groups_out() -> None:
    config = read_config("overcommit: 0", "scheduler.yaml")
    world = World(a_node("n1", cpu=4), a_queue("default"), config=config)
    world.add(asks("g", requests={"cpu": 1}))
    world.settle()
    remedy = "set overcommit in the scheduler's configuration to 1 or more: 0 admits no pods"
    why = world.why("g")
    assert [one.remedy for one in why.reasons] == [remedy, ""]
    assert why.reasons[0].message == (
        "needs cpu 1, and the cluster, with every node that was seen within a day, allows at most"
        " 0; that is 0 times what they have (overcommit)"
    )


def test_an_admitted_group_is_told_that_no_action_places_its_pods() -> None:
    config = read_config("actions: [enqueue]", "scheduler.yaml")
    world = World(a_node("n1", cpu=4), a_queue("default"), config=config)
    world.add(asks("g", requests={"cpu": 1}))
    world.settle()
    assert world.why("g").next == (
        "no session places its pods: the scheduler's actions lack allocate"
    )


def in_two_racks() -> World:
    """Return a world of two racks of two nodes with four cpus each."""
    return World(
        *(a_node(f"n{k}", cpu=4, labels={"rack": f"r{k // 2}"}) for k in range(4)),
        a_queue("default", preemption=NEVER),
    )


def test_a_gang_larger_than_all_racks_is_advised_about_one_rack() -> None:
    world = in_two_racks()
    world.add(asks("g", requests={"cpu": 2}, replicas=9, topology={"rack": "required"}))
    world.add(asks("p", requests={"cpu": 5}, replicas=4, topology={"rack": "required"}))
    world.settle()
    assert remedies(world, "g") == [
        ("ExceedsCapacity", "ask for less cpu: at most 8 can ever fit within one rack")
    ]
    assert remedies(world, "p") == [
        (
            "ExceedsCapacity",
            "ask for less cpu: at most 8 in all, and 4 a pod, can ever fit within one rack",
        )
    ]


def test_a_gang_that_waits_for_a_rack_is_advised_to_ask_for_what_one_has_free() -> None:
    world = in_two_racks()
    world.run(asks("runs", requests={"cpu": 3}, replicas=4))
    world.add(asks("g", requests={"cpu": 3}, replicas=2, topology={"rack": "required"}))
    world.settle()
    assert remedies(world, "g") == [
        (
            "WaitingForResources",
            "wait until others end, ask for at most cpu 2 in all, or have nodes added",
        )
    ]


def test_the_remedy_for_a_topology_of_no_node_names_its_label() -> None:
    world = two_nodes_of_four()
    world.add(asks("g", topology={"rak": "required"}))
    world.settle()
    assert remedies(world, "g") == [
        (
            "ExceedsCapacity",
            (
                "no node has the label rak: correct the topology, or start workers that have it"
                " (`batchq worker --label rak=VALUE`)"
            ),
        )
    ]


@pytest.mark.parametrize(
    ("template", "remedy"),
    [
        (
            {"node_selector": {"disk": "ssd"}},
            (
                "no node has the label disk=ssd: correct the selector, or start a worker that has"
                " it (`batchq worker --label disk=ssd`)"
            ),
        ),
        (
            {"node_selector": {"disk": "ssd", "zone": "b"}},
            (
                "no node has all of the labels disk=ssd, zone=b: correct the selector, or start a"
                " worker that has them (`batchq worker --label disk=ssd --label zone=b`)"
            ),
        ),
        (
            {"node_selector": {"batchq/runtime-podman": "yes"}},
            (
                "no node has podman, which its container needs (batchq/runtime-podman=yes): install"
                " podman on a node, and restart its worker"
            ),
        ),
        (
            {"nodes": ("vm-9",)},
            (
                "no node has the name vm-9: name another (`batchq nodes`), or start a worker of"
                " that name (`batchq worker --name vm-9`)"
            ),
        ),
        (
            {"exclude_nodes": ("n1", "n2")},
            "all nodes are excluded: exclude fewer, or start another worker",
        ),
    ],
)
def test_a_group_that_matches_no_node_is_told_what_it_asks_for(
    template: dict[str, Any], remedy: str
) -> None:
    world = two_nodes_of_four()
    world.add(asks("picky", template=template))
    world.settle()
    assert remedies(world, "picky") == [("ExceedsCapacity", remedy)]


def test_a_group_that_tolerates_no_taint_is_advised_about_taints() -> None:
    world = World(a_node("n1", cpu=4, taints=(Taint(key="gpu"),)), a_queue("default"))
    world.add(asks("plain"))
    world.settle()
    assert remedies(world, "plain") == [
        (
            "ExceedsCapacity",
            (
                "node n1 has the taint gpu:NoSchedule, which its pod does not tolerate: tolerate it"
                " (`batchq submit --toleration KEY`), or start a worker without it"
            ),
        )
    ]


def test_a_group_with_launch_asks_for_an_upgrade_of_older_agents() -> None:
    world = World(a_node("n1", cpu=4, annotations={PROTOCOL_ANNOTATION: "2"}), a_queue("default"))
    world.add(asks("torch", launch=Launch(ports=2)))
    world.settle()
    assert remedies(world, "torch") == [
        (
            "ExceedsCapacity",
            (
                "upgrade batchq on n1 and restart its agent there (`batchq worker`): agents of"
                " this version would take its pods"
            ),
        )
    ]


def test_a_quota_in_use_has_no_remedy_beside_a_request_that_never_fits() -> None:
    world = World(
        a_node("n1", cpu=4),
        a_queue("default", preemption=NEVER),
        a_quota("default", cpu=12),
    )
    world.run(asks("runs", requests={"cpu": 4}))
    world.add(asks("toobig", replicas=10))
    world.settle()
    assert [(reason, remedy[:12]) for reason, remedy in remedies(world, "toobig")] == [
        ("ExceedsCapacity", "ask for less"),
        ("WaitingForQuota", ""),
    ]


def test_a_group_that_is_only_gated_does_not_wait_for_others_to_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = two_nodes_of_four()
    world.add(asks("gated", scheduling_gates=(SchedulingGate(name="data"),)))
    world.settle()
    assert printed(world, "gated", capsys)["Ever"] == "yes, once the reasons above no longer apply"


def test_capacity_freed_by_other_groups_is_distinguished_from_free_capacity(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = World(a_node("n1", cpu=8), a_queue("default", preemption=NEVER))
    world.run(asks("ends", walltime=MINUTE), asks("stays", requests={"cpu": 4}))
    world.add(asks("w7", requests={"cpu": 7}))
    world.settle()
    assert "has 3 free" in world.why("w7").reasons[0].message
    assert printed(world, "w7", capsys)["Earliest"] == (
        "not known: only groups with a walltime have a known end, and after all of those it still"
        " needs cpu 7, and the cluster has 4 free (4 of 8 in use)"
    )


def lent_out(*, mine: QueuePreemption = NEVER, asked: int = 2, **theirs: Any) -> World:
    """Return a world in which queue theirs uses all of a node, and `waits` is in queue mine."""
    world = World(
        a_node("n1", cpu=4), a_queue("mine", preemption=mine), a_queue("theirs", **theirs)
    )
    world.run(asks("runs", queue="theirs", requests={"cpu": 4}))
    world.add(asks("waits", queue="mine", requests={"cpu": asked}))
    world.settle()
    return world


def test_a_queue_that_takes_nothing_back_is_advised_to_reclaim_what_others_borrow() -> None:
    assert remedies(lent_out(), "waits") == [
        (
            "WaitingForResources",
            (
                "wait until others end, have `preemption.reclaim: Any` set on queue mine, to take"
                " back what queue theirs borrows, or have nodes added"
            ),
        )
    ]


@pytest.mark.parametrize(
    "world",
    [
        # It would hold more than it deserves, which no reclaim gives it.
        lambda: lent_out(asked=3),
        lambda: lent_out(reclaimable=False),
        # It reclaims already; `No victims` says why it finds nothing.
        lambda: lent_out(mine=RECLAIMS, preemption=NEVER, guarantee={"cpu": 4000}),
    ],
)
def test_a_queue_that_reclaiming_would_not_help_is_not_advised_to_reclaim(
    world: Callable[[], World],
) -> None:
    for _, remedy in remedies(world(), "waits"):
        assert "preemption.reclaim" not in remedy


def one_of_two_cordoned() -> World:
    return World(
        a_node("n1", cpu=4),
        a_node("n2", cpu=4, cordoned=True),
        a_queue("default", preemption=NEVER),
    )


def test_a_gang_that_needs_a_cordoned_node_is_not_advised_to_wait_for_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = one_of_two_cordoned()
    world.add(asks("g8", replicas=8))
    world.settle()
    [reason] = world.why("g8").reasons
    assert reason.message == ("8 pods do not fit together on empty nodes; 1 of 2 nodes is cordoned")
    assert reason.remedy == (
        "`batchq nodes uncordon n2`: 1 of 2 nodes is cordoned, and the other nodes do not suffice"
        " even when empty"
    )
    accept(["nodes", "uncordon", "n2"])
    result = printed(world, "g8", capsys)
    assert result["Ever"] == "yes, when more nodes take pods: 1 of 2 nodes is cordoned (n2)"
    assert "Earliest" not in result


def test_capacity_on_a_cordoned_node_is_not_offered_as_free() -> None:
    world = one_of_two_cordoned()
    world.run(asks("runs", requests={"cpu": 3}))
    world.add(asks("fits-n1", requests={"cpu": 2}), asks("g4", replicas=4))
    world.settle()
    assert remedies(world, "g4") == [
        (
            "WaitingForResources",
            ("wait until others end, `batchq nodes uncordon n2`, or have nodes added"),
        )
    ]
    world.add(asks("g6", replicas=6))
    world.settle()
    assert [remedy for _, remedy in remedies(world, "g6")] == [
        (
            "`batchq nodes uncordon n2`: 1 of 2 nodes is cordoned, and the other nodes do not"
            " suffice even when empty"
        )
    ]


def test_a_gang_that_needs_a_node_that_is_not_ready_names_it() -> None:
    world = World(a_node("n1", cpu=4), a_node("n2", cpu=4, ready=False), a_queue("default"))
    world.add(asks("g8", replicas=8))
    world.settle()
    result = world.why("g8")
    assert [one.remedy for one in result.reasons] == [
        (
            "bring back n2 (`batchq nodes`): 1 of 2 nodes is not ready, and the other nodes do not"
            " suffice even when empty"
        )
    ]
    assert row_of(result)["missingNodes"] == "1 of 2 nodes is not ready (n2)"


def test_capacity_of_a_node_that_is_not_ready_is_named_beside_the_wait_for_others() -> None:
    world = World(a_node("n1", cpu=4), a_node("n2", cpu=4, ready=False), a_queue("default"))
    world.run(asks("runs", requests={"cpu": 3}))
    world.add(asks("fits-n1", requests={"cpu": 2}))
    world.settle()
    assert remedies(world, "fits-n1") == [
        (
            "WaitingForResources",
            (
                "wait until others end, ask for at most cpu 1, bring back n2 (`batchq nodes`), or"
                " have nodes added"
            ),
        )
    ]


def test_the_pods_of_a_running_array_that_wait_have_a_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = World(a_node(cpu=8), a_queue("small", capability={"cpu": 2}, preemption=NEVER))
    world.run(asks("sweep", queue="small", replicas=10, min_member=1))
    world.now_ms += MINUTE
    world.settle()
    result = world.why("sweep")
    assert [one.text for one in result.reasons] == [
        "WaitingForQuota: needs cpu 1, and queue small has 0 free (2 of 2 in use)"
    ]
    assert [one.remedy for one in result.reasons] == [
        ("wait until its running pods or others of queue small end, or have its capability raised")
    ]
    assert result.waited == {}
    show_why(result, history=False)
    assert capsys.readouterr().out.splitlines()[0] == (
        "default/sweep is Running for 1m on n1; 2 of 10 pods run, 8 wait"
    )


def after_an_attempt(*objects: Any, now_ms: int = NOW, replicas: int = 1, **status: Any) -> World:
    """Return a world in which the pods of group r, which may retry once, have ended so."""
    group = asks(
        "r",
        replicas=replicas,
        retry=Retry(limit=1),
        status=PodGroupStatus(phase=PodGroupPhase.UNKNOWN, admission=1, unknown_at=NOW),
    )
    pods = [a_pod(group, place, finished_at=NOW, **status) for place in range(replicas)]
    return World(a_queue("default", preemption=NEVER), group, *pods, *objects, now_ms=now_ms)


def test_a_pod_that_pauses_before_a_retry_says_how_it_failed_and_when_it_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = after_an_attempt(
        a_node(cpu=4), phase=PodPhase.FAILED, failures=1, exit_code=3, now_ms=NOW + 4_000
    )
    result = world.why("r")
    assert row_of(result)["restarts"] == ["pod r-w-0 exited with 3; retry 1 of 1 starts in 6s"]
    assert where_or_why(result.view) == (
        "0 of the 1 that it needs; pod r-w-0 exited with 3; retry 1 of 1 starts in 6s"
    )
    show_why(result, history=False)
    assert capsys.readouterr().out.splitlines()[:2] == [
        "default/r is Unknown for 4s",
        "  pod r-w-0 exited with 3; retry 1 of 1 starts in 6s",
    ]


def test_pods_lost_with_their_node_are_counted_and_the_node_is_named() -> None:
    lost: dict[str, Any] = {
        "phase": PodPhase.EVICTED,
        "reason": "NodeLost",
        "losses": 1,
        "node": "n1",
    }
    assert after_an_attempt(replicas=2, **lost).why("r").restarts == (
        "2 pods were lost with node n1; they start again when nodes take them",
    )


def test_a_running_group_says_that_a_node_of_its_pods_is_silent() -> None:
    silent = a_node("n1", cpu=4, heartbeat=NOW - MINUTE)
    group = asks("r", status=PodGroupStatus(phase=PodGroupPhase.RUNNING, admission=1))
    pod = a_pod(group, phase=PodPhase.RUNNING, node="n1", started_at=NOW - 2 * MINUTE)
    world = World(a_queue("default"), silent, group, pod)
    world.snapshot = structs.replace(world.snapshot, leases={pod.metadata.uid: NOW - 10_000})
    assert world.why("r").restarts == (
        (
            "pod r-w-0 is on node n1, which is not ready; it counts as lost in 20s unless the node"
            " returns"
        ),
    )


def test_a_pod_ended_by_a_signal_is_not_said_to_have_exited() -> None:
    killed: dict[str, Any] = {
        "phase": PodPhase.FAILED,
        "failures": 1,
        "exit_code": 137,
        "signal": 9,
    }
    assert after_an_attempt(a_node(cpu=4), **killed).why("r").restarts == (
        "pod r-w-0 was ended by signal 9; retry 1 of 1 starts in 10s",
    )


def test_a_gate_of_another_plugin_is_not_opened_by_batchq() -> None:
    world = two_nodes_of_four()
    world.add(asks("own"))
    session = world.turn()
    theirs = Verdict(plugin="licences", reason=Waiting.SCHEDULING_GATED, detail="no licence")
    inactive = Verdict(plugin="licences", reason=Waiting.CHECK_INACTIVE, detail="no licence")
    quota = Verdict(plugin="licences", reason=Waiting.WAITING_FOR_QUOTA, detail="no licence")
    for verdict in (theirs, inactive, quota):
        assert remedy_for(session, session.by_key["default/own"], verdict, unled="") == ""


def partly_gated() -> World:
    late = (SchedulingGate(name="late"), SchedulingGate(name="licence"))
    tasks = (a_task("a", 1), a_task("b", 2, scheduling_gates=late))
    world = two_nodes_of_four()
    group = asks("part", min_member=1)
    world.run(structs.replace(group, spec=structs.replace(group.spec, tasks=tasks)))
    return world


def test_gated_pods_of_a_running_group_are_shown() -> None:
    world = partly_gated()
    result = world.why("part")
    assert result.phase == "Running"
    assert [(one.reason, one.message, one.remedy) for one in result.reasons] == [
        (
            "SchedulingGated",
            "2 pods of task b wait for gates late, licence",
            "`batchq gates open part late licence --task b`",
        )
    ]
    accept(["gates", "open", "part", "late", "licence", "--task", "b"])


def test_a_list_shows_the_gates_that_pods_wait_for() -> None:
    world = partly_gated()
    [view] = Overview(world.snapshot, world.now_ms).groups()
    assert where_or_why(view) == "n1; 2 pods of task b wait for gates late, licence"


def test_a_missing_check_has_apply_as_its_remedy() -> None:
    world = World(a_node(cpu=1), a_queue("checked", admission_checks=("approval",)))
    world.add(asks("waits", queue="checked"))
    world.settle()
    assert remedies(world, "waits") == [
        (
            "CheckInactive",
            "apply AdmissionCheck approval (`batchq apply -f FILE`), or take it off queue checked",
        )
    ]


def test_each_of_several_checks_has_its_own_remedy() -> None:
    checked = a_queue("checked", admission_checks=("approval", "budget"))
    world = World(a_node(cpu=1), checked, a_check("budget", active=False))
    world.add(asks("waits", queue="checked"))
    world.settle()
    assert [remedy.partition(" ")[0] for _, remedy in remedies(world, "waits")] == [
        "apply",
        "start",
    ]


def test_the_remedy_of_a_retried_check_names_the_setting_of_its_delay() -> None:
    checked = a_queue("checked", admission_checks=("approval",))
    asked = CheckState(name="approval", status="False", reason="Retry", since=NOW)
    world = World(a_node(cpu=1), checked, a_check("approval", active=True))
    world.add(asks("waits", queue="checked", status=PodGroupStatus(checks=(asked,))))
    world.turn()
    assert remedies(world, "waits") == [
        (
            "BackingOff",
            (
                "nothing: it returns to the line at 1970-01-01T00:31:40Z; the delay is"
                " retryDelayMinutes of AdmissionCheck approval; shorten it to be checked again"
                " sooner"
            ),
        )
    ]


def happened(at: int, reason: str, message: str = "") -> Event:
    return Event(kind="PodGroup", key="default/x", reason=reason, message=message, at=at)


def test_the_history_names_the_opener_of_a_gate() -> None:
    spells = periods_of(
        [
            happened(0, "Submitted"),
            happened(10, "Waiting", "SchedulingGated"),
            happened(40, "GateOpened", "gate data by alice@laptop; 1 gate left"),
            happened(60, "GateOpened", "gate licence by bob@gpu-01; no gate left"),
            happened(60, "Admitted"),
        ],
        0,
    )
    assert [(one.at, one.until, str(one.phase), one.reasons, one.note) for one in spells] == [
        (0, 10, "Pending", ("PendingEvaluation",), ""),
        (10, 40, "Pending", ("SchedulingGated",), ""),
        (
            *(40, 60, "Pending", ("SchedulingGated",)),
            "GateOpened: gate data by alice@laptop; 1 gate left",
        ),
        (60, None, "InQueue", (), "GateOpened: gate licence by bob@gpu-01; no gate left"),
    ]
    assert waited_for(spells, 60) == {"SchedulingGated": 50, "PendingEvaluation": 10}


def test_lost_pods_explain_why_too_few_run_and_end_no_other_phase() -> None:
    events = [
        happened(0, "Submitted"),
        happened(10, "Admitted"),
        happened(20, "Running"),
        happened(50, "PodLost", "1 pod lost with n1"),
        happened(80, "PodLost", "1 pod lost with n2"),
        happened(81, "Unknown", "fewer pods run than the 1 that it needs"),
        happened(90, "Running"),
    ]
    assert [(one.at, str(one.phase), one.note) for one in periods_of(events, 0)] == [
        (0, "Pending", ""),
        (10, "InQueue", ""),
        (20, "Running", ""),
        (81, "Unknown", "PodLost: 1 pod lost with n2"),
        (90, "Running", ""),
    ]


def test_a_gate_that_is_opened_begins_no_new_phase() -> None:
    world = two_nodes_of_four()
    gates = (SchedulingGate(name="data"), SchedulingGate(name="licence"))
    world.add(asks("gated", scheduling_gates=gates))
    world.settle()
    key = "default/gated"
    opened = Event(kind="PodGroup", key=key, reason="GateOpened", message="x", at=NOW + MINUTE)
    world.events.append(opened)
    world.now_ms += 2 * MINUTE
    assert world.why("gated").since == NOW


def test_an_event_from_a_clock_slightly_behind_is_part_of_a_groups_history() -> None:
    """Submitter and scheduler may have different clocks; an earlier group's events are left out."""
    spells = periods_of(
        [
            happened(60, "Submitted"),
            happened(70, "Completed"),
            happened(100, "Submitted"),
            happened(97, "Waiting", "SchedulingGated"),
            happened(150, "Admitted"),
        ],
        100,
    )
    assert [(one.at, one.until, one.reasons) for one in spells] == [
        (100, 150, ("SchedulingGated",)),
        (150, None, ()),
    ]


@pytest.mark.parametrize(
    ("count", "more"), [(4, "1 more pod waits for its image"), (5, "2 more pods wait for images")]
)
def test_a_group_that_starts_says_which_of_its_images_are_pulled_and_where(
    count: int, more: str
) -> None:
    group = asks("r", count, status=PodGroupStatus(phase=PodGroupPhase.IN_QUEUE, admission=1))
    bound = {"phase": PodPhase.BOUND, "node": "n1", "bound_at": NOW - MINUTE}
    pods = [a_pod(group, k, **bound, message="pulling image i on node n1") for k in range(count)]
    world = World(a_queue("default"), a_node("n1", cpu=8), group, *pods)
    assert world.why("r").restarts == (
        "pod r-w-0 waits for its image, for 1m: pulling image i on node n1",
        "pod r-w-1 waits for its image, for 1m: pulling image i on node n1",
        "pod r-w-2 waits for its image, for 1m: pulling image i on node n1",
        more,
    )
