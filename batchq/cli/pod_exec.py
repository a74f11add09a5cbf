"""`batchq exec` and `batchq attach`: a command in a running pod, and the output of its own.

A conversation with commands in pods passes on the user's input, their output and signals, and sets
the terminal. The main thread reads the input, answers signals and sends; for each session, one
thread receives and one writes, since writing may wait for a reader such as `less`. A terminal in
raw mode is as it was before, whatever ends the conversation.
"""

from __future__ import annotations

import os
import re
import select
import signal
import stat
import sys
import termios
import tty
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Thread
from time import monotonic, sleep
from types import FrameType
from typing import Any, ClassVar

import click
from msgspec import UNSET

from batchq.api.exec_session import (
    ANSWER_S,
    FRAME_BYTES,
    INPUT_IS_TAKEN,
    PING_S,
    SILENCE_S,
    UNHEARD_S,
    WINDOW_BYTES,
    ExecCommand,
    ExecEnd,
    ExecFrame,
    SendWindow,
    TerminalSize,
    decoded_end,
)
from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Pod, PodGroup, group_key_of
from batchq.cli.foreground import PodOutputPrinter, pods_of
from batchq.cli.output import Interrupted, echo, on_interrupt, raw_option
from batchq.cli.output.options import Globals, WholeNumber, examples, namespace_option, pass_globals
from batchq.cli.output.values import group_key
from batchq.client import Client
from batchq.client.pods import CommandSession
from batchq.errors import BatchqError, Conflict, NotFound, StoreUnavailable, UsageError

_TURN_MS = 200
_RECEIVE_S = 1.0
#: How long the end of a session waits for a node that has not answered yet.
_LEAVING_S = 3.0
_STDIN, _STDOUT, _STDERR = 0, 1, 2
#: Signals that end the conversation.
ENDING = (signal.SIGTERM, signal.SIGHUP)


