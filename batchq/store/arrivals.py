"""Groups that have just been submitted and that no session has seen yet, so many a session.

A session that takes up ten thousand new groups lasts for seconds, and a group that could start
waits until it ends. So each takes up a bounded number, of every namespace and queue in turn: one
that is flooded keeps its own groups waiting, and none of the others. In a namespace and queue they
come in the order in which they were written, and what a group depends on comes before it.
"""

from __future__ import annotations

from typing import TypeAlias

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.objects import PodGroup

#: Namespace and queue.
Line: TypeAlias = tuple[str, str]


class Arrivals:
    """By key; owned by one thread."""

    def __init__(self) -> None:
        #: Those of each namespace and queue, in order; the line whose turn is next is first.
        self._lines: dict[Line, dict[str, PodGroup]] = {}
        self._line_of: dict[str, Line] = {}

    def __len__(self) -> int:
        return len(self._line_of)

    def get(self, kind: str, key: str) -> PodGroup | None:
        """The group, if it waits here."""
        line = self._line_of.get(key) if kind == "PodGroup" else None
        return None if line is None else self._lines[line][key]

    def put(self, key: str, group: PodGroup) -> None:
        """Let a group wait, at the end; one that waits already keeps its place."""
        line = self._line_of.setdefault(key, (group.metadata.namespace, group.spec.queue))
        self._lines.setdefault(line, {})[key] = group

    def remove(self, key: str) -> PodGroup | None:
        """Take a group out, if it is there."""
        line = self._line_of.pop(key, None)
        if line is None:
            return None
        groups = self._lines[line]
        group = groups.pop(key)
        if not groups:
            del self._lines[line]
        return group

    def take(self, most: int) -> list[tuple[str, PodGroup]]:
        """Take out about `most`, from each line in turn and equally; more only if they depend on
        others.
        """
        taken: list[tuple[str, PodGroup]] = []
        while self._lines and len(taken) < most:
            share = max(1, (most - len(taken)) // len(self._lines))
            for line in list(self._lines):
                if len(taken) >= most:
                    break
                until = min(most, len(taken) + share)
                while len(taken) < until and line in self._lines:
                    self._take_first(line, taken)
                if line in self._lines:
                    # The others come before it the next time.
                    self._lines[line] = self._lines.pop(line)
        return taken

    def _take_first(self, line: Line, taken: list[tuple[str, PodGroup]]) -> None:
        """The first of a line, behind all of those that it depends on."""
        wanted = [next(iter(self._lines[line]))]
        while wanted:
            group = self.get("PodGroup", wanted[-1])
            if group is None:
                wanted.pop()
                continue
            space = group.metadata.namespace
            needed = [f"{space}/{other.name}" for other in group.spec.depends_on]
            missing = [key for key in needed if key in self._line_of and key not in wanted]
            if missing:
                wanted += missing
                continue
            key = wanted.pop()
            self.remove(key)
            taken.append((key, group))


def is_new(group: PodGroup) -> bool:
    """Whether nothing has been decided about a group yet."""
    status = group.status
    return status.phase == PodGroupPhase.PENDING and not status.admission and not status.reserved_at
