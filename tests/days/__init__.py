"""Random days of a shared cluster, in virtual time, under every strategy.

`python -m tests.days --days 200` plays two hundred. By the end, everything that can run has run,
and nothing waits that could start; the mean wait is compared with that of a plain clairvoyant EASY.
"""
