"""gates (preEnqueue): a group with scheduling gates does not stand in line (KEP-3521).

Woken by the removal of the last gate. No retry cost, no Unschedulable.
"""

from __future__ import annotations

from batchq.api.reasons import Verdict, Waiting
from batchq.framework.session import Session
from batchq.framework.state import GroupState


class Gates:
    name = "gates"

    def pre_enqueue(self, session: Session, group: GroupState) -> list[Verdict]:
        gates = group.record.spec.scheduling_gates
        if not gates:
            return []
        names = ", ".join(gate.name for gate in gates)
        detail = f"Scheduling is blocked due to non-empty scheduling gates: {names}"
        return [Verdict(plugin=self.name, reason=Waiting.SCHEDULING_GATED, detail=detail)]
