"""Gangs with `spec.launch` on two agents of one machine: they meet, or start again whole."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from batchq.api.lifecycle import ON_NODE
from batchq.client import Client
from batchq.daemon import detached
from tests.e2e import hello
from tests.e2e.machine import (
    LONG_LEASE,
    PATIENT,
    STEADY,
    Machine,
    group,
    kill,
    phase,
    pods_of,
    process_group_of_a_pod,
    until,
)
from tests.effort import sample
from tests.tidy.command_lines import commands_in
from tests.tidy.source import ROOT

HELLO = (sys.executable, hello.__file__)


@pytest.fixture(scope="module")
def shared() -> Iterator[Machine]:
    """A machine with two agents, each with room for two pods, which no test kills."""
    with Machine() as made:
        made.up(config=made.file("patient.yaml", PATIENT))
        for name in ("n1", "n2"):
            made.agent(name, "cpu=2,memory=512Mi", options=LONG_LEASE)
        yield made


def output(machine: Machine, name: str) -> list[str]:
    """Return what the first pod of a group has printed."""
    return machine.batchq("logs", name, "--pod", "main-0").stdout.splitlines()


def run(machine: Machine, name: str, *options: str) -> None:
    machine.batchq("submit", "--name", name, "-N", "4", "--wait", *options)


def test_four_pods_of_one_process_meet_at_the_master_port(shared: Machine) -> None:
    run(shared, "ranks", "--launch", "rank", "--", *HELLO)
    assert output(shared, "ranks") == [f"ranks 0 {rank}" for rank in range(4)]


def test_a_launcher_in_each_pod_starts_its_processes(shared: Machine) -> None:
    run(shared, "llm", "--launch", "torch", "--processes", "2", "--", *HELLO)
    assert output(shared, "llm") == [f"llm 0 {rank}" for rank in range(8)]


def test_each_pod_knows_where_all_of_them_are(shared: Machine) -> None:
    script = 'cat "$BATCHQ_HOSTFILE" "$BATCHQ_PEERS_FILE"'
    run(shared, "peers", "--launch", "rank", "--ports", "3", "--", "sh", "-c", script)
    with shared.client() as client:
        placed = {pod.spec.index: pod.status for pod in pods_of(client, "peers")}
    first, *rest = output(shared, "peers")
    assert first == "127.0.0.1 slots=4"
    peers = json.loads("".join(rest))
    assert [peer["rank"] for peer in peers] == [0, 1, 2, 3]
    assert {peer["address"] for peer in peers} == {"127.0.0.1"}
    assert [(peer["node"], tuple(peer["ports"])) for peer in peers] == [
        (placed[rank].node, placed[rank].ports) for rank in range(4)
    ]
    # Two agents share the ports of the machine.
    ports = [port for peer in peers for port in peer["ports"]]
    assert len(set(ports)) == 12
    assert all(61_440 <= port <= 65_535 for port in ports)


def test_a_gang_fails_at_once_if_one_of_its_nodes_cannot_be_reached(machine: Machine) -> None:
    machine.up()
    machine.agent("n1", "cpu=1,memory=512Mi")
    machine.agent("n2", "cpu=1,memory=512Mi", options=("--address", "10.99.0.2"))
    done = machine.batchq(
        *("submit", "--name", "far", "-N", "2", "--launch", "rank", "--wait", "--", "true"),
        exits=None,
    )
    assert done.returncode != 0
    with machine.client() as client:
        messages = {pod.status.message for pod in pods_of(client, "far")}
    assert (
        "its gang is on several machines, and node n1 states the address 127.0.0.1, which only its"
        " own machine can reach; start the agent of n1 with --address"
    ) in messages


#: Writes a line when it starts and when it ends; the first round runs until it is stopped.
WORKER = """
line() { echo "$BATCHQ_ROUND $BATCHQ_RANK $1 $MASTER_PORT" >> "$0"; }
trap 'line stopped; exit 75' TERM
line start
while [ "$BATCHQ_ROUND" = 0 ]; do sleep 0.1; done
line end
"""


class Scene:
    """A gang of four in its first round, on two agents, and what its pods have written."""

    def __init__(self, machine: Machine, *, settings: str = STEADY) -> None:
        self.machine = machine
        self._config = machine.file("scene.yaml", settings)
        self.start_scheduler()
        self.agents = {name: machine.agent(name, options=LONG_LEASE) for name in ("n1", "n2")}
        self.diary = machine.root / "diary"

    def submit(self) -> None:
        command = ["sh", "-c", WORKER, str(self.diary)]
        template = {"command": command, "requests": {"cpu": 1}, "terminationGrace": "2s"}
        manifest = {
            "apiVersion": "batchq/v1",
            "kind": "PodGroup",
            "metadata": {"name": "gang"},
            "spec": {
                "launch": {"style": "rank"},
                "retry": {"limit": 1, "backoff": "100ms"},
                "tasks": [{"name": "main", "replicas": 4, "template": template}],
            },
        }
        self.machine.submit(json.dumps(manifest))

    def lines(self, round_: int, word: str) -> list[str]:
        """Return the ports that pods of a round named when they wrote the word, by rank."""
        text = self.diary.read_text() if self.diary.exists() else ""
        rows = [line.split() for line in text.splitlines()]
        return [row[3] for row in sorted(rows) if (row[0], row[2]) == (str(round_), word)]

    def start_scheduler(self) -> None:
        self.machine.up(config=self._config)

    def restart_agent(self, name: str) -> None:
        kill(self.agents[name].pid)
        self.agents[name].wait()
        self.agents[name] = self.machine.agent(name, options=LONG_LEASE)

    def rounds_overlap(self) -> bool:
        """Return whether a line of one round follows one of a later round."""
        rounds = [int(line.split()[0]) for line in self.diary.read_text().splitlines()]
        return rounds != sorted(rounds)


def kill_a_rank(scene: Scene, client: Client) -> None:
    node = pods_of(client, "gang")[2].status.node
    kill(process_group_of_a_pod(scene.machine, node))


def kill_an_agent(scene: Scene, _client: Client) -> None:
    scene.restart_agent("n2")


@pytest.mark.parametrize("strike", sample([kill_an_agent, kill_a_rank], 1))
def test_a_gang_that_loses_a_rank_starts_again_whole(
    machine: Machine, strike: Callable[[Scene, Client], None]
) -> None:
    scene = Scene(machine)
    scene.submit()
    until(lambda: len(scene.lines(0, "start")) == 4, what="all four run")
    with machine.client() as client:
        strike(scene, client)
        until(lambda: phase(client, "gang") == "Completed", what="Completed")
        status = group(client, "gang").status
    assert status.restarts == 1
    # All ranks of a round meet at one port, and the next round has another.
    [first, *_], [second, *_] = scene.lines(0, "start"), scene.lines(1, "start")
    assert scene.lines(1, "end") == [second] * 4
    assert first != second
    assert not scene.rounds_overlap()


#: Pod 0 ends when its peers file has changed, and keeps it; the others end after that.
WATCHER = """
echo "$BATCHQ_ROUND $BATCHQ_RANK start $MASTER_PORT" >> "$0"
if [ "$BATCHQ_RANK" = 0 ]; then
    before=$(cat "$BATCHQ_PEERS_FILE")
    while [ "$(cat "$BATCHQ_PEERS_FILE")" = "$before" ]; do sleep 0.1; done
    cp "$BATCHQ_PEERS_FILE" "$0.draft"
    mv "$0.draft" "$0.peers"
