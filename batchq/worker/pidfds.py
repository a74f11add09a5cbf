"""Waiting for processes to end, whoever's children they are."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence


def await_death(pids: Sequence[int], within_s: float) -> None:
    """Return when one of them has ended, or after `within_s`."""
    poll = select.poll()
    descriptors: list[int] = []
    for pid in pids:
        try:
            descriptors.append(os.pidfd_open(pid))
        except ProcessLookupError:
            continue
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    if descriptors:
        poll.poll(within_s * 1000)
    for descriptor in descriptors:
        os.close(descriptor)
