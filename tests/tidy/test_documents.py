"""The commands, diagrams and links of README and the other documents are valid."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import click
import pytest

from batchq import errors
from batchq.api.lifecycle import POD_GROUP_MOVES, POD_MOVES, allowed
from batchq.api.reasons import Waiting
from batchq.http.route_table import ROUTES, right_of
from tests.tidy.command_lines import accept, commands_in, shell_lines, simple_commands
from tests.tidy.source import ROOT, files, parsed, place, python_files

README = ROOT / "README.md"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *files(("docs", "conf", "actions", "batchq"), ".md")]


def batchq_arguments(command: list[str]) -> list[str] | None:
    """Return the words after `batchq`, `.venv/bin/batchq` or `python -m batchq.cli`."""
    if Path(command[0]).name == "batchq":
        return command[1:]
    if command[1:3] == ["-m", "batchq.cli"]:
        return command[3:]
    return None


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z]+):", text, re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS, ids=place)
def test_batchq_accepts_the_commands_of(document: Path) -> None:
    refused = []
    for command in commands_in(document):
        arguments = batchq_arguments(command)
        try:
            if arguments is not None:
                accept(arguments)
        except click.UsageError as problem:
            refused.append(f"{' '.join(command)}: {problem.format_message()}")
    assert refused == [], f"{place(document)} tells its reader to type what batchq refuses."


def test_the_readme_has_at_most_150_lines() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150, (
        "The README is read before a decision to try batchq; details are in docs."
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=place)
def test_make_has_the_targets_of(document: Path) -> None:
    named = {
        word
        for command in commands_in(document)
        if command[0] == "make"
        for word in command[1:]
        if not word.startswith("-") and "=" not in word
    }
    assert named <= make_targets(), f"{place(document)} names targets that the Makefile lacks."


@pytest.mark.parametrize("document", DOCUMENTS, ids=place)
def test_links_have_existing_targets_in(document: Path) -> None:
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.S | re.M)
    targets = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    local = [link for link in targets if link and not re.match(r"[a-z]+:", link)]
    assert [link for link in local if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=place)
def test_the_files_that_a_document_names_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    named = re.findall(r"`((?:batchq|actions|tests|conf|docs|benchmarks)/[\w./-]+\.\w+)[`:]", text)
    assert sorted({name for name in named if not (ROOT / name).exists()}) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=place)
def test_the_tests_that_a_document_names_exist(document: Path) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)", document.read_text(encoding="utf-8"))
    missing = [f"{path}::{name}" for path, name in named if name not in functions_of(ROOT / path)]
    assert sorted(missing) == [], f"{place(document)} leans on tests that are gone."


@cache
def functions_of(path: Path) -> frozenset[str]:
    """Return the names of a test module's functions."""
    return frozenset(node.name for node in parsed(path).body if isinstance(node, ast.FunctionDef))


def test_the_modules_of_the_two_ways_through_the_code_exist() -> None:
    text = (ROOT / "docs" / "internals.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\s((?:\w+/)+\w+\.(?:py|lua))\s", text))
    assert len(named) > 15
    folders = (ROOT / "batchq", ROOT / "batchq" / "core")
    assert [each for each in sorted(named) if not any((f / each).exists() for f in folders)] == []


