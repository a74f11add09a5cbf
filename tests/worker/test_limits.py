"""Tests of how a pod is held to the memory that it requests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Node
from batchq.errors import UsageError
from batchq.worker.host.cgroup import PodCgroup
from batchq.worker.host.node_resources import (
    Enforce,
    Enforcement,
    ProcessBounds,
    choose_enforcement,
)
from tests.worker.stage import WITHIN_S, Stage
from tests.worker.test_cgroup import ME, Tree

#: Prints whether it could allocate 512 MiB.
GREEDY = """
try:
    bytearray(512 << 20)
    print("had it")
except MemoryError:
    print("refused")
"""


def chosen(tree: Tree, wanted: Enforce) -> Enforcement:
    return choose_enforcement(
        wanted, run_dir=Path("/run/n1"), mount=tree.mount, own=tree.own, me=ME
    )


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize("wanted", [Enforce.AUTO, Enforce.CGROUP])
def test_a_delegated_cgroup_is_used(tree: Tree, wanted: Enforce) -> None:
    base = tree.cgroup("batchq.service", ME)
    tree.cgroup("batchq.service/agent")
    found = chosen(tree, wanted)
    assert (found.kind, found.base) == (Enforce.CGROUP, base)
    assert found.of_pod("u-1-0-1") == PodCgroup(base / f"pod-{found.mark}-u-1-0-1")


@pytest.mark.parametrize(
    ("wanted", "kind"), [(Enforce.RLIMIT, Enforce.RLIMIT), (Enforce.NONE, Enforce.NONE)]
)
def test_a_delegated_cgroup_is_left_alone_if_another_enforcement_is_chosen(
    tree: Tree, wanted: Enforce, kind: Enforce
) -> None:
    base = tree.cgroup("batchq.service", ME)
    assert chosen(tree, wanted).kind == kind
    assert not (base / "agent").exists()


def test_without_a_cgroup_the_limit_is_an_rlimit(tree: Tree) -> None:
    tree.cgroup("batchq.service", ME, 7)
    found = chosen(tree, Enforce.AUTO)
    assert found.kind == Enforce.RLIMIT
    assert found.of_pod("u-1-0-1") is None
    assert found.existing() == []
    assert found.bounds("u-1-0-1", {"memory": 1 << 20}) == ProcessBounds(memory_bytes=1 << 20)


def test_a_demanded_cgroup_that_is_impossible_is_an_error_with_the_reason(tree: Tree) -> None:
    tree.cgroup("batchq.service", ME, 7)
    with pytest.raises(UsageError) as refused:
        chosen(tree, Enforce.CGROUP)
    assert refused.value.message == (
        f"--enforce cgroup: expected a delegated cgroup v2, but {tree.mount}/batchq.service "
        "also holds processes that are not the agent's: 7"
    )
    assert "Delegate=yes" in refused.value.hint


def test_two_run_folders_have_two_marks(tree: Tree) -> None:
    tree.cgroup("batchq.service")
    tree.cgroup("batchq.service/agent", ME)
    tree.is_in("/batchq.service/agent")
    marks = {
        choose_enforcement(
            Enforce.CGROUP, run_dir=Path(run), mount=tree.mount, own=tree.own, me=ME
        ).mark
        for run in ("/run/n1", "/run/n2")
    }
    assert len(marks) == 2


def test_a_cgroup_that_cannot_be_created_is_replaced_by_an_rlimit(tmp_path: Path) -> None:
    found = Enforcement(kind=Enforce.CGROUP, base=tmp_path / "gone", mark="aaaa")
    assert found.bounds("u-1-0-1", {"memory": 5}) == ProcessBounds(memory_bytes=5)


def test_a_pod_that_requests_no_memory_is_not_limited() -> None:
    found = Enforcement(kind=Enforce.RLIMIT)
    assert found.bounds("u-1-0-1", {"cpu": 1000}) == ProcessBounds()
    assert found.bounds("u-1-0-1", {"memory": 0}) == ProcessBounds()


def test_the_message_of_a_killed_pod_names_its_request(tree: Tree) -> None:
    made = tree.cgroup("pod")
    (made / "memory.events").write_text("oom_kill 2\n")
    assert ProcessBounds(cgroup=PodCgroup(made), memory_bytes=512 << 20).trouble() == (
        "killed: used more than its memory request of 512Mi; request more with `batchq submit"
        " --mem`"
    )
    assert ProcessBounds(memory_bytes=512 << 20).trouble() == ""


@pytest.mark.parametrize(
    ("last", "is_refusal"),
    [
        ("MemoryError", True),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB", True),
        ("OSError: [Errno 12] Cannot allocate memory", True),
        ("terminate called after throwing an instance of 'std::bad_alloc'", True),
        ("ValueError: MemoryErrors", False),
        ("torch.OutOfMemoryError: CUDA out of memory", False),
        ("", False),
    ],
)
def test_a_pod_that_was_refused_memory_names_its_request(last: str, is_refusal: bool) -> None:
    output = f"MemoryError\nbegin\n{last}\n\n"
    limited = ProcessBounds(memory_bytes=512 << 20)
    assert limited.refusal(output if last else "begin") == (
        "refused memory: each process of the pod may use its memory request of 512Mi; request more"
        " with `batchq submit --mem`"
        if is_refusal
        else ""
    )
    assert ProcessBounds().refusal(output) == ""
    assert ProcessBounds(cgroup=PodCgroup(Path("/c")), memory_bytes=1).refusal(output) == ""


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("enforce", "requests", "says"),
    [
        ("rlimit", {"memory": 256 << 20}, "refused\n"),
        ("rlimit", {"memory": 1 << 30}, "had it\n"),
        ("rlimit", {}, "had it\n"),
        ("none", {"memory": 256 << 20}, "had it\n"),
    ],
)
def test_an_agent_holds_each_process_to_the_request(
    stage: Stage, enforce: str, requests: dict[str, int], says: str
) -> None:
    stage.start_agent(enforce=enforce)
    (pod,) = stage.bind(sys.executable, "-c", GREEDY, requests=requests)
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    assert stage.output(pod) == says


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("settings", "kind"), [({}, "rlimit"), ({"enforce": "none"}, "none")], ids=["auto", "none"]
)
def test_the_node_shows_how_memory_is_enforced(
    stage: Stage, settings: dict[str, Any], kind: str
) -> None:
    # This agent shares its cgroup with the test, so the cgroup is never delegated to it.
    stage.start_agent(**settings)
    node = stage.store.get("Node", "n1")
    assert isinstance(node, Node)
    assert node.metadata.annotations["batchq/memory-limit"] == kind


@pytest.mark.e2e
def test_an_agent_without_the_demanded_cgroup_does_not_start(
    stage: Stage,
) -> None:
    agent = stage.launch_agent(enforce="cgroup")
    assert agent.wait(timeout=WITHIN_S) == 2
    assert "--enforce cgroup: expected a delegated cgroup v2" in stage.log_text()
    assert stage.store.get("Node", "n1") is None


@pytest.mark.e2e
@pytest.mark.parametrize("what", ["command", "function"])
def test_a_pod_that_ends_for_want_of_memory_says_how_to_get_more(stage: Stage, what: str) -> None:
    stage.start_agent(enforce="rlimit")
    requests = {"memory": 256 << 20}
    if what == "command":
        (pod,) = stage.bind(sys.executable, "-c", "bytearray(512 << 20)", requests=requests)
    else:
        size = (msgspec.Raw(b"536870912"),)
        (pod,) = stage.bind(function="builtins:bytearray", args=size, requests=requests)
    status = stage.ended(pod).status
    assert (status.phase, status.exit_code) == (PodPhase.FAILED, 1)
    assert status.message == ("MemoryError; " if what == "function" else "") + (
        "refused memory: each process of the pod may use its memory request of 256Mi; request more"
        " with `batchq submit --mem`"
    )
