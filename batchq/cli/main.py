"""`batchq`: the table of all commands, and what happens to the errors that they raise.

A command's module is imported when it is called, so that `batchq --help` answers at once. A
command may return its exit code; None is 0.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NamedTuple, cast

import click

from batchq import __version__
from batchq.api.printable import printable
from batchq.cli.output.options import Globals, examples
from batchq.cli.output.terminal import echo, raw_option
from batchq.cli.output.trouble import (
    OUTPUT_FAILED,
    Trouble,
    drop_stdout,
    hide_password,
    stand_in,
    trouble_of,
    wants_json,
)
from batchq.errors import InvalidInput


class CommandEntry(NamedTuple):
    """Where a command is, and its line in the help."""

    module: str
    attribute: str
    line: str


#: Every command, in the sections and the order of the help.
COMMANDS: dict[str, dict[str, CommandEntry]] = {
    "Run work": {
        "run": CommandEntry(
            "run", "run", "Start what is missing, submit a file, show it to its end."
        ),
        "submit": CommandEntry(
            "submit", "submit", "Submit a command, a function or a file's groups."
        ),
        "plan": CommandEntry("plan", "plan", "What would become of it, were it submitted now."),
        "jobs": CommandEntry("jobs", "jobs", "List pod groups: phase, place in line, and why."),
        "describe": CommandEntry(
            "describe", "describe", "Everything about one object, and its reasons."
        ),
        "why": CommandEntry(
            "why", "why", "Why a group waits: every reason, with what to do about it."
        ),
        "events": CommandEntry("events", "events", "What has happened, and happens (-w)."),
        "logs": CommandEntry("pod_output", "logs", "What the pods of a group have written."),
        "result": CommandEntry(
            "pod_output", "result", "What the functions of a group have returned."
        ),
        "progress": CommandEntry("wait", "progress", "Follow groups until they have ended."),
        "wait": CommandEntry("wait", "wait", "Wait for groups; the exit code says how they ended."),
        "cancel": CommandEntry("wait", "cancel", "End groups."),
        "suspend": CommandEntry("wait", "suspend", "Hold groups back; what runs is stopped."),
        "resume": CommandEntry("wait", "resume", "Let suspended groups stand in line again."),
        "gates": CommandEntry("gates", "gates", "List and open scheduling gates."),
        "checks": CommandEntry("checks", "checks", "See and answer admission checks."),
        "external": CommandEntry(
            "external", "external", "Claim and run groups with programs of yours."
        ),
    },
    "Objects": {
        "apply": CommandEntry("objects", "apply", "Create or change the objects of a file."),
        "get": CommandEntry("objects", "get", "List objects of a kind, or print one."),
        "delete": CommandEntry("objects", "delete", "Delete objects."),
        "queues": CommandEntry(
            "queues", "queues", "Queues as a tree, with shares; show, stop, resume."
        ),
        "nodes": CommandEntry("nodes", "nodes", "List, cordon, uncordon and drain nodes."),
        "quota": CommandEntry("quota", "quota", "Show and set what namespaces may hold."),
    },
    "This machine": {
        "up": CommandEntry("stack", "up", "Start server, scheduler and agents on this machine."),
        "down": CommandEntry("stack", "down", "Stop what `up` has started; the data stays."),
        "scheduler": CommandEntry(
            "scheduler", "scheduler", "Run the scheduler daemon, or see who leads."
        ),
        "worker": CommandEntry("worker", "worker", "Make this machine a node, and run its pods."),
        "config": CommandEntry(
            "config", "config", "Check, print, compare and convert the scheduler's settings."
        ),
        "doctor": CommandEntry("doctor", "doctor", "Look for what is wrong, and say what to do."),
        "acl": CommandEntry("acl", "acl", "Print a user of the server, by role, for its ACL file."),
    },
    "Try and measure": {
        "simulate": CommandEntry(
            "simulate.command",
            "simulate",
            "Play a world, or a real machine's log, in virtual time.",
        ),
        "replay": CommandEntry("replay", "replay", "Submit a real log to the live stack, faster."),
    },
    "About": {
        "version": CommandEntry("about", "version", "Print the version."),
        "completion": CommandEntry("about", "completion", "Print a shell's completion script."),
    },
}


#: Another name -> the command that is meant.
ALIASES = {"explain": "why"}


def entry_of(name: str) -> CommandEntry | None:
    """The table's line of a command."""
    name = ALIASES.get(name, name)
    return next((entries[name] for entries in COMMANDS.values() if name in entries), None)


