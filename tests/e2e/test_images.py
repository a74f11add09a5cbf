"""A gang with an image on a whole stack: it meets when the image was pulled, and says so."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import hello
from tests.e2e.machine import QUICK, Machine, pods_of, until
from tests.harness.fake_podman import IMAGE, FakePodman

#: Shorter than the pull below takes.
HASTY = QUICK.replace("inQueueTimeout: 20s", "inQueueTimeout: 3s")


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePodman:
    made = FakePodman(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
    return made


@pytest.fixture
def machine(podman: FakePodman) -> Iterator[Machine]:
    """A machine with two agents, each with room for two pods."""
    with Machine() as made:
        made.up(config=made.file("hasty.yaml", HASTY))
        for name in ("n1", "n2"):
            made.agent(name, "cpu=2,memory=512Mi")
        yield made


def submit(machine: Machine, name: str, *command: str) -> None:
    options = ("--name", name, "-N", "4", "--launch", "rank", "--image", IMAGE, "--walltime", "60s")
    machine.batchq("submit", *options, "--", *command)


def test_a_gang_meets_when_its_image_was_pulled_on_each_node(
    machine: Machine, podman: FakePodman
) -> None:
    submit(machine, "train", sys.executable, hello.__file__)
    shown = rf"pod train-main-\d waits for its image, for (\d+)s: pulling image {IMAGE} on node n1"
    until(lambda: re.search(shown, machine.batchq("describe", "train").stdout) is not None)

    def has_waited_for_long() -> bool:
        found = re.search(shown, machine.batchq("why", "train").stdout)
        assert found is not None
        return int(found[1]) >= 5

    # The timeout for places has passed by then.
    until(has_waited_for_long)
    podman.answer("ok")
    machine.batchq("wait", "train")
    assert machine.batchq("logs", "train", "--pod", "main-0").stdout.splitlines() == [
        f"train 0 {rank}" for rank in range(4)
    ]
    # Each agent pulls it once for its two pods; the second may find what the first has pulled.
    assert len(podman.pulls()) == 2


def test_a_cancelled_gang_ends_at_once_while_its_image_is_pulled(
    machine: Machine, podman: FakePodman
) -> None:
    submit(machine, "slow", "true")
    until(lambda: len(podman.pulls()) == 2)
    machine.batchq("cancel", "slow")
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in podman.pulls()))
    with machine.client() as client:
        until(lambda: all(pod.status.reason == "Cancelled" for pod in pods_of(client, "slow")))


def test_a_gang_whose_image_does_not_exist_fails_with_that_reason(
    machine: Machine, podman: FakePodman
) -> None:
    podman.answer("Error: reading manifest 1 in registry.example/tiny: manifest unknown")
    submit(machine, "wrong", "true")
    machine.batchq("wait", "wrong", exits=None)
    shown = machine.batchq("describe", "wrong").stdout
    assert f"image {IMAGE} could not be pulled on node n" in shown
    assert "manifest unknown" in shown
