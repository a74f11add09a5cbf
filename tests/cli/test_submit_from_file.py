"""`batchq submit --from-file`: one JSON object per line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from batchq.api.objects import PodGroup
from batchq.store import keys
from tests.builders import a_priority, a_queue
from tests.cli.conftest import Batchq, Ran, run
from tests.client.stage import Stage
from tests.harness import fork_server
from tests.harness.proxy import ControlledProxy
from tests.harness.server import Server

pytestmark = pytest.mark.both_doors

SOON_S = 60


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.jsonl"


def a_line(name: str, **fields: object) -> str:
    return json.dumps({"name": name, "command": ["true", name], **fields})


def write(file: Path, *lines: str) -> str:
    file.write_text("".join(f"{line}\n" for line in lines))
    return str(file)


def names(stage: Stage) -> list[str]:
    """Return all groups, in the order of the line."""
    found = [one for one in stage.store.list("PodGroup") if isinstance(one, PodGroup)]
    found.sort(key=lambda one: (one.status.queue_time or 0, one.metadata.uid))
    return [one.metadata.name for one in found]


def stored(stage: Stage, name: str) -> PodGroup:
    group = stage.client.get("PodGroup", name)
    assert isinstance(group, PodGroup)
    return group


def test_every_line_becomes_a_group_in_its_place(batchq: Batchq, stage: Stage, file: Path) -> None:
    done = batchq("submit", "--from-file", write(file, *map(a_line, "cab")))
    assert done.code == 0
    assert done.out.startswith("3 pod groups submitted in ")
    assert done.err == ""
    assert names(stage) == ["c", "a", "b"]
    assert stored(stage, "c").spec.tasks[0].template.working_dir == str(Path.cwd())


def test_fields_are_called_as_the_options_are(batchq: Batchq, stage: Stage, file: Path) -> None:
    stage.client.apply([a_queue("team"), a_priority("high", 10)])
    before = a_line("before")
    line = a_line(
        "x", queue="team", cpus="500m", mem="1Gi", gpus=1, resources={"licence": 2}, replicas=4,
        **{"min-member": 2, "priority-class": "high"}, walltime="90m", grace=60, env={"A": 1},
        after="any:before", gates=["data"], suspend=True, retries=3, labels={"a": "b"},
        annotations={"n": 1}, working_dir="sub",
    )  # fmt: skip
    assert batchq("submit", "--from-file", write(file, before, line)).code == 0
    group = stored(stage, "x")
    spec, template = group.spec, group.spec.tasks[0].template
    assert (spec.queue, spec.priority_class_name, spec.min_member) == ("team", "high", 2)
    assert template.requests == {"cpu": 500, "memory": 2**30, "gpu": 1000, "licence": 2000}
    assert (spec.walltime, template.termination_grace) == (5_400_000, 60_000)
    assert template.env == {"A": "1"}
    assert (spec.depends_on[0].name, spec.depends_on[0].condition) == ("before", "any")
    assert [gate.name for gate in spec.scheduling_gates] == ["data"]
    assert (spec.suspend, spec.retry.limit) == (True, 3)
    assert (group.metadata.labels, group.metadata.annotations) == ({"a": "b"}, {"n": "1"})
    assert template.working_dir == f"{Path.cwd()}/sub"


def test_options_hold_for_lines_that_do_not_say_otherwise(
    batchq: Batchq, stage: Stage, file: Path
) -> None:
    stage.client.apply([a_queue("team")])
    lines = write(file, '{"name": "a"}', a_line("b", cpus=4, env={"B": "own"}))
    words = "submit -q team --cpus 2 --env A=1 --env B=2 --label of=file --from-file"
    assert batchq(*words.split(), lines, "--", "usual").code == 0
    a, b = stored(stage, "a"), stored(stage, "b")
    assert [one.spec.tasks[0].template.command for one in (a, b)] == [("usual",), ("true", "b")]
    assert [one.spec.tasks[0].template.requests["cpu"] for one in (a, b)] == [2000, 4000]
    assert b.spec.tasks[0].template.env == {"A": "1", "B": "own"}
    assert {one.spec.queue for one in (a, b)} == {"team"}
    assert b.metadata.labels == {"of": "file"}


def test_a_line_may_be_a_whole_manifest(batchq: Batchq, stage: Stage, file: Path) -> None:
    stage.client.apply([a_queue("team")])
    manifest = {
        "apiVersion": "batchq/v1",
        "kind": "PodGroup",
        "metadata": {"name": "m", "labels": {"own": "1"}},
        "spec": {"tasks": [{"name": "w", "replicas": 2, "template": {"command": ["true"]}}]},
        "status": {"phase": "Running"},
    }
    lines = write(file, json.dumps(manifest), a_line("x", after="m"))
    assert batchq("submit", "--from-file", lines, "-q", "team", "--label", "of=file").code == 0
    group = stored(stage, "m")
    assert (group.spec.queue, group.status.phase) == ("team", "Pending")
    assert group.metadata.labels == {"own": "1", "of": "file"}
    assert group.spec.tasks[0].template.working_dir == str(Path.cwd())


@pytest.mark.parametrize("form", ["name", "json", "quiet"])
def test_one_line_is_printed_for_each_group(
    batchq: Batchq, stage: Stage, file: Path, form: str
) -> None:
    words = ["--quiet"] if form == "quiet" else ["-o", form]
    done = batchq("submit", "--from-file", write(file, a_line("a"), "", a_line("b")), *words)
    assert "2 pod groups submitted" in done.err
    uids = [stored(stage, name).metadata.uid for name in "ab"]
    shown = {
        "name": ["podgroup/default/a", "podgroup/default/b"],
        "quiet": ["default/a", "default/b"],
        "json": [
            {"line": 1, "result": "submitted", "name": "a", "namespace": "default", "uid": uids[0]},
            {"line": 3, "result": "submitted", "name": "b", "namespace": "default", "uid": uids[1]},
        ],
    }
    assert ([json.loads(one) for one in done.lines] if form == "json" else done.lines) == shown[
        form
    ]


def test_standard_input_with_a_byte_order_mark_and_windows_lines(
    batchq: Batchq, stage: Stage
) -> None:
    text = f"\ufeff{a_line('a')}\r\n\r\n{a_line('b')}"
    assert batchq("submit", "--from-file", "-", stdin=text.encode()).code == 0
    assert names(stage) == ["a", "b"]


def test_a_pipe_that_has_a_name_is_read_too(batchq: Batchq, stage: Stage, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    feeder = threading.Thread(target=pipe.write_text, args=(f"{a_line('a')}\n",))
    feeder.start()
    assert batchq("submit", "--from-file", str(pipe)).code == 0
    feeder.join(SOON_S)
    assert names(stage) == ["a"]


def test_a_line_of_a_hundred_thousand_characters(batchq: Batchq, stage: Stage, file: Path) -> None:
    long = "x" * 100_000
    lines = write(file, a_line("a"), json.dumps({"name": "long", "command": ["echo", long]}))
    assert batchq("submit", "--from-file", lines).code == 0
    assert stored(stage, "long").spec.tasks[0].template.command == ("echo", long)


def test_dry_run_submits_nothing(batchq: Batchq, stage: Stage, file: Path) -> None:
    lines = write(file, a_line("a"), a_line("b", after="a"))
    done = batchq("submit", "--from-file", lines, "--dry-run", "-o", "name")
    assert done.lines == ["podgroup/default/a", "podgroup/default/b"]
    assert "2 pod groups submitted (dry run)" in done.err
    assert names(stage) == []


BAD_LINES = [
    ("{oops}", "expected one JSON object, found no JSON: "),
    ('["true"]', "expected one JSON object, found a list of 1 item"),
    ("3", "expected one JSON object, found 3"),
    ('{"command": ["a"]', "expected one JSON object, found no JSON: "),
    ("[" * 100_000, "expected one JSON object, found "),
    (a_line("x", cpus="lots"), "cpus: expected a quantity such as 500m, 2 or 64Gi, found 'lots'"),
    (a_line("x", cpus=True), "cpus: expected a quantity such as 500m, 2 or 64Gi, found true"),
    (a_line("x", quue="a"), "quue: there is no such field; did you mean 'queue'?"),
    (a_line("x", replicas="2"), "replicas: expected a whole number, found '2'"),
    (a_line("x", retries=1.5), "retries: expected a whole number, found 1.5"),
    (a_line("x", suspend="yes"), "suspend: expected true or false, found 'yes'"),
    (a_line("x", env=["A=1"]), "env: expected a mapping, found a list of 1 item"),
    (a_line("x", env={"A": None}), "env: 'A': expected text, found nothing"),
    (a_line("x", walltime="soon"), "walltime: expected a duration such as 90s, 2h or 1d"),
    (a_line("x", resources={"gpu": "-1"}), "resources: 'gpu': expected a quantity of zero or more"),
    (a_line("x", command="true"), "command: expected a list of words, found 'true'"),
    (a_line("x", command=[["a"]]), "command: expected text, found a list of 1 item"),
    (a_line("x", array="5-9"), "array: expected a range that starts at 0"),
    (a_line("x", spec={}), "spec: this is a field of a manifest, which also needs apiVersion"),
    (a_line("X"), "PodGroup default/X: metadata.name: expected at most 63 lower-case letters"),
    (a_line("x", function="a:b"), "command and function are both given, but a pod runs one"),
    ('{"name": "x"}', "there is no command to run"),
    (a_line("x", queue="nope"), "PodGroup default/x: spec.queue: there is no queue 'nope'"),
    (a_line("x", priority_class="p"), "spec.priorityClassName: there is no priority class 'p'"),
    ('{"apiVersion": "batchq/v1", "kind": "Queue", "metadata": {"name": "q"}}',
     "kind: expected PodGroup, found Queue"),
    ('{"kind": "PodGroup", "metadata": {"name": "q"}}', "apiVersion: expected batchq/v1"),
]  # fmt: skip


@pytest.mark.parametrize(("bad", "sentence"), BAD_LINES)
def test_nothing_is_submitted_if_a_line_is_wrong(
    batchq: Batchq, stage: Stage, file: Path, bad: str, sentence: str
) -> None:
    lines = write(file, a_line("a"), "", bad, a_line("b"))
    done = batchq("submit", "--from-file", lines)
    assert done.code in (1, 6)
    assert done.out == ""
    error, hint = done.err.splitlines()
    assert error.startswith(f"error: {lines}, line 3: ")
    assert sentence in error
    assert "nothing was submitted" in hint
    assert names(stage) == []


def test_bytes_that_are_no_text_are_refused_with_their_line(
    batchq: Batchq, stage: Stage, file: Path
) -> None:
    file.write_bytes(f"{a_line('a')}\n".encode() + b'{"name": "\xff"}\n')
    done = batchq("submit", "--from-file", str(file))
    assert done.code == 1
    assert f"{file}, line 2: expected text in UTF-8, found other bytes" in done.err


def test_a_line_that_is_too_long_is_passed_over_to_its_end(
    batchq: Batchq, stage: Stage, file: Path
) -> None:
    lines = write(file, "x" * 9_000_000, a_line("b"))
    done = batchq("submit", "--from-file", lines, "--keep-going")
    assert f"{lines}, line 1: expected at most 4194304 bytes, found more" in done.err
    assert names(stage) == ["b"]


def test_keep_going_submits_valid_lines_and_reports_the_others(
    batchq: Batchq, stage: Stage, file: Path
) -> None:
    stage.client.submit(command=["true"], name="taken")
    lines = [a_line("a"), "{oops}", a_line("taken"), a_line("q", queue="nope"), a_line("b"), "[]"]
    done = batchq("submit", "--from-file", write(file, *lines), "--keep-going", "-o", "json")
    assert done.code == 1
    output = [json.loads(line) for line in done.lines]
    assert [(one["line"], one["result"]) for one in output] == [
        (1, "submitted"),
        (2, "refused"),
        (3, "refused"),
        (4, "refused"),
        (5, "submitted"),
        (6, "refused"),
    ]
    assert [one["error"]["code"] for one in output if "error" in one] == [
        "InvalidInput",
        "Conflict",
        "NotFound",
        "InvalidInput",
    ]
    assert names(stage) == ["taken", "a", "b"]


def test_a_name_that_is_taken_stops_what_comes_after_its_batch(
    batchq: Batchq, stage: Stage, file: Path
) -> None:
    stage.client.submit(command=["true"], name="n-600")
    done = batchq("submit", "--from-file", write(file, *(a_line(f"n-{n}") for n in range(2000))))
    assert done.code == 8
    assert f"{file}, line 601: PodGroup default/n-600 exists already and is Pending" in done.err
    assert "--keep-going continues" in done.err
    assert done.out.startswith("999 pod groups submitted, 1 refused in ")
    assert len(names(stage)) == 1000


def test_only_the_first_of_many_wrong_lines_are_printed(
    batchq: Batchq, stage: Stage, file: Path
) -> None:
    done = batchq("submit", "--from-file", write(file, *["{"] * 500))
    lines = done.err.splitlines()
    assert len(lines) == 20 + 3
    assert lines[20:22] == [
        "and more; -o json prints all of them",
        f"error: {file}: 500 lines are wrong",
    ]


@pytest.mark.parametrize("text", ["", "\n \n", "\ufeff"])
def test_a_file_with_nothing_in_it_is_refused(
    batchq: Batchq, stage: Stage, file: Path, text: str
) -> None:
    file.write_text(text)
    for words in ((), ("--keep-going",)):
        done = batchq("submit", "--from-file", str(file), *words)
        assert done.code == 1
        assert "expected at least one line with a JSON object, found none" in done.err


def test_a_missing_file_is_refused(batchq: Batchq, stage: Stage) -> None:
    done = batchq("submit", "--from-file", "/nowhere/jobs")
    assert (done.code, done.err) == (
        1,
        "error: /nowhere/jobs: the file cannot be read: No such file or directory\n",
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--name", "x"), "--name applies to one group"),
        (("-f", "x"), "-f applies to one group"),
        (("--progress",), "--progress applies to one group"),
        (("--exit-code",), "--exit-code applies to one group"),
        (("-o", "yaml"), "-o yaml applies to one group"),
        (("--function", "a:b", "--", "true"), "a command and --function are both given"),
    ],
)
def test_options_that_do_not_go_with_many(
    batchq: Batchq, file: Path, words: tuple[str, ...], sentence: str
) -> None:
    done = batchq("submit", "--from-file", write(file, a_line("a")), *words)
    assert done.code == 2
    assert sentence in done.err


@pytest.mark.parametrize("option", ["--keep-going", "--skip-existing"])
def test_options_that_only_go_with_many(batchq: Batchq, option: str) -> None:
    done = batchq("submit", option, "--", "true")
    assert (done.code, done.err.splitlines()[0]) == (2, f"error: {option} applies to many groups")


def test_run_options_are_refused_for_a_manifest(batchq: Batchq, stage: Stage, file: Path) -> None:
    line = '{"apiVersion": "batchq/v1", "kind": "PodGroup", "metadata": {"name": "m"}}'
    done = batchq("submit", "--from-file", write(file, line), "--cpus", "2")
    assert f"{file}, line 1: --cpus applies to commands, not to a manifest" in done.err


def test_the_same_file_again_with_skip_existing_adds_nothing(
    batchq: Batchq, stage: Stage, file: Path
) -> None:
    batchq("submit", "--from-file", write(file, a_line("a"), a_line("b")))
    lines = write(file, a_line("a"), a_line("b"), a_line("c"))
    done = batchq("submit", "--from-file", lines, "--skip-existing")
    assert done.code == 0
    assert done.out.startswith("1 pod group submitted, 2 unchanged in ")
    assert names(stage) == ["a", "b", "c"]


def test_another_group_of_that_name_is_no_group_to_skip(
    batchq: Batchq, stage: Stage, file: Path
) -> None:
    batchq("submit", "--from-file", write(file, a_line("a")))
    done = batchq("submit", "--from-file", write(file, a_line("a", cpus=2)), "--skip-existing")
    assert done.code == 8
    assert "exists already, is Pending, and has another spec.tasks" in done.err


MANY = 8_000


@pytest.fixture
def many(file: Path) -> str:
    return write(file, *(a_line(f"n-{number}") for number in range(MANY)))


class Barrier(ControlledProxy):
    """A proxy that holds all data from the third batch on, until `mend`."""

    def __init__(self, server: Path) -> None:
        super().__init__(server)
        self.has_held = False
        self._client = redis.Redis(unix_socket_path=str(server))

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._client.close()

    def _let_through(self, is_request: bool) -> bool:
        # Of 500 groups each.
        if is_request and not self.has_held and self._groups() >= 1_000:
            self.has_held = True
            self.block()
        return super()._let_through(is_request)

    def _groups(self) -> int:
        return int(self._client.hlen(keys.objects("PodGroup")))


def interrupted(
    server: Server, many: str, by: signal.Signals, out: Path
) -> tuple[int, list[str], str]:
    """Return the exit code, the reported groups, and stderr."""
    with Barrier(server.socket) as road:
        return _interrupted(road, many, by, out)


def _interrupted(
    road: Barrier, many: str, by: signal.Signals, out: Path
) -> tuple[int, list[str], str]:
    words = ["--redis-url", road.url, "submit", "--from-file", many, "-o", "name"]
    with out.open("w") as output:
        process = fork_server.Process(
            [sys.executable, "-m", "batchq.cli", *words],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
        )
        pause = threading.Event()
        while not (out.stat().st_size and road.has_held) and process.poll() is None:
            pause.wait(0.005)
        process.send_signal(by)
        if by == signal.SIGKILL:
            # What is held must not arrive later.
            process.wait()
            road.cut()
        else:
            road.mend()
        _, err = process.communicate(timeout=SOON_S)
    return process.returncode, out.read_text().splitlines(), err


def test_ctrl_c_finishes_the_current_batch_and_reports_the_next_line(
    server: Server, stage: Stage, many: str, batchq: Batchq, tmp_path: Path
) -> None:
    code, output, err = interrupted(server, many, signal.SIGINT, tmp_path / "out")
    there = names(stage)
    assert code == 130
    assert output == [f"podgroup/default/{name}" for name in there]
    assert 0 < len(there) < MANY
    assert f"interrupted after {len(there)} pod groups submitted" in err
    assert f"continue with line {len(there) + 1}" in err
    assert_the_rest_is_added(batchq, stage, many, len(there))


def test_killed_in_the_middle_it_is_run_again(
    server: Server, stage: Stage, many: str, batchq: Batchq, tmp_path: Path
) -> None:
    code, output, _ = interrupted(server, many, signal.SIGKILL, tmp_path / "out")
    assert code == -signal.SIGKILL
    there = names(stage)
    assert len(output) <= len(there) < MANY
    assert_the_rest_is_added(batchq, stage, many, len(there))


def assert_the_rest_is_added(batchq: Batchq, stage: Stage, many: str, there: int) -> None:
    done = batchq("submit", "--from-file", many, "--skip-existing")
    assert done.out.startswith(f"{MANY - there} pod groups submitted, {there} unchanged in ")
    assert names(stage) == [f"n-{number}" for number in range(MANY)]


@pytest.fixture
def road(server: Server) -> Iterator[ControlledProxy]:
    with ControlledProxy(server.socket) as made:
        yield made


def test_a_server_that_goes_away_in_the_middle_is_waited_for(
    server: Server, stage: Stage, many: str, road: ControlledProxy
) -> None:
    with ThreadPoolExecutor(max_workers=1) as threads:
        done: Future[Ran] = threads.submit(run, "submit", "--from-file", many, url=road.url)
        wait_for_groups(stage)
        road.cut()
        threading.Event().wait(1.0)
        road.mend()
        ended = done.result(SOON_S * 2)
    assert ended.code == 0
    assert ended.out.startswith(f"{MANY} pod groups submitted in ")
    assert names(stage) == [f"n-{number}" for number in range(MANY)]


def wait_for_groups(stage: Stage) -> None:
    pause = threading.Event()
    for _ in range(SOON_S * 100):
        if stage.store.get("PodGroup", "default/n-0") is not None:
            return
        pause.wait(0.01)
    raise AssertionError("nothing was submitted")


def test_wait_ends_when_all_have_ended(batchq: Batchq, stage: Stage, file: Path) -> None:
    lines = write(file, a_line("a"), a_line("b"))
    with ThreadPoolExecutor(max_workers=1) as threads:
        done = threads.submit(batchq, "submit", "--from-file", lines, "--wait")
        pause = threading.Event()
        while len(stage.store.list("PodGroup")) < 2:
            pause.wait(0.01)
        stage.run("a")
        stage.run("b", exit_code=3)
        ended = done.result(SOON_S)
    assert ended.code == 10
    assert "ended: 1 Completed, 1 Failed" in ended.err


def test_wait_takes_no_longer_than_it_may(batchq: Batchq, stage: Stage, file: Path) -> None:
    done = batchq("submit", "--from-file", write(file, a_line("a")), "--wait", "--timeout", "1s")
    assert done.code == 124
    assert "1 of 1 pod group have not ended after 1s" in done.err


def test_groups_beyond_a_namespaces_limit_are_refused_line_by_line_and_sent_later(
    batchq: Batchq, stage: Stage, file: Path
) -> None:
    stage.allow_groups(3)
    written = write(file, *(a_line(f"j-{number}") for number in range(5)))
    done = batchq("submit", "--from-file", written)
    assert done.code == 12
    assert done.out.startswith("3 pod groups submitted, 2 refused in ")
    assert names(stage) == ["j-0", "j-1", "j-2"]
    assert done.err.splitlines() == [
        (
            f"error: {file}, line 4: PodGroup default/j-3: namespace default allows at most 3"
            " unfinished pod groups, and has 3"
        ),
        (
            f"error: {file}, line 5: PodGroup default/j-4: namespace default allows at most 3"
            " unfinished pod groups, and has 3"
        ),
        (f"error: {file}: 2 lines are refused"),
        (
            "hint: wait for some to finish, cancel some, or have an operator raise podgroups in a"
            " ResourceQuota of the namespace (`batchq quota --help`); its batch was submitted,"
            " later ones were not; --keep-going continues"
        ),
    ]
    stage.allow_groups(5)
    again = batchq("submit", "--from-file", written, "--skip-existing")
    assert again.code == 0
    assert again.out.startswith("2 pod groups submitted, 3 unchanged in ")


def test_a_refusal_of_existing_names_points_to_skip_existing(
    batchq: Batchq, stage: Stage, file: Path
) -> None:
    batchq("submit", "--from-file", write(file, a_line("a"), a_line("b")))
    skip = "--skip-existing accepts lines whose group exists already and is equal"

    def hint(*options: str) -> str:
        done = batchq("submit", "--from-file", str(file), *options)
        assert done.code == 8
        return done.err.splitlines()[-1]

    go_on = "--keep-going continues"
    assert hint() == f"hint: nothing was submitted; {skip}; {go_on}"
    assert hint("--dry-run") == f"hint: later batches were not checked; {skip}; {go_on}"
    assert hint("--keep-going") == f"hint: {skip}"
    write(file, a_line("a"), a_line("c"))
    assert "; its batch was submitted, later ones were not; --skip" in hint()
    assert names(stage) == ["a", "b", "c"]
