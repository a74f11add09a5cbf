"""A pod's command: its start, its environment, its output, and the end of everything it started.

The command leads its own process group and session; its guard kills the group when the work-horse
dies. The work-horse is the parent of every orphan below it, so at the end it can kill everything
that the pod started, in whatever session. If the pod has its own cgroup, the processes in it are
killed as well.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Struct, structs

from batchq.api.objects import Pod, PodGroup, PodTemplate, Task
from batchq.api.transaction import count_of
from batchq.system import structlog
from batchq.worker.host import privileges, processes
from batchq.worker.host.containment import Enclosure, PidNamespace, StartOrder
from batchq.worker.host.node_resources import UNBOUNDED, ProcessBounds, limit_data
from batchq.worker.host.privileges import Account
from batchq.worker.host.processes import reap_orphans
from batchq.worker.workhorse import callee
from batchq.worker.workhorse.guard import Guard, GuardPost
from batchq.worker.workhorse.run_file import NOT_EXECUTABLE, NOT_FOUND, PodOutcome

log = structlog.get_logger(__name__)

_READ_BYTES = 64 << 10
_READS_PER_TURN = 4
#: A pipe holds at most 1 MiB, so this many reads empty a pipe without writers.
_READS_AT_END = 32
#: For processes that end as soon as they are killed.
_KILLED_WITHIN_S = 0.2
_TRACED = "how it ended is not known: a debugger holds its process"


class NotStarted(Exception):
    """The command could not be started; `outcome` says why."""

    def __init__(self, outcome: PodOutcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


class Started(Struct, frozen=True, kw_only=True):
    """A process that was just started: how to wait for it, and the descriptors of its outputs."""

    pid: int
    stdout: int
    stderr: int
    #: Return its wait status once it has ended; None if the status is unknown.
    reap: Callable[[], int | None]
    #: Children of this process that outlive the command.
    keep: tuple[int, ...] = ()
    #: Has a process that stays in the PID namespace kill all others there; returns whether it has.
    kill_others: Callable[[], bool] | None = None


#: Starts a function's process in an environment, a folder and bounds. The descriptors are its
#: stdin, stdout and stderr, and the way into its cgroup if it has one. Returns None if it cannot.
Starter = Callable[[Mapping[str, str], str, ProcessBounds, tuple[int, ...]], "Fork | None"]


class Fork(Struct, frozen=True, kw_only=True):
    """A process that another process has forked for this one.

    `keep` is the pid of that other process if it is a child of this one.
    """

    pid: int
    reap: Callable[[], int | None]
    keep: tuple[int, ...]
    kill_others: Callable[[], bool] | None = None


class Command:
    """A running command; owned by the work-horse's supervision loop."""

    def __init__(
        self,
        started: Started,
        guard: Guard,
        bounds: ProcessBounds,
        enclosure: Enclosure,
        *,
        spares_leader: bool = False,
    ) -> None:
        self._started = started
        self._spares_leader = spares_leader
        self._guard = guard
        self._bounds = bounds
        self._enclosure = enclosure
        #: What its bounds did to the command, for the pod's message; set by `end`.
        self.trouble = ""
        #: Processes that the command has left and that have not ended yet.
        self.left: list[int] = []
        self.group = started.pid
        self.pidfd = os.pidfd_open(started.pid)
        self._pipes = (started.stdout, started.stderr)
        self.outputs = {started.stdout: "stdout", started.stderr: "stderr"}
        for descriptor in self.outputs:
            os.set_blocking(descriptor, False)

    def read(self, descriptor: int, *, reads: int = _READS_PER_TURN) -> list[bytes]:
        """Read a bounded part of one of `outputs`; drop the descriptor at its end."""
        parts: list[bytes] = []
        for _ in range(reads):
            try:
                part = os.read(descriptor, _READ_BYTES)
            except BlockingIOError:
                break
            if not part:
                del self.outputs[descriptor]
                break
            parts.append(part)
        return parts

    def read_rest(self, descriptor: int) -> list[bytes]:
        """Read what is left in a pipe without writers."""
        return self.read(descriptor, reads=_READS_AT_END)

    def send(self, sent: signal.Signals) -> None:
        """Send a signal to the whole process group, without its leader if that is to be spared."""
        others = processes.members_of_group(self.group) if self._spares_leader else []
        for pid in others:
            processes.send(pid, sent)
        if not others:
            send_to_group(self.group, sent)

    def allow_until(self, at_ms: int) -> None:
        """Let the guard kill the group at this instant, unless a later one follows."""
        self._guard.allow_until(at_ms)

    def collect(self, inner: Sequence[int] = ()) -> None:
        """Collect ended orphans below this process, so that their pids are free again. `inner`:
        processes that are collected elsewhere.
        """
        keep = (self._started.pid, *self._started.keep, *self._enclosure.keeps(), *inner)
        reap_orphans(keep=keep)

    def end(self) -> int:
        """Kill what is left below this process, and return the wait status of the command itself.

        Processes that do not end at once are in `left`; the pod is over when `end_rest` returns
        True.

        Call it only once `pidfd` is readable. The group is killed before its leader is reaped,
        because until then no other group can have its number.
        """
        send_to_group(self.group, signal.SIGKILL)
        wait_status = self.reap()
        self._guard.dismiss()
        self.trouble = self._bounds.trouble()
        if wait_status is None:
            self.trouble = self.trouble or _TRACED
            wait_status = int(signal.SIGKILL)
        self.end_rest(_KILLED_WITHIN_S)
        return wait_status

    def end_rest(self, within_s: float) -> bool:
        """Kill what the ended command has left, and return whether nothing is left."""
        self.left = end_cgroup(self._bounds, within_s)
        self.left += self._enclosure.end_all(
            keep=self._started.keep,
            within_s=within_s,
            kill_others=self._started.kill_others,
        )
        return not self.left

    def reap(self) -> int | None:
        """Collect the command itself, and return its wait status; None if it is unknown."""
        return self._started.reap()

    def close(self) -> None:
        """Close the guard, the pipes and the pidfd."""
        self._guard.dismiss()
        for descriptor in (self.pidfd, *self._pipes):
            os.close(descriptor)


