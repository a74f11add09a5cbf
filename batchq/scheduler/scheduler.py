"""The scheduler: a pure function from a snapshot to a session that has decided."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.reasons import NEVER_FITS, Verdict
from batchq.core.cache.scheduler_cache import SchedulerCache
from batchq.core.extension.points import PluginPlaces
from batchq.core.pending.inadmissible import InadmissibleGroups
from batchq.core.pending.queue import blockers, out_of_line_refusals, victim_refusals
from batchq.core.placement.kept_places import store_kept_places
from batchq.core.session.open_session import open_session
from batchq.core.session.pods import wanted_ordinals
from batchq.core.session.session import Action, Session
from batchq.core.session.snapshot import Instrument, Settings, Snapshot
from batchq.core.session.state import GroupState
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import admit, create_pods
from batchq.scheduler.admission_checks import roll_back_misfits
from batchq.scheduler.pod_controller import settle
from batchq.scheduler.reasons import MOST_WRITTEN, write_reasons


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Actions in the configured order, the plugins of each extension point, and the settings."""

    actions: tuple[Action, ...]
    plugins: PluginPlaces
    settings: Settings
    #: Wraps the functions that sessions call, to measure them.
    instrument: Instrument | None = field(default=None, repr=False, compare=False)
    #: The most groups whose reasons one session writes; the others follow in later sessions.
    most_written: int = MOST_WRITTEN
    _carried: SchedulerCache = field(default_factory=SchedulerCache, repr=False, compare=False)
    _parking: InadmissibleGroups = field(
        default_factory=InadmissibleGroups, repr=False, compare=False
    )

    def decide(self, snapshot: Snapshot, now_ms: int) -> Session:
        """Run a whole session: controllers, actions, reasons. Pure."""
        session = self._open(snapshot, now_ms, self._parking, self._carried)
        settle(session)
        session.line_up()
        session.begin_actions()
        if "enqueue" not in session.actions:
            _admit_all(session)
        for action in self.actions:
            self._execute(action, session)
        roll_back_misfits(session)
        store_kept_places(session)
        session.close()
        write_reasons(session, self._parking, self.most_written)
        session.end()
        return session

    def follow(self, snapshot: Snapshot, now_ms: int) -> Session:
        """Run a session without actions, which the caller knows would decide nothing. Pure."""
        session = self._open(snapshot, now_ms, self._parking, self._carried)
        settle(session)
        session.line_up()
        session.begin_actions()
        session.close()
        write_reasons(session, self._parking, self.most_written)
        session.end()
        return session

    def without_memory(self) -> Self:
        """Return the same scheduler with an empty inadmissible set: it asks about every group."""
        return replace(self, _parking=InadmissibleGroups(), _carried=SchedulerCache())

    def open(self, snapshot: Snapshot, now_ms: int) -> Session:
        """Open a session that has decided nothing yet, and asks about every group."""
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


def _admit_all(session: Session) -> None:
    """Admit groups without the action `enqueue`: InQueue, but without a reservation.

    Hard limits then apply at each bind. A group that can never fit stays Pending all the same.
    """
    for group in session.in_order():
        if group.phase != PodGroupPhase.PENDING or group.uid in session.pending.parked:
            continue
        # Nothing of an external group is bound later, so its limits apply now.
        verdicts = (
            list(blockers(session, group))
            if group.is_external
            else [
                *out_of_line_refusals(session, group),
                *victim_refusals(session, group),
                *_unsatisfiable(session, group),
            ]
        )
        if verdicts:
            session.refuse(group, verdicts)
            continue
        with Statement(session) as statement:
            admit(statement, group, reservation=group.reservation if group.is_external else {})
            create_pods(statement, group, wanted_ordinals(group))
            statement.commit()


def _unsatisfiable(session: Session, group: GroupState) -> list[Verdict]:
    """Return only the verdicts that waiting cannot change, or that need a first node."""
    return [
        verdict
        for verdict in session.refusals_at("admissible", group)
        if not session.nodes.by_name or verdict.reason in NEVER_FITS
    ]
