"""The scheduler: a function from a snapshot to a session that has decided."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.reasons import NEVER_FITS, Verdict
from batchq.core.cache.scheduler_cache import SchedulerCache
from batchq.core.extension.points import PluginPlaces
from batchq.core.pending.inadmissible import InadmissibleGroups
from batchq.core.pending.queue import blockers, gives_way, standing_aside
from batchq.core.placement.kept_places import store_kept_places
from batchq.core.session.open_session import open_session
from batchq.core.session.pods import wanted_ordinals
from batchq.core.session.session import Action, Session
from batchq.core.session.settings import Instrument, Settings
from batchq.core.session.snapshot import Snapshot
from batchq.core.session.state import GroupState
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import admit, create_pods
from batchq.scheduler.admission_checks import give_back_what_no_longer_fits
from batchq.scheduler.pod_controller import settle
from batchq.scheduler.reasons import MOST_WRITTEN, write_reasons


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Actions in the configured order, who is asked at each point, and the times to go by."""

    actions: tuple[Action, ...]
    plugins: PluginPlaces
    settings: Settings
    #: Stands between sessions and what they call, to measure it.
    instrument: Instrument | None = field(default=None, repr=False, compare=False)
    #: So many groups have their reasons written in one session; the rest in those that follow.
    most_written: int = MOST_WRITTEN
    _carried: SchedulerCache = field(default_factory=SchedulerCache, repr=False, compare=False)
    _parking: InadmissibleGroups = field(
        default_factory=InadmissibleGroups, repr=False, compare=False
    )

    def decide(self, snapshot: Snapshot, now_ms: int) -> Session:
        """Settle, run the actions, write down the reasons. Pure."""
        session = self._open(snapshot, now_ms, self._parking, self._carried)
        settle(session)
        session.line_up()
        session.begin_actions()
        if "enqueue" not in session.actions:
            _let_all_in(session)
        for action in self.actions:
            self._execute(action, session)
        give_back_what_no_longer_fits(session)
        store_kept_places(session)
        session.close()
        write_reasons(session, self._parking, self.most_written)
        session.end()
        return session

    def follow(self, snapshot: Snapshot, now_ms: int) -> Session:
        """Settle, and no more; for who knows that the actions would decide nothing. Pure."""
        session = self._open(snapshot, now_ms, self._parking, self._carried)
        settle(session)
        session.line_up()
        session.begin_actions()
        session.close()
        write_reasons(session, self._parking, self.most_written)
        session.end()
        return session

    def wide_awake(self) -> Self:
        """The same scheduler without a memory of who sleeps: it asks about every group."""
        return replace(self, _parking=InadmissibleGroups(), _carried=SchedulerCache())

    def open(self, snapshot: Snapshot, now_ms: int) -> Session:
        """A session that has decided nothing yet, and asks about every group."""
        return self._open(snapshot, now_ms, None, None)

    def _open(
        self,
        snapshot: Snapshot,
        now_ms: int,
        parking: InadmissibleGroups | None,
        carried: SchedulerCache | None,
    ) -> Session:
        names = tuple(action.name for action in self.actions)
        return open_session(
            snapshot,
            now_ms=now_ms,
            settings=self.settings,
            plugins=self.plugins,
            actions=names,
            carried=carried,
            instrument=self.instrument,
            parking=parking,
        )

    def _execute(self, action: Action, session: Session) -> None:
        execute = action.execute
        if self.instrument is not None:
            execute = self.instrument.action(action.name, execute)
        execute(session)


def _let_all_in(session: Session) -> None:
    """Without `enqueue`: InQueue without reservation; the hard limits then hold at each bind.

    What could never fit waits all the same.
    """
    for group in session.in_order():
        if group.phase != PodGroupPhase.PENDING or group.uid in session.asleep:
            continue
        # Nothing of an external group is bound later, so its limits hold now.
        verdicts = (
            list(blockers(session, group))
            if group.is_external
            else [
                *standing_aside(session, group),
                *gives_way(session, group),
                *_never(session, group),
            ]
        )
        if verdicts:
            session.refuse(group, verdicts)
            continue
        with Statement(session) as statement:
            admit(statement, group, reservation=group.reservation if group.is_external else {})
            create_pods(statement, group, wanted_ordinals(group))
            statement.commit()


def _never(session: Session, group: GroupState) -> list[Verdict]:
    """Rule 1 alone: what no waiting helps, or what only the first node can tell."""
    return [
        verdict
        for verdict in session.refusals_at("admissible", group)
        if not session.nodes or verdict.reason in NEVER_FITS
    ]
