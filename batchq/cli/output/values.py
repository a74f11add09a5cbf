"""Values on the command line, as click's callbacks: quantities, durations, pairs and kinds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import click

from batchq.api.notation import nearest, qualified_problem, shown
from batchq.api.objects import KINDS, NAMESPACED
from batchq.api.resources import parse_quantity
from batchq.api.times import parse_duration
from batchq.cli.output.terminal import echo
from batchq.client import key_named
from batchq.errors import UsageError

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
#: As the help names them: what people write most first.
_IN_ORDER = (
    *("PodGroup", "Pod", "Queue", "Node", "ResourceQuota", "PriorityClass", "AdmissionCheck"),
)
#: What a kind may be called, in lower case.
KIND_NAMES = (
    {kind.lower(): kind for kind in KINDS} | {f"{kind.lower()}s": kind for kind in KINDS} | _SHORT
)

Callback = Callable[[click.Context, click.Parameter, Any], Any]


def kind_of_word(word: str) -> str:
    """A kind by its name in any case, in the plural, or by its short name.

    Raises UsageError, with the nearest one.
    """
    kind = KIND_NAMES.get(word.lower())
    if kind is None:
        near = nearest(word.lower(), KIND_NAMES)
        meant = f"; did you mean {near}?" if near else ""
        known = ", ".join(kind.lower() for kind in _IN_ORDER)
        raise UsageError(f"expected one of {known}, found {shown(word)}{meant}")
    return kind


def kind_and_name(word: str) -> tuple[str, str]:
    """What `-o name` prints, `podgroup/default/train` or `queue/default`, as kind and name; any
    other word names a pod group.

    Raises UsageError for three parts that do not begin with a kind.
    """
    first, slash, rest = word.partition("/")
    if "/" in rest:
        return kind_of_word(first), rest
    kind = KIND_NAMES.get(first.lower()) if slash else None
    # `job/train` may be a namespace and a group; a queue has no namespace.
    return ("PodGroup", word) if kind is None or kind in NAMESPACED else (kind, rest)


def name_of_kind(kind: str, word: str) -> str:
    """The name in a word that may have the kind in front, as `-o name` prints it.

    Raises UsageError if that is another kind.
    """
    found, name = kind_and_name(word)
    if name == word:
        return word
    if found != kind:
        raise UsageError(f"expected a {kind}, found the {found} {name}")
    return name


def group_key(word: str, namespace: str) -> str:
    """The key of a group that is named NAME, NAMESPACE/NAME or podgroup/NAMESPACE/NAME.

    Raises InvalidInput, or UsageError: also for a word with another namespace than -n gives.
    """
    key = key_named(name_of_kind("PodGroup", word), namespace)
    named = key.partition("/")[0]
    if named != namespace and _is_typed("namespace"):
        raise UsageError(
            f"{key} is of namespace {named}, and -n gives {shown(namespace)}",
            hint=f"leave out -n, or say `-n {named}`",
        )
    return key


def _is_typed(option: str) -> bool:
    """Whether the command that runs was given this option."""
    context = click.get_current_context(silent=True)
    given = None if context is None else context.get_parameter_source(option)
    return given is not None and given is not click.core.ParameterSource.DEFAULT


def group_keys(words: Sequence[str], namespace: str) -> list[str]:
    """The same for several, each once."""
    return list(dict.fromkeys(group_key(word, namespace) for word in words))


def complete_kind(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The kinds that begin like this."""
    return [kind.lower() for kind in KINDS if kind.lower().startswith(incomplete.lower())]


#: Fewer bytes than this no process runs with: a unit was forgotten.
_LEAST_BYTES = 1 << 20
#: So short a walltime without a unit is more likely minutes or hours.
_LEAST_SECONDS = 60


def as_quantity(resource: str) -> Callback:
    """Callback of a quantity of `resource`; it stays text, once it is known to be one."""

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value is not None:
            _check_quantity(resource, value)
            if resource == "memory" and value.isdigit() and int(value) < _LEAST_BYTES:
                _warn(f"--{param.name} {value} is {value} bytes; did you mean {value}Gi?")
        return value

    return check


def as_duration(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Callback of a duration; it stays text, once it is known to be one."""
    if value is not None:
        try:
            parse_duration(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return value


def as_walltime(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Callback of how long a pod may run: `as_duration`, with a warning where the unit is missing
    and the number is too small to be seconds.
    """
    found = as_duration(ctx, param, value)
    if value is not None and value.isdigit() and int(value) < _LEAST_SECONDS:
        _warn(f"--{param.name} {value} is {value} seconds; did you mean {value}h or {value}m?")
    return found


def _warn(sentence: str) -> None:
    echo(f"warning: {sentence}", err=True)


def as_json(kind: type[list[Any]] | type[dict[str, Any]]) -> Callback:
    """Callback of a JSON text that holds a list, or a map; None if the option is not given."""
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
    """Callback of many NAME=VALUE."""
    pairs: dict[str, str] = {}
    for one in value:
        name, equals, text = one.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"expected NAME=VALUE, found {shown(one)}")
        pairs[name] = text
    return pairs


def as_env(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    """Callback of many NAME=VALUE, where a NAME alone stands for the variable that is set here."""
    pairs = []
    for one in value:
        if "=" not in one and one not in os.environ:
            text = f"expected NAME=VALUE, or NAME of what is set here, found {shown(one)}"
            raise click.BadParameter(text)
        pairs.append(one if "=" in one else f"{one}={os.environ[one]}")
    return as_pairs(ctx, param, tuple(pairs))


def as_resources(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> dict[str, str]:
    """Callback of many RESOURCE=QUANTITY."""
    pairs: dict[str, str] = {}
    for one in value:
        name, equals, text = one.partition("=")
        if not equals or qualified_problem(name):
            raise click.BadParameter(f"expected RESOURCE=QUANTITY, found {shown(one)}")
        if name in pairs:
            raise click.BadParameter(f"{name} is given twice")
        _check_quantity(name, text)
        pairs[name] = text
    return pairs


def seconds_of(duration: str | None) -> float | None:
    """A checked duration in seconds."""
    return None if duration is None else parse_duration(duration) / 1000


def left_of(timeout_s: float | None, spent_s: float) -> float | None:
    """What is left of a time after some of it was spent; None is for ever."""
    return None if timeout_s is None else max(0.0, timeout_s - spent_s)


def _check_quantity(resource: str, text: str) -> None:
    try:
        parse_quantity(resource, text)
    except ValueError as error:
        raise click.BadParameter(f"{resource}: {error}") from None
