"""What batchq does with Kueue's cases: one row for each case, variant and row of the file.

The rows are literal: what is expected here does not follow from what the file says, nor from what
batchq does today. docs/peers-cases-kueue.md explains whatever is not `same`.
"""

from __future__ import annotations

from tests.cases.peers import Row, differs, not_applicable, same

#: K36 without priority between queues, by eviction or by creation: who is deserved something
#: first, then the older head.
_BY_EVICTION = [
    "old",
    "recently_evicted",
    "new",
    "new_high_pri",
    "old_borrowing",
    "evicted_borrowing",
    "high_pri_borrowing",
    "new_borrowing",
    "high_pri_borrowing_more",
]
_BY_CREATION = ["recently_evicted", "old", *_BY_EVICTION[2:]]

TABLE: dict[str, Row] = {
    "K01": same(
        preempt={"z-low": "preempt"}, pending={"in": "WaitingForPreemption"}, starts=["in"]
    ),
    "K03": same(pending={"in": "WaitingForQuota"}),
    "K04": same(
        preempt={"y-mid": "preempt"}, pending={"in": "WaitingForPreemption"}, starts=["in"]
    ),
    "K06": same(
        preempt={"c2-mid": "reclaim"}, pending={"in": "WaitingForPreemption"}, starts=["in"]
    ),
    "K07": same(pending={"in": "WaitingForQuota"}),
    "K09": same(
        preempt={"c1-low": "preempt", "c2-low": "reclaim"},
        pending={"in": "WaitingForPreemption"},
        starts=["in"],
    ),
    "K10/1": same(
        preempt={"a-best-effort-low": "reclaim"},
        pending={"in": "WaitingForPreemption"},
        starts=["in"],
    ),
    "K10/2": same(pending={"in": "WaitingForQuota"}),
    "K12": same(
        preempt={"lend2-mid": "reclaim"}, pending={"in": "WaitingForPreemption"}, starts=["in"]
    ),
    "K13": same(pending={"in": "ExceedsMaxQuota"}),
    "K15": same(
        preempt={"admitted2": "reclaim"}, pending={"in": "WaitingForPreemption"}, starts=["in"]
    ),
    "K16": same(
        preempt={"admitted2": "reclaim"}, pending={"in": "WaitingForPreemption"}, starts=["in"]
    ),
    "K18": same(
        preempt={"b1": "reclaim"},
        pending={"c-incoming": "WaitingForPreemption"},
        starts=["c-incoming"],
    ),
    "K19": same(pending={"a-incoming": "WaitingForQuota"}),
    "K21/1": differs(pending={"a-incoming": "WaitingForQuota"}),
    "K21/2": same(pending={"b-incoming": "WaitingForQuota"}),
    "K22/1": same(pending={"new": "WaitingForQuota"}),
    "K22/2": same(pending={"new": "ExceedsMaxQuota"}),
    "K24/1": same(admit=["wl1", "wl2"]),
    "K24/2": same(admit=["wl1"], pending={"wl2": "WaitingForQuota"}),
    "K25/1": same(admit=["b1-pending"], pending={"a2-pending": "WaitingForQuota"}),
    "K25/2": same(pending={"a2-pending": "WaitingForQuota", "b1-pending": "WaitingForQuota"}),
    "K25/3": same(pending={"a2-pending": "WaitingForQuota", "b1-pending": "WaitingForQuota"}),
    "K27": differs(
        preempt={"a1": "preempt"},
        pending={"incoming": "WaitingForPreemption"},
        starts=["incoming"],
    ),
    "K28": same(admit=["guaranteed"], pending={"best-effort": "WaitingForQuota"}),
    "K30": differs(
        preempt={"wl-rest-admitted": "reclaim"},
        pending={"wl-hero": "WaitingForQuota", "wl-tiny-pending": "WaitingForPreemption"},
        starts=["wl-tiny-pending", "wl-hero"],
    ),
    "K31": differs(admit=["c1"], pending={"b1": "WaitingForQuota"}),
    "K33/1": same(order=["w2", "w1"]),
    "K33/2": same(order=["w1", "w2"]),
    "K33/3": same(order=["w2", "w1"]),
    "K33/4": differs(order=["w2", "w1"]),
    "K33/5": same(order=["w2", "w1"]),
    "K33/6": same(order=["a", "b"]),
    "K34/BestEffortFIFO/1": not_applicable,
    "K34/BestEffortFIFO/2": same(
        preempt={"quick": "preempt", "slow": "preempt"},
        pending={"head": "WaitingForPreemption"},
        starts=["head"],
    ),
    "K34/BestEffortFIFO/3": not_applicable,
    "K34/BestEffortFIFO/4": not_applicable,
    "K34/BestEffortFIFO/5": not_applicable,
    "K34/BestEffortFIFO/6": not_applicable,
    "K34/BestEffortFIFO/7": not_applicable,
    "K34/BestEffortFIFO/8": same(admit=["follower"], pending={"head": "WaitingForQuota"}),
    "K34/BestEffortFIFO/9": same(admit=["follower"], pending={"head": "WaitingForQuota"}),
    "K34/BestEffortFIFO/10": not_applicable,
    "K34/StrictFIFO/1": not_applicable,
    "K34/StrictFIFO/2": same(pending={"follower": "WaitingForTurn", "head": "WaitingForQuota"}),
    "K34/both/1": not_applicable,
    "K34/bulk_example": same(
        admit=["cpu-1", "cpu-2"],
        pending={
            "gpu-1": "WaitingForQuota",
            "gpu-2": "WaitingForQuota",
            "gpu-3": "WaitingForQuota",
        },
        starts=["gpu-1", "gpu-2", "gpu-3", "gpu-4"],
    ),
    "K36/1": differs(order=_BY_EVICTION),
    "K36/2": differs(order=_BY_CREATION),
    "K36/3": same(order=_BY_EVICTION),
    "K36/4": same(order=_BY_CREATION),
    "K37/evict": differs(
        left="CheckRetry", checks={"check-1": "False", "check-2": "Ready"}, asked_again=1
    ),
    "K37/delay_rules/1": same(requeue_at=10),
    "K37/delay_rules/2": same(requeue_at=10),
    "K37/delay_rules/3": same(requeue_at=15),
    "K37/wake/1": same(in_line=False, wakes_at=5),
    "K37/wake/2": same(in_line=True),
    "K39/rows/1": same(admitted=True),
    "K39/rows/2": same(admitted=False),
    "K39/rows/3": same(admitted=True),
    "K39/rows/4": same(admitted=False),
    "K39/rows/5": same(admitted=True),
    "K39/rows/6": same(admitted=False, left="CheckRetry"),
    "K39/rows/7": differs(admitted=False, left="Failed, CheckRejected"),
    "K39/rows/8": differs(checks={"a": "Ready"}, admitted=True),
    "K39/rows/9": same(checks={"a": "Ready"}, admitted=True),
    "K40/rows/1": not_applicable,
    "K40/rows/2": not_applicable,
    "K40/sync/1": same(checks={"ac1": "Ready", "ac2": "Pending"}),
}
