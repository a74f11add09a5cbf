"""Reading of Alibaba's tables of nodes and pods, with the messages for mistakes."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from batchq.errors import InvalidInput
from batchq.lab.traces import OpenbNode, OpenbPod, read_nodes, read_pods

NODES = """sn,cpu_milli,memory_mib,gpu,model
node-0,32000,262144,0,
node-1,96000,393216,8,G2
"""
HEADING = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,deletion_time,scheduled_time\n"
)
PODS = HEADING + (
    "pod-0,12000,16384,1,460,,LS,Running,10,110,20\n"
    "pod-1,8000,30517,0,0,,BE,Running,11,12,11\n"
    "pod-2,88000,327680,8,1000,V100M32|V100M16,Burstable,Pending,12,40,\n"
)


def written(folder: Path, text: str, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_nodes_have_whole_gpus_of_one_model_or_none(tmp_path: Path) -> None:
    assert read_nodes(written(tmp_path, NODES)) == (
        OpenbNode(name="node-0", cpu_milli=32000, memory_mib=262144, gpus=0, model=""),
        OpenbNode(name="node-1", cpu_milli=96000, memory_mib=393216, gpus=8, model="G2"),
    )


def test_pods_ask_for_a_share_of_a_gpu_or_for_whole_ones_in_thousandths(tmp_path: Path) -> None:
    assert read_pods(written(tmp_path, PODS)) == (
        OpenbPod(
            number=1,
            name="pod-0",
            cpu_milli=12000,
            memory_mib=16384,
            gpu_milli=460,
            qos="LS",
            created_s=10,
            deleted_s=110,
            scheduled_s=20,
        ),
        OpenbPod(
            number=2,
            name="pod-1",
            cpu_milli=8000,
            memory_mib=30517,
            gpu_milli=0,
            qos="BE",
            created_s=11,
            deleted_s=12,
            scheduled_s=11,
        ),
        OpenbPod(
            number=3,
            name="pod-2",
            cpu_milli=88000,
            memory_mib=327680,
            gpu_milli=8000,
            models=("V100M16", "V100M32"),
            qos="Burstable",
            created_s=12,
            deleted_s=40,
            scheduled_s=None,
        ),
    )


def test_a_pod_ran_from_its_placement_or_else_from_its_creation_to_its_end(tmp_path: Path) -> None:
    assert [pod.run_s for pod in read_pods(written(tmp_path, PODS))] == [90, 1, 28]


def test_the_first_pods_only_but_the_whole_table_must_be_right(tmp_path: Path) -> None:
    path = written(tmp_path, PODS)
    assert [pod.name for pod in read_pods(path, most=2)] == ["pod-0", "pod-1"]
    broken = written(tmp_path, PODS.replace("88000", "many"), "broken.csv")
    with pytest.raises(InvalidInput, match="line 4: cpu_milli"):
        read_pods(broken, most=1)


def test_tables_may_be_packed_and_have_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "table.csv.gz"
    path.write_bytes(gzip.compress(("\ufeff" + NODES).replace("\n", "\r\n").encode()))
    assert [node.name for node in read_nodes(path)] == ["node-0", "node-1"]


def row(
    *,
    name: str = "pod-9",
    cpu: str = "1000",
    gpus: str = "0",
    share: str = "0",
    spec: str = "",
    times: str = "1,9,2",
) -> str:
    return f"{name},{cpu},1024,{gpus},{share},{spec},LS,Running,{times}\n"


BAD_PODS = {
    "another table": (NODES, "expected the heading name,cpu_milli,"),
    "nothing at all": ("", "found an empty file"),
    "a heading alone": (HEADING, "expected at least one pod below the heading"),
    "a column less": (HEADING + "pod-9,1000,1024\n", "line 2: expected 11 columns, found 3"),
    "a column more": (HEADING + row().replace("LS", "LS,x"), "expected 11 columns, found 12"),
    "no number": (HEADING + row(cpu="1.5"), "line 2: cpu_milli: expected a whole number up to"),
    "a negative one": (HEADING + row(cpu="-1"), "line 2: cpu_milli: expected a whole number"),
    "more than there is": (HEADING + row(cpu="1000000001"), "up to 1000000000, found '1000000001'"),
    "an empty number": (HEADING + row(cpu=""), "line 2: cpu_milli: .* found nothing"),
    "a name twice": (
        HEADING + row() + row(),
        "line 3: pod-9 occurs twice, in line 2 and in this one",
    ),
    "no fit name": (HEADING + row(name="Pod_9"), "line 2: name: expected at most 63 lower-case"),
    "shares of two": (HEADING + row(gpus="2", share="500"), "expected 1000 with num_gpu 2"),
    "a share of none": (HEADING + row(share="500"), "expected 0 with num_gpu 0, found 500"),
    "more than one in one": (HEADING + row(gpus="1", share="1001"), "expected 1 to 1000 with"),
    "nothing of one": (HEADING + row(gpus="1"), "line 2: gpu_milli: expected 1 to 1000 with"),
    "an empty model": (HEADING + row(spec="T4|"), "gpu_spec: expected a model, found nothing"),
    "no fit model": (HEADING + row(spec="T4|a b"), "line 2: gpu_spec: expected at most 63 letters"),
    "an end before the start": (HEADING + row(times="5,9,4"), "expected creation_time, scheduled"),
    "never placed and gone before": (HEADING + row(times="5,4,"), "found 5, nothing and 4"),
}


@pytest.mark.parametrize(("text", "message"), BAD_PODS.values(), ids=BAD_PODS)
def test_an_invalid_table_of_pods_is_refused_with_file_and_line(
    tmp_path: Path, text: str, message: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidInput, match=message) as caught:
        read_pods(path)
    assert str(path) in caught.value.message


BAD_NODES = {
    "another table": (PODS, "expected the heading sn,cpu_milli,memory_mib,gpu,model"),
    "a heading alone": (NODES.splitlines()[0], "expected at least one node below the heading"),
    "half a gpu": (NODES.replace(",8,", ",0.5,"), "line 3: gpu: expected a whole number"),
    "a name twice": (NODES.replace("node-1", "node-0"), "line 3: node-0 occurs twice"),
    "no fit model": (NODES.replace("G2", "G|2"), "line 3: model: expected at most 63 letters"),
}


@pytest.mark.parametrize(("text", "message"), BAD_NODES.values(), ids=BAD_NODES)
def test_an_invalid_table_of_nodes_is_refused_with_file_and_line(
    tmp_path: Path, text: str, message: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidInput, match=message) as caught:
        read_nodes(path)
    assert str(path) in caught.value.message


def test_models_are_too_many_for_a_label(tmp_path: Path) -> None:
    spec = "|".join(f"MODEL{number:02d}" for number in range(9))
    with pytest.raises(InvalidInput, match="names have at most 63 characters together"):
        read_pods(written(tmp_path, HEADING + row(gpus="1", share="10", spec=spec)))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"gone\.csv: the log cannot be read"):
        read_nodes(tmp_path / "gone.csv")
    damaged = tmp_path / "damaged.csv.gz"
    damaged.write_bytes(gzip.compress(NODES.encode())[:40])
    with pytest.raises(InvalidInput, match="this gzip file is damaged"):
        read_nodes(damaged)
    with pytest.raises(InvalidInput, match="line 2: expected at most 4096 bytes"):
        read_nodes(written(tmp_path, NODES.splitlines()[0] + "\n" + "x" * 5000))
