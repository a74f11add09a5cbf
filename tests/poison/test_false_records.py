"""Records that are well formed and false, as a hostile user can write them: what no scheduler could
process is unreadable, and a session runs with all others.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from msgspec import Struct, ValidationError, structs

from batchq.api.objects import (
    Evictions,
    Metadata,
    Object,
    Pod,
    PodGroup,
    PodGroupSpec,
    PodGroupStatus,
    PodSpec,
    Task,
    Unreadable,
    key_of,
    kind_of,
)
from batchq.assembly import assemble
from batchq.config.load import read_config
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Snapshot
from batchq.lab.simulation import WorldRun
from batchq.lab.simulation.world import read_world
from batchq.scheduler.cycle import Scheduler
from batchq.store import records
from tests.contract.made import group, node, queue
from tests.effort import usually
from tests.worlds.wide import wide_world

#: False records tried on each cluster; `make swarm` sets more.
LIES = int(os.environ.get("BATCHQ_MUTATIONS", "1000")) // 20
WORLDS = range(usually(4, 8))

NUMBERS = (-(2**40), -1, 0, 1, 2**31, 10**9, 2**63 - 1)
WORDS = (
    "",
    "x",
    "\0",
    "-1",
    "²",
    "9" * 400,
    "9" * 5000,
    "root",
    "default",
    "q0",
    "n0",
    "u-1",
    "red/g0",
    "\u202e",
)
_OF_SNAPSHOT = ("groups", "queues", "nodes", "quotas", "priority_classes", "admission_checks")


@dataclass(frozen=True, slots=True)
class Recording(Scheduler):
    """A scheduler that keeps its snapshots."""

    seen: list[tuple[Snapshot, int]] = field(default_factory=list)

    def decide(self, snapshot: Snapshot, now_ms: int, *, writes_status: bool = True) -> Session:
        self.seen.append((snapshot, now_ms))
        return Scheduler.decide(self, snapshot, now_ms, writes_status=writes_status)


def recording(seed: int) -> Recording:
    """Return the scheduler of a busy simulated cluster."""
    world = wide_world(seed)
    made = assemble(read_config(world.config_text, "scheduler.yaml"))
    scheduler = Recording(made.actions, made.plugins, made.settings)
    WorldRun(read_world(world.text, f"seed {seed}"), scheduler).run(60, bounded=True)
    return scheduler


def in_full(value: Any) -> Any:
    """Return an object as JSON, defaults included."""
    match value:
        case Struct():
            names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
            return {encoded: in_full(getattr(value, name)) for name, encoded in names}
        case dict():
            return {name: in_full(one) for name, one in value.items()}
        case list() | tuple():
            return [in_full(one) for one in value]
        case msgspec.Raw():
            return msgspec.json.decode(value)
        case _:
            return msgspec.to_builtins(value)


def lie_about(chance: random.Random, item: Object) -> bytes | None:
    """Return the record with one to four wrong values; None if the decoder refuses their types."""
    result = in_full(item)
    for _ in range(chance.choice((1, 1, 2, 4))):
        places = [place for place in _places(result) if place]
        status = [place for place in places if place[0] == "status"]
        *path, last = chance.choice(status if status and chance.random() < 0.6 else places)
        inside = result
        for name in path:
            inside = inside[name]
        inside[last] = _other(chance, inside[last])
    stored = msgspec.json.encode(result)
    try:
        msgspec.json.decode(stored, type=type(item))
    except ValidationError:
        return None
    return stored


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of each value within one."""
    found = [place]
    if isinstance(value, dict):
        for name, one in value.items():
            found += _places(one, (*place, name))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            found += _places(one, (*place, number))
    return found


