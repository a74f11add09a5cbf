"""`spec.launch` from the command line: its options, its refusals, and what `describe` shows."""

from __future__ import annotations

import json

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Launch, Pod, PodGroup, StopWarning
from batchq.api.transaction import Transaction, Write
from batchq.cli.worker import parse_ports
from batchq.errors import UsageError
from batchq.worker.host.node_resources import PortRange
from tests.builders import a_node
from tests.cli.conftest import Batchq, run
from tests.client.stage import Stage

GANG = ("submit", "--name", "g", "-N", "4")


def launch_of(stage: Stage) -> Launch | None:
    group = stage.client.get("PodGroup", "g")
    assert isinstance(group, PodGroup)
    return group.spec.launch


@pytest.mark.parametrize(
    ("options", "launch"),
    [
        ([], None),
        (["--launch", "torch"], Launch(style="node")),
        (["--launch", "node", "--processes", "3"], Launch(style="node", processes=3)),
        (["--launch", "rank", "--ports", "2"], Launch(style="rank", ports=2)),
        (["--launch", "rank", "--dialect", "slurm"], Launch(style="rank", dialect="slurm")),
        (["--launch", "dask"], Launch(style="dask")),
        (["--launch", "mpi"], Launch(style="mpi")),
        (["--launch", "rank", "--restart", "pod"], Launch(style="rank", restart="pod")),
        (["--launch", "torch", "--min-member", "2", "--restart", "pod"], Launch(restart="pod")),
        (["--launch", "rank", "--warn", "USR2"], Launch(style="rank", warn=StopWarning())),
        (
            ["--launch", "rank", "--warn", "SIGHUP@2m"],
            Launch(style="rank", warn=StopWarning(signal="HUP", before=120_000)),
        ),
    ],
)
def test_the_options_become_the_field(
    batchq: Batchq, stage: Stage, options: list[str], launch: Launch | None
) -> None:
    assert batchq(*GANG, *options, "--", "true").code == 0
    assert launch_of(stage) == launch


@pytest.mark.both_doors
def test_a_gang_is_submitted_and_described_over_the_api_as_well(
    batchq: Batchq, stage: Stage
) -> None:
    assert batchq(*GANG, "--launch", "rank", "--ports", "2", "--", "true").code == 0
    assert launch_of(stage) == Launch(style="rank", ports=2)
    described = batchq("describe", "g")
    assert described.code == 0
    assert "Launch:      rank" in described.out


def test_a_line_of_a_file_has_the_same_fields(batchq: Batchq, stage: Stage) -> None:
    line = {"name": "g", "command": ["true"], "replicas": 4, "launch": "rank", "ports": 2}
    assert batchq("submit", "--from-file", "-", stdin=json.dumps(line)).code == 0
    assert launch_of(stage) == Launch(style="rank", ports=2)


def test_a_manifest_has_the_field(batchq: Batchq, stage: Stage) -> None:
    manifest = {
        "apiVersion": "batchq/v1",
        "kind": "PodGroup",
        "metadata": {"name": "g"},
        "spec": {
            "launch": {"style": "rank", "processes": 1},
            "tasks": [{"name": "w", "replicas": 2, "template": {"command": ["true"]}}],
        },
    }
    assert batchq("submit", "-f", "-", stdin=json.dumps(manifest)).code == 0
    assert launch_of(stage) == Launch(style="rank", processes=1)
    shown = json.loads(batchq("get", "podgroup", "g", "-o", "json").out)
    assert shown["spec"]["launch"] == {"style": "rank", "processes": 1}


def test_the_python_client_has_the_keywords(stage: Stage) -> None:
    stage.client.submit(["true"], name="g", replicas=2, launch="torch", processes=2)
    assert launch_of(stage) == Launch(processes=2)


