"""`batchq why` and `batchq events`, as text and as JSON."""

from __future__ import annotations

import json
import re
import threading
from itertools import islice

import pytest

from batchq.api.objects import SchedulingGate
from batchq.api.transaction import Event, Transaction
from batchq.cli.diagnosis import row_of, show_why
from batchq.client import Client
from tests.builders import a_group, a_queue, a_task
from tests.cli.conftest import Batchq
from tests.client.stage import Stage
from tests.client.waits import everything
from tests.harness.server import Server


@pytest.fixture
def busy(stage: Stage) -> Stage:
    """Queue a has 8 cpu: one group runs on 6 of them, one waits, one is gated."""
    stage.furnish(a_queue("a", capability={"cpu": 8}))
    client = stage.client
    client.submit(command=["sleep"], name="runs", queue="a", cpus=6, walltime="2h")
    stage.turn()
    stage.start("runs")
    client.submit(command=["true"], name="waits", queue="a", cpus=4)
    client.submit(command=["true"], name="gated", queue="a", gates=["data-ready"])
    stage.turn()
    return stage


@pytest.mark.both_doors
def test_why_shows_the_reason_its_numbers_and_a_remedy(busy: Stage, batchq: Batchq) -> None:
    answer = batchq("why", "waits")
    assert answer.code == 0
    assert answer.lines[0].startswith("default/waits is Pending in queue a, position 1, for ")
    assert answer.lines[1:4] == [
        "  1. WaitingForQuota: needs cpu 4, and queue a has 2 free (6 of 8 in use)",
        (
            "     -> wait until others of queue a end, ask for at most cpu 2, or have its"
            " capability raised"
        ),
        "  2. WaitingForResources: needs cpu 4, and the cluster has 2 free (6 of 8 in use)",
    ]
    result = {line.split(":")[0]: line for line in answer.lines if ":" in line}
    assert result["Ever"].endswith("yes, it fits when other groups have ended")
    assert result["Earliest"].endswith("when default/runs has ended")


@pytest.mark.both_doors
def test_why_says_that_a_queue_has_no_share_if_it_holds_and_deserves_nothing(
    stage: Stage, batchq: Batchq
) -> None:
    stage.furnish(a_queue("closed", stop_policy="Hold"))
    batchq("submit", "--name", "g", "--queue", "closed", "--cpus", "1", "--", "true")
    stage.turn()
    line = "Queue:  closed holds and deserves nothing"
    assert line in batchq("why", "g").lines
    found = json.loads(batchq("why", "g", "-o", "json").out)
    assert found["queueShare"]["share"] is None
    assert json.loads(batchq("queues", "show", "closed", "-o", "json").out)["share"] is None


@pytest.mark.both_doors
def test_why_of_a_node_points_to_its_description(busy: Stage, batchq: Batchq) -> None:
    refused = batchq("why", "n1")
    assert (refused.code, refused.err.splitlines()) == (
        6,
        [
            "error: PodGroup default/n1 does not exist",
            "hint: n1 is a node: `batchq describe node n1` shows its state",
        ],
    )


def test_explain_is_an_alias_of_why(busy: Stage, batchq: Batchq) -> None:
    assert batchq("explain", "gated").lines[1:3] == [
        "  1. SchedulingGated: Scheduling is blocked due to non-empty scheduling gates: data-ready",
        "     -> `batchq gates open gated data-ready`",
    ]


@pytest.mark.both_doors
def test_why_as_json(busy: Stage, batchq: Batchq) -> None:
    result = json.loads(batchq("why", "waits", "-o", "json").out)
    first = result["reasons"][0]
    assert {
        name: first[name] for name in ("reason", "resource", "need", "limit", "seen", "free")
    } == {
        "reason": "WaitingForQuota",
        "resource": "cpu",
        "need": "4",
        "limit": "8",
        "seen": "6",
        "free": "2",
    }
    assert (result["position"], result["ahead"]["count"], result["everPossible"]) == (1, 0, True)
    assert result["earliestStart"]["ends"]["named"] == ["default/runs"]
    assert [spell["reasons"] for spell in result["history"]][-1] == [
        "WaitingForQuota",
        "WaitingForResources",
    ]


