"""A standby interpreter, from which the processes of function pods are forked.

Starting Python takes longer than most functions that pods call. A work-horse that runs functions
one after the other keeps a bare interpreter beside it, which holds nothing of the agent; a fork of
it costs a tenth of a start. It is forked ahead, while the work-horse waits for the next pod: it
holds nothing of any pod, waits for its order, and ends if none can come.

The interpreter is a child of the work-horse and not the parent of the pod's orphans, so the
processes a pod leaves behind still come to the work-horse.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from batchq.system import structlog
from batchq.worker.host.containment import Enclosure, PidNamespace, StartOrder, pid_of_pidfd
from batchq.worker.host.node_resources import ProcessBounds
from batchq.worker.host.processes import collect, is_answered, is_readable
from batchq.worker.workhorse.callee import AHEAD, ALONE, KILL_OTHERS
from batchq.worker.workhorse.process import Fork

log = structlog.get_logger(__name__)

#: Variables that the interpreter or the C library reads only at its start.
_START_PREFIXES = ("PYTHON", "LC_", "LD_", "MALLOC_", "GLIBC_")
_START_NAMES = frozenset({"LANG", "LANGUAGE", "TZ", "HOME", "VIRTUAL_ENV"})
_MARK = "BATCHQ_STOP_FILE"
#: Variables that most pods of a work-horse have in common.
_SHARED_NAMES = tuple(
    f"BATCHQ_{name}"
    for name in (
        *("NAMESPACE", "QUEUE", "NODE", "TASK", "INDEX", "REPLICAS", "ADMISSION", "ATTEMPT"),
        "STOP_REASON",
    )
)
#: For a fork or a collection; the standby has nothing else to do.
_ANSWERS_WITHIN_S = 10.0
_KILLED_WITHIN_S = 2.0
_NOTHING: Mapping[str, str] = {}


class Standby:
    """One standby interpreter; owned by a work-horse, and ended with it."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        namespace: PidNamespace | None = None,
        common: Mapping[str, str] = _NOTHING,
    ) -> None:
        """Start it in the environment of a pod.

        It serves only pods with the same variables that are read at the start. If pods have a PID
        namespace, it runs in that. `common`: variables that all pods get, so that few remain to be
        set for each. Raise OSError.
        """
        self._namespace = namespace
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.settimeout(_ANSWERS_WITHIN_S)
        #: The process that was forked ahead and has no order yet.
        self._ahead: _Ahead | None = None
        # Only these: the environment of one pod must not reach another.
        self._given = {
            **{name: value for name, value in common.items() if not _is_read_at_start(name)},
            **{name: environment[name] for name in _SHARED_NAMES if name in environment},
            **{name: value for name, value in environment.items() if _is_read_at_start(name)},
            "PATH": environment.get("PATH", os.defpath),
            # Marks leftovers as this agent's.
            _MARK: environment.get(_MARK, ""),
        }
        self._process: subprocess.Popen[bytes] | _NamespacedInterpreter
        try:
            if namespace is not None:
                self._process = _NamespacedInterpreter(
                    namespace, [*argv, ALONE], self._given, theirs.fileno()
                )
                return
            self._process = subprocess.Popen(
                list(argv),
                env=self._given,
                cwd="/",
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            theirs.close()

    def fork_ahead(self) -> None:
        """Fork the next process, if that has not been done, so that it only needs its order.

        Call it while no pod runs. Raise OSError or ValueError.
        """
        if self._ahead is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            socket.send_fds(self._orders, [AHEAD], [theirs.fileno()])
            _, (pidfd,), _, _ = socket.recv_fds(self._orders, 64, 1)
            pid = pid_of_pidfd(pidfd)
            self._ahead = _Ahead(pid=pid, pidfd=os.pidfd_open(pid), orders=ours)
        except BaseException:  # anything: the socket must not stay open
            ours.close()
            raise
        finally:
            theirs.close()

    def fork(
        self,
        environment: Mapping[str, str],
        folder: str,
        bounds: ProcessBounds,
        descriptors: tuple[int, ...],
    ) -> Fork | None:
        """Fork a process, or give its order to the one that was forked ahead; return None if the
        caller has to start it instead.

        `descriptors`: its stdin, stdout and stderr, and the way into its cgroup if it has one.
        """
        folder = folder or str(Path.cwd())
        given = self._given
        changed = [name for name, value in environment.items() if given.get(name) != value]
        missing = [name for name in given if name not in environment]
        if any(map(_is_read_at_start, (*changed, *missing))):
            return None
        if not os.access(folder, os.X_OK) or self._process.poll() is not None:
            return None
        changes = (f"{name}={environment[name]}" for name in changed)
        parts = [str(bounds.memory_bytes or 0), folder, *changes, *missing]
        order = os.fsencode("\0".join(parts))
        if order.count(b"\0") >= len(parts):
            # No process can be started with this variable or folder, and the caller says so.
            return None
        try:
            self.fork_ahead()
            assert self._ahead is not None
            socket.send_fds(self._ahead.orders, [order], descriptors)
            pid = self._ahead.pid
            self._ahead.close()
            self._ahead = None
        except (OSError, ValueError) as trouble:
            # A process that was forked without an answer gets no order, and ends.
            log.warning("interpreter that stands by given up", trouble=str(trouble))
            self.close()
            return None
        if self._namespace is not None:
            return Fork(
                pid=pid, reap=lambda: self._reap(pid), keep=(), kill_others=self._kill_others
            )
        return Fork(pid=pid, reap=lambda: self._reap(pid), keep=(self._process.pid,))

    def close(self) -> None:
        """Kill it; processes forked from it go on, as children of this process."""
        self._orders.close()
        with suppress(ProcessLookupError):
            self._process.kill()
        if isinstance(self._process, _NamespacedInterpreter):
            self._process.wait()
        elif self._process.poll() is None:
            wait_status = collect(self._process.pid)
            if wait_status is not None:
                self._process.returncode = os.waitstatus_to_exitcode(wait_status)
        if self._ahead is not None:
            self._ahead.end()
            self._ahead = None

    def _reap(self, pid: int) -> int | None:
        """Return the wait status of a forked process that has ended; None if it is unknown."""
        try:
            self._orders.send(b"?")
            if not is_answered(
                self._orders, _ANSWERS_WITHIN_S, waiting_for=(pid, self._process.pid)
            ):
                raise TimeoutError
            return int(self._orders.recv(64))
        except (OSError, ValueError):
            # The standby was killed; its child is now a child of this process.
            self.close()
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            if self._namespace is not None:
                # The namespace's first process collects it and keeps its status.
                return int(signal.SIGKILL)
            return collect(pid)

    def _kill_others(self) -> bool:
        try:
            self._orders.send(KILL_OTHERS)
            return bool(self._orders.recv(1))
        except OSError:
            return False


class _Ahead(Struct, frozen=True, kw_only=True):
    """A forked process that waits for its order, and ends if it gets none."""

    pid: int
    pidfd: int
    orders: socket.socket

    def close(self) -> None:
        os.close(self.pidfd)
        self.orders.close()

    def end(self) -> None:
        """Kill and collect it, once its parent has ended; that is now this process, or the first
        one of the PID namespace.
        """
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        with suppress(ChildProcessError):
            collect(self.pid)
        is_readable(self.pidfd, within_ms=round(1000 * _KILLED_WITHIN_S))
        self.close()


class _NamespacedInterpreter:
    """An interpreter in a PID namespace, whose first process collects it."""

    def __init__(
        self,
        namespace: PidNamespace,
        argv: Sequence[str],
        environment: Mapping[str, str],
        orders: int,
    ) -> None:
        """Raise OSError."""
        order = StartOrder(argv=argv, environment=environment, folder="/", stays=True)
        empty = os.open(os.devnull, os.O_RDWR)
        try:
            self.pid = namespace.start(order, (orders, empty, empty))
        finally:
            os.close(empty)
        self._pidfd = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """Return None while it runs."""
        return None if self._pidfd >= 0 and not is_readable(self._pidfd, within_ms=0) else 0

    def kill(self) -> None:
        """Raise ProcessLookupError if it has ended."""
        if self._pidfd >= 0:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self) -> None:
        """Wait until it has ended, and close its descriptor."""
        if self._pidfd >= 0:
            is_readable(self._pidfd, within_ms=round(1000 * _KILLED_WITHIN_S))
            os.close(self._pidfd)
            self._pidfd = -1


