"""Submissions to a load's store equal single creations, even for many equal groups."""

from __future__ import annotations

import pytest
from msgspec import structs

from batchq.api.objects import Metadata, PodGroup
from batchq.client.changes import create
from batchq.errors import BatchqError, Conflict, InvalidInput
from batchq.lab.simulation.world import CountedIds, write
from batchq.lab.traces import Submitter, empty_cluster
from batchq.store.memory import MemoryStore
from tests.traces.loads import a_load, job

FIRST = job(1, 0, 4, 10).group


def alike(name: str, **more: object) -> PodGroup:
    """Return another group with the very same spec."""
    meta = structs.replace(Metadata(name=name, namespace="default"), **more)
    return structs.replace(FIRST, metadata=meta)


@pytest.fixture
def store() -> MemoryStore:
    return empty_cluster(a_load(job(1, 0, 4, 10)), CountedIds())


@pytest.fixture
def submitter(store: MemoryStore) -> Submitter:
    """A submitter that has accepted the first group."""
    submitter = Submitter(store)
    write(store, CountedIds(first=100), submitter.submitted(FIRST, "1", 5))
    return submitter


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(alike("job-2"), id="like one before"),
        pytest.param(alike("job-2", namespace="other"), id="in another namespace"),
        pytest.param(alike("job-2", labels={"a": "b"}), id="with labels"),
        pytest.param(alike("job-2", creation_timestamp=3), id="created before"),
        pytest.param(job(2, 0, 3, 10).group, id="another spec"),
        pytest.param(job(2, 0, 3, 10, queue="nowhere").group, id="a missing queue"),
    ],
)
def test_a_submitted_group_equals_the_one_create_makes(
    store: MemoryStore, submitter: Submitter, group: PodGroup
) -> None:
    expected = create(store, group, now_ms=7, uid="2", described=True)
    assert submitter.submitted(group, "2", 7) == expected
    assert submitter.submitted(group, "2", 7) == expected


@pytest.mark.parametrize(
    ("group", "error", "message"),
    [
        pytest.param(alike("job-1"), Conflict, "job-1 exists already", id="its name is taken"),
        pytest.param(alike("Job 2"), InvalidInput, "expected at most 63", id="its name is none"),
        pytest.param(
            alike("job-2", namespace="A B"), InvalidInput, "expected", id="its namespace is none"
        ),
    ],
)
def test_an_invalid_group_is_refused_as_create_refuses_it(
    submitter: Submitter, group: PodGroup, error: type[BatchqError], message: str
) -> None:
    with pytest.raises(error, match=message):
        submitter.submitted(group, "2", 7)
