"""`batchq submit`, `wait`, `progress` and `logs`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import yaml

from batchq.api.objects import PodGroup, Retry
from batchq.cli.output.values import left_of
from batchq.errors import InvalidInput
from tests.builders import a_group, a_node, a_task
from tests.cli.conftest import Batchq, Ran
from tests.client.stage import Stage

SOON_S = 60

FILE = """
apiVersion: batchq/v1
kind: Queue
metadata: {name: files}
---
apiVersion: batchq/v1
kind: PodGroup
metadata: {name: first}
spec:
  queue: files
  tasks: [{name: w, template: {command: [./run.sh]}}]
---
apiVersion: batchq/v1
kind: PodGroup
metadata: {name: second}
spec:
  queue: files
  dependsOn: [{name: first}]
  tasks: [{name: w, template: {command: [./run.sh], workingDir: sub}}]
"""


def stored(stage: Stage, name: str) -> PodGroup:
    group = stage.client.get("PodGroup", name)
    assert isinstance(group, PodGroup)
    return group


@pytest.mark.both_doors
def test_submit_says_what_the_group_is_called(batchq: Batchq, stage: Stage) -> None:
    done = batchq("submit", "--", "python3", "-c", "print(1)")
    match = re.fullmatch(r"podgroup default/(python3-[a-z0-9]{5}) submitted\n", done.out)
    assert match
    [task] = stored(stage, match[1]).spec.tasks
    assert task.template.command == ("python3", "-c", "print(1)")
    assert task.template.working_dir == str(Path.cwd())


def test_quiet_prints_the_key_alone(batchq: Batchq, stage: Stage) -> None:
    assert batchq("submit", "--quiet", "--name", "x", "--", "true").out == "default/x\n"


def test_words_after_the_command_are_its_own(batchq: Batchq, stage: Stage) -> None:
    batchq("submit", "--name", "x", "grep", "--name", "-n", "x")
    assert stored(stage, "x").spec.tasks[0].template.command == ("grep", "--name", "-n", "x")


@pytest.mark.both_doors
def test_every_option_reaches_the_group(batchq: Batchq, stage: Stage) -> None:
    batchq("submit", "--name", "before", "--", "true")
    words = (
        "submit --name x -N 4 --min-member 2 --cpus 500m --mem 1Gi --gpus 2 --res licence=1"
        " --walltime 90m --env A=1 --env B=x=y --after any:before --gate data --suspend"
        " --retries 3 -- true"
    )
    assert batchq(*words.split()).code == 0
    spec = stored(stage, "x").spec
    [task] = spec.tasks
    assert (task.replicas, spec.min_member) == (4, 2)
    assert task.template.requests == {
        "cpu": 500,
        "memory": 2**30,
        "gpu": 2000,
        "licence": 1000,
    }
    assert spec.walltime == 5_400_000
    assert task.template.env == {"A": "1", "B": "x=y"}
    assert [(one.condition, one.name) for one in spec.depends_on] == [("any", "before")]
    assert [gate.name for gate in spec.scheduling_gates] == ["data"]
    assert spec.suspend is True
    assert spec.retry.limit == 3


@pytest.mark.both_doors
def test_a_dry_run_prints_the_manifest_and_submits_nothing(batchq: Batchq, stage: Stage) -> None:
    before = stage.names()
    done = batchq("submit", "--name", "x", "--array", "0-99", "--dry-run", "--", "true")
    assert stage.names() == before
    manifest = yaml.safe_load(done.out)
    assert manifest["spec"]["minMember"] == 1
    assert manifest["spec"]["tasks"][0]["replicas"] == 100
    again = batchq("submit", "-f", "-", stdin=done.out)
    assert again.out == "podgroup default/x submitted\n"


@pytest.mark.both_doors
def test_a_file_is_submitted_whole_and_starts_in_its_folder(
    batchq: Batchq, stage: Stage, tmp_path: Path
) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(FILE)
    done = batchq("submit", "-f", str(file))
    assert done.lines == [
        "queue files created",
        "podgroup default/first submitted",
        "podgroup default/second submitted",
    ]
    assert stored(stage, "first").spec.tasks[0].template.working_dir == str(tmp_path)
    assert stored(stage, "second").spec.tasks[0].template.working_dir == f"{tmp_path}/sub"
    assert batchq("submit", "-f", str(file)).code == 8


def test_labels_and_annotations_are_written_on_the_group(batchq: Batchq, stage: Stage) -> None:
    marks = ("--label", "team=web", "--label", "weekend=ok", "--annotation", "example.com/n=a=b")
    assert batchq("submit", "--name", "x", *marks, "--", "true").code == 0
    meta = stored(stage, "x").metadata
    assert meta.labels == {"team": "web", "weekend": "ok"}
    assert meta.annotations == {"example.com/n": "a=b"}
    assert batchq("plan", "--label", "team=web", "--", "true").code == 0
    again = stage.client.submit(["true"], name="y", labels={"a": "b"}, annotations={"c": "d"})
    assert (again.metadata.labels, again.metadata.annotations) == ({"a": "b"}, {"c": "d"})


def test_every_group_of_a_file_gets_the_labels_beside_its_own(
    batchq: Batchq, stage: Stage, tmp_path: Path
) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(FILE.replace("{name: first}", "{name: first, labels: {own: is, team: x}}", 1))
    assert batchq("submit", "-f", str(file), "--label", "team=web").code == 0
    assert stored(stage, "first").metadata.labels == {"own": "is", "team": "web"}
    assert stored(stage, "second").metadata.labels == {"team": "web"}
    queue = stage.client.get("Queue", "files")
    assert queue.metadata.labels == {}


@pytest.mark.parametrize(
    ("words", "code"),
    [(("--label", "team"), 2), (("--annotation", "=web"), 2), (("--label", "a b=c"), 1)],
)
def test_an_invalid_label_is_refused(
    batchq: Batchq, stage: Stage, words: tuple[str, ...], code: int
) -> None:
    done = batchq("submit", "--name", "x", *words, "--", "true")
    assert (done.code, done.out) == (code, "")


class Talk:
    """Runs waiting commands in a thread, begun before the test continues."""

    def __init__(self, batchq: Batchq, stage: Stage) -> None:
        self._batchq = batchq
        self._stage = stage
        self._threads = ThreadPoolExecutor(max_workers=1)

    def begin(self, *words: str, until: str) -> Future[Ran]:
        """Run a command in the thread; return when the group `until` exists."""
        future = self._threads.submit(self._batchq, *words)
        pause = Event()
        for _ in range(SOON_S * 100):
            if future.done() or f"default/{until}" in self._batchq_keys():
                return future
            pause.wait(0.01)
        raise AssertionError(f"{until} did not come")

    def _batchq_keys(self) -> list[str]:
        groups = self._stage.client.list("PodGroup")
        return [f"{one.metadata.namespace}/{one.metadata.name}" for one in groups]

    def close(self) -> None:
        self._threads.shutdown()


@pytest.fixture
def talk(batchq: Batchq, stage: Stage) -> Iterator[Talk]:
    talk = Talk(batchq, stage)
    yield talk
    talk.close()


@pytest.mark.parametrize(
    ("words", "exit_code", "expected"),
    [
        (("--wait",), 0, 0),
        (("--wait",), 3, 10),
        (("--wait", "--exit-code"), 3, 3),
        (("--exit-code",), 0, 0),
        (("--progress",), 3, 10),
    ],
)
def test_submit_can_wait_and_pass_on_how_it_ended(
    stage: Stage, talk: Talk, words: tuple[str, ...], exit_code: int, expected: int
) -> None:
    future = talk.begin("submit", "--name", "x", *words, "--", "true", until="x")
    stage.run("x", exit_code=exit_code)
    done = future.result(SOON_S)
    assert done.out == "podgroup default/x submitted\n"
    assert done.code == expected, done


@pytest.mark.both_doors
def test_wait_answers_10_for_failed_and_11_for_cancelled(batchq: Batchq, stage: Stage) -> None:
    for name in ("good", "bad", "gone"):
        batchq("submit", "--name", name, "--", "true")
    batchq("cancel", "gone", "--reason", "not needed")
    stage.turn()
    for name, exit_code in (("good", 0), ("bad", 3)):
        stage.start(name)
        stage.end(name, exit_code)
    assert batchq("wait", "good") == (0, "podgroup default/good Completed\n", "")
    bad = batchq("wait", "good", "bad")
    assert bad.code == 10
    assert bad.lines[1].startswith("podgroup default/bad Failed (RetriesSpent: ")
    gone = batchq("wait", "default/gone")
    assert gone.code == 11
    assert gone.out == "podgroup default/gone Cancelled (not needed)\n"
    assert batchq("wait", "bad", "gone").code == 10
    answer = json.loads(batchq("wait", "bad", "-o", "json").out)
    assert (answer["items"][0]["phase"], answer["items"][0]["exitCode"]) == ("Failed", 3)


@pytest.mark.parametrize(
    ("timeout_s", "spent_s", "left_s"), [(None, 5.0, None), (0.1, 0.02, 0.1), (3.0, 2.0, 1.0)]
)
def test_a_timeout_counts_the_wait_for_a_server_and_not_the_connection(
    timeout_s: float | None, spent_s: float, left_s: float | None
) -> None:
    assert left_of(timeout_s, spent_s) == left_s


@pytest.mark.both_doors
def test_wait_answers_124_when_the_time_is_up(batchq: Batchq, stage: Stage) -> None:
    batchq("submit", "--name", "x", "--", "true")
    done = batchq("wait", "x", "--timeout", "100ms")
    assert (done.code, done.out) == (124, "")
    assert done.err.startswith("error: PodGroup default/x is Pending after 100ms")


def test_progress_in_a_pipe_is_a_line_for_each_change(stage: Stage, talk: Talk) -> None:
    stage.client.submit(command=["true"], name="x", replicas=2)
    future = talk.begin("progress", "x", until="x")
    stage.run("x")
    done = future.result(SOON_S)
    assert done.code == 0
    assert done.lines[-1] == "x: Completed: 2 of 2 pods done"
    assert len(done.lines) == len(set(done.lines))


@pytest.mark.parametrize("number", ["99999999999999999999", str(2**63)])
def test_logs_with_a_tail_longer_than_any_output_print_all_of_it(
    batchq: Batchq, stage: Stage, number: str
) -> None:
    stage.client.submit(command=["true"], name="x")
    stage.turn()
    stage.start("x")
    [pod] = stage.pods("x")
    place = pod.status.node, pod.metadata.uid, pod.status.attempt
    stage.store.append_log(*place, "stdout", b"one\ntwo\n")
    assert batchq("logs", "x", "--tail", number).out == "one\ntwo\n"


@pytest.mark.both_doors
def test_logs_can_say_whose_line_it_is(batchq: Batchq, stage: Stage) -> None:
    stage.client.submit(command=["true"], name="x", replicas=2)
    stage.turn()
    stage.start("x")
    for pod in stage.pods("x"):
        text = f"one\ntwo of {pod.spec.index}\n".encode()
        place = pod.status.node, pod.metadata.uid, pod.status.attempt
        stage.store.append_log(*place, "stdout", text)
    assert batchq("logs", "x").out == "one\ntwo of 0\none\ntwo of 1\n"
    assert batchq("logs", "x", "--prefix", "--tail", "1").lines == [
        "x-main-0: two of 0",
        "x-main-1: two of 1",
    ]
    [line] = batchq("logs", "x", "--pod", "main-1", "--tail", "1", "-o", "json").lines
    assert json.loads(line) == {
        "pod": "x-main-1",
        "attempt": 1,
        "stream": "stdout",
        "text": "two of 1",
        "admission": 1,
    }


@pytest.mark.both_doors
def test_logs_of_what_has_not_started_say_so(batchq: Batchq, stage: Stage) -> None:
    stage.client.submit(command=["true"], name="x", cpus=9)
    stage.turn()
    done = batchq("logs", "x")
    assert (done.code, done.out) == (0, "")
    assert done.err == "PodGroup default/x is Pending; none of its pods has started\n"


@pytest.mark.both_doors
def test_a_taken_name_says_how_it_becomes_free(batchq: Batchq, stage: Stage) -> None:
    words = ("submit", "--name", "train", "--", "true")
    batchq(*words)
    assert batchq(*words).err.splitlines() == [
        "error: PodGroup default/train exists already and is Pending",
        (
            "hint: wait for it with `batchq wait train`, end it with `batchq cancel train`,"
            " or choose another name"
        ),
    ]
    batchq("cancel", "train")
    assert batchq(*words).err.splitlines()[1] == (
        "hint: delete it first: `batchq delete podgroup train`, or omit the name"
    )


def test_a_name_can_be_made_from_a_prefix(batchq: Batchq, stage: Stage) -> None:
    words = ("submit", "--generate-name", "nightly-", "--quiet", "--", "true")
    first, second = batchq(*words).out.strip(), batchq(*words).out.strip()
    assert first.startswith("default/nightly-")
    assert len(first) == len("default/nightly-") + 5
    assert first != second
    both = batchq("submit", "--name", "x", "--generate-name", "y", "--", "true")
    assert both.code == 2


def test_a_variable_is_passed_on_by_its_name(
    batchq: Batchq, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEED", "a=b")
    batchq("submit", "--name", "x", "--env", "SEED", "--env", "B=1", "--", "true")
    assert stored(stage, "x").spec.tasks[0].template.env == {"SEED": "a=b", "B": "1"}


def test_a_namespace_that_is_full_refuses_more_groups_until_some_have_ended(
    batchq: Batchq, stage: Stage
) -> None:
    stage.allow_groups(2)
    for name in ("a", "b"):
        assert batchq("submit", "--name", name, "--", "true").code == 0
    refused = batchq("submit", "--name", "c", "--", "true")
    assert refused.code == 12
    assert refused.err.splitlines() == [
        (
            "error: PodGroup default/c: namespace default allows at most 2 unfinished pod groups,"
            " and has 2"
        ),
        (
            "hint: wait for some to finish, cancel some, or have an operator raise podgroups in a"
            " ResourceQuota of the namespace (`batchq quota --help`)"
        ),
    ]
    assert batchq("submit", "-n", "other", "--name", "c", "--", "true").code == 0
    assert batchq("cancel", "a").code == 0
    assert batchq("submit", "--name", "c", "--", "true").code == 0


def test_a_quota_raises_and_lowers_what_a_namespace_may_have(batchq: Batchq, stage: Stage) -> None:
    stage.allow_groups(1)
    assert batchq("quota").err == (
        "there are no quotas: nothing is limited but the number of groups, 1 unfinished pod group"
        " in each namespace\n"
    )
    batchq("quota", "set", "default", "cpu=8")
    assert batchq("submit", "--name", "a", "--", "true").code == 0
    assert batchq("submit", "--name", "b", "--", "true").code == 12
    batchq("quota", "set", "default", "podgroups=2")
    assert batchq("submit", "--name", "b", "--", "true").code == 0
    batchq("quota", "set", "default", "podgroups=1")
    assert batchq("submit", "--name", "c", "--", "true").code == 12
    assert [line.split()[2:] for line in batchq("quota").lines[1:]] == [
        ["cpu", "0", "8"],
        ["podgroups", "2", "1"],
    ]


def test_a_script_in_the_place_of_a_manifest_is_told_how_to_run(
    batchq: Batchq, stage: Stage, tmp_path: Path
) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH --time=60\necho hi\n")
    done = batchq("submit", "-f", str(script))
    assert (done.code, done.err) == (
        1,
        (
            f"error: {script}, line 3: expected a mapping of fields, found 'echo hi'\n"
            f"hint: -f reads manifests; `batchq submit -- bash {script}` runs a script, whose"
            " #SBATCH lines are ignored: give options instead\n"
        ),
    )


@pytest.mark.parametrize(
    ("slurm", "ours"), [("01:00:00", "1h"), ("1-02:30:00", "1d2h30m"), ("00:00:00", "0s")]
)
def test_a_walltime_in_slurms_notation_is_refused_with_ours(
    batchq: Batchq, stage: Stage, slurm: str, ours: str
) -> None:
    done = batchq("submit", "--walltime", slurm, "--", "true")
    assert done.code == 2
    assert f"expected a duration such as 90s, 2h or 1d, found '{slurm}'; write {ours}" in done.err


def test_a_walltime_of_sixty_without_a_unit_is_doubted(batchq: Batchq, stage: Stage) -> None:
    done = batchq("submit", "--name", "x", "--walltime", "60", "--", "true")
    assert done.code == 0
    assert "warning: --walltime 60 is 60 seconds; did you mean 60h or 60m?" in done.err


@pytest.mark.both_doors
def test_the_output_of_an_earlier_attempt_can_be_read(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(a_node("n2", cpu=8, cordoned=True))
    task = a_task("w", 1, requests={"cpu": 1}, command=("true",))
    stage.client.apply([a_group("x", tasks=(task,), retry=Retry(limit=1, backoff=0))])
    stage.turn()
    stage.start("x")
    [pod] = stage.pods("x")
    first = pod.status.attempt
    stage.store.append_log("n2", pod.metadata.uid, first, "stdout", b"broken\n")
    stage.end("x", 3)
    stage.start("x")
    stage.store.append_log("n1", pod.metadata.uid, first + 1, "stdout", b"works\n")
    assert batchq("logs", "x").out == "works\n"
    assert batchq("logs", "x", "--attempt", "2").out == "works\n"
    assert batchq("logs", "x", "--attempt", "1").out == "broken\n"
    all_of_it = batchq("logs", "x", "--attempt", "all")
    assert all_of_it.out == "broken\nworks\n"
    name = f"{pod.metadata.name} admission 1"
    assert all_of_it.err == f"{name} attempt 1:\n{name} attempt 2:\n"
    each = batchq("logs", "x", "--attempt", "all", "--prefix")
    assert (each.lines, each.err) == (
        [f"{name} attempt 1: broken", f"{name} attempt 2: works"],
        "",
    )
    third = batchq("logs", "x", "--attempt", "3")
    assert (third.out, third.err) == (
        "",
        "PodGroup default/x is Running; attempt 3 of its pods has no output\n",
    )
    assert batchq("logs", "x", "--attempt", "all", "-f").code == 2
    for wrong in ("0", "-1", "1.5", "every", "1000000"):
        refused = batchq("logs", "x", "--attempt", wrong)
        assert refused.code == 2
        assert f"expected a number from 1, or all, found '{wrong}'" in refused.err


@pytest.mark.parametrize(
    "words",
    [
        ("submit", "--", "true"),
        ("run", "--", "true"),
        ("plan", "--", "true"),
        ("submit", "--from-file", "-"),
        ("submit", "-f", "-"),
    ],
)
@pytest.mark.parametrize(
    ("name", "fault"), [(b"gone", "is gone"), (b"\xff", "has a name that is not in UTF-8")]
)
def test_a_submission_from_an_unusable_folder_is_refused_in_a_sentence(
    batchq: Batchq,
    stage: Stage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    name: bytes,
    fault: str,
) -> None:
    folder = os.path.join(os.fsencode(tmp_path), name)  # noqa: PTH118 - not text
    os.mkdir(folder)  # noqa: PTH102 - not text
    monkeypatch.chdir(os.fsdecode(folder))
    if name == b"gone":
        os.rmdir(folder)  # noqa: PTH106 - not text
    done = batchq(*words, stdin=FILE)
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"error: the folder that this process runs in {fault}, and pods start there\n"
        "hint: change to another folder\n"
    )


def test_text_that_is_not_utf_8_is_refused_in_a_sentence(stage: Stage) -> None:
    sentence = r"PodGroup default/x: expected text in UTF-8, found 'a\\udcff'"
    for fields in ({"command": ["echo", "a\udcff"]}, {"env": {"A": "a\udcff"}}):
        with pytest.raises(InvalidInput, match=sentence):
            stage.client.submit(**{"name": "x", "command": ["true"], **fields})


@pytest.mark.both_doors
def test_the_output_of_an_evicted_run_can_be_read(batchq: Batchq, stage: Stage) -> None:
    stage.client.submit(["true"], name="x")
    for text in (b"evicted\n", b"again\n"):
        stage.turn()
        stage.start("x")
        [pod] = [one for one in stage.pods("x") if one.status.phase == "Running"]
        stage.store.append_log("n1", pod.metadata.uid, pod.status.attempt, "stdout", text)
        if text == b"evicted\n":
            stage.client.suspend("x")
            stage.turn()
            stage.end("x", 143)
            assert batchq("logs", "x").err == (
                "PodGroup default/x is Pending; none of its pods has started since it was evicted;"
                " --attempt all prints the output from before\n"
            )
            before = batchq("logs", "x", "--attempt", "all", "--pod", "main-0")
            assert before.out == "evicted\n"
            stage.client.resume("x")
    assert batchq("logs", "x").out == "again\n"
    assert batchq("logs", "x", "--attempt", "all").out == "evicted\nagain\n"
    assert batchq("logs", "x", "--attempt", "all", "--prefix").lines == [
        "x-main-0 admission 1 attempt 1: evicted",
        "x-main-0 admission 2 attempt 1: again",
    ]
    lines = batchq("logs", "x", "--attempt", "all", "-o", "json").lines
    assert [json.loads(line)["admission"] for line in lines] == [1, 2]
