"""In a described world a pod that calls a function behaves like any other."""

from __future__ import annotations

from tests.sim.worlds import Manifest, admitted, bound, finished, group, node, outcome, refusal


def calling(name: str, **template: object) -> Manifest:
    """Return a group of two pods that call a function, for five seconds each."""
    task = {"requests": {"cpu": 1}, "annotations": {"batchq/runtime": "5s"}, **template}
    return group(name, tasks=[{"name": "t", "replicas": 2, "template": task}])


def test_a_function_is_admitted_bound_and_ends_like_a_command() -> None:
    called = calling("g", function="train:main", args=[1, {"a": None}], kwargs={"b": 2})
    came = outcome(node("n1", 4), called)
    commanded = outcome(node("n1", 4), calling("g", command=["true"]))
    assert admitted(came) == [(0, ["default/g"])]
    assert bound(came) == [(0, {"default/g-t-0": "n1", "default/g-t-1": "n1"})]
    assert finished(came) == [(5, ["default/g"])]
    assert came == commanded


def test_a_function_that_cannot_be_called_is_refused_in_a_world_too() -> None:
    assert "template.function: expected package.module:name, found 'train'" in refusal(
        calling("g", function="train")
    )
