"""Tests of some random kills and pauses on a live stack; `make swarm` does 700."""

from __future__ import annotations

import random
import secrets
from itertools import islice
from pathlib import Path

import pytest

from tests.swarm.checker import lost
from tests.swarm.diary import read_runs, runs_of, shared_devices, twice_at_once
from tests.swarm.load import Design, designs
from tests.swarm.run import swarm


# The next one finds the same, of pods that share devices, too.
@pytest.mark.slow
def test_nothing_is_lost_and_nothing_runs_twice_at_once() -> None:
    seed = secrets.randbelow(1_000_000)
    lines: list[str] = [f"seed {seed}"]

    report = swarm(kills=4, seed=seed, every_s=1.5, tell=lines.append)

    assert report.is_clean, "\n".join([*lines, report.text()])
    assert sum(report.struck.values()) == 4
    assert sum(report.groups.values()) >= 5


def test_no_device_of_a_machine_is_ever_in_two_pods() -> None:
    seed = secrets.randbelow(1_000_000)
    lines: list[str] = [f"seed {seed}"]
    report = swarm(kills=4, seed=seed, every_s=1.5, tell=lines.append, devices=True)
    assert report.is_clean, "\n".join([*lines, report.text()])
    assert report.devices > 0


def test_the_checks_find_a_device_in_two_pods() -> None:
    a = runs_of("1.0 11 u 1 start\n1.1 11 u 1 has:GPU-1\n3.0 11 u 1 done\n")
    b = runs_of("2.0 12 v 1 start\n2.1 12 v 1 shares:GPU-1\n")
    c = runs_of("2.5 13 w 1 start\n2.6 13 w 1 has:GPU-1\n")
    assert shared_devices({"a": a, "b": b, "c": c}) == [
        "v-1 (pid 12) had GPU-1, and another process, too",
        "w-1 (pid 13) got GPU-1 while u-1 (pid 11) had it",
    ]


def test_a_seed_always_draws_the_same_groups() -> None:
    def drawn() -> list[Design]:
        return [design for some in islice(designs(random.Random(7)), 50) for design in some]

    assert drawn() == drawn()
    assert {design.kind for design in drawn()} == {
        "array", "broken", "broken-chain", "cancelled", "chain", "gang", "retry", "single",
    }  # fmt: skip


def test_the_checks_find_a_run_that_starts_before_the_former_one_has_ended() -> None:
    text = "1.0 11 u 1 start\n2.0 12 u 2 start\n2.1 11 u 1 alive\n"
    assert twice_at_once({"g-0": runs_of(text)}) == [
        "g-0: u-2 (pid 12) began while u-1 (pid 11) ran"
    ]


def test_the_checks_find_a_run_that_found_the_lock_taken() -> None:
    text = "1.0 11 u 1 start\n2.0 12 u 2 twice\n"
    assert twice_at_once({"g-0": runs_of(text)}) == [
        "g-0: u-2 (pid 12) began while u-1 (pid 11) ran"
    ]


def test_the_checks_find_an_attempt_that_ran_again() -> None:
    text = "1.0 11 u 1 start\n1.5 11 u 1 done\n2.0 12 u 1 start\n"
    assert twice_at_once({"g-0": runs_of(text)}) == ["g-0: attempt 1 of u ran more than once"]


def test_the_checks_find_lost_groups(tmp_path: Path) -> None:
    (tmp_path / "early-main-0").write_text("1.0 11 u 1 start\n1.5 11 u 1 done\n")
    (tmp_path / "late-main-0").write_text("1.2 12 v 1 start\n1.4 12 v 1 done\n")
    (tmp_path / "half-main-0").write_text("1.2 13 w 1 start\n1.4 13 w 1 done\n")
    groups = [
        Design(name="early", kind="chain"),
        Design(name="late", kind="chain", after="early"),
        Design(name="half", kind="array", replicas=2),
        Design(name="stuck", kind="single"),
    ]
    submitted = {group.name: group for group in groups}
    ended = {"early": "Completed", "late": "Completed", "half": "Completed"}
    assert lost(submitted, ended, read_runs(tmp_path)) == [
        "late: v-1 (pid 12) began before early had succeeded",
        "half: Completed, but pod 1 never came to its end",
        "stuck: expected Completed, found no end",
    ]
