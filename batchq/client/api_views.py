"""What the client over the HTTP API shows: groups and queues, checks, gates, and a Reader.

Each class stands for an object of `Client`, and has those of its methods that commands call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Protocol
from urllib.parse import quote

import msgspec
from msgspec import Struct

from batchq.api.objects import DEFAULT, AdmissionCheck, Object, Unreadable
from batchq.api.views import (
    CheckView,
    GateView,
    GroupPage,
    GroupView,
    ListedCheck,
    QueuePage,
    QueueView,
)
from batchq.client.request import GroupName, duration_of, key_named
from batchq.errors import NotFound


class Api(Protocol):
    """The API as views ask it: the methods of `ApiClient` that they call."""

    def ask(self, path: str, answer: Any, **query: object) -> Any:
        """Return what a path answers to GET, decoded as `answer`."""

    def tell(self, path: str, document: object) -> Any:
        """Return what a path answers to POST."""

    def refuse(self, what: str = "") -> NoReturn:
        """Raise InvalidInput for what the API does not serve; see `ApiClient.refuse`."""

    def get(self, kind: str, name: str, *, namespace: str = DEFAULT) -> Object:
        """Return one object; see `Client.get`."""

    def list(self, kind: str, *, namespace: str = "") -> Sequence[Object]:
        """Return all objects of a kind; see `Client.list`."""

    def now_ms(self) -> int:
        """Return the server's time."""


class _GroupViews(Struct, frozen=True):
    at: int
    hidden: int
    views: tuple[GroupView, ...]
    unreadable: tuple[Unreadable, ...]
    following: str = msgspec.field(name="continue")


class _QueueViews(Struct, frozen=True):
    at: int
    items: list[QueueView]


class _QueueAnswer(Struct, frozen=True):
    at: int
    page: QueuePage
    checks: tuple[ListedCheck, ...]


class ApiReader:
    """A Reader of what the API shows of objects."""

    def __init__(self, client: Api) -> None:
        self._client = client

    def get(self, kind: str, key: str) -> Object | None:
        try:
            return self._client.get(kind, key)
        except NotFound:
            return None

    def list(self, kind: str, *, namespace: str = "") -> Sequence[Object]:
        return self._client.list(kind, namespace=namespace)


class ApiOverview:
    """See `Overview`: what the API shows of groups and queues. Each call asks it again."""

    def __init__(self, get: Callable[..., Any]) -> None:
        self._get = get
        self.at = 0
        self.unreadable: tuple[Unreadable, ...] = ()

    def groups(
        self, *, namespace: str = "", queue: str = "", phases: Sequence[str] = ()
    ) -> list[GroupView]:
        """Return groups by key; see `Overview.groups`."""
        found = self._get(
            "/v1/views/groups",
            answer=_GroupViews,
            namespace=namespace,
            queue=queue,
            phase=",".join(phases),
        )
        self.at, self.unreadable = found.at, found.unreadable
        return list(found.views)

    def queues(self) -> list[QueueView]:
        """Return every queue; see `Overview.queues`."""
        found: _QueueViews = self._get("/v1/views/queues", answer=_QueueViews)
        self.at = found.at
        return list(found.items)

    def queue_page(self, name: str) -> QueuePage | None:
        """Return one queue in detail, or None; see `Overview.queue_page`."""
        try:
            found: _QueueAnswer = self._get(_queue_path(name), answer=_QueueAnswer)
        except NotFound:
            return None
        self.at = found.at
        return found.page


class ApiGates:
    """See `Gates`."""

    def __init__(self, client: Api) -> None:
        self._client = client

    def list(
        self,
        *,
        namespace: str = "",
        queue: str = "",
        gate: str = "",
        older_than: str | float = 0,
    ) -> Sequence[GateView]:
        """Return closed gates, those of the oldest groups first; see `Gates.list`."""
        age = duration_of("older_than", older_than) or ""
        found: list[GateView] = self._client.ask(
            "/v1/views/gates", list[GateView],
            namespace=namespace, queue=queue, gate=gate, age=age,
        )  # fmt: skip
        return found

    def open(
        self, group: GroupName, gate: str, *, task: str = "", namespace: str = DEFAULT
    ) -> bool:
        """Open one gate; see `Gates.open`."""
        return self._open(group, namespace, gate, task)

    def open_all(self, group: GroupName, *, task: str = "", namespace: str = DEFAULT) -> bool:
        """Open every gate; see `Gates.open_all`."""
        return self._open(group, namespace, "", task)

    def _open(self, group: GroupName, namespace: str, gate: str, task: str) -> bool:
        path = f"{group_path(group, namespace)}/gates"
        return bool(self._client.tell(path, {"gate": gate, "task": task})["changed"])


class ApiChecks:
    """See `Checks`: what the API shows of admission checks."""

    def __init__(self, client: Api) -> None:
        self._client = client

    def views(
        self, *, group: str = "", queue: str = "", namespace: str = "", waiting: bool = False
    ) -> Sequence[CheckView]:
        """Return the checks of a group; see `Checks.views`. Raises InvalidInput without a `group`,
        and for a `queue`.
        """
        if not group or queue:
            self._client.refuse("`batchq checks list` without a group, or with a queue,")
        path = f"/v1/views/checks/{key_named(group, namespace or DEFAULT)}"
        found: list[CheckView] = self._client.ask(path, list[CheckView])
        return [view for view in found if view.waits or not waiting]

    def of_queue(self, queue: str) -> Sequence[ListedCheck]:
        """Return the checks that groups of a queue must pass; see `Checks.of_queue`."""
        found: _QueueAnswer = self._client.ask(_queue_path(queue), _QueueAnswer)
        return found.checks

    def records(self) -> Sequence[ListedCheck]:
        """Return every AdmissionCheck, by name; see `Checks.records`."""
        from batchq.client.checks import listed_check

        found = self._client.list("AdmissionCheck")
        known = {item.metadata.name: item for item in found if isinstance(item, AdmissionCheck)}
        now_ms = self._client.now_ms()
        return [listed_check(name, "", known, now_ms) for name in sorted(known)]

    def __getattr__(self, name: str) -> NoReturn:
        self._client.refuse()


class ApiGroupPages:
    """See `GroupPages`."""

    def __init__(self, get: Callable[..., Any], query: dict[str, object], after: str) -> None:
        self._get, self._query = get, query
        self._first = self._page(after)
        self.hidden: int = self._first.hidden

    def __iter__(self) -> Iterator[GroupPage]:
        page = self._first
        while True:
            yield GroupPage(views=page.views, at=page.at, unreadable=page.unreadable)
            if not page.following:
                return
            page = self._page(page.following)

    def _page(self, after: str) -> Any:
        query = {**self._query, "continue": after}
        return self._get("/v1/views/groups", answer=_GroupViews, **query)


def _queue_path(queue: str) -> str:
    return f"/v1/views/queues/{quote(queue, safe='')}"


def group_path(group: GroupName, namespace: str) -> str:
    space, _, name = key_named(group, namespace).partition("/")
    return f"/v1/namespaces/{space}/groups/{quote(name, safe='')}"
