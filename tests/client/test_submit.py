"""Submitting from Python."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from batchq.api.objects import Container, Object, PodGroup, Toleration
from batchq.client import Client, Request
from batchq.client.requests import RecentQueues
from batchq.errors import BatchqError, Conflict, InvalidInput, NotFound, Rejected, UsageError
from batchq.store.redis import RedisStore
from tests.builders import a_group, a_priority, a_queue, a_quota, a_task
from tests.client.stage import Stage
from tests.harness.proxy import LossyProxy
from tests.harness.server import Server


def test_importing_the_client_does_not_load_redis() -> None:
    heavy = "{'redis', 'rq', 'rich', 'numpy', 'apscheduler'} & set(sys.modules)"
    code = f"import sys, batchq.client; sys.exit(str({heavy}) if {heavy} else 0)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr == ""
    assert done.returncode == 0


def test_a_command_becomes_a_group(stage: Stage) -> None:
    group = stage.client.submit(
        command=["python3", "train.py"],
        name="train",
        cpus="1500m",
        mem="2Gi",
        gpus=1,
        resources={"licence": 3},
        node_selector={"pool": "gpu"},
        nodes=["n1", "n2"],
        exclude_nodes=["n3"],
        tolerations=["dedicated=ml:NoSchedule", "spot"],
        topology={"zone": "required", "rack": "preferred"},
        exclusive=True,
        max_pods_per_node=2,
        pack=True,
        image="/i/torch.sif",
        mounts="/data:ro",
        replicas=4,
        min_member=2,
        walltime="2h",
        env={"SEED": "7"},
        retries=2,
        working_dir="/data",
    )
    [task] = group.spec.tasks
    assert task.replicas == 4
    assert task.template.command == ("python3", "train.py")
    assert task.template.requests == {
        "cpu": 1500,
        "memory": 2 * 2**30,
        "gpu": 1000,
        "licence": 3000,
    }
    assert task.template.env == {"SEED": "7"}
    assert task.template.container == Container(image="/i/torch.sif", mounts=("/data:ro",))
    assert task.template.node_selector == {"pool": "gpu", "batchq/runtime-apptainer": "yes"}
    assert (task.template.nodes, task.template.exclude_nodes) == (("n1", "n2"), ("n3",))
    assert task.template.tolerations == (
        Toleration(key="dedicated", value="ml", effect="NoSchedule"),
        Toleration(key="spot", operator="Exists"),
    )
    assert group.spec.topology == {"zone": "required", "rack": "preferred"}
    assert (group.spec.exclusive, group.spec.max_pods_per_node, group.spec.pack) == (True, 2, True)
    assert task.template.working_dir == "/data"
    assert group.spec.min_member == 2
    assert group.spec.walltime == 7_200_000
    assert group.spec.retry.limit == 2
    stored = stage.client.get("PodGroup", "train")
    assert isinstance(stored, PodGroup)
    assert stored.spec == group.spec
    assert stored.metadata.uid == group.metadata.uid


def test_without_a_word_about_cpus_a_pod_asks_for_one(stage: Stage) -> None:
    group = stage.client.submit(command=["true"])
    assert group.spec.tasks[0].template.requests == {"cpu": 1000}


@pytest.mark.parametrize(
    ("program", "stem"),
    [
        ("/usr/bin/python3", "python3"),
        ("./My_Prog.sh", "my-prog-sh"),
        ("--", "run"),
        ("x" * 100, "x" * 57),
    ],
)
def test_a_nameless_group_is_called_after_its_command(
    stage: Stage, program: str, stem: str
) -> None:
    name = stage.client.submit(command=[program]).metadata.name
    assert name.rpartition("-")[0] == stem
    assert len(name) <= 63


@pytest.mark.parametrize(("array", "pods"), [("0-99", 100), ("0-0", 1), (40, 40)])
def test_an_array_starts_with_one_pod(stage: Stage, array: str | int, pods: int) -> None:
    group = stage.client.submit(command=["true"], array=array)
    assert group.spec.min_member == 1
    assert group.spec.tasks[0].replicas == pods


@pytest.mark.parametrize(
    ("array", "message"),
    [
        ("5-10", "array: expected a range that starts at 0, found '5-10'"),
        ("5", "array: expected a range such as 0-99, found '5'"),
        ("0-99%4", "array: expected a range such as 0-99, found '0-99%4'"),
        (0, "array: expected 1 to 1,000,000 pods, found 0"),
    ],
)
def test_an_array_is_a_range_from_zero(stage: Stage, array: str | int, message: str) -> None:
    with pytest.raises(UsageError, match="array") as caught:
        stage.client.submit(command=["true"], array=array)
    assert caught.value.message == message


def test_a_manifest_as_plain_data_is_submitted_too(stage: Stage) -> None:
    manifest = {
        "apiVersion": "batchq/v1",
        "kind": "PodGroup",
        "metadata": {"name": "plain"},
        "spec": {"tasks": [{"name": "w", "template": {"command": ["true"]}}]},
    }
    assert stage.client.submit(manifest).metadata.namespace == "default"


def test_a_group_can_come_after_others(stage: Stage) -> None:
    first = stage.client.submit(command=["true"], name="first")
    second = stage.client.submit(command=["true"], name="second", after=["first", "any:first"][:1])
    third = stage.client.submit(command=["true"], after=["failed:first", "any:second"])
    assert second.spec.depends_on[0].uid == first.metadata.uid
    assert [one.condition for one in third.spec.depends_on] == ["failed", "any"]


def test_a_missing_queue_is_named_with_the_nearest_one(stage: Stage) -> None:
    stage.furnish(a_queue("research"))
    with pytest.raises(NotFound) as caught:
        stage.client.submit(command=["true"], name="x", queue="reserch")
    assert caught.value.message == "PodGroup default/x: spec.queue: there is no queue 'reserch'"
    assert caught.value.hint == "did you mean research?"


def test_a_taken_name_is_a_conflict(stage: Stage) -> None:
    stage.client.submit(command=["true"], name="x")
    with pytest.raises(Conflict) as caught:
        stage.client.submit(command=["true"], name="x")
    assert caught.value.message == "PodGroup default/x exists already and is Pending"


def test_a_generated_name_that_is_taken_is_replaced_by_another(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.client.submit(command=["true"], name="true-aaaaa")
    names = iter(["true-aaaaa", "true-aaaaa", "true-bbbbb"])
    monkeypatch.setattr("batchq.client.request.default_name", lambda _program, _suffix: next(names))
    assert stage.client.submit(command=["true"]).metadata.name == "true-bbbbb"


def test_a_second_group_like_the_first_is_stored_as_it_would_have_been_alone(stage: Stage) -> None:
    fields: dict[str, Any] = {"cpus": 2, "env": {"A": "1"}, "labels": {"a": "b"}, "walltime": "2h"}
    stage.client.submit(command=["true"], name="first", **fields)
    second = stage.client.submit(["false", "1"], name="second", **fields)
    planned = stage.client.submit(["false", "1"], name="other", dry_run=True, **fields)
    assert second.spec == planned.spec
    assert second.metadata.labels == planned.metadata.labels
    assert second.status.submitted_by == planned.status.submitted_by
    [stored] = [one for one in stage.client.list("PodGroup") if one.metadata.name == "second"]
    assert isinstance(stored, PodGroup)
    assert (stored.spec, stored.status) == (second.spec, second.status)
    assert stored.metadata.uid == second.metadata.uid


def test_a_function_starts_in_the_folder_of_each_submission(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        group = stage.client.submit("os.path:join", args=["a"])
        folders.append(group.spec.tasks[0].template.working_dir)
    assert folders == [str(tmp_path / "one"), str(tmp_path / "two")]


def test_a_queue_made_by_another_client_takes_groups_at_once(stage: Stage) -> None:
    stage.client.submit(command=["true"], name="first")
    with Client(stage.store.url) as other:
        other.apply([a_queue("late")])
    assert stage.client.submit(command=["true"], queue="late").spec.queue == "late"


def test_the_fields_of_a_manifest_are_no_keywords(stage: Stage) -> None:
    with pytest.raises(InvalidInput, match="apiVersion: there is no such field"):
        stage.client.submit(apiVersion="batchq.io/v1alpha1", kind="PodGroup", metadata={}, spec={})


@pytest.fixture
def lasting_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the queues that a client has read serve for an hour."""
    monkeypatch.setattr("batchq.client.requests._QUEUES_S", 3600.0)


