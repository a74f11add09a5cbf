"""Read the traces of real machines, gzipped or not, and make loads of them.

A `Load` is what is played: nodes, queues, and submissions over time. `swf_load` makes one node with
a cpu per processor of the machine, and for each job a group of one pod with the job's processors as
cpus and its request as walltime. `gpu_usage.py` makes a load of the GPU trace.

`read_swf` reads a log in the Standard Workload Format. `read_nodes` and `read_pods` read Alibaba's
GPU trace of 2023: a table of the nodes of a cluster, and one of its pods. The tables are CSV, as
published (https://github.com/alibaba/clusterdata, cluster-trace-gpu-v2023) with Weng et al.,
"Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC 2023. They define the columns so:

- `cpu_milli`, `memory_mib`: thousandths of a core, MiB;
- `gpu` (of a node): whole GPUs, all of one `model`;
- `num_gpu` (of a pod): the number of GPUs; with 1, `gpu_milli` is the share of it in thousandths,
  for pods that share one; with more, they are whole (1000); with 0 it is 0;
- `gpu_spec`: the accepted models, `V100M16|V100M32`; empty: any;
- `creation_time`, `deletion_time`, `scheduled_time`: seconds; a pod that was never scheduled has
  no scheduled_time.

Reading the tables is strict: any other row is an error that names its file and line.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias, TypeVar, cast

from msgspec import Struct, msgpack
from msgspec.structs import replace

from batchq.api.lifecycle import ON_NODE, TERMINAL
from batchq.api.notation import (
    LABEL_MOST,
    SECOND,
    label_problem,
    label_value_problem,
    shown,
    subdomain_problem,
)
from batchq.api.objects import (
    DEFAULT,
    Metadata,
    Node,
    NodeSpec,
    Object,
    Pod,
    PodGroup,
    PodGroupSpec,
    PodTemplate,
    Queue,
    QueueSpec,
    Strategy,
    Task,
    key_of,
)
from batchq.api.transaction import Charge, Transaction, Write
from batchq.client.changes import NewGroups, create, first_contradiction, found_defaults
from batchq.config import SchedulerConfig
from batchq.core.quota.ledger import holders_of_record
from batchq.errors import InvalidInput, NotFound, Rejected
from batchq.lab.simulation.world import write
from batchq.ports import IdSource
from batchq.store.memory import MemoryStore

_LONGEST_LINE_BYTES = 4096


def lines_of(path: Path) -> Generator[tuple[int, str], None, None]:
    """Yield the non-blank lines, stripped, each with its number in the file.

    Raises InvalidInput if the file cannot be read or unpacked, or has a line of more than 4096
    bytes.
    """
    try:
        with _opened(path) as file:
            place = 0
            while data := file.readline(_LONGEST_LINE_BYTES + 1):
                place += 1
                if len(data) > _LONGEST_LINE_BYTES:
                    raise InvalidInput(
                        f"{path}, line {place}: expected at most {_LONGEST_LINE_BYTES} bytes"
                    )
                line = data.decode("utf-8", "replace").strip()
                if line:
                    yield place, line
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InvalidInput(f"{path}: this gzip file is damaged: {error}") from None
    except OSError as error:
        raise InvalidInput(f"{path}: the log cannot be read: {error.strerror or error}") from None


def _opened(path: Path) -> BinaryIO:
    """Open the file, and unpack it if its content is gzipped, whatever its name."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path, "rb")) if packed else path.open("rb")


#: The longest log in the public archive has fewer than four million jobs.
MOST_JOBS = 10_000_000
_FIELDS = 18

#: Indices of the fields that are read.
_NUMBER, _SUBMIT, _RUN, _ALLOCATED, _REQUESTED, _ESTIMATE = 0, 1, 3, 4, 7, 8
_USER, _GROUP, _QUEUE = 11, 12, 14


class TraceJob(Struct, frozen=True, kw_only=True):
    """One job of a log; times in seconds, `submit_s` from the log's start.

    `request_s` is the owner's upper bound of the duration; `run_s` is never longer. `user`, `group`
    and `queue` are the log's numbers; -1: unknown.
    """

    number: int
    submit_s: int
    run_s: int
    processors: int
    request_s: int
    user: int = -1
    group: int = -1
    queue: int = -1


