"""One bad record on a live stack costs only that record: other groups run, no process dies, and the
doctor names the record with a remedy that works.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

import pytest
import redis

from batchq.errors import StoreUnavailable
from tests.e2e.guarded import GuardedStack
from tests.e2e.machine import until
from tests.harness.guarded import ADMIN
from tests.poison.damage import DEEP

WITHIN_S = 60
#: RQ's keys of one node.
RQ = "{bq}-rq:n1:"
_NUMBERS = count()

Poison = Callable[[redis.Redis], object]


@pytest.fixture(scope="module")
def stack() -> Iterator[GuardedStack]:
    with GuardedStack() as made:
        yield made


def written_by(stack: GuardedStack, user: str, poison: Poison) -> None:
    """Write something past batchq, with the rights of a role."""
    client = redis.Redis.from_url(stack.server.url_of(user))
    poison(client)
    client.close()


def findings(stack: GuardedStack) -> list[dict[str, str]]:
    """Return the doctor's findings; it must complete."""
    done = stack.batchq("operator", "doctor", "-o", "json", exits=None)
    assert "Traceback" not in done.stderr
    found: list[dict[str, str]] = json.loads(done.stdout)["findings"]
    return [one for one in found if one["level"] == "error"]


def goes_on(stack: GuardedStack) -> None:
    """Check that a group of another namespace completes in time, and that no process has died."""
    name = f"other-{next(_NUMBERS)}"
    stack.batchq("submitter", "submit", "--quiet", "-n", "other", "--name", name, "--", "true")
    stack.batchq("submitter", "wait", "-n", "other", name, "--timeout", f"{WITHIN_S}s")
    for process in (*stack.schedulers, *stack.agents.values()):
        assert process.poll() is None
    done = stack.batchq("readonly", "jobs", "-A")
    assert "Traceback" not in done.stderr


def names_in(stack: GuardedStack) -> str:
    """Return the doctor's findings about records, repaired ones included, as text."""
    done = stack.batchq("operator", "doctor", "-o", "json", exits=None)
    assert "Traceback" not in done.stderr
    found = json.loads(done.stdout)["findings"]
    return " ".join(one["subject"] for one in found if one["check"] == "records")


def state_of(stack: GuardedStack, node: str) -> str:
    """Return the state in `describe node`, without the reason."""
    page = stack.batchq("readonly", "describe", "node", node).stdout
    line = next(line for line in page.splitlines() if line.startswith("State"))
    return line.split(maxsplit=1)[1].partition(":")[0]


def restart(stack: GuardedStack, *poisons: tuple[str, Poison]) -> None:
    """End all schedulers and agents, let users write these poisons, and start them again."""
    nodes = list(stack.agents)
    stack.end_processes()
    for user, poison in poisons:
        written_by(stack, user, poison)
    if poisons:
        # It ends without a scheduler, too.
        findings(stack)
    stack.schedulers.clear()
    # A command waits for two seconds meanwhile, and this machine may be busy.
    with suppress(StoreUnavailable):
        stack.start_scheduler()
    until(lambda: leads(stack), what="a scheduler leads")
    for node in nodes:
        stack.start_agent(node)


