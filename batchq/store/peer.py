"""The server as a process of this machine, where it is one."""

from __future__ import annotations

import socket
import struct
from typing import Any

import redis

from batchq.store.link import Link

_CREDENTIALS = "3i"


def pid_of_server(link: Link) -> int | None:
    """The pid of the server, if the connection leads straight to a process of this machine.

    Only a unix socket does, and only if whoever listens there is the server itself: through a
    proxy or a tunnel the server may be anywhere. Raises StoreUnavailable.
    """
    listener = link.ask(_listener)
    told = link.ask(lambda client: client.info("server")) if listener else {}
    return listener if listener == told.get("process_id") else None


def _listener(client: redis.Redis) -> int | None:
    """Who listens at the other end of a unix socket."""
    pool = client.connection_pool
    if "path" not in pool.connection_kwargs:
        return None
    connection: Any = pool.get_connection()
    try:
        # redis-py has no public name for it.
        connected: socket.socket = connection._sock
        size = struct.calcsize(_CREDENTIALS)
        told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    finally:
        pool.release(connection)
    return int(struct.unpack(_CREDENTIALS, told)[0]) or None
