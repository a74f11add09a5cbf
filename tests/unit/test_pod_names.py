"""Pods of two groups never share a name: the second of two such groups is refused."""

from __future__ import annotations

from typing import Any

import pytest

from batchq.api.objects import PodGroup
from batchq.client import changes
from batchq.client.changes.groups import rivals
from batchq.errors import Rejected
from batchq.store.memory import MemoryStore
from tests.builders import a_group, a_task


def a(name: str, *tasks: str, replicas: int = 1, **more: Any) -> PodGroup:
    made = tuple(a_task(task, replicas, command=("true",)) for task in tasks)
    return a_group(name, tasks=made, **more)


class Store(MemoryStore):
    def submit(self, *groups: PodGroup) -> None:
        for group in groups:
            key = f"{group.metadata.namespace}/{group.metadata.name}"
            transaction = changes.apply(self, group, now_ms=0, uid=f"uid-of-{key}")
            assert transaction is not None
            commit = self.commit([transaction], request_id=f"{key} {self.snapshot().revision}")
            assert commit.refused == ()


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (
            a("a", "b-c"),
            a("a-b", "c"),
            (
                "PodGroup default/a-b: pods of its task c would be called a-b-c-0 and so on, as"
                " pods of task b-c of PodGroup default/a are"
            ),
        ),
        (
            a("a-b", "c"),
            a("a", "b-c"),
            (
                "PodGroup default/a: pods of its task b-c would be called a-b-c-0 and so on, as"
                " pods of task c of PodGroup default/a-b are"
            ),
        ),
        (
            a("train-2", "0-w", "ps", replicas=30),
            a("train", "w", "2-0-w", replicas=3),
            (
                "PodGroup default/train: pods of its task 2-0-w would be called train-2-0-w-0 and"
                " so on, as pods of task 0-w of PodGroup default/train-2 are"
            ),
        ),
    ],
)
def test_the_second_of_two_groups_with_a_common_pod_name_is_refused_in_either_order(
    first: PodGroup, second: PodGroup, said: str
) -> None:
    store = Store()
    store.submit(first)
    with pytest.raises(Rejected) as caught:
        store.submit(second)
    assert caught.value.message == said
    assert caught.value.hint == "choose another name for the group or for the task"


@pytest.mark.parametrize(
    "second",
    [
        a("a-b", "d"),
        a("a-b", "c", namespace="other"),
        a("a-b", "c", controller="external", min_resources={"cpu": 1}),
        a("a-b-c", "0"),
    ],
    ids=["another task", "another namespace", "no pods of ours", "an index more"],
)
def test_groups_whose_pods_have_different_names_are_accepted(second: PodGroup) -> None:
    store = Store()
    store.submit(a("a", "b-c"), second)


def test_an_edit_of_tasks_checks_the_pod_names_again() -> None:
    store = Store()
    store.submit(a("a", "b"), a("a-b", "c"))
    with pytest.raises(Rejected):
        store.submit(a("a", "b", "b-c"))
    store.submit(a("a", "b", "b-d"))


def test_a_pod_name_is_free_after_the_other_group_is_deleted() -> None:
    store = Store()
    store.submit(a("a", "b-c"))
    store.commit([changes.cancel(store, "default/a", now_ms=0)], request_id="cancel")  # type: ignore[list-item]
    gone = changes.delete(store, "PodGroup", "default/a", now_ms=0)
    store.commit([gone], request_id="delete")
    store.submit(a("a-b", "c"))


def test_the_store_refuses_the_second_of_two_concurrent_submissions() -> None:
    store = Store()
    one = changes.create(store, a("a", "b-c"), now_ms=0, uid="u1")
    other = changes.create(store, a("a-b", "c"), now_ms=0, uid="u2")
    commit = store.commit([one, other], request_id="both")
    assert [refusal.transaction for refusal in commit.refused] == [other]
    assert store.get("PodGroup", "default/a-b") is None


def test_only_prefixes_of_the_pod_names_are_looked_up() -> None:
    assert rivals(a("train", "w")) == {}
    assert rivals(a("a-b--c", "d-e")) == {
        "default/a": [("d-e", "b--c-d-e")],
        "default/a-b--c-d": [("d-e", "e")],
    }
