"""Short names for queue strategies, and the configuration that goes with them.

What the literature compares is the order in which one queue is served; here that is the strategy
of a queue, and all else is the daemon's default configuration.
"""

from __future__ import annotations

from collections.abc import Mapping

from batchq.api.objects import Strategy
from batchq.config.model import SchedulerConfig
from batchq.errors import InvalidInput

POLICIES: Mapping[str, Strategy] = {
    "fcfs": Strategy(type="StrictFIFO"),
    "first-fit": Strategy(type="BestEffortFIFO"),
    "easy": Strategy(type="Backfill", order="fcfs", reservations="1"),
    "easy-sjf": Strategy(type="Backfill", order="shortest", reservations="1"),
    "conservative": Strategy(type="Backfill", order="fcfs", reservations="all"),
}
#: What is played where nobody says anything else: the strategy that queues have by default.
DEFAULT_POLICY = "first-fit"

#: What policies are played with.
POLICY_CONFIG = SchedulerConfig()


def strategy_of(policy: str) -> Strategy:
    """The strategy that a short name stands for. Raises InvalidInput."""
    if policy not in POLICIES:
        raise InvalidInput(f"there is no policy {policy!r}; expected one of {', '.join(POLICIES)}")
    return POLICIES[policy]
