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


def names(many: Path) -> list[str]:
    """In the order of the file: train-0, eval-0, train-1, eval-1, ..."""
    return [json.loads(line)["name"] for line in many.read_text().splitlines()]


def in_line(server: Server) -> list[PodGroup]:
    """All groups in the order in which they stand in line."""
    store = RedisStore(server.url)
    groups = [one for one in store.list("PodGroup") if isinstance(one, PodGroup)]
    store.close()
    groups.sort(key=lambda one: (one.status.queue_time or 0, one.metadata.uid))
    return groups


def assert_all_are_bound_and_charged_once(server: Server, groups: list[PodGroup]) -> None:
    store = RedisStore(server.url)
    charged = store.ledger()["objects:default"]
    store.close()
    assert charged == {"podgroups": MANY * 1000}
    by_name = {group.metadata.name: group for group in groups}
    for number in range(MANY // 2):
        train, after = by_name[f"train-{number}"], by_name[f"eval-{number}"]
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
    groups = in_line(server)
    assert [group.metadata.name for group in groups] == names(many)
    assert_all_are_bound_and_charged_once(server, groups)


def test_the_command_is_killed_and_run_again_and_again(server: Server, many: Path) -> None:
    # The second time between the two halves of a batch: what others of it depend on comes first.
    for least in (1_000, 8_250):
        process = start(server, many, "--skip-existing")
        wait_until_some_are_there(server, least)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=SOON_S)
    process = start(server, many, "--skip-existing")
    out, err = process.communicate(timeout=SOON_S)
    assert process.returncode == 0, err
    assert " unchanged in " in out
    groups = in_line(server)
    # Of the batch that is cut off, those that depend on others of it may come with the next run.
    there = [group.metadata.name for group in groups]
    assert sorted(there) == sorted(names(many))
    assert [name for name in there if name.startswith("train")] == names(many)[::2]
    assert [name for name in there if name.startswith("eval")] == names(many)[1::2]
    assert_all_are_bound_and_charged_once(server, groups)
