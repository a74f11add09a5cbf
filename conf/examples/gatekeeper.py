"""Opens the gate `data-ready` of groups whose data is there: a controller of gates, whole.

A group says by an annotation which file it waits for; gates.yaml, beside this, has two. Any number
of such programs may run at a time, for other gates or for the same.

    .venv/bin/python conf/examples/gatekeeper.py             # on, and on; Ctrl-C ends it
    .venv/bin/python conf/examples/gatekeeper.py --once      # what can be opened now

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
    """One look at everything that waits for the gate."""
    for gate in client.gates.list(gate=GATE):
        try:
            path = client.get("PodGroup", gate.group).metadata.annotations.get(WAITS_FOR)
            if path and Path(path).exists() and client.gates.open(gate.group, GATE, task=gate.task):
                print(f"opened {GATE} of {gate.group}", flush=True)
        except (Conflict, NotFound) as problem:
            # It was cancelled or deleted just now.
            print(problem.message, file=sys.stderr, flush=True)


def main() -> None:
    """Look once a second, as files announce themselves to nobody."""
    # The name stands in events and in `batchq gates list`, beside whoever runs this.
    with Client(component="gatekeeper") as client, client.patiently():
        open_what_can_be(client)
        while "--once" not in sys.argv:
            client.wait_for_change(most_s=1.0, least_s=1.0)
            open_what_can_be(client)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
