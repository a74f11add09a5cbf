"""The configuration in effect, and how the daemon reloads it while it runs.

A thread reads the file twice a second, and at once after SIGHUP. It validates and assembles a
changed file exactly as at the start, and hands the result over as a whole; the session thread takes
it up between two sessions, so that no session uses half of it. An invalid file changes nothing: an
event and a log line say what is wrong, and where. The file is the only source, and no state of a
reload is stored: a scheduler that dies in the middle of one reads the file at its next start.
"""

from __future__ import annotations

import hashlib
import queue
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from batchq.api.notation import describe_age
from batchq.api.transaction import Event, Transaction
from batchq.assembly import assemble, expanded, known_names
from batchq.client import Client
from batchq.client.connection import process_of
from batchq.config import SchedulerConfig, unkept
from batchq.config.load import as_text, read_config, read_file, what_changed
from batchq.daemon import ThreadService, detached, stack
from batchq.errors import InvalidInput, NotFound, StoreUnavailable, WaitTimedOut
from batchq.paths import Home
from batchq.scheduler.cycle import Scheduler
from batchq.store.redis import RedisStore
from batchq.system import RandomIds, structlog

_log = structlog.get_logger()

#: The kind of events about a scheduler; their key is its identity.
SCHEDULER = "Scheduler"
RELOADED = "Reloaded"
RELOAD_FAILED = "ReloadFailed"

#: Interval between looks at the file, and so the longest delay of a stop.
LOOK_EVERY_S = 0.5
#: The most events that are kept for a server that is away.
_MOST_PENDING = 16
_LONGEST_MESSAGE = 1_000

Make = Callable[[SchedulerConfig], Scheduler]


class Effective(Struct, frozen=True, kw_only=True):
    """A whole configuration, and the scheduler that it configures.

    `text` is an equivalent file with every default written out; `digest` identifies it in logs;
    `unkept` names the promises that no longer hold, because the plugin that keeps them is off.
    """

    config: SchedulerConfig
    scheduler: Scheduler
    text: str
    digest: str
    unkept: tuple[str, ...] = ()


class Look(Struct, frozen=True, kw_only=True):
    """What was found at the file's path; without `content`, `problem` says why not."""

    content: bytes | None = None
    problem: str = ""
    hint: str = ""


class ReloadOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of a reload, to become an event. Sent twice with one `id`, it is one event."""

    id: str
    reason: str
    message: str


class Reload:
    """The configuration in effect, and the next one.

    `take_up` belongs to the session thread; `wait`, `look` and `tell` to `reload_service`.
    `reloaded` is called with the verdict on every file that was read.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        make: Make = assemble,
        reloaded: Callable[[bool], None] = lambda ok: None,
    ) -> None:
        """Read the file; without a path, the defaults apply for good. Raises InvalidInput."""
        self._path = path
        self._make = make
        self._reloaded = reloaded
        self._ids = RandomIds()
        self._judged = self._last = self._look_at_file()
        #: Written only by the session thread, once this is constructed.
        self.current = self._read(self._judged)
        #: Handed over last, taken up already or not; owned by the reload thread.
        self._latest = self.current
        # Guards what the threads exchange; nothing else happens while it is held.
        self._lock = threading.Lock()
        self._next: Effective | None = None
        #: What the last reload has changed, and when (monotonic clock).
        self._applied: tuple[str, float] | None = None
        self._pending: deque[ReloadOutcome] = deque(maxlen=_MOST_PENDING)
        #: Whether the file is wrong now, and the former configuration stays in effect.
        self.refused_file = False
        # SimpleQueue.put is reentrant, as a signal handler needs; Event.set is not.
        self._requests: queue.SimpleQueue[None] = queue.SimpleQueue()

    def ask(self) -> None:
        """Read the file now and report the outcome in any case; safe in a signal handler."""
        self._requests.put(None)

    def take_up(self) -> Effective | None:
        """Return the new configuration from now on, if there is one; call only between sessions."""
        with self._lock:
            fresh, self._next = self._next, None
        if fresh is None:
            return None
        before, self.current = self.current, fresh
        changes = what_changed(before.config, fresh.config)
        _log.info("config.reloaded", config=fresh.digest, changes=changes)
        with self._lock:
            self._applied = changes, time.monotonic()
        newly_unkept = [one for one in fresh.unkept if one not in before.unkept]
        for sentence in newly_unkept:
            _log.warning("config.unkept", what=sentence)
        self._note(RELOADED, "; ".join([changes, *(f"note: {one}" for one in newly_unkept)]))
        return fresh

    def wait(self, most_s: float) -> bool:
        """Wait for a call of `ask`, and take all pending ones as one; return whether one came."""
        try:
            self._requests.get(timeout=most_s)
        except queue.Empty:
            return False
        while not self._requests.empty():
            self._requests.get()
        return True

    def look(self, *, asked: bool) -> bool:
        """Read the file; return whether a new configuration is ready to be taken up.

        Without `asked`, a change counts only once two looks have found the same content: an editor
        may be in the middle of writing, and half of a file may be valid.
        """
        found = self._look_at_file()
        settled, self._last = found == self._last, found
        if not asked and (not settled or found == self._judged):
            return False
        self._judged = found
        try:
            fresh = self._read(found)
        except InvalidInput as problem:
            self._log_refusal(problem)
            return False
        if fresh.config == self._latest.config:
            with self._lock:
                pending, applied = self._next is not None, self._applied
            if pending:
                # `take_up` reports it.
                return True
            _log.info("config.unchanged", config=fresh.digest)
            self._note(RELOADED, "unchanged" if applied is None else _in_effect(applied))
            return False
        self._latest = fresh
        with self._lock:
            self._next = fresh
        return True

    def tell(self, store: RedisStore, identity: str) -> None:
        """Write the outcomes as events; those that an unavailable server misses are sent later."""
        while self._pending:
            outcome = self._pending[0]
            try:
                event = Event(
                    kind=SCHEDULER,
                    key=identity,
                    reason=outcome.reason,
                    message=outcome.message,
                    at=store.now_ms(),
                )
                # Without an epoch: standbys reload too, and this decides nothing.
                transaction = Transaction(subject=f"{SCHEDULER}/{identity}", events=(event,))
                store.commit([transaction], request_id=outcome.id)
            except StoreUnavailable:
                # The session thread meets the same outage and reports it.
                return
            # A new outcome may have pushed this one out of the bounded deque meanwhile.
            with suppress(ValueError):
                self._pending.remove(outcome)

    @property
    def _source(self) -> str:
        return "the defaults" if self._path is None else str(self._path)

    def _look_at_file(self) -> Look:
        if self._path is None:
            return Look(content=b"")
        try:
            return Look(content=read_file(self._path))
        except InvalidInput as error:
            return Look(problem=error.message, hint=error.hint)

    def _read(self, found: Look) -> Effective:
        """Raises InvalidInput."""
        if found.content is None:
            raise InvalidInput(found.problem, hint=found.hint)
        try:
            config = read_config(found.content, self._source, known=known_names())
            scheduler = self._make(config)
            text = as_text(config)
            broken = tuple(unkept(expanded(config)))
        except InvalidInput:
            raise
        except Exception as error:  # a third-party plugin's constructor may raise anything
            raise InvalidInput(
                f"{self._source}: its actions and plugins cannot be created: "
                f"{type(error).__name__}: {error}",
                hint="an installed action or plugin is at fault: ask its provider",
            ) from error
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return Effective(
            config=config, scheduler=scheduler, text=text, digest=digest, unkept=broken
        )

    def _log_refusal(self, problem: InvalidInput) -> None:
        _log.error(
            "config.reload_failed",
            problem=problem.message,
            hint=problem.hint,
            stays=self._latest.digest,
            exc_info=problem.__cause__,
        )
        self._note(RELOAD_FAILED, f"{problem.message}; the former configuration stays in effect")

    def _note(self, reason: str, message: str) -> None:
        if not message.startswith(self._source):
            message = f"{self._source}: {message}"
        outcome = ReloadOutcome(
            id=self._ids.new_uid(), reason=reason, message=message[:_LONGEST_MESSAGE]
        )
        self._pending.append(outcome)
        self.refused_file = reason == RELOAD_FAILED
        self._reloaded(reason == RELOADED)


