"""From what the command line asks for to runs: a name, a configuration, a strategy of queues."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from batchq.api.names import shown
from batchq.api.notation import nearest
from batchq.api.objects import Queue, Strategy, kind_of
from batchq.cli.config import checked_config
from batchq.cli.files import read_objects
from batchq.cli.simulating.asked import Asked
from batchq.config.model import SchedulerConfig
from batchq.errors import InvalidInput, UsageError
from batchq.sim.workload.openb import PLACEMENTS
from batchq.sim.workload.policies import DEFAULT_POLICY, POLICIES, POLICY_CONFIG

#: Each is a row, a colour and some minutes.
MOST_RUNS = 20


class Run(Struct, frozen=True, kw_only=True):
    """`strategy` is that of queues which state none of their own; None leaves them alone."""

    name: str
    config: SchedulerConfig
    strategy: Strategy | None = None


def runs_of(asked: Sequence[Asked]) -> tuple[Run, ...]:
    """Every run in its order, under a name of its own.

    Raises UsageError for a policy that does not exist, InvalidInput for a wrong configuration.
    """
    asked = asked or (Asked("--policy", DEFAULT_POLICY),)
    if len(asked) > MOST_RUNS:
        raise UsageError(f"expected at most {MOST_RUNS} runs in one comparison, found {len(asked)}")
    names = _names(asked)
    return tuple(_run(one, name) for one, name in zip(asked, names, strict=True))


def queues_of(file: Path | None) -> tuple[Queue, ...]:
    """The queues of a file of manifests. Raises InvalidInput, also for anything but a Queue."""
    if file is None:
        return ()
    queues: dict[str, Queue] = {}
    for item in read_objects(str(file), in_folder=False):
        if not isinstance(item, Queue):
            raise InvalidInput(f"{file}: expected Queues, found a {kind_of(item)}")
        if item.metadata.name in queues:
            raise InvalidInput(f"{file}: queue {item.metadata.name} is there twice")
        queues[item.metadata.name] = item
    return tuple(queues.values())


def _run(asked: Asked, name: str) -> Run:
    if asked.option == "--config":
        return Run(name=name, config=checked_config(Path(asked.value)))
    if asked.option == "--placement":
        return Run(name=name, config=PLACEMENTS[asked.value])
    if asked.value not in POLICIES:
        near = nearest(asked.value, POLICIES)
        meant = f"; did you mean {near}?" if near else ""
        raise UsageError(
            f"--policy: expected one of {', '.join(POLICIES)}, found {shown(asked.value)}{meant}"
        )
    return Run(name=name, config=POLICY_CONFIG, strategy=POLICIES[asked.value])


def _names(asked: Sequence[Asked]) -> list[str]:
    """A policy's own name, a file's without its folder; what is there twice is numbered."""
    names: list[str] = []
    for one in asked:
        plain = Path(one.value).name if one.option == "--config" else one.value
        choices = (plain, *(f"{plain} ({number})" for number in range(2, MOST_RUNS + 1)))
        names.append(next(name for name in choices if name not in names))
    return names
