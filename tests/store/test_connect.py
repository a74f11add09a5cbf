"""An unusable server gets one sentence that says why, nothing is half-applied, no
secret is shown.
"""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from batchq import __version__
from batchq.api.transaction import Delivery, Event, Limit, Transaction
from batchq.errors import InvalidInput, StoreUnavailable
from batchq.paths import Home, default_url
from batchq.store import direct
from batchq.store.inspection import why_writes_are_refused
from batchq.store.link import Link, check_info, close_client, new_client
from batchq.store.redis import RedisStore, open_store
from batchq.store.rq_link import rq_connection
from batchq.store.urls import quoted, shown
from tests.contract.made import charge, put, queue, words, writing
from tests.harness.server import Server


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("", "it does not begin with one of redis://, rediss://, unix://, redis+sentinel://,"),
        ("localhost:6379", "it does not begin with one of"),
        ("http://localhost", "it does not begin with one of"),
        ("redis://localhost:abc", "its host and port are malformed"),
        ("redis://localhost:99999", "the port is not from 1 to 65535"),
        ("redis://localhost:0", "the port is not from 1 to 65535"),
        ("redis://[::1", "it cannot be parsed"),
        ("redis://[::x]", "it cannot be parsed"),
        ("redis://[::1::2]", "it cannot be parsed"),
        ("redis://a..b", "its host is neither a name nor an address"),
        (f"redis://{'x' * 64}", "its host is neither a name nor an address"),
        ("redis://h\u2100st", "it cannot be parsed"),
        ("redis://localhost/first", "the database is not a number of at most 5 digits"),
        ("redis://localhost/" + "9" * 5000, "the database is not a number of at most 5 digits"),
        ("redis://localhost/٣", "the database is not a number of at most 5 digits"),
        ("redis://localhost?db=x", "the database is not a number of at most 5 digits"),
        ("redis://localhost?timeout=5", "1 of its options are unknown; known are db, password,"),
        ("redis://localhost?db", "after the ?, expected NAME=VALUE"),
        ("redis://localhost?ssl_ca_certs=x", "it has TLS options, which need rediss:"),
        (
            "rediss://localhost?ssl_cert_reqs=x",
            "ssl_cert_reqs is not one of none, optional, required",
        ),
        ("redis://local host", "it contains a space or a control character"),
        ("redis://h\udcff", "it contains a space or a control character"),
        ("redis://localhost#1", "it contains a #"),
        ("unix://", "the path of the socket is missing"),
        ("unix://run/s", "a socket's path begins with a slash"),
        ("unix:///run%00/s", "the path of the socket contains %00"),
        ("unix:///" + "x" * 120, "longer than 107 bytes"),
    ],
)
def test_a_malformed_url_is_refused_before_anything_is_tried(url: str, found: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_store(url)
    assert caught.value.message.startswith("the server's URL is malformed: ")
    assert found in caught.value.message
    assert caught.value.hint.startswith("expected redis://host:6379/0, rediss://")


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("REDIS://host:6379/0", "redis://host:6379/0"),
        ("redis://:secret@host:6379/0", "redis://***@host:6379/0"),
        ("redis://me:secret@host/0", "redis://***@host/0"),
        ("redis://secret@host/0", "redis://***@host/0"),
        ("redis://:se@cret@host/0", "redis://***@host/0"),
        ("redis://secret@host/0?password=secret&db=1", "redis://***@host/0?db=1"),
        ("redis://[::1]:6379/0?username=secret", "redis://[::1]:6379/0"),
        ("unix://:secret@/run/s", "unix://***@/run/s"),
        ("unix:///home/me%40work/s?password=secret&db=1", "unix:///home/me%40work/s?db=1"),
        ("http://:secret@host:x", "(a malformed URL)"),
        ("redis://[:secret", "(a malformed URL)"),
        ("secret", "(a malformed URL)"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, seen: str) -> None:
    assert shown(url) == seen


def refusal(url: str) -> str:
    """Return the error of opening a store."""
    with pytest.raises(StoreUnavailable) as caught:
        open_store(url)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value.message


def test_a_server_that_does_not_run(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/none"
    assert refusal(url) == f"the server at {url} is not running: the connection is refused"
    assert "is not running" in refusal("redis://127.0.0.1:1")


def test_an_unknown_host() -> None:
    # A mistyped URL may have a password in the host's place.
    assert refusal("redis://:secret@no-such-host.invalid:6379") == (
        "the host in the server's URL is unknown"
    )


def test_a_port_of_another_protocol() -> None:
    web = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        assert "does not speak the Redis protocol" in refusal(
            f"redis://127.0.0.1:{web.server_port}"
        )
    finally:
        web.shutdown()
        web.server_close()
        thread.join()


def test_a_server_with_a_password() -> None:
    with Server("--requirepass", "right") as server:
        assert refusal(server.url).endswith("asks for a password")
        wrong = server.url.replace("unix://", "unix://:wrong-secret@")
        refused = refusal(wrong)
        assert refused.endswith("refuses the user name or password")
        assert "wrong-secret" not in refused
        store = open_store(server.url.replace("unix://", "unix://:right@"))
        assert len(store.run_id()) == 40
        store.close()


def test_the_agent_of_a_revoked_node_is_told_so(server: Server) -> None:
    with pytest.raises(StoreUnavailable) as refused:
        open_store(server.url.replace("unix://", "unix://worker-gpu1:secret@"))
    assert refused.value.message.endswith("refuses the user name or password")
    assert refused.value.hint == (
        "check the credentials in the URL; if the node's user was revoked (`batchq nodes revoke`),"
        " join again with another token of `batchq nodes invite`"
    )


def test_a_user_without_permission() -> None:
    with Server("--user", "guest", "on", ">pw", "~*", "+info", "+ping", "+hello") as server:
        store = RedisStore(server.url.replace("unix://", "unix://guest:pw@"))
        with pytest.raises(StoreUnavailable, match="does not permit this user"):
            store.commit([writing(put(queue()))], request_id="1")
        store.close()


def test_a_replica() -> None:
    with Server("--replicaof", "127.0.0.1", "1") as server:
        assert refusal(server.url) == f"the server at {server.url} is a read-only replica"


def everything() -> Transaction:
    """Return a transaction with one of everything that it can hold."""
    return Transaction(
        subject="everything",
        writes=(put(queue("other")),),
        charges=(charge("group:a", "queue:q", cpu=1),),
        limits=(Limit(scope="queue:q", amounts={"cpu": 1}),),
        deliveries=(Delivery(pod="p", attempt=1, node="n"),),
        events=(Event(kind="Queue", key="q", reason="Made"),),
    )


def say(client: redis.Redis, command: str) -> None:
    client.execute_command(*command.split())  # type: ignore[no-untyped-call]


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that a test may damage."""
    with Server() as server:
        yield server


def test_a_read_tells_why_a_server_refuses_writes(own_server: Server) -> None:
    store, raw = open_store(own_server.url), redis.Redis(unix_socket_path=str(own_server.socket))
    assert why_writes_are_refused(store) == ""
    say(raw, "CONFIG SET maxmemory 1")
    assert why_writes_are_refused(store) == (
        "refuses writes: its maxmemory is used up; raise maxmemory or delete what is old"
    )
    say(raw, "CONFIG SET maxmemory 0")
    own_server.fail_to_save()
    full = "refuses writes: it cannot save to its disk; free its disk: `batchq doctor` names the"
    assert why_writes_are_refused(store) == f"{full} folder"
    # A save that a person or a replica asked for has failed, which refuses nothing.
    raw.config_set("save", "")
    assert why_writes_are_refused(store) == ""
    store.close()


@pytest.mark.parametrize(
    ("spoil", "mend", "wanted"),
    [
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "its maxmemory is used up"),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "is a read-only replica"),
        (
            "CONFIG SET min-replicas-to-write 1",
            "CONFIG SET min-replicas-to-write 0",
            "has too few replicas",
        ),
    ],
)
def test_a_server_that_stops_taking_writes_applies_nothing(
    own_server: Server, spoil: str, mend: str, wanted: str
) -> None:
    store, raw = open_store(own_server.url), redis.Redis(unix_socket_path=str(own_server.socket))
    store.commit([], request_id="warm up")
    asked = [writing(put(queue())), everything()]
    say(raw, spoil)
    with pytest.raises(StoreUnavailable) as caught:
        store.commit(asked, request_id="1")
    assert wanted in caught.value.message
    say(raw, mend)
    assert (store.get("Queue", "q"), store.ledger()) == (None, {})
    assert words(store.commit(asked, request_id="1")) == []
    store.close()
    raw.close()


def test_a_server_whose_disk_fails_applies_nothing(own_server: Server) -> None:
    store = open_store(own_server.url)
    own_server.fail_to_save()
    with pytest.raises(StoreUnavailable, match="it cannot save to its disk"):
        store.commit([writing(put(queue()))], request_id="1")
    assert store.get("Queue", "q") is None
    store.close()


@pytest.mark.parametrize(
    ("info", "wanted"),
    [
        ({"redis_version": "6.0.16", "role": "master"}, "has version 6.0.16; expected 6.2"),
        ({"redis_version": "7.0", "role": "master", "cluster_enabled": 1}, "part of a cluster"),
        ({"redis_version": "7.0", "role": "slave"}, "read-only replica"),
        ({}, "has version 0; expected 6.2"),
    ],
)
def test_an_unusable_server_is_refused(info: dict[str, object], wanted: str) -> None:
    with pytest.raises(StoreUnavailable, match=wanted):
        check_info(info, "redis://host")


@pytest.mark.parametrize("version", ["6.2.0", "6.2.14", "7.2.4", "10.0.0"])
def test_a_primary_of_a_supported_version_is_accepted(version: str) -> None:
    check_info({"redis_version": version, "role": "master"}, "redis://host")


def test_a_client_waits_for_a_server_that_reads_its_files(server: Server) -> None:
    link = Link(server.url)
    replies = iter([redis.BusyLoadingError("loading"), redis.BusyLoadingError("loading"), None])

    def question(client: redis.Redis) -> bool:
        if error := next(replies):
            raise error
        return bool(client.ping())

    assert link.ask(question, tries=1)
    link.close()


def test_closing_ends_the_waiting_between_two_tries(tmp_path: Path) -> None:
    store = RedisStore(f"unix://{tmp_path}/none")
    store.close()
    with pytest.raises(StoreUnavailable, match="was closed"):
        store.get("Queue", "q")


def test_scripts_that_a_server_lost_are_loaded_again(
    redis_store: RedisStore, raw: redis.Redis
) -> None:
    redis_store.commit([writing(put(queue("a")))], request_id="1")
    raw.script_flush()
    assert words(redis_store.commit([writing(put(queue("b")))], request_id="2")) == []


def test_rqs_connection_repeats_on_its_own(server: Server) -> None:
    connection = rq_connection(server.url)
    assert connection.ping()
    retry = connection.get_retry()
    assert retry is not None
    assert retry.get_retries() == 60
    connection.close()
    with pytest.raises(InvalidInput):
        rq_connection("nonsense")


def test_only_the_server_of_this_machine_is_started_by_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHQ_HOME", str(tmp_path))
    with pytest.raises(StoreUnavailable) as own:
        open_store(default_url(Home(tmp_path.resolve())))
    assert own.value.hint == "start it, e.g. with `batchq up`"
    with pytest.raises(StoreUnavailable) as other:
        open_store("redis://127.0.0.1:1/0")
    assert other.value.message == (
        "the server at redis://127.0.0.1:1/0 is not running: the connection is refused"
    )
    assert other.value.hint == (
        "start the server there, or leave out --redis-url and unset BATCHQ_REDIS_URL"
    )


def test_a_scheme_may_be_written_in_capitals(server: Server) -> None:
    open_store(server.url.replace("unix:", "UNIX:").replace("redis:", "Redis:")).close()


@pytest.mark.parametrize("secret", ["hunter2", "100%25", "me"])
def test_a_server_that_repeats_a_password_is_not_quoted(secret: str) -> None:
    text = f"ERR unknown command 'AUTH', with args beginning with: '{unquote(secret)}'"
    shown = quoted(text, f"redis://me:{secret}@127.0.0.1:1/0")
    assert shown == "(not repeated: the user or the password of the URL is in it)"


@pytest.mark.parametrize("transaction", [False, True])
def test_an_interrupted_pipeline_leaves_no_answer_for_the_next_command(
    server: Server, monkeypatch: pytest.MonkeyPatch, transaction: bool
) -> None:
    client = new_client(server.url, retry=Retry(NoBackoff(), 0), socket_timeout=60.0)
    client.set("other", "3")

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    pipeline = client.pipeline(transaction=transaction)
    # Its answer comes after the next command was sent, so that the pool cannot see it before.
    pipeline.blpop(["nothing"], timeout=0.2)
    with monkeypatch.context() as patched:
        patched.setattr(direct, "read_answer", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pipeline.execute()
    assert client.get("other") == b"3"
    assert pipeline.execute() == []
    close_client(client)


@pytest.mark.parametrize("transaction", [False, True])
def test_each_command_of_a_pipeline_has_its_own_answer_or_error(
    server: Server, transaction: bool
) -> None:
    client = new_client(server.url, retry=Retry(NoBackoff(), 0), socket_timeout=60.0)
    client.set("text", "1")
    pipeline = client.pipeline(transaction=transaction)
    for _ in range(2):
        pipeline.hget("text", "field")
        pipeline.get("text")
        answers = pipeline.execute(raise_on_error=False)
        assert [type(answers[0]), answers[1]] == [redis.ResponseError, b"1"]
    pipeline.hget("text", "field")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        pipeline.execute()
    close_client(client)


def test_a_command_of_two_words_is_sent_as_two(server: Server) -> None:
    client = new_client(server.url, retry=Retry(NoBackoff(), 0), socket_timeout=60.0)
    assert client.config_get("maxmemory") == {"maxmemory": "0"}
    assert client.execute_command("CONFIG GET", "maxmemory") == {"maxmemory": "0"}
    close_client(client)


def test_a_word_that_is_neither_text_nor_a_number_is_an_error_of_the_client(
    server: Server,
) -> None:
    client = new_client(server.url, retry=Retry(NoBackoff(), 0), socket_timeout=60.0)
    with pytest.raises(redis.DataError):
        client.set("a", None)  # type: ignore[arg-type]
    client.set("a", 1.5)
    assert client.get("a") == b"1.5"
    close_client(client)


def test_a_refused_command_of_a_transaction_is_reported_as_the_server_says_it(
    server: Server,
) -> None:
    client = new_client(server.url, retry=Retry(NoBackoff(), 0), socket_timeout=60.0)
    pipeline = client.pipeline(transaction=True)
    pipeline.set("text", "1")
    pipeline.execute_command("HGET", "text")  # type: ignore[no-untyped-call]
    with pytest.raises(redis.ResponseError, match="wrong number of arguments"):
        pipeline.execute(raise_on_error=False)
    assert client.get("text") is None
    close_client(client)


def test_the_answers_of_a_pipeline_are_those_of_single_commands(server: Server) -> None:
    client = new_client(server.url, retry=Retry(NoBackoff(), 0), socket_timeout=60.0)
    client.hset("hash", mapping={"a": "1"})
    client.xadd("stream", {"a": "1"}, id="1-0")
    for transaction in (False, True):
        pipeline = client.pipeline(transaction=transaction)
        pipeline.hgetall("hash")
        pipeline.xread({"stream": "0"})
        pipeline.expire("hash", 1000)
        assert pipeline.execute() == [
            client.hgetall("hash"),
            client.xread({"stream": "0"}),
            client.expire("hash", 1000),
        ]
    close_client(client)


@pytest.mark.parametrize("fresh_s", [0.0, 1000.0])
def test_a_connection_that_the_server_has_closed_is_replaced(
    server: Server, monkeypatch: pytest.MonkeyPatch, fresh_s: float
) -> None:
    monkeypatch.setattr(direct, "_FRESH_S", fresh_s)
    link = Link(server.url)
    other = redis.Redis.from_url(server.url)
    for _ in range(3):
        assert link.ask(lambda client: client.set("text", "1"))
        other.client_kill_filter(_type="normal", skipme=True)
        assert link.ask(lambda client: client.get("text")) == b"1"
    link.close()
    other.close()


def test_a_client_uses_one_connection_again_and_again(server: Server) -> None:
    client = new_client(server.url, retry=Retry(NoBackoff(), 0), socket_timeout=60.0)
    names = {client.client_id() for _ in range(5)}
    assert len(names) == 1
    direct.forget_idle(client)
    assert {client.client_id()} == names
    close_client(client)


@pytest.mark.parametrize("is_transaction", [True, False])
def test_a_pipeline_loads_a_script_that_the_server_does_not_know(
    server: Server, raw: redis.Redis, is_transaction: bool
) -> None:
    client = new_client(server.url, retry=Retry(NoBackoff(), 0), socket_timeout=60.0)
    script = client.register_script("return ARGV[1]")
    raw.script_flush()
    with client.pipeline(transaction=is_transaction) as pipeline:
        script(args=["found"], client=pipeline)
        assert pipeline.execute() == [b"found"]
    client.close()


def test_a_list_of_connections_names_batchq(raw: redis.Redis, server: Server) -> None:
    store = open_store(server.url)
    try:
        store.now_ms()
        names = {one["lib-name"] for one in raw.client_list()}
    finally:
        store.close()
    assert f"redis-py(batchq_v{__version__})" in names
