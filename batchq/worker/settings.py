"""How a machine takes part: what its agent is told."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from batchq.api.objects import Taint
from batchq.worker.containment import Containment
from batchq.worker.limits import Enforce


class AgentSettings(Struct, frozen=True, kw_only=True):
    """How a machine takes part.

    `resources` None: what is detected, in integer units (cpu milli, memory bytes, others
    thousandths). `home`: logs go to `home/logs`, records of what runs to `home/run/<node>`.
    `slots` bounds how many pods run at once, whatever is bound.
    """

    node: str
    url: str
    home: Path
    resources: dict[str, int] | None = None
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    slots: int = 256
    beat_s: float = 5.0
    lease_ms: int = 30_000
    drain_timeout_s: float = 30.0
    enforce: Enforce = Enforce.AUTO
    containment: Containment = Containment.AUTO
