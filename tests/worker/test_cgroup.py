"""Tests of the search for a delegated cgroup, over files as the kernel shows them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from batchq.worker.host.cgroup import PodCgroup, Unusable, find, pod_cgroup, pod_cgroups, take

ME = 4242


class Tree:
    """Files like those of a cgroup file system, and of /proc/self/cgroup."""

    def __init__(self, root: Path) -> None:
        self.mount = root / "cgroup"
        self.own = root / "own"
        self.root = self.cgroup("", type_="")
        self.is_in("/batchq.service")

    def is_in(self, name: str) -> None:
        self.own.write_text(f"12:devices:/elsewhere\n0::{name}\n")

    def cgroup(
        self, name: str, *pids: int, type_: str = "domain", controllers: str = "cpu memory pids"
    ) -> Path:
        made = self.mount / name
        made.mkdir(parents=True, exist_ok=True)
        (made / "cgroup.controllers").write_text(controllers + "\n")
        (made / "cgroup.subtree_control").write_text("")
        (made / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        if type_:
            (made / "cgroup.type").write_text(type_ + "\n")
        return made

    def found(self) -> Path | Unusable:
        return find(mount=self.mount, own=self.own, me=ME)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_an_agent_alone_in_a_writable_cgroup_has_a_base(tree: Tree) -> None:
    base = tree.cgroup("batchq.service", ME)
    assert tree.found() == base


def test_the_base_of_an_agent_started_in_the_leaf_is_the_leafs_parent(tree: Tree) -> None:
    base = tree.cgroup("batchq.service")
    tree.cgroup("batchq.service/agent", ME, 17)
    tree.is_in("/batchq.service/agent")
    assert tree.found() == base


def test_a_cgroup_that_happens_to_be_named_agent_is_the_base(tree: Tree) -> None:
    tree.cgroup("system.slice", 1)
    base = tree.cgroup("system.slice/agent", ME)
    tree.is_in("/system.slice/agent")
    assert tree.found() == base


def _no_v2(tree: Tree) -> None:
    (tree.mount / "cgroup.controllers").unlink()


def _shared(tree: Tree) -> None:
    tree.cgroup("batchq.service", 7, ME, 8)


def _outside(tree: Tree) -> None:
    tree.is_in("/../../other")


def _only_v1(tree: Tree) -> None:
    tree.own.write_text("4:memory:/x\n")


def _in_the_root(tree: Tree) -> None:
    tree.is_in("/")


def _without_memory(tree: Tree) -> None:
    tree.cgroup("batchq.service", ME, controllers="cpu pids")


def _threaded(tree: Tree) -> None:
    tree.cgroup("batchq.service", ME, type_="threaded")


@pytest.mark.parametrize(
    ("arrange", "why"),
    [
        (_no_v2, "is not a cgroup v2 file system"),
        (_shared, "also holds processes that are not the agent's: 7, 8"),
        (_outside, "outside of what this container can see"),
        (_only_v1, "outside of what this container can see"),
        (_in_the_root, "the root cgroup"),
        (_without_memory, "has no memory controller"),
        (_threaded, "is of type 'threaded', expected 'domain'"),
    ],
)
def test_an_unsuitable_cgroup_is_not_used_as_a_base(
    tree: Tree, arrange: Callable[[Tree], None], why: str
) -> None:
    tree.cgroup("batchq.service", ME)
    arrange(tree)
    found = tree.found()
    assert isinstance(found, Unusable)
    assert why in found.why


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_read_only_cgroup_is_not_used_as_a_base(tree: Tree) -> None:
    base = tree.cgroup("batchq.service", ME)
    (base / "cgroup.subtree_control").chmod(0o444)
    found = tree.found()
    assert isinstance(found, Unusable)
    assert "is not delegated" in found.why


def test_the_search_for_a_base_changes_nothing(tree: Tree) -> None:
    base = tree.cgroup("batchq.service", ME)
    tree.found()
    assert sorted(path.name for path in base.iterdir()) == [
        "cgroup.controllers", "cgroup.procs", "cgroup.subtree_control", "cgroup.type",
    ]  # fmt: skip


def test_taking_a_base_moves_the_agent_and_then_enables_the_memory_controller(tree: Tree) -> None:
    base = tree.cgroup("batchq.service", ME)
    leaf = tree.cgroup("batchq.service/agent")
    assert take(base, me=ME) is None
    assert (leaf / "cgroup.procs").read_text() == "4242"
    assert (base / "cgroup.subtree_control").read_text() == "+memory"


def test_an_agent_that_is_in_the_leaf_is_not_moved(tree: Tree) -> None:
    base = tree.cgroup("batchq.service")
    leaf = tree.cgroup("batchq.service/agent", ME, 17)
    assert take(base, me=ME) is None
    assert (leaf / "cgroup.procs").read_text() == "4242\n17\n"


def test_a_base_that_cannot_be_taken_gets_the_agent_back_and_the_error_says_why(tree: Tree) -> None:
    base = tree.cgroup("batchq.service", ME)
    leaf = tree.cgroup("batchq.service/agent")
    (base / "cgroup.subtree_control").unlink()
    # The kernel removes its own files with their folder; these regular files keep the folder.
    refused = take(base, me=ME)
    assert isinstance(refused, Unusable)
    assert "cannot be used" in refused.why
    assert (base / "cgroup.procs").read_text().startswith("4242")
    assert leaf.exists()


def test_a_pods_memory_is_limited_to_its_request_and_swap_to_zero(tree: Tree) -> None:
    made = tree.cgroup("pod")
    for name in ("memory.max", "memory.swap.max", "memory.oom.group"):
        (made / name).write_text("")
    PodCgroup(made).make(512 << 20)
    assert (made / "memory.max").read_text() == "536870912"
    assert (made / "memory.swap.max").read_text() == "0"
    assert (made / "memory.oom.group").read_text() == "1"


def test_swap_is_not_limited_on_a_kernel_without_swap_accounting(tree: Tree) -> None:
    made = tree.cgroup("pod")
    (made / "memory.max").write_text("")
    PodCgroup(made).make(512 << 20)
    assert not (made / "memory.swap.max").exists()


def test_the_cgroup_of_a_pod_without_a_request_has_no_limit(tree: Tree) -> None:
    made = tree.cgroup("pod")
    (made / "memory.max").write_text("max")
    PodCgroup(made).make(None)
    assert (made / "memory.max").read_text() == "max"


@pytest.mark.parametrize(
    ("events", "has"),
    [
        ("low 0\nmax 7\noom 1\noom_kill 1\noom_group_kill 1\n", True),
        ("low 0\nmax 7\noom 1\noom_kill 0\noom_group_kill 0\n", False),
        ("", False),
    ],
)
def test_an_out_of_memory_kill_is_read_from_the_kernels_counters(
    tree: Tree, events: str, has: bool
) -> None:
    made = tree.cgroup("pod")
    (made / "memory.events").write_text(events)
    assert PodCgroup(made).has_run_out_of_memory() is has


def test_agents_that_share_a_base_recognize_their_own_pods(tree: Tree) -> None:
    base = tree.cgroup("batchq.service")
    mine, other = pod_cgroup(base, "aaaa", "u-1-0-1"), pod_cgroup(base, "bbbb", "u-1-0-1")
    for one in (mine, other):
        one.path.mkdir()
    assert pod_cgroups(base, "aaaa") == [mine]


def test_ending_a_cgroup_that_does_not_exist_ends_nothing(tree: Tree) -> None:
    assert pod_cgroup(tree.root, "aaaa", "u-1-0-1").end(0.0) == []
