"""The forms of an answer: one `Output` for each word of -o.

A command computes a value and declares once what people read of it: the columns of a list, or the
text of a page. Its Output decides what is written: text, JSON, YAML or names. JSON and YAML have
the value's own fields (`batchq.api.notation.data_of`), unless a listing declares other rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from msgspec import Meta, Struct, convert

from batchq.api.manifest import encode
from batchq.api.notation import counted, data_of, format_duration, format_instant
from batchq.api.objects import API_VERSION, Object, Unreadable, full_name, kind_of
from batchq.api.resources import Amounts, format_quantity
from batchq.cli.output import Table, TableWriter, echo, show_table

#: How a field of a row is written: an instant or a duration (ms), amounts in integer units.
Time: TypeAlias = Annotated[int, Meta(extra={"form": "instant"})]
Length: TypeAlias = Annotated[int, Meta(extra={"form": "duration"})]
Quantities: TypeAlias = Annotated[dict[str, int], Meta(extra={"form": "amounts"})]


class Row(Struct, frozen=True, kw_only=True, rename="camel"):
    """The fields of an answer for programs, in their order, for values that are written in another
    shape than their own.
    """

    @classmethod
    def of(cls, value: object, **given: object) -> Self:
        """Return the row of a value: a field is given, or is the value's attribute of that name."""
        source = _Source(value, given) if given else value
        return convert(source, cls, from_attributes=True)


class _Source:
    """A value with some of its attributes replaced."""

    def __init__(self, value: object, given: Mapping[str, object]) -> None:
        self.__dict__.update(given)
        self._value = value

    def __getattr__(self, name: str) -> object:
        return getattr(self._value, name)


T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
Stored = TypeVar("Stored", bound=Object)

#: Title -> the cell of an item.
Columns: TypeAlias = Mapping[str, Callable[[T], str]]


def tabled(
    items: Sequence[T], columns: Columns[T], *, wide: Sequence[str] = (), spare: Sequence[str] = ()
) -> Table:
    """Return the table of these items; `wide` and `spare` as in Table."""
    rows = tuple(tuple(cell(item) for cell in columns.values()) for item in items)
    return Table(tuple(columns), rows, wide=frozenset(wide), spare=tuple(spare))


class ListForm(NamedTuple, Generic[T]):
    """How a list is shown: as a `table`, with `none` on stderr if it is empty; as a `row` of each
    item under `items`, in an object of this `kind`; or as each item's `name`.
    """

    table: Callable[[Sequence[T]], Table]
    none: str = ""
    kind: str = ""
    row: Callable[[T], object] = data_of
    name: Callable[[T], str] = str


class ListWriter(Protocol[T_contra]):
    """Writes a list while it is read."""

    def write(self, items: Sequence[T_contra]) -> None:
        """Write the next items."""

    def end(self, following: str = "") -> None:
        """Finish the list; `following` is the token of the items that are left out."""


class Output(Protocol):
    """Writes answers to stdout in one form."""

    #: Whether people read the answer, and notes about it on stderr.
    for_people: bool

    def page(self, value: object, text: Callable[[], object], *, name: str = "") -> None:
        """Write one answer: `value` for programs, its `name`, or what `text` writes for people."""

    def listing(self, shown: ListForm[T], head: Mapping[str, object] = {}) -> ListWriter[T]:
        """Begin a list; programs also get the fields of the `head`."""

    def line(self, value: object, text: str) -> None:
        """Write a line of an answer without an end: `text`, or `value` as JSON."""


def show_list(
    output: Output, items: Sequence[T], shown: ListForm[T], *, head: Mapping[str, object] = {}
) -> None:
    """Write a whole list; programs also get the fields of the `head`."""
    writer = output.listing(shown, head)
    writer.write(items)
    writer.end()


class Shown(NamedTuple):
    """How many items `show_pages` has written, and the records that cannot be read."""

    written: int
    unreadable: Sequence[Unreadable]


