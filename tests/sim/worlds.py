"""Short manifests for tests, and functions that play the worlds they describe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from batchq.config.load import read_config
from batchq.errors import InvalidInput
from batchq.lab.simulation import play
from batchq.lab.simulation.report import CycleStory, GroupOutcome, WorldOutcome
from tests.yaml_text import text_of_all

Manifest = dict[str, Any]


def manifest(kind: str, name: str, spec: Any = None, **more: Any) -> Manifest:
    metadata = {"name": name, **more.pop("metadata", {})}
    found = {"apiVersion": "batchq/v1", "kind": kind, "metadata": metadata, **more}
    return found if spec is None else {**found, "spec": spec}


def node(name: str, cpu: Any = 4, **resources: Any) -> Manifest:
    return manifest("Node", name, {"resources": {"cpu": cpu, **resources}})


def cordoned(name: str, cpu: Any = 4) -> Manifest:
    """Return a node that takes no new pods."""
    return manifest("Node", name, {"resources": {"cpu": cpu}, "unschedulable": True})


def queue(name: str, **spec: Any) -> Manifest:
    return manifest("Queue", name, spec)


def taker(name: str, **spec: Any) -> Manifest:
    """Return a queue that reclaims what it deserves, from groups of any priority."""
    preemption = {"reclaim": "Any", **spec.pop("preemption", {})}
    return queue(name, preemption=preemption, **spec)


def quota(namespace: str, **hard: Any) -> Manifest:
    return manifest("ResourceQuota", "quota", {"hard": hard}, metadata={"namespace": namespace})


def priority(name: str, value: int) -> Manifest:
    return manifest("PriorityClass", name, {"value": value})


def group(
    name: str,
    pods: int = 1,
    cpu: Any = 1,
    *,
    runtime: str | None = None,
    grace: str | None = None,
    namespace: str = "default",
    status: Manifest | None = None,
    created: int | None = None,
    uid: str | None = None,
    **spec: Any,
) -> Manifest:
    """Return a group of one task `t`; `runtime` is how long its pods run, None for ever."""
    template: Manifest = {"requests": {"cpu": cpu}}
    if runtime is not None:
        template["annotations"] = {"batchq/runtime": runtime}
    if grace is not None:
        template["terminationGrace"] = grace
    metadata: Manifest = {"namespace": namespace}
    if created is not None:
        metadata["creationTimestamp"] = created
    if uid is not None:
        metadata["uid"] = uid
    tasks = spec.pop("tasks", [{"name": "t", "replicas": pods, "template": template}])
    more = {} if status is None else {"status": status}
    return manifest("PodGroup", name, {"tasks": tasks, **spec}, metadata=metadata, **more)


def task(
    name: str,
    pods: int,
    cpu: Any,
    runtime: str | None = None,
    *,
    grace: str | None = None,
    **resources: Any,
) -> Manifest:
    """Return a task of a group that has several."""
    (found,) = group("any", pods, cpu, runtime=runtime, grace=grace)["spec"]["tasks"]
    found["template"]["requests"] |= resources
    return {**found, "name": name}


def pod(name: str, of: str, index: int = 0, *, task: str = "t", **status: Any) -> Manifest:
    metadata = {"namespace": "default"}
    spec = {"podGroup": of, "task": task, "index": index}
    return manifest("Pod", name, spec, metadata=metadata, status=status)


def check(name: str, *, active: bool | None = None, **spec: Any) -> Manifest:
    """Return an admission check; its controller is active unless `active` is False."""
    more = {} if active is None else {"status": {"active": active}}
    return manifest("AdmissionCheck", name, {"controllerName": "somebody", **spec}, **more)


def answers(at: int, group: str, check: str, status: Any, reason: str = "") -> Manifest:
    """Return a controller's answer about a group, this many seconds after the start."""
    said = {"podGroup": f"default/{group}", "check": check, "status": status}
    return {"at": f"{at}s", "setCheck": {**said, **({"reason": reason} if reason else {})}}


