"""Pods that hold a place on their nodes while commands of this terminal run in them.

`batchq run` with a terminal or an input, and `batchq alloc`, submit a group whose pods only sleep.
As soon as they run, a command in each pod takes over: the pod ends when that command ends. If this
program is killed before that, the pods end after two minutes.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, NamedTuple

import click

from batchq.api.exec_session import (
    ALLOCATION_VARIABLE,
    ExecCommand,
    launcher_variables,
    remote_shell,
)
from batchq.api.lifecycle import TERMINAL, PodGroupPhase, PodPhase
from batchq.api.notation import counted
from batchq.api.objects import Pod, PodGroup, full_name, group_key_of, key_of
from batchq.api.resources import CPU
from batchq.api.views import Result
from batchq.cli.foreground import (
    NotedSignals,
    WatchedGroup,
    awaited,
    exit_code_of_pods,
    pods_of,
    signals_noted,
    submitted,
)
from batchq.cli.output import Interrupted, echo, one_line
from batchq.cli.output.options import DURATION, Globals, examples, pass_globals
from batchq.cli.output.progress import short
from batchq.cli.output.values import ending_text, print_results, seconds_of
from batchq.cli.pod_exec import (
    EARLY_S,
    Conversation,
    Speaker,
    answer_signals,
    command_of,
    converse,
    exit_code_of,
    has_input,
    require_terminal,
)
from batchq.cli.request_options import awaited_command_options
from batchq.client import Client
from batchq.errors import (
    BatchqError,
    Conflict,
    NotFound,
    StoreUnavailable,
    UsageError,
    WaitTimedOut,
)

#: What a pod runs until a command takes over; it is long enough for a slow node.
_PLACEHOLDER = ("sleep", "120")
#: Holds a place until its input ends.
_HOLD = ("cat",)
#: Each pod has two threads and some connections here.
MOST_PODS = 32
_LOOK_S = 1.0
#: Cpus are counted in thousandths.
_WHOLE = 1000
_AGAIN_S = 0.3
#: How long the reason may take to come after the end of the pods.
_REASON_S = 5.0
#: What a shell ends with if there is no such command.
_NO_COMMAND = 127


def run_attached(shared: Globals, command: Sequence[str], options: Mapping[str, Any]) -> int:
    """Run a command with this input, or this terminal, as a group of its own; return its exit code.

    Raises BatchqError.
    """
    pty = bool(options["pty"])
    if pty:
        require_terminal("run")
    with shared.connect() as client, signals_noted() as noted:
        group = _held(client, command, options)
        with _cancelled_on_error(client, key_of(group)):
            pods = await_running(client, group, noted, options)
            wanted = command_of(tuple(command), pty=pty, ends_pod=True)
            has_prefix = len(pods) > 1 if options["prefix"] is None else options["prefix"]
            with Conversation(has_terminal=pty, has_input=True) as conversation:
                outcome = _converse(client, conversation, pods, wanted, has_prefix=has_prefix)
            result = _ended(client, key_of(group), pods, noted)
        if not result.reached:
            print_results([result], err=True)
        code = exit_code_of_pods(result, pods_of(client, [key_of(group)]))
        if outcome.is_interrupted and outcome.code is not None:
            code = outcome.code
        if not options["keep"]:
            client.delete_all([("PodGroup", key_of(group))])
        return code


def run_in_allocation(
    shared: Globals, allocation: str, command: Sequence[str], options: Mapping[str, Any]
) -> int:
    """Run a command in each pod of an allocation; return the highest exit code.

    Raises BatchqError.
    """
    pty = bool(options["pty"])
    if pty:
        require_terminal("run")
    with shared.connect() as client:
        found = pods_of(client, [allocation])
        pods = [pod for pod in found if pod.status.phase == PodPhase.RUNNING]
        if not pods:
            raise Conflict(
                f"the allocation {allocation} has no running pod",
                hint=f"leave it, or unset {ALLOCATION_VARIABLE}",
            )
        _check_pods(len(pods), pty=pty)
        wanted = command_of(tuple(command), pty=pty, has_input=pty or has_input())
        has_prefix = len(pods) > 1 if options["prefix"] is None else options["prefix"]
        with Conversation(has_terminal=pty, has_input=wanted.has_input) as conversation:
            # Signals are the command's: the allocation is not this command's to cancel.
            answer = partial(answer_signals, conversation)
            speakers = _speak(client, conversation, pods, wanted, answer, has_prefix)
        code = _highest_code(speakers)
        if code is None:
            raise Conflict(f"the allocation {allocation} has ended")
        return code


def _held(client: Client, command: Sequence[str], options: Mapping[str, Any]) -> PodGroup:
    """Submit a group that is named after the command, and whose pods hold their places."""
    _check_pods(options["replicas"] or 1, pty=bool(options.get("pty")))
    if options["retries"]:
        raise UsageError(
            "--retries applies to groups in the background: an input cannot be read twice",
            hint="leave it out, or use `batchq submit`",
        )
    return submitted(client, command, options, runs=_PLACEHOLDER)


def _check_pods(count: int, *, pty: bool) -> None:
    if pty and count > 1:
        raise UsageError(
            f"--pty gives a terminal to one pod, and there are {count}",
            hint="run one pod, or `batchq exec --pty POD` in one of them",
        )
    if count > MOST_PODS:
        raise UsageError(
            f"a command with an input can run in at most {MOST_PODS} pods, found {count}",
            hint="run it with `</dev/null`, or use `batchq submit`",
        )


def await_running(
    client: Client, group: PodGroup, noted: NotedSignals, options: Mapping[str, Any]
) -> list[Pod]:
    """Wait until all pods of a group run, and return them. Ctrl-C asks, then cancels.

    Raises Conflict if the group ends before that, Exit if the user has cancelled it, WaitTimedOut,
    Interrupted.
    """
    key = key_of(group)
    watched = WatchedGroup(client, key, noted, timeout_s=seconds_of(options["timeout"]))

    def look() -> list[Pod] | None:
        found = client.get("PodGroup", key)
        assert isinstance(found, PodGroup)
        if found.status.phase in TERMINAL:
            if watched.exit_code:
                print_results(client.wait([key]), err=True)
                raise click.exceptions.Exit(watched.exit_code)
            raise Conflict(
                f"PodGroup {key} became {found.status.phase} before its pods ran",
                hint=f"see `batchq describe {key}`",
            )
        if found.status.phase == PodGroupPhase.RUNNING:
            pods = pods_of(client, [key])
            if all(pod.status.phase == PodPhase.RUNNING for pod in pods):
                return pods
        client.wait_for_change(most_s=_LOOK_S, least_s=0.1)
        return None

    try:
        return awaited(look, watched.answer)
    except WaitTimedOut:
        raise WaitTimedOut(
            f"PodGroup {key} has not run within {options['timeout']}, so it is cancelled",
            hint="`batchq why` explains why a group waits",
        ) from None


@contextmanager
def _cancelled_on_error(client: Client, key: str) -> Iterator[None]:
    """Cancel a group if something fails in this context; its pods would not end otherwise."""
    try:
        yield
    except Interrupted:
        # It is cancelled already, or cannot be.
        raise
    except BaseException as error:  # anything
        why = "the command that ran in it was left"
        try:
            client.cancel(key, reason=error.message if isinstance(error, BatchqError) else why)
        except StoreUnavailable:
            echo(f"PodGroup {key} could not be cancelled: there is no server", err=True)
        except BatchqError:
            pass
        raise


def _ended(client: Client, key: str, pods: Sequence[Pod], noted: NotedSignals) -> Result:
    """Return how a group has ended whose commands are over.

    Raises Conflict if one of them was lost with its node, so that the group would start again;
    Interrupted.
    """
    watched = WatchedGroup(client, key, noted, timeout_s=None)

    def look() -> Result | None:
        with suppress(WaitTimedOut):
            [result] = client.wait([key], timeout_s=_LOOK_S)
            return result
        now = {pod.metadata.uid: pod for pod in pods_of(client, [key])}
        for pod in pods:
            latest = now.get(pod.metadata.uid)
            if latest is None or _is_lost(latest, pod.status.attempt):
                why = latest and (latest.status.reason or latest.status.last_reason)
                raise Conflict(
                    f"PodGroup {key} has lost pod {pod.metadata.name} on node {pod.status.node}"
                    f"{f' ({why})' if why else ''}, and the command that ran in it",
                    hint="it is cancelled; run the command again",
                )
        return None

    return awaited(look, watched.answer)


def _is_lost(pod: Pod, attempt: int) -> bool:
    return pod.status.attempt != attempt or pod.status.phase in (
        PodPhase.PENDING,
        PodPhase.EVICTED,
    )


class _Outcome(NamedTuple):
    """The exit code of the commands, None if one has none; and whether the user has cancelled."""

    code: int | None
    is_interrupted: bool = False


def _converse(
    client: Client,
    conversation: Conversation,
    pods: Sequence[Pod],
    command: ExecCommand,
    *,
    has_prefix: bool,
) -> _Outcome:
    """Run a command in each pod to its end; return the highest exit code, None if a pod has ended
    without its command.

    Raises StoreUnavailable, Interrupted, OSError.
    """
    key = group_key_of(pods[0])
    watched = WatchedGroup(client, key, conversation, timeout_s=None)
    sys.stdout.flush()
    speakers = _speak(client, conversation, pods, command, watched.answer, has_prefix)
    if watched.exit_code:
        return _Outcome(watched.exit_code, is_interrupted=True)
    return _Outcome(_highest_code(speakers))


def _highest_code(speakers: Sequence[Speaker]) -> int | None:
    """Return the highest exit code of commands; None if a pod has ended without its command."""
    ends = [speaker.end for speaker in speakers if speaker.end is not None]
    codes = [code for end in ends if (code := exit_code_of(end)) is not None]
    return max(codes) if len(codes) == len(speakers) else None


def _speak(
    client: Client,
    conversation: Conversation,
    pods: Sequence[Pod],
    command: ExecCommand,
    answer: Callable[[], None],
    has_prefix: bool,
) -> list[Speaker]:
    """Run a command in each pod, and return the ended sessions, in the order of the pods."""
    speakers = [_begun(client, conversation, pod, command, has_prefix) for pod in pods]
    give_up_at = monotonic() + EARLY_S
    again_at = 0.0
    while True:
        conversation.turn()
        answer()
        for speaker in speakers:
            if speaker.error is not None:
                raise speaker.error
        early = [place for place, one in enumerate(speakers) if one.end and one.end.is_early]
        if early and monotonic() < give_up_at:
            if monotonic() >= again_at:
                for place in early:
                    conversation.leave(speakers[place])
                    begun = _begun(client, conversation, pods[place], command, has_prefix)
                    speakers[place] = begun
                again_at = monotonic() + _AGAIN_S
        elif all(speaker.is_over for speaker in speakers):
            break
    conversation.restore_terminal()
    for speaker in speakers:
        if speaker.end is not None and speaker.end.message:
            echo(f"{speaker.label}: {speaker.end.message}", err=True)
    return speakers


def _begun(
    client: Client, conversation: Conversation, pod: Pod, command: ExecCommand, has_prefix: bool
) -> Speaker:
    prefix = f"{pod.spec.index}: ".encode() if has_prefix else b""
    session = client.commands.start(pod, command)
    label = f"Pod {pod.metadata.namespace}/{pod.metadata.name}"
    return conversation.join(session, label, prefix=prefix)


@click.command(
    epilog=examples(
        "batchq alloc --cpus 4 --gpus 1",
        "batchq alloc -N 4 --walltime 1h -- ./experiments.sh",
    )
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND…]")
@awaited_command_options
@click.option("--timeout", type=DURATION, help="The longest wait for the pods, as in 10m.")
@pass_globals
def alloc(shared: Globals, /, command: tuple[str, ...], **options: Any) -> int:
    """Hold pods while COMMAND, or a shell, runs here; give them back when it has ended.

    The pods only hold their resources. Within the shell, `batchq run -- CMD` runs CMD in all of
    them, and `batchq exec POD -- CMD` in one; BATCHQ_ALLOCATION names the group. `mpirun` and
    `mpiexec` start their processes in the pods. An allocation has at most 32 pods. They end with
    this command, however it ends.

    If the allocation ends before COMMAND, for example at its walltime, the reason is shown, and
    COMMAND continues. The exit code is that of COMMAND, or 1 if COMMAND succeeds after the
    allocation has ended.
    """
    words = list(command) or [os.environ.get("SHELL") or "/bin/sh"]
    _require_command(words[0])
    if (options["replicas"] or 1) > MOST_PODS:
        raise UsageError(
            f"an allocation has at most {MOST_PODS} pods, and -N asks for {options['replicas']}",
            hint=f"ask for fewer and larger pods, as in `-N {MOST_PODS} --cpus 8`",
        )
    with shared.connect() as client, signals_noted() as noted:
        group = _held(client, ("alloc",), options)
        key = key_of(group)
        with _cancelled_on_error(client, key):
            pods = await_running(client, group, noted, options)
            hold = command_of(_HOLD, pty=False, ends_pod=True)
            with (
                TemporaryDirectory(prefix="batchq-") as folder,
                Conversation(has_terminal=False, has_input=False) as conversation,
            ):
                variables = allocation_variables(key, pods) | write_launcher(Path(folder), pods)
                child = _Child(words, short(key), os.environ | shared.variables() | variables)
                code = _hold(client, conversation, pods, hold, child)
            [result] = client.wait([key])
        if result.reached:
            echo(f"Gave back {short(key)}", err=True)
            return code
        print_results([result], err=True)
        return code or 1


def _require_command(word: str) -> None:
    """Raise NotFound, with the exit code of a shell, if a command is not on this machine."""
    if which(word) is None:
        error = NotFound(
            f"command not found: {word[:80]}", hint="it runs on this machine, not in the pods"
        )
        error.exit_code = _NO_COMMAND
        raise error


def _hold(
    client: Client,
    conversation: Conversation,
    pods: Sequence[Pod],
    hold: ExecCommand,
    child: _Child,
) -> int:
    """Hold the pods until the command here has ended; return its exit code."""
    is_told = False

    def answer() -> None:
        nonlocal is_told
        # Ctrl-C is for the command here, which has the same terminal.
        conversation.interrupts = 0
        if conversation.ending is not None:
            child.send(conversation.ending)
            conversation.ending = None
        if all(one.has_answered for one in conversation.speakers):
            child.start()
        if child.has_ended() and not is_told:
            is_told = True
            conversation.send("eof")

    _speak(client, conversation, pods, hold, answer, has_prefix=False)
    if child.is_running():
        why = _why_ended(client, group_key_of(pods[0]))
        echo(f"The allocation has ended{why}; waiting for the command here", err=True)
    while child.is_running():
        conversation.turn()
        answer()
    return child.code


def _why_ended(client: Client, key: str) -> str:
    """Return the reason of a group whose pods have ended, after a colon; "" if it is not known."""
    with suppress(WaitTimedOut):
        [result] = client.wait([key], timeout_s=_REASON_S)
        return f": {one_line(ending_text(result.phase, result.reason, result.message))}"
    return ""


class _Child:
    """The command of an allocation, on this machine."""

    def __init__(
        self, words: Sequence[str], allocation: str, environment: Mapping[str, str]
    ) -> None:
        self._words = list(words)
        self._environment = dict(environment)
        self._allocation = allocation
        self._pid = 0
        self._code: int | None = None

    @property
    def code(self) -> int:
        """Its exit code, as a shell reports it."""
        return self._code or 0

    def start(self) -> None:
        """Start it, once. Raises Conflict."""
        if self._pid or self._code is not None:
            return
        pods = counted(int(self._environment["BATCHQ_PODS"]), "pod")
        echo(f"Allocated {self._allocation}: {pods}", err=True)
        try:
            self._pid = os.posix_spawnp(self._words[0], self._words, self._environment)
        except OSError as error:
            raise Conflict(f"cannot run {shlex.join(self._words)}: {error.strerror}") from None

    def send(self, number: int) -> None:
        """Pass a signal on."""
        if self._pid and self._code is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def has_ended(self) -> bool:
        """Return whether it was started and has ended."""
        if self._pid and self._code is None:
            pid, wait_status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(wait_status)
                self._code = code if code >= 0 else 128 - code
        return self._code is not None

    def is_running(self) -> bool:
        """Return whether it was started and has not ended."""
        return bool(self._pid) and not self.has_ended()


def allocation_variables(key: str, pods: Sequence[Pod]) -> dict[str, str]:
    """Return the variables that describe an allocation."""
    return {
        ALLOCATION_VARIABLE: key,
        "BATCHQ_PODS": str(len(pods)),
        "BATCHQ_POD_NAMES": ",".join(pod.metadata.name for pod in pods),
        "BATCHQ_NODE_NAMES": ",".join(dict.fromkeys(pod.status.node for pod in pods)),
    }


def write_launcher(folder: Path, pods: Sequence[Pod]) -> dict[str, str]:
    """Write what launchers of MPI need into a folder: a remote shell, and the hosts in both
    notations. Return the variables by which Open MPI 4 and 5, MPICH and Intel MPI find them.

    A host is a node; its slots are the cpus of the pods there, at least one for each.
    """
    shell = folder / "batchq-rsh"
    shell.write_text(remote_shell(sys.executable))
    shell.chmod(0o755)
    slots: Counter[str] = Counter()
    for pod in pods:
        slots[pod.status.node] += max(1, pod.spec.requests.get(CPU, 0) // _WHOLE)
    hosts, hydra_hosts = folder / "hosts", folder / "hydra-hosts"
    hosts.write_text("".join(f"{node} slots={count}\n" for node, count in slots.items()))
    hydra_hosts.write_text("".join(f"{node}:{count}\n" for node, count in slots.items()))
    path = f"{folder}:{os.environ.get('PATH', os.defpath)}"
    return {"PATH": path} | launcher_variables(str(shell), str(hosts), str(hydra_hosts))


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog=examples("batchq rsh vm-1 hostname"),
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="NODE COMMAND…")
@pass_globals
def rsh(shared: Globals, words: tuple[str, ...]) -> int:
    """Run COMMAND in a shell, in this allocation's pod on NODE, as `ssh NODE COMMAND` does.

    Launchers such as mpirun call it as `batchq-rsh`, within `batchq alloc` and in pod 0 of a gang
    with `--launch mpi`. NODE may also be the
    name of a pod, as NAME or NAMESPACE/NAME. Options of ssh before NODE are ignored.
    """
    while words and words[0].startswith("-"):
        words = words[1:]
    allocation = os.environ.get(ALLOCATION_VARIABLE, "")
    if len(words) < 2 or not allocation:
        raise UsageError(
            "expected a node and a command, within an allocation",
            hint="as in `batchq alloc -N 2 -- mpirun ./ring`, which calls this",
        )
    host, *command = words
    with shared.connect() as client:
        pod = pod_at(pods_of(client, [allocation]), host, allocation)
        wanted = command_of(("sh", "-c", " ".join(command)), pty=False, has_input=has_input())
        with Conversation(has_terminal=False, has_input=wanted.has_input) as conversation:
            return converse(client, conversation, pod, wanted)


def pod_at(pods: Sequence[Pod], host: str, allocation: str) -> Pod:
    """Return the pod of that name, or the first one on that node. Raises NotFound."""
    for pod in pods:
        if host in (pod.status.node, pod.metadata.name, full_name(pod)):
            return pod
    nodes = ", ".join(dict.fromkeys(pod.status.node for pod in pods))
    raise NotFound(
        f"the allocation {allocation} has no pod on node {host[:80]}",
        hint=f"it has pods on {nodes}",
    )
