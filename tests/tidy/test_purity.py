"""The core decides by its arguments alone: the same snapshot gives the same decisions anywhere.

import-linter checks imports (`make check`); these rules check calls.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.tidy.source import PURE_ROOMS, dotted, nodes, place, python_files, report

WORLDLY_MODULES = {
    "asyncio", "glob", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets",
    "shutil", "signal", "socket", "subprocess", "sys", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
#: `hash` of text differs from run to run, and `id` always does.
WORLDLY_CALLS = {"open", "input", "print", "hash", "id", "globals", "breakpoint", "exec", "eval"}
#: Where ids only tell objects apart that all exist, and no order follows from them.
TELLS_APART = {"batchq/core/unbuilt_states.py": "id"}
#: Methods of datetime and date that read a clock.
CLOCK_METHODS = {"now", "utcnow", "today"}
#: The shell around the core (`batchq/scheduler`) may log, but not read clocks or do I/O.
MAY_LOG = "batchq/scheduler"


def worldly_imports(node: ast.AST) -> list[str]:
    """Return the forbidden modules that an import statement names."""
    match node:
        case ast.Import(names=names):
            found = [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), level=0):
            found = [module]
        case _:
            found = []
    return [name for name in found if name.partition(".")[0] in WORLDLY_MODULES]


def worldly_call(node: ast.AST) -> str:
    """Return the forbidden function that a call names, if any."""
    if not isinstance(node, ast.Call):
        return ""
    name = dotted(node.func)
    if name in WORLDLY_CALLS:
        return name
    owner, _, method = name.rpartition(".")
    reads_a_clock = method in CLOCK_METHODS and owner.split(".")[-1] in {"datetime", "date"}
    return name if reads_a_clock else ""


def faults_of(path: Path, tree: list[ast.AST]) -> list[str]:
    """Return the forbidden imports and calls of a module."""
    found = []
    for node in tree:
        line = getattr(node, "lineno", None)
        found += [f"{place(path, line)}: import {name}" for name in worldly_imports(node)]
        call = worldly_call(node)
        if call and call != TELLS_APART.get(place(path)):
            found.append(f"{place(path, line)}: {call}(…)")
    if place(path).startswith(MAY_LOG):
        found = [fault for fault in found if not fault.endswith("import logging")]
    return found


def test_the_core_reads_no_clock_and_does_no_io() -> None:
    faults = [
        fault for path in python_files(PURE_ROOMS) for fault in faults_of(path, list(nodes(path)))
    ]
    assert not faults, report(
        faults,
        "Time comes in as `now` or a Clock, ids from an IdSource, everything else as a value: "
        "otherwise the simulator is not the scheduler any more.",
    )


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "from os import environ",
        "import concurrent.futures, random",
        "at = datetime.now(tz=UTC)",
        "day = datetime.date.today()",
        "text = open('f').read()",
        "order = sorted(groups, key=lambda group: hash(group.uid))",
    ],
)
def test_the_rule_sees(line: str) -> None:
    here = Path(__file__)
    assert len(faults_of(here, list(ast.walk(ast.parse(line))))) == 1


@pytest.mark.parametrize(
    "line",
    ["from datetime import UTC, datetime", "now = clock.now_ms()", "now = settings.now()"],
)
def test_the_rule_lets_pass(line: str) -> None:
    here = Path(__file__)
    assert faults_of(here, list(ast.walk(ast.parse(line)))) == []
