"""The scheduler daemon, put together: store, leadership, loop and their end.

`run_scheduler` is what `batchq scheduler` runs. The main thread only waits: for a signal, or for
a thread that says that the process must end.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog
from msgspec import Struct

from batchq import __version__
from batchq.api.objects import DEFAULT, Metadata, Queue
from batchq.api.transaction import Transaction, Write
from batchq.daemon import leader
from batchq.daemon.leader import Leadership
from batchq.daemon.loop import Loop, TurnReport, watcher
from batchq.daemon.node_reports import clerk_service
from batchq.daemon.observability.http_server import UNFIT_AFTER_PERIODS, MetricsServer
from batchq.daemon.reload import Effective, Reload, reload_service
from batchq.daemon.repair import Mender, Quarantine
from batchq.daemon.services import OWN_MISTAKE, Services, Termination, on_hangup
from batchq.errors import StoreUnavailable, UnreadableRecord
from batchq.paths import find_home, resolve_url
from batchq.ports import Clock, Executor, IdSource, Store
from batchq.scheduler.cycle import Cycle, CycleReport
from batchq.store.connect import open_when_up
from batchq.store.keys import CONFIG
from batchq.store.link import is_damaged
from batchq.store.outage import Outage
from batchq.store.redis import RedisStore
from batchq.store.rules import THE_LEDGER
from batchq.store.schedulers import (
    attend,
    depart,
    publish_config,
    publish_object_limit,
    read_config_text,
    read_object_limit,
)
from batchq.store.urls import shown
from batchq.system import RandomIds
from batchq.worker.rq.delivery import Relay

_log = structlog.get_logger()

#: So many new groups a session takes up, if they are many: those of shapes that it does not know
#: take it a fifth of a millisecond each, and what could start waits for it to end.
NEW_A_SESSION = 1_000
#: So often a shard of the store is compared with what the scheduler believes.
_COMPARED_EVERY_S = 5.0
#: So many objects in one shard, about.
_COMPARED_AT_ONCE = 1_000
#: So often the outbox is looked at though nothing was bound: somebody may have died over it.
_LOOKED_FOR_EVERY_S = 1.0


class SchedulerOptions(Struct, frozen=True, kw_only=True):
    """What the command line says. `url` None: BATCHQ_REDIS_URL, else the embedded server."""

    url: str | None = None
    home: Path | None = None
    config: Path | None = None
    lease_ms: int = leader.LEASE_MS
    #: `[HOST:]PORT` to serve metrics and health on; None to serve none.
    metrics: str | None = None


def run_scheduler(options: SchedulerOptions) -> int:
    """Run until SIGTERM or SIGINT (exit code 0), or until an own mistake (70).

    Waits for a server that does not answer yet. The configuration file is followed from then on,
    and read at once on SIGHUP. Raises InvalidInput for a wrong one, a wrong URL, or an address for
    metrics that cannot be had, before anything is started.
    """
    url = resolve_url(options.url, find_home(options.home))
    ending = Termination()
    lookout = MetricsServer(options.metrics, ending=lambda: ending.asked)
    try:
        reload = Reload(options.config, make=lookout.assemble, reloaded=lookout.reloaded)
        on_hangup(reload.ask)
        ending.on_signals(signal.SIGTERM, signal.SIGINT)
        lookout.start()
        return _run(url, reload, ending, lookout, lease_ms=options.lease_ms)
    finally:
        lookout.stop()


def _run(
    url: str, reload: Reload, ending: Termination, lookout: MetricsServer, *, lease_ms: int
) -> int:
    """Wait for the server, and serve."""
    store = open_when_up(url, pause=lambda seconds: ending.wait(seconds) is None)
    if store is None:
        return 0
    try:
        first = reload.current
        store.take_up_in_turns()
        cycle = Cycle(
            store,
            first.scheduler,
            store,
            RandomIds(),
            snapshot=lambda: store.snapshot_in_turn(NEW_A_SESSION),
        )
        actions = first.config.actions
        _log.info("scheduler.starts", server=shown(url), actions=actions, config=first.digest)
        return _serve(store, cycle, reload, ending, lease_ms=lease_ms, lookout=lookout)
    finally:
        store.close()


def _serve(
    store: RedisStore,
    cycle: Cycle,
    reload: Reload,
    ending: Termination,
    *,
    lease_ms: int,
    lookout: MetricsServer | None = None,
) -> int:
    lookout = lookout or MetricsServer()
    settings, outage = reload.current.config.settings, Outage()
    store.judge_silence_by(settings.pod_lease_ms)
    store.link.waits_for_mending = False
    before, threading.excepthook = threading.excepthook, _ends_the_process(ending)
    identity = leader.new_identity()
    _load_scripts(store)

    def attended() -> None:
        # Whoever stands by loads them, too: of several versions, each has its own.
        store.link.keep_scripts()
        attend(store, identity, version=__version__, mirrored=turn.mirrored)

    leadership = Leadership(
        store,
        identity=identity,
        outage=outage,
        lease_ms=lease_ms,
        # Turn and loop are made after what they ask for the epoch; none runs before all are made.
        fit=lambda: loop.hanging_s() < UNFIT_AFTER_PERIODS * loop.period_s,
        elected=lambda: loop.wake(),
        attend=attended,
        depart=lambda: depart(store, identity),
    )
    relay = Relay(store)

    def effective() -> Effective:
        fresh = reload.take_up()
        if fresh is not None:
            cycle.go_by(fresh.scheduler)
            loop.go_by(fresh.config.settings)
            store.judge_silence_by(fresh.config.settings.pod_lease_ms)
        return reload.current

    turn = LeaderTurn(
        store,
        cycle,
        relay,
        effective=effective,
        clock=store,
        epoch=leadership.epoch,
        ids=RandomIds(),
        observed=lookout.observed,
    )
    loop = Loop(
        lookout.watching(turn),
        settings=settings,
        outage=outage,
        crashed=_crash(ending),
        asking_s=lambda thread: max(store.link.asking_s(thread), relay.asking_s(thread)),
    )
    changes = watcher(
        store,
        changed=loop.wake,
        unchanged=loop.keep_pace,
        apart_s=lambda: loop.apart_s,
    )
    # A thread of its own: what a pod waits for is not kept waiting by a long session.
    clerk = clerk_service(store, epoch=leadership.epoch, ids=RandomIds(), freed=loop.hurry)
    reloads = reload_service(reload, store, identity=identity, wake=loop.wake)
    services = Services([leadership, loop, clerk, changes, reloads], name="scheduler")
    lookout.follow(
        loop=loop,
        outage=outage,
        epoch=leadership.epoch,
        revision=lambda: turn.mirrored,
        config_hash=lambda: reload.current.digest,
        unreadable=lambda: turn.quarantine.counts,
        mended=lambda: turn.mender.mended,
    )
    stand_still()
    services.start()
    try:
        code = ending.wait()
    finally:
        services.stop()
        as_usual()
        threading.excepthook = before
    _log.info("scheduler.ends", exit_code=code)
    if services.alive:
        # A thread that does not end would keep the interpreter from ending, for ever.
        os._exit(code or OWN_MISTAKE)
    relay.close()
    return code or 0


def _load_scripts(store: RedisStore) -> None:
    """Others may call scripts that have been loaded, and may load none themselves."""
    # A server that is away now is given them when the lease is asked for.
    with suppress(StoreUnavailable):
        if not store.link.keep_scripts():
            _log.error(
                "scripts.not_loaded",
                error="the server does not permit this user to load scripts",
                hint="renew its line in the file of users: `batchq acl scheduler`",
            )


class LeaderTurn:
    """One turn of a scheduler: a cycle and its deliveries, or, while another leads, a look.

    Before either, `effective` puts in place the configuration that the whole turn goes by; who
    leads publishes it.

    `mirrored` is the revision that the last turn has seen, None before the first; only the
    deciding thread writes it.
    """

    def __init__(
        self,
        store: RedisStore,
        cycle: Cycle,
        executor: Executor,
        *,
        effective: Callable[[], Effective],
        clock: Clock,
        epoch: Callable[[], int | None],
        ids: IdSource,
        observed: Callable[[CycleReport], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._observed = observed
        self._cycle = cycle
        self._executor = executor
        self._effective = effective
        self._clock = clock
        self._epoch = epoch
        self._ids = ids
        #: The epoch in which the store was furnished: a server may come back with nothing in it.
        self._furnished_in: int | None = None
        #: In which epoch what was published last.
        self._published: tuple[int, str] | None = None
        #: When the mirror is held against the server again, and the outbox looked at; monotonic.
        self._compare_at = time.monotonic() + _COMPARED_EVERY_S
        self._deliver_at = 0.0
        self._has_taken_in = False
        self.quarantine = Quarantine(store, ids)
        self.mender = Mender(store, ids)
        #: What plugins of others have raised, as far as it has been told.
        self._failures: dict[str, str] = {}
        self.mirrored: int | None = None

    def __call__(self) -> TurnReport:
        """Take the turn; where something damaged stands in its way, mend it and take it again.

        Raises StoreUnavailable.
        """
        try:
            return self._take()
        except StoreUnavailable as error:
            if not is_damaged(error) or self._epoch() is None:
                raise
        self.mender.hurry()
        return self._take()

    def _take(self) -> TurnReport:
        effective = self._effective()
        epoch = self._epoch()
        if epoch is None:
            # A warm mirror: who succeeds the leader decides at once, and lists nothing first.
            self.mirrored = self._store.follow()
            self.quarantine.look()
            self._taken_in()
            return TurnReport()
        has_looked = self.mender.look(epoch)
        if self._furnished_in != epoch:
            self._deliver_at = 0.0
            ensure_default_queue(self._store, clock=self._clock, ids=self._ids)
            self._furnished_in = epoch
        if has_looked and read_config_text(self._store) != effective.text:
            if self._published is not None and self._published[0] == epoch:
                self.mender.has_mended(CONFIG, "is not what was published", epoch)
            self._published = None
        if has_looked or self._published != (epoch, effective.digest):
            self._limit_objects(effective, epoch)
        if self._published != (epoch, effective.digest):
            publish_config(self._store, effective.text, epoch=epoch)
            self._published = (epoch, effective.digest)
        report = self._cycle.run_once(epoch)
        self._taken_in()
        self.mirrored = report.session.snapshot.revision
        if self.quarantine.look():
            # One of them may have stood in the place of the default queue.
            self._furnished_in = None
            # What it was charged is charged to nobody, once it is gone.
            self.mender.suspect()
        if any(one.answer.subject == THE_LEDGER for one in report.commit.refused):
            self.mender.suspect()
        self.quarantine.tell(epoch)
        self._observed(report)
        self._deliver(report)
        _tell(report, effective)
        self._tell_failures(report.session.failures)
        if time.monotonic() >= self._compare_at:
            self._compare_at = time.monotonic() + _COMPARED_EVERY_S
            self._compare()
        if self._store.is_behind:
            return TurnReport(due_in_ms=1)
        if report.next_due_at is None:
            return TurnReport()
        return TurnReport(due_in_ms=report.next_due_at - self._clock.now_ms())

    def _limit_objects(self, effective: Effective, epoch: int) -> None:
        """See that submitters are held to the configured number of groups per namespace."""
        most = effective.config.settings.max_pod_groups_per_namespace
        if read_object_limit(self._store) != most:
            publish_object_limit(self._store, most, request_id=self._ids.new_uid(), epoch=epoch)

    def _deliver(self, report: CycleReport) -> None:
        """What this turn has bound, and now and then what anybody has left in the outbox."""
        bound = [delivery for done in report.commit.applied for delivery in done.deliveries]
        look_at, self._deliver_at = self._deliver_at, 0.0
        # Whatever fails on the way is made good by the next turn.
        if time.monotonic() >= look_at:
            self._executor.deliver()
            look_at = time.monotonic() + _LOOKED_FOR_EVERY_S
        elif bound:
            self._executor.deliver(bound)
        self._deliver_at = look_at

    def _taken_in(self) -> None:
        """After the first turn: everything that lasts is there."""
        if not self._has_taken_in:
            self._has_taken_in = True
            leave_alone()

    def _tell_failures(self, failures: dict[str, str]) -> None:
        """Once for as long as a plugin goes on raising the same."""
        for where, error in failures.items():
            if self._failures.get(where) != error:
                _log.error("plugin.failed", plugin=where, error=error)
        self._failures = dict(failures)

    def _compare(self) -> None:
        """Look whether the mirror is true; a difference is our mistake, and heals by listing."""
        for difference in self._store.compare(_COMPARED_AT_ONCE):
            _log.error(
                "mirror.differs",
                kind=difference.kind,
                key=difference.key,
                mirrored=difference.mirrored,
                stored=difference.stored,
            )


def ensure_default_queue(store: Store, *, clock: Clock, ids: IdSource) -> None:
    """Make the queue `default` unless it exists, or something unreadable stands in its place.

    Raises StoreUnavailable.
    """
    try:
        if store.get("Queue", DEFAULT) is not None:
            return
    except UnreadableRecord:
        return
    uid = ids.new_uid()
    queue = Queue(metadata=Metadata(name=DEFAULT, uid=uid, creation_timestamp=clock.now_ms()))
    write = Write(kind="Queue", key=DEFAULT, expect=0, value=queue)
    # A refusal means that somebody else has made it meanwhile.
    store.commit([Transaction(subject=f"Queue/{DEFAULT}", writes=(write,))], request_id=uid)


def _tell(report: CycleReport, effective: Effective) -> None:
    commit = report.commit
    if report.intents:
        _log.info(
            "session.committed",
            intents=len(report.intents),
            applied=len(commit.applied),
            refused=len(commit.refused),
            duration_ms=report.duration_ms,
            config=effective.digest,
        )


def _crash(ending: Termination) -> Callable[[BaseException], None]:
    def crashed(error: BaseException) -> None:
        _log.critical("session.crashed", error=str(error), exc_info=error)
        ending.ask(OWN_MISTAKE)

    return crashed


def _ends_the_process(ending: Termination) -> Callable[[threading.ExceptHookArgs], None]:
    """No thread dies unnoticed: what leaves one is our mistake."""

    def hook(args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread else "?"
        _log.critical("thread.crashed", thread=name, exc_info=args.exc_value or sys.exc_info())
        ending.ask(OWN_MISTAKE)

    return hook


#: New objects before the youngest are looked at; such looks before the next generation, and so on.
_THRESHOLDS = (50_000, 20, 50)
_USUAL = gc.get_threshold()


def stand_still() -> None:
    """Collect nothing until `leave_alone` is called."""
    gc.disable()


def leave_alone() -> None:
    """Whatever there is lasts; collect what comes from now on, now and then."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()


def as_usual() -> None:
    """Look at everything again, as often as Python does."""
    gc.unfreeze()
    gc.set_threshold(*_USUAL)
    gc.enable()
