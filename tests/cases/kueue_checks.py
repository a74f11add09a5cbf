"""Kueue's cases of admission checks (K37, K39, K40) as clusters, and their results.

| Kueue                                | batchq                                                  |
|--------------------------------------|---------------------------------------------------------|
| Pending, Ready                       | Unknown, True                                           |
| Retry, Rejected                      | False with the reason Retry, Reject                     |
| evicted, reason AdmissionCheck       | evicted with the reason CheckRetry                      |
| requeueAfterSeconds, of each answer  | retryDelayMinutes, of each check: seconds are minutes   |
| requeueAt that was already set       | a backoff that has already begun                        |
| in the active queue                  | pending: its quota is reserved as soon as it fits       |
"""

from __future__ import annotations

from typing import Any

from batchq.config.load import read_config
from batchq.lab.simulation import play
from batchq.lab.simulation.report import WorldOutcome
from tests.cases.peers import Data
from tests.sim.worlds import check, group, node, pod, queue, timeline
from tests.yaml_text import text_of_all

_CONFIG = read_config("actions: enqueue, allocate, reclaim, preempt", "config")
_STATES: dict[str, tuple[str, str]] = {
    "Pending": ("Unknown", ""),
    "Ready": ("True", ""),
    "Retry": ("False", "Retry"),
    "Rejected": ("False", "Reject"),
}
_WORDS = {"Unknown": "Pending", "True": "Ready"}
_MINUTE = 60


def came_of_checks(case: Data) -> Data:
    """Return batchq's result, in Kueue's terms where they exist."""
    if "given" in case:
        return _evicted(case)
    if "existing_requeue_at" in case:
        return {"requeue_at": _reserved_at(_delayed(case))}
    if "requeued" in case:
        return _woken(case)
    if "event" in case:
        return _list_changed(added="added" in case["event"])
    if "queue_rules" in case:
        came = _first(_world(case["queue_rules"], _reserved(case["workload_checks"])))
        return {"checks": _checks(came)}
    return _synced(case)


def expected_of_checks(case: Data) -> Data:
    """Return Kueue's result in the form of `came_of_checks`."""
    if "given" in case:
        states = {name: one["state"] for name, one in case["expect"]["checks"].items()}
        return {"left": "CheckRetry", "checks": states}
    if "existing_requeue_at" in case:
        return {"requeue_at": case["expect_requeue_at"]}
    if "requeued" in case:
        waits = case["requeue_at"] > case["now"]
        return {"in_line": False, "wakes_at": case["requeue_at"]} if waits else {"in_line": True}
    if "event" in case:
        if "added" in case["event"]:
            return {"checks": {"a": "Ready", "b": "Pending"}, "admitted": True}
        return {"checks": {"a": "Ready"}, "admitted": True}
    if "queue_rules" in case:
        return {"checks": case["expect"]}
    if "expect_admitted" in case:
        return {"admitted": case["expect_admitted"]}
    if "Retry" in case["checks"]:
        return {"admitted": False, "left": "CheckRetry"}
    return {"admitted": False, "left": "deactivated"}


def _world(names: list[str], *groups: Data, delay: int = 1, **spec: Any) -> list[Data]:
    checks = [check(name, retryDelayMinutes=delay) for name in names]
    return [node("n1", 10), *checks, queue("q", admissionChecks=names, **spec), *groups]


def _told(states: dict[str, str]) -> list[Data]:
    return [
        {"name": name, "status": _STATES[state][0], "reason": _STATES[state][1]}
        for name, state in states.items()
    ]


def _reserved(states: dict[str, str]) -> Data:
    return group("w", queue="q", status={"reservedAt": 0, "checks": _told(states)})


def _runs(states: dict[str, str]) -> list[Data]:
    status = {"phase": "Running", "reservedAt": 0, "checks": _told(states)}
    return [
        group("w", queue="q", status=status),
        pod("w-t-0", "w", phase="Running", node="n1"),
    ]


def _evicted(case: Data) -> Data:
    """Return the groups evicted at once, and when each check is evaluated again."""
    states = {name: one["state"] for name, one in case["given"]["checks"].items()}
    world = _world(list(states), _reserved(states))
    return {
        **_left(_first(world)),
        "checks": _checks(_first(world)),
        "asked_again": _reserved_at(world),
    }


