"""From the outbox to the nodes' RQ queues.

A bind and its hand-over are two systems in one Redis: the bind leaves an entry in the outbox, the
relay puts it into RQ, rings at the node, and takes it out, all at once where there are few, and in
this order in three round trips, however many there are. A relay that dies in between delivers
twice, and that is harmless, because a pod is claimed before it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog
from rq import Queue

from batchq.api.transaction import Delivery
from batchq.errors import StoreUnavailable
from batchq.store.keys import node_of_rq
from batchq.store.link import is_forbidden
from batchq.store.redis import RedisStore
from batchq.store.rq_link import RqLink
from batchq.worker.nodequeue import DamagedKeys, PodAttempt, by_node, enqueue_all, node_queue

log = structlog.get_logger(__name__)

#: So many are handed over in one round trip: about 10 MB.
DELIVERIES_A_TRIP = 20_000
#: So many in one step of the server, which does nothing else meanwhile.
DELIVERIES_AT_ONCE = 100
#: How often keys are taken out that somebody makes another type meanwhile.
_TRIES = 3


class Relay:
    """Delivers what waits in a store's outbox (`batchq.ports.Executor`)."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._link = RqLink(store.url)

    def deliver(self, bound: Sequence[Delivery] | None = None) -> int:
        """Hand over what waits, or what was `bound` just now; how many that were. Twice is
        harmless.

        Raises StoreUnavailable; what was handed over until then may be so again.
        """
        deliveries = self._store.outbox() if bound is None else bound
        for start in range(0, len(deliveries), DELIVERIES_A_TRIP):
            some = deliveries[start : start + DELIVERIES_A_TRIP]
            attempts_of = {
                node_queue(node, self._link): [PodAttempt(one.pod, one.attempt) for one in to_node]
                for node, to_node in by_node(some).items()
            }
            nodes = sorted({one.node for one in some})
            at_once = some if len(some) <= DELIVERIES_AT_ONCE else ()
            self._enqueue(attempts_of, nodes, at_once)
            if not at_once:
                self._store.delivered(some)
            log.info("pods delivered", nodes=len(attempts_of), pods=len(some))
        return len(deliveries)

    def _enqueue(
        self,
        attempts_of: Mapping[Queue, Sequence[PodAttempt]],
        nodes: Sequence[str],
        taken_out: Sequence[Delivery],
    ) -> None:
        """Hand over; a key that some worker has made another type is taken out first."""
        has_moved = False
        for _ in range(_TRIES):
            try:
                with self._link.errors():
                    enqueue_all(attempts_of, rings=nodes, taken_out=taken_out)
                return
            except StoreUnavailable as trouble:
                if has_moved or not is_forbidden(trouble):
                    raise
                has_moved = True
                self._link.use_other_place()
            except DamagedKeys as damaged:
                log.error("rq keys of another type taken out", keys=damaged.names)
                for name in damaged.names:
                    self._store.link.suspect(node_of_rq(name), f"{name} is of another type")
                with self._link.errors():
                    self._link.connection.delete(*damaged.names)
        # The nodes' agents hand in what is bound to them within seconds.
        log.error("pods not delivered", nodes=nodes)

    def asking_s(self, thread: int) -> float:
        """For how long this thread has been waiting for RQ's connection; 0 if it is not."""
        return self._link.asking_s(thread)

    def close(self) -> None:
        """Give up the connection."""
        self._link.close()
