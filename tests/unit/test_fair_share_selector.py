"""Which queue is served next, by hand-worked examples."""

from __future__ import annotations

from typing import Any

from batchq.assembly import assemble
from batchq.config import DEFAULT_PLUGINS, SchedulerConfig
from batchq.core.quota.fair_shares import note_admission
from batchq.core.quota.selector import FairShareSelector
from batchq.core.session.session import Session
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import admit, create_pods, wanted_ordinals
from tests.builders import a_group, a_node, a_queue, a_running_group, a_snapshot, amounts, decide

_SCHEDULER = assemble(SchedulerConfig())


def _session(*objects: Any) -> Session:
    return _SCHEDULER.open(a_snapshot(*objects), 0)


def _admit(session: Session, name: str) -> None:
    group = session.by_key[f"default/{name}"]
    with Statement(session) as statement:
        admit(statement, group, reservation=group.reservation)
        create_pods(statement, group, wanted_ordinals(group))
        statement.commit()
    note_admission(session, group)


def _turns(session: Session, names: list[str]) -> FairShareSelector:
    """The selector of queues in which nothing waits, so that their age decides between equals."""
    return FairShareSelector(session, names, lambda name: None)


def _tree() -> list[Any]:
    return [a_queue("x"), a_queue("x1", parent="x"), a_queue("x2", parent="x"), a_queue("y")]


def test_a_charge_changes_the_shares_of_all_ancestors() -> None:
    waiting = [a_group(f"in-{name}", queue=name) for name in ("x1", "x2", "y")]
    session = _session(a_node(cpu=9), *_tree(), *waiting)
    turns = _turns(session, ["x1", "x2", "y"])
    assert turns.next() == "x1"
    _admit(session, "in-x1")
    # x2 holds nothing yet, but x does.
    assert turns.next() == "y"
    _admit(session, "in-y")
    assert turns.next() == "x2"


def test_a_tree_is_served_level_by_level() -> None:
    groups = [
        a_group(f"{name}-{place}", queue=name) for name in ("x1", "x2", "y") for place in range(3)
    ]
    decided = decide(a_node(cpu=4), *_tree(), *groups)
    assert decided.admitted == ["default/x1-0", "default/y-0", "default/x2-0", "default/y-1"]


def test_an_admission_in_another_queue_may_change_what_a_queue_deserves_and_its_turn() -> None:
    session = _session(
        a_node(cpu=16),
        *(a_queue("a", weight=3), a_queue("b"), a_queue("c", deserved=amounts(cpu=4))),
        *a_running_group("of-b", cpu=3, queue="b"),
        *a_running_group("of-c", cpu=2, queue="c"),
        *(a_group(f"more-{place}", queue="b") for place in range(9)),
        a_group("wide", 8, queue="a", min_member=1),
    )
    turns = _turns(session, ["b", "c"])
    assert turns.next() == "b"  # 3 of 11, and c 2 of 4
    _admit(session, "wide")
    assert turns.next() == "c"  # 3 of 4, and c 2 of 4


def test_an_undone_admission_gives_a_turn_back() -> None:
    session = _session(a_node(cpu=9), *_tree(), a_group("g", queue="x1"), a_group("h", queue="y"))
    turns = _turns(session, ["x1", "y"])
    group = session.by_key["default/g"]
    with Statement(session) as statement:
        admit(statement, group, reservation=group.reservation)
        assert turns.next() == "y"
    assert turns.next() == "x1"


def test_a_queue_without_pending_groups_leaves_the_turns_to_its_siblings() -> None:
    session = _session(a_node(cpu=9), *_tree())
    turns = _turns(session, ["x1", "x2", "y"])
    served = []
    while (name := turns.next()) is not None:
        served.append(name)
        turns.drop(name)
    assert served == ["x1", "x2", "y"]


def test_an_inner_queue_with_groups_of_its_own_comes_before_its_children() -> None:
    turns = _turns(_session(*_tree()), ["x1", "x", "y"])
    served = []
    while (name := turns.next()) is not None:
        served.append(name)
        turns.drop(name)
    assert served == ["x", "x1", "y"]


def test_a_single_pending_queue_belongs_to_the_root_and_needs_no_key() -> None:
    plugins = tuple(entry for entry in DEFAULT_PLUGINS if entry.name != "proportion")
    session = assemble(SchedulerConfig(plugins=plugins)).open(a_snapshot(a_node(cpu=1)), 0)
    turns = _turns(session, ["root"])
    assert turns.next() == "root"
    turns.drop("root")
    assert turns.next() is None
