"""Where batchq keeps its state on this machine, and which server it talks to.

A *home* is one folder: BATCHQ_HOME, or the user's state folder. Under it lie the embedded
server's data, pid records and locks (`run`) and log files (`logs`). Two homes are two separate
batchqs on one machine. A home is closed to other users of the machine, and trusted only where no
other user can have made it.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import platformdirs

from batchq.errors import InvalidInput

HOME_VARIABLE = "BATCHQ_HOME"
URL_VARIABLE = "BATCHQ_REDIS_URL"
URL_FILE_VARIABLE = "BATCHQ_REDIS_URL_FILE"

_PASSWORD = re.compile("[0-9A-Za-z]+")

#: The kernel's field for a socket's path has 108 bytes on Linux and 104 on macOS, the last a NUL.
LONGEST_SOCKET_PATH_BYTES = 103


@dataclass(frozen=True, slots=True)
class Home:
    """The places under one root; `root` is absolute. Nothing is created before `prepare`."""

    root: Path

    @property
    def data(self) -> Path:
        """The embedded server's append-only file."""
        return self.root / "data"

    @property
    def run(self) -> Path:
        """Pid records, locks and, where its path is short enough, the socket."""
        return self.root / "run"

    @property
    def logs(self) -> Path:
        """One file per process."""
        return self.root / "logs"

    @property
    def password(self) -> Path:
        """The password of the embedded server, once it has listened on a port; one line."""
        return self.run / "password"

    @property
    def socket(self) -> Path:
        """The embedded server's unix socket, at a path that the kernel accepts.

        Where the home's own path is too long it is `/tmp/batchq-<uid>/<digest of the home>.sock`.
        Not under XDG_RUNTIME_DIR nor TMPDIR: a log-in shell, a cron job and a container's
        entry point see different ones, and all must find the same server. The first also
        disappears at log-out, while the server stays.
        """
        inside = self.run / "batchq.sock"
        if len(os.fsencode(inside)) <= LONGEST_SOCKET_PATH_BYTES:
            return inside
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return short_folder() / f"{digest}.sock"

    def prepare(self) -> None:
        """Make the folders, and close those that exist to other users.

        Raises InvalidInput where that is not possible.
        """
        # Others may look at a root that existed before, as at any folder, and not change it.
        _make_private(self.root, but=0o022)
        for folder in (self.data, self.run, self.logs):
            _make_private(folder, but=0o077)
        if self.socket.parent != self.run:
            _make_private(self.socket.parent, but=0)
            _refuse_strangers(self.socket.parent)

    def is_made(self) -> bool:
        """Whether anybody has prepared it. Raises InvalidInput for one that is closed to us."""
        return _stat(self.run) is not None

    def has_socket(self) -> bool:
        """Whether there is one. Raises InvalidInput for a home that is closed to us."""
        return _stat(self.socket) is not None

    def check_socket(self) -> None:
        """Raises InvalidInput where the socket lies in a folder that another user may have made."""
        if self.socket.parent != self.run:
            _refuse_strangers(self.socket.parent)
        else:
            _refuse_another_owner(self.run)


def find_home(
    explicit: Path | str | None = None, *, environ: Mapping[str, str] = os.environ
) -> Home:
    """The home to use: `explicit`, else BATCHQ_HOME, else the user's state folder.

    Raises InvalidInput where none of them says.
    """
    chosen = str(explicit) if explicit else environ.get(HOME_VARIABLE, "")
    if chosen:
        return Home(Path(chosen).expanduser().resolve())
    if environ.get("HOME") or environ.get("XDG_STATE_HOME"):
        return Home(Path(platformdirs.user_state_dir("batchq")).resolve())
    # An unset or empty HOME, as under some init systems: what the user database says.
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:
        raise InvalidInput(
            f"cannot tell where to keep state: HOME is not set and user {os.getuid()} has no entry",
            hint=f"set {HOME_VARIABLE} to a folder that this user may write to",
        ) from None
    return Home(Path(entry.pw_dir, ".local", "state", "batchq").resolve())


def short_folder() -> Path:
    """A folder of this user's whose path is short, whatever the environment says."""
    return Path("/tmp", f"batchq-{os.getuid()}")  # noqa: S108 (`_refuse_strangers` looks at it)


