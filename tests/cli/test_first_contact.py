"""Frequent first mistakes: each error says what to type instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec import structs

from batchq.api.objects import PodStatus, Taint
from batchq.cli.allocation import pod_at
from batchq.cli.stack import kept_offers
from batchq.client.request import Request, capacity_warnings, group_of
from batchq.daemon.stack import Part, PartState, StackReport
from batchq.errors import NotFound, UsageError
from tests.builders import a_group, a_node, a_pod, a_queue, a_quota
from tests.cli.conftest import Batchq, run
from tests.client.stage import Stage
from tests.harness.server import Server

TRUE = ["--", "true"]


def test_run_with_a_command_without_dashes_says_how_to_run_one() -> None:
    done = run("run", "sleep", "1 h")
    assert done.code == 2
    assert done.err.splitlines() == [
        "error: run takes a file of manifests, or a command after `--`; found sleep '1 h'",
        "hint: to run it: batchq run -- sleep '1 h'",
    ]


@pytest.mark.parametrize(("mode", "command"), [(0o755, "./job.sh"), (0o644, "sh ./job.sh")])
def test_run_with_a_script_says_how_to_run_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH -n 4\necho hi\n")
    script.chmod(mode)
    done = run("run", "job.sh")
    assert done.code == 2
    assert done.err.splitlines() == [
        f"error: run takes a file of manifests, or a command after `--`; found {command}",
        f"hint: to run it: batchq run -- {command}",
    ]


def test_submit_warns_of_a_script_that_is_not_looked_for_here(
    batchq: Batchq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text("#!/bin/sh\n")
    warning = "warning: job.sh is a file here, but as a command it must be ./job.sh, or sh job.sh"
    assert warning in batchq("submit", "job.sh").err.splitlines()
    for word in ("./job.sh", "true"):
        assert warning not in batchq("submit", "--", word).err


@pytest.mark.parametrize("there", [True, False])
def test_submit_with_a_file_of_manifests_says_how_to_submit_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    if there:
        (tmp_path / "job.yaml").write_text("kind: PodGroup\n")
    done = run("submit", "job.yaml")
    assert done.code == 2
    assert done.err.splitlines() == [
        "error: submit takes a command; found job.yaml, which looks like a file of manifests",
        "hint: to submit its groups: batchq submit -f job.yaml",
    ]


def test_run_with_a_missing_file_is_about_the_file(tmp_path: Path) -> None:
    done = run("run", str(tmp_path / "absent.yaml"))
    assert done.code != 0
    assert "a command after" not in done.err


@pytest.mark.parametrize(
    ("option", "value", "warning"),
    [
        ("--mem", "8", "warning: --mem 8 is 8 bytes; did you mean 8Gi or 8Mi?"),
        ("--mem", "512", "warning: --mem 512 is 512 bytes; did you mean 512Mi or 512Gi?"),
        ("--walltime", "2", "warning: --walltime 2 is 2 seconds; did you mean 2h or 2m?"),
    ],
)
def test_a_forgotten_unit_is_asked_about(option: str, value: str, warning: str) -> None:
    assert run("submit", option, value, "--", "true").err.splitlines()[0] == warning


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--mem", "8Gi"),
        ("--mem", "1073741824"),
        ("--mem", "0"),
        ("--walltime", "2s"),
        ("--walltime", "3600"),
    ],
)
def test_a_stated_or_plausible_unit_is_not(option: str, value: str) -> None:
    assert "did you mean" not in run("submit", option, value, "--", "true").err


def test_a_model_in_other_letters_is_asked_about(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(a_node("n1", cpu=4, **{"gpu": 2, "gpu:h100": 2}))
    done = batchq("submit", "--name", "big", "--gpus", "H100:1", "--", "true")
    assert done.err.splitlines()[0] == (
        "warning: PodGroup default/big cannot start on the existing nodes: a pod asks for"
        " gpu:H100 1, and the largest node has 0; did you mean h100?"
    )


@pytest.mark.usefixtures("stage")
def test_a_number_of_gpus_before_their_model_is_asked_about(batchq: Batchq, tmp_path: Path) -> None:
    question = "expected MODEL:NUMBER, found '2:h100'; did you mean h100:2?"
    refused = run("submit", "--gpus", "2:h100", "--", "true")
    assert (refused.code, question in refused.err) == (2, True)
    with pytest.raises(UsageError, match="did you mean h100:2"):
        group_of(Request(command=["true"], gpus="2:h100"), suffix="x")
    file = tmp_path / "jobs.jsonl"
    file.write_text('{"command": ["true"], "gpus": "2:h100"}\n')
    assert "did you mean h100:2?" in batchq("submit", "--from-file", str(file)).err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--cpus", "100"], "a pod asks for cpu 100, and the largest node has 4"),
        (["--mem", "1Ti"], "a pod asks for memory 1Ti, and the largest node has 8Gi"),
        (["--gpus", "1"], "a pod asks for gpu 1, and the largest node has 0"),
        (["-N", "9"], "its 9 pods ask for cpu 9, and all nodes together have 6"),
        (
            ["--cpus", "4", "--mem", "8Gi"],
            "a pod asks for cpu 4, memory 8Gi, and no node has all of it",
        ),
        (
            ["--selector", "pool=gpu", "--mem", "8Gi"],
            "a pod asks for memory 8Gi, and the largest node that it may use has 2Gi",
        ),
        (["--selector", "pool=tpu"], "no node has the label pool=tpu"),
        (["--node", "n3", "--node", "n4"], "no node has the name n3 or n4"),
        (["--exclude", "n1", "--exclude", "n2"], "all nodes are excluded"),
        (["--topology", "row"], "no node has the label row"),
        (
            ["--node", "n1", "--mem", "8Gi"],
            "a pod asks for memory 8Gi, and the largest node that it may use has 2Gi",
        ),
        (
            ["--selector", "pool=gpu", "--selector", "rack=7"],
            "no node has all of the labels pool=gpu, rack=7",
        ),
    ],
)
def test_a_request_that_no_node_can_hold_is_accepted_with_the_numbers(
    batchq: Batchq, stage: Stage, options: list[str], why: str
) -> None:
    small = a_node("n1", cpu=4, memory="2Gi", labels={"pool": "gpu"})
    stage.furnish(small, a_node("n2", cpu=2, memory="8Gi"))
    done = batchq("submit", "--name", "big", *options, "--", "true")
    assert (done.code, done.out) == (0, "podgroup default/big submitted\n")
    assert done.err.splitlines() == [
        f"warning: PodGroup default/big cannot start on the existing nodes: {why}",
        "hint: `batchq plan` says what would fit; a node that takes it may still join",
    ]


def test_no_request_is_too_large_before_there_is_a_node() -> None:
    assert list(capacity_warnings([a_group("big", cpu=100)], [])) == []


def test_a_request_that_fits_is_accepted_without_a_warning(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(a_node("n1", cpu=4, memory="2Gi"), a_node("n2", cpu=2, memory="8Gi"))
    assert batchq("submit", "-N", "6", "--", "true").err == ""
    assert batchq("submit", "--array", "0-99", "--", "true").err == ""
    assert batchq("submit", "--external", "--gpus", "8").err == ""


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (
            ("submit", "--node", "vm-1,vm-2", *TRUE),
            "repeat it for each node: --node vm-1 --node vm-2",
        ),
        (
            ("submit", "--exclude", "vm-1, vm-2", *TRUE),
            "repeat it for each node: --exclude vm-1 --exclude vm-2",
        ),
        (
            ("submit", "--array", "0-9%2", *TRUE),
            "submit the whole range to a queue with a capability, which bounds what runs at once",
        ),
        (("submit", "--array", "9-0", *TRUE), "as in 0-9"),
        (
            ("submit", "--array", "0-9:2", *TRUE),
            "leave out the step, and multiply $BATCHQ_INDEX by it in the command",
        ),
        (("submit", "--array", "5", "--", "true"), "for 5 pods: 0-4"),
        (
            ("submit", "--array", "1,3,5", *TRUE),
            (
                "use a whole range, and let the command look up its value by $BATCHQ_INDEX; or"
                " submit a group for each with --from-file"
            ),
        ),
        (
            ("quota", "delete", "lab"),
            "`batchq delete quota lab/default` removes the quota of namespace lab",
        ),
    ],
)
def test_the_notation_of_another_scheduler_gets_a_hint(words: tuple[str, ...], hint: str) -> None:
    done = run(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[1] == f"hint: {hint}"


@pytest.mark.both_doors
@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["-N", "4", "-q", "flat"], "it needs cpu 4, and queue flat allows at most 3"),
        (["-N", "4", "-q", "leaf"], "it needs cpu 4, and queue low allows at most 3"),
        (
            ["--mem", "2Gi"],
            "it needs memory 2Gi, and the quota of namespace default allows at most 1Gi",
        ),
        (
            ["--external", "--mem", "2Gi"],
            "it needs memory 2Gi, and the quota of namespace default allows at most 1Gi",
        ),
    ],
)
def test_a_request_beyond_a_configured_limit_is_accepted_with_the_numbers(
    batchq: Batchq, stage: Stage, options: list[str], why: str
) -> None:
    stage.furnish(
        a_node("n1", cpu=8, memory="8Gi"),
        a_queue("flat", capability={"cpu": 3}),
        a_queue("low", capability={"cpu": 3}),
        a_queue("leaf", parent="low", capability={"cpu": 5}),
        a_quota(memory="1Gi"),
    )
    done = batchq("submit", "--name", "big", *options, *([] if "--external" in options else TRUE))
    assert (done.code, done.out) == (0, "podgroup default/big submitted\n")
    assert done.err.splitlines() == [
        f"warning: PodGroup default/big can never start: {why}",
        "hint: `batchq plan` says what would fit",
    ]


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        (["--exclude", "n9"], "excludes a node that does not exist: n9"),
        (["--node", "n1", "--node", "n9"], "asks for a node that does not exist: n9"),
    ],
)
def test_a_node_that_does_not_exist_is_warned_of(
    batchq: Batchq, stage: Stage, options: list[str], warning: str
) -> None:
    stage.furnish(a_node("n1", cpu=4), a_node("n2", cpu=4))
    done = batchq("submit", "--name", "x", *options, "--", "true")
    assert (done.code, done.out) == (0, "podgroup default/x submitted\n")
    assert done.err == f"warning: PodGroup default/x {warning}\n"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            ["--node", "n2"],
            "node n2 has the taint dedicated:NoSchedule, which its pod does not tolerate",
        ),
        (
            ["--selector", "pool=gpu"],
            (
                "all 2 nodes that it may use have the taints dedicated:NoSchedule or"
                " service:NoSchedule, which its pod does not tolerate"
            ),
        ),
        (
            ["--cpus", "6"],
            "a pod asks for cpu 6, and the largest node that it may use has 4",
        ),
    ],
)
def test_nodes_with_taints_that_a_request_does_not_tolerate_are_warned_of(
    batchq: Batchq, stage: Stage, options: list[str], why: str
) -> None:
    gpu = {"pool": "gpu"}
    stage.furnish(
        a_node("n1", cpu=4, taints=(Taint(key="rare", effect="PreferNoSchedule"),)),
        a_node("n2", cpu=8, labels=gpu, taints=(Taint(key="dedicated"),)),
        a_node("n3", cpu=8, labels=gpu, taints=(Taint(key="service"),)),
    )
    done = batchq("submit", "--name", "x", *options, "--", "true")
    assert (done.code, done.out) == (0, "podgroup default/x submitted\n")
    assert done.err.splitlines() == [
        f"warning: PodGroup default/x cannot start on the existing nodes: {why}",
        "hint: `batchq plan` says what would fit; a node that takes it may still join",
    ]
    assert batchq("submit", "--name", "y", "--", "true").err == ""


@pytest.mark.both_doors
@pytest.mark.parametrize(
    "toleration", ["dedicated", "dedicated=ml", "dedicated:NoSchedule", "dedicated=ml:NoSchedule"]
)
def test_a_request_that_tolerates_a_taint_uses_the_node(
    batchq: Batchq, stage: Stage, toleration: str
) -> None:
    stage.furnish(a_node("n1", cpu=4, taints=(Taint(key="dedicated", value="ml"),)))
    done = batchq("submit", "--name", "x", "--toleration", toleration, "--", "true")
    assert (done.code, done.out, done.err) == (0, "podgroup default/x submitted\n", "")
    stage.run("x")
    assert stage.phase("x") == "Completed"


def test_a_toleration_of_another_value_is_told_which_one_the_taint_has(
    batchq: Batchq, stage: Stage
) -> None:
    stage.furnish(a_node("n1", cpu=4, taints=(Taint(key="dedicated", value="ml"),)))
    done = batchq("submit", "--name", "x", "--toleration", "dedicated=vision", "--", "true")
    taint = "taint dedicated=ml:NoSchedule"
    assert done.err.splitlines()[0] == (
        "warning: PodGroup default/x cannot start on the existing nodes:"
        f" node n1 has the {taint}, which its pod does not tolerate"
    )
    stage.turn()
    assert f"0/1 nodes fit: 1 {taint} not tolerated" in batchq("why", "x").out


@pytest.mark.parametrize("toleration", ["", "=ml", "a:Never", "a b", "a=b c", "a=b=c"])
def test_a_malformed_toleration_is_refused(toleration: str) -> None:
    done = run("submit", "--toleration", toleration, "--", "true")
    assert (done.code, done.out) == (2, "")
    assert "expected" in done.err
    assert "found" in done.err


@pytest.mark.both_doors
def test_a_request_to_a_stopped_queue_is_warned_of(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(
        *(a_node("n1", cpu=8), a_queue("open"), a_queue("held", stop_policy="Hold")),
        *(a_queue("low", stop_policy="HoldAndDrain"), a_queue("leaf", parent="low")),
    )
    warnings = {}
    for queue in ("open", "held", "leaf"):
        done = batchq("submit", "--name", f"in-{queue}", "-q", queue, "--", "true")
        assert (done.code, done.out) == (0, f"podgroup default/in-{queue} submitted\n")
        warnings[queue] = done.err
    assert warnings == {
        "open": "",
        "held": "warning: PodGroup default/in-held waits: queue held is stopped (Hold)\n",
        "leaf": "warning: PodGroup default/in-leaf waits: queue low is stopped (HoldAndDrain)\n",
    }


def test_up_says_which_agents_keep_other_resources_and_how_to_change_them() -> None:
    def part(name: str, state: PartState, detail: str) -> Part:
        return Part(name=name, state=state, pid=1, detail=detail)

    report = StackReport(
        home="/h",
        url="unix:///h",
        parts=(
            part("server", PartState.RUNNING, "9.1.2"),
            part("vm-1", PartState.RUNNING, "cpu=2,memory=1Gi"),
            part("vm-2", PartState.STARTED, "cpu=4,memory=1Gi"),
        ),
    )
    assert kept_offers(report, "cpu=4,memory=1Gi") == [
        (
            "--resources cpu=4,memory=1Gi did not change running agents (vm-1 offers cpu 2,"
            " memory 1Gi); to change it: batchq down && batchq up --resources cpu=4,memory=1Gi"
        )
    ]
    assert kept_offers(report, "memory=1024Mi,cpu=2") == []
    assert kept_offers(report, None) == []


@pytest.mark.both_doors
def test_a_quota_of_a_resource_that_no_node_has_gets_a_warning(
    batchq: Batchq, stage: Stage, tmp_path: Path
) -> None:
    stage.furnish(a_node("n1", **{"cpu": 4, "gpu": 2, "gpu:h100": 2}))
    warning = "warning: the quota of namespace default"
    limits = ("cpuu=4", "memory=1Gi", "gpu:h100=1", "pods=9", "podgroups=9", "license=1")
    done = batchq("quota", "set", "default", *limits)
    assert (done.code, done.out) == (0, "resourcequota default/default configured\n")
    assert done.err.splitlines() == [
        f"{warning} limits cpuu, and no node has cpuu; did you mean cpu?",
        f"{warning} limits license, and no node has license",
    ]
    file = tmp_path / "quota.yaml"
    file.write_text(batchq("get", "quota", "default/default", "-o", "yaml").out)
    assert "limits cpuu, and no node has cpuu" in batchq("apply", "-f", str(file)).err


@pytest.mark.both_doors
def test_a_queue_with_a_resource_that_no_node_has_gets_a_warning(
    batchq: Batchq, stage: Stage, tmp_path: Path
) -> None:
    stage.furnish(a_node("n1", cpu=4))
    file = tmp_path / "queue.yaml"
    file.write_text(
        "{apiVersion: batchq/v1, kind: Queue, metadata: {name: lab}, spec: {guarantee: {cpuu: 1},"
        " deserved: {cpu: 2}, capability: {cpu: 4, gpus: 1}}}"
    )
    done = batchq("apply", "-f", str(file))
    assert (done.code, done.out) == (0, "queue lab created\n")
    warnings = [line for line in done.err.splitlines() if "no node has" in line]
    assert warnings == [
        "warning: queue lab has a guarantee of cpuu, and no node has cpuu; did you mean cpu?",
        "warning: queue lab has a capability of gpus, and no node has gpus",
    ]


def test_a_limit_of_what_an_external_group_of_the_file_asks_for_gets_no_warning(
    batchq: Batchq, stage: Stage
) -> None:
    stage.furnish(a_node("n1", cpu=4))
    example = Path(__file__).resolve().parents[2] / "conf" / "examples" / "external.yaml"
    done = batchq("apply", "-f", str(example))
    assert (done.code, done.err) == (0, "")
    assert done.out == "queue render-farm created\npodgroup default/render created\n"


def test_a_quota_before_there_is_a_node_gets_no_warning(server: Server) -> None:
    done = run("quota", "set", "default", "cpuu=4", url=server.url)
    assert (done.code, done.err) == (0, "")


def test_a_pod_of_an_allocation_has_three_names() -> None:
    pod = structs.replace(a_pod(a_group("held")), status=PodStatus(node="n1"))
    for host in ("n1", "held-w-0", "default/held-w-0"):
        assert pod_at([pod], host, "default/held") is pod
    with pytest.raises(NotFound, match="has no pod on node lab/held-w-0"):
        pod_at([pod], "lab/held-w-0", "default/held")


def test_agents_without_cpu_get_a_warning_before_they_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("BATCHQ_HOME", str(file / "home"))
    done = run("up", "--resources", "cpu=0")
    assert done.code != 0, "a file is no home, so nothing has started"
    assert done.err.splitlines()[0] == (
        "warning: --resources: with cpu=0, only pods that request no cpu can start"
    )


def test_a_walltime_of_zero_is_refused_without_a_question(batchq: Batchq, stage: Stage) -> None:
    done = batchq("submit", "--walltime", "0", *TRUE)
    assert done.code == 1
    assert "expected more than 0s" in done.err
    assert "did you mean" not in done.err


def test_a_variable_that_no_shell_can_read_gets_a_warning(batchq: Batchq, stage: Stage) -> None:
    done = batchq("submit", "--env", "1x=3", "--env", "OMP_NUM_THREADS=2", *TRUE)
    assert done.code == 0
    assert done.err.splitlines() == [
        "warning: --env: a shell cannot read a variable with the name '1x'"
    ]


def test_the_hint_about_a_missing_priority_class_makes_one(batchq: Batchq, stage: Stage) -> None:
    asked = ("submit", "--name", "hurry", "--priority-class", "urgent", *TRUE)
    hint = batchq(*asked).err.splitlines()[1]
    made = re.search("echo '(.*)' \\| batchq apply -f -$", hint)
    assert made is not None
    assert batchq("apply", "-f", "-", stdin=made[1]).out == "priorityclass urgent created\n"
    assert batchq(*asked).out == "podgroup default/hurry submitted\n"


def test_an_image_without_its_runtime_gets_a_warning(batchq: Batchq, stage: Stage) -> None:
    stage.furnish(a_node("n1", cpu=4, labels={"batchq/runtime-podman": "no"}))
    done = batchq("submit", "--name", "boxed", "--image", "ubuntu:22.04", *TRUE)
    assert done.code == 0
    assert done.err.splitlines()[0] == (
        "warning: PodGroup default/boxed cannot start on the existing nodes: no node has podman,"
        " which its container needs (batchq/runtime-podman=yes)"
    )