class Trace(Struct, frozen=True, kw_only=True):
    """The jobs of a log in its order, the size of its machine, and how many were dropped."""

    processors: int
    jobs: tuple[TraceJob, ...]
    dropped: int = 0


def read_swf(path: str | Path, *, processors: int | None = None, most: int | None = None) -> Trace:
    """Read the first `most` jobs (all, if None) of the log at `path`, gzipped or not.

    `processors` overrides the machine's size in the log. Jobs larger than the machine are dropped,
    and jobs whose run time, request or processors are zero or unknown, or whose submit time is
    negative. Processors are the requested ones, else the allocated ones. In a log without
    estimates, the run time is the request; a run time beyond the request is cut there, as the
    machine did. Raises InvalidInput.
    """
    machine, rows = _read_log(Path(path), processors)
    # A single job without an estimate is dropped, but a log may have none at all.
    estimated = any(row.request_s > 0 for row in rows)
    jobs: list[TraceJob] = []
    dropped = 0
    for row in rows:
        if most is not None and len(jobs) >= most:
            break
        job = row if estimated else replace(row, request_s=row.run_s)
        if _is_usable(job, machine):
            jobs.append(replace(job, run_s=min(job.run_s, job.request_s)))
        else:
            dropped += 1
    if not jobs:
        raise InvalidInput(
            f"{path}: expected jobs in the Standard Workload Format, found none"
            + (f" that can be run on {machine} processors" if dropped else ""),
            hint="logs of real machines are at https://www.cs.huji.ac.il/labs/parallel/workload/",
        )
    return Trace(processors=machine, jobs=tuple(jobs), dropped=dropped)


def _read_log(path: Path, processors: int | None) -> tuple[int, list[TraceJob]]:
    """Return the machine's size, and every job as written."""
    stated: dict[str, int] = {}
    rows: list[TraceJob] = []
    seen: set[int] = set()
    with closing(lines_of(path)) as lines:
        for place, line in lines:
            if line.startswith(";"):
                stated = _stated_sizes(line) | stated
                continue
            row = _job_of(line, f"{path}, line {place}")
            if row.number in seen:
                raise InvalidInput(f"{path}, line {place}: job {row.number} occurs twice")
            seen.add(row.number)
            rows.append(row)
            if len(rows) > MOST_JOBS:
                raise InvalidInput(f"{path}: expected at most {MOST_JOBS} jobs")
    # A node may have several processors, and the number of nodes usually comes first.
    machine = processors or stated.get("MaxProcs") or stated.get("MaxNodes")
    if machine is None and rows:
        raise InvalidInput(
            f"{path}: the log does not state its machine's number of processors (MaxProcs)",
            hint="state it with --procs",
        )
    return machine or 0, rows


def _job_of(line: str, place: str) -> TraceJob:
    fields = line.split()
    if len(fields) != _FIELDS:
        raise InvalidInput(
            f"{place}: expected {_FIELDS} numbers (Standard Workload Format), found {len(fields)}"
        )
    number, submit, run, allocated, requested, estimate, user, group, queue = (
        _whole(fields[at], place)
        for at in (
            *(_NUMBER, _SUBMIT, _RUN, _ALLOCATED, _REQUESTED, _ESTIMATE),
            *(_USER, _GROUP, _QUEUE),
        )
    )
    return TraceJob(
        number=number,
        submit_s=submit,
        run_s=run,
        processors=requested if requested > 0 else allocated,
        request_s=estimate,
        user=user,
        group=group,
        queue=queue,
    )


def _is_usable(job: TraceJob, machine: int) -> bool:
    return (
        0 < job.processors <= machine and job.run_s > 0 and job.request_s > 0 and job.submit_s >= 0
    )


def _whole(text: str, place: str) -> int:
    try:
        # Some logs write 12.00; fractions of a second are cut off.
        return int(text) if "." not in text else int(float(text))
    except (ValueError, OverflowError):
        raise InvalidInput(f"{place}: expected a number, found {text[:40]!r}") from None


def _stated_sizes(remark: str) -> dict[str, int]:
    """Return the size of the machine that a remark states by its name: `; MaxProcs: 100`, or
    MaxNodes; empty if it states none.
    """
    name, _, value = remark.lstrip("; \t").partition(":")
    first = value.split()[:1]
    if name.strip() not in ("MaxProcs", "MaxNodes") or not first or not first[0].isdecimal():
        return {}
    return {name.strip(): int(first[0])} if int(first[0]) > 0 else {}


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
    nodes = tuple(_rows_of(Path(path), NODE_COLUMNS, _node_of, lambda node: node.name))
    if not nodes:
        raise InvalidInput(f"{path}: expected at least one node below the heading", hint=_SOURCE)
    return nodes


