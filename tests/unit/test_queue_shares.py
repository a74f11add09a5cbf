"""Deserved shares and usage of queues: flat, in a tree, and during a session."""

from __future__ import annotations

from typing import Any

import pytest

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import Metadata, PodGroupStatus, Queue, QueueSpec
from batchq.api.reasons import Leaving
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.quota.fair_shares import (
    deserved_of_queues,
    fair_shares,
    note_admission,
    share_of_queue,
)
from batchq.core.session.session import Session
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import admit, create_pods, roll_back, wanted_ordinals
from tests.builders import (
    a_group,
    a_node,
    a_queue,
    a_running_group,
    a_snapshot,
    a_task,
    amounts,
)

_SCHEDULER = assemble(SchedulerConfig())


def _session(*objects: Any) -> Session:
    return _SCHEDULER.open(a_snapshot(*objects), 0)


def _queue(name: str, parent: str = "", *, weight: int = 1, **written: dict[str, Any]) -> Queue:
    """Return a queue whose resource maps are written as in a manifest."""
    maps = {field: amounts(**values) for field, values in written.items()}
    spec = QueueSpec(parent=parent, weight=weight, **maps)
    return Queue(metadata=Metadata(name=name), spec=spec)


def _cpu(session: Session) -> dict[str, int]:
    """Return the whole cpus that each queue deserves; `default` has no groups in these tests."""
    return {
        name: amounts["cpu"] // 1000
        for name, amounts in sorted(deserved_of_queues(session).items())
        if name not in ("root", "default")
    }


def _asking(**cpus: int) -> list[Any]:
    """Return this number of pending groups of one cpu for each queue."""
    return [
        a_group(f"of-{name}-{place}", queue=name)
        for name, count in cpus.items()
        for place in range(count)
    ]


