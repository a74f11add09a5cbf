"""A distributed job in one file: rank 0 opens MASTER_PORT and counts a hello from every process.

As torchrun does, it takes the address and the ranks from `PET_*` and starts the processes of its
pod itself. Each process says the round of its gang, so that a hello from another round is noticed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

_WITHIN_S = 90.0


def main() -> int:
    if "RANK" in os.environ:
        return say_hello()
    # An elastic job names the least and the most pods: `2:4`.
    pods, node_rank = int(os.environ["PET_NNODES"].split(":")[-1]), int(os.environ["PET_NODE_RANK"])
    here = int(os.environ["PET_NPROC_PER_NODE"])
    place = {
        "MASTER_ADDR": os.environ["PET_MASTER_ADDR"],
        "MASTER_PORT": os.environ["PET_MASTER_PORT"],
        "WORLD_SIZE": str(pods * here),
    }
    started = [
        subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, **place, "RANK": str(node_rank * here + local)},
        )
        for local in range(here)
    ]
    return max(process.wait() for process in started)


def say_hello() -> int:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    mine = f"{os.environ['BATCHQ_GROUP']} {os.environ['BATCHQ_ROUND']} {rank}"
    if rank:
        return _send(place, mine)
    heard = [mine]
    with socket.create_server(place) as server:
        server.settimeout(_WITHIN_S)
        while len(heard) < size:
            connection, _ = server.accept()
            with connection:
                heard.append(connection.makefile().readline().strip())
                connection.sendall(b"thanks\n")
    sys.stdout.write("\n".join(sorted(heard)) + "\n")
    return 0


def _send(place: tuple[str, int], hello: str) -> int:
    """Say hello; rank 0 may take a moment to open its port, as the store of torch does."""
    for _ in range(int(_WITHIN_S * 20)):
        try:
            with socket.create_connection(place, timeout=_WITHIN_S) as connection:
                connection.sendall(f"{hello}\n".encode())
                return 0 if connection.makefile().readline() == "thanks\n" else 1
        except ConnectionRefusedError:
            # Waits about as long as the server's start takes: nothing listens that could signal.
            subprocess.run(["sleep", "0.05"], check=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
