"""The accounts of this machine's agents, which the API does not accept on its socket."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from secrets import token_hex
from typing import Any, cast

import pytest
from click.testing import CliRunner

from batchq.api.access import parse_binding
from batchq.api.node_report import AGENT_SOCKET
from batchq.cli.main import main
from batchq.client.access_control import Actor, Delegate
from batchq.http import identities
from batchq.http.application import ApiApplication, ApiSettings
from batchq.http.identities import (
    AgentAccounts,
    AgentLooks,
    MachineAccount,
    SocketAccounts,
    SocketPeer,
    account_of,
)
from batchq.http.problems import ApiProblem
from batchq.worker.host.accounts import Announcement
from tests.client.stage import Stage
from tests.e2e.test_two_users import public_python
from tests.harness.server import Server
from tests.http.api_process import ApiProcess, RunningApi
from tests.http.test_doors import ASK

LISTEN = """
import socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind("\\0" + sys.argv[1])
if sys.argv[2] == "listens":
    listening.listen(128)
print("ready", flush=True)
sys.stdin.read()
"""

ROOT = Actor(user="root@host", via="redis")
#: No other test has it: what is announced holds for every API of this machine.
AGENT_USER = 65_533
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


def asked(command: Sequence[str]) -> str:
    """Return what a process of the agent's account prints."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd="/", env={}, timeout=60,
        user=AGENT_USER, group=AGENT_USER, extra_groups=[],
    )  # fmt: skip
    return done.stdout