fi
while [ ! -e "$0.peers" ]; do sleep 0.1; done
"""


def test_a_rank_that_is_killed_rejoins_the_others_which_find_its_new_port(
    machine: Machine,
) -> None:
    scene = Scene(machine)
    options = ("--launch", "rank", "--restart", "pod", "--retries", "1")
    command = ("sh", "-c", WATCHER, str(scene.diary))
    machine.batchq("submit", "--name", "gang", "-N", "4", *options, "--", *command)
    until(lambda: len(scene.lines(0, "start")) == 4, what="all four run")
    with machine.client() as client:
        first, *others = pods_of(client, "gang")
        node = next(pod.status.node for pod in others if pod.status.node != first.status.node)
        kill(process_group_of_a_pod(machine, node))
        until(lambda: phase(client, "gang") == "Completed", what="Completed")
        assert group(client, "gang").status.restarts == 0
        ports = [pod.status.ports for pod in pods_of(client, "gang")]
        [again] = [pod for pod in pods_of(client, "gang") if pod.status.failures]
    # The others have not started again, and meet the one that has at the same port.
    assert len(scene.lines(0, "start")) == 5
    assert len(set(scene.lines(0, "start"))) == 1
    told = json.loads(Path(f"{scene.diary}.peers").read_text())
    assert [tuple(peer["ports"]) for peer in told] == ports
    assert again.status.ports != others[again.spec.index - 1].status.ports


def test_an_elastic_job_starts_with_its_least_pods_and_later_ones_find_pod_0(
    machine: Machine,
) -> None:
    machine.up(config=machine.file("patient.yaml", PATIENT))
    machine.agent("n1", "cpu=2,memory=512Mi", options=LONG_LEASE)
    diary = machine.root / "diary"
    script = """
    echo "$BATCHQ_RANK $PET_NNODES $PET_RDZV_BACKEND $PET_RDZV_ENDPOINT" >> "$0"
    while [ "$(wc -l < "$0")" -lt 4 ]; do sleep 0.1; done
    """
    options = ("-N", "4", "--min-member", "2", "--launch", "torch", "--restart", "pod")
    machine.batchq("submit", "--name", "el", *options, "--", "sh", "-c", script, str(diary))
    with machine.client() as client:
        until(lambda: diary.exists() and diary.read_text().count("\n") == 2, what="two run")
        machine.agent("n2", "cpu=2,memory=512Mi", options=LONG_LEASE)
        until(lambda: phase(client, "el") == "Completed", what="Completed")
        [port] = pods_of(client, "el")[0].status.ports
    assert sorted(diary.read_text().splitlines()) == [
        f"{rank} 2:4 c10d 127.0.0.1:{port}" for rank in range(4)
    ]


class MeetingScene(Scene):
    """A gang of which two pods have claimed their places on n1, and wait for two on n2."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine, settings=PATIENT)
        self.other = psutil.Process(self.agents["n2"].pid)
        self.other.suspend()
        script = 'echo "$BATCHQ_ROUND $BATCHQ_RANK start $MASTER_PORT" >> "$0"'
        command = ("sh", "-c", script, str(self.diary))
        options = ("--name", "gang", "-N", "4", "--launch", "rank")
        machine.batchq("submit", *options, "--", *command)
        with machine.client() as client:
            until(lambda: self.claimed(client) == 2, what="two pods have claimed")

    def claimed(self, client: Client) -> int:
        """Return how many pods have claimed their places."""
        return sum(bool(pod.status.address) for pod in pods_of(client, "gang"))

    def complete(self) -> None:
        """Let the agent of n2 go on, and wait for the end of the gang."""
        self.other.resume()
        with self.machine.client() as client:
            until(lambda: phase(client, "gang") == "Completed", what="Completed")

    def starts(self) -> list[str]:
        """Return the ranks that have started, in order."""
        return sorted(line.split()[1] for line in self.diary.read_text().splitlines())