def start(
    argv: Sequence[str],
    environment: Mapping[str, str],
    working_dir: str,
    *,
    stdin: int = subprocess.DEVNULL,
    bounds: ProcessBounds = UNBOUNDED,
    until_ms: int | None = None,
    post: GuardPost | None = None,
    starter: Starter | None = None,
    enclosure: Enclosure | None = None,
    account: Account | None = None,
    spares_leader: bool = False,
) -> Command:
    """Start `argv` in its own process group, within `bounds`, with `stdin`, and under `account` if
    one is given. `spares_leader`: the first process only waits for the others, and gets no signal
    to stop.

    The guard (of the agent's `post`, if there is one) kills the group at `until_ms` unless it is
    allowed more time, because this process may be stopped at any line. `starter` is tried first if
    given. `enclosure` is what this process has set up around its commands, if anything.

    Raise NotStarted with exit code 127 or 126, as a shell would have it; the cgroup is left for the
    caller.
    """
    if not argv:
        raise NotStarted(PodOutcome(exit_code=NOT_FOUND, message="the template names no command"))
    # What another account may enter is known only once that account tries.
    if working_dir and account is None and (problem := _problem_of(working_dir)):
        raise NotStarted(PodOutcome(exit_code=NOT_EXECUTABLE, message=problem))
    enclosure = enclosure or Enclosure()
    guard: Guard | None = None
    entrance: int | None = None
    try:
        guard = Guard(bounds.cgroup or enclosure.cgroup, post=post, until_ms=until_ms)
        enclosure.make_ready()
        entrance = bounds.cgroup.entrance() if bounds.cgroup is not None else None
        started = _started(
            argv,
            environment,
            working_dir,
            stdin,
            bounds,
            entrance,
            starter,
            enclosure.namespace,
            account,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as trouble:
        if guard is not None:
            guard.dismiss()
        raise NotStarted(_not_started(argv[0], trouble, working_dir, account)) from None
    finally:
        if entrance is not None:
            os.close(entrance)
    guard.watch_over(started.pid)
    return Command(started, guard, bounds, enclosure, spares_leader=spares_leader)


def _started(
    argv: Sequence[str],
    environment: Mapping[str, str],
    working_dir: str,
    stdin: int,
    bounds: ProcessBounds,
    entrance: int | None,
    starter: Starter | None,
    namespace: PidNamespace | None,
    account: Account | None,
) -> Started:
    (stdout, out), (stderr, err) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
    try:
        # A program may open /dev/stderr, which the kernel treats like a file.
        for own in (out, err):
            privileges.give(own, account)
        inside = () if entrance is None else (entrance,)
        fork = None
        # A standby interpreter would not pass the locks on.
        if starter is not None and not bounds.locks:
            fork = starter(environment, working_dir, bounds, (stdin, out, err, *inside))
        if fork:
            return Started(
                pid=fork.pid,
                stdout=stdout,
                stderr=stderr,
                reap=fork.reap,
                keep=fork.keep,
                kill_others=fork.kill_others,
            )
        if namespace is not None:
            order = StartOrder(
                argv=argv,
                environment=environment,
                folder=working_dir,
                memory_bytes=bounds.memory_bytes,
                account=account,
            )
            pid = _start_inside(namespace, order, stdin, (out, err, *inside))
            return Started(pid=pid, stdout=stdout, stderr=stderr, reap=namespace.collect)
        horse = os.getpid()
        process = privileges.popen(
            argv,
            environment,
            working_dir,
            (stdin, out, err, *bounds.locks),
            account=account,
            prepare=_preparation(bounds, entrance),
            # The change of the account has taken back what the preparation asked for.
            ready=lambda: processes.die_with_parent(signal.SIGKILL, horse),
        )
    except BaseException:  # anything: the pipes must not stay open
        os.close(stdout)
        os.close(stderr)
        raise
    finally:
        os.close(out)
        os.close(err)

    return Started(pid=process.pid, stdout=stdout, stderr=stderr, reap=_reap_of(process))


class InnerProcess(Struct, frozen=True, kw_only=True):
    """A process beside a pod's command: the leader of its own group, and how to collect it."""

    pid: int
    #: Return its wait status once it has ended; None if the status is unknown.
    reap: Callable[[], int | None]


def start_inner(
    argv: Sequence[str],
    environment: Mapping[str, str],
    working_dir: str,
    stdio: tuple[int, int, int],
    *,
    bounds: ProcessBounds,
    enclosure: Enclosure,
    account: Account | None,
    has_terminal: bool,
) -> InnerProcess:
    """Start a process within the bounds and the enclosure of the pod that runs there, under its
    account if it has one.

    `has_terminal`: its stdin is a terminal, which it is to control. Raise NotStarted.
    """
    if working_dir and account is None and (problem := _problem_of(working_dir)):
        raise NotStarted(PodOutcome(exit_code=NOT_EXECUTABLE, message=problem))
    entrance: int | None = None
    try:
        # A program may open /dev/stderr or its terminal, which the kernel treats like files.
        for own in stdio:
            privileges.give(own, account)
        entrance = bounds.cgroup.entrance() if bounds.cgroup is not None else None
        inside = () if entrance is None else (entrance,)
        if enclosure.namespace is None:
            horse = os.getpid()
            # The messenger's thread may run: what it may hold is not used between fork and exec.
            process = privileges.popen(
                argv,
                environment,
                working_dir,
                (*stdio, *bounds.locks),
                account=account,
                prepare=_preparation_of_inner(bounds, entrance, has_terminal=has_terminal),
                ready=lambda: processes.die_with_parent(signal.SIGKILL, horse),
            )
            return InnerProcess(pid=process.pid, reap=_reap_of(process))
        order = StartOrder(
            argv=argv,
            environment=environment,
            folder=working_dir,
            memory_bytes=bounds.memory_bytes,
            account=account,
            is_inner=True,
            has_terminal=has_terminal,
        )
        namespace = enclosure.namespace
        pid, number = namespace.start_numbered(order, (*stdio, *inside))
        return InnerProcess(pid=pid, reap=lambda: namespace.collect_inner(number))
    except (OSError, ValueError, subprocess.SubprocessError) as trouble:
        raise NotStarted(_not_started(argv[0], trouble, working_dir, account)) from None
    finally:
        if entrance is not None:
            os.close(entrance)


def _preparation_of_inner(
    bounds: ProcessBounds, entrance: int | None, *, has_terminal: bool
) -> Callable[[], None]:
    prepare = _preparation(bounds, entrance, always=True)
    assert prepare is not None
    if not has_terminal:
        return prepare

    def take_terminal() -> None:
        prepare()
        processes.control_terminal()

    return take_terminal


def _reap_of(process: subprocess.Popen[bytes]) -> Callable[[], int | None]:
    def reap() -> int | None:
        wait_status = processes.collect(process.pid)
        if wait_status is not None:
            process.returncode = os.waitstatus_to_exitcode(wait_status)
        return wait_status

    return reap


def _start_inside(
    namespace: PidNamespace, order: StartOrder, stdin: int, others: tuple[int, ...]
) -> int:
    if stdin != subprocess.DEVNULL:
        return namespace.start(order, (stdin, *others))
    empty = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return namespace.start(order, (empty, *others))
    finally:
        os.close(empty)


def _preparation(
    bounds: ProcessBounds, entrance: int | None, *, always: bool = False
) -> Callable[[], None] | None:
    """Return what the child does between fork and exec; `entrance` leads into its cgroup.

    None if there is nothing to do: the child is then started without a copy of this process's
    memory (vfork), at a quarter of the cost. `always`: it ends with this process at least. Exec
    resets the signals that this process handles.
    """
    ignored = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        if signal.getsignal(number) == signal.SIG_IGN
    ]
    if entrance is None and bounds.memory_bytes is None and not ignored and not always:
        return None
    horse = os.getpid()

    def prepare() -> None:
        processes.die_with_parent(signal.SIGKILL, horse)
        for number in ignored:
            signal.signal(number, signal.SIG_DFL)
        if entrance is not None:
            os.write(entrance, b"0")
        elif bounds.memory_bytes is not None:
            limit_data(bounds.memory_bytes)

    return prepare


