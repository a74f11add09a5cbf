"""What a session knows of its groups besides their states: busy groups, verdicts on pending groups,
heads of queues, pledged victims, and the session's effects: its changes, and the verdicts on groups
that it has not admitted.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from itertools import islice
from operator import attrgetter
from typing import Any, Protocol

from batchq.api.objects import Pod, PodGroupStatus
from batchq.api.reasons import Blockers, Verdict
from batchq.core.session.state import GroupState

Key = tuple[Any, ...]

_key_of = attrgetter("key")


class InadmissibleSet(Protocol):
    """The parked groups (batchq.core.pending.inadmissible)."""

    asleep: dict[str, tuple[Verdict, ...]]

    @property
    def world(self) -> object:
        """Return a token that stays equal while lasting answers at preEnqueue stay valid."""

    def may_sleep(self) -> bool:
        """Return whether groups may be parked at all."""


class CarriedGroups(Protocol):
    """The busy groups at the end of the last session."""

    @property
    def busy(self) -> Iterable[GroupState]:
        """Return the groups that are more than a waiting record, by key."""


class BusyGroups:
    """The groups that are more than a waiting record, and those that a session has touched: all
    that hold anything or could, without the parked ones.
    """

    def __init__(self, carried: CarriedGroups, touched: Mapping[str, GroupState]) -> None:
        self._carried = carried
        self._touched = touched
        self._groups: list[GroupState] | None = None
        self._uids: set[str] = set()
        self._seen = 0

    def by_key(self) -> list[GroupState]:
        """Return these groups by key. A list returned earlier is not changed."""
        if self._groups is None:
            self._groups = list(self._carried.busy)
            self._uids = {group.uid for group in self._groups}
        if len(self._touched) > self._seen:
            new = list(islice(self._touched.values(), self._seen, None))
            self._seen = len(self._touched)
            if more := [group for group in new if group.uid not in self._uids]:
                # A caller may be iterating over the list, and each trial of an eviction adds
                # groups.
                self._groups = self._groups.copy()
                for group in more:
                    insort(self._groups, group, key=_key_of)
                self._uids.update(group.uid for group in more)
        return self._groups


class PendingGroups:
    """Verdicts on pending groups, and the rules by which an equivalence class stands for its
    members.
    """

    def __init__(
        self, inadmissible: InadmissibleSet, *, classes_may_form: bool, limits_decide: bool
    ) -> None:
        self.inadmissible = inadmissible
        #: Whether groups with equal requests are evaluated together.
        self.classes_may_form = classes_may_form
        #: Whether every group that could ever fit is admitted as soon as the limits have capacity.
        self.limits_decide = classes_may_form and limits_decide
        #: Whether classes may be parked.
        self.classes_may_sleep = classes_may_form and inadmissible.may_sleep()
        #: Uid -> the verdicts on a parked group.
        self.parked: Mapping[str, tuple[Verdict, ...]] = {}
        #: A token that stays equal while lasting answers at preEnqueue stay valid.
        self.generation: object = None
        #: Uid -> why a group is ineligible, filled on demand (batchq.core.pending.queue).
        self.ineligible: dict[str, tuple[Verdict, ...]] = {}
        #: Request -> the version of the ledger, and the verdicts on such a group at that version.
        self.last_verdicts: dict[Key, tuple[int, tuple[Verdict, ...]]] = {}
        #: The number of groups evaluated; for measurements.
        self.evaluated = 0

    def begin(self) -> None:
        """Read the parked groups, after the state of the previous session was taken over."""
        self.parked = self.inadmissible.asleep
        self.generation = self.inadmissible.world


class QueueHeads:
    """The heads of queues, which other groups wait for."""

    def __init__(self) -> None:
        #: Queue -> the head that all other groups of the queue wait for, if there is one now.
        self.strict: dict[str, GroupState] = {}
        #: Heads without a reservation, because they request more than their queues deserve.
        self.exceeding: list[GroupState] = []
        #: Uid of a group -> the heads beside which more of its pods were counted as bound while
        #: less important groups of its queue were tried.
        self.grown_beside: dict[str, tuple[str, ...]] = {}
        #: Uid of a group -> the instant (ms) from which backfill keeps capacity for it.
        self.starts: dict[str, int] = {}
        #: Heads behind which backfill has planned only groups that could have started now.
        self.unplanned: set[str] = set()


class PledgedVictims:
    """The victims that must leave for a preemptor and have not ended yet."""

    def __init__(self) -> None:
        #: Uid of a pod or of an external group -> the uid of the preemptor that it is pledged to.
        self.pledged: dict[str, str] = {}
        #: The same as stored at the start of the session.
        self.pledged_before: dict[str, str] = {}
        #: Whether a victim was skipped because it has started at this very instant.
        self.spares_the_new = False

    def begin(self) -> None:
        """Record the pledges at the start of the session."""
        self.pledged_before = dict(self.pledged)


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
