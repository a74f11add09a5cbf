"""The process of a pod that is a function: it imports the module, calls, and hands the result back.

It is started as a plain script of the interpreter that runs the agent, with nothing but the
standard library behind it: its start is what every function pod waits for, and the folder in which
it runs comes first on `sys.path`, where a `batchq` of somebody else may lie.

The call is read from stdin, a file without a name, and the answer is written over it; so `ps` shows
neither, and nobody but the work-horse can read them. The function itself sees an empty stdin.
What it prints is the pod's output.

Where stdin is a socket instead, it stands by: for each order that comes with the descriptors that a
process is to have, it forks one, which costs a tenth of a start
(`batchq/worker/workhorse/standby.py`).

    exit code     the answer's message says
    0             – (the answer holds the result)
    1             which exception was raised, with its text; the traceback is in the output
    65            that the result is not JSON, or larger than is kept
    126           that the module could not be imported, or that the name is nothing to call
    127           that there is no such module, or no such name in it
    as called     that the function called sys.exit; 1 for sys.exit(0), since nothing was returned
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import sys
import traceback
from contextlib import suppress
from types import CoroutineType, ModuleType, TracebackType
from typing import Any, NoReturn

#: The agent bounds an answer, too; here it can be said in a sentence.
RESULT_MOST_BYTES = 64 * 1024
MESSAGE_MOST = 500

RAISED = 1
NO_RESULT = 65
NOT_CALLABLE = 126
NOT_FOUND = 127

_SIGKILL = 9
#: Said to an interpreter that stands by: as its argument, that no process but pods of its
#: work-horse's is in its PID namespace; and as an order, to kill all others there.
ALONE = "alone"
KILL_OTHERS = b"!"

_STDIN = 0
_KIND_OF_FILE, _IS_SOCKET = 0o170000, 0o140000
_MOST_ORDER_BYTES = 1 << 20
_MOST_DESCRIPTORS = 4
#: What only who stands by needs. A forked process keeps it all: to take it apart, it would copy
#: every page that it lies on.
_own_modules: dict[str, ModuleType] = {}
_kept: list[object] = []
_IMPORTING = ("<frozen importlib", importlib.__file__)


class Failed(Exception):
    """The pod fails with this exit code and message."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.message = message


def main() -> int:
    """Call what stdin says; the exit code."""
    stands_by = os.fstat(_STDIN).st_mode & _KIND_OF_FILE == _IS_SOCKET
    if stands_by and not _stand_by():
        return 0
    answer = _take_stdin()
    me = os.getpid()
    name, args, kwargs = json.loads(os.pread(answer, os.fstat(answer).st_size, 0))
    sys.argv[:] = [name]
    # The folder of the pod comes first, as `python -m` has it.
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - importing pathlib costs more than all of this
    # A pod's output is followed while it runs.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is a TextIOWrapper
    try:
        written, exit_code = b'{"result":%b}' % _result(name, args, kwargs), 0
    except Failed as failure:
        written, exit_code = _message(failure.message), failure.exit_code
    # A function may have forked, and its child may have come back from it as well.
    if os.getpid() == me:
        os.ftruncate(answer, 0)
        os.pwrite(answer, written, 0)
    if stands_by:
        _leave(exit_code)
    return exit_code


def _stand_by() -> bool:
    """Fork a process for each order. True in each of them, and False when there are no more orders.

    Whoever gives them is answered with a pidfd, and with the wait status once it asks for that:
    until then nobody else can have that pid.
    """
    before = set(sys.modules)
    import socket

    orders = socket.socket(fileno=os.dup(_STDIN))
    _own_modules.update((name, sys.modules[name]) for name in set(sys.modules) - before)
    environment = dict(os.environ)
    gc.collect()
    gc.freeze()
    while True:
        order, descriptors, _, _ = socket.recv_fds(orders, _MOST_ORDER_BYTES, _MOST_DESCRIPTORS)
        if not order:
            return False
        if order == KILL_OTHERS:
            _kill_others()
            orders.send(b".")
            continue
        # Whatever a forked process writes to it copies first, so all that can be is done before.
        wanted = json.loads(order)
        _change(environment, wanted["environment"])
        environment = wanted["environment"]
        pid = os.fork()
        if pid == 0:
            orders.close()
            _kept.extend((orders, order, wanted, environment, descriptors))
            # A module of the pod's may have the name of one that only this needs.
            for name in _own_modules:
                del sys.modules[name]
            _put_on(wanted, descriptors)
            return True
        for descriptor in descriptors:
            os.close(descriptor)
        pidfd = os.pidfd_open(pid)
        socket.send_fds(orders, [b"."], [pidfd])
        os.close(pidfd)
        asked = orders.recv(1)
        _, wait_status = os.waitpid(pid, 0)
        if not asked:
            return False
        orders.send(b"%d" % wait_status)