def kill_the_agent_that_has_claimed(scene: MeetingScene) -> None:
    scene.restart_agent("n1")
    with scene.machine.client() as client:
        until(lambda: group(client, "gang").status.restarts == 1, what="the loss is known")


def kill_the_scheduler(scene: MeetingScene) -> None:
    record = detached.read_record(scene.machine.home.run / "scheduler.json")
    assert record is not None
    kill(record.pid)
    scene.start_scheduler()


@pytest.mark.parametrize("strike", sample([kill_the_agent_that_has_claimed, kill_the_scheduler], 1))
def test_each_rank_starts_once_after_a_death_while_the_gang_meets(
    machine: Machine, strike: Callable[[MeetingScene], None]
) -> None:
    scene = MeetingScene(machine)
    assert not scene.diary.exists()
    strike(scene)
    assert not scene.diary.exists()
    scene.complete()
    assert scene.starts() == ["0", "1", "2", "3"]


def test_a_gang_that_is_cancelled_while_it_meets_never_starts(machine: Machine) -> None:
    scene = MeetingScene(machine)
    machine.batchq("cancel", "gang")
    with machine.client() as client:
        on_n1 = [pod for pod in pods_of(client, "gang") if pod.status.node == "n1"]
        assert len(on_n1) == 2
        until(
            lambda: all(
                pod.status.phase == "Evicted"
                for pod in pods_of(client, "gang")
                if pod.status.node == "n1"
            ),
            what="the pods that waited are stopped",
        )
        scene.other.resume()
        until(
            lambda: not any(pod.status.phase in ON_NODE for pod in pods_of(client, "gang")),
            what="no pod is left",
        )
        assert phase(client, "gang") == "Cancelled"
    assert not scene.diary.exists()


