"""Seeded worlds: random queues, nodes and groups that take from each other, in virtual time.

`python -m tests.worlds --seeds 5000` plays five thousand, and looks after every session whether the
rules of preempt and reclaim hold; `--seed N` replays one and can write it down as a world.
"""
