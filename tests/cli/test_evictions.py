"""Evictions in `batchq jobs` and `describe`: preemptors, victims, and lost work."""

from __future__ import annotations

import json

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import Condition, Evictions, Pledge, PodGroup
from batchq.api.reasons import Verdict, Waiting
from batchq.api.transaction import Transaction, Write
from batchq.api.views import Awaited, GroupView
from batchq.cli.output.tables import awaited_text, evictions_text, groups_table, lost_text
from batchq.client.overview import Overview
from tests.builders import a_group, a_node, a_priority, a_running_group, a_snapshot, amounts
from tests.cli.conftest import Batchq
from tests.cli.test_jobs import cells
from tests.client.stage import Stage

NOW = 300_000
HOUR = 3600


def with_status(group: PodGroup, **status: object) -> PodGroup:
    return structs.replace(group, status=structs.replace(group.status, **status))


def evicted(reason: str, message: str = "", *, status: str = "True") -> Condition:
    assert status in ("True", "False")
    return Condition(
        type="Evicted",
        status="True" if status == "True" else "False",
        reason=reason,
        message=message,
        last_transition_time=NOW - 60_000,
    )


def why(*conditions: Condition, reasons: tuple[Verdict, ...] = (), pledge: Pledge | None = None,
        others: tuple[object, ...] = ()) -> str:  # fmt: skip
    """Return the last column of `batchq jobs` for a waiting group."""
    group = with_status(
        a_group("x", 2), conditions=conditions, reasons=reasons, pledge=pledge or Pledge()
    )
    overview = Overview(a_snapshot(a_node("n1", cpu=16), group, *others), NOW)
    views = [view for view in overview.groups() if view.key == "default/x"]
    [row] = groups_table(views, NOW, namespaces=False).rows
    return row[-1]


NOT_SEEN = "#1 · PendingEvaluation: the scheduler has not looked at it yet"
SUSPENDED = Verdict(plugin="gates", reason=Waiting.SUSPENDED, detail="somebody suspended it")
TAKES = Verdict(
    plugin="preempt", reason=Waiting.WAITING_FOR_PREEMPTION, detail="2 pods of default/y stop"
)
TOOK = "preempted by default/high, which has priority 100"


@pytest.mark.parametrize(
    ("case", "conditions", "reasons", "shown"),
    [
        ("never evicted", (), (), NOT_SEEN),
        ("who took its place", (evicted("Preempted", TOOK),), (), f"{NOT_SEEN} · {TOOK}"),
        ("a reason without words", (evicted("NodeLost"),), (), f"{NOT_SEEN} · NodeLost"),
        ("it was admitted again", (evicted("Preempted", TOOK, status="False"),), (), NOT_SEEN),
        (
            "it waits for just that, and is not told twice",
            (evicted("Suspended", "its owner wanted it so"),),
            (SUSPENDED,),
            "Suspended: somebody suspended it",
        ),
    ],
)
def test_jobs_shows_why_a_group_was_evicted(
    case: str, conditions: tuple[Condition, ...], reasons: tuple[Verdict, ...], shown: str
) -> None:
    assert why(*conditions, reasons=reasons).endswith(shown), case


def a_pledge() -> tuple[Pledge, tuple[object, ...]]:
    """Return a pledge of one of two pods of a running group, and the group."""
    victim, *pods = a_running_group("y", 2)
    pledge = Pledge(
        claimant="default/x",
        action="preempt",
        victims=("default/y-w-0", "default/y-w-1"),
        holds={pod.metadata.uid: 1 for pod in pods},
        groups=(victim.metadata.uid,),
        whole=(victim.metadata.uid,),
        expires=90_000,
    )
    return pledge, (victim, *pods)


def test_jobs_shows_the_victims_of_a_preemptor() -> None:
    pledge, others = a_pledge()
    waits = "waits for 2 pods of default/y to stop (until 1970-01-01T00:01:30Z)"
    # Its capacity is kept by the pledge, not by its position.
    assert why(pledge=pledge, others=others) == f"{NOT_SEEN.removeprefix('#1 · ')} · {waits}"


