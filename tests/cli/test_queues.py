"""`batchq queues`: the tree, the page of one queue, apply, stop and resume."""

from __future__ import annotations

import json

import pytest
import yaml

from batchq.api.notation import data_of
from batchq.cli.output import fitted
from batchq.cli.output.tables import queues_table
from batchq.cli.queues import bar, queue_row, show_queue_page
from batchq.client.overview import Overview
from tests.builders import (
    a_group,
    a_node,
    a_priority,
    a_queue,
    a_running_group,
    a_snapshot,
    amounts,
)
from tests.cli.conftest import Batchq
from tests.cli.test_jobs import cells, on_a_terminal
from tests.client.stage import Stage
from tests.harness.server import Server

NOW = 300_000


@pytest.fixture
def overview() -> Overview:
    """An organisation with two teams, one of them stopped; `ml` lends, `batch` borrows."""
    return Overview(
        a_snapshot(
            a_node("n1", cpu=16, memory="64Gi", gpu=4),
            a_queue("org", deserved=amounts(cpu=8, memory="16Gi"), capability={"cpu": 12}),
            a_queue("team-a", parent="org", weight=3, guarantee=amounts(cpu=2)),
            a_queue("team-b", parent="org", stop_policy="Hold"),
            a_queue("ml", deserved=amounts(cpu=6, gpu=4)),
            a_queue("batch", weight=2),
            *(a_queue(), a_priority("high", 100)),
            *a_running_group("big", 4, cpu=2, queue="team-a"),
            *a_running_group("sweep", 5, queue="batch", min_member=1),
            a_group("urgent", 4, cpu=2, queue="ml", priority_class_name="high"),
            a_group("later", cpu=3, queue="team-a"),
            a_group("held", queue="team-b"),
        ),
        NOW,
    )


def test_a_pipe_gets_a_row_for_each_queue_indented_below_its_parent(overview: Overview) -> None:
    table = queues_table(overview.queues()).narrowed(wide=False)
    assert [table.titles, *table.rows] == [
        ("NAME", "WEIGHT", "USED/DESERVED", "RESERVED", "BORROWED", "SHARE", "PENDING"),
        ("batch", "2", "cpu 5/2", "", "cpu 3", "2.50", "0"),
        ("default", "1", "", "", "", "", "0"),
        ("ml", "1", "cpu 0/6, gpu 0/4", "", "", "0.00", "1"),
        ("org", "1", "cpu 8/8, memory 0/16Gi", "", "", "1.00", "2"),
        ("  team-a", "3", "cpu 8/8", "", "", "1.00", "1"),
        ("  team-b", "1", "", "", "", "", "1 (Hold)"),
    ]


def test_a_terminal_of_80_columns_has_a_line_for_each_resource(overview: Overview) -> None:
    table = queues_table(overview.queues(), stacked=True, lines=True).narrowed(wide=False)
    lines = fitted(table, 80)
    assert lines == [
        "NAME       WEIGHT  USED/DESERVED  RESERVED  BORROWED  SHARE  PENDING",
        "batch      2       cpu 5/2        -         3         2.50   0",
        "default    1       -              -         -         -      0",
        "ml         1       cpu 0/6        -         -         0.00   1",
        "                   gpu 0/4        -         -",
        "org        1       cpu 8/8        -         -         1.00   2",
        "│                  memory 0/16Gi  -         -",
        "├─ team-a  3       cpu 8/8        -         -         1.00   1",
        "└─ team-b  1       -              -         -         -      1 (Hold)",
    ]


def test_tree_lines_continue_only_past_queues_with_later_siblings() -> None:
    names = [a_queue("a"), a_queue("b", parent="a"), a_queue("c", parent="b")]
    names += [a_queue("d", parent="a"), a_queue("e", parent="d"), a_queue("z")]
    views = Overview(a_snapshot(*names), NOW).queues()
    assert [row[0] for row in queues_table(views, lines=True).rows] == [
        *("a", "├─ b", "│  └─ c", "└─ d", "   └─ e", "default", "z"),
    ]


def test_a_stop_of_a_queue_above_is_named() -> None:
    queues = (a_queue("a", parent="org"), a_queue("org", stop_policy="HoldAndDrain"))
    views = Overview(a_snapshot(*queues), NOW).queues()
    assert [row[6] for row in queues_table(views).rows] == [
        *("0", "0 (HoldAndDrain)", "0 (HoldAndDrain of org)"),
    ]


