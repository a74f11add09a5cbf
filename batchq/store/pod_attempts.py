"""Claims and ends of many attempts of a node's pods, each batch in one round trip.

`ReportQueues` and `Alive` define each step; here the steps are combined, so that a node with very
short pods asks the server as seldom as possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from msgspec import Struct
from redis.exceptions import ResponseError

from batchq.api.node_report import Ended, NodeReport, StartClaim, encode
from batchq.api.objects import PodGroup
from batchq.store import keys, scripts
from batchq.store.link import AddCall
from batchq.store.liveness import Renewal, renewal_of
from batchq.store.node_channels import LEADER_NOTIFICATIONS_KEPT
from batchq.store.records import read_record
from batchq.store.redis import RedisStore


class AttemptEnd(Struct, frozen=True, kw_only=True):
    """The end of an attempt, and the result of its function as JSON, if the pod runs a function."""

    fact: Ended
    result: bytes | None = None


class Attempts:
    """The attempts on one node. Every method raises StoreUnavailable, and is safe to repeat."""

    def __init__(self, store: RedisStore, node: str) -> None:
        self._store = store
        self._node = node

    def claim(
        self, claims: Sequence[tuple[StartClaim, str]], groups: Sequence[str], lease_ms: int
    ) -> tuple[list[Renewal], dict[str, PodGroup]]:
        """Take the lease of each attempt, whose fence is given, and leave its start claim; return
        whether each attempt may go on. A fenced or stopped attempt leaves its claim as well.

        Also return the existing ones of `groups`, by name, read at the same instant.
        """
        until = self._store.now_ms() + lease_ms
        names = (keys.alive(self._node), keys.inbox(self._node), keys.BELL)
        arguments: list[str | bytes | int] = [
            keys.ALIVE_TTL_S,
            keys.INBOX_TTL_S,
            LEADER_NOTIFICATIONS_KEPT,
        ]
        arguments.append(self._node)
        for claim, _ in claims:
            arguments += (claim.subject, until, encode(claim))

        def asked(client: Any, add_call: AddCall) -> tuple[list[bytes | None], list[bytes | None]]:
            pipeline = client.pipeline(transaction=True)
            add_call(pipeline, scripts.CLAIM, names, arguments)
            pipeline.hmget(keys.heads("Pod"), [claim.pod for claim, _ in claims])
            pipeline.hmget(keys.objects("PodGroup"), list(groups))
            _, heads, stored = pipeline.execute()
            return heads, stored

        heads, stored = self._store.link.call(asked)
        renewals = [
            renewal_of(head or b"", fence) for head, (_, fence) in zip(heads, claims, strict=True)
        ]
        found = {
            name: read_record("PodGroup", name, one)
            for name, one in zip(groups, stored, strict=True)
            if one
        }
        return renewals, {key: one for key, one in found.items() if isinstance(one, PodGroup)}

    def end(self, ends: Sequence[AttemptEnd]) -> None:
        """Keep the results, report the ends, and end the leases."""

        def told(client: Any) -> None:
            pipeline = client.pipeline(transaction=True)
            for end in ends:
                if end.result is not None:
                    key = keys.result(self._node, end.fact.pod, end.fact.attempt)
                    pipeline.set(key, end.result, ex=keys.RESULT_TTL_S)
            self._leave(pipeline, [end.fact for end in ends])
            pipeline.hdel(keys.alive(self._node), *(end.fact.subject for end in ends))
            _executed(pipeline)

        self._store.link.ask(told)

    def end_leases(self, attempts: Sequence[str]) -> None:
        """End the leases of these attempts (`<pod>-<attempt>`): their processes are gone."""
        self._store.link.ask(lambda client: client.hdel(keys.alive(self._node), *attempts))

    def _leave(self, pipeline: Any, facts: Sequence[NodeReport]) -> None:
        inbox = keys.inbox(self._node)
        pipeline.hset(inbox, mapping={fact.subject: encode(fact) for fact in facts})
        pipeline.expire(inbox, keys.INBOX_TTL_S)
        pipeline.xadd(
            keys.BELL, {"node": self._node}, maxlen=LEADER_NOTIFICATIONS_KEPT, approximate=True
        )


def _executed(pipeline: Any) -> list[Any]:
    """Return the answers. A damaged wake-up channel is ignored: the leader also looks through all
    report queues.
    """
    bell = next(place for place, one in enumerate(pipeline.command_stack) if one[0][0] == "XADD")
    answers = pipeline.execute(raise_on_error=False)
    for place, answer in enumerate(answers):
        is_bell = place == bell and isinstance(answer, ResponseError)
        if isinstance(answer, Exception) and not is_bell:
            raise answer
    return cast("list[Any]", answers)
