"""Which queues may give capacity back to which queues, by hand-worked examples."""

from __future__ import annotations

from typing import Any

from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.quota.selector import Borrowers
from batchq.core.session.session import Session
from batchq.core.session.statement import Statement
from tests.builders import a_node, a_queue, a_running_group, a_snapshot, amounts

_SCHEDULER = assemble(SchedulerConfig())


def _session(*running: tuple[str, str]) -> Session:
    """Open a session with organisations x and y: each deserves 2 cpus, and each of its queues 1."""
    queues = [
        a_queue(name, parent=name[0] if len(name) > 1 else "", deserved=amounts(cpu=3 - len(name)))
        for name in ("x", "x1", "x2", "y", "y1", "y2")
    ]
    objects: list[Any] = [a_node("n1", cpu=9), *queues]
    for name, queue in running:
        objects += a_running_group(name, node="n1", queue=queue)
    return _SCHEDULER.open(a_snapshot(*objects), 0)


def test_a_queue_that_borrows_within_its_organisation_gives_back_only_there() -> None:
    session = _session(("a", "x1"), ("b", "x1"))
    borrowers = Borrowers(session, "reclaimable")
    assert borrowers.givers("x2") == ["x1"]
    assert borrowers.givers("y1") == []
    assert borrowers.others("y1") == ["x1"]


def test_a_queue_that_borrows_from_another_organisation_also_gives_back_there() -> None:
    session = _session(("a", "x1"), ("b", "x1"), ("c", "x1"))
    borrowers = Borrowers(session, "reclaimable")
    assert borrowers.givers("x2") == ["x1"]
    assert borrowers.givers("y1") == ["x1"]
    assert borrowers.givers("x1") == []


def test_the_set_of_borrowers_shrinks_as_they_give_back() -> None:
    session = _session(("a", "x1"), ("b", "x1"), ("c", "x1"))
    borrowers = Borrowers(session, "reclaimable")
    assert borrowers.exist_beside("y1")
    for name, left in (("c", True), ("b", False)):
        group = session.by_key[f"default/{name}"]
        with Statement(session) as statement:
            for uid in list(group.pods):
                statement.drop_pod(group, uid)
            statement.set_status(group, reserved_at=None, reservation={})
            assert borrowers.givers("y1") == []
            assert borrowers.exist_beside("y1") is left
            statement.commit()