@pytest.mark.usefixtures("lasting_queues")
def test_a_second_submission_takes_one_round_trip(stage: Stage, server: Server) -> None:
    stage.client.submit(command=["true"], name="my-first")
    with redis.Redis(unix_socket_path=str(server.socket)) as raw:
        before = raw.info("commandstats")
        stage.client.submit(command=["true"], name="my-second")
        after = raw.info("commandstats")
    scans, calls = (
        [stats.get(f"cmdstat_{name}", {}).get("calls", 0) for stats in (before, after)]
        for name in ("hscan", "evalsha")
    )
    assert scans[1] - scans[0] == 0
    assert calls[1] - calls[0] == 1


def test_queues_that_were_read_before_another_thread_changed_one_are_not_kept() -> None:
    recent = RecentQueues()

    class Reader:
        """Another thread forgets the queues while this one reads them."""

        reads = 0

        def list(self, kind: str, *, namespace: str = "") -> Sequence[Object]:
            self.reads += 1
            if self.reads == 1:
                recent.forget()
            return [a_queue(f"read-{self.reads}")]

    reader = cast("Any", Reader())
    names = [[item.metadata.name for item in recent.read(reader)] for _ in range(3)]
    assert names == [["read-1"], ["read-2"], ["read-2"]]


@pytest.mark.usefixtures("lasting_queues")
def test_a_queue_that_another_client_has_just_made_takes_groups(stage: Stage) -> None:
    stage.client.submit(command=["true"], name="before")
    with Client(store=stage.store) as other:
        other.apply([a_queue("fresh")])
    assert stage.client.submit(command=["true"], queue="fresh").spec.queue == "fresh"


