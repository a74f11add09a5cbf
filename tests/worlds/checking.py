"""Admission checks in seeded worlds: queues that require checks, and the controllers' answers.

Answers are steps of the world's Timeline, so that a world that shows a fault can be written to a
file. Some come when the check is not asked for: these are refused, and the world goes on.
"""

from __future__ import annotations

import random
from typing import Any

from msgspec import structs

from tests.worlds.making import Described, Manifest

CHECKS = ("a", "b", "c")
#: Few instants, because each costs a session or two.
_TIMES = (1, 5, 10, 20, 40, 60, 90)
_FRIENDLY = (*(("True", ""),) * 5, ("Unknown", "PreemptionRequired"))
_ANSWERS = (
    *(("True", ""),) * 12,
    ("False", "Retry"),
    ("False", "Reject"),
    ("Unknown", ""),
    *(("Unknown", "PreemptionRequired"),) * 2,
)


def with_checks(world: Described) -> Described:
    """Add checks to some queues of three worlds in five, which are not static any more."""
    dice = random.Random(f"checks {world.seed}")
    if dice.random() > 0.6:
        return world
    manifests = [dict(one) for one in world.manifests]
    queues = {one["metadata"]["name"]: one for one in manifests if one["kind"] == "Queue"}
    for one in queues.values():
        if dice.random() < 0.7:
            names = dice.sample(CHECKS, dice.choice((1, 1, 2)))
            one["spec"] = {**one["spec"], "admissionChecks": names}
    answers = dice.choice((_FRIENDLY, _ANSWERS))
    steps: list[Manifest] = []
    for one in manifests:
        if one["kind"] == "Timeline":
            steps += one["spec"]
    manifests = [one for one in manifests if one["kind"] != "Timeline"]
    _raise_priorities(dice, manifests)
    groups = [(0, one) for one in manifests if one["kind"] == "PodGroup"]
    if not any("podgroups" in one["spec"].get("hard", ()) for one in manifests):
        # Otherwise a later group may be refused, and a step about it would be meaningless.
        groups += [
            (_at(step), step["apply"])
            for step in steps
            if step.get("apply", {}).get("kind") == "PodGroup"
        ]
    for since, group in groups:
        steps += _answers(dice, _asked(queues, group["spec"]["queue"]), group, since, answers)
    manifests += [_check(dice, name) for name in CHECKS if dice.random() < 0.99]
    if steps:
        steps.sort(key=_at)
        meta = {"apiVersion": "batchq/v1", "kind": "Timeline", "metadata": {"name": "t"}}
        manifests.append({**meta, "spec": steps})
    return structs.replace(world, manifests=manifests, static=False)


def _raise_priorities(dice: random.Random, manifests: list[Manifest]) -> None:
    """Raise the priority of some waiting groups, so that preemptors appear."""
    for one in manifests:
        if one["kind"] == "PodGroup" and "status" not in one and dice.random() < 0.5:
            one["spec"] = {**one["spec"], "priorityClassName": "high"}


def _at(step: Manifest) -> int:
    return int(step["at"][:-1])


def _check(dice: random.Random, name: str) -> Manifest:
    spec: Manifest = {
        "controllerName": "somebody",
        "retryDelayMinutes": dice.choice((0, 1, 1, 2)),
        "preemptionPolicy": dice.choice(("Anytime", *("AfterCheckPassedOrOnDemand",) * 3)),
        "unknownTimeout": f"{dice.choice((15, 100, 100, 1800))}s",
        "onTimeout": dice.choice(("Retry", "Retry", "Reject")),
    }
    status: dict[str, Any] = {"active": dice.random() < 0.98}
    if dice.random() < 0.05:
        status["expiresAt"] = dice.choice(_TIMES)
    made = {"metadata": {"name": name}, "spec": spec, "status": status}
    return {"apiVersion": "batchq/v1", "kind": "AdmissionCheck", **made}


def _asked(queues: dict[str, Manifest], queue: str) -> list[str]:
    """Return the checks of a queue and of its ancestors, from the root down."""
    found: dict[str, None] = {}
    above: list[str] = []
    while queue in queues:
        above.insert(0, queue)
        queue = queues[queue]["spec"].get("parent", "")
    for name in above:
        found |= dict.fromkeys(queues[name]["spec"].get("admissionChecks", ()))
    return list(found)


def _answers(
    dice: random.Random,
    names: list[str],
    group: Manifest,
    since: int,
    answers: tuple[tuple[str, str], ...],
) -> list[Manifest]:
    """Give admitted groups True for some checks; the other checks joined the queue since."""
    if "status" in group and group["status"].get("phase") != "Pending":
        names = [name for name in names if dice.random() < 0.7]
        result = [{"name": name, "status": "True"} for name in names]
        group["status"] = {**group["status"], "checks": result}
    key = f"{group['metadata']['namespace']}/{group['metadata']['name']}"
    steps = []
    for name in names:
        if dice.random() < 0.15:
            continue
        for at in sorted(dice.sample(_TIMES, dice.randint(1, 3))):
            status, reason = dice.choice(answers)
            said = {"podGroup": key, "check": name, "status": status, "reason": reason}
            steps.append({"at": f"{max(at, since + 1) if since else at}s", "setCheck": said})
    return steps
