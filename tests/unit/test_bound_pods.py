"""What a pod's status keeps when the pod is bound, and what belongs to its last attempt."""

from __future__ import annotations

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import PodStatus
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import bind
from tests.builders import a_group, a_node, a_pod, a_snapshot

#: A value of each field that is not its default; the pod is bound at 7 s.
_BEFORE = PodStatus(
    phase=PodPhase.PENDING,
    group_uid="g",
    admission=3,
    attempt=2,
    node="n2",
    bound_at=1,
    started_at=2,
    finished_at=3,
    terminating=True,
    terminating_at=4,
    reason="Preempted",
    last_reason="NodeLost",
    last_node="n3",
    exit_code=1,
    signal=9,
    message="was stopped",
    failures=4,
    retry_at=5,
    holder="agent",
    address="10.0.0.1",
    ports=(4_000,),
    devices=("GPU-1",),
    losses=6,
)
_THEN = {
    "phase": PodPhase.BOUND,
    "attempt": 3,
    "node": "n1",
    "bound_at": 7_000,
    "last_reason": "Preempted",
}
_KEPT = {"group_uid", "admission", "last_node", "failures", "retry_at", "holder", "losses"}


@pytest.mark.parametrize("field", PodStatus.__struct_fields__)
def test_a_pod_that_is_bound_keeps_what_does_not_belong_to_its_last_attempt(field: str) -> None:
    group = a_group("g")
    pod = structs.replace(a_pod(group), status=_BEFORE)
    session = assemble(SchedulerConfig()).open(a_snapshot(a_node("n1"), group, pod), 7_000)
    state = session.groups["g"]
    with Statement(session) as statement:
        bound = bind(statement, state, pod, "n1")
        statement.commit()
    before, first, then = (getattr(one, field) for one in (_BEFORE, PodStatus(), bound.status))
    if field != "phase":
        assert before != first
    assert then == _THEN.get(field, before if field in _KEPT else first)
