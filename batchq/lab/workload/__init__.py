"""Play logs of real machines through the daemon's own sessions in virtual time.

`swf.py` reads the Standard Workload Format, `openb.py` Alibaba's tables of GPU pods. `jobs.py`
builds the load, whatever file it came from, and names the policies; `play.py` plays it;
`schedule.py` holds each job's outcome, `figures.py` the figures of a schedule. `gpu_usage.py`
builds a load from Alibaba's GPU trace, inflates it, and measures the fragmentation of its GPUs.
"""
