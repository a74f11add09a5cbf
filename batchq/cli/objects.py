"""`batchq get`, `apply` and `delete`: objects by name, or in manifests from a file or stdin."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import click

from batchq.api.manifest import encode, has_status
from batchq.api.notation import counted, nearest
from batchq.api.objects import (
    DEFAULT,
    KINDS,
    NAMESPACED,
    Node,
    Object,
    Pod,
    PodGroup,
    Queue,
    ResourceQuota,
    Unreadable,
    full_name,
    key_of,
    kind_of,
)
from batchq.api.resources import CPU, MEMORY, PODS
from batchq.api.transaction import POD_GROUPS
from batchq.api.views import Effect
from batchq.cli.checks import checks_table
from batchq.cli.output import Table, echo, is_terminal, show_hint, show_warning, tables
from batchq.cli.output.forms import (
    Output,
    manifests,
    output_of,
    path_of,
    reference,
    report,
    show_list,
    show_pages,
    show_unreadable,
)
from batchq.cli.output.options import (
    LIST_FORMATS,
    Globals,
    Paging,
    all_namespaces_option,
    examples,
    namespace_option,
    output_option,
    paging_options,
    pass_globals,
)
from batchq.cli.output.values import (
    KIND_NAMES,
    complete_kind,
    kind_and_name,
    kind_of_word,
    name_of_kind,
)
from batchq.client import Applied, Client, with_working_dir
from batchq.client.request import (
    capacity_warnings,
    leaves_stop_policy,
    limit_warnings,
    present_folder,
    stopped_queue_warnings,
    unknown_node_warnings,
)
from batchq.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    Rejected,
    StoreUnavailable,
    UnreadableRecord,
    UsageError,
)

if TYPE_CHECKING:
    from batchq.api.views import GroupPage
    from batchq.client.watch import Page
    from batchq.config.documents import Document

STDIN = "-"
#: How many groups are named that are larger than the nodes; the others are counted.
_CAPACITY_WARNINGS = 5


#: A namespace's groups in a file are checked against its limit once there are more than this.
#: Fewer are read faster than the limit is.
_UNCHECKED = 10_000


class GroupLimitCheck:
    """Checks the limits of namespaces while a file is read, so that a file with far too many groups
    is refused before all of it is in memory.

    Nothing is checked without `shared`, which names the server, or if no server answers, which the
    command will report.
    """

    def __init__(self, shared: Globals | None, source: str, content: bytes) -> None:
        self._shared = shared
        self._source = source
        self._groups: dict[str, set[str]] = {}
        self._check_at: dict[str, int] = {}
        #: A quota in the file may raise the limit.
        self._is_on = b"ResourceQuota" not in content

    def __call__(self, data: object) -> None:
        """Count a manifest. Raises Rejected."""
        if self._shared is None or not self._is_on or not isinstance(data, dict):
            return
        meta = data.get("metadata")
        if data.get("kind") != "PodGroup" or not isinstance(meta, dict):
            return
        namespace = str(meta.get("namespace", DEFAULT))
        keys = self._groups.setdefault(namespace, set())
        keys.add(f"{namespace}/{meta.get('name')}")
        if len(keys) > self._check_at.get(namespace, _UNCHECKED):
            self._check(self._shared, namespace)

    def _check(self, shared: Globals, namespace: str) -> None:
        keys = self._groups[namespace]
        try:
            with shared.connect() as client:
                left = client.check_group_limit(keys, self._source)
        except StoreUnavailable:
            left = None
        self._is_on = left is not None
        self._check_at[namespace] = len(keys) + (left or 0)


class Content(NamedTuple):
    """The objects of a file, and the names of the queues whose stopPolicy it does not set.

    `documents` are the objects' manifests, in the file's order; none if there is no file.
    """

    objects: list[Object]
    keep_stop: frozenset[str]
    documents: Sequence[Document] = ()


@contextmanager
def located_in(documents: Sequence[Document]) -> Iterator[None]:
    """Add the file and the line to errors about what the documents describe."""
    try:
        yield
    except (InvalidInput, NotFound, Conflict, Rejected) as error:
        from batchq.config.documents import located

        raise located(error, documents) from None


def read_objects(name: str, *, in_folder: bool) -> list[Object]:
    """Return the objects that `read_content` returns."""
    return read_content(name, in_folder=in_folder).objects


def read_content(name: str, *, in_folder: bool, limits_of: Globals | None = None) -> Content:
    """Read the objects in the file `name`, or in standard input for `-`.

    With `in_folder`, the file's folder is the default workingDir of pods. A `status`, which only
    batchq writes, causes a warning on stderr. `limits_of` names the server whose limits of groups
    are checked while the file is read.

    Raises InvalidInput, also if there is no object.
    """
    from batchq.config.documents import read_documents

    source = "standard input" if name == STDIN else name
    content = _content(name)
    check = GroupLimitCheck(limits_of, source, content)
    try:
        documents = read_documents(content, source, check=check)
    except InvalidInput as problem:
        if content.startswith(b"#!"):
            raise InvalidInput(problem.message, hint=_run_script(name)) from None
        raise
    if not documents:
        raise InvalidInput(
            f"{source}: expected at least one manifest, found nothing",
            hint="a manifest begins with apiVersion: batchq/v1",
        )
    objects = [document.decode() for document in documents]
    count = sum(has_status(document.data) for document in documents)
    if count:
        ignored = f"only batchq writes status; it is ignored in {counted(count, 'object')}"
        show_warning(f"{source}: {ignored}")
    keep_stop = queues_to_keep_stopped(documents, objects)
    if not in_folder:
        return Content(objects, keep_stop, documents)
    folder = present_folder() if name == STDIN else str(Path(name).resolve().parent)
    in_place = [_in_folder(item, folder) for item in objects]
    return Content(in_place, keep_stop, documents)


def _run_script(name: str) -> str:
    """Return the hint for a script in the place of a manifest."""
    file = "FILE" if name == STDIN else name
    return (
        f"-f reads manifests; `batchq submit -- bash {file}` runs a script, whose #SBATCH lines are"
        " ignored: give options instead"
    )


def queues_to_keep_stopped(
    documents: Sequence[Document], objects: Sequence[Object]
) -> frozenset[str]:
    """Return the names of the queues whose manifests do not set stopPolicy."""
    return frozenset(
        item.metadata.name
        for document, item in zip(documents, objects, strict=True)
        if leaves_stop_policy(document.data)
    )


def _content(name: str) -> bytes:
    from batchq.config.documents import MOST_BYTES, read_bounded

    if name == STDIN:
        return sys.stdin.buffer.read(MOST_BYTES + 1)
    try:
        return read_bounded(Path(name))
    except OSError as error:
        raise InvalidInput(f"{name}: the file cannot be read: {error.strerror}") from None


def _in_folder(item: Object, folder: str) -> Object:
    return with_working_dir([item], folder)[0] if isinstance(item, PodGroup) else item


@click.command(
    epilog=examples(
        "batchq get queues",
        "batchq get podgroups -A -o yaml",
        "batchq get queue default -o yaml",
        "batchq get pods -o wide",
        "batchq get podgroups -A -o name --limit 1000",
    )
)
@click.argument("kind", shell_complete=complete_kind)
@click.argument("name", required=False)
@namespace_option
@all_namespaces_option("The objects")
@paging_options
@output_option(*LIST_FORMATS)
@pass_globals
def get(
    shared: Globals,
    kind: str,
    name: str | None,
    namespace: str,
    all_namespaces: bool,
    paging: Paging,
    output: Output,
) -> None:
    """List objects of a KIND by name, or print the one called NAME.

    KIND is podgroup, pod, queue, node, resourcequota, priorityclass or admissioncheck, also in the
    plural or short (pg, q, no, quota, pc, check). `batchq apply -f -` reads what `-o yaml` prints;
    other commands accept what `-o name` prints, such as podgroup/default/train, instead of KIND
    NAME.

    Groups and pods are read --chunk-size at a time, and each chunk is printed as soon as it is
    read. --limit ends a list early and prints where it continues; --continue starts there.

    Records that cannot be read are listed as Unreadable; `batchq delete` deletes them by name.
    """
    from batchq.api.views import token_of_object

    if name is None and "/" in kind:
        kind, name = kind_and_name(kind)
    else:
        kind = kind_of_word(kind)
        name = None if name is None else name_of_kind(kind, name)
    space = "" if all_namespaces or kind not in NAMESPACED else namespace
    with shared.connect() as client:
        rows = _Tables(client, kind, namespaces=space == "")
        shown = manifests(rows.of)
        if name is not None:
            item = client.get(kind, name, namespace=namespace)
            output.page(encode(item), lambda: show_list(output, [item], shown), name=path_of(item))
            return
        pages = ((page.objects, page.unreadable) for page in _pages(client, kind, space, paging))
        done = show_pages(output, pages, shown, limit=paging.limit, token_of=token_of_object)
    show_unreadable(output, done.unreadable)
    if output.for_people and not done.written and not done.unreadable:
        echo(f"there are no objects of kind {kind}", err=True)


def _pages(client: Client, kind: str, space: str, paging: Paging) -> Iterable[Page]:
    """Return pages by key; a single page for small kinds, and with --chunk-size 0."""
    from batchq.client.watch import Page

    if kind in ("PodGroup", "Pod") and paging.size:
        size = paging.size if paging.limit is None else min(paging.size, paging.limit + 1)
        return client.pages(kind, namespace=space, after=paging.after, size=size)
    listing = client.listing(kind, namespace=space)
    objects = listing.objects
    if paging.after:
        objects = tuple(one for one in objects if key_of(one) > paging.after.partition(".")[2])
    return [Page(objects=objects, unreadable=listing.unreadable)]


class _Tables:
    """Builds tables of one kind, for some objects at a time."""

    def __init__(self, client: Client, kind: str, *, namespaces: bool) -> None:
        self._client, self._kind, self._namespaces = client, kind, namespaces
        self._groups: Callable[[Sequence[PodGroup]], GroupPage] | None = None

    def of(self, objects: Sequence[Object]) -> Table:
        """Return the table of these objects."""
        client, names = self._client, {item.metadata.name for item in objects}
        match self._kind:
            case "PodGroup":
                if self._groups is None:
                    self._groups = _shown_as(client)
                page = self._groups(cast(Sequence[PodGroup], objects))
                return tables.groups_table(page.views, page.at, namespaces=self._namespaces)
            case "Pod":
                return tables.pods_table(cast(Sequence[Pod], objects), namespaces=self._namespaces)
            case "Queue":
                views = [one for one in client.queues() if one.queue.metadata.name in names]
                return tables.queues_table(views, stacked=is_terminal())
            case "Node":
                nodes = cast(Sequence[Node], objects)
                return tables.nodes_table(nodes, client.ledger(), client.now_ms())
            case "ResourceQuota":
                return tables.quotas_table(cast(Sequence[ResourceQuota], objects), client.ledger())
            case "AdmissionCheck":
                existing = [check for check in client.checks.records() if check.name in names]
                return checks_table(existing, client.now_ms())
            case _:
                return tables.plain_table(objects)


def _shown_as(client: Client) -> Callable[[Sequence[PodGroup]], GroupPage]:
    """Return a function that shows groups, with positions unless there are too many groups."""
    from batchq.api.views import WHOLE_UP_TO, GroupPage

    if client.count("PodGroup") > WHOLE_UP_TO:
        return client.look().views
    overview = client.overview()
    views = {view.key: view for view in overview.groups()}

    def shown(groups: Sequence[PodGroup]) -> GroupPage:
        found = (views.get(key_of(group)) for group in groups)
        existing = tuple(view for view in found if view is not None)
        return GroupPage(views=existing, at=overview.at)

    return shown


_NAMED_ALONE = tuple(kind for kind in KINDS if kind not in NAMESPACED)


@click.command(
    epilog=examples(
        "batchq delete podgroup train-1",
        "batchq delete queue research vision",
        "batchq delete -f conf/queues.yaml",
    )
)
@click.argument("words", nargs=-1, metavar="[KIND NAME…]", shell_complete=complete_kind)
@click.option(
    "-f", "--filename", metavar="FILE", help="Delete the objects of this file; - is stdin."
)
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
    output: Output,
) -> None:
    """Delete objects of a KIND by their names, or those of a file.

    A single word names a pod group; KIND/NAME, as `batchq get -o name` prints it, is accepted, too.

    All objects are deleted or, if one cannot be, none. The pods of a finished group are deleted
    with it; an unfinished group must be cancelled first. A queue that requires a deleted admission
    check admits nothing more, which causes a warning on stderr. An unreadable record is deleted by
    the name that `batchq get` and `batchq doctor` show.
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
    """Return kind, name and namespace of each object to delete."""
    if filename is not None:
        if words:
            raise UsageError("expected names or a file with -f, found both")
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
    return [(kind, name, namespace) for name in words[1:]]


