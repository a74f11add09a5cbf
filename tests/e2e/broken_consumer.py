"""A consumer with one fault, named by its argument; the check of consumers must find each."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

from batchq import Client
from batchq.api.objects import PodGroup
from batchq.client.external import Claim
from batchq.errors import Conflict

FAULT = sys.argv[1]
TTL = os.environ["BATCHQ_TTL"]
QUEUE = "" if FAULT == "any-queue" else os.environ["BATCHQ_QUEUE"]
DIES_WITH_US = [] if FAULT == "leaves-orphans" else ["setpriv", "--pdeathsig", "KILL", "--"]


def start(group: PodGroup) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*DIES_WITH_US, *group.spec.tasks[0].template.command])


def run(claim: Claim) -> None:
    if FAULT != "never-renews":
        claim.start()
    work = start(claim.group)
    with suppress(Conflict):
        if FAULT != "says-nothing":
            claim.report("running")
        while work.poll() is None:
            if claim.stopping.wait(0.05) and FAULT != "never-renews":
                # It only reports that the work has stopped.
                claim.release()
                break
        else:
            ok = work.returncode == 0 or FAULT == "always-succeeds"
            claim.report("succeeded" if ok else "failed")
    claim.stop()
    work.wait()


def main() -> None:
    with Client() as client:
        if FAULT == "shares-nothing":
            # It starts groups without claiming them, as if no other consumer existed.
            while True:
                for group in client.external.waiting(queue=QUEUE):
                    work = start(group)
                    work.wait()
                    with suppress(Conflict):
                        client.external.claim(group.metadata.name, holder="w").report("succeeded")
        while (claim := client.external.next(holder="w", ttl=TTL, queue=QUEUE)) is not None:
            run(claim)


if __name__ == "__main__":
    main()
