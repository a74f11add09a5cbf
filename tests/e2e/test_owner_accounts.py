"""Tests of an agent that runs pods as the accounts of their owners.

No account is made: a file maps two owners to accounts that every Linux has.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import pwd
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec import structs

import batchq
from batchq.api.access import parse_binding
from batchq.api.exec_session import ExecCommand, decoded_end
from batchq.api.lifecycle import ON_NODE
from batchq.api.objects import Pod
from batchq.client import Client
from batchq.client.access_control import Actor, Delegate
from batchq.errors import Conflict
from batchq.store.liveness import SLOW_ANSWER_MS
from batchq.worker.host.cgroup import PodCgroup, Unusable, own_cgroup
from batchq.worker.host.node_resources import runtime_labels
from tests.e2e.machine import QUICK, QUICK_AGENT, group, phase, pods_of, until
from tests.effort import sample
from tests.harness import fork_server
from tests.harness.fake_podman import IMAGE, FakePodman
from tests.harness.server import Server
from tests.harness.terminals import Terminal
from tests.http.api_process import ApiProcess
from tests.http.manifests import groups_of, manifest
from tests.worker import escape_artist
from tests.worker.stage import announced_sockets, is_alive

#: The agent's account, and those of the owners alice and bob.
AGENT, ALICE, BOB = "daemon", "nobody", "games"
PASSWORD = "a-password-that-pods-must-not-see"
ESCAPES = ("forks", "double-fork", "holds-output", "sibling", "reaper", "namespace")
#: The system call for keys.
LIBC, KEYCTL = ctypes.CDLL(None), 250 if platform.machine() == "x86_64" else 219
INTRUDER = Path(__file__).with_name("intruder.py")
#: The interpreter of the tests, its packages and batchq may be in folders that are closed to other
#: accounts. So an agent finds them below the folder of its site, in a mount namespace of its own.
_PARTS = {
    "python": Path(sys.base_prefix),
    "packages": Path(structs.__file__).parents[1],
    "source": Path(batchq.__file__).parents[1],
}
_PYTHON = f"python/bin/python{sys.version_info.major}.{sys.version_info.minor}"


def account(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        pytest.skip(f"this machine has no account {name}")


def with_parts(root: Path) -> list[str]:
    """Return words that make the command after them see the parts below a folder."""
    mounts = []
    for name, part in _PARTS.items():
        (root / name).mkdir()
        mounts.append(f"mount --bind {shlex.quote(str(part))} {root / name}")
    script = " && ".join((*mounts, 'exec "$@"'))
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]


class Site:
    """A server, a scheduler, the HTTP API, and agents that run pods as their owners."""

    #: Whether a site has found that the agent's account can use the parts; the next ones have equal
    #: parts.
    _has_usable_parts = False

    def __init__(self, root: Path, server: Server) -> None:
        self.root = root
        self.url = f"unix://:{PASSWORD}@{server.socket}"
        self.python = str(root / _PYTHON)
        self.environment = {
            "PATH": os.defpath,
            "PYTHONPATH": f"{root / 'source'}:{root / 'packages'}",
        }
        self._start = [*with_parts(root), self.python, "-P"]
        self._check_parts()
        self.home = root / "agent"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.key = self.file("signing.key", "k" * 40, 0o600)
        self.map = self.file("users", f"alice {ALICE}\nbob {BOB} # for tests\nroot root\n", 0o644)
        self.url_file = self.file("url", self.url, 0o600)
        self.run("scheduler", "--config", str(self.file("quick.yaml", QUICK, 0o644)))
        self.api = ApiProcess(self.url, "--signing-key", str(self.key))
        with Delegate(self.url) as delegate:
            for user in ("alice", "bob", "carol", "root", ALICE):
                binding = parse_binding(f"user:{user}", "submitter", "*")
                delegate.access.grant(binding, Actor(user="root@host", via="redis"))

    def _check_parts(self) -> None:
        """Skip the test if the agent's account cannot use batchq on this machine."""
        if Site._has_usable_parts:
            return
        uid = account(AGENT).pw_uid
        check = f"import os; os.setuid({uid}); import batchq.cli, batchq.worker.agent.agent"
        done = subprocess.run(
            [*self._start, "-c", check],
            env=self.environment,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            why = done.stderr.strip().splitlines()[-1:]
            pytest.skip(f"account {AGENT} cannot use batchq on this machine: {why}")
        Site._has_usable_parts = True

    def file(self, name: str, text: str, mode: int) -> Path:
        path = self.root / name
        path.write_text(text)
        path.chmod(mode)
        return path

    def run(self, *words: str, within: PodCgroup | None = None) -> subprocess.Popen[bytes]:
        """Start a command as root."""
        name = f"{words[0]}-{len(self._processes)}.log"
        is_agent = words[0] == "worker"
        start: type[subprocess.Popen[bytes]] = subprocess.Popen if is_agent else fork_server.Process

        def prepare() -> None:
            # As a login session has one.
            LIBC.syscall(KEYCTL, 1, None)
            if within is not None:
                within.enter()

        with (self.root / name).open("wb") as log:
            process = start(
                [
                    *(self._start if is_agent else (sys.executable, "-P")),
                    "-m",
                    "batchq.cli",
                    *words,
                ],
                env=self.environment
                | {"BATCHQ_REDIS_URL_FILE": str(self.url_file), "BATCHQ_HOME": str(self.home)},
                cwd="/root" if os.access("/root", os.X_OK) else "/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=prepare if is_agent else None,
            )
        self._processes.append(process)
        return process

    def start_agent(
        self, *options: str, within: PodCgroup | None = None
    ) -> subprocess.Popen[bytes]:
        """Start the agent, and return it once its node is ready; in a cgroup if one is given."""
        process = self.run(
            *("worker", "--name", "n1", "--resources", "cpu=8,memory=1Gi", *QUICK_AGENT),
            *("--run-as", "owner", "--agent-user", AGENT, "--signing-key", str(self.key)),
            *("--user-map", str(self.map), *options),
            within=within,
        )
        until(lambda: self._is_ready(process), what="the agent serves its node")
        return process

    def _is_ready(self, agent: subprocess.Popen[bytes]) -> bool:
        assert agent.poll() is None, self.logs()
        with Client(self.url) as client:
            return any(
                node.status.ready
                and f":{agent.pid}:" in node.metadata.annotations.get("batchq/agent", "")
                for node in client.nodes()
            )

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.root.glob("*.log")))

    def submit(
        self,
        owner: str,
        name: str,
        *command: str,
        suspend: bool = False,
        token: str = "",
        **template: Any,
    ) -> None:
        """Submit a group of one pod through the API in the name of an owner."""
        wanted = manifest(name, suspend=suspend, token=token)
        wanted["spec"]["tasks"] = [
            {"name": "w", "template": ({"command": list(command)} if command else {}) | template}
        ]
        said = {"Batchq_As": owner, "Batchq_Reason": "test"}
        answer = self.api.caller()("POST", groups_of("default"), wanted, **said)
        assert answer.status == 201, answer.body

    def output(self, client: Client, name: str) -> str:
        return "\n".join(line.text for line in client.logs(name))

    def ended(self, client: Client, name: str) -> Pod:
        ends = ("Completed", "Failed", "Cancelled")
        until(lambda: phase(client, name) in ends, what=f"{name} has ended")
        until(lambda: pods_of(client, name)[0].status.phase not in ON_NODE)
        (pod,) = pods_of(client, name)
        return pod

    def close(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(60)


@contextmanager
def a_site() -> Iterator[Site]:
    if os.geteuid() != 0:
        pytest.skip("only root can start an agent with --run-as owner: run these tests as root")
    for name in (AGENT, ALICE, BOB):
        account(name)
    with (
        tempfile.TemporaryDirectory(prefix="bq") as folder,
        Server("--requirepass", PASSWORD, "--unixsocketperm", "777") as server,
    ):
        Path(folder).chmod(0o755)
        server.folder.chmod(0o755)
        made = Site(Path(folder), server)
        try:
            with made.api:
                yield made
        finally:
            made.close()
            # pytest shows it after a failure.
            print(made.logs())  # noqa: T201


@pytest.fixture
def site() -> Iterator[Site]:
    """A site without an agent."""
    with a_site() as made:
        yield made


@pytest.fixture(scope="module")
def usual() -> Iterator[Site]:
    """A site with an agent that several tests use."""
    with a_site() as made:
        made.start_agent()
        yield made


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    found = request.getfixturevalue("usual" if "usual" in request.fixturenames else "site")
    with Client(found.url) as made:
        yield made


def test_a_pod_has_no_key_of_the_agent(usual: Site, client: Client) -> None:
    if LIBC.syscall(KEYCTL, 0, -3, 0) < 0:
        pytest.skip("this machine has no keyrings")
    # It prints the number of its session keyring, which it would have from the agent.
    ask = f"import ctypes; print(ctypes.CDLL(None).syscall({KEYCTL}, 0, -3, 0))"
    for owner in ("alice", "bob"):
        usual.submit(owner, f"keys-of-{owner}", usual.python, "-I", "-c", ask)
        assert usual.ended(client, f"keys-of-{owner}").status.exit_code == 0
    found = [int(usual.output(client, f"keys-of-{owner}")) for owner in ("alice", "bob")]
    assert found[0] != found[1]


def shell(*lines: str) -> Sequence[str]:
    return ("sh", "-c", "\n".join(lines))


def test_a_pod_has_identity_environment_and_files_of_its_owner(usual: Site, client: Client) -> None:
    shared = usual.root / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    script = shell(
        'echo "$(id -un) $(id -ru) $(id -G) $HOME $USER $LOGNAME $SHELL $(umask) $(pwd)"',
        f"echo mine >{shared}/file; echo to stderr >/dev/stderr",
        "grep -h CapEff /proc/self/status; env",
        'test -z "$BATCHQ_STOP_FILE" || echo has a stop file',
    )
    usual.submit("alice", "who", *script)
    assert usual.ended(client, "who").status.exit_code == 0
    alice = account(ALICE)
    lines = usual.output(client, "who").splitlines()
    folder = alice.pw_dir if Path(alice.pw_dir).is_dir() else "/"
    assert lines[0] == (
        f"{ALICE} {alice.pw_uid} {alice.pw_gid} {alice.pw_dir} {ALICE} {ALICE} {alice.pw_shell}"
        f" 0022 {folder}"
    )
    assert "CapEff:\t0000000000000000" in lines
    assert "to stderr" in lines
    assert PASSWORD not in "\n".join(lines)
    written = (shared / "file").stat()
    assert (written.st_uid, written.st_gid) == (alice.pw_uid, alice.pw_gid)
    agent = account(AGENT).pw_uid
    assert {path.stat().st_uid for path in (usual.home / "logs").iterdir()} == {agent}


@pytest.mark.parametrize("containment", sample(["subreaper", "pid-namespace"], 1))
def test_no_owner_reaches_pods_of_another_or_the_agent(
    site: Site, client: Client, containment: str
) -> None:
    agent = site.start_agent("--containment", containment)
    # Its own account runs no pods.
    assert announced_sockets(agent.pid) == []
    secret = site.file("secret", "of alice", 0o600)
    os.chown(secret, account(ALICE).pw_uid, account(ALICE).pw_gid)
    victim = shell(
        'trap "cat $BATCHQ_STOP_FILE; exit 3" TERM',
        f"cat {secret}; echo",
        "while :; do sleep 0.1; done",
    )
    site.submit("alice", "victim", *victim, env={"MINE": "x"})
    until(lambda: site.output(client, "victim") == "of alice")
    theirs = [agent.pid, *(one.pid for one in psutil.Process(agent.pid).children(recursive=True))]
    assert set(filter(None, map(uid_of, theirs))) == {account(AGENT).pw_uid, account(ALICE).pw_uid}
    private = [
        *(str(path) for path in site.home.rglob("*")),
        *map(str, (secret, site.key, site.url_file)),
    ]
    doors = {"paths": private, "sockets": [], "ports": [], "pids": theirs}
    given = site.file("doors.json", json.dumps(doors), 0o644)
    tool = site.file("intruder.py", INTRUDER.read_text(), 0o644)
    site.submit("bob", "intruder", *shell(f"{site.python} -I {tool} <{given}"))
    assert site.ended(client, "intruder").status.exit_code == 0
    assert json.loads(site.output(client, "intruder")) == [f"I am {account(BOB).pw_uid}"]
    # The same program finds what the owner may do.
    site.submit("alice", "owner", *shell(f"{site.python} -I {tool} <{given}"))
    assert site.ended(client, "owner").status.exit_code == 0
    assert f"read {secret}" in json.loads(site.output(client, "owner"))
    assert phase(client, "victim") == "Running"
    client.cancel("victim")
    assert site.ended(client, "victim").status.exit_code == 3
    assert "Cancelled" in site.output(client, "victim").splitlines()


@pytest.fixture
def cgroup() -> Iterator[PodCgroup | None]:
    """A cgroup for an agent, as a service manager makes one; None where that is not possible."""
    base = own_cgroup()
    if isinstance(base, Unusable):
        yield None
        return
    made = PodCgroup(base / f"batchq-test-{os.getpid()}")
    made.make(None)
    yield made
    assert made.end(10) == []


@pytest.mark.parametrize("containment", sample(["subreaper", "cgroup", "pid-namespace"], 1))
def test_no_process_of_another_account_outlives_its_pod(
    cgroup: PodCgroup | None, site: Site, client: Client, containment: str
) -> None:
    if containment == "cgroup" and cgroup is None:
        pytest.skip("this machine lets no cgroup be made")
    site.start_agent("--containment", containment, within=cgroup)
    tool = site.file("escape_artist.py", Path(escape_artist.__file__).read_text(), 0o644)
    shared = site.root / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for kind in ESCAPES:
        artist = f"exec env -i {site.python} -I -S {tool} {kind} {shared / kind}"
        site.submit("alice", kind, *shell(artist))
    for kind in ESCAPES:
        status = site.ended(client, kind).status
        assert (status.exit_code, status.finished_at is None) == (0, False)
        lived_until = int((shared / kind).read_text().split()[-1])
        # The end is a time of the server's clock, which a busy machine knows this exactly.
        assert lived_until <= (status.finished_at or 0) + SLOW_ANSWER_MS // 2
    assert processes_with(str(tool)) == []


@pytest.mark.parametrize("containment", sample(["subreaper", "pid-namespace"], 1))
def test_pods_of_other_accounts_end_with_a_killed_agent(
    site: Site, client: Client, containment: str
) -> None:
    agent = site.start_agent("--containment", containment)
    # Tests of other processes run at the same time.
    seconds = str(600_000 + os.getpid())
    script = shell(f"env -i setsid sleep {seconds} & setsid sleep {seconds} & wait")
    site.submit("alice", "left", *script)
    until(lambda: len(sleepers(seconds)) == 2, what="the pod has started its processes")
    before = sleepers(seconds)
    ours = [agent.pid, *(one.pid for one in psutil.Process(agent.pid).children(recursive=True))]
    agents = account(AGENT).pw_uid
    # Agent, work-horse and guard at once, so that only the next agent is left to end the pod.
    for pid in [pid for pid in ours if uid_of(pid) == agents]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    agent.wait(60)
    site.start_agent("--containment", containment)
    assert [pid for pid in before if is_alive(pid)] == []
    # The pod was lost with its agent, and starts again.
    until(lambda: len(sleepers(seconds)) == 2, what="the next attempt runs")
    (pod,) = pods_of(client, "left")
    assert (pod.status.losses, pod.status.last_reason) == (1, "NodeLost")


def uid_of(pid: int) -> int | None:
    """Return the account of a process; None if it has ended."""
    try:
        return int(psutil.Process(pid).uids().real)
    except psutil.NoSuchProcess:
        return None


def sleepers(seconds: str) -> list[int]:
    """Return the processes that sleep for so long, without the shells that start them."""
    found = []
    for pid in processes_with(seconds):
        # One may have ended just now.
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).name() == "sleep":
                found.append(pid)
    return found


