"""Agents that are told to end: what is waited for meanwhile, in sentences, and how long.

An agent that drains lets its pods run on for a while, then tells them to stop; where even that
takes too long it is killed, and its pods with it. Which pods those are stands in its run files.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from batchq.api.names import counted
from batchq.daemon import processes
from batchq.daemon.processes import Fate, Record
from batchq.worker.runfile import RunFiles

#: How long an agent that `up` has started lets its pods run on.
STOPPED_AFTER_S = 30.0
#: When it is killed; a pod that is told to stop has this much less the above.
DRAINED_WITHIN_S = 45.0

_TOLD_EVERY_S = 5.0
#: For agents that were asked long ago.
_LEAST_PATIENCE_S = 2.0
#: In a record's notes: the monotonic clock, which all processes of a machine share.
_ASKED_AT = "asked-to-drain-at"

Say = Callable[[str], None]


def end_agents(
    run: Path,
    agents: Mapping[str, Record],
    *,
    now: bool = False,
    patience_s: float = DRAINED_WITHIN_S,
    say: Say = lambda _: None,
) -> list[Fate]:
    """End agents, by the names of their nodes, whose folders are under `run`.

    `now`: their pods are killed at once. Agents that drain already are not asked again, for a
    second signal would do the same.
    """

    def running() -> dict[str, Record]:
        return {name: one for name, one in agents.items() if processes.is_running(one)}

    asked_at = [float(one.notes.get(_ASKED_AT, "inf")) for one in running().values()]
    since = min([time.monotonic(), *asked_at])
    progress = Progress(
        lambda: {name: pods_of(run, name) for name in running()},
        since=since,
        patience_s=patience_s,
        say=say,
        clock=time.monotonic,
    )
    if not now:
        progress.begin()
    return processes.end_all(
        list(agents.values()),
        patience_s=max(_LEAST_PATIENCE_S, since + patience_s - time.monotonic()),
        ask=_kill_pods if now else lambda record: _drain(run, record),
        meanwhile=progress.go_on,
    )


def _kill_pods(record: Record) -> bool:
    # Two signals hurry an agent; of two that are the same, one may be lost.
    heard = processes.send(record, signal.SIGINT)
    processes.send(record, signal.SIGTERM)
    return heard


def _drain(run: Path, record: Record) -> bool:
    if _ASKED_AT in record.notes:
        return processes.is_running(record)
    notes = {**record.notes, _ASKED_AT: f"{time.monotonic():.1f}"}
    draining = msgspec.structs.replace(record, notes=notes)
    processes.write_record(run / f"{record.name}.json", draining)
    return processes.send(record, signal.SIGTERM)


def pods_of(run: Path, node: str) -> int:
    """How many pods run on a node of this machine."""
    return sum(one.outcome is None for one in RunFiles(run / node).all())


class Progress:
    """Says what is waited for, at first and every few seconds."""

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
        self._told_at = clock()

    def begin(self) -> None:
        """Say how long it may take."""
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
        """To be called often."""
        now = self._clock()
        if now - self._told_at < _TOLD_EVERY_S:
            return
        self._told_at = now
        for node, count in self._look().items():
            self._say(waiting_for(node, count, now - self._since, self._patience_s))


def waiting_for(node: str, pods: int, elapsed_s: float, patience_s: float) -> str:
    """What a node is waited for, and until when."""
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
