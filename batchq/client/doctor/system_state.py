"""The findings of the doctor, and the state of a system that its checks examine."""

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
from batchq.api.node_report import AGENT_ANNOTATION, SPOILED, Serves
from batchq.api.objects import Node, Object, Pod, PodGroup, Queue, ResourceQuota, Unreadable
from batchq.api.transaction import Delivery, Event
from batchq.api.views import Schedulers
from batchq.client.connection import schedulers, target_of
from batchq.config.documents import read_documents
from batchq.config.load import load_config
from batchq.core.session.snapshot import Settings
from batchq.errors import InvalidInput, StoreUnavailable
from batchq.paths import Home, default_url, find_home
from batchq.store.access_records import damaged_access
from batchq.store.books import false_heads
from batchq.store.inspection import (
    MENDED,
    Books,
    ServerFacts,
    WaitingReport,
    damaged_count,
    damaged_deliveries,
    damaged_events,
    damaged_fields,
    damaged_in_nodes,
    damaged_key,
    damaged_keys,
    look_at_server,
    open_for_inspection,
    permitted,
    posted_by,
    read_books,
    read_damaged_books,
    sizes_of_inboxes,
)
from batchq.store.keys import CONFIG, report_queue
from batchq.store.link import is_damaged as is_about_damage
from batchq.store.link import is_forbidden
from batchq.store.mirror import IMPLAUSIBLE
from batchq.store.records import name_of
from batchq.store.redis import RedisStore
from batchq.store.schedulers import read_config_text


