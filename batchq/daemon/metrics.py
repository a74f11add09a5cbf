"""The metrics of the daemon: their definitions in one closed list, counters, and the export.

Values are in base units: seconds, bytes, cores. Labels are bounded: queues, resources that a node
or a queue names, and words from closed lists; never a group's, a pod's or a user's name.
docs/metrics.md repeats the list for people, and a test compares the two.

The time of a plugin excludes the time of plugins that it calls: the order of queues asks which
groups may be admitted, and that time counts for `capacity`, not for `proportion`. So the times of a
session add up to no more than the session.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import prometheus_client
from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from batchq import __version__
from batchq.api import intents
from batchq.api.intents import Intent
from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import KINDS, PodGroupStatus
from batchq.api.reasons import Finish, Leaving
from batchq.api.transaction import Word, count_of
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState
from batchq.daemon.gauges import NO_QUEUE, Levels, in_wholes, levels_of, resources_of
from batchq.daemon.loop import Turn, TurnReport
from batchq.errors import StoreUnavailable
from batchq.scheduler.cycle import CycleReport
from batchq.store.outage import Outage

Kind = Literal["gauge", "counter", "histogram"]

#: Buckets for how long groups wait: a second to a week.
WAITS_S = (1, 5, 15, 60, 300, 900, 3600, 14_400, 43_200, 86_400, 604_800)
#: Buckets for the parts of a cycle.
WORK_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
#: Buckets for one plugin's part of a session.
SLICES_S = (0.00001, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)


class Measure(Struct, frozen=True, kw_only=True):
    """One metric, without values. `name` is as queries write it, a counter's with its `_total`."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _gauge(name: str, help: str, *labels: str) -> Measure:
    return Measure(name=f"batchq_{name}", kind="gauge", help=help, labels=labels)


def _counter(name: str, help: str, *labels: str) -> Measure:
    return Measure(name=f"batchq_{name}_total", kind="counter", help=help, labels=labels)


def _histogram(name: str, buckets: tuple[float, ...], help: str, *labels: str) -> Measure:
    name = f"batchq_{name}_seconds"
    return Measure(name=name, kind="histogram", help=help, labels=labels, buckets=buckets)


# State after the last session, exported only by the leader.

GROUPS = _gauge("groups", "Groups that have not ended, by phase.", "queue", "phase")
WAITING = _gauge(
    "waiting_groups",
    "Groups that wait, by their most fundamental reason: Pending groups, and admitted groups with"
    " a reason.",
    "queue",
    "phase",
    "reason",
)
GATED = _gauge(
    "gated_groups",
    "Pending groups with a closed scheduling gate, whatever else they wait for.",
    "queue",
)
OLDEST_GATED = _gauge(
    "oldest_gated_seconds",
    "Age of the oldest Pending group with a closed scheduling gate.",
    "queue",
)
OLDEST_WAITING = _gauge(
    "oldest_waiting_seconds",
    "Longest wait of a Pending group that competes for capacity; ineligible groups (gated,"
    " suspended, stopped and the like) do not count.",
    "queue",
)
QUEUE_RESOURCE = _gauge(
    "queue_resource",
    "What a queue with all queues below it may use, uses and asks for, by kind.",
    "queue",
    "resource",
    "kind",
)
QUEUE_SHARE = _gauge(
    "queue_share",
    "The queue's use divided by its deserved share, in the resource where that is largest.",
    "queue",
)
QUEUE_WEIGHT = _gauge("queue_weight", "The queue's weight among its siblings.", "queue")
NODES = _gauge("nodes", "Nodes, by whether they take pods.", "state")
CHECK_ACTIVE = _gauge(
    "check_active",
    "1 while the controller of an admission check renews its lease, else 0.",
    "check",
)

# State of this process, exported by every scheduler.

LEADER = _gauge("leader", "1 in the leader, 0 in standby schedulers.")
EPOCH = _gauge("leader_epoch", "The epoch in which this process leads; 0 on a standby.")
REVISION = _gauge("mirror_revision", "The store's revision that the last turn read.")
UNREADABLE = _gauge(
    "unreadable_records",
    "Unreadable records in the store, which stay in place; `batchq doctor` names them.",
    "kind",
)
STORE_AWAY = _gauge("store_unavailable", "1 while the store does not answer, else 0.")
CONFIG = _gauge("config_info", "1, with the hash of the configuration in effect.", "hash")
RELOAD_OK = _gauge(
    "config_last_reload_successful",
    "1 if the last configuration that was read took effect, 0 if it was refused.",
)
BUILD = _gauge("build_info", "1, with the versions of batchq and Python.", "version", "python")
LAST_SESSION = _gauge(
    "last_session_timestamp_seconds",
    "When this process last committed a session, by this machine's clock; 0 before the first.",
)

