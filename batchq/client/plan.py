"""What would happen if objects were submitted now: a session on a snapshot that contains them.

One session of the scheduler decides on the live snapshot with the request's objects in it. The plan
reads its result; nothing is written. The leader's next session decides the same if the same objects
are submitted and nothing else changes before.

    plan = client.plan([group])
    plan.outcome            # Now, Evicts, Waits or Never; the worst of its groups
    plan.groups[0].nodes    # where it would run
    plan.evicted            # its victims
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from batchq.api.intents import Eviction
from batchq.api.objects import Object, PodGroup, full_name, key_of, kind_of
from batchq.api.transaction import Ledger, Transaction
from batchq.api.views import Applied, Effect, GroupPlan, Outcome, Plan
from batchq.client.changes import apply, create
from batchq.client.outcomes import (
    SnapshotReader,
    TrialScheduler,
    check_objects_allowed,
    delayed,
    group_plan,
    ledger_of,
    victims,
    with_objects,
    with_starts,
    writes_of,
)
from batchq.client.remedies import MOST_ADVISED, advice_for
from batchq.client.request import decoded
from batchq.client.requests import plan_steps
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Snapshot
from batchq.errors import InvalidInput
from batchq.ports import Reader

if TYPE_CHECKING:
    from batchq.client.request import Objects
    from batchq.store.redis import RedisStore


_ORDER = tuple(Outcome)


class Planner:
    """Plans requests on one snapshot. `reader` reads objects that a snapshot does not contain."""

    def __init__(
        self, deciding: TrialScheduler, reader: Reader, new_uid: Callable[[], str]
    ) -> None:
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
        seen = SnapshotReader(before, self._reader)
        request = plan_steps(seen, objects, self._step, keep_stop=keep_stop, held=self._held)
        # The request has new groups, so there is a transaction.
        assert request.transaction is not None
        check_objects_allowed(
            before,
            request.transaction,
            per_namespace=self._deciding.scheduler.settings.max_pod_groups_per_namespace,
        )
        after = with_objects(before, writes_of(request.transaction))
        session, without = self._deciding.decide(after), self._deciding.decide()
        groups = with_starts(session, [group_plan(session, key) for key in keys])
        evicted = victims(session, without, keys)
        gone = {victim.key for victim in evicted}
        return Plan(
            at=self._deciding.now_ms,
            outcome=_worst(groups, evicted),
            groups=self._advised(after, session, groups) if advise else groups,
            evicted=tuple(evicted),
            delayed=tuple(delayed(session, without, gone)),
            changes=tuple(
                _change_line(one) for one in request.applied if not isinstance(one.object, PodGroup)
            ),
            warnings=tuple(warning for one in request.applied for warning in one.warnings),
        )

    def _held(self) -> Ledger:
        return ledger_of(self._deciding.session())

    def _step(self, reader: Reader, item: Object) -> Transaction | None:
        """Build the transaction of a submission: groups are created, other objects applied."""
        do = create if isinstance(item, PodGroup) else apply
        return do(reader, item, now_ms=self._deciding.now_ms, uid=self._new_uid(), in_part=True)

    def _advised(
        self, snapshot: Snapshot, session: Session, groups: tuple[GroupPlan, ...]
    ) -> tuple[GroupPlan, ...]:
        """Add advice to the first groups that wait."""
        waiting = [one.key for one in groups if one.outcome in (Outcome.WAITS, Outcome.NEVER)]
        helped = waiting[:MOST_ADVISED]
        return tuple(
            structs.replace(one, advice=tuple(advice_for(self._deciding, snapshot, session, one)))
            if one.key in helped
            else one
            for one in groups
        )


def _worst(groups: Sequence[GroupPlan], evicted: Sequence[Eviction]) -> Outcome:
    """Return the worst outcome of the groups; a start that evicts other groups is not Now."""
    worst = max((group.outcome for group in groups), key=_ORDER.index)
    return Outcome.EVICTS if worst is Outcome.NOW and evicted else worst


def _change_line(one: Applied) -> str:
    """Return e.g. `queue a configured: weight 1 -> 2`."""
    name = f"{kind_of(one.object).lower()} {full_name(one.object)}"
    changes = f": {one.changes}" if one.effect is Effect.CONFIGURED and one.changes else ""
    return f"{name} {one.effect}{changes}"


def plan_request(
    store: RedisStore,
    objects: Objects,
    new_uid: Callable[[], str],
    *,
    keep_stop: Collection[str],
    advise: bool,
) -> Plan:
    """Plan a request on the server's current state; see `Client.plan`."""
    wanted, without_policy = decoded(objects)
    planner = Planner(TrialScheduler.open(store), store, new_uid)
    return planner.plan(wanted, keep_stop=without_policy.union(keep_stop), advise=advise)