PAGE = ROOT / "docs" / "distributed.md"
SUBMISSIONS = [words for words in commands_in(PAGE) if words[:2] == ["batchq", "submit"]]


#: Starts a process in each pod, as launchers of MPI do.
MPIEXEC = """#!/bin/sh
rank=0
for host in $(cut -d" " -f1 "$BATCHQ_HOSTFILE"); do
    "$HYDRA_LAUNCHER_EXEC" "$host" "RANK=$rank WORLD_SIZE=4 {python} train.py" </dev/null &
    rank=$((rank + 1))
done
wait
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Machine]:
    """A machine with 32 GPUs by its own account, and stand-ins for launchers and for train.py."""
    with Machine() as made:
        made.up(config=made.file("patient.yaml", PATIENT), api=True)
        options = (*LONG_LEASE, "--api-server", f"unix:{made.home.api_socket}")
        for name in ("n1", "n2"):
            made.agent(name, "cpu=2,memory=512Mi,gpu=16", options=options)
        made.file("train.py", Path(hello.__file__).read_text())
        torchrun = made.file("torchrun", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        here = f'#!/bin/sh\nexec "{sys.executable}" train.py\n'
        dask, ray = made.file("dask.sh", here), made.file("ray.sh", here)
        mpiexec = made.file("mpiexec", MPIEXEC.format(python=sys.executable))
        for program in (torchrun, dask, ray, mpiexec):
            program.chmod(0o755)
        yield made


def test_the_guide_has_commands_to_run() -> None:
    assert len(SUBMISSIONS) == 8


@pytest.mark.slow
def test_the_other_pods_of_an_mpi_gang_end_soon_after_pod_0(lab: Machine) -> None:
    # By then, an agent looks at the gang every eight seconds.
    words = ("--name", "long", "-N", "4", "--launch", "mpi", "--", "sleep", "8")
    lab.batchq("submit", "--wait", *words)
    with lab.client() as client:
        first, *others = (pod.status.finished_at or 0 for pod in pods_of(client, "long"))
    assert max(others) - first < 4_000


@pytest.mark.parametrize("words", sample(SUBMISSIONS, 2), ids=lambda words: words[3])
def test_the_guide_submits_jobs_that_run(lab: Machine, words: list[str]) -> None:
    name, pods = words[words.index("--name") + 1], int(words[words.index("-N") + 1])
    path = f"PATH={lab.root}:{os.environ['PATH']}"
    lab.batchq("submit", "--wait", "--env", path, *words[2:])
    in_each = 2 if "--processes" in words else 8 if "--gpus" in words and "8" in words else 1
    processes = pods * in_each
    assert sorted(output(lab, name)) == sorted(f"{name} 0 {rank}" for rank in range(processes))
