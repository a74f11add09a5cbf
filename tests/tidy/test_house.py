"""No import cycles, a README for each large package, and distinct names of modules."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.source import ROOT, nodes, report

#: A package with more modules than this has a README that says where to begin.
MOST_WITHOUT_A_PAGE = 5
#: Words that name no subject.
RIDDLES = ("what", "who", "whoever", "it", "nobody", "of", "that", "there")
#: Basenames of the same subject in several layers, such as `checks` and `queues`.
MOST_BASENAMES = 15


def modules() -> dict[str, Path]:
    """Return dotted name -> file for the package and the actions."""
    found: dict[str, Path] = {}
    for source in (ROOT, ROOT / "actions"):
        for package in ("batchq", "batchq_actions"):
            for path in sorted((source / package).rglob("*.py")):
                name = ".".join(path.relative_to(source).with_suffix("").parts)
                found[name.removesuffix(".__init__")] = path
    return found


def imports(path: Path) -> Iterator[str]:
    """Return the modules that a file imports anywhere, including those for type checkers."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the cycles of imports of any length (Tarjan, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            part = stack[stack.index(name) :]
            del stack[-len(part) :]
            if len(part) > 1:
                found.append(sorted(part))

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def test_a_cycle_of_imports_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def test_no_modules_import_each_other() -> None:
    there = modules()
    graph = {
        name: {one for one in imports(path) if one in there and one != name}
        for name, path in there.items()
    }
    found = [", ".join(circle) for circle in circles(graph)]
    assert not found, report(found, "Let one of them be given what it needs from the other:")


def test_a_large_package_has_a_readme() -> None:
    rooms: defaultdict[Path, list[str]] = defaultdict(list)
    for path in modules().values():
        if path.stem not in ("__init__", "__main__"):
            rooms[path.parent].append(path.stem)
    silent = [
        str(room.relative_to(ROOT))
        for room, names in rooms.items()
        if len(names) > MOST_WITHOUT_A_PAGE and not any(_pages(room))
    ]
    assert not silent, report(
        silent, "A README of a page says what is where, and what comes first:"
    )


def _pages(room: Path) -> Iterator[bool]:
    """Yield whether a package and its parent have a README, which may describe both."""
    yield from ((above / "README.md").is_file() for above in (room, room.parent))


def test_modules_have_distinct_nouns_as_names() -> None:
    stems = [path.stem for path in modules().values() if path.stem[:2] != "__"]
    gerunds = sorted(stem for stem in stems if stem.endswith("ing"))
    assert not gerunds, report(gerunds, "Name a module by what it holds:")
    twice = sorted(stem for stem, count in Counter(stems).items() if count > 1)
    assert len(twice) <= MOST_BASENAMES, report(twice, "Too many modules have one name:")


def test_a_test_is_named_for_its_subject() -> None:
    riddles = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith(tuple(f"test_{word}_" for word in RIDDLES))
    ]
    assert not riddles, report(
        riddles, "Begin with what the test is about: a pod, a group, a queue …"
    )
