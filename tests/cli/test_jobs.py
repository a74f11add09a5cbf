"""`batchq jobs`, `describe` and `queues`: groups and queues in words and numbers."""

from __future__ import annotations

import json
import os
import sys

import pytest
import yaml
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.notation import format_instant
from batchq.api.objects import PodGroup, QueuePreemption
from batchq.api.transaction import Transaction, Write
from batchq.api.views import GATED
from batchq.cli.jobs import PHASES
from tests.builders import a_priority, a_queue, a_quota
from tests.cli.conftest import Batchq
from tests.client.stage import Stage
from tests.harness import fork_server
from tests.harness.server import Server


@pytest.fixture
def busy(stage: Stage) -> Stage:
    """Queue a has 8 cpu: one group runs on 6 of them, two wait, one is gated.

    There are no evictions; a higher priority only moves a group ahead in line.
    """
    never = QueuePreemption(within_queue="Never")
    stage.furnish(a_queue("a", capability={"cpu": 8}, preemption=never), a_priority("high", 100))
    client = stage.client
    client.submit(command=["sleep"], name="runs", queue="a", cpus=3, replicas=2)
    stage.turn()
    stage.start("runs")
    client.submit(command=["true"], name="waits", queue="a", cpus=2, replicas=2)
    client.submit(command=["true"], name="jumps", queue="a", cpus=4, priority_class="high")
    client.submit(command=["true"], name="gated", queue="a", gates=["data-ready"])
    stage.turn()
    return stage


