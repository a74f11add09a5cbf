"""A password on the command line is taken off it, since everybody on the machine can read that.

The process starts itself anew, with the URL in its environment, which only its own user can read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from urllib.parse import parse_qs, urlsplit

_OPTION = "--redis-url"


def hide_password(words: Sequence[str]) -> None:
    """Start anew without `--redis-url URL` before the command, if there is a password in it.

    Returns if there is nothing to hide; the new process has nothing to hide either.
    """
    place, length, url = _url_in(words)
    if not length or not _has_password(url):
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


def _has_password(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return "@" in url
    named = parse_qs(parts.query)
    return bool(parts.password) or any("password" in name for name in named)
