"""The agent's part in commands in pods: from a request to the work-horse and the relay.

The agent's loop never waits for a command or its user. It opens the descriptors, hands the
command's ends to the work-horse of the pod, forks a relay with the others, and forgets both until
the relay ends.

The relay of a command is a process of the agent between the server and the command. It holds the
other ends of the command's pipes, or its pseudo-terminal. What the command writes goes to the user
while the user keeps up; then the relay reads no more, and the command waits. What the user sends is
kept until the command reads it; the user sends no more than the window. The relay ends when the
command has ended, and hangs the command up when the user, or the server, is silent.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import termios
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import monotonic, sleep

import msgspec
from msgspec import Struct, structs

from batchq.api.exec_session import (
    FRAME_BYTES,
    PING_S,
    REQUEST_TTL_MS,
    SILENCE_S,
    UNHEARD_S,
    WINDOW_BYTES,
    Acknowledger,
    ExecEnd,
    ExecFrame,
    ExecRequest,
    FrameKind,
    SendWindow,
    TerminalSize,
    decoded_end,
    decoded_request,
    is_request_signed,
)
from batchq.api.node_report import PodAttempt
from batchq.errors import BatchqError, StoreUnavailable
from batchq.store.exec_channels import ExecChannel, open_requests
from batchq.store.link import Link, is_forbidden
from batchq.store.redis import RedisStore
from batchq.system import structlog
from batchq.worker.agent.slots import Slots
from batchq.worker.agent.wakeups import WakeUpListener
from batchq.worker.host import processes
from batchq.worker.host.accounts import PodAccounts
from batchq.worker.host.processes import collect, mark_of
from batchq.worker.workhorse.inner_commands import InnerOrder

log = structlog.get_logger(__name__)

_READ_WAIT_MS = 1_000
_TURN_MS = 200
#: The longest wait for the rest of the output after the command has ended.
_REST_S = 1.0
#: The longest wait for the work-horse to hang the command up; it may be paused.
_HANG_UP_MS = 5_000
#: How long the relay waits for a user that has not fetched the whole output.
_FETCH_S = 5.0
_LOST = "the work-horse of the pod has gone"
_MOST_END_BYTES = 64 * 1024
#: The character that ends the input on a terminal.
_END_OF_INPUT = b"\x04"


class RelayEnds(Struct, frozen=True, kw_only=True):
    """The relay's ends of a command's descriptors; a pseudo-terminal is all three of the first."""

    stdin: int
    stdout: int
    stderr: int
    control: int
    is_terminal: bool

    def descriptors(self) -> tuple[int, ...]:
        """Return each descriptor once."""
        own = (self.stdin, self.stdout, self.stderr, self.control)
        return tuple(dict.fromkeys(one for one in own if one >= 0))


def open_ends(size: TerminalSize | None, *, has_input: bool) -> tuple[RelayEnds, tuple[int, ...]]:
    """Return the relay's ends, and the command's: stdin, stdout, stderr and the socket. Raise
    OSError.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    opened: list[int] = []
    try:
        if size is not None:
            master, slave = os.openpty()
            opened += [master, slave]
            resize(master, size)
            others = (os.dup(slave), os.dup(slave))
            ends = RelayEnds(
                stdin=master, stdout=master, stderr=master, control=ours.detach(), is_terminal=True
            )
            return ends, (slave, *others, theirs.detach())
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        opened += [end for pipe in pipes for end in pipe]
        (stdin, feed), (out, stdout), (err, stderr) = pipes
        if not has_input:
            os.close(feed)
            opened.remove(feed)
            feed = -1
        ends = RelayEnds(
            stdin=feed, stdout=out, stderr=err, control=ours.detach(), is_terminal=False
        )
        return ends, (stdin, stdout, stderr, theirs.detach())
    except BaseException:  # anything: none of them may stay open
        for descriptor in opened:
            os.close(descriptor)
        raise
    finally:
        ours.close()
        theirs.close()


