"""How each runtime starts the command of a pod, and how an environment of Python is activated.

Pure functions from what a pod runs to what is executed instead. The runtime's process leads the
pod's process group, like any command, so limits, signals and the end of a pod work as without a
container; `spares_leader` is for a runtime whose own process would end on a signal to the group
before the pod has obeyed it.

Network and IPC are those of the node, and so are pids except with podman: the pods of a gang talk
to each other by addresses, shared memory and CUDA's IPC.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from batchq.api.node_features import ContainerMount, mount_of, runtime_of
from batchq.api.objects import Container
from batchq.worker.workhorse.run_file import NO_CONTAINER, NOT_EXECUTABLE, NOT_FOUND, PodOutcome

#: The descriptor for the report of bwrap. Those of the locks of devices have higher numbers.
_REPORT_DESCRIPTOR = "9"
#: Variables that an image sets for itself.
_OF_IMAGE = frozenset({"PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "SHELL"})
_INDICES = re.compile(r"[0-9]+(,[0-9]+)*")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
#: Folders that programs expect; an image has only their mount points.
_SYSTEM = ("/proc", "/sys")
_NAMES = ("/etc/resolv.conf", "/etc/hosts", "/etc/passwd", "/etc/group")
_REPORTING = ("/bin/sh", "-c", f'exec "$@" {_REPORT_DESCRIPTOR}>"$0"')
_BWRAP_SAYS = re.compile(r"^bwrap: (?:execvp (?P<program>.*): )?(?P<why>.*)$", re.MULTILINE)


class PodProgram(Struct, frozen=True, kw_only=True):
    """What is executed for a pod: `argv` in an environment and a folder."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    spares_leader: bool = False


class ContainerHost(Struct, frozen=True, kw_only=True):
    """What a node gives to a container.

    `program` is the path of the runtime. `run_dir` holds the files that the pod reads. `nodes` are
    the device nodes that the pod may use, and `gpus` the ids of its GPUs. `report` is where bwrap
    writes what becomes of the program, if anything reads it. `is_root`: the pod runs as root.
    """

    program: str
    run_dir: str = ""
    nodes: Sequence[str] = ()
    gpus: Sequence[str] = ()
    report: str = ""
    is_root: bool = False


def contained(
    program: PodProgram, container: Container | None, host: ContainerHost | None
) -> PodProgram:
    """Return how the container's runtime executes a program; without one, the program itself."""
    if container is None or host is None:
        return program
    match runtime_of(container):
        case "bwrap":
            return _by_bwrap(program, container, host)
        case "apptainer":
            return _by_apptainer(program, container, host)
        case "enroot":
            return _by_enroot(program, container, host)
        case "podman":
            return _by_podman(program, container, host)


def files_of(container: Container) -> list[tuple[str, str]]:
    """Return what a container needs on its node, as what it is and its path."""
    images = [("image", container.image)] if container.image.startswith("/") else []
    mounts = [found for text in container.mounts if (found := mount_of(text)) is not None]
    return [*images, *(("mount", mount.source) for mount in mounts)]


def start_failure(output: str) -> PodOutcome:
    """Return why bwrap has not executed its program, by the end of what it has printed."""
    lines = list(_BWRAP_SAYS.finditer(output))
    if not lines:
        return PodOutcome(exit_code=NO_CONTAINER, message="its container could not be set up")
    program, why = lines[-1]["program"], lines[-1]["why"]
    if program is None:
        message = f"its container could not be set up: {why}"
        return PodOutcome(exit_code=NO_CONTAINER, message=message)
    if why == os.strerror(errno.ENOENT):
        return PodOutcome(
            exit_code=NOT_FOUND, message=f"command not found in its container: {program}"
        )
    return PodOutcome(
        exit_code=NOT_EXECUTABLE, message=f"cannot run {program} in its container: {why}"
    )


def activated(environment: Mapping[str, str], folder: str, *, is_conda: bool) -> dict[str, str]:
    """Return an environment in which that of the folder is active, as after `activate`.

    The scripts that conda packages run at an activation are not run.
    """
    found = {name: value for name, value in environment.items() if name != "PYTHONHOME"}
    path = found.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    found["PATH"] = f"{folder}/bin:{path}"
    if not is_conda:
        return found | {"VIRTUAL_ENV": folder}
    name = folder.rstrip("/").rpartition("/")[2]
    return found | {"CONDA_PREFIX": folder, "CONDA_DEFAULT_ENV": name, "CONDA_SHLVL": "1"}


def _mounts(container: Container, host: ContainerHost) -> list[ContainerMount]:
    stated = [found for text in container.mounts if (found := mount_of(text)) is not None]
    own = [ContainerMount(host.run_dir, host.run_dir, True)] if host.run_dir else []
    return [*own, *stated]


