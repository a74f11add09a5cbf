"""Who leads: of all schedulers on one server the one that decides, and those that stand by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from batchq.api.fences import count_of
from batchq.store.attendance import Seen, attending, revision
from batchq.store.redis import RedisStore

NO_LEADER = "no scheduler leads: start one with `batchq scheduler` or `batchq up`"
#: Two leases: a scheduler that has not said for so long that it is there has ended, or hangs.
SILENT_MS = 10_000


class Leading(Struct, frozen=True, kw_only=True):
    """Who leads, and in which epoch (counted from 1). Who led last, if `left_ms` is not positive.

    `left_ms` is how much longer the lease lasts unless it is renewed.
    """

    identity: str
    epoch: int
    left_ms: int


class Standing(Struct, frozen=True, kw_only=True):
    """A scheduler that is there. `behind` is how many writes its mirror lacks; None: all of them,
    it has not listed yet.
    """

    identity: str
    version: str
    seen_ms_ago: int
    behind: int | None
    leads: bool

    @property
    def role(self) -> Literal["leader", "follower", "silent"]:
        """`silent`: killed, or it hangs; it is listed for a minute longer."""
        if self.leads:
            return "leader"
        return "follower" if self.seen_ms_ago < SILENT_MS else "silent"


class Schedulers(Struct, frozen=True, kw_only=True):
    """The leader, or who led last (None if it resigned, or nobody ever did), and who is there."""

    leader: Leading | None
    there: Sequence[Standing]

    @property
    def led(self) -> bool:
        """Whether somebody leads now."""
        return self.leader is not None and self.leader.left_ms > 0

    @property
    def followers(self) -> Sequence[Standing]:
        """Those who stand by."""
        return [one for one in self.there if one.role == "follower"]


def schedulers(store: RedisStore) -> Schedulers:
    """How it stands now. Raises StoreUnavailable."""
    leader, there, latest = store.leader(), attending(store), revision(store)
    now_ms = store.now_ms()
    leading = leader and Leading(
        identity=leader.identity,
        epoch=count_of(leader.epoch),
        left_ms=leader.expires_at - now_ms,
    )
    leads = leading.identity if leading and leading.left_ms > 0 else ""
    return Schedulers(
        leader=leading or None,
        there=[_standing(seen, leads, latest, now_ms) for seen in there],
    )


def nobody_leads(store: RedisStore) -> bool:
    """Whether nothing is decided now. Raises StoreUnavailable."""
    leader = store.leader()
    return leader is None or leader.expires_at <= store.now_ms()


def process_of(identity: str) -> str:
    """`pid 12 on host` from `host:12:chance`."""
    host, _, rest = identity.partition(":")
    pid = rest.partition(":")[0]
    return f"pid {pid} on {host}" if pid.isdigit() else identity


def _standing(seen: Seen, leads: str, revision: int, now_ms: int) -> Standing:
    return Standing(
        identity=seen.identity,
        version=seen.version,
        seen_ms_ago=max(0, now_ms - seen.seen_at),
        behind=None if seen.mirrored is None else max(0, revision - seen.mirrored),
        leads=seen.identity == leads,
    )
