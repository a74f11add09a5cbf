"""Large lists: pages, filters, a limit, and a token to continue."""

from __future__ import annotations

import json

import pytest
import redis
import yaml

from batchq.client.watch import GroupPages
from batchq.store import keys
from tests.builders import a_queue
from tests.cli.conftest import Batchq, Ran
from tests.client.stage import Stage

NAMES = ["runs", "b", "a", "gated", "d", "c"]


@pytest.fixture
def many(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Six groups, which count as many here: running, gated, in another queue, finished, and one in
    another namespace.
    """
    monkeypatch.setattr("batchq.cli.group_lists.WHOLE_UP_TO", 0)
    monkeypatch.setattr("batchq.client.watch.WHOLE_UP_TO", 0)
    stage.furnish(a_queue("full", capability={"cpu": 1}), a_queue("other", capability={"cpu": 0}))
    client = stage.client
    for name in NAMES:
        queue = "other" if name == "d" else "full"
        gates = ["data"] if name == "gated" else []
        client.submit(command=["sleep"], name=name, queue=queue, cpus=1, gates=gates)
    client.submit(command=["sleep"], name="elsewhere", namespace="x", queue="full", cpus=1)
    stage.turn()
    stage.start("runs")
    client.cancel("c")
    stage.turn()
    return stage


def names_in(done: Ran) -> list[str]:
    """Return the names in a table."""
    return [line.split()[0] for line in done.lines[1:]]


def test_pages_list_every_group_once_the_oldest_first(batchq: Batchq, many: Stage) -> None:
    for size in ("1", "2", "500"):
        done = batchq("jobs", "--chunk-size", size)
        assert (done.code, done.err) == (0, "")
        assert names_in(done) == NAMES
        assert done.out.count("NAME ") == 1


@pytest.mark.parametrize("keys_asked", [0, 20_000])
def test_a_paged_list_equals_the_whole_list_except_for_positions(
    batchq: Batchq, many: Stage, monkeypatch: pytest.MonkeyPatch, keys_asked: int
) -> None:
    monkeypatch.setattr("batchq.client.watch._KEYS_ASKED", keys_asked)
    paged = json.loads(batchq("jobs", "-A", "--chunk-size", "2", "-o", "json").out)
    whole = json.loads(batchq("jobs", "-A", "--chunk-size", "0", "-o", "json").out)
    assert {one["name"]: one["position"] for one in whole["items"]}["b"] == 1
    for one in (*paged["items"], *whole["items"]):
        one["position"] = None
    assert paged == whole
    assert [one["pods"]["running"] for one in paged["items"]] == [1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("most", "names", "hidden"),
    [
        (0, ["runs", "b", "gated"], 3),
        (2, ["runs", "b", "gated", "d", "c"], 1),
        (3, NAMES, 0),
    ],
)
def test_groups_that_have_ended_are_listed_up_to_a_number(
    many: Stage, most: int, names: list[str], hidden: int
) -> None:
    for name in ("a", "d"):
        many.client.cancel(name)
    many.turn()
    pages = GroupPages(many.store, namespace="default", finished=most, size=2)
    assert [view.name for page in pages for view in page.views] == names
    assert pages.hidden == hidden


def test_filters_hold_over_pages(batchq: Batchq, many: Stage) -> None:
    def named(*words: str) -> list[str]:
        done = batchq("jobs", "--chunk-size", "1", "-o", "name", *words)
        return [key.removeprefix("default/") for key in done.lines]

    assert named("-q", "other") == ["d"]
    assert named("--phase", "Running") == ["runs"]
    assert named("--phase", "SchedulingGated", "--phase", "Cancelled") == ["gated", "c"]
    assert named("--phase", "Pending") == ["b", "a", "gated", "d"]
    assert named("--active") == ["runs", "b", "a", "gated", "d"]
    assert named("--reason", "SchedulingGated") == ["gated"]
    assert named("-n", "x") == ["x/elsewhere"]
    assert named("-A", "-q", "full", "--active") == ["runs", "b", "a", "gated", "x/elsewhere"]


@pytest.mark.parametrize("whole", [True, False])
def test_a_limit_ends_a_list_and_says_how_to_go_on(
    batchq: Batchq, many: Stage, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    if whole:
        monkeypatch.setattr("batchq.cli.group_lists.WHOLE_UP_TO", 100)
    first = batchq("jobs", "--limit", "4")
    assert names_in(first) == NAMES[:4]
    said, token = first.err.strip().split("--continue ")
    assert said == "… and more: "
    # It names a place, so its group need not exist any more.
    many.client.cancel("gated")
    many.client.delete("PodGroup", "gated")
    rest = batchq("jobs", "--limit", "4", "--continue", token)
    assert (names_in(rest), rest.err) == (NAMES[4:], "")


def test_json_and_yaml_have_the_token_of_a_partial_list(batchq: Batchq, many: Stage) -> None:
    first = json.loads(batchq("jobs", "--limit", "2", "-o", "json").out)
    assert [one["name"] for one in first["items"]] == NAMES[:2]
    token = first["metadata"]["continue"]
    rest = yaml.safe_load(batchq("jobs", "-o", "yaml", "--continue", token).out)
    assert rest["kind"] == "JobList"
    assert [one["name"] for one in rest["items"]] == NAMES[2:]
    assert "metadata" not in rest
    none = batchq("jobs", "-n", "nowhere", "-o", "json")
    assert json.loads(none.out) == {"apiVersion": "batchq/v1", "kind": "JobList", "items": []}
    none = batchq("jobs", "-n", "nowhere", "-o", "yaml")
    assert yaml.safe_load(none.out)["items"] == []


def test_a_missing_queue_is_named_in_the_explanation(batchq: Batchq, many: Stage) -> None:
    done = batchq("jobs", "-q", "nowhere")
    assert done.code == 6
    assert "nowhere" in done.err


def test_unreadable_records_are_named_on_any_page(
    batchq: Batchq, many: Stage, raw: redis.Redis
) -> None:
    raw.hset(keys.objects("PodGroup"), "default/poison", "garbage")
    raw.hset(keys.objects("PodGroup"), "default/a", "garbage")
    for command in (("jobs",), ("get", "podgroups")):
        done = batchq(*command, "--chunk-size", "2")
        assert done.code == 0
        unreadable = [line.split()[1] for line in done.lines if "Unreadable" in line]
        assert sorted(unreadable) == ["default/a", "default/poison"]
    assert batchq("jobs", "-n", "x", "-o", "name").lines == ["x/elsewhere"]


def test_get_lists_groups_and_pods_by_key_a_page_at_a_time(batchq: Batchq, many: Stage) -> None:
    done = batchq("get", "podgroups", "--chunk-size", "2", "-o", "name")
    assert done.lines == [f"podgroup/default/{name}" for name in sorted(NAMES)]
    assert names_in(batchq("get", "podgroups", "--chunk-size", "2")) == sorted(NAMES)
    first = batchq("get", "podgroups", "-o", "name", "--limit", "2")
    assert first.lines == ["podgroup/default/a", "podgroup/default/b"]
    token = first.err.strip().split("--continue ")[1]
    rest = json.loads(batchq("get", "podgroups", "-o", "json", "--continue", token).out)
    assert [one["metadata"]["name"] for one in rest["items"]] == ["c", "d", "gated", "runs"]
    assert batchq("get", "pods", "--chunk-size", "1", "-o", "name").lines == [
        "pod/default/runs-main-0"
    ]
    assert batchq("get", "pods", "-n", "x", "-o", "name").lines == []
    assert batchq("get", "queues", "-o", "name", "--limit", "1").lines == ["queue/default"]


def test_the_first_page_reads_no_more_objects_than_it_shows(
    batchq: Batchq, many: Stage, raw: redis.Redis
) -> None:
    large = {"note": "x" * 100_000}
    for number in range(30):
        many.client.submit(command=["true"], name=f"large-{number}", annotations=large)
    for words in (("jobs",), ("get", "podgroups", "-o", "name")):
        before = raw.info("stats")["total_net_output_bytes"]
        assert batchq(*words, "--limit", "2").code == 0
        assert raw.info("stats")["total_net_output_bytes"] - before < 500_000
