"""Run files: what an agent and its work-horses record of each pod attempt on this machine."""

from __future__ import annotations

import fcntl
import os
import signal as signals
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct, structs

from batchq.api.exec_session import remote_shell
from batchq.api.node_report import NO_CONTAINER, PodAttempt, PodOutcome
from batchq.errors import Conflict, InvalidInput
from batchq.system import structlog
from batchq.worker.host import privileges, processes
from batchq.worker.host.privileges import Account
from batchq.worker.rendezvous import (
    Peer,
    RendezvousFiles,
    hostfile_of,
    hydra_hostfile_of,
    peers_file_of,
)

__all__ = ["NOT_EXECUTABLE", "NOT_FOUND", "NO_CONTAINER", "PodOutcome", "outcome_of"]

NOT_FOUND = 127
NOT_EXECUTABLE = 126
#: As in a shell: exit code 137 means killed by signal 9.
_SIGNAL_BASE = 128


def outcome_of(wait_status: int, *, stopped: str, message: str = "") -> PodOutcome:
    """Return the outcome for a status of waitpid."""
    code = os.waitstatus_to_exitcode(wait_status)
    if code >= 0:
        how = f"exited with {code}"
        return PodOutcome(exit_code=code, stopped=stopped, how=how, message=message)
    how = f"killed by signal {-code} ({_signal_name(-code)})"
    return PodOutcome(
        exit_code=_SIGNAL_BASE - code, signal=-code, stopped=stopped, how=how, message=message
    )


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return "unknown"


log = structlog.get_logger(__name__)

_SUFFIX, _DRAFT = ".json", ".draft"
_STOP, _STOP_DRAFT, _TOKEN = ".stop", ".stop-draft", ".token"
_HOSTS, _PEERS, _STARTED = ".hosts", ".peers", ".started"
_HYDRA_HOSTS, _SHELL = ".hydra-hosts", ".rsh"
#: All files of an attempt. The draft of a former version, which may replace a missing record, is
#: removed first.
_SUFFIXES = (
    *(_TOKEN, _HOSTS, _PEERS, _STARTED, _DRAFT, _SUFFIX, _STOP, _STOP_DRAFT),
    *(".unsent", ".unsent-draft", _HYDRA_HOSTS, _SHELL),
)
#: From this many attempts on, the folder is listed to find their files.
_MANY = 4


class RunFile(Struct, frozen=True, kw_only=True):
    """The record of one pod attempt.

    A pid may have been reused, so the start time is kept with it.
    """

    pod: str
    attempt: int
    horse: int
    horse_started_ms: int
    #: The boot in which the pids and groups are valid: `own_boot` of the work-horse.
    boot: str = ""
    #: The command's process group; 0 before the command starts.
    group: int = 0
    #: When the pod began to run, in the server's milliseconds.
    started_at: int = 0
    outcome: PodOutcome | None = None
    #: What the pod's function returned, as JSON; kept with the outcome until both are reported.
    result: bytes | None = None
    #: Whether the work-horse leaves it to the agent to report the outcome and to send unsent
    #: output.
    hands_over: bool = False
    #: The digest of the secret of its token, if it has one.
    token: str = ""


