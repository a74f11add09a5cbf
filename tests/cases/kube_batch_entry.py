"""What is said of one of kube-batch's cases: a word, the reason for it, and what batchq does.

`same`: batchq does what kube-batch does (or what its test wants): as many pods of the same groups
are bound and evicted. `differs`: it deliberately does something else, and `why` names the rule or
the complaint behind it. `not applicable`: the case is about something that batchq does not have.
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


#: Plays a case of the file: what batchq does with it.
Play = Callable[[Any, File], object]


class Entry(NamedTuple):
    """One case. `does` is stated literally; `play` finds it out anew at every run of the tests."""

    case: str
    word: str
    why: str = ""
    does: object = None
    play: Play | None = None
