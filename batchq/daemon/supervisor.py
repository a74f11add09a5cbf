"""Keep a service running in a child process: it is started again whenever it dies.

The parent prepares what the child serves with, such as listening sockets, and then only waits. So
connections that arrive while there is no child are accepted by the next one.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

import structlog

from batchq.daemon import detached
from batchq.daemon.services import OWN_MISTAKE
from batchq.worker.host.processes import die_with_parent

_log = structlog.get_logger()

_ENDING = frozenset({signal.SIGINT, signal.SIGTERM})
_HEEDED = _ENDING | {signal.SIGCHLD}
#: A child that has served for so long is replaced at once; earlier deaths are followed by a pause.
SETTLED_S = 10.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
#: How long a child may take to end after it was asked.
ENDS_WITHIN_S = 20.0


class ServiceSupervisor:
    """Runs `serve` in a child process until SIGINT or SIGTERM. Main thread only.

    `serve` returns when the child gets SIGTERM. The child ends, too, if the parent is killed.
    """

    def __init__(
        self, name: str, serve: Callable[[], None], *, first_pause_s: float = FIRST_PAUSE_S
    ) -> None:
        self._name = name
        self._serve = serve
        self._first_pause_s = first_pause_s
        self._pause_s = first_pause_s

    def run(self) -> None:
        """Supervise until the end is requested."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEEDED)
        try:
            while True:
                pid, began_at = self._start(before), time.monotonic()
                status = self._await_end(pid)
                if status is None:
                    self._end(pid)
                    return
                how = detached.in_words(os.waitstatus_to_exitcode(status))
                _log.warning(f"{self._name}.died", pid=pid, how=how)
                if self._is_ended_during_pause(time.monotonic() - began_at):
                    return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _start(self, mask: set[int | signal.Signals]) -> int:
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return pid
        code = OWN_MISTAKE
        try:
            for number in _ENDING:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            die_with_parent(signal.SIGTERM, parent)
            self._serve()
            code = 0
        except BaseException:  # the child must not go on in its parent's code
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _await_end(self, pid: int) -> int | None:
        """Return the status of the child's death; None if the end is requested first."""
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return status
            if signal.sigwait(_HEEDED) in _ENDING:
                return None

    def _end(self, pid: int) -> None:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + ENDS_WITHIN_S
        while not os.waitpid(pid, os.WNOHANG)[0]:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or signal.sigtimedwait(_HEEDED, left_s) is None:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return

    def _is_ended_during_pause(self, served_s: float) -> bool:
        """Wait before the next start; return whether the end was requested meanwhile."""
        if served_s >= SETTLED_S:
            self._pause_s = self._first_pause_s
            return False
        found = signal.sigtimedwait(_ENDING, self._pause_s)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return found is not None
