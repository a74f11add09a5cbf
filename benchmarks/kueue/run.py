"""One run of a scenario from its first submission to its last end, and the tables about it."""

from __future__ import annotations

import pstats
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast

from batchq.client import Client
from batchq.store.redis import RedisStore, open_store
from benchmarks.kueue.load import (
    SCENARIOS,
    Scenario,
    classes_and_queues,
    requested_scale,
    scaled,
    write_scenario,
)
from benchmarks.kueue.record import Recorder
from benchmarks.kueue.stage import PROFILED, Cost, Stage, cost_of
from benchmarks.kueue.truth import Run, Story, admission_s, faults, story_of, unit_seconds
from benchmarks.table import report

#: Kueue itself takes twenty minutes for the larger one.
_MOST_S = 1_500.0
_SLOWEST = 25


@dataclass(frozen=True)
class Outcome:
    """The result of a run: its history, its costs, and the faults that the checks found."""

    scenario: Scenario
    story: Story
    runs: list[Run]
    costs: dict[str, Cost]
    late_ms: tuple[float, float]
    #: Command of the server -> (calls, seconds).
    commands: dict[str, tuple[int, float]]
    faults: list[str]


def run(scenario: Scenario, *, profile: bool = False) -> Outcome:
    """Play a scenario with new processes."""
    with Stage(profile=profile) as stage:
        write_scenario(scenario, stage.folder)
        with Client(stage.url) as client:
            client.apply(classes_and_queues(scenario))
        stage.start_scheduler()
        stage.start("consumer", "benchmarks.kueue.consumer", str(stage.folder))
        stage.start("submitter", "benchmarks.kueue.submitter", str(stage.folder))
        stage.await_file("consumer.ready")
        stage.await_file("submitter.ready")
        with (
            closing(open_store(stage.url)) as store,
            closing(Recorder(store, stage.folder / "changes")) as recorder,
        ):
            return _outcome(scenario, stage, store, recorder)


def _outcome(scenario: Scenario, stage: Stage, store: RedisStore, recorder: Recorder) -> Outcome:
    """Start the submission, wait for the last end, and collect the results of all processes."""
    before = {"server": cost_of(stage.server), "daemon": cost_of(stage.process("daemon"))}
    store.link.ask(lambda client: client.config_resetstat())
    (stage.folder / "go").touch()
    deadline = time.monotonic() + _MOST_S
    while recorder.completed < scenario.groups and time.monotonic() < deadline:
        recorder.step()
        stage.check()
    costs = {
        "server": cost_of(stage.server, before["server"]),
        "daemon": cost_of(stage.process("daemon"), before["daemon"]),
    }
    commands = _commands(store.link.ask(lambda client: client.info("commandstats")))
    (stage.folder / "done").touch()
    results = {one: stage.result_of(one) for one in ("submitter", "consumer")}
    for one, result in results.items():
        costs[one] = Cost(result["cpu_s"], result["peak_mib"])
    stage.end("daemon")
    recorder.step()
    recorder.close()
    story = story_of(recorder.changes())
    runs = [cast(Run, tuple(one)) for one in results["consumer"]["runs"]]
    if stage.profile:
        _show_profiles(stage)
    return Outcome(
        scenario=scenario,
        story=story,
        runs=runs,
        costs=costs,
        late_ms=(results["submitter"]["late_mean_ms"], results["submitter"]["late_most_ms"]),
        commands=commands,
        faults=faults(scenario, story, runs),
    )


def _show_profiles(stage: Stage) -> None:
    """Print the functions that took the most time, waits included."""
    for one in PROFILED:
        print(f"\n=== {one}")
        stats = pstats.Stats(str(stage.folder / f"{one}.profile"))
        stats.sort_stats("tottime").print_stats(_SLOWEST)


def _commands(info: dict[str, Any]) -> dict[str, tuple[int, float]]:
    found = {
        name.removeprefix("cmdstat_"): (stat["calls"], stat["usec"] / 1e6)
        for name, stat in info.items()
    }
    return dict(sorted(found.items(), key=lambda one: -one[1][1]))


