"""Expected starts of pending groups, which account for all groups ahead of them; in seconds."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from batchq.api.objects import (
    AdmissionCheck,
    AdmissionCheckSpec,
    AdmissionCheckStatus,
    Metadata,
    PodGroup,
    PodGroupStatus,
    Queue,
    QueuePreemption,
    SchedulingGate,
    Strategy,
)
from batchq.assembly import assemble
from batchq.config import DEFAULT_PLUGINS, PluginEntry, SchedulerConfig
from batchq.core.estimates import Expected, earliest_start, expected_starts
from batchq.core.session.session import Session
from batchq.core.session.snapshot import Settings
from tests.builders import (
    a_group,
    a_node,
    a_priority,
    a_queue,
    a_quota,
    a_running_group,
    a_snapshot,
    a_task,
)
from tests.property.worlds import dump

STRICT = Strategy(type="StrictFIFO")
FIRST_FIT = Strategy(type="BestEffortFIFO")
EASY = Strategy(type="Backfill")
CONSERVATIVE = Strategy(type="Backfill", reservations="all")
EVERY = [STRICT, FIRST_FIT, EASY, CONSERVATIVE]
NEVER = "unknown"
NO_RECLAIM = QueuePreemption(reclaim="Never")


def served(strategy: Strategy, name: str = "default", **spec: Any) -> Queue:
    queue = a_queue(name, **spec)
    return structs.replace(queue, spec=structs.replace(queue.spec, strategy=strategy))


def runs(name: str, cpu: int, until_s: int | None, **spec: Any) -> tuple[Any, ...]:
    walltime = None if until_s is None else until_s * 1000
    return a_running_group(name, cpu=cpu, walltime=walltime, **spec)


_places = iter(range(1, 1_000_000))


def waits(name: str, cpu: int, for_s: int | None = None, **spec: Any) -> PodGroup:
    """Return a pending group, which comes after all groups created before."""
    walltime = None if for_s is None else for_s * 1000
    return a_group(name, cpu=cpu, walltime=walltime, created=next(_places), **spec)


def decided(*objects: Any, **config: Any) -> Session:
    checks = tuple(one for one in objects if isinstance(one, AdmissionCheck))
    snapshot = structs.replace(a_snapshot(*objects), admission_checks=checks)
    return assemble(SchedulerConfig(**config)).decide(snapshot, 0)


def estimates_of(*objects: Any, **more: Any) -> dict[str, Expected]:
    """Return name -> estimate for every pending group, at time 0. The estimates are the same before
    and after a session has stored why the groups wait.
    """
    session = decided(*objects)
    found = by_name(session, **more)
    assert by_name(decided(*as_stored(session, objects)), **more) == found
    return found


def by_name(session: Session, **more: Any) -> dict[str, Expected]:
    found = expected_starts(session, **more)
    return {session.groups[uid].record.metadata.name: one for uid, one in found.items()}


def as_stored(session: Session, objects: tuple[Any, ...]) -> list[Any]:
    """Return the objects with the groups that still wait as the session has stored them."""
    waiting = {uid: one.status for uid, one in session.groups.items() if one.phase == "Pending"}
    return [
        structs.replace(one, status=waiting[one.metadata.uid])
        if isinstance(one, PodGroup) and one.metadata.uid in waiting
        else one
        for one in objects
    ]


def starts(*objects: Any, **more: Any) -> dict[str, float | str]:
    """Return name -> expected start in seconds."""
    found = estimates_of(*objects, **more)
    return {
        name: NEVER if found[name].at is None else (found[name].at or 0) / 1000
        for name in sorted(found)
    }


def a_busy_queue(strategy: Strategy) -> list[Any]:
    """Three of four cpus are in use until 100; `wide` requests all, the groups behind it fewer."""
    return [
        a_node(cpu=4),
        served(strategy),
        *runs("runs", 3, 100),
        waits("wide", 4, 30),
        waits("long", 1, 147),
        waits("medium", 1, 50),
        waits("short", 1, 20),
    ]


def test_no_group_of_a_strict_queue_starts_before_those_ahead() -> None:
    assert starts(*a_busy_queue(STRICT)) == {
        "wide": 100,
        "long": 130,
        "medium": 130,
        "short": 130,
    }


def test_in_a_best_effort_queue_the_first_fitting_group_starts_and_the_wide_one_is_planned() -> (
    None
):
    """`long` is admitted at once, because `wide` has no reservation."""
    assert starts(*a_busy_queue(FIRST_FIT)) == {
        "long": 0,
        "wide": 147,
        "medium": 177,
        "short": 100,
    }


@pytest.mark.parametrize("strategy", [EASY, CONSERVATIVE])
def test_in_a_backfilled_queue_groups_that_delay_no_reservation_start_early(
    strategy: Strategy,
) -> None:
    assert starts(*a_busy_queue(strategy)) == {
        "wide": 100,
        "long": 130,
        "medium": 0,
        "short": 50,
    }


def test_without_the_action_backfill_a_backfilled_queue_is_strict() -> None:
    session = decided(*a_busy_queue(EASY), actions=("enqueue", "allocate"))
    found = expected_starts(session)
    assert {uid: one.at for uid, one in found.items()} == {
        "wide": 100_000,
        "long": 130_000,
        "medium": 130_000,
        "short": 130_000,
    }


def test_an_estimate_names_the_groups_that_must_end_or_start_first() -> None:
    found = estimates_of(*a_busy_queue(STRICT))
    assert (found["wide"].ended, found["wide"].behind) == (("default/runs",), "")
    assert found["long"].ended == ("default/wide",)
    blocked = estimates_of(
        a_node(cpu=4),
        served(STRICT),
        *runs("r", 4, 50),
        waits("first", 3, 9),
        waits("second", 1, 9),
    )
    assert (blocked["second"].at, blocked["second"].behind) == (50_000, "default/first")


@pytest.mark.parametrize("strategy", EVERY)
def test_a_running_group_without_a_walltime_never_ends(strategy: Strategy) -> None:
    world = [a_node(cpu=4), served(strategy), *runs("r", 4, None), waits("a", 1, 9)]
    found = estimates_of(*world)
    assert found["a"] == Expected(None, why="no walltime says when there will be room for it")


@pytest.mark.parametrize("strategy", EVERY)
def test_a_group_that_needs_a_node_that_is_away_waits_for_the_node(strategy: Strategy) -> None:
    away = a_node("n2", cpu=8, ready=False)
    found = estimates_of(a_node(cpu=4), away, served(strategy), waits("a", 5, 9))
    assert found["a"] == Expected(
        None, why="1 of 2 nodes is not ready (n2), and the others do not suffice even when empty"
    )


def test_a_planned_group_without_a_walltime_never_ends() -> None:
    world = [a_node(cpu=4), *runs("r", 4, 100), waits("a", 3), waits("b", 2, 9), waits("c", 1, 9)]
    assert starts(*world) == {"a": 100, "b": NEVER, "c": 100}


def test_groups_behind_a_strict_head_without_an_expected_start_have_none_either() -> None:
    world = [a_node(cpu=4), served(STRICT), *runs("r", 3, None), waits("a", 4, 9), waits("b", 1, 9)]
    found = estimates_of(*world)
    assert found["a"].at is None
    assert found["b"] == Expected(
        None, why="the start of the group ahead of it is unknown", behind="default/a"
    )


@pytest.mark.parametrize("strategy", [EASY, CONSERVATIVE])
def test_a_backfilled_queue_with_a_head_without_a_start_is_strict(strategy: Strategy) -> None:
    world = [
        a_node(cpu=4),
        served(strategy),
        *runs("r", 3, None),
        waits("a", 4, 9),
        waits("b", 1, 9),
    ]
    assert starts(*world) == {"a": NEVER, "b": NEVER}


def test_groups_pass_a_group_without_a_start_until_it_becomes_the_head() -> None:
    """From 100 on `lost` is the head, and has no reservation."""
    world = [
        a_node(cpu=4),
        *runs("stays", 1, None),
        *runs("ends", 2, 100),
        *runs("sooner", 1, 50),
        waits("head", 3, 30),
        waits("lost", 4, 30),
        waits("small", 1, 40),
        waits("late", 2, 60),
    ]
    easy = starts(served(EASY), *world)
    assert easy == {"head": 100, "lost": NEVER, "small": 50, "late": NEVER}
    strict = starts(served(CONSERVATIVE), *world)
    assert strict == {"head": 100, "lost": NEVER, "small": NEVER, "late": NEVER}


def test_a_planned_array_keeps_its_reservation_for_ever() -> None:
    array = a_group("a", 5, cpu=2, walltime=10_000, min_member=1, created=1)
    world = [a_node(cpu=4), *runs("r", 4, 100), array, waits("b", 3, 9)]
    assert starts(*world) == {"a": 100, "b": NEVER}


def gated(name: str) -> PodGroup:
    return waits(name, 4, 9, scheduling_gates=(SchedulingGate(name="data"),))


@pytest.mark.parametrize("strategy", EVERY)
def test_a_gated_group_has_no_expected_start_and_no_group_waits_for_it(
    strategy: Strategy,
) -> None:
    world = [a_node(cpu=4), served(strategy), *runs("r", 4, 100), gated("g"), waits("a", 4, 9)]
    found = estimates_of(*world)
    assert found["g"].why == (
        "SchedulingGated: Scheduling is blocked due to non-empty scheduling gates: data"
    )
    assert found["a"].at == 100_000


def test_a_group_that_is_suspended_too_large_or_in_no_queue_has_no_start() -> None:
    found = estimates_of(
        a_node(cpu=4),
        waits("suspended", 1, suspend=True),
        waits("huge", 5),
        waits("lost", 1, queue="nowhere"),
    )
    assert {name: (one.at, one.why.partition(":")[0]) for name, one in found.items()} == {
        "suspended": (None, "Suspended"),
        "huge": (None, "ExceedsCapacity"),
        "lost": (None, "QueueNotFound"),
    }


def paused(name: str, cpu: int, until_s: int, for_s: int) -> PodGroup:
    status = PodGroupStatus(backoff_until=until_s * 1000, backoff_count=1)
    return waits(name, cpu, for_s, status=status)


def test_a_group_in_backoff_starts_after_its_backoff_even_if_it_fits_now() -> None:
    found = estimates_of(a_node(cpu=4), paused("p", 1, 20, 9))
    assert found["p"].at == 20_000
    assert found["p"].why.startswith("BackingOff: pauses for 10s, until 1970-01-01T00:00:20Z")


def test_no_group_waits_for_a_group_in_backoff_until_the_backoff_is_over() -> None:
    world = [
        a_node(cpu=4),
        served(STRICT),
        *runs("most", 3, 100),
        *runs("little", 1, 10),
        paused("p", 4, 20, 30),
        waits("before", 1, 5),
        waits("after", 1, 15),
        waits("last", 1, 1),
    ]
    # From 20 on `p` is the head, which starts when all other groups have ended.
    assert starts(*world) == {"before": 10, "p": 100, "after": 15, "last": 130}


def test_no_group_waits_for_a_group_that_only_its_namespace_quota_holds_back() -> None:
    world = [
        a_node(cpu=8),
        served(STRICT),
        a_quota("lab", cpu=2),
        *runs("lab-runs", 2, 100, namespace="lab"),
        *runs("others", 5, 50),
        waits("lab-waits", 1, 9, namespace="lab"),
        waits("other", 2, 9),
    ]
    assert starts(*world) == {"lab-waits": 100, "other": 50}


def a_check() -> AdmissionCheck:
    return AdmissionCheck(
        metadata=Metadata(name="approval"),
        spec=AdmissionCheckSpec(controller_name="finance"),
        status=AdmissionCheckStatus(active=True),
    )


def test_a_group_with_a_check_has_no_expected_start_before_and_after_its_reservation() -> None:
    checked = served(FIRST_FIT, "checked", admission_checks=("approval",))
    found = estimates_of(
        a_node(cpu=4),
        checked,
        a_check(),
        *runs("r", 2, 100),
        waits("reserves", 2, 9, queue="checked"),
        waits("waits", 2, 9, queue="checked"),
        waits("free", 2, 9),
    )
    assert (found["reserves"].at, found["reserves"].why.partition(":")[0]) == (
        None,
        "WaitingForChecks",
    )
    assert found["waits"].at is None
    assert found["waits"].why.startswith("it reserves its quota first, and then: ")


def test_a_group_that_fits_on_no_node_starts_when_a_node_has_enough_free_capacity() -> None:
    found = estimates_of(
        a_node("n1", cpu=2), a_node("n2", cpu=2), *runs("r", 1, 100), waits("a", 2, 9)
    )
    assert found == {"a": Expected(0)}
    found = estimates_of(
        a_node("n1", cpu=2),
        a_node("n2", cpu=2),
        *runs("r", 1, 100),
        *runs("s", 1, 100, node="n2"),
        waits("a", 2, 9),
    )
    assert found["a"].at == 100_000


@pytest.mark.parametrize("strategy", EVERY)
def test_a_group_that_only_busy_nodes_refuse_starts_when_these_are_free(strategy: Strategy) -> None:
    """The cluster has enough free cpus in all, but not on the nodes that the group may use."""
    gpu = {"pool": "gpu"}
    task = a_task(requests={"cpu": 4}, node_selector=gpu)
    world = [
        *(a_node("n1", cpu=8, labels=gpu), a_node("n2", cpu=8, labels=gpu), a_node("n3", cpu=8)),
        *runs("fill", 7, 170),
        *runs("more", 7, 180, node="n2"),
        served(strategy),
        waits("a", 4, 60, tasks=(task,)),
        waits("b", 4, 60, tasks=(task,)),
    ]
    found = estimates_of(*world)
    assert {name: (one.at, one.ended) for name, one in found.items()} == {
        "a": (170_000, ("default/fill",)),
        "b": (170_000, ("default/fill",)),
    }
    again = decided(*as_stored(decided(*world), tuple(world)))
    assert earliest_start(again, again.by_key["default/b"]).at == 170_000


def test_a_group_that_waits_for_any_ready_node_has_no_start() -> None:
    found = estimates_of(a_node(cpu=4, ready=False), *runs("r", 1, 100), waits("a", 1, 9))
    assert found["a"] == Expected(
        None, why="WaitingForResources: no node is ready, of the 1 there are"
    )


def test_a_group_that_never_fits_on_a_node_has_no_start_and_takes_no_capacity() -> None:
    world = [
        *(a_node("n1", cpu=2), a_node("n2", cpu=2)),
        *runs("r", 2, 100),
        waits("wide", 3, 9),
        waits("a", 2, 9),
        waits("b", 2, 9),
        waits("c", 2, 9),
    ]
    found = estimates_of(*world)
    assert found["wide"].at is None
    assert found["wide"].why.startswith(
        "ExceedsCapacity: not even empty nodes take it: task w: 0/2 nodes fit"
    )
    assert [found[name].at for name in "abc"] == [0, 9_000, 18_000]


def test_without_nodes_no_group_has_an_expected_start() -> None:
    assert starts(waits("a", 1, 9), waits("b", 1, 9)) == {"a": NEVER, "b": NEVER}


def test_the_queue_with_the_lowest_share_including_planned_groups_comes_first() -> None:
    """`a` holds all cpus until 100; then both queues take turns by their planned shares."""
    world = [
        a_node(cpu=4),
        a_queue("a", preemption=NO_RECLAIM),
        a_queue("b", preemption=NO_RECLAIM),
        *runs("r", 4, 100, queue="a"),
        *(waits(f"a{number}", 2, 10, queue="a") for number in (1, 2)),
        *(waits(f"b{number}", 2, 10, queue="b") for number in (1, 2, 3, 4)),
    ]
    assert starts(*world) == {
        "b1": 100,
        "b2": 100,
        "a1": 110,
        "b3": 110,
        "a2": 120,
        "b4": 120,
    }


def test_a_limit_of_the_queue_counts_beside_that_of_the_cluster() -> None:
    world = [
        a_node(cpu=8),
        a_queue("narrow", capability={"cpu": 2}),
        *runs("r", 2, 100, queue="narrow"),
        *runs("s", 6, 50),
        waits("n", 1, 9, queue="narrow"),
        waits("d", 1, 9),
    ]
    assert starts(*world) == {"n": 100, "d": 50}


def test_a_limit_of_the_plugin_overcommit_counts_too() -> None:
    """The cluster admits twice the cpus of its node, and the plugin only as many as there are."""
    config = {
        "settings": Settings(overcommit=2_000),
        "plugins": (*DEFAULT_PLUGINS, PluginEntry(name="overcommit")),
        "plugin_config": {"overcommit": {"resources": {"cpu": 1}}},
    }
    world = [a_node(cpu=4), *runs("r", 2, 100), *runs("s", 2, 50), waits("a", 3, 9)]
    session = decided(*world, **config)
    [refusal] = session.refusals["a"]
    assert refusal.plugin == "overcommit"
    assert expected_starts(session)["a"].at == 100_000
    found = earliest_start(session, session.by_key["default/a"])
    assert (found.at, found.ended) == (100_000, ("default/s", "default/r"))
    endless = decided(a_node(cpu=4), *runs("r", 2, None), waits("a", 3, 9), **config)
    assert expected_starts(endless)["a"].at is None
    assert earliest_start(endless, endless.by_key["default/a"]).why == (
        "no end of a running group is known: it needs cpu 3, and the cluster has 2 free (2 of 4 in"
        " use); overcommit is 1 here"
    )


def test_in_one_pending_queue_a_strict_group_passes_no_other_and_no_other_passes_it() -> None:
    one_line = {"plugins": tuple(one for one in DEFAULT_PLUGINS if one.name != "proportion")}
    objects = [
        a_node(cpu=4),
        served(STRICT, "s"),
        *runs("r", 3, 100),
        waits("wide", 4, 30, queue="s"),
        waits("small", 1, 10),
    ]
    found = expected_starts(decided(*objects, **one_line))
    assert {uid: one.at for uid, one in found.items()} == {"wide": 100_000, "small": 130_000}


def test_in_one_pending_queue_a_strict_group_passes_no_backfilled_head() -> None:
    one_line = {"plugins": tuple(one for one in DEFAULT_PLUGINS if one.name != "proportion")}
    objects = [
        a_node(cpu=4),
        served(EASY, "b"),
        served(STRICT, "s"),
        *runs("r", 3, 100),
        waits("wide", 4, 30, queue="b"),
        waits("strict", 1, 10, queue="s"),
        waits("behind", 1, 10, queue="b"),
    ]
    found = expected_starts(decided(*objects, **one_line))
    assert {uid: one.at for uid, one in found.items()} == {
        "wide": 100_000,
        "strict": 130_000,
        "behind": 130_000,
    }


def test_the_group_of_higher_priority_is_planned_first() -> None:
    world = [
        a_node(cpu=4),
        a_priority("high", 10),
        a_queue(preemption=NO_RECLAIM),
        *runs("r", 4, 100, priority_class_name="high"),
        waits("low", 4, 9),
        waits("urgent", 4, 9, priority_class_name="high"),
    ]
    assert starts(*world) == {"urgent": 100, "low": 109}


def test_groups_beyond_the_planning_limit_say_so() -> None:
    world = [
        a_node(cpu=1),
        *runs("r", 1, 10),
        gated("g"),
        *(waits(f"w{n}", 1, 1) for n in range(4)),
    ]
    found = estimates_of(*world, most=2)
    assert [(found[f"w{n}"].at, found[f"w{n}"].is_planned) for n in range(4)] == [
        (10_000, True),
        (11_000, True),
        (None, False),
        (None, False),
    ]
    assert found["w3"].why == "it is too far behind to be planned"
    assert found["g"].is_planned


def test_an_estimate_for_one_group_is_the_same_and_plans_no_group_behind_it() -> None:
    world = [a_node(cpu=1), *runs("r", 1, 10), *(waits(f"w{n}", 1, 1) for n in range(9))]
    whole, some = estimates_of(*world), estimates_of(*world, wanted=["w4"])
    assert some["w4"] == whole["w4"]
    assert sorted(some) == [f"w{n}" for n in range(5)]


@pytest.mark.parametrize("strategy", EVERY)
def test_planning_does_not_change_the_session(strategy: Strategy) -> None:
    session = decided(*a_busy_queue(strategy))
    before, sums = dump(session), {k: dict(v) for k, v in session.ledger.sums.items()}
    expected_starts(session)
    assert dump(session) == before
    assert session.ledger.sums == sums