def processes_with(word: str) -> list[int]:
    """Return the living processes with a word in their command lines."""
    return [
        one.pid
        for one in psutil.process_iter(["cmdline"])
        if word in (one.info["cmdline"] or ()) and is_alive(one.pid)
    ]


def test_a_function_runs_as_its_owner_and_may_read_its_token(usual: Site, client: Client) -> None:
    usual.submit("alice", "function", function="os:getuid")
    assert usual.ended(client, "function").status.message == ""
    assert client.result("function") == account(ALICE).pw_uid
    usual.submit("alice", "token", *shell("stat -c '%U %a' $BATCHQ_TOKEN_FILE"), token="self")
    assert usual.ended(client, "token").status.exit_code == 0
    assert usual.output(client, "token") == f"{ALICE} 600"


def test_a_container_runs_as_the_owner(usual: Site, client: Client) -> None:
    if runtime_labels()["batchq/runtime-bwrap"] != "yes":
        pytest.skip("bubblewrap is not installed, or this machine forbids what it needs")
    container = {"isolate": ["devices"]}
    script = shell("id -un; ls /dev", "cat /proc/self/status | grep CapEff")
    usual.submit("alice", "inside", *script, container=container)
    assert usual.ended(client, "inside").status.exit_code == 0
    lines = usual.output(client, "inside").splitlines()
    assert (lines[0], lines[-1]) == (ALICE, "CapEff:\t0000000000000000")
    assert "mem" not in lines