def test_jobs_show_waiting_for_preemption_like_any_reason_and_do_not_repeat_it() -> None:
    pledge, others = a_pledge()
    shown = why(pledge=pledge, others=others, reasons=(TAKES,))
    assert shown == "WaitingForPreemption: 2 pods of default/y stop"


@pytest.mark.parametrize(
    ("awaits", "text"),
    [
        (
            Awaited(action="preempt", pods=1, groups=("default/a",), until=None),
            "waits for 1 pod of default/a to stop",
        ),
        (
            Awaited(action="reclaim", pods=3, groups=("default/a", "lab/b"), until=90_000),
            "waits for 3 pods of default/a, lab/b to stop (until 1970-01-01T00:01:30Z)",
        ),
        # Groups that a consumer runs have no pods of batchq.
        (
            Awaited(action="reclaim", pods=0, groups=("default/ext",), until=None),
            "waits for default/ext to stop",
        ),
    ],
)
def test_awaited_victims_are_described_in_a_sentence(awaits: Awaited, text: str) -> None:
    assert awaited_text(awaits) == text


@pytest.mark.parametrize(
    ("lost", "text"),
    [
        ({}, ""),
        ({"cpu": 7_800_000}, "cpu 2h10m"),
        ({"cpu": 500, "gpu": 45_000}, "cpu 0s, gpu 45s"),
        ({"memory": 8 * 2**30 * HOUR}, "memory 8Gi·h"),
        ({"memory": 2**30 * 90}, "memory 90Gi·s"),
        ({"cpu": 60_000, "pods": 60_000}, "cpu 1m"),
    ],
)
def test_lost_work_is_shown_in_cpu_hours(lost: dict[str, int], text: str) -> None:
    assert lost_text(lost) == text


def a_view(evictions: Evictions) -> GroupView:
    [view] = Overview(a_snapshot(with_status(a_group("x"), evictions=evictions)), NOW).groups()
    return view


def test_wide_jobs_count_evictions() -> None:
    assert evictions_text(a_view(Evictions())) == ""
    assert evictions_text(a_view(Evictions(groups=2, pods=5))) == "2 (5 pods)"
    assert evictions_text(a_view(Evictions(pods=1))) == "0 (1 pod)"
    view = a_view(Evictions(groups=2, pods=5))
    table = groups_table([view], NOW, namespaces=False)
    assert "EVICTIONS" not in table.narrowed(wide=False).titles
    wide = table.narrowed(wide=True)
    assert dict(zip(wide.titles, wide.rows[0], strict=True))["EVICTIONS"] == "2 (5 pods)"


def rewrite(stage: Stage, name: str, **status: object) -> None:
    """Give a stored group a status as the scheduler would write it."""
    key = f"default/{name}"
    item = stage.store.get("PodGroup", key)
    assert isinstance(item, PodGroup)
    write = Write(
        kind="PodGroup", key=key, expect=item.metadata.revision, value=with_status(item, **status)
    )
    done = stage.store.commit([Transaction(subject=key, writes=(write,))], request_id=f"r-{name}")
    assert not done.refused


def test_describe_says_why_it_was_sent_back_how_often_and_what_was_lost(
    batchq: Batchq, stage: Stage
) -> None:
    stage.client.submit(command=["sleep"], name="x", cpus=99)
    rewrite(
        stage,
        "x",
        conditions=(evicted("Preempted", TOOK),),
        evictions=Evictions(
            groups=2, pods=5, lost=amounts(cpu=7800, memory="16Gi"), longest_run=600_218
        ),
    )
    lines = batchq("describe", "x").lines
    [result] = [line for line in lines if line.startswith("Evicted:")]
    assert result.partition(":")[2].strip().startswith(f"Preempted: {TOOK} (")
    [cost] = [line for line in lines if line.startswith("Evictions:")]
    assert cells(cost)[1] == (
        "2 times whole, 5 pods in all; lost cpu 2h10m, memory 16Gi·s;"
        " safe from reclaim until it has run for 20m"
    )
    data = json.loads(batchq("describe", "x", "-o", "json").out)
    assert (data["evicted"]["reason"], data["evicted"]["message"]) == ("Preempted", TOOK)
    assert data["evictions"] == {
        "groups": 2,
        "pods": 5,
        "lost": {"cpu": "7800", "memory": "17179869184"},
    }
    assert data["awaits"] is None
    row = batchq("jobs", "-o", "wide").lines[1]
    assert "2 (5 pods)" in cells(row)


