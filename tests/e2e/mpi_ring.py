"""A token that passes through all ranks of an MPI program, for tests of `batchq alloc`."""

from __future__ import annotations

import os

from mpi4py import MPI

ranks, rank = MPI.COMM_WORLD.Get_size(), MPI.COMM_WORLD.Get_rank()
if rank == 0:
    MPI.COMM_WORLD.send([rank], dest=(rank + 1) % ranks)
passed = MPI.COMM_WORLD.recv(source=(rank - 1) % ranks)
if rank:
    MPI.COMM_WORLD.send([*passed, rank], dest=(rank + 1) % ranks)
places = MPI.COMM_WORLD.gather(os.environ.get("BATCHQ_NODE", ""), root=0)
if rank == 0:
    print("passed", passed, "on", sorted(set(places)))  # noqa: T201 - its output is the result
