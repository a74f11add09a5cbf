"""What a person asks for, as a Transaction: create, edit, delete, cancel, suspend, open a gate …

Pure functions over a Reader. Each looks at what is stored, refuses what the rules refuse, with a
sentence, and returns what is to be written, compared against the revisions it saw. None means
that everything already is as asked. The client commits the result to the live store (and asks
anew when somebody else was faster: `Word.CONFLICT`), the simulator's timeline to its own.
"""

from batchq.changes.arrivals import Arrivals, check_same
from batchq.changes.checks import release_check, renew_check, set_check
from batchq.changes.concerns import Overpromised, concerns, overpromised
from batchq.changes.differences import differences
from batchq.changes.editing import (
    apply,
    create,
    delete,
    found_defaults,
    in_order,
    taken,
    update,
)
from batchq.changes.gates import open_all_gates, open_gate
from batchq.changes.podnames import check_apart, rivals
from batchq.changes.records import put_node
from batchq.changes.refusals import explain_refusal
from batchq.changes.tree import first_contradiction, settled
from batchq.changes.verbs import (
    cancel,
    cordon,
    resume,
    set_quota,
    set_stop_policy,
    suspend,
    uncordon,
)

__all__ = [
    "Arrivals",
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
