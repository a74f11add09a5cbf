"""Why a group waits in a backfilled queue, and when it is expected to start."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import json, structs

from batchq.api.objects import PodGroup, Queue, Strategy
from batchq.api.reasons import Waiting
from batchq.api.views import Others, Why
from batchq.cli.diagnosis import row_of, show_why
from tests.builders import a_node, a_queue
from tests.client.waits import MINUTE, NEVER, NOW, World, asks

HOUR = 60 * MINUTE


def filled(name: str = "default", **strategy: Any) -> Queue:
    queue = a_queue(name, preemption=NEVER)
    with_strategy = structs.replace(queue.spec, strategy=Strategy(**strategy))
    return structs.replace(queue, spec=with_strategy)


def wants(name: str, cpu: int, place: int, minutes: int | None = None, **more: Any) -> PodGroup:
    walltime = None if minutes is None else minutes * MINUTE
    created = NOW + place
    return asks(name, created=created, requests={"cpu": cpu}, walltime=walltime, **more)


def a_world(*behind: PodGroup, type: str = "Backfill", reservations: str = "1") -> World:
    """Return a world of four cpus: three are in use for an hour, and the head needs all four."""
    world = World(a_node(cpu=4), filled(type=type, reservations=reservations))
    world.run(wants("runs", 3, 0, 60))
    world.add(wants("head", 4, 1, 30), *behind)
    world.settle()
    return world


def printed(world: World, name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    show_why(world.why(name), history=False)
    lines = capsys.readouterr().out.splitlines()
    parts = (line.partition(":") for line in lines if not line.startswith(" "))
    return {title: text.strip() for title, _, text in parts}


def remedy_for_turn(world: World, name: str) -> str:
    [reason] = [one for one in world.why(name).reasons if one.reason == Waiting.WAITING_FOR_TURN]
    return reason.remedy


def test_the_head_has_a_reservation_that_no_group_delays(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = a_world(wants("long", 1, 2, 90))
    result = printed(world, "head", capsys)
    assert result["Backfill"] == (
        "has a reservation at 1970-01-01T01:16:40Z (in 1h): backfilled groups do not delay it"
    )
    assert result["Expected"] == "1970-01-01T01:16:40Z (in 1h), counting the groups ahead"
    assert result["Earliest"] == "1970-01-01T01:16:40Z (in 1h), when default/runs has ended"


def test_a_group_that_would_delay_the_head_gets_the_walltime_that_would_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = a_world(wants("long", 1, 2, 90))
    result = printed(world, "long", capsys)
    assert result["Backfill"] == (
        "now it would delay default/head, which has a reservation at 1970-01-01T01:16:40Z (in 1h)"
    )
    assert result["Expected"] == "1970-01-01T01:46:40Z (in 1h30m), counting the groups ahead"
    assert result["Earliest"] == "there is free capacity now"
    assert remedy_for_turn(world, "long") == (
        "with a walltime of at most 1h it would go ahead now (`batchq apply -f FILE`)"
    )


def test_with_that_walltime_it_does_go_ahead_and_with_a_second_more_it_does_not() -> None:
    world = a_world(wants("fits", 1, 2, 60))
    assert world.why("fits").phase == "InQueue"
    longer = structs.replace(wants("x", 1, 2).spec, walltime=HOUR + 1_000)
    world = a_world(structs.replace(wants("x", 1, 2), spec=longer))
    assert world.why("x").phase == "Pending"


def test_without_a_walltime_it_may_only_use_what_is_left_beside_the_head() -> None:
    world = a_world(wants("endless", 1, 2))
    assert remedy_for_turn(world, "endless") == (
        "with a walltime of at most 1h it would go ahead now (`batchq apply -f FILE`): without one"
        " it can only use what is left beside the head"
    )


def test_a_group_that_does_not_fit_now_gets_no_walltime_advice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = a_world(wants("wide", 2, 2, 10))
    assert printed(world, "wide", capsys)["Backfill"] == "does not fit beside what runs now"
    assert remedy_for_turn(world, "wide") == (
        "see what the head waits for: `batchq why head`; a higher priority class goes ahead"
    )


def test_a_group_that_no_node_takes_gets_no_walltime_advice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each node has one free cpu, and so together they have two."""
    world = World(a_node("n1", cpu=4), a_node("n2", cpu=4), filled(type="Backfill"))
    world.run(wants("r1", 3, 0, 60), wants("r2", 3, 0, 60))
    world.add(wants("head", 4, 1, 30, replicas=2), wants("pair", 2, 2, 90), wants("two", 2, 3, 9))
    world.settle()
    standing = world.why("pair").backfilling
    assert standing is not None
    # A group that no node takes now delays no other, whatever its walltime.
    assert (standing.delays, standing.longest_ms) == ("", None)
    assert printed(world, "two", capsys)["Backfill"] == ("does not fit beside what runs now")


