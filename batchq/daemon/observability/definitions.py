"""Every metric of the daemon: its name, type, labels and what it says, in one closed list.

Everything is in base units: seconds, bytes, cores. Labels are bounded: queues, resources that a
node or a queue names, and words from closed lists; never a group's, a pod's or a user's name.
docs/metrics.md has the same list for people, and a test compares the two.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Kind = Literal["gauge", "counter", "histogram"]

#: From a second to a week: how long groups wait.
WAITS_S = (1, 5, 15, 60, 300, 900, 3600, 14_400, 43_200, 86_400, 604_800)
#: How long a piece of a cycle takes.
WORK_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
#: What one plugin takes of a session.
SLICES_S = (0.00001, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)


class Measure(Struct, frozen=True, kw_only=True):
    """One metric, without values. `name` is what queries name, a counter's with its `_total`."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _gauge(name: str, help: str, *labels: str) -> Measure:
    return Measure(name=f"batchq_{name}", kind="gauge", help=help, labels=labels)


def _counter(name: str, help: str, *labels: str) -> Measure:
    return Measure(name=f"batchq_{name}_total", kind="counter", help=help, labels=labels)


def _histogram(name: str, buckets: tuple[float, ...], help: str, *labels: str) -> Measure:
    name = f"batchq_{name}_seconds"
    return Measure(name=name, kind="histogram", help=help, labels=labels, buckets=buckets)


# --- how things stand after the last session, told by the leader alone --------------------------

GROUPS = _gauge("groups", "Groups that have not ended, by phase.", "queue", "phase")
WAITING = _gauge(
    "waiting_groups",
    "Groups that wait, by the most fundamental reason; Pending ones, and admitted ones that say"
    " what they lack.",
    "queue",
    "phase",
    "reason",
)
GATED = _gauge(
    "gated_groups",
    "Pending groups with a scheduling gate that is closed, whatever else they wait for.",
    "queue",
)
OLDEST_GATED = _gauge(
    "oldest_gated_seconds",
    "For how long the one of them that was submitted first has existed.",
    "queue",
)
OLDEST_WAITING = _gauge(
    "oldest_waiting_seconds",
    "For how long the Pending group that has stood in line for longest has been waiting; those"
    " that stand aside (gated, suspended, stopped and the like) do not count.",
    "queue",
)
QUEUE_RESOURCE = _gauge(
    "queue_resource",
    "What a queue with all queues below it may have, holds and asks for, by kind.",
    "queue",
    "resource",
    "kind",
)
QUEUE_SHARE = _gauge(
    "queue_share",
    "What the queue holds of what it deserves by its weight, in the resource where that is most.",
    "queue",
)
QUEUE_WEIGHT = _gauge("queue_weight", "The queue's weight among its siblings.", "queue")
NODES = _gauge("nodes", "Nodes, by whether pods may come.", "state")
CHECK_ACTIVE = _gauge(
    "check_active",
    "1 while the controller of an admission check renews its lease, else 0.",
    "check",
)

# --- how this process stands, told by every scheduler -------------------------------------------

LEADER = _gauge("leader", "1 in the scheduler that leads, 0 in those that stand by.")
EPOCH = _gauge("leader_epoch", "The epoch in which this process leads; 0 if it does not.")
REVISION = _gauge("mirror_revision", "The store's revision that the last turn has seen.")
UNREADABLE = _gauge(
    "unreadable_records",
    "Records in the store that cannot be read, and are left where they are; `batchq doctor` names"
    " them.",
    "kind",
)
STORE_AWAY = _gauge("store_unavailable", "1 while the store does not answer, else 0.")
CONFIG = _gauge("config_info", "1, with the hash of the configuration that counts.", "hash")
RELOAD_OK = _gauge(
    "config_last_reload_successful",
    "1 if the configuration that was read last counts, 0 if it was refused.",
)
BUILD = _gauge("build_info", "1, with the versions of batchq and Python.", "version", "python")
LAST_SESSION = _gauge(
    "last_session_timestamp_seconds",
    "When the last session of this process was committed, by this machine's clock; 0 before the"
    " first.",
)

