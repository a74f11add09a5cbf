"""The local stack with real processes: start, restart, repair and stop."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from batchq.api_session import ApiCredentials, ApiSession
from batchq.client import Client
from batchq.daemon import detached, stack
from batchq.daemon.embedded_server import ensure_server, running_server, stop_server
from batchq.daemon.stack import PartState, StackReport, UpOptions
from batchq.errors import BatchqError, Conflict, InvalidInput, StoreUnavailable
from batchq.paths import URL_VARIABLE, Home, default_url
from batchq.store.redis import open_store
from tests.builders import a_node
from tests.daemon.waiting import catches, until
from tests.effort import sample

pytestmark = pytest.mark.e2e

IGNORES_SIGTERM = ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"]
STUBBORN = {
    "apiVersion": "batchq/v1",
    "kind": "PodGroup",
    "metadata": {"name": "stubborn"},
    "spec": {"tasks": [{"name": "main", "template": {"command": IGNORES_SIGTERM}}]},
}

SMALL = UpOptions(agents=2, resources="cpu=1,memory=64Mi")


@pytest.fixture(autouse=True)
def own_server(monkeypatch: pytest.MonkeyPatch, home: Home) -> Iterator[None]:
    """Ignore a server named in the environment, and leave nothing behind."""
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    # The checkout may not be installed.
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{root}{os.pathsep}{root / 'actions'}")
    yield
    if any(home.run.glob("agent-*.json")) and running_server(home) is None:
        # Agents would wait for it.
        ensure_server(home)
    stack.down(home, now=True)


def states(report: StackReport) -> list[str]:
    """Return the states of server, scheduler and agents, such as `started`."""
    return [str(part.state) for part in report.parts]


def kill(report: StackReport, name: str) -> None:
    """Kill one part as a power cut would."""
    pid = next(part.pid for part in report.parts if part.name == name)
    assert pid is not None
    birth = detached.birth_of(pid)
    os.kill(pid, signal.SIGKILL)
    until(lambda: detached.reap(pid) is not None or detached.birth_of(pid) != birth)


def test_a_port_is_refused_while_processes_run_without_a_password(
    home: Home,
) -> None:
    stack.up(home, SMALL)
    stop_server(home)
    with pytest.raises(Conflict, match="the running processes have no password, and a server that"):
        stack.up(home, UpOptions(agents=2, port=17_812))
    assert not home.password.exists()


def test_up_starts_everything_and_a_second_up_finds_it(home: Home) -> None:
    first = stack.up(home, SMALL)
    assert states(first) == ["started"] * 4
    assert first.parts[0].name == "server"
    assert first.parts[1].name == "scheduler"
    second = stack.up(home, SMALL)
    assert states(second) == ["running"] * 4
    assert [part.pid for part in second.parts] == [part.pid for part in first.parts]
    assert states(stack.status(home)) == ["running"] * 4


def test_up_returns_when_a_scheduler_leads_and_all_nodes_are_ready(home: Home) -> None:
    report = stack.up(home, SMALL)
    store = open_store(default_url(home))
    leader = store.leader()
    assert leader is not None
    assert leader.identity.split(":")[1] == str(report.parts[1].pid)
    assert {node.metadata.name for node in store.list("Node")} == {
        part.name for part in report.parts[2:]
    }
    until(lambda: store.get("Queue", "default") is not None)
    store.close()


def test_down_stops_everything_keeps_the_data_and_may_be_called_twice(home: Home) -> None:
    before = stack.up(home, SMALL)
    assert states(stack.down(home)) == ["ended"] * 4
    assert all(detached.birth_of(part.pid or 0) is None for part in before.parts)
    assert states(stack.down(home)) == ["not running"] * 2
    assert list(home.run.glob("*.json")) == []
    ensure_server(home)
    store = open_store(default_url(home))
    assert store.get("Queue", "default") is not None
    store.close()


@pytest.mark.parametrize(
    "place", sample([0, 1, 2], 2), ids=["server", "scheduler", "agent"].__getitem__
)
def test_a_killed_part_is_seen_and_only_that_is_started_again(home: Home, place: int) -> None:
    first = stack.up(home, SMALL)
    kill(first, first.parts[place].name)
    expected = ["running"] * 4
    expected[place] = "dead"
    assert states(stack.status(home)) == expected
    again = stack.up(home, SMALL)
    expected[place] = "started"
    assert states(again) == expected


def test_more_agents_may_join(home: Home) -> None:
    stack.up(home, UpOptions(agents=1, resources="cpu=1,memory=64Mi"))
    assert states(stack.up(home, SMALL)) == ["running", "running", "running", "started"]


def test_agents_divide_the_machine_by_default(home: Home) -> None:
    report = stack.up(home, UpOptions(agents=1))
    assert report.parts[2].detail.startswith("cpu=")
    with pytest.raises(Conflict, match="no cpu or memory of this machine is left for") as caught:
        stack.up(home, UpOptions(agents=2))
    assert "`batchq down`, then `batchq up --agents 2`" in caught.value.hint
    assert states(stack.status(home)) == ["running"] * 3


def test_an_agent_that_was_killed_offers_again_what_it_did(home: Home) -> None:
    larger_than_the_machine = "cpu=512,memory=64Mi"
    first = stack.up(home, UpOptions(agents=2, resources=larger_than_the_machine))
    kill(first, first.parts[2].name)
    kill(first, "server")
    again = stack.up(home, UpOptions(agents=2))
    assert states(again) == ["started", "running", "started", "running"]
    assert [part.detail for part in again.parts[2:]] == [larger_than_the_machine] * 2


def test_where_nothing_is_left_nothing_is_started(home: Home) -> None:
    first = stack.up(home, UpOptions(agents=1))
    kill(first, "server")
    with pytest.raises(Conflict, match="no cpu or memory of this machine is left for"):
        stack.up(home, UpOptions(agents=2))
    assert states(stack.status(home)) == ["dead", "running", "running"]


def test_an_up_whose_port_is_taken_does_not_say_that_a_server_keeps_running(home: Home) -> None:
    first = stack.up(home, UpOptions(agents=1))
    stack.down(home)
    assert states(first) == ["started"] * 3
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Conflict, match=f"port {port}"):
            stack.up(home, UpOptions(agents=1, port=port), say=said.append)
    assert said == ["Starting the embedded server"]
    assert states(stack.status(home))[0] == "not running"


def test_a_failed_up_keeps_the_server_and_the_resources_of_dead_agents(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = stack.up(home, UpOptions(agents=1, resources="cpu=512,memory=64Mi"))
    for part in first.parts:
        kill(first, part.name)
    said: list[str] = []
    monkeypatch.setenv("BATCHQ_LOG", "carved-in-stone")
    with pytest.raises(BatchqError, match="at its start"):
        stack.up(home, UpOptions(agents=1), say=said.append)
    assert states(stack.status(home)) == ["running", "dead", "dead"]
    assert said[-1] == "The embedded server holds data and keeps running; `batchq down` ends it"
    monkeypatch.delenv("BATCHQ_LOG")
    again = stack.up(home, UpOptions(agents=1))
    assert states(again) == ["running", "started", "started"]
    assert again.parts[2].detail == "cpu=512,memory=64Mi"


def test_no_agents_is_a_scheduler_alone(home: Home) -> None:
    assert states(stack.up(home, UpOptions(agents=0))) == ["started"] * 2


def test_a_server_elsewhere_is_used_and_left_alone(home: Home, tmp_path: Path) -> None:
    elsewhere = Home(tmp_path / "elsewhere")
    url = ensure_server(elsewhere).url
    report = stack.up(home, UpOptions(url=url, agents=1, resources="cpu=1,memory=64Mi"))
    assert [part.name for part in report.parts[:1]] == ["scheduler"]
    assert states(report) == ["started"] * 2
    stack.down(home)
    assert stack.status(elsewhere).parts[0].state is PartState.RUNNING
    stop_server(elsewhere)


def test_down_that_is_meant_for_another_server_ends_nothing_here(home: Home) -> None:
    stack.up(home, UpOptions(agents=0))
    with pytest.raises(
        Conflict, match=r"runs on unix:///.*, not on redis://\*{3}@other:6379"
    ) as caught:
        stack.down(home, url="redis://:secret@other:6379")
    assert "`batchq down` stops what runs here" in caught.value.hint
    assert "secret" not in caught.value.message
    assert states(stack.status(home)) == ["running"] * 2


def test_down_with_the_stacks_own_url_is_down(home: Home) -> None:
    stack.up(home, UpOptions(agents=0))
    assert states(stack.down(home, url=default_url(home))) == ["ended"] * 2


def test_down_names_the_agents_of_other_commands_that_lose_their_server(home: Home) -> None:
    ensure_server(home)
    with Client(default_url(home)) as client:
        [former] = detached.node_names(1)
        client.apply([a_node("elsewhere"), a_node(former)])
    store = open_store(default_url(home))
    store.beat("elsewhere")
    store.beat(former)
    store.close()
    said: list[str] = []
    stack.down(home, say=said.append)
    assert said == ["The server ends for other agents, too: elsewhere"]


def test_down_now_does_not_wait_for_pods(home: Home) -> None:
    stack.up(home, UpOptions(agents=1, resources="cpu=1,memory=64Mi"))
    with Client(default_url(home)) as client:
        client.submit(STUBBORN)
        until(lambda: any("up" in line.text for line in client.logs("stubborn")))
    # A stop that waits for the pod kills the agent in the end.
    assert states(stack.down(home, now=True, drained_within_s=60)) == ["ended"] * 3


def test_a_stack_is_not_moved_to_another_server_while_it_runs(home: Home, tmp_path: Path) -> None:
    stack.up(home, UpOptions(agents=0))
    elsewhere = Home(tmp_path / "elsewhere")
    url = ensure_server(elsewhere).url
    try:
        with pytest.raises(Conflict, match="scheduler of this home runs already, on unix:///"):
            stack.up(home, UpOptions(url=url, agents=0))
    finally:
        stop_server(elsewhere)
    assert states(stack.status(home)) == ["running"] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (UpOptions(agents=65), "expected 0 to 64 agents, found 65"),
        (UpOptions(resources="cpu"), "expected name=quantity"),
        (UpOptions(config=Path("/nowhere/scheduler.yaml")), "/nowhere/scheduler.yaml"),
    ],
)
def test_a_wrong_option_starts_nothing(home: Home, options: UpOptions, message: str) -> None:
    with pytest.raises(BatchqError, match=message):
        stack.up(home, options)
    assert not home.root.exists()


def test_a_server_elsewhere_that_is_not_there_starts_nothing(home: Home) -> None:
    with pytest.raises(StoreUnavailable, match="not running"):
        stack.up(home, UpOptions(url="unix:///nowhere/at-all.sock"))
    assert list(home.run.glob("*.json")) == []


def test_a_home_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot keep state in"):
        stack.up(Home(tmp_path / "file"))


def test_a_part_that_dies_at_its_start_is_quoted_and_the_rest_is_ended(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHQ_LOG", "carved-in-stone")
    with pytest.raises(BatchqError, match=r"(?s)ended with exit code 1 at its start.*carved-in"):
        stack.up(home, SMALL)
    assert states(stack.status(home)) == ["not running"] * 2


def test_status_and_down_of_a_home_that_never_was_create_nothing(home: Home) -> None:
    assert states(stack.status(home)) == ["not running"] * 2
    assert states(stack.down(home)) == ["not running"] * 2
    assert not home.root.exists()


def hold_in_child(home: Home, report: StackReport) -> int:
    """Run `hold` in a forked child, because it needs a main thread; return the child's pid once it
    handles SIGTERM.
    """
    child = os.fork()
    if child == 0:
        exit_code = 1
        try:
            stack.hold(home, report)
            exit_code = 0
        except BatchqError:
            exit_code = 9
        finally:
            # The child must not continue with the tests in any case.
            os._exit(exit_code)
    until(lambda: catches(child, signal.SIGTERM))
    return child


def test_in_the_foreground_the_death_of_a_part_ends_it_all(home: Home) -> None:
    report = stack.up(home, UpOptions(agents=0))
    child = hold_in_child(home, report)
    kill(report, "scheduler")
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9
    assert states(stack.status(home)) == ["not running"] * 2


def who_am_i(home: Home) -> str:
    """Ask the HTTP API of this home."""
    credentials = ApiCredentials(server=f"unix:{home.api_socket}")
    with ApiSession(credentials) as session:
        return str(session.request("GET", "/v1/me")["user"])


def serving_child(report: StackReport) -> psutil.Process:
    """Return the process that answers, the child of the one that `up` has started."""
    pid = next(part.pid for part in report.parts if part.name == "api")
    found: list[psutil.Process] = []
    until(lambda: bool(found.extend(psutil.Process(pid).children()) or found))
    return found[0]


def test_the_http_api_starts_and_ends_with_the_stack_and_a_killed_one_is_replaced(
    home: Home,
) -> None:
    report = stack.up(home, UpOptions(agents=0, api=None))
    assert [part.name for part in report.parts] == ["server", "scheduler", "api"]
    assert report.parts[-1].detail == f"unix:{home.api_socket}"
    user = who_am_i(home)

    first = serving_child(report)
    first.kill()
    # The request waits for the next child: the socket has stayed open.
    assert who_am_i(home) == user
    assert serving_child(report).pid != first.pid

    kill(report, "api")
    assert states(stack.up(home, UpOptions(agents=0, api=None))) == [
        "running",
        "running",
        "started",
    ]
    assert who_am_i(home) == user

    assert states(stack.down(home)) == ["ended"] * 3
    assert not home.api_socket.exists()


def test_up_goes_on_without_an_http_api_that_cannot_start(home: Home) -> None:
    home.prepare()
    home.api_socket.mkdir()
    said: list[str] = []
    report = stack.up(home, UpOptions(agents=0, api=True), say=said.append)
    assert states(report) == ["started", "started"]
    assert said[-1].startswith("The HTTP API did not start: ")
    assert f"cannot listen on unix:{home.api_socket}" in said[-1]


def test_the_foreground_outlives_the_http_api(home: Home) -> None:
    report = stack.up(home, UpOptions(agents=0, api=True))
    child = hold_in_child(home, report)
    kill(report, "api")
    until(lambda: states(stack.status(home)) == ["running", "running", "dead"])
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert states(stack.status(home)) == ["not running"] * 2