@pytest.mark.both_doors
def test_wide_has_limits_and_strategy_too(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(a_queue("a", capability={"cpu": 4}, strict=True, stop_policy="Hold"))
    stage.client.submit(command=["true"], name="waits", queue="a", cpus=2)
    stage.turn()
    done = batchq("queues", "-o", "wide")
    assert cells(done.lines[0])[7:] == [
        *("GUARANTEE", "CAPABILITY", "ADMITTED", "RUNNING", "PENDING REQUEST", "STRATEGY", "STOP"),
        "NAMESPACES",
    ]
    assert cells(done.lines[1])[7:] == ["-", "cpu 4", "0", "0", "cpu 2", "StrictFIFO", "Hold", "-"]


def test_json_is_a_flat_list_with_parents_children_and_canonical_amounts(
    overview: Overview,
) -> None:
    views = overview.queues()
    rows = {view.name: data_of(queue_row(view)) for view in views}
    assert (rows["org"]["parent"], rows["org"]["children"]) == ("root", ["team-a", "team-b"])
    assert rows["team-a"]["parent"] == "org"
    batch = rows["batch"]
    assert batch["used"] == {"cpu": "5", "pods": "5"}
    assert (batch["reserved"], batch["borrowed"]) == ({}, {"cpu": "3"})
    assert batch["share"] == 2.5
    # An idle queue does not look like one that holds just what it deserves.
    assert (rows["ml"]["share"], rows["team-b"]["share"]) == (0.0, None)
    assert rows["team-b"]["stops"] == [{"queue": "team-b", "stopPolicy": "Hold"}]
    assert isinstance(rows["org"]["deserved"], dict)
    assert rows["org"]["deserved"]["memory"] == "17179869184"


def test_the_list_keeps_its_formats(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(a_queue("a"))
    assert batchq("queues", "-o", "name").lines == ["a", "default"]
    data = json.loads(batchq("queues", "-o", "json").out)
    assert (data["kind"], [item["name"] for item in data["items"]]) == (
        "QueueList",
        ["a", "default"],
    )
    assert data["items"][0]["queue"]["metadata"]["name"] == "a"
    assert yaml.safe_load(batchq("queues", "list", "-o", "yaml").out) == data
    assert batchq("queues", "list").out == batchq("queues").out


def test_a_terminal_that_has_only_ascii_gets_no_lines(
    stage: Stage, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.furnish(a_queue("a"))
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    shown = on_a_terminal(server, "queues", columns=80)
    assert [line.split()[0] for line in shown] == ["NAME", "a", "default"]
    assert all(line.isascii() for line in shown)


def shown_page(overview: Overview, name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    page = overview.queue_page(name)
    assert page is not None
    show_queue_page(page, NOW)
    return capsys.readouterr().out.splitlines()


def section(lines: list[str], title: str) -> list[list[str]]:
    """Return the rows of a titled block."""
    first = lines.index(f"{title}:") + 1
    rest = [*lines[first:], ""]
    return [cells(line) for line in rest[: rest.index("")]]


def test_the_page_of_a_borrowing_queue_names_lenders_and_first_victims(
    overview: Overview, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown_page(overview, "batch", capsys)
    assert "Weight:      2" in lines
    assert "Share:       2.50" in lines
    assert section(lines, "Resources")[1] == [
        *("cpu", "5", "-", "2", "weight 2 of 3", "3", "-", "unlimited", "[####|########]"),
    ]
    assert section(lines, "Loans") == [["borrows", "ml deserves cpu 6 more than it holds"]]
    assert section(lines, "First victims, if a group may evict them") == [
        [
            *("1.", "default/sweep", "batch", "priority 0", "cpu 4"),
            *("4 pods beyond its minimum", "started 5m ago"),
        ],
        ["2.", "default/sweep", "batch", "priority 0", "cpu 5", "whole", "started 5m ago"],
    ]


def test_the_page_of_a_lending_queue_names_borrowers_and_waiting_groups(
    overview: Overview, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown_page(overview, "ml", capsys)
    assert section(lines, "Loans") == [["lends", "batch holds cpu 3 above what it deserves"]]
    [first] = section(lines, "In line")
    assert first[:4] == ["1.", "default/urgent", "ml", "cpu 2 ×4"]
    assert first[4].startswith("PendingEvaluation: ")


def test_the_page_of_an_inner_queue_has_what_is_below_it(
    overview: Overview, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown_page(overview, "org", capsys)
    assert "Children:    team-a, team-b" in lines
    # Preemption policies are shown for queues with groups.
    assert not any(line.startswith(("Preempts:", "Strategy:")) for line in lines)
    assert any(line.startswith("Gives back:") for line in lines)
    assert section(lines, "Resources")[1][:5] == ["cpu", "8", "-", "8", "stated"]
    assert [row[1:3] for row in section(lines, "In line")] == [["default/later", "team-a"]]
    assert [row[1:3] for row in section(lines, "Not in line")] == [["default/held", "team-b"]]


def test_the_page_says_its_policies_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    from batchq.api.objects import QueuePreemption

    policy = QueuePreemption(within_queue="Never", reclaim="LowerPriority", borrowing=50)
    queue = a_queue("q", preemption=policy, reclaimable=False, max_pod_groups=3)
    lines = shown_page(Overview(a_snapshot(queue), NOW), "q", capsys)
    assert "Most groups:  3" in lines
    assert "Preempts:     no group evicts another in this queue" in lines
    assert "Reclaims:     reclaims what it deserves, from groups of lower priority only" in lines
    assert any(line.endswith(" at most 50, even to hold more than it deserves") for line in lines)
    assert "Gives back:   nothing: other queues never reclaim what it holds" in lines


def test_the_page_names_five_waiting_groups_and_counts_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    groups = [a_group(f"g{number}", created=number) for number in range(8)]
    lines = shown_page(Overview(a_snapshot(a_node("n1", cpu=16), *groups), NOW), "default", capsys)
    rows = section(lines, "In line")
    assert [row[1] for row in rows[:5]] == [f"default/g{number}" for number in range(5)]
    assert rows[5][1] == "and 3 more"


@pytest.mark.parametrize(
    ("used", "charged", "deserved", "shown"),
    [
        (0, 0, 0, ""),
        (0, 0, 12, "[............]"),
        (6, 6, 12, "[######......]"),
        (6, 9, 12, "[######+++...]"),
        (24, 24, 12, "[######|######]"),
        (1, 1, 1000, "[#...........]"),
        (5, 5, 0, "[|############]"),
    ],
)
def test_a_bar_shows_used_reserved_and_where_what_is_deserved_ends(
    used: int, charged: int, deserved: int, shown: str
) -> None:
    assert bar(used, charged, deserved) == shown


@pytest.mark.both_doors
def test_show_and_describe_are_one_page_and_json_has_the_same(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(a_queue("a", capability={"cpu": 4}))
    stage.client.submit(command=["sleep"], name="runs", queue="a", cpus=3)
    stage.client.submit(command=["true"], name="waits", queue="a", cpus=2)
    stage.turn()
    stage.start("runs")
    shown = batchq("queues", "show", "a")
    assert (shown.code, shown.err) == (0, "")
    rows = section(shown.lines, "In line")
    [waits] = rows
    assert waits[:4] == ["1.", "default/waits", "a", "cpu 2"]
    assert waits[4] == "WaitingForQuota: needs cpu 2, and queue a has 1 free (3 of 4 in use)"
    head = shown.lines[: shown.lines.index("")]
    assert batchq("describe", "queue", "a").lines[: len(head)] == head
    assert batchq("queues", "show", "queue/a").lines[: len(head)] == head
    data = json.loads(batchq("queues", "show", "a", "-o", "json").out)
    assert (data["name"], data["used"]["cpu"]) == ("a", "3")
    assert data["deservedBy"] == {"cpu": "weight"}
    assert [one["name"] for one in data["line"]] == ["waits"]
    assert [(one["podGroup"], one["whole"]) for one in data["firstToGo"]] == [
        ("default/runs", True)
    ]
    assert "Past usage: 0.0 % of its share (half-life 7d)" in [
        " ".join(one.split()) for one in head
    ]
    assert data["usage"] == {"share": 0.0, "halfLifeMs": 604_800_000, "decidesOrder": False}


@pytest.mark.both_doors
def test_a_queue_that_is_not_there_is_answered_with_the_nearest(
    batchq: Batchq, stage: Stage
) -> None:
    stage.furnish(a_queue("interactive"))
    for words in (["show"], ["stop"], ["resume"]):
        done = batchq("queues", *words, "interactve")
        assert (done.code, done.out) == (6, "")
        assert done.err.splitlines() == [
            "error: Queue interactve does not exist",
            "hint: did you mean interactive?",
        ]


ONE = "{apiVersion: batchq/v1, kind: Queue, metadata: {name: a}, spec: {weight: 2}}\n"
CLASS = "{apiVersion: batchq/v1, kind: PriorityClass, metadata: {name: high}, spec: {value: 9}}\n"


def test_queues_of_a_file_are_applied_as_by_apply(batchq: Batchq, stage: Stage) -> None:
    dry = batchq("queues", "apply", "-f", "-", "--dry-run", stdin=ONE)
    assert dry.lines == ["queue a created (dry run)"]
    assert batchq("queues", "-o", "name").lines == ["default"]
    assert batchq("queues", "apply", "-f", "-", stdin=ONE).lines == ["queue a created"]
    assert batchq("queues", "apply", "-f", "-", stdin=ONE).lines == ["queue a unchanged"]
    data = batchq("queues", "apply", "-f", "-", "-o", "json", stdin=ONE).out
    assert json.loads(data)["items"][0]["spec"] == {"weight": 2}


def test_objects_other_than_queues_are_refused_and_nothing_is_applied(
    batchq: Batchq, stage: Stage
) -> None:
    done = batchq("queues", "apply", "-f", "-", stdin=f"{ONE}---\n{CLASS}")
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines() == [
        "error: -: expected queues and nothing else, found priorityclass high",
        "hint: `batchq apply` takes every kind",
    ]
    assert batchq("queues", "-o", "name").lines == ["default"]


@pytest.mark.both_doors
def test_a_stopped_queue_admits_nothing_until_it_is_resumed(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(a_queue("a"))
    assert batchq("queues", "stop", "a", "default").lines == [
        "queue a stopped",
        "queue default stopped",
    ]
    before = stage.names()
    assert batchq("queues", "stop", "a").lines == ["queue a is stopped already"]
    assert stage.names() == before
    stage.client.submit(command=["true"], name="x", queue="a")
    stage.turn()
    assert stage.phase("x") == "Pending"
    assert "Stopped:     Hold: nothing new is admitted" in batchq("queues", "show", "a").lines
    assert batchq("queues", "resume", "a").lines == ["queue a resumed"]
    assert batchq("queues", "resume", "a").lines == ["queue a is not stopped"]
    stage.turn()
    assert stage.phase("x") == "InQueue"


def test_resuming_a_queue_below_a_stopped_one_gets_a_note(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(a_queue("org"), a_queue("a", parent="org"))
    batchq("queues", "stop", "org", "a")
    done = batchq("queues", "resume", "a")
    assert (done.code, done.lines) == (0, ["queue a resumed"])
    assert done.err == ("queue org, above a, is still stopped (Hold): `batchq queues resume org`\n")
    assert [cells(line)[-1] for line in batchq("queues").lines[2:]] == [
        "0 (Hold)",
        "0 (Hold of org)",
    ]
    shown = batchq("queues", "show", "a").lines
    assert "Stopped:     Hold: nothing new is admitted (queue org)" in shown
    assert batchq("queues", "resume", "org").err == ""


def test_draining_evicts_running_groups(batchq: Batchq, stage: Stage) -> None:
    stage.client.submit(command=["sleep"], name="x")
    stage.turn()
    stage.start("x")
    assert batchq("queues", "stop", "default").lines == ["queue default stopped"]
    stage.turn()
    assert stage.phase("x") == "Running"
    assert batchq("queues", "stop", "default", "--drain").lines == ["queue default draining"]
    assert batchq("queues", "stop", "default", "--drain").lines == [
        "queue default is draining already"
    ]
    stage.turn()
    assert stage.phase("x") == "Pending"
    events = [event.reason for event in stage.client.events(kind="Queue", key="default")]
    assert events[-2:] == ["Stopped", "Draining"]


def test_actions_on_queues_are_reported_in_json_too(batchq: Batchq, stage: Stage) -> None:
    done = batchq("queues", "stop", "default", "-o", "json")
    assert json.loads(done.out) == {
        "items": [{"kind": "Queue", "name": "default", "action": "stopped"}]
    }


def test_no_queue_is_stopped_if_one_of_those_named_is_missing(batchq: Batchq, stage: Stage) -> None:
    assert batchq("queues", "stop", "default", "nobody").code == 6
    assert batchq("queues", "resume", "default").lines == ["queue default is not stopped"]


def test_a_queue_that_the_overview_does_not_know_yet_is_shown_as_its_record(
    batchq: Batchq, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.furnish(a_queue("a"))
    monkeypatch.setattr(Overview, "queue_page", lambda *_: None)
    shown = batchq("describe", "queue", "a")
    assert (shown.code, shown.lines[0].split()) == (0, ["Queue:", "a"])