def end_cgroup(bounds: ProcessBounds, within_s: float = _KILLED_WITHIN_S) -> list[int]:
    """Kill what is left in the cgroup, if there is one; return the pids that have not ended yet."""
    return [] if bounds.cgroup is None else bounds.cgroup.end(within_s)


def send_to_group(group: int, sent: signal.Signals) -> None:
    """Send a signal to every process of a group; do nothing if the group is empty."""
    try:
        os.killpg(group, sent)
    except (ProcessLookupError, PermissionError):
        return


def _problem_of(working_dir: str) -> str:
    """Return why no command can start in the folder; empty if no reason is known."""
    try:
        # Not is_dir(), which raises for some paths that are no folder and returns False for others.
        found = os.stat(working_dir)  # noqa: PTH116 - runs for each pod; pathlib is slower
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return f"workingDir {working_dir} is not a directory on this node"
    except OSError as trouble:
        return f"workingDir {working_dir} cannot be used on this node: {trouble.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return f"workingDir {working_dir} is not a directory on this node"
    return ""


def _not_started(
    program: str, trouble: Exception, folder: str, account: Account | None
) -> PodOutcome:
    match trouble:
        case OSError() if account is not None and trouble.filename == folder != "":
            message = (
                f"workingDir {folder} cannot be used on this node by account {account.name}:"
                f" {trouble.strerror}"
            )
        case FileNotFoundError():
            return PodOutcome(exit_code=NOT_FOUND, message=f"command not found: {program}")
        case OSError() if trouble.errno == errno.ENOEXEC:
            message = f"cannot run {program}: neither a program nor a script with a #! line"
        case OSError():
            by = "" if account is None else f" as account {account.name}"
            message = f"cannot run {program}{by}: {trouble.strerror}"
        case _:
            message = f"cannot run {program!r}: {trouble}"
    return PodOutcome(exit_code=NOT_EXECUTABLE, message=message)


