"""Where batchq keeps its state on this machine, and which server it talks to.

A *home* is one folder: BATCHQ_HOME, or the user's state folder. It contains the embedded server's
data, pid records and locks (`run`), and log files (`logs`). Two homes are two separate batchqs on
one machine. A home is closed to other users, and trusted only if no other user can have made it.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from batchq.errors import InvalidInput

HOME_VARIABLE = "BATCHQ_HOME"
URL_VARIABLE = "BATCHQ_REDIS_URL"
URL_FILE_VARIABLE = "BATCHQ_REDIS_URL_FILE"
#: The HTTP API that commands use instead of the Redis server.
SERVER_VARIABLE = "BATCHQ_SERVER"

_PASSWORD = re.compile("[0-9A-Za-z]+")

#: The kernel's field for a socket path has 108 bytes on Linux and 104 on macOS, including a NUL.
LONGEST_SOCKET_PATH_BYTES = 103


@dataclass(frozen=True, slots=True)
class Home:
    """The folders under one root; `root` is absolute. Nothing is created before `prepare`."""

    root: Path

    @property
    def data(self) -> Path:
        """The embedded server's append-only file."""
        return self.root / "data"

    @property
    def run(self) -> Path:
        """Pid records, locks and, if its path is short enough, the socket."""
        return self.root / "run"

    @property
    def logs(self) -> Path:
        """One file per process."""
        return self.root / "logs"

    @property
    def credentials(self) -> Path:
        """What `batchq login` keeps: the address of an HTTP API, and a token."""
        return self.root / "credentials.json"

    @property
    def node_credentials(self) -> Path:
        """What an agent that has joined keeps: its own user of the server."""
        return self.root / "node.json"

    @property
    def password(self) -> Path:
        """The embedded server's password file of one line; exists once a port was asked for."""
        return self.run / "password"

    @property
    def socket(self) -> Path:
        """The embedded server's unix socket, at a path that the kernel accepts.

        If the home's own path is too long, it is `/tmp/batchq-<uid>/<digest of the home>.sock`. Not
        under XDG_RUNTIME_DIR or TMPDIR: a login shell, a cron job and a container's entry point see
        different values, and all must find the same server. XDG_RUNTIME_DIR also disappears at
        logout, while the server stays.
        """
        return self._socket_at(self.run / "batchq.sock", suffix="")

    @property
    def api_socket(self) -> Path:
        """The unix socket of the HTTP API that `batchq up` starts."""
        return self._socket_at(self.run / "api.sock", suffix="-api")

    def _socket_at(self, inside: Path, *, suffix: str) -> Path:
        if len(os.fsencode(inside)) <= LONGEST_SOCKET_PATH_BYTES:
            return inside
        # Few folders are so deep, and its import takes as long as those of many modules.
        import hashlib

        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return short_folder() / f"{digest}{suffix}.sock"

    def prepare(self) -> None:
        """Create the folders, and close existing ones to other users.

        Raises InvalidInput if that is not possible.
        """
        # A root that existed before stays readable to others, but not writable.
        _make_private(self.root, but=0o022)
        for folder in (self.data, self.run, self.logs):
            _make_private(folder, but=0o077)
        if self.socket.parent != self.run:
            _make_private(self.socket.parent, but=0)
            _refuse_strangers(self.socket.parent)

    def hand_over(self, uid: int, gid: int) -> None:
        """Give it to another account, which this process is about to take instead of root's.

        A service manager may have made root the owner of everything in it again. Only what is
        batchq's there is touched, and never through a link. Raises InvalidInput.
        """
        try:
            self.root.parent.mkdir(parents=True, exist_ok=True)
            self.root.mkdir(mode=0o700, exist_ok=True)
            if self.root.stat().st_uid == uid:
                return
            own = [self.data, self.run, self.logs, self.node_credentials]
            if any(path not in own for path in self.root.iterdir()):  # such as those of /
                raise InvalidInput(
                    f"cannot keep state in {self.root}: it holds other files, and would be given to"
                    f" user {uid}",
                    hint=_ELSEWHERE,
                )
            for path in (self.root, *own):
                _chown_all(path, uid, gid)
        except OSError as error:
            raise InvalidInput(
                f"cannot keep state in {self.root}: {error.strerror}", hint=_ELSEWHERE
            ) from error

    def open_to_pods(self) -> None:
        """Prepare it, and let other accounts open files below `run` whose names they know.

        Raises InvalidInput if they cannot reach it.
        """
        self.prepare()
        for folder in (self.root, self.run):
            folder.chmod(stat.S_IMODE(folder.stat().st_mode) | 0o011)
        for folder in self.run.parents:
            if not folder.stat().st_mode & stat.S_IXOTH:
                raise InvalidInput(
                    f"pods of other accounts cannot reach {self.run}: {folder} is closed to them",
                    hint=f"{_ELSEWHERE}, and all others may enter, such as /var/lib/batchq-worker",
                )

    def is_made(self) -> bool:
        """Return whether the home is prepared. Raises InvalidInput if it is closed to this user."""
        return _stat(self.run) is not None

    def has_socket(self) -> bool:
        """Return whether the socket exists. Raises InvalidInput for a home closed to this user."""
        return _stat(self.socket) is not None

    def check_socket(self) -> None:
        """Raise InvalidInput if the socket's folder may have been made by another user."""
        if self.socket.parent != self.run:
            _refuse_strangers(self.socket.parent)
        else:
            _refuse_another_owner(self.run)


