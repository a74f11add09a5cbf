"""The topology of groups: gangs whose pods are placed within one rack, zone or other domain.

A domain is a set of nodes that have the same values of some labels. A group that requires one
(`spec.topology`) is confined to the domain that is chosen for it until it loses its reservation:
its pods are then those of a group with a node selector. What it prefers is only tried first when
places for its gang are sought.

As in Kueue's topology-aware scheduling, the domain with the least free capacity that takes the
whole gang is the best (BestFit), so that larger domains stay free for larger gangs. While none
takes it, the group waits for the one with the most free capacity among those that would take it if
they were empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from batchq.api.reasons import Verdict
from batchq.core.placement.feasibility import fits_when_empty, why_no_known_node
from batchq.core.placement.placement import gang_of
from batchq.core.session.session import Session, StateKey
from batchq.core.session.session_nodes import Gang, NodeState
from batchq.core.session.specs import task_within
from batchq.core.session.state import GroupState, is_admitted

#: Label -> value.
Domain: TypeAlias = dict[str, str]
_PARTS = 1_000_000


def keys_of(group: GroupState, mode: str) -> tuple[str, ...]:
    """Return the labels that a group requires or prefers, in the order of its spec."""
    topology = group.record.spec.topology
    return tuple(key for key, stated in topology.items() if stated == mode)


def may_choose(group: GroupState) -> bool:
    """Return whether a group requires a domain, and may still be given any."""
    if group.reserved or (is_admitted(group) and group.status.domain):
        return False
    return bool(keys_of(group, "required"))


def may_move(group: GroupState) -> bool:
    """Return whether an admitted group that requires a domain has nothing in its own one yet. It
    was chosen blindly if the admission did not look at nodes, and may be full by now otherwise.
    """
    has_none = not group.held and not any(group.placed.values())
    return has_none and not group.status.pledge.stands and bool(keys_of(group, "required"))


def domains_for(session: Session, group: GroupState) -> list[Domain]:
    """Return the domains that a group may be given, the best one first: the fullest ones first. The
    last one is that for which it waits if none takes its gang now.
    """
    known, changes = session.get(_RANKED), len(session.nodes.changes)
    found = known.get(group.own_shape.alike)
    if found is None or found[0] != changes:
        nodes, dimensions = _domains(session, keys_of(group, "required")), _dimensions_of(group)
        ranked = [
            (suits, _free_of_all(session, nodes[values], dimensions), values, domain)
            for suits, values, domain in _suiting(session, group)
        ]
        ranked.sort(key=lambda entry: entry[:3])
        found = known[group.own_shape.alike] = changes, [domain for *_, domain in ranked]
    return found[1]


def choose_domain(session: Session, group: GroupState) -> None:
    """Confine a group that may still choose to the domain for which it waits."""
    found = domains_for(session, group)
    _confine_to(group, found[-1] if found else None)


def choose_at_opening(session: Session, group: GroupState) -> None:
    """Confine it to a domain that would take it if it were empty, while the session is opened and
    what is free still changes. The actions choose again.
    """
    found = _suiting(session, group)
    _confine_to(group, found[-1][2] if found else None)


def _confine_to(group: GroupState, domain: Domain | None) -> None:
    # If no node has these labels, its reasons say so.
    group.confine(dict.fromkeys(keys_of(group, "required"), "") if domain is None else domain)


def _suiting(session: Session, group: GroupState) -> list[tuple[int, tuple[str, ...], Domain]]:
    """Return the domains by how they would take the gang: not at all (0), if all nodes seen within
    a day were present (1), or if those that are open were empty (2); then by values.
    """
    known = session.get(_SUITING)
    found = known.get(group.own_shape.alike)
    if found is None:
        found = known[group.own_shape.alike] = []
        keys, former = keys_of(group, "required"), group.domain
        for values in _domains(session, keys):
            domain = dict(zip(keys, values, strict=True))
            group.confine(domain)
            gang = gang_of(session, group)
            suits = 2 if fits_when_empty(session, gang) else not why_no_known_node(session, gang)
            found.append((int(suits), values, domain))
        found.sort(key=lambda entry: entry[:2])
        group.confine(former)
    return found


def why_in_no_domain(group: GroupState, refusal: Verdict) -> str:
    """Return why no domain takes the gang of a group, from the refusal of the last one."""
    if not refusal.in_line:
        return f"{refusal.detail}{within_text(group)}"
    return f"no {' and '.join(keys_of(group, 'required'))} takes its whole gang now"


def why_no_known_domain(session: Session, group: GroupState) -> str:
    """Return why the nodes seen within a day would not take the gang of a group within one domain,
    if all were present, empty and not cordoned; '' if they would.
    """
    keys = keys_of(group, "required")
    if keys and session.nodes.by_name and not _domains(session, keys):
        return f"no node has the label{'s' * (len(keys) > 1)} {' and '.join(keys)}"
    why = why_no_known_node(session, gang_of(session, group))
    return f"{why}{within_text(group)}" if why else ""


def most_within(session: Session, group: GroupState, amount_of: Callable[[NodeState], int]) -> int:
    """Return the largest sum of an amount over the nodes of one domain that a group may be given;
    of all nodes if it requires no domain.
    """
    domains = _domains(session, keys_of(group, "required"))
    return max((sum(map(amount_of, nodes)) for nodes in domains.values()), default=0)


def within_text(group: GroupState) -> str:
    """Return the words that end a sentence about what does not fit: ` within one rack`."""
    keys = keys_of(group, "required")
    return f" within one {' and one '.join(keys)}" if keys else ""


def preferred(session: Session, group: GroupState, gang: Gang) -> Iterator[Gang]:
    """Yield the gang within each preferred domain, the fullest first; with several preferred
    labels, first within all of them, then without the last one, and so on.
    """
    keys = keys_of(group, "preferred")
    dimensions = sorted({name for shape, _ in gang for name in shape.requests})
    for count in range(len(keys), 0, -1):
        found = [
            (_free_of_all(session, nodes, dimensions), values)
            for values, nodes in _domains(session, keys[:count]).items()
        ]
        for _, values in sorted(found):
            domain = dict(zip(keys, values, strict=False))
            yield [(task_within(shape, domain), number) for shape, number in gang]


#: What a group asks for -> the number of node changes seen, and the domains in their order then.
_RANKED: StateKey[dict[tuple[object, ...], tuple[int, list[Domain]]]] = StateKey(
    "ranked domains", lambda _: {}
)
#: What a group asks for -> see `_suiting`.
_SUITING: StateKey[dict[tuple[object, ...], list[tuple[int, tuple[str, ...], Domain]]]] = StateKey(
    "suiting domains", lambda _: {}
)
_DOMAINS: StateKey[dict[tuple[str, ...], Mapping[tuple[str, ...], list[NodeState]]]] = StateKey(
    "topology domains", lambda _: {}
)


def _domains(session: Session, keys: tuple[str, ...]) -> Mapping[tuple[str, ...], list[NodeState]]:
    """Return the nodes that have all of these labels, by their values."""
    known = session.get(_DOMAINS)
    if keys not in known:
        found: dict[tuple[str, ...], list[NodeState]] = {}
        for node in session.nodes.by_name.values():
            labels = node.record.metadata.labels
            if all(key in labels for key in keys):
                found.setdefault(tuple(labels[key] for key in keys), []).append(node)
        known[keys] = found
    return known[keys]


def _dimensions_of(group: GroupState) -> list[str]:
    return sorted({name for shape in group.tasks for name in shape.requests})


def _free_of_all(session: Session, nodes: Iterable[NodeState], dimensions: Iterable[str]) -> int:
    """Return what is free on open nodes in these dimensions, in millionths of the cluster's."""
    there = [node.free for node in nodes if node.open]
    return sum(
        sum([max(0, free.get(name, 0)) for free in there]) * _PARTS // whole
        for name in dimensions
        if (whole := session.nodes.could_have.get(name, 0))
    )
