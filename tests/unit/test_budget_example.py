"""conf/examples/budget.py counts usage across weeks, evictions and its own restarts."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import Condition, PodGroup, PodGroupStatus
from tests.builders import a_group, a_task, amounts

EXAMPLE = Path(__file__).resolve().parents[2] / "conf" / "examples" / "budget.py"
HOUR = 3_600_000
#: A Monday, 00:00 UTC.
MONDAY = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp()) * 1000


@pytest.fixture(scope="module")
def budget() -> ModuleType:
    spec = importlib.util.spec_from_file_location("budget_example", EXAMPLE)
    assert spec is not None and spec.loader is not None  # noqa: PT018 - one claim: the module loads
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def running(admission: int = 1, started_at: int = MONDAY, **status: Any) -> PodGroup:
    stated = {"phase": PodGroupPhase.RUNNING, "charge": amounts(cpu=2)} | status
    return a_group(
        "g",
        2,
        uid="u",
        status=PodGroupStatus(admission=admission, started_at=started_at, **stated),
    )


def evicted(at: int) -> PodGroup:
    condition = Condition(type="Evicted", status="True", last_transition_time=at)
    return a_group("g", 2, uid="u", status=PodGroupStatus(admission=1, conditions=(condition,)))


def test_a_running_group_is_counted_from_its_start(budget: ModuleType, tmp_path: Path) -> None:
    ledger = budget.Ledger(tmp_path / "ledger")
    ledger.measure(running(), MONDAY + HOUR)
    assert ledger.used("default", MONDAY + HOUR) == 2.0
    ledger.measure(running(), MONDAY + 3 * HOUR)
    assert ledger.used("default", MONDAY + 3 * HOUR) == 6.0
    assert ledger.used("research", MONDAY + 3 * HOUR) == 0.0


def test_an_evicted_group_is_counted_until_its_eviction_and_again_from_its_next_admission(
    budget: ModuleType, tmp_path: Path
) -> None:
    ledger = budget.Ledger(tmp_path / "ledger")
    ledger.measure(running(), MONDAY + HOUR)
    # The eviction is observed late: its own time counts, and not the time of observation.
    ledger.measure(evicted(MONDAY + 2 * HOUR), MONDAY + 9 * HOUR)
    assert ledger.used("default", MONDAY + 9 * HOUR) == 4.0
    ledger.measure(running(admission=2, started_at=MONDAY + 10 * HOUR), MONDAY + 11 * HOUR)
    assert ledger.used("default", MONDAY + 11 * HOUR) == 6.0


def test_a_group_that_ended_unobserved_is_counted_by_its_request(
    budget: ModuleType, tmp_path: Path
) -> None:
    ended = running(phase=PodGroupPhase.COMPLETED, charge={}, finished_at=MONDAY + 4 * HOUR)
    ledger = budget.Ledger(tmp_path / "ledger")
    ledger.measure(ended, MONDAY + 30 * HOUR)
    assert ledger.used("default", MONDAY + 30 * HOUR) == 8.0


def test_a_group_that_never_ran_is_not_counted(budget: ModuleType, tmp_path: Path) -> None:
    ledger = budget.Ledger(tmp_path / "ledger")
    ledger.measure(a_group("g", 2, uid="u"), MONDAY + HOUR)
    ledger.measure(evicted(MONDAY), MONDAY + HOUR)
    assert ledger.spans == {}


def test_a_week_begins_on_monday_and_forgets_the_one_before(
    budget: ModuleType, tmp_path: Path
) -> None:
    for at in (MONDAY, MONDAY + 1, MONDAY + 7 * 24 * HOUR - 1):
        assert budget.week_start(at) == MONDAY
    assert budget.week_start(MONDAY - 1) == MONDAY - 7 * 24 * HOUR
    ledger = budget.Ledger(tmp_path / "ledger")
    ledger.measure(running(started_at=MONDAY - 10 * HOUR), MONDAY + HOUR)
    assert ledger.used("default", MONDAY - 1) == pytest.approx(22.0)
    assert ledger.used("default", MONDAY + HOUR) == 2.0
    ledger.save(MONDAY + 7 * 24 * HOUR)
    assert json.loads((tmp_path / "ledger").read_text()) == {}


def test_a_reloaded_ledger_continues_to_count(budget: ModuleType, tmp_path: Path) -> None:
    first = budget.Ledger(tmp_path / "ledger")
    first.measure(running(), MONDAY + HOUR)
    first.save(MONDAY + HOUR)
    second = budget.Ledger(tmp_path / "ledger")
    assert second.used("default", MONDAY + HOUR) == 2.0
    second.measure(running(), MONDAY + 5 * HOUR)
    assert second.used("default", MONDAY + 5 * HOUR) == 10.0


def test_a_growing_group_is_counted_at_its_peak(budget: ModuleType, tmp_path: Path) -> None:
    ledger = budget.Ledger(tmp_path / "ledger")
    ledger.measure(running(charge=amounts(cpu=8)), MONDAY + HOUR)
    ledger.measure(running(charge=amounts(cpu=2)), MONDAY + 2 * HOUR)
    assert ledger.used("default", MONDAY + 2 * HOUR) == 16.0


def test_a_groups_cost_covers_all_its_pods_for_its_walltime(budget: ModuleType) -> None:
    array = a_group("a", tasks=(a_task("w", 10, requests={"cpu": "500m"}),), walltime=2 * HOUR)
    assert budget.need_hours(array) == 10.0
    assert budget.need_hours(a_group("b", 4)) == 0.0
    external = a_group("c", 1, min_resources=amounts(cpu=3), walltime=HOUR)
    assert budget.need_hours(external) == 3.0


def test_an_edited_file_is_reloaded_and_an_invalid_one_leaves_the_last_budget(
    budget: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hours.yml"
    path.write_text("default: 2\n")
    budgets = budget.Budgets(path)
    assert (budgets.of("default"), budgets.of("research")) == (2.0, 0.0)
    path.write_text("default: 3\nresearch: 40\n")
    budgets.follow()
    assert (budgets.of("default"), budgets.of("research")) == (3.0, 40.0)
    for wrong in ("default: much", "[1, 2", "- 7", ""):
        path.write_text(wrong)
        budgets.follow()
        assert budgets.of("research") == 40.0
        assert "going on with the last one" in capsys.readouterr().err
    path.unlink()
    budgets.follow()
    assert budgets.of("research") == 40.0


def test_a_wrong_budget_file_is_reported_once_until_it_changes(
    budget: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hours.yml"
    path.write_text("default: 2\n")
    budgets = budget.Budgets(path)
    seen = []
    for text in ("- 7", "- 7", "- 8", "default: 2", "- 8"):
        path.write_text(text)
        budgets.follow()
        seen.append(capsys.readouterr().err.count("going on with the last one"))
    assert seen == [1, 0, 1, 0, 1]


@pytest.mark.parametrize("words", [[], ["hours.yml", "ledger.json", "more"]])
def test_wrong_arguments_print_the_usage(words: list[str]) -> None:
    done = subprocess.run([sys.executable, EXAMPLE, *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "usage: budget.py CPU-HOURS.yml [LEDGER.json]\n"


def test_the_program_does_not_start_without_a_budget_file(
    budget: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match="names no namespace with a budget"):
        budget.Budgets(tmp_path / "missing.yml")
