"""Real workloads, where they are at hand; the project works without them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def real_log(name: str) -> Path:
    """A log out of BATCHQ_TRACES, or out of `shared/traces` beside the checkout; else a skip."""
    beside = Path(__file__).parents[3] / "shared" / "traces"
    folder = Path(os.environ.get("BATCHQ_TRACES") or beside)
    log = folder / f"{name}.swf.gz"
    if not log.is_file():
        pytest.skip(f"there is no {log.name} in {folder}; BATCHQ_TRACES may name another folder")
    return log
