"""The guard: it kills a pod's process group when the pod's work-horse is killed or stopped.

The agent ends what a killed work-horse leaves. An agent that is itself paused or killed cannot, and
once lease and grace are over the pod starts elsewhere while its processes go on here. So one
process beside the agent has pipes, one for each pod, whose write ends only the work-horses hold:
when a work-horse dies for any reason, its pipe ends. The guard also knows when each pod's
lease ends, because a work-horse that is stopped by a signal can neither renew the lease nor end the
pod. If the pod has a cgroup, processes that left the group are killed as well.

The guard reads a pipe when it ends, and when the time of its pod is over. A pipe serves several
pods of a work-horse, one after the other, so most short pods do not wake the guard at all.

The guard outlives the agent while it has pods to guard. A work-horse that cannot reach it, because
it was killed or stopped, forks a guard of its own.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from time import monotonic_ns

from msgspec import Struct

from batchq.worker.host.cgroup import PodCgroup
from batchq.worker.host.processes import collect, set_mark

_MAX_PATH_BYTES = 4096
#: What is written for them fits into the smallest pipe, even if the guard is stopped.
_PODS_A_PIPE = 30
_PIPE_BYTES = 1 << 16
_DEVNULL_FOR = (0, 1, 2)
_HOLD = b"hold"


class _Pipe(Struct, kw_only=True):
    """The write end of a pipe to the guarding process, and what its pods have written so far."""

    write_end: int
    cgroup: PodCgroup | None
    #: The latest instant; the guarding process may read nothing before it.
    until_ms: int = 0
    pods: int = 0

    def close(self) -> None:
        os.close(self.write_end)


class Guard:
    """A pod's guard, as its work-horse sees it: the pipe to the guarding process."""

    def __init__(
        self,
        cgroup: PodCgroup | None = None,
        *,
        post: GuardPost | None = None,
        until_ms: int | None = None,
    ) -> None:
        """Have the pod guarded by `post`, or by a new process if the post does not answer.
        `until_ms`: as for `allow_until`.

        Raise OSError. The calling process must have a single thread.
        """
        self._post = post
        self._pid = 0
        self._is_on_duty = True
        #: The latest instant that the guard was told.
        self._until_ms = 0
        former = None
        if post is not None and until_ms is not None:
            former = post.take(cgroup, until_ms)
        if former is not None and until_ms is not None:
            self._pipe = former
            self.allow_until(until_ms)
            if self._until_ms == until_ms:
                return
            # The guarding process is dead.
            former.close()
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        # A guard that does not read must not block its work-horse.
        os.set_blocking(write_end, False)
        self._pipe = _Pipe(write_end=write_end, cgroup=cgroup)
        if until_ms is not None:
            # Before the guard has the pipe, so that both wake it only once.
            self.allow_until(until_ms)
        try:
            if post is None or not post.enrol(read_end, cgroup):
                self._pid = _fork(read_end, write_end, cgroup)
        finally:
            os.close(read_end)

    def watch_over(self, group: int) -> None:
        """Kill the group when the calling process ends, from now on."""
        self._tell(f"group {group}")

    def allow_until(self, at_ms: int) -> None:
        """Kill the group at this instant of the monotonic clock, unless a later one follows.

        The supervision calls it in every turn, so an instant that changes nothing is not sent.
        """
        if at_ms > self._until_ms and self._tell(f"until {at_ms}"):
            self._until_ms = self._pipe.until_ms = at_ms

    def dismiss(self) -> None:
        """Release the guard; may be called twice."""
        if not self._is_on_duty:
            return
        is_told = self._tell("dismissed")
        self._is_on_duty = False
        if self._pid:
            _end(self._pid)
        elif is_told and self._post is not None:
            self._post.give_back(self._pipe)
            return
        self._pipe.close()

    def _tell(self, what: str) -> bool:
        """Send a message, and return whether it was sent."""
        # If the guard was killed, the agent is left to end the group.
        with suppress(BrokenPipeError, BlockingIOError):
            return self._is_on_duty and os.write(self._pipe.write_end, f"{what}\n".encode()) > 0
        return False


class GuardPost:
    """The process that guards all pods of an agent.

    The agent starts it; the work-horses inherit the socket to it.
    """

    #: The pipe of this work-horse's last pod, for the next one.
    _spare: _Pipe | None = None
    _is_closed = False

    def __init__(self, mark: int | None = None) -> None:
        """Fork the process. Raise OSError. The calling process must have a single thread.

        `mark`: how the next agent recognizes a guard that has been left, if given.
        """
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                if mark is not None:
                    set_mark(mark)
                _detach([theirs.fileno()])
                _Watch(theirs).keep()
            finally:
                os._exit(0)
        theirs.close()
        # A guard that is stopped must not block its callers.
        self._socket.setblocking(False)

    def enrol(self, read_end: int, cgroup: PodCgroup | None) -> bool:
        """Hand a pipe to the guarding process, and return whether it could be sent."""
        path = b"" if cgroup is None else os.fsencode(cgroup.path)
        try:
            socket.send_fds(self._socket, [b"guard " + path], [read_end])
        except OSError:
            return False
        return True

    def take(self, cgroup: PodCgroup | None, until_ms: int) -> _Pipe | None:
        """Return the pipe of a former pod with the same cgroup; None if there is none, or if the
        guarding process might read it too late for this instant.
        """
        spare, self._spare = self._spare, None
        if spare is not None and (spare.cgroup != cgroup or spare.until_ms > until_ms):
            spare.close()
            return None
        return spare

    def give_back(self, pipe: _Pipe) -> None:
        """Keep a pipe for the next pod, or close it."""
        pipe.pods += 1
        if self._spare is not None or self._is_closed or pipe.pods >= _PODS_A_PIPE:
            pipe.close()
        else:
            self._spare = pipe

    def hold(self, lock: socket.socket) -> bool:
        """Hand over a copy of a lock, and return whether it could be sent.

        It stays locked until the last pod has ended, even if the agent and its work-horses are
        killed.
        """
        try:
            socket.send_fds(self._socket, [_HOLD], [lock.fileno()])
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the socket; the process ends once no work-horse is left."""
        self._socket.close()
        self._is_closed = True
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def end(self) -> None:
        """Kill the process, even a stopped one. Call it when the agent has no work-horses left."""
        self._socket.close()
        _end(self.pid)


def _end(pid: int) -> None:
    # A caller that collects all children of this process may have collected the guard as well.
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        collect(pid)


def _fork(read_end: int, write_end: int, cgroup: PodCgroup | None) -> int:
    """Fork a process that watches this one pipe, and return its pid."""
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


def _detach(kept: Collection[int]) -> None:
    """Detach the guarding process from the agent's other descriptors, session and signals."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    os.setsid()
    empty = os.open(os.devnull, os.O_RDWR)
    for descriptor in _DEVNULL_FOR:
        os.dup2(empty, descriptor)
    start = len(_DEVNULL_FOR)
    for descriptor in sorted(kept):
        os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, os.sysconf("SC_OPEN_MAX"))