def read_pods(path: str | Path, *, most: int | None = None) -> tuple[OpenbPod, ...]:
    """Read the first `most` pods (all, if None) of a table, gzipped or not.

    The whole table is read and checked. Raises InvalidInput.
    """
    pods = tuple(_rows_of(Path(path), POD_COLUMNS, _pod_of, lambda pod: pod.name))
    if not pods:
        raise InvalidInput(f"{path}: expected at least one pod below the heading", hint=_SOURCE)
    return pods[:most]


def _rows_of(
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
                    f"{place}: {name_of(item)} occurs twice, in line {first} and in this one"
                )
            yield item


def _node_of(fields: Sequence[str], _row: int, place: str) -> OpenbNode:
    name, cpu, memory, gpu, model = fields
    _raise_if(subdomain_problem(name), place, "sn")
    _raise_if(label_value_problem(model), place, "model")
    return OpenbNode(
        name=name,
        cpu_milli=_column_value(cpu, place, "cpu_milli"),
        memory_mib=_column_value(memory, place, "memory_mib"),
        gpus=_column_value(gpu, place, "gpu"),
        model=model,
    )


def _pod_of(fields: Sequence[str], row: int, place: str) -> OpenbPod:
    name, cpu, memory, gpus, share, spec, qos, _phase, created, deleted, scheduled = fields
    _raise_if(label_problem(name), place, "name")
    created_s = _column_value(created, place, "creation_time")
    deleted_s = _column_value(deleted, place, "deletion_time")
    scheduled_s = _column_value(scheduled, place, "scheduled_time") if scheduled else None
    if not created_s <= (created_s if scheduled_s is None else scheduled_s) <= deleted_s:
        raise InvalidInput(
            f"{place}: expected creation_time, scheduled_time and deletion_time in this order,"
            f" found {created}, {scheduled or 'nothing'} and {deleted}"
        )
    return OpenbPod(
        number=row,
        name=name,
        cpu_milli=_column_value(cpu, place, "cpu_milli"),
        memory_mib=_column_value(memory, place, "memory_mib"),
        gpu_milli=_gpu_milli(_column_value(gpus, place, "num_gpu"), share, place),
        models=_models_of(spec, place),
        qos=qos,
        created_s=created_s,
        deleted_s=deleted_s,
        scheduled_s=scheduled_s,
    )


def _gpu_milli(gpus: int, share: str, place: str) -> int:
    """Return the total GPU request in thousandths: whole GPUs, or a share of a single one."""
    each = _column_value(share, place, "gpu_milli")
    if gpus == 1 and 1 <= each <= WHOLE_GPU:
        return each
    expected = "1 to 1000" if gpus == 1 else str(WHOLE_GPU if gpus else 0)
    if expected != str(each):
        raise InvalidInput(
            f"{place}: gpu_milli: expected {expected} with num_gpu {gpus}, found {each}"
        )
    return gpus * WHOLE_GPU


def _models_of(spec: str, place: str) -> tuple[str, ...]:
    """Return the models of a gpu_spec, each once."""
    if not spec:
        return ()
    models = sorted(set(spec.split("|")))
    for model in models:
        problem = label_value_problem(model) if model else "expected a model, found nothing"
        _raise_if(problem, place, "gpu_spec")
    if len(".".join(models)) > LABEL_MOST:
        # Nodes get a label with all these names.
        raise InvalidInput(
            f"{place}: gpu_spec: expected models whose names have at most {LABEL_MOST} characters"
            f" together, found {shown(spec)}"
        )
    return tuple(models)


def _raise_if(problem: str, place: str, column: str) -> None:
    if problem:
        raise InvalidInput(f"{place}: {column}: {problem}")


def _column_value(text: str, place: str, column: str) -> int:
    most = _MOST_SECONDS if column.endswith("_time") else _MOST_AMOUNT
    if text.isascii() and text.isdigit() and len(text) <= len(str(most)) and int(text) <= most:
        return int(text)
    raise InvalidInput(
        f"{place}: {column}: expected a whole number up to {most},"
        f" found {shown(text) if text else 'nothing'}"
    )


