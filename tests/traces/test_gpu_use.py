"""Allocation and fragmentation of GPUs over time, computed by hand."""

from __future__ import annotations

import pytest

from batchq.lab.gpu_usage import (
    PLACEMENTS,
    GpuLevel,
    GpuUse,
    GpuWatch,
    openb_load,
    shape_of,
)
from batchq.lab.load_player import play_load
from batchq.lab.schedule import Schedule, figures_of
from batchq.lab.traces import OpenbPod
from tests.traces.openb import a_node, a_pod

#: Two GPUs each. Pod 2 uses all cores of n-1 and half a GPU: until it ends, the other 1500
#: thousandths there are unusable, and pod 3 waits.
NODES = (a_node("n-0"), a_node("n-1"))
PODS = (
    a_pod(1, at_s=0, run_s=100, gpu_milli=2000),
    a_pod(2, at_s=10, run_s=50, gpu_milli=500, cpus=4),
    a_pod(3, at_s=20, run_s=40, gpu_milli=2000),
)


def played(*pods: OpenbPod, placement: str = "binpack") -> tuple[Schedule, GpuUse]:
    load = openb_load(NODES, pods, title="by hand")
    watch = GpuWatch(load, [shape_of(pod) for pod in pods])
    schedule = play_load(load, PLACEMENTS[placement], name=placement, look=watch, watch=True)
    return schedule, watch.use(placement)


def test_means_are_over_time_peaks_are_of_instants_and_the_final_is_at_the_last_arrival() -> None:
    schedule, use = played(*PODS)
    assert [one.start_s for one in schedule.jobs] == [0, 10, 60]
    assert figures_of(schedule).mean_wait_s == pytest.approx(40 / 3)
    # Thousandths times seconds: 2000 for 10 s, 2500 for 50 s, 4000 for 40 s, of 4000 for 100 s.
    assert use.allocation == GpuLevel(mean=305_000 / 400_000, peak=1.0, final=2500 / 4000)
    # 1500 for 50 s.
    assert use.fragmentation == GpuLevel(mean=75_000 / 400_000, peak=0.375, final=0.375)
    assert use.fragmentation_of_free == GpuLevel(mean=75_000 / 95_000, peak=1.0, final=1.0)
    assert use.stranded_nodes == GpuLevel(mean=0.5, peak=1.0, final=1.0)


def test_the_steps_over_time_add_up_to_the_means() -> None:
    _, use = played(*PODS)
    assert sum(one.long_s for one in use.over_time) == 100
    assert sum(use.allocated(one) * one.long_s for one in use.over_time) / 100 == 0.7625
    assert sum(use.fragmented(one) * one.long_s for one in use.over_time) / 100 == 0.1875
    of_free = [use.fragmented_of_free(one) for one in use.over_time]
    assert (of_free[9], of_free[10], of_free[59], of_free[60]) == (0.0, 1.0, 1.0, 0.0)


def test_a_placement_that_spreads_keeps_the_pod_with_two_gpus_waiting() -> None:
    pods = (a_pod(1), a_pod(2, at_s=1), a_pod(3, at_s=2, gpu_milli=2000))
    packed, use = played(*pods, placement="binpack")
    spread, _ = played(*pods, placement="spread")
    assert [one.start_s for one in packed.jobs] == [0, 1, 2]
    # The last arrival counts in the final value, because it was placed at once.
    assert use.allocation.final == 1.0
    assert spread.jobs[2].start_s is not None
    assert spread.jobs[2].start_s >= 100


def test_nothing_played_has_figures_of_nothing() -> None:
    _, use = played()
    assert use.allocation == GpuLevel(mean=0.0, peak=0.0, final=0.0)
    assert use.over_time == ()
