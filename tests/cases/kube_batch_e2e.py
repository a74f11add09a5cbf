"""kube-batch's end-to-end tests, and simulations of them on its real code.

If the file contains the simulation of a test, both use the cluster of the simulation; the other
tests are written here in the form of the file. R, the number of slots of one core, is 6.
"""

from __future__ import annotations

from typing import Any

import yaml

from tests.cases.kube_batch_entry import DIFFERS, NOT_APPLICABLE, SAME, Entry, File, Play
from tests.cases.kube_batch_play import result_of

_CLUSTER = """
nodes: {n1: {cpu: 2, mem: 4Gi}, n2: {cpu: 2, mem: 4Gi}, n3: {cpu: 2, mem: 4Gi}}
queues: {(default): {weight: 1}}
priorityClasses: {master-pri: 100, worker-pri: 1}
config: e2e
"""

#: Task -> the pods of it that the gang needs; only the tests state it, not the simulations.
_LEAST = {"E2E TaskPriority": {"multi-pod-job": {"t": 1, "t2": 2}}}

_WRITTEN = yaml.safe_load("""
Schedule Multiple Jobs:
  groups:
  - {name: test/mqj-1, queue: (default), min: 2}
  - {name: test/mqj-2, queue: (default), min: 2, created: 1}
  - {name: test/mqj-3, queue: (default), min: 2, created: 2}
  pods:
  - {group: mqj-1, name: 'test/mqj-1-{1..6}', cpu: 1, phase: Pending, succeeds_after_rounds: 1}
  - {group: mqj-2, name: 'test/mqj-2-{1..6}', cpu: 1, phase: Pending, succeeds_after_rounds: 1}
  - {group: mqj-3, name: 'test/mqj-3-{1..6}', cpu: 1, phase: Pending, succeeds_after_rounds: 1}
Preemption:
  groups:
  - {name: test/preemptee-qj, queue: (default), min: 1, priorityClass: worker-pri}
  - {name: test/preemptor-qj, queue: (default), min: 1, priorityClass: master-pri, add_at_round: 2}
  pods:
  - {group: preemptee-qj, name: 'test/preemptee-qj-{1..6}', cpu: 1, phase: Pending}
  - {group: preemptor-qj, name: 'test/preemptor-qj-{1..6}', cpu: 1, phase: Pending}
Statement:
  groups:
  - {name: test/st-qj-1, queue: (default), min: 6}
  - {name: test/st-qj-2, queue: (default), min: 6, add_at_round: 2}
  pods:
  - {group: st-qj-1, name: 'test/st-qj-1-{1..6}', cpu: 1, phase: Pending}
  - {group: st-qj-2, name: 'test/st-qj-2-{1..6}', cpu: 1, phase: Pending}
Try to fit unassigned task with different resource requests in one loop:
  nodes: {n1: {cpu: 2500m, mem: 4Gi}, n2: {cpu: 2500m, mem: 4Gi}, n3: {cpu: 2500m, mem: 4Gi}}
  groups:
  - {name: test/diff-job, queue: (default), min: 1, add_at_round: 2}
  pods:
  - {group: '(shadow, owner rs-1)', name: 'test/rs-1-{1..5}', cpu: 1, phase: Pending}
  - {group: diff-job, name: test/diff-1, cpu: 1500m, phase: Pending, priority: 100}
  - {group: diff-job, name: test/diff-2, cpu: 500m, phase: Pending, priority: 1}
'Predicates: NodeAffinity':
  nodes:
    n1: {cpu: 2, mem: 4Gi, labels: {name: first}}
    n2: {cpu: 2, mem: 4Gi, labels: {name: chosen}}
  groups:
  - {name: test/na-job, queue: (default), min: 1}
  pods:
  - {group: na-job, name: test/na-job-1, cpu: 1, phase: Pending, nodeSelector: {name: chosen}}
'Predicates: Taints/Tolerations':
  nodes: {n1: {cpu: 2, mem: 4Gi, taints: [test-taint-key]}}
  untaint_at_round: 6
  groups:
  - {name: test/tt-job, queue: (default), min: 1}
  pods:
  - {group: tt-job, name: test/tt-job-1, cpu: 1, phase: Pending}
'NodeOrder: Least Requested':
  groups:
  - {name: test/pinned, queue: (default), min: 4}
  - {name: test/free, queue: (default), min: 1, created: 1}
  pods:
  - {group: pinned, name: 'test/pinned-0-{1..2}', cpu: 500m, node: n1, phase: Running}
  - {group: pinned, name: 'test/pinned-1-{1..2}', cpu: 500m, node: n2, phase: Running}
  - {group: free, name: test/free-1, cpu: 1, phase: Pending}
""")


