"""Votes are pure: every plugin at every point gives the same answers twice, in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from batchq.api.lifecycle import ON_NODE
from batchq.assembly import BUILTIN_PLUGINS, assemble
from batchq.config import PluginEntry, SchedulerConfig
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Settings
from batchq.core.session.state import GroupState, Shortage, Victim
from tests.builders import a_priority, a_snapshot
from tests.property.worlds import dump, worlds
from tests.unit.voting import running

_SCHEDULER = assemble(
    SchedulerConfig(
        plugins=tuple(PluginEntry(name=name) for name in BUILTIN_PLUGINS),
        plugin_config={
            "sla": {"waitingTime": "2s"},
            "overcommit": {"factor": 0.5, "queues": {"a": 0.5}},
            "binpack": {"weights": {"cpu": 2}},
        },
        settings=Settings(min_runtime_ms=2_000),
    )
)
_NOW_MS = 3_000


@st.composite
def crowded(draw: st.DrawFn) -> list[Any]:
    """Draw a cluster with priorities and with running groups that could be victims."""
    world: list[Any] = [a_priority("high", 5), *draw(worlds())]
    for place in range(draw(st.integers(1, 4))):
        pods = draw(st.integers(1, 3))
        world += running(
            f"v{place}",
            pods,
            minimum=draw(st.integers(1, pods)),
            node="n0",
            started=draw(st.integers(0, 2_000)),
            queue=draw(st.sampled_from(["a", "b"])),
            namespace=draw(st.sampled_from(["default", "system"])),
            priority_class_name=draw(st.sampled_from(["", "high"])),
        )
    return world


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    """Draw a session before or after its actions."""
    snapshot = a_snapshot(*draw(crowded()))
    if draw(st.booleans()):
        session = _SCHEDULER.open(snapshot, _NOW_MS)
    else:
        session = _SCHEDULER.decide(snapshot, _NOW_MS)
    return session


def victims(group: GroupState) -> Iterator[Victim]:
    """Yield all pods of a group as a victim, and each of its pods."""
    pods = tuple(pod for pod in group.pods.values() if pod.status.phase in ON_NODE)
    yield Victim(group, pods, whole=True)
    for pod in pods:
        yield Victim(group, (pod,), whole=False)


def subjects(session: Session, point: str) -> Iterator[tuple[Any, ...]]:
    """Return all possible arguments of a point."""
    groups = list(session.groups.values())
    match point:
        case "queueOrder":
            yield from ((queue,) for queue in session.queues.values())
        case "podOrder":
            yield from ((group, pod) for group in groups for pod in group.pods.values())
        case "predicate" | "score":
            shapes = [shape for group in groups for shape in group.tasks]
            yield from (
                (shape, node) for shape in shapes for node in session.nodes.by_name.values()
            )
        case "preemptable" | "reclaimable":
            yield from (
                (preemptor, victim, Shortage(frozenset(lacking)))
                for preemptor in groups
                for other in groups
                if other is not preemptor
                for victim in victims(other)
                for lacking in ((), ("cpu",), ("pods", "gpu"))
            )
        case _:
            yield from ((group,) for group in groups)


def questions(session: Session) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return every plugin's function at every point, with all its possible arguments."""
    asked = [
        (entry.function, subject)
        for name, point in session.plugins.points.items()
        for entry in point
        for subject in subjects(session, name)
    ]
    return [*asked, *((_instants, (clock,)) for clock in session.plugins.clocks)]


def _instants(session: Session, clock: Callable[[Session], Iterable[int]]) -> list[int]:
    return list(clock(session))


@given(sessions(), st.randoms(use_true_random=False))
def test_a_plugin_called_twice_in_any_order_gives_the_same_answer_without_side_effects(
    session: Session, chance: Any
) -> None:
    asked = questions(session)
    before = dump(session)
    first = [function(session, *subject) for function, subject in asked]
    again = list(range(len(asked)))
    chance.shuffle(again)
    second: dict[int, Any] = {}
    for place in again:
        function, subject = asked[place]
        second[place] = function(session, *subject)
    assert [second[place] for place in range(len(asked))] == first
    assert dump(session) == before


def test_every_builtin_plugin_and_every_point_is_covered() -> None:
    session = _SCHEDULER.open(a_snapshot(*running("v")), _NOW_MS)
    names = {entry.plugin for point in session.plugins.points.values() for entry in point}
    assert names == set(BUILTIN_PLUGINS)
    assert all(session.plugins.points.values())
