"""`batchq version`."""

from __future__ import annotations

import json

import click
from click.shell_completion import get_completion_class

from batchq import __version__
from batchq.cli.output.options import examples
from batchq.cli.output.terminal import echo
from batchq.errors import UsageError


@click.command(epilog=examples("batchq version", "batchq version -o json"))
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def version(output: str) -> None:
    """Print the version."""
    echo(json.dumps({"version": __version__}) if output == "json" else f"batchq {__version__}")


_SHELLS = ("bash", "zsh", "fish")


@click.command(epilog=examples("batchq completion bash", "batchq completion fish"))
@click.argument("shell", required=False, metavar="[bash|zsh|fish]", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str | None) -> None:
    """Print the completion script of a shell.

    For bash put `eval "$(batchq completion bash)"` into ~/.bashrc, for zsh the same into ~/.zshrc;
    for fish write it to ~/.config/fish/completions/batchq.fish.
    """
    if shell is None:
        raise UsageError(
            f"expected a shell: {', '.join(_SHELLS)}", hint="as in `batchq completion bash`"
        )
    kind = get_completion_class(shell)
    assert kind is not None
    root = ctx.find_root().command
    # The script, not `kind.source_vars`: bash's own class asks bash for its version.
    echo(kind(root, {}, "batchq", "_BATCHQ_COMPLETE").source())
