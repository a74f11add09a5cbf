"""conformance (preemptable, reclaimable): groups that keep the system running are not evicted.

The plugin vetoes every victim in one of `namespaces`, by default `system` and `kube-system`, and
has no opinion on others. It follows kube-batch's and Volcano's plugin of this name, which also
exempts two priority classes. Groups submitted to such a namespace are safe from preempt and
reclaim, so restrict access to it. No change lifts its refusals: a group never leaves its namespace.
"""

from __future__ import annotations

from batchq.api.notation import Malformed, label_problem
from batchq.api.objects import Value
from batchq.core.extension import PluginTraits
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState, Victim


class ConformanceArguments(Value, frozen=True):
    namespaces: tuple[str, ...] = ("system", "kube-system")


class Conformance:
    name = "conformance"
    traits = PluginTraits(only_vetoes=True, spares="in a protected namespace")
    arguments = ConformanceArguments

    def __init__(self, arguments: ConformanceArguments) -> None:
        for place, name in enumerate(arguments.namespaces):
            if problem := label_problem(name):
                raise Malformed(("namespaces", place), problem)
        self._protected = frozenset(arguments.namespaces)

    def preemptable(self, session: Session, preemptor: GroupState, victim: Victim) -> bool | None:
        return False if victim.group.namespace in self._protected else None

    def reclaimable(self, session: Session, preemptor: GroupState, victim: Victim) -> bool | None:
        return self.preemptable(session, preemptor, victim)
