"""What pods have written, line by line, in the order of the pods or, followed, as it comes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

from msgspec import Struct

from batchq.api.fences import count_of
from batchq.api.lifecycle import ON_NODE, TERMINAL
from batchq.api.objects import Pod, PodGroup
from batchq.changes.lookup import find, instead
from batchq.client.watching import Watch
from batchq.errors import NotFound
from batchq.store.redis import RedisStore

#: How late a followed line may be.
_LATE_MS = 250
#: A line that does not end is cut here.
_LONGEST_LINE_BYTES = 64 * 1024


class LogLine(Struct, frozen=True, kw_only=True):
    """One line, without its end. `stream` is stdout or stderr."""

    pod: str
    attempt: int
    stream: str
    text: str


class _Reader:
    """Reads one attempt's output on; keeps what has no line end yet."""

    def __init__(self, store: RedisStore, pod: Pod) -> None:
        self._store = store
        self._pod = pod
        self._after = "0"
        self._rests: dict[str, bytes] = {}

    def lines(self) -> Iterator[LogLine]:
        """All complete lines that have come."""
        uid, status = self._pod.metadata.uid, self._pod.status
        node = status.node or status.last_node
        while chunks := self._store.read_log(node, uid, status.attempt, after=self._after):
            for chunk in chunks:
                self._after = chunk.id
                *whole, rest = (self._rests.get(chunk.stream, b"") + chunk.data).split(b"\n")
                yield from (self._line(chunk.stream, line) for line in whole)
                if len(rest) > _LONGEST_LINE_BYTES:
                    yield self._line(chunk.stream, rest)
                    rest = b""
                self._rests[chunk.stream] = rest

    def last_lines(self) -> Iterator[LogLine]:
        """What is left, when nothing more can come."""
        yield from self.lines()
        for stream, rest in self._rests.items():
            if rest:
                yield self._line(stream, rest)
        self._rests = {}

    def _line(self, stream: str, line: bytes) -> LogLine:
        return LogLine(
            pod=self._pod.metadata.name,
            attempt=count_of(self._pod.status.attempt),
            stream=stream,
            text=line.removesuffix(b"\r").decode(errors="replace"),
        )


def read_output(
    store: RedisStore, key: str, *, pod: str = "", tail: int | None = None
) -> Iterator[LogLine]:
    """The kept output of the latest attempt of each pod, pod after pod.

    `pod` chooses one, by its name or by `<task>-<index>`; `tail` the last lines of each.
    Raises NotFound, StoreUnavailable.
    """
    group = find(store, PodGroup, key)
    for one in _chosen(store, group, pod):
        yield from _last(_Reader(store, one).last_lines(), tail)


def follow_output(
    store: RedisStore, key: str, *, pod: str = "", tail: int | None = None
) -> Iterator[LogLine]:
    """As `read_output`, and then each line as it comes, until the group's processes have ended.

    `tail` counts for what is there at the beginning.
    """
    group = find(store, PodGroup, key)
    uid = group.metadata.uid
    watch = Watch(store, ("PodGroup", "Pod"), namespace=group.metadata.namespace)
    pods: dict[str, Pod] = {}
    readers: dict[tuple[str, int], _Reader] = {}
    block_ms, first = 0, True
    while True:
        for change in watch.poll(block_ms):
            if isinstance(change.value, Pod) and change.value.status.group_uid == uid:
                pods[change.key] = change.value
            elif isinstance(change.value, PodGroup) and change.value.metadata.uid == uid:
                group = change.value
            elif change.value is None:
                pods.pop(change.key, None)
        ended = group.status.phase in TERMINAL and not any(
            one.status.phase in ON_NODE for one in pods.values()
        )
        for one in _in_order(pods.values()):
            if one.status.attempt and _is(one, group, pod):
                place = one.metadata.uid, one.status.attempt
                reader = readers.setdefault(place, _Reader(store, one))
                lines = reader.last_lines() if ended else reader.lines()
                yield from _last(lines, tail if first else None)
        if ended or store.get("PodGroup", key) is None:
            return
        block_ms, first = _LATE_MS, False


def patient(
    lines: Iterator[LogLine], patiently: Callable[[], AbstractContextManager[None]]
) -> Iterator[LogLine]:
    """The same lines, each waited for with patience; whoever gets one is outside of it."""
    while True:
        with patiently():
            line = next(lines, None)
        if line is None:
            return
        yield line


def _chosen(store: RedisStore, group: PodGroup, wanted: str) -> list[Pod]:
    # Of one place in the group, the pod of the latest admission.
    latest: dict[str, Pod] = {}
    for pod in store.list("Pod", namespace=group.metadata.namespace):
        if isinstance(pod, Pod) and pod.status.group_uid == group.metadata.uid:
            known = latest.get(pod.metadata.name)
            if known is None or known.status.admission < pod.status.admission:
                latest[pod.metadata.name] = pod
    pods = [pod for pod in latest.values() if _is(pod, group, wanted)]
    if wanted and not pods:
        there = [pod.metadata.name for pod in _in_order(latest.values())]
        key = f"{group.metadata.namespace}/{group.metadata.name}"
        raise NotFound(f"PodGroup {key} has no pod {wanted[:80]!r}", hint=instead(wanted, there))
    return _in_order(pod for pod in pods if pod.status.attempt)


def _is(pod: Pod, group: PodGroup, wanted: str) -> bool:
    name = pod.metadata.name
    return wanted in ("", name, name.removeprefix(f"{group.metadata.name}-"))


def _in_order(pods: Iterable[Pod]) -> list[Pod]:
    return sorted(pods, key=lambda pod: (pod.spec.task, pod.spec.index, pod.status.admission))


def _last(lines: Iterator[LogLine], tail: int | None) -> Iterator[LogLine]:
    return lines if tail is None else iter(deque(lines, maxlen=tail))