@pytest.mark.usefixtures("lasting_queues")
def test_a_queue_that_this_client_has_deleted_takes_no_more_groups(stage: Stage) -> None:
    stage.furnish(a_queue("old"))
    stage.client.submit(command=["true"], name="before")
    stage.client.delete("Queue", "old")
    with pytest.raises(NotFound, match="there is no queue 'old'"):
        stage.client.submit(command=["true"], queue="old")


@pytest.mark.usefixtures("lasting_queues")
def test_a_queue_below_one_that_another_client_has_just_deleted_is_refused(stage: Stage) -> None:
    stage.furnish(a_queue("parent"))
    stage.client.submit(command=["true"], name="before")
    with Client(store=stage.store) as other:
        other.delete("Queue", "parent")
    with pytest.raises(BatchqError, match="parent"):
        stage.client.submit_all([a_queue("child", parent="parent")])


@pytest.mark.usefixtures("lasting_queues")
def test_a_group_in_a_queue_that_another_client_has_just_deleted_waits_and_says_so(
    stage: Stage,
) -> None:
    stage.furnish(a_queue("old"))
    stage.client.submit(command=["true"], name="before")
    with Client(store=stage.store) as other:
        other.delete("Queue", "old")
    stage.client.submit(command=["true"], name="late", queue="old")
    stage.turn()
    [reason] = stage.client.why("late").reasons
    assert reason.reason == "QueueNotFound"


def test_a_namespace_that_is_full_rejects(stage: Stage) -> None:
    stage.furnish(a_quota(podgroups=1))
    stage.client.submit(command=["true"], name="one")
    with pytest.raises(Rejected) as caught:
        stage.client.submit(command=["true"], name="two")
    assert caught.value.message == (
        "PodGroup default/two: namespace default allows at most 1 unfinished pod group, and has 1"
    )


def test_a_dry_run_checks_everything_and_writes_nothing(stage: Stage) -> None:
    before = stage.names()
    stage.client.submit(command=["true"], name="x", dry_run=True)
    with pytest.raises(NotFound):
        stage.client.submit(command=["true"], name="x", queue="nowhere", dry_run=True)
    assert stage.names() == before


