"""Replaying a real log on the live stack: each job becomes a group of one pod that sleeps.

groups.py    a job of the log as a PodGroup, with times divided by the speed
live.py      submits at the right moments, watches, and clears up
journal.py   what the pods wrote themselves: the judge of "exactly once"
report.py    the figures, in seconds of the log
"""
