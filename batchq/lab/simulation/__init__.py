"""A described world, played in virtual time: the real sessions over a store in memory.

`run.play` is the way in; `batchq simulate` calls it. Nothing here decides anything: the scheduler
comes from `batchq.assembly` and turns through `batchq.scheduler.cycle`, as in the daemon.

`cluster.Cluster` plays another kind of world, for tests: schedulers, agents and work-horses that
die, stand still and lose the server, by the script of a `drama.Drama`.

`fromlive.look_ahead` plays a live snapshot on, for `batchq simulate --from-live`.
"""
