"""`batchq simulate TRACE`: a small log under each policy, in every output format."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import run
from tests.effort import sample

ROOT = Path(__file__).resolve().parents[2]

#: Number, submit, run time, processors, user. Four processors: job 2 needs all of them and waits
#: for job 1; job 3 ends before that, job 4 does not; job 5 is larger than the machine.
JOBS = [
    (1, 0, 100, 3, 1),
    (2, 10, 50, 4, 2),
    (3, 20, 30, 1, 1),
    (4, 30, 200, 1, 2),
    (5, 35, 200, 9, 2),
]


def log_text(jobs: Sequence[tuple[int, int, int, int, int]] = JOBS) -> str:
    """Return a log in the Standard Workload Format in which requests equal run times."""
    lines = [
        f"{number} {submit} -1 {run_s} {size} -1 -1 {size} {run_s} -1 1 {user} 7 -1 {user} -1 -1 -1"
        for number, submit, run_s, size, user in jobs
    ]
    return "\n".join(["; Version: 2.2", "; MaxProcs: 4", *lines, ""])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "small.swf"
    path.write_text(log_text())
    return path


DROPPED = "1 job was left out: too large, or processors, run time or request unknown\n"
FCFS = {
    "jobs": 4,
    "finished": 4,
    "mean_wait_s": 85.0,
    "median_wait_s": 105.0,
    "p95_wait_s": 130.0,
    "max_wait_s": 130.0,
    "mean_bounded_slowdown": (1 + 140 / 50 + 160 / 30 + 320 / 200) / 4,
    "utilization": 730 / 1400,
    "makespan_s": 350,
    "evictions": 0,
}
FIRST_FIT = {
    "jobs": 4,
    "finished": 4,
    "mean_wait_s": 65.0,
    "median_wait_s": 10.0,
    "p95_wait_s": 240.0,
    "max_wait_s": 240.0,
    "mean_bounded_slowdown": 2.225,
    "utilization": 730 / 1200,
    "makespan_s": 300,
    "evictions": 0,
}


def test_json_of_one_run_is_one_object_at_full_precision(log: Path) -> None:
    done = run("simulate", str(log), "--policy", "fcfs", "-o", "json")
    assert (done.code, done.err) == (0, DROPPED)
    result = json.loads(done.out)
    assert list(result) == list(FCFS)
    assert result == pytest.approx(FCFS, rel=1e-15)


def test_a_log_is_simulated_first_fit_without_a_policy(log: Path) -> None:
    done = run("simulate", str(log), "-o", "json")
    assert json.loads(done.out) == pytest.approx(FIRST_FIT, rel=1e-15)


def test_json_of_several_runs_lists_them_in_the_order_of_the_command_line(
    log: Path, tmp_path: Path
) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("actions: [enqueue, allocate]\n")
    between = ("--policy", "fcfs", "--config", str(config), "--policy", "fcfs")
    done = run("simulate", *between, "--policy", "first-fit", str(log), "-o", "json")
    [first, second, third, fourth] = json.loads(done.out)["runs"]
    assert first == {"name": "fcfs", **FCFS}
    assert second == {"name": "mine.yaml", **FIRST_FIT}
    assert third == {"name": "fcfs (2)", **FCFS}
    assert fourth == {"name": "first-fit", **FIRST_FIT}


def test_csv_has_a_row_for_each_run(log: Path) -> None:
    done = run("simulate", str(log), "--policy", "first-fit", "--policy", "easy", "-o", "csv")
    assert done.lines[0] == (
        "run,jobs,finished,mean_wait_s,median_wait_s,p95_wait_s,max_wait_s,"
        "mean_bounded_slowdown,utilization,makespan_s,evictions"
    )
    assert done.lines[1:] == [
        "first-fit,4,4,65.0,10.0,240.0,240.0,2.225,0.6083333333333333,300,0",
        "easy,4,4,52.5,45.0,120.0,120.0,1.6,0.5214285714285715,350,0",
    ]


def test_the_table_has_a_column_for_each_run_and_marks_the_best(log: Path) -> None:
    runs = ("--policy", "fcfs", "--policy", "first-fit", "--policy", "easy")
    done = run("simulate", str(log), *runs)
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "small.swf: 4 jobs on 4 processors, one session per instant\n"
        f"{DROPPED}"
        "\n"
        "                          fcfs   first-fit     easy\n"
        "Jobs                         4           4        4\n"
        "Finished                     4           4        4\n"
        "Wait, mean               1m25s        1m5s    52.5s*\n"
        "Wait, median             1m45s         10s*     45s\n"
        "Wait, 95 % within        2m10s          4m       2m*\n"
        "Wait, longest            2m10s          4m       2m*\n"
        "Bounded slowdown, mean    2.68        2.23     1.60*\n"
        "Utilisation             52.1 %      60.8 %*  52.1 %\n"
        "Makespan                 5m50s          5m*   5m50s\n"
        "Evictions                    0           0        0\n"
        "* the best of its line\n"
    )


def test_the_table_of_one_run_has_nothing_to_mark(log: Path) -> None:
    done = run("simulate", str(log), "--jobs", "1", "--procs", "3", "--pass", "event")
    assert done.out == (
        "small.swf: 1 job on 3 processors, one session per event\n"
        "\n"
        "                        first-fit\n"
        "Jobs                            1\n"
        "Finished                        1\n"
        "Wait, mean                     0s\n"
        "Wait, median                   0s\n"
        "Wait, 95 % within              0s\n"
        "Wait, longest                  0s\n"
        "Bounded slowdown, mean       1.00\n"
        "Utilisation               100.0 %\n"
        "Makespan                    1m40s\n"
        "Evictions                       0\n"
    )


def test_a_table_of_many_runs_is_no_wider_than_a_terminal(log: Path) -> None:
    names = ["fcfs", "first-fit", "easy", "easy-sjf", "conservative", "fcfs", "first-fit"]
    done = run("simulate", str(log), *(word for name in names for word in ("--policy", name)))
    assert max(map(len, done.lines)) <= 80
    titles = [line.split("  ") for line in done.lines if line.startswith("        ")]
    shown = [name.strip() for line in titles for name in line if name]
    assert shown == [*names[:5], "fcfs (2)", "first-fit (2)"]


STARTS = {
    "fcfs": [0, 100, 150, 150],
    "first-fit": [0, 250, 20, 50],
    "easy": [0, 100, 20, 150],
    "easy-sjf": [0, 100, 20, 150],
    "conservative": [0, 100, 20, 150],
}


@pytest.mark.parametrize("policy", STARTS)
def test_starts_are_written_with_the_numbers_of_the_log(
    log: Path, tmp_path: Path, policy: str
) -> None:
    file = tmp_path / "starts.csv"
    done = run("simulate", str(log), "--policy", policy, "--starts", str(file))
    assert done.code == 0
    one, two, three, four = STARTS[policy]
    assert (
        file.read_text() == f"job,submit,start\n1,0,{one}\n2,10,{two}\n3,20,{three}\n4,30,{four}\n"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.swf", "starts.csv"]


def test_one_session_per_event_decides_before_it_knows_of_an_early_end(tmp_path: Path) -> None:
    log = tmp_path / "early.swf"
    # Job 1 ends at 10, long before its request. Just then job 3 comes, which fits beside it, while
    # job 2 waits for the whole machine.
    jobs = log_text([(1, 0, 10, 3, 1), (2, 5, 100, 4, 1), (3, 10, 100, 1, 1)])
    log.write_text(jobs.replace("1 0 -1 10 3 -1 -1 3 10", "1 0 -1 10 3 -1 -1 3 20"))
    words = ("simulate", str(log), "--starts", "-")
    assert run(*words).lines[1:] == ["1,0,0", "2,5,10", "3,10,110"]
    assert run(*words, "--pass", "instant").lines[1:] == ["1,0,0", "2,5,10", "3,10,110"]
    assert run(*words, "--pass", "event").lines[1:] == ["1,0,0", "2,5,110", "3,10,10"]


def test_starts_of_several_runs_name_the_run_in_front(log: Path) -> None:
    done = run("simulate", str(log), "--policy", "fcfs", "--policy", "easy", "--starts", "-")
    assert (done.code, done.err) == (0, DROPPED)
    assert done.lines == [
        "run,job,submit,start",
        *("fcfs,1,0,0", "fcfs,2,10,100", "fcfs,3,20,150", "fcfs,4,30,150"),
        *("easy,1,0,0", "easy,2,10,100", "easy,3,20,20", "easy,4,30,150"),
    ]


def test_starts_are_in_the_order_of_the_log_whatever_started_first(tmp_path: Path) -> None:
    log = tmp_path / "late.swf"
    log.write_text(log_text([(9, 50, 10, 1, 1), (3, 20, 10, 1, 1)]))
    done = run("simulate", str(log), "--starts", "-")
    assert done.lines == ["job,submit,start", "9,50,50", "3,20,20"]


def test_the_start_of_what_never_started_is_empty(log: Path, tmp_path: Path) -> None:
    config = tmp_path / "idle.yaml"
    config.write_text("actions: [enqueue]\n")
    words = ("simulate", str(log), "--jobs", "1", "--config", str(config))
    assert run(*words, "--starts", "-").lines == ["job,submit,start", "1,0,"]
    done = run(*words, "-o", "json")
    assert (done.code, done.err) == (0, "idle.yaml: 1 job unfinished, and not in the means\n")
    unknown = dict.fromkeys(name for name in FCFS if name not in ("jobs", "finished", "evictions"))
    assert json.loads(done.out) == {"jobs": 1, "finished": 0, **unknown, "evictions": 0}


#: User 1 uses 200 processor-seconds, user 2 uses 600; they do not affect each other.
APART = [(1, 0, 100, 2, 1), (2, 0, 100, 2, 2), (3, 200, 100, 4, 2)]


def test_by_user_the_report_says_how_each_fared(tmp_path: Path) -> None:
    log = tmp_path / "apart.swf"
    log.write_text(log_text(APART))
    result = json.loads(run("simulate", str(log), "--by", "user", "-o", "json").out)
    assert result["fairness"] == 1.0
    same = {"weight": 1, "mean_wait_s": 0.0, "mean_bounded_slowdown": 1.0, "deserved": 0.5}
    # Each has half of the machine for 100 of 300 s, and one has all of it for another 100.
    assert [one.pop("due") for one in result["tenants"]] == [pytest.approx(1 / 6), 0.5]
    assert [one.pop("due_met") for one in result["tenants"]] == [1.0, 1.0]
    assert result["tenants"] == [
        {"tenant": "user-1", **same, "jobs": 1, "finished": 1, "used": 0.25, "evictions": 0},
        {"tenant": "user-2", **same, "jobs": 2, "finished": 2, "used": 0.75, "evictions": 0},
    ]


def test_the_table_lists_the_largest_tenant_first_with_the_weight_of_its_queue(
    tmp_path: Path,
) -> None:
    log = tmp_path / "apart.swf"
    log.write_text(log_text(APART))
    queues = tmp_path / "queues.yaml"
    queues.write_text(
        "apiVersion: batchq/v1\nkind: Queue\nmetadata: {name: user-2}\nspec: {weight: 3}\n"
    )
    done = run("simulate", str(log), "--by", "user", "--queues", str(queues))
    assert done.lines[-5:] == [
        "",
        "By user:",
        "TENANT  JOBS  MEAN WAIT  SLOWDOWN  USED    WEIGHT  DUE     DUE MET",
        "user-2  2     0s         1.00      75.0 %  3       50.0 %  100.0 %",
        "user-1  1     0s         1.00      25.0 %  1       16.7 %  100.0 %",
    ]
    assert "Fairness (Jain)             1.000" in done.lines


def test_the_many_small_tenants_are_summed_up(tmp_path: Path) -> None:
    log = tmp_path / "many.swf"
    jobs = [(user, 1000 * user, 10 * user, 1, user) for user in range(1, 14)]
    log.write_text(log_text(jobs))
    done = run("simulate", str(log), "--by", "queue")
    rows = [line.split()[:2] for line in done.lines[done.lines.index("By queue:") + 2 :]]
    assert rows == [
        *([f"queue-{number}", "1"] for number in range(13, 3, -1)),
        ["3", "others"],
    ]
    assert done.lines[-1] == "3 others  3     0s         1.00      6.6 %   3       0.1 %  100.0 %"


def test_a_tenant_reclaims_its_deserved_share_and_the_eviction_is_counted(tmp_path: Path) -> None:
    log = tmp_path / "taken.swf"
    # User 1 has all four processors; user 2, who deserves two, waits for the grace period of 30 s.
    log.write_text(log_text([(1, 0, 100, 4, 1), (2, 10, 20, 2, 2)]))
    queues = tmp_path / "queues.yaml"
    queues.write_text(
        "apiVersion: batchq/v1\nkind: Queue\nmetadata: {name: default}\n"
        "spec: {preemption: {reclaim: Any}}\n"
    )
    asked = ("simulate", str(log), "--by", "user", "--queues", str(queues))
    assert run(*asked, "--starts", "-").lines == ["job,submit,start", "1,0,60", "2,10,40"]
    result = json.loads(run(*asked, "-o", "json").out)
    assert (result["evictions"], result["makespan_s"]) == (1, 160)
    assert [one["evictions"] for one in result["tenants"]] == [1, 0]


def test_by_group_all_jobs_of_one_group_are_one_tenant(log: Path) -> None:
    result = json.loads(run("simulate", str(log), "--by", "group", "-o", "json").out)
    assert [(one["tenant"], one["jobs"]) for one in result["tenants"]] == [("group-7", 4)]


@pytest.mark.parametrize("name", ["packed.swf.gz", "PACKED.SWF.GZ", "packed.swf", "packed"])
def test_a_packed_log_is_recognised_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    log = tmp_path / name
    log.write_bytes(gzip.compress(log_text().encode()))
    done = run("simulate", str(log), "-o", "json")
    assert json.loads(done.out)["jobs"] == 4


@pytest.mark.parametrize("skipped", [0, 2])
def test_a_plain_log_of_any_name_is_recognised_by_its_remarks_or_numbers(
    tmp_path: Path, skipped: int
) -> None:
    log = tmp_path / "log.txt"
    log.write_text("\n\n" + "\n".join(log_text().splitlines()[skipped:]))
    done = run("simulate", str(log), "--procs", "4", "-o", "json")
    assert json.loads(done.out)["jobs"] == 4


def test_a_world_of_any_name_is_a_world(tmp_path: Path) -> None:
    world = tmp_path / "world.txt"
    world.write_text("# a world\napiVersion: batchq/v1\nkind: Node\nmetadata: {name: n1}\n")
    done = run("simulate", str(world), "-o", "json")
    assert list(json.loads(done.out)) == ["cycles", "podgroups", "queues"]


def test_a_log_with_idle_moments_has_the_same_figures_in_several_processes(tmp_path: Path) -> None:
    """Two busy parts of 1,000 jobs with an idle hour between them."""
    log = tmp_path / "two-days.swf"
    at = [20 * number + 3_600 * (number > 1_000) for number in range(2_001)]
    jobs = [(number, at[number], 30 + number % 50, 1 + number % 3, 1) for number in range(1, 2_001)]
    log.write_text(log_text(jobs))
    outputs = set()
    for count in ("1", "2"):
        starts = tmp_path / f"{count}.csv"
        words = ("--policy", "easy", "--processes", count, "-o", "json", "--starts", str(starts))
        outputs.add((run("simulate", str(log), *words).out, starts.read_text()))
    [(out, _)] = outputs
    assert (json.loads(out)["jobs"], json.loads(out)["finished"]) == (2_000, 2_000)


def test_every_hash_seed_gives_the_same_figures_and_the_same_picture(log: Path) -> None:
    result = set()
    for seed in sample(("0", "1", "42"), 2):
        plot = log.with_name(f"{seed}.svg")
        words = ("--policy", "easy", "--policy", "first-fit", "--by", "user", "-o", "json")
        done = subprocess.run(
            [sys.executable, "-m", "batchq.cli", "simulate", str(log), *words, "--plot", str(plot)],
            capture_output=True,
            timeout=240,
            check=True,
            env={"PYTHONPATH": f"{ROOT}:{ROOT / 'actions'}", "PYTHONHASHSEED": seed},
        )
        result.add((done.stdout, plot.read_bytes()))
    [(answer, picture)] = result
    assert len(json.loads(answer)["runs"]) == 2
    assert b"user-2 (weight 1)" in picture


def test_the_plot_is_a_picture_of_the_kind_that_its_name_says(log: Path) -> None:
    for name, begins in (("a.png", b"\x89PNG"), ("b.PNG", b"\x89PNG"), ("c.pdf", b"%PDF")):
        plot = log.with_name(name)
        assert run("simulate", str(log), "--plot", str(plot)).code == 0
        assert plot.read_bytes().startswith(begins)
