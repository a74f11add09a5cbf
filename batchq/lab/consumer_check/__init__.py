"""A conformance check for consumers of external groups (docs/external.md).

`check_consumer` starts a server and a scheduler, runs the consumer's program, and tests its
promises one by one. The groups run `work.py`, which records when it starts and ends.
"""