def _found(client: Client, kind: str, name: str, namespace: str) -> Object | Unreadable:
    """Return the object or the unreadable record of this name, which may be an invalid name."""
    try:
        name_of_object = name_of_kind(kind, name)
        return client.get(kind, name_of_object, namespace=namespace)
    except (UnreadableRecord, NotFound, InvalidInput, UsageError):
        damaged = {one.key: one for one in client.listing(kind).unreadable}
        found = damaged.get(name) or damaged.get(f"{namespace}/{name}")
        if found is None:
            raise
        return found


def _check_meant(client: Client, word: str) -> None:
    """Refuse a name that could be a group's or another object's."""
    for kind in _NAMED_ALONE:
        if any(item.metadata.name == word for item in client.list(kind)):
            raise UsageError(
                f"{word} may be a PodGroup, but there is a {kind} of this name",
                hint=f"write `batchq delete podgroup {word}` or"
                f" `batchq delete {kind.lower()} {word}`",
            )


@click.command(
    epilog=examples(
        "batchq apply -f conf/queues.yaml",
        "batchq apply -f conf/queues.yaml --dry-run",
        "batchq get queue default -o yaml | batchq apply -f -",
    )
)
@click.option("-f", "--filename", required=True, metavar="FILE", help="A file, or - for stdin.")
@click.option("--dry-run", is_flag=True, help="Check everything, change nothing.")
@output_option("text", "json", "yaml", "name")
@pass_globals
def apply(shared: Globals, filename: str, dry_run: bool, output: Output) -> None:
    """Create the objects of a file that do not exist, and change the others.

    All objects are applied or, if one is refused, none. The file's folder is the default workingDir
    of pods. A queue keeps its stopPolicy unless the file sets one.

    Consequences that a queue's author may not intend (guarantees beyond the machines' capacity,
    limits below the current usage) cause warnings on stderr; the queue is applied.
    """
    content = read_content(filename, in_folder=filename != STDIN, limits_of=shared)
    apply_content(shared, content, dry_run=dry_run, output=output)


