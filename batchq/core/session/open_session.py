"""The function that opens a session, and the only module that knows all its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchq.api.reasons import Verdict, Waiting
from batchq.api.transaction import lease_of
from batchq.core.eligibility import OF_NODES, OF_SESSION, InadmissibleGroups
from batchq.core.extension import PluginPlaces
from batchq.core.scheduler_cache import SchedulerCache
from batchq.core.session.session import SESSION, Session
from batchq.core.session.snapshot import Instrument, Settings, Snapshot

if TYPE_CHECKING:
    from batchq.core.session.session_nodes import NodeState


def open_session(
    snapshot: Snapshot,
    *,
    now_ms: int,
    settings: Settings,
    plugins: PluginPlaces,
    actions: tuple[str, ...] = (),
    carried: SchedulerCache | None = None,
    instrument: Instrument | None = None,
    inadmissible: InadmissibleGroups | None = None,
) -> Session:
    """Return a session on a snapshot, without any decisions.

    `carried` and `inadmissible` are what the scheduler keeps across sessions; without them, all
    state is built from the snapshot and every group is evaluated.
    """
    carried = carried or SchedulerCache()
    inadmissible = inadmissible or InadmissibleGroups()
    table = carried.registry(plugins, instrument, {SESSION: OF_SESSION, "nodes": OF_NODES})
    session = Session(
        snapshot,
        now_ms=now_ms,
        settings=settings,
        plugins=table,
        cache=carried,
        inadmissible=inadmissible,
        actions=actions,
    )
    carried.divide_classes(session)
    session.nodes.binding_refused = refusal_to_bind(session)
    return session


def since(session: Session, heard_at: int) -> int:
    """Return from when (ms) silence counts, for a sender last heard of at `heard_at`."""
    hears_since = session.snapshot.standing.hears_since
    return heard_at if hears_since is None else max(heard_at, hears_since)


def binding_held_until(session: Session) -> int | None:
    """Return the instant (ms) until which nothing is bound if no more nodes report; None if binding
    is allowed now.

    Within one lease, every running pod has either renewed its lease, and so is known, or ended.
    """
    standing = session.snapshot.standing
    if standing.restarted_at is None:
        return None
    nodes = session.nodes.by_name.values() if standing.forgot else _unreported(session)
    leases = [lease_ms_on(session, node) for node in nodes]
    if standing.forgot:
        leases.append(session.settings.pod_lease_ms)
    if not leases:
        # All nodes have reported. A clock slightly behind the leader's is no reason to wait.
        return None
    until = standing.restarted_at + max(leases)
    return until if session.now_ms < until else None


def unreported(session: Session) -> list[str]:
    """Return the names of the nodes that have not reported since the server restarted."""
    return [node.name for node in _unreported(session)]


def _unreported(session: Session) -> list[NodeState]:
    """Return ready nodes, and nodes that went silent so recently that pods may still run there."""
    standing = session.snapshot.standing
    restarted_at = standing.restarted_at or 0
    found = []
    for node in session.nodes.by_name.values():
        lease_ms = lease_ms_on(session, node)
        heard_at = node.record.status.heartbeat or 0
        may_run = node.ready or heard_at + lease_ms > restarted_at
        is_waited_for = may_run and session.now_ms < restarted_at + lease_ms
        if is_waited_for and node.name not in standing.reported:
            found.append(node)
    return found


def lease_ms_on(session: Session, node: NodeState) -> int:
    """Return for how long a pod on a node may run without a renewal of its lease."""
    return lease_of(node.record, default_ms=session.settings.pod_lease_ms)


def refusal_to_bind(session: Session) -> Verdict | None:
    """Return why nothing at all is bound now; None if pods may be bound."""
    if binding_held_until(session) is None:
        return None
    waited_for = ", ".join(unreported(session)[:3])
    detail = (
        f"nothing is bound until {waited_for} has reported after the server's restart"
        if waited_for
        else "nothing is bound for the length of a lease after the server's restart,"
        " in which it lost writes"
    )
    return Verdict(plugin="contact", reason=Waiting.WAITING_FOR_RESOURCES, detail=detail)
