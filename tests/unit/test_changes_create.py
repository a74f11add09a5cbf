"""Creating an object: its writes, charges and limits, and the refusals."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from batchq.api.manifest import decode
from batchq.api.objects import Node, Object, PodGroup, Queue
from batchq.api.transaction import Word
from batchq.client import changes
from batchq.errors import BatchqError, Conflict, InvalidInput, NotFound, Rejected
from batchq.store.memory import MemoryStore

NOW = 1_000_000


class World:
    """A store, and methods that write to it."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self._count = 0

    def make(self, kind: str, name: str, spec: Any = None, **metadata: Any) -> None:
        """Create an object, which must be accepted."""
        self.commit(self.asked(kind, name, spec, **metadata))

    def asked(self, kind: str, name: str, spec: Any = None, **metadata: Any) -> Any:
        self._count += 1
        obj = read(kind, name, spec, **metadata)
        return changes.create(self.store, obj, now_ms=NOW, uid=f"uid{self._count}")

    def commit(self, transaction: Any) -> None:
        self._count += 1
        refused = self.store.commit([transaction], request_id=f"r{self._count}").refused
        if refused:
            raise changes.explain_refusal(refused[0])

    def group(self, key: str) -> PodGroup:
        group = self.store.get("PodGroup", key)
        assert isinstance(group, PodGroup)
        return group


def read(kind: str, name: str, spec: Any = None, **metadata: Any) -> Object:
    data = {
        "apiVersion": "batchq/v1",
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "spec": spec,
    }
    return decode(data)


def work(**spec: Any) -> dict[str, Any]:
    return {"tasks": [{"name": "w", "template": {"command": ["true"]}}], **spec}


@pytest.fixture
def world() -> World:
    return World()


def test_a_new_group_is_pending_with_a_new_uid_and_creation_time(world: World) -> None:
    world.make("PodGroup", "a", work(), uid="mine", creationTimestamp=5, revision=7)
    group = world.group("default/a")
    assert group.metadata.uid == "uid1"
    assert group.metadata.creation_timestamp == NOW
    assert group.status.phase == "Pending"
    assert group.status.queue_time == NOW
    (event,) = world.store.events(kind="PodGroup", key="default/a")
    assert (event.reason, event.at) == ("Submitted", NOW)


def test_a_status_in_a_submission_is_ignored(world: World) -> None:
    data = {
        "apiVersion": "batchq/v1",
        "kind": "PodGroup",
        "metadata": {"name": "a"},
        "spec": work(),
        "status": {"phase": "Running", "admission": 3},
    }
    world.commit(changes.create(world.store, decode(data), now_ms=NOW, uid="u"))
    status = world.group("default/a").status
    assert (status.phase, status.admission) == ("Pending", 0)


def test_a_described_cluster_keeps_its_statuses_and_needs_no_command_or_queue(world: World) -> None:
    obj = read(
        "PodGroup", "a", {"queue": "none", "tasks": [{"name": "w"}]}, uid="7", creationTimestamp=3
    )
    world.commit(changes.create(world.store, obj, now_ms=NOW, uid="u", described=True))
    group = world.group("default/a")
    assert (group.metadata.uid, group.metadata.creation_timestamp) == ("7", 3000)
    assert group.status.queue_time == 3000


def test_a_second_object_of_a_name_is_refused(world: World) -> None:
    world.make("PodGroup", "a", work())
    with pytest.raises(Conflict) as caught:
        world.asked("PodGroup", "a", work())
    assert caught.value.message == "PodGroup default/a exists already and is Pending"
    world.make("PodGroup", "a", work(), namespace="other")


def test_a_race_for_a_name_is_reported_as_a_conflict(world: World) -> None:
    first, second = (world.asked("PodGroup", "a", work()) for _ in range(2))
    world.commit(first)
    with pytest.raises(Conflict) as caught:
        world.commit(second)
    assert caught.value.message == "PodGroup default/a exists already"


def test_a_missing_queue_is_refused_with_the_nearest_name(world: World) -> None:
    world.make("Queue", "batch")
    with pytest.raises(NotFound) as caught:
        world.asked("PodGroup", "a", work(queue="bach"))
    assert caught.value.message == "PodGroup default/a: spec.queue: there is no queue 'bach'"
    assert caught.value.hint == "did you mean batch?"


