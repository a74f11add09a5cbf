"""Submit many requests in batches, to the server or over the HTTP API; each request is accepted or
refused independently of the others.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from functools import partial
from itertools import count, islice, takewhile
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from weakref import WeakMethod

import msgspec
from msgspec import Struct, structs

from batchq.api.notation import shown
from batchq.api.objects import PodGroup, key_of
from batchq.api.transaction import Commit, Refusal, Transaction, Word
from batchq.api.views import Accepted, Effect, Refused, Tally
from batchq.api_session import ApiSession, error_of
from batchq.client.changes import NewGroups, already_exists, check_same, explain_refusal, rivals
from batchq.client.changes.edits import keys_needed
from batchq.client.request import Submitted, default_name
from batchq.client.request_fields import Draft, Drafts, GroupManifests
from batchq.client.requests import TRIES, wait_for_recount
from batchq.errors import (
    BatchqError,
    Forbidden,
    InvalidInput,
    NotFound,
    Rejected,
    StoreUnavailable,
    UsageError,
)
from batchq.ports import IdSource, Store

if TYPE_CHECKING:
    from batchq.store.redis import RedisStore

#: What to do if a name is taken.
Existing: TypeAlias = Literal["refuse", "keep"]


Outcome: TypeAlias = Accepted | Refused


class Checker:
    """See `Client.checker`."""

    def __init__(self, store: Store, defaults: Mapping[str, Any]) -> None:
        self._drafts = Drafts(defaults)
        self._arrivals = NewGroups(store)

    def __call__(self, what: Submitted) -> BatchqError | None:
        """Return what is wrong with a request, or None. Raises StoreUnavailable."""
        try:
            # Any suffix will do: submission generates the names again.
            self._arrivals.check(self._drafts.draft(what, "00000").group)
        except (InvalidInput, UsageError, NotFound, Rejected) as error:
            return error
        return None


#: Bounds one call of the script to about 50 ms, during which the server serves no other client.
GROUPS_A_BATCH = 500
BYTES_A_BATCH = 4 * 1024 * 1024
#: Bounds the wait for more requests from a slow source before a batch is sent.
LONGEST_GATHER_S = 1.0
#: How long queues and priority classes that were read are trusted.
LONGEST_KNOWN_S = 1.0
#: How long `close` waits for the answer about the last batch.
_ANSWERS_WITHIN_S = 10.0


def _renamed(draft: Draft, suffix: str) -> Draft:
    metadata = structs.replace(draft.group.metadata, name=default_name(draft.program, suffix))
    return structs.replace(draft, group=structs.replace(draft.group, metadata=metadata))


class _Item:
    """One request on its way. `level` is the number of waves of its batch that go before it."""

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
        """Generate another name after a generated one turned out to be taken."""
        assert isinstance(self.draft, Draft)
        self.draft = _renamed(self.draft, suffix)


class _Batch:
    """A batch under way. It is sent in waves: a group that depends on another of the batch is sent
    after the answer about that one.

    All groups are submitted `at_ms`, so their uids order them in line as they were requested.
    """

    def __init__(self, items: Sequence[_Item], at_ms: int) -> None:
        self.items = items
        self.at_ms = at_ms
        self.sent: list[tuple[_Item, Transaction]] = []
        self.request_id = ""
        self.answer: Future[Commit] | None = None

    def wave(self) -> list[_Item]:
        """Return the items of the next wave."""
        left = [item for item in self.items if item.outcome is None]
        level = min((item.level for item in left), default=0)
        return [item for item in left if item.level == level]


def _iterator(requests: Iterable[Submitted]) -> Iterator[Submitted]:
    """Return an iterator over requests. Raises InvalidInput for a single one."""
    if isinstance(requests, str | Mapping) or not isinstance(requests, Iterable):
        raise InvalidInput(
            f"expected a list of requests, found {shown(requests)}",
            hint="`submit` submits a single one",
        )
    return iter(requests)


class Submission(Iterator[Outcome]):
    """Iterates over the outcomes in the order of the requests. Only iterating submits anything.

    Up to two batches of requests are read ahead of the outcomes. The iteration may continue after
    StoreUnavailable: the batch under way is sent again. `tally` counts settled requests, including
    those whose outcomes have not been fetched. Belongs to one thread.
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
        """Raises InvalidInput for invalid defaults."""
        self.tally = Tally()
        #: Whether it waits for the server, where an interrupt loses no outcome.
        self.is_asking = False
        self._store = store
        self._ids = ids
        self._requests = _iterator(requests)
        self._drafts = Drafts(defaults)
        # Weak, so that a loop that breaks off frees the submission at once.
        settling = WeakMethod(self._settle_batch)
        self._arrivals = NewGroups(store, before_reading=lambda: _call(settling))
        self._known_until = 0.0
        self._user = user
        self._existing = existing
        self._keep_going = keep_going
        self._dry_run = dry_run
        self._progress = progress
        self._places = count()
        self._begun = False
        self._all_read = False
        self._source_error: Exception | None = None
        self._gathered: list[_Item] = []
        self._batch: _Batch | None = None
        self._ready: deque[Outcome] = deque()
        self._threads: ThreadPoolExecutor | None = None

    def __next__(self) -> Outcome:
        """Return the next outcome.

        Raises StoreUnavailable, and errors of the requests' iterator after the outcomes of the
        requests before the error.
        """
        self._begun = True
        while not self._ready:
            self._gather()
            first = self._first_wave()
            self._settle_batch()
            if not self._keep_going and self.tally.refused:
                self._all_read, self._gathered = True, []
            elif first is not None:
                self._send_ahead(first)
                continue
            if self._ready:
                break
            self._finish()
            raise StopIteration
        return self._ready.popleft()

    def all(self) -> Tally:
        """Submit everything, discard the outcomes and return their counts."""
        for _ in self:
            pass
        return self.tally

    def close(self) -> bool:
        """Stop reading requests, and wait for the answer about the batch that was sent.

        Return False if none came within 10 s: whether the batch was written is then unknown.
        """
        self._begun = self._all_read = True
        self._gathered = []
        batch = self._batch
        try:
            if batch is not None and batch.answer is not None:
                batch.answer.result(_ANSWERS_WITHIN_S)
            self._settle_batch()
        except (NotYet, StoreUnavailable):
            return False
        finally:
            if self._threads is not None:
                self._threads.shutdown(wait=False)
                self._threads = None
        return self._batch is None

    def __del__(self) -> None:
        if not getattr(self, "_begun", True):
            warnings.warn(
                "the result of submit_many was not used, so nothing was submitted; write"
                " `for outcome in client.submit_many(…)`, or `client.submit_many(…).all()`",
                RuntimeWarning,
                stacklevel=2,
            )
        elif getattr(self, "_batch", None) is not None:
            # The caller left the loop early and may close the connection next.
            self.close()

    def _gather(self) -> None:
        """Gather the next batch, as far as is possible without the server."""
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
            except Exception as error:  # raised by the caller's iterator, and passed on later
                self._all_read, self._source_error = True, error
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

    def _first_wave(self) -> _Batch | None:
        """Return the gathered batch, with the transactions of its first wave."""
        if not self._gathered:
            return None
        if monotonic() >= self._known_until:
            self._arrivals.forget()
            self._known_until = monotonic() + LONGEST_KNOWN_S
        with self._asking():
            batch = _Batch(self._gathered, self._store.now_ms())
            self._build_wave(batch)
        return batch

    @contextmanager
    def _asking(self) -> Iterator[None]:
        self.is_asking = True
        try:
            yield
        finally:
            self.is_asking = False

    def _build_wave(self, batch: _Batch) -> None:
        """Build the transactions of the next wave; refuse items that refer to missing objects."""
        wave = batch.wave()
        dependent = [item.group for item in wave if item.group.spec.depends_on]
        needed = [key for group in dependent for key in keys_needed(group)]
        if needed:
            self._arrivals.forget_missing()
            self._arrivals.find_groups(needed)
        user = self._user()
        sent, doubtful = [], []
        for item in wave:
            try:
                transaction = self._arrivals.submission(
                    item.group, now_ms=batch.at_ms, uid=item.uid, by=user
                )
            except (NotFound, Rejected) as error:
                doubtful.append((item, error))
            else:
                sent.append((item, transaction))
        if doubtful:
            # A taken name is reported first; the batch under way may have taken it.
            self._settle_batch()
            stored = self._stored([item for item, _ in doubtful])
            for item, problem in doubtful:
                self._decide(item, stored.get(key_of(item.group)), problem)
        batch.sent, batch.request_id, batch.answer = sent, self._ids.new_uid(), None

    def _send_ahead(self, batch: _Batch) -> None:
        """Send the first wave; wait for the answer later if more requests can be read meanwhile."""
        self._batch, self._gathered = batch, []
        if self._all_read or self._dry_run or not batch.sent:
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(max_workers=1)
        transactions = [transaction for _, transaction in batch.sent]
        batch.answer = self._threads.submit(
            self._store.commit, transactions, request_id=batch.request_id
        )

    def _settle_batch(self) -> None:
        """Wait until every item of the batch under way is settled. Raises StoreUnavailable."""
        batch = self._batch
        if batch is None:
            return
        while True:
            if batch.sent and self._dry_run:
                self._settle_dry_run(batch)
            elif batch.sent:
                self._apply_answer(batch, self._answer(batch))
            batch.sent = []
            if not batch.wave():
                break
            # Building the next wave must not wait for this batch again.
            self._batch = None
            try:
                with self._asking():
                    self._build_wave(batch)
            finally:
                self._batch = batch
        self._batch = None
        if not self._dry_run:
            self._arrivals.forget_groups()
        self._deliver([item.outcome for item in batch.items if item.outcome is not None])

    def _answer(self, batch: _Batch) -> Commit:
        transactions = [transaction for _, transaction in batch.sent]
        answer, batch.answer = batch.answer, None
        if answer is not None:
            try:
                with self._asking():
                    return answer.result()
            except KeyboardInterrupt:
                batch.answer = answer
                raise
        with self._asking():
            return self._store.commit(transactions, request_id=batch.request_id)

    def _apply_answer(self, batch: _Batch, commit: Commit) -> None:
        """Settle each item of the wave by the server's answer."""
        refusals = iter(commit.refused)
        refusal = next(refusals, None)
        in_conflict: list[tuple[_Item, Refusal]] = []
        for item, transaction in batch.sent:
            if refusal is None or refusal.transaction is not transaction:
                self._accept(item, transaction)
            else:
                if refusal.answer.word is Word.CONFLICT:
                    in_conflict.append((item, refusal))
                else:
                    item.outcome = Refused(place=item.place, error=explain_refusal(refusal))
                refusal = next(refusals, None)
        wait_for_recount(refusal for _, refusal in in_conflict)
        if in_conflict:
            self._read_rivals(
                [item for item, refusal in in_conflict if _is_of_another(item, refusal)]
            )
            stored = self._stored([item for item, _ in in_conflict])
            for item, one in in_conflict:
                self._settle_conflict(item, stored.get(key_of(item.group)), one)

    def _settle_dry_run(self, batch: _Batch) -> None:
        """Settle each item of the wave as the server would, without sending it."""
        stored = self._stored([item for item, _ in batch.sent])
        self._read_rivals([item for item, _ in batch.sent])
        for item, transaction in batch.sent:
            key = key_of(item.group)
            problem = self._name_conflict(item)
            if key in stored:
                self._decide(item, stored[key], already_exists(stored[key]))
            elif problem is not None:
                item.outcome = Refused(place=item.place, error=problem)
            elif self._arrivals.is_noted(key):
                # Taken by an earlier request, whose group would be stored and Pending.
                item.outcome = Refused(place=item.place, error=already_exists(item.group))
            else:
                self._accept(item, transaction)
                self._arrivals.note_rivals([item.group])

    def _read_rivals(self, items: Sequence[_Item]) -> None:
        """Read those existing groups whose pods could have the same names as pods of these."""
        keys = list(dict.fromkeys(key for item in items for key in rivals(item.group)))
        if keys:
            with self._asking():
                self._arrivals.note_rivals(self._store.get_many("PodGroup", keys).values())

    def _name_conflict(self, item: _Item) -> Rejected | None:
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
        """Settle an item whose name was taken, perhaps by an earlier call of this submission."""
        assert isinstance(item.draft, Draft)
        item.tries += 1
        if stored is not None and stored.metadata.uid == item.uid:
            # Written by an earlier call, which the server had forgotten when it was repeated.
            self._arrivals.note(stored)
            item.outcome = Accepted(place=item.place, group=stored)
        elif stored is not None and not item.draft.program:
            self._decide(item, stored, already_exists(stored))
        elif item.tries >= TRIES:
            item.outcome = Refused(place=item.place, error=explain_refusal(refusal))
        elif stored is not None:
            item.rename(self._ids.new_uid()[-8:])

    def _decide(self, item: _Item, stored: PodGroup | None, error: BatchqError) -> None:
        """Refuse an item with `error`, or accept it as unchanged if the stored group equals it."""
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

    def _deliver(self, outcomes: Sequence[Outcome]) -> None:
        self._ready.extend(outcomes)
        self.tally = tally_of(self.tally, outcomes)
        if self._progress is not None:
            self._progress(self.tally)

    def _finish(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
        if self._source_error is not None:
            error, self._source_error = self._source_error, None
            raise error


def tally_of(before: Tally, outcomes: Sequence[Outcome]) -> Tally:
    """Return the tally after more outcomes."""
    refused = sum(isinstance(one, Refused) for one in outcomes)
    unchanged = sum(
        isinstance(one, Accepted) and one.effect is Effect.UNCHANGED for one in outcomes
    )
    return Tally(
        submitted=before.submitted + len(outcomes) - refused - unchanged,
        unchanged=before.unchanged + unchanged,
        refused=before.refused + refused,
    )


def _call(method: WeakMethod[Callable[[], None]]) -> None:
    bound = method()
    if bound is not None:
        bound()


def _is_of_another(item: _Item, refusal: Refusal) -> bool:
    """Return whether an item was refused because of another group."""
    return refusal.answer.subject != f"PodGroup {key_of(item.group)}"


def _set_levels(items: Sequence[_Item]) -> None:
    """Set each item's wave: after the items of its batch that it depends on or shares a name with.

    Only the answer about those tells which group such a name refers to.
    """
    last: dict[str, int] = {}
    for item in items:
        if item.outcome is not None:
            continue
        group = item.group
        key = key_of(group)
        level = last.get(key, 0)
        if group.spec.depends_on:
            for other in keys_needed(group):
                level = max(level, last.get(other, -1) + 1)
        last[key] = item.level = level


#: How often another name is generated for a group whose generated name is taken.
_NAMES_TRIED = 16


class _Row(Struct, frozen=True):
    """The API's answer to one line; `code` and what follows is the problem of a refused one."""

    effect: str
    uid: str = ""
    code: str = ""
    detail: str = ""
    hint: str = ""


class _Line:
    """One request on its way over the HTTP API."""

    __slots__ = ("draft", "outcome", "place", "tries")

    def __init__(self, place: int, draft: Draft | None, error: BatchqError | None = None) -> None:
        self.place = place
        self.draft = draft
        self.outcome: Outcome | None = None if error is None else Refused(place=place, error=error)
        self.tries = 0

    @property
    def group(self) -> PodGroup:
        assert self.draft is not None
        return self.draft.group

    def rename(self, suffix: str) -> None:
        """Generate another name after a generated one turned out to be taken."""
        assert self.draft is not None
        self.draft = _renamed(self.draft, suffix)


class ApiSubmission(Iterator[Outcome]):
    """See `Submission`: iterates over the outcomes, in the order of the requests.

    After StoreUnavailable the iteration may continue: the batch under way is sent again, and
    groups of it that are stored by now count as submitted. Belongs to one thread. While a batch is
    on its way, the next one is read.
    """

    def __init__(
        self,
        session: ApiSession,
        patient: Callable[[Callable[[], Any]], Any],
        new_uid: Callable[[], str],
        requests: Iterable[Submitted],
        *,
        existing: Existing = "refuse",
        keep_going: bool = True,
        dry_run: bool = False,
        progress: Callable[[Tally], None] | None = None,
        **defaults: Any,
    ) -> None:
        """`patient` repeats a call while the API is away. Raises InvalidInput."""
        self.tally = Tally()
        #: Whether it waits for the API, where an interrupt loses no outcome.
        self.is_asking = False
        self._session, self._patient, self._new_uid = session, patient, new_uid
        self._requests = _iterator(requests)
        self._drafts = Drafts(defaults)
        self._manifests = GroupManifests()
        self._existing, self._keep_going, self._dry_run = existing, keep_going, dry_run
        self._progress = progress
        self._places = count()
        self._source_error: Exception | None = None
        self._all_read = False
        self._batch: list[_Line] = []
        self._gathered: list[_Line] = []
        self._threads: ThreadPoolExecutor | None = None
        #: The answer to the first part of the batch, if a thread has sent that.
        self._sent: Future[Sequence[_Row]] | None = None
        #: Whether a part of the batch was sent and no answer came, so that it may be stored.
        self._is_unanswered = False
        self._ready: deque[Outcome] = deque()
        #: Names of a dry run, which stores none.
        self._names: set[str] = set()

    def __next__(self) -> Outcome:
        """Return the next outcome. Raises as `Submission` does."""
        while not self._ready:
            if not self._batch:
                self._batch, self._gathered = self._gathered or self._gather(), []
            if self.tally.refused and not self._keep_going and not self._sent:
                self._batch = []
            if not self._batch:
                self._end()
                error, self._source_error = self._source_error, None
                raise StopIteration if error is None else error
            if not self._all_read and not self._sent:
                self._send_ahead()
            if not self._gathered:
                self._gathered = self._gather()
            self._settle()
        return self._ready.popleft()

    def all(self) -> Tally:
        """Submit everything, discard the outcomes and return their counts."""
        for _ in self:
            pass
        return self.tally

    def close(self) -> bool:
        """Stop reading requests, and ask for the outcome of the batch that was sent.

        Return False if it remains unknown.
        """
        self._requests, self._gathered = iter(()), []
        try:
            if self._batch:
                self._settle()
        except StoreUnavailable:
            return False
        finally:
            self._end()
        return True

    def __del__(self) -> None:
        # The caller may have left the loop early.
        if hasattr(self, "_threads"):
            self._end()

    def _end(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None
        self._session.close()

    def _gather(self) -> list[_Line]:
        found: list[_Line] = []
        until, size = monotonic() + LONGEST_GATHER_S, 0
        while len(found) < GROUPS_A_BATCH and size < BYTES_A_BATCH and monotonic() < until:
            try:
                requests = list(islice(self._requests, 1))
            except Exception as error:  # raised by the caller's iterator, and passed on later
                self._requests, self._source_error = iter(()), error
                requests = []
            if not requests:
                self._all_read = True
                break
            line = self._line(requests[0])
            found.append(line)
            size += 0 if line.draft is None else line.draft.size_bytes
        return found

    def _line(self, what: Submitted) -> _Line:
        place = next(self._places)
        try:
            draft = self._drafts.draft(what, self._new_uid()[-5:])
        except BatchqError as error:
            return _Line(place, None, error)
        key = key_of(draft.group)
        if self._dry_run and key in self._names:
            return _Line(place, None, already_exists(draft.group))
        self._names.update([key] if self._dry_run else ())
        return _Line(place, draft)

    def _settle(self) -> None:
        """Send what has no outcome. Raises StoreUnavailable."""
        while run := self._run():
            for line, row in zip(run, self._answer(run), strict=True):
                self._judge(line, row)
        outcomes = [line.outcome for line in self._batch if line.outcome is not None]
        self._batch = []
        self._deliver(outcomes)

    def _run(self) -> list[_Line]:
        """Return the lines of the batch to send next: without an outcome, of one namespace."""
        waiting = [line for line in self._batch if line.outcome is None]
        return list(takewhile(partial(_is_beside, waiting[0]), waiting)) if waiting else []

    def _send_ahead(self) -> None:
        """Send the first part of the batch, while more requests are read."""
        run = self._run()
        if run:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(max_workers=1)
            self._sent = self._threads.submit(self._request(run))

    def _answer(self, run: Sequence[_Line]) -> Sequence[_Row]:
        """Return the rows for some lines. Raises StoreUnavailable."""
        self.is_asking = True
        try:
            if self._sent is not None:
                try:
                    found = self._sent.result()
                except StoreUnavailable:
                    # It is sent again, for as long as the caller waits for the API.
                    self._sent = None
                else:
                    self._sent = None
                    return found
            rows: Sequence[_Row] = self._patient(self._request(run))
        except Forbidden as error:
            # Only of this namespace: lines of other ones may be accepted.
            row = _Row("refused", code="Forbidden", detail=error.message, hint=error.hint)
            return [row] * len(run)
        finally:
            self.is_asking = False
        return rows

    def _request(self, run: Sequence[_Line]) -> Callable[[], Sequence[_Row]]:
        """Return a function that sends lines of one namespace, and returns their rows."""
        namespace = run[0].group.metadata.namespace
        body = b"\n".join(msgspec.json.encode(self._manifests.of(line.group)) for line in run)
        path = f"/v1/namespaces/{namespace}/groups/bulk"

        def ask() -> Sequence[_Row]:
            existing = "keep" if self._is_unanswered else self._existing
            query = f"?existing={existing}{'&dryRun=true' if self._dry_run else ''}"
            self._is_unanswered = not self._dry_run
            try:
                rows = self._session.exchange_lines(f"{path}{query}", body, _Row)
            except StoreUnavailable:
                self._is_unanswered = self._is_unanswered and not self._session.has_answered
                raise
            self._is_unanswered = False
            return rows

        return ask

    def _judge(self, line: _Line, row: _Row) -> None:
        if row.effect == "refused":
            assert line.draft is not None
            if row.code == "Conflict" and line.draft.program and line.tries < _NAMES_TRIED:
                line.tries += 1
                line.rename(self._new_uid()[-8:])
                return
            problem = {"code": row.code, "detail": row.detail, "hint": row.hint}
            line.outcome = Refused(place=line.place, error=error_of(problem))
            return
        # Otherwise an equal group is one of this batch, which was sent before.
        is_kept = row.effect == "unchanged" and self._existing == "keep"
        metadata = structs.replace(line.group.metadata, uid=row.uid)
        line.outcome = Accepted(
            place=line.place,
            group=structs.replace(line.group, metadata=metadata),
            effect=Effect.UNCHANGED if is_kept else Effect.CREATED,
        )

    def _deliver(self, outcomes: Sequence[Outcome]) -> None:
        self._ready.extend(outcomes)
        self.tally = tally_of(self.tally, outcomes)
        if self._progress is not None:
            self._progress(self.tally)


def _is_beside(first: _Line, line: _Line) -> bool:
    return line.group.metadata.namespace == first.group.metadata.namespace
