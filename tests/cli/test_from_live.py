"""`batchq simulate --from-live`: its text and JSON, and that it writes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from batchq.api.notation import HOUR, MINUTE
from batchq.api.objects import AdmissionCheck, Metadata
from batchq.assembly import assemble
from batchq.cli.simulate.live import notes, show_tables
from batchq.client.outcomes import TrialScheduler
from batchq.config import SchedulerConfig
from batchq.lab.simulation.look_ahead import copy_of_live, look_ahead
from batchq.lab.simulation.report import Lasting, WhatIf, compared
from batchq.lab.simulation.world import CountedIds, VirtualClock
from batchq.scheduler.cycle import Cycle
from batchq.store.redis import RedisStore
from tests.builders import (
    a_group,
    a_node,
    a_priority,
    a_queue,
    a_running_group,
    a_snapshot,
    as_charged,
)
from tests.cli.conftest import Batchq, run
from tests.client.stage import Stage

WITHOUT_PREEMPT = "actions: [enqueue, allocate]\n"


@pytest.fixture
def occupied(stage: Stage) -> Stage:
    """Of eight cpus, `low` holds six for two hours; `top`, of higher priority, needs four."""
    stage.client.apply([a_priority("high", 10)])
    stage.client.submit(command=["true"], name="low", cpus=6, walltime="2h")
    stage.turn()
    stage.start("low")
    high = {"priority_class": "high", "walltime": "1h"}
    stage.client.submit(command=["true"], name="top", cpus=4, **high)
    stage.client.submit(command=["true"], name="side", cpus=2, gates=["later"])
    return stage


@pytest.fixture
def no_preempt(tmp_path: Path) -> str:
    file = tmp_path / "new.yaml"
    file.write_text(WITHOUT_PREEMPT)
    return str(file)


def everything(raw: redis.Redis) -> dict[bytes, bytes | None]:
    """Return every key of the server with its content."""
    return {key: raw.dump(key) for key in sorted(raw.keys("*"))}


def test_nothing_is_written_to_the_server(
    batchq: Batchq, occupied: Stage, raw: redis.Redis, no_preempt: str
) -> None:
    before, revision = everything(raw), occupied.store.snapshot().revision
    done = batchq("simulate", "--from-live", "--config", no_preempt)
    assert done.code == 0, done
    assert everything(raw) == before
    assert occupied.store.snapshot().revision == revision


def test_a_simulation_begins_with_the_next_decisions_of_the_leader(
    occupied: Stage, open_redis: Callable[[], RedisStore]
) -> None:
    deciding = TrialScheduler.open(open_redis())
    requests = CountedIds()
    store = copy_of_live(deciding.session(), requests)
    first = Cycle(store, deciding.scheduler, VirtualClock(deciding.now_ms), requests).run_once()
    assert first.commit.refused == ()
    assert list(first.intents) == deciding.decide().intents
    assert [type(one).__name__ for one in first.intents][:1] == ["RollBack"]


def test_json_has_starts_and_evictions(batchq: Batchq, occupied: Stage, no_preempt: str) -> None:
    done = batchq("simulate", "--from-live", "--config", no_preempt, "-o", "json")
    assert done.code == 0, done
    found = json.loads(done.out)
    assert (found["kind"], found["until"]) == ("WhatIf", None)
    assert found["assumptions"] == {"runtimeFraction": 1.0, "assumedRuntime": None, "endless": 1}
    configurations = [(one["name"], one["stopped"]) for one in found["configurations"]]
    assert configurations == [("live", "Settled"), ("new.yaml", "Settled")]
    groups = {one["name"]: one for one in found["podGroups"]}
    assert [(name, one["phase"], one["differs"]) for name, one in groups.items()] == [
        ("low", "Running", True),
        ("side", "Pending", False),
        ("top", "Pending", True),
    ]
    live, new = groups["top"]["futures"]
    assert (live["configuration"], new["configuration"]) == ("live", "new.yaml")
    assert 30 <= live["startsInSeconds"] <= 31
    assert 7100 <= new["startsInSeconds"] <= 7201
    assert groups["side"]["futures"][0]["waitsFor"][0]["reason"] == "SchedulingGated"
    [eviction] = found["evictions"]
    assert (eviction["configuration"], eviction["podGroup"]) == ("live", "default/low")
    assert (eviction["by"], eviction["action"]) == ("default/top", "preempt")
    assert (eviction["whole"], eviction["pods"], eviction["inSeconds"]) == (True, 1, 0)
    sums = [(one["queue"], one["configuration"], one["started"]) for one in found["queues"]]
    assert sums == [
        (None, "live", 1),
        ("default", "live", 1),
        (None, "new.yaml", 1),
        ("default", "new.yaml", 1),
    ]


def test_a_simulation_looks_as_far_as_asked_and_lists_differing_groups(
    batchq: Batchq, occupied: Stage, no_preempt: str
) -> None:
    words = ("--config", no_preempt, "--until", "20s", "--differences", "-o", "json")
    found = json.loads(batchq("simulate", "--from-live", *words).out)
    assert found["until"] == "20s"
    assert [one["stopped"] for one in found["configurations"]] == ["Until", "Until"]
    assert [one["name"] for one in found["podGroups"]] == ["low"]


def a_comparison(*objects: object, **lasting: int) -> WhatIf:
    """Compare the defaults with a configuration without preempt, at one hour."""
    configs = {
        "live": SchedulerConfig(),
        "new.yaml": SchedulerConfig(actions=("enqueue", "allocate")),
    }
    snapshot = a_snapshot(*as_charged(*objects))
    return compared(
        assemble(SchedulerConfig()).open(snapshot, HOUR),
        {
            name: look_ahead(snapshot, assemble(one), now_ms=HOUR, lasting=Lasting(**lasting))
            for name, one in configs.items()
        },
    )


def test_people_read_two_configurations_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    found = a_comparison(
        a_node(cpu=4, memory="8Gi"),
        a_queue("team"),
        a_priority("high", 10),
        *a_running_group("low", cpu=4, walltime=3 * HOUR),
        a_group("top", cpu=4, walltime=HOUR, priority_class_name="high"),
        a_group("wide", cpu=9, queue="team"),
        a_group("held", queue="team", suspend=True),
    )
    show_tables(found, differences=False)
    assert capsys.readouterr().out == TABLE
    assert list(notes(found, assumed_ms=None)) == [
        "note: 2 groups have no walltime and never end here; see --assume-runtime"
    ]
    assert list(notes(found, assumed_ms=90 * MINUTE)) == [
        "note: 2 groups have no walltime and are assumed to run for 90m"
    ]


TABLE = """\
POD GROUP     QUEUE    NOW      STARTS (live)               STARTS (new.yaml)  DIFFERENCE
default/low   default  Running  runs; evicted, again in 1h  runs               not evicted
default/top   default  Pending  in 30s                      in 2h              1h59m later
default/held  team     Pending  no                          no                 -
default/wide  team     Pending  no                          no                 -

