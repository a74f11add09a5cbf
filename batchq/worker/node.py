"""This machine as a Node: registered, kept alive, withdrawn.

A node's capacity counts in the cluster only while the node is ready, so readiness and the charge
in scope `capacity` are always written together. The scheduler takes both away from a node that is
not heard of; the agent puts them back when it finds that it was taken for dead.

One name, one agent: the node carries its agent's identity, `<host>:<pid>:<start in ms>`, in the
annotation `batchq/agent`. Another agent is alive if its process is (on the same host), or if the
node was heard of within three beats (elsewhere).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

import msgspec
import structlog
from msgspec import Struct

from batchq.api.objects import Metadata, Node, NodeSpec, NodeStatus, Taint
from batchq.api.quantity import PODS
from batchq.api.resources import UNLIMITED_PODS
from batchq.api.times import describe_age
from batchq.api.transaction import CAPACITY, Charge, Limit, Transaction, Word, Write, node_scope
from batchq.errors import Conflict, StoreUnavailable
from batchq.ports import Store
from batchq.store.redis import RedisStore
from batchq.worker.runfile import started_ms

log = structlog.get_logger(__name__)

AGENT_ANNOTATION = "batchq/agent"
_BEATS_UNTIL_SILENT = 3
_MOST_CONFLICTS = 20


class NodeOffer(Struct, frozen=True, kw_only=True):
    """What the agent says of its node. Labels are added to those that others set; taints, if any
    are given, replace them.
    """

    name: str
    resources: Mapping[str, int]
    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()


def own_identity() -> str:
    """`<host>:<pid>:<start in ms>` of this process."""
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

    def refuse_if_served(self) -> None:
        """Raises Conflict while another agent serves the name."""
        node = self._node()
        if node is not None:
            self._refuse_if_served(node)

    def register(self) -> None:
        """Make the node, or take over what a former agent left; cordons stay.

        Raises Conflict while another agent serves the name.
        """
        for _ in range(_MOST_CONFLICTS):
            before = self._node()
            if before is not None:
                self._refuse_if_served(before)
            if self._write(self._registered(before), before):
                log.info("node registered", node=self._offer.name, resources=self._offer.resources)
                return
        raise _unstable(self._offer.name)

    def keep(self, *, ready: bool) -> None:
        """One beat. A node that was taken for dead, changed or deleted is set right.

        Raises Conflict if another agent has taken the name over.
        """
        self._store.beat(self._offer.name)
        node = self._node()
        if node is None:
            if ready:
                self.register()
            return
        other = node.metadata.annotations.get(AGENT_ANNOTATION, "")
        if other not in ("", self._identity):
            raise Conflict(
                f"node {self._offer.name} was taken over by the agent {_shown(other)}",
                hint="give each agent a node name of its own",
            )
        if ready and (not node.status.ready or not other):
            log.warning("node was taken for dead", node=self._offer.name)
            self._write(self._registered(node), node)

    def withdraw(self) -> None:
        """Nothing new shall be bound here."""
        withdraw(self._store, self._offer.name, agent=self._identity, author=self._identity)

    def _node(self) -> Node | None:
        node = self._store.get("Node", self._offer.name)
        return node if isinstance(node, Node) else None

    def _registered(self, before: Node | None) -> Node:
        now_ms = self._store.now_ms()
        meta = before.metadata if before else Metadata(name=self._offer.name)
        spec = before.spec if before else NodeSpec()
        return Node(
            metadata=msgspec.structs.replace(
                meta,
                labels={**meta.labels, **self._offer.labels},
                annotations={**meta.annotations, AGENT_ANNOTATION: self._identity},
                creation_timestamp=meta.creation_timestamp or now_ms,
            ),
            spec=msgspec.structs.replace(
                spec,
                resources=dict(self._offer.resources),
                taints=self._offer.taints or spec.taints,
            ),
            status=NodeStatus(ready=True, heartbeat=now_ms),
        )

    def _write(self, after: Node, before: Node | None) -> bool:
        """Whether the store took it; not if somebody else wrote meanwhile."""
        name = self._offer.name
        amounts = {PODS: UNLIMITED_PODS, **self._offer.resources}
        revision = before.metadata.revision if before else 0
        transaction = Transaction(
            subject=name,
            writes=(Write(kind="Node", key=name, expect=revision, value=after),),
            charges=(Charge(holder=f"node:{name}", scopes=(CAPACITY,), amounts=amounts),),
            limits=(Limit(scope=node_scope(name), amounts=amounts),),
        )
        request = f"{self._identity}-{name}-ready-{revision}-{self._store.now_ms()}"
        return _commit(self._store, transaction, request_id=request)

    def _refuse_if_served(self, node: Node) -> None:
        other = node.metadata.annotations.get(AGENT_ANNOTATION, "")
        if other in ("", self._identity):
            return
        host, pid, started = _parts(other)
        heard_at = max(self._store.beats().get(self._offer.name, 0), node.status.heartbeat or 0)
        silent_ms = self._store.now_ms() - heard_at
        if host == socket.gethostname():
            lives = pid is not None and started_ms(pid) == started
        else:
            lives = node.status.ready and silent_ms < _BEATS_UNTIL_SILENT * self._beat_ms
        if lives:
            raise Conflict(
                f"node {self._offer.name} is served by the agent {_shown(other)}, "
                f"heard of {describe_age(silent_ms)} ago",
                hint="stop that agent, or start this one under another node name",
            )


def withdraw(store: Store, name: str, *, agent: str, author: str) -> None:
    """Have nothing new bound to a node, as long as `agent` is the one that serves it.

    Raises StoreUnavailable.
    """
    for _ in range(_MOST_CONFLICTS):
        before = store.get("Node", name)
        if not isinstance(before, Node) or not before.status.ready:
            return
        if before.metadata.annotations.get(AGENT_ANNOTATION) != agent:
            return
        status = msgspec.structs.replace(before.status, ready=False)
        after = msgspec.structs.replace(before, status=status)
        revision = before.metadata.revision
        transaction = Transaction(
            subject=name,
            writes=(Write(kind="Node", key=name, expect=revision, value=after),),
            charges=(Charge(holder=f"node:{name}"),),
        )
        if _commit(store, transaction, request_id=f"{author}-{name}-away-{revision}"):
            log.info("node withdrawn", node=name)
            return
    raise _unstable(name)


def agent_pid(identity: str) -> int | None:
    """The pid in an agent's identity."""
    return _parts(identity)[1]


def _commit(store: Store, transaction: Transaction, *, request_id: str) -> bool:
    """Whether the store took it; not if somebody else wrote meanwhile."""
    commit = store.commit([transaction], request_id=request_id)
    if commit.refused and commit.refused[0].answer.word != Word.CONFLICT:
        raise StoreUnavailable(
            f"the store refuses node {transaction.subject}: {commit.refused[0].answer.word}",
            hint="see the log of the scheduler",
        )
    return not commit.refused


def _unstable(name: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"node {name} changed {_MOST_CONFLICTS} times while it was being written",
        hint="see who else writes nodes on this server",
    )


def _parts(identity: str) -> tuple[str, int | None, int | None]:
    host, _, rest = identity.partition(":")
    pid, _, started = rest.partition(":")
    if pid.isdigit() and started.isdigit():
        return host, int(pid), int(started)
    return host, None, None


def _shown(identity: str) -> str:
    host, pid, _ = _parts(identity)
    return f"with pid {pid} on {host}" if pid is not None else repr(identity)
