"""Commands that show or await groups report that no scheduler leads, and what to do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.cli.conftest import Batchq
from tests.client.stage import Stage

SAID = "no scheduler leads: start one with `batchq scheduler` or `batchq up`"


@pytest.fixture
def waiting(batchq: Batchq, stage: Stage) -> Stage:
    """A test environment with a group that no session has seen, and a leader."""
    batchq("submit", "--name", "x", "--", "true")
    return stage


def test_describe_reports_a_missing_leader(batchq: Batchq, waiting: Stage) -> None:
    assert SAID not in batchq("describe", "x").out
    waiting.store.resign("stage")
    assert SAID in batchq("describe", "x").out


def test_jobs_reports_a_missing_leader_beside_the_table(batchq: Batchq, waiting: Stage) -> None:
    assert batchq("jobs").err == ""
    waiting.store.resign("stage")
    assert batchq("jobs").err == f"{SAID}\n"
    assert batchq("jobs", "-o", "json").err == ""


def test_wait_reports_a_missing_leader_at_once_and_at_its_timeout(
    batchq: Batchq, waiting: Stage
) -> None:
    waiting.store.resign("stage")
    done = batchq("wait", "x", "--timeout", "50ms")
    assert done.code == 124
    first, _error, hint = done.err.splitlines()
    assert (first, hint) == (SAID, f"hint: {SAID}")


def test_a_timed_out_wait_points_to_describe_if_a_scheduler_leads(
    batchq: Batchq, waiting: Stage
) -> None:
    done = batchq("wait", "x", "--timeout", "50ms")
    assert SAID not in done.err
    assert "`batchq describe default/x`" in done.err


def test_finished_groups_get_no_note_of_a_missing_leader(batchq: Batchq, waiting: Stage) -> None:
    waiting.run("x")
    waiting.store.resign("stage")
    assert SAID not in batchq("describe", "x").out
    assert batchq("jobs").err == ""
    assert batchq("wait", "x").err == ""


@pytest.mark.both_doors
@pytest.mark.parametrize(
    "words",
    [
        ("submit", "--name", "y", "--", "true"),
        ("submit", "--name", "y", "--wait", "--timeout", "50ms", "--", "true"),
        ("submit", "--name", "y", "--progress", "--timeout", "50ms", "--", "true"),
        ("run", "--name", "y", "--timeout", "50ms", "--", "true"),
    ],
)
def test_a_submission_reports_a_missing_leader_before_anyone_waits(
    batchq: Batchq, stage: Stage, words: tuple[str, ...]
) -> None:
    stage.store.resign("stage")
    done = batchq(*words)
    assert SAID in done.err.splitlines()
    stage.lead_again()
    again = batchq(*(word.replace("y", "z") for word in words))
    assert again.code == done.code
    assert SAID not in again.err


def test_a_submission_of_many_groups_reports_a_missing_leader(batchq: Batchq, stage: Stage) -> None:
    stage.store.resign("stage")
    lines = '{"command": ["true"]}\n'
    assert batchq("submit", "--from-file", "-", stdin=lines).err == f"{SAID}\n"


def test_a_dry_run_reports_no_missing_leader(batchq: Batchq, stage: Stage) -> None:
    stage.store.resign("stage")
    lines = '{"command": ["true"]}\n'
    assert batchq("submit", "--dry-run", "--", "true").err == ""
    assert batchq("submit", "--dry-run", "--from-file", "-", stdin=lines).err == ""


@pytest.fixture
def full(waiting: Stage, raw: redis.Redis) -> Iterator[Stage]:
    """A group that waits at a server whose memory is used up, so that no scheduler can lead."""
    waiting.store.resign("stage")
    raw.config_set("maxmemory", 1)
    yield waiting
    raw.config_set("maxmemory", 0)


REFUSES = (
    "no scheduler leads, probably because the server refuses writes: its maxmemory is used up;"
    " raise maxmemory or delete what is old"
)


@pytest.mark.both_doors
@pytest.mark.parametrize(
    ("words", "is_error"),
    [
        (("wait", "x", "--timeout", "50ms"), True),
        (("jobs",), True),
        (("why", "x"), False),
        (("describe", "x"), False),
    ],
)
def test_a_server_that_refuses_writes_is_named_as_why_no_scheduler_leads(
    batchq: Batchq, full: Stage, words: tuple[str, ...], is_error: bool
) -> None:
    done = batchq(*words)
    assert REFUSES in " ".join((done.err if is_error else done.out).split())
    assert SAID not in done.out + done.err


def test_the_status_of_schedulers_names_a_server_that_refuses_writes(
    batchq: Batchq, full: Stage
) -> None:
    assert batchq("scheduler", "--status").err == (
        "hint: the server refuses writes: its maxmemory is used up; raise maxmemory or delete what"
        " is old\n"
    )
