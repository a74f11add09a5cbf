"""Sums the squares of ten numbers on Ray: the head in pod 0, a worker node in each other pod.

With a file as its argument, the first round of the gang writes it when all have met, and goes on
until it is stopped.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

RAY = str(Path(sys.executable).with_name("ray"))
#: Small nodes, which share no port with the others on the same machine.
NODE = (
    *("--num-cpus", "1", "--object-store-memory", "100000000", "--disable-usage-stats", "--block"),
    *("--min-worker-port", "0", "--max-worker-port", "0", "--dashboard-agent-listen-port", "0"),
)


def main() -> int:
    # Nodes that start at the same time in one folder choose the same name for their sockets.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        here = ("--node-ip-address", os.environ["BATCHQ_ADDRESS"], "--temp-dir", folder, *NODE)
        head = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        if os.environ["BATCHQ_RANK"] != "0":
            # The node ends with the head, with an exit code that says so.
            environ = {**os.environ, "RAY_gcs_rpc_server_reconnect_timeout_s": "5"}
            subprocess.run([RAY, "start", "--address", head, *here], check=False, env=environ)
            return 0
        options = ("--head", "--port", os.environ["MASTER_PORT"], "--include-dashboard", "false")
        with subprocess.Popen([RAY, "start", *options, *here]) as node:
            sum_squares(head, int(os.environ["BATCHQ_PODS"]))
            node.terminate()
        return 0


def sum_squares(head: str, pods: int) -> None:
    """Print the sum, computed by as many nodes as there are pods."""
    ray.init(address=head, log_to_driver=False)
    group = placement_group([{"CPU": 1}] * pods, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    if sys.argv[1:] and os.environ["BATCHQ_ROUND"] == "0":
        Path(sys.argv[1]).touch()
        while True:
            signal.pause()
    places = [PlacementGroupSchedulingStrategy(group, index) for index in range(pods)]
    answers = ray.get(
        [square.options(scheduling_strategy=places[n % pods]).remote(n) for n in range(10)]
    )
    nodes = {node for node, _ in answers}
    sys.stdout.write(f"{len(nodes)} nodes: {sum(value for _, value in answers)}\n")
    ray.shutdown()


@ray.remote
def square(number: int) -> tuple[str, int]:
    return ray.get_runtime_context().get_node_id(), number**2


if __name__ == "__main__":
    sys.exit(main())
