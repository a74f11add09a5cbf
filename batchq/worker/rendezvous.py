"""How the pods of a gang with `spec.launch` find each other.

Each agent reserves ports for its pods and states them, with its address, in the start claim. Once
the leader has seen the claims of all pods, every agent reads them and starts its own with
`launch_environment`: the variables by which PyTorch, JAX, Dask and, on request, programs for Slurm
find their peers. Addresses are those of the agents, so no name has to be resolved.

All functions are pure. docs/distributed.md has the same table of variables for users.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from itertools import groupby
from zlib import crc32

import msgspec
from msgspec import Struct

from batchq.api.exec_session import ALLOCATION_VARIABLE, launcher_variables
from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import (
    Launch,
    Pod,
    PodGroup,
    PodTemplate,
    Task,
    has_ended,
    key_of,
    uid_of_pod,
)
from batchq.api.resources import CPU, GPU

_WHOLE = 1000
_HAS_STARTED = frozenset({PodPhase.RUNNING, PodPhase.SUCCEEDED, PodPhase.FAILED})
#: The same in a gang where a failed pod is restarted alone, at another place.
_STAYS = frozenset({PodPhase.RUNNING, PodPhase.SUCCEEDED})
_RUNS = frozenset({PodPhase.RUNNING})


class Peer(Struct, frozen=True, kw_only=True):
    """One pod of a gang, as the others reach it.

    `rank` is its place in the group: tasks as written, then the index. `host` is what the host file
    calls it. `processes` is how many processes it starts.
    """

    rank: int
    task: str
    index: int
    node: str
    address: str
    ports: tuple[int, ...]
    host: str
    processes: int = 1
    has_succeeded: bool = False


def uids_of_gang(group: PodGroup) -> tuple[str, ...]:
    """Return the uids of all pods of a group's present admission, by rank."""
    pods = sum(task.replicas for task in group.spec.tasks)
    uid, admission = group.metadata.uid, group.status.admission
    return tuple(uid_of_pod(uid, admission, rank) for rank in range(pods))


def rejoins(group: PodGroup) -> bool:
    """Return whether a pod of a gang is restarted alone, and then meets those that run."""
    launch = group.spec.launch
    return launch is not None and launch.restart == "pod"


def is_mpi(group: PodGroup) -> bool:
    """Return whether pod 0 of a gang starts processes in the others."""
    launch = group.spec.launch
    return launch is not None and launch.style == "mpi"


def is_elastic(group: PodGroup) -> bool:
    """Return whether a gang starts with fewer than all of its pods, and others join later."""
    least = group.spec.min_member
    return least is not None and least < sum(task.replicas for task in group.spec.tasks)


def _may_start(pod: Pod | None, group: PodGroup) -> bool:
    return pod is not None and not has_ended(pod, group.spec.retry.limit)


def is_complete(group: PodGroup) -> bool:
    """Return whether the leader has seen the claims of all pods of a gang."""
    return group.status.phase == PodGroupPhase.RUNNING


def has_met(group: PodGroup, pod: Pod) -> bool:
    """Return whether the gang of `pod`, and not another of the same name, is complete."""
    is_its_own = (group.metadata.uid, group.status.admission) == (
        pod.status.group_uid,
        pod.status.admission,
    )
    return is_its_own and is_complete(group)


def peers_of(group: PodGroup, pods: Mapping[str, Pod | None]) -> tuple[Peer, ...] | None:
    """Return the peers in a gang, by rank; None if one of the `pods` (by uid) has not started, or
    has left its node since, so that the gang cannot be complete.

    In an elastic gang, these are the pods that run; None while pod 0, at which they meet, may still
    start.
    """
    launch = group.spec.launch
    if launch is None:
        return None
    elastic = is_elastic(group)
    there = _RUNS if elastic else _STAYS if rejoins(group) else _HAS_STARTED
    peers: list[Peer] = []
    places = enumerate(uids_of_gang(group))
    for task in group.spec.tasks:
        processes = processes_of(launch, task.template)
        for index in range(task.replicas):
            rank, uid = next(places)
            pod = pods.get(uid)
            if pod is None or pod.status.phase not in there or not pod.status.ports:
                if not elastic or (rank == 0 and _may_start(pod, group)):
                    return None
                continue
            peer = Peer(
                rank=rank,
                task=task.name,
                index=index,
                node=pod.status.node,
                address=pod.status.address,
                ports=pod.status.ports,
                processes=processes,
                host=pod.metadata.name if launch.style == "mpi" else pod.status.address,
                has_succeeded=pod.status.phase == PodPhase.SUCCEEDED,
            )
            peers.append(peer)
    return tuple(peers)


