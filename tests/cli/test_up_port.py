"""`batchq up --port`: allowed addresses; tests/e2e/test_two_users.py tests who may connect."""

from __future__ import annotations

import pytest

from tests.cli.conftest import run


@pytest.mark.parametrize(
    "address", ["0.0.0.0:7811", "10.0.0.1:7811", "[::]:7811", "*:7811", "example.org:7811"]
)
def test_an_address_that_is_not_loopback_is_refused(address: str) -> None:
    done = run("up", "--port", address)
    assert done.code == 2
    assert done.out == ""
    assert done.err == (
        f"error: --port {address}: the embedded server listens on 127.0.0.1 only, since"
        " connections to it are not encrypted\n"
        "hint: use ssh from other machines, or run your own server with TLS; see"
        " docs/security.md\n"
    )


@pytest.mark.parametrize("port", ["0", "65536", "-1", "7811x", "", "127.0.0.1:", "٧٨١١", "9" * 400])
def test_an_invalid_port_is_refused(port: str) -> None:
    done = run("up", f"--port={port}")
    assert done.code == 2
    assert done.err.splitlines()[0].endswith("expected a number from 1 to 65535")
