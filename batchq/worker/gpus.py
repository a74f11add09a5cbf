"""Which GPUs a pod sees: whole ones for itself, and fractions that share one.

The scheduler decides only how many GPUs a node's pods may have; the agent decides which, by index,
and tells the pod in CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

GPU = "gpu"
_WHOLE = 1000


class GpuShares:
    """What is free of each GPU, in thousandths; owned by the agent's loop."""

    def __init__(self, indices: Sequence[int]) -> None:
        self._free = dict.fromkeys(indices, _WHOLE)
        self._held: dict[str, dict[int, int]] = {}

    def take(self, holder: str, requests: Mapping[str, int]) -> str | None:
        """The value for CUDA_VISIBLE_DEVICES, or None on a node without GPUs.

        Whole GPUs are taken where nobody shares, a fraction where the least that suffices is
        free. A holder that asks again, or for more than there is, gets what can be had: the
        scheduler's count is the limit, this is only the choice.
        """
        if not self._free:
            return None
        self.give_back(holder)
        whole, rest = divmod(requests.get(GPU, 0), _WHOLE)
        untouched = [index for index, free in self._free.items() if free == _WHOLE]
        taken = dict.fromkeys(untouched[:whole], _WHOLE)
        if rest:
            fitting = [
                (free, index)
                for index, free in self._free.items()
                if free >= rest and index not in taken
            ]
            if fitting:
                taken[min(fitting)[1]] = rest
        for index, units in taken.items():
            self._free[index] -= units
        self._held[holder] = taken
        return ",".join(str(index) for index in sorted(taken))

    def give_back(self, holder: str) -> None:
        """Free what `holder` had; nothing if it had nothing."""
        for index, units in self._held.pop(holder, {}).items():
            self._free[index] += units
