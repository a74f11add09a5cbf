"""`batchq`: the table of all commands, their errors, and `batchq version` and `completion`.

A command's module is imported when the command is called, so that `batchq --help` answers at once.
A command may return its exit code; None is 0.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple, cast

import click
from click.core import ParameterSource
from click.shell_completion import get_completion_class

from batchq import __version__
from batchq.cli.output import (
    HIDDEN_URL,
    OUTPUT_FAILED,
    drop_stdout,
    echo,
    hide_password,
    leave_out_colors,
    on_interrupt,
    raw_option,
    replace_closed_streams,
    show_trouble,
    trouble_of,
    wants_json,
)
from batchq.cli.output.options import Globals, examples
from batchq.errors import InvalidInput, UsageError, printable


class CommandEntry(NamedTuple):
    """The module and attribute of a command, and its line in the help."""

    module: str
    attribute: str
    line: str


#: Every command, in the sections and the order of the help.
COMMANDS: dict[str, dict[str, CommandEntry]] = {
    "Run work": {
        "run": CommandEntry("run", "run", "Run a command or a file, and show the output here."),
        "submit": CommandEntry(
            "submit", "submit", "Submit a command, a function or a file's groups."
        ),
        "plan": CommandEntry("plan", "plan", "Show what would happen to a submission now."),
        "jobs": CommandEntry("jobs", "jobs", "List pod groups: phase, position, and why."),
        "describe": CommandEntry("describe", "describe", "Show everything about one object."),
        "why": CommandEntry(
            "diagnosis", "why", "Explain why a group waits, and what to do about it."
        ),
        "events": CommandEntry("describe", "events", "List events, or follow them (-w)."),
        "logs": CommandEntry("wait", "logs", "Print the output of a group's pods."),
        "alloc": CommandEntry("allocation", "alloc", "Hold pods while a command runs here."),
        "rsh": CommandEntry("allocation", "rsh", "Run a command on a node of an allocation."),
        "exec": CommandEntry("pod_exec", "exec_", "Run a command in a running pod."),
        "attach": CommandEntry("pod_exec", "attach", "Follow the output of a running pod."),
        "result": CommandEntry("wait", "result", "Print what a group's functions have returned."),
        "progress": CommandEntry("wait", "progress", "Follow groups until they have ended."),
        "wait": CommandEntry("wait", "wait", "Wait for groups; the exit code says how they ended."),
        "cancel": CommandEntry("wait", "cancel", "End groups."),
        "resubmit": CommandEntry(
            "wait", "resubmit", "Submit groups that have ended again, under new names."
        ),
        "suspend": CommandEntry("wait", "suspend", "Suspend groups and stop their pods."),
        "resume": CommandEntry("wait", "resume", "Return suspended groups to the queue."),
        "gates": CommandEntry("checks", "gates", "List and open scheduling gates."),
        "checks": CommandEntry("checks", "checks", "List and answer admission checks."),
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
        "nodes": CommandEntry("nodes", "nodes", "List, drain, invite and revoke nodes."),
        "quota": CommandEntry("queues", "quota", "Show and set the quotas of namespaces."),
    },
    "This machine": {
        "up": CommandEntry("stack", "up", "Start server, scheduler and agents on this machine."),
        "down": CommandEntry("stack", "down", "Stop what `up` has started; keep the data."),
        "scheduler": CommandEntry("config", "scheduler", "Run the scheduler, or show the leader."),
        "worker": CommandEntry("worker", "worker", "Make this machine a node and run its pods."),
        "config": CommandEntry(
            "config", "config", "Check, print, compare and convert the scheduler's settings."
        ),
        "service": CommandEntry("stack", "service", "Write systemd units for batchq's parts."),
        "doctor": CommandEntry("diagnosis", "doctor", "Look for problems, and say what to do."),
        "acl": CommandEntry(
            "access_rights", "acl", "Print a line for the server's ACL file, by role."
        ),
    },
    "The HTTP API": {
        "api": CommandEntry("api", "api", "Serve the HTTP API."),
        "registrar": CommandEntry("api", "registrar", "Make users of nodes for the API."),
        "access": CommandEntry("user_groups", "access", "Give and explain roles of the API."),
        "token": CommandEntry("access_rights", "token", "Create and revoke tokens of the API."),
        "login": CommandEntry("api", "login", "Check a token for an API, and store it."),
        "logout": CommandEntry("api", "logout", "Revoke the stored token, and remove it."),
        "whoami": CommandEntry("api", "whoami", "Show your user and roles at the API."),
        "connect": CommandEntry(
            "api", "connect", "For ssh: pass a connection on to the API's socket."
        ),
    },
    "Try and measure": {
        "simulate": CommandEntry(
            "simulate",
            "simulate",
            "Simulate a described cluster, or a log of jobs.",
        ),
        "replay": CommandEntry("replay", "replay", "Replay a machine's log on the live stack."),
    },
    "About": {
        "version": CommandEntry("main", "version", "Print the version."),
        "completion": CommandEntry("main", "completion", "Print a shell's completion script."),
    },
}


#: What schedulers that users may know call a command.
_ELSEWHERE = {
    "sbatch": "submit",
    "srun": "run",
    "salloc": "alloc",
    "scancel": "cancel",
    "squeue": "jobs",
    "sacct": "jobs",
    "sinfo": "nodes",
    "enqueue": "submit",
    "info": "queues",
    "list": "jobs",
    "ls": "jobs",
    "ps": "jobs",
    "status": "jobs",
    "kill": "cancel",
    "requeue": "resubmit",
    "rerun": "resubmit",
    "restart": "resubmit",
    "retry": "resubmit",
}
#: Other names of commands.
ALIASES = {"explain": "why"}


def entry_of(name: str) -> CommandEntry | None:
    """Return a command's entry in the table, or None."""
    name = ALIASES.get(name, name)
    return next((entries[name] for entries in COMMANDS.values() if name in entries), None)