def apply_content(shared: Globals, content: Content, *, dry_run: bool, output: Output) -> None:
    """Apply the content of a file, and print what was done to each object."""
    with shared.connect() as client:
        with located_in(content.documents):
            applied = client.apply(content.objects, dry_run=dry_run, keep_stop=content.keep_stop)
        warn(applied)
        warn_of_capacity(client, applied)
        warn_of_unknown_resources(client, dict(_stated_resources(applied)))
    if not output.for_people:
        show_list(output, [one.object for one in applied], manifests(tables.plain_table))
        return
    suffix = " (dry run)" if dry_run else ""
    for one in applied:
        changes = f": {one.changes}" if one.changes else ""
        echo(f"{reference(one.object)} {one.effect}{suffix}{changes}")


def show_objects(objects: Sequence[Object], form: str) -> None:
    """Print objects for programs: a single one as a manifest, several in a List."""
    output, shown = output_of(form), manifests(tables.plain_table)._replace(row=_manifest)
    if len(objects) == 1 and form != "name":
        output.page(_manifest(objects[0]), lambda: None)
    else:
        show_list(output, objects, shown)


def _manifest(item: Object) -> dict[str, object]:
    """Return an object's manifest; without a status if the object has not been stored."""
    written = encode(item)
    return written if item.metadata.uid else {k: v for k, v in written.items() if k != "status"}


