"""`batchq up --port`: allowed addresses; tests/e2e/test_two_users.py tests who may connect. And an
interrupted `batchq down`.
"""

from __future__ import annotations

import pytest

from batchq.cli import main
from batchq.daemon import stack
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


def test_a_down_that_is_interrupted_twice_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stack, "down", interrupted)
    monkeypatch.setattr(stack, "status", interrupted)
    done = run("down")
    assert (done.code, done.out) == (130, "")
    assert done.err.splitlines() == [
        "error: interrupted while stopping; some parts may still run",
        "hint: `batchq down` continues, `batchq down --now` does not wait for pods",
    ]


def test_a_command_that_is_interrupted_while_it_loads_says_that_nothing_was_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "import_module", interrupted)
    done = run("down")
    assert done.code == 130
    assert done.err == "error: interrupted before the command began; nothing was changed\n"
