"""Play a day through the real sessions, with checks after every instant, and judge its outcome."""

from __future__ import annotations

import multiprocessing
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from batchq.api.lifecycle import TERMINAL, PodPhase
from batchq.api.notation import SECOND
from batchq.api.objects import Pod, PodGroup, full_name
from batchq.assembly import assemble
from batchq.config.load import read_config
from batchq.lab import simulation
from batchq.lab.simulation import Execution, Outside, WorldRun
from batchq.lab.simulation.report import WorldOutcome
from batchq.lab.simulation.world import CountedIds, World, read_world
from batchq.ports import Clock, IdSource
from batchq.scheduler.cycle import Cycle, CycleReport
from batchq.store.memory import MemoryStore
from tests.days.easy import Easy
from tests.days.making import STRATEGIES, Day, day_of, manifests
from tests.progress import leave_to_parent
from tests.worlds.instants import Instants
from tests.worlds.rules import Broken
from tests.yaml_text import text_of_all

#: The most sessions of a day, which ends long before.
MOST_SESSIONS = 20_000
#: An expected end: a gang that lost a node and started again may exceed its walltime.
_MAY_FAIL_FOR = frozenset({"WalltimeExceeded"})


class Outcome(Struct, frozen=True, kw_only=True):
    """The outcome of a day under one strategy.

    Waits are seconds from when a group waits only for others and resources until a pod's first
    start, averaged over the pods; `easy_wait_s` is that of the clairvoyant simulator.
    """

    seed: int
    strategy: str
    groups: int
    pods: int
    sessions: int
    ends: dict[str, int]
    wait_s: float
    easy_wait_s: float


class Failure(Struct, frozen=True):
    """A failed day, and the failure."""

    seed: int
    strategy: str
    why: str
    trace: str


class Failing(Execution):
    """Nodes on which the first attempt of some pods fails; owns the set of failed ones."""

    def __init__(
        self, store: MemoryStore, clock: Clock, requests: IdSource, fails: Mapping[str, int]
    ) -> None:
        super().__init__(store, clock, requests)
        #: Pod -> seconds until its failure.
        self._fails = dict(fails)

    def end_due(self) -> None:
        """End the pods that fail by now, then those that end normally."""
        now_ms = self._clock.now_ms()
        for pod in self._on_nodes():
            at = self._fails_at(pod)
            if at is not None and at <= now_ms:
                failed = simulation.end(
                    pod, PodPhase.FAILED, now_ms=now_ms, exit_code=1, message="exited with 1"
                )
                self._write(failed)
                del self._fails[full_name(pod)]
        super().end_due()

    def next_end_at(self) -> int | None:
        """Return when the next pod ends on its own."""
        ends = [at for pod in self._on_nodes() if (at := self._fails_at(pod)) is not None]
        if (at := super().next_end_at()) is not None:
            ends.append(at)
        return min(ends, default=None)

    def _fails_at(self, pod: Pod) -> int | None:
        status, after_s = pod.status, self._fails.get(full_name(pod))
        if after_s is None or status.started_at is None or self._done_at(pod) is None:
            return None
        return status.started_at + after_s * SECOND


class _Watched:
    """A cycle whose sessions are checked."""

    def __init__(self, cycle: Cycle, instants: Instants) -> None:
        self._cycle = cycle
        self._instants = instants

    def run_once(self) -> CycleReport:
        """Run one cycle."""
        report = self._cycle.run_once()
        if not report.rested:
            self._instants.follow(report.session)
        return report


class DayRun(WorldRun):
    """A world in which some pods fail, and every session is checked."""

    def __init__(self, world: World, fails: Mapping[str, int]) -> None:
        config = read_config("", "config")
        super().__init__(world, assemble(config))
        requests = CountedIds(10_000_000)
        self._execution = Failing(self.store, self._clock, requests, fails)
        self._outside = Outside(
            self.store, self._clock, CountedIds(1_000_000), requests, self._execution
        )
        self._cycle = _Watched(self._cycle, Instants(config))  # type: ignore[assignment]


