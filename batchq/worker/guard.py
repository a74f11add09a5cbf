"""The guard: it ends a pod's process group when the pod's work-horse is killed, or stands still.

The kernel kills a command whose work-horse dies, but not the command's own children. The agent
would; but an agent that is paused, or dies as well, does not, and once lease and grace have passed
the pod begins elsewhere while they go on. So each work-horse forks a guard before the command: it
waits for the end of a pipe that the work-horse alone holds open, which comes whatever kills that.
And it knows when the pod's lease ends: a work-horse that is stopped by a signal can neither renew
it nor end the pod. Where the pod has a cgroup, what left the group is killed as well.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from time import monotonic_ns

from batchq.worker.cgroup import PodCgroup


class Guard:
    """A process beside the command; owned by the work-horse, of which it is a child."""

    def __init__(self, cgroup: PodCgroup | None = None) -> None:
        """Fork it. Raises OSError. The calling process must have a single thread."""
        read_end, self._write_end = os.pipe2(os.O_CLOEXEC)
        # A guard that does not read must not hold its work-horse up.
        os.set_blocking(self._write_end, False)
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._write_end)
                _keep_watch(read_end, cgroup)
            finally:
                os._exit(0)
        os.close(read_end)

    def watch_over(self, group: int) -> None:
        """From now on the group ends with the calling process."""
        self._tell(f"group {group}")

    def allow_until(self, at_ms: int) -> None:
        """The group ends at this instant of the monotonic clock, unless a later one is named."""
        self._tell(f"until {at_ms}")

    def _tell(self, what: str) -> None:
        # A guard that was killed cannot be told; then the agent is left to see to the group.
        with suppress(BrokenPipeError, BlockingIOError):
            if self._pid:
                os.write(self._write_end, f"{what}\n".encode())

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


def _keep_watch(read_end: int, cgroup: PodCgroup | None) -> None:
    """In the guard: no signal but SIGKILL ends it before its time."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    group = _await_the_time(read_end)
    if group is not None:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    if cgroup is not None:
        cgroup.kill()


def _await_the_time(read_end: int) -> int | None:
    """Until the pipe's other end is closed, or the time is over; the group, if it was named."""
    group: int | None = None
    until_ms: int | None = None
    rest = b""
    while True:
        left_ms = None if until_ms is None else until_ms - monotonic_ns() // 1_000_000
        if left_ms is not None and left_ms <= 0:
            if group is not None:
                return group
            # Over before the command was started: it ends as soon as there is one.
            left_ms = None
        if not select.select([read_end], [], [], None if left_ms is None else left_ms / 1000)[0]:
            continue
        part = os.read(read_end, 4096)
        if not part:
            return group
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            word, _, number = line.partition(b" ")
            if word == b"group":
                group = int(number)
            else:
                until_ms = max(until_ms or 0, int(number))
