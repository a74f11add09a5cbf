"""A claim is waited for and an end is not; and what is not waited for any more starts nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from batchq.api.facts import Claim, Ended, Outcome
from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import Pod, PodGroupStatus
from batchq.api.transaction import Transaction, Write, fence_of
from batchq.daemon.clerk import LeaderDesk
from batchq.ids import RandomIds
from batchq.store.redis import RedisStore, Renewal
from batchq.worker.desk import Claimed, Declined, Desk
from tests.builders import a_group, a_pod


class Node:
    """One node with one pod bound to it, and a leader that folds when it is told to."""

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self.desk = Desk(store, "n1", patience_ms=30)
        self.ids = RandomIds()
        self.leader = LeaderDesk(store, self.ids)
        self.renewed: list[str] = []

    def put(self, **status: Any) -> None:
        group = a_group("g", status=PodGroupStatus(phase=PodGroupPhase.IN_QUEUE, admission=1))
        pod = a_pod(group, **{"phase": PodPhase.BOUND, "node": "n1", **status})
        self._commit(
            Write(kind="PodGroup", key="default/g", expect=0, value=group),
            Write(kind="Pod", key="g-1-0", expect=0, value=pod),
        )

    def change(self, **status: Any) -> None:
        """As the scheduler would."""
        pod = self.pod()
        after = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, **status))
        revision = pod.metadata.revision
        self._commit(
            Write(kind="Pod", key="g-1-0", expect=revision, value=after, fence=fence_of(pod))
        )

    def fold(self, _: int = 0) -> bool:
        self.leader.fold(["n1"], None)
        return True

    def claim(
        self, *, pause: Callable[[int], bool], renew: Callable[[str], Renewal] | None = None
    ) -> Claimed | Declined:
        return self.desk.claim("g-1-0", 1, author="horse", renew=renew or self._renew, pause=pause)

    def pod(self) -> Pod:
        pod = self.store.get("Pod", "g-1-0")
        assert isinstance(pod, Pod)
        return pod

    def phase(self) -> tuple[str, str]:
        return str(self.pod().status.phase), self.pod().status.reason

    def _renew(self, fence: str) -> Renewal:
        self.renewed.append(f"{fence}: {self.pod().status.phase}")
        return self.store.renew("n1", "g-1-0", 1, fence, 30_000)

    def _commit(self, *writes: Write) -> None:
        transaction = Transaction(subject="test", writes=writes)
        assert not self.store.commit([transaction], request_id=self.ids.new_uid()).refused


@pytest.fixture
def node(redis_store: RedisStore) -> Node:
    return Node(redis_store)


def test_a_claim_is_ours_once_it_is_folded(node: Node) -> None:
    node.put()
    claimed = node.claim(pause=node.fold)
    assert isinstance(claimed, Claimed)
    assert (claimed.pod.status.phase, claimed.pod.status.holder) == (PodPhase.RUNNING, "horse")
    assert claimed.group.metadata.name == "g"
    assert node.desk.pending() == []


def test_the_lease_is_taken_before_the_pod_runs(node: Node) -> None:
    node.put()
    node.claim(pause=node.fold)
    assert node.renewed == ["g 1 1: Bound"]


def test_what_is_not_bound_here_is_declined_without_a_word(node: Node) -> None:
    assert node.claim(pause=node.fold) == Declined(why="gone or superseded")
    node.put(node="n2")
    assert node.claim(pause=node.fold) == Declined(why="Bound on n2")
    node.change(node="n1")
    node.change(phase=PodPhase.RUNNING, holder="another horse")
    assert node.claim(pause=node.fold) == Declined(why="Running on n1")
    assert node.desk.pending() == []


def test_of_two_that_claim_one_attempt_one_is_declined(node: Node) -> None:
    node.put()

    def other_is_faster(_: int) -> bool:
        node.change(phase=PodPhase.RUNNING, holder="another horse")
        return True

    assert node.claim(pause=other_is_faster) == Declined(why="Running on n1")
    node.fold()
    assert node.pod().status.holder == "another horse"


def test_a_claim_that_was_folded_while_the_server_was_away_is_ours(node: Node) -> None:
    node.put(phase=PodPhase.BOUND)
    node.change(phase=PodPhase.RUNNING, holder="horse")
    assert isinstance(node.claim(pause=node.fold), Claimed)


def test_a_pod_that_is_to_stop_is_given_back(node: Node) -> None:
    node.put(terminating=True, reason="Suspended")
    assert node.claim(pause=node.fold) == Declined(why="stopped before it started")
    node.fold()
    assert node.phase() == ("Evicted", "Suspended")


def test_an_order_to_stop_that_overtakes_the_claim_is_heard(node: Node) -> None:
    node.put()

    def told_to_stop(_: int) -> bool:
        node.change(terminating=True, reason="Preempted")
        return True

    assert node.claim(pause=told_to_stop) == Declined(why="stopped before it started")
    node.fold()
    assert node.phase() == ("Evicted", "Preempted")


def test_a_claim_that_no_leader_folds_is_taken_back_in_the_end(node: Node) -> None:
    node.put()
    pauses: list[int] = []

    def nobody_leads(pause_ms: int) -> bool:
        pauses.append(pause_ms)
        until_later(pause_ms)
        return True

    declined = node.claim(pause=nobody_leads)
    assert declined == Declined(why="no scheduler let it start within 0 s")
    assert pauses[:4] == [2, 4, 8, 16]
    [left] = node.desk.pending()
    assert isinstance(left, Ended)
    node.fold()
    assert node.phase() == ("Evicted", "NodeLost")
    assert node.store.alive.leased("n1") == []


def test_a_claim_whose_node_goes_away_starts_nothing_later(node: Node) -> None:
    node.put()
    assert node.claim(pause=lambda _: False) == Declined(why="its node went away before it started")
    node.fold()
    assert node.phase() == ("Evicted", "NodeLost")


def test_a_claim_that_is_superseded_while_it_waits_is_dropped(node: Node) -> None:
    node.put()

    def evicted_and_bound_anew(_: int) -> bool:
        node.change(phase=PodPhase.EVICTED)
        node.change(phase=PodPhase.BOUND, attempt=2)
        return True

    assert node.claim(pause=evicted_and_bound_anew) == Declined(why="gone or superseded")
    node.fold()
    assert node.phase() == ("Bound", "")
    assert node.store.counts() == {"superseded": 1}


def test_an_end_takes_the_place_of_the_claim_and_ends_the_lease(node: Node) -> None:
    node.put()
    node.desk.post(Claim(pod="g-1-0", attempt=1, author="horse"))
    node.store.renew("n1", "g-1-0", 1, "g 1 1", 30_000)
    node.desk.ended("g-1-0", 1, Outcome(exit_code=0), author="horse")
    assert [type(fact) for fact in node.desk.pending()] == [Ended]
    assert node.store.alive.leased("n1") == []
    node.fold()
    assert node.phase() == ("Succeeded", "")


def until_later(pause_ms: int) -> None:
    """Let the time pass that a work-horse would wait."""
    threading.Event().wait(pause_ms / 1000)
