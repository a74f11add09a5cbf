"""Play a load, a long one in several processes: what happens after an idle moment does not depend
on what was before it, so the parts between idle moments are played side by side.

Which moments are idle is known only when the load has been played. A plain simulation finds where
they are likely. A process plays from such a moment to the next one at which its cluster is really
idle. If that is a later one than expected, what other processes have played meanwhile from the
moments in between is dropped. So the schedule is the same in any number of processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from heapq import heappop, heappush
from queue import SimpleQueue
from threading import Thread
from typing import IO, NamedTuple

from msgspec import MsgspecError, Struct, msgpack, structs

from batchq.api.notation import SECOND
from batchq.config import SchedulerConfig
from batchq.core.session.snapshot import Settings
from batchq.lab.load_run import LoadRun, Tell
from batchq.lab.schedule import Look, Part, Schedule, schedule_of
from batchq.lab.traces import Load, sharing_specs

#: A part has at least so many arrivals: a process takes as long to start as to play some hundred.
LEAST_ARRIVALS = 1_000
#: Parts differ in length; with several for each process, all processes end at about the same time.
PARTS_PER_PROCESS = 4
#: So many waiting jobs are tried at a time to predict idle moments, since all would take long; in a
#: queue that is first come, first served, one.
_MOST_TRIED = 32
#: A process reports how many jobs have finished after each so many.
_FINISHED_PER_REPORT = 100
#: A message between processes is preceded by its length, in so many bytes; whatever else a process
#: writes is hardly a length within the bound.
_LENGTH_BYTES = 8
_LONGEST_BYTES = 1 << 40


def play_load(
    load: Load,
    config: SchedulerConfig,
    *,
    name: str = "",
    per_event: bool = False,
    tell: Tell | None = None,
    watch: bool = False,
    stopwatch: Callable[[], float] | None = None,
    look: Look | None = None,
    processes: int | None = None,
) -> Schedule:
    """Play a load to its end under a configuration.

    Jobs that never run are reported as not finished. `name` names the run in reports. `watch`
    checks every invariant after every session, which takes longer than the sessions. `stopwatch`
    returns real seconds; the play itself has no real time. `look` is called for each pod that takes
    a node or leaves it. A long load that has idle moments is played in `processes` processes, by
    default one for each usable cpu; with `watch` or `look`, in this process.

    Raises InvalidInput for an invalid configuration or load, and InvariantBroken for a bug.
    """
    began = stopwatch() if stopwatch else 0.0
    count = len(os.sched_getaffinity(0)) if processes is None else processes
    firsts: Sequence[int] = ()
    if count > 1 and not watch and look is None and is_forgotten_when_idle(load, config):
        firsts = likely_parts(load, count * PARTS_PER_PROCESS)
    parts: list[Part] = []
    if len(firsts) > 1:
        given = _Given(load, config.settings, per_event, tuple(firsts))
        # Without enough memory or processes, this process plays everything.
        with suppress(OSError):
            parts = _play_parts(given, min(count, len(firsts)), tell)
    if not parts:
        run = LoadRun(load, config, watch=watch, look=look)
        run.run(per_event=per_event, tell=tell)
        parts = [run.part()]
    real_s = stopwatch() - began if stopwatch else 0.0
    return schedule_of(load, parts, name=name, real_s=real_s)


def is_forgotten_when_idle(load: Load, config: SchedulerConfig) -> bool:
    """Return whether nothing of ended groups affects later ones: no evictions that count in a
    budget, no checks, no dependencies, only plugins that keep nothing, and no past usage, which
    matters between queues.
    """
    settings = config.settings
    return (
        config == SchedulerConfig(settings=settings)
        and settings.eviction_budget is None
        and (len(load.queues) == 1 or settings.half_life_ms is None)
        and not any(queue.spec.admission_checks for queue in load.queues)
        and not any(one.group.spec.depends_on for one in load.arrivals)
    )


def likely_parts(load: Load, most: int) -> list[int]:
    """Return the indices of the first arrivals of up to `most` parts of about equal length, each
    after a moment that is likely to be idle; the first is 0.
    """
    arrivals = len(load.arrivals)
    count = min(most, arrivals // LEAST_ARRIVALS)
    if count < 2:
        return [0]
    length = arrivals / count
    #: Of each length of arrivals, the longest idle moment within half of it from its beginning, and
    #: the nearest to that of equal ones.
    longest: dict[int, tuple[int, float, int]] = {}
    for place, idle_s in _idle_moments(load):
        part = round(place / length)
        if 0 < part < count:
            found = (idle_s, -abs(place - part * length), place)
            longest[part] = max(longest.get(part, found), found)
    return [0, *sorted(place for *_, place in longest.values())]


def _idle_moments(load: Load) -> Iterator[tuple[int, int]]:
    """Yield each arrival's index before which nothing runs or waits, and for how many seconds, if
    each job starts as soon as it fits on one machine, unless it has to wait for its turn.
    """
    is_strict = any(queue.spec.strategy.type == "StrictFIFO" for queue in load.queues)
    tried = 1 if is_strict else _MOST_TRIED
    ends: list[tuple[int, int]] = []
    waiting: list[tuple[int, int]] = []
    free, last_s = load.capacity, 0
    for place, one in enumerate(load.arrivals):
        if one.run_s is None or one.size > load.capacity:
            # It runs, or waits, for ever.
            return
        while ends and ends[0][0] <= one.at_s:
            last_s, size = heappop(ends)
            free += size
            if not (ends and ends[0][0] == last_s):
                free = _start_waiting(waiting, ends, last_s, free, tried)
        if place and not ends and last_s < one.at_s:
            yield place, one.at_s - last_s
        walltime = one.group.spec.walltime
        run_s = one.run_s if walltime is None else min(one.run_s, walltime // SECOND)
        waiting.append((run_s, one.size))
        if len(waiting) <= tried:
            free = _start_waiting(waiting, ends, one.at_s, free, tried)


def _start_waiting(
    waiting: list[tuple[int, int]], ends: list[tuple[int, int]], now_s: int, free: int, tried: int
) -> int:
    """Start those of the first `tried` waiting jobs, as (run time, size), that fit; return what is
    free then.
    """
    place = 0
    while free and place < min(len(waiting), tried):
        run_s, size = waiting[place]
        if size <= free:
            heappush(ends, (now_s + run_s, size))
            free -= size
            del waiting[place]
        else:
            place += 1
    return free


class _Given(Struct, frozen=True):
    """What every process plays a part of. `firsts` has the first arrivals of the likely parts."""

    load: Load
    settings: Settings
    per_event: bool
    firsts: tuple[int, ...]

    def play(self, first: int, tell: Tell) -> Part:
        """Play from the arrival `first` on, before which the cluster is idle, to the next one of
        `firsts` for which that is so, or to the end of the load.
        """
        run = LoadRun(self.load, SchedulerConfig(settings=self.settings), watch=False, first=first)
        run.run(per_event=self.per_event, tell=tell, stops={*self.firsts} - {first})
        return run.part()


def _play_parts(given: _Given, count: int, tell: Tell | None) -> list[Part]:
    """Play the likely parts of a load in `count` processes, and return the real ones, in order;
    none if a process has failed.
    """
    todo, total = deque(given.firsts), len(given.load.arrivals)
    parts: dict[int, Part] = {}
    #: First arrival of a part -> how many of its jobs have finished.
    finished: dict[int, int] = {}
    reports: SimpleQueue[_Report] = SimpleQueue()
    with ExitStack() as stack:
        processes = [stack.enter_context(_Process(reports)) for _ in range(count)]
        content = msgpack.encode(given)
        for process in processes:
            process.send(content)
            process.play(todo.popleft())
        while True:
            report = reports.get()
            if report.news is None:
                return []
            first, finished[first], part = report.news
            if part is not None:
                parts[first] = part
            chain = _from_the_first(parts)
            until = chain[-1].until if chain else 0
            if tell is not None:
                later = sum(jobs for place, jobs in finished.items() if place >= until)
                tell(min(until + later, total), total)
            if until == total:
                return chain
            if part is not None:
                # The cluster was not idle at the moments that were passed over.
                while todo and todo[0] < until:
                    todo.popleft()
                if todo:
                    report.process.play(todo.popleft())


def _from_the_first(parts: Mapping[int, Part]) -> list[Part]:
    """Return the parts that follow one another from the load's beginning."""
    found: list[Part] = []
    while (part := parts.get(found[-1].until if found else 0)) is not None:
        found.append(part)
    return found


