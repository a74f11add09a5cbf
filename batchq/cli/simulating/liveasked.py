"""What `batchq simulate --from-live` is asked for, and whether its options go together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from batchq.api.times import parse_duration
from batchq.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

#: What the configuration that the live scheduler goes by is called.
LIVE = "live"
#: Parameter -> the option as it is typed, of those that mean nothing without --from-live.
_OF_LIVE = {
    "until": "--until",
    "assume_runtime": "--assume-runtime",
    "runtime_fraction": "--runtime-fraction",
    "differences": "--differences",
    "save": "--save",
}
#: Parameters that go with --from-live beside those.
_ALSO = frozenset({"from_live", "configs", "output"})


class AskedOfLive(NamedTuple):
    """What a command line asks of the future; durations in milliseconds."""

    configs: tuple[Path, ...]
    until_ms: int | None
    assumed_ms: int | None
    thousandths: int
    differences: bool
    save: Path | None
    output: str


def live_options(command: F) -> F:
    """The options of --from-live."""
    options = (
        click.option(
            "--from-live",
            is_flag=True,
            help="Begin with what stands in the live server now, which is read and not changed;"
            " play it under the live configuration and, side by side, under each --config.",
        ),
        click.option(
            "--until",
            metavar="DURATION",
            callback=_as_duration,
            help="--from-live only: look so far ahead, as in 6h; without it, until nothing can"
            " change any more.",
        ),
        click.option(
            "--assume-runtime",
            metavar="DURATION",
            callback=_as_duration,
            help="--from-live only: how long groups without a walltime last; without it they never"
            " end.",
        ),
        click.option(
            "--runtime-fraction",
            type=click.FloatRange(0, 1, min_open=True),
            metavar="F",
            help="--from-live only: groups take so much of their walltime (of what is left of it,"
            " if they run already); 1 unless given.",
        ),
        click.option(
            "--differences",
            is_flag=True,
            help="--from-live only: list only groups that fare differently.",
        ),
        click.option(
            "--save",
            type=click.Path(path_type=Path),
            metavar="FILE.yaml",
            help="--from-live only: write the live state as a world, to be changed and simulated;"
            " without what its pods run.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def asked_of_live(parameters: Mapping[str, Any]) -> AskedOfLive | None:
    """What is asked of the future; None without --from-live.

    Raises UsageError where options do not go together, and where nothing is given at all.
    """
    if not parameters["from_live"]:
        for name, option in _OF_LIVE.items():
            if parameters[name] not in (None, False):
                raise UsageError(f"{option} goes with --from-live only")
        if parameters["what"] is None:
            raise UsageError("expected WORLD, TRACE or --from-live, found none of them")
        return None
    if parameters["what"] is not None:
        raise UsageError(
            f"--from-live begins with the live state, and goes without {parameters['what']}",
            hint="leave one of them out",
        )
    for name, value in parameters.items():
        if name not in _OF_LIVE and name not in _ALSO and _is_given(name, value):
            raise UsageError(f"{_typed(name)} does not go with --from-live")
    if parameters["output"] == "csv":
        raise UsageError("-o csv is for a log; --from-live has -o table and -o json")
    fraction = parameters["runtime_fraction"]
    return AskedOfLive(
        configs=parameters["configs"],
        until_ms=_ms(parameters["until"]),
        assumed_ms=_ms(parameters["assume_runtime"]),
        thousandths=1000 if fraction is None else max(1, round(fraction * 1000)),
        differences=parameters["differences"],
        save=parameters["save"],
        output=parameters["output"],
    )


def _ms(duration: str | None) -> int | None:
    return None if duration is None else parse_duration(duration)


def _is_given(name: str, value: object) -> bool:
    """Whether it was typed: an option of logs or worlds may well have a default."""
    source = click.get_current_context().get_parameter_source(name)
    return value not in (None, False, ()) and source is not ParameterSource.DEFAULT


def _typed(name: str) -> str:
    """An option as it is typed, by the name of its parameter."""
    context = click.get_current_context()
    return next(param.opts[-1] for param in context.command.params if param.name == name)


def _as_duration(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """As `batchq.cli.values` has it, which loads the client: worlds and logs need none."""
    if value is None:
        return None
    from batchq.cli.values import as_duration

    return as_duration(ctx, param, value)
