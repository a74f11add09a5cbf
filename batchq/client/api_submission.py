"""Submitting many groups over the HTTP API: batches of lines, and an outcome for each line."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count, islice, takewhile
from time import monotonic
from typing import Any

import msgspec
from msgspec import Struct, structs

from batchq.api.objects import PodGroup, key_of
from batchq.api.views import Accepted, Effect, Refused, Tally
from batchq.api_session import ApiSession, error_of
from batchq.client.changes import already_exists
from batchq.client.request import Submitted, default_name
from batchq.client.request_fields import Draft, Drafts, GroupManifests
from batchq.client.submission import (
    BYTES_A_BATCH,
    GROUPS_A_BATCH,
    LONGEST_GATHER_S,
    Existing,
    Outcome,
    tally_of,
)
from batchq.errors import BatchqError, StoreUnavailable

#: How often another name is generated for a group whose generated name is taken.
_NAMES_TRIED = 16


class _Row(Struct, frozen=True):
    """The answer to one line; `code` and what follows is the problem of a refused one."""

    effect: str
    uid: str = ""
    code: str = ""
    detail: str = ""
    hint: str = ""


class _Line:
    """One request on its way."""

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
        assert self.draft is not None
        metadata = structs.replace(
            self.group.metadata, name=default_name(self.draft.program, suffix)
        )
        group = structs.replace(self.group, metadata=metadata)
        self.draft = structs.replace(self.draft, group=group)


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
        self._requests = iter(requests)
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