class Functions:
    """Starts the processes of a work-horse's functions; owned by the work-horse.

    The first one starts plainly, as there may be no second; the others are forked from a standby.
    """

    def __init__(
        self,
        argv: Sequence[str],
        enclosure: Enclosure | None = None,
        common: Mapping[str, str] = _NOTHING,
    ) -> None:
        """`enclosure`: what surrounds the work-horse's pods, if anything. `common`: the variables
        that all of them get.
        """
        self._argv = argv
        self._enclosure = enclosure
        self._common = common
        self._has_started_one = False
        self._standby: Standby | None = None

    def fork(
        self,
        environment: Mapping[str, str],
        folder: str,
        bounds: ProcessBounds,
        descriptors: tuple[int, ...],
    ) -> Fork | None:
        """See `Standby.fork`."""
        if not self._has_started_one:
            self._has_started_one = True
            return None
        forked = self._standby and self._standby.fork(environment, folder, bounds, descriptors)
        if forked:
            return forked
        self.close()
        try:
            namespace = self._enclosure.namespace if self._enclosure else None
            self._standby = Standby(self._argv, environment, namespace, self._common)
        except (OSError, ValueError) as trouble:
            log.warning("no interpreter to stand by", trouble=str(trouble))
            return None
        return self._standby.fork(environment, folder, bounds, descriptors)

    def fork_ahead(self) -> None:
        """Have the process of the next function forked now, if there is a standby."""
        try:
            if self._standby is not None:
                self._standby.fork_ahead()
        except (OSError, ValueError):
            # It was killed, with the processes of a command; the next function starts another.
            self.close()

    def close(self) -> None:
        """End the standby, if there is one."""
        if self._standby is not None:
            self._standby.close()
            self._standby = None


def _is_read_at_start(name: str) -> bool:
    return name.startswith(_START_PREFIXES) or name in _START_NAMES
