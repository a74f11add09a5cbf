"""Reading files of manifests: documents, line numbers, and refusals before memory is used."""

from __future__ import annotations

import time

import pytest

from batchq.config import documents
from batchq.config.documents import MOST_BYTES, print_documents, read_documents
from batchq.errors import InvalidInput


def one(text: str) -> dict[str, object]:
    (document,) = read_documents(text, "a.yaml")
    return document.data


def refusal(text: str | bytes) -> str:
    with pytest.raises(InvalidInput) as caught:
        read_documents(text, "a.yaml")
    return caught.value.message


def test_documents_are_counted_from_one_without_empty_ones() -> None:
    documents = read_documents("a: 1\n---\n---\nb: 2\n", "a.yaml")
    assert [(document.place, document.data) for document in documents] == [
        (1, {"a": 1}),
        (2, {"b": 2}),
    ]
    assert read_documents("", "a.yaml") == []
    assert read_documents("# nothing\n", "a.yaml") == []


def test_the_items_of_a_list_are_documents_with_lines_of_their_own() -> None:
    text = (
        "kind: List\nitems:\n- kind: Queue\n  spec:\n    weight: 1\n"
        "- kind: List\n  items: [{b: 2}]\n"
    )
    documents = read_documents(text, "a.yaml")
    assert [document.place for document in documents] == [1, 2]
    assert documents[0].line_of(("spec", "weight")) == 5
    assert documents[1].data == {"b": 2}
    assert documents[1].line_of(("b",)) == 7


def test_the_line_is_that_of_the_field_or_of_its_parent() -> None:
    (document,) = read_documents("a:\n  b:\n  - c: 1\n  - d:\n      e: 2\n", "a.yaml")
    assert document.line_of(()) == 1
    assert document.line_of(("a", "b", 1, "d", "e")) == 5
    assert document.line_of(("a", "b", 1, "d", "missing")) == 4
    assert document.line_of(("a", "b", 7)) == 2


def test_json_is_read_as_json() -> None:
    documents = read_documents('{"a": "\\ud83d\\ude00", "b": [1, 2.5, null]}', "a.json")
    assert documents[0].data == {"a": "😀", "b": [1, 2.5, None]}
    assert documents[0].line_of(("a",)) is None
    listed = read_documents('{"kind": "List", "items": [{"a": 1}, {"b": 2}]}', "a.json")
    assert [document.data for document in listed] == [{"a": 1}, {"b": 2}]
    assert listed[1].where() == "a.json, document 2"


def test_a_byte_order_mark_is_ignored() -> None:
    assert read_documents(b"\xef\xbb\xbfa: 1", "a.yaml")[0].data == {"a": 1}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("5", 5),
        ("-5", -5),
        ("1.5", 1.5),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("yes", "yes"),
        ("off", "off"),
        ("007", "007"),
        ("1.10", "1.10"),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("0x1f", "0x1f"),
        ("1e3", "1e3"),
        (".inf", ".inf"),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        ("'5'", "5"),
        ('"true"', "true"),
        ("!!str 5", "5"),
        ("99999999999999999999999", "99999999999999999999999"),
    ],
)
def test_a_scalar_is_a_number_only_if_nothing_is_lost(written: str, meant: object) -> None:
    data = one(f"a: {written}")
    assert data == {"a": meant}
    assert type(data["a"]) is type(meant)


def test_names_of_fields_are_read_as_text() -> None:
    assert one("{1: a, true: b, 1.10: c}") == {"1": "a", "true": "b", "1.10": "c"}


def test_a_few_anchors_and_merges_are_accepted() -> None:
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: [*a, *a]\nd: {<<: [{z: 1}, *a]}\n"
    assert one(text) == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": [{"x": 1, "y": 2}, {"x": 1, "y": 2}],
        "d": {"x": 1, "y": 2, "z": 1},
    }


BOMB = "a: &a [" + "x," * 9 + "x]\n"
for letter, before in zip("bcdefghi", "abcdefgh", strict=True):
    BOMB += f"{letter}: &{letter} [" + f"*{before}," * 9 + f"*{before}]\n"

