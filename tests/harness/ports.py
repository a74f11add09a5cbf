"""TCP ports of 127.0.0.1 that stay free between their choice and their use.

A port that the system chooses (port 0) is ephemeral: once it is closed, any connection that another
process opens may get it. These ports lie below the ephemeral range, and each worker of a parallel
run has its own.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
from contextlib import ExitStack

#: Linux hands out ports from 32,768 upwards; the first ports here are above those of known servers.
_FIRST, _END = 21_000, 32_000
#: A worker takes every 64th block.
_BLOCK, _WORKERS = 8, 64

_blocks = itertools.count()


def free_ports(count: int) -> int:
    """Return the first of `count` (at most 8) neighbouring ports that nothing listens on."""
    assert count <= _BLOCK
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    of_this_worker = range(_FIRST + _BLOCK * worker, _END, _BLOCK * _WORKERS)
    for _ in of_this_worker:
        first = of_this_worker[next(_blocks) % len(of_this_worker)]
        if all(map(_is_free, range(first, first + count))):
            return first
    raise AssertionError(f"no {count} free ports beside each other from {_FIRST} to {_END}")


def free_port() -> int:
    """Return a port that nothing listens on."""
    return free_ports(1)


def _is_free(port: int) -> bool:
    """Report whether servers could bind the port, on this address and on all."""
    with ExitStack() as sockets:
        try:
            for host in ("127.0.0.1", ""):
                sockets.enter_context(socket.create_server((host, port))).close()
        except OSError as refused:
            if refused.errno != errno.EADDRINUSE:
                raise
            return False
    return True