class _Pod:
    """What the guard knows of the pod that a pipe serves."""

    def __init__(self, cgroup: PodCgroup | None) -> None:
        self._cgroup = cgroup
        self._group: int | None = None
        self._until_ms: int | None = None
        self._rest = b""
        self._is_dismissed = False
        #: Whether its time was over before its command had started.
        self._is_late = False

    def hear(self, part: bytes) -> None:
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            word, _, number = line.partition(b" ")
            match word:
                case b"group":
                    self._group, self._is_dismissed = int(number), False
                case b"until":
                    self._until_ms = max(self._until_ms or 0, int(number))
                    self._is_dismissed = False
                case b"dismissed":
                    self._group = self._until_ms = None
                    self._is_dismissed, self._is_late = True, False

    def left_ms(self, now_ms: int) -> int | None:
        """Return for how long nothing need be read; None if the next word must be read at once."""
        if self._until_ms is None or (self._is_late and self._group is None):
            return None
        return max(0, self._until_ms - now_ms)

    def end_late(self) -> bool:
        """End it, as its time is over, and return whether its command has started; if not, that
        ends as soon as it starts.
        """
        self._is_late = True
        if self._group is None:
            return False
        self.end()
        return True

    def end(self) -> None:
        """Kill its processes, unless it has ended."""
        if self._is_dismissed:
            return
        if self._group is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)
        if self._cgroup is not None:
            self._cgroup.kill()


class _Watch:
    """All guarded pods, each with its pipe; used in the guarding process."""

    def __init__(self, post: socket.socket | None) -> None:
        self._post = post
        self._pods: dict[int, _Pod] = {}
        #: The descriptors of locks, held until this process ends.
        self._locks: list[int] = []
        self._poll = select.poll()
        if post is not None:
            self._poll.register(post.fileno(), select.POLLIN)

    def take(self, read_end: int, cgroup: PodCgroup | None) -> None:
        """Guard the pods of one more pipe."""
        os.set_blocking(read_end, False)
        self._pods[read_end] = _Pod(cgroup)
        self._poll.register(read_end, select.POLLIN)
        self._hear(read_end)

    def keep(self) -> None:
        """Watch until no caller is left to enrol a pod, and no pod to guard."""
        while self._post is not None or self._pods:
            for descriptor, _ in self._poll.poll(self._wait_ms()):
                if self._post is not None and descriptor == self._post.fileno():
                    self._enrol(self._post)
                else:
                    self._hear(descriptor)
            for descriptor, pod in list(self._pods.items()):
                # What it was written meanwhile may allow it more time.
                if pod.left_ms(_now_ms()) == 0 and self._hear(descriptor):
                    self._end_if_late(descriptor, pod)

    def _end_if_late(self, descriptor: int, pod: _Pod) -> None:
        if pod.left_ms(_now_ms()) != 0:
            return
        if pod.end_late():
            self._drop(descriptor)
        else:
            self._poll.modify(descriptor, select.POLLIN)

    def _wait_ms(self) -> int | None:
        now_ms = _now_ms()
        left = (pod.left_ms(now_ms) for pod in self._pods.values())
        return min((ms for ms in left if ms is not None), default=None)

    def _enrol(self, post: socket.socket) -> None:
        message, descriptors, _, _ = socket.recv_fds(post, _MAX_PATH_BYTES, 1)
        if not message:
            # Neither the agent nor any of its work-horses is left.
            self._poll.unregister(post.fileno())
            self._post = None
            return
        if message == _HOLD:
            self._locks += descriptors
            return
        path = os.fsdecode(message.partition(b" ")[2])
        for descriptor in descriptors:
            self.take(descriptor, PodCgroup(Path(path)) if path else None)

    def _hear(self, descriptor: int) -> bool:
        """Read what was written to a pipe, and return whether the pipe has not ended."""
        pod = self._pods[descriptor]
        try:
            part = os.read(descriptor, _PIPE_BYTES)
        except BlockingIOError:
            return True
        if not part:
            pod.end()
            self._drop(descriptor)
            return False
        pod.hear(part)
        # The end of a pipe is reported in any case.
        self._poll.modify(descriptor, select.POLLIN if pod.left_ms(_now_ms()) is None else 0)
        return True

    def _drop(self, descriptor: int) -> None:
        del self._pods[descriptor]
        self._poll.unregister(descriptor)
        os.close(descriptor)


def _now_ms() -> int:
    return monotonic_ns() // 1_000_000