@contextmanager
def agent_of_another_user(name: str, does: str = "listens") -> Iterator[None]:
    """Another user's process with an agent's socket."""
    process = subprocess.Popen(
        [public_python(), "-c", LISTEN, name, does],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
        user=AGENT_USER,
        group=AGENT_USER,
        extra_groups=[],
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            process.communicate()


@pytest.fixture
def prefix() -> str:
    """A prefix that the agents of other tests do not have."""
    return f"test-{token_hex(8)}/"


@AS_ROOT
def test_a_pod_of_another_accounts_agent_is_refused_on_the_socket(
    server: Server, stage: Stage
) -> None:
    with ApiProcess(server.url) as process:
        ask = [public_python(), "-c", ASK, str(process.socket), "/v1/me"]
        assert asked(ask).startswith("200 ")
        with agent_of_another_user(f"{AGENT_SOCKET}{token_hex(16)}"):
            for _ in range(100):
                refused = asked(ask)
                if refused.startswith("401 "):
                    break
        assert refused.startswith("401 ")
        assert f"account uid-{AGENT_USER} runs pods" in refused
        # The agent has ended: its pods may have killed it.
        assert asked(ask).startswith("401 ")
        assert process.caller()("GET", "/v1/me").status == 200


@AS_ROOT
def test_an_account_announces_itself_alone(prefix: str) -> None:
    accounts = AgentAccounts(prefix=prefix)
    with agent_of_another_user(f"{prefix}{token_hex(16)}"):
        accounts.look()
    assert AGENT_USER in accounts
    assert os.getuid() not in accounts


@AS_ROOT
def test_a_socket_that_does_not_listen_announces_no_one(prefix: str) -> None:
    accounts = AgentAccounts(prefix=prefix)
    with agent_of_another_user(f"{prefix}{token_hex(16)}", "binds"):
        accounts.look()
    assert AGENT_USER not in accounts


def test_an_agent_announces_its_account_until_it_ends(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = AgentAccounts(prefix=prefix)
    announcement = Announcement(is_wanted=True, prefix=prefix)
    accounts.look()
    assert os.getuid() in accounts
    announcement.close()
    accounts.look()
    assert os.getuid() in accounts
    later = identities.monotonic() + 24 * 60 * 60 + 1
    monkeypatch.setattr(identities, "monotonic", lambda: later)
    accounts.look()
    assert os.getuid() not in accounts


def test_an_agent_whose_socket_is_kept_busy_is_found_nevertheless(prefix: str) -> None:
    announcement = Announcement(is_wanted=True, prefix=prefix)
    name = announcement.name
    callers = []
    while True:
        caller = socket.socket(socket.AF_UNIX)
        caller.setblocking(False)
        callers.append(caller)
        try:
            caller.connect(f"\0{name}")
        except BlockingIOError:
            break
    accounts = AgentAccounts(prefix=prefix)
    accounts.look()
    assert os.getuid() in accounts
    for caller in callers:
        caller.close()
    announcement.close()


def test_thousands_of_other_sockets_are_no_agents(prefix: str) -> None:
    sockets = []
    for number in range(500):
        one = socket.socket(socket.AF_UNIX)
        one.bind(f"\0{prefix}{number}")
        sockets.append(one)
    other = socket.socket(socket.AF_UNIX)
    other.bind(f"\0other-{prefix}")
    other.listen()
    accounts = AgentAccounts(prefix=prefix)
    accounts.look()
    assert (os.getuid() in accounts, accounts.trouble) == (False, "")
    for one in [*sockets, other]:
        one.close()


def test_an_agent_of_one_person_announces_nothing(prefix: str) -> None:
    announcement = Announcement(is_wanted=False, prefix=prefix)
    accounts = AgentAccounts(prefix=prefix)
    accounts.look()
    assert os.getuid() not in accounts
    announcement.close()


def test_an_api_does_not_start_under_the_account_of_an_agent(server: Server) -> None:
    announcement = Announcement(is_wanted=True)
    words = ["--redis-url", server.url, "api", "--listen", f"unix:/tmp/bq-{token_hex(8)}"]
    refused = CliRunner().invoke(main, words, catch_exceptions=False)
    announcement.close()
    assert refused.exit_code == 1
    assert "runs this API, and also an agent of this machine" in refused.stderr
    assert "--one-account" in refused.stderr


def test_looks_of_several_threads_agree(prefix: str) -> None:
    announcement = Announcement(is_wanted=True, prefix=prefix)
    accounts = AgentAccounts(prefix=prefix)
    threads = [threading.Thread(target=accounts.look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert os.getuid() in accounts
    announcement.close()


class WarningsOnly:
    """A log that keeps what each warning says to do."""

    def __init__(self) -> None:
        self.remedies: list[str] = []

    def warning(self, event: str, *, remedy: str, **_: object) -> None:
        self.remedies.append(remedy)


def silent(prefix: bytes) -> tuple[frozenset[int], str]:
    """A kernel that does not name the accounts."""
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_an_api_whose_kernel_is_silent_keeps_the_accounts_it_knows_and_says_so_once(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = WarningsOnly()
    monkeypatch.setattr(identities, "_log", log)
    accounts = AgentAccounts([7], prefix=prefix)
    announcement = Announcement(is_wanted=True, prefix=prefix)
    accounts.look()
    announcement.close()
    monkeypatch.setattr(identities, "_listening_accounts", silent)
    accounts.look()
    accounts.look()
    assert (7 in accounts, os.getuid() in accounts) == (True, True)
    assert log.remedies == ["name the accounts of agents with --agent-user"]


def test_an_api_does_not_start_on_a_socket_if_the_kernel_names_no_accounts(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities, "_listening_accounts", silent)
    words = ["--redis-url", server.url, "api", "--listen", f"unix:/tmp/bq-{token_hex(8)}"]
    refused = CliRunner().invoke(main, words, catch_exceptions=False)
    assert refused.exit_code == 1
    assert "the kernel does not say which accounts run agents" in refused.stderr
    assert "--agent-user" in refused.stderr


def test_a_kernel_that_names_no_accounts_is_noticed_before_any_agent_listens(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Linux 5.3, it leaves the account out of its answer."""
    monkeypatch.setattr(identities, "_UID", 99)
    accounts = AgentAccounts(prefix=prefix)
    accounts.look()
    assert "names no accounts" in accounts.trouble


def test_a_malformed_answer_of_the_kernel_does_not_end_the_looks(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = AgentAccounts(prefix=prefix)
    with monkeypatch.context() as patched:
        patched.setattr(identities, "_accounts_of_listening", torn)
        accounts.look()
        assert "malformed" in accounts.trouble
    accounts.look()
    assert accounts.trouble == ""


def torn(prefixes: object) -> None:
    """Read an answer that ends early."""
    struct.unpack("=I", b"1")


def test_sockets_of_other_programs_are_not_taken_apart(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any account can make many of them."""
    taken_apart, attributes_in = [], identities._attributes_in

    def counted(body: bytes) -> Iterator[tuple[int, bytes]]:
        taken_apart.append(body)
        return attributes_in(body)

    monkeypatch.setattr(identities, "_attributes_in", counted)
    with ExitStack() as open_sockets:
        for number in range(700):
            other = open_sockets.enter_context(socket.socket(socket.AF_UNIX))
            other.bind(f"\0{token_hex(4)}-{number}".encode().ljust(100, b"y"))
            other.listen(0)
        open_sockets.enter_context(closing(Announcement(is_wanted=True, prefix=prefix)))
        accounts = AgentAccounts(prefix=prefix)
        accounts.look()
    assert os.getuid() in accounts
    assert len(taken_apart) < 700


def test_requests_share_a_look_that_begins_after_they_have_come() -> None:
    begun, ended, go_on = [], [], threading.Event()

    class Slow(AgentAccounts):
        def look(self) -> None:
            begun.append(1)
            go_on.wait(60)
            ended.append(1)

    async def come() -> None:
        looks = AgentLooks(Slow())
        with ThreadPoolExecutor(4) as threads:
            first = asyncio.create_task(looks.look(threads))
            while not begun:
                await asyncio.sleep(0.01)
            later = [asyncio.create_task(looks.look(threads)) for _ in range(20)]
            # One whose caller has gone is no look for the others.
            first.cancel()
            await asyncio.sleep(0.01)
            go_on.set()
            await asyncio.gather(*later)

    asyncio.run(come())
    assert (len(begun), len(ended)) == (2, 2)


@pytest.mark.parametrize("name", ["getpwuid", "getpwnam"])
def test_a_slow_directory_of_accounts_delays_no_other_caller(
    server: Server, stage: Stage, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    is_asked, go_on = threading.Event(), threading.Event()

    def slow(_: object) -> None:
        is_asked.set()
        go_on.wait(60)
        raise KeyError

    with (
        Delegate(server.url) as delegate,
        RunningApi(server.url) as api,
        ThreadPoolExecutor(20) as others,
    ):
        for user in ("olga", "otto"):
            delegate.access.grant(parse_binding(f"user:{user}", "operator", "*"), ROOT)
        olga, otto = (
            api.caller(delegate.access.create_token(user, ROOT).text) for user in ("olga", "otto")
        )
        assert olga("GET", "/v1/me").status == 200
        monkeypatch.setattr(identities.pwd, name, slow)
        if name == "getpwuid":
            waiting = [others.submit(api.caller(), "GET", "/v1/me") for _ in range(20)]
        else:
            named = {"Batchq_As": "ben", "Batchq_Reason": "help"}
            waiting = [others.submit(otto, "GET", "/v1/me", **named) for _ in range(20)]
        assert is_asked.wait(90)
        assert olga("GET", "/v1/me").status == 200
        assert not any(one.done() for one in waiting)
        go_on.set()
        for one in waiting:
            one.result()


class Directory:
    """Looks accounts up, and keeps who asks for a name, or for the account 4321, waiting."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.named: list[str] = []
        self.go_on = threading.Event()

    def getpwuid(self, uid: int) -> object:
        self.asked.append(uid)
        if uid == 4321:
            self.go_on.wait(60)
        raise KeyError

    def getpwnam(self, name: str) -> object:
        self.named.append(name)
        self.go_on.wait(60)
        raise KeyError


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Directory:
    made = Directory()
    monkeypatch.setattr(identities.pwd, "getpwuid", made.getpwuid)
    monkeypatch.setattr(identities.pwd, "getpwnam", made.getpwnam)
    return made


def an_application(agents: AgentAccounts) -> ApiApplication:
    """An application that is not started, and answers no request."""
    accounts = SocketAccounts(server_uid=1, agents=agents)
    return ApiApplication(ApiSettings(accounts=accounts), *[cast("Any", None)] * 3)


def test_an_account_that_has_begun_to_run_pods_while_it_was_looked_up_is_refused(
    prefix: str, directory: Directory
) -> None:
    agents, peer = AgentAccounts(prefix=prefix), SocketPeer(4321, 1)
    application = an_application(agents)

    async def come() -> None:
        early = asyncio.create_task(application._peer(peer))
        while not directory.asked:
            await asyncio.sleep(0.01)
        agents._seen_at[4321] = time.monotonic()
        directory.go_on.set()
        for request in (early, application._peer(peer)):
            with pytest.raises(ApiProblem, match="runs pods"):
                await request
        await application.close()

    asyncio.run(come())


@pytest.mark.parametrize("name", ["a\0b", "a\udc00b\ud800", ""])
def test_a_name_that_no_account_can_have_is_no_account(name: str) -> None:
    assert account_of(name) == MachineAccount(name, None)


def test_many_slow_names_delay_no_caller_on_the_socket(prefix: str, directory: Directory) -> None:
    application = an_application(AgentAccounts(prefix=prefix))

    async def come() -> None:
        slow = [asyncio.create_task(application._account(f"ldap{one}")) for one in range(40)]
        while not directory.named:
            await asyncio.sleep(0.01)
        try:
            other = await asyncio.wait_for(application._peer(SocketPeer(1234, 1)), 30)
        finally:
            directory.go_on.set()
        assert other.user == "uid-1234"
        assert (await asyncio.gather(*slow))[39] == MachineAccount("ldap39", None)
        await application.close()

    asyncio.run(come())


def test_a_slow_account_is_looked_up_once_for_all_and_delays_no_other(
    prefix: str, directory: Directory
) -> None:
    application = an_application(AgentAccounts(prefix=prefix))

    async def come() -> None:
        slow = [asyncio.create_task(application._peer(SocketPeer(4321, 1))) for _ in range(8)]
        while not directory.asked:
            await asyncio.sleep(0.01)
        other = await application._peer(SocketPeer(1234, 1))
        assert other.user == "uid-1234"
        assert not any(one.done() for one in slow)
        directory.go_on.set()
        assert {one.user for one in await asyncio.gather(*slow)} == {"uid-4321"}
        await application.close()

    asyncio.run(come())
    assert sorted(directory.asked) == [1234, 4321]
