"""What is free of the nodes while a load plays, and what those ask for who have not started yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

from batchq.api.limits import capacity_of
from batchq.api.objects import Node, Pod, PodGroup
from batchq.api.resources import of_pod, times, total

#: Resources and units of them, in the order of the resources.
Asked: TypeAlias = tuple[tuple[str, int], ...]


class Room:
    """Counts pods in and out of all nodes together.

    What is free here is free at best: of what groups have reserved, only what their pods hold is
    counted. Whom this has no room for, no limit lets in.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._free: dict[str, int] = total(map(capacity_of, nodes))
        #: What whole groups ask for that wait -> how many ask for just that.
        self._asked: Counter[Asked] = Counter()

    def comes(self, asked: Asked) -> None:
        """A group that asks for that waits from now on."""
        self._asked[asked] += 1

    def starts(self, asked: Asked) -> None:
        """It waits no longer."""
        self._asked[asked] -= 1
        if not self._asked[asked]:
            del self._asked[asked]

    def takes(self, pod: Pod) -> None:
        """A pod holds what it asks for."""
        for name, units in of_pod(pod.spec.requests).items():
            self._free[name] = self._free.get(name, 0) - units

    def gives(self, pod: Pod) -> None:
        """It holds it no longer."""
        for name, units in of_pod(pod.spec.requests).items():
            self._free[name] = self._free.get(name, 0) + units

    def fits(self, asked: Asked) -> bool:
        """Whether all pods of a group that asks for that may find room now."""
        for name, units in asked:  # noqa: SIM110 - asked of everybody who waits, at each end
            if units > self._free.get(name, 0):
                return False
        return True

    def fits_anybody(self) -> bool:
        """Whether all pods of any group that waits may."""
        return any(map(self.fits, self._asked))


def asked_by(group: PodGroup) -> Asked:
    """What all pods of a group ask for together."""
    tasks = group.spec.tasks
    whole = total(times(of_pod(task.template.requests), task.replicas) for task in tasks)
    return tuple(whole.items())
