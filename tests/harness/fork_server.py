"""Starts batchq's processes as forks of a process that has imported batchq already.

Importing takes most of the time of a short process, and the tests start thousands. `Process` is a
`subprocess.Popen` for the command lines of `MODULES`: the fork is a child of the test's process,
has the arguments, environment, folder, standard streams and terminal that it would have otherwise,
and runs the same module as `__main__`. What `batchq up` spawns in a fork is forked from it, too.
Other programs are started as usual, and with BATCHQ_TEST_FORKS=0 all are.

Tests of what a new interpreter does (its start, its entries in /proc) use `subprocess` instead.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import inspect
import io
import json
import os
import platform
import runpy
import signal
import socket
import subprocess
import sys
import termios
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, AnyStr, NamedTuple, NoReturn

from batchq.cli.main import COMMANDS
from tests.harness import repeated_work

#: The modules that forks run.
MODULES = ("batchq.cli", "tests.worker.an_agent")
#: What those import, also at its first use, beside the modules of all commands: NumPy and the
#: plugins of a scheduler are among it.
_PRELOADED = (
    *("batchq.cli.foreground", "batchq.client", "batchq.client.checks", "batchq.client.doctor"),
    *("batchq.client.outcomes", "batchq.client.pods", "batchq.client.overview"),
    *("batchq.client.why", "batchq.config.documents", "batchq.daemon.app", "batchq.daemon.logs"),
    *("batchq.http.server", "batchq.http.application", "batchq.worker.agent.agent"),
    *("apscheduler.triggers.interval", "encodings.utf_8_sig", "platformdirs.unix"),
)
_CLONE_PARENT = 0x8000
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
#: Whether processes of batchq are forked; otherwise they are started as usual.
IS_ON = (
    os.environ.get("BATCHQ_TEST_FORKS") != "0"
    and sys.platform == "linux"
    and _SYS_CLONE is not None
)
#: A command line and an environment fit; Linux bounds each of their strings at 128 KiB.
_LARGEST_ORDER = 1 << 17
_MOST_DESCRIPTORS = 8

#: In the fork server, which starts without PYTHONPATH, the search path of every fork.
_SEARCHED_BY_ALL = tuple(sys.path)
#: What a fork can do otherwise than the fork server; other variables of Python cannot change.
_FLEXIBLE = {"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}
_posix_spawn = os.posix_spawn
#: What a fork cannot do otherwise.
_USUAL = {
    **dict.fromkeys(("executable", "gid", "gids", "uid")),
    "shell": False,
    "umask": -1,
    "process_group": -1,
}


class _Order(NamedTuple):
    """What a fork is to run. The descriptors that come with it get the numbers in `numbers`."""

    argv: list[str]
    environ: dict[str, str]
    folder: str
    in_new_session: bool
    blocked: list[int]
    numbers: list[int]
    #: Whether it calls `take_terminal`.
    has_terminal: bool = False


class Process(subprocess.Popen[AnyStr]):
    """A process of batchq that is forked, or another that is started."""

    def _execute_child(self, *given: Any) -> None:
        start = super()._execute_child
        of = inspect.signature(start).bind(*given).arguments
        argv = [os.fspath(word) for word in of["args"]] if not isinstance(of["args"], str) else []
        is_usual = not of["pass_fds"] and all(of[name] == usual for name, usual in _USUAL.items())
        is_usual &= of["preexec_fn"] in (None, take_terminal)
        environ = dict(os.environ if of["env"] is None else of["env"])
        if not is_usual or not _can_be_forked(argv, environ):
            start(*given)
            return
        ends = (of["p2cread"], of["c2pwrite"], of["errwrite"])
        order = _Order(
            argv=argv,
            environ=environ,
            folder=os.fspath(of["cwd"] or os.getcwd()),  # noqa: PTH109
            in_new_session=of["start_new_session"],
            blocked=_blocked(),
            numbers=[0, 1, 2],
            has_terminal=of["preexec_fn"] is take_terminal,
        )
        try:
            streams = [number if fd == -1 else fd for number, fd in enumerate(ends)]
            self.pid = _server().fork(order, streams)
            self._child_created = True
        finally:
            ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(of[end] for end in ends))


def take_terminal() -> None:
    """Make the terminal at stdin that of this session: for the `preexec_fn` of a process."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def run(
    kind: type[subprocess.Popen[str]], argv: Sequence[str], *, timeout: float, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a process of some kind to its end, as `subprocess.run` does, and capture its output."""
    return _finished(kind, argv, None, timeout, text=True, **options)


def run_with_input(
    argv: Sequence[str], given: bytes, *, timeout: float, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run a process of batchq to its end with this input, and capture its output."""
    return _finished(Process[bytes], argv, given, timeout, stdin=subprocess.PIPE, **options)


