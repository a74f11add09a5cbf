"""Groups whose states are built on demand: the members of equivalence classes at a start.

A scheduler that starts may find a million waiting records. A session needs their number and their
order, and the state of the few whose turn comes. So a member is an entry of its class until someone
asks for it: by uid, by key, or in order. The states are then equal to those built at the start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, TypeAlias

from batchq.api.objects import PodGroup, PodGroupStatus
from batchq.core.chunks import Ordered, uid_order
from batchq.core.session.specs import only_waits
from batchq.core.session.state import EquivalenceClass, GroupState, Key, reasons_key

#: A member without a state: its sort key, its record, and its model. Stored in plain tuples, since
#: there may be a million.
Entry: TypeAlias = tuple[Key, PodGroup, "Model"]

_KEY = itemgetter(0)
#: Of how many specs members are taken in without a state, and how many more objects are known to
#: equal one of these.
_MOST_MODELS = 16_384
#: With how many models a spec is compared, and after how many specs in a row that equalled none of
#: them no more are.
_MOST_COMPARED = 4
_MOST_IN_VAIN = 1_000


class GroupStates(dict[str, GroupState]):
    """The states of all groups by uid."""

    __slots__ = ("_build", "unbuilt")

    def __init__(self, build: Callable[[Entry], GroupState]) -> None:
        super().__init__()
        self._build = build
        #: The groups without a state, by uid.
        self.unbuilt: dict[str, Entry] = {}

    def __missing__(self, uid: str) -> GroupState:
        state = self[uid] = self._build(self.unbuilt.pop(uid))
        return state

    def __len__(self) -> int:
        return super().__len__() + len(self.unbuilt)

    def __contains__(self, uid: object) -> bool:
        return super().__contains__(uid) or uid in self.unbuilt

    def __iter__(self) -> Iterator[str]:
        return chain(super().__iter__(), self.unbuilt)

    def get(self, uid: str, default: Any = None) -> Any:
        found = super().get(uid)
        if found is None:
            return self[uid] if uid in self.unbuilt else default
        return found

    def pop(self, uid: str, *default: Any) -> Any:
        if uid in self.unbuilt:
            return self._build(self.unbuilt.pop(uid))
        return super().pop(uid, *default)

    def keys(self) -> Any:
        self.build_all()
        return super().keys()

    def values(self) -> Any:
        self.build_all()
        return super().values()

    def items(self) -> Any:
        self.build_all()
        return super().items()

    def build_all(self) -> None:
        """Build every state: a million take seconds."""
        for uid in list(self.unbuilt):
            self[uid]


class StatesByKey(dict[str, GroupState]):
    """The states of all groups by key. `find` returns the record of a key."""

    __slots__ = ("_find", "_groups")

    def __init__(self, groups: GroupStates, find: Callable[[str], PodGroup | None]) -> None:
        super().__init__()
        self._groups = groups
        self._find = find

    def __missing__(self, key: str) -> GroupState:
        uid = self._unbuilt(key)
        if uid is None:
            raise KeyError(key)
        # The builder puts it here, too.
        return self._groups[uid]

    def _unbuilt(self, key: object) -> str | None:
        """Return the uid of the group with this key, if it has no state."""
        if not self._groups.unbuilt or not isinstance(key, str):
            return None
        record = self._find(key)
        if record is None:
            return None
        entry = self._groups.unbuilt.get(uid := record.metadata.uid)
        # Two records may claim one uid.
        return uid if entry is not None and entry[1] is record else None

    def __len__(self) -> int:
        return super().__len__() + len(self._groups.unbuilt)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or self._unbuilt(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def get(self, key: str, default: Any = None) -> Any:
        found = super().get(key)
        if found is None:
            return default if (uid := self._unbuilt(key)) is None else self._groups[uid]
        return found

    def keys(self) -> Any:
        self._groups.build_all()
        return super().keys()

    def values(self) -> Any:
        self._groups.build_all()
        return super().values()

    def items(self) -> Any:
        self._groups.build_all()
        return super().items()


class Members(Ordered[GroupState]):
    """The members of a class, in order; those without a state are entries."""

    __slots__ = ("_groups",)

    def __init__(self, groups: GroupStates, former: Ordered[GroupState], more: list[Entry]) -> None:
        """Create the members from `former` ones and `more`, in any order."""
        super().__init__()
        self._groups = groups
        pairs: list[tuple[Key, Any]] = [*former.pairs(), *((entry[0], entry) for entry in more)]
        pairs.sort(key=_KEY)
        self._keys = [key for key, _ in pairs]
        self._items = [item for _, item in pairs]

    def __iter__(self) -> Iterator[GroupState]:
        return (self._state(place) for place in range(self._start, len(self._keys)))

    def at(self, place: int) -> tuple[Any, GroupState] | None:
        if place >= len(self._keys):
            return None
        return self._keys[place], self._state(place)

    def run(self, place: int, most: int, before: Any) -> list[GroupState]:
        return list(map(self._state, range(place, self._end_of(place, most, before))))

    def pairs_backwards(self) -> Iterator[tuple[Any, GroupState]]:
        places = range(len(self._keys) - 1, self._start - 1, -1)
        return ((self._keys[place], self._state(place)) for place in places)

    def _state(self, place: int) -> GroupState:
        item: Any = self._items[place]
        if type(item) is tuple:
            item = self._items[place] = self._groups[item[1].metadata.uid]
        state: GroupState = item
        return state


class Model:
    """A member of a class, and what follows from it for groups with its spec and its namespace."""

    __slots__ = (
        "_by_status",
        "_last",
        "chain",
        "keys",
        "more",
        "peers",
        "priority",
        "scopes",
        "shape",
        "spec",
    )

    def __init__(self, state: GroupState, peers: EquivalenceClass, keys: Key) -> None:
        self.spec = state.record.spec
        self.priority, self.shape = state.priority, state.own_shape
        self.chain, self.scopes = state.chain, state.scopes
        self.peers = peers
        #: The plugins' sort keys.
        self.keys = keys
        #: By the id of a status: the uids of the members with its reasons; None if a group with it
        #: does more than wait. And the same of the last status.
        self._by_status: dict[int, dict[str, None] | None] = {}
        self._last: tuple[PodGroupStatus | None, dict[str, None] | None] = (None, None)
        self.more: list[Entry] = []

    def uids_like(self, record: PodGroup) -> dict[str, None] | None:
        """Return the uids of the members with the reasons of a record, of which the record then
        must become one; None if it does more than wait.
        """
        status = record.status
        try:
            return self._by_status[id(status)]
        except KeyError:
            pass
        last, uids = self._last
        if status != last:
            uids = _uids_of(self.peers, record)
            self._last = status, uids
        if len(self._by_status) < _MOST_MODELS:
            self._by_status[id(status)] = uids
        return uids

    def forget_records(self) -> None:
        """Let go of the records of a snapshot, which the model may outlast."""
        self._by_status, self._last, self.more = {}, (None, None), []


class BareRecords:
    """The waiting records of one snapshot that join classes without a state, since a group with the
    same or an equal spec was found to be a member. They last as long as the snapshot, so ids
    identify specs and statuses.
    """

    def __init__(self, groups: GroupStates, special: Container[str]) -> None:
        """`special` has the uids of groups that are not like others whatever their records say."""
        self._groups = groups
        self._special = special
        self._models: list[Model] = []
        #: By namespace and the id of a spec.
        self._by_spec: dict[tuple[str, int], Model] = {}
        #: The latest ones by namespace and queue.
        self._latest: defaultdict[tuple[str, str], list[Model]] = defaultdict(list)
        self._compared_in_vain = 0

    def learn(self, state: GroupState) -> None:
        """Take in groups like this one, which was just built, without a state from now on."""
        peers, line_key, record = state.peers, state.line_key, state.record
        if peers is None or line_key is None or state.given_shape.has_choice or state.domain:
            return
        namespace, spec = record.metadata.namespace, record.spec
        if (namespace, id(spec)) not in self._by_spec and len(self._models) < _MOST_MODELS:
            # Behind the plugins' keys come the queue time and the uid.
            model = self._by_spec[namespace, id(spec)] = Model(state, peers, line_key[:-2])
            self._models.append(model)
            latest = self._latest[namespace, spec.queue]
            latest.insert(0, model)
            del latest[_MOST_COMPARED:]

    def _with_equal_spec(self, record: PodGroup) -> Model | None:
        """Return a model whose spec is another object, but equal to that of a record."""
        if self._compared_in_vain >= _MOST_IN_VAIN:
            return None
        namespace, spec = record.metadata.namespace, record.spec
        for model in self._latest.get((namespace, spec.queue), ()):
            if model.spec == spec:
                self._compared_in_vain = 0
                if len(self._by_spec) < 2 * _MOST_MODELS:
                    self._by_spec[namespace, id(spec)] = model
                return model
        self._compared_in_vain += 1
        return None

    def others(self, records: Iterable[PodGroup]) -> Iterator[PodGroup]:
        """Take in what needs no state, and yield the other records. Of two that claim the same uid,
        the first counts.
        """
        # The loop runs a million times, so it calls little.
        unbuilt, is_built = self._groups.unbuilt, partial(dict.__contains__, self._groups)
        by_spec, special = self._by_spec, self._special
        for record in records:
            meta, status = record.metadata, record.status
            uid = meta.uid
            if uid in unbuilt or is_built(uid):
                continue
            model = by_spec.get((meta.namespace, id(record.spec))) or self._with_equal_spec(record)
            if model is None or uid in special or (uids := model.uids_like(record)) is None:
                yield record
                continue
            since = status.queue_time
            if since is None:
                since = meta.creation_timestamp or 0
            entry = ((*model.keys, since, uid_order(uid)), record, model)
            unbuilt[uid] = entry
            model.more.append(entry)
            uids[uid] = None

    def close(self) -> None:
        """Put the members into their classes."""
        more: dict[EquivalenceClass, list[Entry]] = {}
        for model in self._models:
            if model.more:
                more.setdefault(model.peers, []).extend(model.more)
            model.forget_records()
        for peers, entries in more.items():
            peers.members = Members(self._groups, peers.members, entries)


def _uids_of(peers: EquivalenceClass, record: PodGroup) -> dict[str, None] | None:
    """Return where a class has the uids of members with the record's reasons; None if its status
    has more to say than that it waits.
    """
    status = record.status
    if (
        status.domain
        or status.left_out
        or status.places
        or status.nodes_lacked_at is not None
        or status.set_aside_on
        or not only_waits(record)
    ):
        return None
    return peers.by_reasons.setdefault(reasons_key(status.reasons), {})