# Totals of this process since it started.

SESSIONS = _counter(
    "sessions",
    "Sessions: changed (something was decided), idle, or unavailable (the store did not answer).",
    "result",
)
CYCLE = _histogram("cycle_duration", WORK_S, "Duration of a cycle: reading, deciding and writing.")
ACTION = _histogram("action_duration", WORK_S, "Duration of an action within a session.", "action")
PLUGIN = _histogram(
    "plugin_duration",
    SLICES_S,
    "Duration of a plugin's calls at one extension point within a session, without calls to other"
    " plugins.",
    "plugin",
    "point",
)
ADMISSION_WAIT = _histogram(
    "admission_wait",
    WAITS_S,
    "From a group's submission, or its last roll-back or eviction, to InQueue, gates included.",
    "queue",
)
CHECK_WAIT = _histogram(
    "check_wait",
    WAITS_S,
    "From the reservation of a group's quota to the True of one check; observed at admission.",
    "check",
)
CHECKS_WAIT = _histogram(
    "checks_wait",
    WAITS_S,
    "From the reservation of a group's quota to its admission, for groups with checks.",
    "queue",
)
START_WAIT = _histogram("start_wait", WAITS_S, "From InQueue to the first Running.", "queue")
FINISHED = _counter(
    "finished_groups", "Groups that ended, by phase and reason.", "queue", "phase", "reason"
)
EVICTED_PODS = _counter(
    "evicted_pods",
    "Pods that were evicted, or lost with their node.",
    "queue",
    "action",
    "reason",
)
REQUEUED_GROUPS = _counter(
    "requeued_groups", "Admitted groups that returned to Pending.", "queue", "reason"
)
PLEDGES = _counter("pledges", "Pledges of victims' resources to preemptors.", "queue", "action")
LOST = _counter(
    "lost_resource_seconds",
    "Work lost to preempt and reclaim, as resource x seconds.",
    "queue",
    "resource",
)
INTENTS = _counter("intents", "Decisions of sessions, by kind and result.", "intent", "result")
TRANSACTIONS = _counter(
    "transactions",
    "Transactions by the store's answer: ok, or why it refused (the next session decides again).",
    "word",
)
RELOADS = _counter("config_reloads", "Reloads of the configuration: ok or refused.", "result")
MENDED = _counter(
    "mended_records",
    "Keys and fields that this process repaired while it led: of the ledger, charges, limits and"
    " heads, and keys of a wrong type.",
)
OUTAGES = _counter("store_outages", "How often the store stopped answering.")
OUTAGE_SECONDS = _counter(
    "store_unavailable_seconds", "Total time for which the store did not answer."
)

#: State after the last session.
_OF_SESSION: tuple[Measure, ...] = (
    GROUPS,
    WAITING,
    GATED,
    OLDEST_GATED,
    OLDEST_WAITING,
    QUEUE_RESOURCE,
    QUEUE_SHARE,
    QUEUE_WEIGHT,
    NODES,
    CHECK_ACTIVE,
)
#: All metrics, in the order of docs/metrics.md.
MEASURES: tuple[Measure, ...] = (
    *_OF_SESSION,
    ADMISSION_WAIT,
    CHECK_WAIT,
    CHECKS_WAIT,
    START_WAIT,
    FINISHED,
    EVICTED_PODS,
    REQUEUED_GROUPS,
    PLEDGES,
    LOST,
    SESSIONS,
    CYCLE,
    ACTION,
    PLUGIN,
    INTENTS,
    TRANSACTIONS,
    LAST_SESSION,
    LEADER,
    EPOCH,
    REVISION,
    UNREADABLE,
    MENDED,
    STORE_AWAY,
    OUTAGES,
    OUTAGE_SECONDS,
    CONFIG,
    RELOADS,
    RELOAD_OK,
    BUILD,
)


