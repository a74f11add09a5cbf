"""`batchq apply`, `get`, `delete`, `nodes`, `quota`, `gates`, `suspend` and `resume`."""

from __future__ import annotations

import json
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from batchq.api.notation import format_instant
from batchq.cli import objects
from batchq.client import Client
from batchq.client.api_client import ApiClient
from batchq.store import keys
from tests.builders import a_group, a_queue, a_task
from tests.cli.conftest import Batchq
from tests.client.stage import Stage
from tests.effort import grid
from tests.harness.server import Server

QUEUES = """
apiVersion: batchq/v1
kind: List
items:
  - {apiVersion: batchq/v1, kind: Queue, metadata: {name: a}, spec: {weight: 2}}
  - {apiVersion: batchq/v1, kind: Queue, metadata: {name: b}}
"""


@pytest.mark.both_doors
def test_apply_says_what_it_did_to_each_object(batchq: Batchq, stage: Stage) -> None:
    assert batchq("apply", "-f", "-", stdin=QUEUES).lines == ["queue a created", "queue b created"]
    changed = QUEUES.replace("weight: 2", "weight: 3")
    assert batchq("apply", "-f", "-", stdin=changed).lines == [
        "queue a configured: weight 2 -> 3",
        "queue b unchanged",
    ]


def test_apply_warns_of_groups_in_a_queue_that_gets_children(batchq: Batchq, stage: Stage) -> None:
    batchq("apply", "-f", "-", stdin=QUEUES)
    batchq("submit", "--name", "x", "--queue", "a", "--", "true")
    below = "{apiVersion: batchq/v1, kind: Queue, metadata: {name: c}, spec: {parent: a}}"
    done = batchq("apply", "-f", "-", stdin=below)
    assert (done.code, done.lines) == (0, ["queue c created"])
    assert done.err == (
        "warning: Queue a is now the parent of c, and still has 1 unfinished pod group: only queues"
        " without children hold groups, so waiting groups stay Misconfigured; cancel them and"
        " submit them to a child\n"
    )


@pytest.mark.both_doors
def test_a_dry_run_of_apply_changes_nothing(batchq: Batchq, stage: Stage) -> None:
    before = stage.names()
    done = batchq("apply", "-f", "-", "--dry-run", stdin=QUEUES)
    assert done.lines == ["queue a created (dry run)", "queue b created (dry run)"]
    assert stage.names() == before


GROUP = """---
apiVersion: batchq/v1
kind: PodGroup
metadata: {name: %s}
spec: {tasks: [{name: main, replicas: 1, template: {command: ["true"]}}]}
"""


def groups_named(*names: str) -> str:
    return "".join(GROUP % name for name in names)


def test_a_request_above_the_limit_of_groups_names_what_is_present_and_what_it_adds(
    batchq: Batchq, stage: Stage
) -> None:
    stage.allow_groups(4)
    batchq("apply", "-f", "-", stdin=groups_named("a", "b"))
    refused = batchq("apply", "-f", "-", stdin=groups_named("b", "c", "d", "e"))
    assert refused.code == 12
    assert refused.err.splitlines()[0] == (
        "error: the request of 4 objects: namespace default allows at most 4 unfinished pod groups,"
        " has 2, and the request adds 3"
    )
    assert batchq("apply", "-f", "-", stdin=groups_named("a", "b", "c", "d")).code == 0


