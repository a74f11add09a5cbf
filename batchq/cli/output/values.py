"""Values on the command line as click callbacks: quantities, durations, pairs and kinds. Also the
last messages and exit codes of commands that wait for groups.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from batchq.api.lifecycle import TERMINAL
from batchq.api.node_features import gpu_request
from batchq.api.notation import nearest, parse_duration, resource_problem, shown
from batchq.api.objects import KINDS, NAMESPACED, PodGroup
from batchq.api.resources import CPU, MEMORY, doubtful_memory, parse_quantity
from batchq.cli.output import (
    EXIT_GROUP_CANCELLED,
    EXIT_GROUP_FAILED,
    echo,
    on_interrupt,
    one_line,
    show_warning,
)
from batchq.errors import NotFound, StoreUnavailable, UsageError

if TYPE_CHECKING:
    from batchq.api.views import Result
    from batchq.cli.output.options import Globals
    from batchq.client import Client

_SHORT = {
    "pg": "PodGroup",
    "group": "PodGroup",
    "groups": "PodGroup",
    "job": "PodGroup",
    "jobs": "PodGroup",
    "po": "Pod",
    "q": "Queue",
    "no": "Node",
    "quota": "ResourceQuota",
    "quotas": "ResourceQuota",
    "pc": "PriorityClass",
    "priorityclasses": "PriorityClass",
    "ac": "AdmissionCheck",
    "check": "AdmissionCheck",
    "checks": "AdmissionCheck",
}
#: The order in messages: the most frequent kinds first.
_IN_ORDER = (
    *("PodGroup", "Pod", "Queue", "Node", "ResourceQuota", "PriorityClass", "AdmissionCheck"),
)
#: All names of kinds, in lower case.
KIND_NAMES = (
    {kind.lower(): kind for kind in KINDS} | {f"{kind.lower()}s": kind for kind in KINDS} | _SHORT
)

Callback = Callable[[click.Context, click.Parameter, Any], Any]


def kind_of_word(word: str) -> str:
    """Return a kind by its name in any case, in the plural, or by its short name.

    Raises UsageError, with the nearest name.
    """
    kind = KIND_NAMES.get(word.lower())
    if kind is None:
        near = nearest(word.lower(), KIND_NAMES)
        meant = f"; did you mean {near}?" if near else ""
        known = ", ".join(kind.lower() for kind in _IN_ORDER)
        raise UsageError(f"expected one of {known}, found {shown(word)}{meant}")
    return kind


def kind_and_name(word: str) -> tuple[str, str]:
    """Split what `-o name` prints, `podgroup/default/train` or `queue/default`, into kind and name;
    any other word names a pod group.

    Raises UsageError for three parts that do not begin with a kind.
    """
    first, slash, rest = word.partition("/")
    if "/" in rest:
        return kind_of_word(first), rest
    kind = KIND_NAMES.get(first.lower()) if slash else None
    # `job/train` may be a namespace and a group; queues have no namespace.
    return ("PodGroup", word) if kind is None or kind in NAMESPACED else (kind, rest)


def name_of_kind(kind: str, word: str) -> str:
    """Return the name in a word that may begin with the kind, as `-o name` prints it.

    Raises UsageError if it begins with another kind.
    """
    found, name = kind_and_name(word)
    if name == word:
        return word
    if found != kind:
        raise UsageError(f"expected a {kind}, found the {found} {name}")
    return name


def group_key(word: str, namespace: str) -> str:
    """Return the key of a group given as NAME, NAMESPACE/NAME or podgroup/NAMESPACE/NAME.

    Raises InvalidInput, or UsageError, also if -n names another namespace.
    """
    from batchq.client import key_named

    key = key_named(name_of_kind("PodGroup", word), namespace)
    named = key.partition("/")[0]
    if named != namespace and _is_typed("namespace"):
        raise UsageError(
            f"{key} is in namespace {named}, but -n names {shown(namespace)}",
            hint=f"leave out -n, or write `-n {named}`",
        )
    return key


def _is_typed(option: str) -> bool:
    """Return whether the running command was given this option."""
    context = click.get_current_context(silent=True)
    given = None if context is None else context.get_parameter_source(option)
    return given is not None and given is not click.core.ParameterSource.DEFAULT


def group_keys(words: Sequence[str], namespace: str) -> list[str]:
    """Return the keys of several groups, without repetitions."""
    return list(dict.fromkeys(group_key(word, namespace) for word in words))


def existing(client: Client, kind: str, words: Sequence[str], namespace: str = "") -> list[str]:
    """Return the keys of objects, without repetitions, after checking that all exist, so that a
    typing error in the third name has no effect on the first object.
    """
    if kind == "PodGroup":
        keys = group_keys(words, namespace)
    else:
        keys = list(dict.fromkeys(name_of_kind(kind, word) for word in words))
    for key in keys:
        client.get(kind, key)
    return keys


def complete_kind(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a kind."""
    return [kind.lower() for kind in KINDS if kind.lower().startswith(incomplete.lower())]


