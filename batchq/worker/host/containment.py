"""What keeps the processes of a pod together, so that all of them end with it.

    cgroup          work-horse and pod have a cgroup (version 2) of their own; `cgroup.kill` kills
                    every process in it in one step
    pid-namespace   the pods of a work-horse have a PID namespace: they see no process outside, and
                    the kernel kills all of them with the namespace's first process
    subreaper       the work-horse becomes the parent of the pod's orphans, and kills its children
                    until none is left

The first kind that works here is used, unless the operator names one. The agent tries each out when
it starts, since kernels, containers and security modules refuse them in different ways. The
work-horse kills its remaining children with every kind.

The pods of one work-horse run in its PID namespace one after the other. The namespace's first
process is forked from the work-horse. It starts commands, collects the processes they leave, and
kills all of them at once: `kill(-1)` reaches every process of a namespace in one system call, so no
fork escapes it. Pods have their own /proc and see no process outside, so they cannot signal the
agent, a work-horse or the guard. When the work-horse dies, its end of a socket closes, the first
process exits, and the kernel kills everything else in the namespace.

Root, and an agent that runs pods under other accounts, create the namespace directly; another user
creates it within a user namespace whose only user is the agent's.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from time import monotonic
from typing import NoReturn

import msgspec
from msgspec import Struct

from batchq.api.transaction import CONTAINMENT_LABEL
from batchq.errors import UsageError
from batchq.system import structlog
from batchq.worker.host import cgroup, privileges, processes
from batchq.worker.host.cgroup import PodCgroup, Unusable
from batchq.worker.host.node_resources import Enforcement, limit_data
from batchq.worker.host.privileges import Account, Capability
from batchq.worker.host.processes import (
    Signals,
    await_death,
    child_pids,
    has_children_of,
    kill_children,
    reap_orphans,
)

_NEW_MOUNTS, _NEW_USERS, _NEW_PIDS = 0x0002_0000, 0x1000_0000, 0x2000_0000
_NOSUID, _NODEV, _NOEXEC, _REC, _SLAVE = 2, 4, 8, 1 << 14, 1 << 19
#: A program may be loaded from a slow disk.
_ANSWERS_WITHIN_S = 60.0
_ENDS_WITHIN_S = 2.0
_ROUND_S = 0.05
_MAX_BYTES = 4096
#: Sent with a start order: the order, stdin, stdout, stderr, and the way into a cgroup.
_MAX_DESCRIPTORS = 5

_HAS_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
_START, _COLLECT, _END, _END_OTHERS = b"start", b"collect", b"end", b"end others"
_COLLECT_INNER = b"collect inner"

_libc = ctypes.CDLL(None, use_errno=True)


class StartOrder(Struct, frozen=True, kw_only=True):
    """What to start, and how."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    #: The memory limit of each process; None if a cgroup limits it or nothing does.
    memory_bytes: int | None = None
    #: Whose rights it has; None: those of the work-horse.
    account: Account | None = None
    #: Whether it serves the work-horse and outlives a pod. At most one such process exists.
    stays: bool = False
    #: Whether it runs beside the command, and is collected by its number.
    is_inner: bool = False
    #: Whether its stdin is a terminal that it controls.
    has_terminal: bool = False


