"""One connection to the server: timeouts, retries, and the diagnosis of errors.

redis-py would silently repeat a command whose reply was lost, up to ten times, and so apply it more
than once. Its own retry is off here. `Link.ask` repeats instead, so whatever it is given must be
safe to repeat: reads, scripts with a request id, and writes of a fixed value.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar, cast

import redis
from redis import exceptions as broken
from redis.backoff import NoBackoff
from redis.retry import Retry

from batchq import __version__
from batchq.errors import StoreUnavailable
from batchq.paths import URL_VARIABLE, is_own_server
from batchq.store import urls
from batchq.store.direct import DirectClient, forget_idle
from batchq.store.keys import ACCESS, REVISION, SCHEDULERS
from batchq.store.outage import Patience
from batchq.store.records import whole
from batchq.store.scripts import ALL, Script
from batchq.store.urls import (
    NoPrimary,
    PrimaryPool,
    checked_url,
    is_of_node,
    is_sentinel,
    is_unknown_host,
    quoted,
    sentinel_url,
    shown,
    speaks_tls,
    tls_options_of,
)

T = TypeVar("T")

CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 10.0
#: The longest blocking read; it ends well before ANSWER_TIMEOUT_S.
LONGEST_BLOCK_MS = 5_000
TRIES = 6
#: A caller that has waited this long for one answer gets an error instead of another try.
LONGEST_ASK_S = 8.0
FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 1.0
#: How long a server may take to read its files after a start.
LOADING_TIMEOUT_S = 60.0
#: How long a refused right, such as loading scripts, is not tried again.
REFUSED_FOR_S = 60.0

#: A scheduler's entry ends with its version.
_VERSION = re.compile(r" ([0-9A-Za-z.+-]{1,64})$")

#: The bound of the count of writes, as in lua/stream.lua.
_MOST_WRITES = 2**52
#: The most reasons that are kept why the keys of one node cannot be read.
_MOST_SUSPICIONS = 10

OLDEST_VERSION = (6, 2)

UNKNOWN_HOST = "the host in the server's URL is unknown"

#: What scripts, and readers of single values, call a key that batchq cannot have written.
DAMAGED = "DAMAGED"

#: A broken connection, or no answer in time: the command may or may not have run.
_LOST = (broken.ConnectionError, broken.TimeoutError)


#: A script's keys and arguments.
Call: TypeAlias = tuple[Sequence[str], Sequence[str | bytes | int]]
#: A script and one call of it.
Asked: TypeAlias = tuple[Script, Call]

#: Approximate bytes in one round trip, which bounds what this process holds at a time.
BYTES_A_TRIP = 32 * 1024 * 1024


def in_trips(things: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield things in order, as many as fit in one round trip; at least one, however large."""
    trip: list[T] = []
    size = 0
    for thing in things:
        trip.append(thing)
        size += size_of(thing)
        if size >= BYTES_A_TRIP:
            yield trip
            trip, size = [], 0
    if trip:
        yield trip


#: Adds one call of a script to a pipeline, or makes it with a client.
AddCall: TypeAlias = Callable[
    [Any, Script, Sequence[str], Sequence[str | bytes | int | float]], Any
]


def _by_digest(
    client: Any,
    script: Script,
    names: Sequence[str],
    arguments: Sequence[str | bytes | int | float],
) -> Any:
    return client.execute_command("EVALSHA", script.sha, len(names), *names, *arguments)


def _by_text(
    client: Any,
    script: Script,
    names: Sequence[str],
    arguments: Sequence[str | bytes | int | float],
) -> Any:
    return client.eval(script.text, len(names), *names, *arguments)


