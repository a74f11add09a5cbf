"""Logs of real machines, played through the daemon's own sessions in virtual time.

`load.py` is what is played, whatever file it came from; `policies.py` the short names of queue
strategies; `stage.py` plays; `schedule.py` is what became of each job, and `figures.py` what a
schedule comes to. Alibaba's GPU trace is made a load in `openb.py`, and inflated in `inflation.py`;
`fragmentation.py` measures what of its GPUs is of no use, `gpus.py` over time.
"""
