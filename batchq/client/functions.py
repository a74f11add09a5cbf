"""From a Python function and its arguments to what a template says of them.

Only names and JSON travel: a worker imports the function itself, so it must stand in a module that
it can import, too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import msgspec

from batchq.api.jsonvalue import NotJson, as_json
from batchq.errors import InvalidInput

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_LOCAL, _LAMBDA = "<locals>", "<lambda>"
_IN_A_MODULE = "define it by its own name in a module that the workers can import"


def name_of(function: str | Callable[..., Any]) -> str:
    """`package.module:name`. Raises InvalidInput for what no worker could find by it."""
    if isinstance(function, str):
        if _DOTTED.fullmatch(function):
            home, _, name = function.rpartition(".")
            raise InvalidInput(
                f"function: expected package.module:name, found {function!r}",
                hint=f"a colon stands between a module and its function: {home}:{name}",
            )
        return function
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    kind = f"{type(function).__module__}.{type(function).__qualname__}"
    if not module or not path:
        raise InvalidInput(
            f"function: expected a function of a module, found a {kind}",
            hint="pass the function itself, and what it is to be called with as args and kwargs",
        )
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, ModuleType | type):
        raise InvalidInput(
            f"function: {path} is bound to an object of this process, which no worker has",
            hint="make it a function of a module, and pass what it needs of the object as args",
        )
    if _LAMBDA in path:
        raise InvalidInput(
            f"function: the lambda in {module} has no name by which a worker could find it",
            hint=_IN_A_MODULE,
        )
    if _LOCAL in path:
        raise InvalidInput(
            f"function: {path.rpartition('.')[2]} is local to another function of {module}, where"
            " no worker can find it",
            hint=_IN_A_MODULE,
        )
    if module == "__main__":
        raise InvalidInput(
            f"function: {path} is defined in the script that runs (__main__), which no worker can"
            " import",
            hint="move it to a module, and import it from there",
        )
    if _found(module, path) != function:
        raise InvalidInput(
            f"function: {module}:{path} is not what was passed, so a worker would call something"
            " else",
            hint="a decorator may stand in between; pass the name as a text if that is meant",
        )
    return f"{module}:{path}"


def arguments_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """`args` and `kwargs` of a template. Raises InvalidInput, which names the argument."""
    if not isinstance(args, list | tuple):
        raise InvalidInput(f"args: expected a list, found a {type(args).__name__}")
    if not isinstance(kwargs, Mapping):
        raise InvalidInput(f"kwargs: expected a mapping, found a {type(kwargs).__name__}")
    for name in kwargs:
        if not isinstance(name, str):
            raise InvalidInput(f"kwargs: expected names as keys, found a {type(name).__name__}")
    return {
        "args": tuple(_json(f"args[{place}]", value) for place, value in enumerate(args)),
        "kwargs": {name: _json(f"kwargs.{name}", value) for name, value in kwargs.items()},
    }


def _json(path: str, value: object) -> msgspec.Raw:
    try:
        return as_json(value)
    except NotJson as wrong:
        raise InvalidInput(
            f"{path}{wrong.place}: expected a value that JSON can hold, found {wrong.found}",
            hint="pass numbers, texts, lists and maps, or the path of a file",
        ) from None


def _found(module: str, path: str) -> object:
    found: object = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found
