"""TLS in front of a server without TLS support, as stunnel does it; the bundled server has none.

The tests are about the client's side: the certificates, and the error messages about them.
"""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CERTIFICATES = Path(__file__).parent / "certificates"
AUTHORITY = CERTIFICATES / "ca.crt"


@contextmanager
def tls_in_front_of(
    path: Path, *, certificate: str = "server", asks_for_certificates: bool = False
) -> Iterator[int]:
    """Yield the port on 127.0.0.1 that reaches the server at the unix socket `path` over TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    pair = CERTIFICATES / f"{certificate}.crt", CERTIFICATES / f"{certificate}.key"
    context.load_cert_chain(*pair)
    if asks_for_certificates:
        context.load_verify_locations(AUTHORITY)
        context.verify_mode = ssl.CERT_REQUIRED

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            # A client that refuses our certificate, or has none, disconnects.
            with (
                suppress(OSError),
                context.wrap_socket(self.request, server_side=True) as client,
                socket.socket(socket.AF_UNIX) as server,
            ):
                server.connect(str(path))
                back = threading.Thread(target=_carry, args=(server, client))
                back.start()
                _carry(client, server)
                back.join()

    class Listener(socketserver.ThreadingTCPServer):
        allow_reuse_address = True

    with Listener(("127.0.0.1", 0), Connection) as listener:
        serving = threading.Thread(target=listener.serve_forever, args=(0.02,))
        serving.start()
        try:
            yield int(listener.server_address[1])
        finally:
            listener.shutdown()
            serving.join()


def _carry(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
