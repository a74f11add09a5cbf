"""Reading many objects: what equal objects have in common is decoded, checked and kept once.

Most groups that wait differ from others only in their metadata. For such a record, the reader looks
up the bytes of its spec and of its status, and decodes the rest.
"""

from __future__ import annotations

from sys import intern
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import force_setattr

from batchq.api.objects import (
    Condition,
    Metadata,
    Object,
    Pod,
    PodGroup,
    PodGroupSpec,
    PodGroupStatus,
    PodSpec,
    PodStatus,
    PodTemplate,
    Task,
    Unreadable,
)
from batchq.api.reasons import Verdict
from batchq.store.records import (
    DAMAGE,
    is_named,
    is_sound_spec,
    is_sound_status,
    read_object,
    read_record,
)

K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S", bound=Struct)

#: Bytes of encoded specs remembered, and as many of statuses, in each of two generations.
MOST_BYTES = 8 * 1024 * 1024
#: A longer part is rarely shared by many groups.
LONGEST_PART = 4096
#: Equal values of one sort remembered, in each of two generations.
MOST_VALUES = 16_384

_NOTHING: dict[str, Any] = {}
_ABSENT = Raw(b"")


class _StoredGroup(Struct, gc=False):
    """A stored group whose large parts are undecoded; empty if they are absent."""

    metadata: Metadata
    spec: Raw = _ABSENT
    status: Raw = _ABSENT


#: The defaults, as the very objects that the encoder omits.
_BARE = PodGroup(metadata=Metadata(name=""))
_BARE_TASK = Task(name="")

_STORED = msgspec.json.Decoder(_StoredGroup)
_METADATA = msgspec.json.Decoder(Metadata)
_SPEC = msgspec.json.Decoder(PodGroupSpec)
_STATUS = msgspec.json.Decoder(PodGroupStatus)
#: What stands between the parts of a group as batchq writes it. Inside of a text it would have
#: backslashes.
_FIRST, _SECOND, _THIRD = b'{"metadata":', b',"spec":', b',"status":'
#: The fields with dicts, most of them empty, and those with texts that many objects share.
_DICTS: dict[type[Struct], tuple[str, ...]] = {
    PodGroupSpec: ("min_resources", "topology"),
    PodTemplate: ("labels", "env", "requests", "node_selector"),
    PodGroupStatus: ("reservation", "domain", "charge", "spent", "reported"),
    PodSpec: ("requests",),
}
_TEXTS: dict[type[Struct], tuple[str, ...]] = {
    PodGroupSpec: ("queue", "priority_class_name"),
    Condition: ("type", "reason", "message"),
    Verdict: ("plugin", "subject", "resource", "detail"),
    PodSpec: ("pod_group", "task"),
    PodStatus: ("group_uid", "node"),
}


