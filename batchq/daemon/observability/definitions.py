"""Every metric of the daemon: its name, type, labels and help, in one closed list.

Values are in base units: seconds, bytes, cores. Labels are bounded: queues, resources that a node
or a queue names, and words from closed lists; never a group's, a pod's or a user's name.
docs/metrics.md repeats the list for people, and a test compares the two.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Kind = Literal["gauge", "counter", "histogram"]

#: Buckets for how long groups wait: a second to a week.
WAITS_S = (1, 5, 15, 60, 300, 900, 3600, 14_400, 43_200, 86_400, 604_800)
#: Buckets for the parts of a cycle.
WORK_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
#: Buckets for one plugin's part of a session.
SLICES_S = (0.00001, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)


class Measure(Struct, frozen=True, kw_only=True):
    """One metric, without values. `name` is as queries write it, a counter's with its `_total`."""

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


# --- state after the last session, exported only by the leader ----------------------------------

GROUPS = _gauge("groups", "Groups that have not ended, by phase.", "queue", "phase")
WAITING = _gauge(
    "waiting_groups",
    "Groups that wait, by their most fundamental reason: Pending groups, and admitted groups with"
    " a reason.",
    "queue",
    "phase",
    "reason",
)
GATED = _gauge(
    "gated_groups",
    "Pending groups with a closed scheduling gate, whatever else they wait for.",
    "queue",
)
OLDEST_GATED = _gauge(
    "oldest_gated_seconds",
    "Age of the oldest Pending group with a closed scheduling gate.",
    "queue",
)
OLDEST_WAITING = _gauge(
    "oldest_waiting_seconds",
    "Longest wait of a Pending group that competes for capacity; ineligible groups (gated,"
    " suspended, stopped and the like) do not count.",
    "queue",
)
QUEUE_RESOURCE = _gauge(
    "queue_resource",
    "What a queue with all queues below it may use, uses and asks for, by kind.",
    "queue",
    "resource",
    "kind",
)
QUEUE_SHARE = _gauge(
    "queue_share",
    "The queue's use divided by its deserved share, in the resource where that is largest.",
    "queue",
)
QUEUE_WEIGHT = _gauge("queue_weight", "The queue's weight among its siblings.", "queue")
NODES = _gauge("nodes", "Nodes, by whether they take pods.", "state")
CHECK_ACTIVE = _gauge(
    "check_active",
    "1 while the controller of an admission check renews its lease, else 0.",
    "check",
)

# --- state of this process, exported by every scheduler -----------------------------------------

LEADER = _gauge("leader", "1 in the leader, 0 in standby schedulers.")
EPOCH = _gauge("leader_epoch", "The epoch in which this process leads; 0 on a standby.")
REVISION = _gauge("mirror_revision", "The store's revision that the last turn read.")
UNREADABLE = _gauge(
    "unreadable_records",
    "Unreadable records in the store, which stay in place; `batchq doctor` names them.",
    "kind",
)
STORE_AWAY = _gauge("store_unavailable", "1 while the store does not answer, else 0.")
CONFIG = _gauge("config_info", "1, with the hash of the configuration in effect.", "hash")
RELOAD_OK = _gauge(
    "config_last_reload_successful",
    "1 if the last configuration that was read took effect, 0 if it was refused.",
)
BUILD = _gauge("build_info", "1, with the versions of batchq and Python.", "version", "python")
LAST_SESSION = _gauge(
    "last_session_timestamp_seconds",
    "When this process last committed a session, by this machine's clock; 0 before the first.",
)

# --- totals of this process since it started ----------------------------------------------------

SESSIONS = _counter(
    "sessions",
    "Sessions: changed (something was decided), idle, or unavailable (the store did not answer).",
    "result",
)
CYCLE = _histogram("cycle_duration", WORK_S, "Duration of a cycle: reading, deciding and writing.")
ACTION = _histogram("action_duration", WORK_S, "Duration of an action within a session.", "action")
PLUGIN = _histogram(
    "plugin_duration",
    SLICES_S,
    "Duration of a plugin's calls at one extension point within a session, without calls to other"
    " plugins.",
    "plugin",
    "point",
)
ADMISSION_WAIT = _histogram(
    "admission_wait",
    WAITS_S,
    "From a group's submission, or its last roll-back or eviction, to InQueue, gates included.",
    "queue",
)
CHECK_WAIT = _histogram(
    "check_wait",
    WAITS_S,
    "From the reservation of a group's quota to the True of one check; observed at admission.",
    "check",
)
CHECKS_WAIT = _histogram(
    "checks_wait",
    WAITS_S,
    "From the reservation of a group's quota to its admission, for groups with checks.",
    "queue",
)
START_WAIT = _histogram("start_wait", WAITS_S, "From InQueue to the first Running.", "queue")
FINISHED = _counter(
    "finished_groups", "Groups that ended, by phase and reason.", "queue", "phase", "reason"
)
EVICTED_PODS = _counter(
    "evicted_pods",
    "Pods that were evicted, or lost with their node.",
    "queue",
    "action",
    "reason",
)
REQUEUED_GROUPS = _counter(
    "requeued_groups", "Admitted groups that returned to Pending.", "queue", "reason"
)
PLEDGES = _counter("pledges", "Pledges of victims' resources to preemptors.", "queue", "action")
LOST = _counter(
    "lost_resource_seconds",
    "Work lost to preempt and reclaim, as resource x seconds.",
    "queue",
    "resource",
)
INTENTS = _counter("intents", "Decisions of sessions, by kind and result.", "intent", "result")
TRANSACTIONS = _counter(
    "transactions",
    "Transactions by the store's answer: ok, or why it refused (the next session decides again).",
    "word",
)
RELOADS = _counter("config_reloads", "Reloads of the configuration: ok or refused.", "result")
MENDED = _counter(
    "mended_records",
    "Keys and fields that this process repaired while it led: of the ledger, charges, limits and"
    " heads, and keys of a wrong type.",
)
OUTAGES = _counter("store_outages", "How often the store stopped answering.")
OUTAGE_SECONDS = _counter(
    "store_unavailable_seconds", "Total time for which the store did not answer."
)

#: All metrics, in the order of docs/metrics.md.
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