def test_with_reservations_for_all_any_group_ahead_may_be_delayed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One cpu is free for an hour; after that it is reserved for the head, or for `second`."""
    world = World(a_node(cpu=4), filled(type="Backfill", reservations="all"))
    world.run(wants("runs", 3, 0, 60))
    world.add(
        wants("head", 3, 1, 30),
        wants("second", 4, 2, 10),
        wants("third", 1, 3, 120),
    )
    world.settle()
    assert printed(world, "third", capsys)["Backfill"] == (
        "has a reservation at 1970-01-01T01:56:40Z (in 1h40m): backfilled groups do not delay it;"
        " now it would delay default/second, which has a reservation at 1970-01-01T01:46:40Z"
        " (in 1h30m)"
    )
    assert remedy_for_turn(world, "third").startswith("with a walltime of at most 90m ")


def test_no_group_goes_ahead_of_a_head_with_an_unknown_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = World(a_node(cpu=4), filled(type="Backfill"))
    world.run(wants("runs", 3, 0))
    world.add(wants("head", 4, 1, 30), wants("small", 1, 2, 10))
    world.settle()
    assert printed(world, "head", capsys)["Backfill"] == (
        "its start is unknown: no group goes ahead"
    )
    result = printed(world, "small", capsys)
    assert result["Backfill"] == "the start of default/head is unknown: no group goes ahead"
    assert result["Expected"] == (
        "not known: the start of default/head; the start of the group ahead of it is unknown"
    )


@pytest.mark.parametrize("strategy", ["StrictFIFO", "BestEffortFIFO"])
def test_a_queue_without_backfill_has_no_backfill_explanation(
    strategy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world = a_world(wants("wide", 2, 2, 90), type=strategy)
    assert "Backfill" not in printed(world, "head", capsys)
    assert row_of(world.why("wide"))["backfill"] is None


def test_as_json_it_has_instants_and_the_longest_walltime() -> None:
    why = a_world(wants("long", 1, 2, 90)).why("long")
    row = row_of(why)
    assert row["backfill"] == {
        "head": "default/head",
        "headStart": "1970-01-01T01:16:40Z",
        "reservation": None,
        "fitsNow": True,
        "delays": "default/head",
        "longestWalltime": "1h",
    }
    assert row["expectedStart"] == {
        "at": "1970-01-01T01:46:40Z",
        "inSeconds": 90 * 60,
        "ends": {"count": 1, "named": ["default/head"], "more": 0, "otherNamespaces": 0},
        "behind": {"count": 0, "named": [], "more": 0, "otherNamespaces": 0},
        "why": "",
    }
    assert json.decode(json.encode(why), type=Why) == why


def test_groups_of_other_namespaces_are_only_counted() -> None:
    world = World(a_node(cpu=4), a_queue(preemption=NEVER))
    world.run(wants("theirs", 4, 0, 60, namespace="lab"))
    world.add(wants("mine", 4, 1, 30))
    world.settle()
    expected = world.why("mine").expected
    assert expected is not None
    assert (expected.at, expected.ends) == (NOW + HOUR, Others(elsewhere=1))


def test_groups_ahead_delay_the_expected_start() -> None:
    world = World(a_node(cpu=4), a_queue(strict=True, preemption=NEVER))
    world.run(wants("runs", 3, 0, 60))
    world.add(wants("head", 4, 1, 30), wants("small", 1, 2, 10))
    world.settle()
    why = world.why("small")
    assert (why.start and why.start.at, why.expected and why.expected.at) == (
        NOW,
        NOW + HOUR + 30 * MINUTE,
    )


def test_groups_that_can_never_run_or_already_run_have_no_expected_start() -> None:
    world = a_world(wants("huge", 5, 2))
    assert world.why("huge").expected is None
    assert world.why("runs").expected is None
