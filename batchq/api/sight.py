"""What a reader learns of a group at each tier, and of groups that it may not know.

`seen` blanks the parts of a group that a tier hides; a hidden part equals an absent one, so that
nothing about it can be inferred. `without_names` removes the names of other namespaces' groups from
a whole answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from msgspec import structs

from batchq.api.access import Tier
from batchq.api.objects import (
    Condition,
    GroupClaim,
    Metadata,
    PodGroup,
    PodGroupSpec,
    PodTemplate,
    Task,
)

#: Replaces the value of an environment variable; its name is part of the spec.
HIDDEN = "<hidden>"
#: Replaces the name of a group in a namespace that the reader may not see.
ANOTHER_GROUP = "a group of another namespace"

T = TypeVar("T")

#: `namespace/name`. Resources such as `nvidia.com/gpu` have a dot before the slash.
_GROUP_KEY = re.compile(
    r"(?<![\w./-])(?P<namespace>[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)"
    r"/[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?![\w/])"
)


def seen(group: PodGroup, tier: Tier) -> PodGroup:
    """Return what a reader of this tier sees of a group.

    The digest of a consumer's token is in no tier: it is of use to its holder only.
    """
    claim = structs.replace(group.status.claim, token="")
    group = structs.replace(group, status=structs.replace(group.status, claim=claim))
    if tier is Tier.OUTPUT:
        return group
    if tier is Tier.SPEC:
        tasks = tuple(_without_values(task) for task in group.spec.tasks)
        return structs.replace(group, spec=structs.replace(group.spec, tasks=tasks))
    return _facts(group)


def _without_values(task: Task) -> Task:
    env = dict.fromkeys(task.template.env, HIDDEN)
    return structs.replace(task, template=structs.replace(task.template, env=env))


def _facts(group: PodGroup) -> PodGroup:
    meta, spec, status = group.metadata, group.spec, group.status
    return PodGroup(
        metadata=Metadata(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            creation_timestamp=meta.creation_timestamp,
            revision=meta.revision,
        ),
        spec=PodGroupSpec(
            queue=spec.queue,
            min_member=spec.min_member,
            min_resources=spec.min_resources,
            priority_class_name=spec.priority_class_name,
            scheduling_gates=spec.scheduling_gates,
            suspend=spec.suspend,
            walltime=spec.walltime,
            controller=spec.controller,
            tasks=tuple(
                Task(
                    name=task.name,
                    replicas=task.replicas,
                    min_available=task.min_available,
                    template=PodTemplate(
                        requests=task.template.requests,
                        priority=task.template.priority,
                        scheduling_gates=task.template.scheduling_gates,
                    ),
                )
                for task in spec.tasks
            ),
        ),
        status=structs.replace(
            status,
            checks=tuple(structs.replace(check, message="") for check in status.checks),
            conditions=tuple(_without_message(one) for one in status.conditions),
            claim=GroupClaim(
                phase=status.claim.phase,
                claimed_at=status.claim.claimed_at,
                expires_at=status.claim.expires_at,
                holding=status.claim.holding,
                stop_reason=status.claim.stop_reason,
                stopped_at=status.claim.stopped_at,
            ),
            reported={},
        ),
    )


def _without_message(condition: Condition) -> Condition:
    """Return the condition without its message, which may quote what a pod has printed."""
    return structs.replace(condition, message="")


def without_names(document: T, is_visible: Callable[[str], bool]) -> T:
    """Return a JSON document without the names of groups in namespaces that are not visible."""

    def shown(found: re.Match[str]) -> str:
        namespace = found["namespace"]
        # A fraction such as 2/3 is no name.
        return found[0] if namespace.isdigit() or is_visible(namespace) else ANOTHER_GROUP

    def walked(part: object) -> object:
        match part:
            case str():
                return _GROUP_KEY.sub(shown, part)
            case dict():
                return {walked(key): walked(value) for key, value in part.items()}
            case list() | tuple():
                return [walked(one) for one in part]
            case _:
                return part

    result: T = walked(document)  # type: ignore[assignment]  # the same shape
    return result
