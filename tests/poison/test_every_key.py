"""Every kind of key is damaged in every way on a live stack, while it runs and before a start."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest

from batchq.client.doctor import examine
from batchq.store.records import field_named
from tests.e2e.guarded import GuardedStack
from tests.e2e.machine import until
from tests.harness.guarded import ADMIN
from tests.poison.key_table import DAMAGES, ROWS, RQ_ROWS, Row, damage
from tests.poison.test_live import findings, goes_on, restart

#: What schedulers alone may write is damaged without processes only.
OF_OTHERS = tuple(row for row in (*ROWS, *RQ_ROWS) if row.user != "scheduler")
#: A leader that loses its lease after a repair, and before the event that tells of it, leaves
#: nothing to name: on a busy machine, the damage is done again.
_AGAIN_AFTER_S = 20.0
#: The others take minutes.
_QUICK = "bytes"
EVERY_DAMAGE = [
    pytest.param(how, marks=() if how == _QUICK else pytest.mark.slow) for how in DAMAGES
]


@pytest.fixture(scope="module")
def stack() -> Iterator[GuardedStack]:
    with GuardedStack() as made:
        yield made


@pytest.fixture(scope="module")
def stopped() -> Iterator[GuardedStack]:
    """A server that a stack has used, without processes: nothing repairs it."""
    with GuardedStack() as made:
        made.batchq("submitter", "submit", "--quiet", "--name", "ended", "--wait", "--", "true")
        made.end_processes()
        yield made


def reader_of(row: Row) -> str:
    """Return the user with the fewest rights whose doctor sees all keys of this kind."""
    return "api" if row.user == "api" else "operator"


def shown_by_doctor(stack: GuardedStack, user: str) -> str:
    """Return all that the doctor has found, as text."""
    found = examine(stack.server.url_of(user)).findings
    return "\n".join(f"{one.subject} {one.found}" for one in found if one.check == "records")


def damage_all(stack: GuardedStack, how: str) -> None:
    """Damage a key of each kind, with the rights of the role that may write it."""
    for row in OF_OTHERS:
        with stack.server.as_user(row.user) as client:
            damage(client, row, how)


def check_named(stack: GuardedStack, rows: Sequence[Row], how: str) -> None:
    """Check that the doctor of a running stack names each of these damaged keys, or that it was
    repaired. A process may repair one key before another one is noticed.
    """
    missing = [row for row in rows if not row.unnamed_if(how)]
    damaged_at = time.monotonic()

    def are_named() -> bool:
        nonlocal damaged_at
        told = "\n".join(shown_by_doctor(stack, user) for user in ("operator", "api"))
        missing[:] = [
            row
            for row in missing
            if row.called_if(how) not in told
            and not (row.once_repaired and row.once_repaired in told)
        ]
        if time.monotonic() > damaged_at + _AGAIN_AFTER_S:
            for row in (row for row in missing if row.once_repaired):
                with stack.server.as_user(row.user) as client:
                    damage(client, row, how)
            damaged_at = time.monotonic()
        return not missing

    with suppress(AssertionError):
        # Each look takes much of a core.
        until(are_named, within_s=120, every_s=0.5)
    assert [row.called_if(how) for row in missing] == []


def heal(stack: GuardedStack) -> None:
    """Run the commands that the doctor's remedies name, until it finds nothing."""

    def healed() -> bool:
        found = findings(stack)
        for one in found:
            for words in re.findall(r"`batchq (delete [^`]*)`", one["remedy"]):
                stack.batchq("operator", *shlex.split(words), exits=None)
        return found == []

    heal_keys_of_the_api(stack)
    until(healed, what="healed", within_s=120, every_s=0.5)


def heal_keys_of_the_api(stack: GuardedStack) -> None:
    with stack.server.as_user(ADMIN) as admin, stack.server.as_user("api") as api:
        for one in examine(stack.server.url_of("api")).findings:
            for key in re.findall(r"`DEL (access:[^`]+)`", one.remedy):
                admin.delete(key)
            for key, field in re.findall(r"`HDEL (access:\S+) ([^`]+)`", one.remedy):
                api.hdel(key, field_named(field))
    # "The next change repairs it."
    stack.batchq("api", "access", "grant", "user:alice", "viewer")
    stack.batchq("api", "access", "revoke", "user:alice", "viewer")
    for words in (("access", "list"), ("access", "audit"), ("token", "list")):
        done = stack.batchq("api", *words, exits=None)
        assert "Traceback" not in done.stderr
        # A trail that another program has written to is not intact.
        assert done.returncode in (0, 1), done.stderr
    assert "Key access:" not in shown_by_doctor(stack, "api")


@pytest.mark.parametrize("how", EVERY_DAMAGE)
def test_the_doctor_names_each_damaged_key_while_no_process_runs(
    stopped: GuardedStack, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchq.client.doctor.system_state.APPLIED_WITHIN_S", 0.0)
    missing = []
    with stopped.server.as_user(ADMIN) as admin:
        for row in (row for row in ROWS if not row.unnamed_if(how)):
            before = admin.dump(row.name)
            with stopped.server.as_user(row.user) as client:
                damage(client, row, how)
            if row.called_if(how) not in shown_by_doctor(stopped, reader_of(row)):
                missing.append(row.called_if(how))
            admin.delete(row.name)
            if before is not None:
                admin.restore(row.name, 0, before)
    assert missing == []
    assert shown_by_doctor(stopped, "operator").strip() == "all can be read"


@pytest.mark.parametrize("how", EVERY_DAMAGE)
def test_damage_to_every_kind_of_key_costs_no_other_group(stack: GuardedStack, how: str) -> None:
    damage_all(stack, how)
    goes_on(stack)
    check_named(stack, [row for row in OF_OTHERS if row in ROWS], how)
    heal(stack)
    restart(
        stack, *((row.user, lambda client, row=row: damage(client, row, how)) for row in OF_OTHERS)
    )
    goes_on(stack)
    check_named(stack, OF_OTHERS, how)
    heal(stack)