def _other(chance: random.Random, value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return chance.choice(NUMBERS)
        case str():
            return chance.choice(WORDS)
        case None:
            return chance.choice((*NUMBERS, *WORDS))
        case dict():
            changed = dict(value)
            kept = changed.pop(chance.choice(list(changed))) if changed else chance.choice(NUMBERS)
            return {**changed, chance.choice((*WORDS, "cpu", "0")): kept}
        case _:
            return [*value, *value] or [chance.choice(WORDS)]


def with_instead(snapshot: Snapshot, item: Object, lie: Object) -> Snapshot:
    """Return the snapshot with one record replaced."""
    for name in _OF_SNAPSHOT:
        there = getattr(snapshot, name)
        if any(one is item for one in there):
            return structs.replace(
                snapshot, **{name: tuple(lie if one is item else one for one in there)}
            )
    pods = {
        uid: tuple(lie if one is item else one for one in snapshot.pods[uid])
        for uid in snapshot.pods
    }
    return structs.replace(snapshot, pods=pods)


@pytest.mark.parametrize("seed", WORLDS)
def test_a_session_runs_over_false_records(seed: int) -> None:
    chance = random.Random(seed)
    scheduler = recording(seed)
    held = 0
    for number in range(LIES):
        snapshot, now_ms = chance.choice(scheduler.seen)
        pods = [pod for uid in snapshot.pods for pod in snapshot.pods[uid]]
        chosen = chance.choice([*_OF_SNAPSHOT, "groups", "groups", "pods"])
        items = pods if chosen == "pods" else list(getattr(snapshot, chosen))
        if not items:
            continue
        item = chance.choice(items)
        stored = lie_about(chance, item)
        if stored is None:
            continue
        lie = records.read_record(kind_of(item), key_of(item), stored)
        if isinstance(lie, Unreadable):
            continue
        try:
            result = with_instead(snapshot, item, lie)
            Scheduler.decide(scheduler.without_memory(), result, now_ms)
        except Exception as error:  # whatever it is, the message must name the record
            pytest.fail(f"lie {number}: {type(error).__name__}: {error} for {stored[:2000]!r}")
        held += 1
    assert held > LIES // 10


@pytest.mark.parametrize("seed", WORLDS)
def test_a_session_runs_over_groups_with_the_identity_of_another(seed: int) -> None:
    """One session has seen them unchanged, and the next one has not."""
    chance = random.Random(seed)
    scheduler = recording(seed)
    for snapshot, now_ms in chance.choices(scheduler.seen, k=20):
        if len(snapshot.groups) < 2:
            continue
        one, other = chance.sample(list(snapshot.groups), 2)
        lie = structs.replace(one, metadata=structs.replace(one.metadata, uid=other.metadata.uid))
        result = with_instead(snapshot, one, lie)
        Scheduler.decide(scheduler.without_memory(), result, now_ms)
        forgetful = scheduler.without_memory()
        for seen in (snapshot, result, snapshot):
            Scheduler.decide(forgetful, seen, now_ms)


@pytest.mark.parametrize("kind", ["PodGroup", "Queue", "Node"])
def test_a_record_with_a_uid_that_is_no_number_to_python_is_unreadable(kind: str) -> None:
    made = {"PodGroup": group(), "Queue": queue(), "Node": node()}[kind]
    lie = structs.replace(made, metadata=structs.replace(made.metadata, uid="9" * 5000))
    found = records.read_record(kind, key_of(lie), msgspec.json.encode(lie))
    assert isinstance(found, Unreadable)
    assert found.why == "its uid has 5,000 characters"


@pytest.mark.parametrize(
    "uid", ["", "../../x", "a/b", "..", "a:b", "{bq}", "é", "a\nb", "x" * 101, "\x1b[2J"]
)
def test_a_group_with_a_uid_that_names_no_job_is_unreadable(uid: str) -> None:
    made = structs.replace(group(), metadata=structs.replace(group().metadata, uid=uid))
    assert "which names no RQ job" in why_unreadable(made)


@pytest.mark.parametrize("uid", ["../../x-1-0", "a/b-1-0", "x" * 161])
def test_a_pod_with_a_uid_that_names_no_job_is_unreadable(uid: str) -> None:
    made = Pod(metadata=Metadata(name="p", uid=uid), spec=PodSpec(pod_group="g", task="t"))
    found = records.read_record("Pod", uid, msgspec.json.encode(made))
    assert isinstance(found, Unreadable)
    assert "which names no RQ job" in found.why


def tasks(*replicas: int) -> tuple[Task, ...]:
    return tuple(Task(name=f"t{number}", replicas=count) for number, count in enumerate(replicas))


def why_unreadable(made: PodGroup) -> str:
    found = records.read_record("PodGroup", key_of(made), msgspec.json.encode(made))
    assert isinstance(found, Unreadable)
    return found.why


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (PodGroupSpec(tasks=tasks(-1)), "task t0 has -1 replicas; expected 0 to 1,000,000"),
        (
            PodGroupSpec(tasks=tasks(10**9)),
            "task t0 has 1000000000 replicas; expected 0 to 1,000,000",
        ),
        (PodGroupSpec(tasks=tasks(1) * 2), "two of its tasks have the same name"),
        (PodGroupSpec(tasks=tasks(1), min_member=-5), "its minMember is -5"),
        (
            PodGroupSpec(tasks=tasks(*[10**6] * 3)),
            "3,000,000 of its pods are to start together, more than 1,000,000",
        ),
    ],
)
def test_a_group_that_no_scheduler_could_process_is_unreadable(
    spec: PodGroupSpec, why: str
) -> None:
    assert why_unreadable(structs.replace(group(), spec=spec)) == why


@pytest.mark.parametrize(
    "status",
    [
        PodGroupStatus(spent={"x": 1}),
        PodGroupStatus(evictions=Evictions(recent={"x": 1})),
        PodGroupStatus(evictions=Evictions(longest_pod_runs={"x": 1})),
    ],
)
def test_a_group_with_text_in_place_of_a_number_is_unreadable(status: PodGroupStatus) -> None:
    result = why_unreadable(structs.replace(group(), status=status))
    assert result == "its status has 'x' in place of a number"
