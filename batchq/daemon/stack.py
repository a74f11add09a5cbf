"""The local stack: `batchq up`, `status` and `down` for the processes of a home.

These are the server, the scheduler, the agents and, if its packages are installed, the HTTP API.

An agent that drains waits for its pods for a while and then asks them to stop. An agent that takes
too long is killed together with its pods, which are listed in its run files.
"""

from __future__ import annotations

import hashlib
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec import Struct

from batchq.api.node_features import amounts_of
from batchq.api.notation import counted
from batchq.api.objects import Node
from batchq.config.load import load_config
from batchq.daemon import Termination, detached, on_hangup
from batchq.daemon import embedded_server as embedded
from batchq.daemon.detached import ProcessFate, Record
from batchq.daemon.metrics_server import check_address
from batchq.errors import BatchqError, Conflict, InvalidInput, StoreUnavailable, WaitTimedOut
from batchq.paths import HOME_VARIABLE, URL_VARIABLE, Home, default_url, read_password, resolve_url
from batchq.store.redis import RedisStore, open_store
from batchq.store.urls import shown
from batchq.worker.host.gpu_tools import find_devices
from batchq.worker.host.node_resources import detect_resources, parse_resources
from batchq.worker.workhorse.run_file import RunFiles

#: How long an agent started by `up` lets its pods run while it drains.
STOPPED_AFTER_S = 30.0
#: When a draining agent is killed; its pods have the difference to the above to stop.
DRAINED_WITHIN_S = 45.0

_REPORT_EVERY_S = 5.0
#: Patience for agents that were asked to end long ago.
_LEAST_PATIENCE_S = 2.0
#: A record's note: when draining was requested, on the monotonic clock, which processes share.
_ASKED_AT = "asked-to-drain-at"

Say = Callable[[str], None]


def end_agents(
    run: Path,
    agents: Mapping[str, Record],
    *,
    now: bool = False,
    patience_s: float = DRAINED_WITHIN_S,
    say: Say = lambda _: None,
) -> list[ProcessFate]:
    """End agents, given by node name, whose folders are under `run`.

    `now` kills their pods at once. Agents that already drain are not asked again, because a second
    signal would kill their pods too.
    """

    def running() -> dict[str, Record]:
        return {name: one for name, one in agents.items() if detached.is_running(one)}

    asked_at = [float(one.notes.get(_ASKED_AT, "inf")) for one in running().values()]
    since = min([time.monotonic(), *asked_at])
    progress = StackProgress(
        lambda: {name: pods_of(run, name) for name in running()},
        since=since,
        patience_s=patience_s,
        say=say,
        clock=time.monotonic,
    )
    if not now:
        progress.begin()
    return detached.end_all(
        list(agents.values()),
        patience_s=max(_LEAST_PATIENCE_S, since + patience_s - time.monotonic()),
        ask=_kill_pods if now else lambda record: _drain(run, record),
        meanwhile=progress.go_on,
    )


def _kill_pods(record: Record) -> bool:
    # A second signal makes an agent hurry; two equal signals may be merged into one.
    heard = detached.send(record, signal.SIGINT)
    detached.send(record, signal.SIGTERM)
    return heard


def _drain(run: Path, record: Record) -> bool:
    if _ASKED_AT in record.notes:
        return detached.is_running(record)
    notes = {**record.notes, _ASKED_AT: f"{time.monotonic():.1f}"}
    draining = msgspec.structs.replace(record, notes=notes)
    detached.write_record(run / f"{record.name}.json", draining)
    return detached.send(record, signal.SIGTERM)


def pods_of(run: Path, node: str) -> int:
    """Return how many pods run on a node of this machine."""
    return sum(one.outcome is None for one in RunFiles(run / node).all())


