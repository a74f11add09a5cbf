"""The time for which the images of pods are pulled counts neither as a wait nor as a run."""

from __future__ import annotations

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import Container, Launch
from batchq.config import SchedulerConfig
from tests.builders import a_group, a_node, a_queue, a_task
from tests.scheduler.conftest import Stack

IMAGE = "registry.example/torch:2"
TIMEOUT_MS = SchedulerConfig().settings.in_queue_timeout_ms
MINUTE = 60_000


def a_gang_is_bound(stack: Stack) -> None:
    container = Container(image=IMAGE)
    task = a_task("w", 2, command=("true",), container=container)
    stack.ready(a_node("n1", cpu=2))
    stack.apply(a_queue(), a_group("g", tasks=(task,), launch=Launch(), walltime=MINUTE))
    stack.until_idle()


def pull(stack: Stack) -> None:
    """Have the nodes say that they pull the images."""
    for pod in stack.pods(PodPhase.BOUND):
        stack.move(pod, message=f"pulling image {IMAGE} on node n1")


def test_each_pod_states_the_image_that_its_node_pulls(stack: Stack) -> None:
    a_gang_is_bound(stack)
    assert [pod.spec.image for pod in stack.pods()] == [IMAGE, IMAGE]


def test_a_gang_whose_images_are_pulled_keeps_its_place_beyond_the_timeout(stack: Stack) -> None:
    a_gang_is_bound(stack)
    pull(stack)
    stack.clock.at_ms += TIMEOUT_MS + MINUTE
    stack.until_idle()
    assert stack.group("g").status.phase == PodGroupPhase.IN_QUEUE


def test_a_gang_that_pulls_nothing_loses_its_place_at_the_timeout(stack: Stack) -> None:
    a_gang_is_bound(stack)
    stack.clock.at_ms += TIMEOUT_MS + 1
    stack.until_idle()
    assert stack.group("g").status.phase == PodGroupPhase.PENDING


def test_the_walltime_counts_from_the_end_of_the_pulls(stack: Stack) -> None:
    a_gang_is_bound(stack)
    pull(stack)
    stack.clock.at_ms += 2 * MINUTE
    stack.until_idle()
    stack.start_pods()
    stack.until_idle()
    status = stack.group("g").status
    assert (status.phase, status.started_at) == (PodGroupPhase.RUNNING, stack.clock.at_ms)