def test_unreadable_objects_cost_no_other_group(stack: GuardedStack) -> None:
    def poisoned(client: redis.Redis) -> None:
        client.hset("{bq}:PodGroup", "default/poison", "garbage")
        client.hset("{bq}:PodGroup", b"default/\xff", b"\xff")

    def poisoned_before_the_start(client: redis.Redis) -> None:
        client.hset("{bq}:PodGroup", "", "garbage")
        client.hset("{bq}:Pod", "deep", b'{"metadata":{"name":"a","uid":"deep"},"x":' + DEEP)

    written_by(stack, "submitter", poisoned)
    written_by(stack, "operator", lambda client: client.hset("{bq}:Queue", "poison", "[]"))
    goes_on(stack)
    restart(stack, ("submitter", poisoned_before_the_start))
    goes_on(stack)
    subjects = {
        "PodGroup default/poison",
        r"PodGroup default/\xff",
        r"PodGroup \x",
        "Pod deep",
        "Queue poison",
    }
    assert {one["subject"] for one in findings(stack) if one["check"] == "records"} == subjects
    assert "Unreadable" in stack.batchq("readonly", "get", "podgroups").stdout
    assert "default/poison" in stack.batchq("readonly", "jobs").stdout
    output = stack.batchq("readonly", "describe", "poison", exits=8).stderr
    assert "PodGroup default/poison is unreadable: JSON is malformed" in output
    events = stack.batchq("readonly", "events", "-A", "-o", "json").stdout
    assert events.count('"Unreadable"') >= len(subjects)

    stack.batchq("submitter", "delete", "podgroup", "poison", r"default/\xff", r"\x")
    stack.batchq("submitter", "delete", "pod", "deep")
    refused = stack.batchq("submitter", "delete", "queue", "poison", exits=9)
    assert "does not permit this user to write Queues" in refused.stderr
    stack.batchq("operator", "delete", "queue", "poison")
    until(lambda: findings(stack) == [], what="healed")
    goes_on(stack)


def test_unreadable_books_are_recounted(stack: GuardedStack) -> None:
    huge = "9" * 400

    def by_submitter(client: redis.Redis) -> None:
        client.set("{bq}:revision", "NaN")
        client.hset("{bq}:ledger", mapping={"cluster cpu": huge, "queue:default cpu": "x"})
        client.hset("{bq}:charges", "group:poison", "[" * 5000)
        client.hset("{bq}:charges", b"\xff", b'[["cluster"],[["cpu","' + b"9" * 400 + b'"]]]')
        client.hset("{bq}:PodGroup:head", "default/poison", b"\xff")

    def by_operator(client: redis.Redis) -> None:
        client.hset("{bq}:limits", mapping={"queue:default": huge, "last change": "NaN"})

    written_by(stack, "submitter", by_submitter)
    restart(stack, ("operator", by_operator))
    goes_on(stack)
    until(lambda: "Charge group:poison" in names_in(stack), what="told")
    output = names_in(stack)
    for name in (
        "Key {bq}:revision",
        r"Ledger cluster\x20cpu",
        r"Charge \xff",
        "Limit queue:default",
    ):
        assert name in output
    until(lambda: findings(stack) == [], what="healed")


def test_books_that_are_unreadable_at_the_start_are_recounted(stack: GuardedStack) -> None:
    for process in stack.schedulers:
        process.terminate()
        process.wait(90)

    def by_submitter(client: redis.Redis) -> None:
        client.hset("{bq}:ledger", mapping={"cluster pods": b"\xff", "cluster podgroups": "1e9"})
        for name in ("charges", "events", "changes", "revision"):
            client.set("{bq}:" + name, "x")

    written_by(stack, "submitter", by_submitter)
    found = {one["subject"] for one in findings(stack) if one["check"] == "records"}
    assert found == {
        *(f"Key {{bq}}:{name}" for name in ("charges", "events", "changes", "revision")),
        *(f"Ledger cluster\\x20{name}" for name in ("pods", "podgroups")),
    }
    jobs = stack.batchq("readonly", "jobs", exits=9)
    assert "the leading scheduler" in jobs.stderr
    stack.schedulers.clear()
    # A command waits for two seconds meanwhile, and this machine may be busy.
    with suppress(StoreUnavailable):
        stack.start_scheduler()
    until(lambda: leads(stack), what="a scheduler leads")
    goes_on(stack)
    until(lambda: findings(stack) == [], what="healed")


def leads(stack: GuardedStack) -> bool:
    with suppress(StoreUnavailable), stack.client("readonly") as client:
        return client.schedulers().led
    return False


def test_damage_a_node_writes_of_itself_costs_no_other_node(stack: GuardedStack) -> None:
    alive: dict[bytes | str, bytes | str] = {"run": b"\xff", "beat": "NaN", "x-" + "9" * 5000: "1"}
    inbox: dict[bytes | str, bytes | str] = {"deep": "[" * 60_000, b"\xff": b"\xff", "x": "1e999"}
    alive[""] = inbox[""] = "garbage"

    def by_worker(client: redis.Redis) -> None:
        client.hset("{bq}:alive:n1", mapping=alive)
        client.hset("{bq}:inbox:n1", mapping=inbox)

    written_by(stack, "worker-n1", by_worker)
    goes_on(stack)
    restart(stack, ("worker-n1", by_worker))
    goes_on(stack)


