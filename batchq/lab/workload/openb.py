"""Alibaba's GPU trace of 2023: a table of the nodes of a cluster, and one of its pods.

The tables are CSV, as published (https://github.com/alibaba/clusterdata, cluster-trace-gpu-v2023)
with Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent", USENIX ATC 2023. They define the columns so:

- `cpu_milli`, `memory_mib`: thousandths of a core, MiB;
- `gpu` (of a node): whole GPUs, all of one `model`;
- `num_gpu` (of a pod): the number of GPUs; with 1, `gpu_milli` is the share of it in thousandths,
  for pods that share one; with more, they are whole (1000); with 0 it is 0;
- `gpu_spec`: the accepted models, `V100M16|V100M32`; empty: any;
- `creation_time`, `deletion_time`, `scheduled_time`: seconds; a pod that was never scheduled has
  no scheduled_time.

Reading is strict: any other row is an error that names its file and line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from batchq.api.notation import (
    LABEL_MOST,
    label_problem,
    label_value_problem,
    shown,
    subdomain_problem,
)
from batchq.errors import InvalidInput
from batchq.lab.workload.swf import lines_of

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = (
    "name",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "qos",
    "pod_phase",
    "creation_time",
    "deletion_time",
    "scheduled_time",
)
#: Thousandths of a GPU in a whole one.
WHOLE_GPU = 1000
MOST_ROWS = 1_000_000
_SOURCE = "the tables are at https://github.com/alibaba/clusterdata, in cluster-trace-gpu-v2023"
#: A million cores, a petabyte: beyond any machine, and bytes stay below 2^53.
_MOST_AMOUNT = 10**9
_MOST_SECONDS = 10**12

T = TypeVar("T")


class OpenbNode(Struct, frozen=True, kw_only=True):
    """One machine. `model` is that of its GPUs, '' without any."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str = ""


class OpenbPod(Struct, frozen=True, kw_only=True):
    """One pod: its requests, and when it was created, placed and deleted.

    `number` is its row in the table, from 1; `gpu_milli` is its total request of GPUs, in
    thousandths. `models` are the accepted ones, in alphabetical order; empty: any. `scheduled_s` is
    None for a pod that was never placed.
    """

    number: int
    name: str
    cpu_milli: int
    memory_mib: int
    gpu_milli: int
    models: tuple[str, ...] = ()
    qos: str = ""
    created_s: int = 0
    deleted_s: int = 0
    scheduled_s: int | None = None

    @property
    def run_s(self) -> int:
        """The duration in seconds from its placement, or else its creation, to its deletion."""
        started_s = self.created_s if self.scheduled_s is None else self.scheduled_s
        return self.deleted_s - started_s


def read_nodes(path: str | Path) -> tuple[OpenbNode, ...]:
    """Read a table of nodes, gzipped or not. Raises InvalidInput."""
    nodes = tuple(_table(Path(path), NODE_COLUMNS, _node, lambda node: node.name))
    if not nodes:
        raise InvalidInput(f"{path}: expected at least one node below the heading", hint=_SOURCE)
    return nodes


def read_pods(path: str | Path, *, most: int | None = None) -> tuple[OpenbPod, ...]:
    """Read the first `most` pods (all, if None) of a table, gzipped or not.

    The whole table is read and checked. Raises InvalidInput.
    """
    pods = tuple(_table(Path(path), POD_COLUMNS, _pod, lambda pod: pod.name))
    if not pods:
        raise InvalidInput(f"{path}: expected at least one pod below the heading", hint=_SOURCE)
    return pods[:most]


