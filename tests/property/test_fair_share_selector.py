"""For any tree and any changes, the fair-share selector follows the keys of all queues, and
deserved shares equal those computed from scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from math import inf
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from batchq.api.objects import Metadata, Queue, QueueSpec
from batchq.api.reasons import Leaving
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.chunks import uid_order
from batchq.core.pending_queue import blockers, waits_in_line
from batchq.core.quota import ROOT
from batchq.core.quota.fair_shares import FAIR_SHARES, FairShares, fair_shares, note_admission
from batchq.core.quota.selector import FairShareSelector
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import admit, create_pods, roll_back, wanted_ordinals
from tests.builders import a_group, a_node, a_snapshot, a_task, amounts

_SCHEDULER = assemble(SchedulerConfig())
_FEW = st.integers(0, 4)


@st.composite
def _trees(draw: st.DrawFn) -> list[Queue]:
    """Draw a tree of up to twelve queues with their optional fields."""
    queues: list[Queue] = []
    for place in range(draw(st.integers(1, 12))):
        parent = draw(st.sampled_from(["", *(queue.metadata.name for queue in queues)]))
        maps = {
            field: amounts(cpu=draw(_FEW))
            for field in ("guarantee", "deserved", "capability")
            if draw(st.integers(0, 3)) == 0
        }
        meta = Metadata(
            name=f"q{place}", uid=f"q{place}", creation_timestamp=draw(st.integers(0, 1))
        )
        spec = QueueSpec(parent=parent, weight=draw(st.integers(0, 3)), **maps)
        queues.append(Queue(metadata=meta, spec=spec))
    if draw(st.booleans()):
        queues.append(Queue(metadata=Metadata(name="root"), spec=QueueSpec(deserved={"cpu": 9000})))
    return queues


@st.composite
def _sessions(draw: st.DrawFn) -> Session:
    queues = draw(_trees())
    parents = {queue.spec.parent for queue in queues} | {"root"}
    leaves = [queue.metadata.name for queue in queues if queue.metadata.name not in parents]
    groups = [
        a_group(
            f"g{place}",
            tasks=(a_task("w", pods, requests={"cpu": draw(st.integers(0, 3)), "gpu": 1}),),
            queue=draw(st.sampled_from([*leaves, "default"])),
            min_member=draw(st.integers(1, pods)),
        )
        for place, pods in enumerate(draw(st.lists(st.integers(1, 4), max_size=12)))
    ]
    nodes = [a_node(cpu=draw(st.integers(3, 40)), gpu=draw(st.integers(1, 40)))]
    return _SCHEDULER.open(a_snapshot(*nodes, *queues, *groups), 0)


def _happens(session: Session, data: st.DataObject) -> Iterator[GroupState]:
    """Admit and requeue groups, and undo some of these changes at once."""
    for group in session.groups.values():
        what = data.draw(st.sampled_from(["nothing", "admit", "admit", "undo", "leave"]), group.key)
        if what != "nothing":
            _admit(session, group, undo=what == "undo")
        if what == "leave":
            with Statement(session) as statement:
                roll_back(statement, group, Leaving.RECLAIMED)
                statement.commit()
        yield group


def _admit(session: Session, group: GroupState, *, undo: bool) -> None:
    with Statement(session) as statement:
        admit(statement, group, reservation=group.reservation)
        create_pods(statement, group, wanted_ordinals(group))
        if undo:
            return
        statement.commit()
    note_admission(session, group)


def _age(session: Session, name: str) -> Any:
    meta = session.queues[name].record.metadata
    return meta.creation_timestamp or 0, meta.uid, name


def _lowest(
    session: Session, parent: str, turns: Container[str], first: Callable[[str], GroupState | None]
) -> tuple[str, Any] | None:
    """Return the queue at or below a parent that is to be served, and its head: level by level,
    the lowest share, then the oldest head, then the oldest queue.
    """
    if parent in turns:
        group = first(parent)
        return parent, (inf,) if group is None else (group.queue_time, group.uid)
    found = [
        (*session.level_key(session.queues[name])[:1], below[1], _age(session, name), below)
        for name in session.tree.children_of.get(parent, ())
        if (below := _lowest(session, name, turns, first)) is not None
    ]
    return min(found)[-1] if found else None


@given(_sessions(), st.data())
def test_the_next_queue_has_the_lowest_share_and_then_the_oldest_head_of_all(
    session: Session, data: st.DataObject
) -> None:
    names = [name for name in session.queues if data.draw(st.booleans(), name)]
    waiting = {
        name: [group for group in session.groups.values() if group.queue == name] for name in names
    }

    def first(name: str) -> GroupState | None:
        return next(iter(waiting[name]), None)

    def lowest() -> str | None:
        found = _lowest(session, ROOT, names, first)
        return None if found is None else found[0]

    turns = FairShareSelector(session, list(names), first)
    assert turns.next() == lowest()
    for _ in _happens(session, data):
        name = turns.next()
        assert name == lowest()
        if name is not None and data.draw(st.booleans(), "its first group is tried"):
            del waiting[name][:1]
            assert turns.next() == lowest()
        if names and data.draw(st.booleans(), "one is served no more"):
            gone = data.draw(st.sampled_from(names))
            names.remove(gone)
            turns.drop(gone)
            assert turns.next() == lowest()
    while names:
        name = turns.next()
        assert name == lowest()
        assert name is not None
        names.remove(name)
        turns.drop(name)
    assert turns.next() is None


@given(_sessions(), st.data())
def test_groups_that_would_be_refused_in_turn_can_be_left_out(
    session: Session, data: st.DataObject
) -> None:
    refused = {
        group.uid for group in session.groups.values() if data.draw(st.booleans(), group.key)
    }
    may_grow = any(group.is_elastic for group in session.groups.values())

    def served(*, leaves_out: bool) -> list[str]:
        lines = {
            name: [one for one in session.groups.values() if one.queue == name]
            for name in session.queues
        }
        skipped: dict[str, list[GroupState]] = {name: [] for name in lines}

        def first(name: str) -> GroupState | None:
            line = lines[name]
            while leaves_out and not may_grow and line and line[0].uid in refused:
                skipped[name].append(line.pop(0))
            return (
                max([*skipped[name], line[0]], key=lambda one: uid_order(one.uid)) if line else None
            )

        names = [
            name
            for name, line in lines.items()
            if line and not (leaves_out and {one.uid for one in line} <= refused)
        ]
        turns = FairShareSelector(
            session, names, first, waits=lambda name: leaves_out and bool(lines[name])
        )
        found: list[str] = []
        with Statement(session) as trial:
            while (name := turns.next()) is not None:
                skipped[name].clear()
                if not lines[name]:
                    turns.drop(name)
                elif (group := lines[name].pop(0)).uid not in refused:
                    found.append(group.key)
                    admit(trial, group, reservation=group.reservation)
                    create_pods(trial, group, wanted_ordinals(group))
                    note_admission(session, group)
        session.put(FAIR_SHARES, None)
        return found

    assert served(leaves_out=True) == served(leaves_out=False)


@given(_sessions(), st.data())
def test_deserved_shares_follow_admissions_as_if_computed_from_scratch(
    session: Session, data: st.DataObject
) -> None:
    shares = fair_shares(session)
    for group in session.groups.values():
        verdicts = blockers(session, group)
        asks = not verdicts or waits_in_line(verdicts)
        if not asks or not data.draw(st.booleans(), f"admit {group.key}"):
            continue
        former = {name: dict(amounts) for name, amounts in shares.deserved.items()}
        seen = len(shares.moved)
        _admit(session, group, undo=False)
        assert shares.deserved == FairShares(session).deserved
        changed = {name for name, amounts in shares.deserved.items() if amounts != former[name]}
        assert changed == set(shares.moved[seen:])
