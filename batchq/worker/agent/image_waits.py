"""Pods that wait for their images: what follows for them, as a part of the agent's state machine.

An image is pulled before the pod claims its place: the pod is Bound meanwhile, so the pull counts
neither as a part of the run nor of the walltime, and a gang meets only when all of its images are
there.
"""

from __future__ import annotations

from batchq.api.node_report import MOST_PULLS, Pulls
from batchq.api.notation import counted, format_duration
from batchq.api.objects import Pod
from batchq.worker.agent.messages import (
    Instructions,
    PostReport,
    PullEnded,
    PullImage,
    PullStarted,
    StopPull,
)
from batchq.worker.agent.pod_states import Cause, Paces, PodOnNode, PodState, PodTable

_WAITS = (PodState.DELIVERED, PodState.PULLING)


def pull(one: PodOnNode, pod: Pod, paces: Paces, now_ms: int) -> Instructions | None:
    """Return what follows for a pod that lacks its image: it is pulled, and that is reported. None
    if the image is on the node, or if the pod has none.
    """
    if not pod.spec.image or one.has_image or one.state not in _WAITS:
        return None
    if one.state == PodState.DELIVERED:
        # For its claim, if the image is there.
        one.pod = pod
        return [PullImage(one.attempt, pod)]
    instructions: Instructions = []
    if one.pull_again_at is not None and now_ms >= one.pull_again_at:
        instructions.append(PullImage(one.attempt, pod))
    if now_ms >= one.posted_at + (paces.repeat_ms if one.pull_is_told else paces.pull_told_ms):
        one.pull_is_told, one.posted_at = True, now_ms
        report = Pulls(
            pod=one.attempt.pod,
            attempt=one.attempt.attempt,
            failures=one.pull_failures,
            trouble=one.pull_trouble,
        )
        instructions.append(PostReport(report))
    return instructions


def why_given_up(one: PodOnNode, pod: Pod, node: str, paces: Paces, now_ms: int) -> str:
    """Return why a pod does not wait for its image any more; "" if it does, or needs none."""
    if one.state != PodState.PULLING:
        return ""
    where = f"image {pod.spec.image} could not be pulled on node {node}"
    if one.has_given_up:
        tried = f", tried {counted(one.pull_failures, 'time')}" if one.pull_failures > 1 else ""
        return f"{where}{tried}: {one.pull_trouble}"
    if now_ms - one.since >= paces.pull_patience_ms:
        return f"{where} within {format_duration(paces.pull_patience_ms)}"
    return ""


def stop_of(one: PodOnNode) -> Instructions:
    """Return the end of the pull of a pod that does not wait any more, if one runs."""
    return [StopPull(one.attempt)] if one.state == PodState.PULLING else []


def on_pull(pods: PodTable, event: PullStarted | PullEnded, paces: Paces) -> None:
    """Note that an image is being pulled, that it is on this node, or that the pull has failed."""
    if isinstance(event, PullStarted):
        _started(pods, event)
        return
    for attempt in event.attempts:
        one = pods.get(attempt)
        if one is None or one.state not in _WAITS:
            continue
        if event.trouble:
            _failed(pods, one, event, paces)
            continue
        one.has_image = True
        if one.state == PodState.PULLING:
            # A pull of which nobody was told is not worth an event.
            one.pulled_ms = event.now_ms - one.since if one.pull_is_told else 0
            pods.move(attempt, Cause.IMAGE_THERE, event.now_ms).since = event.now_ms


def _started(pods: PodTable, event: PullStarted) -> None:
    one = pods.get(event.attempt)
    if one is None or one.state not in _WAITS:
        return
    if one.state == PodState.DELIVERED:
        pods.move(event.attempt, Cause.IMAGE_LACKED, event.now_ms)
        one.since = one.posted_at = event.now_ms
    one.pod = one.pull_again_at = None


def _failed(pods: PodTable, one: PodOnNode, event: PullEnded, paces: Paces) -> None:
    if one.state == PodState.DELIVERED:
        pods.move(one.attempt, Cause.IMAGE_LACKED, event.now_ms)
        one.since = event.now_ms
    one.pod, one.pull_trouble = None, event.trouble
    one.pull_failures += 1
    one.has_given_up = event.is_final or one.pull_failures >= MOST_PULLS
    one.pull_again_at = event.now_ms + paces.pull_again_ms * 2 ** (one.pull_failures - 1)
    # This is reported at once.
    one.pull_is_told, one.posted_at = False, event.now_ms - paces.pull_told_ms
