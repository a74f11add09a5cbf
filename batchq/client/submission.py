"""What becomes of each of many requests: it is accepted, or refused by itself."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from weakref import WeakMethod

from msgspec import Struct, structs

from batchq.api.objects import PodGroup, key_of
from batchq.api.transaction import Commit, Refusal, Transaction, Word
from batchq.changes import NewGroups, already_exists, check_same, explain_refusal, rivals
from batchq.client.request import Submitted, default_name
from batchq.client.request_fields import Draft, Drafts
from batchq.client.requests import TRIES, Effect
from batchq.errors import (
    BatchqError,
    InvalidInput,
    NotFound,
    Rejected,
    StoreUnavailable,
    UsageError,
)
from batchq.ports import IdSource, Store

if TYPE_CHECKING:
    from batchq.store.redis import RedisStore

#: What to do about a name that is taken.
Existing: TypeAlias = Literal["refuse", "keep"]


class Accepted(Struct, frozen=True, kw_only=True):
    """The request at `place` (from 0) is stored as `group`: created, or `unchanged` from before."""

    place: int
    group: PodGroup
    effect: Effect = Effect.CREATED


class Refused(Struct, frozen=True, kw_only=True):
    """The request at `place` (from 0) is not stored, for the reason that `submit` would raise."""

    place: int
    error: BatchqError


Outcome: TypeAlias = Accepted | Refused


class Tally(Struct, frozen=True, kw_only=True):
    """How far it is: of the requests that were settled, in order, so many of each sort."""

    submitted: int = 0
    unchanged: int = 0
    refused: int = 0

    @property
    def settled(self) -> int:
        return self.submitted + self.unchanged + self.refused


class Checker:
    """See `Client.checker`."""

    def __init__(self, store: Store, defaults: Mapping[str, Any]) -> None:
        self._drafts = Drafts(defaults)
        self._arrivals = NewGroups(store)

    def __call__(self, what: Submitted) -> BatchqError | None:
        """What is wrong with it, or None. Raises StoreUnavailable."""
        try:
            # Any suffix will do: the names are made again when they are submitted.
            self._arrivals.check(self._drafts.draft(what, "00000").group)
        except (InvalidInput, UsageError, NotFound, Rejected) as error:
            return error
        return None


#: One call of the script does so much: about 50 ms, in which the server serves nobody else.
GROUPS_A_BATCH = 500
BYTES_A_BATCH = 4 * 1024 * 1024
#: Requests that come one after the other, from a slow source, wait no longer for others.
LONGEST_GATHER_S = 1.0
#: What was read of queues and priority classes holds for so long.
LONGEST_KNOWN_S = 1.0


class _Item:
    """One request on its way. `level`: how many waves of its batch it has to wait for."""

    __slots__ = ("draft", "level", "outcome", "place", "tries", "uid")

    def __init__(self, place: int, uid: str, draft: Draft | BatchqError) -> None:
        self.place = place
        self.uid = uid
        self.draft = draft
        self.level = 0
        self.tries = 0
        self.outcome: Outcome | None = None
        if isinstance(draft, BatchqError):
            self.outcome = Refused(place=place, error=draft)

    @property
    def group(self) -> PodGroup:
        assert isinstance(self.draft, Draft)
        return self.draft.group

    def rename(self, suffix: str) -> None:
        """Another name for one that was made and happened to be taken."""
        assert isinstance(self.draft, Draft)
        name = default_name(self.draft.program, suffix)
        metadata = structs.replace(self.group.metadata, name=name)
        self.draft = structs.replace(
            self.draft, group=structs.replace(self.group, metadata=metadata)
        )


class _Flight:
    """A batch that was sent, wave by wave: who depends on others of it comes after their answer.

    All of it is submitted `at_ms`: whoever is asked for first stands first in line, by the uids.
    """

    def __init__(self, items: Sequence[_Item], at_ms: int) -> None:
        self.items = items
        self.at_ms = at_ms
        self.sent: list[tuple[_Item, Transaction]] = []
        self.request_id = ""
        self.answer: Future[Commit] | None = None

    def wave(self) -> list[_Item]:
        """Who is next."""
        left = [item for item in self.items if item.outcome is None]
        level = min((item.level for item in left), default=0)
        return [item for item in left if item.level == level]


class Submission(Iterator[Outcome]):
    """What becomes of each request, in their order; nothing is submitted but by iterating.

    Up to two batches are read ahead of the outcomes. After StoreUnavailable the iteration may be
    gone on with: the batch under way is asked again. `tally` counts what was settled, also of a
    batch whose outcomes were not fetched. Belongs to one thread.
    """

    def __init__(
        self,
        store: RedisStore,
        ids: IdSource,
        requests: Iterable[Submitted],
        defaults: Mapping[str, Any],
        *,
        user: Callable[[], str],
        existing: Existing = "refuse",
        keep_going: bool = True,
        dry_run: bool = False,
        progress: Callable[[Tally], None] | None = None,
    ) -> None:
        """Raises InvalidInput for defaults that are wrong by themselves."""
        self.tally = Tally()
        #: Whether it waits for the server: to be interrupted then loses no outcome.
        self.is_asking = False
        self._store = store
        self._ids = ids
        self._requests = iter(requests)
        self._drafts = Drafts(defaults)
        # Not a reference to itself: who breaks off the loop lets go of it at once.
        landing = WeakMethod(self._land)
        self._arrivals = NewGroups(store, before_reading=lambda: _call(landing))
        self._known_until = 0.0
        self._user = user
        self._existing = existing
        self._keep_going = keep_going
        self._dry_run = dry_run
        self._progress = progress
        self._places = count()
        self._begun = False
        self._all_read = False
        self._trouble: Exception | None = None
        self._gathered: list[_Item] = []
        self._flight: _Flight | None = None
        self._ready: deque[Outcome] = deque()
        self._threads: ThreadPoolExecutor | None = None

    def __next__(self) -> Outcome:
        """The next outcome.

        Raises StoreUnavailable, and what the iterator of requests raised, after the outcomes of
        those before it.
        """
        self._begun = True
        while not self._ready:
            self._gather()
            first = self._prepared()
            self._land()
            if not self._keep_going and self.tally.refused:
                self._all_read, self._gathered = True, []
            elif first is not None:
                self._launch(first)
                continue
            if self._ready:
                break
            self._finish()
            raise StopIteration
        return self._ready.popleft()

    def all(self) -> Tally:
        """Submit everything, and forget what became of each but for its number."""
        for _ in self:
            pass
        return self.tally

    def close(self, *, within_s: float = 10.0) -> bool:
        """Read no more requests, and wait for the answer to what was sent.

        False if there is none in time: whether that batch was written is then not known.
        """
        self._begun = self._all_read = True
        self._gathered = []
        flight = self._flight
        try:
            if flight is not None and flight.answer is not None:
                flight.answer.result(within_s)
            self._land()
        except (NotYet, StoreUnavailable):
            return False
        finally:
            if self._threads is not None:
                self._threads.shutdown(wait=False)
                self._threads = None
        return self._flight is None

    def __del__(self) -> None:
        if not getattr(self, "_begun", True):
            warnings.warn(
                "submit_many was not iterated over, so nothing was submitted; as in"
                " `for outcome in client.submit_many(…)`, or `client.submit_many(…).all()`",
                RuntimeWarning,
                stacklevel=2,
            )
        elif getattr(self, "_flight", None) is not None:
            # Whoever broke off the loop closes the connection next.
            self.close()

    # --- reading ahead ------------------------------------------------------------------------

    def _gather(self) -> None:
        """Make the next batch ready, as far as it can be without the server."""
        if self._gathered or self._all_read:
            return
        until, size = monotonic() + LONGEST_GATHER_S, 0
        gathered = self._gathered
        while len(gathered) < GROUPS_A_BATCH and size < BYTES_A_BATCH:
            try:
                what = next(self._requests)
            except StopIteration:
                self._all_read = True
                break
            except Exception as error:  # whatever the caller's own iterator raises: passed on
                self._all_read, self._trouble = True, error
                break
            item = self._item(what)
            gathered.append(item)
            if isinstance(item.draft, Draft):
                size += item.draft.size_bytes
            if monotonic() >= until:
                break
        _set_levels(gathered)

    def _item(self, what: Submitted) -> _Item:
        place, uid = next(self._places), self._ids.new_uid()
        try:
            return _Item(place, uid, self._drafts.draft(what, uid[-5:]))
        except BatchqError as error:
            return _Item(place, uid, error)

    def _prepared(self) -> _Flight | None:
        """The batch that was gathered, with the transactions of its first wave."""
        if not self._gathered:
            return None
        if monotonic() >= self._known_until:
            self._arrivals.forget()
            self._known_until = monotonic() + LONGEST_KNOWN_S
        with self._asking():
            flight = _Flight(self._gathered, self._store.now_ms())
            self._bind(flight)
        return flight

    # --- sending ------------------------------------------------------------------------------

    @contextmanager
    def _asking(self) -> Iterator[None]:
        self.is_asking = True
        try:
            yield
        finally:
            self.is_asking = False

    def _bind(self, flight: _Flight) -> None:
        """The transactions of the flight's next wave; who refers to what is not there is out."""
        wave = flight.wave()
        dependent = [item.group for item in wave if item.group.spec.depends_on]
        needed = [key for group in dependent for key in _keys_needed(group)]
        if needed:
            self._arrivals.forget_missing()
            self._arrivals.find_groups(needed)
        user = self._user()
        sent, doubtful = [], []
        for item in wave:
            try:
                transaction = self._arrivals.submission(
                    item.group, now_ms=flight.at_ms, uid=item.uid, by=user
                )
            except (NotFound, Rejected) as error:
                doubtful.append((item, error))
            else:
                sent.append((item, transaction))
        if doubtful:
            # That the name is taken is said first; perhaps by the batch under way.
            self._land()
            there = self._stored([item for item, _ in doubtful])
            for item, problem in doubtful:
                self._decide(item, there.get(key_of(item.group)), problem)
        flight.sent, flight.request_id, flight.answer = sent, self._ids.new_uid(), None

    def _launch(self, flight: _Flight) -> None:
        """Send the first wave; the answer is waited for later if there is more to do meanwhile."""
        self._flight, self._gathered = flight, []
        if self._all_read or self._dry_run or not flight.sent:
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(max_workers=1)
        transactions = [transaction for _, transaction in flight.sent]
        flight.answer = self._threads.submit(
            self._store.commit, transactions, request_id=flight.request_id
        )

    def _land(self) -> None:
        """Wait for everything that becomes of the batch under way. Raises StoreUnavailable."""
        flight = self._flight
        if flight is None:
            return
        while True:
            if flight.sent and self._dry_run:
                self._suppose(flight)
            elif flight.sent:
                self._judge(flight, self._answer(flight))
            flight.sent = []
            if not flight.wave():
                break
            # What it reads is read now: nothing else is under way.
            self._flight = None
            try:
                with self._asking():
                    self._bind(flight)
            finally:
                self._flight = flight
        self._flight = None
        if not self._dry_run:
            self._arrivals.forget_groups()
        self._deliver([item.outcome for item in flight.items if item.outcome is not None])

    def _answer(self, flight: _Flight) -> Commit:
        transactions = [transaction for _, transaction in flight.sent]
        answer, flight.answer = flight.answer, None
        if answer is not None:
            try:
                with self._asking():
                    return answer.result()
            except KeyboardInterrupt:
                flight.answer = answer
                raise
        with self._asking():
            return self._store.commit(transactions, request_id=flight.request_id)

    def _judge(self, flight: _Flight, commit: Commit) -> None:
        """What the answer says of each that was sent."""
        refusals = iter(commit.refused)
        refusal = next(refusals, None)
        in_conflict: list[tuple[_Item, Refusal]] = []
        for item, transaction in flight.sent:
            if refusal is None or refusal.transaction is not transaction:
                self._accept(item, transaction)
            else:
                if refusal.answer.word is Word.CONFLICT:
                    in_conflict.append((item, refusal))
                else:
                    item.outcome = Refused(place=item.place, error=explain_refusal(refusal))
                refusal = next(refusals, None)
        if in_conflict:
            self._learn_rivals(
                [item for item, refusal in in_conflict if _is_of_another(item, refusal)]
            )
            there = self._stored([item for item, _ in in_conflict])
            for item, one in in_conflict:
                self._settle_conflict(item, there.get(key_of(item.group)), one)

    def _suppose(self, flight: _Flight) -> None:
        """What would become of each, were it sent."""
        there = self._stored([item for item, _ in flight.sent])
        self._learn_rivals([item for item, _ in flight.sent])
        for item, transaction in flight.sent:
            key = key_of(item.group)
            problem = self._bears_the_names_of_others(item)
            if key in there:
                self._decide(item, there[key], already_exists(there[key]))
            elif problem is not None:
                item.outcome = Refused(place=item.place, error=problem)
            elif self._arrivals.is_noted(key):
                # By an earlier request, which would be stored, and be Pending.
                item.outcome = Refused(place=item.place, error=already_exists(item.group))
            else:
                self._accept(item, transaction)
                self._arrivals.note_rivals([item.group])

    def _learn_rivals(self, items: Sequence[_Item]) -> None:
        """Look up which of the groups are there whose pods could be called like those of these."""
        keys = list(dict.fromkeys(key for item in items for key in rivals(item.group)))
        if keys:
            with self._asking():
                self._arrivals.note_rivals(self._store.get_many("PodGroup", keys).values())

    def _bears_the_names_of_others(self, item: _Item) -> Rejected | None:
        try:
            self._arrivals.free_names(item.group)
        except Rejected as problem:
            return problem
        return None

    def _accept(self, item: _Item, transaction: Transaction) -> None:
        group = transaction.writes[0].value
        assert isinstance(group, PodGroup)
        self._arrivals.note(group)
        item.outcome = Accepted(place=item.place, group=group)

    def _settle_conflict(self, item: _Item, stored: PodGroup | None, refusal: Refusal) -> None:
        """Somebody has the name: we ourselves, another, or nobody any more."""
        assert isinstance(item.draft, Draft)
        item.tries += 1
        if stored is not None and stored.metadata.uid == item.uid:
            # Written by a call of which the server had forgotten, when it was asked again.
            self._arrivals.note(stored)
            item.outcome = Accepted(place=item.place, group=stored)
        elif stored is not None and not item.draft.program:
            self._decide(item, stored, already_exists(stored))
        elif item.tries >= TRIES:
            item.outcome = Refused(place=item.place, error=explain_refusal(refusal))
        elif stored is not None:
            item.rename(self._ids.new_uid()[-8:])

    def _decide(self, item: _Item, stored: PodGroup | None, error: BatchqError) -> None:
        """Refused because of `error`; or kept, if a group of that name may be taken for it."""
        if stored is not None:
            error = already_exists(stored)
            self._arrivals.note(stored)
            if self._existing == "keep":
                try:
                    check_same(stored, item.group)
                except BatchqError as differs:
                    error = differs
                else:
                    kept = Accepted(place=item.place, group=stored, effect=Effect.UNCHANGED)
                    item.outcome = kept
                    return
        item.outcome = Refused(place=item.place, error=error)

    def _stored(self, items: Sequence[_Item]) -> Mapping[str, PodGroup]:
        with self._asking():
            found = self._store.get_many("PodGroup", [key_of(item.group) for item in items])
        return {key: item for key, item in found.items() if isinstance(item, PodGroup)}

    # --- the end ------------------------------------------------------------------------------

    def _deliver(self, outcomes: Sequence[Outcome]) -> None:
        self._ready.extend(outcomes)
        refused = sum(isinstance(one, Refused) for one in outcomes)
        unchanged = sum(
            isinstance(one, Accepted) and one.effect is Effect.UNCHANGED for one in outcomes
        )
        before = self.tally
        self.tally = Tally(
            submitted=before.submitted + len(outcomes) - refused - unchanged,
            unchanged=before.unchanged + unchanged,
            refused=before.refused + refused,
        )
        if self._progress is not None:
            self._progress(self.tally)

    def _finish(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble


def _call(method: WeakMethod[Callable[[], None]]) -> None:
    bound = method()
    if bound is not None:
        bound()


def _is_of_another(item: _Item, refusal: Refusal) -> bool:
    """Whether it was refused for a group that is there beside it."""
    return refusal.answer.subject != f"PodGroup {key_of(item.group)}"


def _keys_needed(group: PodGroup) -> list[str]:
    namespace = group.metadata.namespace
    return [f"{namespace}/{dependency.name}" for dependency in group.spec.depends_on]


def _set_levels(items: Sequence[_Item]) -> None:
    """Who depends on another of the batch, or bears its name, is sent after the answer about it:
    only then it is known whether that one, or one that was there before, is meant.
    """
    last: dict[str, int] = {}
    for item in items:
        if item.outcome is not None:
            continue
        group = item.group
        key = key_of(group)
        level = last.get(key, 0)
        if group.spec.depends_on:
            for other in _keys_needed(group):
                level = max(level, last.get(other, -1) + 1)
        last[key] = item.level = level


class Submitting(ABC):
    """Part of `batchq.client.Client`, whose connection it uses."""

    _store: RedisStore
    _ids: IdSource

    @property
    @abstractmethod
    def user(self) -> str:
        """Under which name what this client asks for is remembered."""

    def submit_many(
        self,
        requests: Iterable[Submitted],
        /,
        *,
        existing: Existing = "refuse",
        keep_going: bool = True,
        dry_run: bool = False,
        progress: Callable[[Tally], None] | None = None,
        **defaults: Any,
    ) -> Submission:
        """Submit many new groups, one batch after the other, and tell what became of each.

        `requests` may be an iterator, and never ends up in memory as a whole. Each is what `submit`
        takes first, or a dict of its keywords, for which `defaults` say what it leaves open. The
        answer is to be iterated over, or `.all()` to be called: for each request in order an
        `Accepted` with its `place` (from 0) and its `group`, or a `Refused` with the `error` that
        `submit` would have raised. Every group is accepted whole or refused by itself, and may
        depend on others that come before it.

        With `existing="keep"` a request whose name is taken by a group that says the same is
        accepted as `unchanged`: what was interrupted may be run again. Without `keep_going` nothing
        is sent any more after a batch in which one was refused. `progress` hears a `Tally` after
        each batch. `dry_run` checks everything and writes nothing; it remembers every name.

        Raises InvalidInput for defaults that are wrong by themselves. The iteration raises
        StoreUnavailable, and may be gone on with then.
        """

        return Submission(
            self._store,
            self._ids,
            requests,
            defaults,
            user=lambda: self.user,
            existing=existing,
            keep_going=keep_going,
            dry_run=dry_run,
            progress=progress,
        )

    def checker(self, **defaults: Any) -> Callable[[Submitted], BatchqError | None]:
        """What tells of one request after the other what is wrong with it by itself, and with the
        queue and the priority class that it names; None if nothing is. Whether its name is taken,
        and what it depends on, is not asked. Queues and priority classes are read once.

        Raises InvalidInput for defaults that are wrong by themselves; what it returns raises
        StoreUnavailable.
        """

        return Checker(self._store, defaults)
