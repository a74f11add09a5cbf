"""`batchq simulate`: its output, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.effort import sample, usually
from tests.harness import fork_server

ROOT = Path(__file__).resolve().parents[2]

WORLD = """
apiVersion: batchq/v1
kind: Node
metadata: {name: n1}
spec: {resources: {cpu: 2}}
---
apiVersion: batchq/v1
kind: PodGroup
metadata: {name: a}
spec:
  tasks:
    - {name: t, replicas: 2, template: {requests: {cpu: 1}, annotations: {batchq/runtime: 30s}}}
---
apiVersion: batchq/v1
kind: PodGroup
metadata: {name: never}
spec: {tasks: [{name: t, template: {requests: {cpu: 3}}}]}
"""


def simulate(
    *arguments: str, stdin: str = "", hash_seed: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the command; with a hash seed of its own, as a new interpreter."""
    seeded = {"PYTHONHASHSEED": hash_seed} if hash_seed else {}
    done = fork_server.run_with_input(
        [sys.executable, "-m", "batchq.cli", "simulate", *arguments],
        stdin.encode(),
        timeout=240,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'actions'}", **seeded},
    )
    out, err = done.stdout.decode(), done.stderr.decode()
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


@pytest.fixture
def world(tmp_path: Path) -> Path:
    path = tmp_path / "world.yaml"
    path.write_text(WORLD)
    return path


def test_simulate_ends_with_0_even_while_groups_wait(world: Path) -> None:
    done = simulate(str(world), "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert sorted(result) == ["cycles", "podgroups", "queues"]
    assert result["podgroups"]["default/a"]["phase"] == "Completed"
    assert result["podgroups"]["default/never"]["reasons"][0]["reason"] == "ExceedsCapacity"


def test_simulate_reads_standard_input_and_prints_a_table() -> None:
    done = simulate("-", stdin=WORLD)
    assert done.returncode == 0
    assert "default/a-t-0 to n1" in done.stdout
    assert "5 sessions, the last at 30s" in done.stdout


def test_simulate_stops_after_this_many_cycles(world: Path) -> None:
    done = simulate(str(world), "--cycles", "2", "-o", "json")
    assert [cycle["time"] for cycle in json.loads(done.stdout)["cycles"]] == [0, 0]


def test_simulate_uses_the_given_configuration(world: Path, tmp_path: Path) -> None:
    config = tmp_path / "scheduler.yaml"
    config.write_text("actions: [enqueue]\n")
    done = simulate(str(world), "--config", str(config), "--cycles", "2", "-o", "json")
    result = json.loads(done.stdout)
    assert result["podgroups"]["default/a"]["phase"] == "InQueue"
    assert [cycle["bound"] for cycle in result["cycles"]] == [{}, {}]


def test_a_world_without_end_is_reported_as_stopped(tmp_path: Path) -> None:
    # Admitted under overcommit without a look at nodes, and requeued.
    config = tmp_path / "scheduler.yaml"
    config.write_text("overcommit: 2\n")
    more = "\n---\napiVersion: batchq/v1\nkind: Node\nmetadata: {name: n2}\n"
    cordoned = f"{more}spec: {{unschedulable: true, resources: {{cpu: 3}}}}\n"
    done = simulate("-", "--config", str(config), "-o", "json", stdin=WORLD + cordoned)
    assert done.returncode == 0
    assert done.stderr == "stopped after 1000 sessions, though more was due\n"
    assert len(json.loads(done.stdout)["cycles"]) == 1000


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "says"),
    [
        (["-"], "a: [", 1, "this is not YAML"),
        (["-"], WORLD.replace("tasks", "taks", 1), 1, "did you mean 'tasks'"),
        (["no-such-file.yaml"], "", 1, "the world cannot be read"),
        (["-", "--config", "no-such-file.yaml"], WORLD, 1, "the configuration cannot be read"),
        (["-", "--cycles", "many"], WORLD, 2, "--cycles"),
        (["-", "--cycles", "-1"], WORLD, 2, "--cycles"),
        (["-", "--cycle"], WORLD, 2, "--cycle"),
        (["-", "-o", "xml"], WORLD, 2, "xml"),
        ([], WORLD, 2, "WORLD"),
    ],
)
def test_errors_are_printed_on_stderr_alone(
    arguments: list[str], stdin: str, code: int, says: str
) -> None:
    done = simulate(*arguments, stdin=stdin)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_every_hash_seed_gives_the_same_bytes() -> None:
    examples = ROOT / "conf" / "examples"
    nodes = "".join(
        f"\n---\napiVersion: batchq/v1\nkind: Node\nmetadata: {{name: n{number}}}\n"
        f"spec: {{resources: {{cpu: {number}, memory: 2Gi}}}}\n"
        for number in (1, 2, 3)
    )
    # Worlds have their own nodes.
    worlds = {"world.yaml", "backfill.yaml"}
    files = sorted(path for path in examples.glob("*.yaml") if path.name not in worlds)
    text = "\n---\n".join(path.read_text() for path in files) + nodes
    cycles = str(usually(150, 1_000))
    result = {
        simulate("-", "-o", "json", "--cycles", cycles, stdin=text, hash_seed=seed).stdout
        for seed in sample(("0", "1", "42"), 2)
    }
    (only,) = result
    assert len(json.loads(only)["podgroups"]) == 13


def test_a_world_without_a_node_gets_a_warning() -> None:
    file = ROOT / "conf" / "examples" / "two-tenants.yaml"
    done = simulate(str(file))
    assert done.returncode == 0
    assert done.stderr == f"{file} has no Node: nothing can run in this world\n"


def test_a_node_may_join_later() -> None:
    node, _, groups = WORLD.strip().partition("---\n")
    step = "\n".join(f"      {line}" for line in node.splitlines())
    timeline = (
        "---\napiVersion: batchq/v1\nkind: Timeline\nspec:\n  - at: 5s\n    apply:\n" + step + "\n"
    )
    done = simulate("-", stdin=f"{groups}\n{timeline}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "5s    bound" in done.stdout
