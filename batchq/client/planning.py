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

from msgspec import Struct, structs

from batchq.api.objects import Object, PodGroup, full_name, key_of, kind_of
from batchq.api.transaction import Ledger, Transaction
from batchq.changes import apply, create
from batchq.client.advice import MOST_ADVISED, advice_for
from batchq.client.deciding import Deciding
from batchq.client.outcomes import GroupPlan, Outcome, Victim, delayed, group_plan, victims
from batchq.client.requests import Applied, Effect, plan
from batchq.client.supposing import Seen, check_objects_allowed, ledger_of, supposed, written
from batchq.errors import InvalidInput
from batchq.framework.expected import expected_starts
from batchq.framework.session import Session
from batchq.framework.snapshot import Snapshot
from batchq.ports import Reader

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
        seen = Seen(before, self._reader)
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
