"""Play a described world in virtual time: real sessions over a store in memory.

`player.play` is the entry point; `batchq simulate` calls it. Nothing here decides: the scheduler
comes from `batchq.assembly` and runs through `batchq.scheduler.cycle`, as in the daemon.

`look_ahead.look_ahead` continues from a snapshot of the live state, under the present configuration
or others. `report.compared` compares these futures.
"""