_OWN_PREFIXES = ("BATCHQ_", "RQ_", "REDIS_", "VALKEY_")
#: What launchers tell their processes: an agent that one of them has started must not pass it on,
#: or its pods would take themselves for parts of that job.
_LAUNCHER_PREFIXES = (
    *("MASTER_", "PET_", "TORCHELASTIC_", "ROLE_", "SLURM", "SBATCH_", "SRUN_", "OMPI_", "PRTE_"),
    *("PMIX_", "PMI_", "HYDRA_", "I_MPI_HYDRA_", "JAX_", "RAY_", "DASK_"),
)
_LAUNCHER_NAMES = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"),
        *("GROUP_WORLD_SIZE", "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL"),
    }
)
_PERSONAL_PREFIXES = ("XDG_", "SUDO_", "DBUS_", "SSH_")
_PERSONAL_NAMES = frozenset(
    {
        *("HOME", "USER", "LOGNAME", "SHELL", "MAIL", "PWD", "OLDPWD", "TMPDIR", "_"),
        *("INVOCATION_ID", "JOURNAL_STREAM", "STATE_DIRECTORY"),
    }
)
_SECRET_WORDS = (
    *("PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "TOKEN", "CREDENTIAL"),
    *("PRIVATE_KEY", "ACCESS_KEY", "API_KEY", "APIKEY", "SSH_AUTH_SOCK"),
)
#: As in `postgres://me:secret@db/x`, whatever the name of the variable.
_URL_WITH_A_PASSWORD = re.compile(r"://[^/\s:@]*:[^/\s@]+@")


def base_environment(agents: Mapping[str, str], *, secrets: tuple[str, ...]) -> dict[str, str]:
    """Return the agent's own environment without what pods must not see.

    Left out: everything of batchq, RQ and the server, what a launcher around the agent has set,
    variables whose names sound like a secret, and values that contain one of `secrets` (such as the
    server's URL) or a URL with a password.
    """
    return {
        name: value
        for name, value in agents.items()
        if not name.startswith((*_OWN_PREFIXES, *_LAUNCHER_PREFIXES))
        and name not in _LAUNCHER_NAMES
        and not name.endswith("_VISIBLE_DEVICES")
        and not any(word in name.upper() for word in _SECRET_WORDS)
        and not name.upper().endswith("_PWD")
        and not _URL_WITH_A_PASSWORD.search(value)
        and not any(secret in value for secret in secrets if secret)
    }


def without_person(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what a login has set for the agent's own person."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(_PERSONAL_PREFIXES) and name not in _PERSONAL_NAMES
    }


def pod_environment(
    base: Mapping[str, str],
    pod: Pod,
    group: PodGroup,
    task: Task,
    *,
    visible: Mapping[str, str],
    stop_file: str,
    launch: Mapping[str, str],
) -> dict[str, str]:
    """Return the command's environment; a template cannot set `BATCHQ_*`.

    `launch`: what a pod of a gang with `spec.launch` is told; a template may override it.
    `visible`: the variables that name its devices.
    """
    environment = {**base, **launch, **task.template.env}
    environment |= visible
    environment |= {name: launch[name] for name in launch if name.startswith("BATCHQ_")}
    environment |= {
        "BATCHQ_GROUP": group.metadata.name,
        "BATCHQ_NAMESPACE": group.metadata.namespace,
        "BATCHQ_POD": pod.metadata.name,
        "BATCHQ_POD_UID": pod.metadata.uid,
        "BATCHQ_TASK": task.name,
        "BATCHQ_INDEX": str(pod.spec.index),
        "BATCHQ_REPLICAS": str(task.replicas),
        "BATCHQ_ADMISSION": str(pod.status.admission),
        "BATCHQ_ATTEMPT": str(count_of(pod.status.attempt)),
        "BATCHQ_NODE": pod.status.node,
        "BATCHQ_QUEUE": group.spec.queue,
        "BATCHQ_STOP_FILE": stop_file,
        "BATCHQ_STOP_REASON": pod.status.last_reason,
    }
    return environment


#: -P: the callee imports nothing from the folder of the script or of the pod.
CALLEE = (sys.executable, "-P", callee.__file__)
#: A result and the braces around it, or a message with every character escaped.
_ANSWER_MAX_BYTES = callee.RESULT_MAX_BYTES + 8192
_ENDED_EARLY = "its process ended before the function had returned; return instead of os._exit"


class _Answer(Struct):
    result: msgspec.Raw = msgspec.Raw(b"")
    message: str = ""


class Program:
    """What a template says is to run: `argv` with `stdin`; owned by the work-horse."""

    def __init__(self, template: PodTemplate) -> None:
        """Raise NotStarted."""
        self.is_function = bool(template.function)
        self.argv: Sequence[str] = CALLEE if template.function else template.command
        self.stdin: int = _file_of(template) if template.function else subprocess.DEVNULL

    def resolve(self, outcome: PodOutcome) -> tuple[PodOutcome, bytes | None]:
        """Return the outcome with the function's message, and its result as JSON.

        Call it when the process has ended. Only one that exited with 0 and was not told to stop has
        a result.
        """
        if self.stdin == subprocess.DEVNULL:
            return outcome, None
        answer = _answer_in(self.stdin)
        self.close()
        if outcome.stopped or outcome.signal is not None:
            return outcome, None
        if outcome.exit_code != 0:
            return explained(outcome, answer.message[: callee.MESSAGE_MAX], outcome.message), None
        result = bytes(answer.result)
        if not result or len(result) > callee.RESULT_MAX_BYTES:
            failed = structs.replace(outcome, exit_code=callee.RAISED)
            return explained(failed, _ENDED_EARLY, failed.message), None
        return outcome, result

    def close(self) -> None:
        """Close the file of the call and the answer; may be called twice."""
        if self.stdin != subprocess.DEVNULL:
            os.close(self.stdin)
            self.stdin = subprocess.DEVNULL


def _file_of(template: PodTemplate) -> int:
    call = f"{template.function}\n".encode()
    if template.args or template.kwargs:
        call += msgspec.json.encode((template.args, template.kwargs))
    try:
        file = os.memfd_create("batchq-call")
        os.pwrite(file, call, 0)
    except OSError as trouble:
        message = f"the call of {template.function} cannot be passed on: {trouble.strerror}"
        raise NotStarted(PodOutcome(exit_code=NOT_EXECUTABLE, message=message)) from None
    return file


def _answer_in(file: int) -> _Answer:
    """Return the answer in the file; an empty one if the pod has written anything else there."""
    try:
        return msgspec.json.decode(os.pread(file, _ANSWER_MAX_BYTES, 0), type=_Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Answer()


def explained(outcome: PodOutcome, *parts: str) -> PodOutcome:
    """Return the outcome with a message of these parts; empty ones are left out."""
    return structs.replace(outcome, message="; ".join(part for part in parts if part))
