"""What an edit changes in a queue, in a few words: `deserved cpu 4 -> unstated, weight 1 -> 2`.

For the line that `apply` prints and for the event that stays.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from batchq.api.objects import Queue
from batchq.api.quantity import describe_quantity
from batchq.framework.tree import ROOT

_MOST_NAMED = 8


def differences(old: object, new: object) -> str:
    """Field by field and resource by resource; "" if they say the same, or are no queues."""
    if not isinstance(old, Queue) or not isinstance(new, Queue):
        return ""
    found = [*_fields("", old.spec, new.spec), *_beside_spec(old, new)]
    more = len(found) - _MOST_NAMED
    return ", ".join(found[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _fields(before: str, old: Struct, new: Struct) -> Iterator[str]:
    """`preemption.borrowing Never -> 0`; fields in alphabetical order."""
    names = zip(old.__struct_encode_fields__, old.__struct_fields__, strict=True)
    for written, name in sorted(names):
        was, becomes = getattr(old, name), getattr(new, name)
        if was == becomes:
            continue
        if isinstance(was, Struct):
            yield from _fields(f"{before}{written}.", was, becomes)
        elif isinstance(was, dict):
            for resource in sorted({*was, *becomes}):
                if was.get(resource) != becomes.get(resource):
                    amounts = [_amount(resource, one.get(resource)) for one in (was, becomes)]
                    yield f"{before}{written} {resource} {' -> '.join(amounts)}"
        else:
            yield f"{before}{written} {_word(written, was)} -> {_word(written, becomes)}"


def _beside_spec(old: Queue, new: Queue) -> Iterator[str]:
    for field in ("annotations", "labels"):
        if getattr(old.metadata, field) != getattr(new.metadata, field):
            yield field


def _amount(resource: str, units: int | None) -> str:
    return "unstated" if units is None else describe_quantity(resource, units)


def _word(field: str, value: object) -> str:
    """A value as it stands in a manifest."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() if field == "overcommit":
            return describe_quantity(field, value)
        case tuple():
            return "+".join(map(str, value)) or "none"
        case None:
            return "unstated"
        case "" if field == "parent":
            return ROOT
        case _:
            return str(value)
