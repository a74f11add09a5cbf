"""User requests as Transactions: create, edit, delete, cancel, suspend, open a gate …

Pure functions over a Reader. Each reads what is stored, refuses with a sentence what the rules
forbid, and returns what to write, compared with the revisions it read; None if there is nothing to
change. The client commits the result to the live store (and repeats the request after a concurrent
change: `Word.CONFLICT`), the simulator's timeline to its own.
"""

from batchq.client.changes.edits import (
    already_exists,
    apply,
    create,
    delete,
    differences,
    found_defaults,
    in_order,
    update,
)
from batchq.client.changes.groups import (
    NewGroups,
    check_apart,
    check_same,
    open_all_gates,
    open_gate,
    rivals,
)
from batchq.client.changes.object_writes import explain_refusal, put_node
from batchq.client.changes.queue_rules import (
    Overpromised,
    first_contradiction,
    overpromised,
    settled,
    warnings_of,
)
from batchq.client.changes.verbs import (
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
    "already_exists",
    "apply",
    "cancel",
    "check_apart",
    "check_same",
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
    "uncordon",
    "update",
    "warnings_of",
]