_TOGETHER = (
    "spec.launch: expected all 4 pods to start together, since each is told where the others are,"
    " found minMember {}; leave minMember out, or launch for an array"
)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--array", "0-3", "--launch", "rank"], _TOGETHER.format(1)),
        (
            ["-N", "4", "--min-member", "2", "--launch", "rank"],
            (
                "spec.launch: expected style node and restart pod, since pods beyond minMember join"
                " later, found style rank and restart group; change them, or leave minMember out"
            ),
        ),
        (
            ["-N", "4", "--launch", "rank", "--external"],
            "spec.launch: batchq does not start the pods of an external group; leave it out",
        ),
        (
            ["-N", "5000", "--launch", "rank"],
            "the pods of a group with spec.launch: expected at most 4096, found 5000",
        ),
        (
            ["-N", "4", "--launch", "rank", "--processes", "2"],
            (
                "spec.launch.processes: a pod of style rank is one process, found 2; leave it out,"
                " or use style node"
            ),
        ),
        (
            ["-N", "4", "--launch", "rank", "--walltime", "1m", "--warn", "USR2@60s"],
            "spec.launch.warn.before: expected less than the walltime of 1m, found 1m",
        ),
    ],
    ids=["array", "elastic", "external", "large", "processes", "warning"],
)
def test_a_contradiction_is_refused_in_one_sentence(
    batchq: Batchq, stage: Stage, options: list[str], problem: str
) -> None:
    done = batchq("submit", "--name", "g", *options, "--", "true")
    assert done.code == 1
    assert done.err.splitlines()[0] == f"error: PodGroup default/g: {problem}"


def test_options_of_launch_need_launch(batchq: Batchq, stage: Stage) -> None:
    done = batchq("submit", "--name", "g", "-N", "4", "--ports", "2", "--", "true")
    assert done.code == 2
    assert done.err.splitlines() == [
        "error: ports: it applies to a group with launch, and there is no launch",
        "hint: give launch, too, as in launch=torch, or leave ports out",
    ]


@pytest.mark.parametrize("warn", ["KILL", "@90s", "12", ""])
def test_an_unknown_signal_is_refused_with_the_known_ones(
    batchq: Batchq, stage: Stage, warn: str
) -> None:
    done = batchq(*GANG, "--launch", "rank", "--warn", warn, "--", "true")
    assert done.code == 1
    assert done.err == (
        "error: warn: expected one of HUP, INT, USR1, USR2, and after an @ how long before the"
        f" walltime, found {warn!r}\nhint: as in USR2@90s\n"
    )


@pytest.mark.parametrize(
    ("launch", "more", "problem"),
    [
        (
            {"style": "mpi"},
            {},
            "spec.token: expected self, since pod 0 starts commands in the others by its token",
        ),
        (
            {"style": "mpi", "restart": "pod"},
            {"token": "self"},
            "spec.launch.restart: expected group, since MPI cannot lose a process, found pod",
        ),
    ],
)
def test_a_manifest_of_an_mpi_gang_is_refused_in_one_sentence(
    batchq: Batchq, stage: Stage, launch: dict[str, str], more: dict[str, str], problem: str
) -> None:
    tasks = [{"name": "w", "replicas": 2, "template": {"command": ["true"]}}]
    spec = {"launch": launch, "tasks": tasks, **more}
    head = {"apiVersion": "batchq/v1", "kind": "PodGroup", "metadata": {"name": "g"}}
    done = batchq("submit", "-f", "-", stdin=json.dumps({**head, "spec": spec}))
    assert done.code == 1
    assert done.err.splitlines()[0].endswith(f"PodGroup default/g: {problem}")


def test_an_mpi_gang_in_an_image_is_refused(batchq: Batchq, stage: Stage) -> None:
    done = batchq(*GANG, "--launch", "mpi", "--image", "/images/debian", "--", "true")
    assert done.code == 1
    assert done.err.splitlines()[0] == (
        "error: PodGroup default/g: spec.tasks[0].template.container.image: expected none, since an"
        " MPI gang needs the node's batchq in its pods; leave it out, or use mpirun within an"
        " allocation"
    )


def test_the_pods_of_an_mpi_gang_get_a_token(batchq: Batchq, stage: Stage) -> None:
    batchq(*GANG, "--launch", "mpi", "--", "true")
    group = stage.client.get("PodGroup", "g")
    assert isinstance(group, PodGroup)
    assert group.spec.token == "self"


