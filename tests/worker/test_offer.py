"""Tests of the resources that a machine offers."""

from __future__ import annotations

import os

import psutil
import pytest

from batchq.errors import UsageError
from batchq.worker.host.node_resources import (
    detect_resources,
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
        ("g p u=1", "--resources: expected a name such as gpu or example.com/gpu, found 'g p u'"),
        ("gpu:=1", "--resources: expected a name such as gpu or gpu:h100, found 'gpu:'"),
        ("cpu:fast=1", "--resources: cpu has no types; expected cpu, found 'cpu:fast'"),
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