def _stated_resources(applied: Sequence[Applied]) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the subject of each quota and queue with the resources that it names, but for those of
    external groups applied with it: they use no node, so no node needs to have their resources.
    """
    elsewhere = {
        name
        for one in applied
        if isinstance(one.object, PodGroup) and one.object.spec.controller == "external"
        for name in one.object.spec.min_resources
    }
    for subject, names in _resources_of_limits(applied):
        yield subject, [name for name in names if name not in elsewhere]


def _resources_of_limits(applied: Sequence[Applied]) -> Iterator[tuple[str, Iterable[str]]]:
    for one in applied:
        meta = one.object.metadata
        if isinstance(one.object, ResourceQuota):
            yield f"the quota of namespace {meta.namespace} limits", one.object.spec.hard
        elif isinstance(one.object, Queue):
            spec = one.object.spec
            for field in ("guarantee", "deserved", "capability"):
                yield f"queue {meta.name} has a {field} of", getattr(spec, field)


def warn(applied: Sequence[Applied]) -> None:
    """Print warnings about unintended consequences of a request on stderr."""
    for one in applied:
        for warning in one.warnings:
            show_warning(warning)


def warn_of_capacity(client: Client, applied: Sequence[Applied]) -> None:
    """Say on stderr which new groups exceed the nodes or a limit, name a node that does not exist,
    or are in a stopped queue, before anyone waits for them.
    """
    groups = [
        one.object
        for one in applied
        if isinstance(one.object, PodGroup) and one.effect is Effect.CREATED
    ]
    if not groups:
        return
    try:
        nodes, limits = client.nodes(), _limits_of(client, groups)
    except StoreUnavailable:
        # The groups are submitted, whatever becomes of the server.
        return
    beyond_limits = list(limit_warnings(groups, *limits))
    beyond_nodes = list(capacity_warnings(groups, nodes))
    _show_some(beyond_limits, "can never start")
    _show_some(beyond_nodes, "cannot start on the existing nodes")
    _show_some(list(unknown_node_warnings(groups, nodes)), "name nodes that do not exist")
    _show_some(list(stopped_queue_warnings(groups, limits[0])), "wait in stopped queues")
    if beyond_nodes:
        show_hint("`batchq plan` says what would fit; a node that takes it may still join")
    elif beyond_limits:
        show_hint("`batchq plan` says what would fit")


def warn_of_unknown_resources(client: Client, stated: Mapping[str, Iterable[str]]) -> None:
    """Say on stderr which resources of quotas and queues no node has: probably misspelt ones."""
    try:
        nodes = client.nodes() if any(stated.values()) else ()
    except (NotFound, StoreUnavailable):
        return
    if not nodes:
        return
    offered = {name for node in nodes for name in node.spec.resources}
    known = offered | {CPU, MEMORY, PODS, POD_GROUPS}
    for subject, names in stated.items():
        for name in names:
            if name not in known:
                near = nearest(name, known)
                meant = f"; did you mean {near}?" if near else ""
                show_warning(f"{subject} {name}, and no node has {name}{meant}")


def _limits_of(
    client: Client, groups: Sequence[PodGroup]
) -> tuple[Sequence[Queue], Sequence[ResourceQuota]]:
    """Return the queues and the quotas of the groups' namespaces, if the user may read them."""
    spaces = {group.metadata.namespace for group in groups}
    try:
        queues = [queue for queue in client.list("Queue") if isinstance(queue, Queue)]
        return queues, client.quotas(spaces.pop() if len(spaces) == 1 else "")
    except (NotFound, StoreUnavailable):
        return [], []


def _show_some(warnings: Sequence[str], problem: str) -> None:
    for warning in warnings[:_CAPACITY_WARNINGS]:
        show_warning(warning)
    if more := len(warnings[_CAPACITY_WARNINGS:]):
        show_warning(f"{counted(more, 'more group')} {problem}")