class Stopwatch:
    """An Instrument that sums up seconds until it is read. Owned by the session thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        #: Seconds spent in calls from within the current call.
        self._inner = 0.0
        self._plugins: dict[tuple[str, str], list[float]] = {}
        self._actions: dict[str, list[float]] = {}

    def plugin(self, plugin: str, point: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, timed."""
        sum_s = self._plugins.setdefault((plugin, point), [0.0])
        clock = self._clock

        def timed(*arguments: Any) -> Any:
            outer, self._inner = self._inner, 0.0
            began = clock()
            try:
                return function(*arguments)
            finally:
                took = clock() - began
                sum_s[0] += took - self._inner
                self._inner = outer + took

        return timed

    def action(self, name: str, execute: Callable[..., None]) -> Callable[..., None]:
        """Return the action, timed, including all plugins that it calls."""
        sum_s = self._actions.setdefault(name, [0.0])

        def timed(*arguments: Any) -> None:
            began = self._clock()
            try:
                execute(*arguments)
            finally:
                sum_s[0] += self._clock() - began

        return timed

    def read(self) -> tuple[dict[tuple[str, str], float], dict[str, float]]:
        """Return seconds by (plugin, point) and by action, of those that took any; then reset."""
        plugins = {key: sum_s[0] for key, sum_s in self._plugins.items() if sum_s[0] > 0}
        actions = {name: sum_s[0] for name, sum_s in self._actions.items() if sum_s[0] > 0}
        # In place, because timed functions hold references to these lists.
        for sum_s in (*self._plugins.values(), *self._actions.values()):
            sum_s[0] = 0.0
        self._inner = 0.0
        return plugins, actions


Labels = tuple[str, ...]

#: The label for words that are on no closed list.
OTHER = "Other"

_LEAVING = frozenset(Leaving)
_REASONS = _LEAVING | frozenset(Finish)
_ACTIONS = frozenset({"preempt", "reclaim"})


class SessionTally:
    """Sums for counters, and single waits for histograms."""

    def __init__(self) -> None:
        self.counts: dict[Measure, dict[Labels, float]] = {}
        self.waits: list[tuple[Measure, Labels, float]] = []

    def add(self, measure: Measure, labels: Labels, amount: float = 1) -> None:
        """Add to a count."""
        sums = self.counts.setdefault(measure, {})
        sums[labels] = sums.get(labels, 0) + amount

    def wait(self, measure: Measure, label: str, since: int | None, until: int) -> None:
        """Note a wait between two instants in ms, if its beginning is known."""
        if since is not None:
            self.waits.append((measure, (label,), max(0, until - since) / 1000))


def tally_of(report: CycleReport) -> SessionTally:
    """Count what a cycle decided."""
    tally, session = SessionTally(), report.session
    tally.add(TRANSACTIONS, (Word.OK.value,), len(report.commit.applied))
    for refusal in report.commit.refused:
        tally.add(TRANSACTIONS, (refusal.answer.word.value,))
    refused = _refused_groups(report)
    for intent in report.intents:
        if isinstance(intent, intents.SetNodeReady):
            tally.add(INTENTS, (_kind(intent), "applied"))
            continue
        result = "refused" if intent.group in refused else "applied"
        tally.add(INTENTS, (_kind(intent), result))
        if result == "applied" and (group := session.by_key.get(intent.group)) is not None:
            _count_intent(tally, session, group, intent)
    for former, group in session.effects.ended_by_others:
        reason = next((one.reason for one in group.status.conditions if one.type == "Finished"), "")
        _count_end(tally, _queue_of(session, group), former.record.status, group.status, reason)
    _count_losses(tally, session, refused)
    return tally


def _refused_groups(report: CycleReport) -> set[str]:
    return {
        write.key
        for refusal in report.commit.refused
        for write in refusal.transaction.writes
        if write.kind == "PodGroup"
    }


def _kind(intent: Intent) -> str:
    return type(intent).__name__


