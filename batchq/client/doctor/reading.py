"""Reads everything that the checks look at, and changes nothing."""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shutil import disk_usage
from time import monotonic, sleep
from typing import TypeVar

from batchq import __version__
from batchq.api.facts import AGENT_ANNOTATION, Serves
from batchq.api.objects import Node
from batchq.api.transaction import Event
from batchq.api.unreadable import Unreadable
from batchq.client.connecting import target_of
from batchq.client.doctor.state import HomeFacts, Installed, State
from batchq.client.leading import schedulers
from batchq.config.load import load_config
from batchq.errors import StoreUnavailable
from batchq.paths import Home, default_url, find_home
from batchq.store.inspection import (
    Books,
    Posted,
    look_at_server,
    open_for_inspection,
    permitted,
    posted_by,
    read_books,
)
from batchq.store.link import is_damaged as is_about_damage
from batchq.store.mending import (
    MENDED,
    damaged_deliveries,
    damaged_events,
    damaged_in_nodes,
    damaged_keys,
)
from batchq.store.redis import RedisStore

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


def _left_lying(store: RedisStore, nodes: Sequence[str]) -> list[Posted]:
    """What lay in the inboxes and still does after a while; at once if there is nothing."""
    first = lying = posted_by(store, nodes)
    deadline = monotonic() + FOLDED_WITHIN_S
    while lying and monotonic() < deadline:
        sleep(_LOOK_AGAIN_S)
        now = posted_by(store, nodes)
        lying = [one for one in first if one in now]
    return lying


def _contested(nodes: Sequence[Node], posted: Sequence[Posted]) -> list[tuple[str, str, str]]:
    served: Mapping[str, str] = {
        node.metadata.name: node.metadata.annotations.get(AGENT_ANNOTATION, "") for node in nodes
    }
    return [
        (one.node, served[one.node], one.fact.agent)
        for one in posted
        if isinstance(one.fact, Serves) and served[one.node] not in ("", one.fact.agent)
    ]


def _places(posted: Sequence[Posted] | None) -> tuple[tuple[str, str], ...] | None:
    return None if posted is None else tuple((one.node, one.subject) for one in posted)


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