class Speaker:
    """One session in a conversation, with the threads that receive and write for it."""

    def __init__(
        self,
        session: CommandSession,
        label: str,
        wake: Callable[[], None],
        *,
        prefix: bytes = b"",
        modes: TerminalModes | None = None,
    ) -> None:
        """`label` names its pod in errors; `prefix` begins each line of its output. `modes` notes
        what the output sets on the user's terminal.
        """
        self.label = label
        self.window = SendWindow()
        self.end: ExecEnd | None = None
        #: The error that has ended it instead.
        self.error: BaseException | None = None
        self.heard_at = monotonic()
        self.has_answered = False
        self._has_heard = Event()
        self._session = session
        self._wake = wake
        self._prefix = prefix
        self._modes = modes
        self._frames: SimpleQueue[ExecFrame | None] = SimpleQueue()
        #: The last frame that is written, and the last that the node knows to be written.
        self._written = self._acknowledged = 0
        #: The last frame of input that the node has acknowledged.
        self._taken = b""
        self._ack_at = 0.0
        self._is_closing = False
        self._is_at_line_start = {_STDOUT: True, _STDERR: True}
        for run in (self._receive, self._write):
            Thread(target=run, name=run.__name__, daemon=True).start()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, with its command or with an error."""
        return self.end is not None or self.error is not None

    def send(self, kind: Any, data: bytes = b"") -> None:
        """Send a frame, unless it is over. Raises StoreUnavailable."""
        if self.is_over:
            return
        with suppress(Conflict):
            # Its end is on the way, or it is found silent.
            self.window.add(self._session.send(kind, data))

    def keep_alive(self) -> None:
        """Acknowledge what was written: that is the sign of life, too. Raises StoreUnavailable."""
        now, written = monotonic(), self._written
        self.window.acknowledge(self._taken)
        if now >= self._ack_at or written - self._acknowledged >= _FRAMES_AN_ACK:
            self.send("ack", b"%d" % written)
            self._acknowledged, self._ack_at = written, now + PING_S
        longest_s = SILENCE_S if self.has_answered else ANSWER_S
        if not self.is_over and now - self.heard_at > longest_s:
            self.error = StoreUnavailable(
                f"the command in {self.label} is lost: its node has been silent for"
                f" {longest_s:.0f} s"
            )

    def close(self, *, within_s: float = 0.0) -> None:
        """Close the session. The node hears that its end is known, or that the user has left: of
        that only once it has answered, for which this waits.
        """
        if not self.is_over:
            self._has_heard.wait(max(0.0, within_s))
        self._is_closing = True
        if not isinstance(self.error, StoreUnavailable):
            with suppress(BatchqError):
                if self.end is None:
                    self._session.send("signal", b"%d" % signal.SIGHUP)
                else:
                    self._session.send("ack", b"%d" % self._written)
        self._session.close()

    def _receive(self) -> None:
        try:
            while not self._is_closing:
                for frame in self._session.receive(_RECEIVE_S):
                    self.heard_at, self.has_answered = monotonic(), True
                    self._has_heard.set()
                    self._frames.put(frame)
                    if frame.kind == "end":
                        return
        except BatchqError as error:
            if not self._is_closing:
                self.error = error
                self._has_heard.set()
                self._frames.put(None)
                self._wake()

    def _write(self) -> None:
        try:
            while (frame := self._frames.get()) is not None:
                match frame.kind:
                    case "stdout":
                        self._write_data(_STDOUT, frame.data)
                    case "stderr":
                        self._write_data(_STDERR, frame.data)
                    case "ack":
                        self._taken = frame.data
                    case "end":
                        self._written = frame.number
                        self.end = decoded_end(frame.data)
                        self._wake()
                        return
                self._written = frame.number
                self._wake()
        except (OSError, BatchqError) as error:
            self.error = error
            self._wake()

    def _write_data(self, descriptor: int, data: bytes) -> None:
        if self._prefix:
            data = self._prefixed(descriptor, data)
        if self._modes is not None:
            self._modes.note(data)
        while data:
            data = data[os.write(descriptor, data) :]

    def _prefixed(self, descriptor: int, data: bytes) -> bytes:
        parts: list[bytes] = []
        for line in data.splitlines(keepends=True):
            if self._is_at_line_start[descriptor]:
                parts.append(self._prefix)
            parts.append(line)
            self._is_at_line_start[descriptor] = line.endswith(b"\n")
        return b"".join(parts)


class TerminalModes:
    """What the output of a command has set on the user's terminal and not reset: programs do that
    when they end, unless they are lost.
    """

    #: The cursor is shown. Application keys, the mouse, the alternate screen and bracketed paste
    #: are off.
    _USUAL: ClassVar[dict[bytes, bytes]] = {b"25": b"h"} | dict.fromkeys(
        b"1 9 1000 1002 1003 1004 1005 1006 1015 47 1047 1049 2004".split(), b"l"
    )
    _SET = re.compile(rb"\x1b\[\?([0-9;]{1,40})([hl])")
    _LONGEST = 48

    def __init__(self) -> None:
        self.is_at_line_start = True
        self._unusual: set[bytes] = set()
        self._rest = b""

    def note(self, data: bytes) -> None:
        """Note what a part of the output sets."""
        # A sequence may be in two parts.
        whole = self._rest + data
        for numbers, value in self._SET.findall(whole):
            for number in numbers.split(b";"):
                if number in self._USUAL and value != self._USUAL[number]:
                    self._unusual.add(number)
                else:
                    self._unusual.discard(number)
        begun = whole.rfind(b"\x1b", -self._LONGEST)
        self._rest = whole[begun:] if begun >= 0 else b""
        self.is_at_line_start = whole.endswith((b"\n", b"\r"))

    def reset(self) -> bytes:
        """Return what sets the terminal as it usually is."""
        unusual, self._unusual = sorted(self._unusual), set()
        return b"".join(b"\x1b[?%s%s" % (one, self._USUAL[one]) for one in unusual)


#: Frames that are written before they are acknowledged; four of data are half a window.
_FRAMES_AN_ACK = 4


class Conversation:
    """The user's side of one or more sessions, which all get the input; a context manager.

    Used by the main thread.
    """

    def __init__(self, *, has_terminal: bool, has_input: bool) -> None:
        self.speakers: list[Speaker] = []
        #: The signals that have come: interrupts, and what ends the conversation.
        self.interrupts = 0
        self.ending: int | None = None
        #: How many interrupts the commands have got.
        self.passed_on = 0
        self._has_terminal = has_terminal
        self._reads_input = has_input
        #: The input of the latest session; None if it is too long to be given again.
        self._given: bytes | None = b""
        #: Input for the next session, of one in which nothing has read it.
        self._again: bytes | None = None
        self._is_resized = self._is_to_stop = False
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._before: dict[int, Any] = {}
        self._attributes: list[Any] | None = None
        self._modes = TerminalModes() if has_terminal else None

    def __enter__(self) -> Conversation:
        handled = [signal.SIGINT, *ENDING]
        if self._has_terminal:
            handled += [signal.SIGWINCH, signal.SIGTSTP]
        for number in handled:
            self._before[number] = signal.signal(number, self._note)
        try:
            if self._has_terminal:
                self._make_raw()
        except BaseException:  # anything: the handlers must not stay
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.restore_terminal()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        give_up_at = monotonic() + _LEAVING_S
        for speaker in self.speakers:
            speaker.close(within_s=give_up_at - monotonic())

    def join(self, session: CommandSession, label: str, *, prefix: bytes = b"") -> Speaker:
        """Add a session."""
        self._given = b""
        speaker = Speaker(session, label, self.wake, prefix=prefix, modes=self._modes)
        self.speakers.append(speaker)
        return speaker

    def leave(self, speaker: Speaker) -> None:
        """Close a session, and send nothing to it any more."""
        self.speakers.remove(speaker)
        speaker.close()

    def restore_terminal(self) -> None:
        """Leave the terminal as it was, on a new line unless the command has exited."""
        if self._modes is not None:
            data = self._modes.reset()
            has_exited = all(one.end and one.end.exit_code is not None for one in self.speakers)
            if not has_exited and not self._modes.is_at_line_start:
                data += b"\r\n"
                self._modes.is_at_line_start = True
            # The terminal may be gone.
            with suppress(OSError):
                os.write(_STDOUT, data)
        self._restore()

    def give_again(self) -> bool:
        """Give the input of the latest session to the next one, too, since nothing has read it.
        Return False if it is too long.
        """
        if self._given is None:
            return False
        self._again = self._given + (self._again or b"")
        return True

    def wake(self) -> None:
        """Wake the main thread."""
        with suppress(BlockingIOError):
            os.write(self._wake_write, b".")

    def turn(self) -> None:
        """Wait for something, and handle it. Raises StoreUnavailable."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if self._takes_input():
            poll.register(_STDIN, select.POLLIN)
        found = dict(poll.poll(_TURN_MS))
        if self._wake_read in found:
            os.read(self._wake_read, 4096)
        if self._is_to_stop:
            self._stop()
        if self._is_resized:
            self._is_resized = False
            self.send("size", str(terminal_size()).encode())
        if self._again is not None and self._is_heard():
            self._pass_on_again(self._again)
        if _STDIN in found:
            self._pass_input_on()
        for speaker in self.speakers:
            speaker.keep_alive()

    def send(self, kind: str, data: bytes = b"") -> None:
        """Send a frame in all sessions. Raises StoreUnavailable."""
        for speaker in self.speakers:
            speaker.send(kind, data)

    def _takes_input(self) -> bool:
        return self._reads_input and self._again is None and self._is_heard()

    def _is_heard(self) -> bool:
        """Return whether all commands can get input now."""
        listening = [one for one in self.speakers if not one.is_over]
        return bool(listening) and all(
            one.has_answered and one.window.has_room() for one in listening
        )

    def _pass_on_again(self, data: bytes) -> None:
        self._given, self._again = data, None
        for start in range(0, len(data), FRAME_BYTES):
            self.send("stdin", data[start : start + FRAME_BYTES])
        if not self._reads_input:
            self.send("eof")

    def _pass_input_on(self) -> None:
        try:
            data = os.read(_STDIN, FRAME_BYTES)
        except OSError:
            # The terminal is gone.
            data = b""
        if data:
            if self._given is not None:
                is_short = len(self._given) + len(data) <= WINDOW_BYTES
                self._given = self._given + data if is_short else None
            self.send("stdin", data)
        else:
            self._reads_input = False
            self.send("eof")

    def _note(self, number: int, _frame: FrameType | None) -> None:
        match number:
            case signal.SIGINT:
                self.interrupts += 1
            case signal.SIGWINCH:
                self._is_resized = True
            case signal.SIGTSTP:
                self._is_to_stop = True
            case _:
                self.ending = number
        self.wake()

    def _make_raw(self) -> None:
        self._attributes = termios.tcgetattr(_STDIN)
        tty.setraw(_STDIN, termios.TCSADRAIN)

    def _restore(self) -> None:
        if self._attributes is not None:
            # The terminal may be gone.
            with suppress(termios.error):
                termios.tcsetattr(_STDIN, termios.TCSADRAIN, self._attributes)
            self._attributes = None

    def _stop(self) -> None:
        """Stop as another program does, with the terminal as it was, until SIGCONT."""
        self._is_to_stop = False
        self._restore()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._make_raw()
        self._is_resized = True