class RunFiles:
    """The run files of one node, and the stop files beside them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock: IO[bytes] | None = None
        #: The owner of the files that pods read; None: this process's account.
        self.reader: Account | None = None

    def occupy(self, *, is_shared: bool = False) -> None:
        """Lock the folder until this process ends; its children do not hold the lock. If it
        `is_shared`, other accounts may open files in it whose names they know.

        Raise Conflict if another process holds it, and InvalidInput if the folder cannot be
        written.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            if is_shared:
                self._directory.chmod(0o711)
            self._lock = (self._directory / "agent.lock").open("ab")
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                f"another agent runs with the folder {self._directory}",
                hint="stop it, or give this one another home (BATCHQ_HOME) or node name",
            ) from None
        except OSError as trouble:
            raise InvalidInput(
                f"the agent's folder {self._directory} cannot be used: {trouble.strerror}",
                hint="set BATCHQ_HOME to a folder that this user may write",
            ) from None

    def release(self) -> None:
        """Unlock the folder for the next agent."""
        if self._lock is not None:
            self._lock.close()

    def stop_file(self, pod: str, attempt: int) -> str:
        """Return the path from which a pod reads why it is being stopped."""
        return f"{self._directory}/{pod}-{attempt}{_STOP}"

    def write_token(self, pod: str, attempt: int, text: str) -> Path:
        """Write the token of an attempt to a file of its own, which only this user may read; return
        its path. Raises OSError.
        """
        path = self._directory / f"{pod}-{attempt}{_TOKEN}"
        path.unlink(missing_ok=True)
        # The mode is there from the beginning, whatever the umask.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{text}\n")
            privileges.give(file.fileno(), self.reader)
        return path

    def start_report(self, pod: str, attempt: int) -> StartReport:
        """Return the report of an attempt's container, not yet written. Raise OSError."""
        return StartReport(f"{self._directory}/{pod}-{attempt}{_STARTED}", self.reader)

    def unsent_file(self, pod: str, attempt: int) -> str:
        """Return the path of the output that could not be sent."""
        return f"{self._directory}/{pod}-{attempt}.unsent"

    def write_peers(self, pod: str, attempt: int, peers: Sequence[Peer]) -> RendezvousFiles:
        """Write the host file and the peers file of an attempt. Raise OSError."""
        stem = f"{self._directory}/{pod}-{attempt}"
        files = RendezvousFiles(hosts=stem + _HOSTS, peers=stem + _PEERS)
        Path(files.hosts).write_text(hostfile_of(peers))
        Path(files.peers).write_bytes(peers_file_of(peers))
        for path in (files.hosts, files.peers):
            privileges.give(path, self.reader)
        return files

    def write_launcher(
        self, pod: str, attempt: int, files: RendezvousFiles, peers: Sequence[Peer]
    ) -> RendezvousFiles:
        """Write what launchers of MPI need besides; return all files. Raise OSError."""
        stem = f"{self._directory}/{pod}-{attempt}"
        hydra_hosts, shell = Path(stem + _HYDRA_HOSTS), Path(stem + _SHELL)
        hydra_hosts.write_text(hydra_hostfile_of(peers))
        shell.write_text(remote_shell(sys.executable))
        shell.chmod(0o755)
        for path in (hydra_hosts, shell):
            privileges.give(path, self.reader)
        return structs.replace(files, hydra_hosts=str(hydra_hosts), shell=str(shell))

    def rewrite_peers(self, pod: str, attempt: int, peers: Sequence[Peer]) -> None:
        """Replace the host file and the peers file of an attempt, each as a whole, if they exist
        and differ. Their owner stays. Raise OSError.
        """
        stem = f"{self._directory}/{pod}-{attempt}"
        contents = {_HOSTS: hostfile_of(peers).encode(), _PEERS: peers_file_of(peers)}
        for suffix, data in contents.items():
            path, draft = Path(stem + suffix), Path(f"{stem}{suffix}{_DRAFT}")
            if not path.exists() or _has(path, data):
                continue
            draft.unlink(missing_ok=True)
            draft.write_bytes(data)
            privileges.give_as(draft, path)
            draft.replace(path)

    def write(self, run: RunFile) -> None:
        """Replace the record: the file is one JSON object, and the last value of a name counts.

        Former versions read it, too, so an agent may be rolled back. A writer that is killed leaves
        the former record, or the new one. A full disk is logged and loses only this record. A new
        file for each record would cost several times as much.
        """
        # Runs three times for each pod, so it does without pathlib, which is slower.
        path = f"{self._directory}/{run.pod}-{run.attempt}{_SUFFIX}"
        record = msgspec.json.encode(run)
        try:
            try:
                _add(path, record)
            except FileNotFoundError:
                self._directory.mkdir(parents=True, exist_ok=True)
                _add(path, record)
        except OSError as trouble:
            log.warning("run file not written", path=path, trouble=str(trouble))

    def write_stop(self, pod: str, attempt: int, reason: str) -> None:
        """Write the reason to the stop file."""
        path = Path(self.stop_file(pod, attempt))
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(_STOP_DRAFT)
            # It may be left from an earlier try, and belong to the pod's account.
            draft.unlink(missing_ok=True)
            draft.write_text(reason + "\n")
            privileges.give(draft, self.reader)
            draft.replace(path)
        except OSError as trouble:
            log.warning("stop file not written", path=str(path), trouble=str(trouble))

    def read(self, pod: str, attempt: int) -> RunFile | None:
        """Return the record; None if it is missing or unreadable."""
        return self._read(f"{pod}-{attempt}")

    def all(self) -> Iterator[RunFile]:
        """Yield every record, ordered by name."""
        found = [*self._directory.glob(f"*{_SUFFIX}"), *self._directory.glob(f"*{_DRAFT}")]
        for stem in sorted({path.stem for path in found}):
            run = self._read(stem)
            if run is not None:
                yield run

    def _read(self, stem: str) -> RunFile | None:
        """Return the record of an attempt, while its writer may be at any step.

        Former versions of batchq wrote a draft, then removed the file and renamed the draft to it.
        """
        # Runs once for each pod, so it does without pathlib, which is slower.
        path, draft = f"{self._directory}/{stem}{_SUFFIX}", f"{self._directory}/{stem}{_DRAFT}"
        for one in (path, draft, path):
            try:
                return _last_record(_content(one))
            except FileNotFoundError:
                continue
            except (OSError, msgspec.MsgspecError) as trouble:
                log.warning("run file not readable", path=one, trouble=str(trouble))
                return None
        return None

    def forget(self, pod: str, attempt: int) -> None:
        """Remove all files of an attempt that is over and reported."""
        for suffix in _SUFFIXES:
            _remove(f"{self._directory}/{pod}-{attempt}{suffix}")

    def forget_each(self, attempts: Sequence[PodAttempt]) -> None:
        """As `forget`, for several attempts: most have one file, which the folder shows."""
        if len(attempts) < _MANY:
            for attempt in attempts:
                self.forget(attempt.pod, attempt.attempt)
            return
        try:
            there = frozenset(os.listdir(self._directory))  # noqa: PTH208 - pathlib is slower
        except FileNotFoundError:
            return
        for attempt in attempts:
            for suffix in _SUFFIXES:
                if f"{attempt.id}{suffix}" in there:
                    _remove(f"{self._directory}/{attempt.id}{suffix}")

    def forget_all(self, *, keep: Collection[str] = ()) -> None:
        """Remove all files but those of the attempts (`<pod>-<attempt>`) in `keep`.

        Call it when the agent has read every record and runs nothing. Files that are left lost
        their record to a full disk or a crash, and nothing else would remove them.
        """
        for path in self._directory.iterdir():
            if path.suffix in _SUFFIXES and path.stem not in keep:
                path.unlink(missing_ok=True)


