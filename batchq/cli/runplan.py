"""What `batchq run FILE` submits: the file's objects, its groups under names that are free."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, structs

from batchq.api.names import LABEL_MOST
from batchq.api.objects import Object, PodGroup, key_of
from batchq.cli.files import queues_to_keep_stopped
from batchq.client.groups import marked, with_working_dir
from batchq.config.documents import read_bounded, read_documents
from batchq.errors import InvalidInput, UsageError


class RunPlan(Struct, frozen=True, kw_only=True):
    """`others` (queues, quotas …) come first; `groups` in the order of the file.

    `keep_stop`: the queues whose stopPolicy the file does not name.
    """

    others: tuple[Object, ...]
    groups: tuple[PodGroup, ...]
    keep_stop: frozenset[str] = frozenset()

    @property
    def pods(self) -> int:
        """How many pods all groups have together."""
        return sum(task.replicas for group in self.groups for task in group.spec.tasks)

    def marked(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> RunPlan:
        """The same, each group with these labels and annotations beside its own."""
        groups = tuple(marked(group, labels, annotations) for group in self.groups)
        return structs.replace(self, groups=groups)


def read_plan(file: Path) -> RunPlan:
    """The objects of `file`; pods without a workingDir start in the folder of the file.

    Raises InvalidInput, also where there is no PodGroup to run.
    """
    try:
        content = read_bounded(file)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from None
    documents = read_documents(content, str(file))
    objects = [document.decode() for document in documents]
    groups = [item for item in objects if isinstance(item, PodGroup)]
    if not groups:
        raise InvalidInput(
            f"{file}: expected at least one PodGroup to run, found none",
            hint="`batchq apply -f FILE` is for files of other objects",
        )
    return RunPlan(
        others=tuple(item for item in objects if not isinstance(item, PodGroup)),
        groups=tuple(with_working_dir(groups, str(file.resolve().parent))),
        keep_stop=queues_to_keep_stopped(documents, objects),
    )


def refuse_unless_single(plan: RunPlan) -> None:
    """An exit code can be passed on where there is one pod only.

    Raises UsageError.
    """
    if plan.pods != 1:
        raise UsageError(
            f"--exit-code passes on the exit code of a single pod, and the file has {plan.pods}",
            hint="leave it out: 10 says that a group failed",
        )


def with_fresh_names(groups: Sequence[PodGroup], taken: Collection[str]) -> tuple[PodGroup, ...]:
    """The groups under names that are not among the keys `taken`: `name-2`, `name-3` …

    All groups of one file get the same number, and what they depend on within the file follows.
    """
    number = 1
    while any(_key(group, number) in taken for group in groups):
        number += 1
    if number == 1:
        return tuple(groups)
    inside = {key_of(group) for group in groups}
    return tuple(_renamed(group, number, inside) for group in groups)


def renamed(before: Iterable[PodGroup], after: Iterable[PodGroup]) -> list[tuple[str, str]]:
    """The keys of groups that got another name, old and new."""
    pairs = [(key_of(old), key_of(new)) for old, new in zip(before, after, strict=True)]
    return [(old, new) for old, new in pairs if old != new]


def _renamed(group: PodGroup, number: int, inside: Collection[str]) -> PodGroup:
    namespace = group.metadata.namespace
    depends_on = tuple(
        structs.replace(one, name=_name(one.name, number))
        if f"{namespace}/{one.name}" in inside
        else one
        for one in group.spec.depends_on
    )
    name = _name(group.metadata.name, number)
    return structs.replace(
        group,
        metadata=structs.replace(group.metadata, name=name),
        spec=structs.replace(group.spec, depends_on=depends_on),
    )


def _key(group: PodGroup, number: int) -> str:
    return f"{group.metadata.namespace}/{_name(group.metadata.name, number)}"


def _name(name: str, number: int) -> str:
    if number == 1:
        return name
    suffix = f"-{number}"
    return name[: LABEL_MOST - len(suffix)].rstrip("-") + suffix
