"""What changed from one configuration to the next, in one line for a log or an event."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from batchq.config.load import as_written
from batchq.config.model import SchedulerConfig

#: So many changes are told one by one, and each so far.
_MOST = 6
_LONGEST = 80
_NOTHING = "nothing"


def what_changed(before: SchedulerConfig, after: SchedulerConfig) -> str:
    """As in `schedulePeriod 1s -> 500ms; plugins +drf`, as the two would be written."""
    changes = _changes(as_written(before), as_written(after))
    told = list(islice(changes, _MOST))
    more = sum(1 for _ in changes)
    if more:
        told.append(f"and {more} more")
    return "; ".join(told) or "as before"


def _changes(
    before: Mapping[str, object], after: Mapping[str, object], *, under: str = ""
) -> Iterator[str]:
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        place = f"{under}.{name}" if under else name
        if isinstance(old, Mapping | None) and isinstance(new, Mapping | None):
            yield from _changes(old or {}, new or {}, under=place)
        elif isinstance(old, list) and isinstance(new, list):
            yield f"{place} {_of_lists(old, new)}"
        else:
            yield f"{place} {_brief(old)} -> {_brief(new)}"


def _of_lists(before: Sequence[object], after: Sequence[object]) -> str:
    """Both of them; where they are long, what came and went."""
    old, new = [_text(item) for item in before], [_text(item) for item in after]
    whole = f"{', '.join(old) or _NOTHING} -> {', '.join(new) or _NOTHING}"
    if len(whole) <= _LONGEST:
        return whole
    came = [f"+{item}" for item in new if item not in old]
    went = [f"-{item}" for item in old if item not in new]
    return _cut(" ".join((*came, *went))) if came or went else "in another order"


def _brief(value: object) -> str:
    return _NOTHING if value is None else _cut(_text(value))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