def processes_of(launch: Launch, template: PodTemplate) -> int:
    """Return how many processes each pod of a task starts."""
    if launch.style == "rank":
        return 1
    if isinstance(launch.processes, int):
        return launch.processes
    cpus = template.requests.get(CPU, 0) // _WHOLE if launch.style == "mpi" else 1
    return gpus_of(template) or max(1, cpus)


def gpus_of(template: PodTemplate) -> int:
    """Return how many GPUs a pod sees; a part of one counts as one."""
    return -(-template.requests.get(GPU, 0) // _WHOLE)


def unreachable(peers: Sequence[Peer]) -> str:
    """Return why some peers cannot reach others, or "": a loopback address is known only on its
    own machine, and other addresses say that there are several.
    """
    local = [peer for peer in peers if ip_address(peer.address).is_loopback]
    if not local or len(local) == len(peers):
        return ""
    first = local[0]
    return (
        f"its gang is on several machines, and node {first.node} states the address"
        f" {first.address}, which only its own machine can reach; start the agent of {first.node}"
        " with --address"
    )


def hostfile_of(peers: Sequence[Peer]) -> str:
    """Return a host file: each host once, by its first rank, with the slots of its pods.

    Launchers of MPI refuse a host that is named twice.
    """
    slots: Counter[str] = Counter()
    for peer in peers:
        slots[peer.host] += peer.processes
    return "".join(f"{host} slots={count}\n" for host, count in slots.items())


def hydra_hostfile_of(peers: Sequence[Peer]) -> str:
    """Return the host file of MPICH and Intel MPI for a gang whose hosts are its pods."""
    return "".join(f"{peer.host}:{peer.processes}\n" for peer in peers)


def waiting_for_pod_0(files: RendezvousFiles) -> tuple[str, ...]:
    """Return what the other pods of an MPI gang run: it ends when pod 0 has succeeded."""
    first = 'grep -m1 has_succeeded "$0"'
    return ("sh", "-c", f"until {first} | grep -q true; do sleep 1; done", files.peers)


def peers_file_of(peers: Sequence[Peer]) -> bytes:
    """Return the peers as JSON, by rank."""
    return msgspec.json.format(msgspec.json.encode(peers), indent=1) + b"\n"


class RendezvousFiles(Struct, frozen=True, kw_only=True):
    """The paths of the host file and the peers file of an attempt, and of what launchers of MPI
    need. Long lists are no variables: these share their space with the arguments of the command.
    """

    hosts: str
    peers: str
    hydra_hosts: str = ""
    shell: str = ""


def launch_environment(
    me: Peer, peers: Sequence[Peer], pod: Pod, group: PodGroup, files: RendezvousFiles
) -> dict[str, str]:
    """Return the variables of a pod in a gang; the peers are in the order of their ranks."""
    launch = group.spec.launch or Launch()
    task = next(task for task in group.spec.tasks if task.name == me.task)
    address, port = peers[0].address, str(peers[0].ports[0])
    gpus = gpus_of(task.template)
    nodes = list(dict.fromkeys(peer.node for peer in peers))
    pods = len(uids_of_gang(group))
    local = [peer for peer in peers if peer.node == me.node]
    local_rank = local.index(me)
    found: dict[str, object] = {
        "BATCHQ_RANK": me.rank,
        "BATCHQ_PODS": pods,
        "BATCHQ_LOCAL_RANK": local_rank,
        "BATCHQ_NODES": len(nodes),
        "BATCHQ_NODE_RANK": nodes.index(me.node),
        "BATCHQ_ADDRESS": me.address,
        "BATCHQ_PORTS": ",".join(map(str, me.ports)),
        "BATCHQ_HOSTFILE": files.hosts,
        "BATCHQ_PEERS_FILE": files.peers,
        "BATCHQ_ROUND": group.status.restarts,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": port,
        "PET_NNODES": pods,
        "PET_NODE_RANK": me.rank,
        "PET_NPROC_PER_NODE": me.processes,
        "PET_RDZV_ID": f"{group.metadata.name}-{pod.status.admission}-{group.status.restarts}",
        "PET_LOCAL_ADDR": me.address,
        "NODE_RANK": me.rank,
        "OMP_NUM_THREADS": max(1, pod.spec.requests.get(CPU, 0) // _WHOLE // me.processes),
    }
    if is_elastic(group):
        found |= {
            "PET_NNODES": f"{group.spec.min_member}:{pods}",
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": f"{_in_url(address)}:{port}",
        }
    else:
        # JAX cannot add processes.
        found |= {
            "JAX_COORDINATOR_ADDRESS": f"{_in_url(address)}:{port}",
            "JAX_COORDINATOR_PORT": port,
            "JAX_NUM_PROCESSES": pods,
            "JAX_PROCESS_ID": me.rank,
        }
    if gpus and not is_elastic(group):
        found["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, range(gpus)))
    if launch.style == "rank":
        found |= {
            "RANK": me.rank,
            "WORLD_SIZE": len(peers),
            "LOCAL_RANK": local_rank,
            "LOCAL_WORLD_SIZE": len(local),
        }
    if launch.style == "mpi" and me.rank == 0:
        found[ALLOCATION_VARIABLE] = key_of(group)
        found |= launcher_variables(files.shell, files.hosts, files.hydra_hosts)
        # Processes in other pods must not take the devices and the rank of this one for theirs.
        found["HYDRA_ENV"] = "none"
    if launch.style == "dask":
        found["DASK_SCHEDULER_ADDRESS"] = f"tcp://{_in_url(address)}:{port}"
    if launch.dialect == "slurm":
        found |= _of_slurm(me, peers, pod, group, task)
    return {name: str(value) for name, value in found.items()}


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _of_slurm(
    me: Peer, peers: Sequence[Peer], pod: Pod, group: PodGroup, task: Task
) -> dict[str, object]:
    """Return what a task finds under `srun`, with one task for each pod."""
    by_node: dict[str, list[Peer]] = {}
    for peer in peers:
        by_node.setdefault(peer.node, []).append(peer)
    hosts = ",".join(there[0].address for there in by_node.values())
    sizes = [len(there) for there in by_node.values()]
    # The programs that read it expect a number; JAX derives its port from it by default.
    number = crc32(group.metadata.uid.encode())
    templates = {one.name: one.template for one in group.spec.tasks}
    gpus = sum(gpus_of(templates[peer.task]) for peer in by_node[me.node])
    cpus = pod.spec.requests.get(CPU, 0) // _WHOLE
    folder = task.template.working_dir
    started_at, walltime = group.status.started_at, group.spec.walltime
    found: dict[str, object] = {
        "SLURM_JOB_ID": number,
        "SLURM_JOBID": number,
        "SLURM_JOB_NAME": group.metadata.name,
        "SLURM_NTASKS": len(peers),
        "SLURM_NPROCS": len(peers),
        "SLURM_PROCID": me.rank,
        "SLURM_LOCALID": by_node[me.node].index(me),
        "SLURM_NODEID": list(by_node).index(me.node),
        "SLURM_NNODES": len(by_node),
        "SLURM_JOB_NUM_NODES": len(by_node),
        "SLURM_JOB_NODELIST": hosts,
        "SLURM_NODELIST": hosts,
        "SLURM_STEP_ID": 0,
        "SLURM_STEP_NODELIST": hosts,
        "SLURM_STEP_NUM_NODES": len(by_node),
        "SLURM_STEP_NUM_TASKS": len(peers),
        "SLURM_TASKS_PER_NODE": _shortened(sizes),
        "SLURM_RESTART_COUNT": group.status.restarts,
    }
    if len(set(sizes)) == 1:
        found["SLURM_NTASKS_PER_NODE"] = sizes[0]
    if cpus:
        found["SLURM_CPUS_PER_TASK"] = cpus
    if gpus:
        found["SLURM_GPUS_ON_NODE"] = gpus
    if folder:
        found["SLURM_SUBMIT_DIR"] = folder
    if walltime is not None and started_at is not None:
        found["SLURM_JOB_END_TIME"] = (started_at + walltime) // 1000
    return found


def _shortened(sizes: Sequence[int]) -> str:
    """Return numbers in Slurm's notation: `2(x3),1`."""
    runs = [(size, len(list(run))) for size, run in groupby(sizes)]
    return ",".join(f"{size}(x{count})" if count > 1 else f"{size}" for size, count in runs)
