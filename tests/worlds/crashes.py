"""Commits that are refused in part: nobody is evicted for nothing, and the world still settles."""

from __future__ import annotations

import random
from collections.abc import Sequence, Set
from typing import Any

from msgspec import structs

from batchq.api.objects import Pod, PodGroup
from batchq.api.transaction import Answer, Commit, Refusal, Transaction, Word
from batchq.core.session.snapshot import Snapshot
from batchq.core.session.state import GroupState, is_admitted
from batchq.lab.simulation.invariants import InvariantWatch
from batchq.lab.simulation.player import WorldRun
from batchq.lab.simulation.world import CountedIds, World
from batchq.scheduler.cycle import Cycle, CycleReport
from batchq.scheduler.scheduler import Scheduler
from batchq.store.memory import MemoryStore
from tests.worlds.rules import Broken, evictions

#: In so many commits something is refused; what comes after is to bring the world to rest.
COMMITS_IN_DOUBT = 12


class Reluctant:
    """A store that finds some transactions in conflict, as if somebody else had written."""

    def __init__(self, store: MemoryStore, dice: random.Random) -> None:
        self._store = store
        self._dice = dice
        self._commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def in_doubt(self) -> bool:
        """Whether commits are still refused in part."""
        return self._commits <= COMMITS_IN_DOUBT

    def snapshot(self) -> Snapshot:
        """As the store has it."""
        return self._store.snapshot()

    def commit(self, transactions: Sequence[Transaction], **more: Any) -> Commit:
        """Some of them, in order."""
        self._commits += 1
        taken = [one for one in transactions if not self.in_doubt or self._dice.random() < 0.6]
        done = self._store.commit(taken, **more)
        left = [one for one in transactions if all(one is not other for other in taken)]
        refused = [
            Refusal(transaction=one, answer=Answer(word=Word.CONFLICT, subject=one.subject))
            for one in left
        ]
        return structs.replace(done, refused=(*done.refused, *refused))


class Watching:
    """A cycle whose commits are looked at."""

    def __init__(self, cycle: Cycle, store: MemoryStore) -> None:
        self._cycle = cycle
        self._store = store

    def run_once(self) -> CycleReport:
        """One cycle; whom it has evicted is owed in the store, unless the claimant has started."""
        report = self._cycle.run_once()
        for intent in evictions(report.session):
            pod = self._store.get("Pod", intent.uid)
            claimant = self._store.get("PodGroup", intent.by)
            if not isinstance(pod, Pod) or not pod.status.terminating:
                continue
            before = report.session.by_key[intent.group].record
            if has_started(claimant, report.session.by_key[intent.by]):
                continue
            if intent.uid not in claimant_holds(claimant):
                raise Broken(
                    f"{intent.pod} of {before.metadata.name} was told to stop for {intent.by},"
                    " and the store knows of no pledge"
                )
        return report


def claimant_holds(claimant: object) -> set[str]:
    """The uids of what is pledged to a group."""
    return set(claimant.status.pledge.holds) if isinstance(claimant, PodGroup) else set()


def has_started(claimant: object, decided: GroupState) -> bool:
    """Whether a group found room at once, in what others left that had no pods on nodes, so that
    its pledge has ended; in the store, too.
    """
    return (
        isinstance(claimant, PodGroup)
        and is_admitted(decided)
        and not decided.status.pledge.stands
        and claimant.status.phase == decided.phase
    )


class PatientWatch(InvariantWatch):
    """What a session has settled need not be stored before commits go through again."""

    def __init__(self, store: MemoryStore, reluctant: Reluctant) -> None:
        self._reluctant = reluctant
        super().__init__(store)

    def _check_groups(self, spared: Set[str]) -> None:
        if not self._reluctant.in_doubt:
            super()._check_groups(spared)


class DoubtfulStage(WorldRun):
    """A stage on which commits are refused in part, for a while."""

    most_at_once = WorldRun.most_at_once + COMMITS_IN_DOUBT

    def __init__(self, world: World, scheduler: Scheduler, seed: int) -> None:
        super().__init__(world, scheduler)
        store = Reluctant(self.store, random.Random(seed))
        cycle = Cycle(store, scheduler, self._clock, CountedIds(1_000_000))  # type: ignore[arg-type]
        self._watch = PatientWatch(self.store, store)
        self._cycle = Watching(cycle, self.store)  # type: ignore[assignment]
