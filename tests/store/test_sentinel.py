"""A URL of sentinels leads to the primary, whichever server that is, and errors name the cause."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import redis
from rq import Queue

from batchq.errors import InvalidInput, StoreUnavailable
from batchq.store import urls
from batchq.store.link import Link
from batchq.store.redis import RedisStore, open_store
from batchq.store.rq_link import RqLink
from batchq.store.urls import SentinelUrl, checked_url, sentinel_url, shown
from tests.contract.made import put, queue, words, writing
from tests.daemon.waiting import until
from tests.harness.sentinels import SERVICE, ReplicatedServer


def test_a_url_names_the_sentinels_the_service_and_the_database() -> None:
    url = (
        "rediss+sentinel://me:p%40ss@one:1001,[::1]:1002,three/the-primary/7"
        "?sentinel_username=look&sentinel_password=out&ssl_ca_certs=/etc/ca.pem"
    )
    assert checked_url(url) == url
    assert sentinel_url(url) == SentinelUrl(
        sentinels=(("one", 1001), ("::1", 1002), ("three", 26379)),
        service="the-primary",
        database=7,
        username="me",
        password="p@ss",
        sentinel_username="look",
        sentinel_password="out",
        tls=True,
        options={"ssl_ca_certs": "/etc/ca.pem"},
    )


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("redis+sentinel://a:1,b:2", "the name of the primary is missing"),
        ("redis+sentinel:///name", "one of its hosts has no name"),
        ("redis+sentinel://a:1,,b:2/name", "one of its hosts has no name"),
        ("redis+sentinel://a:x/name", "its host and port are malformed"),
        ("redis+sentinel://a:99999/name", "the port is not from 1 to 65535"),
        ("redis+sentinel://a:1/0", "the name of the primary is missing after the hosts"),
        ("redis+sentinel://a:1/na:me", "the name of the primary, after the hosts, is malformed"),
        ("redis+sentinel://a:1/name/first", "the database is not a number of at most 5 digits"),
        ("redis+sentinel://a:1/name?quorum=2", "1 of its options are unknown"),
    ],
)
def test_a_malformed_url_is_refused_before_anything_is_tried(url: str, found: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_store(url)
    assert found in caught.value.message
    assert "redis+sentinel://host1:26379," in caught.value.hint


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        (
            "redis+sentinel://me:secret@a:1,b:2/name/0?sentinel_username=u&sentinel_password=secret",
            "redis+sentinel://***@a:1,b:2/name/0",
        ),
        ("redis+sentinel://a:1,[::1]:2/name", "redis+sentinel://a:1,[::1]:2/name"),
        ("redis+sentinel://:sec/ret@a:1/name", "(a malformed URL)"),
        ("redis://:sec/ret@host/0", "(a malformed URL)"),
        ("redis://:sec?ret@host/0", "(a malformed URL)"),
        ("redis://host/0?Password=secret", "(a malformed URL)"),
    ],
)
def test_no_password_is_shown(url: str, seen: str) -> None:
    assert shown(url) == seen


@pytest.fixture(scope="module")
def watched() -> Iterator[ReplicatedServer]:
    """A primary with its replica and sentinels, all with passwords; no test kills them."""
    # A server that a busy machine slows down stays the primary.
    with ReplicatedServer(
        password="pw-server", sentinel_password="pw-sentinel", down_after_ms=60_000
    ) as made:
        yield made


def refusal(url: str) -> tuple[str, str]:
    """Return the message and the hint of opening a store."""
    with pytest.raises(StoreUnavailable) as caught:
        open_store(url)
    assert "\n" not in caught.value.message
    assert "pw-" not in caught.value.message
    return caught.value.message, caught.value.hint


def test_no_sentinel_answers() -> None:
    refused, hint = refusal("redis+sentinel://127.0.0.1:1,127.0.0.1:2/name")
    assert refused.startswith(
        "the sentinels do not answer: none of 2 sentinels (Error 111 connecting to 127.0.0.1:"
    )
    assert hint == "start them, or check the hosts and ports in the URL"


def test_sentinels_that_speak_no_tls_do_not_answer_over_it(watched: ReplicatedServer) -> None:
    url = watched.url.replace("redis+", "rediss+") + "&ssl_cert_reqs=none"
    refused, _ = refusal(url)
    assert (
        refused == "the sentinels do not answer: none of 3 sentinels (Timeout connecting to server)"
    )


def test_the_sentinels_do_not_know_the_name(watched: ReplicatedServer) -> None:
    refused, hint = refusal(watched.url_of("another"))
    assert refused.endswith(
        "know no primary with the name after the hosts in the URL; they know the-primary"
    )
    assert hint == "correct the name"


def test_the_sentinels_ask_for_a_password(watched: ReplicatedServer) -> None:
    refused, hint = refusal(watched.url.partition("?")[0])
    assert refused.endswith("refuse the user name or password")
    assert "?sentinel_username=…&sentinel_password=…" in hint


def test_a_server_named_in_place_of_a_sentinel_is_refused(watched: ReplicatedServer) -> None:
    url = f"redis+sentinel://127.0.0.1:{watched.servers[0]}/name?sentinel_password=pw-server"
    refused, hint = refusal(url)
    assert refused.endswith("are no sentinels")
    assert hint.startswith("put the sentinels into the URL, usually at port 26379")


def test_the_server_behind_the_sentinels_asks_for_a_password(watched: ReplicatedServer) -> None:
    refused, _ = refusal(watched.url.replace(":pw-server@", ""))
    assert refused.endswith("asks for a password")


def test_the_primary_is_found_though_the_first_sentinel_is_not_there(
    watched: ReplicatedServer,
) -> None:
    url = watched.url.replace("@", "@127.0.0.1:1,")
    store = open_store(url)
    assert len(store.run_id()) == 40
    store.close()


@pytest.fixture
def dying() -> Iterator[ReplicatedServer]:
    """A primary that tests may kill."""
    with ReplicatedServer() as made:
        yield made


@pytest.fixture
def store(dying: ReplicatedServer) -> Iterator[RedisStore]:
    opened = open_store(dying.url)
    yield opened
    opened.close()


def insist(store: RedisStore, name: str) -> None:
    """Write a queue, repeating the request until the server has answered."""

    def is_written() -> bool:
        try:
            commit = store.commit([writing(put(queue(name)))], request_id=name)
        except StoreUnavailable:
            return False
        return words(commit) == []

    until(is_written, within_s=60)


def holds(watched: ReplicatedServer, port: int, name: str) -> bool:
    with watched.raw(port) as client:
        return bool(client.hexists("{bq}:Queue", name))


def test_after_a_failover_all_calls_use_the_new_primary(
    dying: ReplicatedServer, store: RedisStore
) -> None:
    before = dying.primary()
    rq_link = RqLink(dying.url)
    waiting = Queue("waiting", connection=rq_link.connection)
    with rq_link.errors():
        assert waiting.get_job_ids() == []
    insist(store, "early")
    assert store.wait_for_change(0)
    until(lambda: holds(dying, other_than(dying, before), "early"))

    dying.kill(before)
    refused = []
    try:
        store.commit([writing(put(queue("meanwhile")))], request_id="meanwhile")
    except StoreUnavailable as trouble:
        refused.append(trouble.message)
    after = dying.await_failover(before)
    insist(store, "late")

    assert after != before
    assert holds(dying, after, "late")
    assert [
        item.metadata.name for item in store.list("Queue") if item.metadata.name != "meanwhile"
    ] == [
        "early",
        "late",
    ]
    assert store.wait_for_change(5_000)
    with rq_link.errors():
        waiting.enqueue("somebody.does", job_id="something")
    with dying.raw(after) as client:
        assert client.lrange("rq:queue:waiting", 0, -1) == [b"something"]
    assert all(
        message.startswith(("the server at redis+sentinel://", "the sentinels "))
        for message in refused
    )
    rq_link.close()


def other_than(watched: ReplicatedServer, port: int) -> int:
    return next(one for one in watched.servers if one != port)


def test_a_former_primary_that_wakes_up_gets_no_more_writes(
    dying: ReplicatedServer, store: RedisStore
) -> None:
    insist(store, "early")
    before = dying.primary()
    until(lambda: holds(dying, other_than(dying, before), "early"))
    dying.pause(before)
    after = dying.await_failover(before)
    dying.resume(before)
    with dying.raw(before) as client:
        assert client.role()[0] == b"master", "it was told too soon for this test to mean anything"

    assert words(store.commit([writing(put(queue("late")))], request_id="late")) == []

    assert holds(dying, after, "late")
    assert not holds(dying, before, "late")


def test_a_client_that_never_rests_asks_the_sentinels_as_often_as_others(
    watched: ReplicatedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "LOOK_EVERY_S", 0.05)
    looks, ask = [], urls.PrimaryPool.get_master_address

    def noted(pool: urls.PrimaryPool) -> object:
        looks.append(pool)
        return ask(pool)

    monkeypatch.setattr(urls.PrimaryPool, "get_master_address", noted)
    store = open_store(watched.url)
    insist(store, "early")
    looks.clear()

    def is_asked_while_it_goes_on() -> bool:
        for _ in range(100):
            store.link.ask(lambda client: client.ping())
        return len(looks) >= 3

    until(is_asked_while_it_goes_on, within_s=90)
    store.close()


def test_a_primary_that_becomes_a_replica_causes_a_bounded_outage(
    watched: ReplicatedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The sentinels are not asked until the server itself refuses.
    monkeypatch.setattr(urls, "LOOK_EVERY_S", 600.0)
    store = open_store(watched.url)
    insist(store, "early")
    primary = watched.primary()
    with watched.raw(primary) as client:
        client.replicaof("127.0.0.1", str(other_than(watched, primary)))
        with pytest.raises(StoreUnavailable, match=r"is not running: .* no longer the primary"):
            store.commit([writing(put(queue("late")))], request_id="late")
        client.replicaof("NO", "ONE")
    insist(store, "late")
    assert holds(watched, primary, "late")
    store.close()


def test_the_error_without_a_primary_names_the_one_that_is_down(
    dying: ReplicatedServer, store: RedisStore
) -> None:
    dead = dying.primary()
    # No server is left to be chosen.
    dying.kill(other_than(dying, dead))
    dying.kill(dead)

    def refused() -> str:
        with pytest.raises(StoreUnavailable) as caught:
            store.check_server()
        return caught.value.message

    until(
        lambda: refused().endswith(f"have no primary for '{SERVICE}' now: 127.0.0.1:{dead} is down")
    )


def test_sentinels_that_are_away_do_not_matter_while_the_primary_answers(
    dying: ReplicatedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # They are asked each time that a connection is used.
    monkeypatch.setattr(urls, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(urls, "_USES_PER_LOOK", 0)
    store = open_store(dying.url)
    insist(store, "early")
    for port in dying.sentinels:
        dying.kill(port)
    assert words(store.commit([writing(put(queue("late")))], request_id="late")) == []
    store.close()


def test_threads_share_a_link_through_a_failover(dying: ReplicatedServer) -> None:
    link = Link(dying.url)
    before = dying.primary()
    over = threading.Event()
    wrong: list[Exception] = []

    def ask() -> None:
        while not over.is_set():
            try:
                link.ask(lambda client: client.incr("counted"))
            except StoreUnavailable:
                over.wait(0.05)
            except (OSError, RuntimeError, redis.RedisError) as error:
                wrong.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    dying.kill(before)
    after = dying.await_failover(before)
    with dying.raw(after) as client:
        seen = int(client.get("counted") or 0)
        until(lambda: int(client.get("counted") or 0) > seen + 100, within_s=60)
    over.set()
    for thread in threads:
        thread.join()
    link.close()
    assert wrong == []
