"""Commands beside a pod's command: `batchq exec` runs them within the pod.

The agent hands over a command with its descriptors, through the control socket of the work-horse.
The command gets the pod's environment, folder, bounds and enclosure, so it ends with the pod. What
it reads and writes passes through the relay, a process of the agent; the work-horse and the relay
share a socket for signals and for the end. If the relay is gone, the command is hung up.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct

from batchq.api.exec_session import INPUT_IS_TAKEN, SIGNALS, ExecEnd
from batchq.api.objects import Container
from batchq.system import structlog
from batchq.worker.agent.messages import StartPod
from batchq.worker.host.containment import Enclosure
from batchq.worker.host.node_resources import ProcessBounds
from batchq.worker.host.privileges import Account
from batchq.worker.host.processes import is_readable
from batchq.worker.workhorse.container_commands import ContainerHost, PodProgram, contained
from batchq.worker.workhorse.guard import Guard, GuardPost
from batchq.worker.workhorse.process import NotStarted, send_to_group, start_inner
from batchq.worker.workhorse.run_file import PodOutcome

log = structlog.get_logger(__name__)

#: How long a command that was hung up may go on.
_GRACE_MS = 2_000
_MAX_SIGNAL_BYTES = 16
#: stdin, stdout, stderr, and the socket to the relay.
DESCRIPTORS = 4
_POD_HAS_ENDED = "the pod has ended"
#: Copies the input of a user to that of the pod.
_COPY = ("cat",)
_REFUSED = 1


class RunOrder(Struct, frozen=True, kw_only=True, tag="run"):
    """A pod for an idle work-horse: the parts of a harness that differ from one pod to the next of
    the same agent.
    """

    start: StartPod
    visible: Mapping[str, str]
    locks: Mapping[str, int]


class InnerOrder(Struct, frozen=True, kw_only=True, tag="inner"):
    """A command to start in the pod of a work-horse; see `ExecCommand`."""

    argv: tuple[str, ...]
    has_terminal: bool = False
    term: str = ""
    ends_pod: bool = False
    attaches: bool = False


class PodInterior(Struct, frozen=True, kw_only=True):
    """What the processes of a pod share."""

    environment: Mapping[str, str]
    working_dir: str
    container: Container | None
    host: ContainerHost | None
    bounds: ProcessBounds
    enclosure: Enclosure
    post: GuardPost | None
    account: Account | None
    #: The end of the pipe to the input of its command; None if that is empty.
    input: int | None = None


class _InnerCommand:
    """A command that runs, and the socket to its relay."""

    def __init__(self, pid: int, reap: Callable[[], int | None], order: InnerOrder) -> None:
        self.pid = pid
        self.reap = reap
        self.order = order
        self.pidfd = os.pidfd_open(pid)
        self.guard: Guard | None = None
        self.relay: socket.socket | None = None
        self.kill_at: int | None = None


class InnerCommands:
    """The commands beside the command of one pod; owned by its supervision loop."""

    def __init__(self, control: socket.socket, interior: PodInterior) -> None:
        """`control`: the socket through which the agent sends them."""
        self._control = control
        self._interior = interior
        self._poll = select.poll()
        #: Each command under both of its descriptors.
        self._places: dict[int, _InnerCommand] = {}
        #: The wait status of the command that has ended the pod.
        self.last_status: int | None = None

    def attach(self, poll: select.poll) -> None:
        """Wait for orders, and later for commands, with `poll`."""
        self._poll = poll
        poll.register(self._control.fileno(), select.POLLIN)

    def _start(self, until_ms: int) -> None:
        order, descriptors = receive_order(self._control)
        if not isinstance(order, InnerOrder):
            # The agent is gone, which a signal announces, too.
            self._poll.unregister(self._control.fileno())
            return
        if len(descriptors) != DESCRIPTORS:
            log.error("command refused in pod", why="its descriptors are missing")
            refuse(descriptors)
            return
        *stdio, relay_end = descriptors
        relay = socket.socket(fileno=relay_end)
        relay.setblocking(False)
        try:
            inner = self._started(order, (stdio[0], stdio[1], stdio[2]), until_ms)
        except NotStarted as failure:
            code = failure.outcome.exit_code
            if order.ends_pod and code is not None:
                self.last_status = code << 8
            _tell(relay, ExecEnd(exit_code=code, message=str(failure)))
            relay.close()
            return
        finally:
            for descriptor in stdio:
                os.close(descriptor)
        inner.relay = relay
        for place in (inner.pidfd, relay.fileno()):
            self._places[place] = inner
            self._poll.register(place, select.POLLIN)
        log.info("command started in pod", command=order.argv[0], ends_pod=order.ends_pod)

    def _started(
        self, order: InnerOrder, stdio: tuple[int, int, int], until_ms: int
    ) -> _InnerCommand:
        interior = self._interior
        if order.attaches:
            stdio = (stdio[0], self._open_input(), stdio[2])
        environment = dict(interior.environment)
        if order.has_terminal and order.term:
            environment["TERM"] = order.term
        argv = _COPY if order.attaches else order.argv
        plain = PodProgram(argv=argv, environment=environment, folder=interior.working_dir)
        runs = plain if order.attaches else contained(plain, interior.container, interior.host)
        process = start_inner(
            runs.argv,
            runs.environment,
            runs.folder,
            stdio,
            bounds=interior.bounds,
            enclosure=interior.enclosure,
            account=interior.account,
            has_terminal=order.has_terminal,
        )
        inner = _InnerCommand(process.pid, process.reap, order)
        # The pod's own guard kills the cgroup; this one, the group that no cgroup holds.
        with suppress(OSError):
            inner.guard = Guard(post=interior.post, until_ms=until_ms)
            inner.guard.watch_over(process.pid)
        return inner

    def _open_input(self) -> int:
        """Return where the pod's input is written. Raise NotStarted if that is not possible now."""
        if self._interior.input is None:
            message = "the input of the pod is not open; submit it with --stdin"
        elif any(inner.order.attaches for inner in self._all()):
            message = INPUT_IS_TAKEN
        else:
            return self._interior.input
        raise NotStarted(PodOutcome(exit_code=_REFUSED, message=message))

    def owns(self, descriptor: int) -> bool:
        """Return whether this is the descriptor of the orders, or of a command."""
        return descriptor == self._control.fileno() or descriptor in self._places

    def handle(self, descriptor: int, now_ms: int, *, until_ms: int) -> None:
        """Handle a readable descriptor: an order, an end, or a word of a relay. `until_ms`: the
        instant until which a guard may let a new command run.
        """
        inner = self._places.get(descriptor)
        if inner is None:
            self._start(until_ms)
        elif descriptor == inner.pidfd:
            # The number may have been another descriptor's a moment ago.
            if is_readable(descriptor, within_ms=0):
                self._finish(inner)
        elif not self._obey(inner):
            self._hang_up(inner, now_ms)

    def pids(self) -> tuple[int, ...]:
        """Return the processes that are collected here."""
        return tuple({inner.pid for inner in self._places.values()})

    def has_last(self) -> bool:
        """Return whether a command runs whose end will end the pod."""
        return any(inner.order.ends_pod for inner in self._places.values())

    def allow_until(self, at_ms: int) -> None:
        """Let the guards kill the commands at this instant, unless a later one follows."""
        for inner in self._all():
            if inner.guard is not None:
                inner.guard.allow_until(at_ms)

    def stop(self, sent: signal.Signals) -> None:
        """Send a signal to the command whose end will end the pod."""
        for inner in self._all():
            if inner.order.ends_pod:
                send_to_group(inner.pid, sent)
                if inner.order.has_terminal:
                    # A shell at a terminal ignores SIGTERM.
                    send_to_group(inner.pid, signal.SIGHUP)

    def kill_overdue(self, now_ms: int) -> None:
        """Kill the commands that were hung up and go on."""
        for inner in self._all():
            if inner.kill_at is not None and now_ms >= inner.kill_at:
                inner.kill_at = None
                send_to_group(inner.pid, signal.SIGKILL)

    def close(self) -> None:
        """Forget all of them: the pod has ended, and its processes were killed."""
        for inner in self._all():
            self._forget(inner, ExecEnd(message=_POD_HAS_ENDED))

    def _all(self) -> list[_InnerCommand]:
        return [inner for place, inner in self._places.items() if place == inner.pidfd]

    def _obey(self, inner: _InnerCommand) -> bool:
        """Send the signal that the relay asks for; return False if the relay is gone."""
        assert inner.relay is not None
        try:
            message = inner.relay.recv(_MAX_SIGNAL_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if message.isdigit() and int(message) in SIGNALS:
            send_to_group(inner.pid, signal.Signals(int(message)))
        return bool(message)

    def _hang_up(self, inner: _InnerCommand, now_ms: int) -> None:
        assert inner.relay is not None
        for sent in (signal.SIGHUP, signal.SIGCONT):
            send_to_group(inner.pid, sent)
        self._poll.unregister(inner.relay.fileno())
        del self._places[inner.relay.fileno()]
        # The relay waits for it before it closes the input.
        inner.relay.close()
        inner.relay = None
        inner.kill_at = now_ms + _GRACE_MS

    def _finish(self, inner: _InnerCommand) -> None:
        # What is left of its group must not write to a terminal that another gets.
        send_to_group(inner.pid, signal.SIGKILL)
        wait_status = inner.reap()
        if wait_status is None:
            wait_status = int(signal.SIGKILL)
        code = os.waitstatus_to_exitcode(wait_status)
        if inner.order.ends_pod:
            self.last_status = wait_status
        end = ExecEnd(exit_code=code) if code >= 0 else ExecEnd(signal=-code)
        self._forget(inner, end)
        log.info("command ended in pod", command=inner.order.argv[0], exit_code=code)

    def _forget(self, inner: _InnerCommand, end: ExecEnd) -> None:
        self._poll.unregister(inner.pidfd)
        del self._places[inner.pidfd]
        os.close(inner.pidfd)
        if inner.guard is not None:
            inner.guard.dismiss()
        if inner.relay is not None:
            self._poll.unregister(inner.relay.fileno())
            del self._places[inner.relay.fileno()]
            _tell(inner.relay, end)
            inner.relay.close()
            inner.relay = None


def receive_order(control: socket.socket) -> tuple[RunOrder | InnerOrder | None, list[int]]:
    """Return the next order of the agent, and the descriptors that came with it; None if the agent
    is gone.
    """
    # A buffer for the longest order would be mapped and unmapped for each.
    size = control.recv_into(bytearray(1), flags=socket.MSG_PEEK | socket.MSG_TRUNC)
    message, descriptors, _, _ = socket.recv_fds(control, max(1, size), DESCRIPTORS)
    if not message:
        return None, descriptors
    return msgspec.json.decode(message, type=RunOrder | InnerOrder), descriptors


def refuse(descriptors: Sequence[int]) -> None:
    """Tell the relay that the pod has ended, and close what came for it."""
    if len(descriptors) == DESCRIPTORS:
        relay = socket.socket(fileno=descriptors[-1])
        relay.setblocking(False)
        _tell(relay, ExecEnd(message=_POD_HAS_ENDED))
        relay.close()
        descriptors = descriptors[:-1]
    for descriptor in descriptors:
        os.close(descriptor)


def _tell(relay: socket.socket, end: ExecEnd) -> None:
    with suppress(OSError):
        relay.send(msgspec.json.encode(end))
