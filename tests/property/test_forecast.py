"""The forecast comes true: the group fits when the expected ends have happened, and not before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import Pod, PodGroup
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.estimates import earliest_start
from batchq.core.expected_ends import ExpectedEnd, ends
from batchq.core.kept_capacity import awaits_victims, gives_way_to
from batchq.core.placement.trial import refused_by_nodes
from batchq.core.quota.limit_checks import over_any_limit
from batchq.core.session.session import Session
from tests.builders import a_queue, a_running_group, decide
from tests.property.worlds import dump, worlds

_SCHEDULER = assemble(SchedulerConfig())


@st.composite
def worlds_with_walltimes(draw: st.DrawFn) -> list[Any]:
    """Draw clusters in which some groups run since 0 and some groups have walltimes."""
    world = [one for one in draw(worlds()) if getattr(one.metadata, "name", "") != "r"]
    world = [one for one in world if not (isinstance(one, Pod) and one.status.group_uid == "r")]
    guarantee = draw(st.integers(0, 3))
    if guarantee:
        world.append(a_queue("c", guarantee={"cpu": guarantee * 1000}))
    for place in range(draw(st.integers(0, 4))):
        pods = draw(st.integers(1, 3))
        world += a_running_group(
            f"r{place}",
            pods,
            node="n0",
            cpu=draw(st.integers(1, 2)),
            queue=draw(st.sampled_from(["a", "b"])),
            min_member=draw(st.integers(1, pods)),
        )
    walltimes = st.one_of(st.none(), st.integers(1, 5).map(lambda minutes: minutes * 60_000))
    stopping = st.sampled_from([None, None, 0, 40_000])
    return [_varied(one, draw(walltimes), draw(stopping)) for one in world]


def _varied(one: Any, walltime: int | None, told_at: int | None) -> Any:
    if isinstance(one, PodGroup):
        return structs.replace(one, spec=structs.replace(one.spec, walltime=walltime))
    if isinstance(one, Pod) and told_at is not None:
        status = structs.replace(one.status, terminating=True, terminating_at=told_at)
        return structs.replace(one, status=status)
    return one


def after(session: Session, ended: Iterable[ExpectedEnd]) -> Session:
    """Open a new session in the state after all these ends."""
    gone = {pod.metadata.uid for end in ended for pod in end.pods}
    whole = {end.group.uid for end in ended if end.whole}
    groups, pods = [], {}
    for group in session.groups.values():
        status = group.status
        if group.uid in whole:
            status = structs.replace(status, phase=PodGroupPhase.COMPLETED, reserved_at=None)
        groups.append(structs.replace(group.record, status=status))
        pods[group.uid] = tuple(
            pod
            for uid, pod in group.pods.items()
            if uid not in gone and not (group.uid in whole and not pod.status.terminating)
        )
    snapshot = structs.replace(session.snapshot, groups=tuple(groups), pods=pods)
    return _SCHEDULER.open(snapshot, session.now_ms)


@given(worlds_with_walltimes())
def test_the_group_fits_when_the_ends_have_come_and_not_before(world: list[Any]) -> None:
    session = decide(*world, now_ms=50_000).session
    known = ends(session)
    for group in session.groups.values():
        if group.phase != PodGroupPhase.PENDING:
            continue
        result = earliest_start(session, group)
        others = [end for end in known if end.group is not group]
        reached = others if result.at is None else [end for end in others if end.at <= result.at]
        before = [end for end in reached if result.at is None or end.at < result.at]
        # The resources that a victim holds until it stops are pledged to its preemptor.
        own = [end for end in known if end.group is group and not end.whole]
        if result.at is not None:
            later = after(session, [*own, *reached])
            assert over_any_limit(later, later.groups[group.uid]) == []
            assert not refused_by_nodes(later, later.groups[group.uid])
            named = [end for end in reached if end.group.key in result.ended]
            enough = after(session, [*own, *named])
            assert over_any_limit(enough, enough.groups[group.uid]) == []
            assert not refused_by_nodes(enough, enough.groups[group.uid])
        # Neither a preemptor nor its victims start before the victims have stopped.
        pledged = awaits_victims(session, group) or gives_way_to(session, group) is not None
        if result.at is None or (result.at > session.now_ms and not pledged):
            sooner = after(session, [*own, *before])
            then = sooner.groups[group.uid]
            # A group that exceeds the machines is refused whatever ends.
            against = over_any_limit(sooner, then) or sooner.refusals_at("admissible", then)
            assert against or refused_by_nodes(sooner, then)


@given(worlds_with_walltimes())
def test_a_forecast_does_not_change_the_session(world: list[Any]) -> None:
    session = decide(*world, now_ms=50_000).session
    before = dump(session)
    for group in session.groups.values():
        earliest_start(session, group)
    assert dump(session) == before
