"""Starts a shell script in a cgroup as a work-horse would, prints its first output, and waits."""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path

from batchq.worker.host.cgroup import PodCgroup
from batchq.worker.host.node_resources import ProcessBounds
from batchq.worker.workhorse.process import start


def main() -> None:
    cgroup, script = Path(sys.argv[1]), sys.argv[2]
    command = start(
        ["sh", "-c", script], dict(os.environ), "", bounds=ProcessBounds(cgroup=PodCgroup(cgroup))
    )
    stdout = next(fd for fd, name in command.outputs.items() if name == "stdout")
    select.select([stdout], [], [])
    for part in command.read(stdout):
        os.write(1, part)
    signal.pause()


if __name__ == "__main__":
    main()
