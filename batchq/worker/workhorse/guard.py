"""The guard: it ends a pod's process group when the pod's work-horse is killed, or stands still.

The agent would see to what a killed work-horse leaves; but an agent that is paused, or dies as
well, does not, and once lease and grace have passed the pod begins elsewhere while its processes go
on. So one process beside the agent waits for the ends of pipes, one for each pod, that the
work-horses alone hold open: an end comes whatever kills one. And it knows when each pod's lease
ends: a work-horse that is stopped by a signal can neither renew it nor end the pod. Where the pod
has a cgroup, what left the group is killed as well.

It outlives the agent for as long as there is a pod to guard. A work-horse that it does not answer,
because somebody has killed or stopped it, forks a guard of its own.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from contextlib import suppress
from pathlib import Path
from time import monotonic_ns

from batchq.worker.host.cgroup import PodCgroup
from batchq.worker.host.processes import collect, put_on

_MOST_PATH_BYTES = 4096
_DEVNULL_FOR = (0, 1, 2)


class Guard:
    """A pod's guard, as its work-horse sees it: the pipe to the process that watches."""

    def __init__(self, cgroup: PodCgroup | None = None, *, post: GuardPost | None = None) -> None:
        """Have the pod watched over, by `post` if it answers, else by a process of its own.

        Raises OSError. The calling process must have a single thread.
        """
        read_end, self._write_end = os.pipe2(os.O_CLOEXEC)
        # A guard that does not read must not hold its work-horse up.
        os.set_blocking(self._write_end, False)
        self._pid = 0
        self._is_on_duty = True
        try:
            if post is None or not post.enrol(read_end, cgroup):
                self._pid = _fork(read_end, self._write_end, cgroup)
        finally:
            os.close(read_end)

    def watch_over(self, group: int) -> None:
        """From now on the group ends with the calling process."""
        self._tell(f"group {group}")

    def allow_until(self, at_ms: int) -> None:
        """The group ends at this instant of the monotonic clock, unless a later one is named."""
        self._tell(f"until {at_ms}")

    def dismiss(self) -> None:
        """The group needs no guard any more; may be called twice."""
        if not self._is_on_duty:
            return
        self._tell("dismissed")
        self._is_on_duty = False
        if self._pid:
            _end(self._pid)
        os.close(self._write_end)

    def _tell(self, what: str) -> None:
        # A guard that was killed cannot be told; then the agent is left to see to the group.
        with suppress(BrokenPipeError, BlockingIOError):
            if self._is_on_duty:
                os.write(self._write_end, f"{what}\n".encode())


class GuardPost:
    """The process that guards all pods of an agent; made by the agent, and known to its
    work-horses, which inherit it.
    """

    def __init__(self, mark: int | None = None) -> None:
        """Fork it. Raises OSError. The calling process must have a single thread.

        By `mark`, if there is one, the next agent knows a guard that has been left.
        """
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                if mark is not None:
                    put_on(mark)
                _keep_apart(theirs.fileno())
                _Watch(theirs).keep()
            finally:
                os._exit(0)
        theirs.close()
        # Nobody waits for a guard that stands still.
        self._socket.setblocking(False)

    def enrol(self, read_end: int, cgroup: PodCgroup | None) -> bool:
        """Whether the process at the post has been told to watch the other end of this pipe."""
        path = b"" if cgroup is None else os.fsencode(cgroup.path)
        try:
            socket.send_fds(self._socket, [b"guard " + path], [read_end])
        except OSError:
            return False
        return True

    def close(self) -> None:
        """The process ends once no work-horse is left."""
        self._socket.close()

    def end(self) -> None:
        """End the process, be it stopped. For an agent that has no work-horses any more."""
        self._socket.close()
        _end(self.pid)


def _end(pid: int) -> None:
    # Whoever collects all children of this process may have collected the guard as well.
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        collect(pid)


