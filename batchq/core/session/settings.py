"""Durations, factors and bounds of a configuration; all durations are in milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from msgspec import Struct

from batchq.api.times import DAY, MINUTE, SECOND


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of a session, with the defaults of the manual; `overcommit` is in thousandths."""

    schedule_period_ms: int = 1 * SECOND
    min_session_interval_ms: int = 20
    in_queue_timeout_ms: int = 5 * MINUTE
    recovery_timeout_ms: int = 5 * MINUTE
    node_timeout_ms: int = 40 * SECOND
    #: The length of a pod's lease, and the extra time before its silent node is written off.
    pod_lease_ms: int = 30 * SECOND
    backoff_first_ms: int = 10 * SECOND
    backoff_most_ms: int = 10 * MINUTE
    #: Nodes last seen longer ago than this no longer count as able to come back.
    node_memory_ms: int = 1 * DAY
    overcommit: int = 1000
    #: A group that has run for less than this is not taken as a victim.
    min_runtime_ms: int = 0
    #: The most pods that preempt and reclaim may evict within a window; None means any number.
    eviction_budget: int | None = None
    eviction_window_ms: int = 10 * MINUTE
    #: The most unfinished groups of a namespace whose ResourceQuotas state no other number.
    max_pod_groups_per_namespace: int = 10_000
    #: The age at which past usage counts half; None means that past usage is ignored.
    half_life_ms: int | None = 7 * DAY


class Instrument(Protocol):
    """A wrapper for measured calls; it calls the function exactly once, with the same arguments,
    and returns its result.

    Owned by the thread that runs the session.
    """

    def plugin(self, plugin: str, point: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that the session calls instead of a plugin's function at a point."""

    def action(self, name: str, execute: Callable[..., None]) -> Callable[..., None]:
        """Return the function that the scheduler calls instead of an action's `execute`."""
