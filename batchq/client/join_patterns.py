"""Which nodes a join token is for: the named one, or new ones whose names have a pattern."""

from __future__ import annotations

import re

from batchq.api.notation import subdomain_problem
from batchq.errors import InvalidInput

ANY = "*"
MOST_USES = 1_000


def check_pattern(pattern: str) -> None:
    """Raise InvalidInput unless it is a pattern: a node's name with `*` for some of its letters,
    digits and `-`.
    """
    # A star may stand for nothing, except where a name would then begin or end with a dash.
    tried = pattern.replace(ANY, "x")
    if ANY not in pattern or not pattern.strip(f"{ANY}-.") or (problem := subdomain_problem(tried)):
        why = "" if ANY not in pattern or not pattern.strip(f"{ANY}-.") else f": {problem}"
        raise InvalidInput(
            f"the pattern {pattern[:80]!r}: expected a part of a node's name, and {ANY!r} for the"
            f" rest{why}",
            hint=f"as in gpu-{ANY}",
        )


def is_for(names: str, node: str) -> bool:
    """Whether a node's name is the one that a join token is for, or has its pattern."""
    if subdomain_problem(node):
        return False
    parts = (re.escape(part) for part in names.split(ANY))
    return re.fullmatch("[a-z0-9-]*".join(parts), node) is not None
