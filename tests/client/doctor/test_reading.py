"""The doctor on a real server: it reads only, and reports no differences on a busy server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec import structs

from batchq.api.node_report import Serves, encode
from batchq.api.objects import PodGroupStatus
from batchq.api.transaction import Charge, Transaction, Write
from batchq.client.doctor import Finding, Level, diagnose, examine
from batchq.client.doctor.system_state import RANGES, read_state
from batchq.store.inspection import look_at_server, open_for_inspection, read_books
from batchq.store.redis import RedisStore
from batchq.store.schedulers import attend
from batchq.system import RandomIds
from tests.builders import a_group
from tests.client.stage import Stage
from tests.harness.server import Server

#: The commands of the doctor's library that change nothing.
ONLY_READ = {
    *("ping", "info", "time", "get", "hget", "hmget", "hgetall", "hkeys", "hscan"),
    *("xread", "xrange", "xrevrange", "xinfo|stream", "hlen", "multi", "exec"),
    *("acl|whoami", "config|get", "client|setinfo", "client|setname", "hello", "select", "auth"),
}


@pytest.fixture(autouse=True)
def no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHQ_HOME", str(tmp_path / "home"))


def of_check(url: str, check: str) -> list[Finding]:
    return [finding for finding in examine(url).findings if finding.check == check]


def test_a_healthy_stage_agrees_with_its_books(stage: Stage, server: Server) -> None:
    stage.client.submit(command=["true"], name="runs", cpus=2)
    stage.client.submit(command=["true"], name="waits", cpus=9)
    stage.client.set_quota("default", {"cpu": 4})
    stage.turn()
    state = read_state(server.url, None)
    assert state.books is not None
    assert {group.metadata.name for group in state.groups()} == {"runs", "waits"}
    assert state.books.ledger["queue:default"]["cpu"] == 2000
    found = {one.check: one.level for one in diagnose(state).findings}
    assert (found["ledger"], found["limits"], found["leader"]) == (Level.OK,) * 3


def test_the_doctor_sends_only_reading_commands(
    stage: Stage, server: Server, raw: redis.Redis
) -> None:
    stage.client.submit(command=["true"], name="runs")
    stage.turn()
    raw.config_resetstat()
    examine(server.url)
    stats = raw.info("commandstats")
    assert isinstance(stats, dict)
    sent = {name.removeprefix("cmdstat_") for name in stats} - {"config|resetstat"}
    assert {"hgetall", "info"} <= sent
    assert sent <= ONLY_READ


def test_only_reports_that_stay_in_the_report_queue_are_reported(
    stage: Stage, server: Server, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchq.client.doctor.system_state.APPLIED_WITHIN_S", 0.3)
    serves = Serves(agent="other:9:9", resources={"cpu": 1000})
    raw.hset("{bq}:inbox:n1", "node", encode(serves))
    [finding] = of_check(server.url, "inboxes")
    assert (finding.level, finding.subject) == (Level.WARNING, "Node n1")
    raw.delete("{bq}:inbox:n1")
    [finding] = of_check(server.url, "inboxes")
    assert finding.level is Level.OK


def test_schedulers_that_report_themselves_are_examined(stage: Stage, server: Server) -> None:
    attend(stage.store, "h:1:x", version="9.9.9", mirrored=0)
    [finding] = of_check(server.url, "batchq")
    assert finding.found == "this is batchq 0.1.0, schedulers are 9.9.9"


@pytest.mark.parametrize(
    ("more", "hidden", "seen"),
    [
        pytest.param(
            ["+info"],
            "may not read: CONFIG GET",
            {"version": True, "leader": True, "nodes": True, "ledger": True, "persistence": True},
            id="as conf/acl has it",
        ),
        pytest.param(
            [],
            "may not read: INFO, CONFIG GET, objects and ledger",
            {"version": False, "leader": True, "nodes": False, "ledger": False},
            id="without INFO",
        ),
        pytest.param(
            ["+info", "-multi", "-exec"],
            "may not read: CONFIG GET, objects and ledger",
            {"version": True, "leader": True, "nodes": False, "ledger": False},
            id="without MULTI",
        ),
    ],
)
def test_a_user_with_few_rights_gets_a_note_for_each_unreadable_part(
    stage: Stage,
    server: Server,
    raw: redis.Redis,
    more: list[str],
    hidden: str,
    seen: dict[str, bool],
) -> None:
    raw.acl_setuser(
        "readonly",
        enabled=True,
        passwords=["+secret"],
        keys=["{bq}:*"],
        commands=["+@read", "+@connection", "+time", "+multi", "+exec", *more],
    )
    try:
        url = f"unix://readonly:secret@{server.socket}"
        report = examine(url)
        seen_by = {one.check: not one.found.startswith("cannot see") for one in report.findings}
        assert {check: seen_by[check] for check in seen} == seen
        [who] = [one for one in report.findings if one.check == "permissions"]
        assert who.level is Level.NOTE
        assert hidden in who.found
        assert "secret" not in str(report)
    finally:
        raw.acl_deluser("readonly")


def test_facts_about_the_server_are_read_from_it(server: Server) -> None:
    store = open_for_inspection(server.url)
    facts = look_at_server(store)
    store.close()
    assert facts.role == "primary"
    assert facts.numbers >= (6, 2)
    assert facts.maxmemory_policy == "noeviction"
    assert facts.aof is False
    assert facts.appendfsync == "everysec"
    assert facts.user == "default"
    assert abs(facts.skew_ms) < 1000
    assert len(facts.answers_us) == 5


def test_the_ranges_of_libraries_are_those_of_the_package() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    for name, (least, below) in RANGES.items():
        written = f'"{name}>={".".join(map(str, least))},<{".".join(map(str, below))}"'
        assert written in text


class Busy:
    """Threads that admit and release groups as fast as they can, until `stop`."""

    def __init__(self, open_redis: Callable[[], RedisStore], count: int = 2) -> None:
        self._stop = threading.Event()
        self.errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._write, args=(open_redis(), number))
            for number in range(count)
        ]

    def __enter__(self) -> Busy:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self, store: RedisStore, number: int) -> None:
        ids = RandomIds()
        turn = 0
        try:
            while not self._stop.is_set():
                turn += 1
                group = a_group(f"g{number}-{turn}", uid=f"u{number}-{turn}")
                for transaction in charged_and_released(store, group):
                    assert not store.commit([transaction], request_id=ids.new_uid()).refused
        except BaseException as error:  # raised later in the thread of the test
            self.errors.append(error)


def charged_and_released(store: RedisStore, group: Any) -> Iterator[Transaction]:
    """Yield the creation of a group that is charged a cpu, and its deletion without charge."""
    key, uid = f"default/{group.metadata.name}", group.metadata.uid
    amounts = {"cpu": 1000, "pods": 1000, "podgroups": 1000}
    charged = structs.replace(group, status=PodGroupStatus(charge=amounts))
    scopes = ("cluster", "queue:root", "queue:default", "ns:default")
    yield Transaction(
        subject=key,
        writes=(Write(kind="PodGroup", key=key, expect=0, value=charged),),
        charges=(
            Charge(holder=f"group:{uid}", scopes=scopes, amounts=amounts),
            Charge(
                holder=f"object:{uid}", scopes=("objects:default",), amounts={"podgroups": 1000}
            ),
        ),
    )
    stored = store.get("PodGroup", key)
    assert stored is not None
    yield Transaction(
        subject=key,
        writes=(Write(kind="PodGroup", key=key, expect=stored.metadata.revision, value=None),),
        charges=(Charge(holder=f"group:{uid}"), Charge(holder=f"object:{uid}")),
    )


def test_a_busy_healthy_system_never_shows_a_difference(
    stage: Stage, server: Server, open_redis: Callable[[], RedisStore]
) -> None:
    reader = open_redis()
    revisions: list[int] = []
    state = read_state(server.url, None)
    with Busy(open_redis) as busy:
        for _ in range(60):
            books = read_books(reader)
            assert books is not None
            revisions.append(books.revision)
            found = diagnose(structs.replace(state, books=books)).findings
            wrong = [
                one for one in found if one.check in ("ledger", "limits") and one.level != "ok"
            ]
            assert wrong == []
    assert busy.errors == []
    # The server was busy: most of the looks had writes between them.
    assert len(set(revisions)) > 30
