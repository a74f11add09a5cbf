"""What pods ask of nodes beside plain amounts: accelerators (GPUs, and MIG instances of GPUs), and
the runtimes of containers; and which nodes have what a group asks for.

An agent lists its devices in an annotation of its node. Inside batchq a device is known by its id,
the UUID that the driver gives it, which stays the same when devices fail or are reordered. Pods are
told indices, because many programs expect numbers.

    gpu              every whole GPU
    gpu:h100         every whole GPU of that model
    mig-1g.10gb      every MIG instance of that profile; its GPU is not counted as one

Labels of a node say which runtimes it has. There is no daemon for containers and no helper with
root's rights: a runtime starts the command of a pod as the account that the pod has anyway.

    image                              runtime
    none                               bwrap: the files of the node, with other devices or mounts
    a folder, /images/debian           bwrap: the folder is the root of all files
    /images/torch.sif, docker://…      apptainer
    /images/torch.sqsh                 enroot
    registry.example/team/torch:2      podman
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, get_args, get_type_hints

import msgspec
from msgspec import Struct, structs

from batchq.api.lifecycle import ON_NODE
from batchq.api.notation import label_value_problem, qualified_problem, shown
from batchq.api.objects import (
    Container,
    Node,
    Pod,
    PodGroup,
    PodTemplate,
    RuntimeName,
    Taint,
    Toleration,
    full_name,
)
from batchq.api.resources import GPU, Amounts, describe_quantity
from batchq.errors import InvalidInput

#: The annotation of a Node with its devices, as JSON.
DEVICES_ANNOTATION = "batchq/devices"
#: Who has cordoned a node, and why, in the words of that user.
CORDONED_BY, CORDON_REASON = "batchq/cordoned-by", "batchq/cordon-reason"

#: The prefixes of the resources of one model, and of MIG instances.
TYPED, MIG = f"{GPU}:", "mig-"

WHOLE = 1000

#: The trouble of a device that an agent does not get.
LOCKED = "another agent of this machine has it"

#: A message lists at most this many names of nodes.
_MOST_NAMES = 5

#: No machine has more; a longer list is not read.
MOST_DEVICES = 256
_LONGEST_ID = 80
_LONGEST_MODEL = 40

_NO_LINKS: dict[int, int] = {}


class Device(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device, as its driver's tool describes it.

    `index` is its place on the machine by PCI bus. `id` is its UUID, or `gpu-<index>` for a GPU
    that was only declared. `links` scores the connection to other devices, by index; a higher score
    is a faster connection. `trouble` says why it is not offered, and is "" for a device in service.
    """

    index: int
    id: str
    vendor: str = ""
    bus: str = ""
    #: The product name that the tool reports, and its short form: `NVIDIA H100 80GB HBM3`, `h100`.
    name: str = ""
    model: str = ""
    memory_bytes: int = 0
    links: dict[int, int] = _NO_LINKS
    trouble: str = ""
    #: The profile of a MIG instance, such as `1g.10gb`, and the id of its GPU.
    profile: str = ""
    parent: str = ""
    #: Its recent utilization in percent; None if the tool does not report it.
    busy_percent: int | None = None

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of the resources as which it counts."""
        if self.profile:
            return (f"{MIG}{self.profile}",)
        return (GPU, f"{TYPED}{self.model}") if self.model else (GPU,)


def amounts_of(devices: Iterable[Device]) -> Amounts:
    """Return what devices offer together, in thousandths, whatever their condition."""
    counted = Counter(name for device in devices for name in device.resources)
    return {name: WHOLE * counted[name] for name in sorted(counted)}


def is_device_resource(name: str) -> bool:
    """Return whether amounts of this resource are devices."""
    return name == GPU or name.startswith((TYPED, MIG))


def devices_in(requests: Mapping[str, int]) -> Amounts:
    """Return the part of a pod's requests that is devices."""
    return {name: units for name, units in requests.items() if units and is_device_resource(name)}


def gpu_request(written: str | int | float) -> tuple[str, str | int | float]:
    """Return the resource and the quantity of `2`, or, as Slurm writes them, of `h100:2`.

    Raises ValueError for `2:h100`.
    """
    if not isinstance(written, str) or ":" not in written:
        return GPU, written
    model, _, quantity = (part.strip() for part in written.rpartition(":"))
    if model.isdecimal() and quantity[:1].isalpha():
        raise ValueError(
            f"expected MODEL:NUMBER, found {shown(written)}; did you mean {quantity}:{model}?"
        )
    return f"{TYPED}{model}", quantity


#: Words of a product name that say nothing about the model.
_NOISE = frozenset(
    ("nvidia", "amd", "tesla", "geforce", "quadro", "instinct", "radeon", "graphics", "generation")
)
_OF_A_MODEL = re.compile(r"[^a-z0-9.]+")


