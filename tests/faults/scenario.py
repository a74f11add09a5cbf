"""A scenario as values: a small cluster, its users' requests, and its faults with their times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from msgspec import Struct

from batchq.api.objects import Object
from batchq.config import SchedulerConfig
from tests.faults.machines import Script
from tests.faults.processes import Request
from tests.faults.store_faults import Chance, Mode, never


class Fault(Struct, frozen=True, kw_only=True):
    """A fault at an instant."""

    at: int


class KillHorse(Fault, frozen=True):
    """SIGKILL to one of the work-horses that are alive then; the index wraps around."""

    which: int


class KillAgent(Fault, frozen=True):
    """An agent dies, and its work-horses end their pods; another agent starts later, or never."""

    node: str
    back_after_ms: int | None


class StopAgent(Fault, frozen=True):
    """An agent is told to stop: it drains, and another starts after it has stopped."""

    node: str
    back_after_ms: int


class CrashNode(Fault, frozen=True):
    """A machine loses power: all of its processes are gone at once; the disk survives."""

    node: str
    back_after_ms: int | None


class PauseNode(Fault, frozen=True):
    """A machine freezes for a while."""

    node: str
    lasts_ms: int


class PauseAgent(Fault, frozen=True):
    """An agent is stopped for a while; its work-horses continue."""

    node: str
    lasts_ms: int


class PauseHorse(Fault, frozen=True):
    """A work-horse is stopped for a while; its pod continues until its guard acts."""

    which: int
    lasts_ms: int


class PauseScheduler(Fault, frozen=True):
    """A scheduler freezes for a while; the call that it sends `in_calls` from now arrives late."""

    name: str
    lasts_ms: int
    in_calls: int


class KillScheduler(Fault, frozen=True):
    """A scheduler dies, and another replaces it later."""

    name: str
    back_after_ms: int


class Cut(Fault, frozen=True):
    """No call of one caller, or of any caller on a node, gets through for a while."""

    caller: str
    lasts_ms: int


class Outage(Fault, frozen=True):
    """The server answers no call for a while."""

    lasts_ms: int


class PauseServer(Fault, frozen=True):
    """The server's process is stopped for a while."""

    lasts_ms: int


class RestartServer(Fault, frozen=True):
    """The server restarts, with all of its data or with the data of this long ago."""

    lasts_ms: int
    forgets_ms: int = 0


class DropDeliveries(Fault, frozen=True):
    """The messages in a node's queue are lost."""

    node: str


class RepeatDeliveries(Fault, frozen=True):
    """The messages for a node are delivered a second time."""

    node: str


AnyFault: TypeAlias = (
    KillHorse
    | KillAgent
    | StopAgent
    | CrashNode
    | PauseNode
    | PauseAgent
    | PauseHorse
    | PauseScheduler
    | KillScheduler
    | Cut
    | Outage
    | PauseServer
    | RestartServer
    | DropDeliveries
    | RepeatDeliveries
)


class Scenario(Struct, frozen=True, kw_only=True):
    """Everything that determines a run. `plans` and `chance` fail calls of the lines that they
    name. With `beside_server`, the nodes' agents run on the server's machine, where they see
    whether its process runs.
    """

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
    #: Interval at which the server is copied, for restores.
    copies_every_ms: int | None = None
    beside_server: bool = False
