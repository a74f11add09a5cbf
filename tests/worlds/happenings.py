"""Changes by operators and users in busy worlds: queues are stopped for a while and get guarantees,
nodes join and change their size, groups change priority or are cancelled, pods have scheduling
gates, and clocks run faster. And, in all worlds, queues that accept certain namespaces only.

Seeds below FIRST are unchanged, because faults found earlier are known by their seed.
"""

from __future__ import annotations

import random

from msgspec import structs

from tests.worlds.making import Described, Manifest

#: The first seed whose world has such changes.
FIRST = 200_000
#: The first seed in whose world queues may accept certain namespaces only.
FIRST_WITH_NAMESPACES = 1_175_000
_ORDERS = (
    ["enqueue", "allocate", "preempt", "reclaim", "backfill"],
    ["enqueue", "backfill", "allocate", "reclaim", "preempt"],
    ["reclaim", "preempt", "enqueue", "allocate", "backfill"],
    ["enqueue", "reclaim", "preempt", "allocate", "backfill"],
)
_CLASSES = ("low", "mid", "high", "polite")


def with_happenings(world: Described) -> Described:
    """Return the world with more steps in its Timeline, which is its last document."""
    dice = random.Random(f"wide happenings {world.seed}")
    *manifests, timeline = [dict(one) for one in world.manifests]
    steps: list[Manifest] = list(timeline["spec"])
    _guarantee(dice, manifests)
    _gate_templates(dice, manifests, steps)
    _stop_queues(dice, manifests, steps)
    _change_nodes(dice, manifests, steps)
    _change_groups(dice, manifests, steps)
    steps.sort(key=_at)
    return structs.replace(
        world,
        manifests=[*manifests, {**timeline, "spec": steps}],
        config={**world.config, **_clocks(dice)},
    )


def with_namespaces(world: Described) -> Described:
    """Return the world, in two cases of five with queues that accept certain namespaces only, for a
    while or from the start.
    """
    dice = random.Random(f"namespaces {world.seed}")
    if world.seed < FIRST_WITH_NAMESPACES or dice.random() > 0.4:
        return world
    manifests = [dict(one) for one in world.manifests]
    steps: list[Manifest] = []
    has_timeline = manifests[-1]["kind"] == "Timeline"
    for one in _of_kind(manifests, "Queue"):
        accepted = dice.sample(("red", "blue", "kube-system"), dice.randint(1, 2))
        spec = {**one["spec"], "namespaces": accepted}
        if dice.random() > 0.4:
            continue
        if has_timeline and dice.random() < 0.6:
            steps += _for_a_while(dice, dict(one), spec)
        else:
            one["spec"] = spec
    if steps:
        timeline = manifests[-1]
        timeline["spec"] = sorted([*timeline["spec"], *steps], key=_at)
    return structs.replace(world, manifests=manifests)


def _at(step: Manifest) -> int:
    return int(step["at"][:-1])


def _of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [one for one in manifests if one["kind"] == kind]


def _for_a_while(dice: random.Random, made: Manifest, spec: Manifest) -> list[Manifest]:
    begins = dice.randint(1, 90)
    ends = begins + dice.randint(5, 60)
    return [
        {"at": f"{begins}s", "apply": {**made, "spec": spec}},
        {"at": f"{ends}s", "apply": made},
    ]


def _clocks(dice: random.Random) -> Manifest:
    config: Manifest = {}
    if dice.random() < 0.4:
        config["inQueueTimeout"] = f"{dice.choice((20, 60))}s"
    if dice.random() < 0.2:
        config["recoveryTimeout"] = "20s"
    if dice.random() < 0.1:
        config["fairness"] = dict(
            dice.choice(
                ({"halfLife": "off"}, {"halfLife": "60s"}, {"halfLife": "60s", "order": "usage"})
            )
        )
    if dice.random() < 0.2:
        config["actions"] = list(dice.choice(_ORDERS))
    return config


