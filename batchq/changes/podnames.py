"""Pods of two groups never have one name: groups whose pods would be called alike are refused.

A pod is called `<group>-<task>-<index>`. The index is what follows the last hyphen, so pods of two
groups of a namespace have one name only if `<group>-<task>` of both is the same text: task `b-c` of
group `a`, and task `c` of group `a-b`. Which groups that could be follows from the text alone: each
of its hyphens may end the name of a group. So only a few names are looked up, however many groups
there are, and whichever of the two came first.

Of two submissions at one moment the script that writes refuses the second: it is written on the
condition that the groups that were not there still are not. What it cannot see is another group's
tasks: an edit of those at the very moment of a submission can go unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator

from batchq.api.names import LABEL_MOST
from batchq.api.objects import PodGroup, Task, key_of
from batchq.api.transaction import Write
from batchq.changes.lookup import title
from batchq.errors import Rejected
from batchq.ports import Reader


def rivals(group: PodGroup) -> dict[str, list[tuple[str, str]]]:
    """Key of a group that may be there -> (task of `group`, task of that one) whose pods would have
    one name.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    meta = group.metadata
    for task in _with_pods(group):
        prefix = f"{meta.name}-{task.name}"
        for name, other in _divided(prefix):
            if name != meta.name:
                found.setdefault(f"{meta.namespace}/{name}", []).append((task.name, other))
    return found


def free_names(reader: Reader, group: PodGroup) -> tuple[Write, ...]:
    """What to write with a group so that no other with pods of its names is there, or comes
    meanwhile: groups that were not there must not be there when it is written.

    Raises Rejected if one is, and StoreUnavailable.
    """
    there: dict[str, PodGroup | None] = {}
    for key in rivals(group):
        other = reader.get("PodGroup", key)
        there[key] = other if isinstance(other, PodGroup) else None
    for other in there.values():
        if other is not None:
            check_apart(group, other)
    return tuple(must_not_be_there(key) for key, other in there.items() if other is None)


def must_not_be_there(key: str) -> Write:
    """A condition of a transaction: there is no group of this name."""
    return Write(kind="PodGroup", key=key, expect=0, value=None)


def check_apart(group: PodGroup, other: PodGroup) -> None:
    """Raise Rejected if pods of the two would have one name."""
    tasks = {task.name for task in _with_pods(other)}
    for mine, theirs in rivals(group).get(key_of(other), ()):
        if theirs in tasks:
            prefix = f"{group.metadata.name}-{mine}"
            raise Rejected(
                f"{title(group)}: pods of its task {mine} would be called {prefix}-0 and so on, as"
                f" pods of task {theirs} of {title(other)} are",
                hint="choose another name for the group or for the task",
            )


def _with_pods(group: PodGroup) -> Iterator[Task]:
    """The tasks for which there will be pods; an external group has none of ours."""
    if group.spec.controller == "external":
        return iter(())
    return (task for task in group.spec.tasks if task.replicas)


def _divided(prefix: str) -> Iterator[tuple[str, str]]:
    """Each way to read a text as `<group>-<task>`."""
    place = prefix.find("-")
    while place >= 0:
        name, task = prefix[:place], prefix[place + 1 :]
        # What is left of two labels is one if hyphens do not end or begin it.
        if name[-1] != "-" and task[0] != "-" and max(len(name), len(task)) <= LABEL_MOST:
            yield name, task
        place = prefix.find("-", place + 1)