def simulated(name: str) -> Play:
    """Return the cluster of the file's simulation of this name."""

    def played(row: Any, file: File) -> object:
        case = file.cases[f"simulation: {name}"]
        return result_of({**case, "least": _LEAST.get(name, {})}, file.configs)

    return played


def written(name: str) -> Play:
    """Return the cluster that is written above."""

    def played(row: Any, file: File) -> object:
        return result_of({**yaml.safe_load(_CLUSTER), **_WRITTEN[name]}, file.configs)

    return played


CLAIM = (
    "a preemptor evicts what its minMember needs, and nothing for pods beyond it (rule: "
    "preemptors); kube-batch continues while the group has pods (request 951)"
)

SPARE = (
    "pods without a group form a normal group here, with a lower priority than the preemptor and"
    " with pods beyond minMember (rule: victims); kube-batch evicts nothing from such generated "
    "groups, so the job waits until their owner deletes them"
)

_SIMULATIONS = (
    Entry(
        "simulation: E2E Schedule Job",
        SAME,
        "",
        ("0s bind qj-1: 2 on n1 2 on n2 2 on n3", "1s finish qj-1", "end qj-1 Completed"),
        simulated("E2E Schedule Job"),
    ),
    Entry(
        "simulation: E2E Gang scheduling",
        SAME,
        "",
        (
            "0s bind rs-1: 2 on n1 1 on n2 1 on n3",
            "4s evict rs-1-t-0 rs-1-t-1 rs-1-t-2 rs-1-t-3 (Cancelled)",
            "5s bind gang-qj: 2 on n1 1 on n2 1 on n3",
            "6s finish gang-qj",
            "end gang-qj Completed",
        ),
        simulated("E2E Gang scheduling"),
    ),
    Entry(
        "simulation: E2E Gang Full Occupied",
        SAME,
        "",
        (
            "0s bind gang-fq-qj1: 2 on n1 2 on n2 2 on n3",
            "end gang-fq-qj1 Running 6, gang-fq-qj2 InQueue (Unschedulable)",
        ),
        simulated("E2E Gang Full Occupied"),
    ),
    Entry(
        "simulation: E2E Multiple Preemption",
        DIFFERS,
        CLAIM,
        (
            "0s bind preemptee-qj: 2 on n1 2 on n2 2 on n3",
            "1s evict preemptee-qj-t-5 for preemptor-qj1, by preempt",
            "1s evict preemptee-qj-t-4 for preemptor-qj2, by preempt",
            "2s bind preemptor-qj1: 1 on n3, preemptor-qj2: 1 on n2",
            "end preemptee-qj Running 4, preemptor-qj1 Running 1, preemptor-qj2 Running 1",
        ),
        simulated("E2E Multiple Preemption"),
    ),
    Entry(
        "simulation: E2E BestEffort",
        SAME,
        "",
        ("0s bind test: 5 on n1 2 on n2 2 on n3", "end test Running 9"),
        simulated("E2E BestEffort"),
    ),
    Entry(
        "simulation: E2E TaskPriority",
        SAME,
        "",
        (
            "0s bind rs-1: 1 on n1 1 on n2 1 on n3",
            "1s bind multi-pod-job: 1 on n1 1 on n2 1 on n3",
            "end multi-pod-job Running 3, rs-1 Running 3",
        ),
        simulated("E2E TaskPriority"),
    ),
    Entry(
        "simulation: E2E Diff resource (nodes exactly 2cpu)",
        SAME,
        "the first of its tasks is its minimum, and no node has capacity for it",
        (
            "0s bind rs-1: 2 on n1 2 on n2 1 on n3",
            "end multi-task-diff-resource-job InQueue (Unschedulable), rs-1 Running 5",
        ),
        simulated("E2E Diff resource (nodes exactly 2cpu)"),
    ),
    Entry(
        "simulation: E2E Job Priority",
        DIFFERS,
        SPARE,
        (
            "0s bind rs-1: 2 on n1 2 on n2 2 on n3",
            "1s evict rs-1-t-5 rs-1-t-4 rs-1-t-3 rs-1-t-2 for pri-job-2, by preempt",
            "2s bind pri-job-2: 1 on n1 1 on n2 2 on n3",
            "3s evict rs-1-t-0 rs-1-t-1 (Cancelled)",
            "4s bind pri-job-2: 1 on n1 1 on n2",
            "end pri-job-1 InQueue (Unschedulable), pri-job-2 Running 6",
        ),
        simulated("E2E Job Priority"),
    ),
    Entry(
        "simulation: E2E Proportion",
        DIFFERS,
        "a group that fits evicts nothing; kube-batch first reclaims the other queue's pod "
        "(rule: preemptors)",
        (
            "0s bind q2-job-1: 1 on n1",
            "1s bind q1-job-1: 5 on n1 4 on n2 6 on n3",
            "3s bind q1-job-2: 1 on n3",
            "end q1-job-1 Running 15, q1-job-2 Running 1, q2-job-1 Running 1",
        ),
        simulated("E2E Proportion"),
    ),
    Entry(
        "simulation: E2E Reclaim (cpu+mem)",
        DIFFERS,
        "three pods are reclaimed; then both queues have what they deserve, and the evictions "
        "stop; kube-batch evicts forever (rule: reclaim; complaints 565 and 770)",
        (
            "0s bind q1-qj-1: 2 on n1 2 on n2 2 on n3",
            "2s evict q1-qj-1-t-5 for q2-qj-2, by reclaim",
            "3s bind q2-qj-2: 1 on n3",
            "3s evict q1-qj-1-t-4 q1-qj-1-t-3 for q2-qj-2, by reclaim",
            "4s bind q2-qj-2: 1 on n1 1 on n2",
            "end q1-qj-1 Running 3, q2-qj-2 Running 3",
        ),
        simulated("E2E Reclaim (cpu+mem)"),
    ),
    Entry(
        "simulation: E2E X reclaim 1 pod, grace 5 rounds: over-eviction",
        DIFFERS,
        "one pod causes one eviction: its pledge is stored, and while the victim terminates no "
        "other victim is evicted (rule: pledge; complaint 441)",
        (
            "0s bind q1-qj-1: 2 on n1 2 on n2 2 on n3",
            "2s evict q1-qj-1-t-5 for q2-qj-2, by reclaim",
            "7s bind q2-qj-2: 1 on n3",
            "end q1-qj-1 Running 5, q2-qj-2 Running 1",
        ),
        simulated("E2E X reclaim 1 pod, grace 5 rounds: over-eviction"),
    ),
    Entry(
        "simulation: E2E X preempt gang 3, grace 5 rounds",
        SAME,
        "",
        (
            "0s bind q1-qj-1: 2 on n1 2 on n2 2 on n3",
            "2s evict q1-qj-1-t-5 q1-qj-1-t-4 q1-qj-1-t-3 for q1-qj-2, by preempt",
            "7s bind q1-qj-2: 1 on n1 1 on n2 1 on n3",
            "end q1-qj-1 Running 3, q1-qj-2 Running 3",
        ),
        simulated("E2E X preempt gang 3, grace 5 rounds"),
    ),
)

