"""That nodes are alive, and how long what runs on them may be believed to run.

Each node has one hash, which only its agent and work-horses write: its beat, the run id of the
server that it has told everything to, and the end of the lease of every attempt that runs there.
A lease of an attempt that is over is nobody's: whoever reads leases asks for those of the attempts
that pods are in. So a renewal need not look at the pod in the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

from msgspec import Struct

from batchq.api.facts import subject_of_pod
from batchq.api.unreadable import Unreadable
from batchq.store import keys, scripts
from batchq.store.link import AddCall, Link, each_of
from batchq.store.records import head_of, name_of

_BEAT = b"beat"
_RUN = b"run"
_PAGE = 200
#: No number of an attempt is longer.
_DIGITS = 19

#: What nodes have said: node -> field -> value.
Said: TypeAlias = Mapping[str, Mapping[bytes, bytes]]


class Renewal(Struct, frozen=True, kw_only=True):
    """Whether a pod's work-horse goes on, stops (`reason` says why), or is no longer the pod's."""

    word: Literal["ok", "stop", "fenced"]
    reason: str = ""


class Alive:
    """The hashes of all nodes of one server. Every method raises StoreUnavailable."""

    def __init__(self, link: Link, now_ms: Callable[[], int]) -> None:
        self._link = link
        self._now_ms = now_ms

    def beat(self, node: str, run: str) -> None:
        """The node is alive now, and has told everything to the server with this run id, if any."""
        self._write(node, _BEAT, self._now_ms(), run=run)

    def renew(self, node: str, pod: str, attempt: int, fence: str, lease_ms: int) -> Renewal:
        """Renew the lease of an attempt, and hear whether to go on."""
        until = self._now_ms() + lease_ms
        head = self._write(node, subject_of_pod(pod, attempt).encode(), until, pod=pod)
        return renewal_of(head, fence)

    def end_lease(self, node: str, pod: str, attempt: int) -> None:
        """Nothing of the attempt runs any more."""
        field = subject_of_pod(pod, attempt)
        self._link.ask(lambda client: client.hdel(keys.alive(node), field))

    def has_reported(self, node: str) -> bool:
        """Whether the agent of a node has told everything to the server since its last start."""
        told = self._link.ask(
            lambda client: cast("bytes | None", client.hget(keys.alive(node), _RUN.decode()))
        )
        return _text(told or b"") == self._link.run_id()

    def leased(self, node: str) -> list[tuple[str, int]]:
        """The attempts that have a lease on a node, run out or not. What is no lease is taken out:
        its agent asks, who may write there.
        """
        fields = self._link.ask(lambda client: cast("list[bytes]", client.hkeys(keys.alive(node))))
        damaged = [field for field in fields if _is_damaged(field)]
        if damaged:
            self._link.ask(lambda client: client.hdel(keys.alive(node), *damaged))
        found = [_attempt(field) for field in sorted(fields)]
        return [one for one in found if one is not None]

    def read(self, nodes: Sequence[str]) -> Said:
        """What each of these nodes has said, one round trip for many; nothing of one whose key is
        of another type.
        """
        said: dict[str, Mapping[bytes, bytes]] = {}
        for start in range(0, len(nodes), _PAGE):
            some = nodes[start : start + _PAGE]

            def asked(client: Any, some: Sequence[str] = some) -> list[dict[bytes, bytes] | None]:
                pipeline = client.pipeline(transaction=False)
                for node in some:
                    pipeline.hgetall(keys.alive(node))
                return each_of(pipeline)

            for node, fields in zip(some, self._link.ask(asked), strict=True):
                said[node] = {} if fields is None else fields
                if fields is None:
                    self._link.found_damaged.add(keys.alive(node))
                    self._link.suspect(node, f"{keys.alive(node)} is of another type")
        return said

    def _write(self, node: str, field: bytes, at_ms: int, *, run: str = "", pod: str = "") -> bytes:
        """Note an instant, and `run` if there is one; the head of `pod`, empty if there is none."""
        key = keys.alive(node)

        def written(client: Any, add_call: AddCall | None = None) -> bytes:
            pipeline = client.pipeline(transaction=True)
            if add_call is not None:
                add_call(pipeline, scripts.RAISE, (key,), (keys.ALIVE_TTL_S, field, at_ms))
            else:
                pipeline.hset(key, field, at_ms)
                pipeline.expire(key, keys.ALIVE_TTL_S)
            if run:
                pipeline.hset(key, _RUN, run)
            pipeline.hget(keys.heads("Pod"), pod)
            return cast("bytes | None", pipeline.execute()[-1]) or b""

        # A pod must not end because no scheduler has loaded scripts since a restart of the server.
        # That a call which comes late takes back an instant is then put right by the next.
        return self._link.call(written, otherwise=written)


def beats_of(said: Said) -> dict[str, int]:
    """When each node was last heard of, by name."""
    return {node: _number(said[node][_BEAT]) for node in sorted(said) if _BEAT in said[node]}


def runs_of(said: Said) -> dict[str, str]:
    """The run id of the server that each node has last told everything to, by name."""
    return {node: _text(said[node][_RUN]) for node in sorted(said) if _RUN in said[node]}


def leases_of(said: Said) -> dict[tuple[str, str, int], int]:
    """When the lease of each attempt of a pod on a node ends, by (node, pod, attempt)."""
    found: dict[tuple[str, str, int], int] = {}
    for node, fields in said.items():
        for field, value in fields.items():
            attempt = _attempt(field)
            if attempt is not None:
                found[node, *attempt] = _number(value)
    return found


def spoiled_in(said: Said, leases: Mapping[tuple[str, str, int], int]) -> dict[str, str]:
    """By node what has been said, if anything, that is no beat, run or lease; `leases` are those
    of it. That all is well is found without a look at each field.
    """
    others = sum((_BEAT in fields) + (_RUN in fields) for fields in said.values())
    is_whole = len(leases) + others == sum(map(len, said.values()))
    if is_whole and 0 not in leases.values() and 0 not in beats_of(said).values():
        return {}
    damaged = {node: damaged_in(node, fields) for node, fields in said.items()}
    return {node: f"{one[0].key}: {one[0].why}" for node, one in damaged.items() if one}


def _is_damaged(field: bytes) -> bool:
    return field not in (_BEAT, _RUN) and _attempt(field) is None


def damaged_in(node: str, fields: Mapping[bytes, bytes]) -> list[Unreadable]:
    """What stands in the hash of a node and is no beat, run or lease."""
    found = [
        field
        for field in sorted(fields)
        if _is_damaged(field) or (field != _RUN and not fields[field].isdigit())
    ]
    return [
        Unreadable(
            kind="Key",
            key=keys.alive(node),
            why=f"its field {name_of(field)[:60]} is no beat and no lease",
            remedy="its agent sets it right or takes it out within 10 s; if it stays, see its log",
        )
        for field in found
    ]


def _attempt(field: bytes) -> tuple[str, int] | None:
    """The pod and attempt that a field is about; None for a beat, and for what is no attempt."""
    pod, dash, attempt = field.decode(errors="replace").rpartition("-")
    is_number = attempt.isascii() and attempt.isdigit() and len(attempt) <= _DIGITS
    return (pod, int(attempt)) if dash and is_number else None


def _number(value: bytes) -> int:
    """A node may write anything into its own hash: what is no instant was long ago."""
    return int(value) if value.isdigit() and len(value) < 16 else 0


def _text(value: bytes) -> str:
    """What is not UTF-8 is the run id of no server."""
    return value.decode(errors="replace")


def renewal_of(head: bytes, fence: str) -> Renewal:
    """What the head of a pod, `revision|phase|fence|stop`, says to the holder of a fence."""
    _, phase, current, stop = head_of(head)
    if current != fence or phase not in ("Bound", "Running"):
        return Renewal(word="fenced")
    return Renewal(word="stop", reason=stop) if stop else Renewal(word="ok")
