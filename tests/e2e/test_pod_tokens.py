"""A pod uses the HTTP API with the token of its attempt, which is refused when it has ended."""

from __future__ import annotations

import subprocess
import sys

from batchq.api.access import parse_token
from tests.e2e.machine import QUICK_AGENT, Machine, group, phase, until
from tests.harness import fork_server

#: Submits a child group and waits for it, and tries what its owner may and it may not.
PARENT = """
set -e
cp "$BATCHQ_TOKEN_FILE" {root}/kept
stat -c %a "$BATCHQ_TOKEN_FILE"
echo "server $BATCHQ_SERVER"
{batchq} submit --wait --name child -- echo the child has run
{batchq} jobs
{batchq} submit -n other --name stray -- true || echo "refused elsewhere: $?"
{batchq} nodes cordon n1 || echo "refused beyond groups: $?"
touch {root}/done
while [ ! -e {root}/end ]; do sleep 0.1; done
"""


def test_a_pod_submits_a_child_and_its_token_ends_with_it(machine: Machine) -> None:
    machine.batchq("up", "--agents", "0", "--config", str(machine.quick), "--api")
    server = f"unix:{machine.home.api_socket}"
    agent = ("--name", "n1", "--resources", "cpu=2,memory=512Mi", *QUICK_AGENT)
    machine.start("worker", *agent, "--api-server", server)
    batchq = f"env HOME={machine.root} {sys.executable} -P -m batchq.cli"
    script = machine.file("parent.sh", PARENT.format(root=machine.root, batchq=batchq))
    machine.batchq("submit", "--name", "parent", "--api-token", "--", "sh", str(script))
    done = machine.root / "done"
    with machine.client() as client:
        until(lambda: done.exists() or phase(client, "parent") == "Failed")
        log = machine.batchq("logs", "parent").stdout
        assert done.exists(), log
        # The agent passes the output on a moment after the pod has written it.
        until(lambda: "refused beyond groups" in machine.batchq("logs", "parent").stdout)
        log = machine.batchq("logs", "parent").stdout
        kept = (machine.root / "kept").read_text().strip()
        lines = log.splitlines()
        assert lines[:2] == ["600", f"server {server}"]
        assert "the child has run" in machine.batchq("logs", "child").stdout
        assert any(line.split()[:1] == ["child"] for line in lines)
        assert "refused elsewhere: 9" in lines
        assert "refused beyond groups: 9" in lines

        child = group(client, "child")
        assert child.metadata.annotations == {"batchq/parent": "default/parent"}
        owner = group(client, "parent").status.submitted_by
        assert child.status.submitted_by == owner.partition("@")[0]

        assert jobs_with(machine, kept, server).returncode == 0
        (machine.root / "end").touch()
        until(lambda: phase(client, "parent") == "Completed")
        # The token ends with the lease, which the agent ends a moment after the pod.
        until(lambda: jobs_with(machine, kept, server).returncode != 0)
        refused = jobs_with(machine, kept, server)
        assert refused.returncode == 9
        assert "the pod of this token has ended, or is unknown" in refused.stderr
        until(lambda: not list(machine.home.run.rglob("*.token")))

    shown = [
        machine.batchq(*words).stdout
        for words in (
            ("describe", "group", "parent"),
            ("get", "group", "parent", "-o", "json"),
            ("get", "pods", "-o", "json"),
            ("events",),
            ("access", "audit"),
        )
    ]
    written = [path.read_text() for path in machine.home.logs.rglob("*.log")]
    digest = parse_token(kept)
    assert digest is not None
    # The secret itself may contain underscores.
    for secret in (kept.split("_", 2)[2].rpartition("_")[0], digest.digest):
        assert not any(secret in text for text in (*shown, *written))


def jobs_with(machine: Machine, token: str, server: str) -> subprocess.CompletedProcess[str]:
    """Run `batchq jobs` with a token."""
    return fork_server.run(
        fork_server.Process,
        [sys.executable, "-P", "-m", "batchq.cli", "jobs"],
        env={"HOME": str(machine.root), "BATCHQ_TOKEN": token, "BATCHQ_SERVER": server},
        timeout=90,
    )
