"""Random days of a shared cluster, in virtual time, under every strategy.

`python -m tests.days --days 200` plays two hundred: whatever can run has run by the end, nothing
waits that could start, and the mean wait stands beside that of a plain clairvoyant EASY.
"""
