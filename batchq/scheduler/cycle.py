"""The scheduling cycle: read a snapshot, decide in a session, commit its transactions.

    snapshot -> session -> transactions -> commit

`Scheduler` decides; it is a pure function from a snapshot to a session that has decided. `Cycle`
reads and commits. The daemon runs it over a RedisStore and the server's clock, the simulator over a
MemoryStore and a virtual clock. A refused transaction is normal: the next cycle decides again. At
the end of a session, `write_reasons` stores the reasons for which groups wait, if they changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from msgspec import Struct, structs

from batchq.api import intents
from batchq.api.intents import Intent
from batchq.api.lifecycle import PodGroupPhase
from batchq.api.reasons import (
    NEVER_FITS,
    Blockers,
    Verdict,
    Waiting,
    same_causes,
    turn_of,
)
from batchq.api.transaction import Commit, Transaction
from batchq.core.eligibility import InadmissibleGroups
from batchq.core.extension import PluginPlaces
from batchq.core.kept_capacity import store_kept_places
from batchq.core.pending_queue import (
    blockers,
    out_of_line_refusals,
    queues_to_tell,
    refuse_strayed,
    tell_classes,
    victim_refusals,
)
from batchq.core.scheduler_cache import SchedulerCache
from batchq.core.session.open_session import open_session
from batchq.core.session.session import Action, Session
from batchq.core.session.snapshot import Instrument, Settings, Snapshot, says_the_same
from batchq.core.session.state import GroupState, recorded_reasons
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import admit, create_pods, set_condition, wanted_ordinals
from batchq.ports import BeginCommit, Clock, CommitStream, IdSource, Store
from batchq.scheduler.admission_checks import roll_back_misfits
from batchq.scheduler.pod_controller import settle
from batchq.scheduler.timers import DEFERRED_MS, next_due_at
from batchq.scheduler.transactions import final_transactions, transactions_of

#: Only the most fundamental ones are stored; `batchq describe` computes all of them on demand.
MOST_REASONS_KEPT = 64
#: Default of the most groups whose reasons one session writes.
MOST_WRITTEN = 10_000
#: A session that has touched fewer groups before its actions commits everything after them.
TOUCHED_FOR_A_STREAM = 100
_RUNS = (PodGroupPhase.RUNNING, PodGroupPhase.UNKNOWN)
_SHOWN_IN_SCHEDULED = (Waiting.SCHEDULING_GATED, Waiting.UNSCHEDULABLE)


class _Budget:
    """How many more groups may have their reasons written: `left` overall, `share` per queue.

    With `defers_rewrites`, only groups that have no stored reasons yet.
    """

    def __init__(self, left: int, queues: int, *, defers_rewrites: bool) -> None:
        self._left = left
        self._share: int | None = max(1, left // max(1, queues))
        self._defers_rewrites = defers_rewrites
        self._written: Counter[str] = Counter()
        #: Whether changed reasons were left to a later session.
        self.has_deferred = False

    def allows(self, queue: str) -> bool:
        """Return whether one more group of this queue may be written, and count it."""
        if self._left <= 0 or (self._share is not None and self._written[queue] >= self._share):
            return False
        self._left -= 1
        self._written[queue] += 1
        return True

    def defers(self, group: GroupState) -> bool:
        """Return whether this group is left to a later session: its stored reasons may stay."""
        if (
            not self._defers_rewrites
            or not group.status.reasons
            or group.status is not group.record.status
        ):
            return False
        self.has_deferred = True
        return True

    def share_the_rest(self) -> None:
        """Let any queue use what the others have left."""
        self._share = None


def write_reasons(
    session: Session, inadmissible: InadmissibleGroups, most: int = MOST_WRITTEN
) -> None:
    """Write changed reasons to the groups' status, and park groups that may be left out from now
    on.

    A change of numbers within a message is not written. A session writes the reasons of at most
    `most` groups, and later sessions the rest, so that writing does not delay groups that can
    start. Queues get equal shares, so that a queue with very many groups does not delay the
    reasons of the others. A session that defers status leaves stored reasons as they are.
    With `most` 0, no reasons are written and no groups are parked.
    """
    refuse_strayed(session)
    if not most:
        return
    refused = list(session.refusals.own.items())
    queues = {session.groups[uid].queue for uid, _ in refused}
    queues |= queues_to_tell(session)
    budget = _Budget(most, len(queues), defers_rewrites=session.effects.defers_status)
    later: list[tuple[GroupState, tuple[Verdict, ...]]] = []
    for uid, refusals in refused:
        group = session.groups[uid]
        if _is_recorded(group, refusals):
            _park(session, inadmissible, group, refusals)
            continue
        verdicts = refusals[:MOST_REASONS_KEPT]
        is_as_good = _is_as_good_for_more_pods if group.phase in _RUNS else _is_as_good
        if not verdicts or is_as_good(group.status.reasons, verdicts):
            _park(session, inadmissible, group, refusals)
        elif budget.defers(group):
            continue
        elif budget.allows(group.queue) or group.status is not group.record.status:
            _write(session, group, verdicts)
        else:
            later.append((group, verdicts))
    _write_classes(session, budget)
    budget.share_the_rest()
    for group, verdicts in later:
        if budget.allows(group.queue):
            _write(session, group, verdicts)
    _write_classes(session, budget)
    session.effects.has_deferred_reasons = budget.has_deferred


def _park(
    session: Session,
    inadmissible: InadmissibleGroups,
    group: GroupState,
    refusals: tuple[Verdict, ...],
) -> None:
    if inadmissible.park(session, group, refusals):
        session.park(group)


def _write_classes(session: Session, budget: _Budget) -> None:
    """Write the verdicts of an equivalence class to those members whose records differ."""

    def write(group: GroupState, verdicts: Blockers) -> bool:
        if not budget.allows(group.queue):
            return False
        session.refuse(group, verdicts)
        _write(session, group, verdicts[:MOST_REASONS_KEPT])
        return True

    def is_as_good(group: GroupState, verdicts: Blockers) -> bool:
        return _is_as_good(group.record.status.reasons, verdicts[:MOST_REASONS_KEPT])

    tell_classes(session, write, is_as_good, budget.defers)


def _write(session: Session, group: GroupState, verdicts: tuple[Verdict, ...]) -> None:
    verdicts = tuple(verdict.lasting() for verdict in verdicts)
    first = verdicts[0]
    with Statement(session) as statement:
        statement.set_status(group, reasons=verdicts)
        if group.phase == PodGroupPhase.PENDING:
            # A group that has reserved waits only for its admission.
            what = "Admitted" if group.reserved else "QuotaReserved"
            set_condition(statement, group, what, "False", first.reason, first.message())
        _set_scheduled(statement, group, verdicts)
        reasons = tuple(dict.fromkeys(str(verdict.reason) for verdict in verdicts))
        statement.say(intents.SetReasons(group=group.key, reasons=reasons))
        statement.commit()


def _is_recorded(group: GroupState, blockers: Blockers) -> bool:
    """Return whether the stored record has the same causes, or the same turn, already.

    This is the usual case, so it is checked first.
    """
    if group.status is not group.record.status:
        return False
    causes, turn = recorded_reasons(group)
    return (bool(turn) and turn == blockers.turn) or causes == blockers.causes


def _is_as_good(stored: tuple[Verdict, ...], verdicts: tuple[Verdict, ...]) -> bool:
    """Return whether the stored reasons are as good as those found now.

    For an ineligible group only what makes it ineligible counts. Whether it would fit changes with
    other groups, and writing that each time would be useless. The same goes for a group whose turn
    it is not.
    """
    if (turn := turn_of(stored)) and turn == turn_of(verdicts):
        return True
    firm, stored_firm = _firm(verdicts), _firm(stored)
    if firm and stored_firm:
        return same_causes(stored_firm, firm)
    return same_causes(stored, verdicts)


def _is_as_good_for_more_pods(stored: tuple[Verdict, ...], verdicts: tuple[Verdict, ...]) -> bool:
    """Return the same for a group that runs with fewer pods than it asks for. While a quota refuses
    its next pod, only the quota counts: whether nodes would take that pod changes with the pods of
    other groups.
    """
    quota, stored_quota = (
        tuple(one for one in found if one.reason == Waiting.WAITING_FOR_QUOTA)
        for found in (verdicts, stored)
    )
    if quota and stored_quota:
        return same_causes(stored_quota, quota)
    return same_causes(stored, verdicts)


def _firm(verdicts: tuple[Verdict, ...]) -> tuple[Verdict, ...]:
    return tuple(
        verdict
        for verdict in verdicts
        if not verdict.in_line and verdict.reason != Waiting.WAITING_FOR_QUOTA
    )


def _set_scheduled(statement: Statement, group: GroupState, verdicts: tuple[Verdict, ...]) -> None:
    """Show Gated and Unschedulable in the condition Scheduled, or remove them if no longer true."""
    stored = next((c for c in group.status.conditions if c.type == "Scheduled"), None)
    shown = [verdict for verdict in verdicts if verdict.reason in _SHOWN_IN_SCHEDULED]
    if not shown and (stored is None or stored.reason not in _SHOWN_IN_SCHEDULED):
        return
    verdict = (shown or verdicts)[0]
    set_condition(statement, group, "Scheduled", "False", verdict.reason, verdict.message())


class CycleReport(Struct, frozen=True, kw_only=True):
    """The result of a cycle."""

    session: Session
    intents: Sequence[Intent]
    commit: Commit
    duration_ms: int
    #: The cycle was skipped: `session` is the last one, which decided nothing, and nothing changed.
    rested: bool = False
    _due: list[int | None] = []

    @property
    def next_due_at(self) -> int | None:
        """The instant (ms) at which the next clock runs out; None if no clock runs. Read it before
        the next cycle, whose session takes over the states of this one.
        """
        if not self._due:
            self._due.append(next_due_at(self.session))
        return self._due[0]


class StatusWrites:
    """When a scheduler writes status that only informs people: changed reasons, and that groups
    run. While sessions follow each other, that is once in `DEFERRED_MS`, by a steady clock (ms).

    Each such write costs as much as a start, and most groups that start or end by then need none.
    """

    def __init__(self) -> None:
        self._at: int | None = None

    def is_due(self, now_ms: int) -> bool:
        """Return whether a session that begins now writes it."""
        return self._at is None or self._at <= now_ms

    def note(self, report: CycleReport, now_ms: int) -> None:
        """Note the outcome of a session that has written it, and began at `now_ms`."""
        if any(map(_only_informs, report.intents)):
            self._at = now_ms + DEFERRED_MS

    def due_in_ms(self, report: CycleReport, now_ms: int) -> int | None:
        """Return when what a session has deferred is due; None if it has not."""
        if self._at is None or not report.session.effects.has_deferred_reasons:
            return None
        return max(1, self._at - now_ms)


def _only_informs(intent: Intent) -> bool:
    match intent:
        case intents.SetReasons() | intents.MoveGroup(phase=PodGroupPhase.RUNNING):
            return True
        case _:
            return False


class Cycle:
    """Runs scheduling cycles over one store."""

    def __init__(
        self,
        store: Store,
        scheduler: Scheduler,
        clock: Clock,
        ids: IdSource,
        *,
        snapshot: Callable[[], Snapshot] | None = None,
        begin_commit: BeginCommit | None = None,
        writes_events: bool = True,
    ) -> None:
        """`snapshot` reads the snapshot; by default, the store's whole one. With `begin_commit`,
        the store may apply the ends of groups while the actions decide. Without `writes_events`, no
        events of groups are stored, since nothing reads them.
        """
        self._store = store
        self._snapshot = snapshot or store.snapshot
        self._scheduler = scheduler
        self._clock = clock
        self._ids = ids
        self._begin_commit = begin_commit
        self._writes_events = writes_events
        #: The last cycle and its scheduler, if it decided nothing.
        self._quiet: tuple[Scheduler, CycleReport] | None = None

    def go_by(self, scheduler: Scheduler) -> None:
        """Use another scheduler from the next cycle on; not to be called during a cycle."""
        self._scheduler = scheduler

    def run_once(self, epoch: int | None = None, *, writes_status: bool = True) -> CycleReport:
        """Run one cycle, as the leader of `epoch`.

        Without `writes_status`, status that only informs people may be deferred to a later cycle:
        changed reasons, and that a group runs.

        Raises StoreUnavailable if the store cannot be read, or it is unknown whether it was
        written; the next cycle then reads what became of that.
        """
        started_at = self._clock.now_ms()
        snapshot = self._snapshot()
        if (last := self._at_rest(snapshot, started_at)) is not None:
            return last
        if self._begin_commit is None:
            session = self._scheduler.decide(snapshot, started_at, writes_status=writes_status)
            report = self._report(session, self._commit(session, epoch))
        else:
            session = self._scheduler.begin(snapshot, started_at, writes_status=writes_status)
            stream, final = self._begin(self._begin_commit, session, epoch)
            self._scheduler.conclude(session)
            stream.add(self._transactions_of(session, without=final))
            report = self._report(session, stream.finish())
        decides = report.intents or session.effects.has_deferred_reasons
        is_quiet = not decides and not report.commit.applied and not report.commit.refused
        self._quiet = (self._scheduler, report) if is_quiet else None
        return report

    def settle_once(self, epoch: int | None = None) -> CycleReport:
        """Run a cycle without actions, for a caller that knows that they would decide nothing."""
        self._quiet = None
        session = self._scheduler.follow(self._snapshot(), self._clock.now_ms())
        return self._report(session, self._commit(session, epoch))

    def _begin(
        self, begin_commit: BeginCommit, session: Session, epoch: int | None
    ) -> tuple[CommitStream, Mapping[str, Transaction]]:
        """Begin the commit of a session before its actions; return also the transactions, by uid of
        their group, that it has been given already.
        """
        stream = begin_commit(
            request_id=self._ids.new_uid(),
            epoch=epoch,
            overcommit=self._scheduler.settings.overcommit,
            seen=session.snapshot.revision,
        )
        if len(session.effects.touched) < TOUCHED_FOR_A_STREAM:
            return stream, {}
        final = final_transactions(session, with_events=self._writes_events)
        stream.add(final.values())
        return stream, final

    def _commit(self, session: Session, epoch: int | None) -> Commit:
        """Commit what a session has decided."""
        transactions = list(self._transactions_of(session))
        if not transactions:
            return Commit()
        return self._store.commit(
            transactions,
            request_id=self._ids.new_uid(),
            epoch=epoch,
            overcommit=self._scheduler.settings.overcommit,
            seen=session.snapshot.revision,
        )

    def _transactions_of(
        self, session: Session, without: Container[str] = ()
    ) -> Iterator[Transaction]:
        return transactions_of(session, with_events=self._writes_events, without=without)

    def _report(self, session: Session, commit: Commit) -> CycleReport:
        return CycleReport(
            session=session,
            intents=tuple(session.intents),
            commit=commit,
            duration_ms=self._clock.now_ms() - session.now_ms,
        )

    def _at_rest(self, snapshot: Snapshot, now_ms: int) -> CycleReport | None:
        """Return the last report if this cycle would repeat it, else None.

        That is so if the last session decided nothing, nothing has changed since, and nothing is
        due. A plugin whose answers change with time alone must implement `due_at`.
        """
        if self._quiet is None:
            return None
        scheduler, last = self._quiet
        is_due = last.next_due_at is not None and last.next_due_at <= now_ms
        is_late = now_ms < last.session.now_ms
        if scheduler is not self._scheduler or is_due or is_late:
            return None
        if not says_the_same(last.session.snapshot, snapshot):
            return None
        return structs.replace(last, rested=True, duration_ms=self._clock.now_ms() - now_ms)


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
    _inadmissible: InadmissibleGroups = field(
        default_factory=InadmissibleGroups, repr=False, compare=False
    )

    def decide(self, snapshot: Snapshot, now_ms: int, *, writes_status: bool = True) -> Session:
        """Run a whole session: controllers, actions, reasons. Pure."""
        session = self.begin(snapshot, now_ms, writes_status=writes_status)
        self.conclude(session)
        return session

    def begin(self, snapshot: Snapshot, now_ms: int, *, writes_status: bool = True) -> Session:
        """Open a session and run its controllers; `conclude` must follow. Pure."""
        session = self._open(snapshot, now_ms, self._inadmissible, self._carried)
        session.effects.defers_status = not writes_status
        settle(session)
        return session

    def conclude(self, session: Session) -> None:
        """Run the actions of a session that has begun, and write its reasons. Pure."""
        session.line_up()
        session.begin_actions()
        if "enqueue" not in session.actions:
            _admit_all(session)
        for action in self.actions:
            self._execute(action, session)
        roll_back_misfits(session)
        store_kept_places(session)
        session.close()
        write_reasons(session, self._inadmissible, self.most_written)
        session.end()

    def follow(self, snapshot: Snapshot, now_ms: int) -> Session:
        """Run a session without actions, which the caller knows would decide nothing. Pure."""
        session = self._open(snapshot, now_ms, self._inadmissible, self._carried)
        settle(session)
        session.line_up()
        session.begin_actions()
        session.close()
        write_reasons(session, self._inadmissible, self.most_written)
        session.end()
        return session

    def without_memory(self) -> Self:
        """Return the same scheduler with an empty inadmissible set: it asks about every group."""
        return replace(self, _inadmissible=InadmissibleGroups(), _carried=SchedulerCache())

    def open(self, snapshot: Snapshot, now_ms: int) -> Session:
        """Open a session that has decided nothing yet, and asks about every group."""
        return self._open(snapshot, now_ms, None, None)

    def _open(
        self,
        snapshot: Snapshot,
        now_ms: int,
        inadmissible: InadmissibleGroups | None,
        carried: SchedulerCache | None,
    ) -> Session:
        names = tuple([action.name for action in self.actions])
        return open_session(
            snapshot,
            now_ms=now_ms,
            settings=self.settings,
            plugins=self.plugins,
            actions=names,
            carried=carried,
            instrument=self.instrument,
            inadmissible=inadmissible,
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
