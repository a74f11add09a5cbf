"""How long a work-horse may believe that the pod is still its own.

The server counts a lease from the moment it hears of it, the work-horse from the moment it asked:
the work-horse's lease always ends first. When it cannot be renewed, the pod's processes are killed
`margin_ms` before that, so that the pod never runs here and elsewhere at once. Instants are
milliseconds of the monotonic clock and come in as arguments.
"""

from __future__ import annotations


class Lease:
    """One pod attempt's lease, as its work-horse sees it."""

    def __init__(self, *, now_ms: int, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        #: Enough to kill a process group and to see it dead, and some for a slow machine.
        self.margin_ms = lease_ms // 6
        self.ends_at = now_ms + lease_ms

    def renewed(self, *, asked_at: int) -> None:
        """The server agreed to what was asked at `asked_at`; or it was seen to be away then, and
        judges no lease. An answer that comes late takes back nothing.
        """
        self.ends_at = max(self.ends_at, asked_at + self._lease_ms)

    @property
    def guarded_until(self) -> int:
        """When the guard kills what its work-horse should have killed by then."""
        return self.ends_at - self.margin_ms // 2

    def is_lost(self, now_ms: int) -> bool:
        """Whether the pod's processes must be killed now."""
        return now_ms >= self.ends_at - self.margin_ms
