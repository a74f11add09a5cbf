"""The guard: it ends a pod's process group when the pod's work-horse is killed.

The kernel kills a command whose work-horse dies, but not the command's own children. The agent
would; but an agent that is paused, or dies as well, does not, and once lease and grace have passed
the pod begins elsewhere while they go on. So each work-horse forks a guard before the command: it
waits for the end of a pipe that the work-horse alone holds open, which comes whatever kills that.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress


class Guard:
    """A process beside the command; owned by the work-horse, of which it is a child."""

    def __init__(self) -> None:
        """Fork it. Raises OSError. The calling process must have a single thread."""
        read_end, self._write_end = os.pipe2(os.O_CLOEXEC)
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._write_end)
                _keep_watch(read_end)
            finally:
                os._exit(0)
        os.close(read_end)

    def watch_over(self, group: int) -> None:
        """From now on the group ends with the calling process."""
        # A guard that was killed cannot be told; then the agent is left to see to the group.
        with suppress(BrokenPipeError):
            os.write(self._write_end, str(group).encode())

    def dismiss(self) -> None:
        """The group needs no guard any more; may be called twice."""
        if not self._pid:
            return
        # Whoever collects all children of this process may have collected the guard as well.
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        self._pid = 0
        os.close(self._write_end)


def _keep_watch(read_end: int) -> None:
    """In the guard: no signal but SIGKILL ends it before its time."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    told = b""
    while part := os.read(read_end, 32):
        told += part
    if told:
        with suppress(ProcessLookupError):
            os.killpg(int(told), signal.SIGKILL)
