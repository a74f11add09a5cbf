"""Replaying a real log on the live stack: each job becomes a group of one pod that sleeps.

groups.py    a job of the log as a PodGroup, with times divided by the speed
live.py      submits at the right moments, watches, and clears up
journal.py   what the pods wrote themselves: the judge of "exactly once"
report.py    the figures, in seconds of the log
comparing.py the order of starts, against that of the same log in virtual time
deciding.py  a decision of the live scheduler, made again in the state that it met
"""
