"""Two users and an operator on one stack, by commands through https, on a node that has joined."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from batchq.api.access import parse_binding
from batchq.client.access_control import Actor, Delegate
from tests.e2e.machine import QUICK_AGENT, Machine, kill, until
from tests.harness import fork_server
from tests.harness.guarded import GuardedServer
from tests.harness.tls import AUTHORITY, CERTIFICATES

#: Prints a line twice a second until a file exists.
TALKS = "n=0; while [ ! -e {end} ]; do n=$((n+1)); echo line $n; sleep 0.2; done; echo the end"


class Lab:
    """A server with users, a scheduler, a registrar and an API with TLS; a context manager."""

    def __init__(self) -> None:
        self.server = GuardedServer("--appendonly", "yes")
        self.server.start()
        self.machine = Machine(url=self.server.url_of("operator"))
        self.root = self.machine.root
        self.port = "0"
        self._followers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Lab:
        self.daemon("scheduler", "scheduler", "--config", str(self.machine.quick))
        with self.machine.client() as client:
            until(lambda: client.schedulers().leader is not None, what="a scheduler leads")
        self.door = self.root / "registrar"
        self.daemon(
            *("registrar", "registrar", "--listen", f"unix:{self.door}"),
            *("--agents-url", f"unix://{self.server.socket}"),
        )
        until(self.door.is_socket, what="the registrar listens")
        shutil.copy(CERTIFICATES / "server.key", self.root / "api.key")
        (self.root / "api.key").chmod(0o600)
        self.start_api()
        with Delegate(self.server.url_of("api")) as delegate:
            actor = Actor(user="root@host", via="redis")
            delegate.access.grant(parse_binding("user:eli", "operator", "*"), actor)
            invitation = delegate.access.invite("eli", actor).text
        self.log_in("eli", invitation)
        return self

    def __exit__(self, *error: object) -> None:
        for one in self._followers:
            one.kill()
            one.wait()
        self.machine.__exit__(*error)
        self.server.discard()

    @property
    def address(self) -> str:
        return f"https://localhost:{self.port}"

    def daemon(self, role: str, *words: str) -> subprocess.Popen[str]:
        """Start a daemon as a user of its role."""
        return self.machine.start(*words, url=self.server.url_of(role))

    def start_api(self) -> None:
        """Start the API on the port that it had before, and wait until it listens."""
        self.api = self.daemon(
            *("api", "api", "--listen", f"localhost:{self.port}", "--visibility", "namespaces"),
            *("--tls-cert", str(CERTIFICATES / "server.crt")),
            *("--tls-key", str(self.root / "api.key"), "--registrar", f"unix:{self.door}"),
        )
        until(lambda: "api.listens" in self.machine.output_of(self.api), what="the API listens")
        found = re.search(r"https://localhost:(\d+)", self.machine.output_of(self.api))
        assert found is not None
        self.port = found[1]

    def invite(self, user: str, namespace: str) -> None:
        """Let the operator invite a user, who logs in."""
        invited = self.run("eli", "token", "invite", user, "--role", "submitter", "-n", namespace)
        self.log_in(user, invited.stdout.strip())

    def log_in(self, user: str, invitation: str) -> None:
        file = self.root / f"{user}.invitation"
        file.write_text(invitation)
        words = ("--token-file", str(file), "--ca-file", str(AUTHORITY))
        assert f"{user} is logged in" in self.run(user, "login", self.address, *words).stdout

    def run(self, user: str, *words: str, exits: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command of a user, who has no credentials of the Redis server."""
        done = fork_server.run(
            fork_server.Process, self._command(words), env=self._environment(user), timeout=90
        )
        assert done.returncode == exits, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def following(self, user: str, *words: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a command of a user; return it, and the file with its output."""
        path = self.root / f"{user}-{words[0]}.txt"
        with path.open("wb") as file:
            started: subprocess.Popen[bytes] = fork_server.Process(
                self._command(words), env=self._environment(user), stdout=file, stderr=file
            )
        self._followers.append(started)
        return started, path

    def _command(self, words: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-P", "-m", "batchq.cli", *words]

    def _environment(self, user: str) -> dict[str, str]:
        return {"BATCHQ_HOME": str(self.root / user), "PATH": "/usr/bin:/bin", "NO_COLOR": "1"}

    def join(self, node: str) -> subprocess.Popen[str]:
        """Let a machine join as a node, and wait until it is ready."""
        token = self.root / f"{node}.join"
        token.write_text(self.run("eli", "nodes", "invite", node).stdout)
        agent = self.machine.start(
            *("worker", "--name", node, "--resources", "cpu=2,memory=512Mi", *QUICK_AGENT),
            *("--join", str(token), "--api-server", self.address, "--ca-file", str(AUTHORITY)),
        )
        until(lambda: self.state_of(node) == "Ready", what=f"node {node} is ready")
        return agent

    def state_of(self, node: str) -> str:
        rows = [line.split() for line in self.run("eli", "nodes").stdout.splitlines()]
        return next((row[1] for row in rows if row[0] == node), "")

    def phase(self, user: str, namespace: str, name: str) -> str:
        rows = self.run(user, "jobs", "-n", namespace).stdout.splitlines()
        return next((row.split()[2] for row in rows if name in row.split()), "")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab() as found:
        yield found


def test_two_users_and_an_operator_share_a_node_that_has_joined(lab: Lab) -> None:
    lab.join("n1")
    lab.invite("ana", "vision")
    lab.invite("ben", "speech")
    end = lab.root / "end"
    talks = ("sh", "-c", TALKS.format(end=end))
    lab.run("ana", "submit", "-n", "vision", "--name", "train", "--cpus", "2", "--", *talks)
    until(lambda: "line 1" in lab.run("ana", "logs", "-n", "vision", "train").stdout)

    # Ben's group waits, and he learns no name of Ana's.
    lab.run("ben", "submit", "-n", "speech", "--name", "label", "--cpus", "2", "--", "true")
    why = lab.run("ben", "why", "-n", "speech", "label").stdout
    assert "needs cpu 2, and the cluster has 0 free (2 of 2 in use)" in why
    assert "train" not in why
    assert "vision/" not in why
    for words in (("logs", "train"), ("cancel", "train"), ("why", "train")):
        refused = lab.run("ben", words[0], "-n", "vision", words[1], exits=6)
        assert "PodGroup vision/train does not exist" in refused.stderr
    assert "not" in lab.run("ben", "submit", "-n", "vision", "--", "true", exits=9).stderr
    assert "user ben may not" in lab.run("ben", "nodes", "cordon", "n1", exits=9).stderr
    assert "train" not in lab.run("ben", "jobs").stdout

    # Ana follows her group while the API is restarted, and then killed and started again.
    logs, followed = lab.following("ana", "logs", "-f", "-n", "vision", "train")
    waiting, _ = lab.following("ana", "wait", "-n", "vision", "train")
    until(lambda: "line 2\n" in followed.read_text())
    lab.api.terminate()
    assert lab.api.wait(90) == 0
    lab.start_api()
    seen = lab.run("ana", "logs", "-n", "vision", "train").stdout.splitlines()[-1]
    until(lambda: f"{seen}\n" in followed.read_text(), what="the output is followed again")
    kill(lab.api.pid)
    lab.api.wait()
    lab.start_api()
    end.touch()
    assert logs.wait(90) == 0
    text = followed.read_text()
    assert "the connection was cut; waiting for it" in text
    *lines, last = re.findall("^(?:line [0-9]+|the end)$", text, re.MULTILINE)
    assert last == "the end"
    assert lines == [f"line {number}" for number in range(1, len(lines) + 1)]
    assert waiting.wait(90) == 0
    lab.run("ben", "wait", "-n", "speech", "label")

    # Eli ends what belongs to Ben; both names are in the audit trail.
    lab.run("ben", "submit", "-n", "speech", "--name", "long", "--", "sleep", "600")
    lab.run("eli", "cancel", "-n", "speech", "long")
    with Delegate(lab.server.url_of("api")) as delegate:
        last = [one.record for one in delegate.access.audit(20) if one.record.verb == "cancel"][-1]
        assert (last.user, last.kind, last.name) == ("eli", "groups", "speech/long")


def test_a_revoked_token_and_a_revoked_node_are_cut_off(lab: Lab) -> None:
    lab.join("n2")
    lab.invite("dia", "vision")
    pid = lab.root / "pid"
    talks = ("sh", "-c", f"echo $$ > {pid}; {TALKS.format(end='/nonexistent')}")
    lab.run("dia", "submit", "-n", "vision", "--name", "talk", "--node", "n2", "--", *talks)
    logs, followed = lab.following("dia", "logs", "-f", "-n", "vision", "talk")
    until(lambda: "line 2\n" in followed.read_text())
    with Delegate(lab.server.url_of("api")) as delegate:
        [token] = [one for one in delegate.access.state().tokens.values() if one.owner == "dia"
                   and one.kind == "token"]  # fmt: skip
        delegate.access.revoke_token(token.id, Actor(user="root@host", via="redis"))
    assert logs.wait(90) == 9
    assert f"token {token.id} was revoked" in followed.read_text()

    lab.run("eli", "nodes", "revoke", "n2")
    until(lambda: lab.state_of("n2") != "Ready", what="the node is not ready")
    # The agent, which can renew no lease, stops its pod.
    until(lambda: not psutil.pid_exists(int(pid.read_text())), what="the pod has ended")
