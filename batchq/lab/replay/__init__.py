"""Replay a real log on the live stack: each job becomes a group of one pod that sleeps.

Submission times and durations are divided by the speed. The pods' own journal proves that each ran
exactly once. `compare.py` compares the order of starts with a simulation of the same log.
"""