def test_objects_applied_together_may_refer_to_each_other(stage: Stage) -> None:
    applied = stage.client.apply(
        [
            a_group(
                "after", tasks=(a_task(command=("true",)),), queue="a", priority_class_name="p"
            ),
            a_queue("a"),
            a_priority("p", 5),
        ]
    )
    assert [one.effect for one in applied] == ["created", "created", "created"]


def test_objects_applied_together_are_applied_or_refused_together(stage: Stage) -> None:
    before = stage.names()
    with pytest.raises(InvalidInput):
        stage.client.apply([a_queue("good"), a_queue("bad", weight=-1)])
    assert stage.names() == before


def test_groups_that_pass_a_limit_together_are_all_refused(stage: Stage) -> None:
    stage.furnish(a_quota(podgroups=2))
    before = stage.names()
    tasks = (a_task(command=("true",)),)
    with pytest.raises(Rejected) as caught:
        stage.client.submit_all([a_group(f"g{number}", tasks=tasks) for number in range(3)])
    assert "allows at most 2 unfinished pod groups" in caught.value.message
    assert stage.names() == before


def test_a_group_whose_pods_would_be_called_like_anothers_is_refused(stage: Stage) -> None:
    stage.client.apply([_of_task("a", "b-c")])
    with pytest.raises(Rejected) as caught:
        stage.client.apply([_of_task("a-b", "c")])
    assert caught.value.message == (
        "PodGroup default/a-b: pods of its task c would be called a-b-c-0 and so on, as pods of"
        " task b-c of PodGroup default/a are"
    )
    with pytest.raises(Rejected):
        stage.client.apply([_of_task("x-y", "z"), _of_task("x", "y-z")])
    assert [one.metadata.name for one in stage.client.list("PodGroup")] == ["a"]
    # Names whose pods cannot have the same names are accepted together.
    stage.client.apply([_of_task("x-y", "z"), _of_task("x", "w"), _of_task("x-y-w", "z")])


def _of_task(name: str, task: str) -> PodGroup:
    return a_group(name, tasks=(a_task(task, command=("true",)),))


def test_applying_the_same_again_changes_nothing(stage: Stage) -> None:
    queue = a_queue("a", weight=3)
    assert [one.effect for one in stage.client.apply([queue])] == ["created"]
    assert [one.effect for one in stage.client.apply([queue])] == ["unchanged"]
    assert [one.effect for one in stage.client.apply([a_queue("a", weight=4)])] == ["configured"]


def test_an_object_twice_in_one_request_is_refused(stage: Stage) -> None:
    with pytest.raises(InvalidInput, match="Queue a is given twice in one request"):
        stage.client.apply([a_queue("a"), a_queue("a", weight=2)])


def test_a_single_object_instead_of_a_list_is_refused(stage: Stage) -> None:
    one: Any = {"apiVersion": "batchq/v1", "kind": "Queue", "metadata": {"name": "a"}}
    for found in (one, a_queue("a")):
        with pytest.raises(InvalidInput, match="expected a list of objects, found a single one"):
            stage.client.apply(found)


def a_function() -> None:
    """Stand for a function that a user passes in place of an object."""


@pytest.mark.parametrize(
    ("objects", "found"),
    [
        ([a_function], "expected an object or its manifest, found an object of type function"),
        ([{"command": ["true"]}], "expected an object or its manifest, found a mapping of 1 field"),
        (a_function, "expected a list of objects, found an object of type function"),
        ("queue.yaml", "expected a list of objects, found 'queue.yaml'"),
    ],
)
def test_a_function_in_place_of_an_object_is_refused_with_a_sentence(
    client: Client, objects: Any, found: str
) -> None:
    for ask in (client.submit_all, client.apply, client.plan):
        with pytest.raises(InvalidInput) as caught:
            ask(objects)
        assert caught.value.message == found
        assert (
            caught.value.hint == "`submit` and `submit_many` accept functions, commands and fields"
        )


def test_limits_that_are_no_mapping_are_refused_with_a_sentence(client: Client) -> None:
    with pytest.raises(InvalidInput) as caught:
        client.set_quota("default", "cpu=1")  # type: ignore[arg-type]
    assert caught.value.message == "expected a mapping such as {\"cpu\": 8}, found 'cpu=1'"