def _in_effect(applied: tuple[str, float]) -> str:
    changes, at = applied
    return f"already in effect for {describe_age(round(1000 * (time.monotonic() - at)))}: {changes}"


def reload_service(
    reload: Reload, store: RedisStore, *, identity: str, wake: Callable[[], None]
) -> ThreadService:
    """Return a service that watches the file; `wake` asks for a turn that takes up a new one."""

    def watch(stopping: threading.Event) -> None:
        while not stopping.is_set():
            asked = reload.wait(LOOK_EVERY_S)
            if reload.look(asked=asked):
                wake()
            reload.tell(store, identity)

    return ThreadService("reload", watch)


ANSWERS_WITHIN_S = 15.0
_LOOK_EVERY_S = 0.1


def ask_to_reload(home: Home, client: Client) -> Event:
    """Ask the scheduler that `up` started here to reload; return its Reloaded or ReloadFailed
    event.

    Raises NotFound if none runs, or only one on another server than the client's; WaitTimedOut.
    """
    record = stack.running_scheduler(home)
    if record is None:
        raise NotFound(
            "no scheduler that `batchq up` has started runs on this machine",
            hint="send SIGHUP to the scheduler process",
        )
    identity = _identity_of(record.pid, client)
    before = client.events(kind=SCHEDULER, key=identity, most=1)
    detached.send(record, signal.SIGHUP)
    deadline = time.monotonic() + ANSWERS_WITHIN_S
    while (latest := client.events(kind=SCHEDULER, key=identity, most=1)) == before:
        if time.monotonic() >= deadline:
            raise WaitTimedOut(
                f"the scheduler (pid {record.pid}) has not answered within"
                f" {ANSWERS_WITHIN_S:.0f} s",
                hint=f"its log is {record.log}",
            )
        time.sleep(_LOOK_EVERY_S)
    return latest[0]


def _identity_of(pid: int, client: Client) -> str:
    """Return the identity under which the server knows the process."""
    here = process_of(f"{socket.gethostname()}:{pid}:")
    for one in sorted(client.schedulers().there, key=lambda one: one.seen_ms_ago):
        if process_of(one.identity) == here:
            return one.identity
    raise NotFound(
        f"the scheduler of this machine (pid {pid}) is unknown to this server",
        hint="it uses another server (name that one with --redis-url), or has just been started",
    )
