"""Export the live state as a described world: manifests that `batchq simulate` reads.

This allows changes beyond a configuration: a queue's strategy, a quota, a node, or a Timeline. What
pods run is left out (commands, arguments, environment): a world does not use it, and it may be
private. Expected durations are written as `batchq/runtime`, on the usual assumptions.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from batchq.api.lifecycle import ON_NODE, TERMINAL
from batchq.api.manifest import encode
from batchq.api.objects import (
    RUNTIME_ANNOTATION,
    Metadata,
    Object,
    Pod,
    PodGroup,
    PodTemplate,
    PriorityClass,
    Task,
)
from batchq.api.times import format_duration
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState
from batchq.lab.whatif.future import Lasting, pod_ends_at, stated_ms
from batchq.lab.whatif.look_ahead import live_others

#: A world begins at its latest timestamp: that of this unused class.
MARK = "saved-from-live"


def as_world(session: Session, lasting: Lasting) -> list[dict[str, object]]:
    """Return manifests of what a session was opened on, except groups that have ended and that no
    other group depends on.
    """
    return [encode(obj) for obj in _objects(session, lasting)]


def _objects(session: Session, lasting: Lasting) -> Iterator[Object]:
    yield PriorityClass(metadata=Metadata(name=MARK, creation_timestamp=session.now_ms))
    for obj in (*session.snapshot.queues, *live_others(session)):
        if not (isinstance(obj, PriorityClass) and obj.metadata.name == MARK):
            yield _plain(obj)
    groups = sorted(session.groups.values(), key=lambda group: group.key)
    needed = {one.uid for group in groups for one in group.record.spec.depends_on}
    for group in groups:
        if group.phase in TERMINAL and group.uid not in needed and not group.held:
            continue
        yield _group(group, lasting)
        for uid in sorted(group.pods):
            yield _pod(group, group.pods[uid], lasting, session.now_ms)


def _group(group: GroupState, lasting: Lasting) -> Object:
    record = group.record
    spec, status = record.spec, record.status
    depends_on = tuple(structs.replace(one, uid="") for one in spec.depends_on)
    tasks = tuple(_task(task, record, lasting) for task in spec.tasks)
    # No consumer renews a claim in a world.
    claim = structs.replace(status.claim, expires_at=None, token="")
    return _plain(
        structs.replace(
            record,
            spec=structs.replace(spec, tasks=tasks, depends_on=depends_on),
            status=structs.replace(status, claim=claim, reasons=()),
        )
    )


def _task(task: Task, group: PodGroup, lasting: Lasting) -> Task:
    template = task.template
    stated, walltime = stated_ms(template.annotations), group.spec.walltime
    length_ms = lasting.length_ms(stated_ms=stated, walltime_ms=walltime)
    kept = PodTemplate(
        labels=template.labels,
        annotations=_with_runtime(template.annotations, length_ms),
        requests=template.requests,
        node_selector=template.node_selector,
        tolerations=template.tolerations,
        priority=template.priority,
        scheduling_gates=template.scheduling_gates,
        termination_grace=template.termination_grace,
    )
    return structs.replace(task, template=kept)


def _pod(group: GroupState, pod: Pod, lasting: Lasting, now_ms: int) -> Object:
    if pod.status.phase in ON_NODE and pod.status.started_at is not None:
        ends_at = pod_ends_at(lasting, group, pod, seen_at=now_ms)
        lasts_ms = None if ends_at is None else ends_at - pod.status.started_at
        annotations = _with_runtime(pod.metadata.annotations, lasts_ms)
        pod = structs.replace(pod, metadata=structs.replace(pod.metadata, annotations=annotations))
    return _plain(pod)


def _with_runtime(annotations: dict[str, str], length_ms: int | None) -> dict[str, str]:
    rest = {name: text for name, text in annotations.items() if name != RUNTIME_ANNOTATION}
    return rest if length_ms is None else {**rest, RUNTIME_ANNOTATION: format_duration(length_ms)}


def _plain(obj: Object) -> Object:
    """Reset the revision, which the store assigns."""
    return structs.replace(obj, metadata=structs.replace(obj.metadata, revision=0))