def _kill_others() -> None:
    """Every process of the PID namespace but this one and the first, in one step of the kernel."""
    if sys.argv[1:] == [ALONE] and os.getppid() == 1:
        with suppress(ProcessLookupError):
            os.kill(-1, _SIGKILL)


def _change(before: dict[str, str], after: dict[str, str]) -> None:
    """Have another environment, of which most is as it was."""
    for name in before.keys() - after.keys():
        del os.environ[name]
    for name, value in after.items():
        if before.get(name) != value:
            os.environ[name] = value


def _put_on(order: dict[str, Any], descriptors: list[int]) -> None:
    """Become what a process started with all this would be."""
    os.setsid()
    for place, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, place)
    if len(descriptors) > 3:
        os.write(descriptors[3], b"0")
    elif order["memory"]:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = order["memory"] if hard == resource.RLIM_INFINITY else min(order["memory"], hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if order["folder"]:
        os.chdir(order["folder"])


def _leave(exit_code: int) -> NoReturn:
    """End as an interpreter does, but for taking all modules apart: a forked process would copy
    every page of them first. Nobody is promised more (`object.__del__`).
    """
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    atexit._run_exitfuncs()
    for one in gc.get_objects():
        if isinstance(one, io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom):
            with suppress(OSError, ValueError):
                one.flush()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(exit_code)


def _take_stdin() -> int:
    """The file that stdin is, for this process alone; stdin is empty from now on."""
    taken = os.dup(_STDIN)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, _STDIN)
    os.close(empty)
    return taken


def _result(name: str, args: list[Any], kwargs: dict[str, Any]) -> bytes:
    """What the function returned, as JSON. Raises Failed."""
    function = _find(name)
    try:
        value = function(*args, **kwargs)
        if isinstance(value, CoroutineType):
            import asyncio

            value = asyncio.run(value)
    except SystemExit as left:
        raise _left(name, left) from None
    except BaseException as error:  # whatever a function raises is how it failed
        _print(error)
        raise Failed(RAISED, _text(error)) from None
    return _encoded(name, value)


def _find(name: str) -> Any:
    """What is to be called. Raises Failed."""
    module_name, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except SystemExit as left:
        raise _left(f"module {module_name}", left) from None
    except BaseException as error:  # a module may raise anything while it is imported
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise Failed(
                NOT_FOUND,
                f"there is no module {missing} to import in {sys.path[0]} or on this node's Python"
                " path; set the template's workingDir or its PYTHONPATH, or install it there",
            ) from None
        _print(error)
        message = f"module {module_name} cannot be imported: {_text(error)}"
        raise Failed(NOT_CALLABLE, message) from None
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise Failed(
                NOT_FOUND, f"module {module_name} ({_place(module_name)}) has no function {path}"
            ) from None
    if not callable(found):
        raise Failed(
            NOT_CALLABLE,
            f"{name} is a {type(found).__name__}, which cannot be called as a function",
        )
    return found


def _place(module_name: str) -> str:
    return getattr(sys.modules[module_name], "__file__", None) or "built in"


def _left(what: str, left: SystemExit) -> Failed:
    code = left.code
    exit_code = code if isinstance(code, int) and 0 < code < 256 else RAISED
    said = "" if code is None else repr(code)[:80]
    return Failed(exit_code, f"{what} called sys.exit({said}) instead of returning a result")


def _encoded(name: str, value: object) -> bytes:
    try:
        # Not ASCII alone: what cannot be written as UTF-8 is no text.
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        written = text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Failed(
            NO_RESULT,
            f"what {name} returned is not JSON ({_cut(str(error))}); return numbers, texts, lists"
            " and maps, or write a file and return its path",
        ) from None
    if len(written) > RESULT_MOST_BYTES:
        raise Failed(
            NO_RESULT,
            f"what {name} returned takes {len(written)} bytes as JSON, and at most"
            f" {RESULT_MOST_BYTES} are kept; write a file and return its path",
        )
    return written


def _message(text: str) -> bytes:
    return json.dumps({"message": _cut(text)}).encode()


def _print(error: BaseException) -> None:
    """The traceback to stderr, from where the function's own code begins."""
    frames = error.__traceback__
    while frames is not None and _is_ours(frames):
        frames = frames.tb_next
    traceback.print_exception(error.with_traceback(frames))


def _is_ours(frames: TracebackType) -> bool:
    return frames.tb_frame.f_code.co_filename.startswith((__file__, *_IMPORTING))


def _text(error: BaseException) -> str:
    """`ValueError: text`, on one line."""
    return _cut("".join(traceback.format_exception_only(error)))


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MESSAGE_MOST else f"{line[: MESSAGE_MOST - 1]}…"


if __name__ == "__main__":
    sys.exit(main())
