"""Groups are admitted as if the pods were bound already that more important groups of their queue
could bind now; what these pods take is found once, and not for each group that is tried.
"""

from __future__ import annotations

from batchq.api.objects import PodGroup
from batchq.assembly import assemble
from batchq.config.load import read_config
from batchq.core.session.session import Session
from batchq.core.session.state import is_admitted
from tests.builders import a_group, a_node, a_priority, a_queue, a_snapshot, a_task
from tests.harness.calls import counting_calls

ACTIONS = "actions: [enqueue, allocate]"


def an_elastic_group(name: str, pods: int, *, queue: str = "q") -> PodGroup:
    return a_group(name, pods, min_member=2, queue=queue, priority_class_name="high")


def plain_groups(count: int, *, queue: str = "q", created: int = 10) -> list[PodGroup]:
    """Return groups of one cpu that all differ, so that each is tried for itself."""
    return [
        a_group(
            f"{queue}-{place:02}",
            created=created + place,
            tasks=(a_task(requests={"cpu": 1, "memory": 1 + place}),),
            queue=queue,
        )
        for place in range(count)
    ]


def decided(*objects: object) -> Session:
    scheduler = assemble(read_config(ACTIONS, "scheduler.yaml"))
    return scheduler.decide(a_snapshot(a_priority("high", 100), *objects), 1_000_000)


def admitted(session: Session, queue: str = "q") -> list[str]:
    found = [one for one in session.groups.values() if one.queue == queue and is_admitted(one)]
    return sorted(one.record.metadata.name for one in found)


def test_groups_leave_free_what_more_important_ones_can_still_bind() -> None:
    """Of ten cpus, the elastic group takes six: two for its gang and four for further pods."""
    session = decided(
        a_queue("q"),
        *(a_node(f"n{place}", cpu=5, memory=1_000) for place in range(2)),
        an_elastic_group("wide", 6),
        *plain_groups(8),
    )
    assert admitted(session) == ["q-00", "q-01", "q-02", "q-03", "wide"]
    assert session.by_key["default/wide"].has_all_placed


def test_growth_is_looked_for_again_once_another_queue_has_taken_what_it_needs() -> None:
    """The queues take turns. The other one takes seven of ten cpus; what is left serves the gang,
    and one further pod, but no group of lower priority.
    """
    session = decided(
        a_queue("q"),
        a_queue("r"),
        a_node("n1", cpu=10, memory=1_000),
        an_elastic_group("wide", 6),
        *plain_groups(3),
        a_group("r-large", 7, created=5, min_member=7, queue="r"),
    )
    assert admitted(session, "r") == ["r-large"]
    assert admitted(session) == ["wide"]
    assert sum(session.by_key["default/wide"].placed.values()) == 3


def test_a_queue_whose_limit_is_reached_by_growth_admits_no_further_group() -> None:
    session = decided(
        a_queue("q", capability={"cpu": 7}),
        a_node("n1", cpu=20, memory=1_000),
        an_elastic_group("wide", 6),
        *plain_groups(3),
    )
    assert admitted(session) == ["q-00", "wide"]


def test_growth_is_found_once_for_many_groups() -> None:
    def cost_of(groups: int, pods: int) -> int:
        objects = [
            a_queue("q"),
            *(a_node(f"n{place}", cpu=50, memory=100_000) for place in range(4)),
            an_elastic_group("wide", pods),
            *plain_groups(groups),
        ]
        session, calls = counting_calls(lambda: decided(*objects))
        assert len(admitted(session)) == 1 + groups
        return calls

    few, many = (cost_of(18, pods) - cost_of(6, pods) for pods in (20, 120))
    # If each group were tried beside pods that are bound on trial, it would be six times.
    assert many < 1.5 * few
