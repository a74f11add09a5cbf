"""A consumer: claims external groups, runs their commands on this machine, and reports the result.

    .venv/bin/python conf/examples/consumer.py [--once]

BATCHQ_QUEUE is the queue to serve, BATCHQ_TTL the time to live of a claim. It keeps every promise
that `batchq external check` tests; with setpriv (Linux) the work ends together with this process.
"""

import os
import socket
import subprocess
import sys

from batchq import Client
from batchq.client.external import Claim
from batchq.errors import Conflict

DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
ME = f"{socket.gethostname()}-{os.getpid()}"


def run(claim: Claim) -> None:
    """Run one group, from its claim to its report; returning without a report releases it."""
    template = claim.group.spec.tasks[0].template
    work = subprocess.Popen([*DIES_WITH_US, *template.command], env={**os.environ, **template.env})
    try:
        claim.report("running")
        while work.poll() is None and not claim.stopping.wait(0.1):
            pass
        if claim.stop_reason:
            return
        claim.report("succeeded" if work.returncode == 0 else "failed")
    except Conflict as over:
        print(f"stopping: {over.message}", file=sys.stderr)
    finally:
        end(work, claim.grace_s / 2)


def end(work: subprocess.Popen[bytes], patience_s: float) -> None:
    """Terminate the work, then kill it, well within the grace period of the claim."""
    work.terminate()
    try:
        work.wait(patience_s)
    except subprocess.TimeoutExpired:
        work.kill()
        work.wait()


def main(queue: str, ttl: str) -> None:
    """Serve the queue, one group at a time."""
    with Client() as client:
        while (claim := client.external.next(holder=ME, ttl=ttl, queue=queue)) is not None:
            print(f"running {claim.key}", file=sys.stderr)
            with claim:
                run(claim)
            if "--once" in sys.argv:
                return


if __name__ == "__main__":
    main(os.environ.get("BATCHQ_QUEUE", "render-farm"), os.environ.get("BATCHQ_TTL", "60s"))
