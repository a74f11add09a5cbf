"""What is asked of a table of pods, Alibaba's GPU trace, and whether its options go together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import click

from batchq.cli.simulating.asked import Asked, asked_runs
from batchq.cli.simulating.given import Given, Kind
from batchq.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

_FILE = click.Path(path_type=Path)
_PLACEMENTS = ("binpack", "spread")
_MOST_PERCENT = 1000
_DEFAULT_SEED = 42

#: Parameter -> the option as it is typed, of those that only a table of pods has.
_OF_PODS = {
    "nodes": "--nodes",
    "placements": "--placement",
    "inflate": "--inflate",
    "seed": "--seed",
    "walltimes": "--walltimes",
}
#: What it has not, of what others have.
_NOT_OF_PODS = {
    "cycles": "--cycles",
    "procs": "--procs",
    "passes": "--pass",
    "by": "--by",
    "queues": "--queues",
}
#: What has no meaning where pods are tried once and stay.
_NOT_WITH_INFLATE = {"policies": "--policy", "walltimes": "--walltimes", "starts": "--starts"}


class AskedOfPods(NamedTuple):
    """What a command line asks of a table of pods. `inflate` is in percent of the GPUs."""

    asked: tuple[Asked, ...]
    nodes: Path
    inflate: int | None
    seed: int
    walltimes: Literal["none", "runtime"]
    jobs: int | None
    output: str
    starts: Path | None
    plot: Path | None


def pods_options(command: F) -> F:
    """The options of a table of pods."""
    options = (
        click.option(
            "--nodes",
            type=_FILE,
            metavar="NODES.csv",
            help="A table of pods only: the table of the cluster's nodes.",
        ),
        click.option(
            "--placement",
            "placements",
            type=click.Choice(_PLACEMENTS),
            multiple=True,
            help="A table of pods only, several times: fill nodes up, or spread pods over them,"
            " each one run. Without --placement, --policy and --config: both.",
        ),
        click.option(
            "--inflate",
            type=click.IntRange(1, _MOST_PERCENT),
            metavar="PERCENT",
            help="A table of pods only: pods come in random order and stay, until they ask for so"
            " much of the cluster's GPUs, as in 130.",
        ),
        click.option(
            "--seed",
            type=click.IntRange(min=0),
            metavar="N",
            help=f"With --inflate: another random order; {_DEFAULT_SEED} unless given.",
        ),
        click.option(
            "--walltimes",
            type=click.Choice(["none", "runtime"]),
            help="A table of pods only: what pods say that they take at most; nothing (the"
            " default), or what they took.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def asked_of_pods(context: click.Context, found: Given) -> AskedOfPods | None:
    """What is asked of a table of pods; None if something else is given.

    Raises UsageError where options do not go together.
    """
    given = context.params
    if found.kind is not Kind.PODS:
        what = f"{found.source} is {found.kind.value}"
        _refuse(given, _OF_PODS, f"is for a table of pods, and {what}")
        return None
    _refuse(given, _NOT_OF_PODS, f"does not go with a table of pods, and {found.source} is one")
    if given["nodes"] is None:
        raise UsageError(
            f"{found.source} is a table of pods, and goes with the table of their nodes",
            hint="add --nodes NODES.csv",
        )
    if given["inflate"] is not None:
        _refuse(given, _NOT_WITH_INFLATE, "does not go with --inflate")
    elif given["seed"] is not None:
        raise UsageError("--seed goes with --inflate: without it nothing is random")
    return AskedOfPods(
        asked=asked_runs(context)
        or tuple(Asked("--placement", placement) for placement in _PLACEMENTS),
        nodes=given["nodes"],
        inflate=given["inflate"],
        seed=_DEFAULT_SEED if given["seed"] is None else given["seed"],
        walltimes=given["walltimes"] or "none",
        jobs=given["jobs"],
        output=given["output"],
        starts=given["starts"],
        plot=given["plot"],
    )


def _refuse(given: dict[str, Any], options: dict[str, str], why: str) -> None:
    for name, option in options.items():
        if given[name] not in (None, ()):
            raise UsageError(f"{option} {why}")
