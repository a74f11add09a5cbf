"""What people see: the standard streams, the layout of text, and errors as messages.

This is the only module that writes output. A terminal gets control characters of foreign text
escaped, as `\\x1b`. A pipe or a file gets the text unchanged, as does a terminal with `--raw`.

Columns of tables are aligned by spaces, and nothing is ever cut off. On a terminal some words have
colours, and the last column, the prose, is wrapped if the line would be too long.

Commands raise; `batchq.cli.main` shows the error: one sentence, one hint, one exit code. Errors,
hints and warnings are escaped everywhere, and each is one line. With -o json, errors are JSON, too,
on stderr: {"error": {"code", "message", "hint"}}.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any, Literal, NamedTuple, TextIO, TypeVar

import click

from batchq.errors import BatchqError, printable, printable_lines

F = TypeVar("F", bound=Callable[..., Any])

_RAW = f"{__name__}.raw"
_PLAIN = f"{__name__}.plain"


def raw_option(command: F) -> F:
    """Add --raw, which `echo` respects."""
    return click.option(
        "--raw",
        is_flag=True,
        expose_value=False,
        callback=_remember,
        help="Print control characters unescaped, even on a terminal.",
    )(command)


def echo(text: str = "", *, err: bool = False, nl: bool = True, file: TextIO | None = None) -> None:
    """Write text of any origin, and a line end, to stdout, stderr or `file`."""
    stream = file or (sys.stderr if err else sys.stdout)
    paint(printable_lines(text) if stream.isatty() and not _is_raw() else text, file=stream, nl=nl)


def comment(sentence: str) -> None:
    """Write a comment on the answer to stderr."""
    echo(sentence, err=True)


def show_warning(sentence: str) -> None:
    """Write a warning to stderr."""
    _note("warning", sentence)


def show_hint(sentence: str) -> None:
    """Write a hint to stderr."""
    _note("hint", sentence)


def show_error(sentence: str) -> None:
    """Write an error to stderr, without ending the command."""
    _note("error", sentence)


def _note(word: str, sentence: str) -> None:
    echo(f"{word}: {printable(sentence)}", err=True)


def paint(line: str, *, file: TextIO | None = None, nl: bool = True) -> None:
    """Write our own text unchanged, including our escape sequences."""
    # Without color=True, click would remove escape sequences from piped output.
    click.echo(line, file=file, nl=nl, color=True)


def _remember(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        context.meta[_RAW] = True


def _is_raw() -> bool:
    return _is_wanted(_RAW)


def leave_out_colors(context: click.Context) -> None:
    """Let `has_colors` return False in this context."""
    context.meta[_PLAIN] = True


def has_colors() -> bool:
    """Return whether a terminal gets colours: not after --no-color or with NO_COLOR."""
    return not _is_wanted(_PLAIN) and not os.environ.get("NO_COLOR")


def _is_wanted(key: str) -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(key))


#: A full disk, or a stdout that was closed before the program started.
_CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EBADF})

EXIT_ERROR = 1
EXIT_USAGE = 2
#: `doctor` found nothing worse than warnings.
EXIT_WARNINGS = 3
#: `submit --wait`, `run` and `wait`: the group has failed, or was cancelled.
EXIT_GROUP_FAILED = 10
EXIT_GROUP_CANCELLED = 11
EXIT_INTERRUPTED = 130


#: A URL with credentials; a message may repeat it if it was not typed after --redis-url.
_CREDENTIALS = re.compile(r"\S*://(?!\*\*\*@).*@\S*", re.DOTALL)
_LONGEST_WORD = 300
#: Typed words that a message shortens; longer than any name, and than most paths.
_OVERLONG = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}")
#: The word of an error of stdout itself.
OUTPUT_FAILED = "OutputFailed"


class Interrupted(BatchqError):
    """The user pressed Ctrl-C; the message says what keeps running."""

    exit_code = EXIT_INTERRUPTED


class Trouble(NamedTuple):
    """An error as shown. `word` is for programs: NotFound, Conflict, UsageError …"""

    word: str
    message: str
    hint: str
    exit_code: int

    def as_text(self) -> str:
        """Return at most two lines, for people."""
        lines = [f"error: {printable(self.message)}"]
        if self.hint:
            lines.append(f"hint: {printable(self.hint)}")
        return "\n".join(lines)

    def as_json(self) -> str:
        """Return one line, for programs."""
        error = {"code": self.word, "message": self.message, "hint": self.hint}
        return printable(json.dumps({"error": error}, ensure_ascii=False))


def trouble_of(error: BaseException) -> Trouble | None:
    """Return what the user learns of `error`; None if it is a bug."""
    found = _trouble(error)
    if found is None:
        return None
    message = _CREDENTIALS.sub("a URL", found.message)
    return found._replace(message=_OVERLONG.sub(_cut, message))


def show_trouble(error: Exception, *, as_json: bool) -> None:
    """Show an error that is no bug."""
    trouble = trouble_of(error)
    assert trouble is not None
    echo(trouble.as_json() if as_json else trouble.as_text(), err=True)


def _cut(word: re.Match[str]) -> str:
    return f"{word[0][:_LONGEST_WORD]}... ({len(word[0])} characters)"


def _trouble(error: BaseException) -> Trouble | None:
    match error:
        case BatchqError():
            return Trouble(type(error).__name__, error.message, error.hint, error.exit_code)
        case click.UsageError():
            message = _restyled(error.format_message())
            return Trouble("UsageError", message, _see_help(error), EXIT_USAGE)
        case click.ClickException():
            return Trouble("Error", _restyled(error.format_message()), "", error.exit_code)
        case click.Abort():
            return Trouble("Interrupted", "interrupted", "", EXIT_INTERRUPTED)
        case OSError() if error.errno in _CANNOT_WRITE:
            return Trouble(
                OUTPUT_FAILED,
                f"the answer cannot be written: {error.strerror}",
                "" if error.errno == errno.EBADF else "free some space, or write elsewhere",
                EXIT_ERROR,
            )
        case _:
            return None


def wants_json(arguments: Sequence[str]) -> bool:
    """Return whether a command line asks for JSON; it may be too wrong to be parsed."""
    words = list(arguments)
    if "--" in words:
        words = words[: words.index("--")]
    pairs = zip(words, [*words[1:], ""], strict=False)
    return any(
        word in ("-ojson", "--output=json") or (word in ("-o", "--output") and following == "json")
        for word, following in pairs
    )


@contextmanager
def on_interrupt(message: str, *, hint: str = "") -> Iterator[None]:
    """Raise Interrupted with `message` if the user presses Ctrl-C in this context."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(message, hint=hint) from None


