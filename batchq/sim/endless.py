"""Sessions at one instant that do not end, told by two decisions that undo each other.

A session decides by what is there, so sessions at one instant end by themselves; where they do
not, the rules (or a plugin) contradict each other. Such a run is worth nothing: it ends with an
error.
"""

from __future__ import annotations

from collections.abc import Sequence

from batchq.errors import EndlessSessions
from batchq.sim.report import CycleStory


def endless_sessions(stories: Sequence[CycleStory]) -> EndlessSessions:
    """The error for the sessions of one instant, of which the last one still decided something."""
    done, undone = _last_undone(stories) or (_told(stories[-2]), _told(stories[-1]))
    return EndlessSessions(
        f"at {stories[-1].time}s sessions do not come to an end ({len(stories)} so far):"
        f" one decides that {done}, a later one that {undone}",
        hint="a rule of the scheduler or of a plugin contradicts another one; please report it",
    )


def _last_undone(stories: Sequence[CycleStory]) -> tuple[str, str] | None:
    """The last decision that a later one has undone, and that one."""
    done: dict[str, str] = {}
    found = None
    for story in stories:
        for subject, undoing in _losses(story).items():
            if subject in done:
                found = (done.pop(subject), undoing)
        done |= _gains(story)
    return found


def _gains(story: CycleStory) -> dict[str, str]:
    """Group or pod -> what it was given."""
    gains = {group: f"{group} reserves its quota" for group in story.reserved}
    gains |= {group: f"{group} is InQueue" for group in story.admitted}
    for group, victims in story.pledged.items():
        gains[group] = f"{group} is promised the room of {', '.join(victims)}"
    return gains | {pod: f"{pod} starts on {node}" for pod, node in story.bound.items()}


def _losses(story: CycleStory) -> dict[str, str]:
    """Group or pod -> what was taken from it."""
    losses = {}
    for pod in story.evicted:
        claimant = f" for {pod.by}" if pod.by else ""
        losses[pod.pod] = f"{pod.pod} has to stop ({pod.reason}{claimant})"
    for left in story.requeued:
        losses[left.group] = f"{left.group} goes back to Pending ({left.reason})"
    return losses


def _told(story: CycleStory) -> str:
    """Everything that a session decided of which one sees anything."""
    told = [*_losses(story).values(), *_gains(story).values()]
    return " and ".join(told) or "groups are charged for something else"