def model_of(name: str) -> str:
    """Return the short form of a product name: `a100` for `NVIDIA A100-SXM4-80GB`, `rtx-4090` for
    `NVIDIA GeForce RTX 4090`; "" if nothing of it can be the name of a resource.
    """
    words = [word for word in _OF_A_MODEL.split(name.lower()) if word and word not in _NOISE]
    if not words:
        return ""
    kept = words[:2] if words[0] in ("rtx", "gtx", "pro", "rx", "arc", "titan") else words[:1]
    return "-".join(kept).strip(".")[:_LONGEST_MODEL]


class DeviceUse(Struct, frozen=True, kw_only=True):
    """A device of a node, and the pods that have it, as `namespace/name`."""

    node: str
    device: Device
    pods: tuple[str, ...] = ()


def uses_of(nodes: Iterable[Node], pods: Iterable[Pod]) -> list[DeviceUse]:
    """Return the devices of these nodes in order, with those of the pods that have them."""
    holders: dict[tuple[str, str], list[str]] = {}
    for pod in pods:
        if pod.status.phase in ON_NODE:
            for one in pod.status.devices:
                holders.setdefault((pod.status.node, one), []).append(full_name(pod))
    return [
        DeviceUse(
            node=node.metadata.name,
            device=device,
            pods=tuple(sorted(holders.get((node.metadata.name, device.id), ()))),
        )
        for node in nodes
        for device in decode_devices(node.metadata.annotations)
    ]


def cordon_text(annotations: Mapping[str, str]) -> str:
    """Return who has cordoned a node and why, as `by olga: a fan is broken`; '' if unknown."""
    by, reason = annotations.get(CORDONED_BY, ""), annotations.get(CORDON_REASON, "")
    return ": ".join(filter(None, (by and f"by {by}", reason)))


def encode_devices(devices: Iterable[Device]) -> str:
    """Return the text of the annotation."""
    return msgspec.json.encode(list(devices)).decode()


def decode_devices(annotations: Mapping[str, str]) -> tuple[Device, ...]:
    """Return the devices in a node's annotations; none if the text is malformed, because
    every user that may write nodes can write it.
    """
    text = annotations.get(DEVICES_ANNOTATION, "")
    if not text:
        return ()
    try:
        found = _decoder.decode(text)
    except msgspec.MsgspecError:
        return ()
    return found if len(found) <= MOST_DEVICES else ()


def is_device_id(text: str) -> bool:
    """Return whether a text can be the id of a device."""
    return bool(text) and len(text) <= _LONGEST_ID and _ID.fullmatch(text) is not None


_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._/-]*")
_decoder: msgspec.json.Decoder[tuple[Device, ...]] = msgspec.json.Decoder(tuple[Device, ...])


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


def exceeds_nodes(group: PodGroup, nodes: Sequence[Node]) -> str:
    """Return which amounts of a group exceed the nodes even if all are ready and empty, which
    labels or name no node has, or which taints keep its pods off them; '' if there is no such
    problem, or if there are no nodes.

    It needs no session, unlike `why_no_known_node`, which the scheduler asks.
    """
    offers = [node.spec.resources for node in nodes]
    if not offers or group.spec.controller == "external":
        return ""
    keys = [key for key, mode in group.spec.topology.items() if mode == "required"]
    domains: dict[tuple[str, ...], list[Mapping[str, int]]] = {}
    for node in nodes:
        labels = node.metadata.labels
        if all(key in labels for key in keys):
            values = tuple(labels[key] for key in keys)
            domains.setdefault(values, []).append(node.spec.resources)
    if not domains:
        return f"no node has the label{'s' * (len(keys) > 1)} {' and '.join(keys)}"
    whose = f"the nodes of one {' and '.join(keys)}" if keys else "all nodes"
    return _too_large_a_pod(group, nodes) or _too_large_a_gang(group, domains.values(), whose)


def _too_large_a_pod(group: PodGroup, nodes: Sequence[Node]) -> str:
    for task in group.spec.tasks:
        if unmatched := no_node_matches(task.template, nodes):
            return unmatched
        if tainted := no_node_tolerated(task.template, nodes):
            return tainted
        asked = task.template.requests
        offers = [
            node.spec.resources
            for node in _matching(task.template, nodes)
            if not untolerated(node.spec.taints, task.template)
        ]
        if any(all(offer.get(name, 0) >= need for name, need in asked.items()) for offer in offers):
            continue
        pod = "a pod" if len(group.spec.tasks) == 1 else f"a pod of task {task.name}"
        for name, need in asked.items():
            largest = max(offer.get(name, 0) for offer in offers)
            if need > largest:
                of = " that it may use" if len(offers) < len(nodes) else ""
                most = f"the largest node{of} has {describe_quantity(name, largest)}"
                meant = "" if largest else _meant_type(name, offers)
                return f"{pod} asks for {name} {describe_quantity(name, need)}, and {most}{meant}"
        every = ", ".join(f"{name} {describe_quantity(name, need)}" for name, need in asked.items())
        return f"{pod} asks for {every}, and no node has all of it"
    return ""


