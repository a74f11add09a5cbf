"""The kill swarm: a live stack under load, whose processes are killed and paused at random.

pod.py        what the pods run: each keeps a diary, and holds a lock while it runs
diary.py      reads the diaries
load.py       which groups are submitted, to which queue, and how each of them is to end
cast.py       the processes, and their restart after a kill
chaos.py      which process is struck, when, and how
checker.py    checks that nothing was lost, ran twice or is left over
run.py        a whole run; `python -m tests.swarm --kills 500 --seed N`
"""
