"""How the agents of one machine divide it among themselves, and what they are called."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence

from batchq.api.quantity import CPU, MEMORY, format_quantity
from batchq.errors import Conflict
from batchq.worker.gpus import GPU

_MIB = 1024 * 1024
#: A label has 63 characters; some are left for the number.
_LONGEST_HOST = 50


def node_names(count: int, *, host: str | None = None) -> tuple[str, ...]:
    """`<host>-1`, `<host>-2` …, as labels that a Node may have."""
    first = (host if host is not None else socket.gethostname()).partition(".")[0].lower()
    label = re.sub(r"[^a-z0-9]+", "-", first).strip("-")[:_LONGEST_HOST].strip("-") or "node"
    return tuple(f"{label}-{number}" for number in range(1, count + 1))


def divide(
    machine: Mapping[str, int], taken: Mapping[str, Mapping[str, int]], names: Sequence[str]
) -> dict[str, dict[str, int]]:
    """What each of `names` gets of the machine, less what others on it have `taken` already.

    cpu and memory in equal parts; the GPUs all go to the first agent of the machine, since they
    are told apart by their index. Raises Conflict when nothing is left to divide.
    """
    if not names:
        return {}
    free = dict(machine)
    for other in taken.values():
        for resource, amount in other.items():
            free[resource] = free.get(resource, 0) - amount
    cpu, memory = free.get(CPU, 0) // len(names), free.get(MEMORY, 0) // len(names)
    if cpu < 1 or memory < _MIB:
        count = len(taken) + len(names)
        raise Conflict(
            f"nothing of this machine is left for {', '.join(names)}: "
            + (f"{', '.join(taken)} take all of its cpu or memory" if taken else "it is too small"),
            hint=f"`batchq down`, then `batchq up --agents {count}` divides it anew; or let them "
            f"share it: `batchq up --agents {count} --resources cpu=1,memory=1Gi`",
        )
    shares = {name: {CPU: cpu, MEMORY: memory // _MIB * _MIB} for name in names}
    if free.get(GPU, 0) > 0 and free[GPU] == machine.get(GPU):
        shares[names[0]][GPU] = free[GPU]
    return shares


def written(amounts: Mapping[str, int]) -> str:
    """`cpu=2,memory=4294967296`, as `--resources` reads it."""
    return ",".join(f"{name}={format_quantity(name, amounts[name])}" for name in sorted(amounts))
