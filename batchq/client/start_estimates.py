"""What the scheduler would decide now: its own rules on the server's current state.

A client lists everything once (its mirror then follows the changes, as the scheduler's does) and
assembles a scheduler from the configuration that the leader has published. It needs no right to
write. For the same snapshot it decides the same as the leader's next session.

    deciding = TrialScheduler.open(store)
    deciding.session()              # an opened session without decisions, for rules and numbers
    deciding.decide()               # a complete session on the current state
    deciding.decide(snapshot)       # a complete session on a hypothetical state
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from batchq.api.lifecycle import PodGroupPhase
from batchq.assembly import assemble
from batchq.client.outcomes import line_of
from batchq.client.position import Others, others
from batchq.config.load import read_config
from batchq.config.model import SchedulerConfig
from batchq.core.forecast.estimates import Expected, expected_starts
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Snapshot
from batchq.core.session.state import GroupState
from batchq.errors import InvalidInput
from batchq.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from batchq.store.redis import RedisStore


_SOURCE = "the configuration of the scheduler that leads"


class TrialScheduler(Struct, frozen=True, kw_only=True):
    """A snapshot, a scheduler that decides on it, and the server's time."""

    snapshot: Snapshot
    scheduler: Scheduler
    now_ms: int

    @classmethod
    def open(cls, store: RedisStore) -> TrialScheduler:
        """Read the server's current state.

        Raises StoreUnavailable, and InvalidInput if this machine lacks a plugin or an action that
        is configured there.
        """
        from batchq.store.schedulers import read_config_text

        scheduler = scheduler_of(read_config_text(store))
        return cls(
            snapshot=as_seen_by_leader(store.snapshot()),
            scheduler=scheduler,
            now_ms=store.now_ms(),
        )

    def session(self, snapshot: Snapshot | None = None) -> Session:
        """Return a session without decisions, on the current state or on another snapshot."""
        return self.scheduler.open(self.snapshot if snapshot is None else snapshot, self.now_ms)

    def decide(self, snapshot: Snapshot | None = None) -> Session:
        """Return a decided session, on the current state or on another snapshot."""
        given = self.snapshot if snapshot is None else snapshot
        return self.scheduler.without_memory().decide(given, self.now_ms)

    def decide_variant(self, snapshot: Snapshot) -> Session:
        """Decide on one of many similar snapshots; the session is valid until the next call."""
        return self.scheduler.decide(snapshot, self.now_ms)


def scheduler_of(text: str | None) -> Scheduler:
    """Return the scheduler of a published configuration; the default one if there is none.

    Raises InvalidInput, in words for a person who has not written the configuration.
    """
    if text is None:
        return assemble(SchedulerConfig())
    try:
        return assemble(read_config(text, _SOURCE))
    except InvalidInput as problem:
        sentence = problem.message.removeprefix(f"{_SOURCE}: ")
        raise InvalidInput(
            f"{_SOURCE} cannot be used on this machine: {sentence}",
            hint="install what the scheduler's machine has, in the same version,"
            " or run the command there",
        ) from None


def as_seen_by_leader(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot as a process sees it that was connected to the server all the time.

    A newly connected process would assume that it missed the heartbeats of every silent node.
    """
    standing = structs.replace(snapshot.standing, contact_since=None)
    return structs.replace(snapshot, standing=standing)


class ExpectedStart(Struct, frozen=True, kw_only=True, rename="camel"):
    """When a group is expected to start, counting the groups ahead; None if that is unknown.

    `ends` are the groups that must end for it at that time, `behind` a group that must start
    before it; `why` is what else delays it, or why the start is unknown.
    """

    at: int | None
    ends: Others = Others()
    behind: Others = Others()
    why: str = ""


class StartView(Struct, frozen=True, kw_only=True, rename="camel"):
    """A waiting group. `position` is its position in the line of its queue, from 1; None if it is
    not in line, or the next session admits it.
    """

    key: str
    queue: str
    position: int | None
    expected: ExpectedStart


class Starts(Struct, frozen=True, kw_only=True, rename="camel"):
    """Waiting groups, the earliest start first, as of `at`; groups with an unknown start come last,
    by queue and position. `not_planned` is the number of groups in line beyond the bound.
    """

    at: int
    items: tuple[StartView, ...]
    not_planned: int


def starts_of(
    deciding: TrialScheduler, *, namespace: str = "", queue: str = "", most: int | None = None
) -> Starts:
    """Return the expected start of every waiting group (of a namespace, of a queue's subtree)."""
    session = deciding.decide()
    chosen = {
        uid: group
        for uid, group in session.groups.items()
        if namespace in ("", group.namespace) and queue in ("", *group.chain)
    }
    pending = [uid for uid, one in chosen.items() if one.phase == PodGroupPhase.PENDING]
    estimates = expected_starts(session, wanted=pending, most=most)
    queues = {group.queue for uid, group in chosen.items() if uid in estimates}
    places = {
        key: place
        for name in sorted(queues)
        for place, key in enumerate(line_of(session, name), start=1)
    }
    items = [
        _view(group, estimates[uid], places) for uid, group in chosen.items() if uid in estimates
    ]
    return Starts(
        at=deciding.now_ms,
        items=tuple(sorted(items, key=_first_to_start)),
        not_planned=sum(not estimates[uid].is_planned for uid in chosen if uid in estimates),
    )


def _view(group: GroupState, estimates: Expected, places: Mapping[str, int]) -> StartView:
    return StartView(
        key=group.key,
        queue=group.queue,
        position=places.get(group.key),
        expected=expected_of(estimates, group.namespace),
    )


def _first_to_start(view: StartView) -> tuple[bool, int, str, bool, int, str]:
    at, place = view.expected.at, view.position
    return (at is None, at or 0, view.queue, place is None, place or 0, view.key)


def expected_of(estimates: Expected, namespace: str) -> ExpectedStart:
    """Return an estimate for a reader of one namespace."""
    return ExpectedStart(
        at=estimates.at,
        ends=others(estimates.ended, namespace),
        behind=others([estimates.behind] if estimates.behind else [], namespace),
        why=estimates.why,
    )
