"""Commands that wait for a server also wait for one that is down when they start."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from batchq.client import Client
from batchq.store.redis import RedisStore
from tests.cli.conftest import run
from tests.client.stage import Stage, a_cluster
from tests.harness import fork_server
from tests.harness.server import Server

SOON_S = 60


@pytest.fixture
def away() -> Iterator[Server]:
    """A server that is down, with the finished function `f` and the admitted external group `e`."""
    with Server("--appendonly", "yes", "--appendfsync", "always") as made:
        store = RedisStore(made.url)
        with Client(made.url) as client:
            stage = Stage(store, client)
            stage.furnish(*a_cluster())
            client.submit("a:b", name="f")
            client.submit(external=True, name="e")
            stage.turn()
            stage.start("f")
            [pod] = stage.pods("f")
            place = pod.status.node, pod.metadata.uid, pod.status.attempt
            store.put_result(*place, b"42")
            store.append_log(*place, "stdout", b"done\n")
            stage.end("f")
        store.close()
        made.stop()
        yield made


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("wait", "f"), "podgroup default/f Completed\n"),
        (("wait", "f", "--timeout", "1m"), "podgroup default/f Completed\n"),
        (("result", "f", "--timeout", "1m"), "42\n"),
        (("logs", "-f", "f"), "done\n"),
        (("progress", "f"), "f: Completed: 1 of 1 pod done\n"),
        (("external", "claim", "--wait"), "default/e/"),
    ],
)
def test_an_outage_is_reported_once_and_the_command_continues(
    away: Server, words: tuple[str, ...], said: str
) -> None:
    with fork_server.Process(
        [sys.executable, "-m", "batchq.cli", "--redis-url", away.url, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == (
            f"the server at {away.url} is not running: the connection is refused; waiting for it\n"
        )
        away.start()
        out, err = process.communicate(timeout=SOON_S)
    assert process.returncode == 0, err
    assert said in out
    assert err.startswith("the server is back after ")


@pytest.mark.parametrize("words", [("wait", "f"), ("result", "f"), ("external", "claim", "--wait")])
def test_the_timeout_includes_the_outage(away: Server, words: tuple[str, ...]) -> None:
    done = run(*words, "--timeout", "1s", url=away.url)
    assert (done.code, done.out) == (124, "")
    actual, error, _hint = done.err.splitlines()
    assert actual.endswith("; waiting for it")
    assert error.startswith("error: the server did not answer within 1s: the server at ")


@pytest.mark.parametrize("words", [("logs", "f"), ("jobs",), ("external", "claim")])
def test_other_commands_do_not_wait(away: Server, words: tuple[str, ...]) -> None:
    assert run(*words, url=away.url).code == 9


@contextmanager
def a_run_that_waits(server: Server) -> Iterator[subprocess.Popen[str]]:
    """`batchq run` with an input, for whose group there is no room."""
    words = ["run", "--name", "r", "--cpus", "1000", "--", "cat"]
    with fork_server.Process(
        [sys.executable, "-m", "batchq.cli", "--redis-url", server.url, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        while not process.stderr.readline().startswith("Submitted r"):
            assert process.poll() is None
        server.stop()
        while not (line := process.stderr.readline()).endswith("; waiting for it\n"):
            assert process.poll() is None, line
        yield process
        process.kill()


def test_a_run_with_an_input_that_waits_for_nodes_survives_an_outage(away: Server) -> None:
    away.start()
    with a_run_that_waits(away) as process:
        away.start()
        assert process.stderr is not None
        assert process.stderr.readline().startswith("the server is back after ")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SOON_S)
    assert process.returncode == 128 + signal.SIGTERM
    with Client(away.url) as client:
        assert client.get("PodGroup", "r").status.phase == "Cancelled"


def test_a_run_that_is_ended_during_an_outage_says_that_its_group_is_not_cancelled(
    away: Server,
) -> None:
    away.start()
    with a_run_that_waits(away) as process:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=SOON_S)
    assert process.returncode == 128 + signal.SIGTERM
    error, hint = said.splitlines()[-2:]
    assert error.startswith("error: PodGroup default/r could not be cancelled: the server at ")
    assert hint == "hint: `batchq cancel default/r` cancels it when the server is back"
