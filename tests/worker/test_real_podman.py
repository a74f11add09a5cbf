"""Pods in containers that a real podman starts, from an image made of programs of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Container, Pod
from tests.daemon.waiting import until
from tests.worker.stage import WITHIN_S, Stage

pytestmark = pytest.mark.e2e

IMAGE = "localhost/batchq-test:1"
#: The options of batchq that a machine which is a container itself may not support.
TRIAL = ("run", "--rm", "--network=host", "--ipc=host", "--cgroups=disabled", "--log-driver=none")

#: Runs podman with storage of its own.
PLAIN = 'exec {podman} --root {home}/root --runroot {home}/runroot --storage-driver vfs "$@"'
#: The same where crun refuses to start: it wants one version of cgroups only, even if it is to use
#: none, and a limit of open files that a container may not set. The pid stays that of podman.
MASKED = """export CONTAINERS_CONF={home}/containers.conf
exec unshare --mount sh -c '
    awk "\\$2 ~ /^.sys.fs.cgroup/ {{print \\$2}}" /proc/self/mounts | sort -r | xargs -r umount -l
    mount -t tmpfs none /sys/fs/cgroup
    exec {podman} --root {home}/root --runroot {home}/runroot --storage-driver vfs "$@"
' sh "$@"
"""


@pytest.fixture(scope="module")
def podman() -> Iterator[Path]:
    """A folder with the program podman, whose storage has the image."""
    program = shutil.which("podman")
    if program is None or not shutil.which("unshare"):
        pytest.skip("needs the programs podman and unshare (Debian: podman)")
    # Podman allows 50 characters for the path of a folder in it.
    home = Path(tempfile.mkdtemp(prefix="bq"))
    (home / "containers.conf").write_text(
        '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
    )
    (home / "bin").mkdir()
    wrapper = home / "bin" / "podman"
    troubles = []
    try:
        for text in (PLAIN, MASKED):
            wrapper.write_text("#!/bin/sh\n" + text.format(podman=program, home=home))
            wrapper.chmod(0o755)
            trouble = trouble_with(wrapper, home)
            if not trouble:
                yield wrapper.parent
                subprocess.run([wrapper, "rmi", "--all", "--force"], capture_output=True)
                return
            troubles.append(trouble)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    pytest.skip(f"podman starts no container here: {'; '.join(troubles)[-300:]}")


def trouble_with(podman: Path, home: Path) -> str:
    """Make the image and run a container of it; return what goes wrong, "" if nothing does."""
    tar = subprocess.run(["tar", "-C", root_folder(home), "-c", "."], capture_output=True)
    for words, given in ((("import", "-", IMAGE), tar.stdout), ((*TRIAL, IMAGE, "true"), b"")):
        done = subprocess.run([podman, *words], input=given, capture_output=True)
        if done.returncode != 0:
            return done.stderr.decode(errors="replace").strip()
    return ""


def root_folder(home: Path) -> Path:
    """Return a folder with a shell, a few programs and the libraries that these need."""
    root = home / "image"
    for name in ("sh", "cat", "sleep", "true", "touch"):
        program = shutil.which(name)
        assert program is not None
        listed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
        libraries = [word for word in listed.split() if word.startswith("/")]
        for source in (Path(program), *map(Path, libraries)):
            target = root / str(source).lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source.resolve(), target)
    if not (root / "bin").exists():
        (root / "bin").symlink_to("usr/bin")
    return root


@pytest.fixture
def agent(stage: Stage, podman: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PATH", f"{podman}:{os.environ['PATH']}")
    return stage.start_agent()


def bind(stage: Stage, line: str, *, mounts: tuple[str, ...] = (), **template: Any) -> Pod:
    container = Container(image=IMAGE, mounts=mounts)
    (pod,) = stage.bind("sh", "-c", line, container=container, **template)
    return pod


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.usefixtures("agent")
def test_a_pod_sees_its_image_its_mounts_and_its_variables(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("of the node ")
    line = (
        'cat /mnt/file; echo "$RATE $BATCHQ_NODE"; test ! -e /root/.bashrc || echo foreign; '
        "touch /mnt/no || touch written; exit 3"
    )
    pod = bind(
        stage, line, mounts=(f"{tmp_path}/data:/mnt:ro",), env={"RATE": "0.1"},
        working_dir=str(tmp_path),
    )  # fmt: skip
    status = stage.ended(pod).status
    assert (status.phase, status.exit_code, status.message) == (
        PodPhase.FAILED,
        3,
        "exited with 3",
    )
    assert stage.output(pod).startswith("of the node 0.1 n1\n")
    assert "foreign" not in stage.output(pod)
    assert (tmp_path / "written").exists()


@pytest.mark.usefixtures("agent")
def test_a_container_obeys_the_order_to_stop_and_ends_with_its_pod(stage: Stage) -> None:
    pod = bind(stage, 'trap "echo told; exit 7" TERM; echo up; while :; do sleep 0.1; done')
    stage.started(pod, saying="up")
    stage.stop(pod)
    status = stage.ended(pod).status
    assert (status.phase, status.exit_code) == (PodPhase.EVICTED, 7)
    assert stage.output(pod) == "up\ntold\n"


@pytest.mark.usefixtures("agent")
def test_a_deaf_container_is_killed_after_its_grace_period(stage: Stage) -> None:
    pod = bind(stage, 'trap "" TERM; echo up; while :; do sleep 0.1; done', termination_grace=100)
    stage.started(pod, saying="up")
    stage.stop(pod)
    assert stage.ended(pod).status.phase == PodPhase.EVICTED


def test_a_container_ends_with_a_killed_agent(stage: Stage, agent: Any, tmp_path: Path) -> None:
    beats = tmp_path / "beats"
    line = f"echo up; while :; do echo x >> {beats}; sleep 0.1; done"
    pod = bind(stage, line, mounts=(str(tmp_path),))
    stage.started(pod, saying="up")
    inside = processes_saying(str(beats))
    assert inside
    agent.kill()
    agent.wait(WITHIN_S)
    until(lambda: not any(is_alive(pid) for pid in inside), within_s=WITHIN_S)


@pytest.mark.usefixtures("agent")
def test_an_unknown_program_fails_and_its_output_says_so(stage: Stage) -> None:
    (pod,) = stage.bind("no-program", container=Container(image=IMAGE))
    status = stage.ended(pod).status
    assert (status.phase, status.exit_code) == (PodPhase.FAILED, 127)
    assert "no-program" in stage.output(pod, "stderr")


def processes_saying(word: str) -> list[int]:
    """Return the pids of the processes that have a word in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if word.encode() in words:
                found.append(int(folder.name))
    return found
