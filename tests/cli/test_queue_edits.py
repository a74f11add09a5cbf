"""Edits of queues: messages, kept settings, and immediate refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batchq.api.objects import PodGroup
from tests.builders import a_queue, amounts
from tests.cli.conftest import Batchq
from tests.cli.test_jobs import cells
from tests.client.stage import Stage


def a_file(name: str, **spec: Any) -> str:
    """Return a queue's manifest as JSON, which is valid YAML."""
    data = {"apiVersion": "batchq/v1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}
    return json.dumps(data)


def a_group_file(name: str, queue: str) -> str:
    task = {"name": "w", "template": {"command": ["true"]}}
    return json.dumps(
        {
            "apiVersion": "batchq/v1",
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": {"queue": queue, "tasks": [task]},
        }
    )


@pytest.mark.parametrize("words", [("apply",), ("queues", "apply"), ("submit",)])
def test_a_stopped_queue_stays_stopped_whatever_applies_its_file(
    batchq: Batchq, stage: Stage, words: tuple[str, ...]
) -> None:
    stage.furnish(a_queue("a"))
    batchq("queues", "stop", "a")
    done = batchq(*words, "-f", "-", stdin=a_file("a", weight=2))
    assert done.code == 0
    assert done.err == (
        "warning: Queue a stays stopped (Hold), since the manifest does not set stopPolicy;"
        " `batchq queues resume a` resumes it\n"
    )
    assert batchq("queues", "stop", "a").lines == ["queue a is stopped already"]
    batchq(*words, "-f", "-", stdin=a_file("a", weight=2, stopPolicy="None"))
    assert batchq("queues", "resume", "a").lines == ["queue a is not stopped"]


@pytest.mark.parametrize("words", [("apply",), ("queues", "apply")])
def test_changes_of_a_queue_are_shown_by_a_dry_run_and_recorded_as_an_event(
    batchq: Batchq, stage: Stage, words: tuple[str, ...]
) -> None:
    stage.furnish(a_queue("team-b", deserved=amounts(cpu=4)))
    file = a_file("team-b", weight=2)
    dry = batchq(*words, "-f", "-", "--dry-run", stdin=file)
    changes = "deserved cpu 4 -> unstated, weight 1 -> 2"
    assert dry.lines == [f"queue team-b configured (dry run): {changes}"]
    assert batchq(*words, "-f", "-", stdin=file).lines == [f"queue team-b configured: {changes}"]
    events = batchq("describe", "queue", "team-b").lines
    assert [cells(line)[1:] for line in events if "Updated" in line] == [["Updated", changes]]


def test_a_guarantee_beyond_the_machines_causes_a_warning(batchq: Batchq, stage: Stage) -> None:
    done = batchq("queues", "apply", "-f", "-", stdin=a_file("greedy", guarantee={"cpu": 40}))
    assert (done.code, done.lines) == (0, ["queue greedy created"])
    assert done.err == (
        "warning: cpu 40 is guaranteed in all (greedy 40), and the ready nodes have 8: no queue"
        " gets more cpu than its guarantee, and a queue without a guarantee gets none; lower"
        " guarantees, or add nodes\n"
    )
    assert warnings_of(batchq) == [("guarantees", "cpu")]
    batchq("queues", "apply", "-f", "-", stdin=a_file("greedy", guarantee={"cpu": 8}))
    assert warnings_of(batchq) == []


def warnings_of(batchq: Batchq) -> list[tuple[str, str]]:
    findings = json.loads(batchq("doctor", "-o", "json").out)["findings"]
    found = [(one["check"], one["subject"]) for one in findings if one["level"] == "warning"]
    return [one for one in found if one[0] == "guarantees"]


def test_a_capability_below_what_is_held_is_warned_of(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(a_queue("a", capability=amounts(cpu=8)))
    stage.client.submit(command=["sleep"], name="runs", queue="a", cpus=6)
    stage.turn()
    done = batchq("apply", "-f", "-", "--dry-run", stdin=a_file("a", capability={"cpu": 4}))
    assert (done.code, len(done.lines)) == (0, 1)
    assert done.err.startswith("warning: Queue a now holds more than its limit: cpu 6 of 4; ")


@pytest.mark.parametrize(
    ("version", "system"),
    [
        ("kueue.x-k8s.io/v1beta1", "Kueue"),
        ("scheduling.volcano.sh/v1beta1", "Volcano"),
        ("batch.volcano.sh/v1alpha1", "Volcano"),
        ("scheduling.incubator.k8s.io/v1alpha1", "kube-batch"),
    ],
)
def test_manifests_of_other_systems_are_shown_the_way(
    batchq: Batchq, version: str, system: str
) -> None:
    file = a_file("q").replace("batchq/v1", version)
    done = batchq("apply", "-f", "-", stdin=file)
    assert done.code == 1
    assert done.err.endswith(
        f"apiVersion: expected batchq/v1, found '{version}'; docs/coming-from.md has batchq's"
        f" fields for those of {system}\n"
    )


def test_other_strange_versions_are_only_refused(batchq: Batchq) -> None:
    done = batchq("apply", "-f", "-", stdin=a_file("q").replace("batchq/v1", "notvolcano.sh/v1"))
    assert done.err.endswith("apiVersion: expected batchq/v1, found 'notvolcano.sh/v1'\n")


@pytest.mark.parametrize(
    "words",
    [
        ("submit", "-q", "org", "--name", "g", "--", "true"),
        ("submit", "-q", "org", "--name", "g", "--external"),
        ("submit", "-q", "org", "--name", "g", "--dry-run", "--", "true"),
        ("submit", "-f", "-"),
        ("apply", "-f", "-"),
    ],
)
def test_a_group_for_a_queue_with_others_below_it_is_refused_at_once(
    batchq: Batchq, stage: Stage, words: tuple[str, ...]
) -> None:
    stage.furnish(a_queue("org"), a_queue("a", parent="org"), a_queue("b", parent="org"))
    done = batchq(*words, stdin=a_group_file("g", "org"))
    assert (done.code, done.out) == (12, "")
    place = "standard input, document 1: " if "-f" in words else ""
    assert done.err.splitlines() == [
        (
            f"error: {place}PodGroup default/g: spec.queue: queue org has queues below it, and"
            " holds no groups"
        ),
        "hint: name a queue below it: a, b",
    ]
    assert stage.client.list("PodGroup") == ()


def test_the_jobs_of_an_inner_queue_are_those_of_all_below_it(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(
        *(a_queue("org"), a_queue("team", parent="org"), a_queue("lab", parent="team")),
        *(a_queue("crew", parent="org"), a_queue("other")),
    )
    for queue in ("lab", "crew", "other"):
        batchq("submit", "-q", queue, "--name", f"of-{queue}", "--", "true")
    names = [f"default/of-{queue}" for queue in ("lab", "crew", "other")]
    for queue, there in (("team", names[:1]), ("org", names[:2]), ("root", names)):
        assert batchq("jobs", "-q", queue, "-o", "name").lines == there
    assert batchq("jobs", "-q", "queue/crew", "-o", "name").lines == names[1:2]


def test_jobs_of_a_queue_that_is_not_there_are_answered_with_the_nearest(
    batchq: Batchq, stage: Stage
) -> None:
    stage.furnish(a_queue("interactive"))
    done = batchq("jobs", "-q", "interactve")
    assert (done.code, done.out) == (6, "")
    assert done.err.splitlines() == [
        "error: Queue interactve does not exist",
        "hint: did you mean interactive?",
    ]
    for there in ("interactive", "default", "root"):
        assert batchq("jobs", "-q", there).code == 0


def test_finished_groups_of_a_deleted_queue_are_listed(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(a_queue("old"))
    batchq("submit", "-q", "old", "--name", "g", "--", "true")
    batchq("cancel", "g")
    batchq("delete", "queue", "old")
    assert batchq("jobs", "-q", "old", "-o", "name").lines == ["default/g"]


def test_the_root_has_a_page_even_if_it_is_not_stored(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(a_queue("a"))
    stage.client.submit(command=["sleep"], name="runs", queue="a", cpus=3)
    stage.turn()
    done = batchq("queues", "show", "root")
    assert (done.code, done.err) == (0, "")
    assert "Children:    a, default" in done.lines
    [row] = [cells(line) for line in done.lines if line.strip().startswith("cpu ")]
    assert row[:4] == ["cpu", "3", "-", "8"]
    data = json.loads(batchq("queues", "show", "root", "-o", "json").out)
    assert (data["name"], data["children"]) == ("root", ["a", "default"])
    assert batchq("describe", "queue", "root").lines[: len(done.lines)] == done.lines
    assert batchq("queues", "-o", "name").lines == ["a", "default"]


def test_the_share_of_a_queue_that_holds_and_deserves_nothing_is_a_dash_and_null_in_json(
    batchq: Batchq, stage: Stage
) -> None:
    stage.furnish(a_queue("idle"))
    [_, row, _] = batchq("queues").lines
    assert cells(row)[5] == "-"
    assert "Share:       -" in batchq("queues", "show", "idle").lines
    assert json.loads(batchq("queues", "show", "idle", "-o", "json").out)["share"] is None
    items = json.loads(batchq("queues", "-o", "json").out)["items"]
    assert [item["share"] for item in items] == [None, None]


def test_the_grace_of_a_command_can_be_stated(batchq: Batchq, stage: Stage) -> None:
    for name, more in (("long", ["--grace", "2m"]), ("usual", [])):
        assert batchq("submit", "--name", name, *more, "--", "true").code == 0
    graces = []
    for name in ("long", "usual"):
        group = stage.client.get("PodGroup", name)
        assert isinstance(group, PodGroup)
        graces.append(group.spec.tasks[0].template.termination_grace)
    assert graces == [120_000, 30_000]
    wrong = batchq("submit", "--grace", "soon", "--", "true")
    assert (wrong.code, "--grace" in wrong.err) == (2, True)


def test_a_file_states_its_own_grace(batchq: Batchq, tmp_path: Path) -> None:
    file = tmp_path / "g.json"
    file.write_text(a_group_file("g", "default"))
    done = batchq("submit", "--grace", "2m", "-f", str(file))
    assert done.err.startswith("error: --grace applies to a command, not to a file")
