"""Play seeded worlds, one with its story or many on all cores; and make failing worlds smaller."""

from __future__ import annotations

import multiprocessing
import random
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec import Struct, structs

from batchq.api.intents import EndPledge, RollBack
from batchq.assembly import assemble
from batchq.config.load import read_config
from batchq.core.session.session import Action, Session
from batchq.core.session.snapshot import Snapshot
from batchq.errors import BatchqError
from batchq.lab.simulation import WorldRun
from batchq.lab.simulation.report import WorldOutcome, as_json
from batchq.lab.simulation.world import read_world
from batchq.scheduler.cycle import Scheduler
from tests.progress import leave_to_parent
from tests.worlds.check_rules import (
    AFTER_EVERY_SESSION_WITH_CHECKS,
    groups_with_passed_checks_do_not_wait,
)
from tests.worlds.checking import with_checks
from tests.worlds.crashes import DoubtfulStage
from tests.worlds.fair import fair_world, shares_have_converged
from tests.worlds.happenings import with_namespaces
from tests.worlds.instants import Instants
from tests.worlds.making import Described, described
from tests.worlds.rules import AFTER_EVERY_SESSION, AT_REST, Broken, Course
from tests.worlds.traces import state_of
from tests.worlds.wide import MOST_SESSIONS_OF_WIDE, wide_world

#: Sessions of a world; the evictions end long before the last one.
MOST_SESSIONS = 50
QUIET_SESSIONS = 12
MOST_REFUSED = 2


class Failure(Struct, frozen=True):
    """A seed that failed, and the failure."""

    seed: int
    why: str
    trace: str


@dataclass(frozen=True)
class Judged(Scheduler):
    """A scheduler that is checked after every session."""

    course: Course = field(default_factory=lambda: Course(static=False))
    instants: Instants | None = None
    last: list[Session] = field(default_factory=list)

    def decide(self, snapshot: Snapshot, now_ms: int, *, writes_status: bool = True) -> Session:
        before = self.open(snapshot, now_ms)
        after = super().decide(snapshot, now_ms, writes_status=writes_status)
        self.last[:] = [after]
        for rule in (*AFTER_EVERY_SESSION, *AFTER_EVERY_SESSION_WITH_CHECKS):
            rule(before, after)
        self.course.follow(before, after)
        if self.instants is not None:
            self.instants.follow(after)
        return after


@dataclass(frozen=True)
class Traceless:
    """An action that must leave the session unchanged if it decides nothing."""

    action: Action

    @property
    def name(self) -> str:
        return self.action.name

    def execute(self, session: Session) -> None:
        """Run the action; attempts of preemptors that failed must leave no trace."""
        before, decided = state_of(session), len(session.effects.joined)
        said = len(session.intents)
        self.action.execute(session)
        gives_up = any(isinstance(one, EndPledge | RollBack) for one in session.intents[said:])
        if len(session.effects.joined) > decided or gives_up:
            # A preemptor that counted on a lost node, or on victims that it may not take any more.
            return
        after = state_of(session)
        for what, value in before.items():
            if after[what] != value:
                raise Broken(f"{self.name} decided nothing and changed {what}: {after[what]}")


def judged(world: Described, *, at_rest: bool = True) -> Judged:
    """Return the scheduler that the world configures, under observation; with `at_rest`, also check
    the waiting groups when the sessions of an instant are over.
    """
    config = read_config(world.config_text, "scheduler.yaml")
    scheduler = assemble(config)
    actions = tuple(
        Traceless(action) if action.name in ("preempt", "reclaim") else action
        for action in scheduler.actions
    )
    return Judged(
        actions,
        scheduler.plugins,
        scheduler.settings,
        course=Course(static=world.static),
        instants=Instants(config) if at_rest else None,
    )


def play(world: Described, most: int = MOST_SESSIONS) -> WorldOutcome:
    """Play a world. Raises Broken or InvariantBroken."""
    scheduler = judged(world)
    stage = WorldRun(read_world(world.text, f"seed {world.seed}"), scheduler)
    played = stage.run(most, bounded=True)
    # A transaction may come before the one that frees its capacity; the next session corrects that.
    # A decision that is refused repeatedly violates the store's rules.
    if played.refused > MOST_REFUSED:
        raise Broken(f"the store refused {played.refused} of what the sessions decided")
    if not played.exhausted:
        for rule in (*AT_REST, groups_with_passed_checks_do_not_wait):
            rule(scheduler.last[0])
    course = scheduler.course
    quiet_from = most - QUIET_SESSIONS
    # While clocks evict groups that later return, the deserved shares keep changing.
    is_still = world.static and not course.last_sent_away
    if is_still and played.exhausted and course.last_eviction > quiet_from:
        raise Broken(f"evictions go on in session {course.last_eviction} of a static world")
    return played.outcome


def outcome_of(world: Described) -> WorldOutcome:
    """Play a world without checks, in half the time, for tests of what the worlds contain."""
    scheduler = assemble(read_config(world.config_text, "scheduler.yaml"))
    stage = WorldRun(read_world(world.text, f"seed {world.seed}"), scheduler)
    return stage.run(MOST_SESSIONS, bounded=True).outcome


