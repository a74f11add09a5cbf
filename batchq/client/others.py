"""Several groups, as somebody of one namespace is told of them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

#: So many names are told where others are only counted.
MOST_NAMED = 3


class Others(Struct, frozen=True, kw_only=True, rename="camel"):
    """Several groups: the first few of the same namespace by key, how many more of it there are,
    and how many of other namespaces.
    """

    named: tuple[str, ...] = ()
    more: int = 0
    elsewhere: int = 0

    @property
    def count(self) -> int:
        """How many in all."""
        return len(self.named) + self.more + self.elsewhere


def others(keys: Iterable[str], namespace: str) -> Others:
    """These groups, in their order, as somebody of one namespace is told of them."""
    keys = list(dict.fromkeys(keys))
    mine = [key for key in keys if key.startswith(f"{namespace}/")]
    return Others(
        named=tuple(mine[:MOST_NAMED]),
        more=len(mine[MOST_NAMED:]),
        elsewhere=len(keys) - len(mine),
    )