def find_home(
    explicit: Path | str | None = None, *, environ: Mapping[str, str] = os.environ
) -> Home:
    """Return the home to use: `explicit`, else BATCHQ_HOME, else the user's state folder.

    Raises InvalidInput if none of them is known.
    """
    chosen = str(explicit) if explicit else environ.get(HOME_VARIABLE, "")
    if chosen:
        return Home(Path(chosen).expanduser().resolve())
    if environ.get("HOME") or environ.get("XDG_STATE_HOME"):
        import platformdirs

        return Home(Path(platformdirs.user_state_dir("batchq")).resolve())
    # HOME is unset or empty, as under some init systems: ask the user database.
    try:
        entry = pwd.getpwuid(os.getuid())
    except KeyError:
        raise InvalidInput(
            f"cannot tell where to keep state: HOME is not set and user {os.getuid()} has no entry",
            hint=f"set {HOME_VARIABLE} to a folder that this user may write to",
        ) from None
    return Home(Path(entry.pw_dir, ".local", "state", "batchq").resolve())


def short_folder() -> Path:
    """Return a folder of this user with a short path, independent of the environment."""
    return Path("/tmp", f"batchq-{os.getuid()}")  # noqa: S108 (`_refuse_strangers` looks at it)


def default_url(home: Home) -> str:
    """Return the URL of the home's embedded server, with its password if it has one."""
    password = read_password(home)
    return f"unix://{f':{password}@' if password else ''}{quote(str(home.socket))}"


def read_password(home: Home) -> str:
    """Return the password of the home's embedded server; empty if it has none.

    Raises InvalidInput if the password file exists but is invalid.
    """
    try:
        words = home.password.read_text(encoding="ascii").split()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except PermissionError:
        # Another user's home: the socket refuses this user with a message of its own.
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
    """Return the server's URL: `explicit`, else BATCHQ_REDIS_URL, else the content of the file
    named by BATCHQ_REDIS_URL_FILE, else the home's own.

    Raises InvalidInput if that file cannot be read.
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
        # The message must not show the content, which may be a password.
        raise InvalidInput(f"{URL_FILE_VARIABLE}: {expected}; {path} has {len(words)} words")
    return words[0]


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only this user may read, whole or not at all.

    Raises InvalidInput if that is not possible.
    """
    new = path.with_suffix(".new")
    try:
        new.unlink(missing_ok=True)
        # The mode is there from the beginning, whatever the umask.
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}") from error