def play_in_doubt(world: Described) -> None:
    """Play a world whose first commits are partly refused. Raises Broken or InvariantBroken."""
    quiet = structs.replace(world, static=False)
    # Refused decisions are repeated, and other groups may have started instead.
    scheduler = judged(quiet, at_rest=False)
    stage = DoubtfulStage(read_world(world.text, f"seed {world.seed}"), scheduler, world.seed)
    played = stage.run(2 * MOST_SESSIONS, bounded=True)
    if not played.exhausted:
        for rule in AT_REST:
            rule(scheduler.last[0])


def play_shuffled(world: Described, result: WorldOutcome) -> None:
    """Check that the order of the documents decides nothing. Raises Broken."""
    documents = [*world.manifests]
    random.Random(world.seed).shuffle(documents)
    shuffled = play(structs.replace(world, manifests=documents))
    if as_json(shuffled) != as_json(result):
        raise Broken("the same documents in another order have another outcome")


def play_fair(seed: int) -> None:
    """Check that queues with endless demand converge to their weights. Raises Broken."""
    world, wanted = fair_world(seed)
    shares_have_converged(play(world), wanted)


def failure_of_world(world: Described) -> Failure | None:
    """Return what is wrong with a world."""

    def everything() -> None:
        result = play(world)
        if world.seed % 2 == 0:
            play_in_doubt(world)
        if world.seed % 8 == 5:
            play_shuffled(world, result)
        if world.seed % 4 == 1:
            play_fair(world.seed)

    return _failure(world.seed, everything)


def _failure(seed: int, plays: Callable[[], None]) -> Failure | None:
    """Return any failure, so that a swarm goes on with the next seed."""
    try:
        plays()
    except Exception as wrong:  # a crash anywhere is a finding, as a broken rule is
        return Failure(seed, f"{type(wrong).__name__}: {wrong}", traceback.format_exc())
    return None


def play_wide(world: Described) -> None:
    """Play a busy world, in which every pod ends. Raises Broken or InvariantBroken."""
    play(world, MOST_SESSIONS_OF_WIDE)


def failure_of_wide(world: Described) -> Failure | None:
    """Return what is wrong with a busy world."""
    return _failure(world.seed, lambda: play_wide(world))


def failure_of(seed: int) -> Failure | None:
    """Return what is wrong with a seed."""
    return failure_of_world(world_of(seed))


def failure_of_wide_seed(seed: int) -> Failure | None:
    """Return what is wrong with the busy world of a seed."""
    try:
        world = wide_world(seed)
    except Exception as wrong:  # as in failure_of_world
        return Failure(seed, f"{type(wrong).__name__}: {wrong}", traceback.format_exc())
    return failure_of_wide(world)


def world_of(seed: int) -> Described:
    """Return the world of a seed; in most worlds some queues require admission checks, and in some
    they accept certain namespaces only.
    """
    return with_namespaces(with_checks(described(seed)))


def failures_of(
    seeds: Iterable[int], *, processes: int, wide: bool = False
) -> Iterator[Failure | None]:
    """Return the failures of the seeds, in order, played on this many processes."""
    find = failure_of_wide_seed if wide else failure_of
    if processes == 1:
        yield from map(find, seeds)
        return
    with multiprocessing.get_context("fork").Pool(processes, leave_to_parent) as pool:
        yield from pool.imap(find, seeds, chunksize=10)


#: Return what is wrong with a world, if anything.
Find: TypeAlias = Callable[[Described], Failure | None]


def smaller(world: Described, find: Find = failure_of_world) -> Described:
    """Return the fewest documents and Timeline steps that still show the failure of a world."""
    failure = find(world)
    if failure is None:
        return world
    kind, place = _kind(failure.why), 0
    while place < len(world.manifests):
        left = [*world.manifests[:place], *world.manifests[place + 1 :]]
        attempt = structs.replace(world, manifests=left)
        if _shows(attempt, kind, find):
            world = attempt
            continue
        if world.manifests[place]["kind"] == "Timeline":
            world = _with_fewer_steps(world, place, kind, find)
        place += 1
    return world


def _with_fewer_steps(world: Described, place: int, kind: str, find: Find) -> Described:
    step = 0
    while step < len(world.manifests[place]["spec"]):
        timeline = world.manifests[place]
        steps = [*timeline["spec"][:step], *timeline["spec"][step + 1 :]]
        manifests = [*world.manifests]
        manifests[place] = {**timeline, "spec": steps}
        attempt = structs.replace(world, manifests=manifests)
        if steps and _shows(attempt, kind, find):
            world = attempt
        else:
            step += 1
    return world


def _shows(world: Described, kind: str, find: Find) -> bool:
    """Return whether a world still shows the same failure, and no other."""
    try:
        found = find(world)
    except BatchqError:
        return False
    return found is not None and _kind(found.why) == kind


def _kind(why: str) -> str:
    """Return the kind of a failure, without the objects that it names."""
    return re.sub(r"[a-z-]+/[\w-]+|[\d.]+|q\d\w*|\{.*\}|\bt\d\b", "_", why)
