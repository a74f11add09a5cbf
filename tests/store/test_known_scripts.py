"""Schedulers load the scripts and all other roles call them; no call takes long, not even one with
hostile arguments.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from batchq import __version__
from batchq.api.node_report import StartClaim
from batchq.api.transaction import Commit, Event, Transaction
from batchq.errors import StoreUnavailable
from batchq.store import keys, link, scripts
from batchq.store.node_channels import Attempts
from batchq.store.redis import RedisStore
from batchq.store.schedulers import attend
from tests.harness.guarded import ADMIN, GuardedServer, password_of

#: An endless loop takes all of it; a call of ordinary size some milliseconds.
WITHIN_S = 60.0
EVENT = Event(kind="Pod", key="p", reason="Tested", at=1)


@pytest.fixture(scope="module")
def guarded() -> Iterator[GuardedServer]:
    with GuardedServer() as server:
        yield server


@pytest.fixture(autouse=True)
def _empty(guarded: GuardedServer) -> None:
    with guarded.as_user(ADMIN) as admin:
        admin.flushall()
        admin.script_flush()
        admin.acl_log_reset()


@pytest.fixture
def open_as(guarded: GuardedServer) -> Iterator[Callable[[str], RedisStore]]:
    """Open stores as users."""
    stores: list[RedisStore] = []

    def opened(user: str) -> RedisStore:
        stores.append(RedisStore(guarded.url_of(user)))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait only a moment for a scheduler to load scripts."""
    monkeypatch.setattr(link, "LONGEST_ASK_S", 0.2)


def commit_event(store: RedisStore) -> Commit:
    return store.commit([Transaction(subject="t", events=(EVENT,))], request_id="r")


def refusal_of(store: RedisStore) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as raised:
        commit_event(store)
    return raised.value


def test_a_scheduler_loads_every_script_when_one_is_missing(
    guarded: GuardedServer, open_as: Callable[[str], RedisStore]
) -> None:
    assert open_as("scheduler").lead("me", 1_000) is not None
    with guarded.as_user(ADMIN) as admin:
        assert admin.script_exists(*(script.sha for script in scripts.ALL)) == [True] * 17
    commit_event(open_as("submitter"))
    assert guarded.refusals() == set()


def test_a_scheduler_loads_the_scripts_that_it_does_not_call_itself(
    guarded: GuardedServer, open_as: Callable[[str], RedisStore]
) -> None:
    with guarded.as_user(ADMIN) as admin:
        admin.script_load(scripts.LEAD.text)
        assert open_as("scheduler").link.keep_scripts()
        assert admin.script_exists(*(script.sha for script in scripts.ALL)) == [True] * 17


def test_a_user_who_may_load_no_scripts_waits_until_a_scheduler_has_loaded_them(
    guarded: GuardedServer,
    open_as: Callable[[str], RedisStore],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "LONGEST_ASK_S", WITHIN_S)
    scheduler = open_as("scheduler")
    loading = threading.Timer(0.3, scheduler.link.keep_scripts)
    loading.start()
    assert commit_event(open_as("submitter")).refused == ()
    loading.join()


@pytest.mark.usefixtures("impatient")
def test_the_error_without_a_scheduler_says_that_none_is_running(
    open_as: Callable[[str], RedisStore],
) -> None:
    error = refusal_of(open_as("submitter"))
    assert error.message.endswith(
        f"does not know the scripts of batchq {__version__}: no scheduler is running to load them"
    )
    assert error.hint == "start one: `batchq scheduler`"


@pytest.mark.usefixtures("impatient")
def test_the_error_beside_schedulers_of_another_version_names_the_upgrade(
    guarded: GuardedServer, open_as: Callable[[str], RedisStore]
) -> None:
    attend(open_as("scheduler"), "other", version="0.0.9", mirrored=None)
    with guarded.as_user(ADMIN) as admin:
        admin.script_flush()
    error = refusal_of(open_as("submitter"))
    assert error.message.endswith(
        f"does not know the scripts of batchq {__version__}: its schedulers are of version 0.0.9"
    )
    assert error.hint == "run one version everywhere; upgrade the schedulers first"


@pytest.mark.usefixtures("impatient")
def test_the_error_beside_a_scheduler_that_may_not_load_names_its_user(
    guarded: GuardedServer, open_as: Callable[[str], RedisStore]
) -> None:
    attend(open_as("scheduler"), "other", version=__version__, mirrored=None)
    with guarded.as_user(ADMIN) as admin:
        admin.script_flush()
    assert refusal_of(open_as("submitter")).hint == (
        "renew the user of the scheduler with `batchq acl scheduler`, and see its log"
    )


