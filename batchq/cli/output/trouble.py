"""From an exception to what the user is told: one sentence, one hint, one exit code.

Commands raise; `batchq.cli.main` shows. An answer of -o json has its errors as JSON too, on
stderr: {"error": {"code", "message", "hint"}}.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, TextIO

import click

from batchq.errors import BatchqError

#: A full disk; a stdout that was closed before we were started (`batchq.cli.output.trouble`).
_CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EBADF})

EXIT_ERROR = 1
EXIT_USAGE = 2
#: `doctor`: it found nothing worse than warnings.
EXIT_WARNINGS = 3
#: `submit --wait`, `run` and `wait`: the group has failed, or was cancelled.
EXIT_GROUP_FAILED = 10
EXIT_GROUP_CANCELLED = 11
EXIT_INTERRUPTED = 130


#: A URL with a user in it, typed in another place than after --redis-url, which a message repeats.
_CREDENTIALS = re.compile(r"\S*://(?!\*\*\*@).*@\S*", re.DOTALL)
_LONGEST_WORD = 300
#: What a message repeats of what was typed; longer than any name, and than most paths.
_OVERLONG = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}")
#: The word of a trouble with stdout itself.
OUTPUT_FAILED = "OutputFailed"


class Interrupted(BatchqError):
    """The user pressed Ctrl-C; the message says what goes on nevertheless."""

    exit_code = EXIT_INTERRUPTED


class Trouble(NamedTuple):
    """What is shown. `word` is for programs: NotFound, Conflict, UsageError …"""

    word: str
    message: str
    hint: str
    exit_code: int

    def as_text(self) -> str:
        """Two lines at most, for people."""
        lines = [f"error: {self.message}"]
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)

    def as_json(self) -> str:
        """One line, for programs."""
        return json.dumps(
            {"error": {"code": self.word, "message": self.message, "hint": self.hint}},
            ensure_ascii=False,
        )


def trouble_of(error: BaseException) -> Trouble | None:
    """What to tell the user about `error`; None if it is a mistake of our own."""
    found = _told(error)
    if found is None:
        return None
    message = _CREDENTIALS.sub("a URL", found.message)
    return found._replace(message=_OVERLONG.sub(_cut, message))


def _cut(word: re.Match[str]) -> str:
    return f"{word[0][:_LONGEST_WORD]}... ({len(word[0])} characters)"


def _told(error: BaseException) -> Trouble | None:
    match error:
        case BatchqError():
            return Trouble(type(error).__name__, error.message, error.hint, error.exit_code)
        case click.UsageError():
            message = _as_ours(error.format_message())
            return Trouble("UsageError", message, _see_help(error), EXIT_USAGE)
        case click.ClickException():
            return Trouble("Error", _as_ours(error.format_message()), "", error.exit_code)
        case click.Abort():
            return Trouble("Interrupted", "interrupted", "", EXIT_INTERRUPTED)
        case OSError() if error.errno in _CANNOT_WRITE:
            return Trouble(
                OUTPUT_FAILED,
                f"the answer cannot be written: {error.strerror}",
                "" if error.errno == errno.EBADF else "make room, or write it somewhere else",
                EXIT_ERROR,
            )
        case _:
            return None


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for JSON; looked up in its words, since they may be wrong."""
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
    """Say `message` when the user presses Ctrl-C inside."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(message, hint=hint) from None


def _as_ours(sentence: str) -> str:
    """click's sentences begin with a capital and end with a full stop; ours do not. Its lists of
    choices have lines of their own; ours are in the line.
    """
    sentence = " ".join(sentence.split())
    first, rest = sentence[:1], sentence[1:]
    # Not where it begins with a word such as PodGroup.
    lower = sentence.partition(" ")[0][1:].islower()
    return (first.lower() if lower else first) + rest.removesuffix(".")


def _see_help(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption) and error.option_name in ("--redis-url", "--no-color"):
        return f"{error.option_name} goes before the command: batchq {error.option_name} …"
    return f"see `{error.ctx.command_path} --help`" if error.ctx else "see `batchq --help`"


def stand_in() -> None:
    """Put something in the place of each stream that the process was started without.

    What is read there is empty, what is said on stderr is gone; writing an answer to stdout fails
    as it does in any other program: there it matters.
    """
    # In the order of their numbers: what is opened gets the lowest one that is free.
    if sys.stdin is None:
        sys.stdin = _null(os.O_RDONLY, "r")
    if sys.stdout is None:
        sys.stdout = _null(os.O_RDONLY, "w")
    if sys.stderr is None:
        sys.stderr = _null(os.O_WRONLY, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What a terminal's letters cannot say, or no letters can, is escaped as on stderr.
        sys.stdout.reconfigure(errors="backslashreplace")


def drop_stdout() -> None:
    """Nothing more is written to stdout: what is left in its buffer goes nowhere at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, sys.stdout.fileno())
    finally:
        os.close(null)


def _null(flags: int, mode: Literal["r", "w"]) -> TextIO:
    return os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8")


_OPTION = "--redis-url"
#: Hosts, a path, and nothing in which a password could be, also where the URL is mistyped.
_HARMLESS = re.compile(
    r"(rediss?(\+sentinel)?://[\w.-]+(:[0-9]+)?(,[\w.-]+(:[0-9]+)?)*(/[\w.-]*)*"
    r"|unix://(/[\w. -]+)+)"
)


def hide_password(words: Sequence[str]) -> None:
    """Start anew without `--redis-url URL` before the command, if there may be a password in it.

    Returns if there is nothing to hide; the new process has nothing to hide either.
    """
    place, length, url = _url_in(words)
    if not length or _HARMLESS.fullmatch(url):
        return
    from batchq.paths import URL_VARIABLE

    # What the interpreter was started with, up to our own words, stays as it is.
    ours = len(sys.orig_argv) - len(words)
    kept = [*sys.orig_argv[:ours], *words[:place], *words[place + length :]]
    sys.stdout.flush()
    # It is this very program.
    os.execve(sys.executable, kept, {**os.environ, URL_VARIABLE: url})  # noqa: S606


def _url_in(words: Sequence[str]) -> tuple[int, int, str]:
    """Where the option stands among those before the command, in how many words; and the URL."""
    for place, word in enumerate(words):
        if word == _OPTION and place + 1 < len(words):
            return place, 2, words[place + 1]
        if word.startswith(f"{_OPTION}="):
            return place, 1, word.partition("=")[2]
        if not word.startswith("-"):
            break
    return 0, 0, ""
