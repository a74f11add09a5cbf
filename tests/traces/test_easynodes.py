"""EASY on nodes keeps the heads' reserved starts; in sums alone it does not."""

from __future__ import annotations

import random

from benchmarks.easynodes import missed, play
from tests.effort import usually
from tests.traces.easynodes import NodeJob, NodeMachine


def jobs(seed: int, count: int, *, nodes: int, cpu: int) -> list[NodeJob]:
    """Return gangs of whole nodes and jobs that share one; estimates are upper bounds."""
    dice = random.Random(seed)
    found, submit = [], 0
    for number in range(count):
        submit += dice.randint(0, 40)
        run = dice.randint(1, 300)
        whole = dice.random() < 0.5
        pods, cpus = (dice.randint(1, nodes // 2), cpu) if whole else (1, dice.randint(1, cpu - 1))
        found.append(NodeJob(number, submit, run, run * dice.choice((1, 2, 3)), pods, cpus))
    return found


def test_a_plain_easy_on_nodes_keeps_its_reservations_and_one_in_sums_does_not() -> None:
    late = {True: 0, False: 0}
    for seed in range(20):
        load = jobs(seed, 60, nodes=6, cpu=4)
        for ledger_only in late:
            machine = NodeMachine(6, 4, ledger_only=ledger_only)
            starts = machine.play(load)
            assert len(starts) == 60
            late[ledger_only] += len(missed(starts, machine.promised))
    assert late[False] == 0
    assert late[True] > 0


def test_a_head_starts_on_its_nodes_no_later_than_reserved() -> None:
    """The daemon's own sessions on 100 nodes of 4 cpus; half of the jobs request whole nodes."""
    load = jobs(7, usually(150, 250), nodes=100, cpu=4)
    starts, promised = play(load)
    assert len(starts) == len(load)
    assert len(promised) > 10
    assert missed(starts, promised) == []
