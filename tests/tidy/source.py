"""What the house rules look at: the project's own files, parsed once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: The rooms of the core: what they need of the world comes in as an argument.
PURE_ROOMS = (
    "batchq/api",
    "batchq/core",
    "batchq/plugins",
    "batchq/scheduler",
    "actions/batchq_actions",
)
LIBRARY = ("batchq", "actions/batchq_actions")
EVERYTHING = (*LIBRARY, "tests", "benchmarks", "conf/examples")


def files(folders: tuple[str, ...], suffix: str) -> list[Path]:
    """The files below some folders of the repository, in a fixed order."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob(f"*{suffix}"))


def python_files(folders: tuple[str, ...] = EVERYTHING) -> list[Path]:
    """Our Python modules, less what is copied from elsewhere."""
    return [path for path in files(folders, ".py") if "vendor" not in path.parts]


@cache
def parsed(path: Path) -> ast.Module:
    """A module's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def nodes(path: Path) -> Iterator[ast.AST]:
    """Every node of a module."""
    return ast.walk(parsed(path))


def place(path: Path, line: int | None = None) -> str:
    """`batchq/api/times.py:12`, as an editor understands it."""
    shown = str(path.relative_to(ROOT))
    return shown if line is None else f"{shown}:{line}"


def dotted(node: ast.AST) -> str:
    """`os.environ.get` for such an expression, empty for any other."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            left = dotted(value)
            return f"{left}.{attr}" if left else ""
        case _:
            return ""


def told(faults: list[str], lesson: str) -> str:
    """What a failing rule says: where, and why the rule exists."""
    return "\n".join([lesson, *(f"  {fault}" for fault in faults)])
