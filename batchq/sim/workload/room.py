"""What is free of the nodes while a load plays, and what those ask for who have not started yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from batchq.api.limits import capacity_of
from batchq.api.objects import Node, Pod, PodGroup
from batchq.api.resources import Amounts, covers, of_pod, times, total


class Room:
    """Counts pods in and out of all nodes together.

    What is free here is free at best: of what groups have reserved, only what their pods hold is
    counted. Whom this has no room for, no limit lets in.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._free: dict[str, int] = total(map(capacity_of, nodes))
        #: What whole groups ask for that wait -> how many ask for just that.
        self._asked: Counter[tuple[tuple[str, int], ...]] = Counter()

    def comes(self, group: PodGroup) -> None:
        """It waits from now on."""
        self._asked[tuple(_whole(group).items())] += 1

    def starts(self, group: PodGroup) -> None:
        """It waits no longer."""
        asked = tuple(_whole(group).items())
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

    def fits(self, group: PodGroup) -> bool:
        """Whether all pods of a group may find room now."""
        return covers(self._free, _whole(group))

    def fits_anybody(self) -> bool:
        """Whether all pods of any group that waits may."""
        return any(covers(self._free, dict(asked)) for asked in self._asked)


def _whole(group: PodGroup) -> Amounts:
    return total(times(of_pod(task.template.requests), task.replicas) for task in group.spec.tasks)
