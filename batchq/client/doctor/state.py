"""Everything that the checks look at, read once. Instants and durations are in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from batchq.api.objects import Node, Object, Pod, PodGroup, Queue, ResourceQuota
from batchq.api.transaction import Delivery, Event
from batchq.api.unreadable import Unreadable
from batchq.client.leading import Schedulers
from batchq.framework.settings import Settings
from batchq.store.inspection import Books, ServerFacts


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