def test_a_queue_refuses_groups_of_namespaces_that_it_does_not_accept(world: World) -> None:
    world.make("Queue", "gpu", {"namespaces": ["lab", "course"]})
    world.make("PodGroup", "a", work(queue="gpu"), namespace="lab")
    with pytest.raises(Rejected) as caught:
        world.asked("PodGroup", "a", work(queue="gpu"), namespace="home")
    assert caught.value.message == (
        "PodGroup home/a: spec.queue: queue gpu accepts only groups of namespaces course and lab,"
        " not of home"
    )
    assert caught.value.hint == (
        "name another queue (default) or another namespace, or have home added to spec.namespaces"
        " of gpu"
    )


def test_each_queue_above_must_accept_the_namespace_of_a_group_too(world: World) -> None:
    world.make("Queue", "root", {"namespaces": ["lab", "course", "default"]})
    world.make("Queue", "school", {"namespaces": ["lab", "course"]})
    world.make("Queue", "gpu", {"parent": "school", "namespaces": ["lab"]})
    world.make("Queue", "cpu", {"parent": "school"})
    world.make("PodGroup", "a", work(queue="gpu"), namespace="lab")
    world.make("PodGroup", "a", work(queue="cpu"), namespace="course")
    world.make("PodGroup", "a", work(), namespace="default")
    assert refused(world, queue="gpu", namespace="course") == (
        "PodGroup course/b: spec.queue: queue gpu accepts only groups of namespace lab, not of"
        " course: name another queue (cpu, default) or another namespace, or have course added to"
        " spec.namespaces of gpu"
    )
    assert refused(world, queue="gpu", namespace="home") == (
        "PodGroup home/b: spec.queue: queue gpu accepts only groups of namespace lab, not of home:"
        " name another namespace, or have home added to spec.namespaces of root, school, gpu"
    )
    assert refused(world, queue="default", namespace="home") == (
        "PodGroup home/b: spec.queue: queue default accepts only groups of namespaces course,"
        " default and lab, not of home: name another namespace, or have home added to"
        " spec.namespaces of root"
    )


def refused(world: World, *, queue: str, namespace: str) -> str:
    """Return the message and the hint of a refused submission."""
    with pytest.raises(Rejected) as caught:
        world.asked("PodGroup", "b", work(queue=queue), namespace=namespace)
    return f"{caught.value.message}: {caught.value.hint}"


def test_a_queue_that_shares_no_namespace_with_those_above_accepts_no_group(world: World) -> None:
    world.make("Queue", "school", {"namespaces": ["course"]})
    world.make("Queue", "gpu", {"parent": "school", "namespaces": ["lab"]})
    with pytest.raises(Rejected) as caught:
        world.asked("PodGroup", "a", work(queue="gpu"), namespace="lab")
    assert caught.value.message == (
        "PodGroup lab/a: spec.queue: queue gpu accepts groups of no namespace: its spec.namespaces"
        " and those of the queues above it have none in common"
    )
    assert caught.value.hint == (
        "name another queue (default), or have lab added to spec.namespaces of school"
    )


def test_ten_of_many_accepted_namespaces_are_named(world: World) -> None:
    world.make("Queue", "gpu", {"namespaces": [f"n{number}" for number in range(10, 22)]})
    with pytest.raises(Rejected) as caught:
        world.asked("PodGroup", "a", work(queue="gpu"))
    assert caught.value.message == (
        "PodGroup default/a: spec.queue: queue gpu accepts only groups of namespaces n10, n11, n12,"
        " n13, n14, n15, n16, n17, n18, n19 and 2 more, not of default"
    )


def test_a_name_that_no_namespace_can_have_is_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        read("Queue", "gpu", {"namespaces": ["lab", "Lab_2"]})
    assert caught.value.message == (
        "Queue gpu: spec.namespaces[1]: expected at most 63 lower-case letters, digits and '-',"
        " with a letter or digit at both ends, found 'Lab_2'"
    )


def test_a_queue_that_accepts_all_namespaces_is_stored_without_a_list_of_them() -> None:
    assert msgspec.json.encode(read("Queue", "q", {"weight": 2, "namespaces": None})) == (
        b'{"metadata":{"name":"q"},"spec":{"weight":2}}'
    )
    stored = b'{"metadata":{"name":"q"},"spec":{"weight":2}}'
    assert msgspec.json.decode(stored, type=Queue).spec.namespaces == ()


