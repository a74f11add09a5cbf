"""The free GPUs that a workload cannot use: Weng et al.'s measure, over amounts."""

from __future__ import annotations

from fractions import Fraction

from batchq.lab.gpu_usage import GpuMeter, Place, Shape, Typical, typical_shapes

#: Three of four pods share a GPU; one needs a whole one, and two cores with it.
SHARE = Shape(cpu=1000, memory=1, gpu=500)
WHOLE = Shape(cpu=2000, memory=1, gpu=1000)
WORKLOAD = (SHARE, SHARE, SHARE, WHOLE)

TWO_GPUS = Place(name="a", cpu=4000, memory=10, gpu=2000, labels={"gpu-model": "T4"})
ONE_GPU = Place(name="b", cpu=1000, memory=10, gpu=1000, labels={"gpu-model": "A10"})
NO_GPU = Place(name="c", cpu=64000, memory=10, gpu=0, labels={})

TAKE_ALL_CPU = {"cpu": 4000, "memory": 1, "gpu": 500, "pods": 1000}


def test_free_gpu_is_a_fragment_for_pods_that_lack_cores_beside_it() -> None:
    # On b, the pod with a whole GPU finds too few cores: a quarter of the 1000 is fragmented.
    reading = GpuMeter([TWO_GPUS, ONE_GPU, NO_GPU], WORKLOAD).reading()
    assert (reading.capacity, reading.allocated, reading.fragmented) == (3000, 0, 250)
    assert reading.fragmentation == 250 / 3000
    assert reading.fragmentation_of_free == 250 / 3000
    assert (reading.stranded, reading.stranded_gpu) == (0, 0)


def test_allocations_create_fragments_and_releases_remove_them() -> None:
    meter = GpuMeter([TWO_GPUS, ONE_GPU], WORKLOAD)
    before = meter.reading()
    meter.take("a", TAKE_ALL_CPU)
    # No pod finds a core on a any more, so all of its 1500 is fragmented.
    reading = meter.reading()
    assert (reading.allocated, reading.fragmented) == (500, 1500 + 250)
    assert reading.allocation == 500 / 3000
    assert reading.fragmentation_of_free == 1750 / 2500
    assert (reading.stranded, reading.stranded_gpu) == (1, 1500)
    meter.give_back("a", TAKE_ALL_CPU)
    assert meter.reading() == before


def test_too_little_gpu_is_a_fragment_but_its_node_is_not_stranded() -> None:
    meter = GpuMeter([TWO_GPUS], WORKLOAD)
    meter.take("a", {"cpu": 1000, "gpu": 1600})
    reading = meter.reading()
    assert (reading.allocated, reading.fragmented, reading.stranded) == (1600, 400, 0)


def test_too_little_memory_makes_fragments_and_strands_too() -> None:
    meter = GpuMeter([TWO_GPUS], WORKLOAD)
    meter.take("a", {"cpu": 1000, "memory": 10, "gpu": 500})
    reading = meter.reading()
    assert (reading.fragmented, reading.stranded, reading.stranded_gpu) == (1500, 1, 1500)


def test_halves_of_two_gpus_are_a_whole_one_as_nodes_count_amounts() -> None:
    meter = GpuMeter([TWO_GPUS], WORKLOAD)
    for _ in range(2):
        meter.take("a", {"cpu": 1000, "gpu": 500})
    assert meter.reading().fragmented == 0


def test_all_free_gpu_is_a_fragment_for_pods_without_gpu() -> None:
    only_cpu = Shape(cpu=1000, memory=1, gpu=0)
    meter = GpuMeter([TWO_GPUS], (SHARE, SHARE, only_cpu))
    assert meter.reading().fragmented == Fraction(2000, 3)


def test_a_gpu_of_another_model_is_a_fragment() -> None:
    picky = Shape(cpu=1000, memory=1, gpu=500, selector=(("gpu-model", "A10"),))
    meter = GpuMeter([TWO_GPUS, ONE_GPU], (SHARE, picky))
    assert meter.reading().fragmented == 1000


def test_a_full_cluster_and_one_without_a_workload_have_figures_too() -> None:
    meter = GpuMeter([ONE_GPU], ())
    meter.take("b", {"gpu": 1000})
    reading = meter.reading()
    assert (reading.allocation, reading.fragmentation_of_free) == (1.0, 0.0)
    assert GpuMeter([NO_GPU], WORKLOAD).reading().allocation == 0.0


def test_the_most_frequent_shapes_count_until_95_percent_of_the_pods_are_counted() -> None:
    rare = Shape(cpu=9000, memory=1, gpu=8000)
    shapes = [SHARE] * 60 + [WHOLE] * 35 + [rare] * 5
    assert typical_shapes(reversed(shapes)) == (
        Typical(shape=SHARE, pods=60),
        Typical(shape=WHOLE, pods=35),
    )
    assert typical_shapes([*shapes, rare])[-1] == Typical(shape=rare, pods=6)


def test_the_smaller_of_equally_frequent_shapes_counts_first() -> None:
    shapes = [WHOLE, SHARE] * 10
    assert [one.shape for one in typical_shapes(shapes, percent=50)] == [SHARE]
