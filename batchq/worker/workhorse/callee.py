"""The process of a pod that is a function: it imports the module, calls the function, and returns
the result.

It runs as a plain script of the agent's interpreter and imports only the standard library. Every
function pod waits for this start, and the pod's folder comes first on `sys.path`, where a foreign
package named `batchq` may be.

The call is read from stdin, a file without a name: the function's name and, on the second line, its
arguments if it has any. The answer is written over it, so that `ps` shows neither and only the
work-horse can read them. The function itself sees an empty stdin. What it prints is the pod's
output.

If stdin is a socket, the script is a standby (`batchq/worker/workhorse/standby.py`), which forks
the processes of functions at a tenth of the cost of a start. The work-horse has one forked ahead
when the last pod has ended, and hands over a socket on which that process waits for its order. The
order arrives with the descriptors of the process, so no function waits for a fork.

Such a process copies or maps each memory page that it touches, which takes most of its time. So it
touches few: it decodes no JSON without need, looks at no variable that stays, and an order is the
bytes of its parts, of which there are few. They are separated by NUL: the bound of memory in bytes
or 0, the folder or nothing, and the variables that differ from those of the standby, as
`NAME=value` or, if the process lacks them, as `NAME`.

    exit code     message of the answer
    0             – (the answer holds the result)
    1             which exception was raised, with its text; the traceback is in the output
    65            the result is not JSON, or larger than the limit
    126           the module could not be imported, or the name is not callable
    127           the module, or the name in it, does not exist
    as called     the function called sys.exit; 1 for sys.exit(0), since nothing was returned
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

#: The agent bounds an answer, too; here the limit comes with an explanation.
RESULT_MAX_BYTES = 64 * 1024
#: As many as `batchq result` reads.
RESULT_MOST_LEVELS = 200
MESSAGE_MAX = 500

RAISED = 1
NO_RESULT = 65
NOT_CALLABLE = 126
NOT_FOUND = 127

_SIGKILL = 9
#: The argument of a standby whose PID namespace holds only pods of its work-horse; and the order to
#: kill all other processes in that namespace.
ALONE = "alone"
KILL_OTHERS = b"!"
#: The order to fork a process ahead.
AHEAD = b"+"

_STDIN, _STDOUT = 0, 1
_KIND_OF_FILE, _IS_SOCKET = 0o170000, 0o140000
_MAX_ORDER_BYTES = 1 << 20
_MAX_DESCRIPTORS = 4
#: Modules and objects that only the standby needs. A forked process keeps them: freeing them would
#: copy every memory page they are on.
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
    """Run the call on stdin, and return the exit code."""
    # Readers follow a pod's output while it runs.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is a TextIOWrapper
    is_standby = os.fstat(_STDIN).st_mode & _KIND_OF_FILE == _IS_SOCKET
    if is_standby and not _stand_by():
        return 0
    answer = _detach_stdin()
    me = os.getpid()
    first, _, rest = os.pread(answer, os.fstat(answer).st_size, 0).partition(b"\n")
    name = first.decode()
    args, kwargs = json.loads(rest) if rest else ([], {})
    sys.argv[:] = [name]
    # The pod's folder comes first, as with `python -m`.
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - importing pathlib is slower than all of this
    try:
        written, exit_code = b'{"result":%b}' % _result(name, args, kwargs), 0
    except Failed as failure:
        written, exit_code = _message(failure.message), failure.exit_code
    # The function may have forked, and its child may have returned from it as well.
    if os.getpid() == me:
        os.ftruncate(answer, 0)
        os.pwrite(answer, written, 0)
    if is_standby:
        _exit(exit_code)
    return exit_code


def _stand_by() -> bool:
    """Fork a process for each order, or ahead of it. Return True in each of them that has its
    order, and False after the last one.

    Each fork is answered with a pidfd, and with the wait status when the work-horse asks for it.
    Until then the process is not collected, so its pid cannot be reused.
    """
    before = set(sys.modules)
    import socket

    orders = socket.socket(fileno=os.dup(_STDIN))
    _own_modules.update((name, sys.modules[name]) for name in set(sys.modules) - before)
    # A forked process returns from here, and would touch each name to free the set.
    del before
    _restore_environment()
    gc.collect()
    gc.freeze()
    while True:
        order, descriptors, _, _ = socket.recv_fds(orders, _MAX_ORDER_BYTES, _MAX_DESCRIPTORS)
        if not order:
            return False
        if order == KILL_OTHERS:
            _kill_others()
            orders.send(b".")
            continue
        # This process would copy the pages that it writes to as well, so the other does the rest.
        pid = os.fork()
        if pid == 0:
            os.close(orders.detach())
            # A module of the pod may have the name of one that only the standby needs.
            for name in _own_modules:
                del sys.modules[name]
            os.setsid()
            if order == AHEAD:
                # If the standby ends, nothing else may keep the work-horse's socket to it open.
                os.dup2(_STDOUT, _STDIN)
                own = socket.socket(fileno=descriptors[0])
                order, descriptors, _, _ = socket.recv_fds(own, _MAX_ORDER_BYTES, _MAX_DESCRIPTORS)
                if not order:
                    os._exit(0)
                os.close(own.detach())
                _kept.append(own)
            parts = _parts_of(order)
            _kept.extend((orders, order, parts, descriptors))
            _set_up(parts, descriptors)
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
    """Kill every process of the PID namespace but this one and the first, in one system call."""
    if sys.argv[1:] == [ALONE] and os.getppid() == 1:
        with suppress(ProcessLookupError):
            os.kill(-1, _SIGKILL)


def _restore_environment() -> None:
    """Remove what the interpreter has added to the environment at its start, such as LC_CTYPE."""
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - importing pathlib takes longer
        given = {one.partition(b"=")[0] for one in file.read().split(b"\0")}
    for name in os.environb.keys() - given:
        del os.environb[name]


def _parts_of(order: bytes) -> list[bytes]:
    """Return the parts of an order."""
    if not order.startswith(b"{"):
        return order.split(b"\0")
    # From a work-horse that has run since before this file was replaced by that of a later version.
    request = json.loads(order)
    wanted = {os.fsencode(name): os.fsencode(one) for name, one in request["environment"].items()}
    missing = os.environb.keys() - wanted.keys()
    changes = (b"%b=%b" % pair for pair in wanted.items())
    return [b"%d" % request["memory"], os.fsencode(request["folder"]), *changes, *missing]


def _set_up(parts: list[bytes], descriptors: list[int]) -> None:
    """Give this process the environment, descriptors, limits and folder of a started process."""
    memory, folder, *changes = parts
    for change in changes:
        name, is_set, value = change.partition(b"=")
        if is_set:
            os.environb[name] = value
        else:
            del os.environb[name]
    for place, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, place)
    if len(descriptors) > 3:
        os.write(descriptors[3], b"0")
    elif memory != b"0":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = int(memory) if hard == resource.RLIM_INFINITY else min(int(memory), hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if folder:
        os.chdir(folder)


def _exit(exit_code: int) -> NoReturn:
    """Exit as an interpreter does, but without freeing all modules.

    A forked process would copy every page of them first, and Python does not promise more
    (`object.__del__`).
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


