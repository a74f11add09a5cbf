"""The entry of one of kube-batch's cases: a word, the reason for it, and what batchq does.

`same`: batchq does what kube-batch does (or what its test expects): it binds and evicts as many
pods of the same groups. `differs`: it deliberately does something else, and `why` names the rule or
the complaint behind it. `not applicable`: batchq does not have the subject of the case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

SAME = "same"
DIFFERS = "differs"
NOT_APPLICABLE = "not applicable"
WORDS = (SAME, DIFFERS, NOT_APPLICABLE)


class File(NamedTuple):
    """What a case may need of the file beside itself."""

    cases: Mapping[str, Any]
    configs: Mapping[str, Any]


#: Plays a case of the file, and returns what batchq does with it.
Play = Callable[[Any, File], object]


class Entry(NamedTuple):
    """One case. `does` is a literal, which the tests compare with the result of `play`."""

    case: str
    word: str
    why: str = ""
    does: object = None
    play: Play | None = None