# Of such keys, tests/poison/test_shared.py tests the leader, and tests/worker/test_hostile_queue.py
# the agent.
@pytest.mark.slow
def test_keys_of_another_type_and_malformed_jobs_cost_no_other_node(
    stack: GuardedStack,
) -> None:
    def by_worker(client: redis.Redis) -> None:
        client.rpush(f"{RQ}queue:bq-node-n1", b"\xff", "timeout", "deep")
        payload = b'["batchq.worker.entry.run_pod", null, ["x", 1], {}]'
        client.hset(f"{RQ}job:timeout", mapping={"data": payload, "timeout": "1e999"})
        client.hset(f"{RQ}job:deep", mapping={"data": payload, "dependency_ids": DEEP})
        for name in ("wip:bq-node-n1", "workers", "queue:bq-node-n1:intermediate"):
            client.set(f"{RQ}{name}", "x")
        for name in ("{bq}:bell", "{bq}:alive:n1", "{bq}:inbox:n1"):
            client.set(name, "x")

    written_by(stack, "worker-n1", by_worker)
    goes_on(stack)
    until(lambda: "Key {bq}:alive:n1" in names_in(stack), what="told")
    assert "Key {bq}:inbox:n1" in names_in(stack)
    output = "its keys in the server cannot be read"
    shown = stack.batchq("readonly", "events", "-A", "--kind", "Node", "-o", "json").stdout
    events = [one for one in json.loads(shown)["items"] if output in one["message"]]
    assert {(one["object"], one["reason"]) for one in events} == {("n1", "NotReady")}
    until(lambda: state_of(stack, "n1") == "Ready", what="n1 is ready again")
    restart(stack, ("worker-n1", by_worker))
    goes_on(stack)
    until(lambda: findings(stack) == [], what="healed")
    until(lambda: state_of(stack, "n1") == "Ready", what="n1 is ready again")


def test_uids_that_name_no_job_take_no_node_out_of_service(stack: GuardedStack) -> None:
    seed = ("submit", "--quiet", "--name", "seed", "--gate", "never", "--cpus", "1", "--", "true")
    stack.batchq("submitter", *seed)
    with stack.client("readonly") as client:
        group = client.get("PodGroup", "seed")
    with stack.server.as_user("submitter") as raw:
        stored = raw.hget("{bq}:PodGroup", "default/seed")
        assert stored is not None
        stored = re.sub(rb'"schedulingGates":\[[^]]*\]', b'"schedulingGates":[]', stored)
        for number, uid in enumerate((b"../../x", b"a/b", b"x" * 300)):
            name = f"false-{number}"
            false = stored.replace(group.metadata.uid.encode(), uid)
            false = false.replace(b'"name":"seed"', f'"name":"{name}"'.encode())
            raw.hset("{bq}:PodGroup", f"default/{name}", false)
    until(lambda: "PodGroup default/false-2" in names_in(stack), what="told")
    goes_on(stack)
    # An earlier test may have damaged a node.
    until(lambda: {state_of(stack, node) for node in stack.agents} == {"Ready"}, what="ready")
    stack.batchq("submitter", "cancel", "seed")
    stack.batchq("submitter", "delete", "podgroup", *(f"false-{number}" for number in range(3)))
    until(lambda: findings(stack) == [], what="healed")


def test_lost_scripts_are_loaded_again(stack: GuardedStack) -> None:
    with stack.server.as_user(ADMIN) as admin:
        admin.script_flush()
    goes_on(stack)


def test_an_endless_script_of_a_submitter_is_refused(stack: GuardedStack) -> None:
    endless = "redis.call('SET', KEYS[1], 'x') while true do end"
    with stack.server.as_user("submitter") as client:
        for words in (("EVAL", endless, 1, "{bq}:ledger"), ("SCRIPT", "LOAD", endless)):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*words)
    goes_on(stack)