def _finished(
    kind: type[subprocess.Popen[AnyStr]],
    argv: Sequence[str],
    given: AnyStr | None,
    timeout: float,
    **options: Any,
) -> subprocess.CompletedProcess[AnyStr]:
    pipe = subprocess.PIPE
    with kind(argv, stdout=pipe, stderr=pipe, **options) as process:
        try:
            out, err = process.communicate(given, timeout=timeout)
        except BaseException:  # also Ctrl-C
            process.kill()
            raise
        return subprocess.CompletedProcess(argv, process.returncode, out, err)


def spawn(
    path: str,
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    file_actions: Sequence[tuple[Any, ...]] = (),
    setsid: bool = False,
    setsigmask: Iterable[int] | None = None,
    **options: Any,
) -> int:
    """Do what `os.posix_spawn` does; fork a process of batchq instead of starting it."""
    if not _can_be_forked(argv, environ):
        if setsigmask is not None:
            options["setsigmask"] = setsigmask
        return _posix_spawn(
            path, list(argv), environ, file_actions=file_actions, setsid=setsid, **options
        )
    streams, opened = {0: 0, 1: 1, 2: 2}, []
    try:
        for action, number, *words in file_actions:
            if action == os.POSIX_SPAWN_OPEN:
                opened.append(os.open(*words))
                streams[number] = opened[-1]
            else:
                assert action == os.POSIX_SPAWN_DUP2
                streams[words[0]] = streams.get(number, number)
        order = _Order(
            argv=list(argv),
            environ=dict(environ),
            folder=os.getcwd(),  # noqa: PTH109
            in_new_session=setsid,
            blocked=_blocked() if setsigmask is None else list(setsigmask),
            numbers=list(streams),
        )
        return _server().fork(order, list(streams.values()))
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _can_be_forked(argv: Sequence[str], environ: Mapping[str, str]) -> bool:
    return IS_ON and _module_of(argv) is not None and _fixed_in(environ) == _fixed_in(os.environ)


def _fixed_in(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of Python in an environment that a fork cannot change."""
    names = {name for name in environ if name.startswith("PYTHON")} - _FLEXIBLE
    return {name: environ[name] for name in names}


def _blocked() -> list[int]:
    return [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])]


def _module_of(argv: Sequence[str]) -> str | None:
    """Return the module that a command line runs; None if it is not one of `MODULES`."""
    words = [word for word in argv[1:4] if word != "-P"]
    is_ours = argv[:1] == [sys.executable] and words[:1] == ["-m"] and words[1:2] != []
    return words[1] if is_ours and words[1] in MODULES else None


class _ForkServer:
    """The process that forks; it ends with its caller, whatever ends that."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._owner = os.getpid()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                # Threads do not survive a fork.
                env={**os.environ, "PYTHONPATH": "", "OPENBLAS_NUM_THREADS": "1"},
            )
        atexit.register(self.close)

    def is_usable(self) -> bool:
        """Return whether it runs, and is this process's own."""
        return self._owner == os.getpid() and self._process.poll() is None

    def fork(self, order: _Order, descriptors: Sequence[int]) -> int:
        """Return the pid of a new process once that is what was ordered, as after an exec."""
        # The fork answers, not the server: threads that fork at once get their own processes.
        answers, answering = os.pipe()
        try:
            try:
                sent = [*descriptors, answering]
                socket.send_fds(self._orders, [json.dumps(order).encode()], sent)
            finally:
                os.close(answering)
            answer = os.read(answers, 64)
        finally:
            os.close(answers)
        assert answer, "the fork server, or the fork, has ended"
        return int(answer)

    def close(self) -> None:
        if os.getpid() == self._owner:
            self._orders.close()
            self._process.wait()


_servers: list[_ForkServer] = []
_one_starts = threading.Lock()


def _server() -> _ForkServer:
    """Return this process's fork server, started at its first use."""
    with _one_starts:
        if not _servers or not _servers[0].is_usable():
            _servers[:] = [_ForkServer()]
        return _servers[0]


def _serve(orders: socket.socket) -> _Order | None:
    """Fork for every order; return the order in each fork, and None in the server at the end."""
    while True:
        sent, descriptors, _, _ = socket.recv_fds(orders, _LARGEST_ORDER, _MOST_DESCRIPTORS)
        if not sent:
            return None
        order = _Order(*json.loads(sent))
        if _is_fork():
            _take_over(order, descriptors, orders)
            return order
        for descriptor in descriptors:
            os.close(descriptor)