def _restyled(sentence: str) -> str:
    """Adapt a sentence of click: no capital at the beginning, no full stop at the end, and choices
    and suggestions in one line.
    """
    sentence = _SUGGESTED.sub(_suggestion, " ".join(sentence.split()))
    sentence = re.sub(r"^No such (option|command)", r"there is no \1", sentence)
    first, rest = sentence[:1], sentence[1:]
    # Words such as PodGroup keep their capital.
    lower = sentence.partition(" ")[0][1:].islower()
    return (first.lower() if lower else first) + rest.removesuffix(".")


#: What click appends to `No such option '--al'.`: one suggestion, or several in brackets.
_SUGGESTED = re.compile(r"\. \(?Did you mean (?:one of: )?([^?]*)\?\)?$")


def _suggestion(found: re.Match[str]) -> str:
    return f"; did you mean {found[1].replace(chr(39), '')}?"


def _see_help(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption) and error.option_name in ("--redis-url", "--no-color"):
        return f"{error.option_name} goes before the command: batchq {error.option_name} …"
    context = error.ctx or _innermost_context(error)
    return f"see `{context.command_path if context else 'batchq'} --help`"


def _innermost_context(error: click.UsageError) -> click.Context | None:
    """Return the context that was being filled in: click's parser does not name it if an option
    lacks its value, or has one that it does not take.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    found = [frame.f_locals["ctx"] for frame in frames if "ctx" in frame.f_locals]
    return next((one for one in reversed(found) if isinstance(one, click.Context)), None)


def replace_closed_streams() -> None:
    """Replace each standard stream that the process was started without.

    Reading returns nothing, and stderr is discarded. Writing an answer to stdout fails, as in other
    programs, because the answer matters.
    """
    # In the order of their numbers, because an opened file gets the lowest free one.
    if sys.stdin is None:
        sys.stdin = _null(os.O_RDONLY, "r")
    if sys.stdout is None:
        sys.stdout = _null(os.O_RDONLY, "w")
    if sys.stderr is None:
        sys.stderr = _null(os.O_WRONLY, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Characters that the encoding lacks are escaped, as on stderr.
        sys.stdout.reconfigure(errors="backslashreplace")


def drop_stdout() -> None:
    """Discard further output to stdout, including what is left in its buffer at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, sys.stdout.fileno())
    finally:
        os.close(null)


