"""Groups that a scheduler takes in at its start without building their states."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import (
    Dependency,
    Launch,
    PodGroup,
    PodGroupSpec,
    PodGroupStatus,
    Retry,
    SchedulingGate,
    key_of,
)
from batchq.api.reasons import Verdict
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.chunks import Rows
from batchq.core.extension import PluginTraits, everywhere
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Snapshot
from batchq.core.session.state import GroupState
from batchq.core.unbuilt_states import GroupStates
from batchq.scheduler.cycle import Scheduler
from tests.builders import a_group, a_node, a_pod, a_queue, a_snapshot, a_task

FULL = 2
_MODEL = a_group("g0", 1)


def _like(name: str, created: int = 0, **status: object) -> PodGroup:
    """Return a group with the very spec of all others."""
    group = a_group(name, 1, created=created)
    return structs.replace(group, spec=_MODEL.spec, status=PodGroupStatus(**status))


def _stored(*groups: PodGroup) -> Snapshot:
    """Return a snapshot as a store makes it."""
    world = a_snapshot(a_queue("default"), a_node("n1", cpu=FULL))
    return structs.replace(world, groups=Rows.of((key_of(group), group) for group in groups))


def _opened(*groups: PodGroup) -> Session:
    return assemble(SchedulerConfig()).open(_stored(*groups), 0)


def _unbuilt(session: Session) -> list[str]:
    return [entry[1].metadata.name for entry in _states(session).unbuilt.values()]


def _states(session: Session) -> GroupStates:
    return cast(GroupStates, session.groups)


def _five() -> Session:
    return _opened(*(_like(f"g{number}", created=10 - number) for number in range(5)))


def test_all_but_the_first_of_equal_waiting_groups_are_taken_in_without_states() -> None:
    session = _five()
    assert _unbuilt(session) == ["g1", "g2", "g3", "g4"]
    assert len(session.groups) == len(session.by_key) == 5
    (peers,) = session.queues["default"].line.classes.values()
    assert len(peers) == 5
    assert [list(uids) for uids in peers.by_reasons.values()] == [list(session.groups)]


def test_a_group_is_found_by_its_uid_and_its_key_as_one_state_that_is_built_once() -> None:
    session = _five()
    uid = next(iter(_states(session).unbuilt))
    assert uid in session.groups
    assert "default/g1" in session.by_key
    group = session.by_key["default/g1"]
    assert group is session.groups[uid] is session.groups.get(uid)
    assert group is session.by_key.get("default/g1")
    assert _unbuilt(session) == ["g2", "g3", "g4"]
    other = session.groups.get(next(iter(_states(session).unbuilt)))
    assert other is session.by_key["default/g2"]
    assert len(session.groups) == len(session.by_key) == 5


def test_a_group_that_is_not_there_is_not_found() -> None:
    session = _five()
    assert session.groups.get("no") is session.by_key.get("default/no") is None
    assert "no" not in session.groups
    assert "default/no" not in session.by_key
    with pytest.raises(KeyError):
        session.groups["no"]
    with pytest.raises(KeyError):
        session.by_key["default/no"]
    with pytest.raises(KeyError):
        session.groups.pop("no")
    assert session.groups.pop("no", None) is None


def test_members_without_states_are_in_order_and_the_same_states_everywhere() -> None:
    session = _five()
    (peers,) = session.queues["default"].line.classes.values()
    first = peers.members.first()
    assert first is not None
    assert first[1] is session.by_key["default/g4"]
    assert _unbuilt(session) == ["g1", "g2", "g3"]
    following = peers.members.after(first[0])
    assert following is not None
    assert following[1].record.metadata.name == "g3"
    names = [group.record.metadata.name for group in peers.members]
    assert names == ["g4", "g3", "g2", "g1", "g0"]
    backwards = [group.record.metadata.name for _, group in peers.members.pairs_backwards()]
    assert backwards == names[::-1]
    assert all(session.groups[group.uid] is group for group in peers.members)


def test_every_state_is_built_for_who_asks_for_all() -> None:
    session = _five()
    assert [group.uid for group in session.groups.values()] == [uid for uid, _ in _by_uid(session)]
    assert sorted(session.by_key) == [f"default/g{number}" for number in range(5)]
    assert {group.key for group in session.by_key.values()} == set(session.by_key)
    assert not _unbuilt(session)


def _by_uid(session: Session) -> list[tuple[str, GroupState]]:
    return list(session.groups.items())


def test_a_record_that_claims_the_uid_of_another_is_not_found_by_its_key() -> None:
    one, other = _like("g1"), _like("g2")
    claims = structs.replace(other.metadata, uid=one.metadata.uid)
    session = _opened(_like("g0"), one, structs.replace(other, metadata=claims))
    assert _unbuilt(session) == ["g1"]
    assert "default/g2" not in session.by_key
    assert session.by_key.get("default/g2") is None
    assert session.by_key["default/g1"].record is one


def test_a_group_with_more_to_say_than_that_it_waits_has_a_state() -> None:
    session = _opened(
        _like("g0"),
        _like("g1", backoff_until=5_000),
        _like("g2", places={"w": ("n1",)}),
        _like("g3", reasons=(Verdict(plugin="capacity", reason="ExceedsCapacity"),)),
    )
    assert _unbuilt(session) == ["g3"]
    assert len(session.carried.placed) == 1


def test_a_group_that_waits_again_with_its_ended_pods_does_not_stop_a_scheduler_at_its_start() -> (
    None
):
    """The class of its equals has no member with its reasons."""
    why = (Verdict(plugin="capacity", reason="ExceedsCapacity"),)
    again = _like("g1", created=1, reasons=why)
    world = _stored(*(_like(f"g{number}", created=number) for number in (0, 2, 3, 4)), again)
    failed = a_pod(again, phase=PodPhase.FAILED)
    world = structs.replace(world, pods={again.metadata.uid: (failed,)})
    session = assemble(SchedulerConfig()).decide(world, 0)
    assert [group.key for group in session.queues["default"].line.in_order()] == ["default/g1"]
    (peers,) = session.queues["default"].line.classes.values()
    assert all(peers.by_reasons.values())
    admitted = {group.key for group in session.effects.touched.values() if group.status.admission}
    assert admitted == {"default/g0", "default/g1"}


@pytest.mark.parametrize("in_rows", [True, False])
def test_groups_with_equal_specs_and_statuses_of_their_own_are_taken_in_without_states(
    *, in_rows: bool
) -> None:
    groups = tuple(a_group(f"g{number}", 1, created=number) for number in range(4))
    world = _stored(*groups)
    if not in_rows:
        # As a snapshot described by hand.
        world = structs.replace(world, groups=groups)
    session = assemble(SchedulerConfig()).open(world, 0)
    assert _unbuilt(session) == ["g1", "g2", "g3"]
    (peers,) = session.queues["default"].line.classes.values()
    assert [list(uids) for uids in peers.by_reasons.values()] == [["g0", "g1", "g2", "g3"]]
    first, second = session.by_key["default/g0"], session.by_key["default/g1"]
    assert second.record is groups[1]
    assert second.shape is first.shape
    assert second.scopes is first.scopes
    assert (second.chain, second.priority) == (first.chain, first.priority)
    assert "default/no" not in session.by_key


#: Another value of each field of a spec.
_CHANGES = {
    "queue": "other",
    "min_member": 1,
    "min_resources": {"cpu": 2_000},
    "priority_class_name": "high",
    "scheduling_gates": (SchedulingGate(name="release"),),
    "suspend": True,
    "walltime": 1_000,
    "retry": Retry(limit=1),
    "ttl_after_finished": 1_000,
    "depends_on": (Dependency(name="g0", uid="g0"),),
    "controller": "external",
    "token": "self",
    "share": "namespace",
    "launch": Launch(),
    "topology": {"rack": "required"},
    "exclusive": True,
    "max_pods_per_node": 1,
    "pack": True,
    "tasks": (a_task("w", 1, command=("true",)),),
}


@pytest.mark.parametrize("changed", PodGroupSpec.__struct_fields__)
def test_a_group_whose_spec_differs_in_any_field_is_taken_in_for_itself(changed: str) -> None:
    groups = [a_group(f"g{number}", 1, created=number) for number in range(3)]
    spec = structs.replace(groups[1].spec, **{changed: _CHANGES[changed]})
    session = _opened(groups[0], structs.replace(groups[1], spec=spec), groups[2])
    assert _unbuilt(session) == ["g2"]


def test_unbuilt_groups_of_each_namespace_form_their_own_class() -> None:
    places = [("default", "g0"), ("other", "g1"), ("default", "g2"), ("other", "g3")]
    session = _opened(*(a_group(name, 1, namespace=namespace) for namespace, name in places))
    assert _unbuilt(session) == ["g2", "g3"]
    classes = session.queues["default"].line.classes.values()
    found = [[group.namespace for group in peers.members] for peers in classes]
    assert found == [["default", "default"], ["other", "other"]]


class ByName:
    name = "by-name"

    def group_order(self, session: Session, group: GroupState) -> str:
        return group.key


class ByNameForGood(ByName):
    traits = PluginTraits(order_lasts=True)


@pytest.mark.parametrize("plugin", [ByName(), ByNameForGood()])
def test_a_plugin_that_may_order_equal_groups_differently_is_asked_about_each(
    plugin: ByName,
) -> None:
    scheduler = assemble(SchedulerConfig())
    beside = everywhere([(plugin, 1)])
    standing = {point: (*beside[point], *scheduler.plugins[point]) for point in beside}
    groups = [_like(f"g{number}", created=10 - number) for number in range(3)]
    session = replace(scheduler, plugins=standing).open(_stored(*groups), 0)
    assert not _unbuilt(session)
    (peers,) = session.queues["default"].line.classes.values()
    assert [group.record.metadata.name for group in peers.members] == ["g0", "g1", "g2"]


def test_a_scheduler_admits_and_forgets_groups_that_it_took_in_without_states() -> None:
    scheduler: Scheduler = assemble(SchedulerConfig())
    groups = [_like(f"g{number}", created=number) for number in range(6)]
    session = scheduler.decide(_stored(*groups), 0)
    admitted = [group.key for group in session.effects.touched.values() if group.status.admission]
    assert admitted == ["default/g0", "default/g1"]
    # One is deleted, another one edited, and both while they have no states.
    edited = structs.replace(groups[4], spec=structs.replace(_MODEL.spec, suspend=True))
    session = scheduler.decide(_stored(*groups[:3], edited, groups[5]), 1)
    assert sorted(session.by_key) == [f"default/g{number}" for number in (0, 1, 2, 4, 5)]
    line = session.queues["default"].line
    assert [group.key for group in line.singles.values()] == ["default/g4"]