@pytest.mark.both_doors
def test_why_of_what_runs_and_of_what_has_ended(busy: Stage, batchq: Batchq) -> None:
    running = batchq("why", "runs").lines[0]
    assert running.startswith("default/runs is Running for ")
    assert running.endswith(" on n1")
    busy.end("runs")
    assert re.fullmatch(
        r"default/runs is Completed, ended \S+ ago: Succeeded", batchq("why", "runs").lines[0]
    )


@pytest.mark.both_doors
def test_history_has_each_change_with_its_time(busy: Stage, batchq: Batchq) -> None:
    lines = batchq("why", "gated", "--history").lines
    history = lines[lines.index("History:") + 1 :]
    assert "SchedulingGated" in history[-1]
    assert "so far" in history[-1]


def test_history_names_the_opener_of_a_gate(busy: Stage, batchq: Batchq) -> None:
    batchq("gates", "open", "gated", "data-ready")
    busy.turn()
    lines = batchq("why", "gated", "--history").lines
    assert sum("GateOpened: gate data-ready by " in line for line in lines) == 1


def test_gated_pods_of_a_task_are_shown(busy: Stage, batchq: Batchq) -> None:
    late = a_task("b", 2, command=("true",), scheduling_gates=(SchedulingGate(name="late"),))
    tasks = (a_task("a", 1, command=("true",)), late)
    busy.client.submit(a_group("part", tasks=tasks, min_member=1))
    busy.turn()
    busy.start("part")
    assert batchq("why", "part").lines[1:3] == [
        "  1. SchedulingGated: 2 pods of task b wait for gate late",
        "     -> `batchq gates open part late --task b`",
    ]
    [row] = [line for line in batchq("jobs").lines if line.startswith("part ")]
    assert row.endswith("n1; 2 pods of task b wait for gate late")
    assert batchq("gates", "open", "part", "late", "--task", "b").code == 0
    assert "wait for gate" not in batchq("why", "part").out


@pytest.mark.both_doors
def test_why_of_an_unknown_group_is_refused(stage: Stage, batchq: Batchq) -> None:
    answer = batchq("why", "nobody")
    assert (answer.code, answer.out) == (6, "")


@pytest.mark.parametrize("name", ["huge", "turn", "claimant", "homeless", "unapproved"])
def test_every_page_can_be_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = everything().why(name)
    show_why(result, history=True)
    written = capsys.readouterr().out
    assert written.startswith(f"default/{name} is ")
    assert f"  1. {result.reasons[0].reason}: {result.reasons[0].message}" in written
    assert json.loads(json.dumps(row_of(result)))["podGroup"] == f"default/{name}"


def test_jobs_by_reason(busy: Stage, batchq: Batchq) -> None:
    assert batchq("jobs", "--reason", "waitingforquota", "-o", "name").lines == ["default/waits"]
    both = batchq(
        "jobs", "--reason", "WaitingForQuota", "--reason", "SchedulingGated", "-o", "name"
    )
    assert both.lines == ["default/waits", "default/gated"]
    wide = batchq("jobs", "--reason", "WaitingForQuota", "-o", "wide").lines
    assert "REASON" in wide[0]
    assert "STARTED" in wide[0]
    assert "WaitingForQuota" in wide[1]
    refused = batchq("jobs", "--reason", "Bored")
    assert refused.code == 2
    assert "expected one of Misconfigured, QueueNotFound," in refused.err


def test_events_of_a_namespace_are_listed_newest_last(busy: Stage, batchq: Batchq) -> None:
    rows = [line.split()[1:4] for line in batchq("events").lines[1:]]
    assert rows[0] == ["PodGroup", "default/runs", "Submitted"]
    assert sorted(rows[-2:]) == [
        ["PodGroup", "default/gated", "Waiting"],
        ["PodGroup", "default/waits", "Waiting"],
    ]
    assert {kind for kind, _, _ in rows} == {"PodGroup"}


@pytest.mark.both_doors
def test_events_of_one_group(busy: Stage, batchq: Batchq) -> None:
    result = json.loads(batchq("events", "runs", "-o", "json").out)["items"]
    assert [event["reason"] for event in result] == ["Submitted", "Admitted", "Bound", "Running"]
    assert {event["object"] for event in result} == {"default/runs"}


