"""Large lists a page at a time: groups as `jobs` shows them, and objects of any kind.

A page of groups is looked at as `Overview` does, with their pods and without all other groups. So
a place in line is not told, and why a group waits is as the scheduler has written it down.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from msgspec import Struct, structs

from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.objects import KINDS, NAMESPACED, Object, Pod, PodGroup, Unreadable, key_of
from batchq.client.overview import GATED, GroupView, Overview
from batchq.store import pages
from batchq.store.object_table import ObjectTable
from batchq.store.pages import Entry, Page
from batchq.store.records import field_of_key, key_of_field

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

#: Up to so many groups are looked at all at once, with their places in line: it takes a second.
WHOLE_UP_TO = 10_000
#: Objects of a page where nothing else is asked for.
PAGE_SIZE = 500
#: Kinds of which there are few, which every page of groups is looked at with.
_FEW = tuple(kind for kind in KINDS if kind not in ("PodGroup", "Pod"))


class GroupPage(Struct, frozen=True, kw_only=True):
    """Some groups, and what stands among them and cannot be read; `at` is the instant of the look,
    in milliseconds.
    """

    views: tuple[GroupView, ...]
    at: int
    unreadable: tuple[Unreadable, ...] = ()


class GroupLook:
    """Shows groups without looking at all the others; what else that takes is read once.

    Raises StoreUnavailable.
    """

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._few = {kind: store.list(kind) for kind in _FEW}
        #: The fields of pods by their group's uid, once asked.
        self._pods: dict[bytes, list[bytes]] | None = None

    def views(
        self, groups: Sequence[PodGroup], *, queue: str = "", phases: Sequence[str] = ()
    ) -> GroupPage:
        """Those of these groups that are of a queue or below it, in one of some phases as shown; in
        the order given.
        """
        now_ms = self._store.now_ms()
        victims = self._victims(groups)
        shelf = ObjectTable()
        for kind, objects in self._few.items():
            shelf.fill(kind, _by_key(objects))
        shelf.fill("PodGroup", _by_key([*groups, *victims]))
        shelf.fill("Pod", _by_key(self._pods_of([*groups, *victims])))
        overview = Overview(shelf.snapshot(0), now_ms, is_part=True)
        views = {view.key: view for view in overview.groups(queue=queue, phases=phases)}
        found = (views.get(key_of(group)) for group in groups)
        return GroupPage(views=tuple(view for view in found if view is not None), at=now_ms)

    def _victims(self, groups: Sequence[PodGroup]) -> list[PodGroup]:
        """Those that are to make room for some of the groups, and are not among them."""
        uids = {uid.encode() for group in groups for uid in group.status.pledge.groups}
        uids -= {group.metadata.uid.encode() for group in groups}
        if not uids:
            return []
        found = pages.read_entries(self._store.link, "PodGroup")
        wanted = [entry for entry in found if entry[0] in uids]
        page = pages.read_page(self._store.link, "PodGroup", wanted)
        return [item for item in page.objects if isinstance(item, PodGroup)]

    def _pods_of(self, groups: Sequence[PodGroup]) -> list[Pod]:
        """The pods of those that were ever admitted."""
        uids = [group.metadata.uid.encode() for group in groups if group.status.admission]
        if not uids:
            return []
        if self._pods is None:
            self._pods = {}
            for uid, field, _ in pages.read_entries(self._store.link, "Pod"):
                self._pods.setdefault(uid, []).append(field)
        keys = [key_of_field(field) for uid in uids for field in self._pods.get(uid, ())]
        return [cast(Pod, pod) for pod in self._store.get_many("Pod", keys).values()]


class GroupPages:
    """The groups of a list, the oldest first, a page at a time; the names are read at once.

    `phases` are those in which groups are shown, all if there are none; `active` leaves out those
    that have ended, and `finished` all of these but so many that were submitted last: `hidden` is
    how many. `after` is a token, of the last group that was listed.
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
        self._store, self._queue, self._phases, self._size = store, queue, tuple(phases), size
        entries = pages.read_entries(store.link, "PodGroup", namespace=namespace)
        if after:
            entries = pages.after(entries, after)
        if phases or active:
            entries = [entry for entry in entries if _may_be(entry, phases, active=active)]
        self.hidden = 0
        if finished is not None:
            entries, self.hidden = _without_older(entries, finished)
        self._entries = entries

    def __iter__(self) -> Iterator[GroupPage]:
        look = GroupLook(self._store)
        for entries in pages.in_order(self._entries, self._size):
            page = pages.read_page(self._store.link, "PodGroup", entries)
            groups = [item for item in page.objects if isinstance(item, PodGroup)]
            found = look.views(groups, queue=self._queue, phases=self._phases)
            yield structs.replace(found, unreadable=page.unreadable)


def object_pages(
    store: RedisStore, kind: str, *, namespace: str = "", after: str = "", size: int = PAGE_SIZE
) -> Iterator[Page]:
    """Objects of a kind (of one namespace), by key. `after` is a token, of the last that was
    listed. Raises StoreUnavailable.
    """
    entries = pages.read_entries(store.link, kind, namespace=namespace)
    if kind == "Pod" and namespace:
        groups = pages.read_entries(store.link, "PodGroup", namespace=namespace)
        uids = {uid for uid, _, _ in groups}
        # Without a head, it is none; of which namespace that would be, nobody knows.
        entries = [entry for entry in entries if entry[0] in uids or not entry[0]]
    entries = pages.by_key(entries)
    if after:
        entries = pages.after(entries, after)
    for some in pages.in_order(entries, size):
        page = pages.read_page(store.link, kind, some)
        if kind in NAMESPACED and namespace:
            of_space = [one for one in page.objects if one.metadata.namespace == namespace]
            page = Page(objects=tuple(of_space), unreadable=page.unreadable)
        yield page


def _by_key(objects: Sequence[Object]) -> Mapping[str, Object]:
    return {key_of(item): item for item in objects}


def _may_be(entry: Entry, phases: Collection[str], *, active: bool) -> bool:
    """Whether a group could be shown in one of these phases; a head that is none tells nothing."""
    phase = entry[2].decode(errors="replace")
    if not phase:
        return True
    if active and phase in TERMINAL:
        return False
    gated = GATED in phases and phase == PodGroupPhase.PENDING
    return not phases or phase in phases or gated


def _without_older(entries: Sequence[Entry], finished: int) -> tuple[list[Entry], int]:
    """Without all but the newest that have ended, and how many those are."""
    ended = sorted(entry for entry in entries if entry[2].decode(errors="replace") in TERMINAL)
    hidden = set(ended[: max(0, len(ended) - finished)])
    return [entry for entry in entries if entry not in hidden], len(hidden)


def token_of_view(view: GroupView) -> str:
    """Where a list of groups goes on behind this one."""
    return pages.token_of(view.uid, view.key)


def is_behind(view: GroupView, token: str) -> bool:
    """Whether a group comes behind the place that a token names."""
    entry = (view.uid.encode(), field_of_key(view.key), b"")
    return bool(pages.after([entry], token))


def token_of_object(item: Object) -> str:
    """Where a list of objects goes on behind this one."""
    return pages.token_of("", key_of(item))
