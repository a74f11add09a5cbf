"""What a pod of a gang with `spec.launch` is told about the others, row by row."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import Launch, Pod, PodGroup, PodGroupStatus, Retry
from batchq.worker.rendezvous import (
    Peer,
    RendezvousFiles,
    hostfile_of,
    hydra_hostfile_of,
    launch_environment,
    peers_file_of,
    peers_of,
    unreachable,
    waiting_for_pod_0,
)
from batchq.worker.workhorse.process import base_environment, pod_environment
from tests.builders import a_group, a_pod, a_task

FILES = RendezvousFiles(hosts="/run/u-1.hosts", peers="/run/u-1.peers")
#: One chief on n1, and four workers: the first beside it, two on n2, and one on n3.
NODES = ("n1", "n1", "n2", "n2", "n3")
ADDRESSES = {"n1": "10.0.0.1", "n2": "10.0.0.2", "n3": "10.0.0.3"}


def a_gang(
    launch: Launch | None = None,
    *,
    gpus: int = 2,
    cpus: int = 8,
    restarts: int = 3,
    walltime: int | None = None,
) -> PodGroup:
    requests: dict[str, str | int] = {"cpu": cpus, **({"gpu": gpus} if gpus else {})}
    return a_group(
        "llm",
        tasks=(
            a_task("chief", 1, requests=requests, working_dir="/data"),
            a_task("worker", 4, requests=requests, working_dir="/data"),
        ),
        launch=launch or Launch(),
        walltime=walltime,
        status=PodGroupStatus(
            phase=PodGroupPhase.RUNNING, admission=2, restarts=restarts, started_at=1_000_000
        ),
    )


def the_pods(group: PodGroup) -> list[Pod]:
    places = [("chief", 0), *(("worker", index) for index in range(4))]
    pods = []
    for rank, ((task, index), node) in enumerate(zip(places, NODES, strict=True)):
        pod = a_pod(
            group,
            index,
            task=task,
            phase=PodPhase.RUNNING,
            node=node,
            address=ADDRESSES[node],
            ports=(61_440 + rank, 62_000 + rank),
        )
        uid = f"llm-2-{rank}"
        pods.append(structs.replace(pod, metadata=structs.replace(pod.metadata, uid=uid)))
    return pods


def told(rank: int, launch: Launch | None = None, **gang: int) -> dict[str, str]:
    """Return what the pod of this rank is told."""
    group = a_gang(launch, **gang)
    pods = the_pods(group)
    peers = peers_of(group, {pod.metadata.uid: pod for pod in pods})
    assert peers is not None
    return launch_environment(peers[rank], peers, pods[rank], group, FILES)


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "BATCHQ_RANK": "0 1 2 3 4",
        "BATCHQ_PODS": "5 5 5 5 5",
        "BATCHQ_LOCAL_RANK": "0 1 0 1 0",
        "BATCHQ_NODES": "3 3 3 3 3",
        "BATCHQ_NODE_RANK": "0 0 1 1 2",
        "BATCHQ_ADDRESS": "10.0.0.1 10.0.0.1 10.0.0.2 10.0.0.2 10.0.0.3",
        "BATCHQ_PORTS": "61440,62000 61441,62001 61442,62002 61443,62003 61444,62004",
        "BATCHQ_HOSTFILE": " ".join(["/run/u-1.hosts"] * 5),
        "BATCHQ_PEERS_FILE": " ".join(["/run/u-1.peers"] * 5),
        "BATCHQ_ROUND": "3 3 3 3 3",
        "MASTER_ADDR": " ".join(["10.0.0.1"] * 5),
        "MASTER_PORT": " ".join(["61440"] * 5),
        "PET_MASTER_ADDR": " ".join(["10.0.0.1"] * 5),
        "PET_MASTER_PORT": " ".join(["61440"] * 5),
        "PET_NNODES": "5 5 5 5 5",
        "PET_NODE_RANK": "0 1 2 3 4",
        "PET_NPROC_PER_NODE": "2 2 2 2 2",
        "PET_RDZV_ID": " ".join(["llm-2-3"] * 5),
        "PET_LOCAL_ADDR": "10.0.0.1 10.0.0.1 10.0.0.2 10.0.0.2 10.0.0.3",
        "NODE_RANK": "0 1 2 3 4",
        "OMP_NUM_THREADS": "4 4 4 4 4",
        "JAX_COORDINATOR_ADDRESS": " ".join(["10.0.0.1:61440"] * 5),
        "JAX_COORDINATOR_PORT": " ".join(["61440"] * 5),
        "JAX_LOCAL_DEVICE_IDS": "0,1 0,1 0,1 0,1 0,1",
        "JAX_NUM_PROCESSES": "5 5 5 5 5",
        "JAX_PROCESS_ID": "0 1 2 3 4",
    }.items(),
)
def test_every_pod_is_told(name: str, values: str) -> None:
    assert [told(rank)[name] for rank in range(5)] == values.split()


def test_a_launcher_in_each_pod_gives_ranks_to_its_own_processes() -> None:
    for rank in range(5):
        assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"} & told(rank).keys()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("RANK", "0 1 2 3 4"),
        ("WORLD_SIZE", "5 5 5 5 5"),
        ("LOCAL_RANK", "0 1 0 1 0"),
        ("LOCAL_WORLD_SIZE", "2 2 2 2 1"),
        ("PET_NPROC_PER_NODE", "1 1 1 1 1"),
        ("OMP_NUM_THREADS", "8 8 8 8 8"),
    ],
)
def test_a_pod_that_is_one_process_is_told_its_rank(name: str, values: str) -> None:
    launch = Launch(style="rank")
    assert [told(rank, launch)[name] for rank in range(5)] == values.split()


@pytest.mark.parametrize(
    ("processes", "gpus", "found"),
    [("gpu", 8, "8"), ("gpu", 0, "1"), (4, 8, "4"), (4, 0, "4")],
)
def test_a_pod_starts_a_process_for_each_gpu_or_as_many_as_stated(
    processes: int | str, gpus: int, found: str
) -> None:
    launch = Launch(processes=processes)  # type: ignore[arg-type]  # both forms of the field
    assert told(0, launch, gpus=gpus)["PET_NPROC_PER_NODE"] == found


def test_a_pod_without_gpus_is_told_no_devices() -> None:
    assert "JAX_LOCAL_DEVICE_IDS" not in told(0, gpus=0)


def test_a_process_has_at_least_one_thread() -> None:
    assert told(0, Launch(processes=16), cpus=8)["OMP_NUM_THREADS"] == "1"


def test_dask_is_told_its_scheduler() -> None:
    assert "DASK_SCHEDULER_ADDRESS" not in told(1)
    found = told(1, Launch(style="dask"))
    assert found["DASK_SCHEDULER_ADDRESS"] == "tcp://10.0.0.1:61440"


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "SLURM_JOB_NAME": "llm llm llm llm llm",
        "SLURM_NTASKS": "5 5 5 5 5",
        "SLURM_NPROCS": "5 5 5 5 5",
        "SLURM_PROCID": "0 1 2 3 4",
        "SLURM_LOCALID": "0 1 0 1 0",
        "SLURM_NODEID": "0 0 1 1 2",
        "SLURM_NNODES": "3 3 3 3 3",
        "SLURM_JOB_NUM_NODES": "3 3 3 3 3",
        "SLURM_JOB_NODELIST": " ".join(["10.0.0.1,10.0.0.2,10.0.0.3"] * 5),
        "SLURM_NODELIST": " ".join(["10.0.0.1,10.0.0.2,10.0.0.3"] * 5),
        "SLURM_STEP_NODELIST": " ".join(["10.0.0.1,10.0.0.2,10.0.0.3"] * 5),
        "SLURM_STEP_ID": "0 0 0 0 0",
        "SLURM_STEP_NUM_NODES": "3 3 3 3 3",
        "SLURM_STEP_NUM_TASKS": "5 5 5 5 5",
        "SLURM_TASKS_PER_NODE": " ".join(["2(x2),1"] * 5),
        "SLURM_CPUS_PER_TASK": "8 8 8 8 8",
        "SLURM_GPUS_ON_NODE": "4 4 4 4 2",
        "SLURM_RESTART_COUNT": "3 3 3 3 3",
        "SLURM_SUBMIT_DIR": " ".join(["/data"] * 5),
        "SLURM_JOB_END_TIME": " ".join(["8200"] * 5),
    }.items(),
)
def test_a_program_for_slurm_is_told(name: str, values: str) -> None:
    launch = Launch(dialect="slurm")
    assert [told(rank, launch, walltime=7_200_000)[name] for rank in range(5)] == values.split()


def test_the_slurm_dialect_has_a_number_for_the_job() -> None:
    found = told(0, Launch(dialect="slurm"))
    assert found["SLURM_JOB_ID"] == found["SLURM_JOBID"]
    assert found["SLURM_JOB_ID"].isdigit()


def test_without_the_dialect_nothing_looks_like_slurm() -> None:
    assert not [name for name in told(0) if name.startswith("SLURM")]


def test_tasks_per_node_are_stated_if_all_nodes_have_as_many() -> None:
    launch = Launch(dialect="slurm")
    assert "SLURM_NTASKS_PER_NODE" not in told(0, launch)
    peers = tuple(a_peer(rank, f"n{rank // 2}", f"10.0.0.{rank // 2}") for rank in range(4))
    group = a_gang(launch)
    found = launch_environment(peers[0], peers, the_pods(group)[1], group, FILES)
    assert (found["SLURM_NTASKS_PER_NODE"], found["SLURM_TASKS_PER_NODE"]) == ("2", "2(x2)")


def a_peer(rank: int, node: str, address: str) -> Peer:
    return Peer(
        rank=rank,
        task="worker",
        index=rank,
        node=node,
        address=address,
        host=address,
        ports=(61_440 + rank,),
        processes=2,
    )


def test_an_ipv6_address_is_bracketed_where_a_port_follows() -> None:
    group = a_gang(Launch(style="dask"))
    peers = (a_peer(0, "n1", "fd00::7"),)
    found = launch_environment(peers[0], peers, the_pods(group)[1], group, FILES)
    assert found["MASTER_ADDR"] == "fd00::7"
    assert found["JAX_COORDINATOR_ADDRESS"] == "[fd00::7]:61440"
    assert found["DASK_SCHEDULER_ADDRESS"] == "tcp://[fd00::7]:61440"


def test_the_host_file_names_each_address_once() -> None:
    places = [("n1", "10.0.0.1"), ("n2", "10.0.0.2"), ("n3", "10.0.0.1")]
    peers = [a_peer(rank, node, address) for rank, (node, address) in enumerate(places)]
    assert hostfile_of(peers) == "10.0.0.1 slots=4\n10.0.0.2 slots=2\n"


def test_the_peers_file_has_all_pods_by_rank() -> None:
    found = json.loads(peers_file_of([a_peer(0, "n1", "10.0.0.1"), a_peer(1, "n2", "10.0.0.2")]))
    assert [one["rank"] for one in found] == [0, 1]
    assert found[1] == {
        "rank": 1,
        "task": "worker",
        "index": 1,
        "node": "n2",
        "address": "10.0.0.2",
        "ports": [61441],
        "host": "10.0.0.2",
        "processes": 2,
        "has_succeeded": False,
    }


def test_a_pod_that_has_ended_already_is_still_a_peer() -> None:
    group = a_gang()
    pods = {pod.metadata.uid: pod for pod in the_pods(group)}
    done = pods["llm-2-1"]
    pods["llm-2-1"] = structs.replace(
        done, status=structs.replace(done.status, phase=PodPhase.SUCCEEDED)
    )
    peers = peers_of(group, pods)
    assert peers is not None
    assert [peer.rank for peer in peers] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("phase", [PodPhase.PENDING, PodPhase.BOUND, PodPhase.EVICTED])
def test_a_gang_without_one_of_its_pods_has_no_peers(phase: PodPhase) -> None:
    group = a_gang()
    pods: dict[str, Pod | None] = {pod.metadata.uid: pod for pod in the_pods(group)}
    lost = the_pods(group)[4]
    pods["llm-2-4"] = structs.replace(lost, status=structs.replace(lost.status, phase=phase))
    assert peers_of(group, pods) is None
    assert peers_of(group, {**pods, "llm-2-4": None}) is None


@pytest.mark.parametrize(
    "addresses",
    [("10.0.0.1", "10.0.0.2"), ("127.0.0.1", "127.0.0.1"), ("::1", "127.0.0.1"), ("fd00::7",)],
)
def test_pods_reach_each_other_by_addresses_of_one_kind(addresses: tuple[str, ...]) -> None:
    assert unreachable([a_peer(rank, f"n{rank}", one) for rank, one in enumerate(addresses)]) == ""


def test_a_loopback_address_beside_others_is_named_with_its_node() -> None:
    peers = [a_peer(0, "n0", "10.0.0.1"), a_peer(1, "n1", "127.0.0.1")]
    assert unreachable(peers) == (
        "its gang is on several machines, and node n1 states the address 127.0.0.1, which only its"
        " own machine can reach; start the agent of n1 with --address"
    )


@pytest.mark.parametrize(
    "name",
    [
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"),
        *("MASTER_ADDR", "MASTER_PORT", "PET_NNODES", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"),
        *(
            "SLURMD_NODENAME",
            "SBATCH_EXPORT",
            "SRUN_DEBUG",
            "OMPI_COMM_WORLD_RANK",
            "PRTE_LAUNCHED",
        ),
        *(
            "PMIX_RANK",
            "PMI_RANK",
            "HYDRA_LAUNCHER_EXEC",
            "I_MPI_HYDRA_BOOTSTRAP",
            "JAX_PROCESS_ID",
        ),
        *("RAY_ADDRESS", "DASK_SCHEDULER_ADDRESS", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
        *("HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
    ],
)
def test_nothing_of_a_launcher_around_the_agent_is_passed_on(name: str) -> None:
    assert base_environment({name: "1"}, secrets=()) == {}


def test_a_template_may_override_what_a_pod_is_told_except_batchqs_own_variables() -> None:
    group = a_gang()
    task = a_task("chief", env={"OMP_NUM_THREADS": "1", "BATCHQ_RANK": "7", "MASTER_PORT": "5"})
    found = pod_environment(
        {}, the_pods(group)[0], group, task, visible={}, stop_file="/stop", launch=told(0)
    )
    assert (found["OMP_NUM_THREADS"], found["MASTER_PORT"]) == ("1", "5")
    assert (found["BATCHQ_RANK"], found["MASTER_ADDR"]) == ("0", "10.0.0.1")


def test_each_pod_of_an_mpi_gang_is_a_host_with_a_slot_for_each_gpu_or_else_each_cpu() -> None:
    for gpus, slots in ((2, 2), (0, 8)):
        group = a_gang(Launch(style="mpi"), gpus=gpus)
        peers = peers_of(group, {pod.metadata.uid: pod for pod in the_pods(group)})
        assert peers is not None
        names = ["llm-chief-0", *(f"llm-worker-{index}" for index in range(4))]
        assert hostfile_of(peers) == "".join(f"{name} slots={slots}\n" for name in names)
        assert hydra_hostfile_of(peers) == "".join(f"{name}:{slots}\n" for name in names)


def test_only_pod_0_of_an_mpi_gang_has_the_variables_of_its_launcher() -> None:
    first, *others = (told(rank, Launch(style="mpi")) for rank in range(5))
    assert first["BATCHQ_ALLOCATION"] == "default/llm"
    assert (first["PRTE_MCA_prte_default_hostfile"], first["HYDRA_ENV"]) == (FILES.hosts, "none")
    for other in others:
        assert not [name for name in other if "MCA" in name or "HYDRA" in name]
        assert "BATCHQ_ALLOCATION" not in other


def test_the_other_pods_of_an_mpi_gang_end_when_pod_0_has_succeeded(tmp_path: Path) -> None:
    group = a_gang(Launch(style="mpi"))
    files = structs.replace(FILES, peers=str(tmp_path / "peers"))
    pods: dict[str, Pod | None] = {pod.metadata.uid: pod for pod in the_pods(group)}
    for rank, ends in ((1, False), (0, True)):
        done = the_pods(group)[rank]
        status = structs.replace(done.status, phase=PodPhase.SUCCEEDED)
        peers = peers_of(group, pods | {done.metadata.uid: structs.replace(done, status=status)})
        assert peers is not None
        (tmp_path / "peers").write_bytes(peers_file_of(peers))
        shell, option, script, path = waiting_for_pod_0(files)
        # Without the pause of its loop, it says whether it would end now.
        once = script.replace("until ", "").partition(";")[0]
        assert (subprocess.run([shell, option, once, path], check=False).returncode == 0) is ends


def an_elastic_gang(**away: PodPhase | None) -> tuple[PodGroup, dict[str, Pod | None]]:
    """Return a gang of two to four pods, all running but those named `pod0` and so on, which are in
    another phase, or do not exist.
    """
    status = PodGroupStatus(phase=PodGroupPhase.RUNNING, admission=1)
    group = a_group(
        "el", 4, min_member=2, launch=Launch(restart="pod"), status=status, retry=Retry(limit=1)
    )
    pods: dict[str, Pod | None] = {}
    for rank in range(4):
        phase = away.get(f"pod{rank}", PodPhase.RUNNING)
        pods[f"el-1-{rank}"] = phase and a_pod(
            group,
            rank,
            phase=phase,
            node=f"n{rank}",
            address=f"10.0.0.{rank}",
            ports=(61_440,),
            failures=2 if phase == PodPhase.FAILED else 0,
        )
    return group, pods


def ranks(**away: PodPhase | None) -> list[int] | None:
    peers = peers_of(*an_elastic_gang(**away))
    return None if peers is None else [peer.rank for peer in peers]


def test_the_peers_of_an_elastic_gang_are_the_pods_that_run() -> None:
    assert ranks() == [0, 1, 2, 3]
    assert ranks(pod2=PodPhase.PENDING, pod3=None) == [0, 1]
    assert ranks(pod1=PodPhase.SUCCEEDED, pod2=PodPhase.EVICTED) == [0, 3]


def test_an_elastic_gang_waits_for_pod_0_unless_it_has_ended_for_good() -> None:
    assert ranks(pod0=PodPhase.PENDING) is None
    assert ranks(pod0=PodPhase.BOUND) is None
    assert ranks(pod0=PodPhase.FAILED) == [1, 2, 3]
    assert ranks(pod0=None) == [1, 2, 3]
    # It waits for no other pod.
    assert ranks(pod0=PodPhase.SUCCEEDED, pod1=PodPhase.PENDING) == [2, 3]


def test_torchrun_is_told_how_many_pods_an_elastic_gang_may_have_and_where_they_meet() -> None:
    group, pods = an_elastic_gang(pod1=PodPhase.PENDING)
    peers = peers_of(group, pods)
    third = pods["el-1-2"]
    assert peers is not None
    assert third is not None
    found = launch_environment(peers[1], peers, third, group, FILES)
    names = ("BATCHQ_RANK", "BATCHQ_PODS", "PET_NNODES", "PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT")
    assert [found[name] for name in names] == ["2", "4", "2:4", "c10d", "10.0.0.0:61440"]
    assert not any(name.startswith("JAX_") for name in found)


def test_a_gang_whose_failed_pod_is_restarted_alone_is_not_complete_without_it() -> None:
    group = a_gang(Launch(restart="pod"))
    pods = {pod.metadata.uid: pod for pod in the_pods(group)}
    failed = pods["llm-2-1"]
    status = structs.replace(failed.status, phase=PodPhase.FAILED)
    assert peers_of(group, pods | {"llm-2-1": structs.replace(failed, status=status)}) is None
