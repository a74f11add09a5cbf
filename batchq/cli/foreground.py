"""`batchq run -- COMMAND`: pods that behave like a command of this terminal, as under `srun`.

One thread prints the output of the pods; the main thread answers signals. The first Ctrl-C asks,
and a second one within a second cancels the group. SIGTERM and SIGHUP cancel it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic, sleep
from types import FrameType
from typing import Any, Protocol, TypeVar

import click
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.notation import describe_timeout
from batchq.api.objects import Object, Pod, PodGroup, key_of
from batchq.api.views import LogLine, Result
from batchq.cli.objects import warn, warn_of_capacity
from batchq.cli.output import EXIT_INTERRUPTED, Interrupted, echo
from batchq.cli.output.options import Globals
from batchq.cli.output.progress import short
from batchq.cli.output.values import (
    exit_code_of,
    print_results,
    seconds_of,
    warn_if_not_led,
)
from batchq.cli.request_options import requested
from batchq.client import Client
from batchq.client.connection import patience_of
from batchq.errors import BatchqError, Conflict, NotFound, StoreUnavailable, WaitTimedOut

T = TypeVar("T")

#: A second Ctrl-C within this time cancels the group.
_AGAIN_S = 1.0
#: How much later than it has come a signal may be answered: a caller may wait for the server.
_LATE_S = 1.5
_TURN_S = 0.1
#: Added to a signal's number, this is the exit code that a shell reports.
_SIGNALLED = 128
_ENDING = (signal.SIGTERM, signal.SIGHUP)


def run_command(shared: Globals, command: Sequence[str], options: Mapping[str, Any]) -> int:
    """Run a command as a group of its own, and return its exit code. Raises BatchqError."""
    # A client belongs to one thread.
    # An interrupt of the submission is answered when the group is known.
    with shared.connect() as client, shared.connect() as reader, signals_noted() as noted:
        group = submitted(client, command, options)
        key = key_of(group)
        pods = sum(task.replicas for task in group.spec.tasks)
        output = PodOutputPrinter(
            reader, key, has_prefix=pods > 1 if options["prefix"] is None else options["prefix"]
        )
        watched = WatchedGroup(client, key, noted, timeout_s=seconds_of(options["timeout"]))
        output.start()
        watched.watch(output)
        [result] = client.wait([key])
        code = exit_code_of_pods(result, pods_of(client, [key]))
        if not result.reached:
            print_results([result], err=True)
        if not options["keep"]:
            client.delete_all([("PodGroup", key)])
        return watched.exit_code or code


def submitted(
    client: Client,
    command: Sequence[str],
    options: Mapping[str, Any],
    *,
    runs: tuple[str, ...] = (),
) -> PodGroup:
    """Submit a group that is named after a command, and return it. Its pods run `runs`, if given,
    instead of the command.
    """
    content = requested(client, command, dict(options))
    objects = [_running(one, runs) if runs else one for one in content.objects]
    applied = client.submit_all(objects)
    [group] = [one.object for one in applied if isinstance(one.object, PodGroup)]
    echo(f"Submitted {short(key_of(group))}", err=True)
    warn(applied)
    warn_of_capacity(client, applied)
    warn_if_not_led(client)
    return group


def _running(item: Object, command: tuple[str, ...]) -> Object:
    assert isinstance(item, PodGroup)
    tasks = tuple(
        structs.replace(task, template=structs.replace(task.template, command=command))
        for task in item.spec.tasks
    )
    return structs.replace(item, spec=structs.replace(item.spec, tasks=tasks))


class PodOutputPrinter:
    """Prints the output of a group's pods, in a thread of its own, to the stream it came from."""

    def __init__(
        self,
        client: Client,
        key: str,
        *,
        has_prefix: bool = False,
        pod: str = "",
        tail: int | None = None,
    ) -> None:
        """`pod`: the only one to print, and `tail` how many lines of what it has written before."""
        self.has_ended = Event()
        #: What has ended it before the output was over.
        self.error: BaseException | None = None
        self._client = client
        self._key = key
        self._has_prefix = has_prefix
        self._pod, self._tail = pod, tail
        # A thread has no context of its own, and `echo` reads --raw from it.
        self._context = click.get_current_context()

    def start(self) -> None:
        """Begin to print."""
        Thread(target=self._run, name="output", daemon=True).start()

    def _run(self) -> None:
        try:
            with self._context.scope(cleanup=False):
                lines = self._client.logs(self._key, follow=True, pod=self._pod, tail=self._tail)
                for line in lines:
                    self._print(line)
        except BaseException as error:  # the main thread raises it
            self.error = error
        finally:
            self.has_ended.set()

    def _print(self, line: LogLine) -> None:
        index = line.pod.rpartition("-")[2]
        text = f"{index}: {line.text}" if self._has_prefix else line.text
        echo(text, err=line.stream == "stderr")


class SignalSource(Protocol):
    """An object that counts interrupts, and notes the signal that ends the command."""

    interrupts: int
    ending: int | None


class NotedSignals:
    """The signals that have come, and have not been answered."""

    def __init__(self) -> None:
        self.interrupts = 0
        self.ending: int | None = None

    def note(self, number: int, _frame: FrameType | None) -> None:
        """Note a signal: a handler."""
        if number == signal.SIGINT:
            self.interrupts += 1
        else:
            self.ending = number


