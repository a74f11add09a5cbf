"""What a session does, one file per verb; see actions/README.md."""

from __future__ import annotations

from batchq.core.session.session import Action
from batchq_actions.allocate import Allocate
from batchq_actions.backfill import Backfill
from batchq_actions.enqueue import Enqueue
from batchq_actions.preempt import Preempt
from batchq_actions.reclaim import Reclaim

#: name -> class: the whole registry, in the open.
BUILTIN_ACTIONS: dict[str, type[Action]] = {
    Enqueue.name: Enqueue,
    Allocate.name: Allocate,
    Reclaim.name: Reclaim,
    Preempt.name: Preempt,
    Backfill.name: Backfill,
}