def test_an_image_is_pulled_under_the_account_of_the_owner_and_a_cancel_ends_that(
    site: Site, client: Client
) -> None:
    podman = FakePodman(site.root / "bin")
    podman.folder.chmod(0o777)
    (podman.folder / "answer").chmod(0o644)
    site.environment["PATH"] = f"{podman.folder}:{os.defpath}"
    site.start_agent()
    site.submit("alice", "pulls", "true", container={"image": IMAGE})
    until(lambda: len(podman.pulls()) == 1, what="the image is being pulled")
    [pull] = podman.pulls()
    assert psutil.Process(pull).uids().effective == account(ALICE).pw_uid
    client.cancel("pulls")
    assert site.ended(client, "pulls").status.started_at is None
    until(lambda: not is_alive(pull), what="the pull has ended")
    podman.answer("ok")
    (podman.folder / "answer").chmod(0o644)
    site.submit("bob", "runs", *shell("id -un"), container={"image": IMAGE})
    assert site.ended(client, "runs").status.exit_code == 0
    assert site.output(client, "runs") == BOB


def test_an_open_input_is_that_of_the_owners_pod(usual: Site, client: Client) -> None:
    script = shell("read line </dev/stdin", "echo $line", "exec sleep 600")
    usual.submit("alice", "listens", *script, stdin=True)
    until(lambda: phase(client, "listens") == "Running")
    words = ("--as", "alice", "--because", "test", "attach", "listens-w-0")
    with Terminal(
        [sys.executable, "-P", "-m", "batchq.cli", *words],
        env=os.environ | {"BATCHQ_SERVER": f"unix:{usual.api.socket}", "BATCHQ_HOME": "/nowhere"},
        cwd=usual.root,
    ) as terminal:
        terminal.type("said\n")
        until(lambda: usual.output(client, "listens") == "said")
        client.cancel("listens")
        assert terminal.ended() == 0