def read_private(path: Path, *, what: str = "secret", hint: str = "") -> bytes:
    """Return the content of a file that only its owner may read.

    Raises FileNotFoundError, InvalidInput if other users may read it or this user may not.
    """
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InvalidInput(
                f"{path}: other users may read the {what} in it",
                hint=hint or f"chmod 600 {shlex.quote(str(path))}",
            )
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from None


def read_signing_key(path: Path) -> bytes:
    """Return the key in a file, which no other user may have been able to read or write.

    Raises InvalidInput.
    """
    hint = f"make it with `head -c {_KEY_BYTES} /dev/urandom >FILE` and `chmod 600 FILE`"
    try:
        found = path.stat()
        key = path.read_bytes() if stat.S_ISREG(found.st_mode) and found.st_size <= 4096 else b""
    except OSError as error:
        raise InvalidInput(f"--signing-key {path}: {error.strerror}", hint=hint) from None
    if found.st_uid not in (0, os.getuid()) or found.st_mode & 0o037:
        raise InvalidInput(
            f"--signing-key {path}: expected a file of root or of this user that no one else may"
            f" read, found one of user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}",
            hint="its group may read it at most: `chmod 640`",
        )
    if len(key) < _KEY_BYTES:
        raise InvalidInput(
            f"--signing-key {path}: expected {_KEY_BYTES} to 4096 bytes, found {found.st_size}",
            hint=hint,
        )
    return key


def is_own_server(url: str) -> bool:
    """Return whether the URL is that of this user's embedded server, which `batchq up` starts."""
    try:
        return url == default_url(find_home())
    except InvalidInput:
        return False


def _make_private(folder: Path, *, but: int) -> None:
    """Create the folder; `but`: mode bits that are removed if it exists."""
    try:
        # Parents get the usual mode: ~/.local/state is not ours to close.
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        _refuse_another_owner(folder)
        found = folder.stat()
        # A sticky folder such as /tmp protects names from other users; leave it open.
        closable = found.st_uid == os.getuid() and not found.st_mode & stat.S_ISVTX
        if closable and found.st_mode & but:
            folder.chmod(stat.S_IMODE(found.st_mode) & ~but)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except (FileExistsError, NotADirectoryError):
        raise InvalidInput(
            f"cannot keep state in {folder}: a part of this path is not a folder",
            hint=_ELSEWHERE,
        ) from None
    except OSError as error:
        raise InvalidInput(
            f"cannot keep state in {folder}: {error.strerror}", hint=_ELSEWHERE
        ) from error
    if not writable:
        raise InvalidInput(f"cannot keep state in {folder}: Permission denied", hint=_ELSEWHERE)


def _chown_all(path: Path, uid: int, gid: int) -> None:
    """Change the owner of a file, or of a folder and everything in it. Raises OSError."""
    if not path.is_symlink() and path.is_dir():
        for _, folders, files, place in os.fwalk(path):
            for name in (*folders, *files):
                os.chown(name, uid, gid, dir_fd=place, follow_symlinks=False)
    if path.exists():
        os.chown(path, uid, gid, follow_symlinks=False)


def _stat(path: Path) -> os.stat_result | None:
    """Return the path's status, or None if it does not exist.

    Raises InvalidInput for a path closed to this user.
    """
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
    """Raise InvalidInput unless root or this user owns the folder, since its owner controls it."""
    found = _stat(folder)
    owner = os.getuid() if found is None else found.st_uid
    if owner not in (os.getuid(), 0):
        raise InvalidInput(
            f"cannot keep state in {folder}: it belongs to user {owner}, and this is user"
            f" {os.getuid()}",
            hint=_ELSEWHERE,
        )


def _refuse_strangers(folder: Path) -> None:
    """Raise InvalidInput unless the folder is private: any user may create names in /tmp."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise InvalidInput(
            f"cannot use {folder}: expected a folder of user {os.getuid()} with mode 0700",
            hint=f"remove it, or set {HOME_VARIABLE} to a folder with a shorter path",
        )


_KEY_BYTES = 32
_ELSEWHERE = f"set {HOME_VARIABLE} to a folder that this user may write to"
