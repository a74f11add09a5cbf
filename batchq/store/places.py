"""Which pods hold a place on a node, asked by its agent: at the cost of the node's own pods.

Nothing that is stored lists the pods of a node; to find them all is to look through the heads of
every pod there is. But a pod counts for one `pods` in its node's scope of the ledger, in the same
step in which it takes its place or leaves it. So an agent names the pods that it knows of: where
these are as many as the ledger counts, there are no others. Where they are not, all are looked
through. So they are now and then in any case, for the ledger may have been spoiled.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from batchq.api.lifecycle import ON_NODE
from batchq.api.objects import Pod
from batchq.api.quantity import PODS
from batchq.api.resources import ONE_POD
from batchq.api.transaction import node_scope
from batchq.store import keys
from batchq.store.link import Link
from batchq.store.mirror import PAGE, read_many
from batchq.store.records import field_of_key, head_of, key_of_field, read_record

#: After so many answers that went by the ledger, all pods are looked through: every ten minutes of
#: an agent that asks every ten seconds.
ANSWERS_BY_COUNT = 60


class Places:
    """The pods on nodes of one server. Questions raise StoreUnavailable."""

    def __init__(self, link: Link) -> None:
        self._link = link
        # The first look is a whole one: nobody knows yet whether the ledger counts right.
        self._answers_left = 0

    def pods(self, node: str, known: Collection[str] | None) -> Iterator[Pod]:
        """The pods that hold a place on a node; one may come twice.

        `known`: the keys of pods that the caller knows of, on the node or not; None: it cannot say.
        """
        if known is not None and self._answers_left > 0:
            self._answers_left -= 1
            found, counted = self._found_and_counted(node, sorted(known))
            if counted == b"%d" % (len(found) * ONE_POD):
                yield from found
                return
        yield from self._all(node)
        self._answers_left = ANSWERS_BY_COUNT

    def _found_and_counted(self, node: str, known: Sequence[str]) -> tuple[list[Pod], bytes]:
        """Those of the pods that are on the node, and what the ledger counts there, of one
        instant.
        """
        field = f"{node_scope(node)} {PODS}"

        fields = [field_of_key(key) for key in known]

        def asked(client: Any) -> tuple[list[bytes | None], bytes | None]:
            pipeline = client.pipeline(transaction=True)
            if fields:
                pipeline.hmget(keys.objects("Pod"), fields)
            pipeline.hget(keys.LEDGER, field)
            *stored, counted = pipeline.execute()
            return (stored[0] if stored else [None] * len(known)), counted

        stored, counted = self._link.ask(asked)
        found = {key: one for key, one in zip(known, stored, strict=True) if one is not None}
        return list(_on_node(node, found)), counted or b"0"

    def _all(self, node: str) -> Iterator[Pod]:
        """Heads tell which pods are on any node: they are short, and pods that have ended are
        many.
        """
        cursor = 0
        while True:
            following, heads = self._link.ask(partial(_heads_of_pods, cursor=cursor))
            there = [
                key_of_field(field) for field, head in heads.items() if head_of(head)[1] in ON_NODE
            ]
            if there:
                yield from _on_node(node, read_many(self._link, "Pod", there))
            if (cursor := int(following)) == 0:
                return


def _on_node(node: str, stored: Mapping[str, bytes]) -> Iterator[Pod]:
    """What cannot be read is on no node: the leader tells of it."""
    for key, value in stored.items():
        pod = read_record("Pod", key, value)
        if isinstance(pod, Pod) and pod.status.node == node and pod.status.phase in ON_NODE:
            yield pod


def _heads_of_pods(client: Any, cursor: int) -> tuple[int, dict[bytes, bytes]]:
    return cast(
        tuple[int, dict[bytes, bytes]],
        client.hscan(keys.heads("Pod"), cursor=cursor, count=PAGE),
    )