def terminal_size() -> TerminalSize:
    """Return the size of the user's terminal."""
    try:
        columns, rows = os.get_terminal_size(_STDIN)
    except OSError:
        return TerminalSize()
    return TerminalSize(rows, columns)


def has_terminal() -> bool:
    """Return whether both input and output are a terminal."""
    return os.isatty(_STDIN) and os.isatty(_STDOUT)


def has_input() -> bool:
    """Return whether there is an input to pass on: neither a terminal nor /dev/null."""
    try:
        mode = os.fstat(_STDIN).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISREG(mode)


def exit_code_of(end: ExecEnd) -> int | None:
    """Return the exit code as a shell reports it; None if the command was lost or has not run."""
    if end.signal is not None:
        return 128 + end.signal
    return end.exit_code


#: How long a pod that is Running may take to start on its node.
EARLY_S = 30.0
_AGAIN_S = 0.3
#: How long, and how often, `attach` tries to get an input that another terminal has.
_TAKEN_S, _TAKEN_AGAIN_S = UNHEARD_S + 2.0, 1.0
_MOST_NAMED = 5
#: The interrupt with this number leaves a command that has not ended.
_MOST_INTERRUPTS = 3


@click.command(
    "exec",
    epilog=examples(
        "batchq exec train-1-main-0 -- nvidia-smi",
        "batchq exec --pty train-1-main-0 -- bash",
        "batchq exec research/eval-main-2 -- tar c results > results.tar",
    ),
)
@click.argument("pod", metavar="POD")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND…")
@namespace_option
@click.option("--pty", is_flag=True, help="Give it a terminal, for a shell or an editor.")
@click.option(
    "--no-stdin", is_flag=True, help="Give it an empty input instead of that of this command."
)
@pass_globals
def exec_(
    shared: Globals, pod: str, command: tuple[str, ...], namespace: str, pty: bool, no_stdin: bool
) -> int:
    """Run COMMAND in the running POD, on its node: with the pod's environment, folder, limits,
    devices and user, beside the pod's own command.

    Input, output and Ctrl-C are passed on; press Ctrl-C three times to leave a command that does
    not end. The exit code is the command's. It is stopped when the pod ends, and when `batchq exec`
    ends. Its output is shown here only, and not kept. The owner of the group and admins of its
    namespace may run commands; each one is recorded.
    """
    if not command:
        raise UsageError(
            "expected a command after the pod",
            hint=f"as in `batchq exec --pty {pod} -- bash`",
        )
    if pty:
        require_terminal("exec")
    with shared.connect() as client:
        found = pod_of(client, pod, namespace)
        with Conversation(has_terminal=pty, has_input=not no_stdin) as conversation:
            wanted = command_of(command, pty=pty, has_input=not no_stdin)
            return converse(client, conversation, found, wanted)