class StackProgress:
    """Reports what `down` waits for, at first and every few seconds."""

    def __init__(
        self,
        look: Callable[[], Mapping[str, int]],
        *,
        since: float,
        patience_s: float,
        say: Say,
        clock: Callable[[], float],
    ) -> None:
        self._look = look
        self._patience_s = patience_s
        self._say = say
        self._clock = clock
        self._since = since
        self._reported_at = clock()

    def begin(self) -> None:
        """Report how long draining may take."""
        pods = self._look()
        agents = counted(len(pods), "node agent")
        if running := sum(pods.values()):
            passed_s = self._clock() - self._since
            allowed_s = max(0.0, min(STOPPED_AFTER_S, self._patience_s) - passed_s)
            self._say(
                f"Draining {agents}: {counted(running, 'pod')} may run on for {allowed_s:.0f}s "
                "(`batchq down --now` does not wait)"
            )
        elif pods:
            self._say(f"Draining {agents}")

    def go_on(self) -> None:
        """Report progress if the last report is long enough ago; call this often."""
        now = self._clock()
        if now - self._reported_at < _REPORT_EVERY_S:
            return
        self._reported_at = now
        for node, count in self._look().items():
            self._say(waiting_for(node, count, now - self._since, self._patience_s))


def waiting_for(node: str, pods: int, elapsed_s: float, patience_s: float) -> str:
    """Return a sentence about what a node is waited for, and until when."""
    if not pods:
        return f"{node}: its agent is ending"
    one = pods == 1
    stopped_in_s = math.ceil(STOPPED_AFTER_S - elapsed_s)
    killed_in_s = max(0, math.ceil(patience_s - elapsed_s))
    if 0 < stopped_in_s <= killed_in_s:
        return (
            f"{node}: {counted(pods, 'pod')} still {'runs' if one else 'run'}; "
            f"{'it is' if one else 'they are'} stopped in {stopped_in_s}s"
        )
    return (
        f"{node}: {counted(pods, 'pod')} still {'runs' if one else 'run'}; "
        f"{'it is' if one else 'they are'} killed in {killed_in_s}s"
    )


MOST_AGENTS = 64

READY_WITHIN_S = 60.0
SCHEDULER_ENDS_WITHIN_S = 40.0
_API_READY_WITHIN_S = 10.0

_POLL_S = 0.05
_WATCH_S = 1.0
#: A running node counts as ready if its last heartbeat is at most this old.
_HEARD_WITHIN_MS = 40_000
#: How lately an agent of another command was heard of that `down` mentions.
_ELSEWHERE_WITHIN_MS = 20_000
#: The most agents that `up` starts.
_MOST_AGENTS = 64
_SCHEDULER = "scheduler"
_API = "api"
_AGENT = "agent-"
#: What the HTTP API needs besides batchq.
_API_PACKAGES = ("starlette", "uvicorn")


class PartState(StrEnum):
    """The state in which a part was found or left."""

    STARTED = "started"
    RUNNING = "running"
    ENDED = "ended"
    KILLED = "killed"
    #: It was started and has died, or the machine was restarted.
    DEAD = "dead"
    ABSENT = "not running"


class Part(Struct, frozen=True, kw_only=True):
    """One process of the stack. `name` is `server`, `scheduler`, `api` or the node's name."""

    name: str
    state: PartState
    pid: int | None = None
    log: str = ""
    #: The resources that an agent offers, the server's version, or the API's address.
    detail: str = ""


class StackReport(Struct, frozen=True, kw_only=True):
    """The answer of `up`, `status` and `down`: the parts in the order in which they start."""

    home: str
    #: Without the password.
    url: str
    parts: tuple[Part, ...]

    @property
    def running(self) -> bool:
        """Whether any part runs."""
        return any(part.state in (PartState.STARTED, PartState.RUNNING) for part in self.parts)


class UpOptions(Struct, frozen=True, kw_only=True):
    """The stack that `up` ensures. With `url` None, BATCHQ_REDIS_URL or the embedded server."""

    url: str | None = None
    agents: int = 2
    #: What each agent offers, `cpu=2,memory=4Gi`; None divides the machine evenly.
    resources: str | None = None
    config: Path | None = None
    #: Makes the embedded server listen on this port of 127.0.0.1 too, and ask for a password.
    port: int | None = None
    #: `[HOST:]PORT` on which the scheduler serves metrics; None to serve none.
    metrics: str | None = None
    #: Whether to start the HTTP API; None starts it if its packages are installed.
    api: bool | None = False
    within_s: float = READY_WITHIN_S


