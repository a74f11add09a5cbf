"""Scheduling gates: which groups wait for which gates, who set them, and opening them.

    with Client(component="data-ready") as client:
        for gate in client.gates.list(gate="data"):
            if is_there(gate.group):
                client.gates.open(gate.group, "data")

Several programs may open gates of one group at the same time, in any order: an opening that
conflicts with another is repeated, and the last one lets the group continue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import batchq.client.changes as changes
from batchq.api.objects import DEFAULT, PodGroup, gates_of, key_of
from batchq.api.times import parse_duration
from batchq.api.transaction import Transaction
from batchq.api.views import GateView
from batchq.client.overview import Overview
from batchq.client.request import key_named
from batchq.errors import InvalidInput

if TYPE_CHECKING:
    from batchq.store.redis import RedisStore

__all__ = ["GateView", "Gates"]

#: Commits what the function returns for the current time; returns whether anything was written.
Change = Callable[[Callable[[int], Transaction | None]], bool]


class Gates:
    """The gates of unfinished groups, over a client's connection."""

    def __init__(self, store: RedisStore, change: Change, user: Callable[[], str]) -> None:
        self._store = store
        self._change = change
        self._user = user

    def list(
        self,
        *,
        namespace: str = "",
        queue: str = "",
        gate: str = "",
        older_than: str | float = 0,
    ) -> Sequence[GateView]:
        """Return closed gates, those of the oldest groups first.

        Filtered by namespace, by queue (with the queues below it), by name, and by the age of the
        group ("1d", or seconds). Raises InvalidInput.
        """
        overview = Overview(self._store.snapshot(), self._store.now_ms())
        latest = overview.at - ms_of(older_than)
        return [
            _view(group, shown, task, name)
            for group, shown in overview.gated(namespace=namespace, queue=queue)
            for task, name in gates_of(group.spec)
            if gate in ("", name) and (group.metadata.creation_timestamp or 0) <= latest
        ]

    def open(self, group: str, gate: str, *, task: str = "", namespace: str = DEFAULT) -> bool:
        """Open one gate: the group's own gate of that name, else those of its tasks, or only that
        of one `task`. Return False if it was open already.

        Raises NotFound for the group, the task or the gate, Conflict if the group has ended.
        """
        key, by = key_named(group, namespace), self._user()
        return self._change(
            lambda now: changes.open_gate(self._store, key, gate, task=task, now_ms=now, by=by)
        )

    def open_all(self, group: str, *, task: str = "", namespace: str = DEFAULT) -> bool:
        """Open every gate of a group and its tasks, or of one task. False if none was closed.

        Raises NotFound for the group or the task, Conflict if the group has ended.
        """
        key, by = key_named(group, namespace), self._user()
        return self._change(
            lambda now: changes.open_all_gates(self._store, key, task=task, now_ms=now, by=by)
        )


def _view(group: PodGroup, shown: str, task: str, gate: str) -> GateView:
    return GateView(
        group=key_of(group),
        queue=group.spec.queue,
        shown=shown,
        gate=gate,
        task=task,
        set_at=group.metadata.creation_timestamp or 0,
        set_by=group.status.submitted_by,
        opened=group.status.opened_gates,
    )


def ms_of(written: str | float) -> int:
    """Return an age ("1d", or seconds) in milliseconds. Raises InvalidInput."""
    try:
        return parse_duration(written)
    except ValueError as error:
        raise InvalidInput(f"older_than: {error}") from None