def _asked_at_once(client: redis.Redis, asked: Sequence[Asked], add_call: AddCall) -> list[Any]:
    """Return all answers. Raises the first error, unless a script may fail with it."""
    if len(asked) == 1:
        ((script, (names, arguments)),) = asked
        return [add_call(client, script, names, arguments)]
    pipeline = client.pipeline(transaction=False)
    for script, (names, arguments) in asked:
        add_call(pipeline, script, names, arguments)
    answers = pipeline.execute(raise_on_error=False)
    for (script, _), answer in zip(asked, answers, strict=True):
        is_refusal = isinstance(answer, broken.ResponseError)
        if is_refusal and script.may_fail and not isinstance(answer, broken.NoScriptError):
            continue
        if isinstance(answer, Exception):
            raise answer
    return answers


def _load_all(client: redis.Redis) -> None:
    pipeline = client.pipeline(transaction=False)
    for script in ALL:
        pipeline.script_load(script.text)
    pipeline.execute()


def _load_missing(client: redis.Redis) -> None:
    if not all(client.script_exists(*(script.sha for script in ALL))):
        _load_all(client)


def _try_eval(client: redis.Redis) -> None:
    client.eval("return 1", 0)


def new_client(
    url: str,
    *,
    retry: Retry,
    socket_timeout: float,
    kind: type[redis.Redis] = DirectClient,
    **options: Any,
) -> redis.Redis:
    """Return a client that connects on first use. Raises InvalidInput for a malformed URL."""
    options = {
        "retry": retry,
        "socket_timeout": socket_timeout,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        # A server that cannot save its data refuses PING, and still answers what is read.
        "health_check_interval": 0,
        "decode_responses": False,
        **_named_driver(),
        **options,
    }
    urls.check_files(tls_options_of(url))
    if is_sentinel(url):
        client = kind.from_pool(PrimaryPool(sentinel_url(url), **options))
    else:
        client = kind.from_url(checked_url(url), **options)
    assert isinstance(client, redis.Redis)
    return client


def _named_driver() -> dict[str, Any]:
    """Return the option by which `CLIENT LIST` shows that a connection is batchq's.

    With it, redis-py also need not read the metadata of its own package to find its version, which
    takes 2 ms. Versions before 7.2 do not know it.
    """
    try:
        from redis.driver_info import DriverInfo
    except ImportError:
        return {}
    driver = DriverInfo(lib_version=redis.__version__)
    return {"driver_info": driver.add_upstream_driver("batchq", __version__)}


def close_client(client: redis.Redis) -> None:
    """Close the client and its pool, connections to sentinels included."""
    client.close()
    client.connection_pool.close()


def check_info(info: Mapping[str, Any], place: str) -> None:
    """Raise StoreUnavailable if the server with this INFO is not usable."""
    version = str(info.get("redis_version", "0"))
    numbers = tuple(int(part) for part in re.findall("[0-9]+", version)[:2])
    if numbers < OLDEST_VERSION:
        raise StoreUnavailable(
            f"the server at {place} has version {version}; expected 6.2 or later",
            hint="upgrade Redis, or use Valkey, or the server that comes with batchq",
            lasts=True,
        )
    if info.get("cluster_enabled"):
        raise StoreUnavailable(
            f"the server at {place} is part of a cluster; expected a standalone server",
            hint="RQ does not work on a cluster",
            lasts=True,
        )
    if info.get("role") != "master":
        raise StoreUnavailable(
            f"the server at {place} is a read-only replica", hint="connect to the primary"
        )


