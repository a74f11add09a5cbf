"""A password on the command line is removed from it."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

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
