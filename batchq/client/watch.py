"""List and watch: everything there is, then every change, without a gap.

The change stream is bounded. Who was away for too long lists again, and is told what has changed
meanwhile as if it happened now. So does who meets the server over a new connection: it may have
been started again without its last writes, or be another one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from time import monotonic
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from batchq.api.lifecycle import ADMITTED, ON_NODE, TERMINAL, PodGroupPhase, PodPhase
from batchq.api.notation import counted
from batchq.api.objects import NAMESPACED, Object, Pod, PodGroup, key_of
from batchq.api.times import describe_age
from batchq.api.transaction import Event
from batchq.changes.object_writes import find
from batchq.client.cluster import NO_LEADER, nobody_leads
from batchq.errors import NotFound, StoreUnavailable, WaitTimedOut
from batchq.store.memory import EVENTS_KEPT

if TYPE_CHECKING:
    from batchq.store.mirror import Change
    from batchq.store.redis import RedisStore

#: So long at most somebody who follows hears nothing.
WATCH_MS = 5_000


class EventWatch:
    """One reader of events: the latest that there are, then those that happen. Owned by one thread.

    The stream of events is bounded: who was away for too long misses some.
    """

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._place = store.end_of_events()

    def latest(self, wanted: Callable[[Event], bool], most: int) -> list[Event]:
        """What there was when this began, oldest first.

        Raises StoreUnavailable.
        """
        return latest_events(self._store, wanted, most, until=self._place)

    def poll(self, wanted: Callable[[Event], bool], block_ms: int) -> list[Event]:
        """What has happened since the last call; waits up to `block_ms` for it.

        Raises StoreUnavailable.
        """
        self._place, events = self._store.events_after(self._place, block_ms)
        return [event for event in events if wanted(event)]


def latest_events(
    store: RedisStore, wanted: Callable[[Event], bool], most: int, *, until: str = "+"
) -> list[Event]:
    """The latest events that are wanted, oldest first.

    Raises StoreUnavailable.
    """
    if most <= 0:
        return []
    found = [event for event in store.events(most=EVENTS_KEPT, until=until) if wanted(event)]
    return found[-most:]


class Watch:
    """One reader of changes. Owned by one thread."""

    def __init__(
        self,
        store: RedisStore,
        kinds: Collection[str],
        *,
        namespace: str = "",
        listing: bool = True,
    ) -> None:
        """`listing` False begins with what happens from now on."""
        self._store = store
        self._kinds = tuple(kinds)
        self._namespace = namespace
        self._cursor: str | None = None
        self._known: dict[tuple[str, str], int] = {}
        self._connections = 0
        if not listing:
            self._list()

    def poll(self, block_ms: int) -> Sequence[Change]:
        """What there is at the first call, then what has changed; waits up to `block_ms` for it.

        Raises StoreUnavailable.
        """
        from batchq.store.mirror import Trimmed

        if self._cursor is None:
            return self._list()
        try:
            self._cursor, changes = self._store.watch(self._cursor, block_ms)
        except Trimmed:
            return self._list()
        if self._store.link.connections != self._connections:
            return self._list()
        return [change for change in changes if self._is_news(change)]

    def _list(self) -> list[Change]:
        self._connections = self._store.link.connections
        # The place in the stream first: what happens during the list comes again, and is known.
        cursor, _ = self._store.watch(None, 0)
        before, self._known, news = self._known, {}, []
        for kind in self._kinds:
            for item in self._store.list(kind, namespace=self._namespace):
                place, revision = (kind, key_of(item)), item.metadata.revision
                self._known[place] = revision
                if before.pop(place, 0) != revision:
                    news.append(_change(*place, revision, item))
        news += [_change(kind, key, revision, None) for (kind, key), revision in before.items()]
        self._cursor = cursor
        return news

    def _is_news(self, change: Change) -> bool:
        place = change.kind, change.key
        if change.kind not in self._kinds or change.revision <= self._known.get(place, 0):
            return False
        if change.value is None:
            return self._known.pop(place, None) is not None
        if not self._is_here(change.kind, change.value):
            return False
        self._known[place] = change.revision
        return True

    def _is_here(self, kind: str, item: Object) -> bool:
        return kind not in NAMESPACED or self._namespace in ("", item.metadata.namespace)


def changes_of(
    watch: Watch,
    timeout_s: float | None,
    patiently: Callable[[float | None], AbstractContextManager[None]],
) -> Iterator[Change]:
    """What there is, then every change, for `timeout_s` seconds or for ever; waited for with
    patience, and whoever gets a change is outside of it.
    """
    deadline = None if timeout_s is None else monotonic() + timeout_s
    left_s: float | None = timeout_s
    block_ms = 0
    while True:
        with patiently(left_s):
            changes = watch.poll(block_ms)
        yield from changes
        block_ms = WATCH_MS
        if deadline is not None:
            left_s = deadline - monotonic()
            block_ms = min(WATCH_MS, round(left_s * 1000))
        if block_ms <= 0:
            return


def _change(kind: str, key: str, revision: int, value: Object | None) -> Change:
    from batchq.store.mirror import Change

    return Change(kind=kind, key=key, revision=revision, value=value, id="")


Goal: TypeAlias = Literal["finished", "succeeded", "running", "admitted"]

#: A change that was missed costs no more than this.
_LOOK_EVERY_MS = 5_000


class Result(Struct, frozen=True, kw_only=True):
    """What became of a group that was waited for.

    `reached` says whether it came to what was waited for. `exit_code` is that of its first failed
    pod, 0 for a completed group, None while nothing has ended, or where nobody saw the end.
    """

    key: str
    phase: PodGroupPhase
    reached: bool
    reason: str = ""
    message: str = ""
    exit_code: int | None = None


def wait_for(
    store: RedisStore, keys: Sequence[str], goal: Goal, timeout_s: float | None
) -> list[Result]:
    """The results in the order of `keys`, when all are settled.

    For `succeeded`, already when one can no longer succeed; the others are then as they are.
    Raises NotFound, also for a group that is deleted meanwhile, WaitTimedOut, also for a server
    that is away when the time is up, StoreUnavailable.
    """
    deadline = None if timeout_s is None else monotonic() + timeout_s
    try:
        return _settled(store, keys, goal, deadline, timeout_s or 0)
    except StoreUnavailable as error:
        if deadline is None or monotonic() < deadline:
            raise
        after = describe_age(round((timeout_s or 0) * 1000))
        raise WaitTimedOut(
            f"PodGroup {keys[0]} could not be seen after {after}: {error.message}",
            hint=error.hint,
        ) from error


def _settled(
    store: RedisStore, keys: Sequence[str], goal: Goal, deadline: float | None, timeout_s: float
) -> list[Result]:
    watch = Watch(store, ("PodGroup", "Pod"), listing=False)
    uids = {key: find(store, PodGroup, key).metadata.uid for key in keys}
    results: dict[str, Result] = {}
    while True:
        waiting = [key for key in keys if key not in results]
        for key in waiting:
            result = _look(store, key, uids[key], goal)
            if result is not None:
                results[key] = result
        if len(results) == len(uids) or _hopeless(goal, results):
            return [results.get(key) or _as_it_is(store, key) for key in keys]
        _await_change(store, watch, uids, deadline, timeout_s, keys, results)


def wait_until_empty(store: RedisStore, node: str, timeout_s: float | None) -> int:
    """Wait until no pod is on the node; how many are there at the end.

    Raises StoreUnavailable.
    """
    deadline = None if timeout_s is None else monotonic() + timeout_s
    watch = Watch(store, ("Pod",))
    there: set[str] = set()
    block_ms = 0
    while True:
        for change in watch.poll(block_ms):
            pod = change.value
            on_it = isinstance(pod, Pod) and pod.status.node == node and pod.status.phase in ON_NODE
            (there.add if on_it else there.discard)(change.key)
        left_ms = _LOOK_EVERY_MS
        if deadline is not None:
            left_ms = min(left_ms, round((deadline - monotonic()) * 1000))
        if not there or left_ms <= 0:
            return len(there)
        block_ms = left_ms


def pods_of(store: RedisStore, group: PodGroup) -> list[Pod]:
    """The group's pods, those of former admissions too, by key."""
    return [
        pod
        for pod in store.list("Pod", namespace=group.metadata.namespace)
        if isinstance(pod, Pod) and pod.status.group_uid == group.metadata.uid
    ]


