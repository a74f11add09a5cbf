"""The devices of one agent: which of them pods may use, and which pod holds which.

Several agents may share a machine. Each locks its devices when it starts, so that no device belongs
to two of them; the lock is an abstract Unix socket named after the device (`ports.py` has the
reasons). Work-horses and the guard inherit the locks, and the command of a pod inherits those of
its own devices: whichever of them are killed, a device stays locked while its pod lives. GPUs that
are only declared are not locked, because nothing says that two agents mean the same ones.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from math import comb

from msgspec import structs

from batchq.api.node_features import (
    LOCKED,
    MIG,
    TYPED,
    WHOLE,
    Device,
    amounts_of,
    is_device_resource,
)
from batchq.api.node_report import PodAttempt
from batchq.api.resources import GPU
from batchq.errors import UsageError
from batchq.system import structlog
from batchq.worker.host.gpu_tools import FoundDevices, find_devices, inherited_devices

log = structlog.get_logger(__name__)

#: Beyond this many choices, devices are chosen one by one instead of by comparing all sets.
_MOST_CHOICES = 5_000

_FIRST_DESCRIPTOR = 64

#: The utilization of devices is rounded to tens of percent and updated at every third look, because
#: each change writes the node.
_UPDATES_A_READING = 3


def own_devices(declared: Mapping[str, int] | None, selected: Sequence[str] | None) -> DevicePool:
    """Find the devices of this machine, and lock those that this agent may have.

    Raise UsageError.
    """
    found = find_devices()
    if selected is None and (selected := inherited_devices(found.devices)) is not None:
        log.info("devices limited by the environment", devices=selected)
    pool = DevicePool(found, declared=declared, selected=selected)
    is_left_out = declared is not None and not any(map(is_device_resource, declared))
    if is_left_out and found.devices and selected != ():
        log.warning(
            "devices found, but --resources names no gpu: none is offered",
            devices=len(found.devices),
            hint=f"add {_as_resources(found.devices)} to --resources, or pass --devices none",
        )
    if found.trouble:
        log.warning("gpus not detected", trouble=found.trouble)
    return pool


def _as_resources(devices: Sequence[Device]) -> str:
    """Return devices as `--resources` names them, such as `gpu=4`; models count as `gpu`."""
    counted = Counter(device.resources[0] for device in devices)
    return ",".join(f"{name}={number}" for name, number in sorted(counted.items()))


class DevicePool:
    """The devices of one agent; owned by its loop."""

    def __init__(
        self,
        found: FoundDevices,
        *,
        declared: Mapping[str, int] | None = None,
        selected: Sequence[str] | None = None,
    ) -> None:
        """`declared`: what the agent was told to offer; None means everything. `selected`: ids, bus
        ids or indices of the only devices that it may have; None means all. Raise UsageError for a
        bus or an index that does not exist; an id may be that of a device that has failed.
        """
        self._declared = declared
        self._all: dict[str, Device] = {}
        self._locks: dict[str, socket.socket] = {}
        self._share: Callable[[socket.socket], bool] = lambda _: True
        #: In thousandths of each device.
        self._held: dict[PodAttempt, dict[str, int]] = {}
        #: Of these, the devices for which the pod named no model.
        self._any_model: dict[PodAttempt, tuple[str, ...]] = {}
        #: Devices that were freed since the last check began.
        self._recent: frozenset[str] = frozenset()
        #: False while a device has failed: the driver may number the others as if it did not exist.
        self._is_numbering_known = True
        self._mine: tuple[str, ...] = ()
        self._updates = -1
        #: Whether a later check may find other devices, or another condition of these.
        self.may_change = bool(found.devices or found.trouble or selected)
        self.are_found_by_tools = bool(found.devices or selected) or declared is None
        if not self.are_found_by_tools:
            self._all = {one.id: one for one in _declared_devices(declared or {})}
            self._mine = tuple(self._all)
        self._selected = None if selected is None else _ids_named(selected, found.devices)
        there = {name for one in found.devices for name in (one.id, one.parent)}
        lacking = (self._selected or frozenset()).difference(there)
        self._all |= {one: Device(index=len(found.devices), id=one) for one in sorted(lacking)}
        self.update(found)
        self._locks_seen = len(self._locks)

    def update(self, found: FoundDevices) -> None:
        """Take over what the tools say now, and lock what is free or has been repaired."""
        if not self.are_found_by_tools:
            return
        known = {one.id: one.trouble for one in self.devices()}
        seen = {one.id: one for one in found.devices}
        parents = {one.parent or one.id for one in found.devices}
        missing: list[Device] = []
        held = frozenset[str]().union(*self._held.values())
        for one in self._all.values():
            # A GPU that was split into MIG instances, or split again, has not failed.
            is_split = not parents.isdisjoint((one.id, one.parent)) and one.id not in held
            if one.id not in seen and not is_split:
                # A device that has left the bus is listed by its bus alone, if at all.
                by_bus = seen.pop(f"bus-{one.bus}", None)
                why = by_bus.trouble if by_bus else found.trouble or "it is no longer found"
                missing.append(structs.replace(one, links={}, trouble=why))
        self._is_numbering_known = not missing and not any(one.startswith("bus-") for one in seen)
        before, self._updates = self._all, self._updates + 1
        self._all = {one.id: one for one in _renumbered(list(seen.values()), missing)}
        for name, device in self._all.items():
            busy = device.busy_percent
            if name in before and self._updates % _UPDATES_A_READING:
                busy = before[name].busy_percent
            self._all[name] = structs.replace(device, busy_percent=_in_tens(busy))
        self._lock()
        used = held | self._recent
        for name in self._mine:
            users = frozenset() if name in used else found.processes.get(name, frozenset())
            self._all[name] = _with_strangers(self._all[name], users)
        for device in self.devices():
            if device.trouble != known.get(device.id, ""):
                log.warning("device changed", device=device.id, trouble=device.trouble or "none")

    def begin_check(self) -> None:
        """Note that the tools are asked now. Until they have answered, a process on a device may be
        that of a pod which holds the device meanwhile.
        """
        self._recent = frozenset()

    def _lock(self) -> None:
        """Lock as many devices as this agent may have, if they are free."""
        wanted = _Wanted(self._declared)
        mine: list[str] = []
        # What it has comes first, so that it is kept.
        for device in sorted(self._all.values(), key=lambda one: one.id not in self._locks):
            if not self._may_have(device) or not wanted.includes(device):
                continue
            if device.id not in self._locks and (device.trouble or not self._take_lock(device.id)):
                continue
            mine.append(device.id)
            if not device.trouble:
                wanted.subtract(device)
        self._mine = tuple(one for one in self._all if one in mine)

    def _may_have(self, device: Device) -> bool:
        return self._selected is None or not self._selected.isdisjoint((device.id, device.parent))

    def _take_lock(self, device: str) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as low:
            # Pods inherit the number, and a shell before a pod's command uses one below 10.
            high = fcntl.fcntl(low.fileno(), fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR)
            lock = socket.socket(fileno=high)
        try:
            lock.bind(_lock_name(device))
        except OSError as trouble:
            lock.close()
            if trouble.errno == errno.EADDRINUSE:
                return False
            raise
        if not self._share(lock):
            lock.close()
            return False
        self._locks[device] = lock
        return True

    def share_locks(self, share: Callable[[socket.socket], bool]) -> None:
        """Hand each lock to `share`, which returns whether it has taken a copy; also later ones."""
        self._share = share
        for lock in self._locks.values():
            share(lock)

    def lock_released(self) -> bool:
        """Lock the devices that another agent, or a pod of a former one, has released; return
        whether there are more locks than at the last call.
        """
        if any(one.trouble == LOCKED for one in self.devices()):
            self._lock()
        before, self._locks_seen = self._locks_seen, len(self._locks)
        return len(self._locks) > before

    def locks_of(self, holder: PodAttempt) -> dict[str, int]:
        """Return the descriptors of the locks of a pod's devices, by the ids of the devices."""
        held = self._held.get(holder, {})
        return {one: lock.fileno() for one, lock in self._locks.items() if one in held}

    def close(self) -> None:
        """Release all locks."""
        for lock in self._locks.values():
            lock.close()
        self._locks.clear()

    def devices(self) -> tuple[Device, ...]:
        """Return the agent's devices, and those that it cannot have, with the reason."""
        wanted = _Wanted(self._declared)
        for one in self._mine:
            wanted.subtract(self._all[one])
        return tuple(
            device
            if device.id in self._mine
            else structs.replace(device, trouble=device.trouble or LOCKED)
            for device in self._all.values()
            if device.id in self._mine or (self._may_have(device) and wanted.includes(device))
        )

    def offer(self, resources: Mapping[str, int]) -> dict[str, int]:
        """Return what the node offers: `resources` with what its devices add or do not have.

        A device that has failed counts for as long as a pod holds it. A model counts without the
        devices of pods that have asked for any: on a node with several models the scheduler cannot
        know which these are.
        """
        if not self.are_found_by_tools:
            return {**amounts_of(self._all.values()), **resources}
        counted = [
            self._all[one] for one in self._mine if not self._all[one].trouble or self._units(one)
        ]
        amounts = Counter(amounts_of(counted))
        if len({one.model for one in counted if not one.profile}) > 1:
            for device in (one for some in self._any_model.values() for one in some):
                amounts.subtract(dict.fromkeys(self._all[device].resources[1:], WHOLE))
        declared = self._declared or {}
        for name in amounts:
            amounts[name] = max(0, min(amounts[name], declared.get(name, amounts[name])))
        others = {name: units for name, units in resources.items() if not is_device_resource(name)}
        return {**others, **amounts}

    def _units(self, device: str) -> int:
        return sum(units.get(device, 0) for units in self._held.values())

    def take(self, holder: PodAttempt, requests: Mapping[str, int]) -> tuple[Device, ...] | None:
        """Return the devices that a pod gets for its requests, by index; None if too few are free.

        A holder that asks again keeps what it has. Whole GPUs are unused ones, those with the best
        connections to each other; a fraction is a part of the fullest GPU that fits.
        """
        if not requests:
            return ()
        if holder not in self._held:
            free = {
                one: WHOLE - self._units(one) for one in self._mine if not self._all[one].trouble
            }
            typed, rest = _parts(requests)
            taken: dict[str, int] = {}
            for name, units in [*typed.items(), (GPU, rest)]:
                fitting = [
                    self._all[one]
                    for one in free
                    if one not in taken and name in self._all[one].resources
                ]
                found = _fit(fitting, free, units)
                if found is None:
                    return None
                taken |= found
                if name == GPU:
                    self._any_model[holder] = tuple(found)
            self._held[holder] = taken
        return self.of(holder)

    def of(self, holder: PodAttempt) -> tuple[Device, ...]:
        """Return the devices of a pod, by index."""
        return tuple(one for one in self._all.values() if one.id in self._held.get(holder, {}))

    def variables(self, devices: Sequence[Device], *, by_uuid: bool) -> dict[str, str]:
        """Return the variables that tell a pod which of the machine's devices are its own; none on
        a machine without devices.

        A MIG instance has no index, so it is named by its UUID.
        """
        machine = self._all.values()
        by_uuid = by_uuid or not self._is_numbering_known
        if not machine:
            return {}
        of_amd = [one for one in devices if one.vendor == "amd"]
        others = [one for one in devices if one.vendor != "amd"]
        found: dict[str, str] = {}
        if any(one.vendor == "amd" for one in machine):
            # Not HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES as well: they count within what this
            # leaves.
            found["ROCR_VISIBLE_DEVICES"] = _named(of_amd, by_uuid=by_uuid)
        if any(one.vendor != "amd" for one in machine):
            found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
            found["CUDA_VISIBLE_DEVICES"] = _named(others, by_uuid=by_uuid)
        if self.are_found_by_tools:
            found["BATCHQ_GPU_UUIDS"] = ",".join(one.id for one in devices)
            found["NVIDIA_VISIBLE_DEVICES"] = ",".join(one.id for one in others) or "void"
        return found

    def give_back(self, holder: PodAttempt) -> None:
        """Free what `holder` has, if anything."""
        self._recent |= self._held.pop(holder, {}).keys()
        self._any_model.pop(holder, None)

    def keep(self, holders: Container[PodAttempt] = ()) -> None:
        """Free what all holders but these have."""
        for holder in [one for one in self._held if one not in holders]:
            self.give_back(holder)


