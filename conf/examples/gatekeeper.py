"""Opens the gate `data-ready` of groups whose data has arrived: a complete controller of gates.

An annotation of the group names the file that it waits for; gates.yaml in this folder has two. Any
number of such programs can run at the same time, for other gates or for the same.

    .venv/bin/python conf/examples/gatekeeper.py             # until Ctrl-C
    .venv/bin/python conf/examples/gatekeeper.py --once      # one pass

`.venv` is where the README installs batchq; any Python that can import it will do.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from batchq import Client
from batchq.errors import Conflict, NotFound

GATE = "data-ready"
WAITS_FOR = "example.com/waits-for"


def open_what_can_be(client: Client) -> None:
    """Check every group that waits for the gate, once."""
    for gate in client.gates.list(gate=GATE):
        try:
            path = client.get("PodGroup", gate.group).metadata.annotations.get(WAITS_FOR)
            if path and Path(path).exists() and client.gates.open(gate.group, GATE, task=gate.task):
                print(f"opened {GATE} of {gate.group}", flush=True)
        except (Conflict, NotFound) as problem:
            # It has just been cancelled or deleted.
            print(problem.message, file=sys.stderr, flush=True)


def main() -> None:
    """Check once a second, since files send no events."""
    # Events and `batchq gates list` show this name with the user.
    with Client(component="gatekeeper") as client, client.patiently():
        open_what_can_be(client)
        while "--once" not in sys.argv:
            client.wait_for_change(most_s=1.0, least_s=1.0)
            open_what_can_be(client)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
