"""`apply -f -` reads what `-o yaml` prints."""

from __future__ import annotations

import pytest

from batchq.cli.output.forms import show_data
from batchq.config.documents import read_documents


@pytest.mark.parametrize("text", ["two\nlines\n", "next\x85line", "007", "yes", "1.10", "a: b # c"])
def test_a_text_that_is_printed_reads_back_the_same(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show_data({"metadata": {"name": "g"}, "env": {"TEXT": text}}, "yaml")
    (document,) = read_documents(capsys.readouterr().out, "printed")
    assert document.data == {"metadata": {"name": "g"}, "env": {"TEXT": text}}
