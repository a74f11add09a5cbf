"""Everything that a trial may change in a session and must restore, as plain values."""

from __future__ import annotations

from typing import Any

from batchq.core.session.session import Session


def state_of(session: Session) -> dict[str, Any]:
    """Return the state by name, so that differences can be shown; zeros and empty entries are left
    out.
    """
    ledger = session.ledger
    return {
        "nodes": {name: _named(node.free) for name, node in session.nodes.by_name.items()},
        "phases": {uid: group.phase for uid, group in session.groups.items()},
        "statuses": {uid: group.status for uid, group in session.groups.items()},
        "pods": {uid: dict(group.pods) for uid, group in session.groups.items()},
        "held": {uid: _named(group.held) for uid, group in session.groups.items()},
        "placed": {uid: _named(group.placed) for uid, group in session.groups.items()},
        "ledger": _by_name(ledger.sums),
        "guarantees": _by_name(ledger.unused),
        "charges": _by_name({uid: ledger.charged(group) for uid, group in session.groups.items()}),
        "owed": {uid: dict(ledger.owed(group)) for uid, group in session.groups.items()},
        "holders": _by_name(ledger.holding),
        "claimants": {uid: sorted(owners) for uid, owners in ledger.preemptors.items() if owners},
        "aside": dict(ledger.head_reservations),
        "pledged": dict(session.victims.pledged),
        "rooms": {uid: dict(room) for uid, room in session.nodes.held.items() if room},
        "intents": list(session.intents),
        "lines": {name: [group.uid for group in one.line] for name, one in session.queues.items()},
    }


def _named(amounts: Any) -> dict[str, int]:
    return {name: units for name, units in sorted(amounts.items()) if units}


def _by_name(places: Any) -> dict[str, Any]:
    return {name: _named(one) if not one or isinstance(next(iter(one.values())), int)
            else sorted(one)
            for name, one in places.items() if one and any(one.values())}  # fmt: skip
