"""The kill swarm: a live stack under load whose processes are killed and paused at random.

pod.py        what the pods run: each keeps a diary, and takes a lock that no two can hold
diary.py      reading the diaries
load.py       which groups are submitted, to which queue, and how each of them is to end
cast.py       the processes, and who starts again what was killed
chaos.py      who is struck, when, and how
judge.py      nothing lost, nothing twice, nothing left over
run.py        all of it together; `python -m tests.swarm --kills 500 --seed N`
"""
