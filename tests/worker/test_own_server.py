"""Tests of the watch over a server on this machine: while its process is stopped or dead, no lease
is judged.
"""

from __future__ import annotations

import os
import signal

from batchq.store.liveness import pid_of_server
from batchq.store.redis import RedisStore
from batchq.worker.workhorse.leases import ServerWatch
from tests.daemon.waiting import until
from tests.harness.proxy import LossyProxy
from tests.harness.server import Server


def test_a_server_behind_a_unix_socket_is_known_by_its_pid() -> None:
    with Server() as server:
        store = RedisStore(server.url)
        assert pid_of_server(store.link) == server.pid
        store.close()


def test_a_server_behind_a_proxy_has_no_known_process() -> None:
    with Server() as server, LossyProxy(server.socket) as proxy:
        store = RedisStore(proxy.url)
        assert pid_of_server(store.link) is None
        watch = ServerWatch(lambda: pid_of_server(store.link))
        watch.heard()
        server.stop()
        assert not watch.is_away()
        store.close()


def test_a_server_is_away_only_while_it_is_stopped_or_dead() -> None:
    with Server() as server:
        store = RedisStore(server.url)
        watch = ServerWatch(lambda: pid_of_server(store.link))
        assert not watch.is_away()
        watch.heard()
        assert not watch.is_away()
        os.kill(server.pid, signal.SIGSTOP)
        until(watch.is_away)
        os.kill(server.pid, signal.SIGCONT)
        until(lambda: not watch.is_away())
        server.stop()
        assert watch.is_away()
        server.start()
        # The new process has not answered yet.
        assert watch.is_away()
        watch.lost()
        watch.heard()
        assert not watch.is_away()
        store.close()


def test_a_server_without_a_known_process_is_never_away() -> None:
    watch = ServerWatch(lambda: None)
    watch.heard()
    assert not watch.is_away()
