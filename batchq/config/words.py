"""Names of actions and plugins in `scheduler.yaml`, and what is said of wrong ones."""

from __future__ import annotations

import re
from collections.abc import Collection

from batchq.api import notation
from batchq.api.names import shown
from batchq.api.notation import Malformed, Path

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")


def check_name(name: object, path: Path, what: str) -> str:
    """The name, if it is one. Raises Malformed."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Malformed(path, f"expected the name of {what}, found {shown(name)}")
    return name


def check_once(name: str, seen: Collection[str], path: Path) -> None:
    """Raises Malformed for a name that was there before."""
    if name in seen:
        raise Malformed(path, f"{name} is named twice")


def check_known(name: str, known: Collection[str] | None, path: Path, what: str) -> None:
    """Raises Malformed, with the nearest name, for one that nobody provides."""
    if known is None or name in known:
        return
    near = notation.nearest(name, known)
    meant = f"; did you mean {near!r}?" if near else ""
    raise Malformed(path, f"there is no {what} {name!r}; known: {', '.join(sorted(known))}{meant}")
