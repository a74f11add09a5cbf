"""What one session has done, and why the groups wait that it has not let in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping

from batchq.api.objects import Pod, PodGroupStatus
from batchq.api.reasons import Blockers, Verdict
from batchq.core.session.state import GroupState


class Effects:
    """The groups that a session has changed; written by Statements."""

    def __init__(self) -> None:
        #: The groups that have changed, by uid: transactions are read off their states.
        self.touched: dict[str, GroupState] = {}
        #: The uids of finished groups that are to be forgotten.
        self.expired: set[str] = set()
        #: The names of nodes that have fallen silent.
        self.unready: list[str] = []
        #: Groups whose changes become true together or not at all, by uid.
        self.joined: list[tuple[str, ...]] = []
        #: Uid -> status and pods of a group before the first action changed it; empty until the
        #: actions begin.
        self.before: dict[str, tuple[PodGroupStatus, dict[str, Pod]]] = {}
        #: How many intents came before the actions.
        self.first_intent = 0
        self._actions_run = False

    def begin_actions(self, intents: int) -> None:
        """Note how groups are from now on; `intents`: how many there are already."""
        self.before = {}
        self.first_intent = intents
        self._actions_run = True

    def remember(self, group: GroupState) -> None:
        """Note how a group is before an action changes it for the first time."""
        if self._actions_run and group.uid not in self.before:
            self.before[group.uid] = (group.status, dict(group.pods))

    def touch(self, group: GroupState) -> None:
        """Note that a group has changed."""
        self.touched[group.uid] = group


class Refusals(MutableMapping[str, Blockers]):
    """Why groups wait, by uid: the verdicts of this session, of parked groups those with which they
    were parked, and of members of an equivalence class those of the class.
    """

    def __init__(
        self, groups: Mapping[str, GroupState], parked: Mapping[str, tuple[Verdict, ...]]
    ) -> None:
        self.told: dict[str, Blockers] = {}
        self._groups = groups
        self._parked = parked

    def __getitem__(self, uid: str) -> Blockers:
        found = self.told.get(uid)
        if found is None:
            group = self._groups[uid]
            if group.status is group.record.status:
                found = self._parked.get(uid) or (group.peers and group.peers.told)  # type: ignore[assignment]
            if found is None:
                raise KeyError(uid)
        return found

    def __setitem__(self, uid: str, told: Blockers) -> None:
        self.told[uid] = told

    def __delitem__(self, uid: str) -> None:
        self.told.pop(uid, None)

    def __iter__(self) -> Iterator[str]:
        return (uid for uid in self._groups if uid in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)
