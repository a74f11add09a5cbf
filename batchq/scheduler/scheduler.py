"""The scheduler: a function from a snapshot to a session that has decided."""

from __future__ import annotations

from dataclasses import dataclass, field

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.reasons import Verdict, Waiting
from batchq.framework.line import blockers, gives_way, standing_aside
from batchq.framework.moves import admit, create_pods
from batchq.framework.session import Action, Plugin, Session
from batchq.framework.settings import Settings
from batchq.framework.shapes import ShapeMemo
from batchq.framework.snapshot import Snapshot
from batchq.framework.state import GroupState
from batchq.framework.statement import Statement
from batchq.framework.wanted import wanted_ordinals
from batchq.scheduler.closing import write_reasons
from batchq.scheduler.controller import settle


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Actions in the configured order, plugins with their weights, and the times to go by."""

    actions: tuple[Action, ...]
    plugins: tuple[tuple[Plugin, int], ...]
    settings: Settings
    _memo: ShapeMemo = field(default_factory=ShapeMemo, repr=False, compare=False)

    def decide(self, snapshot: Snapshot, now_ms: int) -> Session:
        """Settle, run the actions, write down the reasons. Pure."""
        session = self.open(snapshot, now_ms)
        settle(session)
        session.line_up()
        session.begin_actions()
        if "enqueue" not in session.actions:
            _let_all_in(session)
        for action in self.actions:
            action.execute(session)
        session.close()
        write_reasons(session)
        return session

    def open(self, snapshot: Snapshot, now_ms: int) -> Session:
        """A session that has decided nothing yet."""
        names = tuple(action.name for action in self.actions)
        return Session(
            snapshot,
            now_ms=now_ms,
            settings=self.settings,
            plugins=self.plugins,
            actions=names,
            memo=self._memo,
        )


def _let_all_in(session: Session) -> None:
    """Without `enqueue`: InQueue without reservation; the hard limits then hold at each bind.

    What could never fit waits all the same.
    """
    for group in session.groups.values():
        if group.phase != PodGroupPhase.PENDING:
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
        if not session.nodes or verdict.reason in (Waiting.EXCEEDS_MAX_QUOTA, Waiting.MISCONFIGURED)
    ]
