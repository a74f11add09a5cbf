"""`batchq doctor` and `batchq scheduler --status`: their output and exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from batchq.client import Client
from batchq.client.doctor import CHECKS
from batchq.store.redis import RedisStore
from batchq.store.schedulers import attend
from tests.cli.conftest import Batchq, Ran, run
from tests.client.stage import Stage, a_cluster
from tests.daemon.waiting import until
from tests.harness.server import Server

KEEPS = ("--appendonly", "yes", "--appendfsync", "always")


@contextmanager
def a_stage(*options: str) -> Iterator[tuple[Stage, Server]]:
    """A test environment on its own server, with a leader and a ready node."""
    with Server(*options) as server:
        store = RedisStore(server.url)
        with Client(server.url) as client:
            stage = Stage(store, client)
            stage.furnish(*a_cluster())
            yield stage, server
        store.close()


def lines_with(done: Ran, sign: str) -> list[str]:
    return [line for line in done.lines if line.startswith(sign)]


def test_a_healthy_system_has_nothing_but_notes() -> None:
    with a_stage(*KEEPS) as (stage, server):
        stage.client.submit(command=["true"], name="x")
        stage.turn()
        done = run("doctor", url=server.url)
    assert (done.code, done.err) == (0, "")
    assert lines_with(done, "!") + lines_with(done, "✗") == []
    # This test has just started it.
    assert [line.split()[1] for line in lines_with(done, "·")] == ["uptime"]
    assert done.lines[-1] == "31 checks: 0 errors, 0 warnings, 1 note"


def test_a_server_with_a_full_disk_is_read_and_examined() -> None:
    with a_stage() as (stage, server):
        stage.client.submit(command=["true"], name="x")
        server.fail_to_save()
        for words in (("jobs",), ("nodes",), ("queues",), ("logs", "x"), ("why", "x")):
            assert run(*words, url=server.url).code == 0, words
        refused = run("submit", "--", "true", url=server.url)
        done = run("doctor", url=server.url)
    assert refused.code == 9
    assert refused.err == (
        f"error: the server at {server.url} refuses writes: it cannot save to its disk\n"
        "hint: free its disk: `batchq doctor` names the folder\n"
    )
    assert done.code == 1
    place = done.lines.index("✗ writing       RDB file: the last save failed; expected ok")
    assert done.lines[place + 1].strip() == (
        f"→ free the disk of {server.folder}, or correct its permissions; see the server's log"
    )


def test_a_server_that_evicts_is_an_error_with_what_to_do() -> None:
    with a_stage(*KEEPS, "--maxmemory-policy", "allkeys-lru") as (_, server):
        done = run("doctor", url=server.url)
    assert done.code == 1
    place = next(place for place, line in enumerate(done.lines) if line.startswith("✗"))
    assert done.lines[place] == (
        "✗ eviction      maxmemory-policy allkeys-lru: groups may vanish; expected noeviction"
    )
    assert done.lines[place + 1].startswith(
        "                → CONFIG SET maxmemory-policy noeviction"
    )


def test_a_server_without_an_append_only_file_is_a_warning() -> None:
    with a_stage() as (_, server):
        done = run("doctor", url=server.url)
    assert done.code == 3
    [line] = lines_with(done, "!")
    assert line.startswith("! persistence   appendonly no")


def test_a_falsified_ledger_is_named() -> None:
    with a_stage(*KEEPS) as (stage, server):
        stage.client.submit(command=["true"], name="x")
        stage.turn()
        raw = redis.Redis(unix_socket_path=str(server.socket))
        raw.hincrby("{bq}:ledger", "queue:default cpu", 2000)
        raw.close()
        done = run("doctor", "-o", "json", url=server.url)
    assert done.code == 1
    data = json.loads(done.out)
    assert data["worst"] == "error"
    [wrong] = [one for one in data["findings"] if one["level"] == "error"]
    assert (wrong["check"], wrong["subject"]) == ("ledger", "queue:default cpu")
    assert (wrong["found"], wrong["expected"]) == ("the sum is 3", "1, as its charges add up")
    assert wrong["remedy"] != ""


def test_without_a_leader_it_says_how_to_start_one() -> None:
    with a_stage(*KEEPS) as (stage, server):
        stage.store.resign("stage")
        done = run("doctor", url=server.url)
    assert done.code == 1
    [line] = lines_with(done, "✗")
    assert line == "✗ leader        no scheduler leads; expected one leads"
    assert "batchq scheduler" in done.lines[done.lines.index(line) + 1]


def test_a_server_that_is_away_is_one_sentence_and_9(tmp_path: Path) -> None:
    url = f"unix://{tmp_path / 'nothing'}"
    done = run("doctor", url=url)
    assert (done.code, done.out) == (9, "")
    assert done.err.splitlines()[0] == (
        f"error: the server at {url} is not running: the connection is refused"
    )
    assert len(done.err.splitlines()) == 2


def test_without_any_server_it_says_how_to_start_one() -> None:
    done = run("doctor")
    assert done.code == 9
    assert done.err.startswith("error: no batchq server is running on this machine\n")


def test_a_wrong_configuration_is_reported_before_any_read(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.yaml"
    path.write_text("inQueueTimeuot: 5m\n")
    done = run("doctor", "--config", str(path))
    assert done.code == 1
    assert "inQueueTimeout" in done.err


def test_the_times_by_which_a_wait_is_too_long_are_the_configurations(
    batchq: Batchq, stage: Stage, tmp_path: Path
) -> None:
    path = tmp_path / "scheduler.yaml"
    path.write_text("inQueueTimeout: 1h\n")
    done = batchq("doctor", "--config", str(path))
    assert done.err == ""
    assert done.code == 3


def test_only_ten_of_many_findings_are_shown_to_people() -> None:
    with a_stage(*KEEPS) as (_, server):
        raw = redis.Redis(unix_socket_path=str(server.socket))
        for number in range(25):
            raw.hset("{bq}:ledger", f"queue:q{number} cpu", 1000)
        raw.close()
        done = run("doctor", url=server.url)
        result = json.loads(run("doctor", "-o", "json", url=server.url).out)
    assert len(lines_with(done, "✗")) == 10
    assert "                and 15 more (-o json lists them)" in done.lines
    assert sum(one["level"] == "error" for one in result["findings"]) == 25


def test_the_operators_page_has_a_row_for_every_check() -> None:
    page = Path(__file__).parents[2] / "docs" / "operations.md"
    rows = re.findall(r"^\| `([a-z]+)` \| .+ \| .+ \|$", page.read_text("utf-8"), re.MULTILINE)
    assert rows == [check.__name__ for check in CHECKS]


def test_the_status_names_leader_and_followers(batchq: Batchq, stage: Stage) -> None:
    attend(stage.store, "stage", version="0.1.0", mirrored=0, config="107d581d", refused_file=True)
    attend(stage.store, "host:12:abcd", version="0.2.0", mirrored=None, config="107d581d")
    done = batchq("scheduler", "--status")
    assert (done.code, done.err) == (0, "")
    assert done.lines[0].startswith("stage leads, epoch 1; its lease ends in ")
    rows = [line.split() for line in done.lines[2:]]
    assert rows[0] == ["SCHEDULER", "ROLE", "VERSION", "SEEN", "CONFIG", "MIRROR"]
    assert rows[1][:3] == ["host:12:abcd", "follower", "0.2.0"]
    assert rows[1][5:7] == ["107d581d", "cold:"]
    assert rows[2][:3] == ["stage", "leader", "0.1.0"]
    assert rows[2][5:11] == ["107d581d,", "its", "file", "is", "wrong", "warm,"]


def test_the_status_is_data_too(batchq: Batchq, stage: Stage) -> None:
    attend(stage.store, "host:12:abcd", version="0.2.0", mirrored=1)
    data = json.loads(batchq("scheduler", "--status", "-o", "json").out)
    assert (data["leader"], data["epoch"], data["lastLeader"]) == ("stage", 1, None)
    assert 0 < data["leaseEndsInMs"] <= 60_000
    [follower] = data["schedulers"]
    assert (follower["identity"], follower["role"], follower["warm"]) == (
        *("host:12:abcd", "follower"),
        True,
    )


def stop_the_clock(monkeypatch: pytest.MonkeyPatch, stage: Stage) -> int:
    """Let every store of this process show the present time from now on, and return it."""
    now_ms = stage.store.now_ms()
    monkeypatch.setattr(RedisStore, "now_ms", lambda _: now_ms)
    return now_ms


def test_a_killed_scheduler_does_not_stand_by(
    batchq: Batchq, stage: Stage, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at = stop_the_clock(monkeypatch, stage) - 12_000
    raw.hset("{bq}:schedulers", "host:12:abcd", f"{killed_at} 1 0.1.0")
    assert batchq("scheduler", "--status").lines[-1].split()[:4] == [
        *("host:12:abcd", "silent"),
        *("0.1.0", "12s"),
    ]


def test_the_status_reports_a_missing_leader(batchq: Batchq, stage: Stage) -> None:
    stage.store.resign("stage")
    done = batchq("scheduler", "--status")
    assert (done.code, done.out) == (3, "no scheduler leads\n")
    assert done.err == (
        "hint: start one with `batchq scheduler`, or everything on this machine with `batchq up`\n"
    )


def test_without_a_leader_schedulers_on_standby_are_named(batchq: Batchq, stage: Stage) -> None:
    stage.store.resign("stage")
    attend(stage.store, "host:12:abcd", version="0.1.0", mirrored=0)
    done = batchq("scheduler", "--status")
    assert done.code == 3
    assert done.err.startswith("hint: a scheduler on standby takes over within seconds")


@pytest.mark.parametrize(("seen_ms_ago", "role"), [(3_000, "follower"), (5_500, "silent")])
def test_a_leader_that_was_killed_does_not_stand_by(
    seen_ms_ago: int,
    role: str,
    batchq: Batchq,
    stage: Stage,
    raw: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ms = stage.store.now_ms()
    stage.store.resign("stage")
    stage.store.lead("host:12:abcd", 1)
    until(lambda: stage.store.now_ms() > now_ms + 1 and not leads(stage))
    seen_at = stop_the_clock(monkeypatch, stage) - seen_ms_ago
    raw.hset("{bq}:schedulers", "host:12:abcd", f"{seen_at} 1 0.1.0")
    done = batchq("scheduler", "--status")
    assert done.lines[0].startswith("no scheduler leads; host:12:abcd did until ")
    assert done.lines[-1].split()[:2] == ["host:12:abcd", role]
    shown = batchq("scheduler", "--status", "-o", "json")
    assert shown.code == 3
    assert [one["role"] for one in json.loads(shown.out)["schedulers"]] == [role]


def leads(stage: Stage) -> bool:
    leader = stage.store.leader()
    return leader is not None and leader.expires_at > stage.store.now_ms()


def test_a_configuration_is_of_no_use_to_the_status() -> None:
    done = run("scheduler", "--status", "--config", "scheduler.yaml")
    assert (done.code, done.out) == (2, "")
    assert "--config and --status exclude each other" in done.err


@pytest.mark.parametrize("output", ["json"])
def test_the_daemon_prints_nothing_in_any_form(output: str) -> None:
    done = run("scheduler", "-o", output)
    assert done.code == 2
    assert "-o needs --status" in done.err
