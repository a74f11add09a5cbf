"""Sums the squares of ten numbers on Dask: the scheduler in pod 0, a worker in each other pod.

With a file as its argument, the first round of the gang writes it when all have met, and goes on
until it is stopped.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from distributed import Client


def main() -> int:
    if os.environ["BATCHQ_RANK"] != "0":
        # It knows its scheduler from DASK_SCHEDULER_ADDRESS, and ends with it.
        worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--no-nanny"]
        address = os.environ["DASK_SCHEDULER_ADDRESS"]
        return subprocess.run([*worker, "--no-dashboard", address], check=False).returncode
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard"]
    host, port = os.environ["BATCHQ_ADDRESS"], os.environ["MASTER_PORT"]
    scheduler = subprocess.Popen([*command, "--host", host, "--port", port])
    with Client() as client:
        workers = int(os.environ["BATCHQ_PODS"]) - 1
        client.wait_for_workers(workers, timeout=60)
        if sys.argv[1:] and os.environ["BATCHQ_ROUND"] == "0":
            Path(sys.argv[1]).touch()
            client.submit(time.sleep, 600).result()
        total = sum(client.gather(client.map(lambda number: number**2, range(10))))
        sys.stdout.write(f"{workers} workers: {total}\n")
        client.shutdown()
    return scheduler.wait()


if __name__ == "__main__":
    sys.exit(main())
