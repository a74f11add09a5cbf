"""Every command of the table: it loads, its help has examples, and the examples work."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from batchq.cli.main import COMMANDS, main
from tests.cli.conftest import Batchq, run
from tests.client.stage import Stage
from tests.tidy.command_lines import accept, simple_commands

ROOT = Path(__file__).resolve().parents[2]

#: Commands that only read a server; their examples are run unchanged.
READ_ONLY = frozenset(
    {"jobs", "describe", "logs", "get", "queues", "nodes", "quota", "gates", "version"}
    | {"completion"}
)
#: Exceptions among these, which change something.
CHANGES = frozenset({"set", "open", "cordon", "uncordon", "drain", "apply", "stop", "resume"})
#: How long an example may follow something; irrelevant for the test.
FOLLOWS = frozenset({"-f", "--follow"})


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield all commands, with subcommands such as `nodes drain`."""
    root = click.Context(main, info_name="batchq")
    for name in main.list_commands(root):
        command = main.get_command(root, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            inner = click.Context(command, info_name=name, parent=root)
            for sub in command.list_commands(inner):
                found = command.get_command(inner, sub)
                assert found is not None
                yield f"{name} {sub}", found


def examples_of(name: str) -> list[str]:
    """Return the lines of the `Examples:` block of a command's help, without the `$ `."""
    done = run(*name.split(), "--help")
    assert done.code == 0, done
    _, _, block = done.out.partition("Examples:\n")
    return [line.strip().removeprefix("$ ") for line in block.splitlines() if line.strip()]


NAMES = [name for name, _ in commands()]
EXAMPLES = [(name, line) for name in NAMES for line in examples_of(name)]


def test_the_table_and_the_commands_have_the_same_names() -> None:
    listed = [name for entries in COMMANDS.values() for name in entries]
    assert listed == [name for name in NAMES if " " not in name]
    assert [(name, command.name) for name, command in commands() if " " not in name] == [
        (name, name) for name in listed
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_command_says_what_it_does_with_an_example(name: str) -> None:
    command = dict(commands())[name]
    assert command.get_short_help_str(), f"{name} has no help"
    lines = examples_of(name)
    assert lines, f"`batchq {name} --help` has no Examples: block"
    assert all("batchq " in line for line in lines)
    first = name.split()[0]
    assert any(f"batchq {first}" in line for line in lines)


@pytest.mark.parametrize(("name", "line"), EXAMPLES)
def test_an_example_is_a_command_line_that_batchq_takes(name: str, line: str) -> None:
    for words in simple_commands(line):
        if words[0] == "batchq":
            accept(words[1:])


def runnable(name: str, line: str) -> bool:
    """Return whether an example only reads, and can be run unchanged."""
    words = shlex.split(line)
    return (
        name.split()[0] in READ_ONLY
        and "|" not in words
        and not (set(words) & (CHANGES | FOLLOWS))
        and words[0] == "batchq"
    )


@pytest.mark.parametrize(
    "line", [line for name, line in EXAMPLES if " " not in name and runnable(name, line)]
)
def test_an_example_that_only_looks_runs(batchq: Batchq, stage: Stage, line: str) -> None:
    batchq("submit", "--name", "train-1", "--", "true")
    batchq("submit", "-n", "research", "--name", "train-1", "--", "true")
    stage.turn()
    words = [word.replace("gpu-01", "n1") for word in shlex.split(line)[1:]]
    before = stage.names()
    done = batchq(*words)
    assert (done.code, done.out.count("Traceback")) == (0, 0), done
    assert stage.names() == before


def test_the_help_of_batchq_lists_every_command_with_its_line() -> None:
    done = run("--help")
    assert done.code == 0
    for entries in COMMANDS.values():
        for name, entry in entries.items():
            assert f"  {name.ljust(10)}" in done.out
            assert entry.line in done.out


def test_batchq_alone_prints_its_help() -> None:
    done = run()
    assert (done.code, done.out) == (0, run("--help").out)


def test_a_command_that_does_not_exist_is_answered_with_the_nearest() -> None:
    done = run("job")
    assert done.code == 2
    assert done.err.splitlines()[0] == "error: there is no command 'job'; did you mean jobs?"


@pytest.mark.parametrize(
    ("known", "meant"), [("squeue", "jobs"), ("sbatch", "submit"), ("scancel", "cancel")]
)
def test_a_command_of_another_scheduler_is_answered_with_ours(known: str, meant: str) -> None:
    done = run(known)
    assert done.code == 2
    assert (
        done.err.splitlines()[0] == f"error: there is no command '{known}'; did you mean {meant}?"
    )


def mistakes_with(name: str) -> Iterator[tuple[str, ...]]:
    """Yield the words after a command's name of command lines that click refuses."""
    command = dict(commands())[name]
    # An unknown option of `rsh` is one of ssh's.
    if name != "rsh":
        yield ("--no-such-option",)
    for param in command.params:
        if isinstance(param, click.Option) and not param.is_flag:
            yield (param.opts[0],)
        elif isinstance(param, click.Option) and param.opts[0].startswith("--"):
            yield (f"{param.opts[0]}=1",)
    if any(isinstance(param, click.Argument) and param.required for param in command.params):
        yield ()
    if isinstance(command, click.Group):
        yield ("no-such-command",)


@pytest.mark.parametrize("name", NAMES)
def test_a_hint_names_the_help_of_the_command_that_was_meant(name: str) -> None:
    for mistake in mistakes_with(name):
        done = run(*name.split(), *mistake)
        assert done.code == 2, (mistake, done)
        assert done.err.splitlines()[1:] == [f"hint: see `batchq {name} --help`"], (mistake, done)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_for_the_shell(shell: str) -> None:
    done = run("completion", shell)
    assert done.code == 0
    assert "_BATCHQ_COMPLETE" in done.out


def test_completing_a_command_loads_none_of_them() -> None:
    context = click.Context(main, info_name="batchq")
    items = main.shell_complete(context, "qu")
    assert [item.value for item in items] == ["queues", "quota"]


def test_the_version_is_one_line() -> None:
    done = run("version")
    assert (done.code, done.out) == (0, "batchq 0.1.0\n")
    assert run("--version").out == done.out
