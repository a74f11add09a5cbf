"""What every search for victims asks about all groups, looked up once a session and followed.

The ledger tells which groups something has happened to (`stirred`), and the session about which it
has decided (`joined`); nobody else is looked at again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from batchq.api.lifecycle import ON_NODE
from batchq.framework.state import GroupState

if TYPE_CHECKING:
    from batchq.framework.session import Session


class Stopping:
    """The groups that have pods which were told to stop, and hold a node still."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupState] | None = None
        self._seen = 0

    def groups(self, session: Session) -> Collection[GroupState]:
        """In no order."""
        stirred = session.ledger.stirred
        news: Iterable[GroupState]
        if self._groups is None:
            self._groups, news = {}, session.busy()
        else:
            news = {group.uid: group for group in stirred[self._seen :]}.values()
        self._seen = len(stirred)
        for group in news:
            if group.pods and any(_stops(group)):
                self._groups[group.uid] = group
            else:
                self._groups.pop(group.uid, None)
        return self._groups.values()


def _stops(group: GroupState) -> Iterable[bool]:
    return (pod.status.terminating and pod.status.phase in ON_NODE for pod in group.pods.values())


class Decided:
    """The groups about which a session has decided together with others, by uid."""

    def __init__(self) -> None:
        self._all: set[str] = set()
        self._served: set[str] = set()
        self._seen = 0
        self._last: tuple[str, ...] | None = None

    def all(self, session: Session) -> Collection[str]:
        """Claimants and victims."""
        self._follow(session.joined)
        return self._all

    def served(self, session: Session) -> Collection[str]:
        """Claimants."""
        self._follow(session.joined)
        return self._served

    def _follow(self, joined: list[tuple[str, ...]]) -> None:
        # A decision that came to nothing new is taken back again.
        if len(joined) < self._seen or (self._seen and joined[self._seen - 1] is not self._last):
            self._all, self._served, self._seen = set(), set(), 0
        for uids in joined[self._seen :]:
            self._all.update(uids)
            self._served.add(uids[0])
        if joined:
            self._seen, self._last = len(joined), joined[-1]