def on_a_terminal(server: Server, *words: str, columns: int, color: bool = False) -> list[str]:
    """Return the lines that a terminal of this width shows, stderr included."""
    ours, theirs = os.openpty()
    before = [] if color else ["--no-color"]
    process = fork_server.Process(
        [sys.executable, "-m", "batchq.cli", *before, *words],
        env={
            **os.environ,
            "BATCHQ_REDIS_URL": server.url,
            "COLUMNS": str(columns),
            "TERM": "xterm",
        },
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:
        pass  # Linux reports a closed terminal as an error
    os.close(ours)
    assert process.wait(90) == 0
    return shown.decode().splitlines()


def cells(line: str) -> list[str]:
    """Return the columns of a plain row, which are separated by two spaces or more."""
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


@pytest.mark.both_doors
def test_jobs_lists_phase_position_and_reason(batchq: Batchq, busy: Stage) -> None:
    done = batchq("jobs")
    assert (done.code, done.err) == (0, "")
    head, runs, waits, jumps, gated = done.lines
    assert cells(head) == [
        *("NAME", "QUEUE", "PRI", "PHASE", "PODS", "REQUEST", "AGE", "WHERE / WHY"),
    ]
    assert cells(runs)[:6] == ["runs", "a", "0", "Running", "2/2", "cpu 3 ×2"]
    assert cells(runs)[7] == "n1"
    assert cells(waits)[:6] == ["waits", "a", "0", "Pending", "0/2", "cpu 2 ×2"]
    assert cells(waits)[7] == (
        "#2 · WaitingForQuota: needs cpu 4, and queue a has 2 free (6 of 8 in use) (+1 more)"
    )
    assert cells(jumps)[7].startswith("#1 · WaitingForQuota: needs cpu 4")
    assert cells(gated)[3] == "SchedulingGated"
    assert cells(gated)[7].startswith("SchedulingGated: Scheduling is blocked")


def test_a_pipe_gets_whole_rows_without_boxes_or_colours(
    batchq: Batchq, busy: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    long = "x" * 63
    busy.client.submit(command=["true"], name=long)
    done = batchq("jobs")
    assert long in done.out
    assert not set(done.out) & set("│─┃━\x1b…")
    columns = {line.index("a  ") for line in done.lines[1:4]}
    assert len(columns) == 1


def test_a_terminal_gets_whole_names(busy: Stage, server: Server) -> None:
    text = "\n".join(on_a_terminal(server, "jobs", columns=120))
    assert "WaitingForQuota" in text
    assert "│" not in text


def test_a_terminal_has_colours_unless_they_are_not_wanted(
    busy: Stage, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\x1b[36mRunning" in "\n".join(on_a_terminal(server, "jobs", columns=120, color=True))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in "\n".join(on_a_terminal(server, "jobs", columns=120, color=True))


@pytest.mark.both_doors
def test_the_answer_in_json_has_numbers_and_names(batchq: Batchq, busy: Stage) -> None:
    done = batchq("jobs", "-o", "json")
    [runs, waits, *_] = json.loads(done.out)["items"]
    assert (runs["name"], runs["phase"], runs["nodes"]) == ("runs", "Running", ["n1"])
    assert waits["position"] == 2
    assert waits["reasons"][0]["reason"] == "WaitingForQuota"
    assert waits["request"] == {"cpu": "4", "pods": "2"}
    assert waits["pods"]["least"] == 2
    assert yaml.safe_load(batchq("jobs", "-o", "yaml").out) == json.loads(done.out)


@pytest.mark.both_doors
def test_jobs_can_be_chosen(batchq: Batchq, busy: Stage) -> None:
    busy.client.submit(command=["true"], name="elsewhere", namespace="research")
    names = batchq("jobs", "-o", "name").lines
    assert names == ["default/runs", "default/waits", "default/jumps", "default/gated"]
    assert batchq("jobs", "-o", "name", "--phase", "pending").lines == [
        "default/waits",
        "default/jumps",
        # A Pending group with gates is shown as gated.
        "default/gated",
    ]
    assert batchq("jobs", "-o", "name", "--phase", "SchedulingGated").lines == ["default/gated"]
    assert batchq("jobs", "-A", "-q", "default", "-o", "name").lines == ["research/elsewhere"]
    assert batchq("jobs", "-n", "empty").err == "there are no such pod groups in namespace empty\n"


@pytest.mark.both_doors
def test_names_can_be_piped_into_other_commands(batchq: Batchq, busy: Stage) -> None:
    names = batchq("jobs", "-o", "name", "--phase", "Pending").lines
    done = batchq("cancel", *names, "--reason", "clean-up")
    assert done.lines == [f"podgroup {name} cancelled" for name in names]
    assert cells(batchq("jobs").lines[2])[7] == "clean-up"


@pytest.mark.both_doors
def test_describe_has_all_reasons_and_the_groups_ahead(batchq: Batchq, busy: Stage) -> None:
    done = batchq("describe", "waits")
    assert done.code == 0
    assert "Phase:       Pending, position 2 in queue a" in done.lines
    place = done.lines.index("Why it waits:")
    assert [cells(line) for line in done.lines[place + 1 : place + 6]] == [
        ["1. WaitingForQuota", "needs cpu 4, and queue a has 2 free (6 of 8 in use)"],
        [
            "What to do",
            (
                "wait until others of queue a end, ask for at most cpu 2 in all, or have its"
                " capability raised"
            ),
        ],
        ["2. WaitingForResources", "needs cpu 4, and the cluster has 2 free (6 of 8 in use)"],
        [
            "What to do",
            "wait until others end, ask for at most cpu 2 in all, or have nodes added",
        ],
        ["Ahead in line", "default/jumps"],
    ]
    submitted = ["Submitted", f"to queue a by {busy.client.user}"]
    assert any(cells(line)[1:] == submitted for line in done.lines[-4:])


def test_describe_says_that_a_stored_reason_no_longer_applies(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(a_quota("research", cpu=1))
    batchq("submit", "-n", "research", "--name", "x", "--cpus", "2", "--", "true")
    stage.turn()
    place = batchq("describe", "research/x").lines.index("Why it waits:")
    stage.furnish(a_quota("research", cpu=2))
    done = batchq("describe", "research/x")
    assert cells(done.lines[place + 1]) == ["Next", "the next session admits it"]
    assert json.loads(batchq("describe", "research/x", "-o", "json").out)["verdicts"] == []


def test_a_second_tenant_waits_without_pods_and_says_why(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(a_quota("research", cpu=4))
    for name in ("first", "second"):
        batchq("submit", "-n", "research", "--name", name, "--cpus", "2", "-N", "2", "--", "true")
    stage.turn()
    done = batchq("describe", "research/second")
    assert "Pods:        2 wanted, runs with 2" in done.lines
    assert (
        "  1. WaitingForQuota  needs cpu 4, and the quota of namespace research has 0 free"
        " (4 of 4 in use)"
    ) in done.lines
    assert [pod.spec.pod_group for pod in stage.pods("second")] == []


@pytest.mark.both_doors
def test_describe_in_json_has_the_verdicts(batchq: Batchq, busy: Stage) -> None:
    data = json.loads(batchq("describe", "waits", "-o", "json").out)
    assert data["ahead"] == ["default/jumps"]
    first = data["verdicts"][0]
    assert (first["need"], first["limit"], first["seen"]) == (4000, 8000, 6000)
    assert data["object"]["kind"] == "PodGroup"


@pytest.mark.both_doors
def test_describe_shows_other_kinds(batchq: Batchq, busy: Stage) -> None:
    queue = batchq("describe", "queue", "a").lines
    assert "Admitted:    1 group, 1 running" in queue
    assert "Pending:     3 groups, cpu 9" in queue
    place = queue.index("Resources:")
    assert cells(queue[place + 2])[:4] == ["cpu", "6", "-", "8"]
    assert cells(queue[place + 2])[7] == "8"
    place = queue.index("In line:")
    assert [cells(line)[:2] for line in queue[place + 1 : place + 3]] == [
        ["1.", "default/jumps"],
        ["2.", "default/waits"],
    ]
    assert cells(queue[queue.index("Not in line:") + 1])[1] == "default/gated"
    batchq("nodes", "cordon", "n1")
    node = batchq("describe", "node", "n1").lines
    assert node[:2] == ["Node:      n1", "State:     Ready"]
    assert node[2].startswith("Cordoned:  yes, by ")
    assert node[3].startswith("Heard:     ")
    place = node.index("Resources:")
    assert [cells(line) for line in node[place + 1 : place + 5]] == [
        ["NAME", "HAS", "USED", "FREE"],
        ["cpu", "8", "6", "2"],
        ["memory", "16Gi", "0", "16Gi"],
        ["pods", "unlimited", "2", "-"],
    ]
    assert any("runs-main-0" in line for line in node)
    assert "apiVersion" not in "".join(node)


def test_a_queue_that_holds_nothing_has_no_share(batchq: Batchq, stage: Stage) -> None:
    assert cells(batchq("queues").lines[1])[-2] == "-"
    assert "Share:       -" in batchq("describe", "queue", "default").lines


def test_describe_says_what_ends_a_wait_that_only_a_person_can_end(
    batchq: Batchq, stage: Stage
) -> None:
    batchq("submit", "--name", "x", "--gate", "data", "--gate", "money", "--suspend", "--", "true")
    batchq("submit", "-n", "lab", "--name", "y", "--suspend", "--", "true")
    stage.turn()
    lines = [cells(line) for line in batchq("describe", "x").lines]
    result = [line[1] for line in lines if line[:1] == ["What to do"]]
    assert result == ["`batchq resume x`", "`batchq gates open x data money`"]
    assert "  What to do    `batchq resume lab/y`" in batchq("describe", "lab/y").lines
    verdicts = json.loads(batchq("describe", "lab/y", "-o", "json").out)["verdicts"]
    assert [one["reason"] for one in verdicts] == ["Suspended"]


def test_describe_of_an_array_says_with_how_many_it_runs(batchq: Batchq, stage: Stage) -> None:
    batchq("submit", "--name", "x", "-N", "3", "--min-member", "2", "--", "true")
    stage.turn()
    stage.start("x")
    lines = batchq("describe", "x").lines
    assert "Pods:        3 wanted, at least 2, 3 running" in lines
    assert cells(lines[lines.index("Tasks:") + 2]) == ["main", "3", "-", "cpu 1", "true"]
    stage.end("x")
    ended = batchq("describe", "x").lines
    assert "Phase:       Completed" in ended
    assert "Pods:        3 wanted, 3 succeeded" in ended
    assert not any(line.startswith("Ended:") for line in ended)


def test_a_group_with_too_few_pods_says_why(batchq: Batchq, stage: Stage) -> None:
    batchq("submit", "--name", "x", "-N", "2", "--retries", "3", "--", "true")
    stage.turn()
    stage.start("x")
    stage.end("x", 1, most=1)
    row = cells(batchq("jobs").lines[1])
    assert row[3] == "Unknown"
    assert row[7].startswith(
        "n1; 1 of the 2 that it needs; pod x-main-0 exited with 1; retry 1 of 3 starts in "
    )


@pytest.mark.both_doors
def test_jobs_can_leave_out_what_has_finished(batchq: Batchq, busy: Stage) -> None:
    batchq("cancel", "waits")
    assert batchq("jobs", "--active", "-o", "name").lines == [
        "default/runs",
        "default/jumps",
        "default/gated",
    ]
    assert batchq("jobs", "-a", "-n", "empty").code == 0


def test_a_terminal_shows_only_the_last_of_many_finished_groups(
    batchq: Batchq, stage: Stage, server: Server
) -> None:
    for number in range(23):
        batchq("submit", "--name", f"old-{number}", "--", "true")
        batchq("cancel", f"old-{number}")
    batchq("submit", "--name", "new", "--", "true")
    shown = on_a_terminal(server, "jobs", columns=160)
    assert [line.split()[0] for line in shown[1:-1]] == [f"old-{n}" for n in range(3, 23)] + ["new"]
    assert shown[-1] == "… and 3 older finished groups (--all)"
    assert len(on_a_terminal(server, "jobs", "--all", columns=160)) == 1 + 24
    # Programs read a pipe.
    assert len(batchq("jobs").lines) == 1 + 24


@pytest.mark.parametrize(
    ("columns", "titles"),
    [
        (120, ["NAME", "QUEUE", "PRI", "PHASE", "PODS", "REQUEST", "AGE", "WHERE / WHY"]),
        (80, ["NAME", "QUEUE", "PRI", "PHASE", "PODS", "REQUEST", "WHERE / WHY"]),
        (60, ["NAME", "QUEUE", "PHASE", "PODS", "WHERE / WHY"]),
        (40, ["NAME", "QUEUE", "PHASE", "PODS", "WHERE / WHY"]),
    ],
)
def test_a_narrow_terminal_shows_whole_names_and_why(
    busy: Stage, server: Server, columns: int, titles: list[str]
) -> None:
    lines = on_a_terminal(server, "jobs", columns=columns)
    assert cells(lines[0]) == titles
    for name, phase in (("runs", "Running"), ("waits", "Pending"), ("gated", "SchedulingGated")):
        assert any(line.startswith(f"{name} ") and phase in line for line in lines)
    text = " ".join(" ".join(lines).split())
    assert "(6 of 8 in use)" in text
    assert "…" not in text
    if columns > 40:
        assert max(map(len, lines)) <= columns
    else:
        # Too narrow for prose: whole lines, which the terminal wraps.
        assert len(lines) == 5


def test_queues_shows_what_is_held_and_what_waits(batchq: Batchq, busy: Stage) -> None:
    done = batchq("queues")
    a = cells(done.lines[1])
    assert a == ["a", "1", "cpu 6/8", "-", "-", "0.75", "3"]
    assert json.loads(batchq("queues", "-o", "json").out)["items"][0]["used"]["cpu"] == "6"


def test_control_characters_cannot_forge_rows(batchq: Batchq, stage: Stage) -> None:
    stage.client.submit(command=["true"], name="x")
    stage.client.cancel("x", reason="a\nfake  row\x1b[2J")
    done = batchq("jobs")
    assert len(done.lines) == 2
    assert "\x1b" not in done.out


def test_every_phase_is_an_option() -> None:
    assert (*map(str, PodGroupPhase), GATED) == PHASES


def test_a_wide_list_names_the_user_who_submitted_each_group(batchq: Batchq, stage: Stage) -> None:
    batchq("submit", "--name", "x", "--", "true")
    titles, row = (cells(line) for line in batchq("jobs", "-o", "wide").lines)
    assert row[titles.index("OWNER")] == stage.client.user
    assert "OWNER" not in batchq("jobs").lines[0]


@pytest.fixture
def of_two(stage: Stage) -> Stage:
    """Groups of this user, and of bob on two machines and over the API."""
    submissions = {"mine": "", "laptop": "bob@laptop", "server": "bob@server", "api": "bob"}
    for name in submissions:
        stage.client.submit(["true"], name=name)
    for name, owner in submissions.items():
        group = stage.client.get("PodGroup", name)
        assert isinstance(group, PodGroup)
        status = structs.replace(group.status, submitted_by=owner or group.status.submitted_by)
        write = Write(
            kind="PodGroup",
            key=f"default/{name}",
            expect=group.metadata.revision,
            value=structs.replace(group, status=status),
        )
        stage.store.commit([Transaction(subject=name, writes=(write,))], request_id=name)
    return stage


@pytest.mark.both_doors
@pytest.mark.parametrize("form", ["table", "name", "json"])
@pytest.mark.parametrize(
    ("owner", "shown"),
    [
        ("bob", ["api", "laptop", "server"]),
        ("bob@laptop", ["laptop"]),
        ("bo", []),
        ("carol", []),
    ],
)
def test_groups_of_one_owner_are_listed(
    batchq: Batchq, of_two: Stage, owner: str, shown: list[str], form: str
) -> None:
    assert sorted(named(batchq("jobs", "--owner", owner, "-o", form).out, form)) == shown


@pytest.mark.both_doors
def test_groups_of_this_user_are_listed(batchq: Batchq, of_two: Stage) -> None:
    for words in (["--mine"], ["-u", "me"], ["--owner", of_two.client.user]):
        assert batchq("jobs", *words, "-o", "name").lines == ["default/mine"]
    # One page after the other.
    assert batchq("jobs", "--mine", "-o", "name", "--limit", "1").lines == ["default/mine"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--owner", ""], "--owner: expected a user, found an empty name"),
        (
            ["--owner", "bob", "--mine"],
            "--mine lists your own groups, and --owner those of bob: omit one",
        ),
        (
            ["--mine", "--owner", "bob"],
            "--mine lists your own groups, and --owner those of bob: omit one",
        ),
    ],
)
def test_an_owner_that_would_be_ignored_is_refused(
    batchq: Batchq, words: list[str], message: str
) -> None:
    done = batchq("jobs", *words)
    assert (done.code, done.out, done.err.splitlines()[0]) == (2, "", f"error: {message}")


def test_both_ways_to_ask_for_own_groups_may_be_combined(batchq: Batchq, of_two: Stage) -> None:
    assert batchq("jobs", "--mine", "--owner", "me", "-o", "name").lines == ["default/mine"]


@pytest.mark.parametrize("whole_up_to", [0, 100])
def test_a_terminal_shows_the_last_finished_groups_of_an_owner(
    batchq: Batchq, of_two: Stage, monkeypatch: pytest.MonkeyPatch, whole_up_to: int
) -> None:
    for name in ("mine", "laptop", "server"):
        of_two.client.cancel(name)
    of_two.client.submit(["true"], name="later")
    of_two.client.cancel("later")
    monkeypatch.setattr("batchq.cli.jobs.RECENT", 1)
    monkeypatch.setattr("batchq.cli.jobs.is_terminal", lambda: True)
    monkeypatch.setattr("batchq.cli.group_lists.is_terminal", lambda: True)
    monkeypatch.setattr("batchq.cli.group_lists.WHOLE_UP_TO", whole_up_to)
    done = batchq("jobs", "--owner", "bob")
    assert named(done.out, "table") == ["server", "api"]
    assert "… and 1 older finished group (--all)" in done.err.splitlines()


def named(text: str, form: str) -> list[str]:
    """Return the names of the listed groups."""
    if form == "json":
        return [item["name"] for item in json.loads(text)["items"]]
    lines = text.splitlines()
    return [line.split()[0].rpartition("/")[2] for line in lines[form == "table" :]]


def test_a_wide_list_of_ended_groups_has_their_start_end_and_nodes(
    batchq: Batchq, stage: Stage
) -> None:
    batchq("submit", "--name", "x", "--", "true")
    stage.turn()
    stage.start("x")
    stage.end("x")
    stage.turn()
    titles, row = (cells(line) for line in batchq("jobs", "--all", "-o", "wide").lines)
    [view] = stage.client.jobs()
    assert row[titles.index("STARTED")] == format_instant(view.started_at or 0)
    assert row[titles.index("ENDED")] == format_instant(view.finished_at or 0)
    assert row[titles.index("NODES")] == "n1"
    assert view.nodes == ("n1",)