def exit_code_of(group: PodGroup, pods: Sequence[Pod]) -> int | None:
    """The exit code of the first pod that failed for good; 0 for a completed group."""
    if group.status.phase == PodGroupPhase.COMPLETED:
        return 0
    failed = [pod for pod in pods if pod.status.phase == PodPhase.FAILED]
    if not failed:
        return None
    first = min(failed, key=lambda pod: (pod.status.finished_at or 0, pod.metadata.uid))
    return first.status.exit_code


def _await_change(
    store: RedisStore,
    watch: Watch,
    uids: dict[str, str],
    deadline: float | None,
    timeout_s: float,
    keys: Sequence[str],
    results: dict[str, Result],
) -> None:
    """Return when something may have changed for one of the groups."""
    mine = set(uids.values())
    look_at = monotonic() + _LOOK_EVERY_MS / 1000
    while (now := monotonic()) < look_at:
        if deadline is not None and now >= deadline:
            raise _timed_out(store, [key for key in keys if key not in results], timeout_s)
        until = look_at if deadline is None else min(look_at, deadline)
        changes = watch.poll(max(1, round((until - now) * 1000)))
        for change in changes:
            if change.key in uids or change.key.partition("-")[0] in mine:
                return


def _look(store: RedisStore, key: str, uid: str, goal: Goal) -> Result | None:
    """The result, if the group has come to the goal or cannot any more."""
    group = store.get("PodGroup", key)
    if not isinstance(group, PodGroup) or group.metadata.uid != uid:
        raise NotFound(f"PodGroup {key} was deleted while it was waited for")
    phase = group.status.phase
    if goal in ("finished", "succeeded"):
        if phase not in TERMINAL:
            return None
        pods = pods_of(store, group)
        # Cancelled at once, but its processes have their grace.
        if group.status.claim.is_open or any(pod.status.phase in ON_NODE for pod in pods):
            return None
        return _result(group, pods, reached=phase == PodGroupPhase.COMPLETED)
    if goal == "admitted":
        reached = phase in ADMITTED or (group.status.admission > 0 and phase in TERMINAL)
    else:
        ran = group.status.started_at is not None and phase in TERMINAL
        reached = phase == PodGroupPhase.RUNNING or ran or phase == PodGroupPhase.COMPLETED
    if reached or phase in TERMINAL:
        return _result(group, pods_of(store, group), reached=reached)
    return None


