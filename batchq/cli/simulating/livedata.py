"""A what-if as `-o json` has it: quantities in people's notation, instants in RFC 3339.

    at, until, assumptions {runtimeFraction, assumedRuntime, endless},
    configurations [{name, stopped, stoppedAt, sessions}],
    podGroups [{name, namespace, queue, phase, startedAt, differs, futures [{configuration,
        startsAt, startsInSeconds, startsAgainAt, endsAt, phase, ending, evictions, waitsFor,
        unansweredChecks}]}],
    evictions [{configuration, at, inSeconds, podGroup, queue, whole, pods, by, action, reason,
        lost}],
    queues [{queue, configuration, waiting, started, medianWaitSeconds, evictions, lost, lastEndAt,
        unended}]

Configurations are named as in the table, the live one first; `queue` null is the sum over all.
"""

from __future__ import annotations

from collections.abc import Iterator

from batchq.api.objects import API_VERSION
from batchq.api.quantity import format_quantity
from batchq.api.resources import Amounts
from batchq.api.times import format_duration, format_instant
from batchq.sim.fromlive.comparing import ALL, Fate, QueueFigures, WhatIf
from batchq.sim.fromlive.future import Eviction, Future, GroupFuture
from batchq.sim.fromlive.lasting import Lasting


def as_data(
    found: WhatIf, lasting: Lasting, *, until_ms: int | None, differences: bool
) -> dict[str, object]:
    """Plain values, in the order of the module's docstring."""
    each = list(zip(found.names, found.futures, strict=True))
    return {
        "apiVersion": API_VERSION,
        "kind": "WhatIf",
        "at": format_instant(found.at),
        "until": _duration(until_ms),
        "assumptions": {
            "runtimeFraction": lasting.thousandths / 1000,
            "assumedRuntime": _duration(lasting.assumed_ms),
            "endless": found.endless,
        },
        "configurations": [_configuration(name, future) for name, future in each],
        "podGroups": [
            _group(found, fate) for fate in found.fates if fate.differs or not differences
        ],
        "evictions": [
            _eviction(found, name, one) for name, future in each for one in future.evictions
        ],
        "queues": list(_queues(found)),
    }


def _configuration(name: str, future: Future) -> dict[str, object]:
    return {
        "name": name,
        "stopped": str(future.stopped),
        "stoppedAt": format_instant(future.stopped_at),
        "sessions": future.sessions,
    }


def _group(found: WhatIf, fate: Fate) -> dict[str, object]:
    present = fate.present
    namespace, _, name = present.key.partition("/")
    return {
        "name": name,
        "namespace": namespace,
        "queue": present.queue,
        "phase": str(present.phase),
        "startedAt": _instant(present.started_at),
        "differs": fate.differs,
        "futures": [
            _future(found, configuration, future)
            for configuration, future in zip(found.names, fate.futures, strict=True)
        ],
    }


def _future(found: WhatIf, configuration: str, future: GroupFuture) -> dict[str, object]:
    return {
        "configuration": configuration,
        "startsAt": _instant(future.starts_at),
        "startsInSeconds": None if future.starts_at is None else _seconds(found, future.starts_at),
        "startsAgainAt": [format_instant(at) for at in future.starts[1:]],
        "endsAt": _instant(future.ends_at),
        "phase": str(future.phase),
        "ending": future.ending,
        "evictions": future.evictions,
        "waitsFor": [{"reason": one.reason, "message": one.message} for one in future.waits_for],
        "unansweredChecks": list(future.unanswered),
    }


def _eviction(found: WhatIf, configuration: str, eviction: Eviction) -> dict[str, object]:
    return {
        "configuration": configuration,
        "at": format_instant(eviction.at),
        "inSeconds": _seconds(found, eviction.at),
        "podGroup": eviction.key,
        "queue": eviction.queue,
        "whole": eviction.whole,
        "pods": eviction.pods,
        "by": eviction.by or None,
        "action": eviction.action or None,
        "reason": eviction.reason,
        # Units of the resource times seconds, whose form is that of the resource.
        "lost": _written(eviction.lost),
    }


def _queues(found: WhatIf) -> Iterator[dict[str, object]]:
    for name, figures in zip(found.names, found.figures, strict=True):
        for one in figures:
            yield _figures(name, one)


def _figures(configuration: str, figures: QueueFigures) -> dict[str, object]:
    wait_ms = figures.median_wait_ms
    return {
        "queue": None if figures.queue == ALL else figures.queue,
        "configuration": configuration,
        "waiting": figures.waiting,
        "started": figures.started,
        "medianWaitSeconds": None if wait_ms is None else wait_ms / 1000,
        "evictions": figures.evictions,
        "lost": _written(figures.lost),
        "lastEndAt": _instant(figures.last_end_at),
        "unended": figures.unended,
    }


def _seconds(found: WhatIf, at: int) -> float:
    return (at - found.at) / 1000


def _instant(at: int | None) -> str | None:
    return None if at is None else format_instant(at)


def _duration(length_ms: int | None) -> str | None:
    return None if length_ms is None else format_duration(length_ms)


def _written(amounts: Amounts) -> dict[str, str]:
    return {name: format_quantity(name, units) for name, units in amounts.items()}
