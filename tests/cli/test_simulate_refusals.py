"""Refusals of `batchq simulate`: a sentence, an exit code, and no file; before any run."""

from __future__ import annotations

import gzip
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import run
from tests.cli.test_simulate_traces import log_text

ROOT = Path(__file__).resolve().parents[2]
NAMES = "fcfs, first-fit, easy, easy-sjf, conservative"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the files that the table names."""
    there = tmp_path / "there"
    there.mkdir()
    monkeypatch.chdir(there)
    packed = gzip.compress(log_text().encode())
    files = {
        "log.swf": log_text().encode(),
        "prose.swf": b"; MaxProcs: 4\nthis is prose\n",
        "PROSE.SWF": b"this is prose",
        "empty.swf": b"",
        "prose": b"this is no manifest",
        "cut.swf.gz": packed[:-20],
        "cut": packed[:40],
        "unsized.swf": "\n".join(log_text().splitlines()[2:]).encode(),
        "world.yaml": b"apiVersion: batchq/v1\nkind: Node\nmetadata: {name: n1}\n",
        "broken.yaml": b"actions: [enqueue, alocate]\n",
        "queues.yaml": b"apiVersion: batchq/v1\nkind: Queue\nmetadata: {name: a}\n",
        "twice.yaml": b"apiVersion: batchq/v1\nkind: Queue\nmetadata: {name: a}\n---\n" * 2,
    }
    for name, content in files.items():
        (there / name).write_bytes(content)
    return there


CONTENT = [
    ("prose.swf", "prose.swf, line 2: expected 18 numbers (Standard Workload Format), found 3"),
    ("PROSE.SWF", "PROSE.SWF, line 1: expected 18 numbers (Standard Workload Format), found 3"),
    ("empty.swf", "empty.swf: expected jobs in the Standard Workload Format, found none"),
    ("cut.swf.gz", "cut.swf.gz: this gzip file is damaged: "),
    ("cut", "cut: this gzip file is damaged: "),
    ("none.swf", "none.swf: the log cannot be read: No such file or directory"),
    ("none", "none: the world cannot be read: No such file or directory"),
    (".", ".: the world cannot be read: Is a directory"),
    ("prose", "prose, line 1: expected a mapping of fields, found 'this is no manifest'"),
    ("unsized.swf", "the log does not state its machine's number of processors (MaxProcs)"),
    ("log.swf --config none.yaml", "none.yaml: the configuration cannot be read: No such file"),
    ("log.swf --policy easy --config broken.yaml", "actions[1]: there is no action 'alocate'"),
    ("log.swf --by user --queues none.yaml", "none.yaml: the file cannot be read: No such file"),
    ("log.swf --by user --queues world.yaml", "world.yaml: expected Queues, found a Node"),
    ("log.swf --by user --queues twice.yaml", "twice.yaml: queue a is defined twice"),
    ("log.swf --starts no/s.csv", "--starts no/s.csv: the file cannot be written: it is in a"),
    ("log.swf --starts log.swf/s.csv", "cannot be written: it is in something that is no folder"),
    (f"log.swf --starts {'x' * 260}", ": the file cannot be written: File name too long"),
    ("log.swf --starts .", "--starts .: expected a file to write, found a folder"),
    ("log.swf --plot no/p.png", "--plot no/p.png: the file cannot be written: it is in a folder"),
    ("log.swf --starts /proc/s.csv", "--starts /proc/s.csv: the file cannot be written: "),
]

USAGE = [
    (
        "log.swf --procs 0",
        "invalid value for '--procs': expected a whole number (at least 1), found '0'",
    ),
    (
        "log.swf --jobs 0",
        "invalid value for '--jobs': expected a whole number (at least 1), found '0'",
    ),
    ("log.swf --policy eazy", f"expected one of {NAMES}, found 'eazy'; did you mean easy?"),
    ("log.swf --policy ljf", f"--policy: expected one of {NAMES}, found 'ljf'"),
    ("log.swf --policy=", f"--policy: expected one of {NAMES}, found ''"),
    ("log.swf" + " --policy fcfs" * 21, "at most 20 runs in one comparison, found 21"),
    ("log.swf --pass job", "invalid value for '--pass': 'job' is not one of 'instant', 'event'"),
    (
        "log.swf --by team",
        "invalid value for '--by': 'team' is not one of 'user', 'group', 'queue'",
    ),
    (
        "log.swf --cycles 3",
        "--cycles is for a world, but log.swf is a log in the Standard Workload",
    ),
    ("log.swf --queues queues.yaml", "--queues needs --by user, --by group or --by queue"),
    ("log.swf --plot p.jpg", "--plot p.jpg: expected a name that ends in one of .png, .svg, .pdf"),
    ("log.swf --plot png", "--plot png: expected a name that ends in one of .png, .svg, .pdf"),
    ("log.swf --starts log.swf", "--starts log.swf: that file is read, and would be overwritten"),
    ("log.swf --starts ./log.swf", "--starts log.swf: that file is read, and would be overwritten"),
    ("log.swf --starts a.png --plot a.png", "--plot a.png: --starts writes the same file"),
    ("log.swf --starts - -o csv", "--starts - writes to standard output, but so does -o csv"),
    ("world.yaml --policy easy", "--policy is for a log, but world.yaml is a world"),
    ("world.yaml --jobs 3", "--jobs is for a log, but world.yaml is a world"),
    ("world.yaml --procs 3", "--procs is for a log, but world.yaml is a world"),
    ("world.yaml --pass event", "--pass is for a log, but world.yaml is a world"),
    ("world.yaml --processes 2", "--processes is for a log, but world.yaml is a world"),
    ("world.yaml --by user", "--by is for a log, but world.yaml is a world"),
    ("world.yaml --starts s.csv", "--starts is for a log, but world.yaml is a world"),
    ("world.yaml --plot p.png", "--plot is for a log, but world.yaml is a world"),
    ("world.yaml -o csv", "-o csv is for a log, but world.yaml is a world"),
    ("world.yaml --config a --config b", "is simulated once: expected one --config, found 2"),
]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        *((words, 1, says) for words, says in CONTENT),
        *((words, 2, says) for words, says in USAGE),
    ],
)
def test_a_mistake_is_one_sentence_and_no_file_is_written(
    folder: Path, words: str, code: int, says: str
) -> None:
    before = sorted(folder.rglob("*"))
    done = run("simulate", *words.split())
    error = done.err.splitlines()[0]
    assert (done.code, done.out) == (code, "")
    assert error.partition(": ")[0] in ("error", '{"error"')
    assert says in error
    assert sorted(folder.rglob("*")) == before


def test_a_machine_too_small_for_every_job_is_reported(folder: Path) -> None:
    (folder / "big.swf").write_text(log_text([(1, 0, 10, 3, 1), (2, 0, 10, 4, 1)]))
    done = run("simulate", "big.swf", "--procs", "2")
    assert done.code == 1
    assert done.err.startswith(
        "error: big.swf: expected jobs in the Standard Workload Format, found none that can be run"
        " on 2 processors\n"
    )


def test_a_log_on_standard_input_is_refused(folder: Path) -> None:
    for content in (log_text().encode(), gzip.compress(log_text().encode())):
        done = run("simulate", "-", stdin=content)
        assert (done.code, done.out) == (2, "")
        assert done.err == (
            "error: standard input is a log, which can only be read from a file\n"
            "hint: give the file's name: batchq simulate TRACE.swf.gz\n"
        )


def test_an_old_file_is_replaced_and_keeps_its_mode(folder: Path) -> None:
    old = folder / "starts.csv"
    old.write_text("old")
    old.chmod(0o640)
    assert run("simulate", "log.swf", "--jobs", "1", "--starts", "starts.csv").code == 0
    assert old.read_text() == "job,submit,start\n1,0,0\n"
    assert old.stat().st_mode & 0o777 == 0o640


def test_a_new_file_has_the_mode_that_new_files_have(folder: Path) -> None:
    assert run("simulate", "log.swf", "--jobs", "1", "--starts", "starts.csv").code == 0
    (folder / "other").touch()
    assert (folder / "starts.csv").stat().st_mode == (folder / "other").stat().st_mode


def test_writing_to_a_link_keeps_the_link_and_writes_its_target(folder: Path) -> None:
    (folder / "link.csv").symlink_to("starts.csv")
    assert run("simulate", "log.swf", "--jobs", "1", "--starts", "link.csv").code == 0
    assert (folder / "link.csv").is_symlink()
    assert (folder / "starts.csv").read_text() == "job,submit,start\n1,0,0\n"


def test_a_pipe_is_written_to_and_not_replaced_by_a_file(folder: Path) -> None:
    # Not with a device such as /dev/null: a bug would replace it for the whole machine.
    os.mkfifo(folder / "pipe")
    reading = os.open(folder / "pipe", os.O_RDWR | os.O_NONBLOCK)
    try:
        assert run("simulate", "log.swf", "--jobs", "1", "--starts", "pipe").code == 0
        assert (folder / "pipe").is_fifo()
        assert os.read(reading, 1000) == b"job,submit,start\n1,0,0\n"
    finally:
        os.close(reading)


def test_results_of_a_run_are_printed_though_a_file_cannot_be_written_any_more(
    folder: Path,
) -> None:
    before = sorted(folder.rglob("*"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # An empty file can be created, so the check passes before the run, but not written.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        done = run("simulate", "log.swf", "--jobs", "1", "--starts", "s.csv")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.code == 1
    assert done.lines[0] == "log.swf: 1 job on 4 processors, one session per instant"
    assert done.err == "error: --starts s.csv: the file cannot be written: File too large\n"
    assert sorted(folder.rglob("*")) == before


def test_without_matplotlib_a_plot_is_refused_with_what_to_install(folder: Path) -> None:
    # A fresh interpreter with the same libraries except matplotlib.
    hide = folder / "sitecustomize.py"
    hide.write_text(
        "import importlib.abc, sys\n"
        "class Hidden(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'matplotlib':\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
    )
    paths = os.pathsep.join([str(folder), str(ROOT), str(ROOT / "actions")])
    done = subprocess.run(
        [sys.executable, "-m", "batchq.cli", "simulate", "log.swf", "--plot", "p.png"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PYTHONPATH": paths},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: --plot draws with matplotlib, which is not installed\n"
        "hint: pip install 'batchq[plot]'\n"
    )
