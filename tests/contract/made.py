"""Minimal objects and transactions for tests of stores."""

from __future__ import annotations

from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import (
    Metadata,
    Node,
    Object,
    Pod,
    PodGroup,
    PodGroupStatus,
    PodSpec,
    PodStatus,
    Queue,
    key_of,
    kind_of,
)
from batchq.api.transaction import Answer, Charge, Commit, Limit, Transaction, Write


def group(
    name: str = "a",
    *,
    uid: str = "u1",
    phase: PodGroupPhase = PodGroupPhase.PENDING,
    admission: int = 0,
    namespace: str = "x",
) -> PodGroup:
    return PodGroup(
        metadata=Metadata(name=name, namespace=namespace, uid=uid),
        status=PodGroupStatus(phase=phase, admission=admission),
    )


def pod(
    index: int = 0,
    *,
    group_uid: str = "u1",
    phase: PodPhase = PodPhase.PENDING,
    attempt: int = 0,
    admission: int = 1,
    stop: str = "",
    node: str = "",
) -> Pod:
    return Pod(
        metadata=Metadata(
            name=f"a-main-{index}", namespace="x", uid=f"{group_uid}-{admission}-{index}"
        ),
        spec=PodSpec(pod_group="a", task="main", index=index),
        status=PodStatus(
            phase=phase,
            group_uid=group_uid,
            admission=admission,
            attempt=attempt,
            node=node,
            terminating=bool(stop),
            reason=stop,
        ),
    )


def queue(name: str = "q") -> Queue:
    return Queue(metadata=Metadata(name=name))


def node(name: str = "n1") -> Node:
    return Node(metadata=Metadata(name=name))


def put(item: Object, *, expect: int | None = 0, fence: str = "") -> Write:
    return Write(kind=kind_of(item), key=key_of(item), expect=expect, value=item, fence=fence)


def gone(item: Object, *, expect: int | None, fence: str = "") -> Write:
    return Write(kind=kind_of(item), key=key_of(item), expect=expect, value=None, fence=fence)


def writing(*writes: Write) -> Transaction:
    return Transaction(subject="a test", writes=writes)


def charging(*charges: Charge) -> Transaction:
    return Transaction(subject="a test", charges=charges)


def limiting(scope: str, **amounts: int) -> Transaction:
    return Transaction(subject="a test", limits=(Limit(scope=scope, amounts=amounts),))


def charge(holder: str, *scopes: str, checked: bool = False, **amounts: int) -> Charge:
    return Charge(holder=holder, scopes=scopes, amounts=amounts, checked=checked)


def answers(commit: Commit) -> list[Answer]:
    return [refusal.answer for refusal in commit.refused]


def words(commit: Commit) -> list[str]:
    """Return the answers' words."""
    return [str(answer.word) for answer in answers(commit)]


def at_revision(item: Object, revision: int) -> Object:
    return structs.replace(item, metadata=structs.replace(item.metadata, revision=revision))
