"""How a machine takes part in the cluster, for its agent."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

from batchq.api.node_report import BEAT_MS
from batchq.api.objects import Taint
from batchq.worker.host.accounts import PodAccounts
from batchq.worker.host.containment import Containment
from batchq.worker.host.node_resources import Enforce, PortRange


class AgentSettings(Struct, frozen=True, kw_only=True):
    """How a machine takes part in the cluster.

    `resources` are in integer units (cpu in milli, memory in bytes, others in thousandths); None
    means the detected ones. Logs go to `home/logs`, and run files to `home/run/<node>`. `slots`
    bounds how many pods run at once, and so the `pods` that the node offers; None means
    `default_slots`.
    """

    node: str
    url: str
    home: Path
    resources: dict[str, int] | None = None
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    slots: int | None = None
    beat_s: float = BEAT_MS / 1000
    lease_ms: int = 30_000
    drain_timeout_s: float = 30.0
    enforce: Enforce = Enforce.AUTO
    containment: Containment = Containment.AUTO
    #: The address of the HTTP API, for pods that have a token.
    api_server: str = ""
    #: Where pods of other machines reach those of this one; "": this end of the connection to the
    #: server.
    address: str = ""
    ports: PortRange = PortRange()
    #: Ids, bus ids or indices of the only devices that the agent uses; None means all.
    devices: tuple[str, ...] | None = None
    #: How pods are told their GPUs.
    gpu_env: Literal["index", "uuid"] = "index"
    #: How to find the account that runs a pod; None: the agent's own runs all.
    accounts: PodAccounts | None = None
    #: Whether pods may be this account on the socket of an HTTP API.
    is_one_account: bool = False