def test_a_victim_names_its_preemptor_and_the_preemptor_its_victims(
    batchq: Batchq, stage: Stage
) -> None:
    stage.furnish(a_priority("high", 100))
    stage.client.submit(command=["sleep"], name="low", cpus=3, replicas=2)
    stage.turn()
    stage.start("low")
    stage.client.submit(command=["sleep"], name="high", cpus=4, priority_class="high")
    stage.turn()
    [pledge] = [line for line in batchq("describe", "high").lines if line.startswith("Pledge:")]
    assert "waits for 2 pods of default/low to stop (until " in pledge
    low, high = (cells(line) for line in batchq("jobs", "-o", "wide").lines[1:])
    assert low[11:13] == ["n1", "1 (2 pods)"]
    assert low[-1].count("made room for default/high") == 1
    assert high[-1].startswith("WaitingForPreemption: ")
    stage.end("low", 143)
    stage.turn()
    assert stage.phase("high") == "InQueue"
    low = cells(batchq("jobs").lines[1])
    assert low[7].endswith(" in use) · made room for default/high of queue default, priority 100")
    lines = batchq("describe", "low").lines
    [result] = [line for line in lines if line.startswith("Evicted:")]
    assert "Preempted: made room for default/high of queue default, priority 100 (" in result


def test_describe_says_nothing_of_evictions_where_there_were_none(
    batchq: Batchq, stage: Stage
) -> None:
    stage.client.submit(command=["sleep"], name="x")
    done = batchq("describe", "x").out
    assert "Evict" not in done
    assert "Pledge" not in done


def test_describe_of_a_preemptor_says_whose_pods_are_to_stop(batchq: Batchq, stage: Stage) -> None:
    stage.client.submit(command=["sleep"], name="low", replicas=2)
    stage.turn()
    stage.start("low")
    stage.client.submit(command=["sleep"], name="high", cpus=8)
    pods = stage.pods("low")
    uid = pods[0].status.group_uid
    rewrite(
        stage,
        "high",
        pledge=Pledge(
            claimant="default/high",
            action="preempt",
            victims=tuple(f"default/{pod.metadata.name}" for pod in pods),
            holds={pod.metadata.uid: pod.status.attempt for pod in pods},
            groups=(uid,),
            whole=(uid,),
            expires=90_000,
        ),
    )
    sentence = "waits for 2 pods of default/low to stop (until 1970-01-01T00:01:30Z)"
    assert any(
        line.startswith("Pledge:") and line.endswith(sentence)
        for line in batchq("describe", "high").lines
    )
    awaits = json.loads(batchq("jobs", "-o", "json").out)["items"][1]["awaits"]
    assert awaits == {
        "action": "preempt",
        "pods": 2,
        "podGroups": ["default/low"],
        "until": "1970-01-01T00:01:30Z",
    }


def test_a_finished_group_is_shown_with_its_end_and_not_with_a_former_eviction() -> None:
    finished = Condition(type="Finished", status="True", reason="Cancelled", message="enough")
    group = with_status(
        a_group("x"),
        phase=PodGroupPhase.CANCELLED,
        conditions=(evicted("Preempted", TOOK), finished),
    )
    [view] = Overview(a_snapshot(group), NOW).groups()
    assert view.evicted is None
    assert (view.reason, view.message) == ("Cancelled", "enough")
