"""A pod that uses its devices alone: `python a_gpu_user.py FOLDER`.

It locks one file for each of its devices and writes `shared` into FOLDER if another process has the
lock; then it waits to be killed. The kernel frees the locks when it has ended.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from pathlib import Path


def main() -> None:
    folder = Path(sys.argv[1])
    files = []
    for device in os.environ["BATCHQ_GPU_UUIDS"].split(","):
        files.append((folder / device).open("w"))
        try:
            fcntl.flock(files[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            (folder / "shared").write_text(device)
    sys.stdout.write("uses its devices\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    main()
