"""The supervision of a running command.

If the pod's lease (`batchq.worker.workhorse.leases`) is not renewed, the pod's processes are killed
`margin_ms` before its end, so that the pod never runs in two places at once.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable

from msgspec import Struct

from batchq.api.reasons import Finish, Leaving
from batchq.system import structlog
from batchq.worker.agent.pod_states import patience_ms
from batchq.worker.host.processes import Signals, is_readable
from batchq.worker.workhorse.inner_commands import InnerCommands
from batchq.worker.workhorse.leases import Lease, ServerWatch, Voucher
from batchq.worker.workhorse.process import Command
from batchq.worker.workhorse.reporter import FLUSH_MS, Messenger, PodLog, monotonic_ms
from batchq.worker.workhorse.run_file import PodOutcome, outcome_of

log = structlog.get_logger(__name__)

#: The longest pause between two turns of the loop.
_TURN_MS = 500
#: How long the processes that a command leaves may take to end. The lease is renewed meanwhile;
#: after that, the agent takes them over.
_END_MS, _END_ROUND_S = 10_000, 0.5

_SHOWN_PIDS = 20
#: The wait status of exit code 75: a temporary failure (EX_TEMPFAIL of sysexits.h).
_AGAIN = 75 << 8

#: Tells the work-horse to stop the pod with its grace period, because the node goes away.
STOP_SIGNAL = signal.SIGTERM
#: Tells the work-horse to kill the pod at once. Also sent when the agent dies.
KILL_SIGNAL = signal.SIGUSR1
#: Tells the work-horse to read what its agent has written for it.
WAKE_SIGNAL = signal.SIGUSR2


class Limits(Struct, frozen=True, kw_only=True):
    """A pod's limits.

    `walltime_ms` is set only if the work-horse enforces it: for the pods of an array. `warning` is
    the signal to send ahead of SIGTERM, and at `warn_at` (monotonic) if that comes first.
    """

    grace_ms: int
    walltime_ms: int | None = None
    warning: signal.Signals | None = None
    warn_at: int | None = None


class AgentContact:
    """What a work-horse hears from its agent; without a voucher it hears nothing.

    The messenger's thread calls `is_lost`, and the supervision all methods.
    """

    def __init__(self, voucher: Voucher | None, *, server: ServerWatch, lease_ms: int) -> None:
        self._voucher = voucher
        self._server = server
        self._patience_ms = patience_ms(lease_ms)
        if voucher is not None:
            # Perhaps the last news of it for a while: the agent waits if the server is away by now.
            server.learn(voucher.server())

    def sign(self, now_ms: int) -> None:
        """Give the agent a sign of life."""
        if self._voucher is not None:
            self._voucher.sign(now_ms)

    def hear(self, lease: Lease) -> str:
        """Extend the lease if the agent has renewed it, and return why the pod is to stop.

        Empty if it is not to stop.
        """
        if self._voucher is None:
            return ""
        lease.extend(asked_at=self._voucher.asked_at)
        return self._voucher.stop_reason

    def is_lost(self, now_ms: int) -> bool:
        """Return whether the work-horse has to renew its lease itself."""
        if self._voucher is None or self._voucher.is_disowned:
            return True
        return now_ms - self._voucher.asked_at >= self._patience_ms

    def is_server_away(self, now_ms: int) -> bool:
        """Return whether the agent has seen that the server does not answer anyone.

        While the agent is silent, only what this work-horse has seen counts.
        """
        voucher = self._voucher
        if voucher is not None and now_ms - voucher.ticked_at() < self._patience_ms:
            self._server.learn(voucher.server())
        return self._server.is_away()


class Supervisor:
    """One command from its start to its end; owns the command and its log."""

    def __init__(
        self,
        command: Command,
        *,
        pod_log: PodLog,
        lease: Lease,
        limits: Limits,
        messenger: Messenger,
        agent: AgentContact,
        write_stop: Callable[[str], None],
        signals: Signals,
        inner: InnerCommands,
    ) -> None:
        """`inner`: the commands that run beside this one."""
        self._command = command
        self._log = pod_log
        self._lease = lease
        self._limits = limits
        self._messenger = messenger
        self._write_stop = write_stop
        self._signals = signals
        self._agent = agent
        self._stopped = ""
        self._message = ""
        self._kill_at: int | None = None
        self._killed = False
        self._fenced = False
        #: Whether the guard's instant had passed before an answer extended the lease.
        self._guard_has_acted = False
        self._messenger_due_at = monotonic_ms() + FLUSH_MS
        self._collect_due_at = self._server_due_at = monotonic_ms() + _TURN_MS
        walltime_ms = limits.walltime_ms
        self._walltime_at = None if walltime_ms is None else monotonic_ms() + walltime_ms
        self._warn_at = limits.warn_at
        self._is_warned = False
        self._poll = select.poll()
        own = (signals.fileno(), messenger.fileno(), command.pidfd)
        for descriptor in (*own, *command.outputs):
            self._poll.register(descriptor, select.POLLIN)
        self._inner = inner
        inner.attach(self._poll)

    def run(self) -> PodOutcome | None:
        """Run until the command and all its processes have ended, or cannot be killed.

        The command's `left` then lists the latter. Return None if the attempt is superseded, so
        that its end is not to be reported.
        """
        try:
            while not self._hear(self._wait_ms()):
                now_ms = monotonic_ms()
                self._agent.sign(now_ms)
                self._start_messenger(now_ms)
                self._obey_signals(now_ms)
                self._check_lease(now_ms)
                self._check_times(now_ms)
                self._collect(now_ms)
            return self._finish()
        finally:
            self._inner.close()
            self._messenger.stop()
            self._command.close()

    def _start_messenger(self, now_ms: int) -> None:
        """Start the messenger late, and only if it is needed.

        So a pod that ends at once, or writes nothing, costs no thread and no connection.
        """
        is_due = now_ms >= self._messenger_due_at and not self._messenger.has_started
        if is_due and self._messenger.is_needed():
            self._messenger.start()

    def _wait_ms(self) -> int:
        now_ms = monotonic_ms()
        due = [self._server_due_at]
        if not self._messenger.has_started and self._messenger.is_needed():
            due.append(self._messenger_due_at)
        clocks = (self._kill_at, self._walltime_at, self._warn_at)
        due += [at for at in clocks if at is not None]
        return max(0, min(due) - now_ms)

    def _hear(self, wait_ms: int) -> bool:
        """Wait, read a bounded part of the output, and return whether the command has ended."""
        has_ended = False
        for descriptor, _ in self._poll.poll(wait_ms):
            if descriptor == self._command.pidfd:
                has_ended = True
            elif self._inner.owns(descriptor):
                self._inner.handle(descriptor, monotonic_ms(), until_ms=self._lease.guarded_until)
            elif descriptor == self._signals.fileno():
                self._signals.clear()
            elif descriptor == self._messenger.fileno():
                self._messenger.clear()
            elif descriptor in self._command.outputs:
                self._keep(descriptor, self._command.read)
        if self._inner.last_status is not None:
            return True
        if has_ended and self._inner.has_last():
            # That command ends the pod, and not this one any more.
            self._poll.unregister(self._command.pidfd)
            return False
        return has_ended

    def _keep(self, descriptor: int, read: Callable[[int], list[bytes]]) -> None:
        stream = self._command.outputs[descriptor]
        for part in read(descriptor):
            self._log.write(stream, part)
        if descriptor not in self._command.outputs:
            self._poll.unregister(descriptor)

    def _obey_signals(self, now_ms: int) -> None:
        if self._signals.count(KILL_SIGNAL):
            self._kill(Leaving.NODE_LOST)
        elif self._signals.count(STOP_SIGNAL):
            self._stop(Leaving.NODE_LOST, now_ms)

    def _check_lease(self, now_ms: int) -> None:
        # If so, this process was stopped, and the guard was not.
        self._guard_has_acted |= monotonic_ms() >= self._lease.guarded_until
        while (answer := self._messenger.next_answer()) is not None:
            if answer.word == "fenced":
                self._fenced = True
                self._kill(Leaving.NODE_LOST)
                return
            self._lease.extend(asked_at=answer.asked_at)
            if answer.word == "stop":
                self._stop(answer.reason, now_ms)
        if reason := self._agent.hear(self._lease):
            self._stop(reason, now_ms)
        self._check_server(now_ms)
        self._command.allow_until(self._lease.guarded_until)
        self._inner.allow_until(self._lease.guarded_until)
        if self._lease.is_lost(now_ms) and not self._killed:
            self._message = "its lease could not be renewed"
            self._kill(Leaving.NODE_LOST)

    def _check_server(self, now_ms: int) -> None:
        """Extend the lease while the server is away: only the server ends leases, and when it is
        back it counts them from the start.
        """
        if now_ms >= self._server_due_at:
            self._server_due_at = now_ms + _TURN_MS
            if self._agent.is_server_away(now_ms):
                self._lease.extend(asked_at=now_ms)

    def _check_times(self, now_ms: int) -> None:
        if self._warn_at is not None and now_ms >= self._warn_at:
            self._write_stop(Finish.WALLTIME_EXCEEDED)
            self._warn()
        if self._walltime_at is not None and now_ms >= self._walltime_at:
            self._walltime_at = None
            self._stop(Finish.WALLTIME_EXCEEDED, now_ms)
        if self._kill_at is not None and now_ms >= self._kill_at:
            self._kill(self._stopped)
        self._inner.kill_overdue(now_ms)

    def _collect(self, now_ms: int) -> None:
        """Collect orphans, or a command that forks in a loop would use up the machine's pids."""
        if now_ms >= self._collect_due_at:
            self._collect_due_at = now_ms + _TURN_MS
            self._command.collect(self._inner.pids())

    def _stop(self, reason: str, now_ms: int) -> None:
        if self._stopped or self._has_ended():
            return
        self._stopped = reason or "Stopped"
        self._kill_at = now_ms + self._limits.grace_ms
        self._write_stop(self._stopped)
        self._warn()
        self._command.send(signal.SIGTERM)
        self._inner.stop(signal.SIGTERM)
        log.info("pod told to stop", reason=self._stopped, grace_ms=self._limits.grace_ms)

    def _warn(self) -> None:
        """Send the warning, if there is one, unless it was sent or the command has ended."""
        self._warn_at = None
        warning = self._limits.warning
        if warning is None or self._is_warned or self._has_ended():
            return
        self._is_warned = True
        self._command.send(warning)
        log.info("pod warned", signal=warning.name)

    def _kill(self, reason: str) -> None:
        self._kill_at = None
        if self._killed or self._has_ended():
            return
        self._killed = True
        if not self._stopped:
            self._stopped = reason
            self._write_stop(reason)
        self._command.send(signal.SIGKILL)
        self._inner.stop(signal.SIGKILL)

    def _has_ended(self) -> bool:
        """Return whether the command has ended: an end before a stop is the command's own."""
        if self._inner.last_status is not None:
            return True
        return is_readable(self._command.pidfd, within_ms=0) and not self._inner.has_last()

    def _finish(self) -> PodOutcome | None:
        last_status = self._inner.last_status
        if last_status is not None:
            self._command.send(signal.SIGKILL)
            is_readable(self._command.pidfd, within_ms=_END_MS)
        wait_status = self._command.end()
        if last_status is not None:
            wait_status = last_status
        if self._is_killed_by_guard(wait_status):
            self._stopped = Leaving.NODE_LOST
            self._message = "its lease ended while its work-horse was stopped"
        if self._is_warned and not self._stopped and wait_status == _AGAIN:
            # It has saved its state, and asks for another round.
            self._stopped = Leaving.GANG_RESTART
        self._end_rest()
        for descriptor in list(self._command.outputs):
            self._keep(descriptor, self._command.read_rest)
        self._log.close()
        if self._fenced:
            return None
        parts = (self._message, self._command.trouble, self._log.trouble)
        message = "; ".join(part for part in parts if part)
        return outcome_of(wait_status, stopped=self._stopped, message=message)

    def _end_rest(self) -> None:
        if not self._command.left:
            return
        # The pod has not ended, so its lease must not end.
        give_up_at = monotonic_ms() + _END_MS
        while not self._command.end_rest(_END_ROUND_S) and monotonic_ms() < give_up_at:
            self._agent.sign(monotonic_ms())
            self._start_messenger(monotonic_ms())
        if self._command.left:
            log.error("processes cannot be killed", pids=self._command.left[:_SHOWN_PIDS])

    def _is_killed_by_guard(self, wait_status: int) -> bool:
        """Return whether only the guard can have killed the command: the lease was at its end."""
        is_over = monotonic_ms() >= self._lease.guarded_until
        return (
            (is_over or self._guard_has_acted)
            and not self._stopped
            and os.waitstatus_to_exitcode(wait_status) == -signal.SIGKILL
        )
