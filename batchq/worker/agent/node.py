"""This machine as a Node: how it takes part in the cluster, its registration, heartbeat and
withdrawal.

The agent posts reports about its node, and the leader makes the Node object of them. If the Node
does not show what the agent reported, the agent posts the report again with its next beat. The
scheduler takes a silent node for dead; the next beat brings it back in the same way.

A node name has one agent. The node carries its agent's identity, `<host>:<pid>:<start in ms>`, in
the annotation `batchq/agent`. Another agent counts as alive if its process lives (on the same
host), or if the node sent a beat within the last three periods (on another host).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct, structs

from batchq.api.node_report import AGENT_ANNOTATION, BEAT_MS, PROTOCOL, Leaves, NodeReport, Serves
from batchq.api.notation import describe_age
from batchq.api.objects import Node, Taint
from batchq.api.resources import CPU, ONE_POD, PODS
from batchq.errors import Conflict
from batchq.store.redis import RedisStore
from batchq.system import structlog
from batchq.worker.host.accounts import PodAccounts
from batchq.worker.host.containment import Containment
from batchq.worker.host.node_resources import Enforce, PortRange
from batchq.worker.workhorse.run_file import started_ms

log = structlog.get_logger(__name__)

#: The digits of a pid and an instant, together.
_MAX_DIGITS = 40

_BEATS_UNTIL_SILENT = 3


class AgentSettings(Struct, frozen=True, kw_only=True):
    """How a machine takes part in the cluster.

    `resources` are in integer units (cpu in milli, memory in bytes, others in thousandths); None
    means the detected ones. Logs go to `home/logs`, and run files to `home/run/<node>`. `slots`
    bounds how many pods run at once, and so the `pods` that the node offers; None means
    `default_slots`.
    """

    node: str
    url: str
    home: Path
    resources: dict[str, int] | None = None
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    slots: int | None = None
    beat_s: float = BEAT_MS / 1000
    lease_ms: int = 30_000
    drain_timeout_s: float = 30.0
    enforce: Enforce = Enforce.AUTO
    containment: Containment = Containment.AUTO
    #: The address of the HTTP API, for pods that have a token.
    api_server: str = ""
    #: Where pods of other machines reach those of this one; "": this end of the connection to the
    #: server.
    address: str = ""
    ports: PortRange = PortRange()
    #: Ids, bus ids or indices of the only devices that the agent uses; None means all.
    devices: tuple[str, ...] | None = None
    #: How pods are told their GPUs.
    gpu_env: Literal["index", "uuid"] = "index"
    #: How to find the account that runs a pod; None: the agent's own runs all.
    accounts: PodAccounts | None = None
    #: Whether pods may be this account on the socket of an HTTP API.
    is_one_account: bool = False


class NodeOffer(Struct, frozen=True, kw_only=True):
    """What the agent reports of its node.

    Labels and annotations are merged with those set by others; taints, if any are given, replace
    them.
    """

    name: str
    resources: Mapping[str, int]
    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    annotations: Mapping[str, str] = {}


def own_identity() -> str:
    """Return `<host>:<pid>:<start in ms>` of this process."""
    return f"{socket.gethostname()}:{os.getpid()}:{started_ms(os.getpid())}"


class Membership:
    """The Node object of one agent; owned by the agent's loop.

    Every method raises StoreUnavailable.
    """

    def __init__(self, store: RedisStore, offer: NodeOffer, *, identity: str, beat_ms: int) -> None:
        self._store = store
        self._offer = offer
        self._identity = identity
        self._beat_ms = beat_ms
        #: The node's former agent, which is dead: otherwise `refuse_if_served` raises.
        self._former = ""
        #: Whether the node was ready and ours at the last beat.
        self._in_service = False
        #: Whether the offer has changed, and the Node is not known to show that yet.
        self._is_changed = False

    def refuse_if_served(self) -> None:
        """Raise Conflict while another agent serves the node."""
        node = self._node()
        if node is not None:
            self._refuse_if_served(node)
            self._former = _agent_of(node)

    def register(self) -> None:
        """Offer the node. A leader makes it ready; until it has, `beat` offers it again."""
        self._post(
            Serves(
                agent=self._identity,
                resources=dict(self._offer.resources),
                labels=dict(self._offer.labels),
                annotations=dict(self._offer.annotations),
                taints=self._offer.taints,
                protocol=PROTOCOL,
            )
        )
        log.info("node offered", node=self._offer.name, resources=self._offer.resources)

    def change(self, *, resources: Mapping[str, int], annotations: Mapping[str, str]) -> bool:
        """Offer other resources from the next beat on; return whether they differ."""
        changed = structs.replace(
            self._offer,
            resources=resources,
            annotations={**self._offer.annotations, **annotations},
        )
        if changed == self._offer:
            return False
        self._offer, self._is_changed = changed, True
        return True

    def _shows_offer(self, node: Node | None) -> bool:
        return node is not None and (
            dict(node.spec.resources) == dict(self._offer.resources)
            and self._offer.annotations.items() <= node.metadata.annotations.items()
        )

    def beat(self, *, ready: bool, run: str = "") -> None:
        """Send one beat, and offer the node again if it was taken for dead, changed or deleted.

        `run`: the run id of the server that knows everything that runs here. Raise Conflict if
        another agent has taken over the name.
        """
        self._store.beat(self._offer.name, run)
        node = self._node()
        agent = "" if node is None else _agent_of(node)
        if self._is_foreign(agent):
            raise Conflict(
                f"node {self._offer.name} was taken over by the agent {_shown(agent)}",
                hint="give each agent a node name of its own",
            )
        before = self._in_service
        self._in_service = agent == self._identity and node is not None and node.status.ready
        self._is_changed = self._is_changed and not self._shows_offer(node)
        if ready and (self._is_changed or not self._in_service):
            if before and not self._in_service:
                log.warning("node was taken for dead", node=self._offer.name)
            self.register()

    def withdraw(self, reason: str = "", *, is_new: bool = False) -> bool:
        """Ask that no more pods are bound here, and return whether that is so already.

        `reason`: why the node is closed while its agent goes on; empty if the agent ends. If it
        `is_new`, a node that is closed for another one gets it, too.
        """
        node = self._node()
        if node is None or _agent_of(node) != self._identity:
            return True
        if not node.status.ready and not (is_new and reason != node.status.reason):
            return True
        self._post(Leaves(agent=self._identity, reason=reason))
        return False

    def register_if_unknown(self) -> None:
        """Offer the node if it has no Node object, which must exist to hold a reason."""
        if self._node() is None:
            self.register()

    def has_told(self, reason: str) -> bool:
        """Return whether the leader has closed the node for this reason, which it may shorten."""
        node = self._node()
        return node is not None and "" != node.status.reason == reason[: len(node.status.reason)]

    def is_registered(self) -> bool:
        """Return whether a leader has made the node this agent's."""
        node = self._node()
        return node is not None and _agent_of(node) == self._identity

    def is_taken_over(self) -> bool:
        """Return whether another agent serves the node, and so starts what is bound to it."""
        node = self._node()
        return node is not None and self._is_foreign(_agent_of(node))

    def _is_foreign(self, agent: str) -> bool:
        if agent in ("", self._identity, self._former):
            return False
        # A server that was restored from an older copy shows an agent from before this one.
        host, pid, started = _parts(agent)
        is_dead = pid is not None and started_ms(pid) != started
        return host != socket.gethostname() or not is_dead

    def _post(self, report: NodeReport) -> None:
        self._store.report_queues.post(self._offer.name, report)

    def _node(self) -> Node | None:
        node = self._store.get_if_readable("Node", self._offer.name)
        return node if isinstance(node, Node) else None

    def _refuse_if_served(self, node: Node) -> None:
        other = _agent_of(node)
        if other in ("", self._identity):
            return
        host, pid, started = _parts(other)
        name = self._offer.name
        heard_at = max(self._store.beats([name]).get(name, 0), node.status.heartbeat or 0)
        silent_ms = self._store.now_ms() - heard_at
        if host == socket.gethostname():
            lives = pid is not None and started_ms(pid) == started
        else:
            lives = node.status.ready and silent_ms < _BEATS_UNTIL_SILENT * self._beat_ms
        if lives:
            raise Conflict(
                f"node {name} is served by the agent {_shown(other)}, "
                f"heard of {describe_age(silent_ms)} ago",
                hint="stop that agent, or start this one under another node name",
            )


