"""What silence means: a node's or a work-horse's, or only that nobody could be heard.

Who lost the server for a minute finds every lease run out and every node silent when it is back,
though all of them may live. So silence counts from when the reader was last out of touch. And a
server that was started anew may have forgotten what it was told last: until the nodes have said
what runs on them, nothing is bound, or a pod could run twice at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchq.api.reasons import Verdict, Waiting

if TYPE_CHECKING:
    from batchq.framework.session import Session


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
    until = standing.restarted_at + session.settings.pod_lease_ms
    if session.now_ms >= until:
        return None
    return until if standing.forgot or unreported(session) else None


def unreported(session: Session) -> list[str]:
    """The ready nodes that have not yet said what runs on them since the server was started."""
    reported = session.snapshot.standing.reported
    return [name for name, node in session.nodes.items() if node.ready and name not in reported]


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