@contextmanager
def signals_noted() -> Iterator[NotedSignals]:
    """Note signals in this context instead of ending the process."""
    noted = NotedSignals()
    before = {
        number: signal.signal(number, noted.note)
        for number in (signal.SIGINT, *_ENDING)
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class WatchedGroup:
    """A group whose user waits at the terminal; used by the main thread."""

    def __init__(
        self,
        client: Client,
        key: str,
        signals: SignalSource,
        *,
        timeout_s: float | None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        #: What the command ends with if it was interrupted; 0 if it was not.
        self.exit_code = 0
        self._client = client
        self._key = key
        self._signals = signals
        self._clock = clock
        self._timeout_s = timeout_s
        self._deadline = None if timeout_s is None else clock() + timeout_s
        self._asked_at: float | None = None
        self._is_cancelled = False

    def watch(self, output: PodOutputPrinter) -> None:
        """Wait until the output has ended, and answer signals.

        Raises what has ended the output, WaitTimedOut, and Interrupted if the user does not wait
        for the end of a cancelled group.
        """
        while not output.has_ended.wait(_TURN_S):
            self.answer()
        if output.error is not None:
            if not isinstance(output.error, BatchqError):
                # Its output has no reader any more.
                self._cancel("its reader has closed the output")
            raise output.error

    def answer(self) -> None:
        """Answer the signals that have come. Raises WaitTimedOut, Interrupted."""
        self._answer_signals()
        if self._deadline is not None and self._clock() >= self._deadline:
            after = describe_timeout(self._timeout_s or 0)
            raise WaitTimedOut(
                f"not ended after {after}; PodGroup {self._key} keeps running",
                hint=f"`batchq logs -f {self._key}` shows its output, `batchq cancel"
                f" {self._key}` ends it",
            )

    def _answer_signals(self) -> None:
        signals = self._signals
        if signals.ending is not None and not self._is_cancelled:
            self.exit_code = _SIGNALLED + signals.ending
            command = click.get_current_context().command_path
            self._cancel(f"`{command}` was ended by {signal.Signals(signals.ending).name}")
        while signals.interrupts:
            signals.interrupts -= 1
            self._answer_interrupt()

    def _answer_interrupt(self) -> None:
        now = self._clock()
        if self._is_cancelled:
            raise Interrupted(
                f"interrupted; PodGroup {self._key} is cancelled, and its processes still stop",
                hint=f"`batchq wait {self._key}` waits for them",
            )
        if self._asked_at is not None and now - self._asked_at <= _AGAIN_S + _LATE_S:
            self.exit_code = EXIT_INTERRUPTED
            self._cancel("interrupted")
            return
        echo(f"{self._state()}; Ctrl-C again within a second cancels it", err=True)
        self._asked_at = self._clock()

    def _state(self) -> str:
        try:
            group = self._client.get("PodGroup", self._key)
        except BatchqError as error:
            return error.message
        assert isinstance(group, PodGroup)
        return f"PodGroup {self._key} is {group.status.phase}"

    def _cancel(self, reason: str) -> None:
        self._is_cancelled = True
        try:
            self._client.cancel(self._key, reason=reason)
        except (Conflict, NotFound):
            # It has just ended.
            return
        except StoreUnavailable as away:
            error = Interrupted(
                f"PodGroup {self._key} could not be cancelled: {away.message}",
                hint=f"`batchq cancel {self._key}` cancels it when the server is back",
            )
            error.exit_code = self.exit_code or error.exit_code
            raise error from None
        echo(f"PodGroup {self._key} cancelled; waiting for its processes", err=True)


def awaited(look: Callable[[], T | None], answer: Callable[[], None]) -> T:
    """Call `look` until it returns something, and `answer` after each call. An outage of the server
    is reported, and does not end the wait.

    Raises what both raise, and StoreUnavailable if waiting does not help.
    """
    patience = patience_of(lambda sentence: echo(sentence, err=True), None)
    while True:
        look_at = 0.0
        try:
            found = look()
        except StoreUnavailable as error:
            wait_s = patience.next_wait_s(error)
            if wait_s is None:
                raise
            look_at = monotonic() + wait_s
        else:
            patience.answered()
            if found is not None:
                return found
        answer()
        while monotonic() < look_at:
            sleep(_TURN_S)
            answer()


def pods_of(client: Client, keys: Sequence[str]) -> list[Pod]:
    """Return the pods of all groups, from the last admission of each."""
    found: list[Pod] = []
    for key in keys:
        group = client.get("PodGroup", key)
        assert isinstance(group, PodGroup)
        latest = {pod.metadata.name: pod for pod in client.pods(group)}
        found += latest.values()
    return found


def exit_code_of_pods(result: Result, pods: Sequence[Pod]) -> int:
    """Return the highest exit code of a group's pods, as a shell reports it; if they have none, the
    exit code of `batchq wait`.

    Pods that were told to stop count only if no other has failed.
    """
    if result.reached:
        return 0
    if result.phase == PodGroupPhase.CANCELLED:
        return exit_code_of([result])
    own, stopped = (
        [_exit_code_of(pod) for pod in pods if bool(pod.status.reason) is is_stopped]
        for is_stopped in (False, True)
    )
    return max(own, default=0) or max(stopped, default=0) or exit_code_of([result])


def _exit_code_of(pod: Pod) -> int:
    if pod.status.signal is not None:
        return _SIGNALLED + pod.status.signal
    return pod.status.exit_code or 0
