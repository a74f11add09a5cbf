"""Finding what a request names, and saying what there is instead when it is not there."""

from __future__ import annotations

from typing import TypeVar

from batchq.api.names import shown
from batchq.api.notation import nearest
from batchq.api.objects import Object, full_name, kind_of
from batchq.errors import NotFound
from batchq.ports import Reader

T = TypeVar("T")

_MOST_NAMED = 10
_FEW = 5


def title(obj: Object) -> str:
    """`PodGroup default/train`"""
    return f"{kind_of(obj)} {full_name(obj)}"


def find(reader: Reader, kind: type[T], key: str) -> T:
    """The object of that kind and key.

    Raises NotFound, with the nearest name there is.
    """
    item = reader.get(kind.__name__, key)
    if isinstance(item, kind):
        return item
    namespace = key.rpartition("/")[0]
    there = [full_name(other) for other in reader.list(kind.__name__, namespace=namespace)]
    name = shown(key)[1:-1]
    raise NotFound(f"{kind.__name__} {name} does not exist", hint=instead(key, there))


def instead(wanted: str, there: list[str]) -> str:
    """A hint for somebody who named what is not there."""
    # Names without their namespaces, which alone would make any two of them alike.
    names = {full.rpartition("/")[2]: full for full in there}
    near = nearest(wanted.rpartition("/")[2], names)
    if near:
        return f"did you mean {names[near]}?"
    if not there:
        return "there is none"
    more = f" and {len(there) - _MOST_NAMED} more" if len(there) > _MOST_NAMED else ""
    return f"there are: {', '.join(there[:_MOST_NAMED])}{more}"


def few(names: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = len(names) - _FEW
    return ", ".join(names[:_FEW]) + (f" and {more} more" if more > 0 else "")