def test_too_large_numbers_are_called_so(client: Client) -> None:
    largest = "expected a quantity of at most 2^53 units, found"
    with pytest.raises(InvalidInput, match=re.escape(f"cpus: {largest} '1000")):
        client.submit("true", cpus=10**30)
    for number in ("1e400", "1e30", "9" * 50 + "Gi"):
        with pytest.raises(InvalidInput, match=re.escape(f"cpu: {largest} '{number[:3]}")):
            client.set_quota("default", {"cpu": number})
    for word in ("1e-400", "much"):
        with pytest.raises(InvalidInput, match="cpu: expected a quantity such as 500m, 2 or 64Gi"):
            client.set_quota("default", {"cpu": word})


def test_memory_without_its_unit_is_warned_of(client: Client) -> None:
    with pytest.warns(
        UserWarning, match=r"mem=512 is 512 bytes; did you mean 512Mi or 512Gi\?"
    ) as told:
        client.submit(["true"], mem=512)
    assert told[0].filename == __file__
    client.submit(["true"], mem="512Mi")
    client.submit(["true"], mem=1 << 20)


def test_a_group_of_another_namespace_is_no_dependency(client: Client) -> None:
    first = client.submit(["true"], name="x")
    client.submit(["true"], name="x", namespace="lab")
    with pytest.raises(InvalidInput) as caught:
        client.submit(["true"], after=[first], namespace="lab")
    assert caught.value.message == "after: expected groups of namespace lab, found default/x"
    with pytest.raises(InvalidInput, match="after: expected names of groups or PodGroups, found 5"):
        client.submit(["true"], after=[5])


def test_a_request_that_lost_a_race_is_planned_again(stage: Stage, redis_store: RedisStore) -> None:
    class Elsewhere(RedisStore):
        """Lets another client change the queue just before each of the first three commits."""

        def commit(self, *transactions, **more):  # type: ignore[no-untyped-def]
            if self.meddled < 3:
                self.meddled += 1
                stage.client.apply([a_queue("a", weight=10 + self.meddled)])
            return super().commit(*transactions, **more)

        meddled = 0

    stage.furnish(a_queue("a"))
    store = Elsewhere(redis_store.url)
    with Client(store=store) as client:
        [applied] = client.apply([a_queue("a", weight=99)])
    store.close()
    assert applied.effect == "configured"
    queue = stage.client.get("Queue", "a")
    assert queue.spec.weight == 99  # type: ignore[union-attr]


def test_a_lost_reply_is_no_conflict(stage: Stage, server: Server) -> None:
    with LossyProxy(server.socket) as proxy:
        with Client(proxy.url) as client:
            client.get("Queue", "default")
            proxy.lose("EVALSHA")
            group = client.submit(command=["true"], name="once")
        assert proxy.lost == 1
    stored = stage.client.get("PodGroup", "once")
    assert stored.metadata.uid == group.metadata.uid


def test_the_first_argument_is_what_runs(stage: Stage) -> None:
    named = stage.client.submit("package.module:f", args=[4]).spec.tasks[0].template
    assert (named.function, [bytes(one) for one in named.args]) == ("package.module:f", [b"4"])
    listed = stage.client.submit(["sleep", "1"], name="s", working_dir=None).spec.tasks[0].template
    assert (listed.command, listed.working_dir) == (("sleep", "1"), "")


@pytest.mark.parametrize(
    ("what", "fields", "error", "message"),
    [
        ("mod.f", {}, InvalidInput, "function: expected package.module:name, found 'mod.f'"),
        (4, {}, InvalidInput, "expected a group, a function, its name or a command to submit"),
        ("a:b", {"function": "c:d"}, UsageError, "function is given twice"),
        (["true"], {"command": ["false"]}, UsageError, "command is given twice"),
        (
            None,
            {"command": "true"},
            InvalidInput,
            "command: expected a list of words, found 'true'",
        ),
        ("a:b", {"external": True}, UsageError, "function and external are both given"),
    ],
)
def test_a_submission_that_cannot_run_is_refused_in_a_sentence(
    stage: Stage, what: Any, fields: dict[str, Any], error: type[BatchqError], message: str
) -> None:
    before = stage.names()
    with pytest.raises(error) as caught:
        stage.client.submit(what, **fields)
    assert caught.value.message.startswith(message)
    assert stage.names() == before


