"""kube-batch's own cases: each is the same here, differs for a reason, or does not apply."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from batchq.api.resources import parse_quantity
from tests.cases.kube_batch_entry import DIFFERS, NOT_APPLICABLE, SAME, WORDS, Entry, File
from tests.cases.kube_batch_file import cases_of, the_file
from tests.cases.kube_batch_page import PAGE, written_anew
from tests.cases.kube_batch_table import TABLE
from tests.cases.kube_batch_world import by_group

PLAYED = [entry for entry in TABLE if entry.play is not None]


@pytest.fixture(scope="module")
def file() -> File:
    found = the_file()
    return File(cases_of(found), found["configs"])


def test_every_case_of_the_file_is_in_the_table_once(file: File) -> None:
    assert Counter(entry.case for entry in TABLE) == Counter(file.cases.keys())


@pytest.mark.parametrize("entry", PLAYED, ids=lambda entry: entry.case)
def test_each_case_has_the_result_of_its_entry(entry: Entry, file: File) -> None:
    assert entry.play is not None
    assert entry.play(file.cases[entry.case], file) == entry.does


def test_every_case_has_a_word_and_a_reason_unless_it_is_the_same() -> None:
    assert {entry.word for entry in TABLE} <= set(WORDS)
    assert [entry.case for entry in TABLE if entry.word != SAME and not entry.why] == []


def test_every_applicable_case_is_played() -> None:
    assert [e.case for e in TABLE if (e.play is None) != (e.word == NOT_APPLICABLE)] == []


def test_the_page_equals_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == written_anew(page), (
        "docs/peers-cases-kube-batch.md is not what the table says;"
        " `python -m tests.cases.kube_batch_page` writes it again"
    )


def bound_at_once(lines: tuple[str, ...]) -> Counter[str]:
    """Return group -> number of pods bound in the first instant."""
    found: Counter[str] = Counter()
    for line in lines:
        if line.startswith("0s bind "):
            for part in line.removeprefix("0s bind ").split(", "):
                group, _, places = part.partition(": ")
                found[group] += sum(int(count) for count in re.findall(r"(\d+) on ", places))
    return found


def evicted_for_others(lines: tuple[str, ...]) -> int:
    """Return how many pods were evicted for a preemptor in the whole minute."""
    victims = (re.fullmatch(r"\d+s evict (.*) for \S+, by \w+", line) for line in lines)
    return sum(len(found[1].split()) for found in victims if found is not None)


def running_in_the_end(lines: tuple[str, ...]) -> dict[str, int]:
    found = re.findall(r"(\S+) \w+ (\d+)(?:,|$)", lines[-1].removeprefix("end "))
    return {group: int(count) for group, count in found}


def observed(case: dict[str, Any]) -> tuple[Counter[str], int]:
    """Return the pods that kube-batch bound, by group, and how many it evicted."""
    seen = case.get("observed")
    if isinstance(seen, dict):
        return by_group(case, list(seen.get("bind", {}))), len(seen.get("evict", []))
    if "observed_nondeterministic" in case:
        seen = case["observed_nondeterministic"]
        bound = by_group(case, list(seen["most_common"][0].get("bind", {})))
        return bound, seen["invariant_counts"].get("n_evict", 0)
    return Counter(), 0


def as_kube_batch(entry: Entry, case: dict[str, Any]) -> bool:
    """Return whether batchq binds and evicts as many pods as kube-batch, with the same end."""
    assert isinstance(entry.does, tuple)
    if "trace_of_one_run" not in case:
        bound, evicted = observed(case)
        return (bound_at_once(entry.does), evicted_for_others(entry.does)) == (bound, evicted)
    *_, last, total = case["trace_of_one_run"]
    ended = {group: int(count) for group, count in re.findall(r"(\S+)\{R(\d+) ", last)}
    ended = {group: count for group, count in ended.items() if count}
    evictions = int(total.removeprefix("totalEvictions="))
    return (running_in_the_end(entry.does), evicted_for_others(entry.does)) == (ended, evictions)


WORLDS = ("unit: ", "probe: ", "request: ", "simulation: ")


def test_a_case_marked_same_binds_and_evicts_as_many_as_kube_batch_did(file: File) -> None:
    claimed = [e for e in TABLE if e.word == SAME and e.case.startswith(WORLDS)]
    wrong = [e.case for e in claimed if not as_kube_batch(e, file.cases[e.case])]
    assert wrong == []


def test_a_case_marked_different_looks_the_same_only_where_a_phase_differs(file: File) -> None:
    claimed = [e for e in TABLE if e.word == DIFFERS and e.case.startswith(WORLDS)]
    alike = [
        e.case
        for e in claimed
        if isinstance(e.does, tuple) and as_kube_batch(e, file.cases[e.case])
    ]
    assert alike == [
        "probe: P13 phase: all succeeded",
        "probe: P13c phase: minMember 0, no pods",
        "probe: P13f phase: failed pod",
        "probe: P14 missing queue",
        "probe: D12b gang does not count Failed",
    ]


def test_queues_deserve_exactly_the_same_amounts(file: File) -> None:
    for entry in TABLE:
        if entry.word != SAME or not entry.case.startswith("shares: "):
            continue
        seen = file.cases[entry.case]["observed"]
        assert isinstance(entry.does, dict)
        for queue, parts in entry.does.items():
            deserved = seen[queue]["deserved"]
            names = {"cpu": "cpu_m", "memory": "mem", "nvidia.com/gpu": "gpu_m"}
            for name, part in parts.items():
                assert parse_quantity(name, part) == int(deserved[names[name]]), entry.case