class Link:
    """One server, with fixed timeouts and one bounded retry.

    `connections` counts the connections made: a restarted server is reached over a new one.
    """

    def __init__(
        self, url: str, *, client: redis.Redis | None = None, survives_s: float = 0.0
    ) -> None:
        """`survives_s`: how long a server may be away, if that is longer than the usual retry."""
        self.shown = shown(url)
        self._survives_s = survives_s
        self._url = url
        self._through_sentinels = is_sentinel(url)
        self.connections = 0
        #: Whether a caller that meets a damaged key waits a moment for the leader to repair it; off
        #: in the leader itself.
        self.waits_for_mending = True
        #: Single nodes' keys found damaged as a whole, and why, for a leader to delete. Any thread
        #: adds, one removes.
        self.found_damaged: dict[str, str] = {}
        #: Nodes whose own keys cannot be read, and why: see `suspect`.
        self._suspects: dict[str, list[str]] = {}
        self._suspects_lock = threading.Lock()
        self._closing = threading.Event()
        once = Retry(NoBackoff(), 0)
        self._has_server = client is None
        self._client = client or new_client(
            url,
            retry=once,
            socket_timeout=ANSWER_TIMEOUT_S,
            redis_connect_func=self._on_connect,
        )
        self._blocking = client or new_client(
            url,
            retry=once,
            socket_timeout=ANSWER_TIMEOUT_S,
        )
        self._patience: Patience | None = None
        #: Steps that this user was refused, and when each may be tried again (monotonic clock).
        self._refused_until: dict[Callable[[redis.Redis], object], float] = {}
        #: Thread -> when its present call began. Each thread writes only its own entry.
        self._asking_since: dict[int, float] = {}

    @property
    def user(self) -> str:
        """The user name in the URL; "" if there is none."""
        return str(self._client.connection_pool.connection_kwargs.get("username") or "")

    def suspect(self, node: str, why: str) -> None:
        """Note that a node's own keys cannot be read: it is given no pods meanwhile.

        Any thread may call it; the leader's node-report processor acts on it.
        """
        with self._suspects_lock:
            reasons = self._suspects.setdefault(node, [])
            if why not in reasons and len(reasons) < _MOST_SUSPICIONS:
                reasons.append(why)

    def suspects(self) -> dict[str, tuple[str, ...]]:
        """Return the nodes that are suspected, and all reasons."""
        if not self._suspects:
            return {}
        with self._suspects_lock:
            return {node: tuple(reasons) for node, reasons in self._suspects.items()}

    def clear_suspicions(self, node: str, reasons: Collection[str]) -> None:
        """Forget these reasons; those that were noted meanwhile stay."""
        with self._suspects_lock:
            left = [why for why in self._suspects.pop(node, ()) if why not in reasons]
            if left:
                self._suspects[node] = left

    @contextmanager
    def patiently(self, patience: Patience) -> Iterator[None]:
        """Within this context, wait for an unavailable server as long as `patience` lasts."""
        before, self._patience = self._patience, patience
        try:
            yield
        finally:
            self._patience = before

    def ask(self, question: Callable[[redis.Redis], T], *, tries: int = TRIES) -> T:
        """Return the answer; repeated when the connection breaks, so it must be safe to repeat.

        Raises StoreUnavailable.
        """
        return self._ask_patiently(self._client, question, tries)

    def wait(self, question: Callable[[redis.Redis], T]) -> T:
        """As `ask`, for commands that block up to LONGEST_BLOCK_MS."""
        return self._ask_patiently(self._blocking, question, TRIES)

    def run(
        self, script: Script, keys: Sequence[str], arguments: Sequence[str | bytes | int]
    ) -> Any:
        """Return the script's answer: see `call`."""
        return self.call(lambda client, add_call: add_call(client, script, keys, arguments))

    def run_all(self, script: Script, calls: Sequence[Call]) -> list[Any]:
        """Return the script's answer to each call: see `run_each`."""
        return self.run_each([(script, call) for call in calls])

    def run_each(self, asked: Sequence[Asked]) -> list[Any]:
        """Return the answer of each script; all calls are sent before the first is answered.

        Each call is atomic, but other clients may write between two of them. After a failed call
        the server still executes the later ones, and all are repeated when the connection breaks.
        """
        if not asked:
            return []
        return self.call(lambda client, add_call: _asked_at_once(client, asked, add_call))

    def call(
        self,
        question: Callable[[redis.Redis, AddCall], T],
        *,
        otherwise: Callable[[redis.Redis], T] | None = None,
    ) -> T:
        """Return the answer to a question that calls scripts by `add_call`; safe to repeat.

        Scripts are called by their digest: a scheduler has loaded them. If one is missing, a user
        with the right to load scripts loads all of them. Other users ask `otherwise`, if it is
        given, or wait a few seconds for a scheduler. Raises StoreUnavailable.
        """

        def asked(client: redis.Redis) -> T:
            try:
                return question(client, _by_digest)
            except broken.NoScriptError as error:
                unknown = error
            if self._may(client, _load_all):
                return question(client, _by_digest)
            # A user from an ACL file that predates the present roles may EVAL.
            if self._may(client, _try_eval):
                return question(client, _by_text)
            if otherwise is not None:
                return otherwise(client)
            raise unknown

        try:
            return self.ask(asked)
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, broken.NoScriptError):
                raise
            raise self._missing_scripts() from error.__cause__

    def _missing_scripts(self) -> StoreUnavailable:
        """Return the error for a server without this version's scripts, with its remedy."""
        entries = self.ask(lambda client: cast("dict[bytes, bytes]", client.hgetall(SCHEDULERS)))
        matches = (_VERSION.search(value.decode(errors="replace")) for value in entries.values())
        versions = sorted({found[1] for found in matches if found})
        if not versions:
            why = "no scheduler is running to load them"
            hint = "start one: `batchq scheduler`"
        elif versions != [__version__]:
            why = f"its schedulers are of version {', '.join(versions[:5])}"
            hint = "run one version everywhere; upgrade the schedulers first"
        else:
            why = "its scheduler has not loaded them"
            hint = "renew the user of the scheduler with `batchq acl scheduler`, and see its log"
        return StoreUnavailable(
            f"the server at {self.shown} does not know the scripts of batchq {__version__}: {why}",
            hint=hint,
        )

    def keep_scripts(self) -> bool:
        """Load every script of batchq, if the server lacks one; return False if this user may not.

        Raises StoreUnavailable.
        """
        return self.ask(lambda client: self._may(client, _load_missing))

    def _may(self, client: redis.Redis, step: Callable[[redis.Redis], object]) -> bool:
        """Try a step that most roles may not take; return whether it was permitted.

        The server logs each refusal, so a refused step is tried again only after a minute.
        """
        if time.monotonic() < self._refused_until.get(step, 0.0):
            return False
        try:
            step(client)
        except broken.NoPermissionError:
            self._refused_until[step] = time.monotonic() + REFUSED_FOR_S
            return False
        return True

    def asking_s(self, thread: int) -> float:
        """How long this thread has been waiting for an answer, in seconds; 0 if it is not."""
        since = self._asking_since.get(thread)
        return 0.0 if since is None else time.monotonic() - since

    def run_id(self) -> str:
        """Return the server's run id, new after each start; "" if a client stands in for it."""
        if not self._has_server:
            return ""
        return self.ask(lambda client: str(client.info("server").get("run_id", "")))

    def pause(self, seconds: float) -> None:
        """Wait, unless the connection is closed meanwhile."""
        self._closing.wait(seconds)

    def close(self) -> None:
        """Close every connection; callers that wait between two tries stop waiting."""
        self._closing.set()
        for client in (self._client, self._blocking):
            close_client(client)

    def _ask_patiently(
        self, client: redis.Redis, question: Callable[[redis.Redis], T], tries: int
    ) -> T:
        while True:
            patience = self._patience
            thread = threading.get_ident()
            # As `waiting` does; a context manager would cost as much as a short command.
            self._asking_since[thread] = time.monotonic()
            try:
                answer = self._ask(client, question, tries)
            except StoreUnavailable as error:
                self._asking_since.pop(thread, None)
                if self._closing.is_set():
                    # The user has left; another thread was still waiting.
                    raise
                wait_s = None if patience is None else patience.next_wait_s(error)
                if wait_s is None or self._closing.wait(wait_s):
                    raise
                continue
            finally:
                self._asking_since.pop(thread, None)
            if patience is not None:
                patience.answered()
            return answer

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Mark this thread as waiting for the server, for `asking_s`."""
        thread = threading.get_ident()
        self._asking_since[thread] = time.monotonic()
        try:
            yield
        finally:
            self._asking_since.pop(thread, None)

    def _ask(self, client: redis.Redis, question: Callable[[redis.Redis], T], tries: int) -> T:
        give_up_at = time.monotonic() + (self._survives_s or LONGEST_ASK_S)
        failed = 0
        loading_until: float | None = None
        while True:
            try:
                return question(client)
            except broken.BusyLoadingError as error:
                now = time.monotonic()
                loading_until = loading_until or now + LOADING_TIMEOUT_S
                if now > loading_until:
                    raise self.unavailable(error) from error
                delay = LONGEST_DELAY_S / 4
            except broken.AuthenticationError as error:
                raise self.unavailable(error) from error
            except (broken.RedisError, OSError) as error:
                failed += 1
                # A live scheduler loads its scripts again within seconds.
                is_unknown = isinstance(error, broken.NoScriptError)
                has_tried = failed >= tries and not is_unknown and not self._survives_s
                spent = has_tried or time.monotonic() >= give_up_at
                if spent or not self._is_transient(client, error):
                    raise self.unavailable(error) from error
                delay = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** min(failed, TRIES))
            if self._closing.wait(delay * random.uniform(0.5, 1.0)):
                raise StoreUnavailable(f"the connection to {self.shown} was closed")

    def _is_transient(self, client: redis.Redis, error: Exception) -> bool:
        """Return whether another try may succeed."""
        if isinstance(error, (*_LOST, broken.NoScriptError)):
            return True
        if _word_of(error) in _MENDED:
            return self.waits_for_mending
        if self._through_sentinels and _word_of(error) in _DEMOTED:
            # The command was not executed; the next connection asks which server is primary now.
            forget_idle(client)
            client.connection_pool.disconnect(inuse_connections=False)
            return True
        return False

    def _on_connect(self, connection: Any) -> None:
        connection.on_connect()
        self.connections += 1

    def unavailable(self, error: Exception) -> StoreUnavailable:
        """Return the error, with a hint, for what redis-py raised."""
        if isinstance(error, NoPrimary):
            # Without the URL: an unknown host in it may be a mistyped password.
            return StoreUnavailable(f"the sentinels {error.message}", hint=error.hint)
        if is_unknown_host(str(error)):
            return StoreUnavailable(UNKNOWN_HOST, hint=f"check --redis-url, or {URL_VARIABLE}")
        message, hint = _diagnosis(error, self._url)
        lasts = isinstance(error, broken.AuthenticationError) or _word_of(error) in _LASTING
        return StoreUnavailable(f"the server at {self.shown} {message}", hint=hint, lasts=lasts)


_ROLES = (
    "use a user of another role: a submitter submits, an operator changes queues, quotas and nodes,"
    " a worker serves the nodes in its rules, a scheduler decides; see `batchq acl --help`"
)
_CODES: tuple[tuple[str, str, str], ...] = (
    ("NOAUTH", "asks for a password", "put it into the URL: redis://:PASSWORD@host:6379/0"),
    ("READONLY", "is a read-only replica", "connect to the primary"),
    (
        "MISCONF",
        "refuses writes: it cannot save to its disk",
        "free its disk: `batchq doctor` names the folder",
    ),
    ("OOM", "refuses writes: its maxmemory is used up", "raise maxmemory or delete what is old"),
    ("NOREPLICAS", "refuses writes: it has too few replicas", "see its min-replicas-to-write"),
    (
        "NOPERM",
        "does not permit this user to do this",
        _ROLES,
    ),
    ("MOVED", "is part of a cluster", "connect to a standalone server: RQ needs one"),
    ("CLUSTERDOWN", "is part of a cluster", "connect to a standalone server: RQ needs one"),
    ("MASTERDOWN", "has lost its primary", "connect to the primary"),
    (
        DAMAGED,
        "holds a damaged value under a key of batchq's",
        "the leading scheduler repairs it within seconds: start one, or see `batchq doctor`",
    ),
    (
        "WRONGTYPE",
        "holds a value of another type under a key of batchq's",
        "the leading scheduler deletes it within seconds: start one, or see `batchq doctor`",
    ),
    (
        "TOOLARGE",
        "refuses a call that carries more than batchq sends at once",
        "split the call; if batchq sent it, this is a bug in batchq",
    ),
    ("BUSY", "is busy with a script", "wait, or stop the script with SCRIPT KILL"),
)
#: The errors that a server reports inside a script or pipeline, where the leading word may be
#: missing.
_PHRASES: tuple[tuple[str, str], ...] = (
    ("WRONGTYPE Operation", "WRONGTYPE"),
    ("command not allowed when used memory", "OOM"),
    ("can't write against a read only", "READONLY"),
    ("read-only script", "READONLY"),
    ("unable to persist", "MISCONF"),
    ("configured to save RDB snapshots", "MISCONF"),
    ("Errors writing to the AOF", "MISCONF"),
    ("enough good replicas", "NOREPLICAS"),
    ("user executing the script can't", "NOPERM"),
    ("has no permissions", "NOPERM"),
    ("Authentication required", "NOAUTH"),
    ("HELLO must be called with the client already authenticated", "NOAUTH"),
)

#: Why a node's key is damaged.
OTHER_TYPE = "it is of another type"
#: The word of damage that no leader may repair.
_ACCESS_DAMAGED = "ACCESSDAMAGED"
#: The errors that a leader repairs within a second or two.
_MENDED = (DAMAGED, "WRONGTYPE")
#: The errors that another try would meet again.
_LASTING = ("NOAUTH", "NOPERM", "MOVED", "TOOLARGE", _ACCESS_DAMAGED)
#: The errors of a server that has just lost the role of primary.
_DEMOTED = ("READONLY", "MASTERDOWN", "UNBLOCKED")


def text_of_answer(code: str) -> str:
    """Return what a server does that answers with this word, and what to do about it."""
    return next(f"{message}; {hint}" for word, message, hint in _CODES if word == code)


def is_forbidden(error: StoreUnavailable) -> bool:
    """Return whether the server answered that this user may not do what was asked."""
    return error.__cause__ is not None and _word_of(error.__cause__) == "NOPERM"


def is_wrong_type(error: BaseException | None) -> bool:
    """Return whether the error reports a key of another type than batchq's."""
    return error is not None and _word_of(error) == "WRONGTYPE"