class Level(StrEnum):
    """The severity, in rising order: `ok` is as it should be, a `note` is worth knowing, a
    `warning` will cause trouble, an `error` does now.
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
    """A result of a check, whose name `diagnose` adds. `subject` is a node, a group or a setting;
    empty for the whole system. `expected` and `remedy` are empty if all is well.
    """

    check: str = ""
    level: Level
    subject: str = ""
    found: str
    expected: str = ""
    remedy: str = ""


class Report(Struct, frozen=True, kw_only=True):
    """All findings, by check in the order of the table; every check has at least one."""

    findings: tuple[Finding, ...]

    @property
    def worst(self) -> Level:
        """The level of the worst finding."""
        return max((finding.level for finding in self.findings), key=lambda level: level.rank)

    def count(self, level: Level) -> int:
        """Return the number of findings of a level."""
        return sum(finding.level is level for finding in self.findings)


def ok(found: str) -> tuple[Finding, ...]:
    """Return the finding that all is well."""
    return (Finding(level=Level.OK, found=found),)


def unseen(what: str, permission: str) -> tuple[Finding, ...]:
    """Return the finding that this user lacks a right to read."""
    return (
        Finding(
            level=Level.NOTE,
            found=f"cannot see {what}",
            expected="a user who may look",
            remedy=f"grant this user {permission}, or ask with an operator's credentials",
        ),
    )


def or_ok(findings: Iterable[Finding], found: str) -> tuple[Finding, ...]:
    """Return the findings, or the finding that all is well."""
    return tuple(findings) or ok(found)


class HomeFacts(Struct, frozen=True, kw_only=True):
    """The directory of the embedded server's data. `open_to` maps those of its directories that
    other users may read to their modes.
    """

    path: str
    free_bytes: int
    open_to: Mapping[str, int] = {}


class Installed(Struct, frozen=True, kw_only=True):
    """A library: the installed version, and the range that batchq supports."""

    name: str
    version: str
    least: tuple[int, ...]
    below: tuple[int, ...]


class State(Struct, frozen=True, kw_only=True):
    """Everything that the checks examine. None stands for what this user may not read; `home` is
    None for a server elsewhere.

    `books` is also None if `moving`: the server was written to faster than it could be read.
    `stuck_reports` are node reports, as (node, subject), that were not applied while the doctor
    looked.
    """

    now_ms: int
    version: str
    server: ServerFacts
    settings: Settings = Settings()
    schedulers: Schedulers | None = None
    books: Books | None = None
    moving: bool = False
    #: Whether damaged keys prevent an answer to some questions.
    is_damaged: bool = False
    #: Stored records that cannot be read.
    unreadable: tuple[Unreadable, ...] | None = ()
    #: The leader's recent events about repairs.
    mended: tuple[Event, ...] = ()
    #: Node -> time of its last heartbeat.
    beats: Mapping[str, int | None] = {}
    #: Node, the agent that serves it, and another agent that claims it.
    contested: tuple[tuple[str, str, str], ...] = ()
    outbox: tuple[Delivery, ...] | None = None
    stuck_reports: tuple[tuple[str, str], ...] | None = None
    #: The length of each of these nodes' report queues, if known.
    report_counts: Mapping[str, int] = {}
    #: How often errors occurred, ever: `superseded` and `unreadable` reports.
    counts: Mapping[str, int] = {}
    home: HomeFacts | None = None
    libraries: tuple[Installed, ...] = ()

    def nodes(self) -> list[Node]:
        """Return all nodes, by name."""
        return [item for item in self._of("Node") if isinstance(item, Node)]

    def groups(self) -> list[PodGroup]:
        """Return all groups, by key."""
        return [item for item in self._of("PodGroup") if isinstance(item, PodGroup)]

    def pods(self) -> list[Pod]:
        """Return all pods, by uid."""
        return [item for item in self._of("Pod") if isinstance(item, Pod)]

    def queues(self) -> list[Queue]:
        """Return all queues, by name."""
        return [item for item in self._of("Queue") if isinstance(item, Queue)]

    def quotas(self) -> list[ResourceQuota]:
        """Return all quotas, by key."""
        return [item for item in self._of("ResourceQuota") if isinstance(item, ResourceQuota)]

    def _of(self, kind: str) -> list[Object]:
        found = {} if self.books is None else self.books.objects.get(kind, {})
        return [found[key] for key in sorted(found)]


#: Library -> the versions that batchq supports, as in pyproject.toml.
RANGES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "rq": ((2, 12), (3,)),
    "redis": ((6, 2), (9,)),
}
#: How long the leader is given to apply waiting reports.
APPLIED_WITHIN_S = 3.0
_LOOK_AGAIN_S = 0.2
#: Repairs this recent, among the latest events, are reported.
_MENDED_WITHIN_MS = 60 * 60 * 1000
_EVENTS_LOOKED_AT = 1_000

T = TypeVar("T")


def read_state(url: str | None, config: Path | None) -> State:
    """Read everything that the checks need.

    Raises InvalidInput for a malformed URL or file, StoreUnavailable if no server answers.
    """
    settings = load_config(config).settings
    target = target_of(url)
    store = open_for_inspection(target)
    try:
        server = look_at_server(store)
        # First, because the leader may repair damaged keys while the rest is read.
        store.link.waits_for_mending = False
        damaged = _seen(lambda: damaged_keys(store.link))
        if damaged is not None:
            damaged += _seen(lambda: damaged_deliveries(store.link)) or []
            damaged += _seen(lambda: damaged_fields(store.link)) or []
        seen = _seen(lambda: (_books(store, is_damaged=bool(damaged)),))
        books = seen[0] if seen else None
        nodes = _nodes(books)
        registered = _seen(store.report_queues.nodes) or set()
        names = sorted({*registered, *(node.metadata.name for node in nodes)})
        reports = _seen(lambda: _stuck_reports(store, names))
        if damaged is not None:
            damaged += _seen(lambda: damaged_in_nodes(store, names)) or []
            damaged += _seen(lambda: damaged_events(store, _EVENTS_LOOKED_AT)) or []
            # The server logs each refusal, so users of roles that may not read these do not ask.
            if role_by_name(server.user or "") in ("", "api"):
                damaged += damaged_access(store.link) or []
            damaged += _damaged_reports(reports or ())
            damaged += _damaged_config(store)
            if books is not None:
                damaged += _count_behind(books) if books.is_consistent else []
                damaged += (
                    _seen(lambda: false_heads(store.link, books.objects, books.unreadable)) or []
                )
        return State(
            now_ms=store.now_ms(),
            version=__version__,
            server=server,
            settings=settings,
            schedulers=_seen(lambda: schedulers(store)),
            is_damaged=bool(damaged),
            books=books,
            moving=seen is not None and books is None,
            unreadable=_unreadable(damaged, books),
            mended=_seen(lambda: _mended(store)) or (),
            beats=_seen(lambda: store.beats(names)) or {},
            contested=tuple(_contested(nodes, reports or ())),
            outbox=_seen(lambda: tuple(store.outbox())),
            stuck_reports=_report_places(reports),
            report_counts=_sizes(store, reports),
            counts=_seen(store.counts) or {},
            home=_home_facts(find_home()) if target == default_url(find_home()) else None,
            libraries=tuple(_installed(name) for name in RANGES),
        )
    finally:
        store.close()


#: The roles of conf/acl, as their users' names begin.
_ROLES = (
    *("scheduler", "worker", "submitter", "controller", "operator", "api", "registrar"),
    *("readonly", "read-only", "reader"),
)


def role_by_name(user: str) -> str:
    """Return the role with which a user's name begins; "" for none."""
    return next((role for role in _ROLES if user.startswith(role)), "")


