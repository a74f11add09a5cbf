"""gates (preEnqueue): a group with scheduling gates is not in line (KEP-3521).

A group is refused while it has a gate of its own, or while gates of its pods (in the templates of
tasks, or of single pods in a snapshot described by hand) leave fewer pods than minMember or than a
task's minAvailable. While this plugin is configured, gated pods are neither created nor bound, and
do not count in sums or requests; without it, gates are stored and ignored. The removal of the last
gate unparks the group. A gated group uses no retry, and is never Unschedulable.
"""

from __future__ import annotations

from collections.abc import Iterator

from batchq.api.objects import gates_of
from batchq.api.reasons import Verdict, Waiting
from batchq.core.extension import PluginTraits, Rule
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState

#: The name of the plugin.
GATES = "gates"


class SchedulingGates:
    name = GATES
    traits = PluginTraits(
        lifted_by={Waiting.SCHEDULING_GATED: frozenset()},
        passes_plain=True,
        enforces=frozenset({Rule.SCHEDULING_GATES}),
    )

    def pre_enqueue(self, session: Session, group: GroupState) -> list[Verdict]:
        names = ", ".join(dict.fromkeys(_blocking(group)))
        if not names:
            return []
        detail = f"Scheduling is blocked due to non-empty scheduling gates: {names}"
        return [Verdict(plugin=self.name, reason=Waiting.SCHEDULING_GATED, detail=detail)]


def _blocking(group: GroupState) -> Iterator[str]:
    """Yield the gates that hold the group back: its own, then those of its pods."""
    lacks = group.lacks_ungated()
    for gate in gates_of(group.record.spec):
        if lacks or not gate.task:
            yield gate.name
    if lacks:
        pods = sorted(group.pods.values(), key=lambda pod: (pod.spec.task, pod.spec.index))
        for pod in pods:
            yield from (gate.name for gate in pod.spec.scheduling_gates)
