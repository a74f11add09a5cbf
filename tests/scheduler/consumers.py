"""External groups for tests, and the calls of their consumers on a stack."""

from __future__ import annotations

from typing import Any

import pytest

from batchq.api.objects import Metadata, PodGroup, PodGroupSpec, Task
from batchq.client import changes
from batchq.client.changes import consumer_leases
from batchq.errors import Conflict
from tests.builders import amounts
from tests.scheduler.conftest import Stack

SECOND = 1_000
#: The charge of an external group of four cpus.
CHARGED = {"cpu": 4000, "podgroups": 1000}


def external(
    name: str = "e", *, cpu: int = 4, tasks: tuple[Task, ...] = (), **spec: Any
) -> PodGroup:
    return PodGroup(
        metadata=Metadata(name=name, namespace="default"),
        spec=PodGroupSpec(
            controller="external", min_resources=amounts(cpu=cpu), tasks=tasks, **spec
        ),
    )


def claim(stack: Stack, name: str = "e", holder: str = "worker-1", ttl_s: int = 60) -> str:
    """Claim a group and return the token."""
    claimed = consumer_leases.claim(
        stack.store,
        f"default/{name}",
        holder=holder,
        ttl_ms=ttl_s * SECOND,
        secret=stack.ids.new_uid(),
        now_ms=stack.clock.at_ms,
    )
    stack.commit(claimed.transaction)
    return claimed.token


def renew(stack: Stack, token: str, ttl_s: int | None = None) -> consumer_leases.Renewed:
    renewed = consumer_leases.renew(
        stack.store,
        token,
        ttl_ms=None if ttl_s is None else ttl_s * SECOND,
        now_ms=stack.clock.at_ms,
    )
    if renewed.transaction is not None:
        stack.commit(renewed.transaction)
    return renewed


def report(stack: Stack, token: str, phase: Any, pod: str = "", message: str = "") -> None:
    stack.commit(
        consumer_leases.report(
            stack.store, token, phase, pod=pod, message=message, now_ms=stack.clock.at_ms
        )
    )


def release(stack: Stack, token: str) -> None:
    stack.commit(consumer_leases.release(stack.store, token, now_ms=stack.clock.at_ms))


def later(stack: Stack, seconds: int) -> None:
    """Let time pass, then run a session."""
    stack.clock.at_ms += seconds * SECOND
    stack.until_idle()


def phase(stack: Stack, name: str = "e") -> str:
    return str(stack.group(name).status.phase)


def in_queue(stack: Stack, *groups: PodGroup) -> None:
    """Submit the groups, and let the scheduler admit them."""
    stack.apply(*groups)
    stack.until_idle()
    assert [phase(stack, group.metadata.name) for group in groups] == ["InQueue"] * len(groups)


def suspend(stack: Stack, name: str = "e") -> None:
    key = f"default/{name}"
    stack.commit(changes.suspend(stack.store, key, now_ms=stack.clock.at_ms))
    stack.until_idle()


def resume(stack: Stack, name: str = "e") -> None:
    key = f"default/{name}"
    stack.commit(changes.resume(stack.store, key, now_ms=stack.clock.at_ms))
    stack.until_idle()


def refusal(stack: Stack, what: Any, token: str, *arguments: Any) -> str:
    """Return the message of the Conflict for a dead token."""
    with pytest.raises(Conflict) as caught:
        what(stack, token, *arguments)
    return caught.value.message