@pytest.mark.usefixtures("impatient")
def test_loading_scripts_without_permission_is_not_retried(
    guarded: GuardedServer, open_as: Callable[[str], RedisStore]
) -> None:
    store = open_as("submitter")
    for _ in range(3):
        refusal_of(store)
    with guarded.as_user(ADMIN) as admin:
        log = {entry["object"]: entry["count"] for entry in admin.acl_log()}
    assert log.pop("eval") == 1
    # One for each script, in one round trip.
    assert log == {"script|load": 17}


def test_users_of_an_older_file_who_may_eval_need_no_scheduler(
    guarded: GuardedServer, open_as: Callable[[str], RedisStore]
) -> None:
    with guarded.as_user(ADMIN) as admin:
        admin.execute_command("ACL", "SETUSER", "submitter", "+eval")
        admin.execute_command("ACL", "SETUSER", "worker-n1", "+eval")
    try:
        assert commit_event(open_as("submitter")).refused == ()
        open_as("worker-n1").beat("n1", "run")
    finally:
        with guarded.as_user(ADMIN) as admin:
            admin.execute_command("ACL", "SETUSER", "submitter", "-eval")
            admin.execute_command("ACL", "SETUSER", "worker-n1", "-eval")


@pytest.mark.usefixtures("impatient")
def test_a_claim_without_its_lease_is_never_left(
    guarded: GuardedServer, open_as: Callable[[str], RedisStore]
) -> None:
    store = open_as("worker-n1")
    attempts = Attempts(store.link, store.now_ms, "n1")
    claim = StartClaim(pod="u-1-0", attempt=1, author="a")
    with pytest.raises(StoreUnavailable, match="does not know the scripts"):
        attempts.claim([(claim, "u 1 1")], ["default/a"], 30_000)
    with guarded.as_user(ADMIN) as admin:
        assert admin.exists(keys.report_queue("n1"), keys.LEADER_CHANNEL, keys.alive("n1")) == 0
        open_as("scheduler").link.keep_scripts()
        attempts.claim([(claim, "u 1 1")], ["default/a"], 30_000)
        assert admin.hkeys(keys.report_queue("n1")) == [b"u-1-0-1"]
        assert admin.hkeys(keys.alive("n1")) == [b"u-1-0-1"]
        assert admin.xlen(keys.LEADER_CHANNEL) == 1


def test_leases_are_renewed_without_loaded_scripts(
    guarded: GuardedServer, open_as: Callable[[str], RedisStore]
) -> None:
    worker = open_as("worker-n1")
    worker.beat("n1", "run")
    worker.renew("n1", "u-1-0", 1, "u 1 1", 30_000)
    with guarded.as_user(ADMIN) as admin:
        stored = admin.hgetall(keys.alive("n1"))
        assert stored.keys() == {b"beat", b"run", b"u-1-0-1"}
        assert 25_000 < int(stored[b"u-1-0-1"]) - worker.now_ms() <= 30_000
        assert 0 < admin.ttl(keys.alive("n1")) <= keys.ALIVE_TTL_S


class Caller:
    """A submitter that calls scripts with arbitrary arguments."""

    def __init__(self, guarded: GuardedServer) -> None:
        self._client = redis.Redis(
            unix_socket_path=str(guarded.socket),
            username="submitter",
            password=password_of("submitter"),
            socket_timeout=WITHIN_S,
            retry=Retry(NoBackoff(), 0),
        )

    def call(self, script: scripts.Script, names: list[str], *arguments: str | int | bytes) -> str:
        """Return the server's answer or error; it must come in time."""
        try:
            return repr(self._client.evalsha(script.sha, len(names), *names, *arguments))
        except redis.exceptions.ResponseError as error:
            return str(error)

    def commit(self, words: list[object], *, values: int = 0) -> str:
        names = ["{bq}:request:x", "{bq}:request:x", keys.REVISION, keys.CHANGES, keys.EVENTS]
        names += [keys.LEDGER, keys.CHARGES, *["{bq}:request:x"] * 3, "{bq}:PodGroup"]
        names.append("{bq}:PodGroup:head")
        rest = ("", 1000, 60, 100, 100, keys.LIMITS, "", "")
        return self.call(scripts.COMMIT, names, json.dumps(words), *rest, *["{}"] * values)

    def set(self, name: str, field: str, value: str) -> None:
        self._client.hset(name, field, value)

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def caller(guarded: GuardedServer, open_as: Callable[[str], RedisStore]) -> Iterator[Caller]:
    open_as("scheduler").link.keep_scripts()
    made = Caller(guarded)
    yield made
    made.close()