def has_no_ids_left(info: Mapping[str, Any]) -> bool:
    """Return whether a stream's ids are beyond any clock; `info` is what XINFO STREAM answers."""
    return int(info["last-generated-id"].split(b"-")[0]) >= _MOST_WRITES


def answers_of(pipeline: Any) -> list[Any]:
    """Return the answers of reads, None for a key of another type. Raises any other error."""
    answers = cast("list[Any]", pipeline.execute(raise_on_error=False))
    for place, answer in enumerate(answers):
        if isinstance(answer, Exception):
            if not is_wrong_type(answer):
                raise answer
            answers[place] = None
    return answers


def is_damaged(error: StoreUnavailable) -> bool:
    """Return whether the error reports a damaged key."""
    return error.__cause__ is not None and _word_of(error.__cause__) in _MENDED


def is_count(stored: bytes | None) -> bool:
    """Return whether this is a valid count of writes, or absent."""
    count = whole(stored)
    return stored is None or (count is not None and count < _MOST_WRITES)


def count_of_writes(stored: bytes | None) -> int:
    """Return the stored count of writes. Raises ResponseError if it is malformed; the caller's
    retry gives a leader time to repair it.
    """
    if not is_count(stored):
        raise broken.ResponseError(f"{DAMAGED} {REVISION} is no count of writes")
    return int(stored or 0)


