"""What would happen if something were submitted now: a real session on a snapshot that has it.

One session is decided, the scheduler's own, on the live snapshot with the request's objects in it;
what it decided is read off, and nothing is written. It is what the leader's next session does, if
the same is submitted and nothing else changes before.

    plan = client.plan([group])
    plan.outcome            # Now, Evicts, Waits or Never; the worst of its groups
    plan.groups[0].nodes    # where it would run
    plan.evicted            # who would have to go
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from batchq.api.objects import Object, PodGroup, full_name, key_of, kind_of
from batchq.api.transaction import Ledger, Transaction
from batchq.changes import apply, create
from batchq.client.outcomes import (
    GroupPlan,
    Outcome,
    SeenGroup,
    Victim,
    check_objects_allowed,
    delayed,
    group_plan,
    ledger_of,
    supposed,
    victims,
    written,
)
from batchq.client.remedies import MOST_ADVISED, advice_for
from batchq.client.requests import Applied, Effect, plan
from batchq.client.start_estimates import Deciding
from batchq.core.forecast.estimates import expected_starts
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Snapshot
from batchq.errors import InvalidInput
from batchq.ports import Reader

if TYPE_CHECKING:
    from batchq.client.requests import Objects
    from batchq.client.start_estimates import Starts
    from batchq.ports import IdSource
    from batchq.store.redis import RedisStore


_ORDER = tuple(Outcome)
_EXIT_CODES = {Outcome.NOW: 0, Outcome.EVICTS: 3, Outcome.WAITS: 4, Outcome.NEVER: 5}


class Plan(Struct, frozen=True, kw_only=True):
    """What a request would come to; `at` is the instant, in the server's milliseconds.

    `delayed`: groups that would start in the same session without it, and do not with it.
    `changes`: what becomes of the request's other objects, `warnings`: what its author may not have
    meant.
    """

    at: int
    outcome: Outcome
    groups: tuple[GroupPlan, ...]
    evicted: tuple[Victim, ...]
    delayed: tuple[str, ...]
    changes: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0 now, 3 with evictions, 4 would wait, 5 never."""
        return _EXIT_CODES[self.outcome]


class Planner:
    """Works out plans on one look at everything. `reader` has what a snapshot has not."""

    def __init__(self, deciding: Deciding, reader: Reader, new_uid: Callable[[], str]) -> None:
        self._deciding = deciding
        self._reader = reader
        self._new_uid = new_uid

    def plan(
        self, objects: Sequence[Object], *, keep_stop: Collection[str] = (), advise: bool = True
    ) -> Plan:
        """See `Client.plan`."""
        keys = [key_of(item) for item in objects if isinstance(item, PodGroup)]
        if not keys:
            raise InvalidInput(
                "expected at least one PodGroup to plan, found none",
                hint="`batchq apply --dry-run -f FILE` is for files of other objects",
            )
        before = self._deciding.snapshot
        seen = SeenGroup(before, self._reader)
        request = plan(seen, objects, self._step, keep_stop=keep_stop, held=self._held)
        # The groups are new, and so there is something to write.
        assert request.transaction is not None
        check_objects_allowed(
            before,
            request.transaction,
            per_namespace=self._deciding.scheduler.settings.max_pod_groups_per_namespace,
        )
        after = supposed(before, written(request.transaction))
        session, without = self._deciding.decide(after), self._deciding.decide()
        groups = _with_expected(session, [group_plan(session, key) for key in keys])
        evicted = victims(session, without, keys)
        gone = {victim.key for victim in evicted}
        return Plan(
            at=self._deciding.now_ms,
            outcome=_worst(groups, evicted),
            groups=self._advised(after, session, groups) if advise else groups,
            evicted=tuple(evicted),
            delayed=tuple(delayed(session, without, gone)),
            changes=tuple(
                _said(one) for one in request.applied if not isinstance(one.object, PodGroup)
            ),
            warnings=tuple(warning for one in request.applied for warning in one.warnings),
        )

    def _held(self) -> Ledger:
        return ledger_of(self._deciding.session())

    def _step(self, reader: Reader, item: Object) -> Transaction | None:
        """As a submission does it: groups are new, anything else is applied."""
        do = create if isinstance(item, PodGroup) else apply
        return do(reader, item, now_ms=self._deciding.now_ms, uid=self._new_uid(), in_part=True)

    def _advised(
        self, snapshot: Snapshot, session: Session, groups: tuple[GroupPlan, ...]
    ) -> tuple[GroupPlan, ...]:
        """With what would help the first of those that wait."""
        waiting = [one.key for one in groups if one.outcome in (Outcome.WAITS, Outcome.NEVER)]
        helped = waiting[:MOST_ADVISED]
        return tuple(
            structs.replace(one, advice=tuple(advice_for(self._deciding, snapshot, session, one)))
            if one.key in helped
            else one
            for one in groups
        )


