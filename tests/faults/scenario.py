"""A drama, as values: a small cluster, what people ask of it, and what goes wrong, and when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from msgspec import Struct

from batchq.api.objects import Object
from batchq.config.model import SchedulerConfig
from tests.faults.machines import Script
from tests.faults.processes import Request
from tests.faults.store_faults import Chance, Mode, never


class Fault(Struct, frozen=True, kw_only=True):
    """Something that happens at an instant, to somebody."""

    at: int


class KillHorse(Fault, frozen=True):
    """SIGKILL to one of the work-horses that live then, counted around."""

    which: int


class KillAgent(Fault, frozen=True):
    """An agent dies, and its work-horses end their pods; another starts later, or never."""

    node: str
    back_after_ms: int | None


class CrashNode(Fault, frozen=True):
    """A machine loses its power: everything on it is gone at once, but its disk."""

    node: str
    back_after_ms: int | None


class PauseNode(Fault, frozen=True):
    """A machine stands still for a while."""

    node: str
    lasts_ms: int


class PauseScheduler(Fault, frozen=True):
    """A scheduler stands still for a while; what it then sends `in_calls` from now comes late."""

    name: str
    lasts_ms: int
    in_calls: int


class KillScheduler(Fault, frozen=True):
    """A scheduler dies, and another takes its place later."""

    name: str
    back_after_ms: int


class Cut(Fault, frozen=True):
    """A caller, or all of a node's, gets nothing through for a while."""

    caller: str
    lasts_ms: int


class Outage(Fault, frozen=True):
    """The server answers nobody for a while."""

    lasts_ms: int


class RestartServer(Fault, frozen=True):
    """The server is started anew, with everything it had, or as it was so long ago."""

    lasts_ms: int
    forgets_ms: int = 0


class DropDeliveries(Fault, frozen=True):
    """What waits in a node's queue is lost."""

    node: str


class RepeatDeliveries(Fault, frozen=True):
    """What is on a node is delivered once more."""

    node: str


AnyFault: TypeAlias = (
    KillHorse
    | KillAgent
    | CrashNode
    | PauseNode
    | PauseScheduler
    | KillScheduler
    | Cut
    | Outage
    | RestartServer
    | DropDeliveries
    | RepeatDeliveries
)


class Drama(Struct, frozen=True, kw_only=True):
    """Everything that goes into a run. `plans` and `chance` fail calls of the lines they name."""

    nodes: Mapping[str, dict[str, int]]
    objects: tuple[Object, ...]
    scripts: Mapping[str, Script]
    requests: tuple[Request, ...]
    config: SchedulerConfig
    faults: tuple[AnyFault, ...] = ()
    chaos_ends_at: int = 0
    plans: Mapping[str, Mapping[int, Mode]] = {}
    chance: Callable[[str], Chance] = lambda _: never
    delay_ms: Callable[[], int] = lambda: 5_000
    #: Keep a copy of the server so often, to restore from.
    copies_every_ms: int | None = None