def read_revision(link: Link) -> int:
    """Return the count of writes. Raises StoreUnavailable."""
    return link.ask(lambda client: count_of_writes(cast("bytes | None", client.get(REVISION))))


def _diagnosis(error: Exception, url: str) -> tuple[str, str]:
    text = str(error).strip()
    code = _word_of(error)
    if code == _ACCESS_DAMAGED:
        name = _key_of_access(text)
        hint = f"delete it as a user with all rights, `DEL {name}`: what it holds is lost"
        return f"holds a damaged value under {name}", hint
    for word, message, hint in _CODES:
        if word == code:
            return message, hint
    match error:
        case broken.AuthenticationError():
            hint = "check the credentials in the URL"
            if is_of_node(url):
                hint += (
                    "; if the node's user was revoked (`batchq nodes revoke`), join again with"
                    " another token of `batchq nodes invite`"
                )
            return "refuses the user name or password", hint
        case broken.BusyLoadingError():
            return (
                f"is still reading its files after {LOADING_TIMEOUT_S:.0f} s",
                "wait, then try again",
            )
        case broken.TimeoutError():
            no_tls = ", or does it not speak TLS?" if speaks_tls(url) else "?"
            return (
                f"does not answer within {ANSWER_TIMEOUT_S:.0f} s",
                f"is it overloaded, or stopped{no_tls}",
            )
        case broken.ConnectionError():
            return _no_connection(text, url)
        case broken.InvalidResponse():
            return "does not speak the Redis protocol", "check host and port"
        case _:
            return f"refuses a command: {quoted(text, url)}", "see the server's log"