@pytest.mark.parametrize(
    ("sentence", "objects", "deserved"),
    [
        (
            "who states what it deserves has exactly that, asked for or not",
            [_queue("a", deserved={"cpu": 6}), _queue("b"), _queue("c"), *_asking(b=9, c=9)],
            {"a": 6, "b": 2, "c": 2},
        ),
        (
            "stated amounts that exceed what there is leave nothing to share",
            [
                _queue("a", deserved={"cpu": 8}),
                _queue("b", deserved={"cpu": 8}),
                _queue("c"),
                *_asking(a=9, b=9, c=9),
            ],
            {"a": 8, "b": 8, "c": 0},
        ),
        (
            "who states nothing has at least its guarantee, asked for or not",
            [_queue("a", guarantee={"cpu": 4}), _queue("b"), *_asking(b=20)],
            {"a": 4, "b": 6},
        ),
        (
            "a guarantee holds where stated amounts leave nothing",
            [_queue("a", deserved={"cpu": 10}), _queue("b", guarantee={"cpu": 1}), *_asking(b=9)],
            {"a": 10, "b": 1},
        ),
        (
            "no queue deserves more than its capability",
            [_queue("a", capability={"cpu": 3}), _queue("b"), *_asking(a=9, b=9)],
            {"a": 3, "b": 7},
        ),
        (
            "weight 0 deserves nothing, or what is guaranteed to it",
            [
                _queue("a", weight=0),
                _queue("b", weight=0, guarantee={"cpu": 2}),
                _queue("c"),
                *_asking(a=9, b=9, c=9),
            ],
            {"a": 0, "b": 2, "c": 8},
        ),
        (
            "a level shares what its parent deserves",
            [
                _queue("x", weight=3),
                _queue("x1", "x"),
                _queue("x2", "x", weight=2),
                _queue("y"),
                *_asking(x1=20, x2=20, y=20),
            ],
            {"x": 7, "x1": 2, "x2": 5, "y": 2},
        ),
        (
            "a queue above asks for what its children ask for",
            [_queue("x"), _queue("x1", "x"), _queue("x2", "x"), _queue("y"), *_asking(x1=2, y=20)],
            {"x": 2, "x1": 2, "x2": 0, "y": 8},
        ),
        (
            "a queue above asks for no more than its children may hold",
            [
                _queue("x"),
                _queue("x1", "x", capability={"cpu": 1}),
                _queue("x2", "x"),
                _queue("y"),
                *_asking(x1=9, x2=2, y=20),
            ],
            {"x": 3, "x1": 1, "x2": 2, "y": 7},
        ),
        (
            "the capability of a queue above bounds its children together",
            [
                _queue("x", capability={"cpu": 4}),
                _queue("x1", "x"),
                _queue("x2", "x"),
                _queue("y"),
                *_asking(x1=9, x2=9, y=20),
            ],
            {"x": 4, "x1": 2, "x2": 2, "y": 6},
        ),
        (
            "what is guaranteed to children is guaranteed to the queue above",
            [_queue("x"), _queue("x1", "x", guarantee={"cpu": 4}), _queue("y"), *_asking(y=20)],
            {"x": 4, "x1": 4, "y": 6},
        ),
        (
            "children share what their parent states, not what they ask for",
            [_queue("x", deserved={"cpu": 6}), _queue("x1", "x"), _queue("y"), *_asking(x1=2, y=9)],
            {"x": 6, "x1": 2, "y": 4},
        ),
        (
            "the root's own deserved takes the place of the nodes",
            [_queue("root", deserved={"cpu": 4}), _queue("a"), _queue("b"), *_asking(a=9, b=9)],
            {"a": 2, "b": 2},
        ),
        (
            "cordoned and silent nodes are not shared out",
            [
                a_node("n2", cpu=10, cordoned=True),
                a_node("n3", cpu=10, ready=False),
                _queue("a"),
                _queue("b"),
                *_asking(a=30, b=30),
            ],
            {"a": 5, "b": 5},
        ),
        (
            "an ineligible group asks for nothing",
            [
                _queue("a"),
                _queue("b"),
                a_group("s", cpu=9, queue="a", suspend=True),
                *_asking(b=30),
            ],
            {"a": 0, "b": 10},
        ),
        (
            "a group that is too large for the cluster asks for nothing",
            [_queue("a"), _queue("b"), a_group("huge", cpu=11, queue="a"), *_asking(b=10)],
            {"a": 0, "b": 10},
        ),
    ],
)
def test_queues_deserve_their_shares_of_ten_cpus(
    sentence: str, objects: list[Any], deserved: dict[str, int]
) -> None:
    assert _cpu(_session(a_node(cpu=10), *objects)) == deserved


def test_two_levels_of_a_tree_sum_up_to_the_root() -> None:
    session = _session(
        a_node(cpu=12),
        *(_queue("x"), _queue("x1", "x"), _queue("x2", "x"), _queue("y")),
        *a_running_group("one", cpu=4, queue="x1"),
        *a_running_group("two", cpu=2, queue="x2"),
        *_asking(x1=9, y=9),
    )
    assert _cpu(session) == {"x": 6, "x1": 4, "x2": 2, "y": 6}
    shares = {name: share_of_queue(session, name).rounded() for name in ("x", "x1", "x2", "y")}
    assert shares == {"x": 1.0, "x1": 1.0, "x2": 1.0, "y": 0.0}
    assert share_of_queue(session, "root").rounded() == 0.5


def test_every_dimension_is_shared_separately() -> None:
    session = _session(
        a_node(cpu=8, memory="8Gi"),
        *(_queue("a", deserved={"cpu": 6}), _queue("b", guarantee={"gpu": 2})),
        a_group("g", tasks=(a_task(requests={"cpu": 8, "memory": "6Gi"}),), queue="a"),
        a_group("h", tasks=(a_task(requests={"cpu": 8, "memory": "6Gi"}),), queue="b"),
    )
    gib = 2**30
    assert deserved_of_queues(session) == {
        "root": {"cpu": 8000, "gpu": 0, "memory": 8 * gib, "pods": 10**12},
        "a": {"cpu": 6000, "gpu": 0, "memory": 4 * gib, "pods": 1000},
        "b": {"cpu": 2000, "gpu": 2000, "memory": 4 * gib, "pods": 1000},
        "default": {"cpu": 0, "gpu": 0, "memory": 0, "pods": 0},
    }


