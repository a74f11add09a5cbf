"""Many groups from Python: each is accepted or refused as by `submit`, in order."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any

import pytest
import redis
from msgspec import structs

from batchq.api.objects import AdmissionCheck, AdmissionCheckSpec, Metadata, Object, PodGroup
from batchq.api.transaction import Transaction
from batchq.api.views import Accepted, Refused, Tally
from batchq.client import Client, Request, changes
from batchq.client import submission as bulk
from batchq.client.changes import NewGroups
from batchq.client.request import Submitted
from batchq.client.submission import Outcome
from batchq.errors import BatchqError, InvalidInput, StoreUnavailable
from batchq.store.redis import RedisStore
from tests.builders import a_group, a_priority, a_queue, a_quota, a_task
from tests.client.stage import Stage
from tests.harness.proxy import ControlledProxy, LossyProxy
from tests.harness.server import Server


def a_line(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "command": ["true", name], **fields}


def lines(count: int, first: int = 0) -> Iterator[dict[str, Any]]:
    return (a_line(f"g-{number}") for number in range(first, first + count))


def names_of(outcomes: list[Outcome]) -> list[str]:
    """Return the name of each accepted group, and the message of each refusal."""
    return [
        one.group.metadata.name if isinstance(one, Accepted) else one.error.message
        for one in outcomes
    ]


def stored(stage: Stage) -> list[PodGroup]:
    """Return all groups in the order of the line."""
    found = [one for one in stage.store.list("PodGroup") if isinstance(one, PodGroup)]
    return sorted(found, key=lambda one: (one.status.queue_time or 0, one.metadata.uid))


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "GROUPS_A_BATCH", 10)


@pytest.mark.usefixtures("small_batches")
def test_all_are_stored_in_the_order_given(stage: Stage) -> None:
    outcomes = list(stage.client.submit_many(lines(95)))
    assert [one.place for one in outcomes] == list(range(95))
    assert names_of(outcomes) == [f"g-{number}" for number in range(95)]
    assert [one.metadata.name for one in stored(stage)] == [f"g-{number}" for number in range(95)]


def test_the_accepted_group_equals_the_stored_one(stage: Stage) -> None:
    [one] = stage.client.submit_many([a_line("x", cpus=2, labels={"team": "a"})])
    assert isinstance(one, Accepted)
    kept = stage.client.get("PodGroup", "x")
    assert isinstance(kept, PodGroup)
    metadata = structs.replace(kept.metadata, revision=0)
    assert structs.replace(kept, metadata=metadata) == one.group
    assert one.group.status.submitted_by == stage.client.user


def test_everything_that_submit_takes_can_be_among_them(stage: Stage) -> None:
    manifest = {
        "apiVersion": "batchq/v1",
        "kind": "PodGroup",
        "metadata": {"name": "plain"},
        "spec": {"tasks": [{"name": "w", "template": {"command": ["true"]}}]},
    }
    requests: list[Submitted] = [
        Request(command=["true"], name="request"),
        a_line("keywords"),
        manifest,
        a_group("object", tasks=(a_task(command=("true",)),)),
        ["echo", "1"],
        "os.path:join",
    ]
    names = names_of(list(stage.client.submit_many(requests)))
    assert names[:4] == ["request", "keywords", "plain", "object"]
    assert [name.rpartition("-")[0] for name in names[4:]] == ["echo", "join"]


def test_defaults_say_what_a_request_leaves_open(stage: Stage) -> None:
    requests: list[Submitted] = [
        {"name": "a"},
        {"name": "b", "command": ["own"], "cpus": 4, "env": {"A": "own", "C": "3"}},
        {"name": "c", "function": "os.path:join"},
    ]
    submission = stage.client.submit_many(
        requests, command=["usual"], cpus=2, env={"A": "1", "B": 2}
    )
    templates = [
        one.group.spec.tasks[0].template for one in submission if isinstance(one, Accepted)
    ]
    assert [one.command for one in templates] == [("usual",), ("own",), ()]
    assert [one.requests for one in templates] == [{"cpu": 2000}, {"cpu": 4000}, {"cpu": 2000}]
    assert [one.env for one in templates] == [
        {"A": "1", "B": "2"},
        {"A": "own", "B": "2", "C": "3"},
        {"A": "1", "B": "2"},
    ]


def test_a_submission_is_the_transaction_that_create_makes(stage: Stage) -> None:
    stage.client.apply(
        [
            a_queue("team", admission_checks=("budget",)),
            AdmissionCheck(
                metadata=Metadata(name="budget"),
                spec=AdmissionCheckSpec(controller_name="budget"),
            ),
            a_priority("high", 10),
        ]
    )
    stage.client.submit(command=["true"], name="before")
    group = stage.client.group_of(
        Request(command=["x"], name="x", queue="team", priority_class="high", after=["before"])
    )
    made: Transaction = changes.create(stage.store, group, now_ms=7, uid="u" * 16, by="me@here")
    assert NewGroups(stage.store).submission(group, now_ms=7, uid="u" * 16, by="me@here") == made


def test_progress_is_reported_after_each_batch(stage: Stage, small_batches: None) -> None:
    heard: list[Tally] = []
    requests = [*lines(15), a_line("g-3")]
    tally = stage.client.submit_many(requests, progress=heard.append).all()
    assert heard == [Tally(submitted=10), Tally(submitted=15, refused=1)]
    assert tally == heard[-1]
    assert tally.settled == 16


def test_no_more_is_read_ahead_than_two_batches(stage: Stage, small_batches: None) -> None:
    read: list[int] = []

    def requests() -> Iterator[dict[str, Any]]:
        for number in range(1000):
            read.append(number)
            yield a_line(f"g-{number}")

    with closing(stage.client.submit_many(requests())) as submission:
        next(submission)
        assert len(read) <= 20


def test_dry_run_checks_and_writes_nothing(stage: Stage) -> None:
    stage.client.submit(command=["true"], name="there")
    before = stage.names()
    requests = [a_line("a"), a_line("b", after="a"), a_line("a"), a_line("there"), a_line("C")]
    assert names_of(list(stage.client.submit_many(requests, dry_run=True)))[:4] == [
        "a",
        "b",
        "PodGroup default/a exists already and is Pending",
        "PodGroup default/there exists already and is Pending",
    ]
    assert stage.names() == before


def test_a_submission_never_iterated_over_warns_that_nothing_was_submitted(stage: Stage) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stage.client.submit_many(lines(3))
        gc.collect()
    assert "nothing was submitted" in str(caught[0].message)
    assert stored(stage) == []


def sentence_of_submit(client: Client, fields: dict[str, Any]) -> tuple[type, str, str]:
    with pytest.raises(BatchqError) as caught:
        client.submit(**fields)
    return type(caught.value), caught.value.message, caught.value.hint


@pytest.mark.parametrize(
    "fields",
    [
        a_line("x", queue="teem"),
        a_line("x", queue="parent"),
        a_line("x", queue="root"),
        a_line("x", priority_class="hihg"),
        a_line("x", after=["ther"]),
        a_line("x", after=["x"]),
        a_line("there"),
        a_line("there", queue="teem"),
        a_line("x", namespace="full"),
        a_line("X_y"),
        a_line("x", replicas=2, min_member=3),
        a_line("x", array="3-9"),
        {"name": "x"},
        {"name": "x", "command": ["true"], "function": "a:b"},
        {"name": "x", "function": "nowhere"},
        {"name": "x", "function": "a:b", "args": [object()]},
    ],
)
def test_each_is_refused_with_the_sentence_of_submit(stage: Stage, fields: dict[str, Any]) -> None:
    stage.client.apply(
        [
            a_queue("team"),
            a_queue("parent"),
            a_queue("child", parent="parent"),
            a_priority("high", 10),
            a_quota("full", podgroups=1),
        ]
    )
    stage.client.submit(command=["true"], name="there")
    stage.client.submit(command=["true"], name="only", namespace="full")
    expected = sentence_of_submit(stage.client, fields)
    requests = [a_line("one"), fields, a_line("two")]
    one, refused, two = stage.client.submit_many(requests)
    assert isinstance(refused, Refused)
    error = refused.error
    assert (type(error), error.message, error.hint) == expected
    assert names_of([one, two]) == ["one", "two"]


def test_an_unknown_keyword_is_refused_by_name(stage: Stage) -> None:
    [refused] = stage.client.submit_many([a_line("x", quue="a")])
    assert names_of([refused]) == ["quue: there is no such field; did you mean 'queue'?"]


def test_invalid_defaults_are_refused_at_once(stage: Stage) -> None:
    with pytest.raises(InvalidInput, match="cpus: expected a quantity"):
        stage.client.submit_many(lines(1), cpus="many")


@pytest.mark.usefixtures("small_batches")
def test_without_keep_going_nothing_is_sent_after_a_refusal(stage: Stage) -> None:
    stage.client.submit(command=["true"], name="g-14")
    outcomes = list(stage.client.submit_many(lines(100), keep_going=False))
    assert len(outcomes) == 20
    assert len(stored(stage)) == 20


@pytest.mark.usefixtures("small_batches")
def test_an_error_of_the_iterator_comes_after_the_outcomes_before_it(stage: Stage) -> None:
    def requests() -> Iterator[dict[str, Any]]:
        yield from lines(13)
        raise OSError("the disk is gone")

    submission = stage.client.submit_many(requests())
    assert names_of([next(submission) for _ in range(13)]) == [
        f"g-{number}" for number in range(13)
    ]
    with pytest.raises(OSError, match="the disk is gone"):
        next(submission)
    assert len(stored(stage)) == 13


@pytest.mark.usefixtures("small_batches")
def test_a_group_may_depend_on_one_before_it_in_its_batch_or_in_another(stage: Stage) -> None:
    requests = [a_line("g-0"), *(a_line(f"g-{n}", after=f"g-{n - 1}") for n in range(1, 25))]
    submitted = [
        one.group for one in stage.client.submit_many(requests) if isinstance(one, Accepted)
    ]
    assert len(submitted) == 25
    assert [one.metadata.name for one in stored(stage)] == [f"g-{number}" for number in range(25)]
    for before, after in pairwise(submitted):
        assert after.spec.depends_on[0].uid == before.metadata.uid


def test_a_group_cannot_depend_on_one_after_it(stage: Stage) -> None:
    outcomes = list(stage.client.submit_many([a_line("a", after="b"), a_line("b")]))
    assert names_of(outcomes) == [
        "PodGroup default/a: spec.dependsOn: there is no PodGroup default/b",
        "b",
    ]


def test_a_dependency_on_a_refused_name_means_the_existing_group(stage: Stage) -> None:
    there = stage.client.submit(command=["true"], name="a")
    requests = [a_line("a"), a_line("b", after="a")]
    refused, b = stage.client.submit_many(requests)
    assert names_of([refused]) == ["PodGroup default/a exists already and is Pending"]
    assert isinstance(b, Accepted)
    assert b.group.spec.depends_on[0].uid == there.metadata.uid


def test_the_first_of_two_groups_with_one_name_is_taken(stage: Stage) -> None:
    requests = [
        a_line("z"),
        a_line("a", after="z"),
        {"name": "a", "command": ["second"]},
        a_line("b", after="a"),
    ]
    z, a, second, b = stage.client.submit_many(requests)
    assert names_of([z, a, second, b]) == [
        "z",
        "a",
        "PodGroup default/a exists already and is Pending",
        "b",
    ]
    assert isinstance(a, Accepted)
    assert isinstance(b, Accepted)
    assert b.group.spec.depends_on[0].uid == a.group.metadata.uid


class SameIds:
    """Uids that differ, but begin to end differently only after a while."""

    def __init__(self) -> None:
        self._made = 0

    def new_uid(self) -> str:
        self._made += 1
        return f"{self._made:011d}{'00000' if self._made < 40 else self._made:>05}"


def test_a_generated_name_that_is_taken_is_generated_again(stage: Stage) -> None:
    submission = bulk.Submission(
        stage.store, SameIds(), [["true"], ["true"], ["true"]], {}, user=lambda: "me"
    )
    names = names_of(list(submission))
    assert len(set(names)) == 3
    assert all(name.startswith("true-") for name in names)
    assert len(stored(stage)) == 3


@pytest.mark.usefixtures("small_batches")
def test_an_existing_group_that_says_the_same_is_unchanged(stage: Stage) -> None:
    stage.client.submit_many(lines(25)).all()
    before = stage.names()
    tally = stage.client.submit_many(lines(40), existing="keep").all()
    assert tally == Tally(submitted=15, unchanged=25)
    assert stage.client.submit_many(lines(40), existing="keep").all() == Tally(unchanged=40)
    assert set(before) <= set(stage.names())


def test_a_resubmitted_group_is_unchanged_whatever_has_happened_to_it_since(stage: Stage) -> None:
    requests = [
        a_line("gated", gates=["data", "go"]),
        a_line("held", suspend=True),
        a_line("done"),
        a_line("second", after="any:done"),
    ]
    stage.client.submit_many(requests).all()
    stage.client.gates.open("gated", "data")
    stage.client.resume("held")
    stage.client.cancel("done")
    assert stage.client.submit_many(requests, existing="keep").all() == Tally(unchanged=4)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"command": ["other"]}, "spec.tasks"),
        ({"walltime": "2h"}, "spec.walltime"),
        ({"labels": {"a": "b"}}, "metadata.labels"),
        ({"gates": ["new"]}, ""),
        ({"after": "z"}, "spec.dependsOn"),
    ],
)
def test_another_group_of_that_name_is_a_conflict_that_says_what_differs(
    stage: Stage, fields: dict[str, Any], what: str
) -> None:
    stage.client.submit_many([a_line("z"), a_line("x")]).all()
    [one] = stage.client.submit_many([{**a_line("x"), **fields}], existing="keep")
    # A gate that is missing was opened.
    expected = f"PodGroup default/x exists already, is Pending, and has another {what}"
    assert names_of([one]) == [expected if what else "x"]


@pytest.mark.usefixtures("small_batches")
def test_a_lost_answer_loses_nothing_and_doubles_nothing(stage: Stage, server: Server) -> None:
    with LossyProxy(server.socket) as proxy, Client(proxy.url) as client:
        proxy.lose("g-15", times=2)
        proxy.lose("g-37")
        outcomes = list(client.submit_many(lines(50)))
        assert proxy.lost == 3
    assert names_of(outcomes) == [f"g-{number}" for number in range(50)]
    assert len(stored(stage)) == 50


@pytest.mark.usefixtures("small_batches")
def test_an_answer_that_the_server_has_forgotten_too_is_known_by_the_uids(
    stage: Stage, server: Server, raw: redis.Redis
) -> None:
    """As after an outage that lasts longer than the server remembers answers."""
    with LossyProxy(server.socket) as proxy, Client(proxy.url) as client:
        submission = client.submit_many(lines(15))
        assert isinstance(next(submission), Accepted)
        proxy.lose("g-12", times=100)
        for _ in range(9):
            next(submission)
        with pytest.raises(StoreUnavailable):
            next(submission)
        proxy._losing.clear()
        for key in raw.scan_iter("*:request:*"):
            raw.delete(key)
        rest = list(submission)
    assert names_of(rest) == [f"g-{number}" for number in range(10, 15)]
    assert len(stored(stage)) == 15


@pytest.mark.usefixtures("small_batches")
def test_an_outage_is_reported_and_the_iteration_continues_after_it(
    stage: Stage, server: Server
) -> None:
    with ControlledProxy(server.socket) as road, Client(road.url) as client:
        submission = client.submit_many(lines(50))
        first = [next(submission)]
        road.cut()
        with pytest.raises(StoreUnavailable):
            first.extend(one for one in submission)
        road.mend()
        outcomes = [*first, *submission]
    assert names_of(outcomes) == [f"g-{number}" for number in range(50)]
    assert len(stored(stage)) == 50


@pytest.mark.usefixtures("small_batches")
def test_breaking_off_leaves_whole_batches_and_a_second_run_adds_the_rest(
    stage: Stage, open_redis: Callable[[], RedisStore]
) -> None:
    for one in stage.client.submit_many(lines(100)):
        if one.place == 34:
            break
    there = len(stored(stage))
    assert there in (40, 50)
    assert stage.client.submit_many(lines(100), existing="keep").all() == Tally(
        submitted=100 - there, unchanged=there
    )
    assert [one.metadata.name for one in stored(stage)] == [f"g-{number}" for number in range(100)]


def test_a_batch_of_large_groups_is_shorter(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BYTES_A_BATCH", 300_000)
    heard: list[Tally] = []
    requests = [{"name": f"g-{n}", "command": ["echo", "x" * 100_000]} for n in range(7)]
    stage.client.submit_many(requests, progress=heard.append).all()
    assert [tally.submitted for tally in heard] == [3, 6, 7]


def test_groups_from_a_slow_source_do_not_wait_for_a_full_batch(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "LONGEST_GATHER_S", 0.0)
    heard: list[Tally] = []
    stage.client.submit_many(lines(3), progress=heard.append).all()
    assert [tally.submitted for tally in heard] == [1, 2, 3]


def alike() -> list[Submitted]:
    """Return two groups whose pods would both be called a-b-main-0, and a third group."""
    task = a_task("b-main", command=("true",))
    return [a_group("a", tasks=(task,)), a_line("c"), a_line("a-b")]


_REFUSED = (
    "PodGroup default/a-b: pods of its task main would be called a-b-main-0 and so on, as pods of"
    " task b-main of PodGroup default/a are"
)


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_second_group_with_the_same_pod_names_is_refused(stage: Stage, dry_run: bool) -> None:
    outcomes = list(stage.client.submit_many(alike(), dry_run=dry_run))
    assert names_of(outcomes) == ["a", "c", _REFUSED]
    assert [one.metadata.name for one in stored(stage)] == ([] if dry_run else ["a", "c"])


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_group_whose_pods_would_share_existing_names_is_refused(
    stage: Stage, dry_run: bool
) -> None:
    first, *others = alike()
    assert names_of(list(stage.client.submit_many([first]))) == ["a"]
    assert names_of(list(stage.client.submit_many(others, dry_run=dry_run))) == ["c", _REFUSED]


@pytest.mark.usefixtures("small_batches")
def test_a_group_whose_name_is_a_prefix_of_others_blocks_none_of_them(stage: Stage) -> None:
    assert names_of(list(stage.client.submit_many([a_line("g")]))) == ["g"]
    assert names_of(list(stage.client.submit_many(lines(25)))) == [f"g-{n}" for n in range(25)]


def test_queues_are_gone_through_once_for_groups_of_many_queues(stage: Stage) -> None:
    class Counted(list[Object]):
        walks = 0

        def __iter__(self) -> Iterator[Object]:
            self.walks += 1
            return super().__iter__()

    queues = Counted(a_queue(f"q-{number}") for number in range(100))
    new = NewGroups(stage.store)
    new.take_queues(queues)
    for number in range(100):
        assert new.check(a_group(f"g-{number}", queue=f"q-{number}")) == ()
    assert queues.walks == 1


def test_each_group_is_judged_by_its_own_namespace(stage: Stage) -> None:
    stage.furnish(a_queue("gpu", namespaces=("lab",)))
    requests = [
        a_line(f"{namespace}-{number}", queue="gpu", namespace=namespace)
        for number in range(2)
        for namespace in ("lab", "home")
    ]
    because = "spec.queue: queue gpu accepts only groups of namespace lab, not of home"
    assert names_of(list(stage.client.submit_many(requests))) == [
        "lab-0",
        f"PodGroup home/home-0: {because}",
        "lab-1",
        f"PodGroup home/home-1: {because}",
    ]


@pytest.mark.parametrize("requests", [len, "tasks:add", {"command": ["true"]}])
def test_a_single_request_is_refused_with_a_sentence(client: Client, requests: Any) -> None:
    with pytest.raises(InvalidInput, match="expected a list of requests, found") as caught:
        client.submit_many(requests)
    assert caught.value.hint == "`submit` submits a single one"
