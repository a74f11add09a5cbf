"""A password on the command line is taken off it, since everybody on the machine can read that.

The process starts itself anew, with the URL in its environment, which only its own user can read.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

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