def test_pods_count_only_in_the_share_of_a_queue_that_states_deserved_pods() -> None:
    session = _session(
        a_node(cpu=8),
        *(_queue("a", deserved={"cpu": 4, "pods": 2}), _queue("b", deserved={"cpu": 4})),
        *a_running_group("one", cpu=1, queue="a"),
        *a_running_group("two", cpu=1, queue="b"),
    )
    assert share_of_queue(session, "a").rounded() == 0.5
    assert share_of_queue(session, "b").rounded() == 0.25


def test_the_demand_of_a_queue_counts_a_reservation_once() -> None:
    reserved = PodGroupStatus(
        phase=PodGroupPhase.PENDING, reserved_at=0, reservation=amounts(cpu=4, pods=1)
    )
    session = _session(
        a_node(cpu=10),
        *(_queue("a"), _queue("b")),
        a_group("g", cpu=4, queue="a", status=reserved),
        *_asking(b=20),
    )
    assert _cpu(session) == {"a": 4, "b": 6}
    assert fair_shares(session).demands["a"] == amounts(cpu=4, pods=1) | {"podgroups": 1000}


def _admit(session: Session, name: str) -> None:
    group = session.by_key[f"default/{name}"]
    with Statement(session) as statement:
        admit(statement, group, reservation=group.reservation)
        create_pods(statement, group, wanted_ordinals(group))
        statement.commit()
    note_admission(session, group)


def test_an_admitted_elastic_group_requests_all_its_pods() -> None:
    session = _session(
        a_node(cpu=10),
        *(_queue("x"), _queue("x1", "x"), _queue("y")),
        a_group("wide", 8, queue="x1", min_member=1),
        *_asking(y=4),
    )
    assert _cpu(session) == {"x": 1, "x1": 1, "y": 4}
    _admit(session, "wide")
    assert _cpu(session) == {"x": 6, "x1": 6, "y": 4}


def test_the_admission_of_a_full_gang_does_not_change_what_its_queue_deserves() -> None:
    gang = a_group("gang", 4, queue="a")
    session = _session(a_node(cpu=10), _queue("a"), _queue("b"), gang, *_asking(b=9))
    assert _cpu(session) == {"a": 4, "b": 6}
    _admit(session, "gang")
    assert _cpu(session) == {"a": 4, "b": 6}
    assert share_of_queue(session, "a").rounded() == 1.0


def test_an_eviction_does_not_change_what_queues_deserve() -> None:
    session = _session(
        a_node(cpu=10),
        *(_queue("a"), _queue("b")),
        *a_running_group("runs", 6, queue="a"),
        *_asking(b=9),
    )
    assert _cpu(session) == {"a": 5, "b": 5}
    victim = session.by_key["default/runs"]
    with Statement(session) as statement:
        roll_back(statement, victim, Leaving.RECLAIMED)
        assert _cpu(session) == {"a": 5, "b": 5}


def test_an_admission_that_changes_no_request_updates_only_its_path() -> None:
    session = _session(
        a_node(cpu=90),
        *(_queue("x"), _queue("x1", "x"), _queue("x2", "x"), _queue("y")),
        a_group("wide", 8, queue="x1", min_member=1),
        *_asking(x2=4, y=4),
    )
    shares = fair_shares(session)
    _admit(session, "wide")
    assert set(shares.moved) == {"x", "x1"}
    assert _cpu(session) == {"x": 12, "x1": 8, "x2": 4, "y": 4}


