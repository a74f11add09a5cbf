"""Devices of real agents: what their pods get and record, and who has them after a kill."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
import pytest
from msgspec import structs

from batchq.api.lifecycle import ON_NODE, PodPhase
from batchq.api.node_features import Device, decode_devices
from batchq.api.objects import Node, Pod
from tests.daemon.waiting import until
from tests.effort import usually
from tests.worker import a_gpu_user
from tests.worker.stage import WITHIN_S, Stage

pytestmark = pytest.mark.e2e

#: How often agents are killed, in one test and in all of them.
KILLS_A_TEST = 25
KILLS = int(os.environ.get("BATCHQ_DEVICE_KILLS", usually(3, 500)))


class Gpus:
    """The GPUs that the tools of this machine list, as a test changes them."""

    def __init__(self, file: Path, number: int) -> None:
        self._file = file
        self.devices = [
            Device(index=index, id=f"GPU-{os.getpid()}-{index}", model="h100")
            for index in range(number)
        ]
        self._write()

    def fail(self, index: int, trouble: str) -> None:
        self.devices[index] = structs.replace(self.devices[index], trouble=trouble)
        self._write()

    def grow(self) -> int:
        """Give all devices more memory, and return how much they have."""
        size = self.devices[0].memory_bytes + 1
        self.devices = [structs.replace(one, memory_bytes=size) for one in self.devices]
        self._write()
        return size

    def _write(self) -> None:
        made = self._file.with_suffix(".new")
        made.write_bytes(msgspec.json.encode(self.devices))
        made.rename(self._file)


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    file = tmp_path / "gpus.json"
    monkeypatch.setenv("BATCHQ_FAKE_GPUS", str(file))
    monkeypatch.setenv("A_TEST_AGENT_IS_CURIOUS", "yes")
    return Gpus(file, 4)


def node_of(stage: Stage, name: str = "n1") -> Node:
    node = stage.store.get("Node", name)
    assert isinstance(node, Node)
    return node


def offered(stage: Stage, name: str = "n1") -> int:
    return node_of(stage, name).spec.resources.get("gpu", 0) // 1000


def test_the_devices_of_a_pod_are_recorded_in_it(stage: Stage, gpus: Gpus) -> None:
    stage.start_agent(resources=None)
    (pod,) = stage.bind("sh", "-c", "echo got $BATCHQ_GPU_UUIDS", requests={"gpu": 2})
    ids = tuple(one.id for one in gpus.devices[:2])
    assert stage.ended(pod).status.devices == ids
    assert stage.output(pod) == f"got {','.join(ids)}\n"


def test_a_pod_without_devices_records_none(stage: Stage, gpus: Gpus) -> None:
    stage.start_agent(resources=None)
    (pod,) = stage.bind("sh", "-c", "echo got $CUDA_VISIBLE_DEVICES")
    assert stage.ended(pod).status.devices == ()
    assert stage.output(pod) == "got\n"


def test_a_pod_waits_for_the_devices_of_the_one_before_it(stage: Stage, gpus: Gpus) -> None:
    stage.start_agent(resources=None)
    first, second = stage.bind("sh", "-c", "echo up; sleep 60", requests={"gpu": 3}, replicas=2)
    before, after = (first, second) if is_running(stage, first, second) else (second, first)
    assert stage.now(after).status.phase == PodPhase.BOUND
    stage.stop(before)
    stage.started(after, saying="up")
    assert stage.now(after).status.devices == tuple(one.id for one in gpus.devices[:3])


def is_running(stage: Stage, *pods: Pod) -> bool:
    """Wait until one of the pods runs, and return whether that is the first."""
    until(
        lambda: any(stage.now(pod).status.phase == PodPhase.RUNNING for pod in pods),
        within_s=WITHIN_S,
    )
    return stage.now(pods[0]).status.phase == PodPhase.RUNNING


def test_a_pod_for_which_no_device_becomes_free_is_given_back(
    stage: Stage, gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TEST_AGENT_IS_IMPATIENT", "yes")
    stage.start_agent(resources=None)
    (pod,) = stage.bind("true", requests={"gpu": 5})
    status = stage.ended(pod).status
    assert (status.phase, status.reason) == (PodPhase.EVICTED, "NodeLost")
    assert status.message == "too few of its node's devices became free within 1 s"


def test_a_failed_device_is_offered_no_more_and_its_pod_goes_on(stage: Stage, gpus: Gpus) -> None:
    stage.start_agent(resources=None)
    (pod,) = stage.bind("sh", "-c", "echo up; sleep 60", requests={"gpu": 1})
    stage.started(pod, saying="up")
    gpus.fail(0, "GPU is lost")
    gpus.fail(3, "GPU requires reset")
    until(lambda: offered(stage) == 3, within_s=WITHIN_S)
    shown = decode_devices(node_of(stage).metadata.annotations)
    assert [one.trouble for one in shown] == ["GPU is lost", "", "", "GPU requires reset"]
    assert stage.now(pod).status.phase == PodPhase.RUNNING
    stage.stop(pod)
    stage.ended(pod)
    until(lambda: offered(stage) == 2, within_s=WITHIN_S)


def test_two_agents_share_the_devices_of_their_machine(stage: Stage, gpus: Gpus) -> None:
    stage.start_agent("n1", resources=None, devices=["0", "2"])
    stage.start_agent("n2", resources=None)
    assert (offered(stage, "n1"), offered(stage, "n2")) == (2, 2)
    shown = decode_devices(node_of(stage, "n2").metadata.annotations)
    assert [one.index for one in shown if not one.trouble] == [1, 3]


def test_a_new_agent_offers_what_the_pods_of_its_predecessor_held(
    stage: Stage, gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("A_TEST_AGENT_IS_CURIOUS")
    script = (
        "import socket, sys, time; from pathlib import Path;"
        " from batchq.worker.host.processes import mark_of, set_mark;"
        " set_mark(mark_of(Path(sys.argv[1])));"
        " lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM);"
        " lock.bind('\\0batchq-device-' + sys.argv[2]); print('locked', flush=True);"
        " time.sleep(600)"
    )
    folder = stage.home.resolve() / "run" / "n1"
    folder.mkdir(parents=True)
    command = [sys.executable, "-c", script, str(folder), gpus.devices[2].id]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as pod:
        assert pod.stdout is not None
        assert pod.stdout.readline() == b"locked\n"
        stage.start_agent(resources=None)
        pod.wait()
    # It is logged after the report is sent.
    until(lambda: "node offered" in stage.log_text(), within_s=WITHIN_S)
    first = next(line for line in stage.log_text().splitlines() if "node offered" in line)
    assert "'gpu': 4000" in first


class Machine:
    """Two agents that both want all devices, and as many pods as these can take."""

    def __init__(self, stage: Stage, folder: Path, *, containment: str) -> None:
        self.stage = stage
        self._containment = containment
        self._folder = folder
        self._pods: list[Pod] = []
        self._agents: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        self._agents[name] = self.stage.start_agent(
            name, resources=None, containment=self._containment
        )

    def fill(self) -> None:
        """Have a pod on each device that a node offers, until one of them runs."""
        until(self._is_used, within_s=WITHIN_S)

    def _is_used(self) -> bool:
        """Bind a pod to each device that a node offers and no pod has; return whether one runs."""
        self._pods = [pod for pod in self._pods if self.stage.now(pod).status.phase in ON_NODE]
        for name in self._agents:
            here = sum(self.stage.now(pod).status.node == name for pod in self._pods)
            for _ in range(offered(self.stage, name) - here):
                command = (sys.executable, a_gpu_user.__file__, str(self._folder))
                self._pods += self.stage.bind(*command, requests={"gpu": 1}, node=name)
        return not self._pods or any("uses" in self.stage.output(pod) for pod in self._pods)

    def kill(self, name: str, *, spares: str) -> None:
        """Kill an agent with what belongs to it, except for what is spared."""
        agent = psutil.Process(self._agents[name].pid)
        users = {pid for pid in map(self._group_of, self._pods) if pid}
        below = [one for one in agent.children(recursive=True) if one.pid not in users]
        victims = {"all": [], "pods": below}[spares]
        for one in [agent, *victims]:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        self._agents[name].wait()

    def _group_of(self, pod: Pod) -> int:
        run = self.stage.run_of(pod)
        return 0 if run is None else run.group


def await_a_check(stage: Stage, gpus: Gpus, name: str) -> None:
    """Wait until an agent has looked at the devices that it may have now."""
    size = gpus.grow()

    def has_looked() -> bool:
        shown = decode_devices(node_of(stage, name).metadata.annotations)
        return shown[0].memory_bytes == size

    until(has_looked, within_s=WITHIN_S)


@pytest.mark.parametrize("seed", range(-(-KILLS // KILLS_A_TEST)))
def test_no_device_is_given_to_two_pods_while_agents_are_killed(
    stage: Stage, gpus: Gpus, tmp_path: Path, seed: int
) -> None:
    folder = tmp_path / "devices"
    folder.mkdir()
    # Without a PID namespace, pods outlive the work-horses that are killed with their agent.
    containment = "auto" if seed % 2 else "subreaper"
    machine, chance = Machine(stage, folder, containment=containment), random.Random(seed)
    machine.start("n1")
    machine.start("n2")
    for _ in range(min(KILLS, KILLS_A_TEST)):
        machine.fill()
        name = chance.choice(("n1", "n2"))
        machine.kill(name, spares=chance.choice(("all", "pods")))
        await_a_check(stage, gpus, "n2" if name == "n1" else "n1")
        machine.fill()
        machine.start(name)
        assert not (folder / "shared").exists()
    assert len(list(folder.iterdir())) == 4
