"""Sums rank + 1 over all processes with JAX; `plain` passes the rank, `slurm` finds everything."""

from __future__ import annotations

import os
import sys

import jax

if sys.argv[1] == "slurm":
    jax.distributed.initialize()
else:
    jax.distributed.initialize(
        num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
        process_id=int(os.environ["JAX_PROCESS_ID"]),
    )
own = jax.numpy.full((jax.local_device_count(),), jax.process_index() + 1)
total = jax.pmap(lambda one: jax.lax.psum(one, "all"), axis_name="all")(own)
sys.stdout.write(f"{jax.process_index()} of {jax.process_count()}: {int(total[0])}\n")
