"""docs/sources.md has every sentence of four proposals, and its proofs exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from itertools import product

import click
import pytest

from batchq.daemon.metrics import MEASURES
from tests.tidy.command_lines import accept
from tests.tidy.source import ROOT
from tests.unit.test_config_plugins import TABLE

TEXT = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
SHOWN = r"`[^`]+`(?:, `[^`]+`)*"
ROW = re.compile(r"^\| ([GMCD])(\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
ROWS = ROW.findall(TEXT)
TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)(?:\[(.+)\])?")
PROOFS = sorted({proof for row in ROWS for proof in re.findall(r"`([^`]+)`", row[5])})
NAMED = sorted({match.groups() for proof in PROOFS if (match := TEST.fullmatch(proof))}, key=str)
COMMANDS = [proof for proof in PROOFS if not proof.startswith("tests/")]
#: The number of sentences of each document, so that a missing row is noticed.
DOCUMENTS = {"G": 105, "M": 79, "C": 75, "D": 38}


def says(letter: str, kind: str) -> list[str]:
    return [row[3] for row in ROWS if row[0] == letter and row[2] == kind]


@cache
def cases() -> frozenset[str]:
    """Return the pytest names of all cases in the files that the page mentions, also of those that
    only `make swarm` plays.
    """
    files = sorted({path for path, _, case in NAMED if case})
    listing = ["--collect-only", "-q", "-m", "", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *listing, *files],
        cwd=ROOT,
        env={**os.environ, "BATCHQ_EFFORT": "swarm", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return frozenset(done.stdout.splitlines())


def test_every_named_case_exists() -> None:
    named = {f"{path}::{name}[{case}]" for path, name, case in NAMED if case}
    assert len(named) > 30
    assert sorted(named - cases()) == []


def test_the_commands_of_the_page_are_valid() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    wrong = []
    for command in COMMANDS:
        tool, *words = command.split()
        try:
            if tool == "batchq":
                accept(words)
            elif (tool, *words) not in {("make", target) for target in targets}:
                wrong.append(command)
        except click.UsageError as problem:
            wrong.append(f"{command}: {problem.format_message()}")
    assert wrong == []


def test_every_named_metric_and_alert_exists() -> None:
    there = {measure.name for measure in MEASURES}
    named = set(re.findall(r"`(batchq_\w+?)(?:\{[^`]*)?`", TEXT))
    assert len(named) > 4
    assert sorted(named - there) == []
    rules = (ROOT / "conf" / "prometheus" / "rules.yaml").read_text("utf-8")
    alerts = set(re.findall(r"`(Batchq\w+)`", TEXT))
    assert alerts
    assert sorted(alerts - set(re.findall(r"alert: (\w+)", rules))) == []


def test_every_row_is_read() -> None:
    assert len(re.findall(r"^\| [A-Z]\d+ \|", TEXT, re.MULTILINE)) == len(ROWS)


@pytest.mark.parametrize("letter", DOCUMENTS)
def test_the_rows_are_those_of_the_document(letter: str) -> None:
    numbers = [int(row[1]) for row in ROWS if row[0] == letter]
    assert numbers == list(range(1, DOCUMENTS[letter] + 1))


def test_the_page_counts_its_rows() -> None:
    stated = re.findall(r"^\| \[[^|]+\]\(\S+\) \| (\d+) \| (\d+) \| (\d+) \|$", TEXT, re.MULTILINE)
    counted = []
    for letter in DOCUMENTS:
        proofs = [row[5] for row in ROWS if row[0] == letter]
        without = proofs.count("–")
        counted.append((str(len(proofs)), str(len(proofs) - without), str(without)))
    assert stated == counted


def test_every_row_has_a_proof_or_a_reason_for_its_absence() -> None:
    assert [
        f"{letter}{number}"
        for letter, number, _, _, here, proof in ROWS
        if not re.fullmatch(SHOWN, proof) and (proof != "–" or len(here.split()) < 3)
    ] == []


def test_the_table_of_transitions_has_each_cell_once() -> None:
    cells = [cell.partition(":")[0] for cell in says("G", "table")]
    scheduled, gates, verbs = ("unscheduled", "scheduled"), ("gates", "nil"), ("create", "update")
    assert cells == [", ".join(cell) for cell in product(scheduled, gates, verbs)]


def test_the_table_of_plugins_has_each_cell_once_and_each_case_of_its_test() -> None:
    cells = [cell.rpartition(":")[0] for cell in says("M", "table")]
    columns = ("enabled: xyz", "disabled: xyz", "enabled: *", "disabled: *")
    rows = product(("default", "non-default"), ("regular", "multi-point"), columns)
    assert cells == [", ".join(cell) for cell in rows]
    named = {case for _, name, case in NAMED if name == "test_each_cell_of_the_table" and case}
    assert named == set(TABLE)


def test_every_scenario_has_a_row_for_no_one_and_two_checks() -> None:
    found: dict[str, list[str]] = {}
    for scenario in says("C", "scenario"):
        name, semicolon, checks = scenario.partition("; ")
        if semicolon:
            found.setdefault(name, []).append(checks)
    assert list(found.values()) == [["0 checks", "1 check", "2 checks"]] * 6


def test_the_states_of_a_group_have_a_row_each() -> None:
    assert [state.partition(":")[0] for state in says("D", "table")] == [
        "Pending to InQueue",
        "InQueue to Pending",
        "InQueue to Running",
    ]
