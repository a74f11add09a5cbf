"""Every kind of key is damaged in every way on a live stack, while it runs and before a start."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest

from tests.e2e.guarded import GuardedStack
from tests.e2e.machine import until
from tests.harness.guarded import ADMIN
from tests.poison.key_table import DAMAGES, ROWS, RQ_ROWS, damage
from tests.poison.test_live import findings, goes_on, restart

#: What schedulers alone may write is damaged in the tests of this folder that run no processes.
OF_OTHERS = tuple(row for row in (*ROWS, *RQ_ROWS) if row.user != "scheduler")


@pytest.fixture(scope="module")
def stack() -> Iterator[GuardedStack]:
    with GuardedStack() as made:
        yield made


def damage_all(stack: GuardedStack, how: str) -> None:
    """Damage a key of each kind, with the rights of the role that may write it."""
    for row in OF_OTHERS:
        with stack.server.as_user(row.user) as client:
            damage(client, row, how)


def heal(stack: GuardedStack) -> None:
    """Run the commands that the doctor's remedies name, until it finds nothing."""

    def healed() -> bool:
        found = findings(stack)
        for one in found:
            for words in re.findall(r"`batchq (delete [^`]*)`", one["remedy"]):
                stack.batchq("operator", *shlex.split(words), exits=None)
        return found == []

    until(healed, what="healed", within_s=60)


def heal_keys_of_the_api(stack: GuardedStack) -> None:
    """Delete what a message names, as its hint says."""
    with stack.server.as_user(ADMIN) as admin:
        for words in (("access", "list"), ("access", "audit"), ("token", "list")):
            for _ in ROWS:
                done = stack.batchq("api", *words, exits=None)
                assert "Traceback" not in done.stderr
                for name in re.findall(r"`DEL ([^`]+)`", done.stderr):
                    admin.delete(name)
                if done.returncode in (0, 1):
                    break
            assert done.returncode in (0, 1), done.stderr


#: The others take minutes.
_QUICK = "bytes"


@pytest.mark.parametrize(
    "how",
    [pytest.param(how, marks=() if how == _QUICK else pytest.mark.slow) for how in DAMAGES],
)
def test_damage_to_every_kind_of_key_costs_no_other_group(stack: GuardedStack, how: str) -> None:
    damage_all(stack, how)
    goes_on(stack)
    heal_keys_of_the_api(stack)
    heal(stack)
    restart(
        stack, *((row.user, lambda client, row=row: damage(client, row, how)) for row in OF_OTHERS)
    )
    goes_on(stack)
    heal_keys_of_the_api(stack)
    heal(stack)
