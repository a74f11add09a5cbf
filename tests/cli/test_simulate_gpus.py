"""`batchq simulate PODS.csv --nodes NODES.csv`: a small trace, in every output format."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from batchq.cli.simulate import recorded
from batchq.lab.gpu_usage import DEFAULT_SEED, MOST_PERCENT, PLACEMENTS
from tests.cli.conftest import run
from tests.effort import sample
from tests.traces.openb import a_node, a_pod, nodes_csv, pods_csv

ROOT = Path(__file__).resolve().parents[2]

NODES = (a_node("n-0", gpus=4), a_node("n-1", gpus=4), a_node("n-2", gpus=0))
#: Two small pods and one that needs a whole node; the last one is deleted at once.
PODS = (
    a_pod(1, at_s=0, run_s=400),
    a_pod(2, at_s=0, run_s=400),
    a_pod(3, at_s=100, run_s=100, gpu_milli=4000),
    a_pod(4, at_s=150, run_s=0),
)


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    nodes_csv(tmp_path, NODES)
    pods_csv(tmp_path, PODS)
    (tmp_path / "world.yaml").write_text(
        "apiVersion: batchq/v1\nkind: Node\nmetadata: {name: n1}\n"
    )
    (tmp_path / "log.swf").write_text("; MaxProcs: 4\n" + "1 0 0 9 1 -1 -1 1 9" + " -1" * 9 + "\n")
    (tmp_path / "mine.yaml").write_text("pluginConfig: {binpack: {resource: cpu}}\n")
    return tmp_path


def simulated(*words: str) -> str:
    done = run("simulate", "pods.csv", "--nodes", "nodes.csv", *words)
    assert done.code == 0, done.err
    return done.out


LEFT_OUT = "1 pod left out: deleted in the second of their creation\n"


def test_both_placements_stand_side_by_side(trace: Path) -> None:
    lines = simulated().splitlines()
    assert lines[:3] == [
        "pods.csv: 4 pods on 3 nodes with 8 GPUs",
        LEFT_OUT.strip(),
        "",
    ]
    table = {line[:40].rstrip(): line[40:].split() for line in lines[4:]}
    assert lines[3].split() == ["binpack", "spread"]
    assert table["Placed"] == ["3", "3"]
    assert table["Never placed"] == ["0", "0"]
    assert table["Wait, longest"][0] == "0s*"
    # 2 of 8 GPUs for 100 s, 6 for 100 s, 2 for 200 s.
    assert table["GPUs allocated, mean"][:2] == ["37.5", "%"]
    assert table["GPUs allocated, peak"][:2] == ["75.0", "%"]
    assert table["Evictions"] == ["0", "0"]


def test_one_run_is_one_object_with_every_figure(trace: Path) -> None:
    result = json.loads(simulated("--placement", "binpack", "-o", "json"))
    # One of the four pods needs a whole node, and cannot use the two GPUs left beside the small
    # ones: a quarter of 2000 of 8000 is a fragment.
    assert result == {
        "jobs": 3,
        "finished": 3,
        "mean_wait_s": 0.0,
        "median_wait_s": 0.0,
        "p95_wait_s": 0.0,
        "max_wait_s": 0.0,
        "mean_bounded_slowdown": 1.0,
        "utilization": 0.375,
        "makespan_s": 400,
        "evictions": 0,
        "placed": 3,
        "waiting": 0,
        "gpu_allocation_mean": 0.375,
        "gpu_allocation_peak": 0.75,
        "gpu_allocation_final": 0.75,
        "gpu_fragmentation_mean": 0.0625,
        "gpu_fragmentation_peak": 0.0625,
        "gpu_fragmentation_final": 0.0625,
        "gpu_fragmentation_of_free_mean": 0.1,
        "gpu_fragmentation_of_free_peak": 0.25,
        "gpu_fragmentation_of_free_final": 0.25,
        "stranded_nodes_mean": 0.0,
        "stranded_nodes_peak": 0.0,
        "stranded_nodes_final": 0.0,
    }


def test_runs_stand_in_the_order_given_under_their_names(trace: Path) -> None:
    words = ("--config", "mine.yaml", "--placement", "spread", "--policy", "fcfs", "-o", "json")
    result = json.loads(simulated(*words))
    assert [one["name"] for one in result["runs"]] == ["mine.yaml", "spread", "fcfs"]
    assert all(one["placed"] == 3 for one in result["runs"])


def test_csv_has_a_row_for_each_run(trace: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(simulated("-o", "csv"))))
    first = rows[0]
    assert (first["placed"], first["gpu_allocation_mean"]) == ("3", "0.375")
    assert [row["run"] for row in rows] == ["binpack", "spread"]


def test_starts_are_those_of_each_pod_by_its_row(trace: Path) -> None:
    text = simulated("--placement", "binpack", "--starts", "-")
    assert text == "job,submit,start\n1,0,0\n2,0,0\n3,100,100\n"


def test_the_first_pods_only(trace: Path) -> None:
    assert json.loads(simulated("--placement", "spread", "--jobs", "2", "-o", "json"))["jobs"] == 2


def test_short_walltimes_let_groups_go_ahead_of_the_head(trace: Path) -> None:
    nodes_csv(trace, (a_node("n-0", gpus=2),))
    pods_csv(
        trace,
        (
            a_pod(1, at_s=0, run_s=100),
            a_pod(2, at_s=10, run_s=100, gpu_milli=2000),
            a_pod(3, at_s=20, run_s=50),
        ),
    )
    strict = simulated("--policy", "fcfs", "--starts", "-")
    easy = simulated("--policy", "easy", "--walltimes", "runtime", "--starts", "-")
    assert strict.splitlines()[1:] == ["1,0,0", "2,10,100", "3,20,200"]
    assert easy.splitlines()[1:] == ["1,0,0", "2,10,100", "3,20,20"]


def test_the_json_of_an_inflation_has_its_points(trace: Path) -> None:
    words = ("--inflate", "75", "--seed", "4", "--jobs", "3")
    lines = simulated(*words).splitlines()
    assert lines[0] == "pods.csv: 3 pods on 3 nodes with 8 GPUs, inflated to 75 % (seed 4)"
    table = {line[:24].rstrip(): line[24:].split() for line in lines[3:]}
    assert table["Placed"] == ["3*", "2"]
    assert table["Not placed"] == ["0*", "1"]
    assert table["First not placed at"] == ["-", "75.0", "%*"]
    assert table["GPUs allocated"] == ["75.00", "%*", "25.00", "%"]
    result = json.loads(simulated(*words, "--placement", "spread", "-o", "json"))
    assert {name: value for name, value in result.items() if name != "points"} == {
        "pods": 3,
        "placed": 2,
        "failed": 1,
        "arrived": 0.75,
        "first_failed_at": 0.75,
        "gpu_allocation_at_100": None,
        "gpu_allocation": 0.25,
        "gpu_fragmentation": 0.25,
        "gpu_fragmentation_of_free": pytest.approx(1 / 3),
        "stranded_nodes": 0,
        "stranded_gpus": 0.0,
    }
    assert [point["arrived"] for point in result["points"]] == [0.0, 0.125, 0.25, 0.75]


def test_the_report_has_the_allocation_at_100_percent(trace: Path) -> None:
    words = ("--inflate", "150", "--seed", "4", "--jobs", "3", "--placement", "spread")
    result = json.loads(simulated(*words, "-o", "json"))
    # Small, small, large, large: ten of eight GPUs requested, and both large pods failed.
    assert [round(point["arrived"] * 8) for point in result["points"]] == [0, 1, 2, 6, 10, 11, 12]
    assert (result["gpu_allocation_at_100"], result["gpu_allocation"]) == (0.25, 0.5)


@pytest.mark.parametrize("mode", [(), ("--inflate", "130")], ids=["played", "inflated"])
def test_any_hash_seed_gives_the_same_answer(trace: Path, mode: tuple[str, ...]) -> None:
    words = ["simulate", "pods.csv", "--nodes", "nodes.csv", *mode, "-o", "json"]
    result = {
        subprocess.run(
            [sys.executable, "-m", "batchq.cli", *words],
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
            cwd=trace,
            env={"PYTHONPATH": f"{ROOT}:{ROOT / 'actions'}", "PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in sample(("0", "1", "42"), 2)
    }
    assert len(result) == 1


@pytest.mark.parametrize("mode", sample([("--inflate", "130"), ()], 1))
def test_the_plot_is_written(trace: Path, mode: tuple[str, ...]) -> None:
    pytest.importorskip("matplotlib")
    simulated(*mode, "--plot", "gpus.svg")
    drawn = (trace / "gpus.svg").read_text()
    assert drawn.startswith("<?xml")


@pytest.mark.parametrize("mode", sample([(), ("--inflate", "1")], 1))
def test_a_report_and_a_plot_are_written_even_if_no_pod_is_placed(
    trace: Path, mode: tuple[str, ...]
) -> None:
    pytest.importorskip("matplotlib")
    pods_csv(trace, [a_pod(1, gpu_milli=8000, run_s=0)])
    lines = simulated(*mode, "--placement", "spread", "--plot", "gpus.png").splitlines()
    assert [line.split() for line in lines if line.startswith("Placed")] == [["Placed", "0"]]
    assert (trace / "gpus.png").read_bytes().startswith(b"\x89PNG")


BAD = [
    ("pods.csv", 2, "pods.csv is a table of pods, which needs the table of their nodes"),
    ("pods.csv --nodes none.csv", 1, "none.csv: the log cannot be read: No such file"),
    ("pods.csv --nodes pods.csv", 1, "pods.csv: expected the heading sn,cpu_milli,memory_mib"),
    ("nodes.csv --nodes nodes.csv", 1, "nodes.csv: expected the heading name,cpu_milli"),
    ("none.csv --nodes nodes.csv", 1, "none.csv: the log cannot be read: No such file"),
    ("pods.csv --nodes nodes.csv --placement pack", 2, "'pack' is not one of 'binpack', 'spread'"),
    ("pods.csv --nodes nodes.csv --seed 1", 2, "--seed needs --inflate"),
    ("pods.csv --nodes nodes.csv --inflate 0", 2, "expected a whole number (1 to 1000), found '0'"),
    (
        "pods.csv --nodes nodes.csv --inflate 130 --policy easy",
        2,
        "--policy cannot be combined with --inflate",
    ),
    (
        "pods.csv --nodes nodes.csv --inflate 130 --starts s.csv",
        2,
        "--starts cannot be combined with --inflate",
    ),
    ("pods.csv --nodes nodes.csv --procs 4", 2, "--procs cannot be combined with a table of pods"),
    (
        "pods.csv --nodes nodes.csv --processes 4",
        2,
        "--processes cannot be combined with a table of pods",
    ),
    ("pods.csv --nodes nodes.csv --by user", 2, "--by cannot be combined with a table of pods"),
    (
        "pods.csv --nodes nodes.csv --cycles 4",
        2,
        "--cycles cannot be combined with a table of pods",
    ),
    ("pods.csv --nodes nodes.csv --plot p.gif", 2, "expected a name that ends in one of .png"),
    ("pods.csv --nodes nodes.csv --starts nodes.csv", 2, "that file is read, and would be"),
    ("pods.csv --nodes nodes.csv --starts - -o csv", 2, "but so does -o csv"),
    ("world.yaml --nodes nodes.csv", 2, "--nodes is for a table of pods, but world.yaml is a"),
    ("log.swf --inflate 130", 2, "--inflate is for a table of pods, but log.swf is a log"),
    ("log.swf --placement spread", 2, "--placement is for a table of pods, but log.swf is a log"),
]


@pytest.mark.parametrize(("words", "code", "message"), BAD, ids=[line for line, _, _ in BAD])
def test_options_simulate_does_not_take_are_refused_before_any_run(
    trace: Path, words: str, code: int, message: str
) -> None:
    done = run("simulate", *words.split())
    assert (done.code, done.out) == (code, "")
    assert message in done.err
    assert "Traceback" not in done.err


def test_the_help_names_the_placements_and_the_default_seed() -> None:
    assert tuple(PLACEMENTS) == recorded._PLACEMENTS
    assert recorded._DEFAULT_SEED == DEFAULT_SEED
    assert recorded._MOST_PERCENT == MOST_PERCENT
