"""`batchq delete`: take objects away."""

from __future__ import annotations

import click

from batchq.api.objects import KINDS, NAMESPACED, Object, full_name, key_of, kind_of
from batchq.api.unreadable import Unreadable
from batchq.cli.apply import warn
from batchq.cli.files import read_objects
from batchq.cli.options import Globals, examples, namespace_option, output_option, pass_globals
from batchq.cli.output import report
from batchq.cli.values import (
    KIND_NAMES,
    complete_kind,
    kind_and_name,
    kind_of_word,
    name_of_kind,
)
from batchq.client import Client
from batchq.errors import InvalidInput, NotFound, UnreadableRecord, UsageError

_NAMED_ALONE = tuple(kind for kind in KINDS if kind not in NAMESPACED)


@click.command(
    epilog=examples(
        "batchq delete podgroup train-1",
        "batchq delete queue research vision",
        "batchq delete -f conf/queues.yaml",
    )
)
@click.argument("words", nargs=-1, metavar="[KIND NAME…]", shell_complete=complete_kind)
@click.option("-f", "--filename", metavar="FILE", help="Delete what this file names; - is stdin.")
@namespace_option
@click.option("--dry-run", is_flag=True, help="Check everything, change nothing.")
@output_option("text", "json")
@pass_globals
def delete(
    shared: Globals,
    words: tuple[str, ...],
    filename: str | None,
    namespace: str,
    dry_run: bool,
    output: str,
) -> None:
    """Delete objects of a KIND by their names, or those that a file names.

    A name alone is a pod group's; KIND/NAME, as `batchq get -o name` prints it, is taken, too.

    All of them or, if one cannot be deleted, none. A finished group takes its pods along; one that
    has not ended has to be cancelled first. Queues that ask for an admission check that is deleted
    admit nothing more, which is told on stderr. What cannot be read is deleted by the name that
    `batchq get` and `batchq doctor` show for it.
    """
    wanted = _wanted(words, filename, namespace)
    with shared.connect() as client:
        if len(words) == 1:
            _check_meant(client, words[0])
        found: list[Object] = []
        damaged: list[Unreadable] = []
        for kind, name, space in wanted:
            item = _found(client, kind, name, space)
            if isinstance(item, Unreadable):
                damaged.append(item)
            else:
                found.append(item)
        places = list(dict.fromkeys((kind_of(item), key_of(item)) for item in found))
        applied = client.delete_all(places, dry_run=dry_run) if places else ()
        for record in damaged if not dry_run else ():
            client.discard(record)
    warn(applied)
    suffix = " (dry run)" if dry_run else ""
    with report(output) as done:
        for record in damaged:
            done(record.kind, record.key, f"deleted, unreadable{suffix}")
        for one in applied:
            done(kind_of(one.object), full_name(one.object), f"deleted{suffix}")


def _wanted(
    words: tuple[str, ...], filename: str | None, namespace: str
) -> list[tuple[str, str, str]]:
    """Kind, name and namespace of what is to go."""
    if filename is not None:
        if words:
            raise UsageError("name the objects, or a file with -f, not both")
        objects = read_objects(filename, in_folder=False)
        return [
            (kind_of(item), item.metadata.name, item.metadata.namespace or namespace)
            for item in objects
        ]
    if not words or (len(words) == 1 and words[0].lower() in KIND_NAMES):
        raise UsageError(
            "expected a kind and a name, or a file with -f",
            hint="as in `batchq delete podgroup train-1`",
        )
    if len(words) == 1 or "/" in words[0]:
        return [(*kind_and_name(word), namespace) for word in words]
    kind = kind_of_word(words[0])
    return [(kind, name_of_kind(kind, name), namespace) for name in words[1:]]


def _found(client: Client, kind: str, name: str, namespace: str) -> Object | Unreadable:
    """What stands under a name, also where it is no object, and where the name is none."""
    try:
        return client.get(kind, name, namespace=namespace)
    except (UnreadableRecord, NotFound, InvalidInput):
        for one in client.listing(kind).unreadable:
            if one.key in (name, f"{namespace}/{name}"):
                return one
        raise


def _check_meant(client: Client, word: str) -> None:
    """A name alone is a group's; it must not be that of something else as well."""
    for kind in _NAMED_ALONE:
        if any(item.metadata.name == word for item in client.list(kind)):
            raise UsageError(
                f"{word} may be a PodGroup, and is the name of a {kind}, too",
                hint=f"say which: `batchq delete podgroup {word}` or"
                f" `batchq delete {kind.lower()} {word}`",
            )
