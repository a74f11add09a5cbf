"""A simulation from any live state begins with the decisions of the live session, and ends."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase
from batchq.api.notation import HOUR, SECOND
from batchq.api.objects import Node, NodeSpec, Pod
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.session.snapshot import Snapshot
from batchq.lab.simulation.look_ahead import copy_of_live, look_ahead
from batchq.lab.simulation.report import Lasting, Stopped
from batchq.lab.simulation.world import CountedIds, InvariantWatch, VirtualClock
from batchq.scheduler.cycle import Cycle
from tests.builders import a_priority, a_running_group, a_snapshot, amounts, as_charged
from tests.effort import usually
from tests.property.worlds import worlds

_NOW = HOUR
_CONFIGS = [SchedulerConfig(), SchedulerConfig(actions=("enqueue", "allocate"))]


@st.composite
def live_worlds(draw: st.DrawFn) -> Snapshot:
    """Draw clusters with live and silent nodes, and with running, lost and terminating pods."""
    objects = draw(worlds())
    more = [a_priority("high", 10), *a_running_group("s", 2, node="n0", cpu=1, queue="b")]
    ages_s = st.sampled_from([None, 0, 39, 40, 41, 90_000])
    leases: dict[str, int] = {}
    found: list[Any] = []
    for item in as_charged(*objects, *more):
        if isinstance(item, Node) and item.metadata.name == "n0":
            item = structs.replace(item, spec=NodeSpec(resources=amounts(cpu=6, pods=9)))
        if isinstance(item, Node) and (age_s := draw(ages_s)) is not None:
            status = structs.replace(item.status, heartbeat=_NOW - age_s * SECOND)
            item = structs.replace(item, status=status)
        if isinstance(item, Pod):
            if draw(st.booleans()):
                leases[item.metadata.uid] = _NOW + draw(st.integers(-40, 40)) * SECOND
            if draw(st.booleans()):
                result = structs.replace(
                    item.status, terminating=True, terminating_at=_NOW - 5 * SECOND, reason="Spent"
                )
                item = structs.replace(item, status=result)
        found.append(item)
    return a_snapshot(*found, leases=leases)


@given(live_worlds(), st.sampled_from(_CONFIGS))
def test_a_simulation_begins_with_the_decisions_of_the_live_session(
    snapshot: Snapshot, config: SchedulerConfig
) -> None:
    scheduler = assemble(config)
    live = scheduler.without_memory().decide(snapshot, _NOW)
    requests = CountedIds()
    store = copy_of_live(scheduler.open(snapshot, _NOW), requests)
    report = Cycle(store, scheduler, VirtualClock(_NOW), requests).run_once()
    assert list(report.intents) == live.intents
    assert report.commit.refused == ()


@settings(max_examples=usually(6, 20))
@given(live_worlds(), st.sampled_from(_CONFIGS))
def test_a_simulation_ends_without_refused_writes(
    snapshot: Snapshot, config: SchedulerConfig
) -> None:
    lasting = Lasting(assumed_ms=HOUR)
    future = look_ahead(snapshot, assemble(config), now_ms=_NOW, lasting=lasting)
    assert future.refused == 0
    assert future.stopped in (Stopped.SETTLED, Stopped.IDLE)
    states = {group.key: group for group in assemble(config).open(snapshot, _NOW).groups.values()}
    for group in future.groups.values():
        waits = group.phase in (PodGroupPhase.PENDING, PodGroupPhase.IN_QUEUE)
        # Pods beyond minMember may never fit: then the group continues without them.
        assert group.phase in TERMINAL or waits or states[group.key].is_elastic, group
        assert not waits or group.waits_for, group
        assert (group.ends_at is None) == (group.phase not in TERMINAL)
        assert list(group.starts) == sorted(group.starts)
    again = look_ahead(snapshot, assemble(config), now_ms=_NOW, lasting=lasting)
    assert again == future


@given(live_worlds())
def test_the_ledger_in_memory_equals_that_of_the_records(snapshot: Snapshot) -> None:
    scheduler = assemble(SchedulerConfig())
    requests = CountedIds()
    store = copy_of_live(scheduler.open(snapshot, _NOW), requests)
    cycle = Cycle(store, scheduler, VirtualClock(_NOW), requests)
    cycle.run_once()
    # Raises if the sums differ from those of the stored objects.
    InvariantWatch(store)
    on_nodes = [pod for pod in store.list("Pod") if isinstance(pod, Pod) and _on_node(pod)]
    charged = sum(sums.get("cpu", 0) for name, sums in store.ledger().items() if "node:" in name)
    assert charged == sum(pod.spec.requests["cpu"] for pod in on_nodes)


def _on_node(pod: Pod) -> bool:
    return pod.status.phase in ON_NODE
