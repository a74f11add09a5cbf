"""docs/evictions.md: its worlds have the outcomes that the page prints below them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from batchq.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "evictions.md"
#: A world, whose first line is its name, and some lines of the command's output.
EXAMPLE = re.compile(
    r"^```yaml\n# (\S+)\n(.*?)^```\n\n```console\n\$ batchq (simulate .*?)\n(.*?)^```", re.S | re.M
)
EXAMPLES = {name: rest for name, *rest in EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))}


def test_the_page_has_an_example_of_each_action() -> None:
    assert list(EXAMPLES) == ["urgent.yaml", "lent.yaml"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_does_what_the_page_prints(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, command, printed = EXAMPLES[name]
    (tmp_path / name).write_text(world)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, command.split()).output.splitlines()
    wanted = printed.splitlines()
    assert [line for line in result if line in wanted] == wanted
    evicted = [line for line in result if " evicted " in line]
    assert evicted == [line for line in wanted if " evicted " in line], (
        "exactly the evictions on the page"
    )
