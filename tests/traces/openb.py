"""Small clusters and pods of Alibaba's trace for tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from batchq.lab.traces import NODE_COLUMNS, POD_COLUMNS, OpenbNode, OpenbPod


def a_node(name: str, *, gpus: int = 2, cpus: int = 4, model: str = "T4") -> OpenbNode:
    """Return a machine with enough memory."""
    return OpenbNode(
        name=name,
        cpu_milli=cpus * 1000,
        memory_mib=65536,
        gpus=gpus,
        model=model if gpus else "",
    )


def a_pod(
    number: int,
    *,
    gpu_milli: int = 1000,
    cpus: int = 1,
    at_s: int = 0,
    run_s: int = 100,
    models: tuple[str, ...] = (),
) -> OpenbPod:
    """Return a pod that was placed at once, and requests little memory."""
    return OpenbPod(
        number=number,
        name=f"pod-{number}",
        cpu_milli=cpus * 1000,
        memory_mib=1024,
        gpu_milli=gpu_milli,
        models=models,
        created_s=at_s,
        scheduled_s=at_s,
        deleted_s=at_s + run_s,
    )


def nodes_csv(folder: Path, nodes: Iterable[OpenbNode]) -> Path:
    """Write the nodes in Alibaba's format."""
    rows = [f"{one.name},{one.cpu_milli},{one.memory_mib},{one.gpus},{one.model}" for one in nodes]
    return _written(folder / "nodes.csv", NODE_COLUMNS, rows)


def pods_csv(folder: Path, pods: Iterable[OpenbPod]) -> Path:
    """Write the pods in Alibaba's format."""
    rows = []
    for one in pods:
        gpus, share = (one.gpu_milli // 1000, 1000) if one.gpu_milli >= 1000 else (1, one.gpu_milli)
        gpu = f"{gpus},{share}" if one.gpu_milli else "0,0"
        scheduled = "" if one.scheduled_s is None else one.scheduled_s
        rows.append(
            f"{one.name},{one.cpu_milli},{one.memory_mib},{gpu},{'|'.join(one.models)},LS,Running,"
            f"{one.created_s},{one.deleted_s},{scheduled}"
        )
    return _written(folder / "pods.csv", POD_COLUMNS, rows)


def _written(path: Path, columns: Iterable[str], rows: Iterable[str]) -> Path:
    path.write_text("\n".join([",".join(columns), *rows, ""]))
    return path
