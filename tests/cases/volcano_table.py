"""What batchq does with Volcano's cases: one row for each case and row of the file.

The rows are literal: what is expected here does not follow from what the file says, nor from what
batchq does today. docs/peers-cases-volcano.md explains whatever is not `same`.
"""

from __future__ import annotations

from tests.cases.peers import Row, differs, not_applicable, same

TABLE: dict[str, Row] = {
    "ENQ-1": same(phase={"c1/pg1": "InQueue"}),
    "ENQ-3": same(phase={"c1/pg1": "Running"}),
    "ENQ-4": differs(waits={"c1/pg1": "QueueNotFound"}, phase={"c1/pg1": "Pending"}),
    "TWO-1": same(
        waits={"ns1/pga": "WaitingForQuota"}, phase={"ns1/pga": "Pending", "ns1/pgb": "InQueue"}
    ),
    "TWO-2": same(
        waits={"ns1/pga": "WaitingForQuota"}, phase={"ns1/pga": "Pending", "ns1/pgb": "InQueue"}
    ),
    "TWO-3": same(
        waits={"ns1/pga": "WaitingForQuota"}, phase={"ns1/pga": "Pending", "ns1/pgb": "InQueue"}
    ),
    "OVC-1": same(enqueueable=True),
    "OVC-3": same(enqueueable=False, reason="ExceedsCapacity"),
    "OVC-4": differs(enqueueable=False, reason="ExceedsMaxQuota"),
    "RQ-1": same(enqueueable=True),
    "RQ-3": same(enqueueable=True),
    "RQ-4": differs(enqueueable=False, reason="ExceedsMaxQuota"),
    "SLA-1": same(job1_before_job2=True, job1_enqueueable=True),
    "SLA-3": same(job1_before_job2=False, job1_enqueueable=True),
    "PROP-1": same(binds={"ns1/pod3": "n1"}),
    "PROP-3": same(waits={"ns1/pg5": "WaitingForQuota"}),
    "PROP-4": same(waits={"ns1/pg5": "WaitingForQuota"}),
    "PROP-6": differs(binds={"ns1/p2": "n2"}, waits={"ns1/pg3": "WaitingForResources"}),
    "PROP-7": same(first=["ns1/pa1", "ns1/pa2", "ns1/pa3"], second=["ns1/pgb-t1-0"]),
    "ALL-1": same(binds={"c1/p2": "n1"}),
    "ALL-3": same(waits={"c1/pg1": "ExceedsCapacity"}),
    "ALL-4": same(binds={"c1/p1": "n1", "c1/p2": "n1"}),
    "ALL-6": same(binds={"c1/p2": "n1"}, waits={"c1/pg1": "ExceedsCapacity"}),
    "PRE-1": same(binds={"c1/preemptor1": "n1"}),
    "PRE-3": same(
        evict=["c1/preemptee1"],
        then={"c1/preemptor1": "n1"},
        waits={"c1/pg2": "WaitingForPreemption"},
    ),
    "PRE-4": same(
        evict=["c1/preemptee1", "c1/preemptee2"],
        then={"c1/preemptor1": "n1"},
        waits={"c1/pg2": "WaitingForPreemption"},
    ),
    "PRE-5": same(
        evict=["c1/preemptee1"],
        then={"c1/preemptor1": "n1"},
        waits={"c1/pg2": "WaitingForPreemption"},
    ),
    "PRE-6": same(binds={"c1/preemptor1": "n1"}),
    "PRE-7": same(
        evict=["c1/preemptee2"],
        then={"c1/preemptor1": "n1"},
        waits={"c1/pg2": "WaitingForPreemption"},
    ),
    "PRE-8": same(
        evict=["c1/preemptee1"],
        then={"c1/preemptor1": "n1"},
        waits={"c1/pg2": "WaitingForPreemption"},
    ),
    "PRE-9": same(
        evict=["c1/preemptee1"],
        then={"c1/preemptor1": "n1"},
        waits={"c1/pg2": "WaitingForPreemption"},
    ),
    "PRE-10": same(waits={"c1/pg2": "WaitingForResources"}),
    "PRE-12": same(
        evict=["c1/preemptee2"],
        then={"c1/preemptor1": "n2"},
        waits={"c1/pg2": "WaitingForPreemption"},
    ),
    "PRE-13": same(
        evict=["c1/q2-preemptee1"],
        then={"c1/q2-preemptor1": "n1"},
        waits={"c1/pg3": "WaitingForPreemption"},
    ),
    "PRE-15": same(
        evict=["ns1/preemptee1"],
        then={"ns2/preemptor1": "node1"},
        waits={"ns2/pg2": "WaitingForPreemption"},
    ),
    "REC-1": same(
        evict=["c1/preemptee2"],
        then={"c1/preemptor1": "n1"},
        waits={"c1/pg2": "WaitingForPreemption"},
    ),
    "REC-3": same(
        evict=["c1/preemptee1-1"],
        then={"c1/preemptor1": "n1"},
        waits={"c1/pg3": "WaitingForPreemption"},
    ),
    "REC-4": same(waits={"c1/pg2": "WaitingForResources"}),
    "REC-5": same(waits={"c1/pg2": "QueueStopped"}),
    "REC-6": same(waits={"c1/pg2": "QueueStopped"}),
    "REC-7": same(
        evict=["c1/preemptee1-1"],
        then={"c1/preemptor1": "n1"},
        waits={"c1/pg3": "WaitingForPreemption"},
    ),
    "REC-9": same(binds={"c1/preemptor1": "n1"}),
    "BF-1": same(
        order=[
            "pg2-besteffort-task-4",
            "pg2-besteffort-task-3",
            "pg2-besteffort-task-2",
            "pg2-besteffort-task-1",
            "pg1-besteffort-task-4",
            "pg1-besteffort-task-3",
            "pg1-besteffort-task-2",
            "pg1-besteffort-task-1",
        ]
    ),
    "PH-1": same("Running"),
    "PH-3": same("Running"),
    "PH-4": not_applicable,
    "PH-6": differs("Unknown"),
    "PH-7": same("Unknown"),
    "GANG-1": same(True),
    "GANG-3": not_applicable,
    "GANG-4": not_applicable,
    "VV-1": same(["b"]),
    "VV-3": differs([]),
    "VV-4": same([]),
    "VV-6": same(["test-namespace/test-pod"]),
    "CAP-0": same(binds={"ns1/p2": "n1"}),
    "CAP-2": same(
        evict=["ns1/p6"], then={"ns1/p7": "n2"}, waits={"ns1/pg6": "WaitingForPreemption"}
    ),
    "CAP-3": same(
        evict=["ns1/p9"], then={"ns1/p12": "n4"}, waits={"ns1/pg9": "WaitingForPreemption"}
    ),
    "CAP-6": same(waits={"ns1/pg20": "WaitingForResources"}),
    "CAP-9": differs(
        evict=["ns1/p31"], then={"ns1/p32": "n8"}, waits={"ns1/pg32": "WaitingForPreemption"}
    ),
    "CAP-S/1": same(1.0),
    "CAP-S/2": same(1.0),
    "CAP-S/3": same(0.0),
    "CAP-S/4": same(0.5),
    "CAP-S/5": same(1.5),
    "CAP-S/6": same(0.75),
    "CAP-S/7": same(0.75),
    "CAP-S/8": differs("inf"),
    "CE-0": same(binds={"ns1/pod3": "n1"}),
    "CE-2": same(waits={"ns1/pod5-group": "WaitingForQuota"}),
    "CH-0": same(binds={"ns1/p1": "n1"}),
    "CH-4": same(waits={"ns1/pg8": "WaitingForQuota"}),
    "CH-6": same(
        binds={"ns1/pg10-t1-0": "n1"},
        waits={"ns1/pg11": "WaitingForQuota"},
        phase={"ns1/pg10": "Running", "ns1/pg11": "Pending"},
    ),
    "CH-A5": differs(waits={"ns1/pg-reclaimer": "WaitingForResources"}),
    "CH-A6": differs(waits={"ns1/pg-reclaimer": "WaitingForResources"}),
    "CH-A7": same(waits={"ns1/pg-reclaimer": "WaitingForResources"}),
    "HDRF-1": same(
        pg1={"cpu": "5", "memory": "5000000000"},
        pg21={"cpu": "5", "memory": "0"},
        pg22={"cpu": "0", "memory": "5000000000"},
    ),
}
