"""Check what happened in a run against its limits, from every write and every virtual run."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from batchq.api.lifecycle import ADMITTED, TERMINAL, PodGroupPhase
from batchq.api.objects import PodGroup
from batchq.api.views import Change
from benchmarks.kueue.load import UNIT, Class, Scenario, class_of, place_of

#: (group, began, ended, "succeeded", "evicted" or "too late"), in seconds of one clock.
Run = tuple[str, float, float, str]


@dataclass
class Story:
    """The history of all groups in a run, as the store's changes state it."""

    first_ms: int = 2**60
    last_ms: int = 0
    #: Group -> seconds from its creation to its latest admission.
    admitted_s: dict[str, float] = field(default_factory=dict)
    completions: Counter[str] = field(default_factory=Counter)
    admissions: Counter[str] = field(default_factory=Counter)
    #: Group -> how often it was evicted after its admission.
    evictions: Counter[str] = field(default_factory=Counter)
    phases: dict[str, str] = field(default_factory=dict)
    #: Scope (a cohort `0` or a queue `0-3`) -> the most units that it held at any time.
    most: Counter[str] = field(default_factory=Counter)
    #: Charged unit-seconds.
    charged_unit_s: float = 0.0

    @property
    def wall_s(self) -> float:
        """Return the seconds from the first submission to the last end."""
        return (self.last_ms - self.first_ms) / 1000


def story_of(changes: Iterable[tuple[float, Change]]) -> Story:
    """Return the history that the changes state; each change comes with the time of its reading.

    Maxima are taken only between reads, because a commit writes several groups one after the other,
    and between two of these writes a ledger may exceed its limit: for instance when one group takes
    over the capacity that was pledged to another.
    """
    story = Story()
    held: Counter[str] = Counter()
    charges: dict[tuple[str, str], tuple[int, float]] = {}
    read_at = 0.0
    for at, change in changes:
        if at != read_at:
            _note_most(story, held)
            read_at = at
        group = change.value
        if not isinstance(group, PodGroup):
            continue
        name = group.metadata.name
        for scope, units in _charged(group):
            before, since = charges.get((name, scope), (0, at))
            if units == before:
                continue
            charges[name, scope] = units, at
            held[scope] += units - before
            if "-" not in scope:
                story.charged_unit_s += before * (at - since)
        _note(story, name, group)
    _note_most(story, held)
    return story


def _note_most(story: Story, held: Counter[str]) -> None:
    for scope, units in held.items():
        story.most[scope] = max(story.most[scope], units)


def _charged(group: PodGroup) -> Iterator[tuple[str, int]]:
    """Yield the units charged to the group in its cohort and in its queue.

    Pledged units that victims still hold are counted for the victims.
    """
    cohort, queue = place_of(group.metadata.name)
    owed = group.status.pledge.owed
    for scope, ledger in ((cohort, f"queue:cohort-{cohort}"), (queue, f"queue:queue-{queue}")):
        units = group.status.charge.get("cpu", 0) - owed.get(ledger, {}).get("cpu", 0)
        yield scope, max(0, units) // UNIT


def _note(story: Story, name: str, group: PodGroup) -> None:
    status = group.status
    before, phase = story.phases.get(name), str(status.phase)
    if before == phase:
        return
    story.phases[name] = phase
    created = group.metadata.creation_timestamp or 0
    if before is None:
        story.first_ms = min(story.first_ms, created)
    elif phase == PodGroupPhase.IN_QUEUE:
        story.admissions[name] += 1
        story.admitted_s[name] = ((status.in_queue_at or 0) - created) / 1000
    elif phase == PodGroupPhase.PENDING and before in ADMITTED:
        story.evictions[name] += 1
    if phase in TERMINAL:
        story.completions[name] += phase == PodGroupPhase.COMPLETED
        story.last_ms = max(story.last_ms, status.finished_at or 0)


def faults(scenario: Scenario, story: Story, runs: Sequence[Run]) -> list[str]:
    """Return every violation as a sentence; empty if the run was correct."""
    found = []
    if len(story.phases) != scenario.groups:
        found.append(f"{len(story.phases)} groups were submitted, and not {scenario.groups}")
    unfinished = Counter(phase for phase in story.phases.values() if phase != "Completed")
    found += [f"{count} groups are {phase} at the end" for phase, count in unfinished.items()]
    twice = [name for name, count in story.completions.items() if count != 1]
    found += [f"{name} was completed {story.completions[name]} times" for name in twice]
    for name, count in story.evictions.items():
        if story.admissions[name] != count + 1:
            admitted = story.admissions[name]
            found.append(f"{name} was evicted {count} times, and admitted {admitted} times")
    found += [f"{text} by the records" for text in _above(scenario, story.most)]
    found += [f"{text} by what ran" for text in _above(scenario, _most_run(scenario, runs))]
    found += _wrong_runs(story, runs)
    return found


def _above(scenario: Scenario, most: Counter[str]) -> list[str]:
    found = []
    for scope, units in sorted(most.items()):
        limit = scenario.queue_units if "-" in scope else scenario.cohort_units
        if units > limit:
            kind = "queue" if "-" in scope else "cohort"
            found.append(f"{kind} {scope} held {units} units of {limit}")
    return found


def _most_run(scenario: Scenario, runs: Sequence[Run]) -> Counter[str]:
    units = _units(scenario.classes)
    # At one instant, ends come before beginnings.
    steps = [(began, 1, name) for name, began, _, _ in runs]
    steps += [(ended, 0, name) for name, _, ended, _ in runs]
    held: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for _, begins, name in sorted(steps):
        for scope in place_of(name):
            held[scope] += units[class_of(name)] if begins else -units[class_of(name)]
            most[scope] = max(most[scope], held[scope])
    return most


def _wrong_runs(story: Story, runs: Sequence[Run]) -> list[str]:
    by_name: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_name[run[0]].append(run)
    found = []
    for name in story.phases:
        mine = sorted(by_name[name], key=lambda run: run[1])
        ends = [run[3] for run in mine]
        if ends.count("succeeded") != 1 or ends[-1] != "succeeded":
            found.append(f"the runs of {name} ended like this: {', '.join(ends)}")
        if any(former[2] > later[1] for former, later in pairwise(mine)):
            found.append(f"{name} ran twice at once")
    return found


def _units(classes: Iterable[Class]) -> dict[str, int]:
    return {one.name: one.units for one in classes}


def unit_seconds(scenario: Scenario, runs: Iterable[Run]) -> float:
    """Return the unit-seconds of these runs."""
    units = _units(scenario.classes)
    return sum(units[class_of(name)] * (ended - began) for name, began, ended, _ in runs)


def admission_s(story: Story, name: str) -> tuple[float, float]:
    """Return the mean and the 95th percentile of a class's admission times, in seconds."""
    found = sorted(wait for group, wait in story.admitted_s.items() if class_of(group) == name)
    return statistics.fmean(found), found[round(0.95 * (len(found) - 1))]
