"""What the agent reads in the outputs of the tools of GPUs; tests/worker/gpu_outputs has these."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import pytest

from batchq.api.node_features import Device, model_of
from batchq.errors import UsageError
from batchq.worker.host import gpu_tools
from batchq.worker.host.gpu_tools import (
    DeviceCheck,
    FoundDevices,
    find_devices,
    inherited_devices,
    parse_amd_static,
    parse_nvidia_query,
    parse_rocm,
    with_amd_links,
    with_amd_metrics,
    with_links,
    with_mig,
)
from tests.daemon.waiting import until

OUTPUTS = Path(__file__).parent / "gpu_outputs"
GIB = 1 << 30


def output(name: str) -> str:
    return (OUTPUTS / name).read_text()


def install(folder: Path, tool: str, answers: dict[str, str]) -> dict[str, str]:
    """Put a tool on a PATH of its own: it prints a file for the first argument that it knows, and
    complains of others.
    """
    cases = "".join(
        f"    *{argument}*) cat {OUTPUTS / name}; exit 0 ;;\n" for argument, name in answers.items()
    )
    script = folder / tool
    script.write_text(f'#!/bin/sh\ncase "$*" in\n{cases}esac\necho "no such option: $*"; exit 2\n')
    script.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_eight_h100_are_listed_by_pci_bus_with_model_memory_and_use() -> None:
    devices = parse_nvidia_query(output("h100-query.csv"))
    assert [one.index for one in devices] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert devices[1] == Device(
        index=1,
        id="GPU-2b8a9a6e-6a0e-1a5c-0f0b-5d0fd6f5f301",
        vendor="nvidia",
        bus="0000:43:00.0",
        name="NVIDIA H100 80GB HBM3",
        model="h100",
        memory_bytes=81559 << 20,
        busy_percent=97,
    )
    assert devices[1].resources == ("gpu", "gpu:h100")


def test_the_order_is_that_of_the_buses_whatever_the_tool_prints_first() -> None:
    lines = output("h100-query.csv").splitlines()
    shuffled = parse_nvidia_query("\n".join(reversed(lines)))
    assert shuffled == parse_nvidia_query("\n".join(lines))


def test_nvlinks_count_more_than_any_way_over_pci() -> None:
    devices = with_links(parse_nvidia_query(output("h100-query.csv")), output("h100-topo.txt"))
    assert devices[3].links == dict.fromkeys((0, 1, 2, 4, 5, 6, 7), 1800)
    pci = output("h100-topo.txt").replace("NV18", "SYS")
    assert with_links(devices, pci)[3].links == dict.fromkeys((0, 1, 2, 4, 5, 6, 7), 10)


def test_the_whole_machine_is_read_with_three_calls_of_nvidia_smi(tmp_path: Path) -> None:
    path = install(
        tmp_path,
        "nvidia-smi",
        {
            "--query-gpu=index": "h100-query.csv",
            "topo": "h100-topo.txt",
            "--query-compute-apps": "h100-processes.csv",
        },
    )
    found = find_devices(path)
    assert len(found.devices) == 8
    assert found.devices[0].links[7] == 1800
    assert found.processes == {
        "GPU-2b8a9a6e-6a0e-1a5c-0f0b-5d0fd6f5f301": frozenset({48213, 48214})
    }
    assert found.trouble == ""


def test_mig_instances_stand_in_for_their_gpu() -> None:
    split = parse_nvidia_query(output("a100-mig-query.csv"))
    devices = with_mig(split, output("a100-mig-list.txt"))
    assert [(one.index, one.resources, one.memory_bytes // GIB) for one in devices] == [
        (0, ("mig-3g.40gb",), 40),
        (0, ("mig-2g.20gb",), 20),
        (0, ("mig-1g.10gb",), 10),
        (0, ("mig-1g.10gb",), 10),
        (1, ("gpu", "gpu:a100"), 80),
        (2, ("gpu", "gpu:a100"), 80),
    ]
    assert devices[0].id == "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f"
    assert devices[0].parent == "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"


def test_a_gpu_in_mig_mode_without_an_instance_is_not_offered() -> None:
    split = parse_nvidia_query(output("a100-mig-query.csv"))
    last = with_mig(split, output("a100-mig-list.txt"))[-1]
    assert last.id == "GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0"
    assert last.trouble == "in MIG mode, and has no MIG instance"


def test_a_dead_gpu_is_listed_by_its_bus_with_what_the_tool_says() -> None:
    devices = parse_nvidia_query(output("dead-query.csv"))
    assert [(one.index, one.bus, one.trouble) for one in devices] == [
        (0, "0000:05:00.0", ""),
        (1, "0000:0b:00.0", "Unknown Error"),
        (2, "0000:41:00.0", "nvidia-smi says: GPU requires reset"),
        (3, "0000:42:00.0", "2 uncorrected memory errors since its last reset"),
    ]
    assert devices[1].id == "bus-0000:0b:00.0"


def test_a_tool_that_knows_only_a_lost_gpu_lists_it() -> None:
    (lost,) = parse_nvidia_query(output("lost-query.txt"))
    assert lost.bus == "0000:0b:00.0"
    assert lost.trouble == "GPU is lost.  Reboot the system to recover this GPU"


def test_an_old_driver_is_asked_for_less(tmp_path: Path) -> None:
    path = install(tmp_path, "nvidia-smi", {"mig.mode": "old-driver.txt"})
    answer = "0, GPU-80be5c9a-eb7d-2388-ad7c-7d3ee8f87235, 00000000:05:00.0, Tesla V100, 32768"
    script = tmp_path / "nvidia-smi"
    script.write_text(script.read_text().replace("esac", f"    *memory*) echo '{answer}' ;;\nesac"))
    (device,) = find_devices(path).devices
    assert (device.model, device.memory_bytes, device.trouble) == ("v100", 32 * GIB, "")


def test_a_tool_that_fails_is_trouble_and_no_device(tmp_path: Path) -> None:
    path = install(tmp_path, "nvidia-smi", {"query": "no-driver.txt"})
    assert find_devices(path) == FoundDevices(
        trouble="nvidia-smi: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA"
        " driver. Make sure that the latest NVIDIA driver is installed and running."
    )


def test_a_tool_that_hangs_is_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_tools, "_TIMEOUT_S", 0.3)
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\necho 0, GPU-x\nexec sleep 60\n")
    script.chmod(0o755)
    found = find_devices({"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert found == FoundDevices(trouble="nvidia-smi: gave no answer within 0 s")


def test_a_tool_that_ends_without_a_word_is_trouble(tmp_path: Path) -> None:
    script = tmp_path / "amd-smi"
    script.write_text("#!/bin/sh\nexit 7\n")
    script.chmod(0o755)
    found = find_devices({"PATH": str(tmp_path)})
    assert found == FoundDevices(trouble="amd-smi: ended with exit code 7")


def test_a_machine_without_a_tool_has_no_devices_and_no_trouble(tmp_path: Path) -> None:
    assert find_devices({"PATH": str(tmp_path)}) == FoundDevices()


def test_eight_mi300x_are_listed_by_amd_smi() -> None:
    devices = parse_amd_static(output("mi300x-static.json"))
    devices = with_amd_links(devices, output("mi300x-topology.json"))
    assert devices[0] == Device(
        index=0,
        id="GPU-dc91284879207f2b",
        vendor="amd",
        bus="0000:05:00.0",
        name="AMD Instinct MI300X",
        model="mi300x",
        memory_bytes=196592 << 20,
        links=dict.fromkeys((1, 2, 3, 4, 5, 6, 7), 100),
    )
    assert len(devices) == 8


def test_amd_smi_says_how_busy_a_device_is_and_whether_its_memory_has_failed(
    tmp_path: Path,
) -> None:
    path = install(
        tmp_path,
        "amd-smi",
        {
            "static": "mi300x-static.json",
            "topology": "mi300x-topology.json",
            "metric": "mi300x-metric.json",
        },
    )
    devices = find_devices(path).devices
    assert [one.busy_percent for one in devices] == [0, 0, 63, 0, 0, 0, 0, 0]
    assert [one.index for one in devices if one.trouble] == [5]
    assert devices[5].trouble == "4 uncorrected memory errors since its last reset"
    assert devices[0].links[7] == 100


@pytest.mark.parametrize(
    "text", ["", "[]", '[{"gpu": 0, "usage": "N/A", "ecc": "N/A"}]', '[{"gpu": 0}]']
)
def test_metrics_that_amd_smi_does_not_know_are_left_out(text: str) -> None:
    static = output("mi300x-static.json")
    devices = parse_amd_static(static)
    assert with_amd_metrics(devices, static, text) == devices


def test_rocm_smi_lists_the_same_devices(tmp_path: Path) -> None:
    amd = with_amd_links(
        parse_amd_static(output("mi300x-static.json")), output("mi300x-topology.json")
    )
    rocm = parse_rocm(output("mi300x-rocm-smi.json"))
    assert [(one.id, one.bus, one.model, one.links) for one in rocm] == [
        (one.id, one.bus, one.model, one.links) for one in amd
    ]
    assert [one.busy_percent for one in rocm] == [0, 0, 63, 0, 0, 0, 0, 0]
    path = install(tmp_path, "rocm-smi", {"--showuniqueid": "mi300x-rocm-smi.json"})
    assert list(find_devices(path).devices) == rocm


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "ERROR: no GPU", '{"gpu_data": [1]}', '{"card0": 1}']
)
def test_an_answer_without_gpus_lists_none(text: str) -> None:
    assert parse_amd_static(text) == parse_rocm(text) == parse_nvidia_query(text) == []


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA L40S", "l40s"),
        ("Tesla T4", "t4"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA", ""),
        ("", ""),
    ],
)
def test_a_model_is_named_in_one_word(name: str, model: str) -> None:
    assert model_of(name) == model


def test_fake_gpus_stand_in_for_tools(tmp_path: Path) -> None:
    found = find_devices({"BATCHQ_FAKE_GPUS": "h100:2"}).devices
    assert [(one.index, one.id, one.model) for one in found] == [
        (0, "GPU-fake-h100-0", "h100"),
        (1, "GPU-fake-h100-1", "h100"),
    ]
    file = tmp_path / "gpus.json"
    file.write_text('[{"index": 0, "id": "GPU-x", "trouble": "it smokes"}]')
    assert find_devices({"BATCHQ_FAKE_GPUS": str(file)}).devices == (
        Device(index=0, id="GPU-x", trouble="it smokes"),
    )


@pytest.mark.parametrize("written", ["h100:0", "h100", "/no/such/file", "h100:1000"])
def test_malformed_fake_gpus_are_refused_with_a_sentence(written: str) -> None:
    with pytest.raises(UsageError, match="BATCHQ_FAKE_GPUS: expected MODEL:COUNT or a file"):
        find_devices({"BATCHQ_FAKE_GPUS": written})


@pytest.mark.parametrize(
    ("environment", "ids"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ("GPU-fake-h100-1",)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-fake-h100-0,7"}, ("GPU-fake-h100-0",)),
        ({"ROCR_VISIBLE_DEVICES": "0, 1"}, ("GPU-fake-h100-0", "GPU-fake-h100-1")),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
    ],
)
def test_an_agent_uses_the_devices_that_its_environment_leaves_it(
    environment: dict[str, str], ids: tuple[str, ...] | None
) -> None:
    devices = find_devices({"BATCHQ_FAKE_GPUS": "h100:2"}).devices
    assert inherited_devices(devices, environment) == ids


def test_a_check_asks_the_tools_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHQ_FAKE_GPUS", "h100:3")
    check = DeviceCheck()
    descriptor = check.start(now_ms=0)
    assert descriptor is not None
    assert check.start(now_ms=1) is None
    assert check.is_at(descriptor)
    found = None
    while found is None:
        select.select([descriptor], [], [], 30)
        found = check.read()
    assert len(found.devices) == 3
    assert check.pids() == frozenset()


def test_no_tool_is_started_beside_one_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("BATCHQ_FAKE_GPUS", raising=False)
    check = DeviceCheck()
    descriptor = check.start(now_ms=0)
    assert descriptor is not None
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
    hung = int((tmp_path / "pid").read_text())
    assert check.start(now_ms=3_600_000) is None
    select.select([descriptor], [], [], 30)
    found = check.read()
    assert found is not None
    assert found.trouble
    assert check.start(now_ms=7_200_000) is None
    assert hung in check.pids()
    tool.write_text("#!/bin/sh\nexit 9\n")
    os.kill(hung, signal.SIGKILL)
    until(lambda: check.start(now_ms=7_200_001) is not None)
    while check.read() is None:
        pass
    assert check.pids() <= {hung}
