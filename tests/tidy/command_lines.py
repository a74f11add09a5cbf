"""Command lines in documents, parsed by batchq's own command line without running them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click

from batchq.cli.main import main

BETWEEN_COMMANDS = frozenset({"|", "||", "&", "&&", ";"})
REDIRECTIONS = frozenset({"<", ">", ">>", "<<", "<<<", ">&", "&>"})


def accept(arguments: list[str]) -> None:
    """Parse the words after `batchq`, down to the last subcommand.

    Raises click.UsageError (NoSuchCommand, NoSuchOption …) if the command line refuses them.
    """
    try:
        context = main.make_context("batchq", list(arguments))
        while isinstance(context.command, click.Group):
            rest = [*context._protected_args, *context.args]
            if not rest:
                return  # the bare group prints its help
            name, command, rest = context.command.resolve_command(context, rest)
            assert command is not None
            context = command.make_context(name, rest, parent=context)
    except click.exceptions.Exit:
        return  # --help and --version end the parsing themselves


def simple_commands(line: str) -> list[list[str]]:
    """Return the commands of a shell line: split at pipes, without redirections and assignments."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    skip = False
    for word in lexer:
        if word in BETWEEN_COMMANDS:
            commands.append([])
        elif word in REDIRECTIONS:
            skip = True
        elif skip:
            skip = False
        elif commands[-1] or not re.fullmatch(r"\w+=.*", word):
            commands[-1].append(word)
    return [command for command in commands if command]


def shell_lines(markdown: str) -> list[str]:
    """Yield the commands of code blocks: after `$ ` in `console`, all lines in `sh`."""
    lines: list[str] = []
    for language, block in re.findall(r"^```(\w+)[^\n]*\n(.*?)^```", markdown, re.S | re.M):
        block = block.replace("\\\n", " ")
        if language == "console":
            lines += re.findall(r"^\$ (.+)$", block, re.MULTILINE)
        elif language in {"sh", "bash", "shell"}:
            lines += [line for line in block.splitlines() if line and not line.startswith("#")]
    return lines


def commands_in(document: Path) -> list[list[str]]:
    """Return all simple commands in a document."""
    text = document.read_text(encoding="utf-8")
    return [command for line in shell_lines(text) for command in simple_commands(line)]