def test_an_elastic_job_of_several_tasks_is_refused(batchq: Batchq, stage: Stage) -> None:
    task = {"replicas": 2, "template": {"command": ["true"]}}
    manifest = {
        "apiVersion": "batchq/v1",
        "kind": "PodGroup",
        "metadata": {"name": "g"},
        "spec": {
            "minMember": 3,
            "launch": {"restart": "pod"},
            "tasks": [{"name": "a", **task}, {"name": "b", **task}],
        },
    }
    done = batchq("submit", "-f", "-", stdin=json.dumps(manifest))
    assert done.code == 1
    assert done.err.splitlines()[0].endswith(
        "spec.tasks: expected one task, since pods beyond minMember join later, found 2; leave"
        " minMember or launch out"
    )


def test_an_unknown_style_is_refused_with_the_known_ones(batchq: Batchq, stage: Stage) -> None:
    done = batchq(*GANG, "--launch", "pvm", "--", "true")
    assert done.code == 2
    assert "'torch', 'node', 'rank', 'dask', 'mpi'" in done.err
    line = {"name": "g", "command": ["true"], "replicas": 4, "launch": "pvm"}
    done = batchq("submit", "--from-file", "-", stdin=json.dumps(line))
    assert "launch: expected one of torch, node, rank, dask, mpi, found 'pvm'" in done.err


def put(stage: Stage, pod: Pod, **status: object) -> None:
    after = structs.replace(pod, status=structs.replace(pod.status, **status))
    write = Write(kind="Pod", key=pod.metadata.uid, expect=pod.metadata.revision, value=after)
    transaction = Transaction(subject="test", writes=(write,))
    assert not stage.store.commit([transaction], request_id=pod.metadata.uid).refused


def test_describe_shows_how_many_pods_have_claimed_and_their_addresses(
    batchq: Batchq, stage: Stage
) -> None:
    stage.furnish(a_node("n1", cpu=2))
    stage.client.submit(["true"], name="g", replicas=2, launch="rank", dialect="slurm")
    stage.turn()
    first = stage.client.get("Pod", "g-main-0")
    assert isinstance(first, Pod)
    put(stage, first, phase=PodPhase.RUNNING, started_at=1, address="10.0.0.7", ports=(61_440,))
    lines = batchq("describe", "g").lines
    launch = next(line for line in lines if line.startswith("Launch:"))
    assert launch.removeprefix("Launch:").strip() == (
        "rank, slurm, starts when all pods have claimed their places: 1 of 2"
    )
    at = lines.index("Addresses:")
    assert [line.split() for line in lines[at + 1 : at + 3]] == [
        ["NAME", "NODE", "ADDRESS", "PORTS"],
        ["g-main-0", "n1", "10.0.0.7", "61440"],
    ]


def test_describe_shows_where_pods_of_a_node_are_reached(batchq: Batchq, stage: Stage) -> None:
    place = {"batchq/address": "10.0.0.7", "batchq/ports": "61440-65535"}
    stage.furnish(a_node("n1", cpu=2, annotations=place))
    lines = [line.split() for line in batchq("describe", "node", "n1").lines]
    assert ["Address:", "10.0.0.7"] in lines
    assert ["Ports:", "61440-65535"] in lines


def test_a_range_of_ports_is_read() -> None:
    assert parse_ports("61440-62000") == PortRange(61_440, 62_000)
    assert parse_ports("7000-7000") == PortRange(7_000, 7_000)


@pytest.mark.parametrize("text", ["", "61440", "62000-61440", "80-90", "61440-65536", "a-b"])
def test_an_invalid_range_of_ports_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--ports: expected a range from 1024 to 65535, found"):
        parse_ports(text)


def test_the_name_of_a_machine_is_no_address() -> None:
    done = run("worker", "--address", "gpu-01")
    assert done.code == 2
    assert done.err.splitlines()[0] == "error: --address: expected an IP address, found 'gpu-01'"
