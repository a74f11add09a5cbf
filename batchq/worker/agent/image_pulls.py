"""The processes that pull images, one for each image that waiting pods need.

A runtime keeps the images that it pulls in a store or a cache of its account, so an image is pulled
under the account of its pods. It is pulled outside of them, without their limits. So it has the
agent's variables and only a few of theirs, none of which names a program, a library or a file: with
`LD_PRELOAD`, a user's code would run there for as long as it likes. The agent's loop waits for no
pull: it polls a descriptor of each keeper, which ends when the pull has ended, and everything that
the pull has started. The output goes to a file without a name, and its end says why a pull has
failed.

The keeper of a pull is a fork of the agent that starts the runtime, and ends what it leaves. A
runtime may start processes that outlive it, and the account's configuration may name programs that
it runs. The keeper adopts each process below it that loses its parent, and is in a cgroup of its
own where pods are contained by cgroups. It ends after all of these processes, so nothing of a pull
runs once the pull has ended. When the agent ends, however that happens, the kernel has the keeper
end everything at once. If the keeper itself is killed, the agent adopts what is left and ends it,
or else the next agent does.

A PID namespace would not do: rootless podman notes the pid of a process that it leaves on purpose,
for its next call to join, and must find it by that pid. That process is ended, too; podman starts
another one when it needs it.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import IO, NamedTuple, NoReturn

from batchq.api.node_features import image_to_pull, runtime_of
from batchq.api.node_report import PodAttempt
from batchq.api.objects import Pod, PodGroup, group_key_of
from batchq.errors import printable
from batchq.store.redis import RedisStore
from batchq.system import structlog
from batchq.worker.agent.messages import PullEnded, PullImage, PullStarted, StopPull
from batchq.worker.host import privileges, processes
from batchq.worker.host.accounts import NoAccount, PodAccounts
from batchq.worker.host.containment import OF_CHILDREN, Boundary, Containment, Enclosure
from batchq.worker.host.privileges import Account
from batchq.worker.host.processes import Signals, await_death
from batchq.worker.workhorse.process import base_environment, send_to_group, without_person
from batchq.worker.workhorse.reporter import monotonic_ms

log = structlog.get_logger(__name__)

#: For how long an image that was there counts as there. A runtime pulls it again if it is not.
_KNOWN_MS = 600_000
_MOST_KNOWN = 1_000
_SHOWN_BYTES = 4_096
_MOST_SHOWN = 300
#: A registry is not asked for an image that podman has, as in `podman run`.
_PODMAN = '"$0" image exists "$1" || exec "$0" pull --quiet "$1"'
#: Apptainer keeps what it has converted in its cache; the file itself is of no use.
_APPTAINER = (
    'folder=$(mktemp -d) || exit; trap \'rm -rf "$folder"\' EXIT; trap "exit 143" TERM;'
    ' "$0" pull "$folder/image.sif" "$1"'
)
#: How long a pull that is stopped may take to remove its files.
PULL_ENDS_WITHIN_MS = 5_000
#: How long its keeper may then take to kill what is left.
_KILLED_WITHIN_MS = 10_000
#: The variables of a pod that the pull of its image has, too.
_OF_PODS = frozenset(
    {
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
        *("APPTAINER_DOCKER_USERNAME", "APPTAINER_DOCKER_PASSWORD"),
        *("SINGULARITY_DOCKER_USERNAME", "SINGULARITY_DOCKER_PASSWORD"),
    }
)
#: A pull that writes more is killed.
_MOST_OUTPUT_BYTES = 16 * 1024 * 1024
#: Names of images, files and addresses in a message, which are no part of what it says.
_PLACE = re.compile(r"\S*/\S*")
#: What registries and runtimes answer when another pull would fail as well.
_FINAL = re.compile(
    "invalid reference|must be lowercase|manifest unknown|manifest_unknown|name unknown"
    "|name_unknown|repository .*not found|unauthorized|authentication required|access .*denied"
    "|did not resolve to an alias",
    re.IGNORECASE,
)


class _Image(NamedTuple):
    """An image as an account with some variables gets it; `uid` None is the agent's own account.

    `variables` are those of `_OF_PODS`.
    """

    runtime: str
    reference: str
    uid: int | None
    variables: tuple[tuple[str, str], ...]


class _Pull:
    """The keeper of a pull, and the attempts that wait for the image."""

    def __init__(self, pid: int, output: IO[bytes]) -> None:
        self.pid = pid
        try:
            self.descriptor = os.pidfd_open(pid)
        except OSError:
            # Without descriptors it cannot be watched, and its pods are told that it has failed.
            processes.send(pid, KILL)
            processes.exit_code_of(pid)
            raise
        self.output = output
        self.attempts: dict[PodAttempt, None] = {}
        #: When to kill it, if it was told to stop.
        self.killed_at = 0
        #: When it was killed.
        self._kill_sent_at: int | None = None

    def send(self, sent: signal.Signals) -> None:
        """Send a signal to the keeper."""
        processes.send(self.pid, sent)

    def kill(self) -> None:
        """Have the keeper kill everything; later, kill the keeper, which a pull could have stopped:
        the agent adopts what is left then, and ends it.
        """
        now_ms = monotonic_ms()
        if self._kill_sent_at is None:
            self._kill_sent_at = now_ms
        is_late = now_ms - self._kill_sent_at >= _KILLED_WITHIN_MS
        self.send(signal.SIGKILL if is_late else KILL)

    def close(self, *, within_ms: int = _KILLED_WITHIN_MS) -> int:
        """Have everything killed that is left of it; return the exit code."""
        self.send(KILL)
        if not processes.is_readable(self.descriptor, within_ms=within_ms):
            self.send(signal.SIGKILL)
        code = processes.exit_code_of(self.pid)
        self.output.close()
        os.close(self.descriptor)
        return code


class ImagePulls:
    """The pulls of one agent; owned by its loop, which polls their descriptors."""

    def __init__(
        self,
        store: RedisStore,
        poll: select.poll,
        *,
        run_dir: Path,
        secrets: tuple[str, ...],
        boundary: Boundary = OF_CHILDREN,
        accounts: PodAccounts | None = None,
    ) -> None:
        """`secrets`: what no process of a pod may see, such as the server's URL."""
        self._store = store
        self._poll = poll
        self._run_dir = run_dir
        self._secrets = secrets
        self._boundary = boundary
        self._accounts = accounts
        self._pulls: dict[_Image, _Pull] = {}
        #: Those that were told to stop.
        self._stopping: list[_Pull] = []
        self._known_until: dict[_Image, int] = {}

    def pids(self) -> frozenset[int]:
        """Return the pids of the keepers."""
        return frozenset(one.pid for one in (*self._pulls.values(), *self._stopping))

    def is_at(self, descriptor: int) -> bool:
        """Return whether this is the descriptor of a pull."""
        pulls = (*self._pulls.values(), *self._stopping)
        return any(one.descriptor == descriptor for one in pulls)

    def carry_out(self, instruction: PullImage | StopPull) -> PullStarted | PullEnded | None:
        """Start or end a pull, and return the event that answers it. Raise StoreUnavailable."""
        if isinstance(instruction, PullImage):
            return self._pull(instruction.attempt, instruction.pod)
        for image, pull in list(self._pulls.items()):
            pull.attempts.pop(instruction.attempt, None)
            if not pull.attempts:
                self._stop(image)
        return None

    def stop_all(self) -> None:
        """Tell all pulls to stop: they remove their files, and `close` kills what is left later."""
        for image, pull in list(self._pulls.items()):
            pull.attempts.clear()
            self._stop(image)

    def _stop(self, image: _Image) -> None:
        pull = self._pulls.pop(image)
        log.info("pull stopped", image=image.reference)
        pull.killed_at = monotonic_ms() + PULL_ENDS_WITHIN_MS
        pull.send(STOP)
        self._stopping.append(pull)

    def kill_overdue(self) -> None:
        """Kill pulls that were told to stop, and have not, and those that fill the disk."""
        for pull in self._stopping:
            if monotonic_ms() >= pull.killed_at:
                pull.kill()
        for pull in self._pulls.values():
            if os.fstat(pull.output.fileno()).st_size > _MOST_OUTPUT_BYTES:
                pull.kill()

    def collect(self, descriptor: int) -> PullEnded:
        """Return the end of the pull with this descriptor. It names no attempts if the pull was
        told to stop, because no pod waits for it then.
        """
        for stopped in self._stopping:
            if stopped.descriptor == descriptor:
                self._stopping.remove(stopped)
                self._close(stopped)
                return PullEnded(now_ms=monotonic_ms(), attempts=())
        image = next(name for name, one in self._pulls.items() if one.descriptor == descriptor)
        pull = self._pulls.pop(image)
        attempts, now_ms = tuple(pull.attempts), monotonic_ms()
        said = _last_line(pull.output)
        code = self._close(pull)
        trouble = "" if code == 0 else said or _trouble(code)
        log.info("pull ended", image=image.reference, trouble=trouble or None)
        if not trouble:
            if len(self._known_until) >= _MOST_KNOWN:
                self._known_until.clear()
            self._known_until[image] = now_ms + _KNOWN_MS
        is_final = _FINAL.search(_PLACE.sub(" ", trouble)) is not None
        return PullEnded(now_ms=now_ms, attempts=attempts, trouble=trouble, is_final=is_final)

    def close(self) -> None:
        """End all pulls."""
        pulls = (*self._pulls.values(), *self._stopping)
        for pull in pulls:
            pull.send(KILL)
        give_up_at = monotonic_ms() + _KILLED_WITHIN_MS
        for pull in pulls:
            self._poll.unregister(pull.descriptor)
            pull.close(within_ms=max(0, give_up_at - monotonic_ms()))
        self._pulls, self._stopping = {}, []

    def _close(self, pull: _Pull) -> int:
        self._poll.unregister(pull.descriptor)
        return pull.close()

    def _pull(self, attempt: PodAttempt, pod: Pod) -> PullStarted | PullEnded:
        there = PullEnded(now_ms=monotonic_ms(), attempts=(attempt,))
        group = self._store.get_many("PodGroup", [group_key_of(pod)]).get(group_key_of(pod))
        if not isinstance(group, PodGroup) or group.metadata.uid != pod.status.group_uid:
            # Its claim finds that out, too.
            return there
        template = next(
            (one.template for one in group.spec.tasks if one.name == pod.spec.task), None
        )
        reference = "" if template is None else image_to_pull(template.container)
        if template is None or template.container is None or not reference:
            return there
        runtime = runtime_of(template.container)
        program = shutil.which(runtime)
        try:
            account = None if self._accounts is None else self._accounts.of(group)
        except NoAccount:
            program = account = None
        if program is None:
            # Its work-horse says so.
            return there
        own = ((name, value) for name, value in template.env.items() if name in _OF_PODS)
        variables = tuple(sorted(own))
        image = _Image(runtime, reference, None if account is None else account.uid, variables)
        if self._known_until.get(image, 0) > there.now_ms:
            return there
        if image not in self._pulls:
            script = _PODMAN if runtime == "podman" else _APPTAINER
            argv = ("/bin/sh", "-c", script, program, reference)
            try:
                self._pulls[image] = self._started(argv, dict(variables), account)
            except OSError as trouble:
                why = f"{runtime} could not be started: {trouble}"
                return PullEnded(now_ms=there.now_ms, attempts=(attempt,), trouble=why)
            log.info("pull started", image=reference, runtime=runtime)
        self._pulls[image].attempts[attempt] = None
        return PullStarted(now_ms=there.now_ms, attempt=attempt)

    def _started(
        self, argv: Sequence[str], variables: Mapping[str, str], account: Account | None
    ) -> _Pull:
        environment: Mapping[str, str] = base_environment(os.environ, secrets=self._secrets)
        if account is not None:
            environment = without_person(environment) | account.environment()

        def start(keeper: int) -> subprocess.Popen[bytes]:
            def die_with_keeper() -> None:
                processes.die_with_parent(signal.SIGKILL, keeper)

            with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a descriptor
                return privileges.popen(
                    argv,
                    {**environment, **variables},
                    "/",
                    (nothing.fileno(), output.fileno(), output.fileno()),
                    account=account,
                    prepare=die_with_keeper,
                    # A change of the account revokes it.
                    ready=die_with_keeper,
                )

        output = tempfile.TemporaryFile(dir=self._run_dir)  # noqa: SIM115 - it is the pull's
        try:
            mark = processes.mark_of(self._run_dir)
            pull = _Pull(fork_keeper(start, output.fileno(), self._boundary, mark), output)
        except BaseException:  # anything: the file must not stay open
            output.close()
            raise
        self._poll.register(pull.descriptor, select.POLLIN)
        return pull