def _null(flags: int, mode: Literal["r", "w"]) -> TextIO:
    return os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8")


_OPTION = "--redis-url"
#: Stands on the command line for a URL that was moved to the environment.
HIDDEN_URL = "***"
#: A URL of hosts and a path that cannot contain a password, even if mistyped.
_HARMLESS = re.compile(
    r"(rediss?(\+sentinel)?://[\w.-]+(:[0-9]+)?(,[\w.-]+(:[0-9]+)?)*(/[\w.-]*)*"
    r"|unix://(/[\w. -]+)+)"
)


def hide_password(words: Sequence[str], valued: Collection[str]) -> None:
    """Restart the program with `--redis-url=***` in place of a URL that may contain a password.

    Returns if there is nothing to hide. The new process gets the URL in its environment. `valued`
    are the options before the command whose value is the next word.
    """
    kept, hidden, place = list(words), "", 0
    while place < len(kept) and kept[place].startswith("-"):
        option, is_one_word, value = kept[place].partition("=")
        end = place + (2 if option in valued and not is_one_word else 1)
        url = value if is_one_word else "".join(kept[place + 1 : end])
        if option == _OPTION and url and url != HIDDEN_URL and not _HARMLESS.fullmatch(url):
            kept[place:end], hidden, end = [f"{_OPTION}={HIDDEN_URL}"], url, place + 1
        place = end
    if not hidden:
        return
    from batchq.paths import URL_VARIABLE

    # The interpreter's own arguments, before ours, stay as they are.
    before = sys.orig_argv[: len(sys.orig_argv) - len(words)]
    sys.stdout.flush()
    # It is this same program.
    os.execve(sys.executable, [*before, *kept], {**os.environ, URL_VARIABLE: hidden})  # noqa: S606


#: Columns are left out to give the prose this width. Below the second width the prose is not
#: wrapped: one word per line is unreadable.
_GOOD_PROSE = 25
_LEAST_PROSE = 18
_GAP = "  "

_STYLES = {
    "Running": "cyan",
    "InQueue": "blue",
    "Completed": "green",
    "Succeeded": "green",
    "Failed": "red",
    "Unknown": "red",
    "Cancelled": "yellow",
    "SchedulingGated": "magenta",
}


class Table(NamedTuple):
    """Rows under titles. Columns in `wide` are shown only on request; columns in `spare` are left
    out on a narrow terminal, the first of them first.
    """

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    wide: frozenset[str] = frozenset()
    spare: tuple[str, ...] = ()

    def narrowed(self, *, wide: bool) -> Table:
        """Return the visible columns, with every cell on one line."""
        lines = tuple(tuple(one_line(cell) for cell in row) for row in self.rows)
        plain = Table(self.titles, lines, spare=() if wide else self.spare)
        return plain if wide else plain.without(*self.wide)

    def without(self, *titles: str) -> Table:
        """Return the table without these columns."""
        kept = [place for place, title in enumerate(self.titles) if title not in titles]
        return Table(
            tuple(self.titles[place] for place in kept),
            tuple(tuple(row[place] for place in kept) for row in self.rows),
            spare=self.spare,
        )


