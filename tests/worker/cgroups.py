"""Real cgroups for tests, on machines where this user may create them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batchq.worker.host.cgroup import PodCgroup


def _mount() -> Path | None:
    """Return the folder where a cgroup v2 file system is mounted."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(where)
    return None


def _parent(mount: Path) -> Path:
    """Return the cgroup of this process."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    name = next((line[3:] for line in lines if line.startswith("0::")), "/")
    return mount / name.lstrip("/")


@contextmanager
def a_real_cgroup(*, controller: str = "") -> Iterator[Path]:
    """Create a cgroup for this test, and remove it with everything in it; skip if that is
    impossible.

    `controller`: a controller that it must have.
    """
    mount = _mount()
    if mount is None:
        pytest.skip("this machine has no cgroup v2 file system")
    made = _parent(mount) / f"batchq-test-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as trouble:
        pytest.skip(f"no cgroup can be made at {made}: {trouble.strerror}")
    try:
        if controller and controller not in (made / "cgroup.controllers").read_text().split():
            pytest.skip(f"cgroups below {made.parent} have no {controller} controller")
        yield made
    finally:
        assert PodCgroup(made).end(10.0) == []
        assert not made.exists()