def resize(terminal: int, size: TerminalSize) -> None:
    """Give a terminal its size; the programs on it are told."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))


def fork_relay(
    url: str,
    node: str,
    session: str,
    ends: RelayEnds,
    *,
    mark: int,
    unheard_s: float = SILENCE_S,
) -> int:
    """Fork the relay of a session, and return its pid. `mark`: how the next agent recognizes it.
    `unheard_s`: how long it waits for the first frame of its user.

    The calling process must have a single thread. Raise OSError.
    """
    pid = os.fork()
    if pid == 0:
        exit_code = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                # Pods, and the commands in them, continue while their agent drains.
                signal.signal(number, signal.SIG_IGN)
            processes.detach({*ends.descriptors(), 2})
            processes.set_mark(mark)
            _Relay(url, node, session, ends, unheard_s).run()
            exit_code = 0
        finally:
            os._exit(exit_code)
    return pid


class _Relay:
    """One session, from its opening to its end. One thread reads what the user sends; the main
    thread does everything else.
    """

    def __init__(
        self, url: str, node: str, session: str, ends: RelayEnds, unheard_s: float
    ) -> None:
        self._ends = ends
        self._link = Link(url, survives_s=SILENCE_S)
        self._channel = ExecChannel(self._link, node, session, is_node=True)
        self._number = 0
        self._window, self._acknowledger = SendWindow(), Acknowledger()
        self._control = socket.socket(fileno=ends.control)
        self._control.setblocking(False)
        #: The user's frames that the main thread has not seen, or why the reader has ended.
        self._received: deque[ExecFrame | BatchqError] = deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        #: Input that the command has not read yet, and whether the input ends after it.
        self._input: deque[ExecFrame] = deque()
        self._input_bytes = 0
        self._part = b""
        self._is_input_over = ends.stdin < 0
        self._is_input_closed = ends.stdin < 0
        self._outputs: dict[int, FrameKind] = {ends.stdout: "stdout"}
        if not ends.is_terminal:
            self._outputs[ends.stderr] = "stderr"
        #: Frames that both sides are done with, and that are still on the server.
        self._done_sent: list[int] = []
        self._done_received: list[int] = []
        self._sent: deque[int] = deque()
        self._heard_at = monotonic()
        self._silence_s = unheard_s
        self._ping_at = 0.0
        self._last_ping = 0
        self._keep_at = 0.0
        self._end: ExecEnd | None = None
        self._ended_at = 0.0
        self._is_told = False

    def run(self) -> None:
        """Relay until the command has ended and its user has fetched the output."""
        for descriptor in {*self._outputs, self._ends.stdin} - {-1}:
            os.set_blocking(descriptor, False)
        try:
            self._channel.open()
            Thread(target=self._read, name="input", daemon=True).start()
            while not self._is_over():
                self._turn()
            self._send_end()
        except BatchqError as trouble:
            log.warning("command hung up", why=trouble.message)
        except Exception as error:  # anything: the command is hung up, and the agent goes on
            log.exception("relay failed", error=str(error))
            raise
        finally:
            self._hang_up()
            if not self._is_told:
                # Otherwise the user could go on sending until the session expires.
                with suppress(StoreUnavailable):
                    self._channel.remove()

    def _hang_up(self) -> None:
        """Have the command hung up, if it still runs, and wait until it is.

        Its input ends with this process: a command that reads to the end would take a part of it
        for the whole, and succeed.
        """
        if self._end is None:
            with suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)
                processes.is_readable(self._control.fileno(), within_ms=_HANG_UP_MS)
        self._control.close()

    def _read(self) -> None:
        try:
            while True:
                if frames := self._channel.receive(_READ_WAIT_MS):
                    self._received += frames
                    with suppress(BlockingIOError):
                        os.write(self._wake_write, b".")
        except BatchqError as trouble:
            self._received.append(trouble)

    def _take_received(self) -> None:
        while self._received:
            frame = self._received.popleft()
            if isinstance(frame, BatchqError):
                raise frame
            self._heard_at, self._silence_s = monotonic(), SILENCE_S
            self._take(frame)

    def _take(self, frame: ExecFrame) -> None:
        match frame.kind:
            case "stdin" if not self._is_input_over:
                self._input.append(frame)
                self._input_bytes += len(frame.data)
                if self._input_bytes > 2 * WINDOW_BYTES:
                    raise StoreUnavailable("the user sends more than the window")
                return
            case "eof" if not self._is_input_over:
                self._is_input_over = True
                if self._ends.is_terminal:
                    self._input.append(structs.replace(frame, kind="stdin", data=_END_OF_INPUT))
                    return
            case "size":
                size = TerminalSize.parse(frame.data)
                if size is not None and self._ends.is_terminal:
                    resize(self._ends.stdout, size)
            case "signal":
                with suppress(OSError):
                    self._control.send(frame.data)
            case "ack":
                number = self._window.acknowledge(frame.data)
                while number is not None and self._sent and self._sent[0] <= number:
                    self._done_sent.append(self._sent.popleft())
        self._done_received.append(frame.number)

    def _turn(self) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if self._end is None:
            poll.register(self._ends.control, select.POLLIN)
        if self._window.has_room():
            for output in self._outputs:
                poll.register(output, select.POLLIN)
        if self._wants_to_write():
            in_use = self._window.has_room() and self._ends.stdin in self._outputs
            events = select.POLLOUT | (select.POLLIN if in_use else 0)
            poll.register(self._ends.stdin, events)
        events_of = dict(poll.poll(_TURN_MS))
        if self._wake_read in events_of:
            os.read(self._wake_read, 4096)
        self._take_received()
        self._feed()
        self._forward(events_of)
        if self._end is None and self._ends.control in events_of:
            self._hear_end()
        self._keep_alive()
        if monotonic() - self._heard_at > self._silence_s:
            raise StoreUnavailable("the user is silent")

    def _wants_to_write(self) -> bool:
        return bool(self._input or self._part) and not self._is_input_closed

    def _feed(self) -> None:
        """Give the command as much of the input as it takes now."""
        while not self._is_input_closed and (self._part or self._input):
            data = self._part or self._input[0].data
            try:
                written = os.write(self._ends.stdin, data)
            except BlockingIOError:
                return
            except OSError:
                # The command reads no more.
                self._close_input()
                break
            self._part = data[written:]
            if not self._part:
                self._processed(self._input.popleft())
        if self._is_input_closed:
            while self._input:
                self._processed(self._input.popleft())
        elif self._is_input_over and not self._input and not self._ends.is_terminal:
            self._close_input()

    def _processed(self, frame: ExecFrame) -> None:
        self._input_bytes -= len(frame.data)
        self._done_received.append(frame.number)
        if (data := self._acknowledger.note(frame)) is not None:
            self._send("ack", data)

    def _close_input(self) -> None:
        self._is_input_closed, self._part = True, b""
        if not self._ends.is_terminal:
            os.close(self._ends.stdin)

    def _forward(self, events: dict[int, int]) -> None:
        for output, kind in list(self._outputs.items()):
            while self._window.has_room() and output in events:
                try:
                    data = os.read(output, FRAME_BYTES)
                except BlockingIOError:
                    break
                except OSError:
                    # Linux reports with this error that no process has the terminal open.
                    data = b""
                if not data:
                    del self._outputs[output]
                    break
                self._send(kind, data)

    def _hear_end(self) -> None:
        with suppress(BlockingIOError):
            try:
                message = self._control.recv(_MOST_END_BYTES)
            except ConnectionResetError:
                message = b""
            self._end = decoded_end(message) if message else ExecEnd(message=_LOST)
            self._ended_at = monotonic()

    def _is_over(self) -> bool:
        """Return whether the command has ended, and its output is read: what it has left behind may
        keep its pipes open.
        """
        if self._end is None:
            return False
        return not self._outputs or (
            self._window.has_room() and monotonic() - self._ended_at > _REST_S
        )

    def _send(self, kind: FrameKind, data: bytes = b"") -> None:
        self._number += 1
        frame = ExecFrame(number=self._number, kind=kind, data=data)
        if not self._channel.send([frame]):
            raise StoreUnavailable("the session is gone from the server")
        self._window.add(frame)
        self._sent.append(frame.number)
        self._ping_at = monotonic() + PING_S

    def _keep_alive(self) -> None:
        now = monotonic()
        if now >= self._ping_at:
            self._ping()
        if now >= self._keep_at:
            self._channel.keep()
            self._keep_at = now + SILENCE_S
        self._channel.discard(sent=self._done_sent, received=self._done_received)
        self._done_sent, self._done_received = [], []

    def _ping(self) -> None:
        """Give a sign of life, which replaces the one before: the user may need long for the data
        ahead of it.
        """
        self._send("ping")
        if self._last_ping:
            self._done_sent.append(self._last_ping)
        self._last_ping = self._sent.pop()

    def _send_end(self) -> None:
        """Tell the user the end. The session is removed once the user has it, or expires."""
        assert self._end is not None
        self._send("end", msgspec.json.encode(self._end))
        self._is_told = True
        self._channel.keep()
        give_up_at = monotonic() + _FETCH_S
        while self._sent and monotonic() < give_up_at:
            processes.is_readable(self._wake_read, within_ms=_TURN_MS)
            self._take_received()
        if not self._sent:
            self._channel.remove()


#: Commands in the pods of one node at a time: each has a process and two connections.
MOST_SESSIONS = 64
#: The most of one user, so that other users can run commands as well.
MOST_SESSIONS_OF_USER = 32
#: Requests that are remembered. A forgotten one could be served twice, so more are refused.
MOST_REQUESTS = 4_096


class ExecSessions:
    """The commands in the pods of one node; owned by the agent's loop."""

    def __init__(
        self,
        store: RedisStore,
        node: str,
        slots: Slots,
        *,
        poll: select.poll,
        run_dir: Path,
        accounts: PodAccounts | None,
    ) -> None:
        """`run_dir`: by which the next agent recognizes relays that have been left. `accounts`: if
        pods run under the accounts of their owners, only the HTTP API may start commands in them.
        """
        self._accounts = accounts
        self._store, self._url, self._link = store, store.url, store.link
        self._node = node
        self._slots = slots
        self._poll = poll
        self._mark = mark_of(run_dir)
        #: The pid of each relay and its request, by its pidfd.
        self._relays: dict[int, tuple[int, ExecRequest]] = {}
        #: When each requested session may be forgotten: a request may come twice.
        self._known: dict[str, int] = {}
        #: Older requests may have been served by the former agent of the node.
        self._since = 0
        self._is_refused = False

    def keep_open(self, listener: WakeUpListener) -> None:
        """Take requests from now on, or continue to. Raise StoreUnavailable."""
        try:
            newest = open_requests(self._link, self._node)
            if not self._since:
                # The former agent may have served a request of this millisecond.
                self._since = self._store.now_ms() + 1
                sleep(0.002)
        except StoreUnavailable as trouble:
            if not is_forbidden(trouble):
                raise
            # The ACL of this user is that of a former version. Everything else works.
            if not self._is_refused:
                log.warning("no commands in pods", why=trouble.message, do="batchq acl worker")
            self._is_refused = True
            return
        listener.listen_to_requests(newest)

    def open_all(self, requests: Sequence[bytes], waiting: frozenset[PodAttempt]) -> None:
        """Open a session for each request, or say why not. `waiting`: attempts that will start.

        Raise StoreUnavailable; the user repeats a request that is lost then.
        """
        if not requests:
            return
        now_ms = self._store.now_ms()
        self._known = {one: until for one, until in self._known.items() if until > now_ms}
        trouble: StoreUnavailable | None = None
        for data in requests:
            request = decoded_request(data)
            if request is None:
                log.warning("request for a command refused", why="it is malformed")
            elif request.session not in self._known:
                try:
                    self._answer(request, waiting, now_ms)
                except StoreUnavailable as error:
                    self._known.pop(request.session, None)
                    trouble = error
                except Exception as error:  # the pods of this node outlive any request
                    log.exception("request for a command failed", error=str(error)[:200])
        if trouble is not None:
            raise trouble

    def _answer(self, request: ExecRequest, waiting: frozenset[PodAttempt], now_ms: int) -> None:
        channel = ExecChannel(self._link, self._node, request.session, is_node=True)
        until = now_ms + REQUEST_TTL_MS
        if self._accounts is not None:
            if why := self._why_invalid(self._accounts.key, request, now_ms):
                channel.refuse(why)
                return
            until = request.expires_at
        if len(self._known) >= MOST_REQUESTS:
            channel.refuse(
                f"{MOST_REQUESTS} commands were requested in pods of node {self._node} within"
                f" {REQUEST_TTL_MS // 1000} seconds, the most there may be; try again later"
            )
            return
        self._known[request.session] = until
        self._open(channel, request, waiting)

    def _why_invalid(self, key: bytes, request: ExecRequest, now_ms: int) -> str:
        """Return why a request is not a valid one of the HTTP API; "" if it is."""
        if not is_request_signed(key, request):
            return (
                f"node {self._node} runs pods under the accounts of their owners, and the request"
                " has no valid signature of the HTTP API: use the API, with the --signing-key of"
                " this node"
            )
        if request.expires_at <= now_ms:
            return (
                f"the request is too old: expected one of the last {REQUEST_TTL_MS // 1000} seconds"
                " by the clock of the Redis server; try again"
            )
        if request.expires_at - REQUEST_TTL_MS < self._since:
            return f"the agent of node {self._node} has been started since; try again"
        return ""

    def _open(
        self, channel: ExecChannel, request: ExecRequest, waiting: frozenset[PodAttempt]
    ) -> None:
        attempt = PodAttempt(request.pod, request.attempt)
        if attempt not in self._slots.attempts():
            is_early = attempt in waiting
            state = "has not started yet" if is_early else "does not run any more"
            channel.refuse(f"the pod {state} on node {self._node}", is_early=is_early)
            return
        if len(self._relays) >= MOST_SESSIONS:
            channel.refuse(
                f"{MOST_SESSIONS} commands run in pods of node {self._node}, which is the limit"
            )
            return
        of_user = sum(one.user == request.user for _, one in self._relays.values())
        if of_user >= MOST_SESSIONS_OF_USER:
            channel.refuse(
                f"{of_user} commands of user {request.user} run in pods of node {self._node}, the"
                " most that one user may have there"
            )
            return
        try:
            self._start(request, attempt)
        except OSError as trouble:
            channel.refuse(f"node {self._node} cannot start a command: {trouble.strerror}")

    def _start(self, request: ExecRequest, attempt: PodAttempt) -> None:
        """Hand the command over and fork its relay. Raise OSError."""
        command = request.command
        ends, theirs = open_ends(command.terminal, has_input=command.has_input)
        order = InnerOrder(
            argv=command.command,
            has_terminal=command.terminal is not None,
            term=command.term,
            ends_pod=command.ends_pod,
            attaches=command.attaches is True,
        )
        try:
            # The relay tells the user if the work-horse has ended meanwhile.
            self._slots.hand_over(attempt, order, theirs)
            for descriptor in theirs:
                os.close(descriptor)
            theirs = ()
            # The input of the pod is not to wait for a terminal that has left.
            waits_s = UNHEARD_S if command.attaches is True else SILENCE_S
            names = self._url, self._node, request.session
            pid = fork_relay(*names, ends, mark=self._mark, unheard_s=waits_s)
        finally:
            for descriptor in (*theirs, *ends.descriptors()):
                os.close(descriptor)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            # Without descriptors it cannot be watched. Its end hangs the command up, which would
            # otherwise run a second time when its user tries again.
            os.kill(pid, signal.SIGKILL)
            collect(pid)
            raise
        self._relays[pidfd] = pid, request
        self._poll.register(pidfd, select.POLLIN)
        log.info("command in pod", pod=attempt.pod, command=command.command[0], relay=pid)

    def pids(self) -> frozenset[int]:
        """Return the relays."""
        return frozenset(pid for pid, _ in self._relays.values())

    def owns(self, descriptor: int) -> bool:
        """Return whether this is the descriptor of a relay."""
        return descriptor in self._relays

    def collect(self, descriptor: int) -> None:
        """Collect a relay that has ended; tell its user if it was killed."""
        pid, request = self._relays.pop(descriptor)
        self._poll.unregister(descriptor)
        os.close(descriptor)
        with suppress(ChildProcessError, StoreUnavailable):
            if collect(pid) != 0:
                log.warning("relay of a command killed", relay=pid)
                channel = ExecChannel(self._link, self._node, request.session, is_node=True)
                channel.end_abruptly(
                    "its relay, the process that passes input and output on, was killed"
                )
