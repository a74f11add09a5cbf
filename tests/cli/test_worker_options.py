"""The options of `batchq worker` with a notation of their own."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from batchq.api.objects import Taint
from batchq.cli.main import main
from batchq.cli.output import trouble_of
from batchq.cli.worker import checked_lease_ms, parse_taint
from batchq.errors import UsageError
from tests.cli.conftest import run

LEASE_TOLD = "--lease: expected at least 1s, at least twice --beat and at most 1h"


def test_a_taint_is_read() -> None:
    assert parse_taint("dedicated=ml:NoSchedule") == Taint(key="dedicated", value="ml")
    assert parse_taint("spot:PreferNoSchedule") == Taint(key="spot", effect="PreferNoSchedule")


@pytest.mark.parametrize(
    "text", ["dedicated", "dedicated=ml", "=ml:NoSchedule", "a:Never", "a b:x"]
)
def test_an_invalid_taint_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--taint: expected"):
        parse_taint(text)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--name", "Not_A_Name"], "--name: "),
        (["--resources", "cpu=lots"], "--resources: cpu: "),
        (["--resources", "cpu"], "--resources: expected name=quantity, found 'cpu'"),
        (["--label", "a b=c"], "--label: "),
        (["--lease", "1ms"], f"{LEASE_TOLD}, found '1ms' with a beat of '5s'"),
        (["--lease", "999ms", "--beat", "1ms"], f"{LEASE_TOLD}, found '999ms'"),
        (["--lease", "9s"], f"{LEASE_TOLD}, found '9s' with a beat of '5s'"),
        (["--lease", "61m"], f"{LEASE_TOLD}, found '61m'"),
        (["--lease", "0s"], f"{LEASE_TOLD}, found '0s'"),
        (["--beat", "0s"], "--beat: expected more than 0s, found '0s'"),
    ],
)
def test_a_wrong_option_is_reported_before_the_agent_starts(
    arguments: list[str], wanted: str
) -> None:
    error = CliRunner().invoke(main, ["worker", *arguments], standalone_mode=False).exception
    assert error is not None
    trouble = trouble_of(error)
    assert trouble is not None
    assert trouble.message.startswith(wanted)
    assert trouble.exit_code == 2


def test_a_worker_without_cpu_gets_a_warning_before_it_starts() -> None:
    done = run("worker", "--resources", "cpu=0", "--taint", "wrong")
    assert done.code == 2, "the taint is refused, so nothing has started"
    assert done.err.splitlines()[0] == (
        "warning: --resources: with cpu=0, only pods that request no cpu can start"
    )


def test_up_refuses_malformed_resources_with_exit_code_2() -> None:
    done = run("up", "--resources", "cpu=lots")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: --resources: cpu: expected a quantity such as 500m, 2 or ")


@pytest.mark.parametrize(
    ("lease", "beat", "expected"),
    [("2s", "500ms", 2000), ("1s", "500ms", 1000), ("10s", "5s", 10_000), ("1h", "5s", 3_600_000)],
)
def test_a_lease_at_its_bounds_is_taken(lease: str, beat: str, expected: int) -> None:
    assert checked_lease_ms(lease, beat) == expected