def require_terminal(name: str) -> None:
    """Raise UsageError unless there is a terminal here."""
    if not has_terminal():
        raise UsageError(
            "--pty needs a terminal, and stdin or stdout is none",
            hint=f"leave it out: `batchq {name}` passes pipes and files on",
        )


def command_of(
    command: tuple[str, ...],
    *,
    pty: bool,
    has_input: bool = True,
    ends_pod: bool = False,
    attaches: bool = False,
) -> ExecCommand:
    """Return the command, with this terminal if it gets one."""
    return ExecCommand(
        command=command,
        terminal=terminal_size() if pty else None,
        term=os.environ.get("TERM", "") if pty else "",
        has_input=has_input,
        ends_pod=ends_pod,
        attaches=attaches or UNSET,
    )


def pod_of(client: Client, name: str, namespace: str) -> Pod:
    """Return a pod by its name, which may have a namespace, or the only running pod of a group by
    the group's. Raises NotFound.
    """
    key = group_key(name, namespace)
    try:
        pod = client.get("Pod", key)
    except NotFound as missing:
        pod = _only_pod_of(client, key, missing)
    assert isinstance(pod, Pod)
    return pod


def _only_pod_of(client: Client, key: str, missing: NotFound) -> Pod:
    """Return the only running pod of a group. Raises NotFound with its pods, or its phase; and
    `missing` if there is no such group.
    """
    try:
        group = client.get("PodGroup", key)
    except NotFound:
        raise missing from None
    assert isinstance(group, PodGroup)
    pods = pods_of(client, [key])
    running = [pod for pod in pods if pod.status.phase == PodPhase.RUNNING]
    if len(running) == 1:
        return running[0]
    if not running:
        raise NotFound(
            f"PodGroup {key} is {group.status.phase}, and has no running pod",
            hint=f"see `batchq describe {key}`",
        )
    names = [pod.metadata.name for pod in running]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    raise NotFound(
        f"{key} is a PodGroup with several pods: expected the name of one",
        hint=f"its running pods: {', '.join(names[:_MOST_NAMED])}{more}",
    )