@pytest.mark.parametrize(
    "counts", [[0, 0, 0, 0, -5], [0, -1, 0, 0, -2], [0.5, 0, 0, 0, 0], [1e300, 0, 0, 0, 0], ["a"]]
)
def test_malformed_counts_do_not_keep_the_server_busy(caller: Caller, counts: list[object]) -> None:
    assert "cut off" in caller.commit([*counts, "x", "x", "x", "x", "x"])


def test_a_request_shorter_than_its_count_says_is_refused(caller: Caller) -> None:
    assert "cut off" in caller.commit([0, 0, 0, 0, 100_000, "{}"])


def test_more_words_than_one_call_may_carry_are_refused(caller: Caller) -> None:
    assert "TOOLARGE" in caller.commit([0, 0, 0, 0, 1_000_000, *["{}"] * 1_000_000])


def test_more_events_or_charges_than_one_call_may_carry_are_refused(caller: Caller) -> None:
    assert "TOOLARGE" in caller.commit([0, 0, 0, 0, 150_001, *["{}"] * 150_001])
    record = '[["s"],[["cpu","1"]]]'
    charges = [word for number in range(75_001) for word in (f"h{number}", record, "yes")]
    assert "TOOLARGE" in caller.commit([0, 75_001, 0, 0, 0, *charges])


def test_more_values_than_one_call_may_carry_are_refused(caller: Caller) -> None:
    assert "TOOLARGE" in caller.commit([0, 0, 0, 0, 0], values=300_000)


def test_a_charge_of_very_many_scopes_is_refused(caller: Caller) -> None:
    many = [f"s{number}" for number in range(20_000)]
    record = json.dumps([many, [[name, "1"] for name in many]])
    assert "the ledger" in caller.commit([0, 1, 0, 0, 0, "holder", record, ""])
    caller.set(keys.CHARGES, "holder", record)
    assert "the ledger" in caller.commit([0, 1, 0, 0, 0, "holder", "", ""])


def test_many_charges_of_many_parts_are_refused(caller: Caller) -> None:
    record = json.dumps([[f"s{n}" for n in range(120)], [[f"r{n}", "1"] for n in range(120)]])
    charges = [word for number in range(5_000) for word in (f"h{number}", record, "yes")]
    assert "TOOLARGE" in caller.commit([0, 5_000, 0, 0, 0, *charges])
    each = [word for n in range(5_000) for word in (0, 1, 0, 0, 0, f"h{n}", record, "yes")]
    assert "TOOLARGE" in caller.commit(each)


def test_a_very_long_fence_is_compared_at_once(caller: Caller) -> None:
    digits = "1" * 20_000
    caller.set("{bq}:PodGroup:head", "default/a", f"1|Pending|{digits}  x||")
    words = [1, "PodGroup", "default/a", "", "", "Pending", "u 1", "", "yes"]
    assert "fenced" in caller.commit([1, 0, 0, 0, 0, *words], values=1)


@pytest.mark.parametrize(
    "script", [scripts.REMOVE_REPORTS, scripts.ACKNOWLEDGE], ids=lambda one: one.name
)
def test_a_count_of_missing_reports_does_not_keep_the_server_busy(
    caller: Caller, script: scripts.Script
) -> None:
    caller.commit([0, 0, 0, 0, 0])
    if script is scripts.REMOVE_REPORTS:
        caller.call(script, ["{bq}:PodGroup"], 10**15)
        return
    caller.call(script, ["{bq}:request:x", "{bq}:PodGroup", "{bq}:Pod"], 1, 1, "x", 10**15)


def test_old_output_is_removed_a_part_at_a_time(
    guarded: GuardedServer, open_as: Callable[[str], RedisStore]
) -> None:
    open_as("scheduler").link.keep_scripts()
    log = keys.log("n1", "p", 1)
    with guarded.as_user("worker-n1") as worker:
        pipeline = worker.pipeline(transaction=False)
        for number in range(12_000):
            fields = {"request": str(number), "stream": "out", "data": "x", "length": str(number)}
            pipeline.xadd(log, fields)  # type: ignore[arg-type]  # text is one of them
        pipeline.execute()
        for left in (2_001, 1):
            worker.evalsha(scripts.LOG.sha, 1, log, f"r{left}", "out", "x", "0", "60", "1000000")
        with guarded.as_user(ADMIN) as admin:
            assert admin.xlen(log) <= 2