class _News(NamedTuple):
    """What is known of the part that begins with the arrival `first`: how many of its jobs have
    finished, and at its end its outcome.
    """

    first: int
    finished: int
    part: Part | None = None


class _Report(NamedTuple):
    """News from a process; None if it has ended without being asked to."""

    process: _Process
    news: _News | None


class _Process(AbstractContextManager["_Process"]):
    """A process that plays parts; owns the thread that puts its reports into a queue.

    It receives what is given, then first arrivals, and answers with news. A pool of
    `multiprocessing` would run the caller's main module in each process.
    """

    def __init__(self, reports: SimpleQueue[_Report]) -> None:
        self._reports = reports
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _WORK],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def play(self, first: int) -> None:
        """Let it play the part that begins with the arrival `first`."""
        self.send(msgpack.encode(first))

    def send(self, content: bytes) -> None:
        """Send a message. If the process has ended, its report says so."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            _write(self._process.stdin, content)

    def _read(self) -> None:
        assert self._process.stdout is not None
        decoder = msgpack.Decoder(_News)
        try:
            while (content := _message(self._process.stdout)) is not None:
                self._reports.put(_Report(self, decoder.decode(content)))
        except (MsgspecError, MemoryError):
            # It has written something else.
            pass
        finally:
            self._reports.put(_Report(self, None))

    def __exit__(self, *_raised: object) -> None:
        self._process.kill()
        self._thread.join()
        # What it has not read is lost with it.
        with suppress(BrokenPipeError):
            self._process.__exit__(None, None, None)


_WORK = "from batchq.lab.load_player import play_for_parent; play_for_parent()"


def play_for_parent() -> None:
    """Play the parts that the parent process names on standard input, until it closes that."""
    # Ctrl-C reaches the parent, too, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (content := _message(sys.stdin.buffer)) is None:
        return
    given = msgpack.decode(content, type=_Given)
    given = structs.replace(given, load=sharing_specs(given.load))
    with suppress(BrokenPipeError):
        while (content := _message(sys.stdin.buffer)) is not None:
            _play_and_report(given, msgpack.decode(content, type=int))


def _play_and_report(given: _Given, first: int) -> None:
    reported = 0

    def tell(finished: int, _total: int) -> None:
        nonlocal reported
        if finished - first >= reported + _FINISHED_PER_REPORT:
            reported = finished - first
            _write(sys.stdout.buffer, msgpack.encode(_News(first, reported)))

    part = given.play(first, tell)
    _write(sys.stdout.buffer, msgpack.encode(_News(first, part.until - first, part)))


def _write(pipe: IO[bytes], content: bytes) -> None:
    """Write a message, after its length."""
    pipe.write(len(content).to_bytes(_LENGTH_BYTES))
    pipe.write(content)
    pipe.flush()


def _message(pipe: IO[bytes]) -> bytes | None:
    """Return the next message; None if the other side has closed the pipe, or writes none."""
    length = int.from_bytes(pipe.read(_LENGTH_BYTES))
    return pipe.read(length) or None if length <= _LONGEST_BYTES else None
