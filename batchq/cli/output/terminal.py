"""The one place where commands write: text of others is made harmless for whoever looks at it.

On a terminal control characters are shown escaped, `\\x1b`; in a pipe or a file everything is as it
is, and with `--raw` on a terminal, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TextIO, TypeVar

import click

from batchq.api.printable import printable_lines

F = TypeVar("F", bound=Callable[..., Any])

_RAW = f"{__name__}.raw"


def raw_option(command: F) -> F:
    """--raw, which `echo` heeds."""
    return click.option(
        "--raw",
        is_flag=True,
        expose_value=False,
        callback=_remember,
        help="Control characters as they are, on a terminal too, which shows them escaped.",
    )(command)


def echo(text: str = "", *, err: bool = False, nl: bool = True, file: TextIO | None = None) -> None:
    """Write text that may hold anything, and a line end, to stdout, stderr or `file`."""
    stream = file or (sys.stderr if err else sys.stdout)
    paint(printable_lines(text) if stream.isatty() and not _is_raw() else text, file=stream, nl=nl)


def paint(line: str, *, file: TextIO | None = None, nl: bool = True) -> None:
    """Write text of ours as it is: escape sequences in it are our own."""
    # click takes escape sequences out of what is piped unless it is told that they are wanted.
    click.echo(line, file=file, nl=nl, color=True)


def _remember(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        context.meta[_RAW] = True


def _is_raw() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_RAW))
