"""Play a described world in virtual time: real sessions over a store in memory.

`player.play` is the entry point; `batchq simulate` calls it. Nothing here decides: the scheduler
comes from `batchq.assembly` and runs through `batchq.scheduler.cycle`, as in the daemon.

`look_ahead.look_ahead` plays the live state on, from a snapshot that the caller provides, under the
present configuration or others; `future.compared` puts such futures side by side.
"""