def _last_line(output: IO[bytes]) -> str:
    """Return the line of the error, or else the last one; empty if there is none."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _SHOWN_BYTES))
    text = output.read().decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    line = next((one for one in reversed(lines) if "error" in one.lower()), lines[-1])
    return printable(line)[:_MOST_SHOWN]


def _trouble(code: int) -> str:
    by = -code if code < 0 else code - OF_SIGNALS
    return f"killed by signal {by}" if by in signal.valid_signals() else f"exited with {code}"


#: Sent to a keeper: the runtime is to end, and everything is to be killed at once.
STOP, KILL = signal.SIGTERM, signal.SIGUSR1
_ENDS_WITHIN_S = 30.0
_ROUND_S = 1.0
#: The exit code of a keeper whose runtime was killed by a signal, less its number, as in a shell.
OF_SIGNALS = 128
#: The exit code of a keeper whose runtime could not be started.
_NOT_STARTED = 127


def fork_keeper(
    start: Callable[[int], subprocess.Popen[bytes]], output: int, boundary: Boundary, mark: int
) -> int:
    """Fork the keeper of the runtime that `start` starts, and return its pid. `start` gets the pid
    of the runtime's parent.

    Why a runtime could not be started is written to `output`. `mark`: how the next agent recognizes
    the processes. The calling process must have a single thread. Raise OSError.
    """
    agent = os.getpid()
    # The handlers of the agent would swallow a signal that comes before those of the keeper.
    former = signal.pthread_sigmask(signal.SIG_BLOCK, (STOP, KILL))
    try:
        pid = os.fork()
        if pid:
            return pid
        _keep(start, output, boundary, mark, agent, former)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _keep(
    start: Callable[[int], subprocess.Popen[bytes]],
    output: int,
    boundary: Boundary,
    mark: int,
    agent: int,
    mask: set[int],
) -> NoReturn:
    exit_code = _NOT_STARTED
    try:
        processes.detach({output, 2})
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signals = Signals(STOP, KILL, signal.SIGCHLD)
        signals.install()
        processes.set_mark(mark)
        processes.adopt_orphans()
        processes.die_with_parent(KILL, agent)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        enclosure = Enclosure(boundary if boundary.kind == Containment.CGROUP else OF_CHILDREN)
        try:
            process = start(os.getpid())
        except (OSError, ValueError, subprocess.SubprocessError) as trouble:
            os.write(output, f"it could not be started: {trouble}\n".encode())
        else:
            code = _await(process, signals)
            _end(enclosure)
            exit_code = code if code >= 0 else OF_SIGNALS - code
        enclosure.close()
    except Exception as error:  # anything: the pull has failed, and the agent goes on
        log.exception("keeper of a pull failed", error=str(error))
    finally:
        os._exit(exit_code)


def _await(process: subprocess.Popen[bytes], signals: Signals) -> int:
    """Wait for the runtime and return its exit code. A signal that stops or kills this process
    does the same to the runtime.
    """
    poll = select.poll()
    ended = os.pidfd_open(process.pid)
    for descriptor in (ended, signals.fileno()):
        poll.register(descriptor, select.POLLIN)
    stops = 0
    while True:
        readable = {descriptor for descriptor, _ in poll.poll()}
        signals.clear()
        if signals.count(KILL):
            processes.send(process.pid, signal.SIGKILL)
        elif signals.count(STOP) > stops:
            stops = signals.count(STOP)
            send_to_group(process.pid, signal.SIGTERM)
        processes.reap_orphans(keep=(process.pid,))
        if ended in readable:
            wait_status = processes.collect(process.pid)
            return (
                -signal.SIGKILL if wait_status is None else os.waitstatus_to_exitcode(wait_status)
            )


def _end(enclosure: Enclosure) -> None:
    """End everything that the runtime has left."""
    deadline = monotonic() + _ENDS_WITHIN_S
    while left := enclosure.end_all(keep=(), within_s=_ROUND_S):
        if monotonic() >= deadline:
            log.error("processes of a pull cannot be killed", pids=left)
            return
        await_death(left, _ROUND_S)
