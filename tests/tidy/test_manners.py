"""No catch-alls without a reason, no mocks, no sleeping tests, no banners."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from tests.tidy.source import LIBRARY, ROOT, dotted, nodes, place, python_files, report

CATCH_ALLS = {"", "Exception", "BaseException"}
#: A directive for a linter is not a reason.
REASON = re.compile(r"#\s*(noqa:?[ \w,]*|type: ?ignore[\[\]\w-]*)?[\s#:–-]*(?P<reason>\w.*)?$")


def caught(handler: ast.ExceptHandler) -> set[str]:
    """Return the names that an `except` clause catches; an empty name for a bare `except:`."""
    match handler.type:
        case None:
            return {""}
        case ast.Tuple(elts=parts):
            return {dotted(part) for part in parts}
        case kind:
            return {dotted(kind)}


def gives_a_reason(line: str) -> bool:
    """Return whether the comment of a line is more than a directive for a linter."""
    _, hash_sign, comment = line.partition("#")
    match = REASON.match(hash_sign + comment)
    return bool(match and match["reason"])


def unexplained_catch_alls(path: Path) -> list[str]:
    """Return the lines that catch everything without a reason."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        place(path, node.lineno)
        for node in nodes(path)
        if isinstance(node, ast.ExceptHandler)
        and caught(node) & CATCH_ALLS
        and not gives_a_reason(lines[node.lineno - 1])
    ]


def test_a_reason_is_more_than_a_linters_code() -> None:
    assert gives_a_reason("except Exception:  # a plugin of others may raise anything")
    assert gives_a_reason("except Exception:  # noqa: BLE001 - a plugin may raise anything")
    assert not gives_a_reason("except Exception:")
    assert not gives_a_reason("except Exception:  # noqa: BLE001")


def test_catching_all_exceptions_has_a_reason() -> None:
    faults = [fault for path in python_files() for fault in unexplained_catch_alls(path)]
    assert not faults, report(
        faults,
        "Catch the narrowest type around one call. Where it must be everything, a comment on "
        "the `except` line says why.",
    )


def test_tests_use_real_implementations_of_our_ports() -> None:
    faults = [
        place(path, node.lineno)
        for path in python_files(("tests",))
        for node in nodes(path)
        if (isinstance(node, ast.ImportFrom) and node.module in {"unittest.mock", "mock"})
        or (
            isinstance(node, ast.ImportFrom) and node.module == "unittest" and "mock" in names(node)
        )
        or (isinstance(node, ast.Import) and names(node) & {"unittest.mock", "mock"})
    ]
    assert not faults, report(
        faults, "MemoryStore, VirtualClock and a store that refuses everything are there for it."
    )


def names(node: ast.Import | ast.ImportFrom) -> set[str]:
    """Return the names in an import statement."""
    return {alias.name for alias in node.names}


def test_tests_wait_for_something_rather_than_for_a_while() -> None:
    faults = [
        place(path, node.lineno)
        for path in python_files(("tests",))
        for node in nodes(path)
        if (isinstance(node, ast.Call) and dotted(node.func) in {"time.sleep", "sleep"})
        or (isinstance(node, ast.ImportFrom) and node.module == "time" and "sleep" in names(node))
    ]
    assert not faults, report(
        faults,
        "Wait on an event, a process or a condition with a deadline, or drive the clock: a sleep "
        "is too long on a fast machine and too short on a slow one.",
    )


def test_no_example_of_a_property_has_a_deadline() -> None:
    # As a worker of a parallel run, which imports its share of the files first.
    code = (
        "import tests.conftest; from tests.property import test_expected;"
        " test = test_expected.test_strict_and_conservative_starts_are_as_expected;"
        " print(test._hypothesis_internal_use_settings.deadline)"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


def test_commands_write_in_one_place() -> None:
    folder = ROOT / "batchq" / "cli"
    place_of_all = folder / "output" / "__init__.py"
    faults = [
        place(path, node.lineno)
        for path in python_files()
        if path.is_relative_to(folder) and path != place_of_all
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and dotted(node.func) in {"print", "click.echo", "click.secho", "sys.stdout.write"}
    ]
    assert not faults, report(
        faults,
        "Write with batchq.cli.output.echo: it shows control characters in text of others "
        "escaped on a terminal.",
    )


def test_a_module_has_no_banners() -> None:
    faults = [
        place(path, number)
        for path in python_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if re.match(r"\s*#\s*([-=#*]{3,}|.* [-=#*]{3,}$)", line)
    ]
    assert not faults, report(
        faults, "A class or a module divides code; a comment gives a reason. Delete the line:"
    )


def test_the_docstring_of_a_predicate_begins_with_return() -> None:
    faults = [
        f"{place(path, node.lineno)}: {node.name}"
        for path in python_files(LIBRARY)
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (ast.get_docstring(node) or "").startswith("Whether ")
        and not any("property" in ast.unparse(one) for one in node.decorator_list)
    ]
    assert not faults, report(faults, 'A function has an imperative docstring: "Return whether …":')
