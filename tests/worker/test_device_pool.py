"""Which devices an agent offers, and which of them each pod gets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import msgspec
import pytest
from msgspec import structs
from structlog.testing import capture_logs

from batchq.api.node_features import LOCKED, Device
from batchq.api.node_report import PodAttempt
from batchq.errors import UsageError
from batchq.worker.host.device_pool import DevicePool, own_devices
from batchq.worker.host.gpu_tools import (
    FoundDevices,
    parse_amd_static,
    parse_nvidia_query,
    with_links,
    with_mig,
)
from tests.worker.test_gpu_tools import output

A, B, C = (PodAttempt(uid, 1) for uid in "abc")
MakePool = Callable[..., DevicePool]
_machines = count()


def gpus(
    number: int, *, model: str = "h100", links: Mapping[int, Mapping[int, int]] | None = None
) -> list[Device]:
    """Return GPUs of a machine that no other test uses: devices are locked by name."""
    machine = f"{os.getpid()}-{next(_machines)}"
    return [
        Device(
            index=index, id=f"GPU-{machine}-{index}", vendor="nvidia", bus=f"0000:{index:02x}:00.0",
            model=model, links=(links or {}).get(index, {}),
        )
        for index in range(number)
    ]  # fmt: skip


def indices(devices: Sequence[Device] | None) -> list[int] | None:
    return None if devices is None else [one.index for one in devices]


def test_whole_gpus_belong_to_one_pod_until_they_are_given_back(make_pool: MakePool) -> None:
    pool = make_pool(gpus(3))
    assert indices(pool.take(A, {"gpu": 2000})) == [0, 1]
    assert indices(pool.take(B, {"gpu": 1000})) == [2]
    assert pool.take(C, {"gpu": 1000}) is None
    pool.give_back(A)
    assert indices(pool.take(C, {"gpu": 1000})) == [0]


def test_a_pod_that_asks_again_keeps_what_it_has(make_pool: MakePool) -> None:
    pool = make_pool(gpus(3))
    pool.take(A, {"gpu": 1000})
    assert indices(pool.take(B, {"gpu": 1000})) == [1]
    pool.give_back(A)
    assert indices(pool.take(B, {"gpu": 1000})) == [1]


def test_fractions_share_one_gpu_before_another_is_used(make_pool: MakePool) -> None:
    pool = make_pool(gpus(2))
    assert indices(pool.take(A, {"gpu": 500})) == [0]
    assert indices(pool.take(B, {"gpu": 500})) == [0]
    assert indices(pool.take(C, {"gpu": 1000})) == [1]


def test_a_fraction_that_the_node_has_in_parts_only_shares_the_emptiest_gpu(
    make_pool: MakePool,
) -> None:
    """The scheduler counts the sum of the node: 1.8 of 2 GPUs."""
    pool = make_pool(gpus(2))
    assert indices(pool.take(A, {"gpu": 500})) == [0]
    assert indices(pool.take(B, {"gpu": 600})) == [1]
    assert indices(pool.take(C, {"gpu": 700})) == [0]


def test_a_gpu_that_one_pod_holds_whole_is_not_shared(make_pool: MakePool) -> None:
    pool = make_pool(gpus(1))
    assert indices(pool.take(A, {"gpu": 1000})) == [0]
    assert pool.take(B, {"gpu": 500}) is None


def test_a_gpu_and_a_half_are_two_devices(make_pool: MakePool) -> None:
    pool = make_pool(gpus(2))
    assert indices(pool.take(A, {"gpu": 1500})) == [0, 1]
    assert indices(pool.take(B, {"gpu": 500})) == [1]


def test_only_the_pods_that_are_still_there_keep_devices(make_pool: MakePool) -> None:
    pool = make_pool(gpus(2))
    pool.take(A, {"gpu": 1000})
    pool.take(B, {"gpu": 1000})
    pool.keep({B})
    assert indices(pool.take(C, {"gpu": 1000})) == [0]


def test_gpus_with_the_most_links_to_each_other_go_together(make_pool: MakePool) -> None:
    pairs = {0: {1: 10, 2: 100, 3: 10}, 1: {0: 10, 2: 10, 3: 100}, 2: {0: 100, 1: 10, 3: 10},
             3: {0: 10, 1: 100, 2: 10}}  # fmt: skip
    pool = make_pool(gpus(4, links=pairs))
    assert indices(pool.take(A, {"gpu": 2000})) == [0, 2]
    assert indices(pool.take(B, {"gpu": 2000})) == [1, 3]


def test_a_single_gpu_is_taken_where_no_pair_is_broken(make_pool: MakePool) -> None:
    pairs = {0: {1: 100}, 1: {0: 100}, 2: {}}
    pool = make_pool(gpus(3, links=pairs))
    assert indices(pool.take(A, {"gpu": 1000})) == [2]
    assert indices(pool.take(B, {"gpu": 2000})) == [0, 1]


def test_sixteen_gpus_are_chosen_from_without_trying_all_sets(make_pool: MakePool) -> None:
    halves = {
        one: {other: 100 if one % 2 == other % 2 else 10 for other in range(16) if other != one}
        for one in range(16)
    }
    pool = make_pool(gpus(16, links=halves))
    assert indices(pool.take(A, {"gpu": 8000})) == [0, 2, 4, 6, 8, 10, 12, 14]


def mixed() -> list[Device]:
    old, new = gpus(2, model="a100"), gpus(2)
    moved = [
        structs.replace(one, index=2 + one.index, bus=f"0000:8{one.index}:00.0") for one in new
    ]
    return [*old, *moved]


def test_a_typed_request_gets_its_model_and_counts_once(make_pool: MakePool) -> None:
    pool = make_pool(mixed())
    assert pool.offer({}) == {"gpu": 4000, "gpu:a100": 2000, "gpu:h100": 2000}
    assert indices(pool.take(A, {"gpu": 2000, "gpu:h100": 2000})) == [2, 3]
    assert pool.take(B, {"gpu": 1000, "gpu:h100": 1000}) is None
    assert indices(pool.take(C, {"gpu": 2000})) == [0, 1]


def test_more_gpus_than_of_the_model_are_of_any_model(make_pool: MakePool) -> None:
    pool = make_pool(mixed())
    assert indices(pool.take(A, {"gpu": 2000, "gpu:h100": 1000})) == [0, 2]


def test_a_model_is_offered_without_what_pods_of_any_model_have(make_pool: MakePool) -> None:
    pool = make_pool(mixed())
    pool.take(A, {"gpu": 1000})
    assert pool.offer({}) == {"gpu": 4000, "gpu:a100": 1000, "gpu:h100": 2000}
    pool.give_back(A)
    pool.take(A, {"gpu": 1000, "gpu:a100": 1000})
    assert pool.offer({}) == {"gpu": 4000, "gpu:a100": 2000, "gpu:h100": 2000}


def test_mig_instances_are_handed_out_whole_and_named_by_uuid(make_pool: MakePool) -> None:
    split = parse_nvidia_query(output("a100-mig-query.csv"))
    pool = make_pool(with_mig(split, output("a100-mig-list.txt")))
    assert pool.offer({"cpu": 8000}) == {
        "cpu": 8000,
        "gpu": 1000,
        "gpu:a100": 1000,
        "mig-1g.10gb": 2000,
        "mig-2g.20gb": 1000,
        "mig-3g.40gb": 1000,
    }
    taken = pool.take(A, {"mig-1g.10gb": 500})
    assert taken is not None
    assert pool.variables(taken, by_uuid=False) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "MIG-1e4b6f6b-2e2c-5a1e-8a1c-0d5f8f0a3c11",
        "BATCHQ_GPU_UUIDS": "MIG-1e4b6f6b-2e2c-5a1e-8a1c-0d5f8f0a3c11",
        "NVIDIA_VISIBLE_DEVICES": "MIG-1e4b6f6b-2e2c-5a1e-8a1c-0d5f8f0a3c11",
    }
    assert pool.take(B, {"mig-1g.10gb": 1000}) != taken
    assert pool.take(C, {"mig-1g.10gb": 1000}) is None
    assert indices(pool.take(C, {"gpu": 1000})) == [1]


def test_a_gpu_that_is_split_into_mig_instances_has_not_failed(make_pool: MakePool) -> None:
    (gpu,) = gpus(1)
    pool = make_pool([gpu], selected=("0",))
    halves = [
        structs.replace(gpu, id=f"MIG-{one}-{gpu.id}", parent=gpu.id, profile="3g.40gb")
        for one in "ab"
    ]
    pool.update(FoundDevices(devices=tuple(halves)))
    assert pool.offer({}) == {"mig-3g.40gb": 2000}
    assert [one.trouble for one in pool.devices()] == ["", ""]
    whole = structs.replace(halves[0], id=f"MIG-c-{gpu.id}", profile="7g.80gb")
    pool.update(FoundDevices(devices=(whole,)))
    assert pool.offer({}) == {"mig-7g.80gb": 1000}
    pool.update(FoundDevices(devices=(gpu,)))
    assert pool.offer({}) == {"gpu": 1000, "gpu:h100": 1000}


def test_a_mig_instance_that_a_pod_has_counts_until_the_pod_has_ended(
    make_pool: MakePool,
) -> None:
    (gpu,) = gpus(1)
    half = structs.replace(gpu, id=f"MIG-{gpu.id}", parent=gpu.id, profile="3g.40gb")
    pool = make_pool([half])
    pool.take(A, {"mig-3g.40gb": 1000})
    pool.update(FoundDevices(devices=(gpu,)))
    assert pool.offer({}) == {"gpu": 1000, "gpu:h100": 1000, "mig-3g.40gb": 1000}
    pool.give_back(A)
    pool.update(FoundDevices(devices=(gpu,)))
    assert pool.offer({}) == {"gpu": 1000, "gpu:h100": 1000}


@pytest.mark.parametrize("name", ["0", "0000:07:00.0", "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"])
def test_a_gpu_in_mig_mode_stands_for_its_instances(make_pool: MakePool, name: str) -> None:
    split = parse_nvidia_query(output("a100-mig-query.csv"))
    pool = make_pool(with_mig(split, output("a100-mig-list.txt")), selected=(name,))
    assert pool.offer({}) == {"mig-1g.10gb": 2000, "mig-2g.20gb": 1000, "mig-3g.40gb": 1000}


def test_pods_are_told_indices_in_the_order_of_the_buses(make_pool: MakePool) -> None:
    h100 = with_links(parse_nvidia_query(output("h100-query.csv")), output("h100-topo.txt"))
    pool = make_pool(h100)
    taken = pool.take(A, {"gpu": 2000})
    assert taken is not None
    uuids = ",".join(one.id for one in taken)
    assert pool.variables(taken, by_uuid=False) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "BATCHQ_GPU_UUIDS": uuids,
        "NVIDIA_VISIBLE_DEVICES": uuids,
    }
    assert pool.variables(taken, by_uuid=True)["CUDA_VISIBLE_DEVICES"] == uuids


def test_amd_gpus_are_told_by_the_variable_of_rocm_alone(make_pool: MakePool) -> None:
    pool = make_pool(parse_amd_static(output("mi300x-static.json")))
    taken = pool.take(A, {"gpu": 2000, "gpu:mi300x": 2000})
    assert taken is not None
    assert pool.variables(taken, by_uuid=False) == {
        "ROCR_VISIBLE_DEVICES": "0,1",
        "BATCHQ_GPU_UUIDS": "GPU-dc91284879207f2b,GPU-dc9128487920903c",
        "NVIDIA_VISIBLE_DEVICES": "void",
    }


def test_a_pod_without_a_request_sees_no_gpu_of_the_machine(make_pool: MakePool) -> None:
    pool = make_pool(gpus(2), declared={"cpu": 1000})
    taken = pool.take(A, {"cpu": 1000})
    assert taken == ()
    assert pool.variables(taken, by_uuid=False) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "",
        "BATCHQ_GPU_UUIDS": "",
        "NVIDIA_VISIBLE_DEVICES": "void",
    }
    assert make_pool().variables((), by_uuid=False) == {}


def test_pods_are_told_uuids_while_a_device_has_failed(make_pool: MakePool) -> None:
    devices = gpus(3)
    pool = make_pool(devices)
    pool.update(FoundDevices(devices=(devices[0], devices[2])))
    taken = pool.take(A, {"gpu": 2000})
    assert taken is not None
    named = pool.variables(taken, by_uuid=False)["CUDA_VISIBLE_DEVICES"]
    assert named == f"{devices[0].id},{devices[2].id}"


def test_declared_gpus_are_the_first_ones_without_a_tool(make_pool: MakePool) -> None:
    pool = make_pool(declared={"cpu": 1000, "gpu": 2000})
    assert pool.offer({"cpu": 1000, "gpu": 2000}) == {"cpu": 1000, "gpu": 2000}
    taken = pool.take(A, {"gpu": 2000})
    assert taken is not None
    assert pool.variables(taken, by_uuid=False) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }


def test_declared_gpus_of_a_model_count_as_gpus(make_pool: MakePool) -> None:
    declared = {"gpu:h100": 2000}
    pool = make_pool(declared=declared)
    assert pool.offer(declared) == {"gpu": 2000, "gpu:h100": 2000}
    assert indices(pool.take(A, {"gpu": 1000, "gpu:h100": 1000})) == [0]


@pytest.mark.parametrize(
    ("declared", "selected", "warnings"),
    [
        (
            {"cpu": 4000},
            None,
            [
                {
                    "event": "devices found, but --resources names no gpu: none is offered",
                    "log_level": "warning",
                    "devices": 2,
                    "hint": "add gpu=2 to --resources, or pass --devices none",
                }
            ],
        ),
        ({"cpu": 4000}, (), []),
        ({"cpu": 4000, "gpu": 0}, None, []),
        ({"cpu": 4000, "gpu:h100": 1000}, None, []),
        (None, None, []),
    ],
)
def test_an_agent_warns_of_gpus_that_its_resources_leave_out(
    declared: dict[str, int] | None,
    selected: tuple[str, ...] | None,
    warnings: list[dict[str, object]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BATCHQ_FAKE_GPUS", "h100:2")
    monkeypatch.setattr("batchq.worker.host.device_pool._lock_name", lambda _: "")
    with capture_logs() as lines:
        own_devices(declared, selected).close()
    assert lines == warnings


def test_no_more_is_offered_than_declared_or_found(make_pool: MakePool) -> None:
    devices = gpus(4)
    assert make_pool(devices, declared={"gpu": 2000}).offer({}) == {"gpu": 2000, "gpu:h100": 2000}
    assert make_pool(gpus(1), declared={"gpu": 2000}).offer({}) == {"gpu": 1000, "gpu:h100": 1000}


def test_declared_models_are_picked_from_the_machine(make_pool: MakePool) -> None:
    pool = make_pool(mixed(), declared={"gpu": 3000, "gpu:h100": 2000})
    assert pool.offer({}) == {"gpu": 3000, "gpu:a100": 1000, "gpu:h100": 2000}


def test_a_failed_device_is_offered_no_more_and_comes_back(make_pool: MakePool) -> None:
    devices = gpus(2)
    pool = make_pool(devices)
    broken = structs.replace(devices[1], trouble="GPU requires reset")
    pool.update(FoundDevices(devices=(devices[0], broken)))
    assert pool.offer({}) == {"gpu": 1000, "gpu:h100": 1000}
    assert pool.take(A, {"gpu": 2000}) is None
    pool.update(FoundDevices(devices=tuple(devices)))
    assert pool.offer({}) == {"gpu": 2000, "gpu:h100": 2000}


def test_a_device_that_fails_under_a_pod_counts_until_the_pod_has_ended(
    make_pool: MakePool,
) -> None:
    devices = gpus(2)
    pool = make_pool(devices)
    pool.take(A, {"gpu": 1000})
    pool.update(FoundDevices(devices=(devices[1],)))
    assert pool.offer({})["gpu"] == 2000
    assert [one.trouble for one in pool.devices()] == ["it is no longer found", ""]
    pool.give_back(A)
    assert pool.offer({})["gpu"] == 1000


def test_a_device_that_left_the_bus_is_known_by_its_bus(make_pool: MakePool) -> None:
    devices = gpus(2)
    pool = make_pool(devices)
    lost = Device(index=0, id="bus-0000:00:00.0", bus="0000:00:00.0", trouble="GPU is lost")
    pool.update(FoundDevices(devices=(lost, devices[1])))
    assert [(one.id, one.trouble) for one in pool.devices()] == [
        (devices[0].id, "GPU is lost"),
        (devices[1].id, ""),
    ]


def test_no_device_is_offered_while_the_tool_fails(make_pool: MakePool) -> None:
    pool = make_pool(gpus(2))
    pool.update(FoundDevices(trouble="nvidia-smi: gave no answer within 10 s"))
    assert pool.offer({"cpu": 1000}) == {"cpu": 1000}
    assert {one.trouble for one in pool.devices()} == {"nvidia-smi: gave no answer within 10 s"}


def test_a_device_that_a_stranger_uses_is_kept_back(make_pool: MakePool) -> None:
    devices = tuple(gpus(2))
    pool = make_pool(devices)
    pool.begin_check()
    pool.update(FoundDevices(devices=devices, processes={devices[0].id: frozenset({7, 9})}))
    assert pool.offer({})["gpu"] == 1000
    assert pool.devices()[0].trouble == "used by process 7 and 1 more outside of any pod"
    assert indices(pool.take(A, {"gpu": 1000})) == [1]


def test_a_pod_that_used_its_device_during_the_check_is_no_stranger(make_pool: MakePool) -> None:
    devices = tuple(gpus(2))
    pool = make_pool(devices)
    pool.take(A, {"gpu": 1000})
    pool.take(B, {"gpu": 1000})
    pool.begin_check()
    pool.give_back(A)
    users = {one.id: frozenset({7}) for one in devices}
    pool.update(FoundDevices(devices=devices, processes=users))
    assert [one.trouble for one in pool.devices()] == ["", ""]


def test_a_device_belongs_to_one_agent(make_pool: MakePool) -> None:
    devices = gpus(4)
    one, other = make_pool(devices, declared={"gpu": 2000}), make_pool(devices)
    assert [device.index for device in one.devices()] == [0, 1]
    assert [device.trouble for device in other.devices()] == [LOCKED, LOCKED, "", ""]
    assert other.offer({})["gpu"] == 2000


def test_an_agent_takes_over_what_another_has_released(make_pool: MakePool) -> None:
    devices = tuple(gpus(2))
    one, other = make_pool(devices), make_pool(devices)
    assert other.offer({}) == {}
    one.close()
    other.update(FoundDevices(devices=devices))
    assert other.offer({})["gpu"] == 2000


def test_an_agent_locks_what_has_been_released_without_asking_the_tools(
    make_pool: MakePool,
) -> None:
    devices, copies = tuple(gpus(2)), list[socket.socket]()

    def share(lock: socket.socket) -> bool:
        copies.append(lock)
        return True

    one, other = make_pool(devices, declared={"gpu": 1000}), make_pool(devices)
    other.share_locks(share)
    assert (other.lock_released(), len(copies)) == (False, 1)
    one.close()
    assert (other.lock_released(), len(copies)) == (True, 2)
    assert (other.lock_released(), other.offer({})["gpu"]) == (False, 2000)


def test_a_device_whose_lock_cannot_be_shared_is_not_used(make_pool: MakePool) -> None:
    devices = tuple(gpus(1))
    one, other = make_pool(devices), make_pool(devices)
    other.share_locks(lambda _: False)
    one.close()
    assert (other.lock_released(), other.offer({})) == (False, {})
    assert make_pool(devices).offer({})["gpu"] == 1000


@pytest.mark.parametrize("names", [("1", "2"), ("0000:01:00.0", "0000:02:00.0")])
def test_devices_are_selected_by_bus_or_index(make_pool: MakePool, names: tuple[str, ...]) -> None:
    pool = make_pool(gpus(4), selected=names)
    assert [device.index for device in pool.devices()] == [1, 2]
    assert indices(pool.take(A, {"gpu": 1000})) == [1]


def test_a_selected_device_that_has_failed_is_listed_as_missing(make_pool: MakePool) -> None:
    devices = gpus(2)
    pool = make_pool(devices, selected=(devices[0].id, "GPU-of-yesterday"))
    assert [(one.id, one.trouble) for one in pool.devices()] == [
        (devices[0].id, ""),
        ("GPU-of-yesterday", "it is no longer found"),
    ]


def test_a_device_that_does_not_exist_is_refused_with_a_sentence(make_pool: MakePool) -> None:
    devices = gpus(1)
    with pytest.raises(UsageError, match="--devices: this machine has no device '7'") as refused:
        make_pool(devices, selected=("7",))
    assert refused.value.hint == f"it has 0 ({devices[0].id})"


def test_no_devices_are_left_to_others(make_pool: MakePool) -> None:
    pool = make_pool(gpus(2), selected=())
    assert pool.offer({"cpu": 1000}) == {"cpu": 1000}


def test_the_devices_of_an_agent_that_was_killed_are_free(make_pool: MakePool) -> None:
    devices = tuple(gpus(1))
    script = (
        "import sys, msgspec; from batchq.worker.host.device_pool import DevicePool;"
        " from batchq.worker.host.gpu_tools import FoundDevices;"
        " found = msgspec.json.decode(sys.argv[1], type=FoundDevices);"
        " pool = DevicePool(found); print(pool.offer({}), flush=True); sys.stdin.read()"
    )
    found = FoundDevices(devices=devices)
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", script, msgspec.json.encode(found).decode()]
    with subprocess.Popen(command, text=True, **pipes) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "{'gpu': 1000, 'gpu:h100': 1000}\n"
        pool = make_pool(devices)
        assert pool.offer({}) == {}
        agent.kill()
    pool.update(found)
    assert pool.offer({})["gpu"] == 1000
