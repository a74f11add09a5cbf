"""Lists of objects: large ones in pages, and list and watch: all objects that exist, then every
change, without a gap.

The change stream is bounded. A reader that was away for too long lists all objects again and
returns the differences as changes. It does the same after a reconnect, because the server may have
been restarted without its last writes, or may be another one.

`Overview` computes a page of groups from these groups and their pods only. So a page has no
positions in line, and the reasons for waiting are those that the scheduler has stored.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from time import monotonic
from typing import TYPE_CHECKING, cast

from msgspec import structs

from batchq.api.lifecycle import ADMITTED, ON_NODE, TERMINAL, PodGroupPhase, PodPhase
from batchq.api.notation import counted, describe_timeout, shown
from batchq.api.objects import KINDS, NAMESPACED, Object, Pod, PodGroup, key_of, uid_of_pod
from batchq.api.reasons import Explanation
from batchq.api.transaction import Event
from batchq.api.views import (
    GATED,
    GOALS,
    WHOLE_UP_TO,
    Goal,
    GroupPage,
    GroupView,
    Page,
    Result,
    WaitState,
    token_of_object,
    token_of_view,
)
from batchq.client.changes.object_writes import find
from batchq.client.connection import schedulers, with_heartbeats
from batchq.client.request import class_of
from batchq.errors import InvalidInput, NotFound, StoreUnavailable, WaitTimedOut
from batchq.store.memory import EVENTS_KEPT, ObjectTable
from batchq.store.records import Entry, entries_after, field_of_key, key_of_field

if TYPE_CHECKING:
    from batchq.api.views import Change
    from batchq.store.mirror import IsWanted
    from batchq.store.redis import RedisStore

#: Longest time without an answer for an iteration that follows changes.
WATCH_MS = 5_000


class EventWatch:
    """A reader of events: the latest existing ones, then new ones. Belongs to one thread.

    The stream of events is bounded, so a reader that was away for too long misses some.
    """

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._place = store.end_of_events()

    def latest(self, wanted: Callable[[Event], bool], most: int) -> list[Event]:
        """Return the events that existed when this was created, oldest first.

        Raises StoreUnavailable.
        """
        return latest_events(self._store, wanted, most, until=self._place)

    def poll(self, wanted: Callable[[Event], bool], block_ms: int) -> list[Event]:
        """Return the events since the last call; wait up to `block_ms` for one.

        Raises StoreUnavailable.
        """
        self._place, events = self._store.events_after(self._place, block_ms)
        return [event for event in events if wanted(event)]


def event_filter(
    kind: str, key: str, namespace: str, reason: str, since_ms: int
) -> Callable[[Event], bool]:
    """Return a filter of events; an empty string matches everything."""

    def is_wanted(event: Event) -> bool:
        space = event.key.partition("/")[0] if event.kind in NAMESPACED else ""
        return (
            kind in ("", event.kind)
            and key in ("", event.key)
            and namespace in ("", space)
            and reason in ("", event.reason)
            and event.at >= since_ms
        )

    return is_wanted


def latest_events(
    store: RedisStore, wanted: Callable[[Event], bool], most: int, *, until: str = "+"
) -> list[Event]:
    """Return the latest `most` wanted events, oldest first. Raises StoreUnavailable."""
    if most <= 0:
        return []
    found = [event for event in store.events(most=EVENTS_KEPT, until=until) if wanted(event)]
    return found[-most:]


def followed_events(
    store: RedisStore,
    wanted: Callable[[Event], bool],
    most: int,
    patiently: Callable[[], AbstractContextManager[None]],
) -> Iterator[Sequence[Event]]:
    """Yield the latest wanted events, then new ones, as `Client.follow_events` does."""
    watch = EventWatch(store)
    yield watch.latest(wanted, most)
    while True:
        with patiently():
            events = watch.poll(wanted, WATCH_MS)
        yield events


class Watch:
    """A reader of changes. Belongs to one thread."""

    def __init__(
        self,
        store: RedisStore,
        kinds: Collection[str],
        *,
        namespace: str = "",
        listing: bool = True,
        is_wanted: IsWanted | None = None,
    ) -> None:
        """With `listing=False`, existing objects are not returned as changes. Later changes for
        which `is_wanted` returns False are left out, without being decoded.

        `lists` counts how often all objects were listed: changes from a list are those between two
        states, in no particular order.
        """
        self.lists = 0
        self._store = store
        self._kinds = tuple(class_of(kind).__name__ for kind in kinds)
        self._namespace = namespace
        self._is_wanted = is_wanted
        self._cursor: str | None = None
        self._known: dict[tuple[str, str], int] = {}
        self._connections = 0
        if not listing:
            self._list()

    @property
    def revision(self) -> int:
        """The revision up to which changes have been returned; 0 before the first call."""
        return int((self._cursor or "0").partition("-")[0])

    def poll(self, block_ms: int) -> Sequence[Change]:
        """Return what exists (first call) or what has changed; wait up to `block_ms` for a change.

        Raises StoreUnavailable.
        """
        from batchq.store.mirror import Trimmed

        if self._cursor is None:
            return self._list()
        try:
            self._cursor, changes = self._store.watch(self._cursor, block_ms, self._is_wanted)
        except Trimmed:
            return self._list()
        if self._store.link.connections != self._connections:
            return self._list()
        return [change for change in changes if self._is_new(change)]

    def _list(self) -> list[Change]:
        self._connections = self._store.link.connections
        # The cursor comes first, so that changes during the list are seen again and recognised.
        cursor, _ = self._store.watch(None, 0)
        before, self._known, found = self._known, {}, []
        for kind in self._kinds:
            for item in self._store.list(kind, namespace=self._namespace):
                place, revision = (kind, key_of(item)), item.metadata.revision
                self._known[place] = revision
                if before.pop(place, 0) != revision:
                    found.append(_change(*place, revision, item))
        found += [_change(kind, key, revision, None) for (kind, key), revision in before.items()]
        self._cursor = cursor
        self.lists += 1
        return found

    def _is_new(self, change: Change) -> bool:
        place = change.kind, change.key
        if change.kind not in self._kinds or change.revision <= self._known.get(place, 0):
            return False
        if change.value is None:
            return self._known.pop(place, None) is not None
        if not self._in_namespace(change.kind, change.value):
            return False
        self._known[place] = change.revision
        return True

    def _in_namespace(self, kind: str, item: Object) -> bool:
        return kind not in NAMESPACED or self._namespace in ("", item.metadata.namespace)


def changes_of(
    watch: Watch,
    timeout_s: float | None,
    patiently: Callable[[float | None], AbstractContextManager[None]],
) -> Iterator[Change]:
    """Yield what exists, then every change, for `timeout_s` seconds or for ever. It waits patiently
    for the server, but the caller's own calls between two changes do not.
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
    from batchq.api.views import Change

    return Change(kind=kind, key=key, revision=revision, value=value, id="")


