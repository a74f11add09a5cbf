"""`batchq checks`, and admission checks in the output of other commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from batchq.client.checks import CheckWatch
from tests.cli.conftest import Batchq, Ran, run
from tests.client.stage import Stage
from tests.daemon.waiting import until
from tests.harness import fork_server
from tests.harness.server import Server
from tests.http.api_process import RunningApi

WORLD = """
apiVersion: batchq/v1
kind: AdmissionCheck
metadata: {name: approval}
spec: {controllerName: boss, parameters: {ticket: OPS-7}}
---
apiVersion: batchq/v1
kind: Queue
metadata: {name: org}
spec: {admissionChecks: [approval]}
---
apiVersion: batchq/v1
kind: Queue
metadata: {name: q}
spec: {parent: org}
"""


@pytest.fixture
def over_the_api(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Batchq]:
    """`batchq` through the socket of the HTTP API."""
    with RunningApi(server.url) as api:

        def call(*words: str) -> Ran:
            with monkeypatch.context() as variables:
                variables.setenv("BATCHQ_SERVER", f"unix:{api.socket}")
                return run(*words)

        yield call


@pytest.fixture
def watch(batchq: Batchq, stage: Stage) -> Iterator[CheckWatch]:
    """An active controller, and two groups, one with reserved quota."""
    assert batchq("apply", "-f", "-", stdin=WORLD).code == 0
    with stage.client.checks.watch("boss", holder="boss-0", lease_s=3600) as watch:
        for name in ("first", "second"):
            batchq("submit", "-q", "q", "--name", name, "--cpus", "8", "--", "true")
        stage.turn()
        yield watch


def test_list_shows_groups_and_their_controllers(batchq: Batchq, watch: CheckWatch) -> None:
    titles, first, second = batchq("checks", "list").lines
    assert titles.split() == [
        *("GROUP", "QUEUE", "PHASE", "CHECK", "STATUS", "REASON", "SINCE", "RESERVED"),
        *("CONTROLLER", "MESSAGE"),
    ]
    assert first.split()[:6] == ["default/first", "q", "Pending", "approval", "Unknown", "-"]
    assert "boss, active for " in first
    assert second.split()[7] == "-"
    [row] = json.loads(batchq("checks", "list", "--waiting", "-o", "json").out)["items"]
    assert {name: row[name] for name in ("podGroup", "queue", "check", "status", "waits")} == {
        "podGroup": "default/first",
        "queue": "q",
        "check": "approval",
        "status": "Unknown",
        "waits": True,
    }
    assert (row["controller"], row["active"], row["reason"]) == ("boss", True, "")
    assert row["reservedAt"] < row["activeUntil"]
    assert len(batchq("checks", "list", "second").lines) == 2
    assert len(batchq("checks", "list", "-q", "org").lines) == 3
    nothing = batchq("checks", "list", "-q", "default", "--waiting")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "no check waits for an answer\n")
    assert batchq("checks", "list", "third").code == 6
    assert batchq("checks", "list", "-q", "elsewhere").code == 6


def test_over_the_api_list_shows_the_checks_of_one_group(
    over_the_api: Batchq, watch: CheckWatch
) -> None:
    [_, first] = over_the_api("checks", "list", "first").lines
    assert first.split()[:4] == ["default/first", "q", "Pending", "approval"]
    assert over_the_api("checks", "list", "second", "--waiting").out == ""
    refusal = (
        "error: `batchq checks list` without a group, or with a queue, is not possible over the"
        " HTTP API\nhint: name the Redis server for it, with its own credentials: `--redis-url URL`"
        "\n"
    )
    for words in ((), ("first", "-q", "org"), ("-n", "default")):
        done = over_the_api("checks", "list", *words)
        assert (done.code, done.err) == (1, refusal)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("jobs", "--start"), "`batchq jobs --start`"),
        (("events", "-w"), "`batchq events -w`"),
        (("checks", "show", "approval"), "`batchq checks show`"),
    ],
)
def test_over_the_api_a_refusal_names_the_option_that_is_not_served(
    over_the_api: Batchq, watch: CheckWatch, words: tuple[str, ...], named: str
) -> None:
    done = over_the_api(*words)
    assert done.code == 1
    assert done.err.startswith(f"error: {named} is not possible over the HTTP API\nhint: ")


def test_set_answers_a_check_and_reports_it(
    batchq: Batchq, watch: CheckWatch, stage: Stage
) -> None:
    done = batchq("checks", "set", "first", "approval", "true", "-m", "fine")
    assert (done.code, done.out) == (0, "podgroup default/first: check approval is True\n")
    again = batchq("checks", "set", "first", "approval", "True", "-m", "fine", "-o", "json")
    assert json.loads(again.out)["items"] == [
        {"kind": "PodGroup", "name": "default/first", "action": "check approval is True already"}
    ]
    stage.turn()
    assert stage.phase("first") == "InQueue"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (
            ["first", "approval", "maybe"],
            1,
            "check approval: expected True, False or Unknown, found 'maybe'",
        ),
        (
            ["first", "approval", "False"],
            1,
            "check approval: expected with status False the reason 'Retry' or 'Reject', found none",
        ),
        (
            ["first", "approval", "True", "--reason", "Reject"],
            1,
            "check approval: status True takes no reason, found 'Reject'",
        ),
        (
            ["first", "approval", "unknown", "--reason", "Reject"],
            1,
            (
                "check approval: expected with status Unknown the reason 'PreemptionRequired', or"
                " none, found 'Reject'"
            ),
        ),
        (["first", "budget", "True"], 6, "PodGroup default/first has no admission check 'budget'"),
        (["third", "approval", "True"], 6, "PodGroup default/third does not exist"),
        (
            ["second", "approval", "True"],
            8,
            "PodGroup default/second has no quota reserved, so its check approval cannot be set",
        ),
    ],
)
def test_set_refuses_in_a_sentence(
    batchq: Batchq, watch: CheckWatch, words: list[str], code: int, sentence: str
) -> None:
    done = batchq("checks", "set", *words)
    assert (done.code, done.out) == (code, "")
    assert done.err.splitlines()[0] == f"error: {sentence}"


def test_show_is_the_page_of_a_check(batchq: Batchq, watch: CheckWatch) -> None:
    page = batchq("checks", "show", "approval").out
    for line in ("Controller:      boss", "Holder:          boss-0", "Queues:          org"):
        assert line in page
    assert "Timeout:         30m, then Retry" in page
    assert "Parameters:      ticket=OPS-7" in page
    assert "Waits for its answer:\n  default/first  reserved " in page
    assert batchq("describe", "admissioncheck", "approval").out.startswith(page.split("\n")[0])
    data = json.loads(batchq("checks", "show", "approval", "-o", "json").out)
    assert (data["active"], data["queues"]) == (True, ["org"])
    assert [row["podGroup"] for row in data["waiting"]] == ["default/first"]
    assert batchq("checks", "show", "aproval").code == 6


def test_groups_and_queues_show_their_checks(batchq: Batchq, watch: CheckWatch) -> None:
    group = batchq("describe", "first").out
    assert "\nChecks:\n  NAME      STATUS   REASON  SINCE" in group
    assert "`batchq checks set first approval True`" in group
    for words in (("describe", "queue", "q"), ("queues", "show", "q")):
        page = batchq(*words).out
        assert "\nChecks:\n  approval  boss, active for " in page
        assert "of queue org" in page
    watch.__exit__(None, None, None)
    page = batchq("queues", "show", "org").out
    assert "  approval  boss, inactive  its groups wait until a controller runs" in page
    batchq("delete", "admissioncheck", "approval")
    assert "  approval  missing  its groups wait" in batchq("queues", "show", "org").out


def test_get_lists_checks(batchq: Batchq, watch: CheckWatch) -> None:
    titles, row = batchq("get", "ac", "-o", "wide").lines
    assert titles.split() == [
        *("NAME", "CONTROLLER", "ACTIVE", "RETRY-DELAY", "TIMEOUT", "PREEMPTION", "HOLDER"),
    ]
    assert row.split()[:4] == ["approval", "boss", "active", "for"]
    assert row.split()[-5:] == ["15m", "30m,", "Retry", "Anytime", "boss-0"]
    printed = batchq("get", "admissioncheck", "approval", "-o", "yaml")
    again = batchq("apply", "-f", "-", stdin=printed.out)
    assert again.out == "admissioncheck approval unchanged\n"


def test_apply_and_delete_warn_of_a_queue_that_is_held(batchq: Batchq, stage: Stage) -> None:
    check, queues = WORLD.split("---\n", 1)
    missing = batchq("apply", "-f", "-", stdin=queues)
    assert missing.code == 0
    assert missing.err == (
        "warning: Queue org asks for the admission check approval, which does not exist: it admits"
        " no group until every check is applied and its controller runs\n"
    )
    assert batchq("apply", "-f", "-", stdin=check).err == ""
    tried = batchq("delete", "admissioncheck", "approval", "--dry-run")
    assert tried.out == "admissioncheck approval deleted (dry run)\n"
    assert tried.err == (
        "warning: queue org still asks for the admission check approval: no group is admitted"
        " there until it is applied again, or removed from spec.admissionChecks\n"
    )


def serving(server: Server, *words: str) -> subprocess.Popen[str]:
    return fork_server.Process(
        [sys.executable, "-m", "batchq.cli", "checks", "serve", "boss", *words],
        env={**os.environ, "BATCHQ_REDIS_URL": server.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_keeps_checks_active_and_releases_them_at_the_end(
    batchq: Batchq, stage: Stage, server: Server, number: signal.Signals
) -> None:
    batchq("apply", "-f", "-", stdin=WORLD)
    batchq("submit", "-q", "q", "--name", "g", "--", "true")
    process = serving(server)
    until(lambda: stage.client.checks.records()[0].active)
    stage.turn()
    assert process.stdout is not None
    assert process.stdout.readline() == (
        "default/g (queue q) waits: `batchq checks set g approval True`\n"
    )
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "keeping approval active\n")
    assert not stage.client.checks.records()[0].active


def test_serve_stands_by_while_another_does(batchq: Batchq, stage: Stage, server: Server) -> None:
    batchq("apply", "-f", "-", stdin=WORLD)
    with stage.client.checks.watch("boss", holder="boss-0", lease_s=3600):
        process = serving(server)
        assert process.stderr is not None
        assert process.stderr.readline() == (
            "approval is kept active by boss-0: standing by until then\n"
        )
    assert process.stderr.readline() == "keeping approval active\n"
    assert stage.client.checks.records()[0].active
    batchq("submit", "-q", "q", "--name", "g", "--", "true")
    stage.turn()
    assert process.stdout is not None
    assert process.stdout.readline().startswith("default/g (queue q) waits: ")
    process.terminate()
    process.communicate(timeout=120)
    assert process.returncode == 0


def test_serve_names_known_controllers_and_acquires_a_new_check(
    batchq: Batchq, stage: Stage, server: Server
) -> None:
    other = WORLD.replace("boss", "them").replace("approval", "budget").partition("---")[0]
    batchq("apply", "-f", "-", stdin=other)
    process = serving(server)
    assert process.stderr is not None
    assert process.stderr.readline() == (
        "there is no AdmissionCheck of controller boss (known controllers: them):"
        " standing by until one is applied\n"
    )
    batchq("apply", "-f", "-", stdin=WORLD)
    assert process.stderr.readline() == "keeping approval active\n"
    process.terminate()
    process.communicate(timeout=120)
    assert process.returncode == 0


def test_a_check_without_a_delay_is_warned_of(batchq: Batchq, stage: Stage) -> None:
    check = WORLD.partition("---")[0].replace("boss,", "boss, retryDelayMinutes: 0,")
    done = batchq("apply", "-f", "-", stdin=check)
    assert (done.code, done.out) == (0, "admissioncheck approval created\n")
    assert done.err == (
        "warning: AdmissionCheck approval has retryDelayMinutes 0: after an answer False"
        " (Retry) the group is reserved and asked about again at once, many times"
        " a second; set 1 or more\n"
    )
    assert batchq("apply", "-f", "-", stdin=check.replace(": 0", ": 1")).err == ""


@pytest.mark.parametrize("kind", ["check", "checks", "ac", "AdmissionCheck"])
def test_a_check_may_be_called_one(batchq: Batchq, watch: CheckWatch, kind: str) -> None:
    assert batchq("describe", kind, "approval").out.splitlines()[0].split()[-1] == "approval"
    assert batchq("get", kind, "approval", "-o", "name").out == "admissioncheck/approval\n"
    assert batchq("delete", kind, "approval").out == "admissioncheck approval deleted\n"
