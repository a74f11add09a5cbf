"""Which container runtimes work on this machine, and which device nodes are those of a GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from batchq.api.containers import ACTIVATES_LABEL, NO, RUNTIME_LABEL, RUNTIMES, YES
from batchq.system import structlog

log = structlog.get_logger(__name__)

_TRIED_WITHIN_S = 10.0
_ROOT = Path("/")
#: The nodes that a program needs for any NVIDIA GPU, beside that of the GPU.
_SHARED_BY_NVIDIA = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps")
_FIELD = re.compile(r"^(GPU UUID|Device Minor):\s*(\S+)", re.MULTILINE)


def runtime_labels() -> dict[str, str]:
    """Return the labels that say which runtimes a node has, and log them.

    bwrap is tried out, because kernels and security modules forbid what it needs in different
    ways. The others are looked up: trying them would need an image.
    """
    found = {name: shutil.which(name) is not None for name in RUNTIMES}
    why = ""
    if found["bwrap"] and (why := _trouble_of_bwrap()):
        found["bwrap"] = False
    has = ", ".join(name for name, works in found.items() if works)
    log.info("container runtimes", found=has or "none", bwrap=why or None)
    labels = {f"{RUNTIME_LABEL}{name}": YES if works else NO for name, works in found.items()}
    return {**labels, ACTIVATES_LABEL: YES}


def _trouble_of_bwrap() -> str:
    try:
        done = subprocess.run(
            ["bwrap", "--bind", "/", "/", "--dev", "/dev", "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            text=True,
            timeout=_TRIED_WITHIN_S,
        )
    except (OSError, subprocess.TimeoutExpired) as trouble:
        return str(trouble)
    return "" if done.returncode == 0 else done.stderr.strip()[:200] or f"exit {done.returncode}"


def device_nodes(environment: Mapping[str, str], *, root: Path = _ROOT) -> list[str]:
    """Return the device nodes of the GPUs that a pod's environment names; empty for none.

    All nodes are returned for AMD devices and for MIG instances, which cannot be told apart.
    """
    uuids = frozenset(filter(None, environment.get("BATCHQ_GPU_UUIDS", "").split(",")))
    if not uuids:
        return []
    if environment.get("ROCR_VISIBLE_DEVICES"):
        return ["/dev/kfd", "/dev/dri"]
    minors = _minors(uuids, root)
    own = sorted((root / "dev").glob("nvidia[0-9]*"))
    nodes = [path.name for path in own if minors is None or path.name in minors]
    return [f"/dev/{name}" for name in (*nodes, *_SHARED_BY_NVIDIA)]


def _minors(uuids: frozenset[str], root: Path) -> set[str] | None:
    """Return the names of the nodes of these GPUs; None if the driver does not know them all."""
    names = {}
    for path in (root / "proc/driver/nvidia/gpus").glob("*/information"):
        fields = dict(_FIELD.findall(path.read_text(errors="replace")))
        names[fields.get("GPU UUID", "")] = f"nvidia{fields.get('Device Minor', '')}"
    if not uuids <= names.keys():
        return None
    return {names[uuid] for uuid in uuids}
