"""Plans come true: the next session does what a plan says, once the same group is submitted.

The worlds are seeded, and groups evict each other in them. One waiting group is held out, planned,
and then submitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pytest
from msgspec import structs

from batchq.api.intents import AdmitGroup, Bind, Evict, RollBack
from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import PodGroup, PodTemplate
from batchq.api.views import Outcome, Plan
from batchq.assembly import assemble
from batchq.client.changes import create
from batchq.client.outcomes import TrialScheduler
from batchq.client.plan import Planner
from batchq.config.load import read_config
from batchq.errors import Rejected
from batchq.lab.simulation.initial_state import found, overbooked
from batchq.lab.simulation.world import CountedIds, VirtualClock, World, read_world, write
from batchq.scheduler.cycle import Cycle, CycleReport
from tests.effort import usually
from tests.worlds.making import described

SEEDS = usually(40, 120)
UID = "999999"


class Tried(NamedTuple):
    """The plan of a group, and the session after its submission."""

    group: PodGroup
    plan: Plan
    report: CycleReport


def held_out(world: World) -> PodGroup | None:
    """Return the last waiting group, as a user would submit it."""
    pods = {(one.pod.metadata.namespace, one.pod.spec.pod_group) for one in world.pods}
    waiting = [
        group
        for group in world.groups
        if group.status.phase == PodGroupPhase.PENDING
        and (group.metadata.namespace, group.metadata.name) not in pods
        and not group.spec.depends_on
    ]
    return waiting[-1] if waiting else None


def as_submitted(group: PodGroup) -> PodGroup:
    """Add something to run, which the worlds may leave out."""

    def runs(template: PodTemplate) -> PodTemplate:
        return structs.replace(template, command=("true",), annotations={})

    tasks = tuple(structs.replace(one, template=runs(one.template)) for one in group.spec.tasks)
    meta = structs.replace(group.metadata, uid="", creation_timestamp=None)
    return structs.replace(group, metadata=meta, spec=structs.replace(group.spec, tasks=tasks))


class Rehearsal:
    """A world without one of its groups, after its first sessions."""

    def __init__(self, seed: int, sessions: int) -> None:
        made = described(seed)
        world = read_world(made.text, f"seed {seed}")
        out = held_out(world)
        self.group = None if out is None else as_submitted(out)
        rest = tuple(group for group in world.groups if group is not out)
        self.scheduler = assemble(read_config(made.config_text, "scheduler.yaml"))
        self.clock = VirtualClock(world.start_at)
        self.requests = CountedIds()
        self.store = found(structs.replace(world, groups=rest), self.requests)
        opened = self.scheduler.open(self.store.snapshot(), world.start_at)
        self.store.overbooked = overbooked(opened)
        for _ in range(sessions):
            self.turn()

    def turn(self) -> CycleReport:
        return Cycle(self.store, self.scheduler, self.clock, self.requests).run_once()

    def plan(self, group: PodGroup, *, advise: bool = False) -> Plan:
        deciding = TrialScheduler(
            snapshot=self.store.snapshot(), scheduler=self.scheduler, now_ms=self.clock.now_ms()
        )
        return Planner(deciding, self.store, lambda: UID).plan([group], advise=advise)

    def submit(self, group: PodGroup) -> None:
        now_ms = self.clock.now_ms()
        write(self.store, self.requests, create(self.store, group, now_ms=now_ms, uid=UID))


def rejection(call: Callable[[], object]) -> str:
    """Return the message of a rejection, or ""."""
    try:
        call()
    except Rejected as refusal:
        return refusal.message
    return ""


@cache
def tried(seed: int) -> Tried | None:
    """Plan the held-out group, then submit it and let the next session decide.

    None if there is no such group, or if both are rejected with the same message.
    """
    world = Rehearsal(seed, sessions=seed % 4)
    if world.group is None:
        return None
    group = world.group
    if said := rejection(lambda: world.plan(group)):
        assert rejection(lambda: world.submit(group)) == said
        return None
    plan = world.plan(group)
    world.submit(group)
    return Tried(group, plan, world.turn())


def check_kept(one: Tried) -> None:
    """Compare admission, nodes and victims with the session's intents."""
    [result] = one.plan.groups
    intents = one.report.intents
    admitted = [item.group for item in intents if isinstance(item, AdmitGroup)]
    bound = Counter(
        item.node for item in intents if isinstance(item, Bind) and item.group == result.key
    )
    mine = [item for item in intents if isinstance(item, Evict) and item.by == result.key]
    assert (result.phase == PodGroupPhase.IN_QUEUE) == (result.key in admitted)
    if result.awaits is None:
        assert result.nodes == dict(bound)
    else:
        assert not bound
    stopped = [pod for victim in one.plan.evicted if victim.by == result.key for pod in victim.pods]
    assert sorted(stopped) == sorted(item.pod for item in mine)
    left = {item.group for item in intents if isinstance(item, RollBack)}
    assert {victim.key for victim in one.plan.evicted if victim.whole} <= left
    after = one.report.session.by_key[result.key]
    assert (result.phase, result.reserved) == (after.phase, after.reserved)
    if result.blockers:
        assert [str(verdict.reason) for verdict in result.blockers] == [
            str(verdict.reason) for verdict in one.report.session.refusals[after.uid]
        ]


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_the_next_session_does_what_a_plan_says(first: int) -> None:
    for seed in range(first, first + 20):
        if (one := tried(seed)) is not None:
            check_kept(one)


def test_the_worlds_cover_every_outcome_of_a_plan() -> None:
    outcomes = [str(one.plan.outcome) for seed in range(SEEDS) if (one := tried(seed))]
    assert len(outcomes) > SEEDS // 2
    assert set(outcomes) == {str(outcome) for outcome in Outcome}


def test_requests_that_follow_advice_have_the_advised_outcome() -> None:
    """Each advice is tried as a request, on the same world."""
    followed = set()
    for seed in range(40):
        world = Rehearsal(seed, sessions=1)
        if world.group is None:
            continue
        [result] = world.plan(world.group, advise=True).groups
        for advice in result.advice:
            spec = world.group.spec
            match advice.change:
                case "minMember":
                    spec = structs.replace(spec, min_member=int(advice.value))
                case "queue":
                    spec = structs.replace(spec, queue=advice.value)
                case "priorityClass":
                    spec = structs.replace(spec, priority_class_name=advice.value)
                case _:
                    continue
            again = world.plan(structs.replace(world.group, spec=spec))
            assert again.groups[0].outcome == advice.outcome, f"seed {seed}: {advice.sentence}"
            followed.add(advice.change)
    assert followed == {"minMember", "queue", "priorityClass"}