#: Bounds the delay after a missed change.
_LOOK_EVERY_MS = 5_000


def check_goal(goal: object) -> None:
    """Raise InvalidInput if an unchecked caller passed another goal: no group would be waited for
    until its end.
    """
    if goal not in GOALS:
        raise InvalidInput(f"for_: expected one of {', '.join(GOALS)}, found {shown(goal)}")


def wait_for(
    store: RedisStore, keys: Sequence[str], goal: Goal, timeout_s: float | None
) -> list[Result]:
    """Wait until all groups are settled; return the results in the order of `keys`.

    For `succeeded`, return as soon as one group can no longer succeed.
    Raises InvalidInput for another goal, NotFound (also for a group that is deleted during the
    wait), WaitTimedOut (also if the server is away at the timeout), StoreUnavailable.
    """
    check_goal(goal)
    deadline = None if timeout_s is None else monotonic() + timeout_s
    try:
        return _settled(store, keys, goal, deadline, timeout_s or 0)
    except StoreUnavailable as error:
        if deadline is None or monotonic() < deadline:
            raise
        after = describe_timeout(timeout_s or 0)
        raise WaitTimedOut(
            f"PodGroup {keys[0]} could not be read within {after}: {error.message}",
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
        if len(results) == len(uids) or _cannot_succeed(goal, results):
            return [results.get(key) or _current_result(store, key) for key in keys]
        _await_change(store, watch, uids, deadline, timeout_s, keys, results)


def wait_state(store: RedisStore, key: str, goal: Goal) -> WaitState:
    """Return how far a group is from a goal. Raises NotFound, StoreUnavailable."""
    uid = find(store, PodGroup, key).metadata.uid
    found = _look(store, key, uid, goal)
    result = found or _current_result(store, key)
    return WaitState(uid=uid, result=result, is_settled=found is not None)


def wait_until_empty(store: RedisStore, node: str, timeout_s: float | None) -> int:
    """Wait until the node has no pods; return how many it still has at the timeout.

    Raises StoreUnavailable.
    """
    deadline = None if timeout_s is None else monotonic() + timeout_s
    watch = Watch(store, ("Pod",))
    present: set[str] = set()
    block_ms = 0
    while True:
        for change in watch.poll(block_ms):
            pod = change.value
            on_it = isinstance(pod, Pod) and pod.status.node == node and pod.status.phase in ON_NODE
            (present.add if on_it else present.discard)(change.key)
        left_ms = _LOOK_EVERY_MS
        if deadline is not None:
            left_ms = min(left_ms, round((deadline - monotonic()) * 1000))
        if not present or left_ms <= 0:
            return len(present)
        block_ms = left_ms


def pods_of(store: RedisStore, group: PodGroup) -> list[Pod]:
    """Return the group's pods, including those of earlier admissions, by key."""
    return [
        pod
        for pod in store.list("Pod", namespace=group.metadata.namespace)
        if isinstance(pod, Pod) and pod.status.group_uid == group.metadata.uid
    ]


def exit_code_of(group: PodGroup, pods: Sequence[Pod]) -> int | None:
    """Return the exit code of the first pod that failed for good; 0 for a completed group."""
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
    """Return when one of the groups may have changed."""
    own_uids = set(uids.values())
    look_at = monotonic() + _LOOK_EVERY_MS / 1000
    while (now := monotonic()) < look_at:
        if deadline is not None and now >= deadline:
            raise _timed_out(store, [key for key in keys if key not in results], timeout_s)
        until = look_at if deadline is None else min(look_at, deadline)
        changes = watch.poll(max(1, round((until - now) * 1000)))
        for change in changes:
            if change.key in uids or change.key.partition("-")[0] in own_uids:
                return


def _look(store: RedisStore, key: str, uid: str, goal: Goal) -> Result | None:
    """Return the result if the group has reached the goal or no longer can."""
    group = store.get("PodGroup", key)
    if not isinstance(group, PodGroup) or group.metadata.uid != uid:
        raise NotFound(f"PodGroup {key} was deleted while it was waited for")
    phase = group.status.phase
    if goal in ("finished", "succeeded"):
        if phase not in TERMINAL:
            return None
        pods = pods_of(store, group)
        # A cancelled group has ended, but its processes have their grace period.
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


def _current_result(store: RedisStore, key: str) -> Result:
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


def _cannot_succeed(goal: Goal, results: dict[str, Result]) -> bool:
    return goal == "succeeded" and any(not result.reached for result in results.values())


def _timed_out(store: RedisStore, waiting: Sequence[str], timeout_s: float) -> WaitTimedOut:
    group = store.get("PodGroup", waiting[0])
    found = group if isinstance(group, PodGroup) else None
    return timed_out(waiting, found, timeout_s, unled=lambda: schedulers(store).unled)


def timed_out(
    waiting: Sequence[str], group: PodGroup | None, timeout_s: float, *, unled: Callable[[], str]
) -> WaitTimedOut:
    """Return the error for groups that were waited for in vain; `group` is the first of them.
    `unled` says that no scheduler leads, or returns "".
    """
    key = waiting[0]
    phase = group.status.phase if group is not None else "gone"
    why = ""
    if group is not None and group.status.reasons:
        why = f" ({Explanation(verdict=group.status.reasons[0]).text})"
    elif phase in TERMINAL:
        why = ", but processes of it still run"
    more = len(waiting) - 1
    others = f", and {counted(more, 'other')} with it" if more else ""
    after = describe_timeout(timeout_s)
    hint = "" if phase in TERMINAL else unled()
    hint = hint or f"it goes on; look at it with `batchq describe {key}`"
    return WaitTimedOut(f"PodGroup {key} is {phase} after {after}{why}{others}", hint=hint)


__all__ = [
    "PAGE_SIZE",
    "WHOLE_UP_TO",
    "GroupLook",
    "GroupPage",
    "GroupPages",
    "Page",
    "is_behind",
    "object_pages",
    "token_of_object",
    "token_of_view",
]

#: Objects of a page unless the caller chooses another size.
PAGE_SIZE = 500
#: The phases of groups that have ended, as in heads.
_ENDED = frozenset(phase.encode() for phase in TERMINAL)
#: Kinds with few objects, which the view of every page reads whole.
_FEW = tuple(kind for kind in KINDS if kind not in ("PodGroup", "Pod"))


#: Keys of pods that are asked for at once, whether or not the pods exist; for more, the heads of
#: all pods are read.
_KEYS_ASKED = 20_000


class GroupLook:
    """Shows groups without reading all the others; the other objects it needs are read once.

    Raises StoreUnavailable.
    """

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._few = {kind: store.list(kind) for kind in _FEW}
        #: The fields of pods by their group's uid; read when first needed.
        self._pods: dict[bytes, list[bytes]] | None = None

    def views(
        self, groups: Sequence[PodGroup], *, queue: str = "", phases: Sequence[str] = ()
    ) -> GroupPage:
        """Return the views of those groups that are in the queue (or below it) and in one of the
        phases as shown, in the order given.
        """
        from batchq.client.overview import Overview

        now_ms = self._store.now_ms()
        victims = self._victims(groups)
        table = ObjectTable()
        for kind, objects in self._few.items():
            table.fill(kind, _by_key(objects))
        table.fill("PodGroup", _by_key([*groups, *victims]))
        table.fill("Pod", _by_key(self._pods_of([*groups, *victims])))
        overview = Overview(table.snapshot(0), now_ms, is_part=True)
        views = {view.key: view for view in overview.groups(queue=queue, phases=phases)}
        found = (views.get(key_of(group)) for group in groups)
        return GroupPage(views=tuple(view for view in found if view is not None), at=now_ms)

    def _victims(self, groups: Sequence[PodGroup]) -> list[PodGroup]:
        """Return the pledged victims of the groups that are not among the groups."""
        uids = {uid.encode() for group in groups for uid in group.status.pledge.groups}
        uids -= {group.metadata.uid.encode() for group in groups}
        if not uids:
            return []
        from batchq.store import pages

        found = pages.read_entries(self._store.link, "PodGroup")
        wanted = [entry for entry in found if entry[0] in uids]
        page = pages.read_page(self._store.link, "PodGroup", wanted)
        return [item for item in page.objects if isinstance(item, PodGroup)]

    def _pods_of(self, groups: Sequence[PodGroup]) -> list[Pod]:
        """Return the pods of the groups that were ever admitted."""
        admitted = [group for group in groups if group.status.admission]
        if not admitted:
            return []
        if sum(map(_most_pods_of, admitted)) <= _KEYS_ASKED:
            asked = [key for group in admitted for key in _keys_of_pods(group)]
            return [cast(Pod, pod) for pod in self._store.get_many("Pod", asked).values()]
        uids = [group.metadata.uid.encode() for group in admitted]
        if self._pods is None:
            from batchq.store import pages

            self._pods = {}
            for uid, field, _ in pages.read_entries(self._store.link, "Pod"):
                self._pods.setdefault(uid, []).append(field)
        keys = [key_of_field(field) for uid in uids for field in self._pods.get(uid, ())]
        return [cast(Pod, pod) for pod in self._store.get_many("Pod", keys).values()]


class GroupPages:
    """The groups of a list in pages, oldest first; the names are read at once.

    `phases` are phases as shown (empty: all). `active` leaves out the groups that have ended;
    `finished` leaves out all of these except the given number that were submitted last, and
    `hidden` counts those left out. `after` is the token of the last group of an earlier list.
    Raises StoreUnavailable, as the iteration does.
    """

    def __init__(
        self,
        store: RedisStore,
        *,
        namespace: str = "",
        queue: str = "",
        phases: Collection[str] = (),
        active: bool = False,
        finished: int | None = None,
        after: str = "",
        size: int = PAGE_SIZE,
    ) -> None:
        from batchq.store import pages

        self._store, self._queue, self._phases, self._size = store, queue, tuple(phases), size
        entries = pages.read_entries(store.link, "PodGroup", namespace=namespace)
        if after:
            entries = entries_after(entries, after)
        if phases or active:
            entries = [entry for entry in entries if _may_be(entry, phases, active=active)]
        self.hidden = 0
        if finished is not None:
            entries, self.hidden = _without_older(entries, finished)
        self._entries = entries

    def __iter__(self) -> Iterator[GroupPage]:
        from batchq.store import pages

        look = GroupLook(self._store)
        for entries in pages.in_order(self._entries, self._size):
            page = pages.read_page(self._store.link, "PodGroup", entries)
            groups = [item for item in page.objects if isinstance(item, PodGroup)]
            found = look.views(groups, queue=self._queue, phases=self._phases)
            yield structs.replace(found, unreadable=page.unreadable)


def object_pages(
    store: RedisStore, kind: str, *, namespace: str = "", after: str = "", size: int = PAGE_SIZE
) -> Iterator[Page]:
    """Iterate over the objects of a kind (of one namespace), by key. `after` is the token of the
    last object of an earlier list. Raises InvalidInput for an unknown kind, StoreUnavailable.
    """
    from batchq.store import pages

    kind = class_of(kind).__name__
    entries = pages.read_entries(store.link, kind, namespace=namespace)
    if kind == "Pod" and namespace:
        groups = pages.read_entries(store.link, "PodGroup", namespace=namespace)
        uids = {uid for uid, _, _ in groups}
        # A pod without a readable head may belong to any namespace: keep it.
        entries = [entry for entry in entries if entry[0] in uids or not entry[0]]
    entries = pages.by_key(entries)
    if after:
        entries = entries_after(entries, after)
    for some in pages.in_order(entries, size):
        page = pages.read_page(store.link, kind, some)
        objects = with_heartbeats(store, page.objects)
        if kind in NAMESPACED and namespace:
            objects = tuple(one for one in objects if one.metadata.namespace == namespace)
        yield Page(objects=objects, unreadable=page.unreadable)


def _most_pods_of(group: PodGroup) -> int:
    """Return how many pods there may be of all admissions of a group."""
    return max(0, group.status.admission) * sum(task.replicas for task in group.spec.tasks)


def _keys_of_pods(group: PodGroup) -> Iterator[str]:
    """Yield the keys that pods of a group may have, those of former admissions included."""
    pods = range(sum(task.replicas for task in group.spec.tasks))
    for admission in range(1, group.status.admission + 1):
        yield from (uid_of_pod(group.metadata.uid, admission, ordinal) for ordinal in pods)


def _by_key(objects: Sequence[Object]) -> Mapping[str, Object]:
    return {key_of(item): item for item in objects}


def _may_be(entry: Entry, phases: Collection[str], *, active: bool) -> bool:
    """Return whether a group may be shown in these phases; True if its head is unreadable."""
    if not entry[2]:
        return True
    if active and entry[2] in _ENDED:
        return False
    phase = entry[2].decode(errors="replace")
    gated = GATED in phases and phase == PodGroupPhase.PENDING
    return not phases or phase in phases or gated


def _without_older(entries: Sequence[Entry], finished: int) -> tuple[list[Entry], int]:
    """Leave out all ended groups but the newest; return the rest and the number left out."""
    ended = [entry for entry in entries if entry[2] in _ENDED]
    if len(ended) <= finished:
        return [*entries], 0
    newest = heapq.nlargest(finished, ended)
    left = [entry for entry in entries if entry[2] not in _ENDED]
    return left + newest, len(ended) - finished


def is_behind(view: GroupView, token: str) -> bool:
    """Return whether a group comes after the place that a token names."""
    entry = (view.uid.encode(), field_of_key(view.key), b"")
    return bool(entries_after([entry], token))