class Commands(click.Group):
    """The group of all commands; it loads each command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for entries in COMMANDS.values() for name in entries]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if entry_of(name) is None and name[:1] != "-" and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = get_close_matches(name, self.list_commands(ctx), n=1)
            likely = _ELSEWHERE.get(name) or next(iter(near), "")
            meant = f"; did you mean {likely}?" if likely else ""
            raise click.UsageError(f"there is no command {name!r}{meant}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = entry_of(cmd_name)
        if entry is None:
            return None
        with on_interrupt("interrupted before the command began; nothing was changed"):
            module = import_module(f"batchq.cli.{entry.module}")
        _collect_from_now_on()
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
        # The table has the names; asking each command for its help would load all modules.
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
            options = [one for one in self.params if isinstance(one, click.Option)]
            hide_password(words, {name for one in options if not one.is_flag for name in one.opts})
            # A third of a short command's time would be a search for cycles among what it imports.
            gc.disable()

        def call() -> object:
            try:
                return click.Group.main(self, words, prog_name, complete_var, False, **extra)
            except UnicodeEncodeError:
                # Python represents bytes that are not UTF-8 as surrogates. A file name may have
                # them, a stored value may not.
                if all(printable(word) == word for word in words):
                    raise
                raise InvalidInput(
                    "expected text in UTF-8, found other bytes on the command line"
                ) from None

        if not standalone_mode:
            return call()
        replace_closed_streams()
        exit_code = _exit_code(call, as_json=wants_json(words))
        if args is None:
            # Python ends with another search.
            gc.freeze()
        sys.exit(exit_code)


def _collect_from_now_on() -> None:
    """Turn the collector on if `main` has turned it off; what was imported is never garbage."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _exit_code(call: Callable[[], object], *, as_json: bool) -> int:
    """Call, flush, and show the error if it is the user's or the environment's and not a bug."""
    try:
        result = call()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe. Nothing may be flushed at exit any more.
        drop_stdout()
        return 1
    except (click.exceptions.NoArgsIsHelpError, click.exceptions.Exit) as done:
        return _ended(done)
    except Exception as error:  # sorted by `trouble_of`, which returns None for a bug
        trouble = trouble_of(error)
        if trouble is None:
            raise
        if trouble.word == OUTPUT_FAILED:
            drop_stdout()
        show_trouble(error, as_json=as_json)
        return trouble.exit_code
    return result if isinstance(result, int) else 0