def withdraw(store: RedisStore, name: str, *, agent: str) -> None:
    """Ask that no more pods are bound to a node while `agent`, which is dead, serves it. Raise
    StoreUnavailable.
    """
    node = store.get_if_readable("Node", name)
    if isinstance(node, Node) and node.status.ready and _agent_of(node) == agent:
        store.report_queues.post(name, Leaves(agent=agent, is_dead=True))
        log.info("node withdrawn", node=name)


def agent_pid(identity: str) -> int | None:
    """Return the pid in an agent's identity; None if the identity is malformed."""
    return _parts(identity)[1]


def _agent_of(node: Node) -> str:
    """Return the identity of the node's current or last agent; empty if it has had none."""
    return node.metadata.annotations.get(AGENT_ANNOTATION, "")


def _parts(identity: str) -> tuple[str, int | None, int | None]:
    host, _, rest = identity.partition(":")
    pid, _, started = rest.partition(":")
    if rest.isascii() and pid.isdigit() and started.isdigit() and len(rest) < _MAX_DIGITS:
        return host, int(pid), int(started)
    return host, None, None


def _shown(identity: str) -> str:
    host, pid, _ = _parts(identity)
    return f"with pid {pid} on {host}" if pid is not None else repr(identity)


#: Slots of an agent that states none: the default of a kubelet, or more for many cpus.
_LEAST_SLOTS, _SLOTS_A_CPU = 110, 4


def default_slots(resources: Mapping[str, int]) -> int:
    """Return how many pods an agent runs at once where nothing else is stated.

    A pod waits behind those that the node has taken before it, so there are no more of them than
    the cpus (in milli) may need.
    """
    return max(_LEAST_SLOTS, _SLOTS_A_CPU * resources.get(CPU, 0) // 1000)


def within_slots(resources: Mapping[str, int], slots: int) -> dict[str, int]:
    """Return the resources with as many `pods` as the agent runs at once, at most.

    Otherwise pods that request nothing would be bound without end, and pods bound after them would
    wait here for a slot.
    """
    pods = slots * ONE_POD
    return {**resources, PODS: min(resources.get(PODS, pods), pods)}
