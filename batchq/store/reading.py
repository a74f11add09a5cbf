"""Reads stored objects so that equal parts of them are the same object.

Groups that wait are many and alike: a million of them have a few specs, and as many reasons to
wait as there are ways to be refused. A part that stands in the store as it stood before is not
read again, so it costs neither time nor memory, and `is` tells that it did not change. Whatever is
read here must not be changed by anybody, down to its dicts.
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
)
from batchq.api.reasons import Verdict
from batchq.store import codec

K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S", bound=Struct)

#: So many bytes of parts as stored are remembered, of specs and of statuses, and once more those
#: that were in use before them.
MOST_BYTES = 8 * 1024 * 1024
#: A longer part is hardly that of many groups.
LONGEST_PART = 4096
#: So many equal values of one sort are remembered, likewise.
MOST_VALUES = 16_384

_NOTHING: dict[str, Any] = {}
_ABSENT = Raw(b"")


class _Stored(Struct, gc=False):
    """A group as it stands in the store, its large parts unread; absent where they say nothing."""

    metadata: Metadata
    spec: Raw = _ABSENT
    status: Raw = _ABSENT


#: Where nothing is said, the very objects that are left out when it is written.
_BARE = PodGroup(metadata=Metadata(name=""))
_BARE_TASK = Task(name="")

_STORED = msgspec.json.Decoder(_Stored)
_SPEC = msgspec.json.Decoder(PodGroupSpec)
_STATUS = msgspec.json.Decoder(PodGroupStatus)
#: Where there are dicts of texts or numbers, most of them empty, and texts that many have.
_DICTS: dict[type[Struct], tuple[str, ...]] = {
    PodGroupSpec: ("min_resources",),
    PodTemplate: ("labels", "env", "requests", "node_selector"),
    PodGroupStatus: ("reservation", "charge", "spent", "reported"),
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
    """Key -> value of what was used of late, in bounded room; what falls out is only found anew.

    What was not asked for while `most` came in is forgotten, weights summed.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._weight = 0
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K, weight: int = 1) -> V | None:
        """The value that was put for a key, if it is still known."""
        value = self._young.get(key)
        if value is None and (value := self._old.get(key)) is not None:
            self.put(key, value, weight)
        return value

    def put(self, key: K, value: V, weight: int = 1) -> None:
        """Remember a value. `weight` is in the unit of `most`."""
        if self._weight + weight > self._most:
            self._old, self._young, self._weight = self._young, {}, 0
        self._young[key] = value
        self._weight += weight

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())


class Reader:
    """What has been read of late. Owned by one thread."""

    def __init__(self) -> None:
        self._specs: Remembered[bytes, PodGroupSpec] = Remembered(MOST_BYTES)
        self._statuses: Remembered[bytes, PodGroupStatus] = Remembered(MOST_BYTES)
        self._dicts: Remembered[tuple[Any, ...], dict[str, Any]] = Remembered(MOST_VALUES)
        self._tuples: Remembered[tuple[Any, ...], tuple[Any, ...]] = Remembered(MOST_VALUES)

    def read(self, kind: str, stored: bytes) -> Object:
        """The object as stored, its revision in its metadata. Raises msgspec.MsgspecError."""
        if kind == "PodGroup":
            return self._group(stored)
        item = codec.read_object(kind, stored)
        if isinstance(item, Pod):
            self._share_of_metadata(item.metadata)
            self._share_of(item.spec)
            self._share_of(item.status)
        return item

    def _group(self, stored: bytes) -> PodGroup:
        parts = _STORED.decode(stored)
        self._share_of_metadata(parts.metadata)
        return PodGroup(
            metadata=parts.metadata,
            spec=self._spec(bytes(parts.spec)),
            status=self._status(bytes(parts.status)),
        )

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
            if len(stored) <= LONGEST_PART:
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
            if len(stored) <= LONGEST_PART:
                self._statuses.put(stored, status, len(stored))
        return status

    def _share_of_metadata(self, meta: Metadata) -> None:
        force_setattr(meta, "namespace", intern(meta.namespace))
        force_setattr(meta, "labels", self._dict(meta.labels) if meta.labels else _NOTHING)
        if not meta.annotations:
            force_setattr(meta, "annotations", _NOTHING)

    def _share_of_template(self, template: PodTemplate) -> None:
        self._share_of(template)
        # Those that are not empty are hardly equal to others.
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
        """Values that hold nothing but texts and numbers."""
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
