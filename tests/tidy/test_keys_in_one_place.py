"""Keys are spelled in one module."""

from __future__ import annotations

from batchq.store.keys import ACCESS, TABLE
from tests.tidy.source import LIBRARY, ROOT, files, place, report

ONLY_IN = ROOT / "batchq/store/keys.py"


def test_only_one_module_spells_keys() -> None:
    faults = [
        place(path, number)
        for suffix in (".py", ".lua")
        for path in files(LIBRARY, suffix)
        if path != ONLY_IN
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if "{bq}" in line
    ]
    assert not faults, report(
        faults,
        "Ask batchq/store/keys.py for the key: its table says which type each key has and how "
        "long it lives, and scripts are given their keys.",
    )


def test_every_key_shares_the_hash_tag() -> None:
    assert [key.name for key in TABLE if "{bq}:" not in key.name] == []


def test_keys_outside_the_pattern_that_all_roles_may_read_are_of_the_api_or_of_commands() -> None:
    outside = {key.name for key in TABLE if not key.name.startswith("{bq}:")}
    assert {name for name in outside if not name.startswith("exec:{bq}:")} == set(ACCESS)