def _delayed(case: Data) -> list[Data]:
    names = [f"c{place}" for place in range(len(case["checks"]))]
    checks = [
        check(n, retryDelayMinutes=c["after"]) for n, c in zip(names, case["checks"], strict=True)
    ]
    actual = [
        {"name": name, "status": "False", "reason": "Retry", "since": one["at"] * _MINUTE}
        for name, one in zip(names, case["checks"], strict=True)
    ]
    status: Data = {"checks": actual}
    if case["existing_requeue_at"] is not None:
        status["backoffUntil"] = case["existing_requeue_at"] * _MINUTE
    return [
        node("n1", 10),
        *checks,
        queue("q", admissionChecks=names),
        group("w", queue="q", created=0, status=status),
    ]


def _woken(case: Data) -> Data:
    """Return the cluster at minute 20; the retry's delay of ten ends `requeue_at` minutes later."""
    since = (20 + case["requeue_at"] - 10) * _MINUTE
    actual = [{"name": "a", "status": "False", "reason": "Retry", "since": since}]
    waits = group("w", queue="q", created=20 * _MINUTE, status={"checks": actual})
    world = _world(["a"], waits, delay=10)
    came = _first(world)
    if any(cycle.reserved for cycle in came.cycles):
        return {"in_line": True}
    assert came.podgroups["default/w"].reasons[0].reason == "BackingOff"
    return {"in_line": False, "wakes_at": _reserved_at(world) - 20}


def _list_changed(*, added: bool) -> Data:
    """Add a check while the workload runs, or remove the check that the workload waits for."""
    after = ["a", "b"] if added else ["a"]
    step = timeline({"at": "5s", "apply": queue("q", admissionChecks=after)})
    if added:
        world = [*_world(["a"], *_runs({"a": "Ready"})), check("b"), step]
    else:
        world = [*_world(["a", "b"], _reserved({"a": "Ready", "b": "Pending"})), step]
    came = _outcome(world, 10)
    return {"checks": _checks(came), "admitted": _is_admitted(came)}


def _synced(case: Data) -> Data:
    states = dict(zip("ab", case["checks"], strict=False))
    if not case["reserved"]:
        # In batchq no group loses only its reservation, so its queue is drained.
        came = _first(_world(list(states), *_runs(states), stopPolicy="HoldAndDrain"))
        return {"admitted": _is_admitted(came)}
    groups = _runs(states) if case["admitted_before"] else [_reserved(states)]
    came = _first(_world(list(states), *groups))
    return {"admitted": _is_admitted(came), **_left(came)}


def _outcome(world: list[Data], cycles: int) -> WorldOutcome:
    text = text_of_all(world)
    played = play(text, "case", config=_CONFIG, cycles=cycles)
    assert (played.refused, played.refused_steps) == (0, ())
    return played.outcome


def _first(world: list[Data]) -> WorldOutcome:
    return _outcome(world, 1)


def _checks(came: WorldOutcome) -> dict[str, str]:
    return {
        name: _WORDS.get(status, status)
        for name, status in came.podgroups["default/w"].checks.items()
    }


def _is_admitted(came: WorldOutcome) -> bool:
    return came.podgroups["default/w"].phase in ("InQueue", "Running")


def _left(came: WorldOutcome) -> Data:
    """Return the reason why it lost its reservation, if it did."""
    for cycle in came.cycles:
        for left in cycle.requeued:
            return {"left": str(left.reason)}
        if cycle.finished:
            return {"left": f"Failed, {came.podgroups['default/w'].reasons[0].reason}"}
    return {}


def _reserved_at(world: list[Data]) -> int:
    """Return the minute of the file's clock in which it is pending again and reserves its quota."""
    stamps = [0]
    for item in world:
        stamps.append(item["metadata"].get("creationTimestamp", 0))
        stamps += [one.get("since", 0) for one in item.get("status", {}).get("checks", ())]
    came = _outcome(world, 10)
    second = next(cycle.time for cycle in came.cycles if cycle.reserved)
    return (max(stamps) + second) // _MINUTE
