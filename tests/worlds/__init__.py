"""Seeded worlds: random queues, nodes and groups that preempt and reclaim, in virtual time.

`python -m tests.worlds --seeds 5000` plays five thousand, and checks the rules of preempt and
reclaim after every session; `--seed N` replays one and can write it as a world.
"""