def _with_expected(session: Session, groups: Sequence[GroupPlan]) -> tuple[GroupPlan, ...]:
    """With when each of those that wait is expected to start."""
    waiting = {
        one.key: session.by_key[one.key].uid for one in groups if one.outcome is Outcome.WAITS
    }
    if not waiting:
        return tuple(groups)
    told = expected_starts(session, wanted=waiting.values())
    return tuple(
        structs.replace(one, expected_start=told[waiting[one.key]].at)
        if one.key in waiting and waiting[one.key] in told
        else one
        for one in groups
    )


def _worst(groups: Sequence[GroupPlan], evicted: Sequence[Victim]) -> Outcome:
    """Of its groups; what starts while anybody has to go does so with evictions."""
    worst = max((group.outcome for group in groups), key=_ORDER.index)
    return Outcome.EVICTS if worst is Outcome.NOW and evicted else worst


def _said(one: Applied) -> str:
    """`queue a configured: weight 1 -> 2`"""
    name = f"{kind_of(one.object).lower()} {full_name(one.object)}"
    changes = f": {one.changes}" if one.effect is Effect.CONFIGURED and one.changes else ""
    return f"{name} {one.effect}{changes}"


class Foretelling:
    """A part of `Client`, which has the connection."""

    _store: RedisStore
    _ids: IdSource

    def plan(
        self, objects: Objects, *, keep_stop: Collection[str] = (), advise: bool = True
    ) -> Plan:
        """What the scheduler's next session would make of new groups, were they submitted now, with
        whatever else is among `objects` applied; nothing is written, and no right to is needed.

        Of groups that would wait, it tells what would help, unless `advise` is False: finding out
        takes a few sessions more.
        Raises what `submit_all` raises, and InvalidInput where there is no group at all, or where
        the scheduler goes by a configuration that this machine cannot follow.
        """
        from batchq.client.requests import decoded
        from batchq.client.start_estimates import Deciding

        wanted, silent = decoded(objects)
        deciding = Deciding.open(self._store)
        planner = Planner(deciding, self._store, self._ids.new_uid)
        return planner.plan(wanted, keep_stop=silent.union(keep_stop), advise=advise)

    def starts(self, *, namespace: str = "", queue: str = "") -> Starts:
        """When those who wait are expected to start, the first to start first; of one namespace, of
        one queue and those below it. Nothing is written, and no right to is needed.

        Everybody ahead in line is counted; what runs, and what is planned, lasts as long as its
        walltime. At most 1,000 groups in line are planned.
        Raises InvalidInput where this machine cannot follow the scheduler's configuration.
        """
        from batchq.client.start_estimates import Deciding, starts_of

        return starts_of(Deciding.open(self._store), namespace=namespace, queue=queue)

    def deciding(self) -> Deciding:
        """Everything that stands in the server, the scheduler that decides there by the
        configuration that its leader has published, and the server's time; nothing is written.

        Raises InvalidInput where this machine cannot follow that configuration.
        """
        from batchq.client.start_estimates import Deciding

        return Deciding.open(self._store)
