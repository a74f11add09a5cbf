"""The scheduler daemon: wires the store, leadership, the loop and all services together.

`batchq scheduler` calls `run_scheduler`. The main thread only waits, for a signal or for a thread
that asks the process to end.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from batchq import __version__
from batchq.api.lifecycle import PodPhase
from batchq.api.objects import DEFAULT, Metadata, Node, Pod, PodGroup, Queue
from batchq.api.transaction import Transaction, Write
from batchq.daemon import OWN_MISTAKE, Services, Termination, leader, on_hangup
from batchq.daemon.leader import Leadership, Mender, Quarantine
from batchq.daemon.loop import Loop, TurnReport, watcher
from batchq.daemon.metrics_server import UNFIT_AFTER_PERIODS, MetricsServer
from batchq.daemon.node_reports import node_report_service
from batchq.daemon.reload import Effective, Reload, reload_service
from batchq.errors import StoreUnavailable, UnreadableRecord
from batchq.paths import find_home, resolve_url
from batchq.ports import Clock, Executor, IdSource, Store
from batchq.scheduler.cycle import MOST_WRITTEN, Cycle, CycleReport, StatusWrites
from batchq.scheduler.transactions import completed_on, stopped_on
from batchq.store.keys import CONFIG
from batchq.store.link import is_damaged
from batchq.store.node_channels import WakeReason, notify
from batchq.store.outage import Outage
from batchq.store.redis import RedisStore, open_when_up
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
from batchq.system import RandomIds, structlog
from batchq.worker.rq_delivery import Relay

_log = structlog.get_logger()

#: How many new groups one session takes up at most. Each group of an unknown shape costs about
#: 0.2 ms, and groups that could start wait until the session ends.
NEW_A_SESSION = 1_000
#: Least interval between comparisons of a shard of the store with the mirror. Decisions pause
#: during a comparison, so the interval is also this many times as long as the last one took.
_COMPARE_EVERY_S, _COMPARE_APART = 5.0, 100
#: Approximate number of objects in one shard.
_COMPARED_OBJECTS = 1_000
#: Interval between looks at the outbox when nothing was bound: a former leader may have died
#: before it delivered.
_OUTBOX_EVERY_S = 1.0
_OUTBOX_EVERY_S = 1.0


class SchedulerOptions(Struct, frozen=True, kw_only=True):
    """Options of the command line. With `url` None, BATCHQ_REDIS_URL or the embedded server."""

    url: str | None = None
    home: Path | None = None
    config: Path | None = None
    lease_ms: int = leader.LEASE_MS
    #: `[HOST:]PORT` on which to serve metrics and health; None serves neither.
    metrics: str | None = None


def run_scheduler(options: SchedulerOptions) -> int:
    """Run until SIGTERM or SIGINT (exit code 0), or until an internal error (70).

    Waits until the server answers. The configuration file is reread when it changes, and at once
    on SIGHUP.

    Raises InvalidInput, before anything is started, for an invalid configuration file or URL, or
    an address that metrics cannot be served on.
    """
    url = resolve_url(options.url, find_home(options.home))
    ending = Termination()
    metrics_server = MetricsServer(options.metrics, ending=lambda: ending.asked)
    try:
        reload = Reload(
            options.config, make=metrics_server.assemble, reloaded=metrics_server.reloaded
        )
        on_hangup(reload.ask)
        ending.on_signals(signal.SIGTERM, signal.SIGINT)
        metrics_server.start()
        return _run(url, reload, ending, metrics_server, lease_ms=options.lease_ms)
    finally:
        metrics_server.stop()


def _run(
    url: str, reload: Reload, ending: Termination, metrics_server: MetricsServer, *, lease_ms: int
) -> int:
    """Wait for the server, then serve."""
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
            begin_commit=store.begin_commit,
        )
        actions = first.config.actions
        _log.info("scheduler.starts", server=shown(url), actions=actions, config=first.digest)
        return _serve(
            store, cycle, reload, ending, lease_ms=lease_ms, metrics_server=metrics_server
        )
    finally:
        store.close()


def _serve(
    store: RedisStore,
    cycle: Cycle,
    reload: Reload,
    ending: Termination,
    *,
    lease_ms: int,
    metrics_server: MetricsServer | None = None,
) -> int:
    metrics_server = metrics_server or MetricsServer()
    settings, outage = reload.current.config.settings, Outage()
    store.judge_silence_by(settings.pod_lease_ms)
    store.link.waits_for_mending = False
    before, threading.excepthook = threading.excepthook, _end_process_hook(ending)
    identity = leader.new_identity()
    _load_scripts(store)

    def attended() -> None:
        # Standby schedulers load them too: each version of batchq has its own scripts.
        store.link.keep_scripts()
        attend(
            store,
            identity,
            version=__version__,
            mirrored=turn.mirrored,
            config=reload.current.digest,
            refused_file=reload.refused_file,
        )

    leadership = Leadership(
        store,
        identity=identity,
        outage=outage,
        lease_ms=lease_ms,
        # `turn` and `loop` are assigned below; no service runs before both are.
        fit=lambda: loop.hanging_s() < UNFIT_AFTER_PERIODS * loop.period_s,
        elected=lambda: loop.wake(),
        attend=attended,
        depart=lambda: depart(store, identity),
    )
    relay = Relay(store)
    store.deliverer = relay.calls

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
        observed=metrics_server.observed,
    )
    loop = Loop(
        metrics_server.watching(turn),
        settings=settings,
        outage=outage,
        crashed=_crash(ending),
        asking_s=lambda thread: max(store.link.asking_s(thread), relay.asking_s(thread)),
    )

    # The watcher tells of changes by others.
    store.changes.wrote = lambda transactions: take_turn_after(transactions, loop)
    changes = watcher(
        store,
        changed=loop.wake,
        unchanged=loop.keep_pace,
        apart_s=lambda: loop.apart_s,
    )
    # Has its own thread, so that a long session does not delay pods that report to the leader.
    node_reports = node_report_service(store, epoch=leadership.epoch, ids=RandomIds())
    reloads = reload_service(reload, store, identity=identity, wake=loop.wake)
    services = Services([leadership, loop, node_reports, changes, reloads], name="scheduler")
    metrics_server.follow(
        loop=loop,
        outage=outage,
        epoch=leadership.epoch,
        revision=lambda: turn.mirrored,
        config_hash=lambda: reload.current.digest,
        unreadable=lambda: turn.quarantine.counts,
        mended=lambda: turn.mender.mended,
    )
    disable_gc()
    services.start()
    try:
        code = ending.wait()
    finally:
        services.stop()
        restore_gc()
        threading.excepthook = before
    _log.info("scheduler.ends", exit_code=code)
    if services.alive:
        # A thread that does not end would keep the interpreter alive for ever.
        os._exit(code or OWN_MISTAKE)
    relay.close()
    return code or 0


def _load_scripts(store: RedisStore) -> None:
    """Load the scripts, which users without the permission to load any may then call."""
    # If the server is away now, they are loaded with the next request for the lease.
    with suppress(StoreUnavailable):
        if not store.link.keep_scripts():
            _log.error(
                "scripts.not_loaded",
                error="the server does not permit this user to load scripts",
                hint="renew its line in the file of users: `batchq acl scheduler`",
            )


_ENDED = (PodPhase.SUCCEEDED, PodPhase.FAILED, PodPhase.EVICTED)


def take_turn_after(transactions: Sequence[Transaction], loop: Loop) -> None:
    """Have the loop take a turn after this process's own changes, as soon as they need it."""
    if all(map(may_wait_for_a_turn, transactions)):
        loop.wake_soon()
    elif any(map(frees_resources, transactions)):
        loop.hurry()
    else:
        loop.wake()