def test_the_default_queue_always_exists(world: World) -> None:
    world.make("PodGroup", "a", work())
    transaction = changes.found_defaults(world.store, now_ms=NOW, uid="u")
    world.commit(transaction)
    assert changes.found_defaults(world.store, now_ms=NOW, uid="u") is None


def test_the_root_queue_accepts_no_groups(world: World) -> None:
    world.make("Queue", "root", {"capability": {"cpu": 4}})
    with pytest.raises(Rejected, match="the root queue holds no groups"):
        world.asked("PodGroup", "a", work(queue="root"))


def test_a_missing_priority_class_is_refused(world: World) -> None:
    with pytest.raises(NotFound) as caught:
        world.asked("PodGroup", "a", work(priorityClassName="high"))
    assert caught.value.message == (
        "PodGroup default/a: spec.priorityClassName: there is no priority class 'high'"
    )
    assert caught.value.hint == (
        "there is none; make one: echo '{apiVersion: batchq/v1, kind: PriorityClass, metadata:"
        " {name: high}, spec: {value: 100}}' | batchq apply -f -"
    )


def test_a_second_default_priority_class_is_refused(world: World) -> None:
    world.make("PriorityClass", "low", {"default": True})
    with pytest.raises(Rejected) as caught:
        world.asked("PriorityClass", "high", {"default": True})
    assert caught.value.message == (
        "PriorityClass high: spec.default: PriorityClass low is the default already"
    )


def test_a_dependency_stores_the_uid_of_the_named_group(world: World) -> None:
    world.make("PodGroup", "a", work())
    world.make("PodGroup", "b", work(dependsOn=[{"name": "a", "uid": "forged"}]))
    (dependency,) = world.group("default/b").spec.depends_on
    assert dependency.uid == world.group("default/a").metadata.uid


def test_a_dependency_must_exist_in_the_same_namespace(world: World) -> None:
    world.make("PodGroup", "train", work(), namespace="other")
    world.make("PodGroup", "training", work())
    with pytest.raises(NotFound) as caught:
        world.asked("PodGroup", "b", work(dependsOn=[{"name": "train"}]))
    assert caught.value.message == (
        "PodGroup default/b: spec.dependsOn: there is no PodGroup default/train"
    )
    assert caught.value.hint == "did you mean training?"


def test_a_group_cannot_depend_on_itself(world: World) -> None:
    with pytest.raises(Rejected) as caught:
        world.asked("PodGroup", "a", work(dependsOn=[{"name": "a"}]))
    assert caught.value.message == (
        "PodGroup default/a: spec.dependsOn[0]: a group cannot depend on itself"
    )


def test_groups_of_one_file_are_ordered_by_their_dependencies() -> None:
    def needs(name: str, *others: str) -> Object:
        return read("PodGroup", name, work(dependsOn=[{"name": other} for other in others]))

    given = [
        needs("c", "b"),
        needs("x"),
        needs("b", "a", "outside"),
        needs("a"),
        read("Queue", "q"),
    ]
    names = [item.metadata.name for item in changes.in_order(given)]
    assert names == ["q", "x", "a", "b", "c"]


def test_a_cycle_of_dependencies_in_one_file_is_refused() -> None:
    given = [
        read("PodGroup", "a", work(dependsOn=[{"name": "b"}])),
        read("PodGroup", "b", work(dependsOn=[{"name": "c"}])),
        read("PodGroup", "c", work(dependsOn=[{"name": "a"}])),
    ]
    with pytest.raises(Rejected, match="goes in a circle") as caught:
        changes.in_order(given)
    way = caught.value.message.rpartition(": ")[2].split(" -> ")
    assert "".join(way) in ("abca", "bcab", "cabc")


def test_ten_thousand_groups_in_a_chain_are_ordered() -> None:
    chain = [
        read("PodGroup", f"g{number}", work(dependsOn=[{"name": f"g{number + 1}"}]))
        for number in range(10_000)
    ]
    assert changes.in_order(chain)[0].metadata.name == "g9999"


