"""The probes D of kube-batch's real code: orders, nodes, readiness, and results of evictions."""

from __future__ import annotations

from typing import Any

from tests.cases.kube_batch_entry import DIFFERS, SAME, Entry, File
from tests.cases.kube_batch_play import result_of


def _played(row: Any, file: File) -> object:
    return result_of(row, file.configs)


ENTRIES = (
    Entry(
        "probe: D01 DRF paper: 9cpu/18Gi A<1,4> B<3,1>",
        SAME,
        "",
        ("0s bind a: 3 on n1, b: 2 on n1", "end a Running 3, b Running 2"),
        _played,
    ),
    Entry(
        "probe: D02 3 queues w1:2:3 on 12cpu/12Gi",
        SAME,
        "",
        ("0s bind a: 2 on n1, b: 4 on n1, c: 6 on n1", "end a Running 2, b Running 4, c Running 6"),
        _played,
    ),
    Entry(
        "probe: D04 FCFS by job creation within queue (gang jobs of 4 on 4cpu)",
        SAME,
        "",
        ("0s bind b: 4 on n1", "end a InQueue (Unschedulable), b Running 4"),
        _played,
    ),
    Entry(
        "probe: D04b tie creation -> UID",
        SAME,
        "",
        ("0s bind a: 4 on n1", "end a Running 4, b InQueue (Unschedulable)"),
        _played,
    ),
    Entry(
        "probe: D06 higher priority ready job keeps winning over lower unready (priority tier"
        " first)",
        SAME,
        "",
        ("0s bind a: 4 on n1", "end a Running 4, b InQueue (Unschedulable)"),
        _played,
    ),
    Entry(
        "probe: D07 gang order: unready job before ready job, same priority",
        SAME,
        "",
        ("0s bind a: 2 on n1, b: 3 on n1", "end a Running 2, b Running 3"),
        _played,
    ),
    Entry(
        "probe: D09 mostrequested packs",
        SAME,
        "",
        ("0s bind a: 2 on n2", "end a Running 2, r Running 1"),
        _played,
    ),
    Entry(
        "probe: D09b leastrequested default spreads away",
        SAME,
        "",
        ("0s bind a: 1 on n1", "end a Running 1, r Running 1"),
        _played,
    ),
    Entry(
        "probe: D10b cordoned/notready/tainted nodes skipped",
        SAME,
        "",
        ("0s bind a: 1 on n4", "end a Running 1"),
        _played,
    ),
    Entry("probe: D10c max pods", SAME, "", ("0s bind a: 2 on n1", "end a Running 2"), _played),
    Entry(
        "probe: D11 backfill BE gang min2",
        SAME,
        "",
        ("0s bind a: 2 on n1", "end a Running 2"),
        _played,
    ),
    Entry(
        "probe: D11b BE min3 with 2 pods",
        SAME,
        "with the reason Misconfigured",
        ("end a Pending (Misconfigured)",),
        _played,
    ),
    Entry(
        "probe: D12 gang counts Succeeded as ready: min2, 1 succeeded, 1 pending",
        SAME,
        "and it is Running, not Pending",
        ("0s bind a: 1 on n1", "end a Running 1"),
        _played,
    ),
    Entry(
        "probe: D12b gang does not count Failed",
        DIFFERS,
        "a full gang fails at its first final failure (rule: lifecycle)",
        ("0s finish a", "end a Failed (RetriesSpent)"),
        _played,
    ),
    Entry(
        "probe: D13b request 4010m does not fit 4000m",
        SAME,
        "",
        ("end a Pending (ExceedsCapacity)",),
        _played,
    ),
    Entry(
        "probe: D13c eps overcommit accumulates? 4 x 1009m on 4000m",
        DIFFERS,
        "no epsilon (rule: objects)",
        ("0s bind a: 3 on n1", "end a Running 3"),
        _played,
    ),
    Entry(
        "probe: D15 preempt does not cross queues",
        DIFFERS,
        "each queue deserves half a cpu, and the preemptor's queue would end above that: queues "
        "with equal shares do not evict each other, whatever the priorities (rule: reclaim; "
        "complaint 565)",
        ("end b InQueue (Unschedulable), v Running 1",),
        _played,
    ),
    Entry(
        "probe: D15b preempt only (no reclaim) does not cross queues",
        SAME,
        "",
        ("end b InQueue (Unschedulable), v Running 1",),
        _played,
    ),
    Entry(
        "probe: D17 reclaim single-tier: victim queue at deserved not reclaimed",
        SAME,
        "",
        ("end a Running 2, b Running 2",),
        _played,
    ),
    Entry(
        "probe: D17b reclaim single-tier: q1 3 of 4, q2 1 pending 2",
        SAME,
        "",
        ("0s evict a3 for b, by reclaim", "1s bind b: 1 on n1", "end a Running 2, b Running 2"),
        _played,
    ),
    Entry(
        "probe: D20 gang discard keeps all: high gang 2 needs 2, victims on two nodes",
        SAME,
        "",
        (
            "0s evict a1 c1 for b, by preempt",
            "0s requeue a (Preempted)",
            "1s bind b: 1 on n1 1 on n2",
            "end a InQueue (Unschedulable), b Running 2",
        ),
        _played,
    ),
    Entry(
        "probe: D21 preempt job with running + pending beyond min: elastic growth preempts lower",
        DIFFERS,
        "nothing is evicted for pods beyond minMember within a queue (rule: preemptors)",
        ("end a Running 3, b Running 1",),
        _played,
    ),
    Entry(
        "probe: D18 stable reclaim multi-round single tier cpu+mem grace1",
        SAME,
        "",
        (
            "0s evict a32 for b, by reclaim",
            "1s bind b: 1 on n3",
            "1s evict a31 a22 for b, by reclaim",
            "2s bind b: 1 on n2 1 on n3",
            "end a Running 3, b Running 3",
        ),
        _played,
    ),
    Entry(
        "probe: D18 stable reclaim multi-round single tier cpu+mem grace5",
        SAME,
        "",
        (
            "0s evict a32 for b, by reclaim",
            "5s bind b: 1 on n3",
            "5s evict a31 a22 for b, by reclaim",
            "10s bind b: 1 on n2 1 on n3",
            "end a Running 3, b Running 3",
        ),
        _played,
    ),
)
