"""Validation of single objects, in submissions and in described clusters."""

from __future__ import annotations

from typing import Any

import pytest

from batchq.api.manifest import decode
from batchq.api.objects import Object, PodGroup
from batchq.api.validation import check, contradictions
from batchq.errors import InvalidInput


def read(kind: str, spec: Any) -> Object:
    data = {"apiVersion": "batchq/v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    return decode(data)


def task(name: str = "w", **fields: Any) -> dict[str, Any]:
    return {"name": name, "template": {"command": ["true"]}, **fields}


def template(**fields: Any) -> dict[str, Any]:
    return {"tasks": [{"name": "w", "template": {"command": ["true"], **fields}}]}


def group(*tasks: Any, **spec: Any) -> dict[str, Any]:
    return {"tasks": list(tasks) or [task()], **spec}


def problem(obj: Object, *, described: bool = False) -> str:
    with pytest.raises(InvalidInput) as caught:
        check(obj, described=described)
    return caught.value.message


ALWAYS_WRONG: dict[str, tuple[str, Any, str]] = {
    "fewer than no replicas": (
        "PodGroup",
        group(task(replicas=-1)),
        "PodGroup default/x: spec.tasks[0].replicas: expected a number from 0 to 1000000, found -1",
    ),
    "too many replicas in all": (
        "PodGroup",
        group(task("a", replicas=600_000), task("b", replicas=600_000)),
        "PodGroup default/x: the replicas of all tasks: expected at most 1000000, found 1200000",
    ),
    "two tasks of one name": (
        "PodGroup",
        group(task("a"), task("a")),
        "PodGroup default/x: spec.tasks: 'a' is named twice",
    ),
    "two gates of one name": (
        "PodGroup",
        group(schedulingGates=[{"name": "g"}, {"name": "g"}]),
        "PodGroup default/x: spec.schedulingGates: 'g' is named twice",
    ),
    "two dependencies on one group": (
        "PodGroup",
        group(dependsOn=[{"name": "g"}, {"name": "g", "condition": "any"}]),
        "PodGroup default/x: spec.dependsOn: 'g' is named twice",
    ),
    "too many gates": (
        "PodGroup",
        group(schedulingGates=[{"name": f"g{number}"} for number in range(65)]),
        "PodGroup default/x: spec.schedulingGates: expected at most 64, found 65",
    ),
    "two gates of one name in a template": (
        "PodGroup",
        template(schedulingGates=[{"name": "g"}, {"name": "g"}]),
        "PodGroup default/x: spec.tasks[0].template.schedulingGates: 'g' is named twice",
    ),
    "too many gates in a template": (
        "PodGroup",
        template(schedulingGates=[{"name": f"g{number}"} for number in range(65)]),
        "PodGroup default/x: spec.tasks[0].template.schedulingGates: expected at most 64, found 65",
    ),
    "too many gates in all": (
        "PodGroup",
        group(
            *(
                task(
                    f"t{place}",
                    template={
                        "command": ["true"],
                        "schedulingGates": [{"name": f"g{number}"} for number in range(50)],
                    },
                )
                for place in range(20)
            ),
            schedulingGates=[{"name": "g"}],
        ),
        "PodGroup default/x: the gates of all tasks: expected at most 1000, found 1001",
    ),
    "two gates of one name on a pod": (
        "Pod",
        {"podGroup": "g", "task": "w", "schedulingGates": [{"name": "a"}, {"name": "a"}]},
        "Pod default/x: spec.schedulingGates: 'a' is named twice",
    ),
    "no walltime at all": (
        "PodGroup",
        group(walltime="0s"),
        "PodGroup default/x: spec.walltime: expected more than 0s; leave it out for no limit",
    ),
    "a long command": (
        "PodGroup",
        template(command=["x" * 131_072]),
        (
            "PodGroup default/x: spec.tasks[0].template.command, in bytes: expected at most 131072,"
            " found 131073"
        ),
    ),
    "too many variables": (
        "PodGroup",
        template(env={f"v{number}": "" for number in range(1001)}),
        "PodGroup default/x: spec.tasks[0].template.env: expected at most 1000, found 1001",
    ),
    "a variable that cannot be": (
        "PodGroup",
        template(env={"a=b": ""}),
        (
            "PodGroup default/x: spec.tasks[0].template.env: expected a name without '=' for a"
            " variable, found 'a=b'"
        ),
    ),
    "a command and a function": (
        "PodGroup",
        template(function="a:b"),
        (
            "PodGroup default/x: spec.tasks[0].template: expected a command or a function, found"
            " both; keep one of the two"
        ),
    ),
    "arguments of a command": (
        "PodGroup",
        template(args=[1]),
        (
            "PodGroup default/x: spec.tasks[0].template.args: only a function has arguments; name"
            " one, or leave it out"
        ),
    ),
    "named arguments of a command": (
        "PodGroup",
        template(kwargs={"a": 1}),
        (
            "PodGroup default/x: spec.tasks[0].template.kwargs: only a function has arguments; name"
            " one, or leave it out"
        ),
    ),
    "arguments that are too large": (
        "PodGroup",
        template(command=[], function="a:b", args=["x" * 40_000], kwargs={"k": "x" * 25_532}),
        (
            "PodGroup default/x: spec.tasks[0].template.args and kwargs: expected at most 65536"
            " bytes of JSON, found 65537; pass the path of a file instead"
        ),
    ),
    "a NUL in a command": (
        "PodGroup",
        template(command=["a\0b"]),
        (
            "PodGroup default/x: spec.tasks[0].template.command: a NUL character cannot be passed"
            " to"
            " a process"
        ),
    ),
    "more than a sum can hold": (
        "PodGroup",
        group(
            task(replicas=1000, template={"command": ["a"], "requests": {"memory": 2**53}}),
        ),
        (
            "PodGroup default/x: spec.tasks[0].template.requests.memory: the 1000 replicas together"
            " ask for over 2^53 units"
        ),
    ),
    "a pod that counts twice": (
        "PodGroup",
        template(requests={"pods": 2}),
        (
            "PodGroup default/x: spec.tasks[0].template.requests.pods: every pod counts as one;"
            " leave it out"
        ),
    ),
    "a long annotation": (
        "PodGroup",
        template(annotations={"a": "x" * 262_144}),
        (
            "PodGroup default/x: spec.tasks[0].template.annotations, in bytes: expected at most"
            " 262144, found 262145"
        ),
    ),
    "a negative weight": (
        "Queue",
        {"weight": -1},
        "Queue x: spec.weight: expected a number from 0 to 1000000, found -1",
    ),
    "more guaranteed than deserved": (
        "Queue",
        {"guarantee": {"memory": "2Gi"}, "deserved": {"memory": "1Gi"}},
        "Queue x: spec.guarantee.memory: expected at most its deserved of 1Gi, found 2Gi",
    ),
    "more deserved than allowed": (
        "Queue",
        {"deserved": {"cpu": 2}, "capability": {"cpu": 1}},
        "Queue x: spec.deserved.cpu: expected at most its capability of 1, found 2",
    ),
    "a queue below itself": (
        "Queue",
        {"parent": "x"},
        (
            "Queue x: spec.parent: a queue cannot be its own parent; name another one, or leave it"
            " out"
        ),
    ),
    "a priority to borrow up to that is none": (
        "Queue",
        {"preemption": {"borrowing": 1_000_000_001}},
        (
            "Queue x: spec.preemption.borrowing: expected a number from -1000000000 to 1000000000,"
            " found 1000000001"
        ),
    ),
    "too many resources guaranteed": (
        "Queue",
        {"guarantee": {f"r{number}": 1 for number in range(65)}},
        "Queue x: spec.guarantee: expected at most 64, found 65",
    ),
    "too many resources deserved": (
        "Queue",
        {"deserved": {f"r{number}": 1 for number in range(65)}},
        "Queue x: spec.deserved: expected at most 64, found 65",
    ),
    "guaranteed groups": (
        "Queue",
        {"guarantee": {"podgroups": 1}},
        "Queue x: spec.guarantee.podgroups: groups are no resource; spec.maxPodGroups limits them",
    ),
    "more guaranteed than allowed": (
        "Queue",
        {"guarantee": {"cpu": 2}, "capability": {"cpu": "500m"}},
        "Queue x: spec.guarantee.cpu: expected at most its capability of 500m, found 2",
    ),
    "a namespace accepted twice": (
        "Queue",
        {"namespaces": ["lab", "course", "lab"]},
        "Queue x: spec.namespaces: 'lab' is named twice",
    ),
    "too many namespaces accepted": (
        "Queue",
        {"namespaces": [f"n{number}" for number in range(257)]},
        "Queue x: spec.namespaces: expected at most 256, found 257",
    ),
    "a priority beyond the bounds": (
        "PriorityClass",
        {"value": 2_000_000_000},
        (
            "PriorityClass x: spec.value: expected a number from -1000000000 to 1000000000,"
            " found 2000000000"
        ),
    ),
}


@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize("case", ALWAYS_WRONG)
def test_an_invalid_manifest_is_refused_in_a_submission_and_in_a_described_cluster(
    case: str, described: bool
) -> None:
    kind, spec, message = ALWAYS_WRONG[case]
    assert problem(read(kind, spec), described=described) == message


CONTRADICTIONS: dict[str, tuple[Any, str]] = {
    "nothing to run": (
        {"tasks": []},
        "expected at least one task with at least one replica, found none",
    ),
    "no replicas": (
        group(task(replicas=0)),
        "expected at least one task with at least one replica, found none",
    ),
    "a gang of none": (
        group(minMember=0),
        "spec.minMember: expected at least 1, found 0",
    ),
    "a gang with too few pods": (
        group(task(replicas=4), minMember=5),
        "spec.minMember: expected at most the 4 replicas of all tasks, found 5",
    ),
    "a gang that no server could start at once": (
        group(task(replicas=50_001)),
        ("spec.minMember: expected at most 50,000 pods that start together, found 50,001; for"
        " independent pods, state minMember: 1, or submit an --array"),
    ),
    "more available than a gang": (
        group(task("a", replicas=3, minAvailable=2), task("b", replicas=3, minAvailable=2),
              minMember=3),
        "minAvailable adds up to 4, which is more than minMember 3",
    ),
    "more available than replicas": (
        group(task("a", replicas=1, minAvailable=2), task("b", replicas=3)),
        "spec.tasks[0].minAvailable: expected at most its 1 replica, found 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_contradiction_is_refused_in_a_submission_and_kept_in_a_described_cluster(
    case: str,
) -> None:
    spec, message = CONTRADICTIONS[case]
    obj = read("PodGroup", spec)
    assert isinstance(obj, PodGroup)
    assert contradictions(obj) == [message]
    assert problem(obj) == f"PodGroup default/x: {message}"
    check(obj, described=True)


def test_only_a_described_cluster_may_omit_commands() -> None:
    obj = read("PodGroup", {"tasks": [{"name": "w"}]})
    check(obj, described=True)
    assert problem(obj) == (
        "PodGroup default/x: spec.tasks[0].template.command: expected a command or a function for"
        " its pods to run, found none"
    )


def test_the_root_queue_has_no_parent() -> None:
    data = {"apiVersion": "batchq/v1", "kind": "Queue", "metadata": {"name": "root"}}
    check(decode({**data, "spec": {"capability": {"cpu": 4}, "deserved": {"cpu": 4}}}))
    assert problem(decode({**data, "spec": {"parent": "org"}})) == (
        "Queue root: spec.parent: the root queue has no parent; leave it out"
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"parent": "Team A"},
            (
                "Queue x: spec.parent: expected at most 253 lower-case letters, digits, '-' and"
                " '.', with a letter or digit at both ends, found 'Team A'"
            ),
        ),
        (
            {"guarantee": {"a b": 0}},
            "Queue x: spec.guarantee: expected a name such as gpu or example.com/gpu, found 'a b'",
        ),
        (
            {"deserved": {"-": 1}},
            "Queue x: spec.deserved: expected a name such as gpu or example.com/gpu, found '-'",
        ),
    ],
)
def test_a_queue_with_an_invalid_field_is_refused(spec: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read("Queue", spec)
    assert caught.value.message == message


def test_implemented_fields_are_accepted() -> None:
    queue = {
        "parent": "org",
        "weight": 0,
        "guarantee": {"cpu": 1, "gpu": 0},
        "deserved": {"cpu": 2},
        "capability": {"cpu": 4},
        "reclaimable": False,
        "preemption": {"withinQueue": "Never", "reclaim": "LowerPriority", "borrowing": -5},
        "maxPodGroups": 3,
        "overcommit": 1.5,
        "strategy": {"type": "StrictFIFO"},
        "stopPolicy": "HoldAndDrain",
    }
    check(read("Queue", queue))
    check(read("PriorityClass", {"value": -5, "preemptionPolicy": "Never"}))
    check(read("Node", {"resources": {"cpu": 4}, "taints": [{"key": "gpu"}]}))
    check(read("ResourceQuota", {"hard": {"cpu": 4, "podgroups": 5, "pods": 10}}))
    check(read("PodGroup", group(task("a", replicas=8, minAvailable=1), minMember=1)))


@pytest.mark.parametrize(
    "name", ["train:main", "my.package.train:main", "train:Model.fit", "_x1:_y2", "größe:maß"]
)
def test_a_function_is_named_by_module_and_name(name: str) -> None:
    check(read("PodGroup", template(command=[], function=name, args=[1], kwargs={"a": None})))


@pytest.mark.parametrize(
    "name",
    [
        *("train", "train.main", "train:", ":main", "train:main:x", "a..b:c", "a:b..c", ".a:b"),
        *("my-package:main", "train:main()", "train: main", "a:<lambda>", "a:f.<locals>.g"),
        *("os:system;x", "../x:y", "1a:b", "a:lambda", "a/b:c", "a:b\n"),
    ],
)
def test_an_invalid_function_name_is_refused(name: str) -> None:
    assert problem(read("PodGroup", template(command=[], function=name))) == (
        "PodGroup default/x: spec.tasks[0].template.function: expected package.module:name,"
        f" found {name!r}"
    )


def test_a_function_of_the_main_script_is_refused() -> None:
    assert problem(read("PodGroup", template(command=[], function="__main__:f"))) == (
        "PodGroup default/x: spec.tasks[0].template.function: __main__ is another module in every"
        " process; put the function in a module"
    )


def test_arguments_up_to_the_bound_are_accepted() -> None:
    check(read("PodGroup", template(command=[], function="a:b", args=["x" * 65_534])))
