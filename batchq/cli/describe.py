"""`batchq describe`: everything about one object, its reasons with numbers, its last events."""

from __future__ import annotations

from collections.abc import Sequence

import click
from msgspec import to_builtins

from batchq.api.manifest import encode
from batchq.api.objects import AdmissionCheck, Metadata, Node, Object, Pod, PodGroup, Queue, key_of
from batchq.api.times import format_instant
from batchq.api.transaction import Event
from batchq.cli import checkview, pages
from batchq.cli.jobs import row_of
from batchq.cli.options import Globals, examples, namespace_option, output_option, pass_globals
from batchq.cli.output import show_data, show_section
from batchq.cli.queueview import show_queue_page
from batchq.cli.values import complete_kind, kind_and_name, kind_of_word, name_of_kind
from batchq.client import Client
from batchq.client.overview import Explanation
from batchq.client.queues import ROOT
from batchq.errors import NotFound, UsageError

_EVENTS = 15


@click.command(
    epilog=examples(
        "batchq describe train-1",
        "batchq describe research/train-1 -o json",
        "batchq describe queue default",
        "batchq describe node gpu-01",
    )
)
@click.argument("words", nargs=-1, metavar="[KIND] NAME", shell_complete=complete_kind)
@namespace_option
@output_option("text", "json", "yaml")
@pass_globals
def describe(shared: Globals, words: tuple[str, ...], namespace: str, output: str) -> None:
    """Show everything about an object; without a KIND, about a pod group.

    For a group that waits: its place in line, who is ahead, and all reasons, the most fundamental
    first, with the numbers of this moment.
    """
    kind, name = _what(words)
    with shared.connect() as client:
        item = _found(client, kind, name, namespace)
        explanation = client.explain(key_of(item)) if isinstance(item, PodGroup) else None
        events = client.events(kind=kind, key=key_of(item), most=_EVENTS)
        if output != "text":
            show_data(_data(client, item, explanation, events), output)
            return
        match item:
            case PodGroup() if explanation is not None:
                pages.show_group(client, item, explanation)
            case Queue():
                _show_queue(client, item)
            case Node():
                pages.show_node(client, item)
            case Pod():
                pages.show_pod(client, item)
            case AdmissionCheck():
                check = client.checks.page(item.metadata.name)
                checkview.show_check(check.check, check.queues, check.views, client.now_ms())
            case _:
                pages.show_plain(item)
        rows = [(format_instant(event.at), event.reason, event.message) for event in events]
        show_section("Events", rows)


def _found(client: Client, kind: str, name: str, namespace: str) -> Object:
    """The object; the root queue, even if nobody has written it down."""
    try:
        return client.get(kind, name, namespace=namespace)
    except NotFound:
        if (kind, name) != ("Queue", ROOT):
            raise
        return Queue(metadata=Metadata(name=ROOT))


def _show_queue(client: Client, queue: Queue) -> None:
    overview = client.overview()
    page = overview.queue_page(queue.metadata.name)
    if page is not None:
        show_queue_page(page, overview.at)
        name = queue.metadata.name
        checkview.show_checks_of_queue(name, client.checks.of_queue(name), overview.at)


def _what(words: tuple[str, ...]) -> tuple[str, str]:
    match words:
        case (name,):
            return kind_and_name(name)
        case (word, name):
            kind = kind_of_word(word)
            return kind, name_of_kind(kind, name)
        case _:
            raise UsageError(
                f"expected the name of a pod group, or a kind and a name, found {len(words)} words"
                if words
                else "expected the name of a pod group, or a kind and a name, found nothing",
                hint="as in `batchq describe train-1` or `batchq describe queue default`",
            )


def _data(
    client: Client, item: Object, explanation: Explanation | None, events: Sequence[Event]
) -> dict[str, object]:
    data: dict[str, object] = {"object": encode(item)}
    if explanation is not None and isinstance(item, PodGroup):
        data |= row_of(explanation.group)
        data["ahead"] = list(explanation.ahead)
        data["verdicts"] = [to_builtins(one.now or one.stored) for one in explanation.blockers]
        data["podList"] = [encode(pod) for pod in client.pods(item)]
    data["events"] = [
        {"at": format_instant(event.at), "reason": event.reason, "message": event.message}
        for event in events
    ]
    return data
