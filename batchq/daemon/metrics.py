"""The daemon's metrics: counted as sessions go by, told whenever somebody asks.

Counters and histograms are fed by the deciding thread, once a session. How things stand is worked
out by it too, at most every second, into one value; a scrape only reads it, so neither waits for
the other. What belongs to a queue that is gone goes with it. Only the leader tells how groups and
queues stand: nobody counts them twice by adding up all schedulers.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from batchq import __version__
from batchq.api.fences import count_of
from batchq.api.objects import KINDS
from batchq.api.transaction import Word
from batchq.daemon import measures
from batchq.daemon.levels import Levels, levels_of
from batchq.daemon.loop import Turn, TurnReport
from batchq.daemon.measures import MEASURES, Measure
from batchq.daemon.stopwatch import Stopwatch
from batchq.daemon.tallies import Tally, tally_of
from batchq.errors import StoreUnavailable
from batchq.scheduler.cycle import CycleReport
from batchq.store.outage import Outage

#: Levels are worked out anew at most so often: sessions may be many a second, scrapes are not.
LEVELS_EVERY_S = 1.0
#: And so many times as long after a look as that took: among very many groups, a small part of the
#: deciding thread's time.
_LOOKS_APART = 30

Rows = Iterable[tuple[tuple[str, ...], float]]


class Metrics:
    """Everything that `/metrics` tells. `registry` is its own: no other is touched.

    `observed` and `unavailable` are the deciding thread's; anybody may call the rest.
    """

    def __init__(
        self,
        *,
        levels_every_s: float = LEVELS_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # When a series began is known to whoever scrapes it.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # it has none
        self.registry = CollectorRegistry(auto_describe=False)
        self.stopwatch = Stopwatch()
        self._levels_every_s = levels_every_s
        self._clock = clock
        #: No look before; the first at once.
        self._look_at = -math.inf
        #: When the last session ran that was not the one before once more, and whether it has been
        #: looked at.
        self._decided_at = 0.0
        self._looked = True
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
        #: Label -> its values that series have been made for.
        self._known: dict[str, set[str]] = {"queue": set(), "check": set()}
        self._reload_ok = True
        # Read by scrapes, each in one step.
        self._levels: tuple[Levels, float] | None = None
        self._session_at = 0.0
        self._epoch: Callable[[], int | None] = lambda: None
        self._revision: Callable[[], int | None] = lambda: None
        self._config_hash: Callable[[], str] = lambda: ""
        self._unreadable: Callable[[], Mapping[str, int]] = dict
        self._mended: Callable[[], int] = int
        self._outage: Outage | None = None
        self._begin_with_zeros()
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
        """From now on, tell of this process's leadership, mirror, configuration and server."""
        self._outage, self._config_hash = outage, config_hash
        self._unreadable, self._mended = unreadable, mended
        self._revision, self._epoch = revision, epoch

    def watching(self, turn: Turn) -> Turn:
        """The same turn, with its failures counted."""

        def watched() -> TurnReport:
            try:
                return turn()
            except StoreUnavailable:
                self.unavailable()
                raise

        return watched

    # --- what the deciding thread says ---------------------------------------------------------

    def reloaded(self, ok: bool) -> None:
        """A configuration was read anew; `ok`: it counts from now on."""
        self._reload_ok = ok
        self._add(measures.RELOADS, {("ok" if ok else "refused",): 1})

    def unavailable(self) -> None:
        """A turn ended because the store does not answer."""
        self.stopwatch.read()
        self._add(measures.SESSIONS, {("unavailable",): 1})

    def observed(self, report: CycleReport) -> None:
        """A session is over, and committed."""
        plugins, actions = self.stopwatch.read()
        for name, seconds in actions.items():
            self._see(measures.ACTION, (name,), seconds)
        for key, seconds in plugins.items():
            self._see(measures.PLUGIN, key, seconds)
        self._see(measures.CYCLE, (), max(0, report.duration_ms) / 1000)
        self._add(measures.SESSIONS, {("changed" if report.intents else "idle",): 1})
        if report.intents or report.commit.refused:
            self._count(tally_of(report))
        self._session_at = time.time()
        self._look(report)

    def _count(self, tally: Tally) -> None:
        for measure, counts in tally.counts.items():
            self._add(measure, counts)
        for measure, labels, seconds in tally.waits:
            self._see(measure, labels, seconds)

    def _look(self, report: CycleReport) -> None:
        now = self._clock()
        if not report.rested:
            self._decided_at, self._looked = now, False
        if self._looked or now < self._look_at:
            return
        session, self._looked = report.session, True
        self._levels = (levels_of(session), self._decided_at)
        took_s = self._clock() - now
        self._look_at = now + max(self._levels_every_s, _LOOKS_APART * took_s)
        self._forget("queue", set(session.queues))
        self._forget("check", set(session.admission_checks))

    # --- series --------------------------------------------------------------------------------

    def _begin_with_zeros(self) -> None:
        """What has words of a closed list for labels is there from the start: rates need a 0."""
        zeros: dict[Measure, Iterable[str]] = {
            measures.SESSIONS: ("changed", "idle", "unavailable"),
            measures.RELOADS: ("ok", "refused"),
            measures.TRANSACTIONS: tuple(Word),
        }
        for measure, words in zeros.items():
            self._add(measure, {(str(word),): 0 for word in words})

    def _add(self, measure: Measure, counts: Mapping[tuple[str, ...], float]) -> None:
        counter = self._counters[measure.name]
        for labels, amount in counts.items():
            self._note(measure, labels)
            counter.labels(*labels).inc(amount)

    def _see(self, measure: Measure, labels: tuple[str, ...], seconds: float) -> None:
        histogram = self._histograms[measure.name]
        self._note(measure, labels)
        (histogram.labels(*labels) if labels else histogram).observe(seconds)

    def _note(self, measure: Measure, labels: tuple[str, ...]) -> None:
        for label, value in zip(measure.labels, labels, strict=True):
            if (known := self._known.get(label)) is not None:
                known.add(value)

    def _forget(self, label: str, there: set[str]) -> None:
        """End the series of queues or checks that are gone."""
        gone = sorted(self._known[label] - there)
        self._known[label] &= there
        kept = {**self._counters, **self._histograms}
        for measure in MEASURES if gone else ():
            if label in measure.labels and measure.name in kept:
                for value in gone:
                    kept[measure.name].remove_by_labels({label: value})

    # --- what a scrape reads -------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """Every metric with its present values, for the registry."""
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
            measures.LEADER.name: _one(epoch is not None),
            measures.EPOCH.name: _one(0 if epoch is None else count_of(epoch)),
            measures.REVISION.name: _one(self._revision() or 0),
            measures.UNREADABLE.name: _by_name(self._unreadable_by_kind()),
            measures.MENDED.name: _one(self._mended()),
            measures.STORE_AWAY.name: _one(outage is not None and outage.unavailable),
            measures.OUTAGES.name: _one(outages),
            measures.OUTAGE_SECONDS.name: _one(away_s),
            measures.CONFIG.name: [((config,), 1)] if config else [],
            measures.RELOAD_OK.name: _one(self._reload_ok),
            measures.BUILD.name: [((__version__, platform.python_version()), 1)],
            measures.LAST_SESSION.name: _one(self._session_at),
        }

    def _unreadable_by_kind(self) -> dict[str, int]:
        """With a 0 for each kind of object: alerts need one."""
        return dict.fromkeys(KINDS, 0) | dict(self._unreadable())

    def _of_levels(self) -> dict[str, Rows]:
        if self._levels is None or self._epoch() is None:
            return {measure.name: () for measure in _OF_LEVELS}
        levels, decided_at = self._levels
        now_ms = levels.at_ms + 1000 * (self._clock() - decided_at)
        return {
            measures.GROUPS.name: levels.groups.items(),
            measures.WAITING.name: levels.waiting.items(),
            measures.GATED.name: _by_name(levels.gated),
            measures.OLDEST_GATED.name: _ages(levels.gated_since, now_ms),
            measures.OLDEST_WAITING.name: _ages(levels.waiting_since, now_ms),
            measures.QUEUE_RESOURCE.name: [
                ((name, resource, kind), amount)
                for name, queue in levels.queues.items()
                for kind, amounts in queue.amounts.items()
                for resource, amount in amounts.items()
            ],
            measures.QUEUE_SHARE.name: [
                ((name,), queue.share) for name, queue in levels.queues.items()
            ],
            measures.QUEUE_WEIGHT.name: [
                ((name,), queue.weight)
                for name, queue in levels.queues.items()
                if queue.weight is not None
            ],
            measures.NODES.name: _by_name(levels.nodes),
            measures.CHECK_ACTIVE.name: [
                ((name,), now_ms < until) for name, until in levels.checks.items()
            ],
        }


_OF_LEVELS = (
    measures.GROUPS,
    measures.WAITING,
    measures.GATED,
    measures.OLDEST_GATED,
    measures.OLDEST_WAITING,
    measures.QUEUE_RESOURCE,
    measures.QUEUE_SHARE,
    measures.QUEUE_WEIGHT,
    measures.NODES,
    measures.CHECK_ACTIVE,
)
#: Counted by whoever talks to the store, or mends it.
_OF_THE_STORE = (measures.OUTAGES, measures.OUTAGE_SECONDS, measures.MENDED)


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