def _word_of(error: BaseException) -> str:
    """Return the word in capitals that begins the server's message, or should."""
    text = str(error).strip()
    for phrase, word in _PHRASES:
        if phrase in text:
            return word
    if text.startswith(DAMAGED) and _key_of_access(text):
        return _ACCESS_DAMAGED
    match error:
        case broken.NoPermissionError():
            return "NOPERM"
        case broken.ReadOnlyError():
            return "READONLY"
        case broken.OutOfMemoryError():
            return "OOM"
        case _:
            return text.partition(" ")[0]


def _key_of_access(text: str) -> str:
    """Return the key of tokens, bindings or the audit trail that an error names; "" for others."""
    return next((name for name in ACCESS if name in text), "")


def _no_connection(text: str, url: str) -> tuple[str, str]:
    lower = text.lower()
    if found := urls.trouble(text):
        return found
    if is_sentinel(url) and ("refused" in lower or "primary" in lower or "previous" in lower):
        return (
            f"is not running: {quoted(text, url)}",
            "wait until its sentinels have chosen another primary, or start it",
        )
    if "no such file" in lower or "refused" in lower:
        return "is not running: the connection is refused", _how_to_start(url)
    if "permission denied" in lower:
        return (
            "cannot be used by this user: permission denied",
            "check the socket's owner and mode",
        )
    if "protocol" in lower or "unexpected response" in lower:
        return "does not speak the Redis protocol", "check host and port"
    if "max number of clients" in lower:
        return "has no connections left", "raise its maxclients"
    if "reset by peer" in lower or "closed by server" in lower:
        return (
            f"cannot be reached: {quoted(text, url)}",
            "check that it runs, and the URL: with TLS, it begins with rediss://",
        )
    return f"cannot be reached: {quoted(text, url)}", "check that it runs, and the URL"


def _how_to_start(url: str) -> str:
    """Return the hint to start a server: `batchq up` starts only this machine's own."""
    if is_own_server(url):
        return "start it, e.g. with `batchq up`"
    return f"start the server there, or leave out --redis-url and unset {URL_VARIABLE}"