def test_a_queue_limited_by_its_weight_does_not_deserve_more_for_a_larger_request() -> None:
    session = _session(
        a_node(cpu=4, pods=4),
        *(_queue("a"), _queue("b")),
        a_group("wide", 8, queue="a", min_member=4),
        a_group("gang", 4, queue="b"),
    )
    shares = fair_shares(session)
    assert _cpu(session) == {"a": 2, "b": 2}
    _admit(session, "wide")
    assert shares.moved == []
    assert _cpu(session) == {"a": 2, "b": 2}


_GI = 2**30


def _asks(queue: str, cpu: str | int, memory: str | int = 0, **more: str | int) -> list[Any]:
    task = a_task(requests={"cpu": cpu, "memory": memory, **more})
    return [a_group(f"waits-{queue}", tasks=(task,), queue=queue, min_resources={})]


def _holds(queue: str, cpu: str | int, memory: str | int = 0) -> list[Any]:
    task = a_task(requests={"cpu": cpu, "memory": memory})
    return list(a_running_group(f"runs-{queue}", cpu=cpu, tasks=(task,), queue=queue))


@pytest.mark.parametrize(
    ("case", "node", "weights", "groups", "deserved"),
    [
        (
            "W01: a tutorial's two queues",
            {"cpu": 9, "memory": "27Gi"},
            {"q1": 2, "q2": 4},
            [*_asks("q1", 5, "10Gi"), *_asks("q2", 9, "20Gi")],
            {"q1": (3000, 9 * _GI), "q2": (6000, 18 * _GI)},
        ),
        (
            "W03: both get what they ask for",
            {"cpu": 10, "memory": "10Gi"},
            {"q1": 1, "q2": 1},
            [*_asks("q1", 2, "2Gi"), *_asks("q2", 3, "3Gi")],
            {"q1": (2000, 2 * _GI), "q2": (3000, 3 * _GI)},
        ),
        (
            "W04: three queues, one of which asks for little; fractions round down",
            {"cpu": 12, "memory": "12Gi"},
            {"q1": 1, "q2": 1, "q3": 2},
            [*_asks("q1", 1, "1Gi"), *_asks("q2", 12, "12Gi"), *_asks("q3", 12, "12Gi")],
            {"q1": (1000, _GI), "q2": (3666, 3937053354), "q3": (7333, 7874106709)},
        ),
        (
            "W07: asking for just what one deserves",
            {"cpu": 4, "memory": "4Gi"},
            {"q1": 1, "q2": 1},
            [*_asks("q1", 2, "2Gi"), *_asks("q2", 2, "2Gi")],
            {"q1": (2000, 2 * _GI), "q2": (2000, 2 * _GI)},
        ),
        (
            "W13: weight 0 alone",
            {"cpu": 10, "memory": "10Gi"},
            {"q1": 0},
            _asks("q1", 2, "2Gi"),
            {"q1": (0, 0)},
        ),
        (
            "W15: a queue that asks for nothing",
            {"cpu": 10, "memory": "10Gi"},
            {"q1": 1, "q2": 1},
            _asks("q2", 10, "10Gi"),
            {"q1": (0, 0), "q2": (10000, 10 * _GI)},
        ),
        (
            "W18: more is held than there is since a node was lost",
            {"cpu": 4, "memory": "4Gi"},
            {"q1": 1, "q2": 1},
            [*_holds("q1", 8, "8Gi"), *_asks("q2", 2, "2Gi")],
            {"q1": (2000, 2 * _GI), "q2": (2000, 2 * _GI)},
        ),
        (
            "W21: four queues that ask for more and more",
            {"cpu": 12, "memory": "12Gi"},
            {"q1": 1, "q2": 1, "q3": 1, "q4": 1},
            [
                *_asks("q1", 1, "1Gi"),
                *_asks("q2", 3, "3Gi"),
                *_asks("q3", 4, "4Gi"),
                *_asks("q4", 10, "10Gi"),
            ],
            {
                "q1": (1000, _GI),
                "q2": (3000, 3 * _GI),
                "q3": (4000, 4 * _GI),
                "q4": (4000, 4 * _GI),
            },
        ),
        (
            "W22: one holds half a cpu and no memory",
            {"cpu": 6, "memory": "12Gi"},
            {"q1": 1, "q2": 1},
            [*_asks("q1", 5, "5Gi"), *_holds("q2", "500m")],
            {"q1": (5000, 5 * _GI), "q2": (500, 0)},
        ),
        # kube-batch differs in these cases, because it caps a queue in all dimensions or in none.
        (
            "W06: who asks for no memory deserves none, though there is plenty",
            {"cpu": 6, "memory": "60Gi"},
            {"q1": 1, "q2": 1},
            [*_holds("q1", 2), *_asks("q2", 6)],
            {"q1": (2000, 0), "q2": (4000, 0)},
        ),
        (
            "W10: that no node has gpus does not lift the cap on cpus",
            {"cpu": 10, "memory": "10Gi", "gpu": 0},
            {"q1": 1, "q2": 1},
            [*_asks("q1", 2, "2Gi", gpu=0), *_asks("q2", 10, "10Gi", gpu=0)],
            {"q1": (2000, 2 * _GI), "q2": (8000, 8 * _GI)},
        ),
    ],
)
def test_water_filling_matches_the_cases_of_kube_batch(
    case: str,
    node: dict[str, Any],
    weights: dict[str, int],
    groups: list[Any],
    deserved: dict[str, tuple[int, int]],
) -> None:
    queues = [a_queue(name, weight=weight) for name, weight in weights.items()]
    shared = deserved_of_queues(_session(a_node(**node), *queues, *groups))
    assert {name: (shared[name]["cpu"], shared[name]["memory"]) for name in weights} == deserved