def _meant_type(name: str, offers: Iterable[Mapping[str, int]]) -> str:
    """Return a question about the type of a resource that nodes have in other letters, such as
    `gpu:h100` for `gpu:H100`; '' if they have none.
    """
    base, colon, _ = name.partition(":")
    known = {other for offer in offers for other in offer} if colon else set[str]()
    same = (one for one in sorted(known) if one.lower() == name.lower())
    return "".join(f"; did you mean {one.removeprefix(f'{base}:')}?" for one in [*same][:1])


def no_node_matches(template: PodTemplate, nodes: Sequence[Node]) -> str:
    """Return which name or labels of a template no node has; '' if a node matches it."""
    if _matching(template, nodes):
        return ""
    if not any(is_named(node.metadata.name, template) for node in nodes):
        return _no_node_named(template)
    labels = template.node_selector
    if runtime := lacking_runtime(labels, (node.metadata.labels for node in nodes)):
        return f"no node has {runtime}, which its container needs ({RUNTIME_LABEL}{runtime}={YES})"
    every = ", ".join(f"{key}={value}" for key, value in labels.items())
    return f"no node has {'the label' if len(labels) == 1 else 'all of the labels'} {every}"


def _matching(template: PodTemplate, nodes: Sequence[Node]) -> list[Node]:
    labels = template.node_selector.items()
    return [
        node
        for node in nodes
        if is_named(node.metadata.name, template) and labels <= node.metadata.labels.items()
    ]


_TOLERATION = re.compile(r"(?P<key>[^=:]+)(=(?P<value>[^=:]*))?(:(?P<effect>\w+))?")
_EFFECTS = get_args(get_type_hints(Taint)["effect"])


def parse_toleration(written: str) -> Toleration:
    """Parse `KEY[=VALUE][:EFFECT]`. Without a value, any value is tolerated, and without an effect,
    any effect. Raises InvalidInput.
    """
    match = _TOLERATION.fullmatch(written)
    if match is None or match["effect"] not in (None, *_EFFECTS):
        raise InvalidInput(
            f"toleration: expected KEY[=VALUE][:EFFECT], where EFFECT is one of"
            f" {', '.join(_EFFECTS)}; found {shown(written)}"
        )
    value = match["value"]
    if problem := qualified_problem(match["key"]) or label_value_problem(value or ""):
        raise InvalidInput(f"toleration: {problem}")
    return Toleration(
        key=match["key"],
        operator="Exists" if value is None else "Equal",
        value=value or "",
        effect=match["effect"] or "",
    )


def taint_text(taint: Taint) -> str:
    """Return `dedicated=ml:NoSchedule`, as `batchq worker --taint` takes it."""
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"


def untolerated(taints: Iterable[Taint], template: PodTemplate) -> str:
    """Return the first taint that keeps a pod off a node, as text; '' if none does.

    By Kubernetes' rule, an empty key with Exists, or an empty effect, tolerates all.
    """
    for taint in taints:
        if taint.effect != "PreferNoSchedule" and not any(
            (not toleration.effect or toleration.effect == taint.effect)
            and (
                (toleration.operator == "Exists" and toleration.key in ("", taint.key))
                or (
                    toleration.operator == "Equal"
                    and (toleration.key, toleration.value) == (taint.key, taint.value)
                )
            )
            for toleration in template.tolerations
        ):
            return taint_text(taint)
    return ""


def no_node_tolerated(template: PodTemplate, nodes: Sequence[Node]) -> str:
    """Return which taints keep a pod off all nodes that match its template; '' if one takes it, or
    none matches.
    """
    matching = _matching(template, nodes)
    found = {untolerated(node.spec.taints, template) for node in matching}
    if not found or "" in found:
        return ""
    taints = f"the taint{'s' * (len(found) > 1)} {' or '.join(sorted(found)[:_MOST_NAMES])}"
    if len(matching) == 1:
        return f"node {matching[0].metadata.name} has {taints}, which its pod does not tolerate"
    count = len(matching)
    return f"all {count} nodes that it may use have {taints}, which its pod does not tolerate"


def is_named(name: str, template: PodTemplate) -> bool:
    """Return whether a template allows the node of this name."""
    return (not template.nodes or name in template.nodes) and name not in template.exclude_nodes


def _no_node_named(template: PodTemplate) -> str:
    if not template.nodes:
        return "all nodes are excluded"
    names = [name for name in template.nodes if name not in template.exclude_nodes]
    return f"no node has the name {' or '.join(names[:_MOST_NAMES])}"


def _too_large_a_gang(
    group: PodGroup, domains: Iterable[Sequence[Mapping[str, int]]], whose: str
) -> str:
    """Return which amount of a gang exceeds what the nodes of each domain offer together."""
    if len(group.spec.tasks) != 1:
        return ""
    [task] = group.spec.tasks
    gang = task.replicas if group.spec.min_member is None else group.spec.min_member
    for name, need in task.template.requests.items():
        offered = max(sum(offer.get(name, 0) for offer in offers) for offers in domains)
        if need * gang > offered:
            asked, most = (describe_quantity(name, units) for units in (need * gang, offered))
            return f"its {gang} pods ask for {name} {asked}, and {whose} together have {most}"
    return ""
