"""Large lists in pages: groups as `jobs` shows them, and objects of any kind.

A page of groups is computed by `Overview` from these groups and their pods only. So it has no
positions in line, and the reasons for waiting are those that the scheduler has stored.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from msgspec import structs

from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.objects import KINDS, NAMESPACED, Object, Pod, PodGroup, key_of, uid_of_pod
from batchq.api.views import (
    GATED,
    WHOLE_UP_TO,
    GroupPage,
    GroupView,
    Page,
    token_of_object,
    token_of_view,
)
from batchq.client.overview import Overview
from batchq.client.request import class_of
from batchq.store.object_table import ObjectTable
from batchq.store.records import Entry, entries_after, field_of_key, key_of_field

if TYPE_CHECKING:
    from batchq.store.redis import RedisStore

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
        if kind in NAMESPACED and namespace:
            of_space = [one for one in page.objects if one.metadata.namespace == namespace]
            page = Page(objects=tuple(of_space), unreadable=page.unreadable)
        yield page


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
