"""Timing and reporting for all benchmarks: a table, and a JSON file that describes the machine."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

_RESULTS = Path(__file__).parent / "results"
_NOTE = textwrap.TextWrapper(
    100,
    initial_indent="  ",
    subsequent_indent="    ",
    break_on_hyphens=False,
    break_long_words=False,
)
_PACKAGES = ("batchq", "msgspec", "redis", "rq")


def median_s(run: Callable[[], object], *, times: int = 3) -> float:
    """Return the median wall time of `times` runs, in seconds."""
    taken = []
    for _ in range(times):
        started_at = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started_at)
    return statistics.median(taken)


def report(
    name: str, columns: list[str], rows: list[list[object]], *, notes: Sequence[str] = ()
) -> None:
    """Print the table, and write it to `results/` with a description of the machine.

    `notes` are sentences printed below the table, such as published figures with their sources.
    """
    cells = [columns, *([_shown(cell) for cell in row] for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    print(f"\n{name}")
    for row in cells:
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    for note in notes:
        print(_NOTE.fill(note))
    _RESULTS.mkdir(exist_ok=True)
    machine = {
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "versions": {package: version(package) for package in _PACKAGES},
    }
    result = {"name": name, "machine": machine, "columns": columns, "rows": rows}
    if notes:
        result["notes"] = list(notes)
    (_RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def _shown(cell: object) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.4g}" if abs(cell) < 1000 else f"{cell:.0f}"