#: The field of a log that separates tenants.
By: TypeAlias = Literal["user", "group", "queue"]

#: The name of a log's only node.
MACHINE = "machine"
_CPU_MILLI = 1000


class Arrival(Struct, frozen=True, kw_only=True):
    """A submission of `group` at `at_s`; each of its pods runs for `run_s`, None: until stopped.

    `number` is its number in the log; `size` its weight in figures, all pods together.
    """

    at_s: int
    group: PodGroup
    run_s: int | None
    number: int
    tenant: str
    size: int


class Load(Struct, frozen=True, kw_only=True):
    """Everything to play. `capacity` is that of all nodes, in the unit of `Arrival.size`.

    Arrivals are ordered by time; those of one instant are submitted in the given order. An
    arrival's index is its uid, which breaks all ties.
    """

    title: str
    capacity: int
    nodes: tuple[Node, ...]
    queues: tuple[Queue, ...]
    arrivals: tuple[Arrival, ...]


def swf_load(
    trace: Trace,
    *,
    title: str = "",
    strategy: Strategy | None = None,
    by: By | None = None,
    queues: Sequence[Queue] = (),
) -> Load:
    """Return the load of a log, with one queue, or with a namespace and a queue per `by`.

    `queues` replace those of the same name, and one called `default` is the template for all
    others; further ones are added. Every queue that does not state its own strategy gets
    `strategy`.
    """
    ordered = sorted(enumerate(trace.jobs), key=lambda item: (item[1].submit_s, item[0]))
    jobs = [job for _, job in ordered]
    tenants = dict.fromkeys(_tenant(job, by) for job in jobs)
    specs: dict[tuple[str, int, int], PodGroupSpec] = {}
    return Load(
        title=title,
        capacity=trace.processors,
        nodes=(_machine(trace.processors),),
        queues=_queues(tenants, {queue.metadata.name: queue for queue in queues}, strategy),
        arrivals=tuple(_arrival(job, _tenant(job, by), specs) for job in jobs),
    )


def _machine(processors: int) -> Node:
    return Node(
        metadata=Metadata(name=MACHINE),
        spec=NodeSpec(resources={"cpu": processors * _CPU_MILLI}),
    )


def sharing_specs(load: Load) -> Load:
    """Return an equal load in which groups with equal specs share one object."""
    known: dict[bytes, PodGroupSpec] = {}
    arrivals = []
    for one in load.arrivals:
        spec = known.setdefault(msgpack.encode(one.group.spec), one.group.spec)
        arrivals.append(replace(one, group=replace(one.group, spec=spec)))
    return replace(load, arrivals=tuple(arrivals))


def _tenant(job: TraceJob, by: By | None) -> str:
    """Return `user-12`, `group-5`, `queue-1`, or `user-unknown` if the log does not say."""
    if by is None:
        return DEFAULT
    number = {"user": job.user, "group": job.group, "queue": job.queue}[by]
    return f"{by}-{number}" if number >= 0 else f"{by}-unknown"


def _queues(
    tenants: Iterable[str], stated: Mapping[str, Queue], strategy: Strategy | None
) -> tuple[Queue, ...]:
    pattern = stated.get(DEFAULT, Queue(metadata=Metadata(name=DEFAULT))).spec
    names = dict.fromkeys((*stated, *tenants))
    return tuple(
        Queue(
            metadata=Metadata(name=name),
            spec=_with_strategy(stated[name].spec if name in stated else pattern, strategy),
        )
        for name in names
    )


def _with_strategy(spec: QueueSpec, strategy: Strategy | None) -> QueueSpec:
    """Return the spec with `strategy`, unless the queue states its own."""
    if strategy is None or spec.strategy != Strategy():
        return spec
    return replace(spec, strategy=strategy)


def _arrival(
    job: TraceJob, tenant: str, specs: dict[tuple[str, int, int], PodGroupSpec]
) -> Arrival:
    """Return a job's arrival. `specs` caches specs, which jobs with equal requests share."""
    asked = (tenant, job.processors, job.request_s)
    if asked not in specs:
        specs[asked] = _spec(*asked)
    # Without a hyphen, no other name could lead to pods of the same names.
    meta = Metadata(name=f"job{job.number}", namespace=tenant)
    group = PodGroup(metadata=meta, spec=specs[asked])
    return Arrival(
        at_s=job.submit_s,
        group=group,
        run_s=job.run_s,
        number=job.number,
        tenant=tenant,
        size=job.processors,
    )


