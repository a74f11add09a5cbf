"""What commands share: global options, paging, output formats, and examples in the help."""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click

from batchq.cli.output import comment

if TYPE_CHECKING:
    from batchq.api_session import ApiCredentials
    from batchq.cli.output.forms import Output
    from batchq.client import Client

F = TypeVar("F", bound=Callable[..., Any])


class Globals(NamedTuple):
    """The options given before the command.

    `redis_url` is --redis-url or BATCHQ_REDIS_URL; None means the embedded server of this machine.
    `is_option`: it was given on the command line. `impersonated` is the user in whose name the
    command acts, for a `reason`.
    """

    redis_url: str | None = None
    is_option: bool = False
    impersonated: str = ""
    reason: str = ""

    def connect(self, *, patience_s: float | None = 0.0) -> Client:
        """Return a client of the chosen server, to be used in a `with`: of the Redis server, or of
        the HTTP API that BATCHQ_SERVER names or that the user is logged in to.

        `patience_s` is the longest wait for a server that is away (None: for ever), for commands
        that would also wait if it went away later.
        Raises InvalidInput for a malformed URL, StoreUnavailable if no server answers, WaitTimedOut
        if none answers within `patience_s`.
        """
        from batchq.client import Client

        api = self.api()
        if api is None:
            return Client(self.redis_url, tell=comment, patience_s=patience_s)
        from batchq.client.api_client import ApiClient

        context = click.get_current_context()
        return ApiClient(
            api, tell=comment, patience_s=patience_s, purpose=f"`{context.command_path}`"
        )

    def api(self) -> ApiCredentials | None:
        """Return the HTTP API that commands use; None for the Redis server."""
        if self.is_option:
            return None
        from batchq.paths import SERVER_VARIABLE, URL_FILE_VARIABLE, find_home

        home = find_home()
        if not os.environ.get(SERVER_VARIABLE) and not home.credentials.exists():
            return None
        from batchq.api_session import chosen_credentials

        is_redis_chosen = bool(self.redis_url or os.environ.get(URL_FILE_VARIABLE))
        found = chosen_credentials(home, is_redis_chosen=is_redis_chosen)
        if found is not None and found.expires_at:
            _warn_of_the_end(found)
        if found is None or not self.impersonated:
            return found
        return found._replace(impersonated=self.impersonated, reason=self.reason)

    def variables(self) -> dict[str, str]:
        """Return the variables by which the commands of a program use the same server."""
        from batchq.paths import SERVER_VARIABLE, URL_VARIABLE

        return {URL_VARIABLE: self.redis_url or "", SERVER_VARIABLE: ""} if self.is_option else {}


def _warn_of_the_end(credentials: ApiCredentials) -> None:
    from batchq.api_session import days_left

    days = days_left(credentials)
    if days is not None:
        unit = "a day" if days == 1 else f"{days} days"
        comment(f"warning: your token ends within {unit}; `batchq token rotate` replaces it")


METRICS_VARIABLE = "BATCHQ_METRICS"

#: Decorates a command whose first argument is the Globals.
pass_globals = click.make_pass_decorator(Globals, ensure=True)

LIST_FORMATS = ("table", "wide", "json", "yaml", "name")


class DurationType(click.ParamType):  # type: ignore[type-arg] # click 8.1 has no arguments
    """A duration such as 90s or 2h, as text."""

    name = "duration"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text if it is a duration; else fail, as click's types do."""
        from batchq.api.notation import parse_duration

        try:
            parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return value


DURATION = DurationType()


