"""kube-batch's unit tests of its actions, and requests from users and unmerged changes."""

from __future__ import annotations

from typing import Any

from tests.cases.kube_batch_entry import DIFFERS, SAME, Entry, File
from tests.cases.kube_batch_play import result_of


def _played(row: Any, file: File) -> object:
    return result_of(row, file.configs)


ENTRIES = (
    Entry("unit: UT allocate 1", SAME, "", ("0s bind pg1: 2 on n1", "end pg1 Running 2"), _played),
    Entry(
        "unit: UT allocate 2",
        SAME,
        "",
        ("0s bind pg1: 1 on n1, pg2: 1 on n1", "end pg1 Running 1, pg2 Running 1"),
        _played,
    ),
    Entry(
        "unit: UT preempt 1",
        DIFFERS,
        "a group never evicts its own pods, and preempt evicts nothing for pods beyond minMember"
        " (rule: preempt); a third cpu is idle throughout (complaint 950, request 951)",
        ("end pg1 Running 2",),
        _played,
    ),
    Entry(
        "unit: UT preempt 2",
        DIFFERS,
        "groups of equal priority do not evict each other: an array loses pods only to higher "
        "priority, and any other group is evicted whole only for higher priority (rule: victims;"
        " complaints 828 and 894)",
        ("end pg1 Running 2, pg2 InQueue",),
        _played,
    ),
    Entry(
        "unit: UT reclaim 1",
        SAME,
        "among equal victims, the first in the order of uids, not a random one",
        ("0s evict preemptee3 for pg2, by reclaim", "end pg1 Running 2, pg2 InQueue"),
        _played,
    ),
    Entry(
        "request: PR951-1 do not preempt if there are enough idle resources (want 0 evictions)",
        SAME,
        "",
        ("end pg1 InQueue 2",),
        _played,
    ),
    Entry(
        "request: PR951-3 two Jobs on one node (want 2)",
        DIFFERS,
        "groups of equal priority do not evict each other (rule: victims; complaint 828)",
        ("end pg1 Running 2, pg2 InQueue",),
        _played,
    ),
    Entry(
        "request: PR951-4 preempt one task of different job to fit both jobs on one node (want 1)",
        DIFFERS,
        "one victim, as the request wants: the preemptor needs no more than its minMember (rule:"
        " preemptors)",
        ("0s evict preemptee2 for pg2, by preempt", "end pg1 Running 1, pg2 InQueue"),
        _played,
    ),
    Entry(
        "request: PR951-6 between jobs: idle enough for 1 preemptor (want 2; author notes 1 would"
        " be ideal)",
        DIFFERS,
        "groups of equal priority do not evict each other (rule: victims; complaint 828)",
        ("end pg1 Running 3, pg2 InQueue",),
        _played,
    ),
    Entry(
        "request: PR951-7 in job, high task priority preempts low in same job (want 2)",
        SAME,
        "as at HEAD, not as the request wants: the priority of pods orders the pods of one group"
        " only",
        ("end pg1 Running 2",),
        _played,
    ),
    Entry(
        "request: I376: j1 min6 running 6 full, j2 gang 6 (e2e conf) must not preempt",
        SAME,
        "",
        ("end j1 Running 6, j2 InQueue (Unschedulable)",),
        _played,
    ),
    Entry(
        "request: I537: 4 equal tasks, room for 2, min 1",
        SAME,
        "",
        ("0s bind j1: 2 on n1", "end j1 Running 2"),
        _played,
    ),
    Entry(
        "request: I561 shape: 3x32cpu+3x40cpu; job1 6x35 min4 first; job2 6x30 min3",
        DIFFERS,
        "a gang that does not fit holds nothing and does not block other groups (rule: allocate;"
        " complaints 514, 561 and 492)",
        (
            "0s bind job2: 1 on a1 1 on a2 1 on a3 1 on b1 1 on b2 1 on b3",
            "end job1 Pending (ExceedsCapacity), job2 Running 6",
        ),
        _played,
    ),
    Entry(
        "request: I561b: job2 6x20 min4",
        DIFFERS,
        "a gang that does not fit holds nothing and does not block other groups (rule: allocate;"
        " complaints 514, 561 and 492)",
        (
            "0s bind job2: 1 on a1 1 on a2 1 on a3 1 on b1 1 on b2 1 on b3",
            "end job1 Pending (ExceedsCapacity), job2 Running 6",
        ),
        _played,
    ),
)
