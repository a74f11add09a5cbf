"""The options of `batchq worker` that have a notation of their own."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from batchq.api.objects import Taint
from batchq.cli.main import main
from batchq.cli.trouble import trouble_of
from batchq.cli.worker import parse_taint
from batchq.errors import InvalidInput


def test_a_taint_is_read() -> None:
    assert parse_taint("dedicated=ml:NoSchedule") == Taint(key="dedicated", value="ml")
    assert parse_taint("spot:PreferNoSchedule") == Taint(key="spot", effect="PreferNoSchedule")


@pytest.mark.parametrize(
    "text", ["dedicated", "dedicated=ml", "=ml:NoSchedule", "a:Never", "a b:x"]
)
def test_what_is_no_taint_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="--taint: expected"):
        parse_taint(text)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--name", "Not_A_Name"], "--name: "),
        (["--resources", "cpu=lots"], "--resources: cpu: "),
        (["--resources", "cpu"], "--resources: expected name=quantity, found 'cpu'"),
        (["--label", "a b=c"], "--label: "),
        (["--beat", "0s"], "--beat: expected more than 0s, found '0s'"),
    ],
)
def test_a_wrong_option_is_told_before_anything_is_started(arguments: list[str], told: str) -> None:
    error = CliRunner().invoke(main, ["worker", *arguments], standalone_mode=False).exception
    assert error is not None
    trouble = trouble_of(error)
    assert trouble is not None
    assert trouble.message.startswith(told)
