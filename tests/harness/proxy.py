"""Roads to the server that are not as they should be.

`LossyProxy` can lose a reply: the server has done it, the caller never hears. `Road` can be closed,
blocked or slow, and what is under way on it arrives late, perhaps after its sender has given up.
"""

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


class Road:
    """The only way to the server for whoever is given its `url`; others have ways of their own.

    `block` holds everything that is under way, in both directions, until `mend`; `slow` delays
    every request; `cut` ends all connections and refuses new ones. A context manager.
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
        """Nobody is there any more."""
        with self._state:
            self._is_cut = True
            self._state.notify_all()
        hang_up(*self._open[1:])

    def block(self) -> None:
        """Nothing arrives, and nothing is refused."""
        with self._state:
            self._is_blocked = True

    def slow(self, seconds: float) -> None:
        """Every request takes so much longer."""
        with self._state:
            self._delay_s = seconds

    def mend(self) -> None:
        """As it should be; what was held arrives now."""
        with self._state:
            self._is_cut = self._is_blocked = False
            self._delay_s = 0.0
            self._state.notify_all()

    def __enter__(self) -> Road:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        """Wait until it may pass; False if it never may."""
        with self._state:
            if is_request and self._delay_s:
                self._state.wait_for(lambda: self._is_cut or not self._delay_s, self._delay_s)
            self._state.wait_for(lambda: self._is_cut or not self._is_blocked)
            return not self._is_cut


def hang_up(*ends: socket.socket) -> None:
    """Wake whoever reads from these; closing them would not."""
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
