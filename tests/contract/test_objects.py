"""Objects are read as they were written, and replaced only by writers that read the latest
revision.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from batchq.api.lifecycle import POD_GROUP_MOVES, POD_MOVES, PodGroupPhase, PodPhase, allowed
from batchq.api.objects import KINDS, Metadata, Pod, PodGroup, PodGroupSpec, PodTemplate, Task
from batchq.api.transaction import Transaction, Word, Write
from batchq.errors import InvalidInput, InvariantBroken
from tests.contract.conftest import AnyStore
from tests.contract.made import (
    answers,
    at_revision,
    gone,
    group,
    node,
    pod,
    put,
    queue,
    words,
    writing,
)


def test_an_empty_store_has_nothing(store: AnyStore) -> None:
    assert store.get("PodGroup", "x/a") is None
    assert [list(store.list(kind)) for kind in KINDS] == [[]] * 7
    assert store.ledger() == {}
    assert store.charges() == {}
    assert list(store.events()) == []
    assert store.snapshot().revision == 0
    assert store.commit([], request_id="1").revision == 0


def test_an_object_comes_back_with_its_revision(store: AnyStore) -> None:
    written = PodGroup(
        metadata=Metadata(name="a", namespace="x", uid="u1", labels={"what": 'quotes " and ü'}),
        spec=PodGroupSpec(
            tasks=(Task(name="t", template=PodTemplate(requests={"memory": 2**53 + 1})),)
        ),
    )
    commit = store.commit([writing(put(written))], request_id="1")
    assert (len(commit.applied), commit.revision) == (1, 1)
    assert store.get("PodGroup", "x/a") == at_revision(written, 1)


def test_each_write_raises_the_revision_by_one(store: AnyStore) -> None:
    store.commit([writing(put(queue("b")), put(queue("a")))], request_id="1")
    assert [(one.metadata.name, one.metadata.revision) for one in store.list("Queue")] == [
        ("a", 2),
        ("b", 1),
    ]


def test_a_list_can_be_of_one_namespace(store: AnyStore) -> None:
    store.commit(
        [
            writing(put(group("b", uid="u1"))),
            writing(put(group("a", uid="u2"))),
            writing(put(group("a", uid="u3", namespace="xy"))),
            writing(put(pod(0))),
        ],
        request_id="1",
    )
    assert [one.metadata.uid for one in store.list("PodGroup", namespace="x")] == ["u2", "u1"]
    assert [one.metadata.uid for one in store.list("PodGroup")] == ["u2", "u1", "u3"]
    assert [one.metadata.uid for one in store.list("Pod", namespace="x")] == ["u1-1-0"]
    assert list(store.list("Pod", namespace="y")) == []


def test_a_transaction_may_depend_on_an_object_not_being_there(store: AnyStore) -> None:
    absent = Write(kind="PodGroup", key="x/other", expect=0, value=None)
    commit = store.commit([writing(put(group("a")), absent)], request_id="1")
    assert (words(commit), commit.revision) == ([], 1)
    assert [one.metadata.name for one in store.list("PodGroup")] == ["a"]
    other = put(group("other", uid="u2"))
    commit = store.commit(
        [writing(other), writing(put(group("b", uid="u3")), absent)], request_id="2"
    )
    assert words(commit) == ["conflict"]
    assert answers(commit)[0].subject == "PodGroup x/other"
    assert [one.metadata.name for one in store.list("PodGroup")] == ["a", "other"]


def test_an_object_that_must_not_exist_is_not_overwritten(store: AnyStore) -> None:
    store.commit([writing(put(group()))], request_id="1")
    commit = store.commit([writing(put(group(uid="u2")))], request_id="2")
    assert words(commit) == ["conflict"]
    assert answers(commit)[0].subject == "PodGroup x/a"


@pytest.mark.parametrize("expect", [2, None])
def test_an_object_that_does_not_exist_is_not_updated(store: AnyStore, expect: int | None) -> None:
    commit = store.commit([writing(put(group(), expect=expect, fence="u1 0"))], request_id="1")
    assert words(commit) == ["conflict"]


def test_only_a_writer_that_read_the_latest_revision_may_write(store: AnyStore) -> None:
    store.commit([writing(put(queue()))], request_id="1")
    first = store.commit([writing(put(queue(), expect=1))], request_id="2")
    second = store.commit([writing(put(queue(), expect=1))], request_id="3")
    third = store.commit([writing(gone(queue(), expect=1))], request_id="4")
    assert [words(one) for one in (first, second, third)] == [[], ["conflict"], ["conflict"]]


def test_a_deleted_object_may_be_created_again(store: AnyStore) -> None:
    store.commit([writing(put(queue()))], request_id="1")
    store.commit([writing(gone(queue(), expect=1))], request_id="2")
    assert store.get("Queue", "q") is None
    assert store.commit([writing(put(queue()))], request_id="3").revision == 3


def test_a_fence_that_matches_is_enough(store: AnyStore) -> None:
    store.commit([writing(put(pod(phase=PodPhase.BOUND, attempt=1)))], request_id="1")
    claimed = put(pod(phase=PodPhase.RUNNING, attempt=1), expect=None, fence="u1 1 1")
    assert words(store.commit([writing(claimed)], request_id="2")) == []


def test_a_superseded_writer_is_fenced_whatever_revision_it_expects(store: AnyStore) -> None:
    store.commit([writing(put(pod(phase=PodPhase.BOUND, attempt=2)))], request_id="1")
    late = pod(phase=PodPhase.RUNNING, attempt=2)
    for number, expect in enumerate([None, 1, 7]):
        stale = put(late, expect=expect, fence="u1 1 1")
        assert words(store.commit([writing(stale)], request_id=f"2.{number}")) == ["fenced"]


@pytest.mark.parametrize(
    "after",
    [group(uid="u2", admission=2), group(uid="u1", admission=1), group(uid="", admission=2)],
    ids=["another uid", "a lower admission", "no uid"],
)
def test_a_group_keeps_its_uid_and_its_count_of_admissions(
    store: AnyStore, after: PodGroup
) -> None:
    store.commit([writing(put(group(admission=2)))], request_id="1")
    assert words(store.commit([writing(put(after, expect=1))], request_id="2")) == ["fenced"]


def test_a_pods_count_of_attempts_may_not_fall(store: AnyStore) -> None:
    store.commit([writing(put(pod(attempt=10)))], request_id="1")
    fallen = store.commit([writing(put(pod(attempt=9), expect=1))], request_id="2")
    risen = store.commit([writing(put(pod(attempt=11), expect=1))], request_id="3")
    assert (words(fallen), words(risen)) == (["fenced"], [])


def test_a_phase_moves_only_along_the_table(store: AnyStore) -> None:
    store.commit([writing(put(group(phase=PodGroupPhase.COMPLETED)))], request_id="1")
    back = put(group(phase=PodGroupPhase.RUNNING), expect=1)
    commit = store.commit([writing(back)], request_id="2")
    assert words(commit) == ["move"]
    assert answers(commit)[0].subject == "PodGroup x/a"


@pytest.mark.parametrize("start", [*PodGroupPhase, *PodPhase], ids=repr)
def test_every_move_of_the_table_and_no_other_is_made(
    store: AnyStore, start: PodGroupPhase | PodPhase
) -> None:
    first: PodGroup | Pod
    made: Sequence[PodGroup | Pod]
    if isinstance(start, PodGroupPhase):
        first, moves = group(phase=start), allowed(POD_GROUP_MOVES)
        made = [group(phase=phase) for phase in PodGroupPhase]
    else:
        first, moves = pod(phase=start), allowed(POD_MOVES)
        made = [pod(phase=phase) for phase in PodPhase]
    for number, after in enumerate(made):
        commit = store.commit([writing(put(first))], request_id=f"make {number}")
        moved = store.commit([writing(put(after, expect=commit.revision))], request_id=f"{number}")
        finish = after.status.phase
        expected = [] if finish == start or (start, finish) in moves else ["move"]
        assert words(moved) == expected, (start, finish)
        store.commit([writing(gone(first, expect=moved.revision))], request_id=f"gone {number}")


def test_a_phase_may_stay(store: AnyStore) -> None:
    store.commit([writing(put(pod(phase=PodPhase.SUCCEEDED)))], request_id="1")
    same = put(pod(phase=PodPhase.SUCCEEDED), expect=1)
    assert words(store.commit([writing(same)], request_id="2")) == []


def test_a_transaction_is_applied_whole_or_not_at_all(store: AnyStore) -> None:
    store.commit([writing(put(queue("taken")))], request_id="1")
    both = writing(put(queue("free")), put(queue("taken")))
    commit = store.commit([both, writing(put(node()))], request_id="2")
    assert (words(commit), len(commit.applied), commit.revision) == (["conflict"], 1, 2)
    assert store.get("Queue", "free") is None
    assert store.get("Node", "n1") is not None


def test_transactions_are_applied_in_order(store: AnyStore) -> None:
    commit = store.commit(
        [writing(put(queue())), writing(put(queue(), expect=1)), writing(put(queue(), expect=1))],
        request_id="1",
    )
    assert (len(commit.applied), words(commit)) == (2, ["conflict"])


def test_the_same_request_again_answers_the_same_and_applies_nothing(store: AnyStore) -> None:
    asked = [writing(put(queue())), writing(put(queue()))]
    first = store.commit(asked, request_id="1")
    store.commit([writing(gone(queue(), expect=1))], request_id="2")
    assert store.commit(asked, request_id="1") == first
    assert words(first) == ["conflict"]
    assert store.get("Queue", "q") is None


def test_a_commit_of_thousands_of_writes(store: AnyStore) -> None:
    many = [writing(put(queue(f"q{number:04}"))) for number in range(2_500)]
    commit = store.commit(many, request_id="1")
    assert (len(commit.applied), commit.revision) == (2_500, 2_500)
    assert store.commit(many, request_id="1") == commit
    assert len(store.list("Queue")) == 2_500
    one = writing(*(put(pod(number)) for number in range(2_500)))
    assert store.commit([one], request_id="2").revision == 5_000


@pytest.mark.parametrize(
    "transaction",
    [
        writing(put(queue()), put(queue())),
        writing(put(queue(), expect=None)),
        writing(Write(kind="Queue", key="b", expect=0, value=queue("a"))),
    ],
    ids=["twice", "nothing compared", "another key"],
)
def test_an_ill_formed_transaction_is_a_broken_invariant(
    store: AnyStore, transaction: Transaction
) -> None:
    with pytest.raises(InvariantBroken):
        store.commit([transaction], request_id="1")


@pytest.mark.parametrize("uid", ["u 1", "u|1"])
def test_a_uid_that_would_blur_the_fence_is_refused(store: AnyStore, uid: str) -> None:
    with pytest.raises(InvalidInput, match="expected a uid without spaces and bars"):
        store.commit([writing(put(group(uid=uid)))], request_id="1")


def test_words_are_the_contracts() -> None:
    assert [str(word) for word in Word] == [
        "ok",
        "conflict",
        "fenced",
        "move",
        "limit",
        "epoch",
    ]