class _Reply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reply of the first process: an error of the system, an error of the order, or a number."""

    errno: int = 0
    trouble: str = ""
    number: int = 0
    #: The path that the error is about, if it is not the program's.
    path: str = ""


class PidNamespace:
    """One namespace; owned by its work-horse, which must adopt orphans.

    The work-horse must have a single thread when it creates the namespace.
    """

    def __init__(self) -> None:
        """Raise OSError if the kernel does not grant one."""
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.settimeout(_ANSWERS_WITHIN_S)
        self.pid = 0
        try:
            self.pid = _fork_inside(_FirstProcess(theirs).serve)
            # The first process replies once the namespace has its own /proc.
            answer, _ = self._receive()
            if answer.errno:
                raise OSError(answer.errno, answer.trouble)
        except BaseException:  # anything: nothing of the namespace may stay
            self.close()
            raise
        finally:
            theirs.close()

    def is_gone(self) -> bool:
        """Return whether it has ended, so that nothing can be started in it."""
        return os.waitid(os.P_PID, self.pid, _HAS_ENDED) is not None

    def start(self, order: StartOrder, descriptors: tuple[int, ...]) -> int:
        """Start a process in its own session, and return its pid outside of the namespace."""
        return self.start_numbered(order, descriptors)[0]

    def start_numbered(self, order: StartOrder, descriptors: tuple[int, ...]) -> tuple[int, int]:
        """Start a process in its own session, and return its pids outside and in the namespace.

        `descriptors`: its stdin, stdout and stderr, and the way into its cgroup if it has one.
        Raise OSError or ValueError, as subprocess does.
        """
        written = os.memfd_create("batchq-order")
        try:
            _write(written, msgspec.json.encode(order))
            socket.send_fds(self._orders, [_START], [written, *descriptors])
        finally:
            os.close(written)
        answer, pidfd = self._receive()
        if answer.errno:
            raise OSError(answer.errno, answer.trouble, answer.path or None)
        if answer.trouble or pidfd is None:
            raise ValueError(answer.trouble)
        return pid_of_pidfd(pidfd), answer.number

    def collect(self) -> int:
        """Wait for the last started process, unless it stays or is inner; return its status."""
        return self._collect(_COLLECT)

    def collect_inner(self, number: int) -> int:
        """Wait for an inner process, by its pid in the namespace, and return its wait status."""
        return self._collect(_COLLECT_INNER + b" %d" % number)

    def _collect(self, message: bytes) -> int:
        try:
            self._orders.send(message)
            answer, _ = self._receive()
        except OSError:
            # The namespace has ended, which has killed the process.
            return int(signal.SIGKILL)
        return answer.number

    def end_all(self, within_s: float) -> list[int]:
        """Kill every process in it but the first.

        Return the pids, as seen outside, of those that remain after `within_s`.
        """
        return self._end(_END, within_s)

    def await_all(self, within_s: float) -> list[int]:
        """Wait for the end of all processes that the one that stays has killed."""
        return self._end(_END_OTHERS, within_s)

    def _end(self, message: bytes, within_s: float) -> list[int]:
        self._orders.settimeout(within_s + _ENDS_WITHIN_S)
        try:
            self._orders.send(message + b" %d" % round(within_s * 1000))
            answer, _ = self._receive()
        except OSError:
            # The first process has ended or is stopped; killing it makes the kernel kill the
            # others.
            return self._end_first(within_s)
        finally:
            self._orders.settimeout(_ANSWERS_WITHIN_S)
        return self._inside() if answer.number else []

    def close(self) -> None:
        """End the namespace with everything in it."""
        self._orders.close()
        if self.pid:
            with suppress(ChildProcessError):
                if not self._end_first(_ENDS_WITHIN_S):
                    os.waitpid(self.pid, 0)
            self.pid = 0

    def _end_first(self, within_s: float) -> list[int]:
        """Kill the first process without collecting it: `is_gone` needs it until then."""
        os.kill(self.pid, signal.SIGKILL)
        await_death([self.pid], within_s)
        return [] if self.is_gone() else [self.pid, *self._inside()]

    def _inside(self) -> list[int]:
        """Return the children of the first process; orphans of others become its children later."""
        try:
            listed = processes.read_kernel_file(f"/proc/{self.pid}/task/{self.pid}/children")
        except OSError:
            return [self.pid]
        return [int(pid) for pid in listed.split()] or [self.pid]

    def _receive(self) -> tuple[_Reply, int | None]:
        """Return a reply and the pidfd that came with it. Raise OSError if none comes."""
        within_s = self._orders.gettimeout() or 0.0
        if not processes.is_answered(self._orders, within_s, waiting_for=(self.pid,)):
            raise TimeoutError(
                errno.ETIMEDOUT, "the first process of its PID namespace does not answer"
            )
        message, descriptors, _, _ = socket.recv_fds(self._orders, _MAX_BYTES, 1)
        if not message:
            raise BrokenPipeError(errno.EPIPE, "the first process of its PID namespace has ended")
        answer = msgspec.json.decode(message, type=_Reply)
        return answer, descriptors[0] if descriptors else None


def _try_pid_namespace() -> str:
    """Return why no such namespace is possible here; empty if it is.

    The calling process must have a single thread.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            processes.adopt_orphans()
            try:
                PidNamespace().close()
                os.write(write_end, b".")
            except OSError as trouble:
                os.write(write_end, f"{trouble.filename or ''}{trouble.strerror}".encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(child, 0)
    if answer == ".":
        return ""
    return f"the kernel does not grant a PID namespace ({answer or 'no answer'})"


def pid_of_pidfd(pidfd: int) -> int:
    """Return the pid, outside of the namespace, of the process behind a descriptor; close that.

    Raise ProcessLookupError if the process has been collected.
    """
    try:
        shown = processes.read_kernel_file(f"/proc/self/fdinfo/{pidfd}")
    finally:
        os.close(pidfd)
    pid = next(int(line[4:]) for line in shown.splitlines() if line.startswith(b"Pid:"))
    if pid <= 0:
        raise ProcessLookupError(errno.ESRCH, "it has ended")
    return pid


def _fork_inside(run: Callable[[], NoReturn]) -> int:
    """Fork a process that runs this as the first one of new namespaces; return its pid outside.

    A process in between creates them, because a process cannot go back to its children's former
    namespace. Raise OSError.
    """
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    between = os.fork()
    if between == 0:
        try:
            _make_namespaces()
            first = os.fork()
            if first == 0:
                run()
            os.write(write_end, b"%d" % first)
        except OSError as trouble:
            os.write(write_end, b"-%d" % (trouble.errno or 0))
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        answer = int(pipe.read() or b"-0")
    processes.collect(between)
    if answer <= 0:
        raise OSError(-answer, os.strerror(-answer))
    return answer


def _make_namespaces() -> None:
    user, group = os.geteuid(), os.getegid()
    if privileges.holds(Capability.SYS_ADMIN):
        try:
            with privileges.raised(Capability.SYS_ADMIN):
                privileges.check(_libc.unshare(_NEW_PIDS | _NEW_MOUNTS))
        except PermissionError:
            # The root user of a container may lack the right.
            pass
        else:
            return
    if user and privileges.holds(Capability.SETUID):
        # A user namespace of one user has no other accounts for pods.
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    privileges.check(_libc.unshare(_NEW_USERS | _NEW_PIDS | _NEW_MOUNTS))
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        Path(f"/proc/self/{name}").write_text(text)


def _mount_proc() -> None:
    """Mount a /proc of the namespace, visible only inside."""
    flags = ctypes.c_ulong(_NOSUID | _NODEV | _NOEXEC)
    with privileges.raised(Capability.SYS_ADMIN):
        privileges.check(_libc.mount(b"none", b"/", None, ctypes.c_ulong(_REC | _SLAVE), None))
        privileges.check(_libc.mount(b"proc", b"/proc", b"proc", flags, None))


class _FirstProcess:
    """The first process of the namespace: it obeys its work-horse, and collects ended processes."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        #: The last started process, until it is collected.
        self._command: subprocess.Popen[bytes] | None = None
        self._staying: subprocess.Popen[bytes] | None = None
        #: The inner processes that have not been collected, by pid.
        self._inner: dict[int, subprocess.Popen[bytes]] = {}

    def serve(self) -> NoReturn:
        """Serve until the work-horse closes its end of the socket or is gone."""
        try:
            self._detach()
            signals = Signals(signal.SIGCHLD)
            signals.install()
            poll = select.poll()
            for descriptor in (self._orders.fileno(), signals.fileno()):
                poll.register(descriptor, select.POLLIN)
            self._reply(_Reply())
            while True:
                readable = {descriptor for descriptor, _ in poll.poll()}
                if signals.fileno() in readable:
                    signals.clear()
                    self._collect_orphans()
                if self._orders.fileno() in readable:
                    self._obey()
        except OSError as trouble:
            with suppress(OSError):
                self._reply(_Reply(errno=trouble.errno or 1, trouble=str(trouble.strerror)))
        finally:
            # The kernel kills everything else.
            os._exit(0)

    def _detach(self) -> None:
        """Close the work-horse's descriptors and drop its signal handlers.

        The first process of a namespace ignores signals that it does not handle.
        """
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        empty = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(empty, descriptor)
        orders = self._orders.fileno()
        os.closerange(3, orders)
        os.closerange(orders + 1, os.sysconf("SC_OPEN_MAX"))
        _mount_proc()

    def _obey(self) -> None:
        message, descriptors, _, _ = socket.recv_fds(self._orders, _MAX_BYTES, _MAX_DESCRIPTORS)
        if message == _START:
            self._start(descriptors)
        elif message == _COLLECT:
            self._reply(_Reply(number=self._collect()))
        elif message.startswith(_COLLECT_INNER):
            inner = self._inner.pop(int(message.rpartition(b" ")[2]), None)
            self._reply(_Reply(number=0 if inner is None else _wait_status_of(inner)))
        elif message:
            order, _, within_ms = message.rpartition(b" ")
            staying = self._staying if order == _END_OTHERS else None
            self._reply(_Reply(number=self._end(int(within_ms) / 1000, staying)))
        else:
            # The work-horse is gone.
            os._exit(0)

    def _reply(self, answer: _Reply, descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self._orders, [msgspec.json.encode(answer)], descriptors)

    def _start(self, descriptors: Sequence[int]) -> None:
        try:
            order = msgspec.json.decode(_content(descriptors[0]), type=StartOrder)
            started = _popen(order, descriptors[1:])
        except OSError as trouble:
            number, path = trouble.errno or errno.EIO, str(trouble.filename or "")
            self._reply(_Reply(errno=number, trouble=str(trouble.strerror), path=path))
        except (ValueError, subprocess.SubprocessError) as trouble:
            self._reply(_Reply(trouble=str(trouble)))
        else:
            if order.stays:
                self._staying = started
            elif order.is_inner:
                self._inner[started.pid] = started
            else:
                self._command = started
            pidfd = os.pidfd_open(started.pid)
            self._reply(_Reply(number=started.pid), [pidfd])
            os.close(pidfd)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _collect(self) -> int:
        if self._command is None:
            return 0
        wait_status = _wait_status_of(self._command)
        self._command = None
        return wait_status

    def _collect_orphans(self) -> None:
        """Collect ended children; the command and inner processes keep their pids."""
        command = () if self._command is None else (self._command.pid,)
        reap_orphans(keep=(*command, *self._inner))

    def _end(self, within_s: float, staying: subprocess.Popen[bytes] | None) -> int:
        """Kill all children but the one that stays, and return how many are left.

        If one stays, it has killed the others already, and this only waits for them.
        """
        deadline = monotonic() + within_s
        self._command = None
        self._inner = {}
        kept = frozenset() if staying is None else frozenset({staying.pid})
        while True:
            self._collect_orphans()
            left = sorted(child_pids() - kept)
            if not left or monotonic() >= deadline:
                return len(left)
            if staying is None:
                _kill_all_others()
            await_death(left, _ROUND_S)


def _wait_status_of(process: subprocess.Popen[bytes]) -> int:
    """Collect a process that has ended, or ends now."""
    wait_status = processes.collect(process.pid)
    if wait_status is None:
        wait_status = int(signal.SIGKILL)
    process.returncode = os.waitstatus_to_exitcode(wait_status)
    return wait_status


def _kill_all_others() -> None:
    """Kill every process of the namespace but this one, its first, in one system call."""
    if os.getpid() == 1:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)


def _popen(order: StartOrder, descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    stdin, stdout, stderr, *entrance = descriptors
    memory_bytes, has_terminal = order.memory_bytes, order.has_terminal

    def prepare() -> None:
        if has_terminal:
            processes.control_terminal()
        if entrance:
            os.write(entrance[0], b"0")
        elif memory_bytes is not None:
            limit_data(memory_bytes)

    return privileges.popen(
        order.argv,
        order.environment,
        order.folder,
        (stdin, stdout, stderr),
        account=order.account,
        prepare=prepare if entrance or has_terminal or memory_bytes is not None else None,
    )


def _content(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


log = structlog.get_logger(__name__)

_HORSE = "horse"
_QUICK_S = 0.05


class Containment(StrEnum):
    """The operator's choice; AUTO means the first of the others that works here."""

    AUTO = "auto"
    CGROUP = "cgroup"
    PID_NAMESPACE = "pid-namespace"
    SUBREAPER = "subreaper"


class Boundary(Struct, frozen=True, kw_only=True):
    """The kind of containment on this machine; made once by `choose`, given to every work-horse."""

    kind: Containment
    #: The cgroup below which each work-horse has its own. None if each pod has a cgroup already,
    #: for its memory limit, or if no cgroups are used.
    base: Path | None = None
    #: Distinguishes this agent's cgroups from those of other agents below the same base.
    mark: str = ""

    def labels(self) -> dict[str, str]:
        """Return the label by which a node says what its containment is."""
        return {CONTAINMENT_LABEL: str(self.kind)}

    def of_horse(self, pid: int) -> PodCgroup | None:
        """Return the cgroup of a work-horse, whether it exists or not; None without a base."""
        if self.base is None:
            return None
        return cgroup.pod_cgroup(self.base, self.mark, f"{_HORSE}-{pid}")

    def abandoned(self, horses: Collection[int]) -> list[PodCgroup]:
        """Return the cgroups of work-horses that have ended: all but those of `horses`."""
        if self.base is None:
            return []
        kept = {self.of_horse(pid) for pid in horses}
        return [one for one in cgroup.pod_cgroups(self.base, self.mark) if one not in kept]


OF_CHILDREN = Boundary(kind=Containment.SUBREAPER)


class Enclosure:
    """What surrounds the pods of a work-horse, one pod after the other; owned by the work-horse."""

    def __init__(self, boundary: Boundary = OF_CHILDREN) -> None:
        """Set it up around this process, which has a single thread and has started nothing."""
        self._boundary = boundary
        #: Made with the first command; the starter of functions uses it as well.
        self.namespace: PidNamespace | None = None
        self.cgroup = boundary.of_horse(os.getpid())
        if self.cgroup is None:
            return
        try:
            self.cgroup.make(None)
            self.cgroup.enter()
        except OSError as trouble:
            log.error("cgroup not entered", path=str(self.cgroup.path), trouble=str(trouble))
            self.cgroup = None

    def make_ready(self) -> None:
        """Prepare for the next command. Raise OSError.

        A namespace that ended because its first process was killed is replaced.
        """
        if self._boundary.kind != Containment.PID_NAMESPACE:
            return
        if self.namespace is not None and self.namespace.is_gone():
            self.namespace.close()
            self.namespace = None
        if self.namespace is None:
            self.namespace = PidNamespace()

    def keeps(self) -> tuple[int, ...]:
        """Return the children of this process that belong to the enclosure."""
        return () if self.namespace is None else (self.namespace.pid,)

    def end_all(
        self,
        *,
        keep: Collection[int],
        within_s: float,
        kill_others: Callable[[], bool] | None = None,
    ) -> list[int]:
        """Kill every process of the last pod; return those that remain.

        The pod's command has been collected. `within_s`: about how long this may take. `keep`:
        children of this process that belong to no pod. They are killed as well if they have
        children, or, in a cgroup, if any other process is left there. `kill_others` has the process
        that stays in the namespace kill all others in it, and returns whether it did.
        """
        keep = (*keep, *self.keeps())
        if self.namespace is not None:
            has_killed = kill_others is not None and kill_others()
            end = self.namespace.await_all if has_killed else self.namespace.end_all
            return end(within_s) + kill_children(keep=keep, within_s=within_s)
        if self.cgroup is None:
            # A pod can put a child below the process that it was forked from, beside itself.
            alone = [pid for pid in keep if not has_children_of(pid)]
            return kill_children(keep=alone, within_s=within_s)
        # Leaving the cgroup takes the kernel longer than killing what most pods leave.
        left = kill_children(keep=keep, within_s=min(_QUICK_S, within_s))
        if set(self.cgroup.pids()) <= {os.getpid(), *keep}:
            return left
        return self._end_cgroup(self.cgroup, within_s) + kill_children(keep=keep, within_s=within_s)

    def close(self) -> None:
        """Remove it; the agent ends the processes that are left in it."""
        if self.namespace is not None:
            self.namespace.close()
        if self.cgroup is not None:
            with suppress(OSError):
                PodCgroup(self.cgroup.path.parent).enter()
                self.cgroup.path.rmdir()

    def _end_cgroup(self, inside: PodCgroup, within_s: float) -> list[int]:
        """Leave the cgroup, kill every process in it, and enter it again."""
        try:
            PodCgroup(inside.path.parent).enter()
            left = inside.kill_all(within_s)
            inside.enter()
        except OSError as trouble:
            log.error("cgroup not left", path=str(inside.path), trouble=str(trouble))
            return [pid for pid in inside.pids() if pid != os.getpid()]
        return left


def choose(
    wanted: Containment,
    *,
    enforcement: Enforcement,
    run_dir: Path,
    mounts: Path = cgroup.MOUNTS,
    own: Path = cgroup.OWN,
) -> Boundary:
    """Find out which containment works here, and log it.

    Raise UsageError, with the reason, if the wanted one does not work.
    """
    refused: dict[Containment, str] = {}
    for kind in (Containment.CGROUP, Containment.PID_NAMESPACE, Containment.SUBREAPER):
        if wanted not in (Containment.AUTO, kind):
            continue
        found = _try(kind, enforcement, run_dir, mounts, own)
        if isinstance(found, Boundary):
            log.info("pods are contained", by=str(kind), refused=_reasons(refused))
            return found
        refused[kind] = found.why
    raise UsageError(
        f"--containment {wanted}: {refused[wanted]}",
        hint="start the agent with --containment auto, or set this machine up for it:"
        " docs/security.md",
    )


def _try(
    kind: Containment, enforcement: Enforcement, run_dir: Path, mounts: Path, own: Path
) -> Boundary | Unusable:
    match kind:
        case Containment.CGROUP:
            if enforcement.base is not None:
                return Boundary(kind=kind)
            mark = cgroup.mark_of(run_dir)
            base = cgroup.own_cgroup(mounts=mounts, own=own)
            if isinstance(base, Unusable):
                return base
            unusable = cgroup.try_out(cgroup.pod_cgroup(base, mark, "trial"))
            return unusable or Boundary(kind=kind, base=base, mark=mark)
        case Containment.PID_NAMESPACE:
            trouble = _try_pid_namespace()
            return Unusable(trouble) if trouble else Boundary(kind=kind)
        case _:
            return Boundary(kind=kind)


def _reasons(refused: dict[Containment, str]) -> str:
    return "; ".join(f"{kind}: {why}" for kind, why in refused.items())