def _fork(read_end: int, write_end: int, cgroup: PodCgroup | None) -> int:
    """A process that watches this pipe alone; its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            os.close(write_end)
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            watch = _Watch(None)
            watch.take(read_end, cgroup)
            watch.keep()
        finally:
            os._exit(0)
    return pid


def _keep_apart(kept: int) -> None:
    """In the process at the post: no signal but SIGKILL ends it before its time, and it holds
    open nothing of the agent's.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.setsid()
    empty = os.open(os.devnull, os.O_RDWR)
    for descriptor in _DEVNULL_FOR:
        os.dup2(empty, descriptor)
    most = os.sysconf("SC_OPEN_MAX")
    os.closerange(len(_DEVNULL_FOR), kept)
    os.closerange(kept + 1, most)


class _Pod:
    """What is known of one pod."""

    def __init__(self, cgroup: PodCgroup | None) -> None:
        self._cgroup = cgroup
        self._group: int | None = None
        self._until_ms: int | None = None
        self._rest = b""
        self.is_dismissed = False

    def hear(self, part: bytes) -> None:
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            word, _, number = line.partition(b" ")
            match word:
                case b"group":
                    self._group = int(number)
                case b"until":
                    self._until_ms = max(self._until_ms or 0, int(number))
                case b"dismissed":
                    self.is_dismissed = True

    def left_ms(self, now_ms: int) -> int | None:
        """How long its time lasts; None as long as that is unknown, or nothing was started."""
        # A time that is over before the command was started ends it as soon as there is one.
        if self._until_ms is None or self._group is None:
            return None
        return max(0, self._until_ms - now_ms)

    def end(self) -> None:
        if self._group is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)
        if self._cgroup is not None:
            self._cgroup.kill()


class _Watch:
    """In the guarding process: all pods, each by its pipe."""

    def __init__(self, post: socket.socket | None) -> None:
        self._post = post
        self._pods: dict[int, _Pod] = {}
        self._poll = select.poll()
        if post is not None:
            self._poll.register(post.fileno(), select.POLLIN)

    def take(self, read_end: int, cgroup: PodCgroup | None) -> None:
        """One more."""
        self._pods[read_end] = _Pod(cgroup)
        self._poll.register(read_end, select.POLLIN)

    def keep(self) -> None:
        """Until there is nobody left to enrol one, and none to guard."""
        while self._post is not None or self._pods:
            for descriptor, _ in self._poll.poll(self._wait_ms()):
                if self._post is not None and descriptor == self._post.fileno():
                    self._enrol(self._post)
                else:
                    self._hear(descriptor)
            now_ms = monotonic_ns() // 1_000_000
            for descriptor, pod in list(self._pods.items()):
                if pod.left_ms(now_ms) == 0:
                    pod.end()
                    self._drop(descriptor)

    def _wait_ms(self) -> int | None:
        now_ms = monotonic_ns() // 1_000_000
        left = (pod.left_ms(now_ms) for pod in self._pods.values())
        return min((ms for ms in left if ms is not None), default=None)

    def _enrol(self, post: socket.socket) -> None:
        message, descriptors, _, _ = socket.recv_fds(post, _MOST_PATH_BYTES, 1)
        if not message:
            # Neither the agent nor any of its work-horses is left.
            self._poll.unregister(post.fileno())
            self._post = None
            return
        path = os.fsdecode(message.partition(b" ")[2])
        for descriptor in descriptors:
            self.take(descriptor, PodCgroup(Path(path)) if path else None)

    def _hear(self, descriptor: int) -> None:
        part, pod = os.read(descriptor, 4096), self._pods[descriptor]
        pod.hear(part)
        if pod.is_dismissed:
            self._drop(descriptor)
        elif not part:
            pod.end()
            self._drop(descriptor)

    def _drop(self, descriptor: int) -> None:
        del self._pods[descriptor]
        self._poll.unregister(descriptor)
        os.close(descriptor)