def up(home: Home, options: UpOptions | None = None, *, say: Say = lambda _: None) -> StackReport:
    """Start what does not run yet, and wait until a scheduler leads and all nodes are ready.

    An agent that has died offers its former resources again. If `up` fails, it ends the parts that
    it has started, except a server that holds data. Parts that were running before continue.

    Raises InvalidInput for an invalid option, configuration or home; StoreUnavailable when the
    server cannot be started or reached; Conflict when processes of another stack are in the way;
    BatchqError, with the end of its log, when a process dies at its start; WaitTimedOut.
    """
    options = options or UpOptions()
    _check(options)
    url = resolve_url(options.url, home)
    home.prepare()
    with _turn(home), ExitStack() as undo:
        offers = _offers(home, url, options)
        runs = [record.name for record in _records(home) if detached.is_running(record)]
        if options.metrics is not None and _SCHEDULER not in runs:
            check_address(options.metrics)
        parts = []
        if url == default_url(home):
            if options.port is not None and runs and not read_password(home):
                raise _lacks_password(options.port)
            parts.append(_up_server(home, options, undo, say))
            # The server may have got a password.
            url = default_url(home)
        store = open_store(url)
        try:
            launch = _Launch(home, url, store, undo, say)
            parts.append(launch.scheduler(options.config, options.metrics))
            is_wanted = options.api if options.api is not None else has_api()
            parts.extend(launch.agents(offers, with_api=is_wanted))
            api = launch.api(is_wanted=is_wanted)
            launch.await_ready(parts, detached.node_names(options.agents), options.within_s)
            if api is not None and launch.is_api_ready():
                parts.append(api)
        finally:
            store.close()
        undo.pop_all()
    return StackReport(home=str(home.root), url=shown(url), parts=tuple(parts))


def options_in_vain(home: Home, options: UpOptions) -> list[str]:
    """Return the options for the scheduler with which it was not started: `--config` for another
    file, since it reloads its own, and `--metrics`.
    """
    record = detached.read_record(_record_path(home, _SCHEDULER))
    notes = {} if record is None else record.notes
    given = {
        "config": None if options.config is None else str(options.config.resolve()),
        "metrics": options.metrics,
    }
    return [
        f"--{name}"
        for name, value in given.items()
        if value is not None and notes.get(name) != value
    ]


def status(home: Home, *, url: str | None = None) -> StackReport:
    """Return the state of each part, without starting or changing anything."""
    target = resolve_url(url, home)
    parts = []
    if target == default_url(home):
        parts.append(_server_part(home))
    records = _records(home)
    if not any(record.name == _SCHEDULER for record in records):
        parts.append(Part(name=_SCHEDULER, state=PartState.ABSENT))
    for record in records:
        state = PartState.RUNNING if detached.is_running(record) else PartState.DEAD
        parts.append(_part(record, state))
    return StackReport(home=str(home.root), url=shown(target), parts=tuple(parts))


def has_api() -> bool:
    """Return whether the packages of the HTTP API are installed."""
    return all(find_spec(package) is not None for package in _API_PACKAGES)


def down(
    home: Home,
    *,
    url: str | None = None,
    keep_server: bool = False,
    now: bool = False,
    drained_within_s: float = DRAINED_WITHIN_S,
    say: Say = lambda _: None,
) -> StackReport:
    """End the agents (which drain), then the scheduler and the HTTP API, then the embedded server.

    Data stays.

    With `url`, only the stack of that server; None ends whichever runs here. `keep_server` leaves
    the server running; `now` kills the pods instead of waiting for them. A process that does not
    end in time is killed. Raises Conflict while another process starts or stops the stack, or when
    the stack is another server's, and StoreUnavailable when the server cannot be ended.
    """
    keep_server = keep_server or (url is not None and url != default_url(home))
    asked_for, url = url, url or default_url(home)
    if not home.is_made():
        absent = tuple(Part(name=name, state=PartState.ABSENT) for name in ("server", _SCHEDULER))
        return StackReport(home=str(home.root), url=shown(url), parts=absent)
    with _turn(home):
        records = _records(home)
        if asked_for is not None:
            _refuse_to_end_anothers(home, records, asked_for)
        agents = {_node_of(record): record for record in records if _is_agent(record)}
        others = [record for record in records if not _is_agent(record)]
        if not keep_server and (left := _agents_elsewhere(home, agents)):
            say(f"The server ends for other agents, too: {', '.join(left)}")
        fates = end_agents(home.run, agents, now=now, patience_s=drained_within_s, say=say)
        agent_parts = _ended(home, list(agents.values()), fates)
        ended = _end(home, others, SCHEDULER_ENDS_WITHIN_S)
        server = _server_part(home) if keep_server else _down_server(home)
    first = [part for part in ended if part.name == _SCHEDULER]
    first = first or [Part(name=_SCHEDULER, state=PartState.ABSENT)]
    api = [part for part in ended if part.name == _API]
    parts = (server, *first, *agent_parts, *api)
    return StackReport(home=str(home.root), url=shown(url), parts=parts)