def test_a_folder_that_the_owner_may_not_enter_is_named(usual: Site, client: Client) -> None:
    closed = usual.root / "closed"
    closed.mkdir(mode=0o700)
    usual.submit("alice", "closed", "true", workingDir=str(closed))
    status = usual.ended(client, "closed").status
    assert (status.exit_code, status.message) == (
        126,
        f"workingDir {closed} cannot be used on this node by account {ALICE}: Permission denied",
    )
    usual.submit("alice", "missing", "no-such-program")
    assert usual.ended(client, "missing").status.message == "command not found: no-such-program"


def test_an_environment_is_looked_for_with_the_rights_of_the_owner(
    usual: Site, client: Client
) -> None:
    for owner in (ALICE, BOB):
        program = usual.root / owner / "env" / "bin" / "greet"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\necho hello\n")
        program.chmod(0o755)
        closed = usual.root / owner
        closed.chmod(0o700)
        os.chown(closed, account(owner).pw_uid, account(owner).pw_gid)
    usual.submit("alice", "own", "greet", envActivate=str(usual.root / ALICE / "env"))
    assert usual.ended(client, "own").status.exit_code == 0
    assert usual.output(client, "own") == "hello"
    ends = []
    for name in ("env", "gone"):
        usual.submit("alice", name, "true", envActivate=str(usual.root / BOB / name))
        status = usual.ended(client, name).status
        ends.append((status.exit_code, status.message))
    assert ends == [(0, ""), (0, "")]
    gone = usual.root / "gone"
    usual.submit("alice", "open", "true", envActivate=str(gone))
    assert usual.ended(client, "open").status.message == (
        f"envActivate {gone} is no environment on this node: it has no bin"
    )