#: A smaller walltime without a unit probably means minutes, as in Slurm, or hours.
_LEAST_SECONDS = 300


def as_quantity(resource: str) -> Callback:
    """Return a callback that checks a quantity of `resource` and returns it as text."""

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value is not None:
            _check_quantity(resource, value)
            if resource == MEMORY and (doubt := doubtful_memory(value)):
                show_warning(f"--{param.name} {value} is {doubt}")
        return value

    return check


def as_gpus(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Check a number of GPUs, after the model and a colon if one is named."""
    if value is not None:
        try:
            name, quantity = gpu_request(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
        if problem := resource_problem(name):
            raise click.BadParameter(problem)
        _check_quantity(name, str(quantity))
    return value


def as_walltime(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Warn of a walltime without a unit that is too small for seconds."""
    if value is not None and value.isdigit() and 0 < int(value) < _LEAST_SECONDS:
        show_warning(
            f"--{param.name} {value} is {value} seconds; did you mean {value}h or {value}m?"
        )
    return value


def as_json(kind: type[list[Any]] | type[dict[str, Any]]) -> Callback:
    """Return a callback that parses a JSON list or map; None if the option is not given."""
    wanted = "a JSON list such as [1, 2]" if kind is list else 'a JSON map such as {"a": 1}'

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
        if value is None:
            return None
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            raise click.BadParameter(f"expected {wanted}, found {shown(value)}") from None
        if not isinstance(found, kind):
            raise click.BadParameter(f"expected {wanted}, found {shown(found)}")
        return found

    return check


def as_pairs(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    """Parse many NAME=VALUE."""
    pairs: dict[str, str] = {}
    for one in value:
        name, equals, text = one.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"expected NAME=VALUE, found {shown(one)}")
        pairs[name] = text
    return pairs


#: The names of variables that a shell can read.
_READABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def as_env(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    """Parse many NAME=VALUE; NAME alone stands for the variable of this environment."""
    pairs = []
    for one in value:
        if "=" not in one and one not in os.environ:
            text = (
                f"expected NAME=VALUE, or NAME of a variable that is set here, found {shown(one)}"
            )
            raise click.BadParameter(text)
        name = one.partition("=")[0]
        if any(letter.isspace() for letter in name):
            raise click.BadParameter(f"the name of a variable has no spaces, found {shown(one)}")
        if name and not _READABLE.fullmatch(name):
            show_warning(f"--env: a shell cannot read a variable with the name {shown(name)}")
        pairs.append(one if "=" in one else f"{one}={os.environ[one]}")
    return as_pairs(ctx, param, tuple(pairs))


def as_resources(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> dict[str, str]:
    """Parse many RESOURCE=QUANTITY."""
    pairs: dict[str, str] = {}
    for one in value:
        name, equals, text = one.partition("=")
        if not equals or resource_problem(name):
            raise click.BadParameter(f"expected RESOURCE=QUANTITY, found {shown(one)}")
        if name in pairs:
            raise click.BadParameter(f"{name} is given twice")
        _check_quantity(name, text)
        pairs[name] = text
    return pairs


def warn_of_no_cpu(offered: Mapping[str, int]) -> None:
    """Warn on stderr if a node's `--resources` offer no cpu, which each pod requests by default."""
    if offered.get(CPU) == 0:
        show_warning("--resources: with cpu=0, only pods that request no cpu can start")


def seconds_of(duration: str | None) -> float | None:
    """Return a checked duration in seconds."""
    return None if duration is None else parse_duration(duration) / 1000


def left_of(timeout_s: float | None, spent_s: float) -> float | None:
    """Return the rest of a timeout, in seconds; None is for ever. Less than a second is what a
    connection takes to a server that runs, and does not count.
    """
    if timeout_s is None or spent_s < 1:
        return timeout_s
    return max(0.0, timeout_s - spent_s)


def _check_quantity(resource: str, text: str) -> None:
    try:
        parse_quantity(resource, text)
    except ValueError as error:
        raise click.BadParameter(f"{resource}: {error}") from None


def exit_code_of(results: Sequence[Result], *, pass_on: bool = False) -> int:
    """Return 0 if all groups reached the goal, 11 if one was cancelled, else 10.

    With `pass_on`, return the exit code of the only pod if there is exactly one.
    """
    if pass_on and len(results) == 1 and results[0].exit_code is not None:
        return results[0].exit_code
    missed = [result for result in results if not result.reached]
    if not missed:
        return 0
    cancelled = any(result.phase == "Cancelled" for result in missed)
    failed = any(result.phase == "Failed" for result in missed)
    return EXIT_GROUP_CANCELLED if cancelled and not failed else EXIT_GROUP_FAILED


def ending_text(phase: str, reason: str, message: str) -> str:
    """Return the text beside the phase of an ended group, without a repeated phase."""
    word = "" if reason == phase and message else reason
    return ": ".join(part for part in (word, message) if part)


def print_results(results: Sequence[Result], *, err: bool = False) -> None:
    """Print one line for each group."""
    for result in results:
        ending = ending_text(result.phase, result.reason, result.message)
        line = f"podgroup {result.key} {result.phase}"
        explains = not result.reached and ending not in ("", result.phase)
        # One line even in a pipe, so that a pod's message cannot imitate another group's line.
        echo(one_line(f"{line} ({ending})" if explains else line), err=err)


def warn_if_no_leader(client: Client, keys: Sequence[str]) -> None:
    """Warn on stderr if groups have not ended and no scheduler leads."""
    try:
        groups = [client.get("PodGroup", key) for key in keys]
    except (NotFound, StoreUnavailable):
        # The command that waits for them reports this itself.
        return
    if any(isinstance(one, PodGroup) and one.status.phase not in TERMINAL for one in groups):
        warn_if_not_led(client)


def warn_if_not_led(client: Client) -> None:
    """Warn on stderr if no scheduler leads, unless this cannot be found out now."""
    try:
        unled = client.schedulers().unled
    except StoreUnavailable:
        # The groups are submitted, whatever becomes of the server, or of the right to read this.
        return
    warn_no_leader(unled)


def warn_no_leader(unled: str) -> None:
    """Warn on stderr that no scheduler leads, if `unled` says so."""
    if unled:
        echo(unled, err=True)


@contextmanager
def following(
    shared: Globals, keys: Sequence[str], *, patience_s: float | None = None
) -> Iterator[Client]:
    """Connect to follow groups; Ctrl-C then reports that they keep running."""
    sentence, hint = interruption_of(keys)
    with (
        on_interrupt("interrupted; the server has not answered"),
        shared.connect(patience_s=patience_s) as client,
        on_interrupt(sentence, hint=hint),
    ):
        yield client


def interruption_of(keys: Sequence[str]) -> tuple[str, str]:
    """Return the sentence and the hint for Ctrl-C."""
    names = " ".join(keys)
    if len(keys) == 1:
        return (
            f"interrupted; PodGroup {names} keeps running",
            f"stop it with `batchq cancel {names}`",
        )
    return (
        f"interrupted; the {len(keys)} pod groups keep running",
        f"stop them with `batchq cancel {names}`",
    )
