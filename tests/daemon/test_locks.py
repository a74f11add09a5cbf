"""Locks between processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from batchq.daemon.detached import exclusive, take
from batchq.errors import Conflict


def test_a_held_lock_is_not_given_to_another(tmp_path: Path) -> None:
    held = take(tmp_path / "lock")
    assert held is not None
    assert take(tmp_path / "lock") is None
    os.close(held)
    again = take(tmp_path / "lock")
    assert again is not None
    os.close(again)


def test_a_lock_timeout_names_the_blocked_action(tmp_path: Path) -> None:
    with (
        exclusive(tmp_path / "lock", wait_s=1, doing="start the stack"),
        pytest.raises(Conflict, match="cannot start the stack: another process has held the lock"),
        exclusive(tmp_path / "lock", wait_s=0.05, doing="start the stack"),
    ):
        raise AssertionError


def test_a_lock_is_free_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError), exclusive(tmp_path / "lock", wait_s=1, doing="try"):
        raise ValueError
    with exclusive(tmp_path / "lock", wait_s=0.05, doing="try"):
        pass
