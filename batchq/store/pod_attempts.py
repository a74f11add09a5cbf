"""Many attempts of a node's pods at once: claimed, or ended, in one round trip.

What each step means stands in `inboxes` and `alive`; here they go together, so that a node whose
pods take no time asks the server no more often than it must.
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
from batchq.store.node_channels import BELL_KEPT
from batchq.store.records import read_record
from batchq.store.redis import RedisStore


class AttemptEnd(Struct, frozen=True, kw_only=True):
    """The end of an attempt, and what its function returned as JSON, if it was one."""

    fact: Ended
    result: bytes | None = None


class Attempts:
    """Those of one node. Every method raises StoreUnavailable; twice is harmless."""

    def __init__(self, store: RedisStore, node: str) -> None:
        self._store = store
        self._node = node

    def claim(
        self, claims: Sequence[tuple[StartClaim, str]], groups: Sequence[str], lease_ms: int
    ) -> tuple[list[Renewal], dict[str, PodGroup]]:
        """Take the lease of each attempt, whose fence is given, and leave the claim; whether to go
        on with it. One that is fenced or told to stop leaves its claim all the same.

        Beside that those of the groups that there are, as they are in the same instant.
        """
        until = self._store.now_ms() + lease_ms
        names = (keys.alive(self._node), keys.inbox(self._node), keys.BELL)
        arguments: list[str | bytes | int] = [keys.ALIVE_TTL_S, keys.INBOX_TTL_S, BELL_KEPT]
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
        """Keep the results, leave the ends, and end the leases."""

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
        """Nothing of these (`<pod>-<attempt>`) runs any more."""
        self._store.link.ask(lambda client: client.hdel(keys.alive(self._node), *attempts))

    def _leave(self, pipeline: Any, facts: Sequence[NodeReport]) -> None:
        inbox = keys.inbox(self._node)
        pipeline.hset(inbox, mapping={fact.subject: encode(fact) for fact in facts})
        pipeline.expire(inbox, keys.INBOX_TTL_S)
        pipeline.xadd(keys.BELL, {"node": self._node}, maxlen=BELL_KEPT, approximate=True)


def _executed(pipeline: Any) -> list[Any]:
    """The answers. A bell that somebody has spoiled is done without: all inboxes are looked
    through.
    """
    bell = next(place for place, one in enumerate(pipeline.command_stack) if one[0][0] == "XADD")
    answers = pipeline.execute(raise_on_error=False)
    for place, answer in enumerate(answers):
        is_bell = place == bell and isinstance(answer, ResponseError)
        if isinstance(answer, Exception) and not is_bell:
            raise answer
    return cast("list[Any]", answers)
