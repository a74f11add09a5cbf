"""The GPUs of this machine, as the tools of their drivers describe them.

The tools are `nvidia-smi`, `amd-smi` and, where that is missing, `rocm-smi`. Each parser is a
function of the tool's output; tests/worker/gpu_outputs has outputs of each. What a tool reports in
place of a number (`[N/A]`, `[GPU is lost]`, `ERR!`) says whether the device works.

For tests and demonstrations, `BATCHQ_FAKE_GPUS` replaces the tools: `h100:8`, or the path of a JSON
file with a list of devices, which is read again at each check.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil
from msgspec import Struct, structs

from batchq.api.node_features import MOST_DEVICES, Device, is_device_id, model_of
from batchq.errors import UsageError

FAKE_GPUS = "BATCHQ_FAKE_GPUS"

_MIB = 1 << 20
_TIMEOUT_S = 10.0
_KILLED_WITHIN_S = 1.0
#: More than all calls of a tool may take.
_CHECK_WITHIN_MS = 60_000
_PART_BYTES = 1 << 16

#: Scores of the connections that `nvidia-smi topo -m` names, from another socket to one switch; an
#: NVLink counts for each link. The same order, and nearly the same numbers, as in NVIDIA's device
#: plugin for Kubernetes.
_PCI_SCORES = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50}
_NVLINK_SCORE, _XGMI_SCORE = 100, 100


class ToolFailed(Exception):
    """The tool of a driver gave no usable answer; the message says why."""


#: Runs a tool with arguments; returns its output and errors, and raises ToolFailed if it cannot be
#: run, does not end in time, or fails without any output.
RunTool = Callable[[Sequence[str]], str]


class FoundDevices(Struct, frozen=True, kw_only=True):
    """The devices of this machine, and the pids of the processes that use them, by device.

    `trouble`: why a tool that exists has not answered; "" if it has, or if there is none.
    """

    devices: tuple[Device, ...] = ()
    processes: Mapping[str, frozenset[int]] = {}
    trouble: str = ""


def find_devices(environment: Mapping[str, str] = os.environ) -> FoundDevices:
    """Return the devices that the tools of this machine list, in the order of their indices.

    Raise UsageError if `BATCHQ_FAKE_GPUS` is malformed.
    """
    if fake := environment.get(FAKE_GPUS, ""):
        return FoundDevices(devices=_faked(fake))
    path = environment.get("PATH")
    for name, ask in (("nvidia-smi", _ask_nvidia), ("amd-smi", _ask_amd), ("rocm-smi", _ask_rocm)):
        tool = shutil.which(name, path=path)
        if tool is None:
            continue
        try:
            return ask(partial(_run, tool))
        except ToolFailed as trouble:
            return FoundDevices(trouble=f"{name}: {trouble}")
    return FoundDevices()


class DeviceCheck:
    """A look at the devices in a process of its own: the tool of a broken device may take long."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._output = b""
        self._since_ms = 0
        self._left: frozenset[int] = frozenset()

    def pids(self) -> frozenset[int]:
        """Return the pids of the process, and of tools that have been left because they hang."""
        return self._left.union(() if self._process is None else (self._process.pid,))

    def start(self, *, now_ms: int) -> int | None:
        """Start the process, and return the descriptor to poll; None if it could not be started or
        one runs. Kill one that has run for too long: its output ends then.
        """
        if self._process is not None:
            if now_ms - self._since_ms >= _CHECK_WITHIN_MS:
                # In a driver that hangs, a tool does not end when it is killed.
                self._left = self._still_left() | _descendants(self._process.pid)
                self._process.kill()
            return None
        if self._still_left():
            # Another one would hang, too.
            return None
        with suppress(OSError):
            command = [sys.executable, "-P", "-m", __name__]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            self._output, self._since_ms = b"", now_ms
            assert self._process.stdout is not None
            return self._process.stdout.fileno()
        return None

    def _still_left(self) -> frozenset[int]:
        return frozenset(pid for pid in self._left if psutil.pid_exists(pid))

    def is_at(self, descriptor: int) -> bool:
        """Return whether this is the descriptor of the running process."""
        process = self._process
        return (
            process is not None
            and process.stdout is not None
            and (process.stdout.fileno() == descriptor)
        )

    def read(self) -> FoundDevices | None:
        """Read what is there; return the devices when the process has written all of them."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        part = os.read(process.stdout.fileno(), _PART_BYTES)
        if part:
            self._output += part
            return None
        process.stdout.close()
        # Its output has ended, so it is about to end as well.
        process.kill()
        process.wait()
        self._process = None
        try:
            return msgspec.json.decode(self._output, type=FoundDevices)
        except msgspec.MsgspecError:
            return FoundDevices(trouble="the tools of the GPUs gave no answer")

    def close(self) -> None:
        """Kill the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _descendants(pid: int) -> frozenset[int]:
    try:
        return frozenset(one.pid for one in psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return frozenset()


def inherited_devices(
    devices: Sequence[Device], environment: Mapping[str, str] = os.environ
) -> tuple[str, ...] | None:
    """Return the devices to which a container or another scheduler has limited this process, by id;
    None if it is not limited, or if there are no devices.
    """
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        if devices and name in environment:
            named = {one.strip() for one in environment[name].split(",")} - {""}
            return tuple(one.id for one in devices if named & {one.id, one.parent, str(one.index)})
    return None


def _run(tool: str, arguments: Sequence[str]) -> str:
    try:
        process = subprocess.Popen(
            [tool, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as trouble:
        raise ToolFailed(str(trouble)) from None
    assert process.stdout is not None
    try:
        output, _ = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.stdout.close()
        # In a driver that hangs, it does not end.
        with suppress(subprocess.TimeoutExpired):
            process.wait(_KILLED_WITHIN_S)
        raise ToolFailed(f"gave no answer within {_TIMEOUT_S:.0f} s") from None
    if process.returncode and not output.strip():
        raise ToolFailed(f"ended with exit code {process.returncode}")
    return output


NVIDIA_FIELDS = (
    *("index", "uuid", "pci.bus_id", "name", "memory.total", "mig.mode.current"),
    *("utilization.gpu", "ecc.errors.uncorrected.volatile.total"),
)
#: Drivers that do not know all of these refuse the whole query.
_NVIDIA_BASIC_FIELDS = NVIDIA_FIELDS[:5]

#: What nvidia-smi prints for a device that has left the bus, with or without the other devices.
_LOST = re.compile(
    r"Unable to determine the device handle for GPU\s*[0-9]*:?\s*"
    r"(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9]): (?P<why>[^\n]+)"
)
_MIG_LINE = re.compile(r"\s+MIG (?P<profile>\S+)\s+Device\s+[0-9]+: \(UUID: (?P<id>MIG-[^)]+)\)")
_GPU_LINE = re.compile(r"GPU [0-9]+: .*\(UUID: (?P<id>GPU-[^)]+)\)")
#: A value in brackets is no value; these say that the device does not work.
_BROKEN = ("lost", "requires reset", "Unknown Error", "ERR!", "fallen off")


def _ask_nvidia(run: RunTool) -> FoundDevices:
    text = run(_nvidia_query(NVIDIA_FIELDS))
    if "is not a valid field" in text:
        text = run(_nvidia_query(_NVIDIA_BASIC_FIELDS))
    devices = parse_nvidia_query(text)
    if not devices:
        raise ToolFailed(_first_line(text) or "lists no GPU")
    if any(device.profile for device in devices):
        devices = with_mig(devices, run(["-L"]))
    elif len(devices) > 1:
        devices = with_links(devices, run(["topo", "-m"]))
    used = run(["--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"])
    return FoundDevices(devices=tuple(devices), processes=parse_nvidia_processes(used))


def _nvidia_query(fields: Sequence[str]) -> list[str]:
    return [f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]


def parse_nvidia_query(text: str) -> list[Device]:
    """Return the GPUs in the answer to `nvidia-smi --query-gpu=…`, by PCI bus.

    A device that the tool only complains of is listed by its bus, with that trouble. A GPU with
    MIG enabled has the profile `enabled` until `with_mig` replaces it by its instances.
    """
    found: list[Device] = []
    for line in text.splitlines():
        if lost := _LOST.search(line):
            bus = _bus(lost["bus"])
            found.append(
                Device(index=0, id=f"bus-{bus}", vendor="nvidia", bus=bus, trouble=lost["why"])
            )
            continue
        values = [value.strip() for value in line.split(",")]
        if len(values) not in (len(NVIDIA_FIELDS), len(_NVIDIA_BASIC_FIELDS)):
            continue
        _, uuid, bus, name, memory, *more = values
        mig, busy, errors = more or ("", "", "")
        known = is_device_id(uuid) and uuid.startswith("GPU-")
        found.append(
            Device(
                index=0,
                id=uuid if known else f"bus-{_bus(bus)}",
                vendor="nvidia",
                bus=_bus(bus),
                name=name,
                model=model_of(name),
                memory_bytes=_MIB * (_number(memory) or 0),
                profile="enabled" if mig == "Enabled" else "",
                busy_percent=_number(busy),
                trouble=_trouble(values) or _memory_errors(errors),
            )
        )
    # The first of two lines about one device is the complaint.
    return _numbered({device.bus: device for device in reversed(found)}.values())


def _trouble(values: Iterable[str]) -> str:
    broken = [value for value in values if any(word in value for word in _BROKEN)]
    return f"nvidia-smi says: {broken[0].strip('[]')}" if broken else ""


def _memory_errors(written: str) -> str:
    count = _number(written)
    return f"{count} uncorrected memory errors since its last reset" if count else ""


def with_links(devices: Sequence[Device], text: str) -> list[Device]:
    """Return the devices with their links from `nvidia-smi topo -m`.

    The rows and columns are the GPUs that work, by PCI bus.
    """
    rows = [line.split() for line in text.splitlines() if re.match(r"\s*GPU[0-9]+\s", line)]
    matrix = {row[0]: row[1:] for row in rows if "X" in row}
    shown = [device for device in devices if device.id.startswith("GPU-")]
    if len(matrix) != len(shown):
        return list(devices)
    place = {f"GPU{number}": device.index for number, device in enumerate(shown)}
    links: dict[int, dict[int, int]] = {}
    for name, cells in matrix.items():
        if name in place:
            others = zip(place.values(), cells, strict=False)
            scored = {at: _link_score(cell) for at, cell in others if at != place[name]}
            links[place[name]] = {at: score for at, score in scored.items() if score}
    return [structs.replace(one, links=links.get(one.index, {})) for one in devices]


def _link_score(cell: str) -> int:
    if cell.startswith("NV") and cell[2:].isdigit():
        return _NVLINK_SCORE * int(cell[2:])
    return _PCI_SCORES.get(cell, 0)


def with_mig(devices: Sequence[Device], text: str) -> list[Device]:
    """Return the devices with the instances of `nvidia-smi -L` in place of the GPUs that are split.

    A GPU in MIG mode without an instance takes no pods and says so.
    """
    instances: dict[str, list[tuple[str, str]]] = {}
    parent = ""
    for line in text.splitlines():
        if gpu := _GPU_LINE.match(line):
            parent = gpu["id"]
        elif (mig := _MIG_LINE.match(line)) and is_device_id(mig["id"]):
            instances.setdefault(parent, []).append((mig["profile"], mig["id"]))
    found: list[Device] = []
    for device in devices:
        if device.profile and device.id not in instances:
            trouble = device.trouble or "in MIG mode, and has no MIG instance"
            found.append(structs.replace(device, profile="", trouble=trouble))
        elif device.profile:
            found += [
                # The tool gives no utilization of an instance, and its memory only in the profile.
                structs.replace(
                    device, id=one, parent=device.id, profile=profile, busy_percent=None,
                    memory_bytes=_profile_bytes(profile),
                )
                for profile, one in instances[device.id]
            ]  # fmt: skip
        else:
            found.append(device)
    return found


def _profile_bytes(profile: str) -> int:
    size = re.search(r"\.([0-9]+)gb", profile)
    return (int(size[1]) << 30) if size else 0


def parse_nvidia_processes(text: str) -> dict[str, frozenset[int]]:
    """Return the pids by device in `nvidia-smi --query-compute-apps=gpu_uuid,pid`."""
    found: dict[str, set[int]] = {}
    for line in text.splitlines():
        uuid, _, pid = (part.strip() for part in line.partition(","))
        if is_device_id(uuid) and pid.isdigit():
            found.setdefault(uuid, set()).add(int(pid))
    return {uuid: frozenset(pids) for uuid, pids in found.items()}


def _ask_amd(run: RunTool) -> FoundDevices:
    text = run(["static", "--asic", "--bus", "--vram", "--json"])
    devices = parse_amd_static(text)
    if not devices:
        raise ToolFailed(_first_line(text) or "lists no GPU")
    if len(devices) > 1:
        devices = with_amd_links(devices, run(["topology", "--json"]))
    devices = with_amd_metrics(devices, text, run(["metric", "--usage", "--ecc", "--json"]))
    return FoundDevices(devices=tuple(devices))


def parse_amd_static(text: str) -> list[Device]:
    """Return the GPUs in `amd-smi static --asic --bus --vram --json`, by PCI bus."""
    found: list[Device] = []
    for one in _gpus_in(text):
        asic, bus = _table(one, "asic"), _bus(str(_table(one, "bus").get("bdf", "")))
        name = str(asic.get("market_name", ""))
        size = _table(_table(one, "vram"), "size").get("value")
        serial = str(asic.get("asic_serial", "")).lower().removeprefix("0x")
        known = re.fullmatch(r"[0-9a-f]{1,16}", serial) is not None
        found.append(
            Device(
                index=0,
                id=_rocm_id(serial) if known else f"bus-{bus}",
                vendor="amd",
                bus=bus,
                name=name,
                model=_amd_model(name),
                memory_bytes=_MIB * size if isinstance(size, int) else 0,
                trouble="" if known else "amd-smi states no serial number of it",
            )
        )
    return _numbered(found)


def with_amd_links(devices: Sequence[Device], text: str) -> list[Device]:
    """Return the devices with their links from `amd-smi topology --json`."""
    index_of = {device.bus: device.index for device in devices}
    links: dict[int, dict[int, int]] = {}
    for one in _gpus_in(text):
        here = index_of.get(_bus(str(one.get("bdf", ""))))
        for link in one.get("links", ()):
            there = index_of.get(_bus(str(link.get("bdf", ""))))
            score = {"XGMI": _XGMI_SCORE, "PCIE": _PCI_SCORES["SYS"]}.get(link.get("link_type"), 0)
            if here is not None and there is not None and here != there and score:
                links.setdefault(here, {})[there] = score
    return [structs.replace(one, links=links.get(one.index, {})) for one in devices]


def with_amd_metrics(devices: Sequence[Device], static: str, text: str) -> list[Device]:
    """Return the devices with what `amd-smi metric --usage --ecc --json` says of their use and
    memory. It names them by the numbers that the `static` output gives to their buses.
    """
    rows = {one.get("gpu"): one for one in _gpus_in(text)}
    of_bus = {
        _bus(str(_table(one, "bus").get("bdf", ""))): rows.get(one.get("gpu"), {})
        for one in _gpus_in(static)
    }
    found: list[Device] = []
    for device in devices:
        one = of_bus.get(device.bus, {})
        busy = _table(_table(one, "usage"), "gfx_activity").get("value")
        errors = _table(one, "ecc").get("total_uncorrectable_count")
        trouble = device.trouble or _memory_errors(str(errors))
        busy_percent = busy if isinstance(busy, int) else None
        found.append(structs.replace(device, busy_percent=busy_percent, trouble=trouble))
    return found


def _ask_rocm(run: RunTool) -> FoundDevices:
    asked = ["--showuniqueid", "--showbus", "--showproductname", "--showmeminfo", "vram"]
    text = run([*asked, "--showuse", "--showtopotype", "--json"])
    devices = parse_rocm(text)
    if not devices:
        raise ToolFailed(_first_line(text) or "lists no GPU")
    return FoundDevices(devices=tuple(devices))


def parse_rocm(text: str) -> list[Device]:
    """Return the GPUs in the JSON of `rocm-smi --showuniqueid --showbus --showproductname
    --showmeminfo vram --showuse --showtopotype`, by PCI bus, with their links.
    """
    table = _json(text)
    cards = table if isinstance(table, dict) else {}
    found: dict[str, Device] = {}
    for card, one in cards.items():
        number = card.removeprefix("card")
        if not (card.startswith("card") and number.isdigit() and isinstance(one, dict)):
            continue
        bus, name = _bus(str(one.get("PCI Bus", ""))), str(one.get("Card Series", ""))
        serial = str(one.get("Unique ID", "")).lower().removeprefix("0x")
        known = re.fullmatch(r"[0-9a-f]{1,16}", serial) is not None
        found[number] = Device(
            index=0,
            id=_rocm_id(serial) if known else f"bus-{bus}",
            vendor="amd",
            bus=bus,
            name=name,
            model=_amd_model(name),
            memory_bytes=_number(str(one.get("VRAM Total Memory (B)", ""))) or 0,
            busy_percent=_number(str(one.get("GPU use (%)", ""))),
            trouble="" if known else "rocm-smi states no unique id of it",
        )
    numbered = _numbered(found.values())
    index_of = {device.bus: device.index for device in numbered}
    place = {number: index_of[device.bus] for number, device in found.items()}
    links: dict[int, dict[int, int]] = {}
    for name, kind in (cards.get("system") or {}).items():
        pair = re.fullmatch(r"\(Topology\) Link type between DRM devices (\d+) and (\d+)", name)
        if pair and pair[1] in place and pair[2] in place:
            score = {"XGMI": _XGMI_SCORE, "PCIE": _PCI_SCORES["SYS"]}.get(kind, 0)
            for here, there in ((pair[1], pair[2]), (pair[2], pair[1])):
                links.setdefault(place[here], {})[place[there]] = score
    return [structs.replace(one, links=links.get(one.index, {})) for one in numbered]


def _rocm_id(serial: str) -> str:
    """Return the name of a GPU that ROCR_VISIBLE_DEVICES accepts."""
    return f"GPU-{serial.rjust(16, '0')}"


def _amd_model(name: str) -> str:
    """Return the model; some names begin with a code name: `Navi 21 [Radeon RX 6800 XT]`."""
    model = re.search(r"\bmi[0-9]+[a-z]?\b", name.lower())
    inner = re.search(r"\[([^\]/]+)", name)
    return model[0] if model else model_of(inner[1] if inner else name)


def _gpus_in(text: str) -> list[dict[str, Any]]:
    """Return the GPUs in JSON of amd-smi, which newer versions put into `gpu_data`."""
    found = _json(text)
    rows = found.get("gpu_data", ()) if isinstance(found, dict) else found
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _table(one: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = one.get(name)
    return found if isinstance(found, dict) else {}


def _json(text: str) -> Any:
    """Return the JSON in an answer, which warnings may precede."""
    start = min((at for at in (text.find("["), text.find("{")) if at >= 0), default=0)
    try:
        return msgspec.json.decode(text[start:].strip())
    except msgspec.MsgspecError:
        return None


def _numbered(devices: Iterable[Device]) -> list[Device]:
    """Return the devices in the order of their buses, numbered in this order."""
    ordered = sorted(devices, key=lambda one: one.bus)
    return [structs.replace(one, index=place) for place, one in enumerate(ordered)]


def _bus(written: str) -> str:
    """Return a bus id as the kernel writes it: `0000:1b:00.0`, not `00000000:1B:00.0`."""
    domain, colon, rest = written.strip().lower().partition(":")
    return f"{domain[-4:]}{colon}{rest}"


def _number(written: str) -> int | None:
    return int(written) if written.isdigit() else None


def _first_line(text: str) -> str:
    return next((line.strip()[:200] for line in text.splitlines() if line.strip()), "")


def _faked(written: str) -> tuple[Device, ...]:
    """Return the devices of `BATCHQ_FAKE_GPUS`. Raise UsageError."""
    model, _, count = written.partition(":")
    if count.isdigit() and 0 < int(count) <= MOST_DEVICES and re.fullmatch(r"[a-z0-9.-]+", model):
        buses = [f"0000:{index:02x}:00.0" for index in range(int(count))]
        return tuple(
            Device(index=index, id=f"GPU-fake-{model}-{index}", vendor="fake", bus=bus, name=model,
                   model=model)
            for index, bus in enumerate(buses)
        )  # fmt: skip
    try:
        return msgspec.json.decode(Path(written).read_bytes(), type=tuple[Device, ...])
    except (OSError, msgspec.MsgspecError) as trouble:
        raise UsageError(
            f"{FAKE_GPUS}: expected MODEL:COUNT or a file with a JSON list of devices,"
            f" found {written[:80]!r}: {trouble}",
            hint="as in h100:8; docs/gpus.md describes the file",
        ) from None


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(find_devices()))