def converse(client: Client, conversation: Conversation, pod: Pod, command: ExecCommand) -> int:
    """Run a command in a pod to its end, and return its exit code.

    Raises Conflict if it has not run or was lost, Interrupted, StoreUnavailable.
    """
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    give_up_at = monotonic() + EARLY_S
    sys.stdout.flush()
    while True:
        speaker = conversation.join(client.commands.start(pod, command), f"Pod {name}")
        while not speaker.is_over:
            conversation.turn()
            answer_signals(conversation)
        if speaker.error is not None:
            raise speaker.error
        assert speaker.end is not None
        if not speaker.end.is_early or monotonic() > give_up_at:
            break
        conversation.leave(speaker)
        sleep(_AGAIN_S)
    code = exit_code_of(speaker.end)
    if code is None:
        raise Conflict(f"the command in Pod {name} is over: {speaker.end.message}")
    if speaker.end.message:
        conversation.restore_terminal()
        echo(f"Pod {name}: {speaker.end.message}", err=True)
    return code


def answer_signals(conversation: Conversation) -> None:
    """Pass interrupts on to the command, and leave it at the third, or when a signal ends this
    process.

    Raises Interrupted.
    """
    if conversation.ending is not None:
        sent = signal.Signals(conversation.ending)
        raise EndedBySignal(f"ended by {sent.name}; the command in the pod is hung up", sent)
    if conversation.interrupts >= _MOST_INTERRUPTS:
        raise Interrupted("interrupted; the command in the pod is hung up")
    while conversation.passed_on < conversation.interrupts:
        conversation.passed_on += 1
        conversation.send("signal", b"%d" % signal.SIGINT)


class EndedBySignal(Interrupted):
    """A signal has ended the command; the exit code is as a shell reports it."""

    def __init__(self, message: str, sent: signal.Signals) -> None:
        super().__init__(message)
        self.exit_code = 128 + sent


