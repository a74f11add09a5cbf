"""The loop: what is due, then sessions until one changes nothing, then on to the next instant.

At one instant, in this order: pods end, graces end, timers (the scheduler's own, seen by the
sessions), steps of the Timeline; then sessions, until one decides nothing: more than ten are an
error. Idle time is skipped.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from batchq.api.lifecycle import TERMINAL
from batchq.api.objects import PodGroupSpec
from batchq.assembly import assemble
from batchq.config.model import SchedulerConfig
from batchq.errors import BatchqError, InvalidInput
from batchq.framework.session import Session
from batchq.framework.snapshot import Snapshot
from batchq.framework.state import GroupState
from batchq.scheduler.cycle import Cycle, CycleReport
from batchq.scheduler.scheduler import Scheduler
from batchq.scheduler.timers import next_due_at
from batchq.sim.clock import CountedIds, VirtualClock, whole_second
from batchq.sim.endless import endless_sessions
from batchq.sim.execution import Execution
from batchq.sim.founding import found, overbooked, still_overbooked
from batchq.sim.invariants import Watch
from batchq.sim.outside import Outside
from batchq.sim.report import CycleStory, Outcome, outcome_of, story_of
from batchq.sim.world import World, read_world

MOST_SESSIONS = 1_000
MOST_SESSIONS_AT_ONCE = 10


class Played(Struct, frozen=True, kw_only=True):
    """What became of a world.

    `exhausted`: the limit of sessions ended it, and more was due. `refused`: how many
    transactions the store refused; with one scheduler and nobody beside it, none should be.
    `refused_steps`: what of the Timeline the rules refused, a sentence each.
    """

    outcome: Outcome
    exhausted: bool
    refused: int
    refused_steps: tuple[str, ...] = ()


def play(
    text: str | bytes, source: str, *, config: SchedulerConfig, cycles: int | None = None
) -> Played:
    """Read a world, and let it run until nothing can change any more, or for `cycles` sessions.

    Raises InvalidInput for whatever is wrong with the file, in one sentence, and EndlessSessions
    where the sessions at one instant undo each other.
    """
    scheduler = assemble(config)
    world = read_world(text, source)
    try:
        stage = Stage(world, scheduler)
    except InvalidInput:
        raise
    except BatchqError as problem:
        # NotFound, Conflict …: to whoever wrote the file, all of it is bad content.
        raise InvalidInput(f"{source}: {problem.message}", hint=problem.hint) from None
    return stage.run(MOST_SESSIONS if cycles is None else cycles, bounded=cycles is None)


class Stage:
    """One world while it plays; owns its clock, its store and what is left of its Timeline."""

    #: More sessions at one instant are an error.
    most_at_once = MOST_SESSIONS_AT_ONCE

    def __init__(self, world: World, scheduler: Scheduler) -> None:
        self._start_at = world.start_at
        self._steps = deque(world.steps)
        self._scheduler = scheduler
        self._clock = VirtualClock(world.start_at)
        taken = frozenset(group.metadata.uid for group in world.groups)
        ids = CountedIds(world.documents + 1, taken)
        requests = CountedIds()
        gates_hold = scheduler.open(Snapshot(), world.start_at).gates_hold
        self.store = found(world, requests, gates_hold=gates_hold)
        self._execution = Execution(self.store, self._clock, requests)
        self._outside = Outside(self.store, self._clock, ids, requests, self._execution)
        self._cycle = Cycle(self.store, scheduler, self._clock, requests)
        self._watch = Watch(self.store)
        self._stories: list[CycleStory] = []
        self._refused = 0
        self.store.overbooked = overbooked(scheduler.open(self.store.snapshot(), world.start_at))
        self._execution.start_bound()

    def run(self, most: int, *, bounded: bool) -> Played:
        """Play on until nothing is due any more, or for `most` sessions in all.

        Raises EndlessSessions where those at one instant do not come to an end.
        """
        report: CycleReport | None = None
        due_at: int | None = self._clock.now_ms()
        while due_at is not None and len(self._stories) < most:
            self._clock.jump_to(due_at)
            self._let_happen()
            report = self._settle(most)
            due_at = self._next_due_at(report)
        unsettled = due_at is not None or bool(report and report.intents)
        return Played(
            outcome=outcome_of(self._scheduler, self.store, self._clock, self._stories, report),
            exhausted=bounded and unsettled and len(self._stories) >= most,
            refused=self._refused,
            refused_steps=tuple(self._outside.refused),
        )

    # ----------------------------------------------------------------------------------------

    def _let_happen(self) -> None:
        now_ms = self._clock.now_ms()
        self._execution.end_due()
        self._outside.take_away()
        while self._steps and self._at(self._steps[0].after_ms) <= now_ms:
            self._outside.carry_out(self._steps.popleft())
        self._outside.take_away()
        self._watch.after_outside()

    def _settle(self, most: int) -> CycleReport:
        """Sessions at this instant, until one decides nothing; the last one's report."""
        began = len(self._stories)
        while True:
            report = self._cycle.run_once()
            self._refused += len(report.commit.refused)
            # Where what was too much fits by now, only a limit that falls again counts as a cut.
            self.store.overbooked = still_overbooked(self.store.overbooked, report.session)
            self._watch.after_session(report.commit)
            self._stories.append(story_of(report, self._since_start()))
            # Starting moves no charge; what is taken away is looked at with what happens next.
            self._execution.start_bound()
            self._outside.take_away()
            if not report.intents or len(self._stories) >= most:
                return report
            if len(self._stories) - began >= self.most_at_once:
                raise endless_sessions(self._stories[began:])

    def _next_due_at(self, report: CycleReport) -> int | None:
        """The next instant at which anything is due: never before now."""
        instants = [
            whole_second(at)
            for at in (
                next_due_at(report.session, _with_a_future(report.session)),
                self._execution.next_end_at(),
            )
            if at is not None
        ]
        if self._steps:
            instants.append(self._at(self._steps[0].after_ms))
        return max(min(instants), self._clock.now_ms()) if instants else None

    def _since_start(self) -> int:
        return (self._clock.now_ms() - self._start_at) // 1000

    def _at(self, after_ms: int) -> int:
        return whole_second(self._start_at + after_ms)


def _with_a_future(session: Session) -> list[GroupState]:
    """The groups whose clocks the world runs for.

    The week for which finished groups are kept for people to look at is not waited out: the
    world's report is that look. A shorter or longer time was written to be seen.
    """
    kept = PodGroupSpec().ttl_after_finished
    return [
        group
        for group in session.groups.values()
        if group.phase not in TERMINAL or group.held or group.record.spec.ttl_after_finished != kept
    ]
