"""What RQ keeps of nodes that are gone for good, taken away.

RQ's workers tidy up their own queues. A queue that no worker comes back to keeps its place in RQ's
list, the names of its workers, and the registries of its jobs, for ever: on a cluster whose nodes
come and go by the thousand that grows without end. So every agent looks after a few queues of
others now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import cast

import structlog
from rq import Queue
from rq.registry import BaseRegistry
from rq.worker_registration import WORKERS_BY_QUEUE_KEY, clean_worker_registry

from batchq.api.names import subdomain_problem
from batchq.store.rq_link import RqLink
from batchq.worker.nodequeue import PodJob, is_id, node_of, node_queue

log = structlog.get_logger(__name__)

#: Queues looked at in one round, by chance: each agent does a little, all of them everything.
_QUEUES_A_ROUND = 20
_BATCH = 500


def forget_gone_nodes(link: RqLink, is_gone: Callable[[str], bool]) -> list[str]:
    """Take away what RQ keeps of nodes that are `is_gone`; which those were.

    A queue with an RQ worker that lives is left alone. A pod that is bound to a node in the very
    moment in which it comes back is handed in again by its agent. Raises StoreUnavailable.
    """
    with link.errors():
        keys = link.connection.srandmember(Queue.redis_queues_keys, _QUEUES_A_ROUND)
        found = sorted(key.decode(errors="replace") for key in cast("list[bytes]", keys))
    nodes = [node for key in found if (node := node_of(key)) is not None]
    # Whoever may write there may write anything.
    nodes = [node for node in nodes if not subdomain_problem(node)]
    forgotten = [node for node in nodes if is_gone(node) and _forget(link, node)]
    for node in forgotten:
        log.info("rq records of a node that is gone removed", node=node)
    return forgotten


def _forget(link: RqLink, node: str) -> bool:
    """Whether nobody served the queue any more."""
    with link.errors():
        queue = node_queue(node, link)
        clean_worker_registry(queue)
        workers = WORKERS_BY_QUEUE_KEY % queue.name
        connection = link.connection
        if connection.exists(workers):
            return False
        registries = _registries(queue)
        lists = (queue.key, queue.intermediate_queue_key)
        jobs = {id_ for key in lists for id_ in _in_list(queue, key)}
        jobs |= {id_ for registry in registries for id_ in _in_registry(registry)}
        for batch in _batches(sorted(jobs)):
            connection.delete(*(key for id_ in batch for key in _keys_of_job(id_)))
        connection.delete(*lists, *(registry.key for registry in registries))
        connection.srem(Queue.redis_queues_keys, queue.key)
    return True


def _registries(queue: Queue) -> tuple[BaseRegistry, ...]:
    return (
        queue.started_job_registry,
        queue.finished_job_registry,
        queue.failed_job_registry,
        queue.deferred_job_registry,
        queue.scheduled_job_registry,
        queue.canceled_job_registry,
    )


def _in_list(queue: Queue, key: str) -> list[str]:
    entries = cast("list[bytes]", queue.connection.lrange(key, 0, -1))
    return [entry.decode() for entry in entries if is_id(entry)]


def _in_registry(registry: BaseRegistry) -> list[str]:
    """The jobs in it; entries of running ones name their execution, too."""
    entries = cast("list[bytes]", registry.connection.zrange(registry.key, 0, -1))
    ids = [entry.partition(b":")[0] for entry in entries]
    return [id_.decode() for id_ in ids if is_id(id_)]


def _keys_of_job(id_: str) -> tuple[str, ...]:
    return (PodJob.key_for(id_), f"rq:executions:{id_}", f"rq:results:{id_}")


def _batches(ids: Iterable[str]) -> Iterator[list[str]]:
    left = iter(ids)
    while batch := list(islice(left, _BATCH)):
        yield batch
