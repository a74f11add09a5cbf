"""The number of examples of each property: forty, or thousands with `make swarm`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("usual", max_examples=40, deadline=None)
settings.register_profile(
    "swarm",
    max_examples=5_000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "usual"))