class WholeNumber(click.IntRange):
    """A whole number in a range, which the help and a refusal say in words."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number, or fail with what was expected and found."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            raise _unexpected("a whole number", self, value, param, ctx) from None

    def _describe_range(self) -> str:
        return f"at least {self.min}" if self.max is None else f"{self.min} to {self.max}"


class PositiveNumber(click.FloatRange):
    """A finite number above 0, and at most `max` if that is given."""

    name = "number"

    def __init__(self, max: float = sys.float_info.max) -> None:
        super().__init__(0, max, min_open=True)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number, or fail with what was expected and found."""
        try:
            number = super().convert(value, param, ctx)
        except click.BadParameter:
            number = math.nan
        if math.isnan(number):
            raise _unexpected("a number", self, value, param, ctx)
        return number

    def _describe_range(self) -> str:
        return "above 0" if self.max == sys.float_info.max else f"above 0, at most {self.max}"


def _unexpected(
    what: str,
    within: WholeNumber | PositiveNumber,
    value: Any,
    param: click.Parameter | None,
    ctx: click.Context | None,
) -> click.BadParameter:
    message = f"expected {what} ({within._describe_range()}), found {str(value)!r}"
    return click.BadParameter(message, ctx=ctx, param=param)


def all_namespaces_option(what: str) -> Callable[[F], F]:
    """Add -A/--all-namespaces; `what` is listed."""
    return click.option("-A", "--all-namespaces", is_flag=True, help=f"{what} of every namespace.")


def namespace_option(command: F) -> F:
    """Add -n/--namespace, whose default is `default`."""
    return click.option(
        "-n", "--namespace", default="default", show_default=True, help="The namespace."
    )(command)


class Paging(NamedTuple):
    """How a large list is read: `size` objects at a time (0: all at once), at most `limit` of them
    (None: all), after the place that the token `after` names.
    """

    size: int
    limit: int | None
    after: str


def _as_token(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Check that a token is `UID.KEY` or `.KEY`, a click callback."""
    if value and not value.partition(".")[2]:
        raise click.BadParameter(
            f"expected the token that a list with --limit has printed, found {value[:80]!r}"
        )
    return value


def paging_options(command: F) -> F:
    """Add --chunk-size, --limit and --continue, as the argument `paging`."""

    @click.option(
        "--chunk-size",
        type=WholeNumber(0, 10_000),
        default=500,
        show_default=True,
        metavar="N",
        help="Read a large list this many at a time; 0: all at once.",
    )
    @click.option(
        "--limit",
        type=WholeNumber(1),
        metavar="N",
        help="List at most this many, and print how to continue.",
    )
    @click.option(
        "--continue",
        "after",
        default="",
        callback=_as_token,
        metavar="TOKEN",
        help="Continue where --limit has ended.",
    )
    @functools.wraps(command)
    def paged(*words: Any, chunk_size: int, limit: int | None, after: str, **named: Any) -> Any:
        return command(*words, paging=Paging(chunk_size, limit, after), **named)

    return cast(F, paged)


def metrics_option(command: F) -> F:
    """Add --metrics, or BATCHQ_METRICS; without it nothing is served."""
    return click.option(
        "--metrics",
        metavar="[HOST:]PORT",
        # An empty variable counts as unset.
        callback=lambda _, __, value: value or None,
        envvar=METRICS_VARIABLE,
        show_envvar=True,
        help="Serve metrics and health over HTTP, on 127.0.0.1 unless HOST is given.",
    )(command)


def output_option(*formats: str) -> Callable[[F], F]:
    """Add -o/--output, as the argument `output`, an Output; the first format is the default."""

    def chosen(ctx: click.Context, param: click.Parameter, value: str) -> Output:
        # Its modules are not loaded for --help.
        from batchq.cli.output.forms import output_of

        return output_of(value)

    return form_option(*formats, callback=chosen)


def form_option(
    *formats: str, callback: Callable[[click.Context, click.Parameter, str], object] | None = None
) -> Callable[[F], F]:
    """Add -o/--output, as the word itself unless a callback changes it."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        callback=callback,
        help="The output format.",
    )


def examples(*lines: str) -> str:
    """Return the `Examples:` block of a command's help, for its `epilog`; a line is `batchq …`."""
    # \b keeps click from rewrapping the lines.
    return "\b\nExamples:\n" + "\n".join(f"  $ {line}" for line in lines)