def default_url(home: Home) -> str:
    """The URL of the home's embedded server, with its password if it has one."""
    password = read_password(home)
    return f"unix://{f':{password}@' if password else ''}{quote(str(home.socket))}"


def read_password(home: Home) -> str:
    """The password of the home's embedded server; empty if it has none.

    Raises InvalidInput where there is a file of it that cannot be read.
    """
    try:
        words = home.password.read_text(encoding="ascii").split()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except PermissionError:
        # What another user's home says is nothing for this one; the socket refuses it in words.
        return ""
    except (OSError, UnicodeDecodeError):
        words = []
    if len(words) == 1 and _PASSWORD.fullmatch(words[0]):
        return words[0]
    raise InvalidInput(
        f"{home.password}: expected one line, the password of the embedded server, of letters and"
        " digits",
        hint="run `batchq down`, remove the file, and start again with `batchq up --port`",
    )


def resolve_url(
    explicit: str | None, home: Home, *, environ: Mapping[str, str] = os.environ
) -> str:
    """The server to talk to: `explicit`, else BATCHQ_REDIS_URL, else what stands in the file named
    by BATCHQ_REDIS_URL_FILE, else the home's own.

    Raises InvalidInput where that file cannot be read.
    """
    if said := explicit or environ.get(URL_VARIABLE, ""):
        return said
    path = environ.get(URL_FILE_VARIABLE, "")
    return _url_in(Path(path)) if path else default_url(home)


def _url_in(path: Path) -> str:
    expected = "expected a file of one line, the URL of the server"
    try:
        words = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise InvalidInput(f"{URL_FILE_VARIABLE}: {expected}; {path}: {why}") from None
    if len(words) != 1:
        # Not what stands there: it may be a password.
        raise InvalidInput(f"{URL_FILE_VARIABLE}: {expected}; {path} has {len(words)} words")
    return words[0]


def is_own_server(url: str) -> bool:
    """Whether it is the embedded server of this user's home, which `batchq up` starts."""
    try:
        return url == default_url(find_home())
    except InvalidInput:
        return False


def _make_private(folder: Path, *, but: int) -> None:
    """Make the folder; `but`: the bits of its mode that are taken away if it is there."""
    try:
        # `parents` get the usual mode: ~/.local/state is not ours to close.
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        _refuse_another_owner(folder)
        found = folder.stat()
        # Where names are safe from others by the sticky bit, as in /tmp, there is nothing to close.
        closable = found.st_uid == os.getuid() and not found.st_mode & stat.S_ISVTX
        if closable and found.st_mode & but:
            folder.chmod(stat.S_IMODE(found.st_mode) & ~but)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except (FileExistsError, NotADirectoryError):
        raise InvalidInput(
            f"cannot keep state in {folder}: what is there, or above it, is not a folder",
            hint=_ELSEWHERE,
        ) from None
    except OSError as error:
        raise InvalidInput(
            f"cannot keep state in {folder}: {error.strerror}", hint=_ELSEWHERE
        ) from error
    if not writable:
        raise InvalidInput(f"cannot keep state in {folder}: Permission denied", hint=_ELSEWHERE)


def _stat(path: Path) -> os.stat_result | None:
    """None for what is not there."""
    try:
        return path.stat()
    except PermissionError:
        raise InvalidInput(
            f"cannot use the state in {path.parent}: it is closed to user {os.getuid()}",
            hint=f"set {HOME_VARIABLE} to a folder of this user, or name a server with --redis-url",
        ) from None
    except OSError:
        return None


def _refuse_another_owner(folder: Path) -> None:
    """Who owns a folder decides what is in it: our records, our data, our server's socket."""
    found = _stat(folder)
    owner = os.getuid() if found is None else found.st_uid
    if owner not in (os.getuid(), 0):
        raise InvalidInput(
            f"cannot keep state in {folder}: it belongs to user {owner}, and this is user"
            f" {os.getuid()}",
            hint=_ELSEWHERE,
        )


def _refuse_strangers(folder: Path) -> None:
    """Anybody may create names in /tmp: a socket there is trusted in one's own folder only."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise InvalidInput(
            f"cannot use {folder}: it is not a folder of user {os.getuid()} closed to others",
            hint=f"remove it, or set {HOME_VARIABLE} to a folder with a shorter path",
        )


_ELSEWHERE = f"set {HOME_VARIABLE} to a folder that this user may write to"
