"""What one session knows of its groups beside their states: which hold anything, which wait, which
are heads of queues, and which have to leave for others.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from itertools import islice
from operator import attrgetter
from typing import Any, Protocol

from batchq.api.reasons import Verdict
from batchq.core.session.state import GroupState

Key = tuple[Any, ...]

_key_of = attrgetter("key")


class InadmissibleSet(Protocol):
    """The parked groups (batchq.core.pending.inadmissible)."""

    asleep: dict[str, tuple[Verdict, ...]]

    @property
    def world(self) -> object:
        """Equal as long as nothing has changed that lasting answers at preEnqueue depend on."""

    def may_sleep(self) -> bool:
        """Return whether groups may be left out of a session at all."""


class CarriedGroups(Protocol):
    """The busy groups as the last session left them."""

    @property
    def busy(self) -> Iterable[GroupState]:
        """The groups that are more than a record that waits, by key."""


class BusyGroups:
    """The groups that are more than a record that waits, and those that a session has touched: all
    that hold anything or could, without the parked ones.
    """

    def __init__(self, carried: CarriedGroups, touched: Mapping[str, GroupState]) -> None:
        self._carried = carried
        self._touched = touched
        self._groups: list[GroupState] | None = None
        self._uids: set[str] = set()
        self._seen = 0

    def by_key(self) -> list[GroupState]:
        """Return them by key. A list that was returned before stays as it is."""
        if self._groups is None:
            self._groups = list(self._carried.busy)
            self._uids = {group.uid for group in self._groups}
        if len(self._touched) > self._seen:
            new = list(islice(self._touched.values(), self._seen, None))
            self._seen = len(self._touched)
            if more := [group for group in new if group.uid not in self._uids]:
                # A caller may be iterating over the list; each trial of an eviction adds groups.
                self._groups = self._groups.copy()
                for group in more:
                    insort(self._groups, group, key=_key_of)
                self._uids.update(group.uid for group in more)
        return self._groups


class PendingGroups:
    """What has been found out about groups that wait, and by which rules classes of them stand for
    their members.
    """

    def __init__(
        self, inadmissible: InadmissibleSet, *, classes_may_form: bool, limits_decide: bool
    ) -> None:
        self.inadmissible = inadmissible
        #: Whether groups that ask for the same are asked about together.
        self.classes_may_form = classes_may_form
        #: Whether what could ever fit is let in wherever the limits have capacity.
        self.limits_decide = classes_may_form and limits_decide
        #: Whether classes may sleep.
        self.classes_may_sleep = classes_may_form and inadmissible.may_sleep()
        #: Uid -> why a parked group waits.
        self.parked: Mapping[str, tuple[Verdict, ...]] = {}
        #: Equal as long as nothing has changed that lasting answers at preEnqueue depend on.
        self.generation: object = None
        #: Uid -> why a group is ineligible, once asked (batchq.core.pending.queue).
        self.ineligible: dict[str, tuple[Verdict, ...]] = {}
        #: What groups ask for -> the version of the ledger, and the verdicts on such a group then.
        self.last_verdicts: dict[Key, tuple[int, tuple[Verdict, ...]]] = {}
        #: How many groups were asked about; for measurements.
        self.evaluated = 0

    def begin(self) -> None:
        """Note which groups are parked, once the session before has been taken up."""
        self.parked = self.inadmissible.asleep
        self.generation = self.inadmissible.world


class QueueHeads:
    """The groups that others of their queues wait for."""

    def __init__(self) -> None:
        #: Queue -> the head that all others of the queue wait for, if there is one now.
        self.strict: dict[str, GroupState] = {}
        #: Heads for which nothing is reserved, as they ask for more than their queues deserve.
        self.exceeding: list[GroupState] = []
        #: Group's uid -> the heads beside which more pods of it were counted as bound, while less
        #: important groups of its queue were tried.
        self.grown_beside: dict[str, tuple[str, ...]] = {}
        #: Group's uid -> from when on capacity is kept for it, in milliseconds, as backfill found.
        self.starts: dict[str, int] = {}
        #: Heads behind which only those groups have such a start that could have started now.
        self.unplanned: set[str] = set()


class PledgedVictims:
    """The victims that have to leave for a preemptor, and have not ended yet."""

    def __init__(self) -> None:
        #: Uid of a pod or of an external group -> the uid of the preemptor that it is pledged to.
        self.pledged: dict[str, str] = {}
        #: The same as the store has it.
        self.pledged_before: dict[str, str] = {}
        #: Whether a victim was passed over since it has started at this very instant.
        self.spares_the_new = False

    def begin(self) -> None:
        """Note what is pledged when the session begins."""
        self.pledged_before = dict(self.pledged)
