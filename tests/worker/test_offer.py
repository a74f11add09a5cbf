"""Tests of the resources that a machine offers, and of the GPUs that a pod gets."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from batchq.errors import UsageError
from batchq.worker.host.node_resources import (
    GpuShares,
    detect_resources,
    gpu_indices,
    parse_resources,
)


def test_resources_are_read_as_quantities() -> None:
    assert parse_resources("cpu=16,memory=64Gi, gpu=4") == {
        "cpu": 16_000,
        "memory": 68_719_476_736,
        "gpu": 4000,
    }


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("cpu", "--resources: expected name=quantity, found 'cpu'"),
        ("", "--resources: expected name=quantity, found ''"),
        ("=3", "--resources: expected name=quantity, found '=3'"),
        ("cpu=1,cpu=2", "--resources: cpu is named twice"),
        ("cpu=-1", "--resources: cpu: expected a quantity of zero or more, found '-1'"),
        ("cpu=lots", "--resources: cpu: expected a quantity such as 500m, 2 or 64Gi, found 'lots'"),
    ],
)
def test_malformed_resources_are_refused_with_a_sentence(written: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_resources(written)
    assert refused.value.message == message


def test_detected_resources_do_not_exceed_what_this_process_may_use() -> None:
    found = detect_resources()
    assert 0 < found["cpu"] <= 1000 * len(os.sched_getaffinity(0))
    assert 0 < found["memory"] <= psutil.virtual_memory().total


def test_gpus_are_detected_with_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '0\\n1\\n3\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_indices() == (0, 1, 3)
    assert detect_resources()["gpu"] == 3000


def test_a_failing_nvidia_smi_means_no_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho driver not loaded; exit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_indices() == ()


def test_declared_gpus_are_counted_from_zero() -> None:
    assert gpu_indices({"gpu": 2000}) == (0, 1)
    assert gpu_indices({"cpu": 1000}) == ()


def test_whole_gpus_belong_to_one_pod_until_they_are_given_back() -> None:
    shares = GpuShares((0, 1, 2))
    assert shares.take("a", {"gpu": 2000}) == "0,1"
    assert shares.take("b", {"gpu": 1000}) == "2"
    shares.give_back("a")
    assert shares.take("c", {"gpu": 1000}) == "0"


def test_fractions_share_one_gpu_before_another_is_used() -> None:
    shares = GpuShares((0, 1))
    assert shares.take("a", {"gpu": 500}) == "0"
    assert shares.take("b", {"gpu": 500}) == "0"
    assert shares.take("c", {"gpu": 1000}) == "1"


def test_a_pod_without_a_gpu_request_sees_no_gpu() -> None:
    assert GpuShares((0,)).take("a", {"cpu": 1000}) == ""
    assert GpuShares(()).take("a", {"cpu": 1000}) is None
