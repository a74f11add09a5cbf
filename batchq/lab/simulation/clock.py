"""Virtual time, deterministic ids, and stated runtimes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from batchq.api.objects import RUNTIME_ANNOTATION, Object, Pod, PodGroup, full_name, kind_of
from batchq.api.times import SECOND, parse_duration
from batchq.api.transaction import Transaction
from batchq.changes import explain_refusal
from batchq.errors import InvalidInput, InvariantBroken
from batchq.ports import IdSource
from batchq.store.memory import MemoryStore


def whole_second(instant_ms: int) -> int:
    """Return the first whole second at or after an instant in ms: the time step of a world."""
    return -(-instant_ms // SECOND) * SECOND


class VirtualClock:
    """A Clock that only moves when told to, and never backwards."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Return milliseconds since the epoch of the described world."""
        return self._now_ms

    def jump_to(self, instant_ms: int) -> None:
        """Set the time to `instant_ms`. Raises InvariantBroken if that is in the past."""
        if instant_ms < self._now_ms:
            raise InvariantBroken(f"time cannot go back from {self._now_ms} to {instant_ms} ms")
        self._now_ms = instant_ms


class CountedIds:
    """A deterministic IdSource: numbers from `first` on, except those in `taken`."""

    def __init__(self, first: int = 1, taken: frozenset[str] = frozenset()) -> None:
        self._next = first
        self._taken = taken

    def new_uid(self) -> str:
        """Return the next number as text."""
        while str(self._next) in self._taken:
            self._next += 1
        self._next += 1
        return str(self._next - 1)


def runtime_of(annotations: Mapping[str, str]) -> int | None:
    """Return milliseconds from start to success; None if the pod runs until something ends it."""
    written = annotations.get(RUNTIME_ANNOTATION)
    return None if written is None else _parsed(written)


@cache
def _parsed(written: str) -> int:
    return parse_duration(written)


def check_runtimes(obj: Object) -> None:
    """Check that every runtime stated in an object is valid. Raises InvalidInput."""
    found: list[Mapping[str, str]] = []
    if isinstance(obj, PodGroup):
        found = [task.template.annotations for task in obj.spec.tasks]
    elif isinstance(obj, Pod):
        found = [obj.metadata.annotations]
    for stated in found:
        try:
            runtime_of(stated)
        except ValueError as error:
            raise InvalidInput(
                f"{kind_of(obj)} {full_name(obj)}: annotation {RUNTIME_ANNOTATION}: {error}"
            ) from None


def write(store: MemoryStore, requests: IdSource, transaction: Transaction | None) -> None:
    """Commit a transaction, if there is one.

    All writers of one store, the cycle included, must share one source of request ids: a request
    with a used id would count as a repetition. Raises the error of `explain_refusal`.
    """
    if transaction is None:
        return
    commit = store.commit([transaction], request_id=requests.new_uid())
    if commit.refused:
        raise explain_refusal(commit.refused[0])