def _is_fork() -> bool:
    """Fork, as `os.fork` does, a child of this process's parent; return whether this is it."""
    ctypes.pythonapi.PyOS_BeforeFork()
    # Not the usual way, which releases the interpreter's lock.
    pid = ctypes.PyDLL(None).syscall(_SYS_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    assert pid >= 0, "the process could not be forked"
    return bool(pid == 0)


def _take_over(order: _Order, descriptors: Sequence[int], orders: socket.socket) -> None:
    """Become what a new interpreter would be, and then answer with the pid of this process."""
    if order.in_new_session:
        os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, order.blocked)
    # Above those that are to be in use, so that none is overwritten before it is copied.
    above = max(order.numbers) + 1
    *held, answering = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, above) for one in descriptors]
    for number, descriptor in zip(order.numbers, held, strict=True):
        os.dup2(descriptor, number)
    if order.has_terminal:
        take_terminal()
    # Tests count the sockets of a process.
    orders.detach()
    os.closerange(above, answering)
    os.closerange(answering + 1, os.sysconf("SC_OPEN_MAX"))
    _begin(order.argv, order.environ)
    os.write(answering, str(os.getpid()).encode())
    os.close(answering)
    os.chdir(order.folder)


def _begin(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Set what an interpreter sets at its start."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    named = environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*filter(None, named), *_SEARCHED_BY_ALL]
    os.environ.clear()
    os.environ.update(environ)
    sys.argv[:] = argv[argv.index("-m") + 1 :]
    sys.orig_argv[:] = argv
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    is_unbuffered = bool(environ.get("PYTHONUNBUFFERED"))
    sys.stdout = sys.__stdout__ = _writable(1, "strict", is_unbuffered)
    sys.stderr = sys.__stderr__ = _writable(2, "backslashreplace", is_unbuffered)


def _writable(descriptor: int, errors: str, is_unbuffered: bool) -> io.TextIOWrapper:
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        raw if is_unbuffered else io.BufferedWriter(raw),
        encoding="utf-8",
        errors=errors,
        line_buffering=descriptor == 2 or raw.isatty(),
        write_through=is_unbuffered,
    )


def _run_to_the_end(argv: Sequence[str]) -> NoReturn:
    """Run the module of a command line and end as an interpreter does, but without clearing up."""
    code: object = 0
    try:
        runpy.run_module(_module_of(argv) or "", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # as an interpreter does at its top
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _spawn_within(
    path: str, argv: Sequence[str], environ: Mapping[str, str], **options: Any
) -> int:
    """Do in a fork what `spawn` does; the new process is a child of the fork."""
    if not _can_be_forked(argv, environ) or threading.active_count() > 1:
        return _posix_spawn(path, list(argv), environ, **options)
    pid = os.fork()
    if pid:
        return pid
    # The frames below this one belong to the caller, so this process must not return to them.
    try:
        atexit._clear()
        _arrange(**options)
        _begin(argv, environ)
        _run_to_the_end(argv)
    finally:
        os._exit(1)


def _arrange(
    *,
    file_actions: Sequence[tuple[Any, ...]] = (),
    setsid: bool = False,
    setsigmask: Sequence[int] = (),
    setsigdef: Sequence[int] = (),
) -> None:
    """Do what `os.posix_spawn` does in the new process, before the program starts."""
    inherited = {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2}  # noqa: PTH208
    if setsid:
        os.setsid()
    for number in setsigdef:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, setsigmask)
    for action, target, *words in file_actions:
        match action:
            case os.POSIX_SPAWN_OPEN:
                opened = os.open(*words)
                os.dup2(opened, target)
                os.close(opened)
            case os.POSIX_SPAWN_DUP2:
                os.dup2(target, words[0])
                inherited.discard(words[0])
            case _:
                raise AssertionError(action)
    # The numbers stay in use, because objects of the caller may still close them.
    with open(os.devnull, "r+b", buffering=0) as nothing:  # noqa: PTH123
        for descriptor in inherited - {nothing.fileno()}:
            with suppress(OSError):
                os.dup2(nothing.fileno(), descriptor, inheritable=False)


def main() -> None:
    """Serve orders; in a fork, run its module."""
    # Ctrl-C on a terminal is for the test's process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    commands = {entry.module for entries in COMMANDS.values() for entry in entries.values()}
    for name in (*(f"batchq.cli.{module}" for module in sorted(commands)), *_PRELOADED):
        import_module(name)
    repeated_work.remember_versions()
    assert threading.active_count() == 1
    # What is collected or counted in a fork would be copied for it.
    gc.freeze()
    with suppress(ConnectionError):
        order = _serve(socket.socket(fileno=int(sys.argv[1])))
        if order is not None:
            os.posix_spawn = _spawn_within
            _run_to_the_end(order.argv)


if __name__ == "__main__":
    main()