Evicted:
  UNDER  WHEN  POD GROUP    QUEUE    BY                     GIVES             WORK LOST
  live   now   default/low  default  default/top (preempt)  all of it, 1 pod  cpu 4h

Do not start:
  POD GROUP     UNDER           WHY
  default/held  live, new.yaml  Suspended: the group is suspended
  default/wide  live, new.yaml  ExceedsCapacity: needs cpu 9, and the cluster, with every node \
that was seen within a day, allows at most 4

Sums:
  QUEUE    UNDER     START   MEDIAN WAIT  EVICTIONS  WORK LOST  LAST END
  default  live      1 of 1  1h           1          cpu 4h     in 4h
  default  new.yaml  1 of 1  3h           0          -          in 3h
  team     live      0 of 2  -            0          -          -
  team     new.yaml  0 of 2  -            0          -          -
  (all)    live      1 of 3  1h           1          cpu 4h     in 4h
  (all)    new.yaml  1 of 3  3h           0          -          in 3h
"""


def test_an_empty_list_prints_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    show_tables(a_comparison(a_node(cpu=4)), differences=False)
    assert capsys.readouterr().out == "No group waits or runs\n"
    same = a_comparison(a_node(cpu=4), a_group("a", walltime=HOUR))
    show_tables(same, differences=True)
    assert capsys.readouterr().out.splitlines()[0] == "The outcome is the same for all groups"


def test_a_look_ahead_that_stops_early_says_so() -> None:
    check = AdmissionCheck(metadata=Metadata(name="budget"))
    asks = a_queue(admission_checks=("budget",))
    found = a_comparison(a_node(cpu=4), check, asks, a_group("a", walltime=HOUR))
    assert list(notes(found, assumed_ms=None)) == [
        f"note: {name}: stopped 1d ahead: nothing ends any more, and nothing starts for a day"
        for name in ("live", "new.yaml")
    ]


def test_an_unanswered_check_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [AdmissionCheck(metadata=Metadata(name=name)) for name in ("budget", "disk")]
    asks = a_queue(admission_checks=("budget", "disk"))
    show_tables(a_comparison(a_node(cpu=4), *checks, asks, a_group("a")), differences=False)
    result = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    why = "waits for checks budget, disk, not answered in a simulation"
    assert ["", "default/a", "live, new.yaml", why] in result


def test_the_live_state_is_saved_as_a_world_that_plays(
    batchq: Batchq, occupied: Stage, tmp_path: Path
) -> None:
    file = tmp_path / "live.yaml"
    done = batchq("simulate", "--from-live", "--save", str(file), "-o", "json")
    assert done.code == 0, done
    assert f"{file} has the live state; `batchq simulate {file}` simulates it\n" in done.err
    played = json.loads(run("simulate", str(file), "-o", "json").out)
    [evicted] = [one for cycle in played["cycles"] for one in cycle["evicted"]]
    assert (evicted["pod"], evicted["by"]) == ("default/low-main-0", "default/top")
    result = {one["name"]: one["futures"][0]["phase"] for one in json.loads(done.out)["podGroups"]}
    assert {f"default/{name}": phase for name, phase in result.items()} == {
        name: one["phase"] for name, one in played["podgroups"].items()
    }


def test_an_unwritable_file_is_reported_before_the_simulation(
    batchq: Batchq, occupied: Stage, tmp_path: Path
) -> None:
    done = batchq("simulate", "--from-live", "--save", str(tmp_path / "no" / "live.yaml"))
    assert (done.code, done.out) == (1, "")
    assert "the file cannot be written: it is in a folder that does not exist" in done.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("simulate", "--from-live", "world.yaml"),
            "--from-live begins with the live state, not with world.yaml",
        ),
        (("simulate",), "expected WORLD, TRACE or --from-live, found none of them"),
        (("simulate", "world.yaml", "--until", "6h"), "--until needs --from-live"),
        (
            ("simulate", "world.yaml", "--assume-runtime", "6h"),
            "--assume-runtime needs --from-live",
        ),
        (("simulate", "w.yaml", "--save", "x"), "--save needs --from-live"),
        (("simulate", "w.yaml", "--differences"), "--differences needs --from-live"),
        (("simulate", "--from-live", "--policy", "easy"), "--policy cannot be combined"),
        (("simulate", "--from-live", "--cycles", "3"), "--cycles cannot be combined"),
        (("simulate", "--from-live", "--pass", "event"), "--pass cannot be combined"),
        (("simulate", "--from-live", "-o", "csv"), "-o csv is for a log"),
        (
            ("simulate", "--from-live", "--until", "soon"),
            "invalid value for '--until': expected a duration such as 90s, 2h or 1d, found 'soon'",
        ),
        (
            ("simulate", "--from-live", "--runtime-fraction", "0"),
            "invalid value for '--runtime-fraction'",
        ),
    ],
)
def test_options_that_do_not_go_together_are_a_usage_error(
    words: tuple[str, ...], sentence: str
) -> None:
    done = run(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {sentence}"), done.err


def test_without_a_server_it_says_what_to_do() -> None:
    done = run("simulate", "--from-live")
    assert (done.code, done.out) == (9, "")
    assert done.err.splitlines()[0] == "error: no batchq server is running on this machine"


def test_a_wrong_configuration_is_reported_before_the_server_is_read(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("actions: [enqueue, alocate]\n")
    done = run("simulate", "--from-live", "--config", str(wrong))
    assert done.code == 1
    assert "wrong.yaml" in done.err
    assert "did you mean 'allocate'?" in done.err
    missing = run("simulate", "--from-live", "--config", str(tmp_path / "none.yaml"))
    assert missing.code == 1
    assert "none.yaml: the configuration cannot be read: No such file or directory" in missing.err