def test_a_file_with_too_many_groups_is_refused_before_all_of_it_is_read(
    batchq: Batchq, stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(objects, "_UNCHECKED", 2)
    stage.allow_groups(5)
    batchq("apply", "-f", "-", stdin=groups_named("a", "b"))
    file = tmp_path / "many.yaml"
    # Its end is not YAML, which is found only by reading it.
    file.write_text(groups_named("b", "c", "d", "e", "f", "g", "h") + "---\n}")
    for command in (("apply", "-f", str(file)), ("run", str(file))):
        refused = batchq(*command)
        assert refused.code == 12
        assert refused.err.splitlines()[0] == (
            f"error: {file}: namespace default allows at most 5 unfinished pod groups, has 2, and"
            " the file adds 4 or more"
        )
    assert batchq("apply", "-f", "-", stdin=groups_named("a", "b", "c", "d", "e")).code == 0


def test_a_quota_in_the_file_may_raise_the_limit_of_groups(
    batchq: Batchq, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_UNCHECKED", 2)
    stage.allow_groups(2)
    quota = """---
apiVersion: batchq/v1
kind: ResourceQuota
metadata: {name: more}
spec: {hard: {podgroups: 3}}
"""
    assert batchq("apply", "-f", "-", stdin=groups_named("a", "b", "c") + quota).code == 0


@pytest.mark.parametrize("kind", ["queues", "nodes", "resourcequotas", "podgroups"])
@pytest.mark.both_doors
def test_apply_reads_the_output_of_get(batchq: Batchq, stage: Stage, kind: str) -> None:
    batchq("apply", "-f", "-", stdin=QUEUES)
    batchq("quota", "set", "default", "cpu=4", "podgroups=9")
    batchq("submit", "--name", "x", "--env", "A=007", "--walltime", "90s", "--", "echo", "1.10")
    stage.turn()
    stage.start("x")
    printed = batchq("get", kind, "-o", "yaml").out
    done = batchq("apply", "-f", "-", stdin=printed)
    assert done.code == 0
    assert done.lines
    assert all(line.endswith(" unchanged") for line in done.lines)
    # Only batchq writes a status; a status in a file causes a warning.
    has_status = kind in ("podgroups", "nodes")
    assert ("only batchq writes status" in done.err) is has_status


@pytest.mark.both_doors
def test_get_prints_one_object_by_itself(batchq: Batchq, stage: Stage) -> None:
    done = batchq("get", "queue", "default", "-o", "json")
    assert json.loads(done.out)["metadata"]["name"] == "default"
    assert batchq("get", "q", "-o", "name").out == "queue/default\n"
    assert batchq("get", "PG").err == "there are no objects of kind PodGroup\n"


@pytest.mark.both_doors
def test_get_lists_every_kind_as_rows(batchq: Batchq, stage: Stage) -> None:
    batchq("quota", "set", "default", "memory=4Gi")
    batchq("submit", "--name", "x", "--mem", "1Gi", "--", "true")
    stage.turn()
    pods = batchq("get", "pods").lines
    assert pods[0].split() == ["NAME", "GROUP", "PHASE", "NODE", "ATTEMPT", "EXIT", "MESSAGE"]
    assert pods[1].split() == ["x-main-0", "x", "Bound", "n1", "1", "-", "-"]
    quotas = batchq("get", "quota").lines
    assert quotas[1].split() == ["default", "default", "memory", "1Gi", "4Gi"]
    nodes = batchq("get", "nodes").lines
    assert nodes[1].split()[:3] == ["n1", "Ready", "1"]


def test_a_pod_is_found_by_its_name(batchq: Batchq, stage: Stage) -> None:
    batchq("submit", "--name", "x", "--", "true")
    stage.turn()
    pod = yaml.safe_load(batchq("get", "pod", "x-main-0", "-o", "yaml").out)
    assert pod["status"]["phase"] == "Bound"
    assert batchq("describe", "pod", "x-main-0").lines[0] == "Pod:    default/x-main-0"
    missing = batchq("get", "pod", "x-main-1")
    assert (missing.code, missing.err.splitlines()[0]) == (
        6,
        "error: Pod default/x-main-1 does not exist",
    )


@pytest.mark.both_doors
def test_delete_takes_all_or_nothing(batchq: Batchq, stage: Stage) -> None:
    batchq("apply", "-f", "-", stdin=QUEUES)
    batchq("submit", "--name", "x", "-q", "b", "--", "true")
    stage.turn()
    refused = batchq("delete", "queue", "a", "b")
    assert refused.code == 8
    assert refused.err.startswith("error: Queue b still has 1 unfinished pod group")
    assert batchq("get", "queues", "-o", "name").lines == [
        "queue/a",
        "queue/b",
        "queue/default",
    ]
    stage.run("x")
    assert batchq("delete", "pg", "x").out == "podgroup default/x deleted\n"
    assert batchq("get", "pods", "-o", "name").out == ""
    assert batchq("delete", "-f", "-", stdin=QUEUES).lines == ["queue a deleted", "queue b deleted"]


HOSTILE_NAMES = (
    *(b"poison", b"default/poison", b"queue/poison", b"pod/poison", b"default/../..", b"/", b""),
    *(b"--help", b"-n", b"a b'c", b"\xff", b"\x1b[2J", b"a\nb", b"x" * 200_000),
)


@pytest.mark.parametrize(
    ("name", "kind"),
    grid(HOSTILE_NAMES, ["PodGroup", "Pod", "Queue"]),
    ids=lambda part: repr(part[:20]),
)
def test_the_command_that_the_doctor_prints_deletes_an_unreadable_record(
    batchq: Batchq, stage: Stage, raw: redis.Redis, kind: str, name: bytes
) -> None:
    raw.hset(keys.objects(kind), name, "garbage")
    [remedy] = remedies(batchq)
    done = batchq(*remedy)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(kind.lower())
    assert done.out.endswith(" deleted, unreadable\n")
    assert remedies(batchq) == []


def test_the_commands_that_the_doctor_prints_delete_one_record_each(
    batchq: Batchq, stage: Stage, raw: redis.Redis
) -> None:
    for name in ("poison", "default/poison", "default/default/poison"):
        raw.hset(keys.objects("Queue"), name, "garbage")
    for remedy in remedies(batchq):
        assert batchq(*remedy).code == 0
    assert remedies(batchq) == []


def remedies(batchq: Batchq) -> list[list[str]]:
    """Return the commands that the doctor prints for unreadable records."""
    findings = json.loads(batchq("doctor", "-o", "json").out)["findings"]
    printed = [one["remedy"].split("`")[1] for one in findings if "`batchq del" in one["remedy"]]
    return [shlex.split(command)[1:] for command in printed]


def test_a_file_of_a_group_and_its_queue_can_be_deleted(batchq: Batchq, stage: Stage) -> None:
    group = a_group("x", tasks=(a_task(command=("true",)),), queue="q")
    stage.client.apply([a_queue("q"), group])
    stage.run("x")
    both = batchq("get", "queue", "q", "-o", "yaml").out + "---\n"
    both += batchq("get", "pg", "x", "-o", "yaml").out
    assert batchq("delete", "-f", "-", stdin=both).lines == [
        "queue q deleted",
        "podgroup default/x deleted",
    ]


@pytest.mark.both_doors
def test_a_cordoned_node_gets_no_more_pods(batchq: Batchq, stage: Stage) -> None:
    assert batchq("nodes", "cordon", "n1").out == "node n1 cordoned\n"
    assert batchq("nodes", "cordon", "n1").out == "node n1 is cordoned already\n"
    assert batchq("nodes").lines[1].split()[:2] == ["n1", "Ready,cordoned"]
    batchq("submit", "--name", "x", "--", "true")
    stage.turn()
    assert all(pod.status.node == "" for pod in stage.pods("x"))
    assert batchq("nodes", "uncordon", "n1").out == "node n1 uncordoned\n"


def test_draining_returns_when_the_node_is_empty(
    batchq: Batchq, stage: Stage, server: Server
) -> None:
    batchq("submit", "--name", "x", "--", "sleep", "1")
    stage.turn()
    stage.start("x")
    late = batchq("nodes", "drain", "n1", "--timeout", "100ms")
    assert late.code == 124
    assert late.err.splitlines()[:2] == [
        (
            "node n1 cordoned; waiting for 1 pod to end; 1 pod has no walltime and may run for"
            " ever (Ctrl-C ends the wait)"
        ),
        (
            "error: Node n1 still runs 1 pod after 100ms; it stays cordoned, so its drain goes on"
            " as its pods end"
        ),
    ]
    with ThreadPoolExecutor(max_workers=1) as threads, Client(server.url) as other:
        future = threads.submit(batchq, "nodes", "drain", "n1")
        stage.end("x")
        assert other.wait_until_empty("n1", timeout_s=60) == 0
        assert future.result(60).out == "node n1 drained\n"


@pytest.mark.both_doors
def test_an_interrupted_drain_says_that_it_goes_on(
    batchq: Batchq, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    for kind in (Client, ApiClient):
        monkeypatch.setattr(kind, "wait_until_empty", interrupted)
    done = batchq("nodes", "drain", "n1")
    assert (done.code, done.out) == (130, "")
    assert done.err.splitlines()[1:] == [
        "error: interrupted; node n1 stays cordoned, so its drain goes on as its pods end",
        "hint: `batchq nodes drain n1` waits again, `batchq nodes uncordon n1` ends it",
    ]


@pytest.mark.both_doors
def test_draining_says_when_the_pods_will_have_ended_at_the_latest(
    batchq: Batchq, stage: Stage
) -> None:
    words = ("submit", "--name", "x", "-N", "2", "--walltime", "1h", "--", "sleep", "1")
    assert batchq(*words).code == 0
    stage.turn()
    stage.start("x")
    begun = max(pod.status.started_at or 0 for pod in stage.pods("x"))
    end = format_instant(begun + 3_600_000 + 30_000)
    assert batchq("nodes", "drain", "n1", "--timeout", "100ms").err.splitlines()[0] == (
        f"node n1 cordoned; waiting for 2 pods to end, by {end} at the latest"
        " (Ctrl-C ends the wait)"
    )


def test_draining_a_node_with_a_pod_whose_group_is_gone_goes_on(
    batchq: Batchq, stage: Stage, raw: redis.Redis
) -> None:
    assert batchq("submit", "--name", "x", "--", "sleep", "1").code == 0
    stage.turn()
    stage.start("x")
    raw.hdel(keys.objects("PodGroup"), "default/x")
    done = batchq("nodes", "drain", "n1", "--timeout", "100ms")
    assert done.code == 124
    assert done.err.splitlines()[0] == (
        "node n1 cordoned; waiting for 1 pod to end; 1 pod has no walltime and may run for ever"
        " (Ctrl-C ends the wait)"
    )


@pytest.mark.both_doors
def test_draining_an_empty_node_says_that_it_has_no_pods(batchq: Batchq, stage: Stage) -> None:
    assert stage.pods("x") == []
    done = batchq("nodes", "drain", "n1")
    assert (done.err, done.out) == ("node n1 cordoned; it has no pods\n", "node n1 drained\n")


@pytest.mark.both_doors
def test_a_quota_is_set_and_shown_with_its_use(batchq: Batchq, stage: Stage) -> None:
    assert batchq("quota").err == "there are no quotas: nothing is limited\n"
    assert batchq("quota", "set", "default", "cpu=4", "podgroups=9").out == (
        "resourcequota default/default configured\n"
    )
    assert batchq("quota", "set", "default", "podgroups=9", "cpu=4000m").out == (
        "resourcequota default/default unchanged\n"
    )
    batchq("submit", "--name", "x", "--cpus", "3", "--", "true")
    stage.turn()
    rows = [line.split() for line in batchq("quota", "show", "default").lines[1:]]
    assert rows == [
        ["default", "default", "cpu", "3", "4"],
        ["default", "default", "podgroups", "1", "9"],
    ]


@pytest.mark.both_doors
def test_setting_one_limit_of_a_quota_keeps_the_others(batchq: Batchq, stage: Stage) -> None:
    def limits() -> dict[str, str]:
        item = json.loads(batchq("get", "quota", "default/default", "-o", "json").out)
        return dict(item["spec"]["hard"])

    batchq("quota", "set", "default", "cpu=4", "memory=1Gi")
    changed = "resourcequota default/default configured: hard"
    assert batchq("quota", "set", "default", "cpu=8").out == f"{changed} cpu 4 -> 8\n"
    assert limits() == {"cpu": "8", "memory": "1073741824"}
    done = batchq("quota", "set", "default", "memory=none", "pods=9")
    assert done.out == f"{changed} memory 1Gi -> unstated, hard pods unstated -> 9\n"
    assert limits() == {"cpu": "8", "pods": "9"}
    done = batchq("quota", "set", "default", "--replace", "cpu=8", "memory=none")
    assert done.out == f"{changed} pods 9 -> unstated\n"
    assert limits() == {"cpu": "8"}
    done = batchq("quota", "set", "default", "cpu=none")
    assert done.code == 2
    assert done.err.splitlines() == [
        "error: no limit of namespace default would be left",
        "hint: `batchq delete quota default/default` removes its quota",
    ]
    assert limits() == {"cpu": "8"}


def test_a_quota_that_changes_while_it_is_set_is_a_conflict(
    batchq: Batchq, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.client.set_quota("default", {"cpu": 4})
    apply = Client.apply

    def overtaken(client: Client, *given: Any, **named: Any) -> Any:
        stage.client.set_quota("default", {"cpu": 4, "memory": "1Gi"})
        return apply(client, *given, **named)

    monkeypatch.setattr(Client, "apply", overtaken)
    done = batchq("quota", "set", "default", "cpu=8")
    assert done.code == 8
    assert "ResourceQuota default/default has changed since it was read" in done.err


def test_gates_are_listed_and_opened(batchq: Batchq, stage: Stage) -> None:
    batchq("submit", "--name", "x", "--gate", "data", "--gate", "budget", "--", "true")
    rows = [line.split()[:2] for line in batchq("gates", "list").lines[1:]]
    assert rows == [["default/x", "data"], ["default/x", "budget"]]
    none = batchq("gates", "list", "--older-than", "1h")
    assert none.err == "there are no such gates in namespace default\n"
    done = batchq("gates", "open", "x", "data", "budget")
    assert done.lines == [
        "podgroup default/x: gate data opened",
        "podgroup default/x: gate budget opened",
    ]
    stage.turn()
    assert stage.phase("x") == "InQueue"


@pytest.mark.both_doors
def test_groups_are_suspended_and_resumed(batchq: Batchq, stage: Stage) -> None:
    batchq("submit", "--name", "x", "--", "true")
    assert batchq("suspend", "x").out == "podgroup default/x suspended\n"
    assert batchq("suspend", "x").out == "podgroup default/x is suspended already\n"
    stage.turn()
    assert "Suspended: the group is suspended" in batchq("jobs").out
    assert batchq("resume", "x").out == "podgroup default/x resumed\n"
    assert batchq("resume", "x").out == "podgroup default/x is not suspended\n"
    stage.turn()
    assert stage.phase("x") == "InQueue"


@pytest.mark.parametrize("file", ["queues.yaml", "examples/two-tenants.yaml"])
def test_the_files_of_conf_can_be_applied(batchq: Batchq, stage: Stage, file: str) -> None:
    conf = Path(__file__).resolve().parents[2] / "conf"
    done = batchq("apply", "-f", str(conf / file), "--dry-run")
    assert done.code == 0, done
