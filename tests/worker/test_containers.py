"""Containers and environments of Python: what is executed for a pod; real ones by bubblewrap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from batchq.api.lifecycle import PodPhase
from batchq.api.manifest import decode, encode
from batchq.api.node_features import (
    RUNTIMES,
    container_problems,
    image_to_pull,
    runtime_of,
    with_runtime_labels,
)
from batchq.api.objects import Container, Node, PodGroup, PodTemplate
from batchq.worker.host.node_resources import device_nodes, runtime_labels
from batchq.worker.workhorse.container_commands import (
    ContainerHost,
    PodProgram,
    activated,
    contained,
)
from tests.builders import a_group, a_task
from tests.worker.stage import Stage

PROGRAM = PodProgram(
    argv=("train", "--fast"),
    environment={"PATH": "/bin", "HOME": "/home/a", "LR": "0,1", "CUDA_VISIBLE_DEVICES": "2,3"},
    folder="/work",
)
HOST = ContainerHost(
    program="/usr/bin/tool",
    run_dir="/run/n1",
    nodes=("/dev/nvidia2", "/dev/nvidia3", "/dev/nvidiactl"),
    gpus=("GPU-c", "GPU-d"),
)
#: What bwrap makes in every new /dev, and the network that pods share.
USUAL_DEVICES = {
    *("console", "core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr"),
    *("stdin", "stdout", "tty", "urandom", "zero", "infiniband"),
}
OWN = ("--ro-bind", "/run/n1", "/run/n1")


def test_bwrap_without_an_image_shows_the_files_of_the_node_and_mounts() -> None:
    container = Container(mounts=("/data:/mnt:ro", "/scratch"))
    found = contained(PROGRAM, container, HOST)
    assert found == PodProgram(
        argv=(
            *("/usr/bin/tool", "--die-with-parent", "--bind", "/", "/", "--dev-bind", "/dev"),
            *("/dev", *OWN, "--ro-bind", "/data", "/mnt", "--bind", "/scratch", "/scratch"),
            *("--chdir", "/work", "--", "train", "--fast"),
        ),
        environment=PROGRAM.environment,
        folder="/work",
        spares_leader=True,
    )


def test_bwrap_reports_through_a_descriptor_that_a_shell_opens() -> None:
    found = contained(PROGRAM, Container(), structs.replace(HOST, report="/run/n1/p-1.started"))
    assert found.argv[:9] == (
        *("/bin/sh", "-c", 'exec "$@" 9>"$0"', "/run/n1/p-1.started", "/usr/bin/tool"),
        *("--die-with-parent", "--json-status-fd", "9", "--bind"),
    )


def test_bwrap_isolates_devices_which_are_then_counted_from_0() -> None:
    found = contained(PROGRAM, Container(isolate=("devices",)), HOST)
    assert found.argv == (
        *("/usr/bin/tool", "--die-with-parent", "--bind", "/", "/", "--dev", "/dev"),
        *("--bind-try", "/dev/shm", "/dev/shm", "--dev-bind-try", "/dev/nvidia2", "/dev/nvidia2"),
        *("--dev-bind-try", "/dev/nvidia3", "/dev/nvidia3"),
        *("--dev-bind-try", "/dev/nvidiactl", "/dev/nvidiactl"),
        *("--dev-bind-try", "/dev/infiniband", "/dev/infiniband", *OWN),
        *("--chdir", "/work", "--", "train", "--fast"),
    )
    assert found.environment["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_bwrap_takes_a_folder_as_the_root_of_all_files() -> None:
    found = contained(PROGRAM, Container(image="/images/debian"), HOST)
    assert found.argv == (
        *("/usr/bin/tool", "--die-with-parent", "--ro-bind", "/images/debian", "/"),
        *("--tmpfs", "/tmp", "--bind", "/proc", "/proc", "--ro-bind", "/sys", "/sys"),
        *("--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"),
        *("--ro-bind-try", "/etc/hosts", "/etc/hosts"),
        *("--ro-bind-try", "/etc/passwd", "/etc/passwd"),
        *("--ro-bind-try", "/etc/group", "/etc/group", "--dev-bind", "/dev", "/dev", *OWN),
        *("--bind", "/work", "/work", "--chdir", "/work", "--", "train", "--fast"),
    )
    assert found.environment["PATH"].startswith("/usr/local/sbin:")


def test_apptainer_gets_variables_by_names_of_its_own() -> None:
    found = contained(PROGRAM, Container(image="/i/torch.sif", mounts=("/data:ro",)), HOST)
    assert found.argv == (
        *("/usr/bin/tool", "exec", "--nv", "--bind", "/run/n1:/run/n1:ro"),
        *("--bind", "/data:/data:ro", "--bind", "/work", "--pwd", "/work"),
        *("/i/torch.sif", "train", "--fast"),
    )
    assert found.environment["APPTAINERENV_LR"] == "0,1"
    assert found.environment["APPTAINERENV_CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "APPTAINERENV_PATH" not in found.environment
    assert not found.spares_leader


def test_enroot_changes_the_folder_inside() -> None:
    found = contained(PROGRAM, Container(image="/i/torch.sqsh"), HOST)
    assert found.argv == (
        *("/usr/bin/tool", "start", "--rw"),
        *("--mount", "/run/n1:/run/n1:none:x-create=auto,bind,ro"),
        *("--mount", "/work:/work:none:x-create=auto,bind,rw"),
        *("--env", "CUDA_VISIBLE_DEVICES", "--env", "LR", "/i/torch.sqsh"),
        *("sh", "-c", 'cd "$0" && exec "$@"', "/work", "train", "--fast"),
    )


def test_podman_gets_the_gpus_of_the_pod_and_no_cgroup_of_its_own() -> None:
    found = contained(PROGRAM, Container(image="registry.example/torch:2"), HOST)
    assert found.argv == (
        *("/usr/bin/tool", "run", "--rm", "--interactive", "--network=host", "--ipc=host"),
        *("--cgroups=disabled", "--userns=keep-id", "--log-driver=none", "--entrypoint="),
        *("--volume", "/run/n1:/run/n1:ro", "--volume", "/work:/work:rw", "--workdir", "/work"),
        *("--device", "nvidia.com/gpu=GPU-c", "--device", "nvidia.com/gpu=GPU-d"),
        *("--env", "CUDA_VISIBLE_DEVICES", "--env", "LR", "registry.example/torch:2"),
        *("train", "--fast"),
    )
    assert found.environment["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_podman_keeps_no_ids_of_root_which_it_refuses() -> None:
    host = structs.replace(HOST, is_root=True)
    found = contained(PROGRAM, Container(image="registry.example/torch:2"), host)
    assert "--userns=keep-id" not in found.argv
    assert "--cgroups=disabled" in found.argv


@pytest.mark.parametrize(
    ("container", "image"),
    [
        (None, ""),
        (Container(), ""),
        (Container(image="/images/debian"), ""),
        (Container(image="/images/torch.sif"), ""),
        (Container(image="docker://python:3.12"), "docker://python:3.12"),
        (Container(image="oci:/images/torch"), ""),
        (Container(image="/images/torch.sqsh"), ""),
        (Container(image="python:3.12"), "python:3.12"),
    ],
)
def test_an_image_is_pulled_if_it_is_no_file_of_the_node(
    container: Container | None, image: str
) -> None:
    assert image_to_pull(container) == image


@pytest.mark.parametrize(
    ("container", "runtime"),
    [
        (Container(), "bwrap"),
        (Container(image="/images/debian"), "bwrap"),
        (Container(image="/images/torch.sif"), "apptainer"),
        (Container(image="docker://python:3.12"), "apptainer"),
        (Container(image="/images/torch.sqsh"), "enroot"),
        (Container(image="python:3.12"), "podman"),
        (Container(image="python:3.12", runtime="apptainer"), "apptainer"),
    ],
)
def test_the_runtime_is_that_of_the_image(container: Container, runtime: str) -> None:
    assert runtime_of(container) == runtime
    group = a_group("g", tasks=(a_task("w", 1, container=container, node_selector={"a": "b"}),))
    (task,) = with_runtime_labels(group).spec.tasks
    assert task.template.node_selector == {"a": "b", f"batchq/runtime-{runtime}": "yes"}


def test_a_manifest_with_a_container_needs_a_node_with_its_runtime() -> None:
    template = {"command": ["true"], "container": {"image": "/i/torch.sif"}}
    stated = {
        "apiVersion": "batchq/v1",
        "kind": "PodGroup",
        "metadata": {"name": "train"},
        "spec": {"tasks": [{"name": "w", "template": template}]},
    }
    group = decode(stated)
    assert isinstance(group, PodGroup)
    assert group.spec.tasks[0].template.node_selector == {"batchq/runtime-apptainer": "yes"}
    assert decode(encode(group)) == group


def test_an_environment_needs_an_agent_that_can_activate_it() -> None:
    group = a_group("g", tasks=(a_task("w", 1, env_activate="/venv"), a_task("plain", 1)))
    activated_one, plain = with_runtime_labels(group).spec.tasks
    assert activated_one.template.node_selector == {"batchq/env-activate": "yes"}
    assert plain.template.node_selector == {}
    assert runtime_labels()["batchq/env-activate"] == "yes"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (
            {"container": Container(image="--privileged")},
            ("t.container.image: expected a path or a reference of an image, found '--privileged'"),
        ),
        (
            {"container": Container(runtime="enroot", image="docker://python")},
            (
                "t.container.image: enroot takes the path of a file, found a URL; make"
                " one with `enroot import`"
            ),
        ),
        (
            {"container": Container(runtime="podman")},
            ("t.container.image: podman needs an image; without one the runtime is bwrap"),
        ),
        (
            {"container": Container(image="python:3", runtime="bwrap")},
            ("t.container.image: bwrap takes an absolute path of a folder, found 'python:3'"),
        ),
        (
            {"container": Container(image="/i"), "function": "os:getpid"},
            ("t.container.image: a function runs in a Python of its node; give a command instead"),
        ),
        (
            {"container": Container(image="/i"), "env_activate": "/venv"},
            ("t.container.image: envActivate names a folder of the node; set PATH in env instead"),
        ),
        (
            {"container": Container(image="/i.sif", isolate=("devices",))},
            ("t.container.isolate: only bwrap isolates devices, and the runtime is apptainer"),
        ),
        (
            {"container": Container(mounts=("data:/x",))},
            (
                "t.container.mounts: expected SRC, SRC:DST"
                " or SRC:DST:ro with absolute paths without commas, found 'data:/x'"
            ),
        ),
        (
            {"container": Container(mounts=("/a:/b:rx",))},
            (
                "t.container.mounts: expected SRC, SRC:DST"
                " or SRC:DST:ro with absolute paths without commas, found '/a:/b:rx'"
            ),
        ),
        (
            {"container": Container(mounts=("/a",) * 65)},
            ("t.container.mounts: expected at most 64, found 65"),
        ),
        (
            {"env_activate": "venv"},
            ("t.envActivate: expected an absolute path of a folder, found 'venv'"),
        ),
    ],
)
def test_a_container_that_could_not_start_is_refused(
    template: dict[str, Any], problem: str
) -> None:
    assert list(container_problems(PodTemplate(**template), "t")) == [problem]


def test_a_virtual_environment_and_a_conda_environment_are_activated() -> None:
    before = {"PATH": "/usr/bin", "PYTHONHOME": "/x", "A": "b"}
    assert activated(before, "/venv", is_conda=False) == {
        "PATH": "/venv/bin:/usr/bin",
        "A": "b",
        "VIRTUAL_ENV": "/venv",
    }
    assert activated({}, "/opt/conda/envs/ml", is_conda=True) == {
        "PATH": "/opt/conda/envs/ml/bin:/usr/local/bin:/usr/bin:/bin",
        "CONDA_PREFIX": "/opt/conda/envs/ml",
        "CONDA_DEFAULT_ENV": "ml",
        "CONDA_SHLVL": "1",
    }


def test_the_nodes_of_a_gpu_are_found_by_its_uuid(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for minor, bus, uuid in ((0, "0000:5e:00.0", "GPU-b"), (1, "0000:3b:00.0", "GPU-a")):
        (tmp_path / f"dev/nvidia{minor}").touch()
        folder = tmp_path / "proc/driver/nvidia/gpus" / bus
        folder.mkdir(parents=True)
        text = f"Model: \t NVIDIA H100\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
        (folder / "information").write_text(text)
    shared = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"]
    shared.append("/dev/nvidia-caps")

    def nodes(**environment: str) -> list[str]:
        return device_nodes(environment, root=tmp_path)

    assert nodes(BATCHQ_GPU_UUIDS="GPU-a") == ["/dev/nvidia1", *shared]
    assert nodes(BATCHQ_GPU_UUIDS="GPU-b,GPU-a") == ["/dev/nvidia0", "/dev/nvidia1", *shared]
    assert nodes(BATCHQ_GPU_UUIDS="MIG-x") == ["/dev/nvidia0", "/dev/nvidia1", *shared]
    assert nodes(BATCHQ_GPU_UUIDS="") == []
    amd = {"BATCHQ_GPU_UUIDS": "0x1", "ROCR_VISIBLE_DEVICES": "1"}
    assert nodes(**amd) == ["/dev/kfd", "/dev/dri"]


@pytest.fixture
def bwrap() -> None:
    if runtime_labels()["batchq/runtime-bwrap"] != "yes":
        pytest.skip("bubblewrap is not installed, or this machine forbids what it needs")


def shell(stage: Stage, line: str, **template: Any) -> Any:
    (pod,) = stage.bind("sh", "-c", line, **template)
    return pod


@pytest.mark.e2e
def test_a_node_says_which_runtimes_it_has(stage: Stage) -> None:
    stage.start_agent()
    node = stage.store.get("Node", "n1")
    assert isinstance(node, Node)
    said = {name: node.metadata.labels[f"batchq/runtime-{name}"] for name in RUNTIMES}
    assert said == {name: runtime_labels()[f"batchq/runtime-{name}"] for name in RUNTIMES}


@pytest.mark.e2e
@pytest.mark.usefixtures("bwrap")
@pytest.mark.parametrize("containment", ["subreaper", "pid-namespace"])
def test_a_pod_sees_no_devices_but_its_own(stage: Stage, containment: str) -> None:
    stage.start_agent(containment=containment)
    isolated = Container(isolate=("devices",))
    hidden = {path.name for path in Path("/dev").iterdir()} - USUAL_DEVICES
    pod = shell(stage, "ls /dev; echo x >/dev/null", container=isolated)
    assert stage.ended(pod).status.exit_code == 0
    seen = set(stage.output(pod).split())
    assert {"null", "shm", "urandom"} <= seen
    assert seen.isdisjoint(hidden), "devices of the node"
    (called,) = stage.bind(
        function="os:listdir", args=(msgspec.Raw(b'"/dev"'),), container=isolated
    )
    assert stage.ended(called).status.message == ""
    listed = stage.store.read_result("n1", called.metadata.uid, called.status.attempt)
    assert set(msgspec.json.decode(listed or b"[]")) >= {"null", "shm", "urandom"}
    assert hidden.isdisjoint(msgspec.json.decode(listed or b"[]"))


@pytest.mark.e2e
@pytest.mark.usefixtures("bwrap")
def test_a_pod_in_a_container_obeys_signals_and_is_told_why(stage: Stage) -> None:
    stage.start_agent()
    line = 'trap "cat $BATCHQ_STOP_FILE; exit 7" TERM; echo ready; while :; do sleep 0.1; done'
    pod = shell(stage, line, container=Container(isolate=("devices",)))
    stage.started(pod, saying="ready")
    stage.stop(pod)
    status = stage.ended(pod).status
    assert (status.phase, status.exit_code) == (PodPhase.EVICTED, 7)
    assert "Preempted" in stage.output(pod).split()
    deaf = shell(stage, 'trap "" TERM; echo ready; sleep 600', container=Container(),
                 termination_grace=100)  # fmt: skip
    stage.started(deaf, saying="ready")
    stage.stop(deaf)
    assert stage.ended(deaf).status.phase == PodPhase.EVICTED


@pytest.mark.e2e
@pytest.mark.usefixtures("bwrap")
def test_an_image_is_read_only_and_mounts_are_where_they_should_be(
    stage: Stage, tmp_path: Path
) -> None:
    stage.start_agent()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("of the node")
    mounts = (f"{tmp_path}/data:/mnt:ro", f"{tmp_path}:/media")
    line = (
        "cat /mnt/file; touch /mnt/no; touch /etc/no; touch /tmp/yes && touch /media/written; pwd"
    )
    image = Container(image="/", mounts=mounts)
    pod = shell(stage, line, container=image, working_dir=str(tmp_path))
    assert stage.ended(pod).status.exit_code == 0
    assert stage.output(pod) == f"of the node{tmp_path}\n"
    assert (tmp_path / "written").exists()
    assert not Path("/tmp/yes").exists()


@pytest.mark.e2e
def test_a_pod_whose_node_lacks_the_runtime_fails_with_one_sentence(stage: Stage) -> None:
    stage.start_agent()
    pod = shell(stage, "true", container=Container(image="/i.sqsh"))
    status = stage.ended(pod).status
    assert (status.exit_code, status.message) == (
        125,
        "its container needs enroot, which this node does not have",
    )


@pytest.mark.e2e
@pytest.mark.usefixtures("bwrap")
@pytest.mark.parametrize("containment", ["subreaper", "pid-namespace"])
def test_a_program_that_its_container_cannot_start_is_told_from_one_that_fails(
    stage: Stage, tmp_path: Path, containment: str
) -> None:
    stage.start_agent(containment=containment)
    here, (file, empty) = Container(), (tmp_path / "file", tmp_path / "empty")
    file.touch()
    empty.mkdir()
    cases: list[tuple[Container, str, int, str]] = [
        (Container(image="/no-image"), "true", 125,
         "the image /no-image of its container is not on this node"),
        (Container(mounts=("/no-mount:/mnt",)), "true", 125,
         "the mount /no-mount of its container is not on this node"),
        (Container(image=str(empty)), "true", 125,
         "its container could not be set up: Can't mkdir /tmp: Read-only file system"),
        (here, "no-program", 127, "command not found in its container: no-program"),
        (here, str(file), 126, f"cannot run {file} in its container: Permission denied"),
    ]  # fmt: skip
    pods = [stage.bind(program, container=container)[0] for container, program, *_ in cases]
    ended = [stage.ended(pod).status for pod in pods]
    assert [(one.exit_code, one.message) for one in ended] == [(*rest,) for _, _, *rest in cases]
    fails = shell(stage, "echo bwrap: execvp false: No such file >&2; exit 1", container=here)
    assert (stage.ended(fails).status.exit_code, stage.now(fails).status.message) == (
        1,
        "exited with 1",
    )


@pytest.mark.e2e
def test_commands_and_functions_run_in_an_activated_environment(
    stage: Stage, tmp_path: Path
) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    stage.start_agent()
    line = 'python -c "import sys; print(sys.prefix)"; echo $VIRTUAL_ENV'
    pod = shell(stage, line, env_activate=str(venv))
    assert stage.ended(pod).status.exit_code == 0
    assert stage.output(pod).split() == [str(venv), str(venv)]
    (called,) = stage.bind(function="site:getsitepackages", env_activate=str(venv))
    assert stage.ended(called).status.message == ""
    result = stage.store.read_result("n1", called.metadata.uid, called.status.attempt)
    assert result is not None
    assert result.startswith(f'["{venv}/'.encode())
    lost = shell(stage, "true", env_activate=str(tmp_path / "gone"))
    assert stage.ended(lost).status.message == (
        f"envActivate {tmp_path / 'gone'} is no environment on this node: it has no bin"
    )