def hold(home: Home, report: StackReport, *, say: Say = lambda _: None) -> StackReport:
    """Keep a running stack up until SIGINT or SIGTERM, or until a part dies; then call `down`.

    SIGHUP is passed on to the scheduler. Main thread only. Raises BatchqError when a part other
    than the HTTP API has died, after everything has ended.
    """
    ending = Termination()
    ending.on_signals(signal.SIGINT, signal.SIGTERM)
    on_hangup(lambda: _pass_on(home, signal.SIGHUP))
    lost: list[Part] = []
    expected = {part.name for part in report.parts if part.name != _API}
    while ending.wait(_WATCH_S) is None and not lost:
        now = status(home, url=None).parts
        lost = [
            part for part in now if part.name in expected and part.state is not PartState.RUNNING
        ]
    say("Stopping")
    result = down(home, say=say)
    if lost and not ending.asked:
        raise _death_of(lost[0].name, Path(lost[0].log), "died", since=0)
    return result


def running_scheduler(home: Home) -> Record | None:
    """Return the scheduler that `up` started here, if it runs."""
    record = detached.read_record(_record_path(home, _SCHEDULER))
    return record if record is not None and detached.is_running(record) else None


class _Launch:
    """Starts the scheduler, the agents and the HTTP API of one `up`."""

    def __init__(self, home: Home, url: str, store: RedisStore, undo: ExitStack, say: Say) -> None:
        self._home = home
        self._store = store
        self._undo = undo
        self._say = say
        self._notes = {"url": _digest(url), "server": shown(url)}
        # The URL may hold a password, which a command line would show to every user.
        self._environ = {**os.environ, HOME_VARIABLE: str(home.root), URL_VARIABLE: url}
        #: The size of each log before its process was started here, in bytes.
        self._since: dict[str, int] = {}
        self._started: list[Record] = []
        self._heard_after_ms = store.now_ms()

    def scheduler(self, config: Path | None, metrics: str | None) -> Part:
        """Find or start the scheduler."""
        arguments = [_SCHEDULER, *(["--config", str(config.absolute())] if config else [])]
        # Explicitly empty: a variable of the caller may be meant for another scheduler.
        arguments += ["--metrics", metrics or ""]
        notes = {"config": str(config.resolve()) if config else "", "metrics": metrics or ""}
        return self._find_or_start(_SCHEDULER, arguments, notes)

    def agents(self, offers: Mapping[str, str], *, with_api: bool) -> list[Part]:
        """Start the agents of `offers`; return them along with those that already run.

        `with_api`: pods with a token use the API of this stack.
        """
        running = {_node_of(record) for record in _running_agents(self._home)}
        worker = ["worker", "--one-account", "--drain-timeout", f"{STOPPED_AFTER_S:.0f}s"]
        if with_api:
            worker += ["--api-server", f"unix:{self._home.api_socket}"]
        return [
            self._find_or_start(
                f"{_AGENT}{name}",
                [*worker, "--name", name, "--resources", offers.get(name, "")],
                {"resources": offers.get(name, "")},
            )
            for name in sorted({*offers, *running}, key=_by_number)
        ]

    def api(self, *, is_wanted: bool) -> Part | None:
        """Find the HTTP API, or start it if it is wanted; None if there is none."""
        record = detached.read_record(_record_path(self._home, _API))
        is_running = record is not None and detached.is_running(record)
        if not (is_wanted or is_running):
            return None
        address = f"unix:{self._home.api_socket}"
        deadline = time.monotonic() + _API_READY_WITHIN_S
        while not is_running and _answers(self._home.api_socket) and time.monotonic() < deadline:
            # The child of a killed API process is ending.
            time.sleep(_POLL_S)
        return self._find_or_start(
            _API, [_API, "--supervised", "--one-account", "--listen", address], {"address": address}
        )

    def is_api_ready(self) -> bool:
        """Wait until the HTTP API answers. If it does not, work goes on without it."""
        record = detached.read_record(_record_path(self._home, _API))
        deadline = time.monotonic() + _API_READY_WITHIN_S
        while record is not None and detached.is_running(record):
            if _answers(self._home.api_socket):
                return True
            if time.monotonic() >= deadline:
                self._say(f"The HTTP API does not answer yet; its log is {record.log}")
                return True
            time.sleep(_POLL_S)
        log = self._home.logs / f"{_API}.log"
        last = detached.tail(log, since=self._since.get(_API, 0), lines=1) or f"see {log}"
        self._say(f"The HTTP API did not start: {last}")
        return False

    def await_ready(self, parts: Sequence[Part], names: Sequence[str], within_s: float) -> None:
        """Wait until a scheduler leads and every node of `names` has sent a heartbeat."""
        started = {part.name for part in parts if part.state is PartState.STARTED}
        deadline = time.monotonic() + within_s
        while waited_for := self._missing(names, started):
            for record in self._started:
                if record.name == _API:
                    continue
                exit_code = detached.reap(record.pid)
                if exit_code is not None or not detached.is_running(record):
                    raise self._died_at_start(record, exit_code)
            if time.monotonic() >= deadline:
                raise WaitTimedOut(
                    f"the stack is not ready after {within_s:.0f} s: no sign of {waited_for}",
                    hint=f"the logs are in {self._home.logs}",
                )
            time.sleep(_POLL_S)

    def _missing(self, names: Sequence[str], started: set[str]) -> str:
        """Return what is still waited for, in words; empty when nothing is."""
        now_ms = self._store.now_ms()
        leader = self._store.leader()
        if leader is None or leader.expires_at <= now_ms or _is_dead_here(leader.identity):
            return "a leading scheduler"
        beats = self._store.beats(names)
        for name in names:
            after_ms = self._heard_after_ms if name in started else now_ms - _HEARD_WITHIN_MS
            node = self._store.get("Node", name)
            is_ready = isinstance(node, Node) and node.status.ready
            if beats.get(name, 0) < after_ms or not is_ready:
                return f"node {name}"
        return ""

    def _find_or_start(self, name: str, arguments: list[str], notes: dict[str, str]) -> Part:
        record = detached.read_record(_record_path(self._home, name))
        if record is not None and detached.is_running(record):
            return _part(record, PartState.RUNNING)
        self._say(f"Starting {_shown(name)}")
        log = self._home.logs / f"{name}.log"
        self._since[name] = detached.size_of(log)
        # -P: a file `redis.py` in the current folder must not be imported in place of the library.
        command = [sys.executable, "-P", "-m", "batchq.cli", *arguments]
        try:
            pid = detached.spawn(command, log=log, environ=self._environ)
        except OSError as error:
            raise BatchqError(
                f"cannot start {_shown(name)}: {error.strerror}", hint=f"its log would be {log}"
            ) from error
        former, record = (
            record,
            Record(
                name=name,
                pid=pid,
                birth=detached.birth_of(pid) or "",
                log=str(log),
                started_at=time.time_ns() // 1_000_000,
                notes={**notes, **self._notes},
            ),
        )
        detached.write_record(_record_path(self._home, name), record)
        self._started.append(record)
        patience_s = DRAINED_WITHIN_S if name.startswith(_AGENT) else SCHEDULER_ENDS_WITHIN_S
        if former is not None:
            # Keep what the dead agent offered, for the next `up`.
            self._undo.callback(detached.write_record, _record_path(self._home, name), former)
        self._undo.callback(_end, self._home, [record], patience_s)
        return _part(record, PartState.STARTED)

    def _died_at_start(self, record: Record, exit_code: int | None) -> BatchqError:
        how = "died" if exit_code is None else f"ended with {detached.in_words(exit_code)}"
        since = self._since[record.name]
        return _death_of(_shown(record.name), Path(record.log), f"{how} at its start", since=since)