class StartReport:
    """Tells whether bwrap has executed its program: a pipe with a name, which bwrap opens.

    Unlike a file, it works on a full disk, where bwrap would fail instead of the program.
    """

    _MOST_BYTES = 4096

    def __init__(self, path: str, account: Account | None) -> None:
        """Make the pipe, for bwrap to open under an account. Raise OSError."""
        self.path = path
        Path(path).unlink(missing_ok=True)
        os.mkfifo(path, 0o600)
        privileges.give(path, account)
        self._read_end = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def has_run(self) -> bool:
        """Return whether the program was executed; call it once, when bwrap has ended."""
        try:
            said = os.read(self._read_end, self._MOST_BYTES)
        except BlockingIOError:
            return False
        # bwrap writes the exit code of a program that it has executed, and of no other.
        return b'"exit-code"' in said

    def close(self) -> None:
        """Close and remove the pipe."""
        os.close(self._read_end)
        Path(self.path).unlink(missing_ok=True)


def own_boot() -> str:
    """Return a name for this boot of the machine, and for the PID namespace of this process.

    Pids and process groups from another boot or namespace belong to unrelated processes here.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def started_ms(pid: int) -> int | None:
    """Return when the process started, in milliseconds since the boot; None if it does not run.

    A wall-clock time would change each time the clock is set.
    """
    return state_and_start(pid)[1]


def state_and_start(pid: int) -> tuple[str, int | None]:
    """Return the letter of the process's state (`man proc_pid_stat`), and `started_ms`."""
    try:
        stat = processes.read_kernel_file(f"/proc/{pid}/stat").decode(errors="replace")
    except OSError:
        return "X", None
    # The process name before them is in brackets, and may contain brackets.
    fields = stat.rpartition(") ")[2].split()
    # A zombie (in a container without an init) does not run any more.
    if fields[0] in "ZXx":
        return fields[0], None
    return fields[0], int(fields[19]) * 1000 // os.sysconf("SC_CLK_TCK")


def _has(path: Path, data: bytes) -> bool:
    """Return whether a file has this content. Its owner may have made it of any size."""
    with path.open("rb") as file:
        return file.read(len(data) + 1) == data


def _add(path: str, record: bytes) -> None:
    """Continue the object in a file with the members of a record. Raise OSError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        place = os.fstat(file).st_size
        if place and os.pread(file, 1, place - 1) == b"}":
            place, record = place - 1, b"\n," + record[1:]
        elif place:
            # From a version that wrote lines, or cut off by a full disk.
            record = b"\n" + record
        while record:
            done = os.pwrite(file, record, place)
            place, record = place + done, record[done:]
    finally:
        os.close(file)


def _content(path: str) -> bytes:
    """Return what is in a file at one instant. Raise OSError.

    Of that, a writer changes only the last byte. What it adds meanwhile would not fit to it.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(file, os.fstat(file).st_size, 0)
    finally:
        os.close(file)


def _last_record(content: bytes) -> RunFile:
    """Return the last whole record in a file. Raise MsgspecError if it has none."""
    with suppress(msgspec.MsgspecError):
        return _decode(content)
    end = content.rfind(b"\n")
    while end > 0:
        # A former version ended each record, which was a line.
        for close in (b"}", b""):
            with suppress(msgspec.MsgspecError):
                return _decode(content[:end] + close)
        end = content.rfind(b"\n", 0, end)
    raise msgspec.DecodeError("no record is whole")


def _decode(content: bytes) -> RunFile:
    return msgspec.json.decode(content[content.rfind(b"\n{") + 1 :], type=RunFile)


def _remove(path: str) -> None:
    try:
        os.unlink(path)  # noqa: PTH108 - runs several times for each pod; pathlib is slower
    except FileNotFoundError:
        return
