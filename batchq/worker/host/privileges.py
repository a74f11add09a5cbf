"""The rights of an agent that runs pods under other accounts than its own.

Such an agent starts as root and becomes its own account, `settle_as`. It keeps a few of root's
rights (capabilities): each is in force only around the step that needs it, except the right to
signal pods and the right to look at their processes. So a mistake with a path or a file is one of
an ordinary account. A privileged helper beside an agent without rights would be narrower, but it
would have to be the parent of each pod, to adopt, count and kill the pod's processes: it would be
the work-horse. The kernel drops all of these rights when a pod's command is executed.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path

import msgspec
from msgspec import Struct

_PR_SET_DUMPABLE, _PR_SET_KEEPCAPS = 4, 8
_VERSION = 0x2008_0522
#: The number of the system call, for which libc has no function.
_KEYCTL, _JOIN_SESSION_KEYRING = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine), 1
#: What the account's files are open to by default; the agent's own are closed to all others.
_POD_UMASK, _AGENT_UMASK = 0o022, 0o077
_MOST_MESSAGE_BYTES = 4096


class Capability(IntEnum):
    """Rights of root that the agent keeps, by their numbers in the kernel."""

    CHOWN = 0
    DAC_READ_SEARCH = 2
    KILL = 5
    SETGID = 6
    SETUID = 7
    SYS_PTRACE = 19
    SYS_ADMIN = 21


#: Always in force: to signal processes of pods, and to see them where /proc hides those of others.
_ALWAYS = (Capability.KILL, Capability.SYS_PTRACE)


class Account(Struct, frozen=True, kw_only=True):
    """A unix account of this machine."""

    name: str
    uid: int
    gid: int
    #: All groups, the first one included.
    groups: tuple[int, ...]
    home: str
    shell: str

    def environment(self) -> dict[str, str]:
        """Return the variables by which programs know the account."""
        found = {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}
        return found | {"SHELL": self.shell or "/bin/sh"}


def find_account(name: str) -> Account | None:
    """Return the account of a name; None if this machine has none."""
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError):
        return None
    return Account(
        name=entry.pw_name,
        uid=entry.pw_uid,
        gid=entry.pw_gid,
        groups=tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)),
        home=entry.pw_dir,
        shell=entry.pw_shell,
    )


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


_libc = ctypes.CDLL(None, use_errno=True)


def _bits(rights: Sequence[Capability]) -> int:
    return sum(1 << right for right in rights)


def _get() -> tuple[int, int]:
    """Return the effective and the permitted rights among the first 32."""
    sets = (_Sets * 2)()
    check(_libc.capget(ctypes.byref(_Header(_VERSION, 0)), sets))
    return sets[0].effective, sets[0].permitted


def _set(effective: int, permitted: int) -> None:
    """Set the first 32, and drop all others, which the agent never keeps. Raise OSError."""
    sets = (_Sets * 2)()
    sets[0].effective, sets[0].permitted = effective, permitted
    check(_libc.capset(ctypes.byref(_Header(_VERSION, 0)), sets))


def check(result: int) -> None:
    """Raise OSError if a call of libc has failed."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextmanager
def raised(*rights: Capability) -> Iterator[None]:
    """Put rights into force that this process keeps; in any other process, change nothing."""
    effective, permitted = _get()
    wanted = effective | (_bits(rights) & permitted)
    if wanted == effective:
        yield
        return
    _set(wanted, permitted)
    try:
        yield
    finally:
        _set(effective, permitted)


def holds(right: Capability) -> bool:
    """Return whether this process may put a right into force."""
    return bool(_get()[1] & _bits([right]))


def settle_as(account: Account) -> None:
    """Become an account for good, with the rights that its pods' accounts need.

    The calling process has a single thread, and is root. Raise OSError.
    """
    kept = [right for right in Capability if holds(right)]
    check(_libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
    _take_identity(account)
    _set(_bits([right for right in _ALWAYS if right in kept]), _bits(kept))
    # The kernel has hidden /proc/self from this process. No other process of the account may look
    # into this one, because none has its rights.
    check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0))
    os.umask(_AGENT_UMASK)


