"""The reference pages of the site name every command, option, field, reason, metric and method."""

from __future__ import annotations

import re

import click
import pytest

from batchq.api.objects import KINDS
from batchq.api.reasons import Finish, Leaving, Waiting
from batchq.cli.main import COMMANDS, main
from batchq.client import Client
from batchq.config import SchedulerFile
from batchq.daemon.metrics import MEASURES
from docs import conf as site
from docs import reference
from tests.tidy.source import ROOT


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {name: page() for name, page in reference.PAGES.items()}


def test_every_command_and_every_option_has_an_entry(pages: dict[str, str]) -> None:
    sections = re.split(r"^### (batchq .+)\n", pages["cli"], flags=re.MULTILINE)[1:]
    entries = dict(zip(sections[::2], sections[1::2], strict=True))
    top = click.Context(main, info_name="batchq")
    missing = [
        name for names in COMMANDS.values() for name in names if f"batchq {name}" not in entries
    ]
    assert missing == []
    for words, context in reference.commands():
        entry = entries[f"batchq {' '.join(words)}"]
        if isinstance(context.command, click.Group):
            children = context.command.list_commands(context)
            assert [c for c in children if f"batchq {' '.join(words)} {c}" not in entries] == []
        for option in context.command.get_params(top):
            if isinstance(option, click.Option) and not option.hidden:
                assert max(option.opts, key=len) in entry, f"{words}: {option.opts}"


def test_every_field_has_its_type_its_default_and_a_meaning(pages: dict[str, str]) -> None:
    code = [row for kind in KINDS for row in reference.fields_of(kind)]
    for page, rows in (("objects", code), ("configuration", [*reference.rows(SchedulerFile)])):
        for path, kind, default in rows:
            assert re.search(
                rf"^\| `{re.escape(path)}` \| {re.escape(kind)} \| {re.escape(default)} \| \S",
                pages[page],
                re.MULTILINE,
            ), path


def test_every_reason_has_a_meaning(pages: dict[str, str]) -> None:
    named = re.findall(r"^\| \[?`(\w+)`\S* \| \S", pages["reasons"], re.MULTILINE)
    assert named == [str(reason) for kind in (Waiting, Leaving, Finish) for reason in kind]


def test_every_metric_has_an_entry(pages: dict[str, str]) -> None:
    named = re.findall(r"^\| `(batchq_\w+)` \| \w+ \| .+ \| \S", pages["metrics"], re.MULTILINE)
    assert named == [measure.name for measure in MEASURES]


def test_every_method_of_the_client_has_an_entry(pages: dict[str, str]) -> None:
    methods = [name for name in dir(Client) if not name.startswith("_")]
    assert [name for name in methods if f"#### Client.{name}\n" not in pages["python"]] == []


def test_a_long_signature_has_one_parameter_per_line() -> None:
    def method(self: object, names: dict[str, int], *, namespace_of_the_group: str = "default",
               another_long_parameter: int | None = None) -> list[str]:  # fmt: skip
        raise NotImplementedError

    assert reference._signature("method", method)[1].splitlines() == [
        "method(",
        "    self: object,",
        "    names: dict[str, int],",
        "    *,",
        "    namespace_of_the_group: str = 'default',",
        "    another_long_parameter: int | None = None,",
        ") -> list[str]",
    ]


def test_the_navigation_has_every_page_of_the_documentation() -> None:
    text = site.navigation((ROOT / "docs" / "README.md").read_text(encoding="utf-8"))
    trees = "\n".join(re.findall(r"^```\{toctree\}\n(.*?)^```", text, re.S | re.MULTILINE))
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"README"}
    for folder in ("actions", "batchq", "conf"):
        pages |= {
            f"../{path.relative_to(ROOT).with_suffix('')}" for path in (ROOT / folder).rglob("*.md")
        }
    assert sorted(pages - set(trees.split())) == [], "`make docs` fails for a page without a place."