def _by_bwrap(program: PodProgram, container: Container, host: ContainerHost) -> PodProgram:
    """Return a command of bwrap, in which the last option for a path wins."""
    image, folder = container.image, program.folder
    words = [host.program, "--die-with-parent"]
    if host.report:
        words = [*_REPORTING, host.report, *words, "--json-status-fd", _REPORT_DESCRIPTOR]
    environment = dict(program.environment)
    if image:
        words += ["--ro-bind", image, "/", "--tmpfs", "/tmp"]  # noqa: S108 - the container's own
        for place in _SYSTEM:
            words += ["--bind" if place == "/proc" else "--ro-bind", place, place]
        for name in _NAMES:
            words += ["--ro-bind-try", name, name]
        environment["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    else:
        words += ["--bind", "/", "/"]
    if "devices" in container.isolate:
        words += ["--dev", "/dev", "--bind-try", "/dev/shm", "/dev/shm"]  # noqa: S108 - shared
        for node in (*host.nodes, "/dev/infiniband"):
            words += ["--dev-bind-try", node, node]
        environment = _renumbered(environment)
    else:
        words += ["--dev-bind", "/dev", "/dev"]
    for source, target, is_read_only in _mounts(container, host):
        words += ["--ro-bind" if is_read_only else "--bind", source, target]
    if folder:
        words += [*(("--bind", folder, folder) if image else ()), "--chdir", folder]
    return PodProgram(
        argv=(*words, "--", *program.argv),
        environment=environment,
        folder=folder,
        spares_leader=True,
    )


def _by_apptainer(program: PodProgram, container: Container, host: ContainerHost) -> PodProgram:
    """Return a command of apptainer. Variables have its prefix: `--env` splits values at commas."""
    words = [host.program, "exec"]
    if host.gpus:
        words.append("--rocm" if "ROCR_VISIBLE_DEVICES" in program.environment else "--nv")
    for source, target, is_read_only in _mounts(container, host):
        words += ["--bind", f"{source}:{target}:{'ro' if is_read_only else 'rw'}"]
    if program.folder:
        words += ["--bind", program.folder, "--pwd", program.folder]
    told = {
        f"APPTAINERENV_{name}": value
        for name, value in program.environment.items()
        if name not in _OF_IMAGE
    }
    environment = {**program.environment, **told}
    return structs.replace(
        program, argv=(*words, container.image, *program.argv), environment=environment
    )


def _by_enroot(program: PodProgram, container: Container, host: ContainerHost) -> PodProgram:
    words = [host.program, "start", "--rw"]
    mounts = _mounts(container, host)
    if program.folder:
        mounts.append(ContainerMount(program.folder, program.folder, False))
    for source, target, is_read_only in mounts:
        mode = "ro" if is_read_only else "rw"
        words += ["--mount", f"{source}:{target}:none:x-create=auto,bind,{mode}"]
    for name in sorted(program.environment.keys() - _OF_IMAGE - {"HOME"}):
        words += ["--env", name]
    # enroot has no option for the folder.
    inside = ("sh", "-c", 'cd "$0" && exec "$@"', program.folder) if program.folder else ()
    return structs.replace(program, argv=(*words, container.image, *inside, *program.argv))


def _by_podman(program: PodProgram, container: Container, host: ContainerHost) -> PodProgram:
    """Its container is no child of it, but without a cgroup of its own it stays below the
    work-horse, which adopts and ends it. Podman demands a PID namespace of such containers, and
    keeps the ids of no account that is root.
    """
    words = [host.program, "run", "--rm", "--interactive", "--network=host", "--ipc=host"]
    words += ["--cgroups=disabled", *(() if host.is_root else ("--userns=keep-id",))]
    words += ["--log-driver=none", "--entrypoint="]
    for source, target, is_read_only in _mounts(container, host):
        words += ["--volume", f"{source}:{target}:{'ro' if is_read_only else 'rw'}"]
    if program.folder:
        words += ["--volume", f"{program.folder}:{program.folder}:rw"]
        words += ["--workdir", program.folder]
    for gpu in host.gpus:
        words += ["--device", f"nvidia.com/gpu={gpu}"]
    environment = _renumbered(program.environment) if host.gpus else dict(program.environment)
    for name in sorted(environment.keys() - _OF_IMAGE - {"HOME"}):
        words += ["--env", name]
    return structs.replace(
        program, argv=(*words, container.image, *program.argv), environment=environment
    )


def _renumbered(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a pod that sees its own devices only, which are counted from 0."""
    found = dict(environment)
    for name in _VISIBLE:
        if _INDICES.fullmatch(found.get(name, "")):
            found[name] = ",".join(str(place) for place in range(found[name].count(",") + 1))
    return found
