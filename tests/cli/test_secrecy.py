"""A password on the command line is removed from it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from batchq.api_session import ApiCredentials, write_credentials
from batchq.cli.main import main
from batchq.paths import Home
from tests.daemon.waiting import until
from tests.effort import sample

CANARY = "canary-4711"


@pytest.mark.parametrize(
    "option",
    sample(
        [
            ["--redis-url", f"redis://:{CANARY}@127.0.0.1:1/0"],
            [f"--redis-url=redis://somebody:{CANARY}@127.0.0.1:1/0"],
            ["--no-color", "--redis-url", f"redis://127.0.0.1:1/0?password={CANARY}"],
            ["--redis-url", f"redis+sentinel://:{CANARY}@127.0.0.1:1,127.0.0.1:2/main"],
            ["--redis-url", f"redis+sentinel://127.0.0.1:1/main?sentinel_password={CANARY}"],
        ],
        2,
    ),
)
def test_a_running_command_shows_no_password(option: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "batchq.cli", *option, "scheduler"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        # By the time it reports that it waits for the server, it has been restarted.
        said = process.stdout.readline()
        until(lambda: CANARY not in " ".join(psutil.Process(process.pid).cmdline()))
        assert psutil.Process(process.pid).cmdline()[-1] == "scheduler"
        assert "store.unavailable" in said
        assert CANARY not in said
    finally:
        process.terminate()
        process.communicate(timeout=120)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", f"redis://:{CANARY}@127.0.0.1:1/0"])
def test_the_option_comes_before_an_api_and_another_server_whether_or_not_it_has_a_password(
    url: str, home: Path
) -> None:
    elsewhere = {"BATCHQ_SERVER": "unix:/nowhere/api.sock", "BATCHQ_REDIS_URL": "unix:///nowhere"}
    write_credentials(Home(home), ApiCredentials("unix:/nowhere/of-the-login.sock"))
    done = subprocess.run(
        [sys.executable, "-m", "batchq.cli", "--redis-url", url, "suspend", "g"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | elsewhere,
    )
    assert done.returncode == 9
    assert "@127.0.0.1:1/0" in done.stderr or "redis://127.0.0.1:1/0" in done.stderr
    assert "nowhere" not in done.stderr
    assert CANARY not in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--as", "alice", "--because", "away", "--redis-url", f"redis://:{CANARY}@127.0.0.1:1/0"],
        ["--redis-url", "redis://h", "--redis-url", f"redis://:{CANARY}@127.0.0.1:1/0"],
        [f"--redis-url=redis://:{CANARY}@h/0", "--redis-url", f"redis://:{CANARY}@127.0.0.1:1/0"],
    ],
)
def test_a_password_is_found_behind_other_options(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "execve", _StartedAgain.of)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "batchq.cli", *options, "jobs"])
    monkeypatch.setattr(sys, "argv", ["batchq", *options, "jobs"])
    with pytest.raises(_StartedAgain) as again:
        main()
    assert CANARY not in " ".join(again.value.words)
    assert again.value.words[-2:] == ["--redis-url=***", "jobs"]
    assert again.value.environ["BATCHQ_REDIS_URL"] == f"redis://:{CANARY}@127.0.0.1:1/0"


class _StartedAgain(Exception):
    """A program that would have been started."""

    words: list[str]
    environ: dict[str, str]

    @classmethod
    def of(cls, path: str, words: list[str], environ: dict[str, str]) -> None:
        """Raise what would have been started."""
        raised = cls()
        raised.words, raised.environ = words, environ
        raise raised


def test_a_url_without_a_password_is_left_as_it_is() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "batchq.cli", "--redis-url", "redis://127.0.0.1:1/0", "jobs"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 9
    assert "redis://127.0.0.1:1/0" in done.stderr


def test_the_message_about_a_wrong_url_hides_its_password() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "batchq.cli", "--redis-url", f"http://:{CANARY}@h/0", "jobs"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "the server's URL is malformed" in done.stderr
    assert CANARY not in done.stderr