def _seen(question: Callable[[], T]) -> T | None:
    """Return the answer; None if this user may not ask, or if a damaged key prevents the answer.
    The damage is a finding of its own.
    """
    try:
        return permitted(question)
    except StoreUnavailable as error:
        if is_about_damage(error):
            return None
        raise


def _books(store: RedisStore, *, is_damaged: bool) -> Books | None:
    """Return objects and ledger; if keys are damaged, what can be read beside these; None if the
    server is written to faster than it is read. `is_damaged`: a damaged key is known.
    """
    try:
        return read_books(store)
    except StoreUnavailable as error:
        if is_forbidden(error) or not (is_damaged or is_about_damage(error)):
            raise
        return read_damaged_books(store)


def _damaged_config(store: RedisStore) -> list[Unreadable]:
    """Return the finding about a published configuration that no scheduler has written."""
    text = _seen(lambda: read_config_text(store))
    try:
        documents = read_documents(text or "{}", CONFIG)
    except InvalidInput as error:
        return [damaged_key(CONFIG, error.message)]
    if len(documents) != 1:
        return [damaged_key(CONFIG, "it is not one document of YAML")]
    return []


def _damaged_reports(stuck: Sequence[WaitingReport]) -> list[Unreadable]:
    """Return the findings about reports that no leader can apply."""
    return [
        damaged_key(report_queue(one.node), f"its field {one.subject[:60]} is not a report")
        for one in stuck
        if one.report is None or name_of(one.report.subject.encode()) != one.subject
    ]


def _count_behind(books: Books) -> list[Unreadable]:
    """Return the finding about a count of writes behind the revision of an object."""
    revisions = [one.metadata.revision for some in books.objects.values() for one in some.values()]
    highest = max((one for one in revisions if one < IMPLAUSIBLE), default=0)
    return [damaged_count(books.revision)] if highest > books.revision else []


def _unreadable(
    damaged: Sequence[Unreadable] | None, books: Books | None
) -> tuple[Unreadable, ...] | None:
    if damaged is None:
        return None
    of_books = () if books is None else books.unreadable
    # A damaged key as a whole is in `damaged` already.
    return (*damaged, *(one for one in of_books if one.is_object or one.remedy))


def _mended(store: RedisStore) -> tuple[Event, ...]:
    """Return the recent events about repairs by the leader and by agents, the newest last."""
    since = store.now_ms() - _MENDED_WITHIN_MS
    latest = store.events(most=_EVENTS_LOOKED_AT)
    return tuple(one for one in latest if _is_repair(one) and one.at >= since)


def _is_repair(event: Event) -> bool:
    return event.reason in MENDED or (event.kind == "Node" and event.message.startswith(SPOILED))


def _nodes(books: Books | None) -> list[Node]:
    found = {} if books is None else books.objects["Node"]
    return [node for node in found.values() if isinstance(node, Node)]


def _stuck_reports(store: RedisStore, nodes: Sequence[str]) -> list[WaitingReport]:
    """Return the reports that stay in their queues for a while; at once if there are none."""
    first = stuck = posted_by(store, nodes)
    deadline = monotonic() + APPLIED_WITHIN_S
    while stuck and monotonic() < deadline:
        sleep(_LOOK_AGAIN_S)
        now = {(one.node, one.subject, one.stored) for one in posted_by(store, nodes)}
        stuck = [one for one in first if (one.node, one.subject, one.stored) in now]
    return stuck


def _contested(
    nodes: Sequence[Node], reports: Sequence[WaitingReport]
) -> list[tuple[str, str, str]]:
    served: Mapping[str, str] = {
        node.metadata.name: node.metadata.annotations.get(AGENT_ANNOTATION, "") for node in nodes
    }
    return [
        (one.node, served[one.node], one.report.agent)
        for one in reports
        if isinstance(one.report, Serves) and served.get(one.node, "") not in ("", one.report.agent)
    ]


def _report_places(reports: Sequence[WaitingReport] | None) -> tuple[tuple[str, str], ...] | None:
    return None if reports is None else tuple((one.node, one.subject) for one in reports)


def _sizes(store: RedisStore, reports: Sequence[WaitingReport] | None) -> Mapping[str, int]:
    nodes = sorted({one.node for one in reports or ()})
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
        # Installed without metadata: the version is unknown.
        found = "unknown"
    return Installed(name=name, version=found, least=least, below=below)
