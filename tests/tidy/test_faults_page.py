"""docs/faults.md answers every complaint about these actions, and the tests that it names exist."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.tidy.source import ROOT

TEXT = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)))
ROWS = re.findall(r"^\| ([EAPRSB])(\d+) \| ([^|]+) \| (.+) \|$", TEXT, re.MULTILINE)
APART = TEXT.partition("## Not about these actions, or not built")[2]

#: Issues and pull requests with complaints or requests of users.
COMPLAINTS = {
    "kube-batch": """
        158 261 376 388 401 402 409 417 424 433 434 441 446 447 452 479 484 487 492 499 514 521 537
        539 540 544 546 548 561 565 588 592 596 598 603 605 606 640 646 659 662 663 664 665 666
        686 695 704 729 730 763 770 805 813 821 828 846 847 853 858 861 863 872 876 889 894 895 899
        901 921 930 946 949 950 951
    """,
    "Volcano": """
        13 16 153 377 394 561 569 947 991 1009 1011 1014 1064 1094 1258 1294 1295 1303 1416 1619
        1720 1901 1967 1993 2034 2052 2067 2235 2255 2276 2285 2357 2384 2416 2633 2772 2921 3040
        3057 3095 3198 3220 3426 3444 3517 3520 3635 3670 3673 3709 3729 3910 3950 3976 4028 4165
        4189 4235 4385 4439 4479 4492 4530 4572 4580 4617 4690 4710 4756 4925 4926 4947 4949 4971
        5001 5006 5160 5161 5330 5574 5687
    """,
    "Kueue": """
        74 534 622 754 804 1450 1654 1657 2270 2391 2821 3150 3231 3322 3543 3757 3779 4044 4074
        4157 4224 4266 4580 4809 5993 6035 6143 6861 6947 7029 7101 8095 8309 8522 8564 8654 9596
        9715 9876 9980 10168 10741 11024 11480 11980 12232 12411 12653 12791 13036 13159 14477 14553
        14811 15148 15614
    """,
}

#: Section -> its rows, and those of them for unreported faults, which were found in the peers' code
#: or by running it.
OF_THE_CODE = {
    "E": (31, {28, 29, 30}),
    "A": (13, {9, 10, 11, 12, 13}),
    "P": (21, {4, 8, 9, 10, 11, 12, 14}),
    "R": (12, {6, 7, 8, 9, 10, 11, 12}),
    "S": (8, {3, 4, 5, 6, 7, 8}),
    "B": (10, {8, 9, 10}),
}
#: The faults of its action preempt, by the letters of the page.
QUIRKS = "abcdefghi"


def numbers_in(cell: str) -> list[str]:
    """`kube-batch 514, 561; Volcano 13` names three."""
    found = []
    for part in cell.split("; "):
        peer, _, numbers = part.strip().partition(" ")
        found += [f"{peer} {number}" for number in numbers.split(", ") if number.isdigit()]
    return found


def wanted() -> list[str]:
    return [f"{peer} {number}" for peer, text in COMPLAINTS.items() for number in text.split()]


def set_apart() -> list[tuple[str, str]]:
    return [
        (cell, why)
        for cell, why in re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", APART, re.MULTILINE)
        if numbers_in(cell)
    ]


def test_numbers_are_read_from_a_cell() -> None:
    assert numbers_in("kube-batch 514, 561; Volcano 13") == [
        "kube-batch 514",
        "kube-batch 561",
        "Volcano 13",
    ]
    assert numbers_in("its code") == []


def test_every_fault_has_batchqs_behaviour_and_a_test() -> None:
    assert [
        f"{section}{number}"
        for section, number, _, rest in ROWS
        if not re.fullmatch(r"[^|]+ \| [^|]+ \| `tests/[\w/]+\.py::\w+`(, `[^`]+`)*", rest)
    ] == []


def test_every_complaint_is_on_the_page_once() -> None:
    cells = [cell for _, _, cell, _ in ROWS] + [cell for cell, _ in set_apart()]
    stated = Counter(number for cell in cells for number in numbers_in(cell))
    assert {number: count for number, count in stated.items() if count > 1} == {}
    assert sorted(stated) == sorted(wanted())


def test_every_exceptional_cell_has_a_reason() -> None:
    found = set_apart()
    assert len(found) > 10
    assert [cell for cell, why in found if len(why.split()) < 3] == []


@pytest.mark.parametrize("section", OF_THE_CODE)
def test_no_fault_of_the_code_is_left_out(section: str) -> None:
    rows, unreported = OF_THE_CODE[section]
    found = [(int(number), cell) for letter, number, cell, _ in ROWS if letter == section]
    assert [number for number, _ in found] == list(range(1, rows + 1))
    assert {number for number, cell in found if cell.startswith("its code")} == unreported


def test_no_quirk_of_its_preempt_is_left_out() -> None:
    assert re.findall(r"\| quirk (\w): ", TEXT) == list(QUIRKS)
