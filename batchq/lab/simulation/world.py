"""Read a described world from manifests: its objects, and what will happen to it.

**Time 0** is the latest timestamp in the file: the moment that its author describes. Instants that
lie ahead by nature (`backoffUntil`, a pod's `retryAt`) do not count, nor do the manifests that a
Timeline applies later. Without timestamps it is the epoch. A group without a `creationTimestamp` is
older than all groups with one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, structs

from batchq.api import validation
from batchq.api.objects import Node, Object, Pod, PodGroup, Queue, key_of, kind_of
from batchq.changes import check_apart, first_contradiction, rivals
from batchq.config.documents import Document, read_documents
from batchq.errors import InvalidInput, Rejected
from batchq.lab.simulation.clock import check_runtimes, whole_second
from batchq.lab.simulation.script import KIND, Step, read_steps


class DescribedPod(Struct, frozen=True, kw_only=True):
    """A pod, the fields of its spec that the file states, and its place in the file."""

    pod: Pod
    written: frozenset[str]
    where: str


class World(Struct, frozen=True, kw_only=True):
    """Everything that a file describes, in its order; `start_at` is time 0, in milliseconds.

    `places`: (kind, key) -> position in the file, for messages.
    """

    objects: tuple[Object, ...]
    groups: tuple[PodGroup, ...]
    pods: tuple[DescribedPod, ...]
    steps: tuple[Step, ...]
    start_at: int
    documents: int
    places: Mapping[tuple[str, str], str] = {}


def read_world(text: str | bytes, source: str) -> World:
    """Read the world that `text` describes; messages call the file `source`.

    Raises InvalidInput.
    """
    documents = read_documents(text, source)
    if not documents:
        raise InvalidInput(f"{source}: expected at least one manifest, found none")
    steps: list[Step] = []
    objects: list[Object] = []
    pods: list[DescribedPod] = []
    seen: dict[tuple[str, str], str] = {}
    places: dict[tuple[str, str], str] = {}
    for document in documents:
        if document.data.get("kind") == KIND:
            steps += read_steps(document)
            continue
        obj = _read(document)
        if isinstance(obj, Pod):
            pods.append(_described_pod(document, obj))
            continue
        _check_once(seen, (kind_of(obj), key_of(obj)), document)
        if isinstance(obj, PodGroup):
            _check_once(seen, ("uid", obj.metadata.uid), document)
        objects.append(obj)
        places[kind_of(obj), key_of(obj)] = _place_of(document)
    _check_queues(objects, places)
    _check_pod_names(objects, places)
    return World(
        objects=tuple(obj for obj in objects if not isinstance(obj, PodGroup)),
        groups=tuple(obj for obj in objects if isinstance(obj, PodGroup)),
        pods=tuple(pods),
        # `sorted` is stable, so that steps of one instant stay in file order.
        steps=tuple(sorted(steps, key=lambda step: step.after_ms)),
        start_at=_latest([*objects, *(described.pod for described in pods)]),
        documents=len(documents),
        places=places,
    )


def _read(document: Document) -> Object:
    obj = document.decode()
    try:
        validation.check(obj, described=True)
        check_runtimes(obj)
    except InvalidInput as problem:
        raise InvalidInput(f"{document.where()}: {problem.message}", hint=problem.hint) from None
    uid = obj.metadata.uid or str(document.place)
    return structs.replace(obj, metadata=structs.replace(obj.metadata, uid=uid))


def _place_of(document: Document) -> str:
    line = document.line_of(("metadata", "name"))
    return f"{document.where()}, line {line}" if line else document.where()


def _check_queues(objects: Iterable[Object], places: Mapping[tuple[str, str], str]) -> None:
    """Raise InvalidInput if `apply` would refuse the queues together, in any order."""
    queues = [obj for obj in objects if isinstance(obj, Queue)]
    contradiction = first_contradiction(queues)
    if contradiction is not None:
        name, problem = contradiction
        where = places["Queue", name]
        raise InvalidInput(f"{where}: {problem.message}", hint=problem.hint)


def _check_pod_names(objects: Iterable[Object], places: Mapping[tuple[str, str], str]) -> None:
    """Raise InvalidInput if two groups would have pods of the same name."""
    before: dict[str, PodGroup] = {}
    for group in objects:
        if not isinstance(group, PodGroup):
            continue
        for other in rivals(group):
            try:
                if other in before:
                    check_apart(group, before[other])
            except Rejected as problem:
                where = places["PodGroup", key_of(group)]
                raise InvalidInput(f"{where}: {problem.message}", hint=problem.hint) from None
        before[key_of(group)] = group


def _described_pod(document: Document, pod: Pod) -> DescribedPod:
    spec = document.data.get("spec")
    written = frozenset(spec) if isinstance(spec, dict) else frozenset()
    return DescribedPod(pod=pod, written=written, where=document.where())


def _check_once(
    seen: dict[tuple[str, str], str], name: tuple[str, str], document: Document
) -> None:
    place = f"document {document.place}"
    if name in seen:
        kind, key = name
        raise InvalidInput(
            f"{document.where()}: {kind} {key} is given twice, in {seen[name]} and {place};"
            " take one of them out"
        )
    seen[name] = place


def _latest(objects: Iterable[Object]) -> int:
    instants = (at for obj in objects for at in _instants(obj) if at is not None)
    return whole_second(max(instants, default=0))


def _instants(obj: Object) -> Iterator[int | None]:
    yield obj.metadata.creation_timestamp
    match obj:
        case Node():
            yield obj.status.heartbeat
        case Pod():
            pod = obj.status
            yield from (pod.bound_at, pod.started_at, pod.finished_at, pod.terminating_at)
        case PodGroup():
            group = obj.status
            yield from (group.queue_time, group.reserved_at, group.in_queue_at)
            yield from (group.started_at, group.unknown_at, group.finished_at)
            yield from (condition.last_transition_time for condition in group.conditions)
            yield from (check.since for check in group.checks)
