"""For every n, the n-th call of every process fails, and the world still ends correctly.

Eight short stories, one for each event in a group's life. Each is first played without faults, to
count the calls of each process; then once for each call and each way of failing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec import Struct

from batchq.api.objects import PodGroup, Retry
from batchq.errors import InvariantBroken, StoreUnavailable
from batchq.lab.simulation.world import VirtualClock
from tests.builders import a_group, a_quota, a_task, amounts
from tests.effort import grid, sample
from tests.faults.cluster import Cluster, Ended
from tests.faults.machines import Script
from tests.faults.processes import Request
from tests.faults.scenario import AnyFault, KillHorse, Scenario
from tests.faults.seeded_scenarios import CONFIG, cancelling, resuming, submission, suspending
from tests.faults.store_faults import Line, Mode

START = 3_000


class Story(Struct, frozen=True, kw_only=True):
    """The events of one of the eight stories, and how its groups end."""

    groups: tuple[PodGroup, ...]
    ends: dict[str, str]
    starts: int
    script: Script = Script(runtime_ms=1_000)
    more: tuple[Request, ...] = ()
    faults: tuple[AnyFault, ...] = ()
    objects: tuple[object, ...] = ()

    def play(self, plans: dict[str, dict[int, Mode]] | None = None) -> Ended:
        scenario = Scenario(
            nodes={"n1": amounts(cpu=2), "n2": amounts(cpu=2)},
            objects=self.objects,
            scripts={group.metadata.name: self.script for group in self.groups},
            requests=(*(submission(START, group) for group in self.groups), *self.more),
            config=CONFIG,
            faults=self.faults,
            plans=plans or {},
        )
        return Cluster(scenario).run()


def pods(name: str, count: int, **spec: object) -> PodGroup:
    task = a_task("w", count, command=("run",), termination_grace=1_000)
    return a_group(name, tasks=(task,), **spec)


LONG = Script(runtime_ms=6_000)

STORIES = {
    "submit": Story(groups=(pods("a", 1), pods("b", 1)), ends={"a": "Completed", "b": "Completed"},
                    starts=2),
    "admit": Story(groups=(pods("a", 2), pods("b", 2)), ends={"a": "Completed", "b": "Completed"},
                   starts=4, objects=(a_quota(cpu=2),)),
    "bind": Story(groups=(pods("a", 3),), ends={"a": "Completed"}, starts=3),
    "start": Story(groups=(pods("a", 2, min_member=1),), ends={"a": "Completed"}, starts=2),
    "finish": Story(groups=(pods("a", 1, retry=Retry(limit=1, backoff=1_000)),),
                    ends={"a": "Completed"}, starts=2, script=Script(runtime_ms=500, fails=1)),
    "evict": Story(groups=(pods("a", 2),), ends={"a": "Completed"}, starts=4, script=LONG,
                   more=(suspending(6_000, "a"), resuming(7_000, "a"))),
    "requeue": Story(groups=(pods("a", 2),), ends={"a": "Completed"}, starts=3, script=LONG,
                     faults=(KillHorse(at=6_000, which=0),)),
    "cancel": Story(groups=(pods("a", 2),), ends={"a": "Cancelled"}, starts=2, script=LONG,
                    more=(cancelling(6_000, "a"),)),
}  # fmt: skip


def each_call(story: Story, mode: Mode) -> Iterator[tuple[str, int]]:
    """Return every caller with every n; a read can only fail in one way."""
    for caller, (count, writes) in story.play().calls.items():
        numbers = range(1, count + 1) if mode == Mode.BEFORE else writes
        for n in numbers:
            yield caller, n


@pytest.mark.parametrize("name", STORIES)
def test_without_faults_the_story_ends_as_expected(name: str) -> None:
    story = STORIES[name]
    ended = story.play()
    assert ended.phases == story.ends
    assert ended.starts == story.starts


@pytest.mark.parametrize(("name", "mode"), grid(STORIES, Mode))
def test_the_story_ends_as_expected_whichever_call_fails(name: str, mode: Mode) -> None:
    story = STORIES[name]
    wrong = []
    for caller, n in sample(each_call(story, mode), 8):
        try:
            ended = story.play({caller: {n: mode}})
        except InvariantBroken as broken:
            wrong.append(f"call {n} of {caller}: {broken}")
            continue
        # A pod that could not be told to stop in time may end first; this is reported, and is no
        # fault.
        refused = not all(ended.granted.values())
        if ended.phases != story.ends and not refused:
            wrong.append(f"call {n} of {caller}: {ended.phases}")
    assert wrong == []


def test_every_process_of_a_story_calls_the_server() -> None:
    assert sorted(STORIES["bind"].play().calls) == [
        "agent n1", "agent n2", "client", "horses n1", "horses n2", "scheduler a", "scheduler b",
    ]  # fmt: skip


class Tally:
    """A server that counts the calls that it carries out."""

    def __init__(self) -> None:
        self.done = 0

    def do(self) -> int:
        self.done += 1
        return self.done


@pytest.mark.parametrize(
    ("mode", "done", "is_answered"),
    [(Mode.BEFORE, 0, False), (Mode.AFTER, 1, False), (Mode.LOST, 2, True), (Mode.LATE, 0, False)],
)
def test_a_call_fails_in_the_planned_way(mode: Mode, done: int, is_answered: bool) -> None:
    tally, late = Tally(), []
    line = Line("client", VirtualClock(), plan={2: mode}, later=late.append)
    assert line.call("write", tally.do, writes=True) == 1
    tally.done = 0
    if is_answered:
        assert line.call("write", tally.do, writes=True) == 2
    else:
        with pytest.raises(StoreUnavailable):
            line.call("write", tally.do, writes=True)
    assert tally.done == done
    assert len(late) == (1 if mode == Mode.LATE else 0)


def test_a_line_that_is_cut_lets_no_call_through_until_its_time() -> None:
    clock, tally = VirtualClock(), Tally()
    line = Line("client", clock)
    line.cut(500)
    with pytest.raises(StoreUnavailable):
        line.call("read", tally.do)
    clock.jump_to(500)
    assert line.call("read", tally.do) == 1
    assert line.contact.since == 500


def test_a_caller_that_was_silent_for_a_third_of_a_lease_counts_its_contact_anew() -> None:
    clock, tally = VirtualClock(), Tally()
    line = Line("scheduler a", clock)
    for at_ms, since_ms in ((1_000, 1_000), (5_000, 1_000), (9_001, 9_001)):
        clock.jump_to(at_ms)
        line.call("read", tally.do)
        assert line.contact.since == since_ms
    assert line.connections == 1