def test_a_pod_without_an_account_fails_with_one_sentence(usual: Site, client: Client) -> None:
    usual.submit("carol", "nobody-here", "true")
    usual.submit("root", "as-root", "true")
    usual.submit(ALICE, "of-the-system", "true")
    with Client(usual.url) as raw:
        raw.user = "alice"
        raw.submit(["true"], name="forged")
    expected = {
        "nobody-here": "owner carol has no account on this node: there is no unix account carol;"
        " create it, or name another one in the agent's --user-map",
        "as-root": "owner root has the account root, which is root, and the agent runs no pods as"
        " root without --allow-root",
        "of-the-system": f"its owner {ALICE} has the name of a system account (uid"
        f" {account(ALICE).pw_uid}) on this node; if that is meant, name it in the agent's"
        " --user-map",
        "forged": "its group has no signature of the HTTP API, which proves its owner, and this"
        " node runs pods as their owners; submit it through the API",
    }
    for name, message in expected.items():
        pod = usual.ended(client, name)
        assert (pod.status.exit_code, pod.status.message) == (126, message)
        assert str(group(client, name).status.phase) == "Failed"


def test_a_signed_group_whose_command_was_changed_does_not_run(usual: Site, client: Client) -> None:
    usual.submit("alice", "changed", "true", suspend=True)

    def changes() -> bool:
        before = group(client, "changed")
        template = structs.replace(before.spec.tasks[0].template, command=("id",))
        task = structs.replace(before.spec.tasks[0], template=template)
        edited = structs.replace(before, spec=structs.replace(before.spec, tasks=(task,)))
        try:
            client.apply([edited])
        except Conflict:
            # The scheduler has written its status meanwhile.
            return False
        return True

    until(changes, what="the command is changed")
    client.resume("changed")
    pod = usual.ended(client, "changed")
    assert pod.status.exit_code == 126
    assert pod.status.message == (
        "the signature of its group is not valid: what it runs, or its owner, was changed after the"
        " submission, or the HTTP API has another --signing-key than this node"
    )


