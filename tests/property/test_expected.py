"""Expected starts come true with exact estimates, one machine and no later arrivals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from batchq.assembly import assemble
from batchq.core.estimates import expected_starts
from batchq.core.session.session import Session
from batchq.lab.traces import POLICY_CONFIG, Arrival, Load
from batchq_actions.backfill import reservations_of
from tests.builders import a_snapshot
from tests.traces.loads import a_load, job, played

#: Jobs: (cpus out of four, run time in seconds).
_sizes = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 20)), min_size=1, max_size=8)


def at_once(sizes: list[tuple[int, int]], policy: str) -> Load:
    """Return a load in which all jobs arrive at 0, in this order."""
    jobs = [job(number, 0, cpus, run_s) for number, (cpus, run_s) in enumerate(sizes)]
    return a_load(*jobs, policy=policy)


def at_first(load: Load) -> Session:
    """Return the first session, at 0."""
    groups = [_submitted(place, arrival) for place, arrival in enumerate(load.arrivals)]
    snapshot = a_snapshot(*load.nodes, *load.queues, *groups)
    return assemble(POLICY_CONFIG).decide(snapshot, 0)


def _submitted(place: int, arrival: Arrival) -> object:
    metadata = arrival.group.metadata
    named = structs.replace(metadata, uid=str(place), creation_timestamp=0)
    return structs.replace(arrival.group, metadata=named)


def expected(session: Session) -> dict[int, int | None]:
    """Return job -> expected start in milliseconds."""
    return {int(uid): result.at for uid, result in expected_starts(session).items()}


def came_true(load: Load) -> dict[int, int | None]:
    """Return job -> actual start in milliseconds."""
    return {
        one.number: None if one.start_s is None else one.start_s * 1000 for one in played(load).jobs
    }


@given(_sizes, st.sampled_from(["fcfs", "conservative"]))
def test_strict_and_conservative_starts_are_as_expected(
    sizes: list[tuple[int, int]], policy: str
) -> None:
    load = at_once(sizes, policy)
    assert expected(at_first(load)) == came_true(load)


@given(_sizes, st.sampled_from(["easy", "easy-sjf"]))
def test_the_head_of_an_easy_queue_starts_no_later_than_expected(
    sizes: list[tuple[int, int]], policy: str
) -> None:
    load = at_once(sizes, policy)
    session = at_first(load)
    result, became = expected(session), came_true(load)
    for head in session.heads.strict.values():
        promised, started = result[int(head.uid)], became[int(head.uid)]
        assert promised == reservations_of(session)[head.uid]
        assert promised is not None
        assert started is not None
        assert started <= promised


@given(_sizes, st.sampled_from(["fcfs", "first-fit", "easy", "easy-sjf", "conservative"]))
def test_every_job_has_an_expected_start_when_all_jobs_end(
    sizes: list[tuple[int, int]], policy: str
) -> None:
    found = expected(at_first(at_once(sizes, policy)))
    assert sorted(found) == list(range(len(sizes)))
    assert None not in found.values()
