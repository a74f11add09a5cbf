"""`batchq run` without a server: what it submits, and what it shows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import Metadata, Pod, PodGroup, PodSpec, PodStatus
from batchq.api.reasons import Explanation, Verdict, Waiting
from batchq.api.views import GroupView, PodCounts, Result
from batchq.cli.foreground import exit_code_of_pods
from batchq.cli.output.progress import bar_of, display, state_in_words
from batchq.cli.run import (
    PodOutput,
    announced,
    exit_codes,
    has_ended,
    read_plan,
    refuse_unless_single,
    renamed,
    result,
    verdict,
    with_fresh_names,
)
from batchq.errors import InvalidInput, UsageError
from tests.cli.conftest import Batchq

FILE = """
apiVersion: batchq/v1
kind: Queue
metadata: {name: blue}
---
apiVersion: batchq/v1
kind: PodGroup
metadata: {name: first}
spec:
  tasks: [{name: main, replicas: 2, template: {command: [hostname]}}]
---
apiVersion: batchq/v1
kind: PodGroup
metadata: {name: second}
spec:
  dependsOn: [{name: first}, {name: elsewhere}]
  tasks: [{name: main, template: {command: [hostname], workingDir: /srv}}]
"""


def written(folder: Path, text: str = FILE) -> Path:
    """Return a file to run."""
    path = folder / "job.yaml"
    path.write_text(text)
    return path


def view(phase: str, *, created: int = 1000, message: str = "", **changes: object) -> GroupView:
    """Return a view of a group `default/train` of four pods."""
    counts = {name: changes.pop(name) for name in list(changes) if name in _COUNTS}
    answer: dict[str, object] = {
        "blockers": (),
        "started_at": None,
        "finished_at": None,
        "reason": "",
        **changes,
    }
    return GroupView(
        key="default/train",
        queue="default",
        priority=0,
        phase=PodGroupPhase(phase),
        shown=phase,
        pods=PodCounts(wanted=4, least=2, **counts),  # type: ignore[arg-type] # all numbers
        request={},
        request_text="",
        position=None,
        nodes=(),
        created_at=created,
        message=message,
        **answer,  # type: ignore[arg-type] # names are checked
    )


_COUNTS = frozenset(PodCounts.__struct_fields__)


def pod(index: int, phase: PodPhase, **status: Any) -> Pod:
    """Return a pod of that group."""
    return Pod(
        metadata=Metadata(name=f"train-main-{index}", namespace="default", uid=f"u-1-{index}"),
        spec=PodSpec(pod_group="train", task="main", index=index),
        status=PodStatus(phase=phase, **status),
    )


def test_pods_start_in_the_folder_of_the_file_unless_they_say_otherwise(tmp_path: Path) -> None:
    plan = read_plan(written(tmp_path))
    folders = [group.spec.tasks[0].template.working_dir for group in plan.groups]
    assert folders == [str(tmp_path), "/srv"]
    assert [other.metadata.name for other in plan.others] == ["blue"]
    assert plan.pods == 3


def test_a_stop_that_the_file_does_not_name_is_not_the_files_to_end(tmp_path: Path) -> None:
    assert read_plan(written(tmp_path)).keep_stop == {"blue"}
    stated = FILE.replace("{name: blue}", "{name: blue}\nspec: {stopPolicy: None}")
    assert read_plan(written(tmp_path, stated)).keep_stop == frozenset()


def test_the_groups_of_a_file_may_get_labels_when_it_is_run(tmp_path: Path) -> None:
    text = FILE.replace("{name: first}\nspec", "{name: first, labels: {own: is}}\nspec")
    plan = read_plan(written(tmp_path, text)).marked({"team": "web"}, {"why": "a try"})
    assert [group.metadata.labels for group in plan.groups] == [
        {"own": "is", "team": "web"},
        {"team": "web"},
    ]
    assert {group.metadata.annotations["why"] for group in plan.groups} == {"a try"}
    assert plan.others[0].metadata.labels == {}


def names_of(groups: tuple[PodGroup, ...]) -> list[str]:
    """Return the names of the groups."""
    return [group.metadata.name for group in groups]


def test_groups_of_a_file_keep_names_that_are_free(tmp_path: Path) -> None:
    groups = read_plan(written(tmp_path)).groups
    assert with_fresh_names(groups, {"default/elsewhere", "other/first"}) == groups


def test_all_groups_of_a_file_get_the_first_number_that_is_free_for_all(tmp_path: Path) -> None:
    groups = read_plan(written(tmp_path)).groups
    fresh = with_fresh_names(groups, {"default/first", "default/second-2"})
    assert names_of(fresh) == ["first-3", "second-3"]
    # A dependency on a group of the file is renamed with it, another one is not.
    assert [one.name for one in fresh[1].spec.depends_on] == ["first-3", "elsewhere"]
    assert renamed(groups, fresh) == [
        ("default/first", "default/first-3"),
        ("default/second", "default/second-3"),
    ]


def test_a_long_name_is_cut_to_make_room_for_its_number(tmp_path: Path) -> None:
    name = "a" * 63
    groups = read_plan(written(tmp_path, FILE.replace("first", name))).groups
    fresh = with_fresh_names(groups, {f"default/{name}"})
    assert names_of(fresh) == ["a" * 61 + "-2", "second-2"]


def test_a_file_without_groups_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="expected at least one PodGroup to run, found none"):
        read_plan(written(tmp_path, FILE.partition("---")[0]))
    with pytest.raises(InvalidInput, match="cannot be read: No such file or directory"):
        read_plan(tmp_path / "none.yaml")


def test_an_exit_code_is_passed_on_for_a_single_pod_only(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="of a single pod, but the file has 3"):
        refuse_unless_single(read_plan(written(tmp_path)))


QUOTA = Verdict(
    plugin="quota",
    reason=Waiting.WAITING_FOR_QUOTA,
    subject="namespace blue",
    resource="cpu",
    need=4000,
    limit=6000,
    seen=4000,
)


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (view("Pending"), "waits for its first session"),
        (
            view("Pending", blockers=(Explanation(verdict=QUOTA),)),
            "WaitingForQuota: needs cpu 4, and namespace blue has 2 free (4 of 6 in use)",
        ),
        (view("InQueue", running=1), "admitted; 1 pod started, 2 needed"),
        (view("InQueue", running=1, failed=1), "admitted; 1 pod started, 2 needed, 1 failed"),
        (view("InQueue", running=4), "admitted; 4 pods started, 2 needed"),
        (view("Running", running=2, succeeded=1), "1 of 4 pods done, 2 running"),
        (
            view("Unknown", running=1, succeeded=1, failed=1),
            "1 of 4 pods done, 1 failed, 1 running",
        ),
        (view("Completed", succeeded=4), "4 of 4 pods done"),
        (
            view("Cancelled", reason="Cancelled", stopping=2),
            "Cancelled; 2 pods still stopping",
        ),
        (view("Failed", message="1 of 4 pods failed"), "1 of 4 pods failed"),
    ],
    ids=lambda value: value.shown if isinstance(value, GroupView) else None,
)
def test_a_groups_state_is_described_in_words(group: GroupView, words: str) -> None:
    assert state_in_words(group) == words


def test_a_bar_shows_what_is_done_and_what_runs() -> None:
    assert bar_of(view("Running", running=1, succeeded=1, failed=1)) == (10, 5)
    assert bar_of(view("Pending")) == (0, 0)


def test_a_cancelled_group_has_ended_when_its_processes_have() -> None:
    assert not has_ended(view("Running", running=4))
    assert not has_ended(view("Cancelled", stopping=1, running=1))
    assert has_ended(view("Cancelled"))


def test_in_a_pipe_a_line_is_written_on_change_only() -> None:
    stream = io.StringIO()
    with display(stream) as shown:
        for group in (view("Pending"), view("Pending"), view("Running", running=2)):
            shown.show([group])
    assert stream.getvalue() == (
        "train: Pending: waits for its first session\ntrain: Running: 0 of 4 pods done, 2 running\n"
    )


def test_exit_codes_are_counted() -> None:
    pods = [
        pod(0, PodPhase.SUCCEEDED, exit_code=0),
        pod(1, PodPhase.SUCCEEDED, exit_code=0),
        pod(2, PodPhase.FAILED, exit_code=3),
        pod(3, PodPhase.FAILED, exit_code=137, signal=9),
        pod(4, PodPhase.PENDING),
    ]
    assert exit_codes(pods) == "0 ×2, 3, signal 9"
    assert exit_codes([]) == "-"


@pytest.mark.parametrize(
    ("phases", "code"),
    [
        (["Completed", "Completed"], 0),
        (["Completed", "Failed"], 10),
        (["Cancelled", "Completed"], 11),
        (["Cancelled", "Failed"], 10),
    ],
)
def test_the_verdict_is_the_groups(phases: list[str], code: int) -> None:
    assert verdict([view(phase) for phase in phases], [], exit_code=False) == code


def test_the_verdict_is_the_single_pods_where_that_is_asked_for() -> None:
    failed = [view("Failed")]
    assert verdict(failed, [pod(0, PodPhase.FAILED, exit_code=3)], exit_code=True) == 3
    assert verdict(failed, [pod(0, PodPhase.FAILED, exit_code=3)], exit_code=False) == 10
    killed = pod(0, PodPhase.FAILED, exit_code=137, signal=9)
    assert verdict(failed, [killed], exit_code=True) == 137
    # It never ran.
    assert verdict(failed, [], exit_code=True) == 10


def test_the_final_report_begins_with_the_output_of_failed_pods() -> None:
    group = view(
        "Failed",
        started_at=3500,
        finished_at=91_000,
        succeeded=3,
        failed=1,
        reason="RetriesSpent",
        message="1 of 4 pods failed",
    )
    pods = [pod(0, PodPhase.SUCCEEDED, exit_code=0), pod(1, PodPhase.FAILED, exit_code=2)]
    outputs = [
        PodOutput(pod="train-main-0", count=9, last=("a", "wrote /tmp/picture.png")),
        PodOutput(pod="train-main-1", count=1, last=("no \x1b[31mroom",)),
    ]
    assert list(result([group], pods, outputs, Path("/logs"))) == [
        "GROUP  PHASE   PODS  WAIT  RUN    EXIT CODES",
        "train  Failed  3/4   2.5s  1m27s  0, 2",
        "train: RetriesSpent: 1 of 4 pods failed",
        "",
        "train-main-1: its whole output",
        "    no \x1b[31mroom",
        "",
        "train-main-0:  wrote /tmp/picture.png",
        "",
        "Logs of 2 pods: /logs",
        "Written: /tmp/picture.png",
    ]


def test_a_path_is_announced_by_a_last_line_only() -> None:
    outputs = [
        PodOutput(pod="a", count=2, last=("wrote /tmp/early", "and went on")),
        PodOutput(pod="b", count=1, last=("wrote /tmp/late file",)),
        PodOutput(pod="c", count=1, last=("wrote",)),
    ]
    assert announced(outputs) == ["/tmp/late file"]


@pytest.mark.parametrize(
    ("phase", "pods", "code"),
    [
        ("Completed", [{"exit_code": 0}, {"exit_code": 0}], 0),
        ("Failed", [{"exit_code": 0}, {"exit_code": 3}, {"exit_code": 2}], 3),
        ("Failed", [{"exit_code": 3}, {"signal": 9}], 137),
        ("Failed", [{"exit_code": 3}, {"signal": 15, "reason": "GroupFailed"}], 3),
        ("Failed", [{"signal": 15, "reason": "WalltimeExceeded"}], 143),
        ("Failed", [{}], 10),
        ("Cancelled", [{"signal": 15}], 11),
    ],
)
def test_the_exit_code_of_a_command_is_the_highest_of_its_pods(
    phase: str, pods: list[dict[str, Any]], code: int
) -> None:
    result = Result(key="default/train", phase=PodGroupPhase(phase), reached=phase == "Completed")
    ended = [pod(index, PodPhase.FAILED, **status) for index, status in enumerate(pods)]
    assert exit_code_of_pods(result, ended) == code


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--cpus", "1", "job.yaml"], "--cpus applies to a command, not to a file"),
        (["--exit-code", "--", "true"], "--exit-code applies to a file, not to a command"),
        (["--"], "expected a command after `--`"),
        ([], "expected a file, or a command after `--`"),
    ],
)
def test_options_of_files_and_of_commands_are_kept_apart(
    batchq: Batchq, words: list[str], sentence: str
) -> None:
    ran = batchq("run", *words)
    assert (ran.code, ran.err.splitlines()[0]) == (2, f"error: {sentence}")