def play(day: Day, strategy: str) -> Outcome:
    """Play a day. Raises Broken if a rule is violated, or something has not run by the end."""
    text = text_of_all(manifests(day, strategy))
    fails = {
        f"{one.key}-t-0": one.fails_after_s for one in day.works if one.fails_after_s is not None
    }
    run = DayRun(read_world(text, f"day {day.seed}"), fails)
    played = run.run(MOST_SESSIONS, bounded=True)
    if played.exhausted:
        raise Broken(f"the day has not come to rest after {MOST_SESSIONS} sessions")
    # A group may have ended before its user suspends it.
    refused = [step for step in played.refused_steps if not _comes_too_late(step)]
    if refused:
        raise Broken(f"a step was refused: {refused[0]}")
    ends = _ends(run)
    waits, easy = waits_of(day, played.outcome), Easy(day).play()
    return Outcome(
        seed=day.seed,
        strategy=strategy,
        groups=len(day.works),
        pods=len(waits),
        sessions=len(played.outcome.cycles),
        ends=ends,
        wait_s=sum(waits.values()) / max(1, len(waits)),
        easy_wait_s=sum(easy.values()) / max(1, len(easy)),
    )


def _comes_too_late(step: str) -> bool:
    """Return whether a step suspends or resumes a group that has already ended."""
    return " already and cannot be suspended" in step or " already and cannot be resumed" in step


def _ends(run: WorldRun) -> dict[str, int]:
    """Return the number of groups by their end. Raises Broken for a missing or a wrong end."""
    ends: Counter[str] = Counter()
    for group in run.store.list("PodGroup"):
        assert isinstance(group, PodGroup)
        phase = group.status.phase
        if phase not in TERMINAL:
            waits = "; ".join(one.message() for one in group.status.reasons)
            raise Broken(f"{full_name(group)} is {phase} when the day is over: {waits}")
        finished = [one.reason for one in group.status.conditions if one.type == "Finished"]
        reason = finished[-1] if finished else ""
        if phase != "Completed" and reason not in _MAY_FAIL_FOR:
            raise Broken(f"{full_name(group)} is {phase}: {reason}")
        ends[str(phase) if phase == "Completed" else f"{phase} ({reason})"] += 1
    return dict(sorted(ends.items()))


def waits_of(day: Day, outcome: WorldOutcome) -> dict[tuple[str, int], int]:
    """Return (group, pod's index) -> seconds from ready to first start."""
    ended = {name: cycle.time for cycle in outcome.cycles for name in cycle.finished}
    first: dict[str, int] = {}
    for cycle in outcome.cycles:
        for pod in cycle.bound:
            first.setdefault(pod, cycle.time)
    found = {}
    for one in day.works:
        ready_at = one.ready_at
        if one.after:
            ready_at = max(ready_at, ended[f"{one.namespace}/{one.after}"])
        for index in range(one.pods):
            start = first.get(f"{one.key}-t-{index}")
            if start is not None:
                found[one.key, index] = start - ready_at
    return found


def result_of(asked: tuple[int, str]) -> Outcome | Failure:
    """Return the outcome or the failure of a seed's day under a strategy."""
    seed, strategy = asked
    try:
        return play(day_of(seed), strategy)
    except Exception as wrong:  # a crash anywhere is a finding, as a broken rule is
        return Failure(seed, strategy, f"{type(wrong).__name__}: {wrong}", traceback.format_exc())


def results_of(seeds: Iterable[int], *, processes: int) -> Iterator[Outcome | Failure]:
    """Yield the results of every day under every strategy, in order, from several processes."""
    asked = [(seed, strategy) for seed in seeds for strategy in STRATEGIES]
    if processes == 1:
        yield from map(result_of, asked)
        return
    with multiprocessing.get_context("fork").Pool(processes, leave_to_parent) as pool:
        yield from pool.imap(result_of, asked, chunksize=1)
