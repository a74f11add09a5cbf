"""The probes P of kube-batch's real code: gangs, victims, phases, queues."""

from __future__ import annotations

from typing import Any

import pytest

from batchq.assembly import assemble
from batchq.config.load import read_config
from batchq.errors import InvalidInput
from tests.cases.kube_batch_entry import DIFFERS, NOT_APPLICABLE, SAME, Entry, File
from tests.cases.kube_batch_play import result_of


def _played(row: Any, file: File) -> object:
    return result_of(row, file.configs)


def _refused_plugin(row: Any, file: File) -> object:
    """Return the refusal of this probe's configuration, which names an unknown plugin."""
    unknown = file.configs[row["config"]]["tiers"][0][0]
    config = read_config(f"plugins: [{unknown}, gang]", "config")
    with pytest.raises(InvalidInput) as caught:
        assemble(config)
    return caught.value.message.partition(";")[0]


ENTRIES = (
    Entry(
        "probe: P01 gang: too few pods (valid<min) still allocates (JobValid dead)",
        DIFFERS,
        "a gang with too few pods is Misconfigured and holds nothing (rule: enqueue 1), so the"
        " other group runs (request 946; complaints 514 and 561)",
        ("0s bind b: 1 on n1", "end a Pending (Misconfigured), b Running 1"),
        _played,
    ),
    Entry(
        "probe: P02b same but small job created first",
        SAME,
        "",
        ("0s bind pg2: 1 on n1", "end pg1 Pending (ExceedsCapacity), pg2 Running 1"),
        _played,
    ),
    Entry(
        "probe: P03 drf interleave 2 jobs min1",
        SAME,
        "",
        ("0s bind a: 2 on n1, b: 2 on n1", "end a Running 2, b Running 2"),
        _played,
    ),
    Entry(
        "probe: P04b unschedulable lower-pri task does not stop higher",
        SAME,
        "",
        ("0s bind a: 1 on n1", "end a Running 1"),
        _played,
    ),
    Entry(
        "probe: P05 preempt equal priority: tier2 drf never reached",
        SAME,
        "because equal groups do not evict each other, not because a tier is never reached",
        ("end a Running 4, b InQueue (Unschedulable)",),
        _played,
    ),
    Entry(
        "probe: P05c preempt single tier gang+conformance+drf",
        DIFFERS,
        "shares order groups, but cause no evictions within a queue: whole groups, and pods of "
        "an array, are evicted only for strictly higher priority (rule: victims)",
        ("end a Running 4, b InQueue (Unschedulable)",),
        _played,
    ),
    Entry(
        "probe: P06 gang victim check not decremented within a call (min2 of 3 loses 2)",
        DIFFERS,
        "a gang keeps its minMember or is evicted whole; each victim reduces its slack (rule: "
        "victims; request 921)",
        (
            "0s evict a1 a2 a3 for b, by preempt",
            "0s requeue a (Preempted)",
            "1s bind b: 1 on n1",
            "end a InQueue (Unschedulable), b Running 1",
        ),
        _played,
    ),
    Entry(
        "probe: P07 min==1 last pod preemptable",
        SAME,
        "as a whole group of strictly lower priority, not because minMember is 1 (complaint 828)",
        (
            "0s evict a1 for b, by preempt",
            "0s requeue a (Preempted)",
            "1s bind b: 1 on n1",
            "end a InQueue (Unschedulable), b Running 1",
        ),
        _played,
    ),
    Entry(
        "probe: P07b min==2 running 2 not preemptable",
        DIFFERS,
        "a whole gang is evicted for strictly higher priority (rule: victims; complaints 261, "
        "603 and 894 ask for preemption by the priority of jobs)",
        (
            "0s evict a1 a2 for b, by preempt",
            "0s requeue a (Preempted)",
            "1s bind b: 1 on n1",
            "end a InQueue (Unschedulable), b Running 1",
        ),
        _played,
    ),
    Entry(
        "probe: P09 preempt ignores idle: idle 1, preemptor 2, victim 1x1cpu",
        DIFFERS,
        "idle resources count, so that one victim is sufficient (rule: victims; request 951)",
        (
            "0s evict a1 for b, by preempt",
            "0s requeue a (Preempted)",
            "1s bind b: 1 on n1",
            "end a InQueue (Unschedulable), b Running 1",
        ),
        _played,
    ),
    Entry(
        "probe: P10 reclaim e2e config one round",
        DIFFERS,
        "as many pods as the rule allows, in one decision, until both queues have what they "
        "deserve; kube-batch takes one in each session and never stops (rules: preemptors, "
        "reclaim; complaint 565)",
        (
            "0s evict a6 for b, by reclaim",
            "1s bind b: 1 on n1",
            "1s evict a5 a4 for b, by reclaim",
            "2s bind b: 2 on n1",
            "end a Running 3, b Running 3",
        ),
        _played,
    ),
    Entry(
        "probe: P10c reclaim single tier (proportion consulted), cpu only",
        DIFFERS,
        "reclaim takes any resource that the preemptor lacks (rule: reclaim); a resource without"
        " demand does not protect the queue (complaints 665, 666 and 889)",
        (
            "0s evict a6 for b, by reclaim",
            "1s bind b: 1 on n1",
            "1s evict a5 a4 for b, by reclaim",
            "2s bind b: 2 on n1",
            "end a Running 3, b Running 3",
        ),
        _played,
    ),
    Entry(
        "probe: P10d reclaim single tier, cpu+mem balanced",
        DIFFERS,
        "as many pods as the rule allows, in one decision instead of one in each session (rule: "
        "preemptors)",
        (
            "0s evict a6 for b, by reclaim",
            "1s bind b: 1 on n1",
            "1s evict a5 a4 for b, by reclaim",
            "2s bind b: 2 on n1",
            "end a Running 3, b Running 3",
        ),
        _played,
    ),
    Entry(
        "probe: P12b same, allocate only",
        DIFFERS,
        "no epsilon (rule: objects): a small request is a request, and needs no separate action",
        ("0s bind a: 1 on n1", "end a Running 1"),
        _played,
    ),
    Entry(
        "probe: P12c empty Resreq but init container request: never scheduled",
        NOT_APPLICABLE,
        "a pod is one process, without init containers",
    ),
    Entry(
        "probe: P12e besteffort pending (node selector mismatch n2 full) preempt w/out predicates",
        DIFFERS,
        "a pod that fits evicts nothing (rule: preemptors)",
        ("0s bind b: 1 on n1", "end a Running 2, b Running 1"),
        _played,
    ),
    Entry(
        "probe: P13 phase: all succeeded",
        DIFFERS,
        "Completed is a phase, and final (rule: lifecycle; complaint 846)",
        ("0s finish a", "end a Completed"),
        _played,
    ),
    Entry(
        "probe: P13c phase: minMember 0, no pods",
        DIFFERS,
        "a group has at least one pod and minMember of at least 1 (rule: objects), else it is"
        " Misconfigured and not Running",
        ("end a Pending (Misconfigured)",),
        _played,
    ),
    Entry(
        "probe: P13d phase: min1, no pods",
        SAME,
        "it waits, as Misconfigured",
        ("end a Pending (Misconfigured)",),
        _played,
    ),
    Entry(
        "probe: P13f phase: failed pod",
        DIFFERS,
        "a full gang fails at its first final failure, and the rest is evicted (rule: lifecycle)",
        ("0s evict a1 (RetriesSpent)", "0s finish a", "end a Failed (RetriesSpent)"),
        _played,
    ),
    Entry(
        "probe: P14 missing queue",
        DIFFERS,
        "it waits with a reason (rule: reasons, QueueNotFound; complaints 388, 521, 664 and 479)",
        ("end a Pending (QueueNotFound)",),
        _played,
    ),
    Entry(
        "probe: P15 pipelined onto releasing",
        SAME,
        "",
        ("1s bind b: 1 on n1", "end a Cancelled, b Running 1"),
        _played,
    ),
    Entry(
        "probe: P15b idle 1 + releasing 1 cannot combine for cpu 2",
        SAME,
        "both wait for terminating pods; here idle and terminating resources count together, so "
        "it would not cause an eviction either",
        ("1s bind b: 1 on n1", "end a Cancelled, b Running 1"),
        _played,
    ),
    Entry(
        "probe: P16b zero weight queue + normal queue",
        DIFFERS,
        "a queue of weight 0 deserves nothing, but may use idle resources (rule: objects)",
        ("0s bind b: 1 on n1, a: 1 on n1", "end a Running 1, b Running 1"),
        _played,
    ),
    Entry(
        "probe: P17 two queues w1:w3 cpu+mem demand over capacity",
        SAME,
        "",
        ("0s bind a: 2 on n1, b: 6 on n1", "end a Running 2, b Running 6"),
        _played,
    ),
    Entry(
        "probe: P17c two queues w1:w1, q1 gang of 6, q2 1 pod",
        SAME,
        "",
        ("0s bind a: 6 on n1, b: 1 on n1", "end a Running 6, b Running 1"),
        _played,
    ),
    Entry(
        "probe: P17d gang may exceed deserved: w1:w1 q1 gang 6 q2 8x1",
        SAME,
        "",
        ("0s bind a: 6 on n1, b: 2 on n1", "end a Running 6, b Running 2"),
        _played,
    ),
    Entry(
        "probe: P19 preempt victim order: lowest task pri, newest, uid desc",
        SAME,
        "",
        ("0s evict c1 for b, by preempt", "1s bind b: 1 on n1", "end a Running 2, b Running 1"),
        _played,
    ),
    Entry(
        "probe: P20 within-job preemption by task priority? (same job)",
        DIFFERS,
        "the priority of pods orders the pods of one group and nothing else (rule: victims); a "
        "group never evicts its own pods",
        ("end a Running 2",),
        _played,
    ),
    Entry(
        "probe: P20c within-job gang+conformance, lower-priority pending evicts higher running",
        DIFFERS,
        "a group never evicts its own pods, least of all the more important ones (rule: victims;"
        " complaint 950)",
        ("end a Running 2",),
        _played,
    ),
    Entry(
        "probe: P21 over-eviction by repeated reclaim while victims terminate (e2e conf)",
        DIFFERS,
        "terminating pods that are not pledged to another group count before any eviction (rule:"
        " victims; complaint 441)",
        ("1s bind b: 1 on n1", "end a Running 5, b Running 1"),
        _played,
    ),
    Entry(
        "probe: P23 unknown plugin and unknown key ignored",
        DIFFERS,
        "an unknown name prevents the daemon from starting (rule: configuration)",
        "there is no plugin 'nosuch'",
        _refused_plugin,
    ),
    Entry(
        "probe: P23b unknown action",
        DIFFERS,
        "enqueue is an action here (request 539)",
        ("0s bind a: 1 on n1", "end a Running 1"),
        _played,
    ),
    Entry(
        "probe: P24b preempt picks highest name on tie",
        SAME,
        "",
        ("0s evict d1 for b, by preempt", "1s bind b: 1 on n3", "end a Running 2, b Running 1"),
        _played,
    ),
    Entry(
        "probe: P25 reclaim picks random node/victim",
        SAME,
        "the same victim each time",
        ("0s evict d1 for b, by reclaim", "1s bind b: 1 on n3", "end a Running 2, b Running 1"),
        _played,
    ),
    Entry(
        "probe: P27 reclaim job pops one task only per queue pop (job not pushed back)",
        DIFFERS,
        "a preemption request covers the whole minMember of a gang, in one decision (rule: "
        "preemptors; complaints 376 and 446)",
        (
            "0s evict a6 a5 a4 for b, by reclaim",
            "1s bind b: 3 on n1",
            "end a Running 3, b Running 3",
        ),
        _played,
    ),
    Entry(
        "probe: P28 reclaim for a gang that cannot be satisfied still evicts",
        DIFFERS,
        "evictions happen only if the preemptor then reaches its minMember and its queue stays "
        "within what it deserves (rule: reclaim; complaints 376, 446 and 499)",
        ("end a Running 4, b InQueue (Unschedulable)",),
        _played,
    ),
)