@click.command(
    epilog=examples("batchq attach train-1-main-0", "batchq attach train-1-main-0 --tail 100")
)
@click.argument("pod", metavar="POD")
@namespace_option
@click.option(
    "--tail",
    type=WholeNumber(0),
    default=10,
    show_default=True,
    help="Begin with this many lines of its output.",
)
@click.option("--no-stdin", is_flag=True, help="Do not pass the input of this command on.")
@raw_option
@pass_globals
def attach(shared: Globals, pod: str, namespace: str, tail: int, no_stdin: bool) -> None:
    """Show the output of POD's own command as it comes, until the pod has ended, and pass the input
    of this command on, if the pod was submitted with --stdin.

    One terminal at a time can pass its input on. The end of the input is not passed on, because
    another terminal may be attached later. Ctrl-C leaves the pod as it is.
    """
    with shared.connect() as client:
        found = pod_of(client, pod, namespace)
        key, name = group_key_of(found), found.metadata.name
        sentence = f"interrupted; Pod {found.metadata.namespace}/{name} keeps running"
        hint = f"end its group with `batchq cancel {key}`"
        if not no_stdin and _has_open_input(client, found):
            # Output may come before the conversation handles signals itself.
            with on_interrupt(sentence, hint=hint), shared.connect() as reader:
                output = PodOutputPrinter(reader, key, pod=name, tail=tail)
                output.start()
                with Conversation(has_terminal=False, has_input=True) as conversation:
                    if not _Attachment(client, conversation, found).last(output):
                        raise Interrupted(sentence, hint=hint)
            return
        if not no_stdin and has_input():
            raise UsageError(
                f"the input of Pod {found.metadata.namespace}/{name} is empty, so it cannot get"
                " that of this command",
                hint="submit the pod with --stdin, or attach to it with --no-stdin",
            )
        with on_interrupt(sentence, hint=hint):
            for line in client.logs(key, pod=name, follow=True, tail=tail):
                echo(line.text, err=line.stream == "stderr")
                sys.stdout.flush()


def _has_open_input(client: Client, pod: Pod) -> bool:
    group = client.get("PodGroup", group_key_of(pod))
    assert isinstance(group, PodGroup)
    return any(task.template.stdin for task in group.spec.tasks if task.name == pod.spec.task)


class _Attachment:
    """The turn of this terminal at the input of a pod, in one attempt after the other."""

    def __init__(self, client: Client, conversation: Conversation, pod: Pod) -> None:
        self._client = client
        self._conversation = conversation
        self._pod = f"{pod.metadata.namespace}/{pod.metadata.name}"
        self._attempt = 0
        self._look_at = 0.0
        #: Until when it waits for another terminal to leave; 0 if there is none.
        self._taken_until = 0.0

    def last(self, output: PodOutputPrinter) -> bool:
        """Pass the input on until the output has ended; return False if a signal has come before.

        Raises Conflict if the input cannot be passed on, StoreUnavailable.
        """
        conversation = self._conversation
        while not output.has_ended.is_set():
            if monotonic() >= self._look_at:
                self._look_at = monotonic() + _AGAIN_S
                self._join()
            conversation.turn()
            if conversation.interrupts or conversation.ending is not None:
                return False
            for speaker in list(conversation.speakers):
                if speaker.error is not None:
                    raise speaker.error
                if speaker.end is not None:
                    conversation.leave(speaker)
                    self._answer(speaker.end)
        if output.error is not None:
            raise output.error
        return True

    def _join(self) -> None:
        latest = self._client.get("Pod", self._pod)
        assert isinstance(latest, Pod)
        if latest.status.phase == PodPhase.RUNNING and latest.status.attempt != self._attempt:
            self._attempt = latest.status.attempt
            wanted = command_of(("attach",), pty=False, attaches=True)
            session = self._client.commands.start(latest, wanted)
            self._conversation.join(session, f"Pod {self._pod}")

    def _answer(self, end: ExecEnd) -> None:
        """Try again later if the end of a session permits it. Raises Conflict."""
        if end.is_early:
            self._attempt = 0
        elif end.message == INPUT_IS_TAKEN:
            if not self._taken_until:
                self._taken_until = monotonic() + _TAKEN_S
                echo(f"Waiting for the input of Pod {self._pod}: it is in use", err=True)
            if monotonic() >= self._taken_until or not self._conversation.give_again():
                raise Conflict(
                    f"Pod {self._pod}: {end.message}",
                    hint=f"one that was killed gives it back within {SILENCE_S:.0f} seconds;"
                    " `--no-stdin` shows the output only",
                )
            self._attempt, self._look_at = 0, monotonic() + _TAKEN_AGAIN_S
        elif end.exit_code and end.message:
            raise Conflict(
                f"Pod {self._pod}: {end.message}", hint="`--no-stdin` shows its output only"
            )
        else:
            self._taken_until = 0.0
