"""By which configuration the daemon goes, and how another takes its place while it runs.

A thread looks at the file twice a second, and at once after a SIGHUP. What it finds there is read,
checked and put together as at the start, and handed over whole; the deciding thread takes it up
between two sessions, so that none goes by half of it. What is wrong changes nothing: an event and
a line of the log say what, and where. The file is the only truth, and nothing is kept of a reload:
a scheduler that dies in the middle of one reads the file when it starts again.
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

import structlog
from msgspec import Struct

from batchq.api.transaction import Event, Transaction
from batchq.assembly import assemble, expanded, known_names
from batchq.client import Client
from batchq.client.cluster import process_of
from batchq.config.effect import what_changed
from batchq.config.load import as_text, read_config, read_file
from batchq.config.model import SchedulerConfig, unkept
from batchq.daemon.local_stack import detached, stack
from batchq.daemon.services import ThreadService
from batchq.errors import InvalidInput, NotFound, StoreUnavailable, WaitTimedOut
from batchq.paths import Home
from batchq.scheduler.scheduler import Scheduler
from batchq.store.redis import RedisStore
from batchq.system import RandomIds

_log = structlog.get_logger()

#: The kind that events about a scheduler have; their key is its identity.
SCHEDULER = "Scheduler"
RELOADED = "Reloaded"
RELOAD_FAILED = "ReloadFailed"

#: How often the file is looked at, and so how long a stop may have to wait for it.
LOOK_EVERY_S = 0.5
#: For a server that is away so many stories are kept.
_MOST_UNTOLD = 16
_LONGEST_MESSAGE = 1_000

Make = Callable[[SchedulerConfig], Scheduler]


class Effective(Struct, frozen=True, kw_only=True):
    """A whole configuration, and the scheduler that goes by it.

    `text` is a file that says the same, every default written out; `digest` names it in logs;
    `unkept` says what holds no longer, as the plugin that sees to it is off.
    """

    config: SchedulerConfig
    scheduler: Scheduler
    text: str
    digest: str
    unkept: tuple[str, ...] = ()


class Look(Struct, frozen=True, kw_only=True):
    """What there was to be read at the file's path; without `content`, why not."""

    content: bytes | None = None
    problem: str = ""
    hint: str = ""


class Story(Struct, frozen=True, kw_only=True):
    """What became of a reload. Sent twice with its `id`, it is one event."""

    id: str
    reason: str
    message: str