def _count_intent(tally: SessionTally, session: Session, group: GroupState, intent: Intent) -> None:
    queue = _queue_of(session, group)
    match intent:
        case intents.AdmitGroup():
            _count_admission(tally, session, group, queue)
        case intents.MoveGroup(phase=PodGroupPhase.RUNNING):
            if group.record.status.started_at is None:
                began = group.record.status.in_queue_at
                tally.wait(START_WAIT, queue, began, session.now_ms)
        case intents.FinishGroup(reason=reason):
            _count_end(tally, queue, group.record.status, group.status, reason)
        case intents.RollBack(reason=reason):
            tally.add(REQUEUED_GROUPS, (queue, _word(reason, _LEAVING)))
        case intents.Pledge(action=action):
            tally.add(PLEDGES, (queue, _word(action, _ACTIONS)))
        case intents.Evict(reason=reason, action=action) if reason in _LEAVING:
            # A pod that is stopped because its group has ended is not evicted.
            tally.add(EVICTED_PODS, (queue, action, reason))
        case intents.LosePod(uid=uid) if not _was_stopping(session, group, uid):
            tally.add(EVICTED_PODS, (queue, "", Leaving.NODE_LOST.value))
        case _:
            pass


def _count_end(
    tally: SessionTally, queue: str, before: PodGroupStatus, then: PodGroupStatus, reason: str
) -> None:
    """Count a group that has ended, and its wait for its start if none was noted."""
    if before.started_at is None and then.started_at is not None:
        tally.wait(START_WAIT, queue, then.in_queue_at, then.started_at)
    tally.add(FINISHED, (queue, then.phase, _word(reason, _REASONS)))


def _count_admission(tally: SessionTally, session: Session, group: GroupState, queue: str) -> None:
    """Note the group's wait for admission, and the part that its checks took."""
    before, now_ms = group.record.status, session.now_ms
    tally.wait(ADMISSION_WAIT, queue, _in_line_since(group), now_ms)
    if before.reserved_at is None or not before.checks:
        return
    tally.wait(CHECKS_WAIT, queue, before.reserved_at, now_ms)
    for check in before.checks:
        if check.status == "True" and check.name in session.admission_checks:
            answered_at = now_ms if check.since is None else check.since
            tally.wait(CHECK_WAIT, check.name, before.reserved_at, answered_at)


def _in_line_since(group: GroupState) -> int:
    """Return since when it waits: an evicted group keeps its queue time, but waits since then."""
    left = [
        condition.last_transition_time
        for condition in group.record.status.conditions
        if condition.type == "Evicted" and condition.status == "True"
    ]
    return max([group.queue_time, *left])


def _was_stopping(session: Session, group: GroupState, uid: str) -> bool:
    """Return whether the pod was stopping already, so that its eviction has been counted."""
    return any(
        pod.status.terminating
        for pod in session.snapshot.pods.get(group.uid, ())
        if pod.metadata.uid == uid
    )


def _count_losses(tally: SessionTally, session: Session, refused: set[str]) -> None:
    named: set[str] | None = None
    for group in session.effects.touched.values():
        before, after = group.record.status.evictions.lost, group.status.evictions.lost
        if after is before or group.key in refused:
            continue
        named = set(resources_of(session)) if named is None else named
        queue = _queue_of(session, group)
        for resource, units in after.items():
            more = units - before.get(resource, 0)
            if more > 0 and resource in named:
                tally.add(LOST, (queue, resource), in_wholes(resource, more))


def _queue_of(session: Session, group: GroupState) -> str:
    return group.queue if group.queue in session.queues else NO_QUEUE


def _word(word: str, known: Iterable[str]) -> str:
    return str(word) if word in known else OTHER


#: Least interval between computations of the gauges: sessions may run many times a second.
LEVELS_EVERY_S = 1.0
#: The next computation waits this many times as long as the last took, so that it stays a small
#: part of the session thread's time with very many groups.
_UPDATE_PAUSE = 30

Rows = Iterable[tuple[tuple[str, ...], float]]