def test_a_dotted_function_name_is_refused_with_the_correct_one(stage: Stage) -> None:
    with pytest.raises(InvalidInput) as caught:
        stage.client.submit("package.module.f")
    assert caught.value.hint.endswith("package.module:f")


def test_a_time_that_is_no_number_is_refused(stage: Stage) -> None:
    stage.client.submit("a:b", name="x")
    calls: list[Callable[[Any], object]] = [
        lambda time: stage.client.result("x", timeout_s=time),
        lambda time: stage.client.wait(["x"], timeout_s=time),
        lambda time: next(iter(stage.client.watch(timeout_s=time))),
        lambda time: stage.client.external.next(holder="w", timeout_s=time),
    ]
    for call in calls:
        with pytest.raises(InvalidInput, match="timeout_s: expected a number of seconds or None"):
            call("soon")


def test_one_name_stands_for_a_list_of_one(stage: Stage) -> None:
    stage.client.submit(["true"], name="sum")
    group = stage.client.submit(
        ["true"], name="x", after="sum", nodes="n1", exclude_nodes="n2", gates="data"
    )
    [task] = group.spec.tasks
    assert [one.name for one in group.spec.depends_on] == ["sum"]
    assert [one.name for one in group.spec.scheduling_gates] == ["data"]
    assert (task.template.nodes, task.template.exclude_nodes) == (("n1",), ("n2",))
    made = stage.client.group_of(Request(command=["true"], nodes="n1", after="any:sum"))
    assert made.spec.tasks[0].template.nodes == ("n1",)
    assert [(one.name, one.condition) for one in made.spec.depends_on] == [("sum", "any")]
    stage.client.cancel("x")
    [result] = stage.client.wait("x")
    assert (result.key, result.phase) == ("default/x", "Cancelled")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cpu": 2}, "cpu: there is no such field; did you mean 'cpus'?"),
        (
            {"tolerations": ["spot:Never"]},
            (
                "toleration: expected KEY[=VALUE][:EFFECT], where EFFECT is one of NoSchedule,"
                " NoExecute, PreferNoSchedule; found 'spot:Never'"
            ),
        ),
        ({"job_id": "x"}, "job_id: there is no such field; did you mean 'name'?"),
        ({"depends_on": "x"}, "depends_on: there is no such field; did you mean 'after'?"),
        ({"after": 5}, "after: expected a list, found 5"),
        ({"args": 5}, "args: expected a list, found 5"),
        ({"replicas": "2"}, "replicas: expected a whole number, found '2'"),
    ],
)
def test_a_wrong_keyword_is_refused_by_name(
    client: Client, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        client.submit(["true"], **fields)
    assert caught.value.message == message


def test_arguments_of_the_function_are_not_taken_for_those_of_submit(client: Client) -> None:
    with pytest.raises(UsageError) as caught:
        client.submit("tasks:add", 2, 3)
    assert caught.value.message == "submit: expected one argument before the keywords, found 3"
    assert caught.value.hint == "the function's own arguments are args=[…] and kwargs={…}"


def test_a_connection_in_place_of_a_url_is_refused_with_a_sentence() -> None:
    with pytest.raises(InvalidInput) as caught:
        Client(redis.Redis())  # type: ignore[arg-type]
    assert caught.value.message == "url: expected a URL such as redis://host:6379/0, found a Redis"


def test_an_unknown_kind_is_refused_with_the_nearest(client: Client) -> None:
    for ask in (
        lambda: client.get("Podgroop", "x"),
        lambda: client.list("Podgroop"),
        lambda: client.count("Podgroop"),
        lambda: client.delete("Podgroop", "x"),
        lambda: next(client.pages("Podgroop")),
        lambda: next(client.watch("Podgroop")),
    ):
        with pytest.raises(InvalidInput) as caught:
            ask()
        assert caught.value.message == (
            "kind: expected one of Queue, ResourceQuota, Node, PriorityClass, AdmissionCheck,"
            " PodGroup, Pod, found 'Podgroop'"
        )
        assert caught.value.hint == "did you mean 'PodGroup'?"
