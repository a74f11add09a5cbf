"""What the scheduler would decide now: its own rules, on what stands in the server.

A client lists everything once (its mirror then follows the changes, as the scheduler's does), and
puts together the scheduler that the leader has published the configuration of. It needs no right
to write. Asked for the same snapshot, it answers what the leader's next session does.

    deciding = Deciding.open(store)
    deciding.session()              # opened, and nothing decided: for rules, limits and numbers
    deciding.decide()               # a whole session on what there is
    deciding.decide(snapshot)       # on what there could be
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


class Deciding(Struct, frozen=True, kw_only=True):
    """A snapshot, the scheduler to ask about it, and the server's time at which it is asked."""

    snapshot: Snapshot
    scheduler: Scheduler
    now_ms: int

    @classmethod
    def open(cls, store: RedisStore) -> Deciding:
        """How things stand in a server now.

        Raises StoreUnavailable, and InvalidInput where this machine cannot do what the scheduler
        does: it lacks a plugin or an action that is configured there.
        """
        from batchq.store.schedulers import read_config_text

        scheduler = scheduler_of(read_config_text(store))
        return cls(
            snapshot=as_the_leader_sees(store.snapshot()),
            scheduler=scheduler,
            now_ms=store.now_ms(),
        )

    def session(self, snapshot: Snapshot | None = None) -> Session:
        """A session that has decided nothing: on what there is, or on another snapshot."""
        return self.scheduler.open(self.snapshot if snapshot is None else snapshot, self.now_ms)

    def decide(self, snapshot: Snapshot | None = None) -> Session:
        """A session that has decided: on what there is, or on another snapshot."""
        given = self.snapshot if snapshot is None else snapshot
        return self.scheduler.without_memory().decide(given, self.now_ms)

    def tried(self, snapshot: Snapshot) -> Session:
        """The same of one of many snapshots that differ little; good until the next is tried."""
        return self.scheduler.decide(snapshot, self.now_ms)


def scheduler_of(text: str | None) -> Scheduler:
    """The scheduler that a published configuration describes; the default one where nobody has led.

    Raises InvalidInput, in words for somebody who has not written it.
    """
    if text is None:
        return assemble(SchedulerConfig())
    try:
        return assemble(read_config(text, _SOURCE))
    except InvalidInput as problem:
        sentence = problem.message.removeprefix(f"{_SOURCE}: ")
        raise InvalidInput(
            f"{_SOURCE} cannot be followed on this machine: {sentence}",
            hint="install here what is installed there, in the same version,"
            " or ask on the scheduler's machine",
        ) from None


def as_the_leader_sees(snapshot: Snapshot) -> Snapshot:
    """The same, seen by somebody who has been in touch with the server all the time.

    Who has connected only now would take every silent node for one that it could not have heard.
    """
    standing = structs.replace(snapshot.standing, contact_since=None)
    return structs.replace(snapshot, standing=standing)


class ExpectedStart(Struct, frozen=True, kw_only=True, rename="camel"):
    """When a group is expected to start, those before it counted; None where nobody can say.

    `ends`: who has to end for it just then; `behind`: who has to start before it; `why`: what
    keeps it besides, or why nobody can say.
    """

    at: int | None
    ends: Others = Others()
    behind: Others = Others()
    why: str = ""


class StartView(Struct, frozen=True, kw_only=True, rename="camel"):
    """A group that waits. `position`: from 1 in the line of its queue, None if it is not in it, or
    the next session admits it.
    """

    key: str
    queue: str
    position: int | None
    expected: ExpectedStart


class Starts(Struct, frozen=True, kw_only=True, rename="camel"):
    """Those who wait, the first to start first, as of `at`; those of whom nobody knows come last,
    by queue and place. `not_planned`: how many in line were too many to be planned.
    """

    at: int
    items: tuple[StartView, ...]
    not_planned: int


def starts_of(
    deciding: Deciding, *, namespace: str = "", queue: str = "", most: int | None = None
) -> Starts:
    """Of every group that waits; of one namespace, of one queue and those below it."""
    session = deciding.decide()
    chosen = {
        uid: group
        for uid, group in session.groups.items()
        if namespace in ("", group.namespace) and queue in ("", *group.chain)
    }
    pending = [uid for uid, one in chosen.items() if one.phase == PodGroupPhase.PENDING]
    told = expected_starts(session, wanted=pending, most=most)
    queues = {group.queue for uid, group in chosen.items() if uid in told}
    places = {
        key: place
        for name in sorted(queues)
        for place, key in enumerate(line_of(session, name), start=1)
    }
    items = [_view(group, told[uid], places) for uid, group in chosen.items() if uid in told]
    return Starts(
        at=deciding.now_ms,
        items=tuple(sorted(items, key=_first_to_start)),
        not_planned=sum(not told[uid].is_planned for uid in chosen if uid in told),
    )


def _view(group: GroupState, told: Expected, places: Mapping[str, int]) -> StartView:
    return StartView(
        key=group.key,
        queue=group.queue,
        position=places.get(group.key),
        expected=expected_of(told, group.namespace),
    )


def _first_to_start(view: StartView) -> tuple[bool, int, str, bool, int, str]:
    at, place = view.expected.at, view.position
    return (at is None, at or 0, view.queue, place is None, place or 0, view.key)


def expected_of(told: Expected, namespace: str) -> ExpectedStart:
    """What was found out, as somebody of that namespace is told it."""
    return ExpectedStart(
        at=told.at,
        ends=others(told.ended, namespace),
        behind=others([told.behind] if told.behind else [], namespace),
        why=told.why,
    )