def opens(at: int, group: str, gate: str) -> Manifest:
    """Return the opening of a group's gate, this many seconds after the start."""
    return {"at": f"{at}s", "openGate": {"podGroup": f"default/{group}", "gate": gate}}


def applies(at: int, applied: Manifest) -> Manifest:
    """Return the application of a manifest, this many seconds after the start."""
    return {"at": f"{at}s", "apply": applied}


def timeline(*steps: Manifest) -> Manifest:
    return manifest("Timeline", "timeline", list(steps))


def outcome(*manifests: Manifest, cycles: int | None = None, config: str = "") -> WorldOutcome:
    """Return the outcome of the world that these manifests describe."""
    text = text_of_all(manifests)
    return play(text, "world", config=read_config(config, "config"), cycles=cycles).outcome


def outcome_until(second: int, *manifests: Manifest, config: str = "") -> WorldOutcome:
    """Return the state of the world at that second, after all events due until then."""
    more = outcome(*manifests, cycles=60, config=config).cycles
    assert len(more) < 60 or more[-1].time > second, "the world has more sessions until then"
    cycles = sum(cycle.time <= second for cycle in more)
    return outcome(*manifests, cycles=cycles, config=config)


def refusal(*manifests: Manifest) -> str:
    """Return the sentence with which the world is refused."""
    with pytest.raises(InvalidInput) as caught:
        outcome(*manifests)
    return caught.value.message


def refused_steps(*manifests: Manifest) -> tuple[str, ...]:
    """Return the Timeline steps that the rules refuse; the world goes on."""
    text = text_of_all(manifests)
    return play(text, "world.yaml", config=read_config("", "config")).refused_steps


def _each(pick: Callable[[CycleStory], Any]) -> Callable[[WorldOutcome], list[tuple[int, Any]]]:
    return lambda outcome: [(c.time, pick(c)) for c in outcome.cycles if pick(c)]


#: Return (time, names) of every session in which there are any.
reserved = _each(lambda cycle: cycle.reserved)
admitted = _each(lambda cycle: cycle.admitted)
bound = _each(lambda cycle: cycle.bound)
created = _each(lambda cycle: cycle.created)
finished = _each(lambda cycle: cycle.finished)
requeued = _each(lambda cycle: [(item.group, item.reason) for item in cycle.requeued])
evicted = _each(lambda cycle: [(item.pod, item.reason) for item in cycle.evicted])
pledged = _each(lambda cycle: cycle.pledged)


def starts(outcome: WorldOutcome) -> dict[str, int]:
    """Return pod -> the time of its last bind. The namespace default is left out."""
    return {
        pod.removeprefix("default/"): cycle.time for cycle in outcome.cycles for pod in cycle.bound
    }


def story(outcome: WorldOutcome) -> list[str]:
    """Return every decision, one line for each kind in a session: `30 bound g-t-0, g-t-1`. The
    namespace default is left out.
    """
    seen = []
    for cycle in outcome.cycles:
        sorts = {
            "requeued": [f"{item.group} {item.reason}" for item in cycle.requeued],
            "evicted": [f"{item.pod} {item.reason}" for item in cycle.evicted],
            "pledged": [f"{', '.join(pods)} to {name}" for name, pods in cycle.pledged.items()],
            "reserved": cycle.reserved,
            "admitted": cycle.admitted,
            "bound": list(cycle.bound),
            "finished": cycle.finished,
        }
        seen += [f"{cycle.time} {sort} {', '.join(what)}" for sort, what in sorts.items() if what]
    return [line.replace("default/", "") for line in seen]


def of(outcome: WorldOutcome, name: str, namespace: str = "default") -> GroupOutcome:
    return outcome.podgroups[f"{namespace}/{name}"]


def reasons(outcome: WorldOutcome, name: str, namespace: str = "default") -> list[str]:
    return [reason.reason for reason in of(outcome, name, namespace).reasons]


def phases(outcome: WorldOutcome) -> dict[str, str]:
    return {key.removeprefix("default/"): item.phase for key, item in outcome.podgroups.items()}
