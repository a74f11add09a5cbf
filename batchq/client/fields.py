"""The fields of a request as plain data, strictly: what a line of a file or a keyword dict says.

They are called as `Client.submit` calls its keywords; `priority-class` is `priority_class`, as on
the command line. Nothing is guessed: an unknown field or a wrong type is refused in one sentence
that names it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from batchq.api.names import shown
from batchq.api.notation import suggestion
from batchq.api.quantity import parse_quantity
from batchq.api.times import parse_duration
from batchq.client.groups import Request
from batchq.errors import InvalidInput

#: Returns the value as a Request holds it, or raises ValueError: what was expected and found.
Reading: TypeAlias = Callable[[object], object]

#: Given by a request and by its defaults, these are put together; the request's own entries win.
_MERGED = ("labels", "annotations", "env", "resources")
#: What runs is one of these, so that naming one of them leaves out the default of the other.
_RUNS = {"command": ("function", "args", "kwargs"), "function": ("command",)}


def read_fields(data: Mapping[str, object], defaults: Mapping[str, Any]) -> Request:
    """The request that `data` describes; `defaults` say what it leaves open.

    A field that is None is left open, too. Raises InvalidInput.
    """
    found: dict[str, Any] = {}
    for written, value in data.items():
        name = _known(written)
        if value is None:
            continue
        if name in found:
            raise InvalidInput(f"{shown(written)[1:-1]}: this field is given twice; keep one")
        try:
            found[name] = _READ[name](value)
        except ValueError as error:
            raise InvalidInput(f"{name}: {error}") from None
    return Request(**merged(found, defaults))


def merged(found: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that were found over those that hold for all."""
    dropped = {name for own in found for name in _RUNS.get(own, ())}
    both = {name: value for name, value in defaults.items() if name not in dropped}
    for name, value in found.items():
        both[name] = {**defaults.get(name, {}), **value} if name in _MERGED else value
    return both


def _known(written: object) -> str:
    if not isinstance(written, str):
        raise InvalidInput(f"expected text as the name of a field, found {shown(written)}")
    name = written.replace("-", "_")
    if name not in _READ:
        known = [*_READ, *(["spec", "metadata"] if name in ("spec", "metadata") else ())]
        if len(known) > len(_READ):
            raise InvalidInput(
                f"{name}: a manifest has this field, and says apiVersion and kind beside it"
            )
        hint = suggestion(name, known)
        raise InvalidInput(f"{shown(written)[1:-1]}: there is no such field; {hint}")
    return name


# --- one field ------------------------------------------------------------------------------------


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, found {shown(value)}")
    return value


def _word(value: object) -> str:
    """A text where a number stands for its own: `["--lr", 0.1]`, `{"SEED": 7}`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return _text(value)


def _words(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        raise ValueError(
            f"expected a list of words, found {shown(value)}; write the words as a list, or for a"
            ' shell line ["sh", "-c", "…"]'
        )
    return tuple(_word(one) for one in _list(value))


def _names(value: object) -> tuple[str, ...]:
    """One name, or a list of them."""
    return (value,) if isinstance(value, str) else tuple(_text(one) for one in _list(value))


def _list(value: object) -> list[object] | tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected a list, found {shown(value)}")
    return value


def _map(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a mapping, found {shown(value)}")
    for key in value:
        if not isinstance(key, str):
            raise ValueError(f"expected names as keys, found {shown(key)}")
    return value


def _texts(of: Callable[[object], str]) -> Reading:
    def read(value: object) -> dict[str, str]:
        found = {}
        for key, one in _map(value).items():
            try:
                found[key] = of(one)
            except ValueError as error:
                raise ValueError(f"{shown(key)}: {error}") from None
        return found

    return read


def _quantity(resource: str) -> Reading:
    def read(value: object) -> object:
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise ValueError(f"expected a quantity such as 500m, 2 or 64Gi, found {shown(value)}")
        parse_quantity(resource, value)
        return value

    return read


def _quantities(value: object) -> dict[str, object]:
    found = {}
    for name, one in _map(value).items():
        try:
            found[name] = _quantity(name)(one)
        except ValueError as error:
            raise ValueError(f"{shown(name)}: {error}") from None
    return found


def _duration(value: object) -> object:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise ValueError(f"expected a duration such as 90s, 2h or 1d, found {shown(value)}")
    parse_duration(value)
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"expected a whole number, found {shown(value)}")
    return value


def _array(value: object) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"expected a range such as 0-99, found {shown(value)}")
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, found {shown(value)}")
    return value


def _function(value: object) -> object:
    if not isinstance(value, str) and not callable(value):
        raise ValueError(f"expected package.module:name, found {shown(value)}")
    return value


def _path(value: object) -> str:
    return os.fspath(value) if isinstance(value, os.PathLike) else _text(value)


_READ: dict[str, Reading] = {
    "command": _words,
    "function": _function,
    "args": _list,
    "kwargs": _map,
    "name": _text,
    "generate_name": _text,
    "labels": _texts(_text),
    "annotations": _texts(_word),
    "namespace": _text,
    "queue": _text,
    "cpus": _quantity("cpu"),
    "mem": _quantity("memory"),
    "gpus": _quantity("gpu"),
    "resources": _quantities,
    "replicas": _whole,
    "min_member": _whole,
    "array": _array,
    "walltime": _duration,
    "grace": _duration,
    "priority_class": _text,
    "env": _texts(_word),
    "after": _names,
    "gates": _names,
    "suspend": _truth,
    "retries": _whole,
    "external": _truth,
    "working_dir": _path,
}
