"""Signatures of groups: what they cover, and what may change after them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import structs

from batchq.api.access import is_signed, signature_of
from batchq.api.objects import PodGroup, SchedulingGate, Toleration
from batchq.api.transaction import Transaction, Write
from batchq.client.access_control import signed
from batchq.store.records import read_object
from tests.builders import a_group, a_task

KEY = b"k" * 32
RUNS: dict[str, Any] = {
    "command": ("sh", "-c", "true"),
    "env": {"B": "1", "A": "2"},
    "args": (msgspec.Raw(b'{"x": 1}'),),
    "kwargs": {"y": msgspec.Raw(b"[1,  2]")},
}


def of_alice(**template: Any) -> PodGroup:
    group = a_group("train", tasks=(a_task("w", 2, **{**RUNS, **template}),))
    status = structs.replace(group.status, submitted_by="alice")
    return structs.replace(group, status=status)


def with_signature(group: PodGroup, key: bytes = KEY) -> PodGroup:
    status = structs.replace(group.status, signature=signature_of(key, group))
    return structs.replace(group, status=status)


def test_a_signed_group_stays_signed_in_the_store() -> None:
    group = with_signature(of_alice())
    assert is_signed(KEY, group)
    stored = read_object("PodGroup", msgspec.json.encode(group))
    assert isinstance(stored, PodGroup)
    assert is_signed(KEY, stored)


def test_a_group_without_a_signature_or_under_another_key_is_not_signed() -> None:
    assert not is_signed(KEY, of_alice())
    assert not is_signed(KEY, with_signature(of_alice(), b"x" * 32))


@pytest.mark.parametrize(
    "changed",
    [
        {"command": ("sh", "-c", "false")},
        {"command": ("sh", "-c true")},
        {"env": {"B": "1", "A": "3"}},
        {"env": {}},
        {"args": (msgspec.Raw(b'{"x": 2}'),)},
        {"kwargs": {}},
        {"function": "os:getuid"},
        {"working_dir": "/home/bob"},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_a_signature_is_of_what_a_group_runs_and_of_its_owner(changed: dict[str, Any]) -> None:
    group = with_signature(of_alice())
    template = structs.replace(group.spec.tasks[0].template, **changed)
    tasks = (structs.replace(group.spec.tasks[0], template=template),)
    assert not is_signed(KEY, structs.replace(group, spec=structs.replace(group.spec, tasks=tasks)))
    bobs = structs.replace(group.status, submitted_by="bob")
    assert not is_signed(KEY, structs.replace(group, status=bobs))
    for name in ({"uid": "another"}, {"name": "another"}, {"namespace": "another"}):
        another = structs.replace(group, metadata=structs.replace(group.metadata, **name))
        assert not is_signed(KEY, another)


@pytest.mark.parametrize(
    "changed",
    [
        {"requests": {"cpu": 9000}},
        {"priority": 7},
        {"scheduling_gates": (SchedulingGate(name="g"),)},
        {"nodes": ("n1",), "exclude_nodes": ("n2",), "node_selector": {"zone": "a"}},
        {"tolerations": (Toleration(key="k"),)},
        {"termination_grace": 5},
        {"labels": {"l": "v"}, "annotations": {"a": "v"}},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_a_signature_stays_valid_when_a_group_is_scheduled_otherwise(
    changed: dict[str, Any],
) -> None:
    group = with_signature(of_alice())
    template = structs.replace(group.spec.tasks[0].template, **changed)
    tasks = (structs.replace(group.spec.tasks[0], template=template, replicas=3),)
    spec = structs.replace(group.spec, tasks=tasks, suspend=True, priority_class_name="high")
    assert is_signed(KEY, structs.replace(group, spec=spec))


def written(group: PodGroup, *, expect: int | None, user: str = "alice") -> PodGroup:
    """Return what is written of a group in a request of a user."""
    write = Write(kind="PodGroup", key="default/train", expect=expect, value=group)
    (found,) = signed(Transaction(subject="s", writes=(write,)), user, KEY).writes
    assert isinstance(found.value, PodGroup)
    return found.value


def test_only_what_a_user_submits_in_its_own_name_is_signed() -> None:
    assert is_signed(KEY, written(of_alice(), expect=0))
    assert written(of_alice(), expect=0, user="bob").status.signature == ""


def test_an_edit_is_not_signed_because_others_may_have_changed_the_group() -> None:
    assert written(of_alice(), expect=7).status.signature == ""
    before = with_signature(of_alice(command=("id",)))
    assert written(before, expect=7).status.signature == before.status.signature