def _as_it_is(store: RedisStore, key: str) -> Result:
    group = find(store, PodGroup, key)
    return _result(group, pods_of(store, group), reached=False)


def _result(group: PodGroup, pods: Sequence[Pod], *, reached: bool) -> Result:
    finished = next((one for one in group.status.conditions if one.type == "Finished"), None)
    return Result(
        key=f"{group.metadata.namespace}/{group.metadata.name}",
        phase=group.status.phase,
        reached=reached,
        reason=finished.reason if finished else "",
        message=finished.message if finished else "",
        exit_code=exit_code_of(group, pods),
    )


def _hopeless(goal: Goal, results: dict[str, Result]) -> bool:
    return goal == "succeeded" and any(not result.reached for result in results.values())


def _timed_out(store: RedisStore, waiting: Sequence[str], timeout_s: float) -> WaitTimedOut:
    key = waiting[0]
    group = store.get("PodGroup", key)
    phase = group.status.phase if isinstance(group, PodGroup) else "gone"
    why = ""
    if isinstance(group, PodGroup) and group.status.reasons:
        first = group.status.reasons[0]
        why = f" ({first.reason}: {first.message()})"
    elif phase in TERMINAL:
        why = ", but processes of it still run"
    more = len(waiting) - 1
    others = f", and {counted(more, 'other')} with it" if more else ""
    after = describe_age(round(timeout_s * 1000))
    if phase not in TERMINAL and nobody_leads(store):
        hint = NO_LEADER
    else:
        hint = f"it goes on; look at it with `batchq describe {key}`"
    return WaitTimedOut(f"PodGroup {key} is {phase} after {after}{why}{others}", hint=hint)