def _spec(tenant: str, processors: int, request_s: int) -> PodGroupSpec:
    template = PodTemplate(requests={"cpu": processors * _CPU_MILLI})
    return PodGroupSpec(
        queue=tenant,
        walltime=request_s * SECOND,
        tasks=(Task(name="job", template=template),),
    )


POLICIES: Mapping[str, Strategy] = {
    "fcfs": Strategy(type="StrictFIFO"),
    "first-fit": Strategy(type="BestEffortFIFO"),
    "easy": Strategy(type="Backfill", order="fcfs", reservations="1"),
    "easy-sjf": Strategy(type="Backfill", order="shortest", reservations="1"),
    "conservative": Strategy(type="Backfill", order="fcfs", reservations="all"),
}
#: The default policy: the default strategy of queues.
DEFAULT_POLICY = "first-fit"

#: The configuration under which policies are played.
POLICY_CONFIG = SchedulerConfig()


def strategy_of(policy: str) -> Strategy:
    """Return the strategy of a short name. Raises InvalidInput."""
    if policy not in POLICIES:
        raise InvalidInput(f"there is no policy {policy!r}; expected one of {', '.join(POLICIES)}")
    return POLICIES[policy]


def empty_cluster(load: Load, requests: IdSource) -> MemoryStore:
    """Return a store with the nodes and queues only.

    Raises InvalidInput or Rejected if the rules refuse one of them.
    """
    store = MemoryStore()
    contradiction = first_contradiction(load.queues)
    if contradiction is not None:
        raise contradiction[1]
    founded: tuple[Object, ...] = (*load.queues, *load.nodes)
    for place, obj in enumerate(founded):
        # in_part: the queues were checked together; described: nodes need no heartbeat.
        created = create(store, obj, now_ms=0, uid=str(place), described=True, in_part=True)
        write(store, requests, created)
    write(store, requests, found_defaults(store, now_ms=0, uid="default"))
    return store


class Submitter:
    """Accepts submissions; owns a cache of the accepted specs.

    Many groups of a log share one spec, the very same object, which is checked only once. Queues
    and priority classes do not change while a load plays.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._arrivals = NewGroups(store)
        #: (namespace, id of a spec) -> the spec; the reference keeps the id from being reused.
        self._accepted: dict[tuple[str, int], PodGroupSpec] = {}

    def submitted(self, group: PodGroup, uid: str, now_ms: int) -> Transaction:
        """Return the transaction that submits the group, as `create` would.

        Raises InvalidInput, Conflict or Rejected.
        """
        name, namespace = group.metadata.name, group.metadata.namespace
        place = (namespace, id(group.spec))
        if group.metadata != Metadata(name=name, namespace=namespace) or label_problem(name):
            return create(self._store, group, now_ms=now_ms, uid=uid, described=True)
        if place in self._accepted and self._store.get("PodGroup", key_of(group)) is None:
            return self._arrivals.submission(group, now_ms=now_ms, uid=uid, by="")
        created = create(self._store, group, now_ms=now_ms, uid=uid, described=True)
        if not group.spec.depends_on and self._is_placed(group):
            self._accepted[place] = group.spec
        return created

    def _is_placed(self, group: PodGroup) -> bool:
        """Return whether all references exist; a described world may lack them."""
        try:
            self._arrivals.check(group)
        except (NotFound, Rejected):
            return False
        return True


def removal_of(group: PodGroup, pods: Sequence[Pod]) -> Transaction:
    """Return the removal of a group with its pods and charges. The charges may include pods that
    were stopped and whose end no session has seen yet.
    """
    released = holders_of_record(group)
    released += [f"pod:{pod.metadata.uid}" for pod in pods if pod.status.phase in ON_NODE]
    if group.status.phase not in TERMINAL:
        released.append(f"object:{group.metadata.uid}")
    key = key_of(group)
    return Transaction(
        subject=key,
        writes=(
            Write(kind="PodGroup", key=key, expect=group.metadata.revision, value=None),
            *[
                Write(kind="Pod", key=pod.metadata.uid, expect=pod.metadata.revision, value=None)
                for pod in pods
            ],
        ),
        charges=tuple([Charge(holder=holder) for holder in released]),
    )
