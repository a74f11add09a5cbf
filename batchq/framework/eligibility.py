"""Why a Pending group stands out of line by its own and its queue's state, plugins aside."""

from __future__ import annotations

from difflib import get_close_matches

from batchq.api.objects import GroupClaim
from batchq.api.reasons import Verdict, Waiting
from batchq.api.times import format_duration, format_instant
from batchq.framework.contradictions import contradictions
from batchq.framework.pledges import awaits_victims, nodes_awaited
from batchq.framework.session import Session
from batchq.framework.settings import Settings
from batchq.framework.state import GroupState
from batchq.framework.tree import ROOT

_PLUGIN = "session"
_QUEUES_SHOWN = 10


def stands_aside(session: Session, group: GroupState) -> list[Verdict]:
    """Every such reason: contradictions, a missing or stopped queue, suspension, back-off."""
    found: list[tuple[Waiting, str]] = []
    shape = group.given_shape
    unsound = [] if shape.is_sound else contradictions(shape.spec, shape.replicas, shape.min_member)
    found += [
        (Waiting.MISCONFIGURED, text) for text in (*unsound, *_stands_for_nothing(session, group))
    ]
    queue = session.queues.get(group.queue)
    if queue is None:
        found.append((Waiting.QUEUE_NOT_FOUND, _which_queues_there_are(session, group.queue)))
    found += [
        (Waiting.QUEUE_STOPPED, f"queue {name} is stopped ({policy})")
        for name, policy in stops_of(session, group)
    ]
    if group.record.spec.suspend:
        found.append((Waiting.SUSPENDED, "the group is suspended"))
    claim = group.status.claim
    if group.is_external and claim.is_open:
        found.append((Waiting.BACKING_OFF, _why_its_claim_counts(claim)))
    if awaits_victims(session, group):
        found.append((Waiting.WAITING_FOR_PREEMPTION, _why_it_is_promised(session, group)))
    if nodes := nodes_awaited(session, group.status.pledge):
        found.append((Waiting.WAITING_FOR_RESOURCES, _why_it_awaits_nodes(group, nodes)))
    until = group.status.backoff_until
    if until is not None and session.now_ms < until:
        found.append((Waiting.BACKING_OFF, _why_it_pauses(session, group)))
    return [Verdict(plugin=_PLUGIN, reason=reason, detail=detail) for reason, detail in found]


def _which_queues_there_are(session: Session, name: str) -> str:
    """The nearest names, if there are too many to be listed."""
    names = list(session.queues)
    near = get_close_matches(name, names, n=1)
    shown = names[:_QUEUES_SHOWN]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    meant = f"; did you mean {near[0]}?" if near and more else ""
    return f"there is no queue {name}; there are: {', '.join(shown)}{more}{meant}"


def _why_it_pauses(session: Session, group: GroupState) -> str:
    """What made it leave InQueue, and for how long it pauses: the same words all the while."""
    left = next((one for one in group.status.conditions if one.type == "Evicted"), None)
    why = f"{left.reason}: {left.message}" if left and left.message else "it had to leave InQueue"
    pause = format_duration(pause_ms(session.settings, max(0, group.status.backoff_count - 1)))
    times = group.status.backoff_count
    nth = "the first time" if times < 2 else f"{times} times in a row"
    until = format_instant(group.status.backoff_until or session.now_ms)
    return f"pauses for {pause}, until {until}, {nth}; {why}"


def _why_it_is_promised(session: Session, group: GroupState) -> str:
    """Whose processes have to end first: the same words until the last has."""
    pledge = group.status.pledge
    victims = pledge.victims
    shown = ", ".join(victims[:3]) + (f" and {len(victims) - 3} more" if len(victims) > 3 else "")
    if pledge.expires is None and group.status.checks:
        return f"counts on the room of {shown}, to be evicted once its checks give leave"
    have = "has" if len(victims) == 1 else "have"
    expires = group.status.pledge.expires
    patience = "" if expires is None else f", at the latest at {format_instant(expires)}"
    return f"waits until {shown} {have} stopped for it{patience}"


def _why_it_awaits_nodes(group: GroupState, nodes: list[str]) -> str:
    """Which nodes have to come back: the same words as long as they are away."""
    shown = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
    until = format_instant(group.status.pledge.expires or 0)
    return f"room was made for it on {shown}, lost or cordoned since: waits until {until}"


def _why_its_claim_counts(claim: GroupClaim) -> str:
    """A group that had to leave cannot be run by two at once: the same words until it is over."""
    until = "" if claim.over_at is None else f", at the latest at {format_instant(claim.over_at)}"
    return (
        f"{claim.holder} has claimed it and was told to stop ({claim.stop_reason}):"
        f" waits until it has{until}"
    )


def pause_ms(settings: Settings, former: int) -> int:
    """10 s x 2^n up to 10 min, after `former` pauses in a row."""
    return min(settings.backoff_first_ms << min(former, 30), settings.backoff_most_ms)


def stops_of(session: Session, group: GroupState) -> list[tuple[str, str]]:
    """Which of its queue and those above are stopped, and how: (name, policy)."""
    above = [session.queues.get(name) for name in reversed(group.chain)]
    stated = [(queue.name, queue.record.spec.stop_policy) for queue in above if queue is not None]
    return [(name, policy) for name, policy in stated if policy != "None"]


def _stands_for_nothing(session: Session, group: GroupState) -> list[str]:
    """Names in it that a submission would have been refused for."""
    spec = group.record.spec
    found = []
    if group.queue == ROOT:
        found.append("queue root stands above all others and holds no groups")
    elif not session.tree.is_leaf(group.queue):
        below = ", ".join(session.tree.children_of[group.queue][:3])
        found.append(
            f"queue {group.queue} has queues below it and holds no groups; choose one of {below}"
        )
    name = spec.priority_class_name
    if name and all(item.metadata.name != name for item in session.snapshot.priority_classes):
        found.append(f"there is no priority class {name}")
    found += [
        f"depends on {dependency.name}, which does not exist, or depends on this group in turn"
        for dependency in spec.depends_on
        if not dependency.uid
    ]
    return found