def test_unsigned_groups_run_as_an_account_that_the_operator_names(
    site: Site, client: Client
) -> None:
    site.start_agent("--unsigned-as", BOB)
    with Client(site.url) as raw:
        raw.user = "alice"
        raw.submit(["id", "-un"], name="forged")
    assert site.ended(client, "forged").status.exit_code == 0
    assert site.output(client, "forged") == BOB


@pytest.mark.parametrize("containment", sample(["subreaper", "pid-namespace"], 1))
def test_a_command_in_a_pod_has_the_rights_of_its_owner_and_comes_through_the_api(
    site: Site, client: Client, containment: str
) -> None:
    site.start_agent("--containment", containment)
    site.submit("alice", "host", "sleep", "600")
    until(lambda: phase(client, "host") == "Running")
    script = "grep CapEff /proc/self/status; id -un >/dev/tty; tty >/dev/null && exit 3"
    words = ("--as", "alice", "--because", "test", "exec", "--pty", "host-w-0", "--")
    with Terminal(
        [sys.executable, "-P", "-m", "batchq.cli", *words, *shell(script)],
        env=os.environ | {"BATCHQ_SERVER": f"unix:{site.api.socket}", "BATCHQ_HOME": "/nowhere"},
        cwd=site.root,
    ) as terminal:
        terminal.expect("CapEff:\t0000000000000000")
        terminal.expect(ALICE)
        assert terminal.ended() == 3
    # Whoever has credentials of the server could write a request.
    [pod] = pods_of(client, "host")
    session = client.commands.start(pod, ExecCommand(command=("id",)))
    [frame] = [frame for frame in session.receive(5) if frame.kind == "end"]
    session.close()
    assert decoded_end(frame.data).message.startswith(
        "node n1 runs pods under the accounts of their owners, and the request has no valid"
    )
    client.cancel("host")
    site.ended(client, "host")
