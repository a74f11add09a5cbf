"""Numbers that fence: epochs and attempts, and how they jump when a server may have forgotten some.

A server that lost its last writes, or was restored from an older file, would hand the same numbers
out again, and a process that still holds one of the lost ones could pass for its successor. So
every start of the server begins a *generation*, named by the server's clock in seconds, and the
numbers go on above everything that an earlier generation can have reached:

    number = generation * JUMP + count

What people are shown is the count. Generation 0 is that of a store without a server (the
simulator's), where numbers are plain. The largest number stays below 2^53, above which Lua's
numbers skip integers.
"""

from __future__ import annotations

#: More than any pod is bound, or any leader elected, between two starts of a server.
JUMP = 1_000_000


def count_of(number: int) -> int:
    """The count, as people are shown it: 1 for the first."""
    return number % JUMP


def generation_of(number: int) -> int:
    """The generation in which a number was given out."""
    return number // JUMP


def following(number: int, *, generation: int) -> int:
    """The number after `number`, in `generation` or in that of the number, if it is later.

    The count goes on over the jump.
    """
    return max(generation, generation_of(number)) * JUMP + count_of(number) + 1
