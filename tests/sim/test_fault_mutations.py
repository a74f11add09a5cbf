"""Faults put into the agent, the leases and the leader are found by the seeded faults."""

from __future__ import annotations

import pytest
from msgspec import structs

from tests.effort import sample
from tests.faults.mutations import MUTATIONS, first_seed, mutated
from tests.faults.play import failure_of

PLACES = sample(range(len(MUTATIONS)), 9)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: MUTATIONS[place].what)
def test_a_seed_finds_the_fault(place: int) -> None:
    # The seed of the table is only the first to try: it changes with the schedule of the cluster.
    assert first_seed(place, [MUTATIONS[place].found_by, *range(1_000)]) is not None


def test_the_table_has_at_least_fifteen_faults() -> None:
    assert len({one.what for one in MUTATIONS}) >= 15


def test_the_code_is_whole_again_after_a_mutation() -> None:
    with mutated(MUTATIONS[0]):
        assert failure_of(MUTATIONS[0].found_by) is not None
    assert failure_of(MUTATIONS[0].found_by) is None


def test_a_mutation_of_code_that_has_changed_is_refused() -> None:
    stale = structs.replace(MUTATIONS[0], before="no such code")
    with pytest.raises(ValueError, match="'no such code' is not once in _decide_claim"):
        mutated(stale).__enter__()
