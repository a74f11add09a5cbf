"""Does once what libraries would do for every test, or in every worker."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import redis.utils


def remember_versions() -> None:
    """Let redis-py read its own version, which it tells every server, from disk only once.

    That takes longer than to connect, and tests connect tens of thousands of times.
    """
    if hasattr(redis.utils, "get_lib_version"):
        redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)
        redis.utils.get_lib_version()


def parse_constants(files: Sequence[Path]) -> None:
    """Store the constants of these files where Hypothesis looks for them.

    It tries the constants of the code that it tests, and each worker would parse all files.
    """
    # Versions without it do not look for constants.
    with suppress(ImportError):
        from hypothesis.internal.constants_ast import constants_from_module

        for file in files:
            module = ModuleType(file.stem)
            module.__file__ = str(file)
            constants_from_module(module)
