"""Containers of pods: which runtime starts one, what may be mounted, and which nodes have it.

There is no daemon for containers and no helper with root's rights: a runtime starts the command of
a pod as the account that the pod has anyway.

    image                              runtime
    none                               bwrap: the files of the node, with other devices or mounts
    a folder, /images/debian           bwrap: the folder is the root of all files
    /images/torch.sif, docker://…      apptainer
    /images/torch.sqsh                 enroot
    registry.example/team/torch:2      podman
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec import structs

from batchq.api.notation import shown
from batchq.api.objects import Container, PodGroup, PodTemplate, RuntimeName

RUNTIMES: tuple[RuntimeName, ...] = ("bwrap", "apptainer", "enroot", "podman")
#: The label `batchq/runtime-bwrap` of a node is YES if the runtime works there, and NO otherwise.
RUNTIME_LABEL, YES, NO = "batchq/runtime-", "yes", "no"
#: A node with this label activates environments of Python.
ACTIVATES_LABEL = "batchq/env-activate"
#: A node with this label keeps the input of pods open that ask for it.
STDIN_LABEL = "batchq/stdin"
#: What each agent of this version can do.
AGENT_LABELS = {ACTIVATES_LABEL: YES, STDIN_LABEL: YES}
MOST_MOUNTS = 64
_MOST_TEXT = 4096
_APPTAINER = ("docker://", "oras://", "library://", "shub://", "oci:", "oci-archive:")


class ContainerMount(NamedTuple):
    """A file or folder of the node, and where the container sees it."""

    source: str
    target: str
    is_read_only: bool


def runtime_of(container: Container) -> RuntimeName:
    """Return the runtime that a container names, or else that of its image."""
    image = container.image
    if container.runtime != "auto":
        return container.runtime
    if image.endswith(".sif") or image.startswith(_APPTAINER):
        return "apptainer"
    if image.endswith((".sqsh", ".squashfs")):
        return "enroot"
    return "bwrap" if not image or image.startswith("/") else "podman"


def image_to_pull(container: Container | None) -> str:
    """Return the reference of the image that the container's runtime downloads; "" if its image is
    a file or a folder, or if it has none.
    """
    if container is None:
        return ""
    image, runtime = container.image, runtime_of(container)
    is_remote = runtime == "podman" and not image.startswith("/")
    return image if is_remote or (runtime == "apptainer" and "://" in image) else ""


def without_lacking(labels: Mapping[str, str]) -> dict[str, str]:
    """Return a node's labels for people, by key: without those of runtimes that it lacks, and
    without what each agent of this version can do.
    """
    return {
        key: value
        for key, value in sorted(labels.items())
        if key not in AGENT_LABELS and not (key.startswith(RUNTIME_LABEL) and value == NO)
    }


def lacking_runtime(selector: Mapping[str, str], nodes: Iterable[Mapping[str, str]]) -> str:
    """Return the runtime that a node selector asks for and no node has, by the nodes' labels; ''
    if there is none.
    """
    wanted = [name for name in RUNTIMES if selector.get(f"{RUNTIME_LABEL}{name}") == YES]
    there = {name for labels in nodes for name in wanted if labels.get(RUNTIME_LABEL + name) == YES}
    return next((name for name in wanted if name not in there), "")


def mount_of(text: str) -> ContainerMount | None:
    """Return what `SRC`, `SRC:DST`, `SRC:ro` or `SRC:DST:ro` means; None if it is malformed."""
    parts = text.split(":")
    is_read_only = parts[-1] == "ro"
    if is_read_only:
        parts.pop()
    if not 1 <= len(parts) <= 2 or not all(one.startswith("/") for one in parts):
        return None
    return ContainerMount(parts[0], parts[-1], is_read_only)


def with_runtime_labels(group: PodGroup) -> PodGroup:
    """Return the group with node selectors for what its templates need of an agent."""
    templates = [task.template for task in group.spec.tasks]
    if not any(one.container is not None or one.env_activate or one.stdin for one in templates):
        return group
    tasks = tuple(
        structs.replace(task, template=with_runtime_label(task.template))
        for task in group.spec.tasks
    )
    return structs.replace(group, spec=structs.replace(group.spec, tasks=tasks))


def with_runtime_label(template: PodTemplate) -> PodTemplate:
    """Return the template with node selectors for its container's runtime, and for agents that can
    activate an environment and keep an input open: those of former versions would ignore it.
    """
    needed = {}
    if template.container is not None:
        needed[f"{RUNTIME_LABEL}{runtime_of(template.container)}"] = YES
    if template.env_activate:
        needed[ACTIVATES_LABEL] = YES
    if template.stdin:
        needed[STDIN_LABEL] = YES
    if not needed:
        return template
    return structs.replace(template, node_selector={**template.node_selector, **needed})


def container_problems(template: PodTemplate, path: str) -> Iterator[str]:
    """Yield what is wrong with the container and the environment of a template."""
    activated, container = template.env_activate, template.container
    if activated and (not activated.startswith("/") or "\0" in activated):
        yield f"{path}.envActivate: expected an absolute path of a folder, found {shown(activated)}"
    if container is None:
        return
    path = f"{path}.container"
    runtime = runtime_of(container)
    yield from _image_problems(template, container, f"{path}.image")
    if container.isolate and runtime != "bwrap":
        yield f"{path}.isolate: only bwrap isolates devices, and the runtime is {runtime}"
    if len(container.mounts) > MOST_MOUNTS:
        yield f"{path}.mounts: expected at most {MOST_MOUNTS}, found {len(container.mounts)}"
    for text in container.mounts:
        if mount_of(text) is None or len(text) > _MOST_TEXT or "\0" in text or "," in text:
            yield (
                f"{path}.mounts: expected SRC, SRC:DST or SRC:DST:ro with absolute paths without"
                f" commas, found {shown(text)}"
            )


def _image_problems(template: PodTemplate, container: Container, path: str) -> Iterator[str]:
    activated = template.env_activate
    image, runtime = container.image, runtime_of(container)
    if len(image) > _MOST_TEXT or image.startswith("-") or any(one in image for one in "\0\n"):
        yield f"{path}: expected a path or a reference of an image, found {shown(image)}"
    if not image and runtime != "bwrap":
        yield f"{path}: {runtime} needs an image; without one the runtime is bwrap"
    if image and runtime == "bwrap" and not image.startswith("/"):
        yield f"{path}: bwrap takes an absolute path of a folder, found {shown(image)}"
    if image and runtime == "enroot" and "://" in image:
        yield (
            f"{path}: enroot takes the path of a file, found {shown(image)}; make one with"
            " `enroot import`"
        )
    if image and template.function:
        yield f"{path}: a function runs in a Python of its node; give a command instead"
    if image and activated:
        yield f"{path}: envActivate names a folder of the node; set PATH in env instead"
