"""The changes made by one session, and the verdicts on groups that it has not admitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping

from batchq.api.objects import Pod, PodGroupStatus
from batchq.api.reasons import Blockers, Verdict
from batchq.core.session.state import GroupState


class Effects:
    """The groups that a session has changed; written by Statements."""

    def __init__(self) -> None:
        #: The changed groups by uid; transactions are derived from their states.
        self.touched: dict[str, GroupState] = {}
        #: The uids of finished groups to delete.
        self.expired: set[str] = set()
        #: The names of nodes that have become silent.
        self.unready: list[str] = []
        #: Uids of groups whose changes must be committed together, one tuple for each decision.
        self.joined: list[tuple[str, ...]] = []
        #: Uid -> status and pods of a group before the first action changed it; empty before the
        #: actions begin.
        self.before: dict[str, tuple[PodGroupStatus, dict[str, Pod]]] = {}
        #: The number of intents before the actions.
        self.first_intent = 0
        self._actions_run = False

    def begin_actions(self, intents: int) -> None:
        """Record group states from now on; `intents` is the number of existing intents."""
        self.before = {}
        self.first_intent = intents
        self._actions_run = True

    def remember(self, group: GroupState) -> None:
        """Record the state of a group before an action changes it for the first time."""
        if self._actions_run and group.uid not in self.before:
            self.before[group.uid] = (group.status, dict(group.pods))


class Refusals(MutableMapping[str, Blockers]):
    """The verdicts on waiting groups by uid: those of this session; for a parked group, those with
    which it was parked; for a member of an equivalence class, those of the class.
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
