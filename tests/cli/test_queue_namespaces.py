"""Queues that accept groups of certain namespaces only, on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from batchq.api.objects import PodGroup
from tests.builders import a_queue
from tests.cli.conftest import Batchq
from tests.client.stage import Stage

pytestmark = pytest.mark.both_doors

GATED = """
apiVersion: batchq/v1
kind: PodGroup
metadata: {name: gated, namespace: home}
spec:
  queue: QUEUE
  schedulingGates: [{name: review}]
  tasks: [{name: w, template: {command: ['true']}}]
"""
REFUSAL = "queue gpu accepts only groups of namespaces course and lab, not of home"
ADDED = "have home added to spec.namespaces of gpu"
HINT = f"name another queue (default) or another namespace, or {ADDED}"
TRUE = ("--", "true")


@pytest.fixture(autouse=True)
def gpu(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    # The API serves submissions for a second with the queues as it has read them last.
    monkeypatch.setattr("batchq.client.requests._QUEUES_S", 0)
    stage.furnish(a_queue("gpu", namespaces=("lab", "course")))


def phase(stage: Stage, key: str) -> str:
    group = stage.store.get("PodGroup", key)
    assert isinstance(group, PodGroup)
    return str(group.status.phase)


def in_file(folder: Path, text: str) -> str:
    (folder / "given").write_text(text)
    return str(folder / "given")


def _resubmits(batchq: Batchq, stage: Stage, folder: Path) -> list[str]:
    stage.furnish(a_queue("gpu"))
    batchq("submit", "-q", "gpu", "-n", "home", "--name", "one", *TRUE)
    batchq("cancel", "home/one")
    stage.furnish(a_queue("gpu", namespaces=("lab", "course")))
    return ["resubmit", "home/one", "--as", "two"]


#: A way to submit -> the command.
WAYS: dict[str, Callable[[Batchq, Stage, Path], list[str]]] = {
    "submit": lambda *_: ["submit", "-q", "gpu", "-n", "home", "--name", "two", *TRUE],
    "external": lambda *_: [
        *("submit", "--external", "-q", "gpu", "-n", "home", "--name", "two", "--cpus", "1"),
    ],
    "an array": lambda *_: [
        *("submit", "--array", "0-9", "-q", "gpu", "-n", "home", "--name", "two", *TRUE),
    ],
    "a dry run": lambda *_: [
        *("submit", "--dry-run", "-q", "gpu", "-n", "home", "--name", "two", *TRUE),
    ],
    "plan": lambda *_: ["plan", "-q", "gpu", "-n", "home", "--name", "two", *TRUE],
    "apply": lambda batchq, stage, folder: [
        *("apply", "-f", in_file(folder, GATED.replace("QUEUE", "gpu").replace("gated", "two"))),
    ],
    "resubmit": _resubmits,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_group_of_another_namespace_is_refused(
    way: str, batchq: Batchq, stage: Stage, tmp_path: Path
) -> None:
    done = batchq(*WAYS[way](batchq, stage, tmp_path))
    assert (done.code, done.out) == (12, "")
    assert done.err.endswith(f"PodGroup home/two: spec.queue: {REFUSAL}\nhint: {HINT}\n")
    assert all(one.metadata.name == "one" for one in stage.client.list("PodGroup"))


def test_a_group_of_an_accepted_namespace_is_submitted(batchq: Batchq, stage: Stage) -> None:
    assert batchq("submit", "-q", "gpu", "-n", "lab", "--name", "one", *TRUE).code == 0
    stage.turn()
    assert phase(stage, "lab/one") == "InQueue"


def test_each_line_of_a_file_is_judged_by_itself(
    batchq: Batchq, stage: Stage, tmp_path: Path
) -> None:
    lines = [
        {"name": "one", "command": ["true"]},
        {"name": "two", "command": ["true"], "queue": "gpu"},
    ]
    file = in_file(tmp_path, "\n".join(map(json.dumps, lines)))
    done = batchq("submit", "--from-file", file, "-n", "home", "--keep-going")
    assert (done.code, [one.metadata.name for one in stage.client.list("PodGroup")]) == (
        12,
        ["one"],
    )
    assert f"line 2: PodGroup home/two: spec.queue: {REFUSAL}" in done.err


def test_an_edit_moves_no_group_into_the_queue(
    batchq: Batchq, stage: Stage, tmp_path: Path
) -> None:
    assert batchq("apply", "-f", in_file(tmp_path, GATED.replace("QUEUE", "default"))).code == 0
    refused = batchq("apply", "-f", in_file(tmp_path, GATED.replace("QUEUE", "gpu")))
    assert refused.code == 12
    assert refused.err.endswith(f"PodGroup home/gated: spec.queue: {REFUSAL}\nhint: {HINT}\n")


def test_a_waiting_group_that_the_queue_accepts_no_longer_is_told_what_to_do(
    batchq: Batchq, stage: Stage, tmp_path: Path
) -> None:
    stage.furnish(a_queue("gpu", stop_policy="Hold"))
    batchq("submit", "-q", "gpu", "-n", "home", "--name", "one", *TRUE)
    batchq("apply", "-f", in_file(tmp_path, GATED.replace("QUEUE", "gpu")))
    stage.furnish(a_queue("gpu", namespaces=("lab", "course")))
    stage.turn()
    why = batchq("why", "home/one")
    assert why.lines[1:3] == [
        f"  1. Misconfigured: {REFUSAL}",
        (
            "     -> `batchq cancel home/one`, and submit it to another queue (default):"
            f" `batchq resubmit home/one -q default`; or {ADDED}"
        ),
    ]
    # Its queue may still change.
    assert batchq("why", "home/gated").lines[1:3] == [
        f"  1. Misconfigured: {REFUSAL}",
        f"     -> apply it with another queue (default), or {ADDED}",
    ]
    # Only the operator can help otherwise, and then it starts.
    stage.furnish(a_queue("gpu", namespaces=("home",)))
    stage.turn()
    assert phase(stage, "home/one") == "InQueue"


def test_lists_and_pages_show_the_namespaces(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(a_queue("a100", parent="gpu"), a_queue("h100", parent="gpu", namespaces=("ml",)))
    wide = {line.split()[0]: line.split()[-2:] for line in batchq("queues", "-o", "wide").lines}
    assert wide["NAME"][1] == "NAMESPACES"
    assert wide["default"][1] == "-"
    assert wide["gpu"] == wide["a100"] == ["course,", "lab"]
    assert wide["h100"][1] == "none"
    assert "Namespaces:  course, lab" in batchq("describe", "queue", "a100").lines
    assert not any("Namespaces" in line for line in batchq("queues", "show", "default").lines)
    rows = {one["name"]: one for one in json.loads(batchq("queues", "-o", "json").out)["items"]}
    assert rows["gpu"]["queue"]["spec"]["namespaces"] == ["lab", "course"]
    assert "namespaces" not in rows["a100"]["queue"]["spec"]
    accepts = {name: row["accepts"] for name, row in rows.items()}
    assert accepts == {
        "default": None,
        "gpu": ["course", "lab"],
        "a100": ["course", "lab"],
        "h100": [],
    }
