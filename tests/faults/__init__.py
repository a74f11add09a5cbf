"""Play seeded faults: random clusters in virtual time, in which any component may fail.

`python -m tests.faults --seeds 10000` plays ten thousand seeds; `--seed N` replays one, event by
event.
"""
