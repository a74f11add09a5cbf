"""`batchq jobs --start`: waiting groups, and their expected starts."""

from __future__ import annotations

import json
import re

import pytest
from msgspec import structs

from batchq.api.objects import QueuePreemption, Strategy
from tests.builders import a_queue
from tests.cli.conftest import Batchq
from tests.client.stage import Stage


@pytest.fixture
def busy(stage: Stage) -> Stage:
    """Of the eight cpus of queue a, six are in use for two hours, and four groups wait."""
    queue = a_queue("a", preemption=QueuePreemption(within_queue="Never", reclaim="Never"))
    filled = structs.replace(queue.spec, strategy=Strategy(type="Backfill"))
    stage.furnish(structs.replace(queue, spec=filled))
    client = stage.client
    client.submit(command=["sleep"], name="runs", queue="a", cpus=6, walltime="2h")
    stage.turn()
    stage.start("runs")
    client.submit(command=["true"], name="wide", queue="a", cpus=8, walltime="1h")
    client.submit(command=["true"], name="endless", queue="a", cpus=2)
    client.submit(command=["true"], name="gated", queue="a", gates=["data-ready"])
    client.submit(command=["true"], name="theirs", queue="a", namespace="lab", walltime="1h")
    return stage


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_waiting_groups_are_listed_by_start_with_unknown_starts_last(
    batchq: Batchq, busy: Stage
) -> None:
    before = busy.names()
    done = batchq("jobs", "--start")
    assert (done.code, done.err) == (0, "")
    head, wide, endless, gated = map(cells, done.lines)
    assert head == ["NAME", "QUEUE", "POSITION", "EXPECTED START", "IN", "WAITS FOR"]
    assert wide[:3] == ["wide", "a", "1"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", wide[3])
    assert wide[4] in ("1h59m", "2h")
    assert wide[5] == "the end of default/runs"
    assert endless[:3] == ["endless", "a", "2"]
    assert endless[4] in ("2h59m", "3h")
    assert endless[5] == "the end of default/wide"
    assert gated == [
        *("gated", "a", "-", "unknown", "-"),
        ("SchedulingGated: Scheduling is blocked due to non-empty scheduling gates: data-ready"),
    ]
    assert busy.names() == before


def test_a_group_the_next_session_admits_starts_now(batchq: Batchq, busy: Stage) -> None:
    """It fits beside the running groups, and ends before the head starts."""
    done = batchq("jobs", "--start", "-n", "lab")
    [row] = [cells(line) for line in done.lines[1:]]
    assert (row[0], row[2], row[4:]) == ("theirs", "-", ["now", "the next session"])


def test_as_json_it_has_the_fields_that_are_documented(batchq: Batchq, busy: Stage) -> None:
    result = json.loads(batchq("jobs", "--start", "-A", "-q", "a", "-o", "json").out)
    assert (result["kind"], result["notPlanned"], sorted(result)) == (
        "StartList",
        0,
        ["apiVersion", "at", "items", "kind", "notPlanned"],
    )
    names = [item["name"] for item in result["items"]]
    assert names == ["theirs", "wide", "endless", "gated"]
    wide, gated = result["items"][1], result["items"][3]
    assert (wide["namespace"], wide["queue"], wide["position"]) == ("default", "a", 1)
    start = wide["expectedStart"]
    assert sorted(start) == ["at", "behind", "ends", "inSeconds", "why"]
    assert 7100 < start["inSeconds"] <= 7200
    assert start["ends"]["named"] == ["default/runs"]
    assert (gated["position"], gated["expectedStart"]["at"]) == (None, None)
    assert gated["expectedStart"]["why"].startswith("SchedulingGated: ")


def test_names_come_in_the_same_order(batchq: Batchq, busy: Stage) -> None:
    assert batchq("jobs", "--start", "-A", "-o", "name").lines == [
        "lab/theirs",
        "default/wide",
        "default/endless",
        "default/gated",
    ]


def test_an_empty_list_of_starts_prints_a_message(batchq: Batchq, stage: Stage) -> None:
    done = batchq("jobs", "--start", "-n", "empty")
    assert (done.code, done.out, done.err) == (0, "", "no pod groups wait in namespace empty\n")


def test_a_missing_queue_is_reported(batchq: Batchq, stage: Stage) -> None:
    assert batchq("jobs", "--start", "-q", "nowhere").code == 6


@pytest.mark.parametrize(
    "option", [("--phase", "Pending"), ("--reason", "Suspended"), ("--all",), ("--active",)]
)
def test_options_that_select_other_groups_are_refused_beside_start(
    batchq: Batchq, stage: Stage, option: tuple[str, ...]
) -> None:
    done = batchq("jobs", "--start", *option)
    assert (done.code, done.out) == (2, "")
    assert f"it cannot be combined with {option[0]}" in done.err


def test_a_missing_leader_is_noted(batchq: Batchq, busy: Stage) -> None:
    busy.store.resign("stage")
    done = batchq("jobs", "--start")
    assert "scheduler" in done.err
    assert done.code == 0
