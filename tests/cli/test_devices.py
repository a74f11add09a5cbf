"""Who has which device of a node, in tables, in JSON, and for the doctor."""

from __future__ import annotations

import json

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodPhase
from batchq.api.node_features import DEVICES_ANNOTATION, Device, encode_devices
from batchq.api.objects import Pod, PodGroup
from tests.builders import a_node, a_quota
from tests.cli.conftest import Batchq
from tests.cli.test_launch import put
from tests.client.stage import Stage

DEVICES = (
    Device(
        index=0, id="GPU-a", bus="0000:1b:00.0", name="NVIDIA H100", model="h100",
        memory_bytes=80 << 30, busy_percent=90, links={1: 1800},
    ),
    Device(index=1, id="GPU-b", bus="0000:43:00.0", model="h100", trouble="GPU is lost"),
    Device(index=2, id="MIG-c", parent="GPU-c", bus="0000:52:00.0", profile="1g.10gb"),
)  # fmt: skip


@pytest.fixture
def busy(stage: Stage) -> Stage:
    """A node with three devices, of which a pod has the first."""
    node = a_node("gpu-01", cpu=2, gpu=1, **{"gpu:h100": 1})
    annotations = {DEVICES_ANNOTATION: encode_devices(DEVICES)}
    listed = structs.replace(node, metadata=structs.replace(node.metadata, annotations=annotations))
    stage.furnish(listed)
    stage.client.submit(["true"], name="g", gpus="h100:1")
    stage.turn()
    pod = stage.client.get("Pod", "g-main-0")
    assert isinstance(pod, Pod)
    put(stage, pod, phase=PodPhase.RUNNING, started_at=1, devices=("GPU-a",))
    return stage


def test_the_list_shows_the_pods_the_use_and_the_trouble_of_each_device(
    batchq: Batchq, busy: Stage
) -> None:
    assert [line.split(None, 5) for line in batchq("nodes", "devices").lines] == [
        ["NODE", "INDEX", "DEVICE", "MEMORY", "BUSY", "STATE        PODS"],
        ["gpu-01", "0", "gpu:h100", "80Gi", "90%", "ok           default/g-main-0"],
        ["gpu-01", "1", "gpu:h100", "-", "-", "GPU is lost  -"],
        ["gpu-01", "2", "mig-1g.10gb", "-", "-", "ok           -"],
    ]
    assert batchq("nodes", "devices", "-o", "wide").lines[1].split()[-2:] == [
        "0000:1b:00.0",
        "GPU-a",
    ]
    assert batchq("nodes", "devices", "-o", "name").lines == ["GPU-a", "GPU-b", "MIG-c"]


@pytest.mark.both_doors
def test_programs_get_every_field_of_a_device(batchq: Batchq, busy: Stage) -> None:
    found = json.loads(batchq("nodes", "devices", "gpu-01", "-o", "json").out)
    assert found["kind"] == "DeviceList"
    assert found["items"][0] == {
        "node": "gpu-01",
        "index": 0,
        "id": "GPU-a",
        "bus": "0000:1b:00.0",
        "name": "NVIDIA H100",
        "resources": ["gpu", "gpu:h100"],
        "memory": 80 << 30,
        "busyPercent": 90,
        "parent": "",
        "links": {"1": 1800},
        "trouble": "",
        "pods": ["default/g-main-0"],
    }
    assert found["items"][2]["parent"] == "GPU-c"


def test_the_description_of_a_node_lists_its_devices(batchq: Batchq, busy: Stage) -> None:
    lines = batchq("describe", "node", "gpu-01").lines
    at = lines.index("Devices:")
    assert [line.split()[0] for line in lines[at + 1 : at + 5]] == ["INDEX", "0", "1", "2"]


