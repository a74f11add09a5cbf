"""What silence means: a node's or a work-horse's, or only that nobody could be heard.

Who lost the server for a minute finds every lease run out and every node silent when it is back,
though all of them may live. So silence counts from when the reader was last out of touch. And a
server that was started anew may have forgotten what it was told last: until the nodes have said
what runs on them, nothing is bound, or a pod could run twice at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchq.api.reasons import Verdict, Waiting
from batchq.api.transaction import lease_of

if TYPE_CHECKING:
    from batchq.core.session.node_state import NodeState
    from batchq.core.session.session import Session


def since(session: Session, heard_at: int) -> int:
    """The instant from which silence counts, of somebody who was last heard of at `heard_at`."""
    hears_since = session.snapshot.standing.hears_since
    return heard_at if hears_since is None else max(heard_at, hears_since)


def binding_held_until(session: Session) -> int | None:
    """Until when nothing is bound, if no more nodes report; None if nothing stands in the way.

    Within a lease everything that runs has either been renewed, and so is known, or has ended.
    """
    standing = session.snapshot.standing
    if standing.restarted_at is None:
        return None
    nodes = session.nodes.by_name.values() if standing.forgot else _unreported(session)
    leases = [_lease_ms(session, node) for node in nodes]
    if standing.forgot:
        leases.append(session.settings.pod_lease_ms)
    if not leases:
        # All have reported. Whose clock is a little behind the leader's has no reason to wait.
        return None
    until = standing.restarted_at + max(leases)
    return until if session.now_ms < until else None


def unreported(session: Session) -> list[str]:
    """The nodes that have not yet said what runs on them since the server was started."""
    return [node.name for node in _unreported(session)]


def _unreported(session: Session) -> list[NodeState]:
    """Ready ones, and those that went silent so late that something may still run there."""
    standing = session.snapshot.standing
    restarted_at = standing.restarted_at or 0
    found = []
    for node in session.nodes.by_name.values():
        lease_ms = _lease_ms(session, node)
        heard_at = node.record.status.heartbeat or 0
        may_run = node.ready or heard_at + lease_ms > restarted_at
        is_waited_for = may_run and session.now_ms < restarted_at + lease_ms
        if is_waited_for and node.name not in standing.reported:
            found.append(node)
    return found


def _lease_ms(session: Session, node: NodeState) -> int:
    return lease_of(node.record, default_ms=session.settings.pod_lease_ms)


def refusal_to_bind(session: Session) -> Verdict | None:
    """Why nothing at all is bound now."""
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
