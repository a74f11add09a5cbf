"""The files in conf/ are accepted unchanged, and their commands run on a plain machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from batchq.api.objects import Object, PodGroup, key_of, kind_of
from batchq.client import changes
from batchq.config import SchedulerConfig
from batchq.config.documents import read_documents
from batchq.lab.simulation import play
from batchq.store.memory import MemoryStore

CONF = Path(__file__).resolve().parents[2] / "conf"
FILES = [
    "queues.yaml",
    "examples/approval.yaml",
    "examples/budget.yaml",
    "examples/external.yaml",
    "examples/gates.yaml",
    "examples/mandelbrot.yaml",
    "examples/sweep.yaml",
    "examples/two-tenants.yaml",
]


def objects(file: str) -> list[Object]:
    path = CONF / file
    return [document.decode() for document in read_documents(path.read_bytes(), str(path))]


def groups(file: str) -> Iterator[PodGroup]:
    return (item for item in objects(file) if isinstance(item, PodGroup))


@pytest.mark.parametrize("file", FILES)
def test_every_object_is_accepted_and_applying_it_again_changes_nothing(file: str) -> None:
    store = MemoryStore()
    made = changes.found_defaults(store, now_ms=0, uid="u")
    assert made is not None
    store.commit([made], request_id="default")
    for number, item in enumerate(changes.in_order(objects(file))):
        transaction = changes.apply(store, item, now_ms=number, uid=f"u{number}")
        if transaction is not None:
            assert not store.commit([transaction], request_id=f"r{number}").refused
    for item in objects(file):
        assert store.get(kind_of(item), key_of(item)) is not None
        assert changes.apply(store, item, now_ms=99, uid="u99") is None


def test_every_file_in_conf_is_tested() -> None:
    there = {str(path.relative_to(CONF)) for path in CONF.rglob("*.yaml")}
    # The files in prometheus/ are not objects; tests/tidy/test_metrics_pages.py checks them.
    ours = {name for name in there if not name.startswith("prometheus/")}
    assert ours == {*FILES, "scheduler.yaml", "examples/backfill.yaml", "examples/world.yaml"}


def test_the_backfill_example_names_the_groups_that_start_early() -> None:
    file = CONF / "examples" / "backfill.yaml"
    outcome = play(file.read_bytes(), str(file), config=SchedulerConfig()).outcome
    assert [(cycle.time, cycle.admitted) for cycle in outcome.cycles if cycle.admitted] == [
        (0, ["default/today", "default/short"]),
        (3_000, ["default/big"]),
        (10_200, ["default/long", "default/unknown"]),
    ]


def test_the_simulated_cluster_runs_to_its_end_through_the_failure_of_a_machine() -> None:
    file = CONF / "examples" / "world.yaml"
    played = play(file.read_bytes(), str(file), config=SchedulerConfig())
    outcome = played.outcome
    assert {key: group.phase for key, group in outcome.podgroups.items()} == dict.fromkeys(
        ("default/hotfix", "default/night-1", "default/night-2", "lab/sweep", "lab/train"),
        "Completed",
    )
    sent_back = [item for cycle in outcome.cycles for item in cycle.requeued]
    assert [(item.group, item.reason) for item in sent_back] == [
        ("default/night-1", "Preempted"),
        ("lab/train", "RecoveryTimeout"),
    ]
    admitted = [group for cycle in outcome.cycles for group in cycle.admitted]
    # The urgent group starts before the group that was created first.
    assert admitted.index("default/hotfix") < admitted.index("default/night-2")
    assert (played.exhausted, played.refused) == (False, 0)


def test_the_sweep_is_an_array_of_forty_that_estimates_pi() -> None:
    (sweep,) = groups("examples/sweep.yaml")
    (task,) = sweep.spec.tasks
    assert (task.replicas, sweep.spec.min_member) == (40, 1)
    done = subprocess.run(
        [sys.executable, *task.template.command[1:]],
        env={**os.environ, **task.template.env, "BATCHQ_INDEX": "7"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "seed 7: pi is about 3.1420\n"


def test_the_tenants_compete_for_quota_with_gangs() -> None:
    found = list(groups("examples/two-tenants.yaml"))
    assert [key_of(group) for group in found] == [
        "blue/blue-1",
        "blue/blue-2",
        "red/red-1",
        "red/red-2",
    ]
    for group in found:
        (task,) = group.spec.tasks
        assert (group.spec.min_member, task.replicas) == (None, 2)
        # One gang takes 400m of its namespace's 500m.
        assert task.template.requests["cpu"] == 200
        program, flag, script = task.template.command
        assert (program, flag) == ("sh", "-c")
        subprocess.run(["sh", "-n", "-c", script], timeout=60, check=True)


def test_the_groups_of_examples_do_not_have_the_names_of_the_session_in_the_readme() -> None:
    """A reader tries the examples after that session, whose groups still exist."""
    root = CONF.parent
    pages = [
        (root / name).read_text(encoding="utf-8") for name in ("README.md", "docs/tutorial.md")
    ]
    typed = {name for page in pages for name in re.findall(r"--name (\S+)", page)}
    groups = {
        item["metadata"]["name"]
        for path in sorted((CONF / "examples").glob("*.yaml"))
        # Simulated groups are not stored.
        if "batchq simulate" not in (text := path.read_text(encoding="utf-8"))
        for item in yaml.safe_load_all(text)
        if isinstance(item, dict) and item.get("kind") == "PodGroup"
    }
    assert len(typed) > 5
    assert len(groups) > 5
    assert typed.isdisjoint(groups)
