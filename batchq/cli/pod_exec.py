"""`batchq exec` and `batchq attach`: a command in a running pod, and the output of its own."""

from __future__ import annotations

import os
import signal
import sys
from time import monotonic, sleep

import click
from msgspec import UNSET

from batchq.api.exec_session import (
    INPUT_IS_TAKEN,
    SILENCE_S,
    UNHEARD_S,
    ExecCommand,
    ExecEnd,
)
from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Pod, PodGroup
from batchq.cli.console import (
    Conversation,
    exit_code_of,
    has_input,
    has_terminal,
    terminal_size,
)
from batchq.cli.foreground import PodOutputPrinter, pods_of
from batchq.cli.output.options import Globals, examples, namespace_option, pass_globals
from batchq.cli.output.terminal import Interrupted, echo, on_interrupt, raw_option
from batchq.cli.output.values import group_key
from batchq.client import Client
from batchq.errors import Conflict, NotFound, UsageError

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

    Input, output and Ctrl-C are passed on; three interrupts leave a command that does not end. The
    exit code is the command's. It ends with the pod at the latest, and when this command ends. Its
    output is shown here only, and not kept. The owner of the group and admins of its namespace may
    run commands; each one is recorded.
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
    type=click.IntRange(min=0),
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

    One terminal at a time can pass its input on. Its end is not passed on, as another may be
    attached later. Ctrl-C leaves the pod as it is.
    """
    with shared.connect() as client:
        found = pod_of(client, pod, namespace)
        key, name = f"{found.metadata.namespace}/{found.spec.pod_group}", found.metadata.name
        sentence = f"interrupted; Pod {found.metadata.namespace}/{name} keeps running"
        hint = f"end its group with `batchq cancel {key}`"
        if not no_stdin and _has_open_input(client, found):
            with shared.connect() as reader:
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
    group = client.get("PodGroup", f"{pod.metadata.namespace}/{pod.spec.pod_group}")
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
