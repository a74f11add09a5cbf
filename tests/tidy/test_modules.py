"""A module is small, has a docstring, and avoids meaningless names."""

from __future__ import annotations

import ast
import re

from tests.tidy.source import LIBRARY, files, nodes, parsed, place, python_files, report

MOST_LINES = 800
VAGUE_WORDS = {"manager", "managers", "helper", "helpers", "util", "utils", "handler", "misc"}


def words_of(name: str) -> set[str]:
    """Return the words of a name: job, manager and v for `JobManager_v2`."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def test_a_name_is_split_into_its_words() -> None:
    assert words_of("RedisJobManager") == {"redis", "job", "manager"}
    assert words_of("lua_utils") == {"lua", "utils"}
    assert words_of("utility") == {"utility"}


def test_a_module_has_at_most_800_lines() -> None:
    long = [
        f"{place(path)}: {count} lines"
        for path in python_files()
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > MOST_LINES
    ]
    assert not long, report(long, "Split by meaning: two modules that each say one thing.")


def test_a_module_has_a_docstring() -> None:
    silent = [
        place(path)
        for path in python_files()
        if parsed(path).body and not ast.get_docstring(parsed(path))
    ]
    assert not silent, report(
        silent, "Begin with a docstring that tells a newcomer in a sentence what the module does."
    )


def test_names_contain_no_meaningless_words() -> None:
    vague = [
        place(path)
        for path in files(LIBRARY, "")
        if words_of(path.stem) & VAGUE_WORDS and path.suffix in {".py", ".lua", ""}
    ]
    for path in python_files():
        vague += [
            f"{place(path, node.lineno)}: class {node.name}"
            for node in nodes(path)
            if isinstance(node, ast.ClassDef) and words_of(node.name) & VAGUE_WORDS
        ]
    assert not vague, report(
        vague, "Say what it does: a Relay, a Ledger and an Agent are; a manager is not."
    )
