"""Plugins of others that raise: such a plugin is taken to refuse, and the session goes on.

One group for which a stranger's code fails must not keep all others from being scheduled. What
the plugin was asked about is refused, with what it raised as the reason; a node is scored 0. An
order cannot be guessed: there the session ends with PluginFailed, which names the plugin. The
plugins in the box are not guarded: what these raise is our own mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from batchq.api.reasons import Verdict, Waiting
from batchq.errors import PluginFailed
from batchq.framework.extension import Plugin

_LONGEST = 300
#: What a plugin that raises is taken to have answered, for all points but those of an order.
_REFUSALS: dict[str, Callable[[Verdict], Any]] = {
    "preEnqueue": lambda verdict: [verdict],
    "admissible": lambda verdict: [verdict],
    "permit": lambda verdict: [verdict],
    "predicate": lambda verdict: verdict,
    "score": lambda verdict: 0,
    "groupReady": lambda verdict: False,
    "preemptable": lambda verdict: False,
    "reclaimable": lambda verdict: False,
}


def is_of_others(plugin: Plugin) -> bool:
    """Whether it comes from an installed package, and not from the box."""
    return type(plugin).__module__.partition(".")[0] != "batchq"


def guarded(
    plugin: Plugin, point: str, function: Callable[..., Any], failures: dict[str, str]
) -> Callable[..., Any]:
    """The plugin's function, which refuses where it would raise and notes that in `failures`.

    Raises PluginFailed at the points of an order.
    """

    def asked(*arguments: Any) -> Any:
        try:
            return _in_form(point, function(*arguments))
        except Exception as error:  # whatever a stranger's code may raise
            told = f"plugin {plugin.name} failed at {point}: {_shown(error)}"
            if point not in _REFUSALS:
                raise PluginFailed(
                    told,
                    hint=f"take {plugin.name} off {point} in scheduler.yaml, or correct it",
                ) from error
            failures.setdefault(f"{plugin.name} at {point}", _shown(error))
            return _REFUSALS[point](
                Verdict(plugin=plugin.name, reason=Waiting.MISCONFIGURED, detail=told)
            )

    return asked


def _in_form(point: str, answer: Any) -> Any:
    """The answer as it was given. Raises TypeError if it is none of those that the point knows."""
    match point:
        case "preEnqueue" | "admissible" | "permit":
            answer = list(answer)
            fits = all(isinstance(one, Verdict) for one in answer)
            wanted = "a list of Verdict"
        case "predicate":
            fits, wanted = answer is None or isinstance(answer, Verdict), "a Verdict or None"
        case "score":
            fits, wanted = isinstance(answer, int), "an integer"
        case _:
            return answer
    if not fits:
        raise TypeError(f"expected {wanted}, found {answer!r}")
    return answer


def guarded_clock(
    plugin: Plugin, clock: Callable[..., Iterable[int]], failures: dict[str, str]
) -> Callable[..., Iterable[int]]:
    """The plugin's `due_at`, which names no instants where it would raise."""

    def asked(*arguments: Any) -> Iterable[int]:
        try:
            return [int(at) for at in clock(*arguments)]
        except Exception as error:  # whatever a stranger's code may raise
            failures.setdefault(f"{plugin.name} at due_at", _shown(error))
            return []

    return asked


def _shown(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:_LONGEST] if text else type(error).__name__