_TESTS = (
    Entry(
        "e2e: Schedule Job",
        SAME,
        "",
        ("0s bind qj-1: 2 on n1 2 on n2 2 on n3", "1s finish qj-1", "end qj-1 Completed"),
        simulated("E2E Schedule Job"),
    ),
    Entry(
        "e2e: Schedule Multiple Jobs",
        SAME,
        "",
        (
            "0s bind mqj-1: 1 on n1 1 on n2, mqj-2: 1 on n1 1 on n3, mqj-3: 1 on n2 1 on n3",
            "1s bind mqj-1: 2 on n1, mqj-2: 2 on n2, mqj-3: 2 on n3",
            "2s bind mqj-1: 2 on n1, mqj-2: 2 on n2, mqj-3: 2 on n3",
            "3s finish mqj-1, mqj-2, mqj-3",
            "end mqj-1 Completed, mqj-2 Completed, mqj-3 Completed",
        ),
        written("Schedule Multiple Jobs"),
    ),
    Entry(
        "e2e: Gang scheduling",
        SAME,
        "",
        (
            "0s bind rs-1: 2 on n1 1 on n2 1 on n3",
            "4s evict rs-1-t-0 rs-1-t-1 rs-1-t-2 rs-1-t-3 (Cancelled)",
            "5s bind gang-qj: 2 on n1 1 on n2 1 on n3",
            "6s finish gang-qj",
            "end gang-qj Completed",
        ),
        simulated("E2E Gang scheduling"),
    ),
    Entry(
        "e2e: Gang scheduling: Full Occupied",
        SAME,
        "",
        (
            "0s bind gang-fq-qj1: 2 on n1 2 on n2 2 on n3",
            "end gang-fq-qj1 Running 6, gang-fq-qj2 InQueue (Unschedulable)",
        ),
        simulated("E2E Gang Full Occupied"),
    ),
    Entry(
        "e2e: Preemption",
        DIFFERS,
        CLAIM,
        (
            "0s bind preemptee-qj: 2 on n1 2 on n2 2 on n3",
            "1s evict preemptee-qj-t-5 for preemptor-qj, by preempt",
            "2s bind preemptor-qj: 1 on n3",
            "end preemptee-qj Running 5, preemptor-qj Running 1",
        ),
        written("Preemption"),
    ),
    Entry(
        "e2e: Multiple Preemption",
        DIFFERS,
        CLAIM,
        (
            "0s bind preemptee-qj: 2 on n1 2 on n2 2 on n3",
            "1s evict preemptee-qj-t-5 for preemptor-qj1, by preempt",
            "1s evict preemptee-qj-t-4 for preemptor-qj2, by preempt",
            "2s bind preemptor-qj1: 1 on n3, preemptor-qj2: 1 on n2",
            "end preemptee-qj Running 4, preemptor-qj1 Running 1, preemptor-qj2 Running 1",
        ),
        simulated("E2E Multiple Preemption"),
    ),
    Entry(
        "e2e: Schedule BestEffort Job",
        SAME,
        "",
        ("0s bind test: 5 on n1 2 on n2 2 on n3", "end test Running 9"),
        simulated("E2E BestEffort"),
    ),
    Entry(
        "e2e: Statement",
        SAME,
        "",
        (
            "0s bind st-qj-1: 2 on n1 2 on n2 2 on n3",
            "end st-qj-1 Running 6, st-qj-2 InQueue (Unschedulable)",
        ),
        written("Statement"),
    ),
    Entry(
        "e2e: TaskPriority",
        SAME,
        "",
        (
            "0s bind rs-1: 1 on n1 1 on n2 1 on n3",
            "1s bind multi-pod-job: 1 on n1 1 on n2 1 on n3",
            "end multi-pod-job Running 3, rs-1 Running 3",
        ),
        simulated("E2E TaskPriority"),
    ),
    Entry(
        "e2e: Try to fit unassigned task with different resource requests in one loop",
        SAME,
        "",
        (
            "0s bind rs-1: 2 on n1 2 on n2 1 on n3",
            "1s bind diff-job: 1 on n1 1 on n3",
            "end diff-job Running 2, rs-1 Running 5",
        ),
        written("Try to fit unassigned task with different resource requests in one loop"),
    ),
    Entry(
        "e2e: Job Priority",
        DIFFERS,
        SPARE,
        (
            "0s bind rs-1: 2 on n1 2 on n2 2 on n3",
            "1s evict rs-1-t-5 rs-1-t-4 rs-1-t-3 rs-1-t-2 for pri-job-2, by preempt",
            "2s bind pri-job-2: 1 on n1 1 on n2 2 on n3",
            "3s evict rs-1-t-0 rs-1-t-1 (Cancelled)",
            "4s bind pri-job-2: 1 on n1 1 on n2",
            "end pri-job-1 InQueue (Unschedulable), pri-job-2 Running 6",
        ),
        simulated("E2E Job Priority"),
    ),
    Entry(
        "e2e: Proportion",
        SAME,
        "without the eviction in between",
        (
            "0s bind q2-job-1: 1 on n1",
            "1s bind q1-job-1: 5 on n1 4 on n2 6 on n3",
            "3s bind q1-job-2: 1 on n3",
            "end q1-job-1 Running 15, q1-job-2 Running 1, q2-job-1 Running 1",
        ),
        simulated("E2E Proportion"),
    ),
    Entry(
        "e2e: Reclaim",
        SAME,
        "and it stays so; in kube-batch the test passes while the queues evict each other",
        (
            "0s bind q1-qj-1: 2 on n1 2 on n2 2 on n3",
            "2s evict q1-qj-1-t-5 for q2-qj-2, by reclaim",
            "3s bind q2-qj-2: 1 on n3",
            "3s evict q1-qj-1-t-4 q1-qj-1-t-3 for q2-qj-2, by reclaim",
            "4s bind q2-qj-2: 1 on n1 1 on n2",
            "end q1-qj-1 Running 3, q2-qj-2 Running 3",
        ),
        simulated("E2E Reclaim (cpu+mem)"),
    ),
    Entry(
        "e2e: Predicates: NodeAffinity",
        SAME,
        "written as a nodeSelector",
        ("0s bind na-job: 1 on n2", "end na-job Running 1"),
        written("Predicates: NodeAffinity"),
    ),
    Entry(
        "e2e: Predicates: Hostport",
        NOT_APPLICABLE,
        "processes share the ports of their machine, without port mapping",
    ),
    Entry("e2e: Predicates: Pod Affinity", NOT_APPLICABLE, "pods have no affinity to each other"),
    Entry(
        "e2e: Predicates: Taints/Tolerations",
        SAME,
        "",
        ("5s bind tt-job: 1 on n1", "end tt-job Running 1"),
        written("Predicates: Taints/Tolerations"),
    ),
    Entry(
        "e2e: NodeOrder: Node Affinity",
        NOT_APPLICABLE,
        "a node is selected or not; preferences do not exist",
    ),
    Entry("e2e: NodeOrder: Pod Affinity", NOT_APPLICABLE, "pods have no affinity to each other"),
    Entry(
        "e2e: NodeOrder: Least Requested",
        SAME,
        "",
        ("0s bind free: 1 on n3", "end free Running 1, pinned Running 4"),
        written("NodeOrder: Least Requested"),
    ),
    Entry(
        "e2e: Performance density (kubemark only, skipped without kubeconfig)",
        NOT_APPLICABLE,
        "a measurement, not a behaviour; batchq's measurements are in benchmarks/",
    ),
)

ENTRIES = (*_SIMULATIONS, *_TESTS)