def test_events_of_what_is_in_no_namespace(busy: Stage, batchq: Batchq) -> None:
    everything = batchq("events", "-A").lines
    assert any(" Queue " in line for line in everything)
    queues = batchq("events", "--kind", "queue").lines
    assert all(" Queue " in line for line in queues[1:])
    assert len(queues) > 1


@pytest.mark.both_doors
def test_a_pod_is_shown_by_its_name_and_by_its_uid_in_json(busy: Stage, batchq: Batchq) -> None:
    busy.store.commit(
        [
            Transaction(
                subject="a pod",
                events=(
                    Event(kind="Pod", key="u-1-0", reason="Failed", message="default/x-m-0 Failed"),
                    Event(kind="Pod", key="u-1-1", reason="Superseded", message="by another"),
                ),
            )
        ],
        request_id="r",
    )
    lines = batchq("events", "-A", "--kind", "pod").lines
    shown = [line.split()[2] for line in lines if "Failed" in line or "Superseded" in line]
    assert shown == ["default/x-m-0", "u-1-1"]
    result = json.loads(batchq("events", "-A", "--kind", "pod", "-o", "json").out)["items"]
    assert [one["object"] for one in result][-2:] == ["u-1-0", "u-1-1"]


@pytest.mark.parametrize("more", [(), ("-w",), ("-w", "-o", "json"), ("--reason", "Bound")])
def test_events_of_an_unknown_group_are_refused(
    busy: Stage, batchq: Batchq, more: tuple[str, ...]
) -> None:
    answer = batchq("events", "nosuchgroup", *more)
    assert (answer.code, answer.out) == (6, "")
    assert "PodGroup default/nosuchgroup does not exist" in answer.err


def test_events_of_deleted_objects_are_listed_while_they_exist(busy: Stage, batchq: Batchq) -> None:
    busy.erase("waits")
    answer = batchq("events", "waits")
    assert (answer.code, answer.lines[1].split()[2:4]) == (0, ["default/waits", "Submitted"])
    assert batchq("events", "gated", "--reason", "Bound").code == 0


def test_events_of_schedulers(busy: Stage, batchq: Batchq) -> None:
    event = Event(kind="Scheduler", key="host-1", reason="ReloadFailed", message="no", at=1)
    result = Transaction(subject="host-1", events=(event,))
    assert not busy.store.commit([result], request_id="reload").refused
    for word in ("Scheduler", "scheduler"):
        items = json.loads(batchq("events", "--kind", word, "-o", "json").out)["items"]
        assert [(one["kind"], one["reason"]) for one in items] == [("Scheduler", "ReloadFailed")]
    assert batchq("events", "--kind", "Schedulers").code == 2


@pytest.mark.parametrize("command", [("why",), ("events",), ("gates", "open", "--all")])
def test_a_namespace_that_is_given_twice_must_be_the_same(
    busy: Stage, batchq: Batchq, command: tuple[str, ...]
) -> None:
    answer = batchq(*command, "small/gated", "-n", "default")
    assert (answer.code, answer.out) == (2, "")
    assert "small/gated is in namespace small, but -n names 'default'" in answer.err
    assert "leave out -n, or write `-n small`" in answer.err
    assert batchq(*command, "default/gated", "-n", "default").code == 0
    assert batchq(*command, "small/gated").code == 6


def test_events_by_reason_and_age(busy: Stage, batchq: Batchq) -> None:
    waiting = batchq("events", "--reason", "Waiting", "-o", "json").out
    assert {event["reason"] for event in json.loads(waiting)["items"]} == {"Waiting"}
    assert len(batchq("events", "--since", "1h").lines) > 1
    none = batchq("events", "-n", "elsewhere")
    assert (none.code, none.out, none.err) == (
        0,
        "",
        "there are no such events in namespace elsewhere\n",
    )


def test_a_follower_hears_past_events_and_then_new_ones(
    busy: Stage, batchq: Batchq, server: Server
) -> None:
    heard: list[str] = []
    listens = threading.Event()
    done = threading.Event()

    def follow() -> None:
        with Client(server.url) as client:
            for some in islice(client.follow_events(kind="PodGroup", reason="GateOpened"), 50):
                heard.extend(event.key for event in some)
                listens.set()
                if heard:
                    break
        done.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert listens.wait(90)
    assert heard == []
    batchq("gates", "open", "gated", "data-ready")
    assert done.wait(90)
    thread.join()
    assert heard == ["default/gated"]