def _detach_stdin() -> int:
    """Return the file on stdin as a private descriptor, and leave stdin empty."""
    taken = os.dup(_STDIN)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, _STDIN)
    os.close(empty)
    return taken


def _result(name: str, args: list[Any], kwargs: dict[str, Any]) -> bytes:
    """Return what the function returned, as JSON. Raise Failed."""
    function = _find(name)
    try:
        value = function(*args, **kwargs)
        if isinstance(value, CoroutineType):
            import asyncio

            value = asyncio.run(value)
    except SystemExit as left:
        raise _early_exit(name, left) from None
    except BaseException as error:  # whatever a function raises is how it failed
        _print(error)
        raise Failed(RAISED, _text(error)) from None
    return _encoded(name, value)


def _find(name: str) -> Any:
    """Return the function to call. Raise Failed."""
    module_name, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except SystemExit as left:
        raise _early_exit(f"module {module_name}", left) from None
    except BaseException as error:  # importing a module may raise anything
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise Failed(
                NOT_FOUND,
                f"no module {missing} was found in {sys.path[0]} or on this node's Python path;"
                " set the group's working_dir (workingDir in a manifest) or PYTHONPATH, or install"
                " it there",
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


def _early_exit(what: str, left: SystemExit) -> Failed:
    code = left.code
    exit_code = code if isinstance(code, int) and 0 < code < 256 else RAISED
    said = "" if code is None else repr(code)[:80]
    return Failed(exit_code, f"{what} called sys.exit({said}) instead of returning a result")


def _encoded(name: str, value: object) -> bytes:
    if value is None:
        return b"null"
    try:
        # Not only ASCII: a value that cannot be written as UTF-8 is not valid text.
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        written = text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Failed(
            NO_RESULT,
            f"the value returned by {name} is not JSON ({_cut(str(error))}); return numbers,"
            " strings, lists and maps, or write a file and return its path",
        ) from None
    if len(written) > RESULT_MAX_BYTES:
        raise Failed(
            NO_RESULT,
            f"the value returned by {name} is {len(written)} bytes of JSON, and the limit is"
            f" {RESULT_MAX_BYTES}; write a file and return its path",
        )
    if _is_too_deep(text):
        raise Failed(
            NO_RESULT,
            f"the value returned by {name} has more than {RESULT_MOST_LEVELS} levels of nesting;"
            " return fewer, or write a file and return its path",
        )
    return written


def _is_too_deep(text: str) -> bool:
    """Return whether readers would refuse a result for its levels of nesting."""
    if text.count("[") + text.count("{") < RESULT_MOST_LEVELS:
        return False
    try:
        level = [json.loads(text)]
    except RecursionError:
        return True
    for _ in range(RESULT_MOST_LEVELS):
        level = [
            inner
            for item in level
            for inner in (
                item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
            )
        ]
    return bool(level)


def _message(text: str) -> bytes:
    return json.dumps({"message": _cut(text)}).encode()


def _print(error: BaseException) -> None:
    """Print the traceback to stderr, starting with the function's own code."""
    frames = error.__traceback__
    while frames is not None and _is_ours(frames):
        frames = frames.tb_next
    traceback.print_exception(error.with_traceback(frames))


def _is_ours(frames: TracebackType) -> bool:
    return frames.tb_frame.f_code.co_filename.startswith((__file__, *_IMPORTING))


def _text(error: BaseException) -> str:
    """Return `ValueError: text`, on one line."""
    return _cut("".join(traceback.format_exception_only(error)))


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MESSAGE_MAX else f"{line[: MESSAGE_MAX - 1]}…"


if __name__ == "__main__":
    sys.exit(main())
