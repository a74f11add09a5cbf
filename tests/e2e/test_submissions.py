"""Many groups, and the server or the command killed in the middle: nothing is lost or doubled."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from batchq.api.objects import PodGroup
from batchq.store.redis import RedisStore
from tests.harness.server import Server

MANY = 20_000
SOON_S = 120


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that forgets nothing, and may be killed and started."""
    with Server("--appendonly", "yes", "--appendfsync", "always") as made:
        yield made


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Pairs of groups, of which the second depends on the first."""
    lines = []
    for number in range(MANY // 2):
        lines.append({"name": f"train-{number}", "command": ["true", str(number)]})
        lines.append({"name": f"eval-{number}", "command": ["true"], "after": f"train-{number}"})
    file = tmp_path / "many.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return file


def start(server: Server, many: Path, *options: str) -> subprocess.Popen[str]:
    words = ["--redis-url", server.url, "submit", "--from-file", str(many), *options]
    return subprocess.Popen(
        [sys.executable, "-m", "batchq.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until_some_are_there(server: Server, least: int) -> None:
    client = redis.Redis(unix_socket_path=str(server.socket))
    pause = threading.Event()
    try:
        for _ in range(SOON_S * 100):
            if client.hlen("{bq}:PodGroup") >= least:
                return
            pause.wait(0.01)
    finally:
        client.close()
    raise AssertionError("nothing is submitted")


def assert_all_are_there_once(server: Server, many: Path) -> None:
    """In the order of the file, each bound to the one before it."""
    store = RedisStore(server.url)
    groups = [one for one in store.list("PodGroup") if isinstance(one, PodGroup)]
    charged = store.ledger()["objects:default"]
    store.close()
    groups.sort(key=lambda one: (one.status.queue_time or 0, one.metadata.uid))
    wanted = [json.loads(line)["name"] for line in many.read_text().splitlines()]
    assert [one.metadata.name for one in groups] == wanted
    assert charged == {"podgroups": MANY * 1000}
    for train, after in zip(groups[::2], groups[1::2], strict=True):
        assert after.spec.depends_on[0].uid == train.metadata.uid


def test_the_server_is_killed_and_started_again(server: Server, many: Path) -> None:
    process = start(server, many)
    for least in (1_000, 8_000):
        wait_until_some_are_there(server, least)
        server.stop()
        threading.Event().wait(0.5)
        server.start()
    out, err = process.communicate(timeout=SOON_S)
    assert process.returncode == 0, err
    assert out.startswith(f"{MANY} pod groups submitted in ")
    assert_all_are_there_once(server, many)


def test_the_command_is_killed_and_run_again_and_again(server: Server, many: Path) -> None:
    for least in (1_000, 8_000):
        process = start(server, many, "--skip-existing")
        wait_until_some_are_there(server, least)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=SOON_S)
    process = start(server, many, "--skip-existing")
    out, err = process.communicate(timeout=SOON_S)
    assert process.returncode == 0, err
    assert " unchanged in " in out
    assert_all_are_there_once(server, many)
