"""Play a case of Kueue's, and return the result in Kueue's own terms.

`preempt` names the action that evicted each victim within a minute, `admit` the groups that the
first session admitted, `pending` the reasons of the groups that it left pending, and `starts` the
groups admitted after the victims had ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from batchq.config.load import read_config
from batchq.lab.simulation import play
from batchq.lab.simulation.report import WorldOutcome
from tests.cases.kueue_checks import came_of_checks, expected_of_checks
from tests.cases.kueue_world import (
    head_with_victims,
    heads_of,
    line_of,
    name_of,
    one_shape_refused,
    refused_head,
    run_by_others,
    world_of,
)
from tests.cases.peers import HORIZON_S, Data, told_reason
from tests.yaml_text import text_of_all

#: Modes whose cases are clusters with quota and workloads.
WORLDS = frozenset({"find_targets", "one_cycle"})

_CONFIG = read_config("actions: enqueue, allocate, reclaim, preempt", "config")

#: Kueue's terms for batchq's reasons.
REASONS = {"WaitingForPreemptedWorkloads": "WaitingForPreemption"}
_BY_ACTION = {"Preempted": "preempt", "Reclaimed": "reclaim"}
ACTIONS = {
    "InClusterQueue": "preempt",
    "InCohortReclamation": "reclaim",
    "InCohortReclaimWhileBorrowing": "reclaim",
    "InCohortFairSharing": "reclaim",
}


def came_of(case: Data) -> Data:
    """Return batchq's result for the case."""
    return _told(world_of(case)) if case["mode"] in WORLDS else _special(case)


def came_to_others(case: Data) -> Data:
    """Return the result for the case with its workloads as external groups."""
    return _told(run_by_others(world_of(case)))


def _special(case: Data) -> Data:
    match case["mode"]:
        case "queue_order":
            return {"order": _in_line(line_of(case))}
        case "entry_order":
            at_eviction = case["requeuing_timestamp"] == "Eviction"
            return {"order": _first_admitted(heads_of(case["entries"], at_eviction=at_eviction))}
        case "requeue_matrix":
            return _told(_matrix_world(case))
        case "admission_check":
            return came_of_checks(case)
        case unknown:
            raise AssertionError(f"there is no player for a case of {unknown}")


def _matrix_world(row: Data) -> list[Data]:
    """Return a cluster for K34, which is about heaps: their effects that a user can observe."""
    if "heap" in row:
        return one_shape_refused()
    return head_with_victims() if row["reason"] == "PendingPreemption" else refused_head(row)


def expected_by_kueue(case: Data) -> Data:
    """Return Kueue's result in the form of `came_of`."""
    if "expect_order" in case:
        return {"order": case["expect_order"]}
    if case["mode"] == "requeue_matrix":
        return _expected_of_row(case)
    if case["mode"] == "admission_check":
        return expected_of_checks(case)
    expect = case["expect"]
    targets = {name_of(row["id"]): ACTIONS[row["reason"]] for row in expect["preempt"]}
    if "admit" not in expect:
        return {"preempt": targets}
    waits = {row["id"]: REASONS.get(row["reason"], row["reason"]) for row in expect["pending"]}
    return {
        "preempt": targets,
        "admit": [name_of(row["id"]) for row in expect["admit"]],
        "pending": {name_of(name): reason for name, reason in waits.items()},
    }


def _expected_of_row(row: Data) -> Data:
    """Translate a row: parked means that the next group is tried; active under StrictFIFO, not."""
    if "heap" in row:
        return {"admit": ["cpu-1", "cpu-2"], "starts": ["gpu-1", "gpu-2", "gpu-3", "gpu-4"]}
    if row.get("sticky"):
        return {"starts": ["head"]}
    return {"admit": ["follower"] if row["to"] == "parked" else []}


def is_kueues(case: Data, came: Data) -> bool:
    """Return whether the result equals Kueue's, including where Kueue does nothing."""
    expected = expected_by_kueue(case)
    return all(came.get(key, type(value)()) == value for key, value in expected.items())


def outcome_of(world: Iterable[Data], *, cycles: int | None = None) -> WorldOutcome:
    """Play the cluster for some sessions under the default configuration."""
    text = text_of_all(world)
    played = play(text, "case", config=_CONFIG, cycles=cycles)
    assert played.refused == 0
    assert played.refused_steps == ()
    return played.outcome


def first_minute(world: list[Data]) -> WorldOutcome:
    """Play the cluster for a minute, which is longer than any grace period."""
    whole = outcome_of(world, cycles=200)
    return outcome_of(world, cycles=sum(cycle.time <= HORIZON_S for cycle in whole.cycles))


def _told(world: list[Data]) -> Data:
    minute, first = first_minute(world), outcome_of(world, cycles=1)
    preempt = {
        _short(left.group): _BY_ACTION[left.reason]
        for cycle in minute.cycles
        for left in cycle.requeued
    }
    came: Data = {
        "preempt": preempt,
        "admit": [_short(name) for name in first.cycles[0].admitted],
        "pending": _pending(first, preempt),
        "starts": [_short(name) for cycle in minute.cycles[1:] for name in cycle.admitted],
    }
    return {key: value for key, value in came.items() if value}


def _pending(outcome: WorldOutcome, victims: Collection[str]) -> dict[str, str]:
    """Return the reasons of the new groups; Kueue's cycle does not yet include the victims."""
    return {
        _short(name): told_reason(group.reasons)
        for name, group in outcome.podgroups.items()
        if group.phase == "Pending" and _short(name) not in victims
    }


def _in_line(world: list[Data]) -> list[str]:
    groups = outcome_of(world, cycles=1).podgroups
    places = {_short(name): group.position or 0 for name, group in groups.items()}
    assert sorted(places.values()) == list(range(1, len(places) + 1))
    return sorted(places, key=places.__getitem__)


def _first_admitted(world: list[Data]) -> list[str]:
    admitted = outcome_of(world, cycles=1).cycles[0].admitted
    return [_short(name).replace("-", "_") for name in admitted]


def _short(name: str) -> str:
    return name.partition("/")[2]
