"""A record in the store that cannot be read: which one, why, and what to do about it."""

from __future__ import annotations

import shlex

from msgspec import Struct

from batchq.api.objects import KINDS


class Unreadable(Struct, frozen=True, kw_only=True):
    """`kind` is that of an object, or another sort of record of batchq's; `key` its name for
    people, plain characters of ASCII; `why` one line.

    `remedy`: of an object "", as it can be deleted by its name.
    """

    kind: str
    key: str
    why: str
    remedy: str = ""

    @property
    def is_object(self) -> bool:
        """Whether it stands where an object should."""
        return self.kind in KINDS and bool(self.key)

    @property
    def deletion(self) -> str:
        """Of one in the place of an object: the command that takes it out."""
        return f"batchq delete {self.kind.lower()} {shlex.quote(self.key)}"
