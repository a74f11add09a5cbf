"""A load, played by the daemon's own sessions over a store in memory, in virtual time.

One pass per instant: all ends that are due, then all submits of that instant, then sessions until
one decides nothing. Or one pass per event, the convention of the study by Gaussier, Glesser, Reis
and Trystram (SC'15): at one instant first those end whose walltime is over as well; then each
submit is followed by sessions; then each end, in the order in which they started.

Beside the sessions themselves, a play costs what changes: pods' ends wait in a heap, finished
groups leave the store when a session has seen that they are, and no story is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import TypeAlias

from batchq.api import intents
from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.objects import PodGroup
from batchq.api.resources import total
from batchq.api.times import SECOND
from batchq.assembly import assemble
from batchq.config.model import SchedulerConfig
from batchq.errors import InvariantBroken
from batchq.framework.session import Session
from batchq.ports import IdSource
from batchq.scheduler.cycle import Cycle, CycleReport
from batchq.sim.clock import CountedIds, VirtualClock, whole_second
from batchq.sim.invariants import Watch
from batchq.sim.workload.founding import Desk, empty_cluster
from batchq.sim.workload.load import Load
from batchq.sim.workload.progress import Look, Progress
from batchq.sim.workload.resting import (
    due_without,
    is_one_line_of_equals,
    leaves_nothing_to_do,
    leaves_only_starts,
    waits_for_room_alone,
)
from batchq.sim.workload.running import Running
from batchq.sim.workload.schedule import Schedule
from batchq.sim.writing import write
from batchq.store.memory import MemoryStore

#: How many sessions one instant gets, should they never come to rest.
MOST_SESSIONS_AT_ONCE = 32
#: When nothing runs and nobody comes any more, clocks alone may still let somebody in; what they
#: have not brought about after so many instants, they never will.
MOST_FRUITLESS_INSTANTS = 100
#: So often everything is counted anew, where nobody asks for it after each session.
SESSIONS_BETWEEN_LOOKS = 1_000

#: Is told how many jobs have finished, and of how many.
Tell: TypeAlias = Callable[[int, int], None]


def play_load(
    load: Load,
    config: SchedulerConfig,
    *,
    name: str = "",
    per_event: bool = False,
    tell: Tell | None = None,
    watch: bool = False,
    stopwatch: Callable[[], float] | None = None,
    look: Look | None = None,
) -> Schedule:
    """Play a load to its end, as the configuration has it.

    What never runs is told as not finished. `name` is that of the run, for reports. `watch` looks
    at every invariant after every session, which takes longer than the sessions. `stopwatch` tells
    real seconds; there is no real time in here. `look` is told of each pod that takes a node or
    leaves it.

    Raises InvalidInput for a configuration or a load that makes no sense, and InvariantBroken for
    a mistake of ours.
    """
    began = stopwatch() if stopwatch else 0.0
    stage = Stage(load, config, watch=watch, look=look)
    stage.run(per_event=per_event, tell=tell)
    real_s = stopwatch() - began if stopwatch else 0.0
    return stage.schedule(name, real_s)


class Stage:
    """One load while it plays; owns its clock, its store and what is still to come."""

    def __init__(
        self, load: Load, config: SchedulerConfig, *, watch: bool, look: Look | None = None
    ) -> None:
        scheduler = assemble(config)
        start_s = load.arrivals[0].at_s if load.arrivals else 0
        self._load = load
        self._clock = VirtualClock(start_s * SECOND)
        self._requests: IdSource = CountedIds()
        self.store: MemoryStore = empty_cluster(load, self._requests)
        self._cycle = Cycle(self.store, scheduler, self._clock, self._requests)
        self._desk = Desk(self.store)
        self._coming = deque(enumerate(load.arrivals))
        self._progress = Progress(load, start_s, look)
        self._running = Running(self.store, self._clock, self._requests, self._progress)
        self._watch = Watch(self.store)
        self._looks_each_time = watch
        self._is_one_line_of_equals = is_one_line_of_equals(load, config)
        self._waits_for_room_alone = waits_for_room_alone(load, config)
        self.sessions = 0
        self._refused = 0
        self._due_at: int | None = None
        #: Groups that are over, by uid, which the next session will see.
        self._over: set[str] = set()
        self._last: Session | None = None

    def run(self, *, per_event: bool, tell: Tell | None) -> None:
        """Play on until nothing is due any more, or nothing comes of it."""
        fruitless = 0
        while (now_ms := self._next_at()) is not None and fruitless < MOST_FRUITLESS_INSTANTS:
            self._clock.jump_to(now_ms)
            before = self._progress.changes
            if per_event:
                self._play_by_event()
            else:
                self._play_at_once()
            if tell is not None:
                tell(self._progress.finished, len(self._load.arrivals))
            idle = self._progress.changes == before and not self._coming
            fruitless = fruitless + 1 if idle and not self._running.any() else 0
        if self._over:
            self._settle(only_follows=True)
        self._watch.after_outside()

    def schedule(self, name: str, real_s: float) -> Schedule:
        """What became of everybody so far."""
        load, progress = self._load, self._progress
        now_s = self._clock.now_ms() // SECOND
        return Schedule(
            name=name,
            load=load.title,
            capacity=load.capacity,
            resources=total(node.spec.resources for node in load.nodes),
            jobs=progress.outcome(),
            usage=progress.meter.samples(min(now_s, progress.last_change_s)),
            weights={queue.metadata.name: queue.spec.weight for queue in load.queues},
            evictions=progress.evictions,
            lost_s=progress.lost_s,
            sessions=self.sessions,
            real_s=real_s,
            refused=self._refused,
        )

    # --- one instant -------------------------------------------------------------------------

    def _play_at_once(self) -> None:
        before = self._running.ended
        self._running.end_graces()
        stopped = self._running.ended != before
        ended = []
        for one in self._running.due():
            self._running.end(one)
            ended.append(one.group)
        came = []
        while self._comes_now():
            came.append(self._submit())
        if self._running.ended != before:
            if self._may_let_in():
                self._settle()
            elif stopped or not all(map(self._running.has_succeeded, ended)):
                self._settle(only_follows=True)
            else:
                self._put_off(ended)
        elif not came or self._may_let_in(came):
            self._settle()
        elif self._looks_each_time:
            self._look_for_more()

    def _may_let_in(self, came: Sequence[str] = ()) -> bool:
        """Whether the actions of a session could let anybody in now; or of those, by uid, who
        have just come, where nothing else has happened.
        """
        is_due = self._due_at is not None and self._due_at <= self._clock.now_ms()
        if is_due or self._progress.evictions or not self._waits_for_room_alone:
            return True
        if came:
            return any(map(self._progress.has_room_for, came))
        return self._progress.room.fits_anybody()

    def _put_off(self, over: Sequence[str] = ()) -> None:
        """Let the next session that there is see that these groups are over, and which ones have
        started, where nobody can be let in now: whoever looks and when, all pods of the former
        have succeeded, and the latter have run since their pods have.
        """
        unseen = self._running.unseen
        for uid in dict.fromkeys(over):
            self._over.add(uid)
            self._progress.ended(uid, self._clock.now_ms() // SECOND)
            unseen.pop(uid, None)
        if self._last is not None:
            due = [due_without(self._last, {*self._over, *unseen})]
            due += [one.predicted_at for one in unseen.values()]
            self._due_at = min((at for at in due if at is not None), default=None)
        if self._looks_each_time:
            self._look_for_more()

    def _play_by_event(self) -> None:
        self._running.end_graces()
        due = self._running.due()
        now_ms = self._clock.now_ms()
        for one in due:
            if one.predicted_at == now_ms:
                self._running.end(one)
        passes = 0
        while self._comes_now():
            self._submit()
            self._settle()
            passes += 1
        for one in due:
            self._running.end(one)
            self._settle()
            passes += 1
        if not passes:
            self._settle()

    def _comes_now(self) -> bool:
        return bool(self._coming) and self._coming[0][1].at_s * SECOND <= self._clock.now_ms()

    def _submit(self) -> str:
        place, arrival = self._coming.popleft()
        now_ms = self._clock.now_ms()
        uid = str(place)
        write(self.store, self._requests, self._desk.submitted(arrival.group, uid, now_ms))
        self._progress.submitted(uid, now_ms // SECOND)
        return uid

    def _settle(self, *, only_follows: bool = False) -> None:
        """Sessions, until one leaves nothing to do for another. `only_follows`: actions would
        decide nothing until somebody has more room.
        """
        if self._running.has_any_overrun():
            # Whose time is over while nobody has seen it run: first it runs, then it has to stop.
            self._hold(self._cycle.settle_once)
        turn = self._cycle.settle_once if only_follows else self._cycle.run_once
        for _ in range(MOST_SESSIONS_AT_ONCE):
            report = self._hold(turn)
            if report.rested:
                return
            if leaves_nothing_to_do(report):
                if self._looks_each_time:
                    self._look_for_more()
                return
            starts = self._is_one_line_of_equals and leaves_only_starts(report)
            if starts and self._waits_for_room_alone:
                self._put_off()
                return
            turn = self._cycle.settle_once if starts else self._cycle.run_once

    def _hold(self, turn: Callable[[], CycleReport]) -> CycleReport:
        """A session, and what follows from it."""
        self._running.unseen.clear()
        report = turn()
        self._last, self._due_at = report.session, report.next_due_at
        if not report.rested:
            self.sessions += 1
            self._refused += len(report.commit.refused)
            if self._looks_each_time or self.sessions % SESSIONS_BETWEEN_LOOKS == 0:
                self._watch.after_session(report.commit)
            self._follow(report)
        return report

    def _look_for_more(self) -> None:
        """Another session at the same instant, to see that there is indeed nothing left to do."""
        report = self._cycle.run_once()
        self._last = report.session
        # Why somebody waits may be written down by the next session: nobody looks meanwhile.
        decided = [
            one
            for one in report.intents
            if not isinstance(one, intents.SetReasons) and not self._is_put_off(one)
        ]
        if decided:
            raise InvariantBroken(
                f"the sessions at {self._clock.now_ms()} ms came to rest too early:"
                f" another one decides {decided[0]}"
            )
        self._running.unseen.clear()
        self._follow(report)

    def _is_put_off(self, intent: intents.Intent) -> bool:
        """Whether it says of a group that it runs or has ended, and that is known already."""
        match intent:
            case intents.FinishGroup(phase=PodGroupPhase.COMPLETED):
                known: Container[str] = self._over
            case intents.MoveGroup(phase=PodGroupPhase.RUNNING):
                known = self._running.unseen
            case _:
                return False
        group = self.store.get("PodGroup", intent.group)
        return group is not None and group.metadata.uid in known

    def _follow(self, report: CycleReport) -> None:
        """Start what was bound, stop what was evicted, forget who has ended."""
        for intent in report.intents:
            match intent:
                case intents.Evict():
                    self._running.tell_to_stop(intent)
                case intents.FinishGroup():
                    self._finish(intent.group)
        self._running.start_bound()

    def _finish(self, key: str) -> None:
        group = self.store.get("PodGroup", key)
        if isinstance(group, PodGroup) and group.status.phase in TERMINAL:
            uid = group.metadata.uid
            if uid in self._over:
                self._over.remove(uid)
            else:
                self._progress.ended(uid, self._clock.now_ms() // SECOND)
            self._running.forget(group)

    def _next_at(self) -> int | None:
        """The next instant at which anything is due: never before now."""
        instants = [] if self._due_at is None else [whole_second(self._due_at)]
        if self._progress.finished == len(self._load.arrivals):
            # Clocks still run for what has ended, and nobody waits for them.
            instants = []
        if self._coming:
            instants.append(self._coming[0][1].at_s * SECOND)
        if (ends_at := self._running.next_at()) is not None:
            instants.append(ends_at)
        return max(min(instants), self._clock.now_ms()) if instants else None
