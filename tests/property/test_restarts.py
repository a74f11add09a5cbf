"""A scheduler that has just started decides as if it had built every state."""

from __future__ import annotations

import copy
import random
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import pytest
from msgspec import structs

from batchq.api.objects import PodGroup, key_of
from batchq.assembly import assemble
from batchq.config.load import read_config
from batchq.core.chunks import Rows
from batchq.core.scheduler_cache import SchedulerCache
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Snapshot
from batchq.core.unbuilt_states import GroupStates
from batchq.errors import EndlessSessions
from batchq.lab.simulation import WorldRun
from batchq.lab.simulation.world import read_world
from batchq.scheduler.cycle import Scheduler
from tests.effort import usually
from tests.worlds.making import Described, Manifest, described
from tests.worlds.play import MOST_SESSIONS


@dataclass(frozen=True)
class Restarted(Scheduler):
    """A scheduler beside which two others are restarted now and then, one of them without states
    that are built on demand.
    """

    dice: random.Random = field(default_factory=random.Random)
    beside: list[Scheduler] = field(default_factory=list)
    #: The groups that had no state when a session ended.
    left_unbuilt: set[str] = field(default_factory=set)
    #: Specs and statuses by their stored form, and each record as the mirror reads it.
    parts: dict[bytes, object] = field(default_factory=dict)
    read: dict[str, tuple[PodGroup, PodGroup]] = field(default_factory=dict)

    def decide(self, snapshot: Snapshot, now_ms: int, *, writes_status: bool = True) -> Session:
        world = structs.replace(snapshot, groups=self._as_mirrored(snapshot.groups))
        if not self.beside or self.dice.random() < 0.25:
            self.beside[:] = self._anew(), self._anew()
        on_demand, at_once = self.beside
        one = on_demand.decide(world, now_ms)
        assert isinstance(one.groups, GroupStates)
        self.left_unbuilt.update(one.groups.unbuilt)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(SchedulerCache, "_may_wait_unbuilt", lambda *_: False)
            other = at_once.decide(world, now_ms)
        assert isinstance(other.groups, GroupStates)
        assert not other.groups.unbuilt
        assert _decided(one) == _decided(other)
        if self.dice.random() < 0.2:
            assert _lined_up(one) == _lined_up(other)
        return super().decide(world, now_ms, writes_status=writes_status)

    def _anew(self) -> Scheduler:
        most = self.most_written
        return Scheduler(self.actions, self.plugins, self.settings, most_written=most)

    def _as_mirrored(self, groups: object) -> Rows[PodGroup]:
        assert isinstance(groups, Rows)
        return Rows.of((key_of(one), self._shared(one)) for one in groups)

    def _shared(self, group: PodGroup) -> PodGroup:
        known = self.read.get(group.metadata.uid)
        if known is None or known[0] is not group:
            parts = {
                name: self.parts.setdefault(msgspec.json.encode([name, value]), value)
                for name, value in (("spec", group.spec), ("status", group.status))
            }
            # Half of the records keep parts of their own, as when a file describes them.
            shares = self.dice.random() < 0.5
            shared = structs.replace(group, **parts) if shares else group
            known = self.read[group.metadata.uid] = (group, shared)
        return known[1]


def _decided(session: Session) -> object:
    return (
        session.intents,
        [(uid, group.status, group.pods) for uid, group in session.effects.touched.items()],
        {name: node.free for name, node in session.nodes.by_name.items()},
        {scope: sums for scope, sums in session.ledger.sums.items() if sums},
    )


def _lined_up(session: Session) -> object:
    queues = session.queues.items()
    classes = [(name, one) for name, queue in queues for one in queue.line.classes.values()]
    return (
        {group.key: (group.status, group.line_key) for group in session.groups.values()},
        sorted(session.by_key),
        {name: [group.uid for group in queue.line] for name, queue in queues},
        [(name, one.asks, {key: set(of) for key, of in one.by_reasons.items()})
         for name, one in sorted(classes, key=lambda pair: (pair[0], str(pair[1].asks)))],
    )  # fmt: skip


def _with_equal_groups(world: Described, dice: random.Random) -> Described:
    """Let most groups come several times, with nothing different but their names."""
    manifests: list[Manifest] = []
    for one in world.manifests:
        if one["kind"] == "Timeline":
            steps = [[step, *_copies_in(step, dice)] for step in one["spec"]]
            one = {**one, "spec": [step for some in steps for step in some]}
        manifests += [one, *_copies(one, dice)]
    return structs.replace(world, manifests=manifests)


def _copies_in(step: Manifest, dice: random.Random) -> list[Manifest]:
    return [{**step, "apply": one} for one in _copies(step.get("apply", {}), dice)]


def _copies(manifest: Manifest, dice: random.Random) -> list[Manifest]:
    if manifest.get("kind") != "PodGroup" or "status" in manifest or dice.random() < 0.2:
        return []
    made = [copy.deepcopy(manifest) for _ in range(dice.randint(1, 5))]
    for place, one in enumerate(made):
        for name in {"name", "uid"} & one["metadata"].keys():
            one["metadata"][name] += f"c{place}"
    return made


#: Worlds in which groups come and go.
SEEDS = range(3, usually(24, 400), 4)


def test_a_restarted_scheduler_decides_as_one_that_builds_every_state() -> None:
    left_unbuilt = sum(len(_played(seed).left_unbuilt) for seed in SEEDS)
    assert left_unbuilt > len(SEEDS), "the worlds have too few equal groups"


def _played(seed: int) -> Restarted:
    dice = random.Random(f"restarts {seed}")
    world = _with_equal_groups(described(seed), dice)
    base = assemble(read_config(world.config_text, "scheduler.yaml"))
    most = dice.choice((base.most_written, 3))
    scheduler = Restarted(base.actions, base.plugins, base.settings, most_written=most, dice=dice)
    with suppress(EndlessSessions):
        WorldRun(read_world(world.text, f"seed {seed}"), scheduler).run(MOST_SESSIONS, bounded=True)
    return scheduler