def _guarantee(dice: random.Random, manifests: list[Manifest]) -> None:
    """Give some queues guarantees, at most what they deserve or may hold; in a tree either the
    parent or its children, which may state what they deserve, too.
    """
    nodes = _of_kind(manifests, "Node")
    left: int = sum(one["spec"]["resources"]["cpu"] for one in nodes)
    queues = _of_kind(manifests, "Queue")
    if dice.random() < 0.4:
        _deserve(queues, left)
    above = {one["spec"].get("parent") for one in queues}
    tops = {one["metadata"]["name"]: one["spec"] for one in queues}
    to_children = dice.random() < 0.5
    for one in queues:
        spec, parent = one["spec"], one["spec"].get("parent")
        fits = not to_children if one["metadata"]["name"] in above else to_children or not parent
        if dice.random() > 0.3 or not fits:
            continue
        stated = [spec[name]["cpu"] for name in ("deserved", "capability") if name in spec]
        if parent and "capability" in tops[parent]:
            stated.append(tops[parent]["capability"]["cpu"] // len(queues))
        most = min([left // 2, *stated])
        if most > 0:
            amount = dice.randint(1, most)
            one["spec"] = {**spec, "guarantee": {"cpu": amount}}
            left -= amount


def _deserve(queues: list[Manifest], cpu: int) -> None:
    children = [one for one in queues if "parent" in one["spec"]]
    for one in children:
        share = cpu // (2 * len(children))
        most = one["spec"].get("capability", {}).get("cpu", share)
        one["spec"] = {**one["spec"], "deserved": {"cpu": min(share, most)}}


def _stop_queues(dice: random.Random, manifests: list[Manifest], steps: list[Manifest]) -> None:
    for one in _of_kind(manifests, "Queue"):
        if dice.random() < 0.2:
            policy = dice.choice(("Hold", "HoldAndDrain"))
            steps += _for_a_while(dice, one, {**one["spec"], "stopPolicy": policy})


def _change_nodes(dice: random.Random, manifests: list[Manifest], steps: list[Manifest]) -> None:
    nodes = _of_kind(manifests, "Node")
    for place in range(dice.choice((0, 0, 1, 2))):
        model = dice.choice(nodes)
        metadata = {**model["metadata"], "name": f"m{place}", "uid": f"node-m{place}"}
        steps.append(
            {"at": f"{dice.randint(1, 90)}s", "apply": {**model, "metadata": metadata}},
        )
    for one in nodes:
        if dice.random() < 0.15:
            resources = {**one["spec"]["resources"], "cpu": dice.randint(1, 8)}
            steps += _for_a_while(dice, one, {**one["spec"], "resources": resources})


def _groups(manifests: list[Manifest], steps: list[Manifest]) -> list[tuple[int, Manifest]]:
    """Return every group, and when it is created."""
    first = [(0, one) for one in _of_kind(manifests, "PodGroup")]
    return first + [
        (_at(step), step["apply"])
        for step in steps
        if step.get("apply", {}).get("kind") == "PodGroup"
    ]


def _gate_templates(dice: random.Random, manifests: list[Manifest], steps: list[Manifest]) -> None:
    """Put scheduling gates on some pods, and open them later."""
    for since, group in _groups(manifests, steps):
        if dice.random() > 0.1:
            continue
        task = dice.choice(group["spec"]["tasks"])
        task["template"]["schedulingGates"] = [{"name": "own"}]
        opened = {"podGroup": _key(group), "gate": "own"}
        steps.append({"at": f"{since + dice.randint(1, 60)}s", "openGate": opened})


def _change_groups(dice: random.Random, manifests: list[Manifest], steps: list[Manifest]) -> None:
    for since, group in _groups(manifests, steps):
        at = since + dice.randint(1, 60)
        spec = group["spec"]
        key = _key(group)
        if dice.random() < 0.15 and not ("suspend" in spec or "schedulingGates" in spec):
            changed = {**spec, "priorityClassName": dice.choice(_CLASSES)}
            steps.append({"at": f"{at}s", "apply": {**group, "spec": changed}})
        elif dice.random() < 0.1 and not any(_is_about(step, key) for step in steps):
            steps.append({"at": f"{at}s", "delete": f"PodGroup/{key}"})


def _key(group: Manifest) -> str:
    return f"{group['metadata']['namespace']}/{group['metadata']['name']}"


def _is_about(step: Manifest, key: str) -> bool:
    """Return whether a step names the group; the step that creates it does not count."""
    named = [step.get("suspend"), step.get("resume")]
    named += [step.get(deed, {}).get("podGroup") for deed in ("openGate", "setCheck")]
    return key in named
