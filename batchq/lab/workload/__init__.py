"""Play logs of real machines through the daemon's own sessions in virtual time.

`traces.py` reads the Standard Workload Format and Alibaba's tables of GPU pods, builds the load
from a log, and names the policies; `play.py` plays it; `schedule.py` holds each job's
outcome and the figures of a schedule, and `plot.py` draws them. `gpu_usage.py` builds a load from
Alibaba's GPU trace, inflates it, and measures the fragmentation of its GPUs.
"""
