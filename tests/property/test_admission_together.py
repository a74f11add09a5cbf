"""Equal groups that are admitted and bound in one step get what they would get one by one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchq.api.intents import AdmitGroup
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.pending_queue import Candidates
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Snapshot
from batchq.core.session.state import GroupState
from tests.builders import (
    a_group,
    a_node,
    a_priority,
    a_queue,
    a_quota,
    a_snapshot,
    a_task,
    amounts,
)

_CORES = st.integers(0, 7)


@dataclass
class Counting:
    """Counts the groups that were offered to be admitted in one step."""

    most: int = 0

    def of(self, line: Candidates) -> list[GroupState]:
        """Return the groups that follow, as the line does."""
        found = FOLLOWING(line)
        self.most = max(self.most, len(found))
        return found


FOLLOWING = Candidates.following_alike


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Return equal groups, interrupted by others, beside limits and nodes that fill up midway."""
    nodes = [
        a_node(f"n{place}", cpu=draw(_CORES) + 1, memory="8Gi")
        for place in range(draw(st.integers(1, 4)))
    ]
    priorities = [a_priority("low", 0, default=True), a_priority("high", draw(st.integers(1, 2)))]
    queues = [a_queue("default", strict=draw(st.booleans()))]
    if draw(st.booleans()):
        queues.append(a_queue("other", capability={"cpu": draw(_CORES)}))
    quotas = [a_quota(cpu=draw(st.integers(1, 20)))] if draw(st.booleans()) else []
    names = [queue.metadata.name for queue in queues]
    groups = []
    for place in range(draw(st.integers(1, 14))):
        size = draw(st.sampled_from([1, 1, 1, 2, 3]))
        extra = draw(st.sampled_from([0, 0, 0, 0, 2]))
        groups.append(
            a_group(
                f"g{place:02}",
                tasks=(
                    a_task("w", size + extra, requests={"cpu": draw(st.sampled_from([1, 1, 2]))}),
                ),
                min_member=size,
                queue=draw(st.sampled_from(names)),
                namespace=draw(st.sampled_from(["default", "default", "team"])),
                priority_class_name=draw(st.sampled_from(["low", "low", "low", "high"])),
                created=place,
            )
        )
    return a_snapshot(*nodes, *priorities, *queues, *quotas, *groups)


@given(snapshots())
def test_equal_groups_admitted_together_are_decided_as_one_by_one(world: Snapshot) -> None:
    together = assemble(SchedulerConfig()).decide(world, 0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Candidates, "following_alike", lambda line: [])
        alone = assemble(SchedulerConfig()).decide(world, 0)
    assert _outcome(together) == _outcome(alone)


def _outcome(session: Session) -> object:
    ledger = session.ledger
    return (
        session.intents,
        {group.key: (group.status, group.pods) for group in session.groups.values()},
        {name: node.free for name, node in session.nodes.by_name.items()},
        {scope: sums for scope, sums in ledger.sums.items() if sums},
        {queue: set(held) for queue, held in ledger.holding.items() if held},
        {group.key: ledger.charged(group) for group in session.groups.values()},
        {group.key: session.refusals.get(group.uid) for group in session.groups.values()},
        list(session.effects.touched),
    )


def test_equal_groups_are_offered_together_as_far_as_their_limits_go() -> None:
    groups = [a_group(f"g{place}", cpu=1, created=place) for place in range(9)]
    world = a_snapshot(a_node(cpu=16, memory="8Gi"), a_quota(cpu=6), *groups)
    counting = Counting()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Candidates, "following_alike", lambda line: counting.of(line))
        session = assemble(SchedulerConfig()).decide(world, 0)
    admitted = sum(isinstance(intent, AdmitGroup) for intent in session.intents)
    assert counting.most == 5, "the first one is admitted alone"
    assert admitted == 6
    assert session.ledger.sums["ns:default"]["cpu"] == 6 * amounts(cpu=1)["cpu"]