def may_wait_for_a_turn(transaction: Transaction) -> bool:
    """Return whether no further decision depends on a transaction.

    It then only grants starts of pods, or says of groups that they run or why they wait. A pod of a
    gang with `spec.launch` is left out (it has ports): the others wait for its start. A group that
    ends, or holds more or less, has charges.
    """
    if transaction.charges or transaction.deliveries:
        return False
    return all(map(_changes_no_more, transaction.writes))


def frees_resources(transaction: Transaction) -> bool:
    """Return whether groups may be waiting for what a transaction frees: a pod has ended, or a node
    takes pods.
    """
    return any(
        (isinstance(one.value, Pod) and one.value.status.phase in _ENDED)
        or (isinstance(one.value, Node) and one.value.status.ready)
        for one in transaction.writes
    )


def _changes_no_more(write: Write) -> bool:
    match write.value:
        case Pod(spec=spec, status=status):
            is_start = status.phase == PodPhase.RUNNING and not status.terminating
            return is_start and not spec.ports
        case PodGroup():
            return write.expect != 0
        case _:
            return False


class LeaderTurn:
    """One turn of a scheduler: a cycle and its deliveries, or, on a standby, a mirror update.

    `effective` is called first and returns the configuration for the whole turn; the leader
    publishes it.

    `mirrored` is the revision that the last turn read, None before the first. Only the session
    thread writes it.
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
        #: The epoch in which the store was bootstrapped. A server may come back empty.
        self._bootstrapped_in: int | None = None
        #: The epoch and digest of the configuration that was published last.
        self._published: tuple[int, str] | None = None
        #: When the mirror is compared next, and the outbox read next (monotonic clock).
        self._compare_at = time.monotonic() + _COMPARE_EVERY_S
        self._deliver_at = 0.0
        #: By the monotonic clock.
        self._status_writes = StatusWrites()
        self._has_run = False
        self.quarantine = Quarantine(store, ids)
        self.mender = Mender(store, ids)
        #: The errors of plugins that were already logged, by plugin.
        self._failures: dict[str, str] = {}
        self.mirrored: int | None = None

    def __call__(self) -> TurnReport:
        """Take the turn; if a damaged key interrupts it, repair the key and try once more.

        Raises StoreUnavailable.
        """
        try:
            return self._run_turn()
        except StoreUnavailable as error:
            if not is_damaged(error) or self._epoch() is None:
                raise
        self.mender.hurry()
        return self._run_turn()

    def _run_turn(self) -> TurnReport:
        effective = self._effective()
        epoch = self._epoch()
        if epoch is None:
            # Keep the mirror warm, so that a successor decides at once without listing first.
            self.mirrored = self._store.follow()
            self.quarantine.look()
            self._after_first_turn()
            return TurnReport()
        has_looked = self.mender.look(epoch)
        if self._bootstrapped_in != epoch:
            self._deliver_at = 0.0
            ensure_default_queue(self._store, clock=self._clock, ids=self._ids)
            self._bootstrapped_in = epoch
        if has_looked and read_config_text(self._store) != effective.text:
            # After a reload, the text on the server is still the former one.
            if self._published == (epoch, effective.digest):
                self.mender.has_mended(CONFIG, "is not what was published", epoch)
            self._published = None
        if has_looked or self._published != (epoch, effective.digest):
            self._limit_objects(effective, epoch)
        if self._published != (epoch, effective.digest):
            publish_config(self._store, effective.text, epoch=epoch)
            self._published = (epoch, effective.digest)
        report = self._decide(epoch)
        # Plugins are asked here: their failures are logged below.
        due_at = report.next_due_at
        self._after_first_turn()
        self.mirrored = report.session.snapshot.revision
        if self.quarantine.look():
            # The unreadable record may have had the key of the default queue.
            self._bootstrapped_in = None
            # Its charges have no holder once it is deleted.
            self.mender.suspect()
        if any(one.answer.subject == THE_LEDGER for one in report.commit.refused):
            self.mender.suspect()
        self.quarantine.tell(epoch)
        self._observed(report)
        self._announce_stops(report)
        self._deliver(report)
        _log_session(report, effective)
        self._log_plugin_failures(report.session.plugins.failures)
        self._compare()
        if self._store.is_behind or len(report.intents) >= MOST_WRITTEN:
            # There is more to read, or the reasons of more groups to write.
            return TurnReport(due_in_ms=1)
        due_in_ms = [] if due_at is None else [due_at - self._clock.now_ms()]
        if (status_in_ms := self._status_writes.due_in_ms(report, _monotonic_ms())) is not None:
            due_in_ms.append(status_in_ms)
        return TurnReport(due_in_ms=min((due for due in due_in_ms if due > 0), default=None))

    def _decide(self, epoch: int) -> CycleReport:
        now_ms = _monotonic_ms()
        writes_status = self._status_writes.is_due(now_ms)
        report = self._cycle.run_once(epoch, writes_status=writes_status)
        if writes_status:
            self._status_writes.note(report, now_ms)
        return report

    def _limit_objects(self, effective: Effective, epoch: int) -> None:
        """Publish the configured number of groups per namespace, which submissions obey."""
        most = effective.config.settings.max_pod_groups_per_namespace
        if read_object_limit(self._store) != most:
            publish_object_limit(self._store, most, request_id=self._ids.new_uid(), epoch=epoch)

    def _announce_stops(self, report: CycleReport) -> None:
        """Notify the nodes of the pods that this turn stops, and of gangs that may start now."""
        nodes = stopped_on(report.commit.applied)
        try:
            notify(self._store.link, nodes, WakeReason.STOPS)
            notify(self._store.link, completed_on(report.session), WakeReason.CLAIMS)
        except StoreUnavailable as trouble:
            # The agents look now and then without being notified.
            _log.warning("stops.unannounced", nodes=len(nodes), trouble=trouble.message)

    def _deliver(self, report: CycleReport) -> None:
        """Deliver what this turn bound, unless its commit has, and at times the whole outbox."""
        bound = [delivery for done in report.commit.applied for delivery in done.deliveries]
        look_at, self._deliver_at = self._deliver_at, 0.0
        # If a delivery fails, `_deliver_at` stays 0 and the next turn reads the outbox.
        if time.monotonic() >= look_at:
            self._executor.deliver()
            look_at = time.monotonic() + _OUTBOX_EVERY_S
        elif report.commit.delivered < len(bound):
            self._executor.deliver(bound)
        self._deliver_at = look_at

    def _after_first_turn(self) -> None:
        """After the first turn, start garbage collection: all long-lived objects exist."""
        if not self._has_run:
            self._has_run = True
            freeze_gc()

    def _log_plugin_failures(self, failures: dict[str, str]) -> None:
        """Log each plugin's failure once, until it changes."""
        for where, error in failures.items():
            if self._failures.get(where) != error:
                _log.error("plugin.failed", plugin=where, error=error)
        self._failures = dict(failures)

    def _compare(self) -> None:
        """Compare the mirror with the store, if that is due; a difference is a bug, or an object
        that was written past batchq. Listing heals it; its charge may be missing, and an agent
        looks for pods that it does not know when the sum of its node changes.
        """
        began = time.monotonic()
        if began < self._compare_at:
            return
        for difference in self._store.compare(_COMPARED_OBJECTS):
            _log.error(
                "mirror.differs",
                kind=difference.kind,
                key=difference.key,
                mirrored=difference.mirrored,
                stored=difference.stored,
            )
            self.mender.suspect()
        took_s = time.monotonic() - began
        self._compare_at = began + max(_COMPARE_EVERY_S, _COMPARE_APART * took_s)