def test_a_quota_limits_the_unfinished_groups_of_a_namespace(world: World) -> None:
    world.make("ResourceQuota", "q", {"hard": {"podgroups": 2, "cpu": 1}}, namespace="team")
    world.make("PodGroup", "a", work(), namespace="team")
    world.make("PodGroup", "b", work(), namespace="team")
    with pytest.raises(Rejected) as caught:
        world.make("PodGroup", "c", work(), namespace="team")
    assert caught.value.message == (
        "PodGroup team/c: namespace team allows at most 2 unfinished pod groups, and has 2"
    )
    assert world.store.get("PodGroup", "team/c") is None
    world.commit(changes.cancel(world.store, "team/a", now_ms=NOW))
    world.make("PodGroup", "c", work(), namespace="team")


def test_the_tightest_of_several_quotas_counts(world: World) -> None:
    world.make("ResourceQuota", "one", {"hard": {"podgroups": 5, "cpu": 1}}, namespace="team")
    transaction = world.asked(
        "ResourceQuota", "two", {"hard": {"podgroups": 3, "memory": 0}}, namespace="team"
    )
    limits = {limit.scope: limit.amounts for limit in transaction.limits}
    assert limits == {
        "ns:team": {"cpu": 1000, "memory": 0, "podgroups": 3000},
        "objects:team": {"podgroups": 3000},
    }


def test_a_queue_with_a_capability_limits_its_groups(world: World) -> None:
    spec = {"capability": {"cpu": 3, "gpu": 0}, "overcommit": 1.5, "maxPodGroups": 2}
    transaction = world.asked("Queue", "q", spec)
    (limit,) = transaction.limits
    assert (limit.scope, limit.amounts) == ("queue:q", {"cpu": 4500, "gpu": 0, "podgroups": 2000})
    (limit,) = world.asked("Queue", "free").limits
    assert limit.amounts is None


def test_a_node_adds_to_the_cluster_and_limits_itself(world: World) -> None:
    world.make("Node", "n1", {"resources": {"cpu": 4, "memory": "8Gi"}})
    has = {"cpu": 4000, "memory": 8 * 2**30, "pods": 10**12}
    assert world.store.ledger() == {"capacity": has}
    node = world.store.get("Node", "n1")
    assert isinstance(node, Node)
    assert (node.status.ready, node.status.heartbeat) == (True, NOW)
    (limit,) = world.asked("Node", "n2", {"resources": {"cpu": 1, "pods": 9}}).limits
    assert (limit.scope, limit.amounts) == ("node:n2", {"cpu": 1000, "pods": 9000})


def test_a_node_that_is_not_ready_adds_nothing(world: World) -> None:
    data = {
        "apiVersion": "batchq/v1",
        "kind": "Node",
        "metadata": {"name": "n"},
        "spec": {"resources": {"cpu": 4}},
        "status": {"ready": False},
    }
    world.commit(changes.create(world.store, decode(data), now_ms=NOW, uid="u", described=True))
    assert world.store.ledger() == {}


def test_pods_cannot_be_created_by_users(world: World) -> None:
    with pytest.raises(Rejected) as caught:
        world.asked("Pod", "g-w-0", {"podGroup": "g", "task": "w"})
    assert caught.value.message == (
        "Pod default/g-w-0: batchq makes pods from the tasks of a PodGroup, and deletes them with"
        " it"
    )


def test_an_invalid_object_is_refused_before_the_store_is_read(
    world: World,
) -> None:
    with pytest.raises(InvalidInput, match=r"spec\.minMember: expected at least 1"):
        world.asked("PodGroup", "a", work(minMember=0))
    with pytest.raises(InvalidInput, match=r"spec\.weight: expected"):
        world.asked("Queue", "a", {"parent": "b", "weight": -1})


@pytest.mark.parametrize("word", [word for word in Word if word is not Word.OK])
def test_every_refusal_of_the_store_becomes_an_error_message(world: World, word: Word) -> None:
    from batchq.api.transaction import Answer, Refusal

    answer = Answer(word=word, subject="queue:q", resource="cpu", need=1, limit=2, seen=2)
    refusal = Refusal(transaction=world.asked("PodGroup", "a", work()), answer=answer)
    error = changes.explain_refusal(refusal)
    assert isinstance(error, BatchqError)
    assert error.message.startswith("PodGroup default/a")
    assert error.exit_code == (12 if word is Word.LIMIT else 8)
