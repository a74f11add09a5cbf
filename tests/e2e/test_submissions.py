"""Tests of large submissions during which the server or the command is killed: each group once."""

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
from tests.effort import usually
from tests.harness import fork_server
from tests.harness.server import Server

MANY = usually(6_000, 20_000)
SOON_S = 120


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that writes everything to disk, and can be killed and started."""
    with Server("--appendonly", "yes", "--appendfsync", "always") as made:
        yield made


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Pairs of groups; the second depends on the first."""
    lines = []
    for number in range(MANY // 2):
        lines.append({"name": f"train-{number}", "command": ["true", str(number)]})
        lines.append({"name": f"eval-{number}", "command": ["true"], "after": f"train-{number}"})
    file = tmp_path / "many.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return file


def start(server: Server, many: Path, *options: str) -> subprocess.Popen[str]:
    words = ["--redis-url", server.url, "submit", "--from-file", str(many), *options]
    return fork_server.Process(
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
    """Return the names in the order of the file: train-0, eval-0, train-1, eval-1, ..."""
    return [json.loads(line)["name"] for line in many.read_text().splitlines()]


def in_queue_order(server: Server) -> list[PodGroup]:
    """Return all groups in queue order."""
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


def test_a_submission_continues_after_the_server_was_killed(server: Server, many: Path) -> None:
    process = start(server, many)
    for least in (1_000, MANY // 2):
        wait_until_some_are_there(server, least)
        server.stop()
        threading.Event().wait(0.5)
        server.start()
    out, err = process.communicate(timeout=SOON_S)
    assert process.returncode == 0, err
    assert out.startswith(f"{MANY} pod groups submitted in ")
    groups = in_queue_order(server)
    assert [group.metadata.name for group in groups] == names(many)
    assert_all_are_bound_and_charged_once(server, groups)


def test_a_killed_submission_can_be_repeated(server: Server, many: Path) -> None:
    # The second kill is in the middle of a batch: the groups that others depend on come first.
    for least in (1_000, MANY // 2 + 250):
        process = start(server, many, "--skip-existing")
        wait_until_some_are_there(server, least)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=SOON_S)
    process = start(server, many, "--skip-existing")
    out, err = process.communicate(timeout=SOON_S)
    assert process.returncode == 0, err
    assert " unchanged in " in out
    groups = in_queue_order(server)
    # Dependent groups of the interrupted batch may only come with the next run.
    there = [group.metadata.name for group in groups]
    assert sorted(there) == sorted(names(many))
    assert [name for name in there if name.startswith("train")] == names(many)[::2]
    assert [name for name in there if name.startswith("eval")] == names(many)[1::2]
    assert_all_are_bound_and_charged_once(server, groups)
