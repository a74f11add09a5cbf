"""When nodes were heard of, and what must not be deleted, since it lives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, structs

from batchq.api.objects import Node, Object
from batchq.api.times import describe_age
from batchq.api.transaction import count_of
from batchq.client.connection import connect
from batchq.errors import Conflict, NotFound

if TYPE_CHECKING:
    from batchq.store.redis import RedisStore
    from batchq.store.schedulers import SchedulerSeen as Seen

#: An agent that was heard of so lately lives: three of its usual beats.
_LATELY_MS = 15_000


def nodes_as_heard(store: RedisStore) -> list[Node]:
    """All nodes by name, `status.heartbeat` being when each was last heard of."""
    beats = store.beats()
    found = []
    for node in store.list("Node"):
        assert isinstance(node, Node)
        heard = beats.get(node.metadata.name, node.status.heartbeat)
        status = structs.replace(node.status, heartbeat=heard)
        found.append(structs.replace(node, status=status))
    return found


def refuse_living(store: RedisStore, objects: Iterable[Object]) -> None:
    """A node whose agent lives would be made anew with the agent's next beat.

    Raises Conflict.
    """
    for item in objects:
        if not isinstance(item, Node) or not item.status.ready:
            continue
        name = item.metadata.name
        heard = store.beats().get(name)
        silent_ms = _LATELY_MS if heard is None else store.now_ms() - heard
        if silent_ms < _LATELY_MS:
            raise Conflict(
                f"Node {name} has an agent, heard of {describe_age(silent_ms)} ago, which"
                " would make it again",
                hint="stop the agent first: end its `batchq worker`, or `batchq down` on that"
                " machine",
            )


NO_LEADER = "no scheduler leads: start one with `batchq scheduler` or `batchq up`"
#: Two leases: a scheduler that has not said for so long that it is there has ended, or hangs.
SILENT_MS = 10_000
#: Two renewals of the leader's lease: 5 s, renewed three times in it.
MISSED_RENEWALS_MS = 2 * 5_000 // 3


class Leading(Struct, frozen=True, kw_only=True):
    """Who leads, and in which epoch (counted from 1). Who led last, if `left_ms` is not positive.

    `left_ms` is how much longer the lease lasts unless it is renewed.
    """

    identity: str
    epoch: int
    left_ms: int


class SchedulerSeen(Struct, frozen=True, kw_only=True):
    """A scheduler that is there. `behind` is how many writes its mirror lacks; None: all of them,
    it has not listed yet.
    """

    identity: str
    version: str
    seen_ms_ago: int
    behind: int | None
    leads: bool
    #: It led until its lease ran out, and nobody has led since.
    led_last: bool = False

    @property
    def role(self) -> Literal["leader", "follower", "silent"]:
        """`silent`: killed, or it hangs; it is listed for a minute longer.

        Of who led last that is known sooner: it has missed renewals of its lease.
        """
        if self.leads:
            return "leader"
        longest_ms = MISSED_RENEWALS_MS if self.led_last else SILENT_MS
        return "follower" if self.seen_ms_ago < longest_ms else "silent"


class Schedulers(Struct, frozen=True, kw_only=True):
    """The leader, or who led last (None if it resigned, or nobody ever did), and who is there."""

    leader: Leading | None
    there: Sequence[SchedulerSeen]

    @property
    def led(self) -> bool:
        """Whether somebody leads now."""
        return self.leader is not None and self.leader.left_ms > 0

    @property
    def followers(self) -> Sequence[SchedulerSeen]:
        """Those who stand by."""
        return [one for one in self.there if one.role == "follower"]


def schedulers(store: RedisStore) -> Schedulers:
    """How it stands now. Raises StoreUnavailable."""
    from batchq.store.schedulers import attending, revision

    leader, there, latest = store.leader(), attending(store), revision(store)
    now_ms = store.now_ms()
    leading: Leading | None = None
    if leader is not None:
        leading = Leading(
            identity=leader.identity,
            epoch=count_of(leader.epoch),
            left_ms=leader.expires_at - now_ms,
        )
    leads = leading is not None and leading.left_ms > 0
    return Schedulers(
        leader=leading,
        there=[_seen(seen, leading, latest, now_ms, leads=leads) for seen in there],
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


def _seen(
    seen: Seen, leading: Leading | None, revision: int, now_ms: int, *, leads: bool
) -> SchedulerSeen:
    is_leading = leading is not None and leading.identity == seen.identity
    return SchedulerSeen(
        identity=seen.identity,
        version=seen.version,
        seen_ms_ago=max(0, now_ms - seen.seen_at),
        behind=None if seen.mirrored is None else max(0, revision - seen.mirrored),
        leads=is_leading and leads,
        led_last=is_leading and not leads,
    )


class Published(Struct, frozen=True, kw_only=True):
    """A configuration as a file that has every default. `led`: somebody leads, and goes by it."""

    text: str
    led: bool


def published_config(url: str | None) -> Published:
    """What the leader has published.

    Raises InvalidInput, StoreUnavailable, and NotFound if nobody has ever led there.
    """
    from batchq.store.schedulers import read_config_text

    store = connect(url)
    try:
        text = read_config_text(store)
        if text is None:
            raise NotFound(
                "no scheduler has published what it goes by",
                hint=NO_LEADER if nobody_leads(store) else "one of an older version leads",
            )
        return Published(text=text, led=not nobody_leads(store))
    finally:
        store.close()