class Metrics:
    """Everything that `/metrics` exports. `registry` is its own; the global one is not touched.

    The session thread calls `observed` and `unavailable`; any thread may call the rest.
    """

    def __init__(
        self,
        *,
        levels_every_s: float = LEVELS_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # The scraper knows when a series began.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # it has none
        self.registry = CollectorRegistry(auto_describe=False)
        self.stopwatch = Stopwatch()
        self._levels_every_s = levels_every_s
        self._clock = clock
        #: The next computation is not before; the first is at once.
        self._update_at = -math.inf
        #: When the last session ran that was not a repetition (`rested`), and whether the gauges
        #: show it.
        self._decided_at = 0.0
        self._levels_current = True
        self._counters = {
            measure.name: Counter(measure.name, measure.help, measure.labels, registry=None)
            for measure in MEASURES
            if measure.kind == "counter" and measure not in _OF_THE_STORE
        }
        self._histograms = {
            measure.name: Histogram(
                measure.name, measure.help, measure.labels, buckets=measure.buckets, registry=None
            )
            for measure in MEASURES
            if measure.kind == "histogram"
        }
        #: Label -> its values with series.
        self._known: dict[str, set[str]] = {"queue": set(), "check": set()}
        self._reload_ok = True
        # Replaced as a whole, because scrapes read them from other threads.
        self._levels: tuple[Levels, float] | None = None
        self._session_at = 0.0
        self._epoch: Callable[[], int | None] = lambda: None
        self._revision: Callable[[], int | None] = lambda: None
        self._config_hash: Callable[[], str] = lambda: ""
        self._unreadable: Callable[[], Mapping[str, int]] = dict
        self._mended: Callable[[], int] = int
        self._outage: Outage | None = None
        self._add_zeros()
        self.registry.register(self)

    def follow(
        self,
        *,
        epoch: Callable[[], int | None],
        revision: Callable[[], int | None],
        config_hash: Callable[[], str],
        unreadable: Callable[[], Mapping[str, int]],
        mended: Callable[[], int],
        outage: Outage,
    ) -> None:
        """Export this process's leadership, mirror, configuration and server from now on."""
        self._outage, self._config_hash = outage, config_hash
        self._unreadable, self._mended = unreadable, mended
        self._revision, self._epoch = revision, epoch

    def watching(self, turn: Turn) -> Turn:
        """Return the same turn, with its failures counted."""

        def watched() -> TurnReport:
            try:
                return turn()
            except StoreUnavailable:
                self.unavailable()
                raise

        return watched

    def reloaded(self, ok: bool) -> None:
        """Count a reload; `ok`: the configuration is in effect."""
        self._reload_ok = ok
        self._add(RELOADS, {("ok" if ok else "refused",): 1})

    def unavailable(self) -> None:
        """Count a turn that ended because the store does not answer."""
        self.stopwatch.read()
        self._add(SESSIONS, {("unavailable",): 1})

    def observed(self, report: CycleReport) -> None:
        """Count a committed session."""
        plugins, actions = self.stopwatch.read()
        for name, seconds in actions.items():
            self._observe(ACTION, (name,), seconds)
        for key, seconds in plugins.items():
            self._observe(PLUGIN, key, seconds)
        self._observe(CYCLE, (), max(0, report.duration_ms) / 1000)
        self._add(SESSIONS, {("changed" if report.intents else "idle",): 1})
        if report.intents or report.commit.refused:
            self._count(tally_of(report))
        self._session_at = time.time()
        self._update_levels(report)

    def _count(self, tally: SessionTally) -> None:
        for measure, counts in tally.counts.items():
            self._add(measure, counts)
        for measure, labels, seconds in tally.waits:
            self._observe(measure, labels, seconds)

    def _update_levels(self, report: CycleReport) -> None:
        now = self._clock()
        if not report.rested:
            self._decided_at, self._levels_current = now, False
        if self._levels_current or now < self._update_at:
            return
        session, self._levels_current = report.session, True
        self._levels = (levels_of(session), self._decided_at)
        took_s = self._clock() - now
        self._update_at = now + max(self._levels_every_s, _UPDATE_PAUSE * took_s)
        self._forget("queue", set(session.queues))
        self._forget("check", set(session.admission_checks))

    def _add_zeros(self) -> None:
        """Create series whose labels are from closed lists at the start: rates need a 0."""
        zeros: dict[Measure, Iterable[str]] = {
            SESSIONS: ("changed", "idle", "unavailable"),
            RELOADS: ("ok", "refused"),
            TRANSACTIONS: tuple(Word),
        }
        for measure, words in zeros.items():
            self._add(measure, {(str(word),): 0 for word in words})

    def _add(self, measure: Measure, counts: Mapping[tuple[str, ...], float]) -> None:
        counter = self._counters[measure.name]
        for labels, amount in counts.items():
            self._note(measure, labels)
            counter.labels(*labels).inc(amount)

    def _observe(self, measure: Measure, labels: tuple[str, ...], seconds: float) -> None:
        histogram = self._histograms[measure.name]
        self._note(measure, labels)
        (histogram.labels(*labels) if labels else histogram).observe(seconds)

    def _note(self, measure: Measure, labels: tuple[str, ...]) -> None:
        for label, value in zip(measure.labels, labels, strict=True):
            if (known := self._known.get(label)) is not None:
                known.add(value)

    def _forget(self, label: str, there: set[str]) -> None:
        """Remove the series of queues or checks that no longer exist."""
        gone = sorted(self._known[label] - there)
        self._known[label] &= there
        kept = {**self._counters, **self._histograms}
        for measure in MEASURES if gone else ():
            if label in measure.labels and measure.name in kept:
                for value in gone:
                    kept[measure.name].remove_by_labels({label: value})

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its present values, for the registry."""
        gauges = self._of_process() | self._of_levels()
        for measure in MEASURES:
            if measure.name in self._counters:
                yield from self._counters[measure.name].collect()
            elif measure.name in self._histograms:
                yield from self._histograms[measure.name].collect()
            else:
                yield _family(measure, gauges[measure.name])

    def _of_process(self) -> dict[str, Rows]:
        epoch, outage = self._epoch(), self._outage
        away_s, outages = (0.0, 0) if outage is None else (outage.away_s(), outage.count)
        config = self._config_hash()
        return {
            LEADER.name: _one(epoch is not None),
            EPOCH.name: _one(0 if epoch is None else count_of(epoch)),
            REVISION.name: _one(self._revision() or 0),
            UNREADABLE.name: _by_name(self._unreadable_by_kind()),
            MENDED.name: _one(self._mended()),
            STORE_AWAY.name: _one(outage is not None and outage.unavailable),
            OUTAGES.name: _one(outages),
            OUTAGE_SECONDS.name: _one(away_s),
            CONFIG.name: [((config,), 1)] if config else [],
            RELOAD_OK.name: _one(self._reload_ok),
            BUILD.name: [((__version__, platform.python_version()), 1)],
            LAST_SESSION.name: _one(self._session_at),
        }

    def _unreadable_by_kind(self) -> dict[str, int]:
        """Return the counts with a 0 for each kind of object, which alerts need."""
        return dict.fromkeys(KINDS, 0) | dict(self._unreadable())

    def _of_levels(self) -> dict[str, Rows]:
        if self._levels is None or self._epoch() is None:
            return {measure.name: () for measure in _OF_SESSION}
        levels, decided_at = self._levels
        now_ms = levels.at_ms + 1000 * (self._clock() - decided_at)
        return {
            GROUPS.name: levels.groups.items(),
            WAITING.name: levels.waiting.items(),
            GATED.name: _by_name(levels.gated),
            OLDEST_GATED.name: _ages(levels.gated_since, now_ms),
            OLDEST_WAITING.name: _ages(levels.waiting_since, now_ms),
            QUEUE_RESOURCE.name: [
                ((name, resource, kind), amount)
                for name, queue in levels.queues.items()
                for kind, amounts in queue.amounts.items()
                for resource, amount in amounts.items()
            ],
            QUEUE_SHARE.name: [
                ((name,), queue.share)
                for name, queue in levels.queues.items()
                if queue.share is not None
            ],
            QUEUE_WEIGHT.name: [
                ((name,), queue.weight)
                for name, queue in levels.queues.items()
                if queue.weight is not None
            ],
            NODES.name: _by_name(levels.nodes),
            CHECK_ACTIVE.name: [((name,), now_ms < until) for name, until in levels.checks.items()],
        }


#: Counted where the store is accessed or repaired.
_OF_THE_STORE = (OUTAGES, OUTAGE_SECONDS, MENDED)


def _one(value: float) -> Rows:
    return [((), value)]


def _by_name(values: Mapping[str, float]) -> Rows:
    return [((name,), value) for name, value in values.items()]


def _ages(since: Mapping[str, int | None], now_ms: float) -> Rows:
    return [
        ((name,), 0 if at is None else max(0.0, now_ms - at) / 1000) for name, at in since.items()
    ]


def _family(measure: Measure, rows: Rows) -> Metric:
    kind = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
    family = kind(measure.name, measure.help, labels=measure.labels)
    for labels, value in rows:
        family.add_metric(labels, float(value))
    return family