def _check(options: UpOptions) -> None:
    """Check everything that can be checked before anything is started."""
    if not 0 <= options.agents <= MOST_AGENTS:
        raise InvalidInput(f"expected 0 to {MOST_AGENTS} agents, found {options.agents}")
    if options.resources is not None:
        parse_resources(options.resources)
    load_config(options.config)


def _offers(home: Home, url: str, options: UpOptions) -> dict[str, str]:
    """Return the agents to start, each with what it offers.

    Raises Conflict when a process of this home works for another server, or nothing is left.
    """
    for record in _records(home):
        if detached.is_running(record) and record.notes.get("url") != _digest(url):
            raise Conflict(
                f"the {_shown(record.name)} of this home runs already, on {_server_of(record)}",
                hint=f"stop it with `batchq down`, without --redis-url and {URL_VARIABLE}, "
                f"or use another {HOME_VARIABLE}",
            )
    records = [record for record in _records(home) if _is_agent(record)]
    there = {_node_of(record): _offer_of(record) for record in _running_agents(home)}
    missing = [name for name in detached.node_names(options.agents) if name not in there]
    if options.resources is not None:
        return dict.fromkeys(missing, options.resources)
    dead = {_node_of(record): _offer_of(record) for record in records}
    again = {name: dead[name] for name in missing if dead.get(name)}
    # The agents of a replay declare what they offer, and use nothing of this machine.
    taken = {name: parse_resources(offer) for name, offer in {**there, **again}.items() if offer}
    new = [name for name in missing if name not in again]
    divided = detached.divide(_machine(), taken, new) if new else {}
    return again | {name: detached.written(share) for name, share in divided.items()}


