"""An interpreter that stands by, from which the process of a pod's function is forked.

To start Python takes longer than most of what is called in it. A work-horse that runs one function
after the other keeps a bare interpreter beside it, with nothing of the agent in it: what is forked
from that is as good as started, for a tenth of the time. It is no pod's parent but this
work-horse's child, so all that a pod leaves behind still comes to the work-horse.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from batchq.worker.host.containment import Enclosure
from batchq.worker.host.memory_limits import ProcessBounds
from batchq.worker.host.pid_namespace import PidNamespace, StartOrder, pid_behind
from batchq.worker.host.processes import collect, is_answered, is_readable, kill_children
from batchq.worker.workhorse.callee import ALONE, KILL_OTHERS
from batchq.worker.workhorse.process import Fork

log = structlog.get_logger(__name__)

#: What an interpreter, or the C library, reads only at its start.
_AT_START = ("PYTHON", "LC_", "LD_", "MALLOC_", "GLIBC_")
_AT_START_TOO = frozenset({"LANG", "LANGUAGE", "TZ", "HOME", "VIRTUAL_ENV"})
_MARK = "BATCHQ_STOP_FILE"
#: To fork, or to collect what has ended: it has nothing else to do.
_ANSWERS_WITHIN_S = 10.0
_KILLED_WITHIN_S = 2.0


class Standby:
    """One such interpreter; owned by a work-horse, and ended with it."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        namespace: PidNamespace | None = None,
    ) -> None:
        """Start it in the environment of a pod, of which others must not differ where it counts;
        where pods have a PID namespace, in that.

        Raises OSError.
        """
        self._namespace = namespace
        self._at_start = _read_at_start(environment)
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.settimeout(_ANSWERS_WITHIN_S)
        # No more than that: another pod's environment is nobody's business.
        least = {
            **self._at_start,
            "PATH": environment.get("PATH", os.defpath),
            # By this leftovers are known for this agent's.
            _MARK: environment.get(_MARK, ""),
        }
        self._process: subprocess.Popen[bytes] | _Guest
        try:
            if namespace is not None:
                self._process = _Guest(namespace, [*argv, ALONE], least, theirs.fileno())
                return
            self._process = subprocess.Popen(
                list(argv),
                env=least,
                cwd="/",
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            theirs.close()

    def fork(
        self,
        environment: Mapping[str, str],
        folder: str,
        bounds: ProcessBounds,
        descriptors: tuple[int, ...],
    ) -> Fork | None:
        """Fork a process; None where it has to be started instead.

        `descriptors`: its stdin, stdout and stderr, and the way into its cgroup if it has one.
        """
        folder = folder or str(Path.cwd())
        fits = _read_at_start(environment) == self._at_start and os.access(folder, os.X_OK)
        if not fits or self._process.poll() is not None:
            return None
        order = {
            "environment": environment,
            "folder": folder,
            "memory": bounds.memory_bytes or 0,
        }
        try:
            socket.send_fds(self._orders, [msgspec.json.encode(order)], list(descriptors))
            _, (pidfd,), _, _ = socket.recv_fds(self._orders, 64, 1)
            pid = pid_behind(pidfd)
        except (OSError, ValueError) as trouble:
            log.warning("interpreter that stands by given up", trouble=str(trouble))
            self.close()
            # It may have forked, and not have said so.
            if self._namespace is not None:
                self._namespace.end_all(_KILLED_WITHIN_S)
            else:
                kill_children(keep=(), within_s=_KILLED_WITHIN_S)
            return None
        if self._namespace is not None:
            return Fork(
                pid=pid, reap=lambda: self._reap(pid), keep=(), kill_others=self._kill_others
            )
        return Fork(pid=pid, reap=lambda: self._reap(pid), keep=(self._process.pid,))

    def close(self) -> None:
        """End it; what was forked from it goes on, as a child of this process."""
        self._orders.close()
        with suppress(ProcessLookupError):
            self._process.kill()
        if isinstance(self._process, _Guest):
            self._process.wait()
        elif self._process.poll() is None:
            wait_status = collect(self._process.pid)
            if wait_status is not None:
                self._process.returncode = os.waitstatus_to_exitcode(wait_status)

    def _reap(self, pid: int) -> int | None:
        """The wait status of a process that was forked and has ended; None if it cannot be had."""
        try:
            self._orders.send(b"?")
            if not is_answered(
                self._orders, _ANSWERS_WITHIN_S, waiting_for=(pid, self._process.pid)
            ):
                raise TimeoutError
            return int(self._orders.recv(64))
        except (OSError, ValueError):
            # It was killed; its child has become this process's.
            self.close()
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            if self._namespace is not None:
                # That of the namespace's first process, which collects it.
                return int(signal.SIGKILL)
            return collect(pid)

    def _kill_others(self) -> bool:
        try:
            self._orders.send(KILL_OTHERS)
            return bool(self._orders.recv(1))
        except OSError:
            return False


class _Guest:
    """An interpreter in a PID namespace, whose first process collects it."""

    def __init__(
        self,
        namespace: PidNamespace,
        argv: Sequence[str],
        environment: Mapping[str, str],
        orders: int,
    ) -> None:
        """Raises OSError."""
        order = StartOrder(argv=argv, environment=environment, folder="/", stays=True)
        empty = os.open(os.devnull, os.O_RDWR)
        try:
            self.pid = namespace.start(order, (orders, empty, empty))
        finally:
            os.close(empty)
        self._pidfd = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """None while it runs."""
        return None if self._pidfd >= 0 and not is_readable(self._pidfd, within_ms=0) else 0

    def kill(self) -> None:
        """Raises ProcessLookupError if it has ended."""
        if self._pidfd >= 0:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self) -> None:
        """Let go of it, once it has ended."""
        if self._pidfd >= 0:
            is_readable(self._pidfd, within_ms=round(1000 * _KILLED_WITHIN_S))
            os.close(self._pidfd)
            self._pidfd = -1


class Functions:
    """How a work-horse has functions' processes started: the first one plainly, as there may be no
    other, and the others by an interpreter that stands by. Owned by the work-horse.
    """

    def __init__(self, argv: Sequence[str], enclosure: Enclosure | None = None) -> None:
        """`enclosure`: what is around the work-horse's pods, if anything is."""
        self._argv = argv
        self._enclosure = enclosure
        self._had_one = False
        self._standby: Standby | None = None

    def fork(
        self,
        environment: Mapping[str, str],
        folder: str,
        bounds: ProcessBounds,
        descriptors: tuple[int, ...],
    ) -> Fork | None:
        """See `Standby.fork`."""
        if not self._had_one:
            self._had_one = True
            return None
        forked = self._standby and self._standby.fork(environment, folder, bounds, descriptors)
        if forked:
            return forked
        self.close()
        try:
            namespace = self._enclosure.namespace if self._enclosure else None
            self._standby = Standby(self._argv, environment, namespace)
        except (OSError, ValueError) as trouble:
            log.warning("no interpreter to stand by", trouble=str(trouble))
            return None
        return self._standby.fork(environment, folder, bounds, descriptors)

    def close(self) -> None:
        """Nothing stands by any more."""
        if self._standby is not None:
            self._standby.close()
            self._standby = None


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_AT_START) or name in _AT_START_TOO
    }
