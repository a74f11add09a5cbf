"""A finding: what a check has seen, what it should have seen, and what to do."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shutil import disk_usage
from time import monotonic, sleep
from typing import TypeVar

from msgspec import Struct

from batchq import __version__
from batchq.api.node_report import AGENT_ANNOTATION, Serves
from batchq.api.objects import Node, Object, Pod, PodGroup, Queue, ResourceQuota, Unreadable
from batchq.api.transaction import Delivery, Event
from batchq.client.cluster import Schedulers, schedulers
from batchq.client.connection import target_of
from batchq.config.load import load_config
from batchq.core.session.settings import Settings
from batchq.errors import StoreUnavailable
from batchq.paths import Home, default_url, find_home
from batchq.store.damaged_keys import (
    MENDED,
    damaged_deliveries,
    damaged_events,
    damaged_in_nodes,
    damaged_keys,
)
from batchq.store.heads import false_heads
from batchq.store.inspection import (
    Books,
    ServerFacts,
    WaitingReport,
    look_at_server,
    open_for_inspection,
    permitted,
    posted_by,
    read_books,
    sizes_of_inboxes,
)
from batchq.store.link import is_damaged as is_about_damage
from batchq.store.redis import RedisStore


class Level(StrEnum):
    """How bad it is, in rising order: `ok` is as it should be, a `note` is worth knowing, a
    `warning` will be trouble, an `error` is.
    """

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """0 for ok."""
        return list(Level).index(self)


class Finding(Struct, frozen=True, kw_only=True):
    """`subject` is what it is about (a node, a group, a setting), empty for the whole system.

    `expected` and `remedy` are empty where everything is as it should be.
    """

    check: str
    level: Level
    subject: str = ""
    found: str
    expected: str = ""
    remedy: str = ""


class Report(Struct, frozen=True, kw_only=True):
    """All findings, by check in the order of the table; every check has one at least."""

    findings: tuple[Finding, ...]

    @property
    def worst(self) -> Level:
        """The level of the worst of them."""
        return max((finding.level for finding in self.findings), key=lambda level: level.rank)

    def count(self, level: Level) -> int:
        """How many findings are of a level."""
        return sum(finding.level is level for finding in self.findings)


def ok(check: str, found: str) -> tuple[Finding, ...]:
    """All is as it should be."""
    return (Finding(check=check, level=Level.OK, found=found),)


def unseen(check: str, what: str, permission: str) -> tuple[Finding, ...]:
    """This user may not look."""
    return (
        Finding(
            check=check,
            level=Level.NOTE,
            found=f"cannot see {what}",
            expected="a user who may look",
            remedy=f"grant this user {permission}, or ask with an operator's credentials",
        ),
    )


def or_ok(findings: Iterable[Finding], check: str, found: str) -> tuple[Finding, ...]:
    """The findings, or that there are none."""
    return tuple(findings) or ok(check, found)


class HomeFacts(Struct, frozen=True, kw_only=True):
    """The folder that holds the embedded server's data. `open_to` are those of its folders that
    others may look into, each with its mode.
    """

    path: str
    free_bytes: int
    open_to: Mapping[str, int] = {}


class Installed(Struct, frozen=True, kw_only=True):
    """A library: the version that is installed, and the range that batchq works with."""

    name: str
    version: str
    least: tuple[int, ...]
    below: tuple[int, ...]


class State(Struct, frozen=True, kw_only=True):
    """None stands for what this user may not read; `home` is None for a server elsewhere.

    `books` is also None where `moving` says that the server was written to faster than it could
    be read. `waiting_facts` are the facts, as (node, subject), that nodes have left and that were
    not folded while the doctor looked.
    """

    now_ms: int
    version: str
    server: ServerFacts
    settings: Settings = Settings()
    schedulers: Schedulers | None = None
    books: Books | None = None
    moving: bool = False
    #: What is stored and cannot be read.
    unreadable: tuple[Unreadable, ...] | None = ()
    #: What a leader has told of late of what it has mended.
    mended: tuple[Event, ...] = ()
    #: Node -> when it was last heard of.
    beats: Mapping[str, int | None] = {}
    #: Node, the agent that serves it, and another that lays claim to it.
    contested: tuple[tuple[str, str, str], ...] = ()
    outbox: tuple[Delivery, ...] | None = None
    waiting_facts: tuple[tuple[str, str], ...] | None = None
    #: How many facts lie in all in the inboxes of these nodes, where that is known.
    inbox_sizes: Mapping[str, int] = {}
    #: What went wrong how often, ever: `superseded` facts, `unreadable` ones.
    counts: Mapping[str, int] = {}
    home: HomeFacts | None = None
    libraries: tuple[Installed, ...] = ()

    def nodes(self) -> list[Node]:
        """All nodes, by name."""
        return [item for item in self._of("Node") if isinstance(item, Node)]

    def groups(self) -> list[PodGroup]:
        """All groups, by key."""
        return [item for item in self._of("PodGroup") if isinstance(item, PodGroup)]

    def pods(self) -> list[Pod]:
        """All pods, by uid."""
        return [item for item in self._of("Pod") if isinstance(item, Pod)]

    def queues(self) -> list[Queue]:
        """All queues, by name."""
        return [item for item in self._of("Queue") if isinstance(item, Queue)]

    def quotas(self) -> list[ResourceQuota]:
        """All quotas, by key."""
        return [item for item in self._of("ResourceQuota") if isinstance(item, ResourceQuota)]

    def _of(self, kind: str) -> list[Object]:
        found = {} if self.books is None else self.books.objects.get(kind, {})
        return [found[key] for key in sorted(found)]


#: Name of a library -> the versions that batchq works with, as in pyproject.toml.
RANGES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "rq": ((2, 12), (3,)),
    "redis": ((6, 2), (9,)),
}
#: How long what lies in an inbox is given to be folded.
FOLDED_WITHIN_S = 3.0
_LOOK_AGAIN_S = 0.2
#: So far back, and among so many of the latest events, what was mended is told of.
_MENDED_WITHIN_MS = 60 * 60 * 1000
_EVENTS_LOOKED_AT = 1_000

T = TypeVar("T")


def read_state(url: str | None, config: Path | None) -> State:
    """Everything, as it is now.

    Raises InvalidInput for a malformed URL or a wrong file, StoreUnavailable if no server answers.
    """
    settings = load_config(config).settings
    target = target_of(url)
    store = open_for_inspection(target)
    try:
        server = look_at_server(store)
        # First: the leader may have mended them by the time that all else is read.
        store.link.waits_for_mending = False
        damaged = _seen(lambda: damaged_keys(store.link))
        if damaged is not None:
            damaged += _seen(lambda: damaged_deliveries(store.link)) or []
        seen = _seen(lambda: (read_books(store), store.beats()), is_damaged=bool(damaged))
        books, beats = seen or (None, {})
        nodes = _nodes(books)
        posted = _seen(lambda: _left_lying(store, [node.metadata.name for node in nodes]))
        if damaged is not None:
            names = [node.metadata.name for node in nodes]
            damaged += _seen(lambda: damaged_in_nodes(store, names)) or []
            damaged += _seen(lambda: damaged_events(store, _EVENTS_LOOKED_AT)) or []
            if books is not None:
                damaged += (
                    _seen(lambda: false_heads(store.link, books.objects, books.unreadable)) or []
                )
        return State(
            now_ms=store.now_ms(),
            version=__version__,
            server=server,
            settings=settings,
            schedulers=_seen(lambda: schedulers(store)),
            books=books,
            moving=seen is not None and books is None,
            unreadable=_unreadable(damaged, books),
            mended=_seen(lambda: _mended(store)) or (),
            beats=beats,
            contested=tuple(_contested(nodes, posted or ())),
            outbox=_seen(lambda: tuple(store.outbox())),
            waiting_facts=_places(posted),
            inbox_sizes=_sizes(store, posted),
            counts=_seen(store.counts) or {},
            home=_home_facts(find_home()) if target == default_url(find_home()) else None,
            libraries=tuple(_installed(name) for name in RANGES),
        )
    finally:
        store.close()


def _seen(question: Callable[[], T], *, is_damaged: bool = False) -> T | None:
    """The answer; None where this user may not ask, or where a key stands in the way that cannot
    be read, which is a finding of its own. `is_damaged`: one is known to.
    """
    try:
        return permitted(question)
    except StoreUnavailable as error:
        if is_damaged or is_about_damage(error):
            return None
        raise


def _unreadable(
    damaged: Sequence[Unreadable] | None, books: Books | None
) -> tuple[Unreadable, ...] | None:
    if damaged is None:
        return None
    of_books = () if books is None else books.unreadable
    # A key as a whole is among the damaged ones.
    return (*damaged, *(one for one in of_books if one.is_object or one.remedy))


def _mended(store: RedisStore) -> tuple[Event, ...]:
    """What a leader has told of late, the newest last."""
    since = store.now_ms() - _MENDED_WITHIN_MS
    latest = store.events(most=_EVENTS_LOOKED_AT)
    return tuple(one for one in latest if one.reason in MENDED and one.at >= since)


def _nodes(books: Books | None) -> list[Node]:
    found = {} if books is None else books.objects["Node"]
    return [node for node in found.values() if isinstance(node, Node)]


def _left_lying(store: RedisStore, nodes: Sequence[str]) -> list[WaitingReport]:
    """What lay in the inboxes and still does after a while; at once if there is nothing."""
    first = lying = posted_by(store, nodes)
    deadline = monotonic() + FOLDED_WITHIN_S
    while lying and monotonic() < deadline:
        sleep(_LOOK_AGAIN_S)
        now = {(one.node, one.subject, one.stored) for one in posted_by(store, nodes)}
        lying = [one for one in first if (one.node, one.subject, one.stored) in now]
    return lying


def _contested(
    nodes: Sequence[Node], posted: Sequence[WaitingReport]
) -> list[tuple[str, str, str]]:
    served: Mapping[str, str] = {
        node.metadata.name: node.metadata.annotations.get(AGENT_ANNOTATION, "") for node in nodes
    }
    return [
        (one.node, served[one.node], one.fact.agent)
        for one in posted
        if isinstance(one.fact, Serves) and served[one.node] not in ("", one.fact.agent)
    ]


def _places(posted: Sequence[WaitingReport] | None) -> tuple[tuple[str, str], ...] | None:
    return None if posted is None else tuple((one.node, one.subject) for one in posted)


def _sizes(store: RedisStore, posted: Sequence[WaitingReport] | None) -> Mapping[str, int]:
    nodes = sorted({one.node for one in posted or ()})
    return _seen(lambda: sizes_of_inboxes(store, nodes)) or {}


def _home_facts(home: Home) -> HomeFacts:
    folders = [folder for folder in (home.root, home.data, home.run) if folder.is_dir()]
    modes = {str(folder): stat.S_IMODE(folder.stat().st_mode) for folder in folders}
    return HomeFacts(
        path=str(home.root),
        free_bytes=disk_usage(home.root).free,
        open_to={path: mode for path, mode in modes.items() if mode & 0o077},
    )


def _installed(name: str) -> Installed:
    least, below = RANGES[name]
    try:
        found = version(name)
    except PackageNotFoundError:
        # Put into the path without its metadata: whatever it is, nobody knows its version.
        found = "unknown"
    return Installed(name=name, version=found, least=least, below=below)
