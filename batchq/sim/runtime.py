"""How long a pod runs in a described world: the annotation `batchq/runtime`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from batchq.api.objects import RUNTIME_ANNOTATION, Object, Pod, PodGroup, full_name, kind_of
from batchq.api.times import parse_duration
from batchq.errors import InvalidInput


def runtime_of(annotations: Mapping[str, str]) -> int | None:
    """Milliseconds from start to success; None if the pod runs until something ends it."""
    written = annotations.get(RUNTIME_ANNOTATION)
    return None if written is None else _parsed(written)


@cache
def _parsed(written: str) -> int:
    return parse_duration(written)


def check_runtimes(obj: Object) -> None:
    """Every runtime stated in an object can be read.

    Raises InvalidInput.
    """
    found: list[Mapping[str, str]] = []
    if isinstance(obj, PodGroup):
        found = [task.template.annotations for task in obj.spec.tasks]
    elif isinstance(obj, Pod):
        found = [obj.metadata.annotations]
    for stated in found:
        try:
            runtime_of(stated)
        except ValueError as error:
            raise InvalidInput(
                f"{kind_of(obj)} {full_name(obj)}: annotation {RUNTIME_ANNOTATION}: {error}"
            ) from None
