"""Real agents pull images before pods claim their places, by a stand-in and by a real podman."""

from __future__ import annotations

import errno
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

import psutil
import pytest

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Container, Pod
from batchq.store.redis import RedisStore
from batchq.worker.agent import image_pulls
from batchq.worker.agent.image_pulls import ImagePulls
from tests.daemon.waiting import until
from tests.effort import grid
from tests.harness.fake_podman import IMAGE, FakePodman
from tests.worker import escape_artist
from tests.worker.stage import WITHIN_S, Stage, is_alive
from tests.worker.test_escapes import start_agent

PULLING = f"pulling image {IMAGE} on node n1"


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePodman:
    made = FakePodman(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
    return made


def bind(stage: Stage, *command: str, replicas: int = 1) -> list[Pod]:
    return stage.bind(*command, replicas=replicas, container=Container(image=IMAGE))


def await_message(stage: Stage, pod: Pod, says: Callable[[str], bool]) -> str:
    until(lambda: says(stage.now(pod).status.message), within_s=WITHIN_S)
    return stage.now(pod).status.message


def test_a_pod_starts_when_its_image_was_pulled(stage: Stage, podman: FakePodman) -> None:
    stage.start_agent()
    [pod] = bind(stage, "sh", "-c", "echo it runs")
    await_message(stage, pod, lambda text: text == PULLING)
    assert stage.now(pod).status.phase == PodPhase.BOUND
    podman.answer("ok")
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    assert stage.output(pod) == "it runs\n"
    assert stage.now(pod).status.message == ""
    reasons = [event.reason for event in stage.store.events()]
    assert [one for one in reasons if one.startswith("Pull")] == ["Pulling", "Pulled"]


def test_two_pods_of_an_image_pull_it_once_and_a_later_one_not_again(
    stage: Stage, podman: FakePodman
) -> None:
    stage.start_agent()
    first = bind(stage, "true", replicas=2)
    for pod in first:
        await_message(stage, pod, lambda text: text == PULLING)
    podman.answer("ok")
    for pod in (*first, *bind(stage, "true")):
        assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    assert len(podman.pulls()) == 1


def test_other_pods_run_while_an_image_is_pulled(stage: Stage, podman: FakePodman) -> None:
    stage.start_agent(lease_ms=10_000)
    [long] = stage.bind("sleep", "60")
    stage.started(long)
    [pod] = bind(stage, "true")
    until(lambda: len(podman.pulls()) == 1, within_s=WITHIN_S)
    [other] = stage.bind("sh", "-c", "echo me too")
    assert stage.ended(other).status.phase == PodPhase.SUCCEEDED
    stage.await_renewals(long, 3)
    assert stage.now(long).status.phase == PodPhase.RUNNING
    assert stage.now(pod).status.phase == PodPhase.BOUND


def test_a_cancel_ends_the_pull_and_the_pull_of_another_pod_goes_on(
    stage: Stage, podman: FakePodman
) -> None:
    stage.start_agent()
    first, second = bind(stage, "true", replicas=2)
    for pod in (first, second):
        await_message(stage, pod, lambda text: text == PULLING)
    [pull] = podman.pulls()
    stage.stop(first, "Cancelled")
    assert stage.ended(first).status.reason == "Cancelled"
    assert is_alive(pull)
    stage.stop(second, "Cancelled")
    assert stage.ended(second).status.reason == "Cancelled"
    until(lambda: not is_alive(pull), within_s=WITHIN_S)


def test_an_image_that_does_not_exist_fails_its_pod_at_once(
    stage: Stage, podman: FakePodman
) -> None:
    podman.answer("Trying to pull it...\nError: reading manifest 1: manifest unknown\nfoo")
    stage.start_agent()
    [pod] = bind(stage, "true")
    status = stage.ended(pod).status
    assert (status.phase, status.exit_code, status.started_at) == (PodPhase.FAILED, 125, None)
    assert status.message == (
        f"image {IMAGE} could not be pulled on node n1: Error: reading manifest 1: manifest unknown"
    )
    assert len(podman.pulls()) == 1


def test_a_pull_that_fails_says_so_and_is_tried_again(stage: Stage, podman: FakePodman) -> None:
    podman.answer("Error: i/o timeout")
    stage.start_agent()
    [pod] = bind(stage, "true")
    assert await_message(stage, pod, lambda text: text not in ("", PULLING)) == (
        f"image {IMAGE} could not be pulled on node n1, which is tried again (1 of 3 times):"
        " Error: i/o timeout"
    )
    podman.answer("ok")
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    assert len(podman.pulls()) == 2


def test_pods_that_differ_in_their_own_variables_share_a_pull(
    stage: Stage, podman: FakePodman
) -> None:
    stage.start_agent()
    container = Container(image=IMAGE)
    pods = [
        pod
        for rate in ("0.1", "0.01")
        for pod in stage.bind("true", container=container, env={"LR": rate})
    ]
    for pod in pods:
        await_message(stage, pod, lambda text: text == PULLING)
    podman.answer("ok")
    for pod in pods:
        assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    assert len(podman.pulls()) == 1


def test_a_pull_has_no_variables_of_its_pod_but_those_of_registries(
    stage: Stage, podman: FakePodman
) -> None:
    stage.start_agent()
    env = {"LD_AUDIT": "/tmp/evil.so", "PATH": "/tmp/evil", "HTTPS_PROXY": "http://proxy.example"}
    stage.bind("true", container=Container(image=IMAGE), env=env)
    until(lambda: len(podman.pulls()) == 1, within_s=WITHIN_S)
    seen = Path(f"/proc/{podman.pulls()[0]}/environ").read_bytes().split(b"\0")
    assert b"HTTPS_PROXY=http://proxy.example" in seen
    assert not any(b"evil" in one for one in seen)


def test_a_pull_that_writes_without_end_is_killed(stage: Stage, podman: FakePodman) -> None:
    program = podman.folder / "podman"
    program.write_text(
        program.read_text().replace("    while [", "    exec cat /dev/zero\n    while [", 1)
    )
    stage.start_agent()
    [pod] = bind(stage, "true")
    await_message(stage, pod, lambda text: "1 of 3" in text)
    assert not is_alive(podman.pulls()[0])


@pytest.mark.parametrize(
    "trouble",
    [
        "Error: pinging registry.example/unauthorized/tool:1: i/o timeout",
        "Error: writing blob: open /var/tmp/blob: no such file or directory",
    ],
)
def test_a_passing_trouble_with_words_of_a_final_one_is_tried_again(
    stage: Stage, podman: FakePodman, trouble: str
) -> None:
    podman.answer(trouble)
    stage.start_agent()
    [pod] = bind(stage, "true")
    await_message(stage, pod, lambda text: "1 of 3" in text)
    assert stage.now(pod).status.phase == PodPhase.BOUND


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_an_agent_ends_its_pulls(
    stage: Stage, podman: FakePodman, sent: signal.Signals
) -> None:
    agent = stage.start_agent()
    bind(stage, "true")
    until(lambda: len(podman.pulls()) == 1, within_s=WITHIN_S)
    agent.send_signal(sent)
    agent.wait(WITHIN_S)
    until(lambda: not is_alive(podman.pulls()[0]), within_s=WITHIN_S)


def test_the_next_agent_pulls_what_a_killed_one_has_not(stage: Stage, podman: FakePodman) -> None:
    agent = stage.start_agent()
    [pod] = bind(stage, "true")
    until(lambda: len(podman.pulls()) == 1, within_s=WITHIN_S)
    agent.kill()
    agent.wait(WITHIN_S)
    stage.start_agent()
    until(lambda: len(podman.pulls()) == 2, within_s=WITHIN_S)
    podman.answer("ok")
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED


def left_behind(file: Path) -> list[int]:
    """Return the processes whose command line names a file."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if str(file) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def escape(podman: FakePodman, kind: str) -> Path:
    """Have each pull start a process that tries to outlive it, and that bears no variable of ours.
    Return a file that its command line names, and to which it writes.
    """
    file = podman.folder / f"lives-{kind}"
    artist = (*("env", "-i", sys.executable, "-I", "-S"), escape_artist.__file__, kind, str(file))
    podman.before_the_answer(shlex.join(artist))
    return file


def daemonise(podman: FakePodman) -> Path:
    """Have each pull leave a process that would live on for an hour. Return a file that its command
    line names.
    """
    file = podman.folder / "daemon"
    program = ("env", "-i", "setsid", "--fork", "/bin/sh", "-c", "sleep 3600; :", str(file))
    podman.before_the_answer(shlex.join(program))
    return file


@pytest.mark.parametrize(
    ("kind", "containment"),
    [
        ("double-fork", "cgroup"),
        ("double-fork", "subreaper"),
        ("reaper", "cgroup"),
        ("reaper", "pid-namespace"),
        ("forks", "subreaper"),
    ],
)
def test_no_process_that_a_pull_leaves_behind_outlives_it(
    stage: Stage, podman: FakePodman, containment: str, kind: str
) -> None:
    file = escape(podman, kind)
    start_agent(stage, containment)
    [pod] = bind(stage, "true")
    until(lambda: file.exists() and file.stat().st_size > 0, within_s=WITHIN_S)
    podman.answer("ok")
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    assert left_behind(file) == []


def test_no_process_of_a_cancelled_pull_lives_on(stage: Stage, podman: FakePodman) -> None:
    file = daemonise(podman)
    stage.start_agent()
    [pod] = bind(stage, "true")
    until(lambda: bool(left_behind(file)), within_s=WITHIN_S)
    stage.stop(pod, "Cancelled")
    assert stage.ended(pod).status.reason == "Cancelled"
    until(lambda: left_behind(file) == [], within_s=WITHIN_S)
    assert not is_alive(podman.pulls()[0])


@pytest.mark.parametrize(
    ("sent", "containment"), grid([signal.SIGKILL, signal.SIGTERM], ["subreaper", "cgroup"])
)
def test_no_process_of_a_pull_outlives_its_agent(
    stage: Stage, podman: FakePodman, containment: str, sent: signal.Signals
) -> None:
    file = daemonise(podman)
    agent = start_agent(stage, containment)
    bind(stage, "true")
    until(lambda: bool(left_behind(file)), within_s=WITHIN_S)
    agent.send_signal(sent)
    agent.wait(WITHIN_S)
    until(lambda: left_behind(file) == [], within_s=WITHIN_S)
    assert not is_alive(podman.pulls()[0])


def test_a_pull_that_kills_its_keeper_leaves_nothing_behind(
    stage: Stage, podman: FakePodman
) -> None:
    file = daemonise(podman)
    stage.start_agent()
    [pod] = bind(stage, "true")
    until(lambda: bool(left_behind(file)), within_s=WITHIN_S)
    [pull], before = podman.pulls(), left_behind(file)
    os.kill(psutil.Process(pull).ppid(), signal.SIGKILL)
    await_message(stage, pod, lambda text: "killed by signal 9" in text)
    assert [pid for pid in (pull, *before) if is_alive(pid)] == []
    podman.answer("ok")
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED


def test_a_keeper_that_is_stopped_goes_on(stage: Stage, podman: FakePodman) -> None:
    stage.start_agent()
    [pod] = bind(stage, "true")
    until(lambda: len(podman.pulls()) == 1, within_s=WITHIN_S)
    [pull] = podman.pulls()
    keeper = psutil.Process(pull).parent()
    assert keeper is not None
    keeper.suspend()
    stage.stop(pod, "Cancelled")
    assert stage.ended(pod).status.reason == "Cancelled"
    until(lambda: not is_alive(pull), within_s=WITHIN_S)


def test_a_keeper_that_is_stopped_again_and_again_is_killed_with_its_pull(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_pulls, "_KILLED_WITHIN_MS", 100)
    pulls = ImagePulls(cast("RedisStore", None), select.poll(), run_dir=tmp_path, secrets=())
    pull = pulls._started(("/bin/sleep", "600"), {}, None)
    keeper = psutil.Process(pull.pid)
    until(lambda: keeper.children() != [], within_s=WITHIN_S)
    [runtime] = keeper.children()
    keeper.suspend()

    def has_ended() -> bool:
        pull.kill()
        return keeper.status() == psutil.STATUS_ZOMBIE

    until(has_ended, within_s=WITHIN_S)
    pull.close()
    until(lambda: not is_alive(runtime.pid), within_s=WITHIN_S)


def test_a_pull_that_cannot_be_watched_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one would run beside it."""
    me, open_pid, before = os.getpid(), os.pidfd_open, psutil.Process().children()

    def full(pid: int, flags: int = 0) -> int:
        if os.getpid() == me:
            raise OSError(errno.EMFILE, "Too many open files")
        return open_pid(pid, flags)

    monkeypatch.setattr(os, "pidfd_open", full)
    pulls = ImagePulls(cast("RedisStore", None), select.poll(), run_dir=tmp_path, secrets=())
    with pytest.raises(OSError, match="Too many open files"):
        pulls._started(("/bin/sleep", "600"), {}, None)
    assert [one for one in psutil.Process().children() if one not in before] == []


#: It writes where the image goes and waits, unless the image is the second one.
APPTAINER = """#!/bin/sh
folder=$(dirname "$0")
case "$1" in
pull)
    echo "$2 $$" >> "$folder/log"
    echo image > "$2"
    [ "$3" = docker://second ] || exec sleep 60
    ;;
exec)
    while [ "$1" != docker://second ]; do shift; done
    shift
    exec "$@"
    ;;
esac
"""


@pytest.fixture
def apptainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a stand-in for apptainer; that for temporary files is beside it."""
    folder, temporary = tmp_path / "bin", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    (folder / "apptainer").write_text(APPTAINER)
    (folder / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(temporary))
    return folder


def temporary_files(apptainer: Path) -> list[Path]:
    return list(apptainer.with_name("temporary").glob("*/*"))


def test_apptainer_leaves_no_file_of_a_pull_that_has_succeeded_or_was_cancelled(
    stage: Stage, apptainer: Path
) -> None:
    stage.start_agent()
    [first] = stage.bind("true", container=Container(image="docker://first"))
    log = apptainer / "log"
    until(lambda: log.exists() and temporary_files(apptainer) != [], within_s=WITHIN_S)
    stage.stop(first, "Cancelled")
    assert stage.ended(first).status.reason == "Cancelled"
    until(lambda: temporary_files(apptainer) == [], within_s=WITHIN_S)
    [second] = stage.bind("echo", "it runs", container=Container(image="docker://second"))
    assert stage.ended(second).status.phase == PodPhase.SUCCEEDED
    assert stage.output(second) == "it runs\n"
    assert temporary_files(apptainer) == []
    assert len(log.read_text().splitlines()) == 2


def test_apptainer_leaves_no_file_of_a_pull_whose_agent_has_ended(
    stage: Stage, apptainer: Path
) -> None:
    agent = stage.start_agent()
    stage.bind("true", container=Container(image="docker://first"))
    until(lambda: temporary_files(apptainer) != [], within_s=WITHIN_S)
    agent.terminate()
    agent.wait(WITHIN_S)
    assert temporary_files(apptainer) == []


PODMAN = shutil.which("podman")
needs_podman = pytest.mark.skipif(PODMAN is None, reason="this machine has no podman")


def run_podman(folder: Path, *words: str) -> str:
    """Run podman on a store of its own in a folder."""
    environment = {**os.environ, "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf")}
    done = subprocess.run(
        ["podman", *words], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """A folder with a store of podman."""
    folder = tmp_path / "store"
    folder.mkdir()
    text = f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/g"\nrunroot = "{folder}/r"\n'
    (folder / "storage.conf").write_text(text)
    return folder


@needs_podman
def test_a_real_podman_pulls_the_image_of_a_pod(
    stage: Stage, real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hello").write_text("hello")
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        archive.add(tmp_path / "hello", "hello")
    made = run_podman(real, "import", "--quiet", str(tmp_path / "root.tar"), "localhost/tiny:1")
    image = f"oci-archive:{tmp_path}/tiny.tar"
    run_podman(real, "push", "--quiet", "localhost/tiny:1", image)
    run_podman(real, "rmi", "--all", "--force")
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(real / "storage.conf"))
    stage.start_agent()
    [pod] = stage.bind("/hello", container=Container(image=image, runtime="podman"))
    # Whether the container runs depends on the rights of this machine.
    assert stage.ended(pod).status.started_at is not None
    assert run_podman(real, "images", "--quiet", "--no-trunc") == made


@needs_podman
def test_a_real_podman_says_that_an_image_has_no_valid_name(stage: Stage) -> None:
    stage.start_agent()
    [pod] = stage.bind("true", container=Container(image="registry.example/Tiny:1:2"))
    status = stage.ended(pod).status
    assert (status.phase, status.started_at) == (PodPhase.FAILED, None)
    assert status.message == (
        "image registry.example/Tiny:1:2 could not be pulled on node n1: Error: invalid reference"
        " format"
    )
