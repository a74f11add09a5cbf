"""A road to the server that can lose a reply: the server has done it, the caller never hears."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from pathlib import Path
from types import TracebackType


class LossyProxy:
    """Passes bytes between a unix socket of its own and the server's.

    After `lose(word)`, the next request that contains `word` is passed on, its reply is waited
    for, and instead of the reply the caller gets a closed connection. `lost` counts them.
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
        """Lose the replies to the next requests that contain `word`."""
        self._losing.extend([word.encode()] * times)

    def __enter__(self) -> LossyProxy:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        """One request, one reply: a caller that has sent a request waits for the whole reply."""
        with contextlib.suppress(OSError):
            back = threading.Thread(target=self._back, args=(caller, server))
            self._threads.append(back)
            back.start()
            while data := caller.recv(1 << 20):
                if self._losing and self._losing[0] in data:
                    self._losing.pop(0)
                    self._cut.add(server)
                server.sendall(data)
        hang_up(server)

    def _back(self, caller: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 20):
                if server in self._cut:
                    self._cut.discard(server)
                    self.lost += 1
                    break
                caller.sendall(data)
        hang_up(caller, server)


def hang_up(*ends: socket.socket) -> None:
    """Wake whoever reads from these; closing them would not."""
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
