"""The accelerators of a node: GPUs, and MIG instances of GPUs.

An agent lists its devices in an annotation of its node. Inside batchq a device is known by its id,
the UUID that the driver gives it, which stays the same when devices fail or are reordered. Pods are
told indices, because many programs expect numbers.

    gpu              every whole GPU
    gpu:h100         every whole GPU of that model
    mig-1g.10gb      every MIG instance of that profile; its GPU is not counted as one
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from batchq.api.lifecycle import ON_NODE
from batchq.api.notation import shown
from batchq.api.objects import Node, Pod, full_name
from batchq.api.resources import GPU, Amounts

#: The annotation of a Node with its devices, as JSON.
DEVICES_ANNOTATION = "batchq/devices"

#: The prefixes of the resources of one model, and of MIG instances.
TYPED, MIG = f"{GPU}:", "mig-"

WHOLE = 1000

#: The trouble of a device that an agent does not get.
LOCKED = "another agent of this machine has it"

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
