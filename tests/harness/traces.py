"""Real workload logs, if available, and published schedules of them.

The project works without them: a test that needs a missing file is skipped with a message.
"""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

#: Log -> its file of published starts.
GOLDEN = {
    "KTH-SP2-1996-2": "kth_first5000",
    "SDSC-SP2-1998-4.2-cln": "sdscsp2_first5000",
    "lublin_256": "lublin_256",
}
#: Policy, and whether it schedules at every event -> the column of such a file.
COLUMNS: Mapping[tuple[str, bool], str] = {
    ("fcfs", False): "start_fcfs",
    ("easy", False): "start_easy",
    ("easy", True): "start_easy_pe",
    ("easy-sjf", False): "start_easy_sjf",
    ("easy-sjf", True): "start_easy_sjf_pe",
    ("conservative", False): "start_cons",
    ("first-fit", False): "start_firstfit",
}


def trace_folder() -> Path:
    """Return the folder BATCHQ_TRACES, or `shared/traces` beside the checkout; it may not exist."""
    beside = Path(__file__).parents[3] / "shared" / "traces"
    return Path(os.environ.get("BATCHQ_TRACES") or beside)


def real_log(name: str) -> Path:
    """Return the path of a log in that folder; skip the test if it is missing."""
    return _file(f"{name}.swf.gz")


def golden_starts(log: str, policy: str, *, per_event: bool = False) -> dict[int, int]:
    """Return when each of the log's first jobs starts, as published; skip the test if unknown."""
    column = COLUMNS[policy, per_event]
    with gzip.open(_file(f"golden/{GOLDEN[log]}.starts.csv.gz"), "rt") as file:
        rows = list(csv.DictReader(file))
    if column not in rows[0]:
        pytest.skip(f"no published schedule has {column} of {log}")
    return {int(row["job"]): int(row[column]) for row in rows}


def _file(name: str) -> Path:
    path = trace_folder() / name
    if not path.is_file():
        pytest.skip(
            f"there is no {name} in {trace_folder()}; BATCHQ_TRACES may name another folder"
        )
    return path