class Reload:
    """The configuration in effect, and the one that comes next.

    `take_up` is the deciding thread's; `wait`, `look` and `tell` are those of `reload_service`.
    `reloaded` hears of every file that was judged whether it was right.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        make: Make = assemble,
        reloaded: Callable[[bool], None] = lambda ok: None,
    ) -> None:
        """Read the file; without a path, the defaults, for ever. Raises InvalidInput."""
        self._path = path
        self._make = make
        self._reloaded = reloaded
        self._ids = RandomIds()
        self._judged = self._last = self._find()
        #: Written by the deciding thread alone, once it is made.
        self.current = self._read(self._judged)
        #: What was handed over last, taken up already or not; the looking thread's own.
        self._latest = self.current
        # Guards what the threads hand to each other; never held while anything else is done.
        self._lock = threading.Lock()
        self._next: Effective | None = None
        self._untold: deque[Story] = deque(maxlen=_MOST_UNTOLD)
        # Its `put` may interrupt itself, as signal handlers do; setting an Event may not.
        self._wishes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def ask(self) -> None:
        """Look at the file now, and tell what was found, whatever it is; a signal may call this."""
        self._wishes.put(None)

    # --- the deciding thread ----------------------------------------------------------------

    def take_up(self) -> Effective | None:
        """What to go by from now on, if that is something new; only between two sessions."""
        with self._lock:
            fresh, self._next = self._next, None
        if fresh is None:
            return None
        before, self.current = self.current, fresh
        changes = what_changed(before.config, fresh.config)
        _log.info("config.reloaded", config=fresh.digest, changes=changes)
        given_up = [one for one in fresh.unkept if one not in before.unkept]
        for sentence in given_up:
            _log.warning("config.unkept", what=sentence)
        self._note(RELOADED, "; ".join([changes, *(f"note: {one}" for one in given_up)]))
        return fresh

    # --- the looking thread -----------------------------------------------------------------

    def wait(self, most_s: float) -> bool:
        """Wait until somebody asks for a look, once for all who have; whether anybody has."""
        try:
            self._wishes.get(timeout=most_s)
        except queue.Empty:
            return False
        while not self._wishes.empty():
            self._wishes.get()
        return True

    def look(self, *, asked: bool) -> bool:
        """Look at the file; whether there is something new, which is now to be taken up.

        Who has not been asked waits until two looks have found the same: an editor may be in the
        middle of writing, and half of a file may be a valid one.
        """
        found = self._find()
        settled, self._last = found == self._last, found
        if not asked and (not settled or found == self._judged):
            return False
        self._judged = found
        try:
            fresh = self._read(found)
        except InvalidInput as problem:
            self._refuse(problem)
            return False
        if fresh.config == self._latest.config:
            _log.info("config.unchanged", config=fresh.digest)
            self._note(RELOADED, "as before")
            return False
        self._latest = fresh
        with self._lock:
            self._next = fresh
        return True

    def tell(self, store: RedisStore, identity: str) -> None:
        """Add what has happened to the events; what a server that is away misses it hears later."""
        while self._untold:
            story = self._untold[0]
            try:
                event = Event(
                    kind=SCHEDULER,
                    key=identity,
                    reason=story.reason,
                    message=story.message,
                    at=store.now_ms(),
                )
                # Without an epoch: who stands by reloads, too, and it decides nothing.
                said = Transaction(subject=f"{SCHEDULER}/{identity}", events=(event,))
                store.commit([said], request_id=story.id)
            except StoreUnavailable:
                # The deciding thread meets the same outage and says so.
                return
            # The other thread's may have pushed it out meanwhile.
            with suppress(ValueError):
                self._untold.remove(story)

    # --- parts ------------------------------------------------------------------------------

    @property
    def _source(self) -> str:
        return "the defaults" if self._path is None else str(self._path)

    def _find(self) -> Look:
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
            given_up = tuple(unkept(expanded(config)))
        except InvalidInput:
            raise
        except Exception as error:  # a plugin of others may raise anything while it is made
            raise InvalidInput(
                f"{self._source}: what it names cannot be made: {type(error).__name__}: {error}",
                hint="an installed action or plugin is at fault: ask who provides it",
            ) from error
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return Effective(
            config=config, scheduler=scheduler, text=text, digest=digest, unkept=given_up
        )

    def _refuse(self, problem: InvalidInput) -> None:
        _log.error(
            "config.reload_failed",
            problem=problem.message,
            hint=problem.hint,
            stays=self._latest.digest,
            exc_info=problem.__cause__,
        )
        self._note(RELOAD_FAILED, f"{problem.message}; what was in effect stays")

    def _note(self, reason: str, message: str) -> None:
        if not message.startswith(self._source):
            message = f"{self._source}: {message}"
        story = Story(id=self._ids.new_uid(), reason=reason, message=message[:_LONGEST_MESSAGE])
        self._untold.append(story)
        self._reloaded(reason == RELOADED)


def reload_service(
    reload: Reload, store: RedisStore, *, identity: str, wake: Callable[[], None]
) -> ThreadService:
    """A service that looks at the file; `wake` asks for a turn that takes up what is new."""

    def watch(stopping: threading.Event) -> None:
        while not stopping.is_set():
            asked = reload.wait(LOOK_EVERY_S)
            if reload.look(asked=asked):
                wake()
            reload.tell(store, identity)

    return ThreadService("reload", watch)


ANSWERS_WITHIN_S = 15.0
_LOOK_EVERY_S = 0.1


def ask_to_reload(home: Home, client: Client, *, within_s: float = ANSWERS_WITHIN_S) -> Event:
    """What the scheduler that `up` has started here says of its file: Reloaded or ReloadFailed.

    Raises NotFound if none runs, or on another server than the client's; WaitTimedOut.
    """
    record = stack.running_scheduler(home)
    if record is None:
        raise NotFound(
            "no scheduler that `batchq up` has started runs on this machine",
            hint="send SIGHUP to the process that is to read its file again",
        )
    identity = _identity_of(record.pid, client)
    before = client.events(kind=SCHEDULER, key=identity, most=1)
    detached.send(record, signal.SIGHUP)
    deadline = time.monotonic() + within_s
    while (latest := client.events(kind=SCHEDULER, key=identity, most=1)) == before:
        if time.monotonic() >= deadline:
            raise WaitTimedOut(
                f"the scheduler (pid {record.pid}) has not answered within {within_s:.0f} s",
                hint=f"its log is {record.log}",
            )
        time.sleep(_LOOK_EVERY_S)
    return latest[0]


def _identity_of(pid: int, client: Client) -> str:
    """By which name the server knows it."""
    here = process_of(f"{socket.gethostname()}:{pid}:")
    for one in sorted(client.schedulers().there, key=lambda one: one.seen_ms_ago):
        if process_of(one.identity) == here:
            return one.identity
    raise NotFound(
        f"the scheduler of this machine (pid {pid}) is unknown to this server",
        hint="it works for another one (name it with --redis-url), or has only just been started",
    )
