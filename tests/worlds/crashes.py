"""Partly refused commits: no pod is evicted in vain, and the world still comes to rest."""

from __future__ import annotations

import random
from collections.abc import Sequence, Set
from typing import Any

from msgspec import structs

from batchq.api.objects import Pod, PodGroup
from batchq.api.transaction import Answer, Commit, Refusal, Transaction, Word
from batchq.core.session.snapshot import Snapshot
from batchq.core.session.state import GroupState, is_admitted
from batchq.lab.simulation import WorldRun
from batchq.lab.simulation.world import CountedIds, InvariantWatch, World
from batchq.scheduler.cycle import Cycle, CycleReport, Scheduler
from batchq.store.memory import MemoryStore
from tests.worlds.rules import Broken, evictions

#: The number of commits that are partly refused; the ones after them must bring the world to rest.
COMMITS_IN_DOUBT = 12


class Reluctant:
    """A store that finds some transactions in conflict, as if another client had written."""

    def __init__(self, store: MemoryStore, dice: random.Random) -> None:
        self._store = store
        self._dice = dice
        self._commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def in_doubt(self) -> bool:
        """Return whether commits are still partly refused."""
        return self._commits <= COMMITS_IN_DOUBT

    def snapshot(self) -> Snapshot:
        """Return the store's snapshot."""
        return self._store.snapshot()

    def commit(self, transactions: Sequence[Transaction], **more: Any) -> Commit:
        """Commit some of the transactions, in order."""
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
    """A cycle whose commits are checked."""

    def __init__(self, cycle: Cycle, store: MemoryStore) -> None:
        self._cycle = cycle
        self._store = store

    def run_once(self) -> CycleReport:
        """Run one cycle; each victim is pledged in the store, unless its preemptor has started."""
        report = self._cycle.run_once()
        for intent in evictions(report.session):
            pod = self._store.get("Pod", intent.uid)
            preemptor = self._store.get("PodGroup", intent.by)
            if not isinstance(pod, Pod) or not pod.status.terminating:
                continue
            before = report.session.by_key[intent.group].record
            if has_started(preemptor, report.session.by_key[intent.by]):
                continue
            if intent.uid not in preemptor_holds(preemptor):
                raise Broken(
                    f"{intent.pod} of {before.metadata.name} was evicted for {intent.by},"
                    " and the store has no such pledge"
                )
        return report


def preemptor_holds(preemptor: object) -> set[str]:
    """Return the uids of the victims pledged to a group."""
    return set(preemptor.status.pledge.holds) if isinstance(preemptor, PodGroup) else set()


def has_started(preemptor: object, decided: GroupState) -> bool:
    """Return whether a group got capacity at once, from victims without pods on nodes, so that its
    pledge has ended; in the store, too.
    """
    return (
        isinstance(preemptor, PodGroup)
        and is_admitted(decided)
        and not decided.status.pledge.stands
        and preemptor.status.phase == decided.phase
    )


class PatientWatch(InvariantWatch):
    """A session's decisions need not be stored until commits go through again."""

    def __init__(self, store: MemoryStore, reluctant: Reluctant) -> None:
        self._reluctant = reluctant
        super().__init__(store)

    def _check_groups(self, spared: Set[str]) -> None:
        if not self._reluctant.in_doubt:
            super()._check_groups(spared)


class DoubtfulStage(WorldRun):
    """A stage on which commits are partly refused for a while."""

    most_at_once = WorldRun.most_at_once + COMMITS_IN_DOUBT

    def __init__(self, world: World, scheduler: Scheduler, seed: int) -> None:
        super().__init__(world, scheduler)
        store = Reluctant(self.store, random.Random(seed))
        cycle = Cycle(store, scheduler, self._clock, CountedIds(1_000_000))  # type: ignore[arg-type]
        self._watch = PatientWatch(self.store, store)
        self._cycle = Watching(cycle, self.store)  # type: ignore[assignment]