def show_pages(
    output: Output,
    pages: Iterable[tuple[Sequence[T], Sequence[Unreadable]]],
    shown: ListForm[T],
    *,
    limit: int | None,
    token_of: Callable[[T], str],
) -> Shown:
    """Write a list up to the limit, each page as soon as it is read."""
    writer = output.listing(shown)
    damaged: list[Unreadable] = []
    token, following, count = "", "", 0
    for items, unreadable in pages:
        damaged += unreadable
        page = items if limit is None else items[: limit - count]
        writer.write(page)
        count += len(page)
        token = token_of(page[-1]) if page else token
        if len(items) > len(page):
            following = token
            break
    writer.end(following)
    return Shown(count, damaged)


#: How many unreadable records are shown; `-o json` of the doctor lists all.
_MOST_UNREADABLE = 20


def show_unreadable(output: Output, found: Sequence[Unreadable]) -> None:
    """Print a table of unreadable records for people, and in any case a line to stderr."""
    if not found:
        return
    if output.for_people:
        rows = [(one.kind, one.key, "Unreadable", one.why) for one in found[:_MOST_UNREADABLE]]
        show_table(Table(("KIND", "NAME", "STATUS", "WHY"), tuple(rows)))
    what = counted(len(found), "record")
    echo(
        f"{what} {'is' if len(found) == 1 else 'are'} unreadable: `batchq doctor` shows the reason,"
        " and the command that deletes it",
        err=True,
    )


class TextOutput:
    """For people; with `wide`, tables have all columns."""

    for_people = True

    def __init__(self, *, wide: bool) -> None:
        self._wide = wide

    def page(self, value: object, text: Callable[[], object], *, name: str = "") -> None:
        text()

    def listing(self, shown: ListForm[T], head: Mapping[str, object] = {}) -> ListWriter[T]:
        return _Rows(shown, TableWriter(wide=self._wide))

    def line(self, value: object, text: str) -> None:
        echo(text)


class DataOutput:
    """For programs: `json` or `yaml`."""

    for_people = False

    def __init__(self, form: str) -> None:
        self._form = form

    def page(self, value: object, text: Callable[[], object], *, name: str = "") -> None:
        show_data(data_of(value), self._form)

    def listing(self, shown: ListForm[T], head: Mapping[str, object] = {}) -> ListWriter[T]:
        if shown.kind:
            head = {"apiVersion": API_VERSION, "kind": shown.kind, **head}
        return (_Json if self._form == "json" else _Yaml)(head, shown.row)

    def line(self, value: object, text: str) -> None:
        echo(json.dumps(data_of(value), ensure_ascii=False))


class NameOutput:
    """For pipes: a name in each line."""

    for_people = False

    def page(self, value: object, text: Callable[[], object], *, name: str = "") -> None:
        echo(name)

    def listing(self, shown: ListForm[T], head: Mapping[str, object] = {}) -> ListWriter[T]:
        return _Names(shown.name)

    def line(self, value: object, text: str) -> None:
        echo(text)


def output_of(form: str) -> Output:
    """Return the output for a word of -o."""
    match form:
        case "json" | "yaml":
            return DataOutput(form)
        case "name":
            return NameOutput()
        case _:
            return TextOutput(wide=form == "wide")


class _Rows(Generic[T]):
    """The titles once, and columns as wide as a page needs."""

    def __init__(self, shown: ListForm[T], table: TableWriter) -> None:
        self._shown, self._table, self._count = shown, table, 0

    def write(self, items: Sequence[T]) -> None:
        if items:
            self._table.write(self._shown.table(items))
        self._count += len(items)

    def end(self, following: str = "") -> None:
        if following:
            echo(f"… and more: --continue {following}", err=True)
        elif not self._count and self._shown.none:
            echo(self._shown.none, err=True)