def test_a_request_beyond_the_cluster_deserves_nothing_here_and_a_part_in_kube_batch() -> None:
    """W12: a group that requests a missing gpu can never run, so its request does not count.

    kube-batch counts its cpus, and the missing gpu removes the cap on them.
    """
    session = _session(
        a_node(cpu=10), *(_queue("q1"), _queue("q2")), *_asks("q1", 2, gpu=1), *_asks("q2", 10)
    )
    assert _cpu(session) == {"q1": 0, "q2": 10}


def test_a_gpu_is_deserved_only_by_queues_that_ask_for_it() -> None:
    """W09, as in kube-batch."""
    session = _session(
        a_node(cpu=10, memory="10Gi", gpu=4),
        *(_queue("q1"), _queue("q2")),
        *_asks("q1", 2, "2Gi"),
        a_group("wide", 2, tasks=(a_task("w", 2, requests={"cpu": 2, "gpu": 2}),), queue="q2"),
    )
    shared = deserved_of_queues(session)
    assert (shared["q1"]["gpu"], shared["q2"]["gpu"]) == (0, 4000)


def test_a_share_just_below_one_is_below_one() -> None:
    """W19: kube-batch ignores 9 milli-cores and considers the queue overused."""
    session = _session(a_node(cpu=2), _queue("q1"), *_holds("q1", "1991m"), *_asks("q1", 1))
    assert share_of_queue(session, "q1").rounded() == 0.9955


def test_without_nodes_no_queue_deserves_anything() -> None:
    """W16."""
    assert _cpu(_session(_queue("q1", capability={"cpu": 4}), *_asking(q1=2))) == {"q1": 0}


@pytest.mark.parametrize("admitted", ["first", "second"])
def test_a_group_admitted_before_shares_are_computed_counts_once_in_the_demand(
    admitted: str,
) -> None:
    groups = (a_group(name, 1, cpu=2, queue="a") for name in ("first", "second", "third"))
    session = _session(a_node(cpu=9), a_queue("a"), *groups)
    group = session.by_key[f"default/{admitted}"]
    with Statement(session) as statement:
        admit(statement, group, reservation=group.reservation)
        create_pods(statement, group, wanted_ordinals(group))
        statement.commit()
    assert fair_shares(session).demands["a"]["cpu"] == 6000
