"""The times, factors and bounds of a configuration; all durations in milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from batchq.api.times import DAY, MINUTE, SECOND


class Settings(Struct, frozen=True, kw_only=True):
    """Defaults are those of the manual; `overcommit` is in thousandths."""

    schedule_period_ms: int = 1 * SECOND
    min_session_interval_ms: int = 20
    in_queue_timeout_ms: int = 5 * MINUTE
    recovery_timeout_ms: int = 5 * MINUTE
    node_timeout_ms: int = 40 * SECOND
    #: How long a pod's lease lasts, and how much longer its node is given before it is written off.
    pod_lease_ms: int = 30 * SECOND
    backoff_first_ms: int = 10 * SECOND
    backoff_most_ms: int = 10 * MINUTE
    #: A node that was last seen longer ago no longer counts as one that could ever come back.
    node_memory_ms: int = 1 * DAY
    overcommit: int = 1000
    #: A group that has run for less long is no victim.
    min_runtime_ms: int = 0
    #: So many pods may be evicted by preempt and reclaim within a window; None: any number.
    eviction_budget: int | None = None
    eviction_window_ms: int = 10 * MINUTE
    #: So many unfinished groups a namespace may have whose ResourceQuotas do not say otherwise.
    max_pod_groups_per_namespace: int = 10_000
    #: In such a time what was used counts for half; None: what was used is no matter.
    half_life_ms: int | None = 7 * DAY


class Instrument(Protocol):
    """Wraps what is called; calls it exactly once, with the same arguments, and answers the same.

    Owned by the thread that runs the session.
    """

    def plugin(self, plugin: str, point: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A plugin's function at a point, as the session is to call it."""

    def action(self, name: str, execute: Callable[..., None]) -> Callable[..., None]:
        """An action's `execute`, as the scheduler is to call it."""
