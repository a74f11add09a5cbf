"""What a person asks for, as a Transaction: create, edit, delete, cancel, suspend, open a gate …

Pure functions over a Reader. Each looks at what is stored, refuses what the rules refuse, with a
sentence, and returns what is to be written, compared against the revisions it saw. None means
that everything already is as asked. The client commits the result to the live store (and asks
anew when somebody else was faster: `Word.CONFLICT`), the simulator's timeline to its own.
"""

from batchq.changes.edits import (
    apply,
    create,
    delete,
    differences,
    found_defaults,
    in_order,
    taken,
    update,
)
from batchq.changes.groups import (
    NewGroups,
    check_apart,
    check_same,
    open_all_gates,
    open_gate,
    rivals,
)
from batchq.changes.object_writes import put_node
from batchq.changes.queue_rules import (
    Overpromised,
    concerns,
    first_contradiction,
    overpromised,
    settled,
)
from batchq.changes.refusals import explain_refusal
from batchq.changes.verbs import (
    cancel,
    cordon,
    release_check,
    renew_check,
    resume,
    set_check,
    set_quota,
    set_stop_policy,
    suspend,
    uncordon,
)

__all__ = [
    "NewGroups",
    "Overpromised",
    "apply",
    "cancel",
    "check_apart",
    "check_same",
    "concerns",
    "cordon",
    "create",
    "delete",
    "differences",
    "explain_refusal",
    "first_contradiction",
    "found_defaults",
    "in_order",
    "open_all_gates",
    "open_gate",
    "overpromised",
    "put_node",
    "release_check",
    "renew_check",
    "resume",
    "rivals",
    "set_check",
    "set_quota",
    "set_stop_policy",
    "settled",
    "suspend",
    "taken",
    "uncordon",
    "update",
]
