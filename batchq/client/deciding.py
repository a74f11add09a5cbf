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

from typing import TYPE_CHECKING

from msgspec import Struct, structs

from batchq.assembly import assemble
from batchq.config.load import read_config
from batchq.config.model import SchedulerConfig
from batchq.errors import InvalidInput
from batchq.framework.session import Session
from batchq.framework.snapshot import Snapshot
from batchq.scheduler.scheduler import Scheduler
from batchq.store.effective import read_config_text

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
        return self.scheduler.wide_awake().decide(given, self.now_ms)

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