def _machine() -> dict[str, int]:
    """Return what this machine has, also devices that have failed: they may come back."""
    return {**detect_resources(), **amounts_of(find_devices().devices)}


def _refuse_to_end_anothers(home: Home, records: Sequence[Record], url: str) -> None:
    for record in records:
        if detached.is_running(record) and record.notes.get("url") != _digest(url):
            raise Conflict(
                f"the {_shown(record.name)} of {home.root} runs on {_server_of(record)}, "
                f"not on {shown(url)}",
                hint=f"without --redis-url and {URL_VARIABLE}, `batchq down` stops what runs here",
            )


def _up_server(home: Home, options: UpOptions, undo: ExitStack, say: Say) -> Part:
    if embedded.running_server(home) is None:
        say("Starting the embedded server")
        # Registered before the start, because Ctrl-C may interrupt it.
        if embedded.holds_data(home):
            undo.callback(_say_kept, home, say)
        else:
            undo.callback(embedded.stop_server, home)
    server = embedded.ensure_server(home, port=options.port)
    if server.port:
        say(
            f"The server listens on 127.0.0.1:{server.port} too, and asks for the password in"
            f" {home.password}, which only this user can read"
        )
        say("Its connections are not encrypted: tunnel through ssh from other machines")
    return Part(
        name="server",
        state=PartState.STARTED if server.started else PartState.RUNNING,
        pid=server.pid,
        log=str(embedded.log_path(home)),
        detail=server.version,
    )


def _say_kept(home: Home, say: Say) -> None:
    """Say that the server keeps running, unless it could not be started."""
    if embedded.is_alive(home):
        say("The embedded server holds data and keeps running; `batchq down` ends it")


def _lacks_password(port: int) -> Conflict:
    return Conflict(
        "the running processes have no password, and a server that listens on port"
        f" {port} asks for one",
        hint="stop them first with `batchq down`; the data stays",
    )


def _down_server(home: Home) -> Part:
    state = _state(embedded.stop_server(home))
    return Part(name="server", state=state, log=str(embedded.log_path(home)))


