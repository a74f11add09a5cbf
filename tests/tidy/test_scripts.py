"""Every Lua script is a short command whose header is its contract.

A script too long for one file is split into several, which are joined when they are loaded. The
header of the last file applies to the whole script, and each other file names the script.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tidy.source import LIBRARY, files, place

MOST_LINES = 120
SECTIONS = ("KEYS", "ARGV", "Answers")
BANNED_COMMANDS = {"KEYS", "SCAN", "HSCAN", "SSCAN", "ZSCAN", "TIME", "RANDOMKEY"}
SCRIPTS = files(LIBRARY, ".lua")


def header(text: str) -> dict[str, str]:
    """Return the sections of a script's first comment, such as `-- KEYS: 1 leader, 2 epoch.`"""
    sections: dict[str, str] = {}
    current = "purpose"
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        match = re.match(r"--\s*(\w+):\s*(.*)", line)
        if match and match[1] in SECTIONS:
            current, line = match[1], match[2]
        sections[current] = f"{sections.get(current, '')}\n{line.lstrip('- ')}".strip()
    return sections


def whole(script: Path) -> Path:
    """Return the whole script of a file whose header says `A part of commit: …`."""
    match = re.match(r"-- A part of (\w+):", read(script))
    return script.with_name(f"{match[1]}.lua") if match else script


def numbered(section: str) -> set[int]:
    """Return the indexes that a section describes: 1 and 2 for `1 leader, 2 epoch`."""
    return {int(number) for number in re.findall(r"(?:^|[,;] )(\d+) [a-z]", section, re.MULTILINE)}


def code(text: str) -> str:
    """Return a script without its comments."""
    return re.sub(r"--.*", "", text)


def used(name: str, text: str) -> set[int]:
    """Return the indexes of KEYS or ARGV that a script uses."""
    return {int(number) for number in re.findall(rf"\b{name}\[(\d+)\]", code(text))}


def read(script: Path) -> str:
    return script.read_text(encoding="utf-8")


def test_scripts_are_found() -> None:
    assert SCRIPTS, "The scripts moved: this rule looks for *.lua in the packages."


@pytest.mark.parametrize("script", SCRIPTS, ids=place)
def test_a_script_is_short(script: Path) -> None:
    count = len(read(script).splitlines())
    assert count <= MOST_LINES, (
        f"{place(script)} has {count} lines; cut it where its subject turns."
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=place)
def test_a_scripts_header_says_what_it_does_and_with_what(script: Path) -> None:
    said = header(read(whole(script)))
    assert {"purpose", "Answers"} <= set(said), (
        f"{place(script)} should begin with a comment: what the script does, then lines that "
        "begin with `KEYS:`, `ARGV:` and `Answers:` and say in words what each of them is."
    )


@pytest.mark.parametrize("name", ["KEYS", "ARGV"])
@pytest.mark.parametrize("script", SCRIPTS, ids=place)
def test_a_scripts_header_numbers_what_it_uses(script: Path, name: str) -> None:
    described = numbered(header(read(whole(script))).get(name, ""))
    assert used(name, read(script)) <= described, (
        f"The header of {place(whole(script))} should number each {name}[n] of {place(script)}."
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=place)
def test_a_script_neither_scans_nor_reads_a_clock(script: Path) -> None:
    calls = re.findall(r"redis\.p?call\(\s*['\"](\w+)['\"]", code(read(script)))
    assert {call.upper() for call in calls} & BANNED_COMMANDS == set(), (
        f"{place(script)}: a script is given its keys and the time; otherwise its cost grows "
        "with what it does not touch, and no other store could do the same."
    )


def test_a_header_is_split_into_its_sections() -> None:
    text = (
        "-- Takes the lease.\n-- KEYS: 1 leader, 2 epoch.\n-- ARGV: 1 identity,\n"
        "--       2 now in ms.\n-- Answers: the epoch.\nreturn ARGV[3] -- KEYS[9]\n"
    )
    sections = header(text)
    assert sections["purpose"] == "Takes the lease."
    assert sections["Answers"] == "the epoch."
    assert numbered(sections["KEYS"]) == {1, 2}
    assert numbered(sections["ARGV"]) == {1, 2}
    assert used("ARGV", text) == {3}
    assert used("KEYS", text) == set()