class _Wanted:
    """How many more devices an agent should have, of each kind and of any kind."""

    def __init__(self, declared: Mapping[str, int] | None) -> None:
        self._is_all = declared is None
        typed, rest = _parts(declared or {})
        self._left = Counter({name: -(-units // WHOLE) for name, units in typed.items()})
        self._left[GPU] = -(-rest // WHOLE)

    def includes(self, device: Device) -> bool:
        return self._is_all or any(self._left[name] > 0 for name in device.resources)

    def subtract(self, device: Device) -> None:
        name = next((one for one in reversed(device.resources) if self._left[one] > 0), GPU)
        self._left[name] -= 1


def _lock_name(device: str) -> bytes:
    return b"\0batchq-device-" + device.encode()


def inherited_locks(locks: Mapping[str, int]) -> tuple[int, ...]:
    """Return the descriptors of locks that this process has inherited from its agent, all or some
    of `locks`: the agent may have locked a device after this process was forked.
    """
    found: list[int] = []
    for device, descriptor in locks.items():
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
            if copy.getsockname() == _lock_name(device):
                found.append(descriptor)
    return tuple(found)


def _parts(requests: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Return the requests for devices of named kinds, and for how many other GPUs of any model: a
    GPU of a model counts as a GPU, too.
    """
    typed = {
        name: requests[name]
        for name in sorted(requests)
        if requests[name] and name.startswith((TYPED, MIG))
    }
    of_models = sum(units for name, units in typed.items() if name.startswith(TYPED))
    return typed, max(0, requests.get(GPU, 0) - of_models)


def _fit(fitting: Sequence[Device], free: Mapping[str, int], units: int) -> dict[str, int] | None:
    """Return what to take of the devices that fit; None if too little of them is free."""
    whole, rest = divmod(units, WHOLE)
    if rest and any(one.profile for one in fitting):
        # A MIG instance is never shared.
        whole, rest = whole + 1, 0
    unused = [one for one in fitting if free[one.id] == WHOLE]
    if len(unused) < whole:
        return None
    taken = dict.fromkeys((one.id for one in closest(unused, whole)), WHOLE)
    shared = [
        (free[one.id], one.index, one.id)
        for one in fitting
        if free[one.id] >= rest and one.id not in taken
    ]
    if rest and not shared:
        # The fraction fits into the sum of the node, which is what the scheduler counts. Nothing
        # enforces fractions, so it shares the emptiest device that is shared already.
        shared = [
            (-free[one.id], one.index, one.id)
            for one in fitting
            if free[one.id] > 0 and one.id not in taken
        ]
    if rest and not shared:
        return None
    return taken | {min(shared)[2]: rest} if rest else taken


def closest(unused: Sequence[Device], count: int) -> tuple[Device, ...]:
    """Return the `count` devices with the best links to each other.

    Of equal ones, those with the weakest links to the devices that are left: a pair stays whole.
    """
    if count == 0 or not any(one.links for one in unused):
        return tuple(unused[:count])
    if comb(len(unused), count) <= _MOST_CHOICES:
        return max(
            combinations(unused, count),
            key=lambda some: (_links_within(some), _links_within(_without(unused, some))),
        )
    chosen: list[Device] = [unused[0]]
    while len(chosen) < count:
        left = _without(unused, chosen)
        chosen.append(max(left, key=lambda one: sum(one.links.get(a.index, 0) for a in chosen)))
    return tuple(sorted(chosen, key=lambda one: one.index))


def _links_within(devices: Sequence[Device]) -> int:
    return sum(one.links.get(other.index, 0) for one, other in combinations(devices, 2))


def _without(devices: Sequence[Device], some: Sequence[Device]) -> list[Device]:
    taken = {one.id for one in some}
    return [one for one in devices if one.id not in taken]


def _renumbered(found: Sequence[Device], missing: Sequence[Device]) -> list[Device]:
    """Return all devices by the places of their buses; what has failed keeps its place."""
    devices = [*found, *missing]
    if any(not one.bus for one in devices):
        return sorted(devices, key=lambda one: one.index)
    place = {bus: at for at, bus in enumerate(sorted({one.bus for one in devices}))}
    moved = {one.index: place[one.bus] for one in found}
    renumbered = [
        structs.replace(
            one,
            index=place[one.bus],
            links={moved[at]: score for at, score in one.links.items() if at in moved},
        )
        for one in devices
    ]
    return sorted(renumbered, key=lambda one: one.index)


def _in_tens(percent: int | None) -> int | None:
    return None if percent is None else 10 * round(percent / 10)


def _with_strangers(device: Device, pids: Iterable[int]) -> Device:
    """Return a device that no pod holds, out of service if processes use it nevertheless."""
    users = sorted(pids)
    if device.trouble or not users:
        return device
    rest = f" and {len(users) - 1} more" if len(users) > 1 else ""
    return structs.replace(device, trouble=f"used by process {users[0]}{rest} outside of any pod")


def _ids_named(names: Sequence[str], devices: Sequence[Device]) -> frozenset[str]:
    """Return the ids of the devices that an operator means. Raise UsageError."""
    found: set[str] = set()
    for name in names:
        # A GPU stands for its MIG instances, also for those that it will have.
        ids = {one.id for one in devices if name.lower() == one.id.lower()} or {
            one.parent or one.id for one in devices if _is_named(one, name)
        }
        if not ids and not name.startswith(("GPU-", "MIG-")):
            shown = ", ".join(f"{one.index} ({one.id})" for one in devices[:16]) or "none"
            raise UsageError(
                f"--devices: this machine has no device {name[:80]!r}", hint=f"it has {shown}"
            )
        found |= ids or {name}
    return frozenset(found)


def _is_named(device: Device, name: str) -> bool:
    """Return whether an operator means this device, by its GPU's id, its bus, or its index."""
    return name.lower() in (device.parent.lower(), device.bus, str(device.index))


def _declared_devices(declared: Mapping[str, int]) -> list[Device]:
    """Return GPUs that the operator has declared, and that no tool reports."""
    models = [
        name.removeprefix(TYPED)
        for name in sorted(declared)
        if name.startswith(TYPED)
        for _ in range(declared[name] // WHOLE)
    ]
    count = max(len(models), declared.get(GPU, 0) // WHOLE)
    models += [""] * (count - len(models))
    return [
        Device(index=index, id=f"gpu-{index}", model=model) for index, model in enumerate(models)
    ]


def _named(devices: Sequence[Device], *, by_uuid: bool) -> str:
    return ",".join(one.id if one.profile or by_uuid else str(one.index) for one in devices)
