"""The forms of an answer: the same list as a table, JSON, YAML and names."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import yaml
from msgspec import Struct, field

from batchq.api.notation import data_of
from batchq.cli.output.forms import (
    ListForm,
    Quantities,
    Row,
    Time,
    output_of,
    report,
    show_list,
    show_pages,
    tabled,
)


class Fruit(Struct, frozen=True, rename={"tastes_of": "tastesOf"}):
    name: str
    tastes_of: str


FRUITS = [Fruit("apple", "apples"), Fruit("pear", "pears"), Fruit("plum", "plums")]
FORM: ListForm[Fruit] = ListForm(
    lambda some: tabled(
        some, {"NAME": lambda one: one.name, "TASTE": lambda one: one.tastes_of}, wide=("TASTE",)
    ),
    "there is no fruit",
    kind="FruitList",
    name=lambda one: one.name,
)
AS_DATA = {
    "apiVersion": "batchq/v1",
    "kind": "FruitList",
    "items": [
        {"name": "apple", "tastesOf": "apples"},
        {"name": "pear", "tastesOf": "pears"},
        {"name": "plum", "tastesOf": "plums"},
    ],
}
Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        ("table", ["NAME", "apple", "pear", "plum"]),
        ("wide", ["NAME   TASTE", "apple  apples", "pear   pears", "plum   plums"]),
        ("name", ["apple", "pear", "plum"]),
    ],
)
def test_a_list_is_lines_for_people_and_pipes(
    form: str, lines: Sequence[str], capsys: Capture
) -> None:
    show_list(output_of(form), FRUITS, FORM)
    assert capsys.readouterr().out.splitlines() == lines


def test_json_is_the_value_as_json_prints_it(capsys: Capture) -> None:
    show_list(output_of("json"), FRUITS, FORM)
    assert capsys.readouterr().out == json.dumps(AS_DATA, indent=2) + "\n"


def test_yaml_has_the_same_value(capsys: Capture) -> None:
    show_list(output_of("yaml"), FRUITS, FORM)
    assert yaml.safe_load(capsys.readouterr().out) == AS_DATA


@pytest.mark.parametrize("form", ["table", "wide", "json", "yaml", "name"])
def test_pages_print_what_the_whole_list_prints(form: str, capsys: Capture) -> None:
    show_list(output_of(form), FRUITS, FORM)
    whole = capsys.readouterr().out
    pages = [(FRUITS[:2], []), (FRUITS[2:], [])]
    if form in ("table", "wide"):
        # A page is as wide as its own rows need.
        pages = [(FRUITS, []), ([], [])]
    shown = show_pages(output_of(form), pages, FORM, limit=None, token_of=lambda one: one.name)
    assert capsys.readouterr().out == whole
    assert shown.written == 3


class Basket(Struct, frozen=True):
    key: str
    owner: Fruit
    packed_at: int
    weights: dict[str, int]


class FruitRow(Row, frozen=True):
    name: str
    tastes_of: str = field(name="like")


class BasketRow(Row, frozen=True):
    key: str = field(name="basket")
    owner: FruitRow | None
    packed_at: Time | None
    weights: Quantities
    age_days: int


def test_a_row_has_the_values_attributes_or_what_it_is_given() -> None:
    basket = Basket("b1", FRUITS[0], 1_000, {"memory": 2048, "cpu": 1500})
    whole = BasketRow.of(basket, age_days=3)
    # In the order of the row; amounts in the order of the value.
    assert json.dumps(data_of(whole)) == json.dumps(
        {
            "basket": "b1",
            "owner": {"name": "apple", "like": "apples"},
            "packedAt": "1970-01-01T00:00:01Z",
            "weights": {"memory": "2048", "cpu": "1500m"},
            "ageDays": 3,
        }
    )
    without = BasketRow.of(basket, age_days=3, owner=None, packed_at=None, weights={})
    assert list(data_of(without).values()) == ["b1", None, None, {}, 3]


def test_a_limit_ends_the_list_and_names_where_it_continues(capsys: Capture) -> None:
    pages = [(FRUITS[:2], []), (FRUITS[2:], [])]
    show_pages(output_of("json"), pages, FORM, limit=1, token_of=lambda one: one.name)
    assert json.loads(capsys.readouterr().out) == {
        "apiVersion": "batchq/v1",
        "kind": "FruitList",
        "items": [{"name": "apple", "tastesOf": "apples"}],
        "metadata": {"continue": "apple"},
    }
    show_pages(output_of("name"), pages, FORM, limit=1, token_of=lambda one: one.name)
    assert capsys.readouterr() == ("apple\n", "… and more: --continue apple\n")


@pytest.mark.parametrize(
    ("form", "out", "err"),
    [
        ("table", "", "there is no fruit\n"),
        ("name", "", ""),
        ("yaml", "apiVersion: batchq/v1\nkind: FruitList\nitems: []\n", ""),
    ],
)
def test_an_empty_list_is_said_only_to_people(
    form: str, out: str, err: str, capsys: Capture
) -> None:
    show_list(output_of(form), [], FORM)
    assert capsys.readouterr() == (out, err)


def test_a_report_names_the_changes_before_a_failure(capsys: Capture) -> None:
    def stop_both() -> None:
        with report(output_of("json")) as done:
            done("Queue", "a", "stopped")
            raise KeyError("b")

    with pytest.raises(KeyError):
        stop_both()
    assert json.loads(capsys.readouterr().out) == {
        "items": [{"kind": "Queue", "name": "a", "action": "stopped"}]
    }