# --- what has happened in this process since it started -----------------------------------------

SESSIONS = _counter(
    "sessions",
    "Sessions: changed (something was decided), idle, or unavailable (the store did not answer).",
    "result",
)
CYCLE = _histogram("cycle_duration", WORK_S, "Reading, deciding and writing, together.")
ACTION = _histogram("action_duration", WORK_S, "What an action takes of a session.", "action")
PLUGIN = _histogram(
    "plugin_duration",
    SLICES_S,
    "What a plugin takes of a session at one extension point, all calls together, without what it"
    " asks of other plugins.",
    "plugin",
    "point",
)
ADMISSION_WAIT = _histogram(
    "admission_wait",
    WAITS_S,
    "From a group's submission, or its last roll-back or eviction, to InQueue, gates and all.",
    "queue",
)
CHECK_WAIT = _histogram(
    "check_wait",
    WAITS_S,
    "From the reservation of a group's quota to the True of one check; seen at its admission.",
    "check",
)
CHECKS_WAIT = _histogram(
    "checks_wait",
    WAITS_S,
    "From the reservation of a group's quota to its admission, of groups with checks.",
    "queue",
)
START_WAIT = _histogram("start_wait", WAITS_S, "From InQueue to the first Running.", "queue")
FINISHED = _counter("finished_groups", "Groups that ended, by how.", "queue", "phase", "reason")
EVICTED_PODS = _counter(
    "evicted_pods",
    "Pods that were told to stop for others or for want of something, or lost with their node.",
    "queue",
    "action",
    "reason",
)
REQUEUED_GROUPS = _counter(
    "requeued_groups", "Admitted groups that went back to Pending.", "queue", "reason"
)
PLEDGES = _counter("pledges", "Claimants that were promised the room of others.", "queue", "action")
LOST = _counter(
    "lost_resource_seconds",
    "Work that preempt and reclaim have thrown away, as resource x seconds.",
    "queue",
    "resource",
)
INTENTS = _counter("intents", "What sessions decided, and what became of it.", "intent", "result")
TRANSACTIONS = _counter(
    "transactions",
    "Transactions by the store's answer: ok, or why it refused (and the next session decides"
    " anew).",
    "word",
)
RELOADS = _counter("config_reloads", "Configurations that were read anew: ok or refused.", "result")
MENDED = _counter(
    "mended_records",
    "Keys and fields that could not be read, and were made anew by this process while it led: of"
    " ledger, charges, limits and heads, and keys of another type.",
)
OUTAGES = _counter("store_outages", "How often the store stopped answering.")
OUTAGE_SECONDS = _counter("store_unavailable_seconds", "For how long it did not, in all.")

#: All of them, in the order in which docs/metrics.md tells of them.
MEASURES: tuple[Measure, ...] = (
    GROUPS,
    WAITING,
    GATED,
    OLDEST_GATED,
    OLDEST_WAITING,
    QUEUE_RESOURCE,
    QUEUE_SHARE,
    QUEUE_WEIGHT,
    NODES,
    CHECK_ACTIVE,
    ADMISSION_WAIT,
    CHECK_WAIT,
    CHECKS_WAIT,
    START_WAIT,
    FINISHED,
    EVICTED_PODS,
    REQUEUED_GROUPS,
    PLEDGES,
    LOST,
    SESSIONS,
    CYCLE,
    ACTION,
    PLUGIN,
    INTENTS,
    TRANSACTIONS,
    LAST_SESSION,
    LEADER,
    EPOCH,
    REVISION,
    UNREADABLE,
    MENDED,
    STORE_AWAY,
    OUTAGES,
    OUTAGE_SECONDS,
    CONFIG,
    RELOADS,
    RELOAD_OK,
    BUILD,
)