def _agents_elsewhere(home: Home, own: Collection[str]) -> list[str]:
    """Return the nodes that the embedded server has heard of lately, and whose agents `up` has not
    started here; none if it does not answer.
    """
    if embedded.running_server(home) is None:
        return []
    store = RedisStore(default_url(home))
    try:
        heard_after_ms = store.now_ms() - _ELSEWHERE_WITHIN_MS
        beats = store.beats()
    except StoreUnavailable:
        return []
    finally:
        store.close()
    # An agent of this stack may have ended a moment ago.
    named = {*own, *detached.node_names(_MOST_AGENTS)}
    return sorted(name for name, at in beats.items() if at >= heard_after_ms and name not in named)


def _server_part(home: Home) -> Part:
    log = str(embedded.log_path(home))
    server = embedded.running_server(home)
    if server is not None:
        return Part(
            name="server", state=PartState.RUNNING, pid=server.pid, log=log, detail=server.version
        )
    record = detached.read_record(embedded.record_path(home))
    return Part(
        name="server", state=PartState.ABSENT if record is None else PartState.DEAD, log=log
    )


def _end(home: Home, records: Sequence[Record], patience_s: float) -> list[Part]:
    return _ended(home, records, detached.end_all(records, patience_s=patience_s))


def _ended(home: Home, records: Sequence[Record], fates: Sequence[ProcessFate]) -> list[Part]:
    for record in records:
        _record_path(home, record.name).unlink(missing_ok=True)
    return [_part(record, _state(fate)) for record, fate in zip(records, fates, strict=True)]


def _records(home: Home) -> list[Record]:
    """Return the scheduler's record, then the agents' by number, then the HTTP API's."""
    agents = sorted(home.run.glob(f"{_AGENT}*.json"), key=lambda path: _by_number(path.stem))
    paths = [_record_path(home, _SCHEDULER), *agents, _record_path(home, _API)]
    return [record for path in paths if (record := detached.read_record(path)) is not None]


def _running_agents(home: Home) -> list[Record]:
    found = [record for record in _records(home) if _is_agent(record)]
    return [record for record in found if detached.is_running(record)]


def _is_agent(record: Record) -> bool:
    return record.name.startswith(_AGENT)


def _node_of(record: Record) -> str:
    return record.name.removeprefix(_AGENT)


def _offer_of(record: Record) -> str:
    return record.notes.get("resources", "")


def _server_of(record: Record) -> str:
    """Return the URL of the record's server, without its password."""
    return record.notes.get("server", "another server")


def _digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:16]


def _by_number(name: str) -> tuple[str, int]:
    """Sort `host-10` after `host-9`."""
    stem, _, number = name.rpartition("-")
    return (stem, int(number)) if number.isdigit() else (name, 0)


def _part(record: Record, state: PartState) -> Part:
    alive = state in (PartState.STARTED, PartState.RUNNING)
    return Part(
        name=_node_of(record),
        state=state,
        pid=record.pid if alive else None,
        log=record.log,
        detail=record.notes.get("address", "") or _offer_of(record),
    )


def _state(fate: ProcessFate) -> PartState:
    match fate:
        case ProcessFate.ENDED:
            return PartState.ENDED
        case ProcessFate.KILLED:
            return PartState.KILLED
        case ProcessFate.ABSENT:
            return PartState.ABSENT


def _shown(name: str) -> str:
    if name == _API:
        return "HTTP API"
    return f"agent {name.removeprefix(_AGENT)}" if name.startswith(_AGENT) else name


def _death_of(name: str, log: Path, how: str, *, since: int) -> BatchqError:
    last = detached.tail(log, since=since, lines=5) or "its log is empty"
    return BatchqError(f"the {name} {how}: {last}", hint=f"its log is {log}")


def _is_dead_here(identity: str) -> bool:
    """Return whether a leader's identity is a process of this machine that has ended."""
    host, _, rest = identity.rpartition(":")[0].rpartition(":")
    is_ours = host == socket.gethostname() and rest.isdigit()
    return is_ours and detached.birth_of(int(rest)) is None


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_POLL_S)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _pass_on(home: Home, number: signal.Signals) -> None:
    if scheduler := running_scheduler(home):
        detached.send(scheduler, number)


def _record_path(home: Home, name: str) -> Path:
    return home.run / f"{name}.json"


def _turn(home: Home) -> AbstractContextManager[None]:
    return detached.exclusive(
        home.run / "stack.turn", wait_s=READY_WITHIN_S, doing="start or stop the stack"
    )