TITLES = ["", "wall s", "to floor", "usage %", "useful %", "evictions", "lost unit-s"]
CLASSES = ("large", "medium", "small")
TITLES += [f"{name} {what} s" for name in CLASSES for what in ("mean", "p95")]
TITLES += ["late ms", "truth"]


def rows_of(outcome: Outcome) -> list[list[object]]:
    """Return rows for this run, for Kueue's published figures, and for the floor of this run."""
    scenario, story = outcome.scenario, outcome.story
    units = scenario.cohorts * scenario.cohort_units
    lost = unit_seconds(scenario, (run for run in outcome.runs if run[3] != "succeeded"))
    useful = unit_seconds(scenario, (run for run in outcome.runs if run[3] == "succeeded"))
    floor_s = scenario.floor_s + lost / units
    available = units * story.wall_s
    times = [value for name in CLASSES for value in admission_s(story, name)]
    published = scenario.published
    theirs = [value for name in CLASSES for value in (published.admission_s[name], "-")]
    truth = f"{len(outcome.faults)} faults" if outcome.faults else "holds"
    return [
        [
            f"batchq, {scenario.name}",
            story.wall_s,
            story.wall_s / floor_s,
            100 * story.charged_unit_s / available,
            100 * useful / available,
            sum(story.evictions.values()),
            lost,
            *times,
            f"{outcome.late_ms[0]:.0f}, most {outcome.late_ms[1]:.0f}",
            truth,
        ],
        [
            "Kueue's CI, published",
            published.wall_s,
            published.wall_s / scenario.floor_s,
            100 * published.usage,
            *("-",) * 3,
            *theirs,
            *("-",) * 2,
        ],
        ["floor, with what was lost", floor_s, 1.0, *("-",) * (len(TITLES) - 3)],
    ]


def cost_rows(outcome: Outcome) -> list[list[object]]:
    """Return the cost of each process, in total and per group."""
    groups = outcome.scenario.groups
    rows: list[list[object]] = [
        [outcome.scenario.name, name, cost.cpu_s, 1000 * cost.cpu_s / groups, cost.peak_mib]
        for name, cost in outcome.costs.items()
    ]
    total = sum(cost.cpu_s for cost in outcome.costs.values())
    rows.append([outcome.scenario.name, "together", total, 1000 * total / groups, "-"])
    return rows


def command_rows(outcome: Outcome, most: int = 8) -> list[list[object]]:
    """Return the commands that took the most server time; scripts include their own commands."""
    groups = outcome.scenario.groups
    return [
        [outcome.scenario.name, name, calls, calls / groups, seconds]
        for name, (calls, seconds) in list(outcome.commands.items())[:most]
    ]


def main(arguments: list[str] | None = None) -> None:
    words = arguments or []
    if "--help" in words or "-h" in words:
        names = "] [".join(SCENARIOS)
        print(f"python -m benchmarks.kueue [{names}] [--profile]; without names, runs all of them")
        return
    scale, profile = requested_scale(), "--profile" in words
    wanted = [word for word in words if word != "--profile"] or list(SCENARIOS)
    if unknown := [word for word in wanted if word not in SCENARIOS]:
        sys.exit(f"unknown scenario {unknown[0]!r}; known scenarios: {', '.join(SCENARIOS)}")
    outcomes = [run(scaled(SCENARIOS[name], scale), profile=profile) for name in wanted]
    costs = ["", "process", "CPU s", "CPU ms a group", "peak MiB"]
    report("kueue", TITLES, [row for one in outcomes for row in rows_of(one)])
    report("kueue-processes", costs, [row for one in outcomes for row in cost_rows(one)])
    columns = ["", "command", "calls", "calls a group", "s"]
    report("kueue-commands", columns, [row for one in outcomes for row in command_rows(one)])
    for one in outcomes:
        for fault in one.faults[:20]:
            print(f"{one.scenario.name}: {fault}")
    if any(one.faults for one in outcomes):
        sys.exit("the checks found faults")
