"""Manifests from a file or from standard input."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from batchq.api.manifest import has_status
from batchq.api.names import counted
from batchq.api.objects import Object, PodGroup
from batchq.cli.terminal import echo
from batchq.client import with_working_dir
from batchq.client.requests import leaves_stop_policy
from batchq.config.documents import MOST_BYTES, Document, read_bounded, read_documents
from batchq.errors import InvalidInput

STDIN = "-"


class Content(NamedTuple):
    """The objects of a file, and the names of the queues whose stopPolicy it does not name."""

    objects: list[Object]
    keep_stop: frozenset[str]


def read_objects(name: str, *, in_folder: bool) -> list[Object]:
    """What `read_content` finds, without what the file leaves open."""
    return read_content(name, in_folder=in_folder).objects


def read_content(name: str, *, in_folder: bool) -> Content:
    """The objects in the file `name`, or in standard input for `-`.

    With `in_folder`, pods whose templates name no workingDir start in the file's folder.
    A warning goes to stderr where there is a `status`, which is batchq's to write.
    Raises InvalidInput, also where there is no object at all.
    """
    source = "standard input" if name == STDIN else name
    documents = read_documents(_content(name), source)
    if not documents:
        raise InvalidInput(
            f"{source}: expected at least one manifest, found nothing",
            hint="a manifest begins with apiVersion: batchq/v1",
        )
    objects = [document.decode() for document in documents]
    count = sum(has_status(document.data) for document in documents)
    if count:
        ignored = f"status is batchq's, and is ignored in {counted(count, 'object')}"
        echo(f"warning: {source}: {ignored}", err=True)
    keep_stop = queues_to_keep_stopped(documents, objects)
    if not in_folder:
        return Content(objects, keep_stop)
    folder = Path.cwd() if name == STDIN else Path(name).resolve().parent
    return Content([_in_folder(item, str(folder)) for item in objects], keep_stop)


def queues_to_keep_stopped(
    documents: Sequence[Document], objects: Sequence[Object]
) -> frozenset[str]:
    """The names of the queues whose manifests do not name their stopPolicy."""
    return frozenset(
        item.metadata.name
        for document, item in zip(documents, objects, strict=True)
        if leaves_stop_policy(document.data)
    )


def _content(name: str) -> bytes:
    if name == STDIN:
        return sys.stdin.buffer.read(MOST_BYTES + 1)
    try:
        return read_bounded(Path(name))
    except OSError as error:
        raise InvalidInput(f"{name}: the file cannot be read: {error.strerror}") from None


def _in_folder(item: Object, folder: str) -> Object:
    return with_working_dir([item], folder)[0] if isinstance(item, PodGroup) else item
