"""Groups derived from a prototype: the fields that differ are checked, the others are equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchq.client.request_fields import Drafts
from batchq.errors import BatchqError


def a_line(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "command": ["true", name], **fields}


@pytest.mark.parametrize(
    "varied",
    [
        {"name": "x", "command": ["b", "1"]},
        {"command": ["/usr/bin/My_Prog.sh"]},
        {"name": "x", "command": ["b"], "env": {"A": "1"}},
        {"name": "x", "command": ["b"], "after": "first"},
        {"name": "x", "command": ["b"], "after": ["any:first", "failed:second"]},
        {"name": "x", "function": "os.path:join", "args": [1, {"a": None}], "kwargs": {"b": "c"}},
        {"name": "x", "function": "os.path:join", "kwargs": {"b": [1.5]}},
        {"generate_name": "sweep", "command": ["b"]},
        {"function": "os.path:join"},
        {"name": "x", "external": True, "command": ["b"], "cpus": 3},
    ],
)
def test_a_group_derived_from_a_prototype_equals_one_built_in_full(varied: dict[str, Any]) -> None:
    former = {**varied, "name": "former"} if "name" in varied else dict(varied)
    if "command" in former:
        former["command"] = ["former", "words"]
    drafts = Drafts({})
    drafts.draft(former, "00000")
    cast = drafts.draft(varied, "abcde")
    by_itself = Drafts({}).draft(varied, "abcde")
    assert cast.group == by_itself.group
    assert cast.program == by_itself.program


@pytest.mark.parametrize(
    ("varied", "sentence"),
    [
        ({"name": "X"}, "metadata.name: expected at most 63 lower-case"),
        ({"command": []}, "there is no command to run"),
        ({"command": [""]}, "expected a command or a function for its pods to run"),
        ({"command": ["a\0b"]}, "a NUL character cannot be passed"),
        ({"command": ["x" * 200_000]}, "command, in bytes: expected at most 131072"),
        ({"command": ["a", None]}, "command: expected text, found nothing"),
        ({"env": {"A=B": "1"}}, "expected a name without '='"),
        ({"env": {"A": "1\0"}}, "a NUL character cannot be passed"),
        ({"env": {"A": {}}}, "env: 'A': expected text, found an empty mapping"),
        ({"after": ["a", "a"]}, "spec.dependsOn: 'a' is named twice"),
        ({"after": ["soon:a"]}, "after: expected NAME, ok:NAME"),
        ({"after": [3]}, "after: expected names of groups or PodGroups, found 3"),
        ({"args": [1]}, "only a function has arguments"),
    ],
)
def test_fields_that_differ_from_the_prototype_are_checked(
    varied: dict[str, Any], sentence: str
) -> None:
    drafts = Drafts({})
    for former in ({"env": {"A": "1"}}, {"after": "z"}, {}):
        drafts.draft(a_line("former", **former), "00000")
    with pytest.raises(BatchqError) as caught:
        drafts.draft({**a_line("x"), **varied}, "00000")
    assert sentence in caught.value.message


def a_manifest(name: object, command: object, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "batchq/v1",
        "kind": "PodGroup",
        "metadata": {"name": name, "labels": {"sweep": "a"}},
        "spec": {"tasks": [{"name": "main", "template": {"command": command}}], **spec},
    }


@pytest.mark.parametrize(
    "manifest",
    [
        a_manifest("x", ["b", "1"]),
        a_manifest("x", ["b"], dependsOn=[{"name": "first"}]),
        a_manifest("x", ["b"], queue="research"),
        a_manifest("x", ["b"], tasks=[{"name": "other", "template": {"command": ["b"]}}]),
    ],
)
def test_a_manifest_like_a_former_one_means_the_same(manifest: dict[str, Any]) -> None:
    drafts = Drafts({})
    for former in (a_manifest("former", ["a"]), a_manifest("former", ["a"], queue="research")):
        drafts.draft(former, "00000")
    assert drafts.draft(manifest, "").group == Drafts({}).draft(manifest, "").group


@pytest.mark.parametrize(
    ("manifest", "sentence"),
    [
        (a_manifest("X", ["b"]), "metadata.name: expected at most 63 lower-case"),
        (a_manifest(None, ["b"]), "metadata.name"),
        (a_manifest(["x"], ["b"]), "metadata.name: expected text"),
        (a_manifest("x", []), "expected a command or a function for its pods to run"),
        (a_manifest("x", [{}]), "expected text, found an empty mapping"),
        (a_manifest("x", ["a\0"]), "a NUL character cannot be passed"),
        (a_manifest("x", ["x" * 200_000]), "command, in bytes: expected at most 131072"),
        (a_manifest("x", ["b"], dependsOn=[{"name": "X"}]), "dependsOn[0].name"),
        (a_manifest("x", ["b"], speed=3), "spec.speed: there is no such field"),
    ],
)
def test_a_manifest_is_checked_where_it_differs_from_a_former_one(
    manifest: dict[str, Any], sentence: str
) -> None:
    drafts = Drafts({})
    drafts.draft(a_manifest("former", ["a"]), "00000")
    with pytest.raises(BatchqError) as caught:
        drafts.draft(manifest, "00000")
    assert sentence in caught.value.message


def test_the_number_of_prototypes_is_bounded() -> None:
    drafts = Drafts({})
    for number in range(600):
        drafts.draft(a_line("x", labels={"n": str(number)}), "00000")
    assert 0 < len(drafts._prototypes) <= 256
    draft = drafts.draft(a_line("y", labels={"n": "7"}), "00000")
    assert draft.group.metadata.labels == {"n": "7"}


def test_each_draft_of_a_function_starts_in_the_folder_of_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_default, by_field = Drafts({"function": "os.path:join"}), Drafts({})
    folders = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        drafts = (
            by_default.draft({"args": ["a"]}, "abcde"),
            by_field.draft({"function": "os.path:join"}, "abcde"),
        )
        folders += [one.group.spec.tasks[0].template.working_dir for one in drafts]
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    assert folders == [one, one, two, two]
