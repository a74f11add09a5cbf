"""The number of examples of each property: forty, or thousands with `make swarm`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.effort import THOROUGH, usually

settings.register_profile(
    "batchq",
    max_examples=usually(40, 5_000),
    deadline=None,
    print_blob=THOROUGH,
    suppress_health_check=[HealthCheck.too_slow] if THOROUGH else [],
)
settings.load_profile("batchq")