class _Names(Generic[T]):
    def __init__(self, name: Callable[[T], str]) -> None:
        self._name = name

    def write(self, items: Sequence[T]) -> None:
        for item in items:
            echo(self._name(item))

    def end(self, following: str = "") -> None:
        if following:
            echo(f"… and more: --continue {following}", err=True)


class _Json(Generic[T]):
    def __init__(self, head: Mapping[str, object], row: Callable[[T], object]) -> None:
        self._row, self._count = row, 0
        fields = "".join(f"\n  {json.dumps(name)}: {json.dumps(it)}," for name, it in head.items())
        echo(f'{{{fields}\n  "items": [', nl=False)

    def write(self, items: Sequence[T]) -> None:
        for item in items:
            text = json.dumps(data_of(self._row(item)), indent=2, ensure_ascii=False)
            indented = text.replace("\n", "\n    ")
            echo(f"{',' if self._count else ''}\n    {indented}", nl=False)
            self._count += 1

    def end(self, following: str = "") -> None:
        close = "\n  ]" if self._count else "]"
        more = {"continue": following}
        tail = f',\n  "metadata": {json.dumps(more)}' if following else ""
        echo(f"{close}{tail}\n}}")


class _Yaml(Generic[T]):
    def __init__(self, head: Mapping[str, object], row: Callable[[T], object]) -> None:
        self._row, self._count = row, 0
        if head:
            show_data(head, "yaml")

    def write(self, items: Sequence[T]) -> None:
        if not items:
            return
        text = _yaml({"items": [data_of(self._row(item)) for item in items]})
        echo(text.partition("\n")[2] if self._count else text, nl=False)
        self._count += len(items)

    def end(self, following: str = "") -> None:
        if not self._count:
            echo("items: []")
        if following:
            show_data({"metadata": {"continue": following}}, "yaml")


def show_data(data: object, form: str) -> None:
    """Write plain data as `json` or `yaml`."""
    if form == "json":
        echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        echo(_yaml(data), nl=False)


def _yaml(data: object) -> str:
    from batchq.config.documents import print_documents

    # Through JSON, so that only plain types are left.
    return print_documents([json.loads(json.dumps(data))])


def instant(at: int | None) -> str | None:
    """Return an instant as programs read it."""
    return None if at is None else format_instant(at)


def duration(length_ms: int | None) -> str | None:
    """Return a duration as programs read it."""
    return None if length_ms is None else format_duration(length_ms)


def quantities(amounts: Amounts) -> dict[str, str]:
    """Return amounts as programs read them."""
    return {name: format_quantity(name, units) for name, units in amounts.items()}


def manifests(table: Callable[[Sequence[Stored]], Table], *, none: str = "") -> ListForm[Stored]:
    """Return how objects are listed: as manifests in a List, or as `kind/name`."""
    return ListForm(table, none=none, kind="List", row=encode, name=path_of)


def path_of(item: Object) -> str:
    """Return e.g. `podgroup/default/train` or `queue/a`, which commands accept as a name."""
    return f"{kind_of(item).lower()}/{full_name(item)}"


def reference(item: Object) -> str:
    """Return e.g. `podgroup default/train` or `queue a`, for messages."""
    return f"{kind_of(item).lower()} {full_name(item)}"


class Done(Protocol):
    """Reports what was done to an object; `sentence` replaces the text for people."""

    def __call__(self, kind: str, name: str, action: str, sentence: str = "") -> None: ...


@contextmanager
def report(output: Output) -> Iterator[Done]:
    """Report what is done in this context: a line each at once, or one list at the end.

    If a step fails, the earlier steps are reported nevertheless.
    """
    items: list[dict[str, str]] = []

    def done(kind: str, name: str, action: str, sentence: str = "") -> None:
        if output.for_people:
            echo(sentence or f"{kind.lower()} {name} {action}")
        else:
            items.append({"kind": kind, "name": name, "action": action})

    try:
        yield done
    finally:
        if items:
            output.page({"items": items}, lambda: None)