def _ended(done: click.exceptions.Exit | click.exceptions.NoArgsIsHelpError) -> int:
    if isinstance(done, click.exceptions.NoArgsIsHelpError):
        done.show()
    return done.exit_code


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
    help="The Redis server to use (redis://, rediss://, unix:// or redis+sentinel://). The "
    "variable BATCHQ_REDIS_URL, or a file that BATCHQ_REDIS_URL_FILE names, can contain the URL "
    "instead.  [default: the server that `batchq up` has started here]",
)
@click.option(
    "--as",
    "impersonated",
    metavar="USER",
    help="Act in the name of a user, over the HTTP API, as operators may. Needs --because.",
)
@click.option("--because", metavar="TEXT", help="The reason for --as, for the audit trail.")
@raw_option
@click.option("--no-color", is_flag=True, help="No colours; the variable NO_COLOR does the same.")
@click.version_option(__version__, prog_name="batchq", message="%(prog)s %(version)s")
@click.pass_context
def main(
    ctx: click.Context,
    redis_url: str | None,
    impersonated: str | None,
    because: str | None,
    no_color: bool,
) -> None:
    """A batch job queue for your own machines.

    A pod group is admitted when its queue, its namespace and the cluster have enough capacity for
    all of its pods. Until then it waits, and `batchq why` explains the wait.

    Exit codes: 0 ok, 1 error or bad content, 2 usage, 3 the doctor warns or no scheduler leads, 6
    not found, 8 conflict, 9 the server cannot be reached or refuses this user, 10 the awaited group
    failed, 11 it was cancelled, 12 rejected, 124 timeout, 130 interrupted. `plan` also returns 3 if
    a group would start after evictions, 4 if one would wait, and 5 if one could never start.
    """
    is_option = ctx.get_parameter_source("redis_url") is ParameterSource.COMMANDLINE
    if is_option and redis_url == HIDDEN_URL:
        from batchq.paths import URL_VARIABLE

        redis_url = os.environ.get(URL_VARIABLE, redis_url)
    if is_option and not redis_url:
        raise UsageError(
            "--redis-url is empty; is it a variable that is not set?",
            hint="leave the option out for the server that `batchq up` has started here",
        )
    ctx.obj = shared = Globals(
        redis_url=redis_url or None,
        is_option=is_option,
        impersonated=impersonated or "",
        reason=because or "",
    )
    if impersonated is not None or because is not None:
        _check_impersonation(shared)
    if no_color:
        leave_out_colors(ctx)
    if ctx.invoked_subcommand is None:
        echo(ctx.get_help())


def _check_impersonation(shared: Globals) -> None:
    if not (shared.impersonated and shared.reason.strip()):
        raise UsageError(
            "to act in the name of a user takes both the user and a reason",
            hint="as in `batchq --as alice --because 'her laptop is lost' cancel train`",
        )
    name = shared.impersonated
    if not (name.isascii() and name.isprintable() and " " not in name):
        raise UsageError(f"--as: expected the name of a user, found {name[:80]!r}")
    if shared.api() is None:
        raise UsageError(
            "--as acts over the HTTP API, and this command uses the Redis server",
            hint="name the API with BATCHQ_SERVER, or `batchq login`",
        )


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

    For bash, add `eval "$(batchq completion bash)"` to ~/.bashrc; for zsh, the same to ~/.zshrc;
    for fish, write it to ~/.config/fish/completions/batchq.fish.
    """
    if shell is None:
        raise UsageError(
            f"expected a shell: {', '.join(_SHELLS)}", hint="as in `batchq completion bash`"
        )
    kind = get_completion_class(shell)
    assert kind is not None
    root = ctx.find_root().command
    # Not via `kind.source_vars`: bash's class would ask bash for its version.
    echo(kind(root, {}, "batchq", "_BATCHQ_COMPLETE").source())
