"""An object table's snapshots share unchanged parts, and hold the latest objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from msgspec import structs

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Metadata, Pod, PodGroup, PodSpec, PodStatus
from batchq.core.chunks import ByUid, Rows
from batchq.core.session.snapshot import Snapshot, says_the_same
from batchq.store.memory import MANY, ObjectTable
from tests.builders import a_node, a_queue


def group(name: str, *, revision: int = 0) -> PodGroup:
    return PodGroup(metadata=Metadata(name=name, namespace="n", uid=f"u-{name}", revision=revision))


def pod(uid: str, owner: str) -> Pod:
    return Pod(
        metadata=Metadata(name=uid, namespace="n", uid=uid),
        spec=PodSpec(pod_group=owner, task="w"),
        status=PodStatus(group_uid=f"u-{owner}"),
    )


def a_table() -> ObjectTable:
    table = ObjectTable()
    for name in ("b", "a"):
        table.put("PodGroup", f"n/{name}", group(name))
        for number in (2, 1):
            table.put("Pod", f"{name}{number}", pod(f"{name}{number}", name))
    return table


def names(snapshot: Snapshot) -> list[str]:
    return [one.metadata.name for one in snapshot.groups]


def uids(pods: Mapping[str, tuple[Pod, ...]]) -> dict[str, list[str]]:
    return {group: [one.metadata.uid for one in of_it] for group, of_it in pods.items()}


def test_groups_and_pods_are_in_order() -> None:
    snapshot = a_table().snapshot(1)
    assert names(snapshot) == ["a", "b"]
    assert uids(snapshot.pods) == {"u-a": ["a1", "a2"], "u-b": ["b1", "b2"]}
    assert isinstance(snapshot.groups, Rows)
    assert isinstance(snapshot.pods, ByUid)
    assert type(snapshot.queues) is tuple


def test_a_snapshot_stays_as_it_was_taken() -> None:
    table = a_table()
    before = table.snapshot(1)
    table.remove("PodGroup", "n/a")
    table.remove("Pod", "a1")
    table.remove("Pod", "a2")
    table.put("Pod", "b3", pod("b3", "b"))
    assert names(before) == ["a", "b"]
    assert uids(before.pods) == {"u-a": ["a1", "a2"], "u-b": ["b1", "b2"]}
    after = table.snapshot(2)
    assert names(after) == ["b"]
    assert uids(after.pods) == {"u-b": ["b1", "b2", "b3"]}


def test_the_pods_of_a_group_are_one_object_until_one_of_them_changes() -> None:
    table = a_table()
    before = table.snapshot(1)
    table.put("Pod", "a1", pod("a1", "a"))
    after = table.snapshot(2)
    assert after.pods["u-b"] is before.pods["u-b"]
    assert after.pods["u-a"] is not before.pods["u-a"]
    assert after.groups is before.groups


def test_snapshots_that_differ_in_heartbeats_and_leases_share_their_objects() -> None:
    table = a_table()
    table.put("Node", "n1", a_node("n1"))
    before = table.snapshot(1)
    table.set_beats({"n1": 77})
    table.set_leases({"a1": 88})
    after = table.snapshot(2)
    assert after.nodes[0].status.heartbeat == 77
    assert says_the_same(before, after)


def test_a_group_that_changed_is_the_one_difference() -> None:
    table = a_table()
    before = table.snapshot(1)
    table.put("PodGroup", "n/b", group("b", revision=2))
    after = table.snapshot(2)
    assert not says_the_same(before, after)
    former, now = cast(Rows[PodGroup], before.groups), cast(Rows[PodGroup], after.groups)
    assert list(now.differences(former)) == [("n/b", group("b"), group("b", revision=2))]
    assert after.pods is before.pods


def test_a_pod_that_moves_to_another_group_is_in_that_group_only() -> None:
    table = a_table()
    table.snapshot(1)
    table.put("Pod", "a1", pod("a1", "b"))
    assert [one.metadata.uid for one in table.pods_of("u-a")] == ["a2"]
    assert uids(table.snapshot(2).pods) == {"u-a": ["a2"], "u-b": ["a1", "b1", "b2"]}


def test_the_pods_of_a_group_are_known_between_snapshots() -> None:
    table = a_table()
    assert [one.metadata.uid for one in table.pods_of("u-a")] == ["a1", "a2"]
    table.remove("Pod", "a1")
    assert [one.metadata.uid for one in table.pods_of("u-a")] == ["a2"]
    table.remove("Pod", "a2")
    assert table.pods_of("u-a") == ()
    assert uids(table.snapshot(1).pods) == {"u-b": ["b1", "b2"]}


def test_filling_a_table_equals_adding_each_object() -> None:
    running = pod("a1", "a")
    status = structs.replace(running.status, node="n9", phase=PodPhase.RUNNING)
    running = structs.replace(running, status=status)
    filled, put = ObjectTable(), ObjectTable()
    pods = {"b1": pod("b1", "b"), "a1": running, "a2": pod("a2", "a")}
    filled.fill("Pod", pods)
    filled.fill("Queue", {"q": a_queue("q")})
    for key, one in pods.items():
        put.put("Pod", key, one)
    put.put("Queue", "q", a_queue("q"))
    assert filled.snapshot(1) == put.snapshot(1)
    assert filled.nodes_in_use() == put.nodes_in_use() == ["n9"]
    assert filled.get("Pod", "a2") == pod("a2", "a")
    assert filled.keys_after("Pod", "a1", 5) == ["a2", "b1"]


def test_objects_are_listed_by_namespace() -> None:
    table = a_table()
    other = PodGroup(metadata=Metadata(name="a", namespace="nn", uid="u-x"))
    table.put("PodGroup", "nn/a", other)
    assert [one.metadata.name for one in table.list("PodGroup", "n")] == ["a", "b"]
    assert table.list("PodGroup", "nn") == (other,)
    assert len(table.list("PodGroup", "")) == 3
    assert [one.metadata.name for one in table.list("Pod", "n")] == ["a1", "a2", "b1", "b2"]


def placed(uid: str, node: str, phase: PodPhase = PodPhase.RUNNING) -> Pod:
    one = pod(uid, "a")
    return structs.replace(one, status=structs.replace(one.status, node=node, phase=phase))


def test_nodes_are_in_use_while_pods_are_on_them() -> None:
    table = ObjectTable()
    table.put("Node", "n1", a_node("n1"))
    table.put("Pod", "a1", placed("a1", "n2"))
    table.put("Pod", "a2", placed("a2", "n3"))
    table.put("Pod", "a2", placed("a2", "n2"))
    assert table.nodes_in_use() == ["n1", "n2"]
    assert table.on_node("a2") == placed("a2", "n2")
    table.put("Pod", "a2", placed("a2", "n2", PodPhase.SUCCEEDED))
    assert table.on_node("a2") is None
    assert table.nodes_in_use() == ["n1", "n2"]
    table.remove("Pod", "a1")
    assert table.nodes_in_use() == ["n1"]


def test_nodes_are_the_same_objects_until_they_or_their_beats_change() -> None:
    table = a_table()
    table.put("Node", "n1", a_node("n1"))
    table.set_beats({"n1": 77})
    before = table.snapshot(1)
    table.put("PodGroup", "n/c", group("c"))
    assert table.snapshot(2).nodes is before.nodes
    table.set_beats({"n1": 78})
    assert [one.status.heartbeat for one in table.snapshot(3).nodes] == [78]
    table.put("Node", "n2", a_node("n2"))
    assert [one.metadata.name for one in table.snapshot(4).nodes] == ["n1", "n2"]
    table.set_beats({})
    assert [one.status.heartbeat for one in table.snapshot(5).nodes] == [None, None]


def test_a_group_grows_to_many_pods_and_shrinks_again() -> None:
    table = ObjectTable()
    wanted = [f"a{number:04}" for number in range(MANY + 2)]
    for uid in reversed(wanted):
        table.put("Pod", uid, pod(uid, "a"))
    assert [one.metadata.uid for one in table.pods_of("u-a")] == wanted
    assert uids(table.snapshot(1).pods) == {"u-a": wanted}
    for uid in wanted[3:]:
        table.remove("Pod", uid)
    assert uids(table.snapshot(2).pods) == {"u-a": wanted[:3]}
    table.put("Pod", "a9999", pod("a9999", "a"))
    assert uids(table.snapshot(3).pods) == {"u-a": [*wanted[:3], "a9999"]}