class Remembered(Generic[K, V]):
    """A bounded cache in two generations; an evicted value is merely computed again.

    A key that was not used while values of weight `most` came in is evicted.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._weight = 0
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K, weight: int = 1) -> V | None:
        """Return the value of a key, if it is still cached."""
        value = self._young.get(key)
        if value is None and (value := self._old.get(key)) is not None:
            self.put(key, value, weight)
        return value

    def put(self, key: K, value: V, weight: int = 1) -> None:
        """Cache a value. `weight` is in the unit of `most`."""
        if self._weight + weight > self._most:
            self._old, self._young, self._weight = self._young, {}, 0
        self._young[key] = value
        self._weight += weight

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())


class SharingReader:
    """Decodes objects and shares their equal parts. Owned by one thread."""

    def __init__(self) -> None:
        #: Only sound specs and statuses are remembered.
        self._specs: Remembered[bytes, PodGroupSpec] = Remembered(MOST_BYTES)
        self._statuses: Remembered[bytes, PodGroupStatus] = Remembered(MOST_BYTES)
        self._dicts: Remembered[tuple[Any, ...], dict[str, Any]] = Remembered(MOST_VALUES)
        self._tuples: Remembered[tuple[Any, ...], tuple[Any, ...]] = Remembered(MOST_VALUES)

    def read_record(self, kind: str, key: str, stored: bytes) -> Object | Unreadable:
        """Return the object stored under a key, or why it is unreadable."""
        if kind == "PodGroup" and (group := self._known(key, stored)) is not None:
            return group
        return read_record(kind, key, stored, self.read)

    def _known(self, key: str, stored: bytes) -> PodGroup | None:
        """Return a sound group whose spec and status were read before; None for any other."""
        second = stored.find(_SECOND)
        if second < 0 or not stored.startswith(_FIRST):
            return None
        third = stored.find(_THIRD, second)
        end = len(stored) - 1 if third < 0 else third
        # Each part that is known is one whole JSON value, so the parts are where they seem to be.
        spec = self._specs.get(part := stored[second + len(_SECOND) : end], len(part))
        if spec is None or stored[-1:] != b"}":
            return None
        status: PodGroupStatus | None = _BARE.status
        if third >= 0:
            status = self._statuses.get(part := stored[third + len(_THIRD) : -1], len(part))
        if status is None:
            return None
        try:
            meta = _METADATA.decode(stored[len(_FIRST) : second])
        except DAMAGE:
            return None
        if not is_named(meta, key):
            return None
        self._share_of_metadata(meta)
        return PodGroup(metadata=meta, spec=spec, status=status)

    def read(self, kind: str, stored: bytes) -> Object:
        """Return the stored object with its revision. Raises msgspec.MsgspecError."""
        if kind == "PodGroup":
            return self._group(stored)
        item = read_object(kind, stored)
        if isinstance(item, Pod):
            self._share_of_metadata(item.metadata)
            self._share_of(item.spec)
            self._share_of(item.status)
        return item

    def _group(self, stored: bytes) -> PodGroup:
        parts = _STORED.decode(stored)
        self._share_of_metadata(parts.metadata)
        try:
            spec, status = self._spec(bytes(parts.spec)), self._status(bytes(parts.status))
        except DAMAGE:
            # A part's error names a place in the part. This raises it with the place in the record,
            # as every other reader does.
            read_object("PodGroup", stored)
            raise
        return PodGroup(metadata=parts.metadata, spec=spec, status=status)

    def _spec(self, stored: bytes) -> PodGroupSpec:
        if not stored:
            return _BARE.spec
        spec = self._specs.get(stored, len(stored))
        if spec is None:
            spec = _SPEC.decode(stored)
            self._share_of(spec)
            for task in spec.tasks:
                if task.template is not _BARE_TASK.template:
                    self._share_of_template(task.template)
            if len(stored) <= LONGEST_PART and is_sound_spec(spec):
                self._specs.put(stored, spec, len(stored))
        return spec

    def _status(self, stored: bytes) -> PodGroupStatus:
        if not stored:
            return _BARE.status
        status = self._statuses.get(stored, len(stored))
        if status is None:
            status = _STATUS.decode(stored)
            self._share_of(status)
            force_setattr(status, "reasons", self._values(status.reasons))
            force_setattr(status, "conditions", self._values(status.conditions))
            # A claim's token is no other group's.
            is_shared = len(stored) <= LONGEST_PART and not status.claim.token
            if is_shared and is_sound_status(status):
                self._statuses.put(stored, status, len(stored))
        return status

    def _share_of_metadata(self, meta: Metadata) -> None:
        force_setattr(meta, "namespace", intern(meta.namespace))
        force_setattr(meta, "labels", self._dict(meta.labels) if meta.labels else _NOTHING)
        if not meta.annotations:
            force_setattr(meta, "annotations", _NOTHING)

    def _share_of_template(self, template: PodTemplate) -> None:
        self._share_of(template)
        # Those that are not empty are rarely equal to others.
        for name in ("annotations", "kwargs"):
            if not getattr(template, name):
                force_setattr(template, name, _NOTHING)

    def _share_of(self, value: Struct) -> None:
        for name in _DICTS.get(type(value), ()):
            force_setattr(value, name, self._dict(getattr(value, name)))
        for name in _TEXTS.get(type(value), ()):
            force_setattr(value, name, intern(getattr(value, name)))

    def _dict(self, value: dict[str, Any]) -> dict[str, Any]:
        return self._shared(self._dicts, tuple(value.items()), value) if value else _NOTHING

    def _values(self, values: tuple[S, ...]) -> tuple[S, ...]:
        """Share values that contain only texts and numbers."""
        shared = self._shared(self._tuples, values, values) if values else ()
        if shared is values:
            for value in values:
                self._share_of(value)
        return shared

    @staticmethod
    def _shared(known: Remembered[K, V], key: K, value: V) -> V:
        found = known.get(key)
        if found is None:
            known.put(key, value)
            return value
        return found
