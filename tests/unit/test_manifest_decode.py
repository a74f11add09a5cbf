"""Manifests are decoded strictly, and each error is one sentence."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from batchq.api.manifest import decode, encode, has_status
from batchq.api.objects import Node, Pod, PodGroup, Queue, ResourceQuota
from batchq.errors import InvalidInput


def manifest(kind: str, name: str = "x", **parts: Any) -> dict[str, Any]:
    metadata = {"name": name, **parts.pop("metadata", {})}
    return {"apiVersion": "batchq/v1", "kind": kind, "metadata": metadata, **parts}


def group(*, template: Any = None, **spec: Any) -> dict[str, Any]:
    tasks = [{"name": "w", "template": template or {"command": ["true"]}}]
    return manifest("PodGroup", spec={"tasks": tasks, **spec})


def read_group(data: object) -> PodGroup:
    obj = decode(data)
    assert isinstance(obj, PodGroup)
    return obj


def read_template(template: Any) -> Any:
    return read_group(group(template=template)).spec.tasks[0].template


WRONG: dict[str, tuple[Any, str]] = {
    "a document that is no mapping": ([1], "expected a mapping, found a list of 1 item"),
    "no apiVersion": (
        {"kind": "Queue"},
        "Queue: apiVersion: expected batchq/v1, found nothing",
    ),
    "another apiVersion": (
        {"apiVersion": "v1", "kind": "Queue", "metadata": {"name": "q"}},
        "Queue q: apiVersion: expected batchq/v1, found 'v1'",
    ),
    "an unknown kind": (
        {"apiVersion": "batchq/v1", "kind": "Podgroup"},
        (
            "kind: expected one of Queue, ResourceQuota, Node, PriorityClass, AdmissionCheck,"
            " PodGroup,"
            " Pod, found 'Podgroup'; did you mean 'PodGroup'?"
        ),
    ),
    "an unknown field at the top": (
        manifest("Queue", specs={}),
        "Queue x: specs: there is no such field; did you mean 'spec'?",
    ),
    "an unknown field with a neighbour": (
        group(queu="a"),
        "PodGroup default/x: spec.queu: there is no such field; did you mean 'queue'?",
    ),
    "a field by its name in a request": (
        group(after=["y"]),
        "PodGroup default/x: spec.after: there is no such field; did you mean 'dependsOn'?",
    ),
    "a number that YAML has read as text": (
        manifest("PriorityClass", spec={"value": "9" * 20}),
        f"PriorityClass x: spec.value: expected a whole number of at most 2^53, found '{'9' * 20}'",
    ),
    "a number in quotes": (
        manifest("PriorityClass", spec={"value": "9"}),
        "PriorityClass x: spec.value: expected a whole number, found '9'",
    ),
    "an unknown field deep inside": (
        group(template={"requests": {}, "comand": ["a"]}),
        (
            "PodGroup default/x: spec.tasks[0].template.comand: there is no such field;"
            " did you mean 'command'?"
        ),
    ),
    "an unknown field like no other": (
        manifest("ResourceQuota", spec={"zzz": 1}),
        "ResourceQuota default/x: spec.zzz: there is no such field; known: hard",
    ),
    "no name": (
        {"apiVersion": "batchq/v1", "kind": "Queue"},
        "Queue: metadata.name: this field is required",
    ),
    "a name with capitals": (
        manifest("PodGroup", "Train"),
        (
            "PodGroup default/Train: metadata.name: expected at most 63 lower-case letters,"
            " digits and"
            " '-', with a letter or digit at both ends, found 'Train'"
        ),
    ),
    "a namespace where there is none": (
        manifest("Queue", metadata={"namespace": "a"}),
        "Queue x: metadata.namespace: a Queue has no namespace; leave it out",
    ),
    "text for a number": (
        group(minMember="three"),
        "PodGroup default/x: spec.minMember: expected a whole number, found 'three'",
    ),
    "a fraction for a whole number": (
        group(minMember=1.5),
        "PodGroup default/x: spec.minMember: expected a whole number, found 1.5",
    ),
    "a number beyond all bounds": (
        group(minMember=2**60),
        (
            "PodGroup default/x: spec.minMember: expected a whole number of at most 2^53,"
            " found 1152921504606846976"
        ),
    ),
    "a number for text": (
        group(queue=7),
        "PodGroup default/x: spec.queue: expected text, found 7; put it in quotes",
    ),
    "a word for a truth value": (
        group(suspend="yes"),
        "PodGroup default/x: spec.suspend: expected true or false, found 'yes'",
    ),
    "a command line instead of words": (
        group(template={"command": "ls -l"}),
        (
            "PodGroup default/x: spec.tasks[0].template.command: expected a list, found 'ls -l';"
            ' write the words as a list, or for a shell line ["sh", "-c", "…"]'
        ),
    ),
    "a quantity that is none": (
        group(template={"requests": {"cpu": "5x"}}),
        (
            "PodGroup default/x: spec.tasks[0].template.requests.cpu: expected a quantity such as"
            " 500m, 2 or 64Gi, found '5x'"
        ),
    ),
    "a negative quantity": (
        group(template={"requests": {"cpu": -1}}),
        (
            "PodGroup default/x: spec.tasks[0].template.requests.cpu: expected a quantity of zero"
            " or"
            " more, found '-1'"
        ),
    ),
    "a quantity that is a mapping": (
        group(template={"requests": {"cpu": {}}}),
        (
            "PodGroup default/x: spec.tasks[0].template.requests.cpu: expected a quantity such as"
            " 500m, 2 or 64Gi, found an empty mapping"
        ),
    ),
    "a resource without a sane name": (
        group(template={"requests": {"c p u": 1}}),
        (
            "PodGroup default/x: spec.tasks[0].template.requests: expected a name such as gpu or"
            " example.com/gpu, found 'c p u'"
        ),
    ),
    "a duration that is none": (
        group(walltime="soon"),
        (
            "PodGroup default/x: spec.walltime: expected a duration such as 90s, 2h or 1d,"
            " found 'soon'"
        ),
    ),
    "a duration that is a list": (
        group(walltime=[1]),
        (
            "PodGroup default/x: spec.walltime: expected a duration such as 90s, found a list of"
            " 1 item"
        ),
    ),
    "a factor that is too fine": (
        manifest("Queue", spec={"overcommit": 1.0005}),
        (
            "Queue x: spec.overcommit: expected a number from 0 to 1000 with at most three"
            " decimals,"
            " found 1.0005"
        ),
    ),
    "a word that is not of the list": (
        manifest("Queue", spec={"strategy": {"type": "StrictFifo"}}),
        (
            "Queue x: spec.strategy.type: expected one of Backfill, BestEffortFIFO, StrictFIFO,"
            " found 'StrictFifo'; did you mean 'StrictFIFO'?"
        ),
    ),
    "a phase that is none": (
        manifest("PodGroup", status={"phase": "Queued"}),
        (
            "PodGroup default/x: status.phase: expected one of Pending, InQueue, Running, Unknown,"
            " Completed, Failed, Cancelled, found 'Queued'; did you mean 'InQueue'?"
        ),
    ),
    "a label value that is a number": (
        manifest("Node", metadata={"labels": {"rack": 7}}),
        "Node x: metadata.labels.rack: expected text, found 7; put it in quotes",
    ),
    "a truth value in the environment": (
        group(template={"env": {"DEBUG": True}}),
        (
            "PodGroup default/x: spec.tasks[0].template.env.DEBUG: expected text, found true;"
            " put it in quotes"
        ),
    ),
    "half a character": (
        group(template={"env": {"A": "\ud800"}}),
        (
            "PodGroup default/x: spec.tasks[0].template.env.A: expected text, found characters that"
            " are not valid Unicode"
        ),
    ),
    "the same field flat and below spec": (
        group(template={"env": {"A": 1}, "spec": {"env": {"A": 1}}}),
        (
            "PodGroup default/x: spec.tasks[0].template.spec.env: the same field is given at"
            " spec.tasks[0].template.env too; keep one of the two"
        ),
    ),
    "the same labels flat and in the metadata": (
        group(template={"metadata": {"labels": {"a": "b"}}, "labels": {}}),
        (
            "PodGroup default/x: spec.tasks[0].template.labels: the same field is given at"
            " spec.tasks[0].template.metadata.labels too; keep one of the two"
        ),
    ),
    "a name in a template": (
        group(template={"metadata": {"name": "a"}}),
        (
            "PodGroup default/x: spec.tasks[0].template.metadata.name: a template's metadata holds"
            " labels and annotations only"
        ),
    ),
    "an unknown field below a template's spec": (
        group(template={"spec": {"containers": []}}),
        (
            "PodGroup default/x: spec.tasks[0].template.spec.containers: there is no such field;"
            " did you mean 'container'?"
        ),
    ),
    "a pod without its group": (
        manifest("Pod", spec={"task": "w"}),
        "Pod default/x: spec.podGroup: this field is required",
    ),
    "a gate of a pod whose name is none": (
        manifest("Pod", spec={"podGroup": "g", "task": "w", "schedulingGates": [{"name": "a b"}]}),
        (
            "Pod default/x: spec.schedulingGates[0].name: expected a name such as gpu or"
            " example.com/gpu, found 'a b'"
        ),
    ),
    "a gate of a template whose name is none": (
        group(template={"schedulingGates": [{"name": "ok"}, {"name": ""}]}),
        (
            "PodGroup default/x: spec.tasks[0].template.schedulingGates[1].name: expected a name"
            " such as gpu or example.com/gpu, found ''"
        ),
    ),
    "a queue for no namespace": (
        manifest("Queue", spec={"namespaces": []}),
        (
            "Queue x: spec.namespaces: expected at least one namespace, found an empty list; leave"
            " it out to accept all of them, or state stopPolicy: Hold to admit no group"
        ),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_error_is_one_sentence(case: str) -> None:
    data, message = WRONG[case]
    with pytest.raises(InvalidInput) as caught:
        decode(data)
    assert caught.value.message == message


@pytest.mark.parametrize(
    "data",
    [
        manifest("PodGroup", "x" * 2**20),
        manifest("x" * 2**20),
        group(queue="x" * 2**20),
        group(**{"x" * 2**20: 1}),
        group(walltime="x" * 2**20),
        group(minMember=10**4000),
        group(template={"requests": {"x" * 2**20: 1}}),
        group(template={"requests": {"cpu": "9" * 2**20}}),
        manifest("Queue", spec={"overcommit": "9" * 2**20}),
        manifest("PodGroup", metadata={"creationTimestamp": "9" * 2**20}),
    ],
    ids=range(10),
)
def test_a_megabyte_of_input_is_not_repeated_in_the_error(data: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        decode(data)
    assert len(caught.value.message) < 600


def test_the_error_begins_with_file_and_line() -> None:
    with pytest.raises(InvalidInput) as caught:
        decode(group(queue=7), place="jobs.yaml", line_of=lambda path: 12)
    assert caught.value.message == (
        "jobs.yaml, line 12: PodGroup default/x: spec.queue: expected text, found 7;"
        " put it in quotes"
    )


def test_a_namespaced_object_without_a_namespace_is_in_default() -> None:
    assert decode(manifest("PodGroup")).metadata.namespace == "default"
    assert decode(manifest("ResourceQuota")).metadata.namespace == "default"
    assert decode(manifest("Queue")).metadata.namespace == ""


def test_names_of_cluster_wide_objects_may_have_dots() -> None:
    assert decode(manifest("Node", "gpu-1.rack-7.example.com")).metadata.name == (
        "gpu-1.rack-7.example.com"
    )
    with pytest.raises(InvalidInput, match=r"metadata\.name"):
        decode(manifest("PodGroup", "a.b"))
    with pytest.raises(InvalidInput, match=r"metadata\.name"):
        decode(manifest("Queue", "a" * 254))


def test_quantities_durations_and_factors_become_integers() -> None:
    queue = decode(
        manifest("Queue", spec={"capability": {"cpu": 1.5, "memory": "2Gi"}, "overcommit": "1.5"})
    )
    assert isinstance(queue, Queue)
    assert queue.spec.capability == {"cpu": 1500, "memory": 2147483648}
    assert queue.spec.overcommit == 1500
    assert read_group(group(walltime="1h30m")).spec.walltime == 5_400_000
    assert read_group(group(walltime=90)).spec.walltime == 90_000


@pytest.mark.parametrize(
    "written",
    ["2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC), 1769860800],
    ids=["text", "datetime", "seconds"],
)
def test_an_instant_may_be_written_in_three_ways(written: object) -> None:
    obj = decode(manifest("PodGroup", metadata={"creationTimestamp": written}))
    assert obj.metadata.creation_timestamp == 1769860800000


@pytest.mark.parametrize(
    ("written", "status"),
    [(True, "True"), (False, "False"), ("True", "True"), ("Unknown", "Unknown")],
)
def test_a_checks_status_is_a_word_or_a_truth_value(written: object, status: str) -> None:
    checks = [{"name": "licence", "status": written}]
    data = manifest("PodGroup", status={"checks": checks})
    assert read_group(data).status.checks[0].status == status


@pytest.mark.parametrize("written", [1, "1"])
def test_one_reservation_may_be_a_number(written: object) -> None:
    queue = decode(manifest("Queue", spec={"strategy": {"reservations": written}}))
    assert isinstance(queue, Queue)
    assert queue.spec.strategy.reservations == "1"


def test_borrowing_is_a_priority_or_never() -> None:
    for written in (5, "Never"):
        queue = decode(manifest("Queue", spec={"preemption": {"borrowing": written}}))
        assert isinstance(queue, Queue)
        assert queue.spec.preemption.borrowing == written
    with pytest.raises(InvalidInput, match="expected a whole number or Never, found 'always'"):
        decode(manifest("Queue", spec={"preemption": {"borrowing": "always"}}))


def test_numbers_are_accepted_as_text_in_commands_and_environments() -> None:
    template = read_template(
        {"command": ["sleep", 5], "env": {"N": 3}, "annotations": {"batchq/runtime": 30}}
    )
    assert template.command == ("sleep", "5")
    assert template.env == {"N": "3"}
    assert template.annotations == {"batchq/runtime": "30"}


def test_a_template_may_be_written_as_in_kubernetes() -> None:
    flat = {"labels": {"a": "b"}, "annotations": {"c": "d"}, "command": ["x"], "priority": 3}
    nested = {
        "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {"command": ["x"], "priority": 3},
    }
    mixed = {"metadata": {"labels": {"a": "b"}}, "annotations": {"c": "d"}, "spec": {"priority": 3}}
    assert read_template(nested) == read_template(flat)
    assert read_template({**mixed, "command": ["x"]}) == read_template(flat)


def test_function_arguments_are_kept_as_json() -> None:
    template = read_template({"function": "a:b", "args": [1, {"x": None}], "kwargs": {"y": [2]}})
    assert template.args == (msgspec.Raw(b"1"), msgspec.Raw(b'{"x":null}'))
    assert template.kwargs == {"y": msgspec.Raw(b"[2]")}


def test_an_empty_field_is_the_same_as_a_missing_one() -> None:
    assert read_group(group(walltime=None, queue=None)) == read_group(group())
    assert decode(manifest("Queue", spec=None, status=None)) == decode(manifest("Queue"))


def test_a_pods_name_implies_its_group_and_index() -> None:
    pod = decode(manifest("Pod", "train-worker-3", spec={"podGroup": "train"}))
    assert isinstance(pod, Pod)
    assert (pod.spec.task, pod.spec.index) == ("worker", 3)
    with pytest.raises(InvalidInput, match=r"spec\.task: this field is required"):
        decode(manifest("Pod", "other-worker-3", spec={"podGroup": "train"}))


def test_a_pod_may_repeat_its_template() -> None:
    spec = {"podGroup": "g", "task": "w", "command": ["a"], "requests": {"cpu": 1}}
    pod = decode(manifest("Pod", spec=spec))
    assert isinstance(pod, Pod)
    assert pod.spec.requests == {"cpu": 1000}
    with pytest.raises(InvalidInput, match=r"spec\.command: expected a list"):
        decode(manifest("Pod", spec={**spec, "command": "a"}))


def test_a_status_in_a_manifest_is_read_and_marked_as_present() -> None:
    data = manifest("Node", status={"ready": False, "heartbeat": 30})
    node = decode(data)
    assert isinstance(node, Node)
    assert (node.status.ready, node.status.heartbeat) == (False, 30_000)
    assert has_status(data)
    assert not has_status(manifest("Node"))
    assert not has_status("no mapping")


def test_a_status_of_a_kind_without_statuses_is_ignored() -> None:
    data = manifest("Queue", status={"share": "0.5"})
    assert has_status(data)
    assert decode(data) == decode(manifest("Queue"))


def test_the_canonical_form_omits_defaults() -> None:
    data = group(
        queue="default",
        walltime="120m",
        template={"command": ["a"], "requests": {"memory": "1Ki", "cpu": "2500m", "a/b": 1.5}},
    )
    assert encode(decode(data)) == {
        "apiVersion": "batchq/v1",
        "kind": "PodGroup",
        "metadata": {"name": "x", "namespace": "default"},
        "spec": {
            "walltime": "2h",
            "tasks": [
                {
                    "name": "w",
                    "template": {
                        "command": ["a"],
                        "requests": {"a/b": "1.5", "cpu": "2500m", "memory": "1024"},
                    },
                }
            ],
        },
        "status": {"phase": "Pending"},
    }


def test_a_reason_is_printed_with_quantities_and_its_sentence() -> None:
    reason = {
        "plugin": "quota",
        "reason": "WaitingForQuota",
        "subject": "namespace a",
        "resource": "cpu",
        "need": "2",
        "limit": "2500m",
        "seen": "1",
        "inLine": True,
    }
    obj = decode(manifest("PodGroup", status={"reasons": [reason]}))
    status = encode(obj)["status"]
    assert isinstance(status, dict)
    (printed,) = status["reasons"]
    assert printed.pop("message") == (
        "needs cpu 2, and namespace a has 1500m free (1 of 2500m in use)"
    )
    assert printed == reason


def test_a_limit_of_zero_is_kept() -> None:
    quota = decode(manifest("ResourceQuota", spec={"hard": {"gpu": 0, "podgroups": 5}}))
    assert isinstance(quota, ResourceQuota)
    assert quota.spec.hard == {"gpu": 0, "podgroups": 5000}
    spec = encode(quota)["spec"]
    assert spec == {"hard": {"gpu": "0", "podgroups": "5"}}
