"""What every command shares: the options before its name, and how examples stand in its help."""

from __future__ import annotations

from typing import NamedTuple

import click


class Globals(NamedTuple):
    """The options given before the command.

    `redis_url` is --redis-url or BATCHQ_REDIS_URL; None means the embedded server of this machine.
    `color` is False after --no-color.
    """

    redis_url: str | None = None
    color: bool = True


#: Decorates a command that wants the Globals as its first argument.
pass_globals = click.make_pass_decorator(Globals, ensure=True)


def examples(*lines: str) -> str:
    """The `Examples:` block of a command's help, for its `epilog`; each line starts `batchq …`."""
    # \b keeps click from filling the lines up.
    return "\b\nExamples:\n" + "\n".join(f"  $ {line}" for line in lines)