def _take_identity(account: Account) -> None:
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)


def _become(account: Account) -> None:
    """Become an account between fork and exec, and drop every right. Raise OSError.

    The process cannot be traced from here on until it has executed its program.
    """
    effective, permitted = _get()
    needed = _bits([Capability.SETGID, Capability.SETUID]) & permitted
    _set(effective | needed, permitted)
    _take_identity(account)
    if account.uid:
        _set(0, 0)
    _join_new_keyring()
    os.umask(_POD_UMASK)


def _join_new_keyring() -> None:
    """Leave the agent's session keyring, because the pod could use its keys, such as Kerberos
    tickets. A kernel without keys, or a container that forbids them, has none to leave.
    """
    if _KEYCTL is not None:
        _libc.syscall(ctypes.c_long(_KEYCTL), ctypes.c_long(_JOIN_SESSION_KEYRING), None)


def give(path: str | Path | int, account: Account | None) -> None:
    """Make an account the owner of a file of this process; None changes nothing. Raise OSError."""
    if account is not None:
        with raised(Capability.CHOWN):
            os.chown(path, account.uid, account.gid)


def give_as(path: Path, other: Path) -> None:
    """Make the owner of another file the owner of a file of this process. Raise OSError."""
    owner = other.lstat()
    if owner.st_uid != os.geteuid():
        with raised(Capability.CHOWN):
            os.chown(path, owner.st_uid, owner.st_gid)


class _Failure(Struct, frozen=True):
    """Why a child has not executed its program."""

    errno: int
    path: str = ""


def popen(
    argv: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    descriptors: Sequence[int],
    *,
    account: Account | None,
    prepare: Callable[[], None] | None = None,
    ready: Callable[[], None] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, under an account if one is given.

    `descriptors`: its stdin, stdout and stderr, and others, which keep their numbers. `prepare` is
    called in the child first, and `ready` last, as the account. Without both and without an
    account, no memory is copied for the child. The caller has a single thread.

    Raise OSError (of a folder that the account cannot enter: with its name), ValueError or
    SubprocessError.
    """
    if account is None:
        return _plain(argv, environment, folder or None, descriptors, prepare)
    read_end, write_end = os.pipe2(os.O_CLOEXEC)

    def become() -> None:
        path = ""
        try:
            if prepare is not None:
                prepare()
            _become(account)
            path = folder
            os.chdir(folder or _folder_of(account))
            path = ""
            if ready is not None:
                ready()
        except OSError as trouble:
            os.write(write_end, msgspec.json.encode(_Failure(trouble.errno or 0, path)))
            raise

    try:
        return _plain(argv, environment, None, descriptors, become)
    except subprocess.SubprocessError:
        os.set_blocking(read_end, False)
        with suppress(BlockingIOError, msgspec.MsgspecError):
            failure = msgspec.json.decode(os.read(read_end, _MOST_MESSAGE_BYTES), type=_Failure)
            raise OSError(failure.errno, os.strerror(failure.errno), failure.path or None) from None
        raise
    finally:
        os.close(read_end)
        os.close(write_end)


def _plain(
    argv: Sequence[str],
    environment: Mapping[str, str],
    folder: str | None,
    descriptors: Sequence[int],
    prepare: Callable[[], None] | None,
) -> subprocess.Popen[bytes]:
    stdin, stdout, stderr, *others = descriptors
    return subprocess.Popen(
        list(argv),
        env=dict(environment),
        cwd=folder,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        # The caller has a single thread, so no lock is held in the child.
        preexec_fn=prepare,
        pass_fds=others,
    )


def _folder_of(account: Account) -> str:
    """Return the account's home, or / if it may not enter that."""
    return account.home if os.access(account.home or "/nonexistent", os.X_OK) else "/"
