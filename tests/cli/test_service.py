"""`batchq service`: the units that it writes, and what systemd says of them."""

from __future__ import annotations

import getpass
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from tests.cli.conftest import run

ME = getpass.getuser()
PARTS = ("server", "scheduler", "api", "worker")


def install(folder: Path, part: str, *words: str) -> Path:
    """Install the unit of a part, and return its path."""
    done = run("service", "install", part, "--user", ME, "--folder", str(folder), *words)
    assert done.code == 0, done.err
    return folder / f"batchq-{part}.service"


def test_a_unit_is_written_replaced_and_removed(tmp_path: Path) -> None:
    path = install(tmp_path, "scheduler")
    first = path.read_text()
    assert f"\nUser={ME}\n" in first
    assert "\nEnvironment=BATCHQ_REDIS_URL_FILE=/etc/batchq/scheduler.url\n" in first
    install(tmp_path, "scheduler", "--", "--config", "/etc/batchq/s.yaml")
    assert path.read_text() != first
    assert [one.name for one in tmp_path.iterdir()] == ["batchq-scheduler.service"]
    removed = run("service", "uninstall", "scheduler", "--folder", str(tmp_path))
    assert removed.out == f"{path} removed\n"
    again = run("service", "uninstall", "scheduler", "--folder", str(tmp_path))
    assert (again.code, again.err) == (6, f"error: there is no unit {path}\n")


def test_the_next_steps_are_printed(tmp_path: Path) -> None:
    words = ("--user", ME, "--folder", str(tmp_path), "--url-file", str(tmp_path / "api.url"))
    done = run("service", "install", "api", *words)
    assert done.err.splitlines()[-2:] == [
        f"next: write the server's URL to {tmp_path}/api.url, readable for {ME} only",
        "next: systemctl daemon-reload && systemctl enable --now batchq-api",
    ]


def test_options_are_single_words_without_variables_of_systemd(tmp_path: Path) -> None:
    text = install(tmp_path, "worker", "--", "--name", "a b", "--labels", '100%$HOME"').read_text()
    [command] = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    assert command.endswith(r'--name "a b" --labels "100%%$$HOME\""')
    refused = run("service", "install", "worker", "--dry-run", "--", "--name", "a\nUser=root")
    assert (refused.code, refused.err.splitlines()[0]) == (
        1,
        "error: an argument of a unit: expected printable characters",
    )


def test_a_unit_of_another_program_stays(tmp_path: Path) -> None:
    path = tmp_path / "batchq-api.service"
    path.write_text("[Service]\nExecStart=/usr/local/bin/own\n")
    for words in (("install", "api", "--user", ME), ("uninstall", "api")):
        refused = run("service", *words, "--folder", str(tmp_path))
        assert refused.code == 1
        assert "was not written by `batchq service install`" in refused.err
    assert "own" in path.read_text()


def test_a_missing_account_or_folder_is_named(tmp_path: Path) -> None:
    refused = run("service", "install", "api", "--user", "nobody-here", "--folder", str(tmp_path))
    assert refused.code == 1
    assert refused.err.startswith("error: this machine has no account 'nobody-here'\nhint: useradd")
    missing = tmp_path / "missing"
    refused = run("service", "install", "api", "--user", ME, "--folder", str(missing))
    assert (refused.code, refused.err.splitlines()[-1]) == (
        1,
        "hint: run it as root, or name a --folder",
    )


def test_a_dry_run_prints_the_unit_only(tmp_path: Path) -> None:
    words = ("service", "install", "api", "--folder", str(tmp_path), "--dry-run")
    printed = run(*words, "--", "--listen", "0.0.0.0:8443")
    assert (printed.code, printed.err) == (0, "")
    assert "\nUser=batchq\n" in printed.out
    assert "api --listen unix:/run/batchq/api.sock --listen 0.0.0.0:8443\n" in printed.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", PARTS)
def test_systemd_finds_nothing_wrong_with_a_unit(part: str, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here")
    path = install(tmp_path, part)
    checked = subprocess.run(
        [program, "verify", "--man=no", "--recursive-errors=no", str(path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_a_server_keeps_its_data_and_takes_a_configuration_file(tmp_path: Path) -> None:
    path = install(tmp_path, "server")
    [command] = [line for line in path.read_text().splitlines() if line.startswith("ExecStart=")]
    assert "-server --daemonize no --dir /var/lib/batchq-server --port 0" in command
    assert command.endswith(
        '--appendonly yes --appendfsync everysec --save "" --auto-aof-rewrite-min-size 256mb'
        " --maxmemory-policy noeviction"
    )
    assert "BATCHQ_" not in path.read_text()
    install(tmp_path, "server", "--", "/etc/batchq/server.conf", "--port", "7000")
    [command] = [line for line in path.read_text().splitlines() if line.startswith("ExecStart=")]
    words = "/etc/batchq/server.conf --daemonize no --dir /var/lib/batchq-server --port 7000"
    assert command.endswith(f"-server {words}")


def test_a_server_runs_as_its_unit_says(tmp_path: Path) -> None:
    folder, socket = tmp_path / "data", Path(tempfile.mkdtemp(prefix="bq")) / "s"
    folder.mkdir()
    printed = run("service", "install", "server", "--dry-run").out
    [line] = [line for line in printed.splitlines() if line.startswith("ExecStart=")]
    line = line.replace("/var/lib/batchq-server", str(folder))
    line = line.replace("/run/batchq-server/redis.sock", str(socket))
    server = subprocess.Popen(shlex.split(line.removeprefix("ExecStart=")))
    try:
        retry = Retry(ExponentialBackoff(cap=0.5), 40)
        client = redis.Redis(unix_socket_path=str(socket), retry=retry)
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert (folder / "appendonlydir").exists()
    finally:
        server.terminate()
        assert server.wait(90) == 0
        shutil.rmtree(socket.parent)


@pytest.mark.parametrize("part", ["server", "scheduler", "api"])
def test_systemd_calls_the_scheduler_and_the_api_confined(part: str, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here")
    path = install(tmp_path, part)
    words = [program, "security", "--offline=yes", "--threshold=30", str(path)]
    checked = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert checked.returncode == 0, checked.stdout[-2000:] + checked.stderr