def show_table(table: Table) -> None:
    """Write a table to stdout."""
    TableWriter().write(table)


class TableWriter:
    """Writes a table page by page: the titles once, and columns as wide as a page needs."""

    def __init__(self, *, wide: bool = False) -> None:
        self._wide = wide
        self._is_begun = False

    def write(self, table: Table) -> None:
        """Write the rows of a page."""
        shown = table.narrowed(wide=self._wide)
        begun, self._is_begun = self._is_begun, True
        if is_terminal():
            import shutil

            columns = shutil.get_terminal_size().columns
            for line in fitted(shown, columns, color=has_colors())[begun:]:
                paint(line)
            return
        for line in aligned([shown.titles, *shown.rows])[begun:]:
            echo(line)


def fitted(table: Table, columns: int, *, color: bool = False) -> list[str]:
    """Return a table as lines for a terminal of this width; an empty cell is a dash.

    Names may be copied, so every column has its full width; the last one takes the rest and is
    wrapped. If the rest is too small, columns are left out; if it still is, lines are longer than
    the terminal.
    """
    from rich.cells import cell_len

    for count in range(len(table.spare) + 1):
        shown = table.without(*table.spare[:count])
        rows = [[cell or "-" for cell in row] for row in (shown.titles, *shown.rows)]
        widths = [max(cell_len(row[place]) for row in rows) for place in range(len(shown.titles))]
        room = columns - sum(widths[:-1]) - len(_GAP) * len(widths[:-1])
        if room >= min(widths[-1], _GOOD_PROSE):
            break
    widths[-1] = min(widths[-1], room) if room >= _LEAST_PROSE else widths[-1]
    return _laid_out(rows, widths, color=color)


def _laid_out(rows: Sequence[Sequence[str]], widths: Sequence[int], *, color: bool) -> list[str]:
    """Lay out rows, the first of them titles. Widths are fixed, because rich would crop cells."""
    from rich.console import Console
    from rich.table import Table as Layout
    from rich.text import Text

    layout = Layout(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0), header_style="bold")
    for title, width in zip(rows[0], widths, strict=True):
        layout.add_column(Text(title), width=width, overflow="fold")
    for row in rows[1:]:
        layout.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    written = io.StringIO()
    console = Console(
        file=written,
        width=sum(widths) + len(_GAP) * len(widths),
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
    )
    console.print(layout)
    return [line.rstrip() for line in written.getvalue().splitlines()]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns, nothing cut off; an empty cell is a dash."""
    filled = [[cell or "-" for cell in row] for row in rows]
    widths = [max(len(row[place]) for row in filled) for place in range(len(filled[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in filled
    ]


def is_terminal() -> bool:
    """Return whether a person reads stdout."""
    # It is None in a process that was started with stdout closed.
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def draws_lines() -> bool:
    """Return whether stdout is a terminal with an encoding beyond ASCII."""
    return is_terminal() and (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def one_line(text: str) -> str:
    """Return `text` with line ends and control characters escaped, which could imitate rows or
    change the screen; in a pipe, too, where a row is a line.
    """
    return printable(text)


def show_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Write `Name:  value` lines, aligned; fields without a value are left out."""
    shown = [(name, value) for name, value in fields if value]
    width = max((len(name) for name, _ in shown), default=0) + 1
    for name, value in shown:
        echo(f"{name + ':':<{width}}  {one_line(value)}")


def show_section(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Write a titled block of aligned rows; nothing if there are none."""
    if not rows:
        return
    echo(f"\n{title}:")
    for line in aligned([[one_line(cell) for cell in row] for row in rows]):
        echo(f"  {line}")
