"""Error messages and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from batchq import errors
from batchq.cli.output import Interrupted, on_interrupt, trouble_of, wants_json
from tests.cli.conftest import Batchq, run
from tests.client.stage import Stage
from tests.harness import fork_server
from tests.harness.server import Server


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidInput("x"), 1),
        (errors.UsageError("x"), 2),
        (errors.NotFound("x"), 6),
        (errors.Conflict("x"), 8),
        (errors.StoreUnavailable("x"), 9),
        (errors.Rejected("x"), 12),
        (errors.WaitTimedOut("x"), 124),
        (Interrupted("x"), 130),
        (click.Abort(), 130),
        (click.BadParameter("x"), 2),
        (click.ClickException("x"), 1),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error: BaseException, code: int) -> None:
    trouble = trouble_of(error)
    assert trouble is not None
    assert trouble.exit_code == code


def test_a_bug_is_not_shown_as_a_users_error() -> None:
    assert trouble_of(errors.InvariantBroken("x")) is None
    assert trouble_of(ZeroDivisionError()) is None


def test_an_error_is_a_sentence_and_a_hint_on_stderr(batchq: Batchq, stage: Stage) -> None:
    done = batchq("describe", "queue", "defualt")
    assert done == (
        6,
        "",
        "error: Queue defualt does not exist\nhint: did you mean default?\n",
    )


@pytest.mark.parametrize("words", [("-o", "json"), ("-ojson",), ("--output=json",)])
def test_an_answer_in_json_has_its_errors_in_json(
    batchq: Batchq, stage: Stage, words: tuple[str, ...]
) -> None:
    done = batchq("describe", "queue", "defualt", *words)
    assert (done.code, done.out) == (6, "")
    assert json.loads(done.err) == {
        "error": {
            "code": "NotFound",
            "message": "Queue defualt does not exist",
            "hint": "did you mean default?",
        }
    }


def test_json_asked_for_by_the_users_own_command_is_not_ours() -> None:
    assert wants_json(["jobs", "-o", "json"])
    assert not wants_json(["submit", "--", "kubectl", "get", "-o", "json"])


@pytest.mark.parametrize(
    "words",
    [
        ("jobs",),
        ("wait", "x"),
        ("wait", "x", "--timeout", "1h"),
        ("progress", "x"),
        ("logs", "-f", "x"),
        ("result", "x"),
    ],
)
def test_without_a_server_batchq_says_how_to_start_one(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done == (
        9,
        "",
        (
            "error: no batchq server is running on this machine\n"
            "hint: start one with `batchq up`, or name yours with --redis-url\n"
        ),
    )


def test_in_a_pod_without_a_server_batchq_names_the_token_of_the_api(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BATCHQ_POD", "load-main-0")
    assert run("jobs") == (
        9,
        "",
        (
            "error: no batchq server is running on this machine\n"
            "hint: in a pod, use batchq.ApiClient, and submit the pod's group with `--api-token`\n"
        ),
    )


def test_ctrl_c_reports_what_keeps_running() -> None:
    with pytest.raises(Interrupted) as caught, on_interrupt("the group goes on", hint="cancel it"):
        raise KeyboardInterrupt
    assert (caught.value.message, caught.value.hint) == ("the group goes on", "cancel it")


def start(server: Server, *words: str, **more: object) -> subprocess.Popen[str]:
    """Start a real `batchq`, which can be interrupted and whose pipes can be closed."""
    return fork_server.Process(
        [sys.executable, "-m", "batchq.cli", *words],
        env={**os.environ, "BATCHQ_REDIS_URL": server.url, "PYTHONUNBUFFERED": "1"},
        stderr=subprocess.PIPE,
        text=True,
        **more,  # type: ignore[call-overload]
    )


def test_an_interrupted_wait_ends_with_130(stage: Stage, server: Server, batchq: Batchq) -> None:
    batchq("submit", "--name", "x", "--cpus", "9", "--", "true")
    stage.turn()
    process = start(server, "progress", "x", stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        # The first line comes from inside the wait.
        assert process.stdout.readline().startswith("x: Pending: ExceedsCapacity")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err.strip().splitlines() == [
        "error: interrupted; PodGroup default/x keeps running",
        "hint: stop it with `batchq cancel default/x`",
    ]


def test_an_interrupted_wait_for_the_server_does_not_speak_of_the_group() -> None:
    with start(Server(), "wait", "x") as process:
        assert process.stderr is not None
        assert process.stderr.readline().endswith("; waiting for it\n")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "error: interrupted; the server has not answered\n")


def test_a_closed_pipe_causes_no_message(stage: Stage, server: Server) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with start(server, "get", "queues", "-o", "yaml", stdout=writing) as process:
        os.close(writing)
        _, err = process.communicate(timeout=120)
    assert err == ""
    assert process.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_an_answer_that_cannot_be_written_is_an_error(stage: Stage, server: Server) -> None:
    with (
        Path("/dev/full").open("w") as full,
        start(server, "get", "queues", stdout=full) as process,
    ):
        _, err = process.communicate(timeout=120)
    assert err.splitlines()[0] == ("error: the answer cannot be written: No space left on device")
    assert "Traceback" not in err
    assert process.returncode == 1


NEVER_WRITTEN = "error: the answer cannot be written: "


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "words",
    [
        ("jobs",),
        ("get", "queues", "-o", "yaml"),
        ("submit", "--name", "new", "--", "true"),
        ("logs", "x"),
        ("version",),
        ("--version",),
        ("--help",),
    ],
)
def test_a_full_disk_is_reported_once_with_exit_code_1(
    stage: Stage, server: Server, words: tuple[str, ...]
) -> None:
    stage.client.submit(command=["true"], name="x")
    stage.turn()
    stage.start("x")
    [pod] = stage.pods("x")
    place = pod.status.node, pod.metadata.uid, pod.status.attempt
    stage.store.append_log(*place, "stdout", b"one\n")
    with Path("/dev/full").open("w") as full:
        process = start(server, *words, stdout=full)
        with process:
            _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert err.splitlines() == [
        f"{NEVER_WRITTEN}No space left on device",
        "hint: free some space, or write elsewhere",
    ]


def test_a_closed_stdout_is_an_error_like_any_other(stage: Stage, server: Server) -> None:
    line = f"{sys.executable} -m batchq.cli {{}}"
    for words in ("queues", "version", "--help", "get queues -o json"):
        done = subprocess.run(
            ["sh", "-c", f"{line.format(words)} >&-"],
            env={**os.environ, "BATCHQ_REDIS_URL": server.url},
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 1, words
        assert "Traceback" not in done.stderr
        assert "the answer cannot be written: Bad file descriptor" in done.stderr


def test_unused_closed_streams_cause_no_error(stage: Stage, server: Server) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m batchq.cli queues <&- 2>&-"],
        env={**os.environ, "BATCHQ_REDIS_URL": server.url},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout.startswith("NAME ")


def test_a_misplaced_global_option_gets_a_hint(batchq: Batchq) -> None:
    code, _, said = batchq("jobs", "--redis-url", "redis://localhost:1/0")
    assert code == 2
    assert "hint: --redis-url goes before the command: batchq --redis-url …" in said


def test_choices_are_part_of_the_sentence() -> None:
    done = run("external", "report")
    assert done.code == 2
    assert done.err.splitlines()[0] == (
        "error: missing argument '{running|succeeded|failed|evicted}'. Choose from: running,"
        " succeeded, failed, evicted"
    )
    assert len(done.err.splitlines()) == 2
