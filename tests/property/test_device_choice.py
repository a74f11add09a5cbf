"""No sequence of pods, ends and failures makes the pool give a device twice."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from batchq.api.node_features import Device
from batchq.api.node_report import PodAttempt
from batchq.worker.host.device_pool import DevicePool
from batchq.worker.host.gpu_tools import FoundDevices
from tests.worker.test_device_pool import gpus

REQUESTS = st.sampled_from(
    [
        {"gpu": 1000},
        {"gpu": 2000},
        {"gpu": 500},
        {"gpu": 1500},
        {"gpu": 1000, "gpu:h100": 1000},
        {"gpu": 2000, "gpu:a100": 1000},
        {"gpu": 500, "gpu:h100": 500},
        {"mig-1g.10gb": 1000},
        {"mig-1g.10gb": 2000, "gpu": 1000},
        {"cpu": 1000},
    ]
)
#: A pod takes what it requests, a pod ends, or a device fails or works again.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 9), REQUESTS),
        st.tuples(st.just("end"), st.integers(0, 9), st.none()),
        st.tuples(st.just("fail"), st.integers(0, 5), st.booleans()),
    ),
    max_size=40,
)


def machine() -> list[Device]:
    """Return two A100, two H100 and two MIG instances, with links between equal ones."""
    old, new, split = gpus(2, model="a100"), gpus(2), gpus(2, model="")
    return [
        *(structs.replace(one, links={1 - one.index: 100}) for one in old),
        *(structs.replace(one, index=2 + one.index, bus=f"0000:8{one.index}:00.0") for one in new),
        *(
            structs.replace(one, index=4, bus="0000:90:00.0", profile="1g.10gb", parent="GPU-p")
            for one in split
        ),
    ]


@given(STEPS)
def test_every_device_is_given_once(steps: list[tuple[str, int, object]]) -> None:
    devices = machine()
    pool = DevicePool(FoundDevices(devices=tuple(devices)))
    held: dict[PodAttempt, tuple[dict[str, int], tuple[Device, ...]]] = {}
    try:
        for step, number, given_with in steps:
            pod = PodAttempt(f"p{number}", 1)
            if step == "take" and isinstance(given_with, dict):
                taken = pool.take(pod, given_with)
                if taken is not None and pod not in held:
                    held[pod] = (given_with, taken)
            elif step == "end":
                pool.give_back(pod)
                held.pop(pod, None)
            else:
                trouble = "it failed" if given_with else ""
                devices[number] = structs.replace(devices[number], trouble=trouble)
                pool.update(FoundDevices(devices=tuple(devices)))
            check(held, pool)
    finally:
        pool.close()


def check(
    held: dict[PodAttempt, tuple[dict[str, int], tuple[Device, ...]]], pool: DevicePool
) -> None:
    whole: Counter[str] = Counter()
    users: Counter[str] = Counter()
    for pod, (requests, taken) in held.items():
        assert [one.id for one in pool.of(pod)] == [one.id for one in taken]
        kinds = Counter(name for one in taken for name in one.resources)
        for name, units in requests.items():
            # As many as asked for; at most one part of a device more for each name.
            assert name == "cpu" or -(-units // 1000) <= kinds[name]
        users.update(one.id for one in taken)
        if not any(units % 1000 for units in requests.values()):
            whole.update(one.id for one in taken)
    for device, count in whole.items():
        assert count == 1
        assert users[device] == 1
    offered = pool.offer({})
    assert all(units >= 0 for units in offered.values())