def _table(
    path: Path,
    columns: Sequence[str],
    read: Callable[[Sequence[str], int, str], T],
    name_of: Callable[[T], str],
) -> Iterator[T]:
    """Yield each row below the heading, parsed by `read(fields, row, place)`; names are unique."""
    seen: dict[str, int] = {}
    with closing(lines_of(path)) as lines:
        _, heading = next(lines, (0, ""))
        found = tuple(heading.removeprefix("\ufeff").split(","))
        if found != tuple(columns):
            raise InvalidInput(
                f"{path}: expected the heading {','.join(columns)},"
                f" found {shown(heading, most=200) if heading else 'an empty file'}",
                hint=_SOURCE,
            )
        for row, (line, text) in enumerate(lines, start=1):
            place = f"{path}, line {line}"
            fields = text.split(",")
            if len(fields) != len(columns):
                raise InvalidInput(f"{place}: expected {len(columns)} columns, found {len(fields)}")
            if row > MOST_ROWS:
                raise InvalidInput(f"{place}: expected at most {MOST_ROWS} rows")
            item = read(fields, row, place)
            if (first := seen.setdefault(name_of(item), line)) != line:
                raise InvalidInput(
                    f"{place}: {name_of(item)} is there twice, in line {first} and here"
                )
            yield item


def _node(fields: Sequence[str], _row: int, place: str) -> OpenbNode:
    name, cpu, memory, gpu, model = fields
    _check(subdomain_problem(name), place, "sn")
    _check(label_value_problem(model), place, "model")
    return OpenbNode(
        name=name,
        cpu_milli=_whole(cpu, place, "cpu_milli"),
        memory_mib=_whole(memory, place, "memory_mib"),
        gpus=_whole(gpu, place, "gpu"),
        model=model,
    )


def _pod(fields: Sequence[str], row: int, place: str) -> OpenbPod:
    name, cpu, memory, gpus, share, spec, qos, _phase, created, deleted, scheduled = fields
    _check(label_problem(name), place, "name")
    created_s = _whole(created, place, "creation_time")
    deleted_s = _whole(deleted, place, "deletion_time")
    scheduled_s = _whole(scheduled, place, "scheduled_time") if scheduled else None
    if not created_s <= (created_s if scheduled_s is None else scheduled_s) <= deleted_s:
        raise InvalidInput(
            f"{place}: expected creation_time, scheduled_time and deletion_time in this order,"
            f" found {created}, {scheduled or 'nothing'} and {deleted}"
        )
    return OpenbPod(
        number=row,
        name=name,
        cpu_milli=_whole(cpu, place, "cpu_milli"),
        memory_mib=_whole(memory, place, "memory_mib"),
        gpu_milli=_gpu_milli(_whole(gpus, place, "num_gpu"), share, place),
        models=_models(spec, place),
        qos=qos,
        created_s=created_s,
        deleted_s=deleted_s,
        scheduled_s=scheduled_s,
    )


def _gpu_milli(gpus: int, share: str, place: str) -> int:
    """Return the total GPU request in thousandths: whole GPUs, or a share of a single one."""
    each = _whole(share, place, "gpu_milli")
    if gpus == 1 and 1 <= each <= WHOLE_GPU:
        return each
    expected = "1 to 1000" if gpus == 1 else str(WHOLE_GPU if gpus else 0)
    if expected != str(each):
        raise InvalidInput(
            f"{place}: gpu_milli: expected {expected} with num_gpu {gpus}, found {each}"
        )
    return gpus * WHOLE_GPU


def _models(spec: str, place: str) -> tuple[str, ...]:
    """Return the models of a gpu_spec, each once."""
    if not spec:
        return ()
    models = sorted(set(spec.split("|")))
    for model in models:
        problem = label_value_problem(model) if model else "expected a model, found nothing"
        _check(problem, place, "gpu_spec")
    if len(".".join(models)) > LABEL_MOST:
        # Nodes get a label with all these names.
        raise InvalidInput(
            f"{place}: gpu_spec: expected models whose names have at most {LABEL_MOST} characters"
            f" together, found {shown(spec)}"
        )
    return tuple(models)


def _check(problem: str, place: str, column: str) -> None:
    if problem:
        raise InvalidInput(f"{place}: {column}: {problem}")


def _whole(text: str, place: str, column: str) -> int:
    most = _MOST_SECONDS if column.endswith("_time") else _MOST_AMOUNT
    if text.isascii() and text.isdigit() and len(text) <= len(str(most)) and int(text) <= most:
        return int(text)
    raise InvalidInput(
        f"{place}: {column}: expected a whole number up to {most},"
        f" found {shown(text) if text else 'nothing'}"
    )
