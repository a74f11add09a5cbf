"""What the functions of a group's pods have returned, once the group has ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.names import counted
from batchq.api.objects import Pod, PodGroup
from batchq.changes.lookup import find
from batchq.client.waiting import pods_of, wait_for
from batchq.errors import GroupCancelled, GroupFailed, NotFound, UsageError
from batchq.store.redis import RedisStore


def read_result(store: RedisStore, key: str, timeout_s: float | None) -> Any:
    """What the only pod of a group returned; see `Client.result`."""
    group = find(store, PodGroup, key)
    replicas = sum(task.replicas for task in group.spec.tasks)
    if replicas != 1:
        raise UsageError(
            f"PodGroup {key} has {counted(replicas, 'pod')}, and so many results",
            hint="ask for `results`",
        )
    _check_calls(group, key)
    [result] = read_results(store, key, timeout_s).values()
    return result


def read_results(
    store: RedisStore, key: str, timeout_s: float | None, *, partial: bool = False
) -> dict[str, Any]:
    """What each pod of a group returned, by its name; see `Client.results`."""
    _check_calls(find(store, PodGroup, key), key)
    wait_for(store, [key], "finished", timeout_s)
    group = find(store, PodGroup, key)
    pods = pods_of(store, group)
    if not partial:
        _refuse_unfinished(group, key, pods)
    results: dict[str, Any] = {}
    for pod in _with_result(group, pods):
        status = pod.status
        written = store.read_result(status.node, pod.metadata.uid, status.attempt)
        if written is not None:
            results[pod.metadata.name] = json.loads(written)
        elif not partial:
            raise NotFound(
                f"what Pod {key.partition('/')[0]}/{pod.metadata.name} returned is no longer there",
                hint="results are kept for seven days; `partial` leaves out those that are gone",
            )
    return results


def _check_calls(group: PodGroup, key: str) -> None:
    if group.spec.controller == "external":
        raise NotFound(
            f"PodGroup {key} is external: what it has put out is with the consumer that ran it",
            hint=f"`batchq describe {key}` says who that is, and what it has reported",
        )
    if not any(task.template.function for task in group.spec.tasks):
        raise NotFound(
            f"PodGroup {key} runs a command, which returns nothing",
            hint=f"read what it has written with `batchq logs {key}`",
        )


def _refuse_unfinished(group: PodGroup, key: str, pods: list[Pod]) -> None:
    hint = f"read what its pods have written with `batchq logs {key}`"
    if group.status.phase == PodGroupPhase.CANCELLED:
        raise GroupCancelled(f"PodGroup {key} was cancelled", hint=hint)
    if group.status.phase == PodGroupPhase.FAILED:
        raise GroupFailed(f"PodGroup {key} has failed{_why(group, pods)}", hint=hint)


def _why(group: PodGroup, pods: list[Pod]) -> str:
    """What the first pod that failed for good says, or the group's own reason."""
    failed = [pod for pod in pods if pod.status.phase == PodPhase.FAILED]
    if failed:
        first = min(failed, key=lambda pod: (pod.status.finished_at or 0, pod.metadata.uid))
        said = first.status.message or first.status.reason
        return f": Pod {first.metadata.name}: {said}"
    finished = next((one for one in group.status.conditions if one.type == "Finished"), None)
    return f": {finished.message or finished.reason}" if finished else ""


def _with_result(group: PodGroup, pods: list[Pod]) -> Iterator[Pod]:
    """Pods that have succeeded, by task and index; of one place that of the latest admission."""
    calls = {task.name for task in group.spec.tasks if task.template.function}
    latest: dict[str, Pod] = {}
    for pod in sorted(pods, key=lambda pod: pod.status.admission):
        if pod.status.phase == PodPhase.SUCCEEDED and pod.spec.task in calls:
            latest[pod.metadata.name] = pod
    yield from sorted(latest.values(), key=lambda pod: (pod.spec.task, pod.spec.index))