def _monotonic_ms() -> int:
    return round(1000 * time.monotonic())


def ensure_default_queue(store: Store, *, clock: Clock, ids: IdSource) -> None:
    """Create the queue `default` unless it exists or an unreadable record has its key.

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
    # A refusal means that another process has created it meanwhile.
    store.commit([Transaction(subject=f"Queue/{DEFAULT}", writes=(write,))], request_id=uid)


def _log_session(report: CycleReport, effective: Effective) -> None:
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


def _end_process_hook(ending: Termination) -> Callable[[threading.ExceptHookArgs], None]:
    """Return a hook that ends the process when an exception leaves a thread."""

    def hook(args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread else "?"
        _log.critical("thread.crashed", thread=name, exc_info=args.exc_value or sys.exc_info())
        ending.ask(OWN_MISTAKE)

    return hook


#: Thresholds of generations 0, 1 and 2 (`gc.set_threshold`).
_THRESHOLDS = (50_000, 20, 50)
_DEFAULT_THRESHOLDS = gc.get_threshold()


def disable_gc() -> None:
    """Turn garbage collection off until `freeze_gc` is called."""
    gc.disable()


def freeze_gc() -> None:
    """Exempt all present objects from garbage collection, and collect new ones rarely."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()


def restore_gc() -> None:
    """Collect everything again, at Python's usual thresholds."""
    gc.unfreeze()
    gc.set_threshold(*_DEFAULT_THRESHOLDS)
    gc.enable()
