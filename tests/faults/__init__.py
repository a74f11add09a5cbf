"""Seeded faults: random clusters in virtual time, with everything going wrong that can.

`python -m tests.faults --seeds 10000` plays ten thousand; `--seed N` replays one, event by event.
"""
