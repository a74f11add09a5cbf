"""BATCHQ_SERVER=ssh://HOST, through a stand-in for `ssh` and through a real sshd."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.api_session import ssh_command
from tests.cli.conftest import run
from tests.client.stage import Stage
from tests.harness.ports import free_port
from tests.http.api_process import RunningApi

#: Runs the command in the PATH of this Python, as sshd would run it in the account's shell.
STAND_IN = """#!/bin/sh
printf '%s\\n' "$*" >> "$SSH_LOG"
for last; do :; done
PATH="$REMOTE_PATH" exec sh -c "$last"
"""
REMOTE_PATH = f"{Path(sys.executable).parent}:/usr/bin:/bin"


def put(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for `ssh` in PATH; the file has the words of each call."""
    folder = tmp_path / "bin"
    folder.mkdir()
    put(folder, "ssh", STAND_IN)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("REMOTE_PATH", REMOTE_PATH)
    monkeypatch.setenv("SSH_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("BATCHQ_HOME", str(tmp_path / "home"))
    return tmp_path / "log"


@pytest.mark.parametrize(
    ("address", "command"),
    [
        ("ssh://hpc", ["ssh", "-T", "-e", "none", "--", "hpc", "batchq connect"]),
        (
            "ssh://ana@hpc.example:2222/run/bq/api.sock",
            [
                *("ssh", "-T", "-e", "none", "-p", "2222", "-l", "ana", "--", "hpc.example"),
                "batchq connect /run/bq/api.sock",
            ],
        ),
        ("ssh://hpc/a%20b;c", ["ssh", "-T", "-e", "none", "--", "hpc", "batchq connect '/a b;c'"]),
    ],
)
def test_the_address_becomes_a_command_without_a_word_of_the_shell(
    address: str, command: list[str]
) -> None:
    assert ssh_command(address) == command


@pytest.mark.parametrize(
    "address",
    ["ssh://", "ssh://-oProxyCommand=x", "ssh://-la@hpc", "ssh://a:secret@hpc", "ssh://hpc?secret"],
)
def test_an_address_that_could_be_an_option_or_has_a_password_is_refused(
    address: str, words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHQ_SERVER", address)
    refused = run("jobs")
    assert refused.code == 1
    assert refused.err.startswith("error: BATCHQ_SERVER: expected ")
    assert "secret" not in refused.err
    assert not words.exists()


def test_commands_go_through_ssh_to_the_socket_and_over_one_connection(
    running_api: RunningApi, stage: Stage, words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHQ_SERVER", f"ssh://ana@hpc{running_api.socket}")
    submitted = run("submit", "--name", "train", "--", "true")
    assert (submitted.code, submitted.out) == (0, "podgroup default/train submitted\n")
    listed = run("jobs", "-o", "name")
    assert (listed.code, listed.out) == (0, "default/train\n")
    assert (
        words.read_text() == f"-T -e none -l ana -- hpc batchq connect {running_api.socket}\n" * 2
    )


def test_a_login_through_ssh_needs_no_token(
    running_api: RunningApi, words: Path, tmp_path: Path
) -> None:
    address = f"ssh://hpc{running_api.socket}"
    assert run("login", address).code == 0
    me = json.loads(run("whoami", "-o", "json").out)
    assert (me["server"], me["via"], me["user"]) == (address, "socket", getpass.getuser())


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("echo 'Warning' >&2; echo 'ana@hpc: Permission denied (publickey).' >&2; exit 255",
         "the API at ssh://hpc does not answer: Permission denied (publickey)."),
        ("exit 127", "there is no command `batchq` in the PATH of ssh's shell there"),
        ("printf '\\033[2Jx' >&2; exit 1", r"does not answer: \x1b[2Jx"),
    ],
    ids=["refused", "no batchq", "control characters"],
)  # fmt: skip
def test_the_reason_is_what_ssh_says(
    script: str, sentence: str, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "bin", "ssh", f"#!/bin/sh\n{script}\n")
    monkeypatch.setenv("BATCHQ_SERVER", "ssh://hpc")
    failed = run("jobs")
    assert failed.code == 9
    assert sentence in failed.err.splitlines()[0]


def test_without_ssh_or_without_an_api_there_a_sentence_says_so(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHQ_SERVER", "ssh://hpc/nowhere/api.sock")
    failed = run("jobs")
    assert failed.code == 9
    assert "no API answers at /nowhere/api.sock: No such file or directory" in failed.err
    (tmp_path / "bin" / "ssh").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    failed = run("jobs")
    assert failed.code == 9
    assert "`ssh` cannot be started: No such file or directory" in failed.err


@pytest.fixture
def sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of an sshd of this account on loopback, whose key `ssh` in PATH accepts."""
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    client, keygen = shutil.which("ssh"), shutil.which("ssh-keygen")
    if not (program and client and keygen):
        pytest.skip("no sshd here: apt-get install openssh-server")
    for name in ("host", "user"):
        words = [keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(words, check=True)
    shutil.copy(tmp_path / "user.pub", tmp_path / "authorized")
    port = free_port()
    (tmp_path / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nPidFile none\n"
        f"AuthorizedKeysFile {tmp_path}/authorized\nStrictModes no\nUsePAM no\n"
        f"PermitRootLogin yes\nSetEnv PATH={REMOTE_PATH}\n"
    )
    host_key = (tmp_path / "host.pub").read_text()
    (tmp_path / "known").write_text(f"[127.0.0.1]:{port} {host_key}")
    (tmp_path / "ssh_config").write_text(
        f"IdentityFile {tmp_path}/user\nIdentitiesOnly yes\nUserKnownHostsFile {tmp_path}/known\n"
        "StrictHostKeyChecking yes\nBatchMode yes\n"
    )
    folder = tmp_path / "bin"
    folder.mkdir()
    put(folder, "ssh", f'#!/bin/sh\nexec {client} -F {tmp_path}/ssh_config "$@"\n')
    tested = subprocess.run(
        [program, "-t", "-f", str(tmp_path / "sshd_config")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if tested.returncode:
        pytest.skip(f"sshd does not start here: {tested.stderr.strip()}")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("BATCHQ_HOME", str(tmp_path / "home"))
    words = [program, "-D", "-e", "-f", str(tmp_path / "sshd_config")]
    with (tmp_path / "sshd.log").open("wb") as log, subprocess.Popen(words, stderr=log) as process:
        pause = threading.Event()
        for _ in range(3_000):
            if "Server listening" in (tmp_path / "sshd.log").read_text():
                break
            pause.wait(0.02)
        yield port
        process.terminate()


def test_a_real_sshd_names_the_account(
    running_api: RunningApi, stage: Stage, sshd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHQ_SERVER", f"ssh://127.0.0.1:{sshd}{running_api.socket}")
    assert run("submit", "--name", "train", "--", "true").code == 0
    [listed] = json.loads(run("jobs", "-o", "json").out)["items"]
    assert listed["name"] == "train"
    group = stage.client.get("PodGroup", "train")
    assert group.status.submitted_by == getpass.getuser()


def test_an_unknown_host_key_is_refused(
    running_api: RunningApi, sshd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "known").write_text("")
    monkeypatch.setenv("BATCHQ_SERVER", f"ssh://127.0.0.1:{sshd}{running_api.socket}")
    failed = run("jobs")
    assert failed.code == 9
    assert "Host key verification failed." in failed.err