WRONG: dict[str, tuple[str | bytes, str]] = {
    "a bomb of anchors": (
        BOMB,
        "a.yaml, line 4: the aliases expand to more than 10000 values; write them out",
    ),
    "an alias of itself": (
        "a: &a [*a]",
        "a.yaml, line 1: the alias *a has no anchor before it",
    ),
    "an alias of another document": (
        "a: &a 1\n---\nb: *a",
        "a.yaml, line 3: the alias *a has no anchor before it",
    ),
    "a field twice": (
        "a: 1\nb: 2\na: 3\n",
        "a.yaml, line 3: the field 'a' is given twice in one mapping (first on line 1)",
    ),
    "a field twice in JSON": (
        '{"a": {"b": 1, "b": 2}}',
        "a.yaml: the field 'b' is given twice in one mapping",
    ),
    "no number in JSON": ('{"a": NaN}', "a.yaml: NaN is not a JSON number"),
    "a tab": ("a:\n\tb: 1", ("a.yaml, line 2: this is not YAML: the line is indented with a tab;"
              " YAML requires spaces")),
    "an open bracket": (
        "a: [1, 2\nb: 3\n",
        "a.yaml, line 2: this is not YAML: did not find expected ',' or ']'",
    ),
    "a list": (
        "- a\n- b\n",
        "a.yaml, line 1: expected a mapping of fields, found a list",
    ),
    "a word": ("hello", "a.yaml, line 1: expected a mapping of fields, found 'hello'"),
    "a tag that would run code": (
        "a: !!python/object/apply:os.system [ls]",
        ("a.yaml, line 1: the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not allowed"
        " here"),
    ),
    "a tag on a number": (
        "a: !money 5",
        "a.yaml, line 1: the tag '!money' is not allowed here",
    ),
    "a mapping for a name": (
        "{{a: 1}: 2}",
        "a.yaml, line 1: expected text as the name of a field",
    ),
    "a merge of a word": (
        "<<: a",
        "a.yaml, line 1: expected a mapping, or a list of them, to merge at <<",
    ),
    "nesting in YAML": (
        "a: " + "[" * 65 + "]" * 65,
        "a.yaml, line 1: expected at most 64 levels of nesting",
    ),
    "nesting without an end": (
        "a: " + "[" * 900,
        "a.yaml, line 1: expected at most 64 levels of nesting",
    ),
    "nesting in JSON": (
        '{"a": ' + "[" * 65 + "]" * 65 + "}",
        "a.yaml: expected at most 64 levels of nesting",
    ),
    "endless nesting in JSON": (
        "[" * 100_000,
        "a.yaml: expected at most 64 levels of nesting",
    ),
    "too many bytes": (
        b"#" * (MOST_BYTES + 1),
        "a.yaml: expected at most 8 MiB, found more",
    ),
    "a list, of whatever length": (
        "- a\n" * 500_000,
        "a.yaml, line 1: expected a mapping of fields, found a list",
    ),
    "a list of items that are none": (
        "kind: List\nitems:\n" + "- a\n" * 500_000,
        "a.yaml, line 3: expected a mapping of fields, found 'a'",
    ),
    "a List in which one item is a list": (
        "kind: List\nitems:\n- {a: 1}\n- [a]\n",
        "a.yaml, line 4: expected a mapping of fields, found a list",
    ),
    "more values than a manifest has": (
        "a:\n" + "- a\n" * 200_000,
        "a.yaml, line 200000: expected at most 200000 values in one manifest",
    ),
    "more manifests than runnable groups fit": (
        "---\n" * 100_002,
        "a.yaml, line 100002: expected at most 100000 manifests in one file",
    ),
    "other bytes": (b"a: \xff\xfe", "a.yaml: expected text in UTF-8, found other bytes"),
    "a list without items": (
        "kind: List\n",
        "a.yaml, line 1: expected a List of apiVersion batchq/v1 with a list of items",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_an_error_names_its_line(case: str) -> None:
    text, message = WRONG[case]
    assert refusal(text) == message


def test_control_characters_are_refused_with_their_line() -> None:
    assert refusal("a: 1\nb: \x01").startswith("a.yaml")


def test_an_error_in_a_manifest_names_file_line_and_object() -> None:
    text = "apiVersion: batchq/v1\nkind: PodGroup\nmetadata:\n  name: x\nspec:\n  queue: [1]\n"
    (document,) = read_documents(text, "jobs.yaml")
    with pytest.raises(InvalidInput) as caught:
        document.decode()
    assert caught.value.message == (
        "jobs.yaml, line 6: PodGroup default/x: spec.queue: expected text, found a list of 1 item"
    )


def test_an_error_can_name_a_field() -> None:
    (document,) = read_documents("kind: Timeline\nspec:\n- at: 3x\n", "world.yaml")
    problem = document.problem(("spec", 0, "at"), "expected a duration")
    assert problem.message == "world.yaml, line 3: spec[0].at: expected a duration"


def test_printed_documents_can_be_read_back() -> None:
    manifests: list[dict[str, object]] = [
        {"a": "two\nlines\n", "b": "\x85", "c": ["1.10", "yes", 5, None, True]},
        {"a": "é", "b": {}},
    ]
    text = print_documents(manifests)
    assert "a: |\n  two\n  lines\n" in text
    assert "a: é" in text
    assert [document.data for document in read_documents(text, "x")] == manifests


SHORTEST = """\
apiVersion: batchq/v1
kind: PodGroup
metadata: {{name: g{}}}
spec: {{tasks: [{{template: {{command: [a]}}}}]}}
---
"""


def test_8_mib_of_the_shortest_groups_are_below_all_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    count = MOST_BYTES // len(SHORTEST.format(10_000))
    assert 70_000 < count < documents.MOST_MANIFESTS
    # A hundredth of the file, compared with a hundredth of the bound.
    monkeypatch.setattr(documents, "MOST_VALUES", documents.MOST_VALUES // 100)
    text = "".join(SHORTEST.format(place) for place in range(10_000, 10_000 + count // 100))
    assert len(read_documents(text, "many.yaml")) == count // 100
    assert refusal(text + text) == (
        "a.yaml, line 4546: expected at most 10000 values in one file; split the file"
    )


def test_a_list_may_have_more_values_than_one_manifest() -> None:
    text = "kind: List\nitems:\n" + "- {a: [1, 2, 3, 4, 5, 6, 7, 8]}\n" * 20_100
    documents = read_documents(text, "many.yaml")
    assert (len(documents), documents[-1].line_of(("a",))) == (20_100, 20_102)


def test_a_document_that_is_refused_at_its_beginning_costs_no_memory() -> None:
    began = time.process_time()
    assert refusal("- a\n" * 2_000_000).endswith("found a list")
    assert refusal("[" + "a, " * 2_500_000 + "]").endswith("found a list")
    assert time.process_time() - began < 3
