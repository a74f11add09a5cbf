"""Proxies that disturb the connection to a server.

`LossyProxy` can lose a reply: the server has acted, and the caller never learns of it.
`ControlledProxy` can be closed, blocked or slow; what is in flight arrives late, perhaps after its
sender has given up.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from pathlib import Path


class LossyProxy:
    """Passes bytes between its own unix socket and the server's.

    After `lose(word)`, the next request that contains `word` is passed on and its reply is awaited;
    then the caller's connection is closed instead of passing the reply. `lost` counts these.
    """

    def __init__(self, server: Path) -> None:
        self._server = server
        self._folder = tempfile.TemporaryDirectory(prefix="bq")
        path = Path(self._folder.name, "p")
        self.url = f"unix://{path}"
        self.lost = 0
        self._losing: list[bytes] = []
        self._cut: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._open: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]

    def lose(self, word: str, *, times: int = 1) -> None:
        """Lose the replies to the next `times` requests that contain `word`."""
        self._losing.extend([word.encode()] * times)

    def __enter__(self) -> LossyProxy:
        self._threads[0].start()
        return self

    def __exit__(self, *error: object) -> None:
        hang_up(*self._open)
        for thread in self._threads:
            thread.join(timeout=10)
        for end in self._open:
            end.close()
        self._folder.cleanup()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._server))
                self._open += [caller, server]
                thread = threading.Thread(target=self._carry, args=(caller, server))
                self._threads.append(thread)
                thread.start()

    def _carry(self, caller: socket.socket, server: socket.socket) -> None:
        """Pass on requests; a caller that has sent one waits for the whole reply."""
        with contextlib.suppress(OSError):
            replies = threading.Thread(target=self._carry_replies, args=(caller, server))
            self._threads.append(replies)
            replies.start()
            while data := caller.recv(1 << 20):
                if self._losing and self._losing[0] in data:
                    self._losing.pop(0)
                    self._cut.add(server)
                server.sendall(data)
        hang_up(server)

    def _carry_replies(self, caller: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 20):
                if server in self._cut:
                    self._cut.discard(server)
                    self.lost += 1
                    break
                caller.sendall(data)
        hang_up(caller, server)


class ControlledProxy:
    """A proxy to the server for processes that get its `url`; other processes connect directly.

    `block` holds everything in flight, in both directions, until `mend`; `slow` delays every
    request; `cut` ends all connections and refuses new ones. A context manager.
    """

    def __init__(self, server: Path) -> None:
        self._server = server
        self._folder = tempfile.TemporaryDirectory(prefix="bq")
        path = Path(self._folder.name, "r")
        self.url = f"unix://{path}"
        self._state = threading.Condition()
        self._is_cut = False
        self._is_blocked = False
        self._delay_s = 0.0
        self._is_over = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._open: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        with self._state:
            self._is_cut = True
            self._state.notify_all()
        hang_up(*self._open[1:])

    def block(self) -> None:
        """Hold all data; refuse nothing."""
        with self._state:
            self._is_blocked = True

    def slow(self, seconds: float) -> None:
        """Delay every request by `seconds`."""
        with self._state:
            self._delay_s = seconds

    def mend(self) -> None:
        """Pass data as usual; what was held arrives now."""
        with self._state:
            self._is_cut = self._is_blocked = False
            self._delay_s = 0.0
            self._state.notify_all()

    def __enter__(self) -> ControlledProxy:
        self._threads[0].start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._state:
            self._is_over = True
        self.cut()
        hang_up(self._listener)
        for thread in self._threads:
            thread.join(timeout=10)
        for end in self._open:
            end.close()
        self._folder.cleanup()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._is_over:
                caller, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                self._open += [caller, server]
                if self._is_cut:
                    hang_up(caller)
                    continue
                try:
                    server.connect(str(self._server))
                except OSError:
                    hang_up(caller)
                    continue
                for pump in (
                    threading.Thread(target=self._pump, args=(caller, server, True)),
                    threading.Thread(target=self._pump, args=(server, caller, False)),
                ):
                    self._threads.append(pump)
                    pump.start()

    def _pump(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                if not self._let_through(is_request):
                    break
                target.sendall(data)
        hang_up(target)

    def _let_through(self, is_request: bool) -> bool:
        """Wait until data may pass; return False if it never may."""
        with self._state:
            if is_request and self._delay_s:
                self._state.wait_for(lambda: self._is_cut or not self._delay_s, self._delay_s)
            self._state.wait_for(lambda: self._is_cut or not self._is_blocked)
            return not self._is_cut


def hang_up(*ends: socket.socket) -> None:
    """Shut the sockets down, which wakes their readers; a close would not."""
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
