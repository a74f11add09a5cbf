"""The collector of cycles, kept away from what lasts.

A scheduler holds its groups for as long as they wait, a million of them perhaps, and they are not
garbage: what Python's collector would find there is nothing, at a second and more per look. So it
stands still while the first turn takes everything in, leaves alone what there is by then, and
looks less often from then on. What turns drop is freed at once, as nothing of it is a cycle.
"""

from __future__ import annotations

import gc

#: New objects before the youngest are looked at; such looks before the next generation, and so on.
_THRESHOLDS = (50_000, 20, 50)
_USUAL = gc.get_threshold()


def stand_still() -> None:
    """Collect nothing until `leave_alone` is called."""
    gc.disable()


def leave_alone() -> None:
    """Whatever there is lasts; collect what comes from now on, now and then."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()


def as_usual() -> None:
    """Look at everything again, as often as Python does."""
    gc.unfreeze()
    gc.set_threshold(*_USUAL)
    gc.enable()
