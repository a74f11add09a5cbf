"""Tests of pods from their bind to their end, on a real server with a real agent."""

from __future__ import annotations

import os
import sys

import msgspec
import pytest

from batchq.api.lifecycle import PodPhase
from batchq.api.node_features import Device, decode_devices
from batchq.api.node_report import PodAttempt
from batchq.api.objects import Node
from batchq.store.rq_link import RqLink
from batchq.worker.rq_delivery import enqueue, node_queue
from tests.worker.stage import Stage

pytestmark = pytest.mark.e2e


def test_a_pod_that_exits_with_0_has_succeeded_and_frees_its_node(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = stage.bind("true")
    ended = stage.ended(pod)
    assert (ended.status.phase, ended.status.exit_code) == (PodPhase.SUCCEEDED, 0)
    assert ended.status.started_at is not None
    assert ended.status.finished_at is not None
    assert stage.store.ledger().get("node:n1", {}) == {}


def test_a_pod_that_exits_otherwise_has_failed_with_its_exit_code(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = stage.bind("sh", "-c", "exit 3")
    status = stage.ended(pod).status
    assert (status.phase, status.exit_code, status.signal) == (PodPhase.FAILED, 3, None)
    assert (status.failures, status.message) == (1, "exited with 3")


def test_a_pod_that_is_killed_has_failed_with_the_signal(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = stage.bind("sh", "-c", "kill -SEGV $$")
    status = stage.ended(pod).status
    assert (status.phase, status.exit_code, status.signal) == (PodPhase.FAILED, 139, 11)
    assert status.message == "killed by signal 11 (SIGSEGV)"


def test_the_environment_of_a_pod_names_the_pod_and_not_the_server(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = stage.bind("env", env={"MINE": "1", "BATCHQ_NODE": "forged"})
    stage.ended(pod)
    environment = dict(line.split("=", 1) for line in stage.output(pod).splitlines())
    stop_file = environment.pop("BATCHQ_STOP_FILE")
    assert {name: value for name, value in environment.items() if name.startswith("BATCHQ")} == {
        "BATCHQ_GROUP": "g1",
        "BATCHQ_NAMESPACE": "default",
        "BATCHQ_POD": "g1-w-0",
        "BATCHQ_POD_UID": "g1-1-0",
        "BATCHQ_TASK": "w",
        "BATCHQ_INDEX": "0",
        "BATCHQ_REPLICAS": "1",
        "BATCHQ_ADMISSION": "1",
        "BATCHQ_ATTEMPT": "1",
        "BATCHQ_NODE": "n1",
        "BATCHQ_QUEUE": "default",
        "BATCHQ_STOP_REASON": "",
    }
    assert stop_file == str(stage.home / "run" / "n1" / "g1-1-0-1.stop")
    assert environment["MINE"] == "1"
    assert stage.store.url not in stage.output(pod)


def test_output_goes_to_the_store_and_to_a_local_file(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = stage.bind("sh", "-c", "echo hello; echo oh dear >&2")
    stage.ended(pod)
    assert stage.output(pod) == "hello\n"
    assert stage.output(pod, "stderr") == "oh dear\n"
    kept = (stage.home / "logs" / "g1-1-0-1.log").read_text()
    assert sorted(kept.splitlines()) == ["hello", "oh dear"]


def test_a_pod_starts_in_its_working_directory(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = stage.bind("pwd", working_dir="/usr")
    stage.ended(pod)
    assert stage.output(pod) == "/usr\n"


@pytest.mark.parametrize(
    ("command", "working_dir", "exit_code", "message"),
    [
        (("no-such-program",), "", 127, "command not found: no-such-program"),
        ((), "", 127, "the template names no command"),
        (("/etc/passwd",), "", 126, "cannot run /etc/passwd: Permission denied"),
        (("true",), "/no/such", 126, "workingDir /no/such is not a directory on this node"),
        (("true",), "/dev/null", 126, "workingDir /dev/null is not a directory on this node"),
        (("true",), "/" + "x" * 5000, 126, f"workingDir /{'x' * 1988}"),
        # Longer than a node report may be: such a report was refused and the resources never freed.
        (("x" * 100_000,), "", 126, f"cannot run {'x' * 1989}"),
    ],
)
def test_a_command_that_cannot_start_fails_its_pod_with_a_sentence(
    stage: Stage, command: tuple[str, ...], working_dir: str, exit_code: int, message: str
) -> None:
    stage.start_agent()
    (pod,) = stage.bind(*command, working_dir=working_dir)
    status = stage.ended(pod).status
    assert (status.phase, status.exit_code) == (PodPhase.FAILED, exit_code)
    assert status.message == message


def test_sixteen_pods_run_at_once_in_one_agent(stage: Stage) -> None:
    stage.start_agent()
    meeting = stage.home / "meeting"
    meeting.mkdir()
    # Each pod waits for all others, so they end only if they run at the same time.
    program = (
        "import os, pathlib, sys, threading\n"
        "place = pathlib.Path(sys.argv[1])\n"
        "(place / os.environ['BATCHQ_INDEX']).touch()\n"
        "while len(list(place.iterdir())) < 16: threading.Event().wait(0.02)\n"
    )
    pods = stage.bind(sys.executable, "-c", program, str(meeting), replicas=16)
    assert {stage.ended(pod).status.phase for pod in pods} == {PodPhase.SUCCEEDED}
    assert stage.store.ledger().get("node:n1", {}) == {}


def test_a_flood_of_output_neither_stalls_the_pod_nor_exceeds_its_limits(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = stage.bind("sh", "-c", "yes 0123456789 | head -c 60000000; echo the end")
    assert stage.ended(pod).status.phase == PodPhase.SUCCEEDED
    assert stage.output(pod).endswith("the end\n")
    assert len(stage.output(pod)) <= 2 << 20
    kept = [path.stat().st_size for path in (stage.home / "logs").iterdir()]
    assert 8 << 20 <= sum(kept) <= 16 << 20


def test_a_full_disk_loses_the_local_log_and_not_the_pod(stage: Stage) -> None:
    stage.start_agent()
    (stage.home / "logs").mkdir(exist_ok=True)
    (pod,) = stage.bound("sh", "-c", "echo one; echo two")
    (stage.home / "logs" / "g1-1-0-1.log").symlink_to("/dev/full")
    stage.deliver(pod)
    status = stage.ended(pod).status
    assert status.phase == PodPhase.SUCCEEDED
    assert "could not be kept" in status.message
    assert "No space left on device" in status.message
    assert stage.output(pod) == "one\ntwo\n"
    assert stage.output(pod, "stderr").count("No space left on device") == 1


def test_pods_get_gpus_by_index(stage: Stage) -> None:
    stage.start_agent(resources={"cpu": 8000, "memory": 1 << 34, "gpu": 2000})
    pods = [
        stage.bind("sh", "-c", "echo gpus: $CUDA_VISIBLE_DEVICES; sleep 60", requests={"gpu": 1})[0]
        for _ in range(2)
    ]
    for pod in pods:
        stage.started(pod, saying="gpus")
    assert sorted(stage.output(pod) for pod in pods) == ["gpus: 0\n", "gpus: 1\n"]


def test_pods_get_the_gpus_that_the_tools_of_the_machine_list(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = stage.home / "gpus.json"
    ids = [f"GPU-{os.getpid()}-{name}" for name in "ab"]
    devices = [Device(index=at, id=one, model="h100") for at, one in enumerate(ids)]
    file.write_bytes(msgspec.json.encode(devices))
    monkeypatch.setenv("BATCHQ_FAKE_GPUS", str(file))
    stage.start_agent(resources=None)
    node = stage.store.get("Node", "n1")
    assert isinstance(node, Node)
    assert (node.spec.resources["gpu"], node.spec.resources["gpu:h100"]) == (2000, 2000)
    assert [one.id for one in decode_devices(node.metadata.annotations)] == ids
    tell = "echo $CUDA_VISIBLE_DEVICES $BATCHQ_GPU_UUIDS"
    (pod,) = stage.bind("sh", "-c", tell, requests={"gpu": 2})
    stage.ended(pod)
    assert stage.output(pod) == f"0,1 {ids[0]},{ids[1]}\n"


def test_a_pod_delivered_twice_runs_once(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = stage.bound("sh", "-c", "echo ran")
    link = RqLink(stage.store.url)
    twice = [PodAttempt(pod.metadata.uid, 1)] * 2
    enqueue(node_queue("n1", link), twice)
    stage.deliver(pod)
    link.close()
    stage.ended(pod)
    (other,) = stage.bind("true")
    stage.ended(other)
    assert stage.output(pod) == "ran\n"


def test_the_number_of_running_pods_does_not_exceed_the_slots(stage: Stage) -> None:
    stage.start_agent(slots=2)
    # The first pod waits for the second one, which a busy machine may start much later.
    script = (
        "mkdir r$BATCHQ_INDEX; until test -e met; do"
        " test $(ls -d r? | wc -l) -lt 2 || touch met; sleep 0.05; done;"
        " sleep 0.3; ls -d r? | wc -l; rmdir r$BATCHQ_INDEX"
    )
    pods = stage.bind("sh", "-c", script, replicas=5, working_dir=str(stage.home))
    assert {stage.ended(pod).status.phase for pod in pods} == {PodPhase.SUCCEEDED}
    assert (stage.home / "met").exists()
    assert max(int(stage.output(pod)) for pod in pods) <= 2
