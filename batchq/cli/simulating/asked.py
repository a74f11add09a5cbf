"""Which runs a command line asks for, in its order, and whether its options go with what is given.

click hands over the values of --policy, of --placement and of --config as a tuple each; that they
stood in one order is kept here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import click

from batchq.cli.simulating.given import Given, Kind
from batchq.errors import UsageError

#: Options that ask for a run, by the name of their parameter.
_RUNS = {"policies": "--policy", "placements": "--placement", "configs": "--config"}
_ORDER = "batchq.simulate.order"

#: What only a log has, and what only a world: parameter -> the option as it is typed.
_OF_LOGS = {
    "policies": "--policy",
    "jobs": "--jobs",
    "procs": "--procs",
    "passes": "--pass",
    "by": "--by",
    "queues": "--queues",
    "starts": "--starts",
    "plot": "--plot",
}
_OF_WORLDS = {"cycles": "--cycles"}


class Asked(NamedTuple):
    """One run: the option that asks for it, and the option's value."""

    option: str
    value: str


class RunsInOrder(click.Command):
    """A command that remembers how the options that ask for a run followed each other."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse twice: the first time only for the order."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        ctx.meta[_ORDER] = [param.name for param in order if param.name in _RUNS]
        return super().parse_args(ctx, args)


def asked_runs(context: click.Context) -> tuple[Asked, ...]:
    """Every run that the command line asks for, in its order."""
    values = {name: iter(context.params[name]) for name in _RUNS}
    return tuple(Asked(_RUNS[name], str(next(values[name]))) for name in context.meta[_ORDER])


def refuse_for(given: Given, parameters: Mapping[str, object]) -> None:
    """Raise UsageError for an option that means nothing for what is given."""
    is_world = given.kind is Kind.WORLD
    foreign, whose = (_OF_LOGS, "a log") if is_world else (_OF_WORLDS, "a world")
    for name, option in foreign.items():
        if parameters[name] not in (None, ()):
            raise UsageError(f"{option} is for {whose}, and {given.source} is {given.kind.value}")
    if is_world and parameters["output"] == "csv":
        raise UsageError(f"-o csv is for a log, and {given.source} is {given.kind.value}")
    configs = parameters["configs"]
    if is_world and isinstance(configs, tuple) and len(configs) > 1:
        raise UsageError(
            f"{given.source} is a world, which is played once: expected one --config,"
            f" found {len(configs)}"
        )
    if parameters["queues"] is not None and parameters["by"] is None:
        raise UsageError(
            "--queues goes with --by user, --by group or --by queue: without it there is one queue"
        )
