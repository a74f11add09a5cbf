"""Another Unix user of the machine, as a program that tries every door it is given.

It uses only the standard library, because the other user may run an interpreter without batchq. It
reads `{"paths": [...], "sockets": [...], "ports": [...], "pids": [...]}` from stdin, and writes a
list of what it could do.
"""

import ctypes
import json
import os
import socket
import sys
from pathlib import Path

SEIZE, DETACH = 0x4206, 17
TRIES = (
    "PING",
    "INFO",
    "AUTH default",
    "AUTH default default",
    "HELLO 3",
    "LPUSH rq:queue:node x",
    "HSET {bq}:PodGroup default/evil x",
    "CONFIG GET requirepass",
    "CLIENT LIST",
    "SHUTDOWN NOSAVE",
)


def main():
    """Try everything, and print what succeeded."""
    given = json.load(sys.stdin)
    done = [f"I am {os.getuid()}"]
    for path in given["paths"]:
        done += [f"{what} {path}" for what, how in FILES.items() if succeeds(how, path)]
    for path in given["sockets"]:
        if succeeds(lambda path: socket.socket(socket.AF_UNIX).connect(path), path):
            done.append(f"connected to {path}")
    for port in given["ports"]:
        done += [f"{port} answered {said!r} to {words}" for words, said in asked(port)]
    for pid in given["pids"]:
        done += [f"{what} of {pid}" for what, how in PROCESSES.items() if succeeds(how, pid)]
    json.dump(done, sys.stdout)


def succeeds(how, what):
    """Return whether the call succeeds."""
    try:
        how(what)
    except OSError:
        return False
    return True


def asked(port):
    """Return what a server answers, unless it refuses."""
    for words in TRIES:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(f"{words}\r\n".encode())
            said = connection.recv(4096).decode(errors="replace")
        if not said.startswith(("-NOAUTH", "-WRONGPASS")):
            yield words, said


def trace(pid):
    """Begin to trace a process, and stop at once."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(SEIZE, pid, 0, 0):
        raise OSError(ctypes.get_errno(), "not traced")
    libc.ptrace(DETACH, pid, 0, 0)


def write(path):
    """Open for writing, and change nothing."""
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND))


FILES = {
    "read": lambda path: Path(path).read_bytes(),
    "written": write,
    "listed": lambda path: list(Path(path).iterdir()),
    "left something in": lambda path: Path(path, "evil").mkdir(),
    "renamed": lambda path: Path(path).rename(f"{path}.evil"),
    "changed the mode of": lambda path: Path(path).chmod(0o777),
}
PROCESSES = {
    "trace": trace,
    "signal": lambda pid: os.kill(pid, 0),
    "environment": lambda pid: Path(f"/proc/{pid}/environ").read_bytes(),
    "memory": lambda pid: os.open(f"/proc/{pid}/mem", os.O_RDONLY),
    "open files": lambda pid: list(Path(f"/proc/{pid}/fd").iterdir()),
    "folder": lambda pid: Path(f"/proc/{pid}/cwd").readlink(),
}

main()