def definitions(path: Path) -> set[str]:
    """Return the functions, classes, methods and constants that a module defines."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


#: A page with a table for newcomers, and how many names it gives at least.
GUIDES = {"docs/internals.md": 14, "CONTRIBUTING.md": 8, "batchq/core/README.md": 5}


@pytest.mark.parametrize("guide", GUIDES)
def test_the_names_that_a_newcomer_is_sent_to_are_in_the_modules_beside_them(guide: str) -> None:
    text = (ROOT / guide).read_text(encoding="utf-8")
    cells = [cell for row in re.findall(r"^\|.*\|$", text, re.MULTILINE) for cell in row.split("|")]
    checked, missing = 0, []
    for cell in cells:
        names = re.findall(r"`([\w/]+/\w+\.py)`", cell)
        paths = [path for name in names if (path := module(name))]
        missing += [name for name in names if not module(name)]
        known = {name for path in paths for name in definitions(path)}
        for name in re.findall(r"`(\w{3,})`", cell) if paths else ():
            checked += 1
            if name not in known:
                missing.append(f"{name} in {', '.join(place(path) for path in paths)}")
    assert missing == [], f"{guide} sends its reader to names that are not there."
    assert checked >= GUIDES[guide]


def module(name: str) -> Path | None:
    """Return a module that a page names, from the root of the repository or of the core."""
    found = (folder / name for folder in (ROOT, ROOT / "batchq" / "core"))
    return next((path for path in found if path.exists()), None)


def test_each_reason_for_waiting_leads_to_modules_that_give_it() -> None:
    text = (ROOT / "docs" / "internals.md").read_text(encoding="utf-8")
    _, _, section = text.partition("## Where each reason comes from\n")
    rows = re.findall(r"^\| (`[A-Z].*?) \| (.*) \|$", section, re.MULTILINE)
    named = {
        Waiting(reason): set(re.findall(r"`([\w/]+/\w+\.py)`", modules))
        for reasons, modules in rows
        for reason in re.findall(r"`(\w+)`", reasons)
    }
    assert named.keys() == set(Waiting)
    silent = [
        f"{path} for {reason}"
        for reason, paths in named.items()
        for path in sorted(paths)
        if not re.search(rf"\b{reason.name}\b", (ROOT / path).read_text("utf-8"))
    ]
    assert silent == []


def test_the_table_of_caches_names_attributes_that_exist() -> None:
    text = (ROOT / "batchq" / "core" / "caches.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`[^|]+)", text, re.MULTILINE)
    named = {pair for cell in cells for pair in re.findall(r"([A-Z]\w+)\.(\w+)", cell)}
    assert len(named) >= 10
    owners = {owner for owner, _ in named}
    classes = {
        node.name: ast.unparse(node)
        for path in python_files(("batchq", "actions"))
        for node in parsed(path).body
        if isinstance(node, ast.ClassDef) and node.name in owners
    }
    absent = [
        f"{owner}.{name}"
        for owner, name in sorted(named)
        if not re.search(rf"\b{name}\b", classes.get(owner, ""))
    ]
    assert absent == [], "Caches that no longer exist are in the table."


def test_each_question_of_a_newcomer_has_an_answer_on_a_page_that_the_readme_links() -> None:
    readme = README.read_text(encoding="utf-8")
    internals = (ROOT / "docs" / "internals.md").read_text(encoding="utf-8")
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert "(docs/internals.md)" in readme
    assert "(CONTRIBUTING.md#how-to-add)" in readme
    words = (
        "admitted",
        "refused",
        "bound",
        "leases of a node.*renewed",
        "heartbeat",
        "free quota",
        "exec`",
        "device",
        "join",
    )
    for word in words:
        assert re.search(rf"^\| Where .*{word}|^\| Why .*{word}", internals, re.MULTILINE), word
    for addition in ("plugin", "action", "command", "metric"):
        assert re.search(rf"^\| a (built-in )?{addition} \|", contributing, re.MULTILINE), addition


def test_the_page_of_the_http_api_lists_each_path_with_its_right() -> None:
    text = (ROOT / "docs" / "http-api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([A-Z]+ /\S*)` \| .* \| ([^|]+) \|$", text, re.MULTILINE)
    routes = []
    for route in ROUTES:
        path = route.path.replace("{namespace}", "NS").replace("{name}", "NAME")
        path = path.replace("{id}", "ID").replace("{session}", "SESSION")
        right = right_of(route) if route.verb is not None else "any caller"
        routes.append((f"{route.method} {path}", "none" if route.is_open else right))
    assert sorted(listed) == sorted(routes)


def test_the_table_of_errors_has_each_error_with_its_exit_code() -> None:
    listed = re.findall(r"^ .*?(\w+) {2,}(\d+)", errors.__doc__ or "", re.MULTILINE)
    classes = [one for one in vars(errors).values() if isinstance(one, type)]
    kinds = [one for one in classes if issubclass(one, errors.BatchqError)]
    assert listed == [
        (one.__name__, str(one.exit_code)) for one in kinds if one is not errors.BatchqError
    ]


def anchors_of(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub and the site generate them."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.S | re.M)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=place)
def test_links_to_sections_lead_to_a_heading(document: Path) -> None:
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.S | re.M)
    missing = []
    for target, anchor in re.findall(r"\]\(([^)\s#]*)#([^)\s]+)\)", text):
        page = document.parent / target if target else document
        if not re.match(r"[a-z]+:", target) and anchor not in anchors_of(page):
            missing.append(f"{target}#{anchor}")
    assert missing == []


def diagram(containing: str) -> set[tuple[str, str]]:
    """Return the transitions of the README's state diagram with this state, without the ends."""
    text = README.read_text(encoding="utf-8")
    for block in re.findall(r"^```mermaid\nstateDiagram(.*?)^```", text, re.S | re.M):
        arrows = re.findall(r"^\s*(\S+) --> (\w+|\[\*\])", block, re.MULTILINE)
        if any(containing in arrow for arrow in arrows):
            return {arrow for arrow in arrows if "[*]" not in arrow}
    return set()


def test_the_readme_draws_the_lifecycle_of_a_pod_group() -> None:
    assert diagram("InQueue") == allowed(POD_GROUP_MOVES)


def test_the_readme_draws_the_lifecycle_of_a_pod_or_leaves_it_to_the_manual() -> None:
    assert diagram("Bound") in (set(), allowed(POD_MOVES))


def test_a_console_block_has_prompts_and_output() -> None:
    text = "```console\n$ batchq jobs \\\n    -o wide\nNAME  PHASE\n```\n```sh\nmake run\n```\n"
    assert shell_lines(text) == ["batchq jobs      -o wide", "make run"]


def test_a_shell_line_is_split_into_its_commands() -> None:
    line = "BATCHQ_HOME=/tmp/b batchq get queues -o json 2> err | jq . && make run"
    assert simple_commands(line) == [
        ["batchq", "get", "queues", "-o", "json", "2"],
        ["jq", "."],
        ["make", "run"],
    ]
