"""kube-batch's own cases, from a YAML file of its tests and their results.

The file is not part of this repository; tests that need it are skipped without it. The name of a
case consists of its section, and its own name or its position in its table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

Case = dict[str, Any]

#: Sections whose cases are named clusters.
WORLDS = (
    "action_unit_tests",
    "e2e_simulations_on_real_code",
    "water_filling_probes",
    "probes_on_real_code",
    "unmerged_pr_and_issue_cases",
)

#: Section -> the prefix of the names of its cases.
SHORT = {
    "action_unit_tests": "unit",
    "e2e_simulations_on_real_code": "simulation",
    "water_filling_probes": "shares",
    "probes_on_real_code": "probe",
    "unmerged_pr_and_issue_cases": "request",
}


def the_file() -> dict[str, Any]:
    """Return the file from BATCHQ_CASES or `shared/cases` beside the checkout, or skip the test."""
    beside = Path(__file__).parents[3] / "shared" / "cases"
    folder = Path(os.environ.get("BATCHQ_CASES") or beside)
    path = folder / "kube-batch.yaml"
    if not path.is_file():
        pytest.skip(f"there is no {path.name} in {folder}; BATCHQ_CASES may name another folder")
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def cases_of(file: dict[str, Any]) -> dict[str, Any]:
    """Return every case of the file by its name, in order."""
    named = list(_named(file))
    cases = dict(named)
    assert len(cases) == len(named), "two cases of the file have the same name"
    return cases


def _named(file: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for table, rows in file["unit_tests"].items():
        if table == "resource_units":
            continue  # A remark on the units of the tables that follow.
        for place, row in enumerate(rows, start=1):
            yield f"{table} {place}", row
    for section in WORLDS:
        for case in file[section]:
            yield f"{SHORT[section]}: {case['name']}", case
    for case in file["e2e_tests"]["cases"]:
        yield f"e2e: {case['name']}", case
    for request in file["unmerged_pr_cases_not_run"]:
        number = request["pr"].partition(" ")[0]
        for place, case in enumerate(request["cases"], start=1):
            yield f"not run: {number} {place}", case
    yield from _enqueue_cases(file["enqueue_cases"])


def _enqueue_cases(section: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for case in section["design_transitions"]:
        yield f"enqueue design: {case['from']} to {case['to']}", case
    for case in section["volcano_first_version_0dccc9eb5_derived_cases"]:
        yield f"enqueue first: {case['name']}", case
    for case in section["volcano_unit_test_TestEnqueue_HEAD"]["cases"]:
        yield f"enqueue test: {case['name']}", case