class Commands(click.Group):
    """The group of all commands; loads each when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for entries in COMMANDS.values() for name in entries]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if entry_of(name) is None and name[:1] != "-" and not ctx.resilient_parsing:
            near = get_close_matches(name, self.list_commands(ctx), n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"there is no command {name!r}{meant}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = entry_of(cmd_name)
        if entry is None:
            return None
        module = import_module(f"batchq.cli.{entry.module}")
        return cast(click.Command, getattr(module, entry.attribute))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, entries in COMMANDS.items():
            with formatter.section(section):
                formatter.write_dl(
                    [(name.ljust(10), entry.line) for name, entry in entries.items()]
                )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=_line(name)) for name in names]
        # The commands are told from the table: asking each for its help would load them all.
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line; in standalone mode, end the process with its exit code."""
        words = list(sys.argv[1:] if args is None else args)
        if args is None and standalone_mode:
            hide_password(words)

        def call() -> object:
            try:
                return click.Group.main(self, words, prog_name, complete_var, False, **extra)
            except UnicodeEncodeError:
                # Python hands on bytes that are no UTF-8 as halves of characters: a file may be
                # called so, and nothing that is stored.
                if all(printable(word) == word for word in words):
                    raise
                raise InvalidInput(
                    "expected text in UTF-8, found other bytes among the words of the command"
                ) from None

        if not standalone_mode:
            return call()
        stand_in()
        sys.exit(_exit_code(call, as_json=wants_json(words)))


def _exit_code(call: Callable[[], object], *, as_json: bool) -> int:
    """Call, flush, and show what went wrong, if it is a trouble and not a mistake of our own."""
    try:
        result = call()
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the answer has read enough. Nothing may be flushed at exit any more.
        drop_stdout()
        return 1
    except (click.exceptions.NoArgsIsHelpError, click.exceptions.Exit) as done:
        return _ended(done)
    except Exception as error:  # every kind is sorted by `trouble_of`; the unknown goes on
        trouble = trouble_of(error)
        if trouble is None:
            raise
        if trouble.word == OUTPUT_FAILED:
            drop_stdout()
        _show(trouble, as_json=as_json)
        return trouble.exit_code
    return result if isinstance(result, int) else 0


def _ended(done: click.exceptions.Exit | click.exceptions.NoArgsIsHelpError) -> int:
    if isinstance(done, click.exceptions.NoArgsIsHelpError):
        done.show()
    return done.exit_code


def _show(trouble: Trouble, *, as_json: bool) -> None:
    echo(trouble.as_json() if as_json else trouble.as_text(), err=True)


def _line(name: str) -> str:
    entry = entry_of(name)
    return entry.line if entry else ""


@click.command(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "batchq up",
        "batchq submit --cpus 1 -- python3 -c 'print(6 * 7)'",
        "batchq jobs",
        "batchq run conf/examples/mandelbrot.yaml",
    ),
)
@click.option(
    "--redis-url",
    metavar="URL",
    envvar="BATCHQ_REDIS_URL",
    help="The server to talk to (redis://, rediss://, unix:// or redis+sentinel://), or the "
    "variable BATCHQ_REDIS_URL, or a file with it named by BATCHQ_REDIS_URL_FILE; without all, the "
    "one that `batchq up` has started here.",
)
@raw_option
@click.option("--no-color", is_flag=True, help="No colours; so does the variable NO_COLOR.")
@click.version_option(__version__, prog_name="batchq", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context, redis_url: str | None, no_color: bool) -> None:
    """A batch job queue for your own machines.

    A pod group is admitted when its queue, its namespace and the cluster have room for all of its
    pods; until then it waits, and says why.

    Exit codes: 0 ok, 1 error or bad content, 2 usage, 3 the doctor warns, 6 not found, 8
    conflict, 9 the server cannot be reached, or refuses this user, 10 the group waited for failed,
    11 it was cancelled, 12 rejected, 124 wait timed out, 130 interrupted; of `plan` also 3 with
    evictions, 4 it would wait, 5 never.
    """
    ctx.obj = Globals(redis_url=redis_url or None, color=not no_color)
    if ctx.invoked_subcommand is None:
        echo(ctx.get_help())
