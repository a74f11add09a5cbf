"""The project's own files, parsed once, for the rules of the other modules."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: The packages of the core, which get time, ids and I/O only as arguments.
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
    """Return the files below some folders of the repository, in a fixed order."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob(f"*{suffix}"))


def python_files(folders: tuple[str, ...] = EVERYTHING) -> list[Path]:
    """Return the project's Python modules, without copied code."""
    return [path for path in files(folders, ".py") if "vendor" not in path.parts]


@cache
def parsed(path: Path) -> ast.Module:
    """Return a module's syntax tree."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    # All trees are kept, and have millions of nodes that each garbage collection would look at.
    gc.freeze()
    return tree


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return every node of a module's syntax tree."""
    return tuple(ast.walk(parsed(path)))


def place(path: Path, line: int | None = None) -> str:
    """Return a position as `batchq/api/notation.py:12`, which editors understand."""
    shown = str(path.relative_to(ROOT))
    return shown if line is None else f"{shown}:{line}"


def dotted(node: ast.AST) -> str:
    """Return a dotted name such as `os.environ.get`; empty for other expressions."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            left = dotted(value)
            return f"{left}.{attr}" if left else ""
        case _:
            return ""


def report(faults: list[str], lesson: str) -> str:
    """Return the message of a failing rule: the reason of the rule, and the places."""
    return "\n".join([lesson, *(f"  {fault}" for fault in faults)])