def test_a_node_without_devices_and_an_unknown_node_are_said(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(a_node("plain", cpu=2))
    done = batchq("nodes", "devices", "plain")
    assert (done.code, done.out, done.err) == (0, "", "these nodes list no GPUs\n")
    assert batchq("nodes", "devices", "nowhere").code == 6


def test_a_malformed_list_of_devices_shows_none(batchq: Batchq, stage: Stage) -> None:
    node = a_node("odd", cpu=2)
    annotations = {DEVICES_ANNOTATION: '[{"index": "x"}]'}
    stage.furnish(
        structs.replace(node, metadata=structs.replace(node.metadata, annotations=annotations))
    )
    assert batchq("nodes", "devices", "odd").out == ""
    assert "Devices:" not in batchq("describe", "node", "odd").out


def phases(stage: Stage, *names: str) -> list[str]:
    stage.turn()
    groups = [stage.client.get("PodGroup", f"default/{name}") for name in names]
    return [str(one.status.phase) for one in groups if isinstance(one, PodGroup)]


def test_a_model_is_used_up_before_the_gpus_of_a_node_are(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(a_node("n1", cpu=8, gpu=4, **{"gpu:h100": 2}))
    batchq("submit", "--name", "a", "--gpus", "h100:2", "--", "true")
    batchq("submit", "--name", "b", "--gpus", "h100:1", "--", "true")
    batchq("submit", "--name", "c", "--gpus", "2", "--", "true")
    batchq("submit", "--name", "d", "--gpus", "1", "--", "true")
    assert phases(stage, "a", "b", "c", "d") == ["InQueue", "Pending", "InQueue", "Pending"]


def test_gpus_of_pods_that_name_no_model_are_missing_from_the_only_model_of_a_node(
    batchq: Batchq, stage: Stage
) -> None:
    stage.furnish(a_node("n1", cpu=8, gpu=4, **{"gpu:h100": 4}))
    batchq("submit", "--name", "any", "--gpus", "2", "--", "true")
    batchq("submit", "--name", "one", "--gpus", "h100:1", "--", "true")
    batchq("submit", "--name", "two", "--gpus", "h100:2", "--", "true")
    assert phases(stage, "any", "one", "two") == ["InQueue", "InQueue", "Pending"]
    rows = [line.split() for line in batchq("describe", "node", "n1").lines if "gpu" in line]
    assert rows[:2] == [["gpu", "4", "3", "1"], ["gpu:h100", "4", "3", "1"]]
    [row] = [line for line in batchq("nodes").lines if line.startswith("n1")]
    assert "gpu 3, gpu:h100 3" in row


def test_a_quota_on_gpus_counts_those_of_every_model(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(a_node("n1", cpu=8, gpu=8, **{"gpu:h100": 8}), a_quota(gpu=3))
    batchq("submit", "--name", "a", "--gpus", "h100:2", "--", "true")
    batchq("submit", "--name", "b", "--gpus", "h100:2", "--", "true")
    batchq("submit", "--name", "c", "--gpus", "1", "--", "true")
    assert phases(stage, "a", "b", "c") == ["InQueue", "Pending", "InQueue"]


def test_a_quota_on_a_model_leaves_other_gpus(batchq: Batchq, stage: Stage) -> None:
    quota = a_quota(**{"gpu:h100": 1})
    stage.furnish(a_node("n1", cpu=8, gpu=8, **{"gpu:h100": 8}), quota)
    batchq("submit", "--name", "a", "--gpus", "h100:2", "--", "true")
    batchq("submit", "--name", "b", "--gpus", "4", "--", "true")
    assert phases(stage, "a", "b") == ["Pending", "InQueue"]
    assert "gpu:h100" in batchq("why", "a").out


@pytest.mark.parametrize("written", ["h100:", "h100:two", "a b:2", ":2", "two"])
def test_malformed_gpus_are_refused_in_one_sentence(
    batchq: Batchq, stage: Stage, written: str
) -> None:
    done = batchq("submit", "--gpus", written, "--", "true")
    assert done.code == 2
    assert len(done.err.splitlines()) <= 3
    assert "expected" in done.err
