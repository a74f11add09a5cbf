"""The endpoints of pod groups (submit, list, watch, get, cancel, why and logs), and of commands in
their pods: starting one, its frames for the user, and the user's frames.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from http import HTTPStatus
from time import monotonic
from typing import Generic, Literal, TypeVar

import msgspec
from msgspec import Struct

from batchq.api.access import Tier, seen
from batchq.api.exec_session import (
    FRAME_BYTES,
    OF_USERS,
    ExecCommand,
    ExecFrame,
    belongs_to,
)
from batchq.api.manifest import decode, encode
from batchq.api.objects import API_VERSION, Pod, PodGroup, Unreadable, key_of, kind_of
from batchq.api.transaction import JUMP
from batchq.api.views import Effect, LogLine, token_of_object
from batchq.api_session import sealed
from batchq.client import Accepted
from batchq.client.access_control import Delegate
from batchq.client.changes import LONGEST_REASON
from batchq.client.pods import SessionPlace
from batchq.client.submission import Existing, Outcome
from batchq.errors import BatchqError, Conflict, NotFound, printable
from batchq.http.access_endpoints import record_use
from batchq.http.calls import (
    EVENT_STREAM,
    NDJSON,
    PLAIN,
    ApiAnswer,
    ApiCall,
    StreamAnswer,
    no_such_group,
)
from batchq.http.change_feed import ChangeEvent, ChangeType
from batchq.http.problems import ApiProblem, bad_request, not_ready, problem_of

MOST_LISTED = 1_000
#: Groups of one request.
MOST_SUBMITTED = 5_000
LONGEST_KEY = 200
#: With this many hexadecimal digits, two keys of one user are unlikely to be equal.
_DIGITS_OF_KEY = 16
#: A filter that few groups match reads all of them.
LONGEST_LIST_S = 20.0
USUALLY_LISTED = 50
MOST_LINES = 100_000
#: How often a watcher that has nothing to learn hears the present revision.
BOOKMARK_S = 15.0
_PAGE = 500


class GroupFilter(Struct, frozen=True, kw_only=True):
    """Which groups are wanted. It looks at what the reader sees, so it reveals nothing else."""

    phases: frozenset[str]
    queue: str
    owner: str
    reason: str
    part: str
    labels: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, call: ApiCall) -> GroupFilter:
        """Read the filter of a request. Raises ApiProblem."""
        owner = call.text("owner")
        return cls(
            phases=frozenset(filter(None, call.text("phase").split(","))),
            queue=call.text("queue"),
            owner=call.identity.user if owner == "me" else owner,
            reason=call.text("reason"),
            part=call.text("q"),
            labels=_labels(call.text("label")),
        )

    def wants(self, group: PodGroup, names: frozenset[str]) -> bool:
        """Return whether a group, as the reader sees it, matches; `names` are the reader's own."""
        status, meta = group.status, group.metadata
        owners = names if self.owner in names else (self.owner,)
        return (
            (not self.phases or str(status.phase) in self.phases)
            and self.queue in ("", group.spec.queue)
            and (not self.owner or status.submitted_by in owners)
            and (not self.reason or any(str(one.reason) == self.reason for one in status.reasons))
            and self.part in meta.name
            and all(meta.labels.get(key) == value for key, value in self.labels)
        )


def _labels(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for part in filter(None, text.split(",")):
        key, sign, value = part.partition("=")
        if not sign or not key:
            raise bad_request(
                f"label: expected KEY=VALUE, or several with commas, found {part[:80]!r}"
            )
        pairs.append((key, value))
    return tuple(pairs)


def list_groups(call: ApiCall) -> ApiAnswer | StreamAnswer:
    """Return a page of groups by name, or follow their changes."""
    call.require_a_role()
    if call.flag("watch"):
        return _watch(call)
    wanted = GroupFilter.of(call)
    limit = call.number("limit", USUALLY_LISTED, MOST_LISTED) or USUALLY_LISTED
    revision = call.delegate.revision()
    items: list[PodGroup] = []
    unreadable: list[Unreadable] = []
    following = ""
    until = monotonic() + LONGEST_LIST_S
    for group in _groups(call, unreadable):
        if monotonic() > until:
            raise too_long()
        tier = call.tier_of(group)
        if tier is None:
            continue
        shown = seen(group, tier)
        if not wanted.wants(shown, call.identity.names):
            continue
        if len(items) == limit:
            following = sealed(token_of_object(items[-1]))
            break
        items.append(shown)
    return ApiAnswer(
        document={
            "apiVersion": API_VERSION,
            "kind": "PodGroupList",
            "revision": revision,
            "continue": following,
            "items": [encode(item) for item in items],
            "unreadable": [
                {"name": one.key, "why": one.why}
                for one in unreadable
                if call.sees(one.key.partition("/")[0])
            ],
        }
    )


def too_long() -> ApiProblem:
    """Return the answer for a list that reads too many groups to find a few."""
    return not_ready(
        f"the list took longer than {LONGEST_LIST_S:.0f} s",
        hint="ask for one namespace, or with fewer filters",
    )


def _groups(call: ApiCall, unreadable: list[Unreadable]) -> Iterator[PodGroup]:
    namespace = call.path.get("namespace") or call.text("namespace")
    after = opened(call.text("continue"))
    for page in call.client.pages("PodGroup", namespace=namespace, after=after, size=_PAGE):
        unreadable += page.unreadable
        yield from (item for item in page.objects if isinstance(item, PodGroup))


def opened(text: str) -> str:
    """Return the token that a caller has sent back. Raises ApiProblem."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise bad_request(
            f"continue: expected the token of an earlier page, found {text[:80]!r}"
        ) from None


def _watch(call: ApiCall) -> StreamAnswer:
    wanted = GroupFilter.of(call)
    return watch_stream(call, "PodGroup", lambda event: _document(call, wanted, event))


def watch_stream(
    call: ApiCall, kind: str, shown: Callable[[ChangeEvent], dict[str, object] | None]
) -> StreamAnswer:
    """Return the changes of a kind as a stream; `shown` returns an event for the caller, or None
    if it may not see it.
    """
    since = call.number("since", None, 2**53)
    if call.last_event:
        if not (call.last_event.isascii() and call.last_event.isdigit()):
            raise bad_request(f"Last-Event-ID: expected a revision, found {call.last_event[:80]!r}")
        since = int(call.last_event[:16])
    as_lines = NDJSON in call.accept

    async def parts() -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        bookmarked_at, bookmark = loop.time(), -1
        is_list = since is None
        feed = call.context.feeds[kind]
        async for events in feed.watch(since):
            # While parts are sent, the feed goes on: only up to here is this watcher served.
            served = feed.revision
            if call.renew_rights():
                # Some groups have come into sight, or have left it.
                end = ChangeEvent(type=ChangeType.RESYNC, revision=feed.revision)
                yield _sent(call, shown, end, as_lines=as_lines, has_id=True)
                return
            for place, event in enumerate(events):
                # A reader resumes after the last id: so there is none within the list of what
                # exists, and none between two events of one revision.
                is_last = place + 1 == len(events) or (
                    not is_list and events[place + 1].revision != event.revision
                )
                part = _sent(call, shown, event, as_lines=as_lines, has_id=is_last)
                if part:
                    yield part
                    bookmarked_at, bookmark = loop.time(), event.revision
                if event.type is ChangeType.RESYNC:
                    return
            is_list = False
            if call.context.is_ending():
                return
            if bookmark < 0 or loop.time() - bookmarked_at > BOOKMARK_S:
                now = ChangeEvent(type=ChangeType.BOOKMARK, revision=served)
                yield _sent(call, shown, now, as_lines=as_lines, has_id=True)
                bookmarked_at, bookmark = loop.time(), now.revision

    content_type = NDJSON if as_lines else EVENT_STREAM
    return StreamAnswer(stream="watches", content_type=content_type, parts=parts)


def _sent(
    call: ApiCall,
    shown: Callable[[ChangeEvent], dict[str, object] | None],
    event: ChangeEvent,
    *,
    as_lines: bool,
    has_id: bool,
) -> bytes:
    """Return an event as sent; nothing if the reader may not see it or does not want it."""
    document: dict[str, object] | None = {"type": str(event.type), "revision": event.revision}
    if event.item is not None:
        document = shown(event)
    if document is None:
        return b""
    data = msgspec.json.encode(call.shown(document))
    if as_lines:
        return data + b"\n"
    named = f"id: {event.revision}\n" if has_id else ""
    return f"{named}event: {document['type']}\ndata: ".encode() + data + b"\n\n"


def _document(call: ApiCall, wanted: GroupFilter, event: ChangeEvent) -> dict[str, object] | None:
    group = event.item
    assert isinstance(group, PodGroup)
    namespace = call.path.get("namespace") or call.text("namespace")
    tier = call.tier_of(group)
    if tier is None or namespace not in ("", group.metadata.namespace):
        return None
    shown = seen(group, tier)
    type_ = event.type
    if not wanted.wants(shown, call.identity.names):
        if type_ is not ChangeType.CHANGED:
            return None
        # It may have matched before: for this watcher, it is gone.
        type_ = ChangeType.DELETED
    return {"type": str(type_), "revision": event.revision, "object": encode(shown)}


def submit_group(call: ApiCall) -> ApiAnswer:
    """Create a group; the same again is no error, so that a lost answer can be repeated."""
    namespace = call.path["namespace"]
    call.require(namespace)
    group = _manifest(call.signed(_in_namespace(_with_name(call), namespace)))
    [outcome] = call.client.submit_many(
        [group], existing="keep", dry_run=call.flag("dryRun"), keep_going=True
    )
    if not isinstance(outcome, Accepted):
        if isinstance(outcome.error, NotFound):
            # The queue, the priority class or a dependency: the path itself was right.
            problem = problem_of(outcome.error)
            raise ApiProblem(
                HTTPStatus.UNPROCESSABLE_ENTITY, problem.code, problem.detail,
                hint=problem.hint, exit_code=problem.exit_code,
            )  # fmt: skip
        raise outcome.error
    _refuse_anothers(call, outcome)
    stored = outcome.group
    is_new = outcome.effect is not Effect.UNCHANGED
    return ApiAnswer(
        document=encode(seen(stored, Tier.OUTPUT)),
        status=HTTPStatus.CREATED if is_new else HTTPStatus.OK,
        headers={"Location": f"/v1/namespaces/{namespace}/groups/{stored.metadata.name}"},
    )


def _with_name(call: ApiCall) -> object:
    """Return the manifest of the body. With an Idempotency-Key it may lack a name, which is then
    derived from the key: the same request again is for the same group.
    """
    data = call.json()
    if not call.idempotency_key or not isinstance(data, dict):
        return data
    metadata = data.get("metadata", {})
    if not isinstance(metadata, dict) or metadata.get("name"):
        return data
    if len(call.idempotency_key) > LONGEST_KEY:
        raise bad_request(f"Idempotency-Key: expected at most {LONGEST_KEY} characters")
    prefix = metadata.get("generateName", "group-")
    if not isinstance(prefix, str):
        raise bad_request("metadata.generateName: expected text")
    told = f"{call.identity.user}\0{call.path['namespace']}\0{call.idempotency_key}"
    name = f"{prefix}{hashlib.sha256(told.encode()).hexdigest()[:_DIGITS_OF_KEY]}"
    rest = {field: value for field, value in metadata.items() if field != "generateName"}
    return {**data, "metadata": {**rest, "name": name}}


def submit_groups(call: ApiCall) -> ApiAnswer:
    """Create the groups of a body with a manifest in each line; answer with a line for each.

    Each is accepted or refused independently. The same body again changes nothing, so that a lost
    answer can be repeated.
    """
    namespace = call.path["namespace"]
    call.require(namespace)
    lines = call.lines()
    if len(lines) > MOST_SUBMITTED:
        raise bad_request(f"expected at most {MOST_SUBMITTED} lines, found {len(lines)}")
    rows: list[dict[str, object]] = [{} for _ in lines]
    places, groups = [], []
    for place, line in enumerate(lines):
        try:
            groups.append(call.signed(_in_namespace(_object_of(line), namespace)))
            places.append(place)
        except (ApiProblem, BatchqError) as error:
            rows[place] = _refused_row(error)
    outcomes = call.client.submit_many(
        groups, existing=_existing(call), keep_going=True, dry_run=call.flag("dryRun")
    )
    for outcome in outcomes:
        rows[places[outcome.place]] = _outcome_row(call, outcome)
    return ApiAnswer(document=rows, is_lines=True)


def _existing(call: ApiCall) -> Existing:
    match call.text("existing"):
        case "" | "keep":
            return "keep"
        case "refuse":
            return "refuse"
        case other:
            raise bad_request(f"existing: expected keep or refuse, found {other[:80]!r}")


def _object_of(line: bytes) -> object:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise bad_request(f"expected JSON, found something else: {error}") from None


def _outcome_row(call: ApiCall, outcome: Outcome) -> dict[str, object]:
    if not isinstance(outcome, Accepted):
        return _refused_row(outcome.error)
    try:
        _refuse_anothers(call, outcome)
    except Conflict as error:
        return _refused_row(error)
    group = outcome.group
    return {
        "effect": str(outcome.effect),
        "name": group.metadata.name,
        "namespace": group.metadata.namespace,
        "uid": group.metadata.uid,
    }


def _refused_row(error: ApiProblem | BatchqError) -> dict[str, object]:
    problem = error if isinstance(error, ApiProblem) else problem_of(error)
    return {
        "effect": "refused",
        "code": problem.code,
        "detail": problem.detail,
        "hint": problem.hint,
        "exit": problem.exit_code,
    }


def _refuse_anothers(call: ApiCall, accepted: Accepted) -> None:
    """Raise Conflict if an equal group was there already, and is not the caller's."""
    owner = accepted.group.status.submitted_by
    if accepted.effect is Effect.UNCHANGED and owner not in call.identity.names:
        raise name_of_another(call, accepted.group)


def name_of_another(call: ApiCall, stored: PodGroup) -> Conflict:
    """Return the error of a submission whose name a group of another user has."""
    key = key_of(stored)
    owner = stored.status.submitted_by if call.knows(key) else ""
    return Conflict(
        f"PodGroup {key} exists already, and was submitted by {owner or 'another user'}",
        hint="choose another name",
    )


def _in_namespace(data: object, namespace: str) -> dict[str, object]:
    """Return a manifest with the namespace of the path. Raises ApiProblem."""
    if not isinstance(data, dict):
        raise bad_request("the body: expected the manifest of a PodGroup as a JSON object")
    metadata = data.get("metadata")
    if not isinstance(metadata, dict) or data.get("kind") != "PodGroup":
        # The client would read what names no kind as the fields of a request.
        raise bad_request(f"kind: expected PodGroup, found {kind_of(decode(data))}")
    stated = metadata.get("namespace")
    if stated not in (None, "", namespace):
        raise bad_request(
            f"metadata.namespace: expected {namespace}, as in the path, found {str(stated)[:80]!r}"
        )
    return {**data, "metadata": {**metadata, "namespace": namespace}}


def _manifest(data: dict[str, object]) -> PodGroup:
    item = decode(data)
    assert isinstance(item, PodGroup)
    return item


def get_group(call: ApiCall) -> ApiAnswer:
    """Return a group, as much of it as the caller may see."""
    group = call.group()
    tier = call.tier_of(group)
    assert tier is not None
    return ApiAnswer(
        document=encode(seen(group, tier)),
        headers={"ETag": f'"{group.metadata.revision}"'},
    )


def cancel_group(call: ApiCall) -> ApiAnswer:
    """End a group; that of another user names the caller in its reason."""
    group = call.meant_group()
    reason = reason_of(call)
    if group.status.submitted_by not in call.identity.names:
        by = f"by {call.identity.user}"
        reason = f"{by}: {reason}" if reason else by
    key = f"{group.metadata.namespace}/{group.metadata.name}"
    call.client.cancel(key, reason=reason, uid=group.metadata.uid)
    return get_ended(call, key)


def get_ended(call: ApiCall, key: str) -> ApiAnswer:
    """Return a group after its end, as much of it as the caller may see."""
    group = call.client.get("PodGroup", key)
    assert isinstance(group, PodGroup)
    tier = call.tier_of(group)
    if tier is None:
        raise no_such_group(*key.split("/"))
    return ApiAnswer(document=encode(seen(group, tier)))


def reason_of(call: ApiCall) -> str:
    """Return the reason in the body, or "". Raises ApiProblem."""
    body = call.json()
    if body is None:
        return ""
    if not isinstance(body, dict) or not set(body) <= {"reason"}:
        raise bad_request('the body: expected nothing, or {"reason": "…"}')
    reason = body.get("reason", "")
    if not isinstance(reason, str) or len(reason) > LONGEST_REASON:
        raise bad_request(f"reason: expected text of at most {LONGEST_REASON} characters")
    return printable(reason)


def why_group(call: ApiCall) -> ApiAnswer:
    """Explain why a group waits, in the words of `batchq why -o json`."""
    group = call.group()
    key = f"{group.metadata.namespace}/{group.metadata.name}"
    return ApiAnswer(document=call.context.why(call.client, key))


def group_logs(call: ApiCall) -> StreamAnswer:
    """Return the output of a group's pods, or follow it."""
    group = call.group()
    if group.status.submitted_by not in call.identity.names:
        record_use(call, call.allowed_by)
    key = f"{group.metadata.namespace}/{group.metadata.name}"
    pod, stream = call.text("pod"), call.text("stream")
    if stream not in ("", "stdout", "stderr"):
        raise bad_request(f"stream: expected stdout or stderr, found {stream[:80]!r}")
    tail = call.number("tail", None, MOST_LINES)
    follow = call.flag("follow")
    attempt: int | Literal["all"] | None = "all"
    if call.text("attempt") != "all":
        attempt = call.number("attempt", None, JUMP)
    form, written = _log_form(call.accept)

    def read(delegate: Delegate, stop: Callable[[], bool]) -> Iterator[LogLine]:
        client = delegate.client_of(call.identity.user)
        lines = client.logs(key, pod=pod, follow=follow, tail=tail, attempt=attempt, stop=stop)
        return (line for line in lines if stream in ("", line.stream))

    async def parts() -> AsyncIterator[bytes]:
        reader = ReaderThread(call, read, size_of=lambda line: len(line.text) + 1, beats=follow)
        async for lines in reader.batches():
            call.renew_rights()
            call.require_of(group)
            yield b"".join(written(line) for line in lines)
        if follow and call.context.is_ending():
            # Without an error, a reader would take the end of the stream for the end of the group.
            raise not_ready("the API is ending")

    return StreamAnswer(stream="logs", content_type=form, parts=parts)


def _log_form(accept: str) -> tuple[str, Callable[[LogLine], bytes]]:
    if NDJSON in accept:
        return NDJSON, lambda line: msgspec.json.encode(line) + b"\n"
    if EVENT_STREAM in accept:
        return (
            EVENT_STREAM,
            lambda line: b"event: line\ndata: " + msgspec.json.encode(line) + b"\n\n",
        )
    return PLAIN, lambda line: line.text.encode(errors="replace") + b"\n"


MOST_FRAMES = 16
_MOST_NUMBER = 2**53


class CommandRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request to run a command in a pod of the group, by its name or uid."""

    pod: str
    run: ExecCommand


class FrameRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request with frames for a command; their data is in base64."""

    frames: tuple[ExecFrame, ...]


def run_command(call: ApiCall) -> ApiAnswer:
    """Ask the node of a pod to run a command; return where its session is."""
    group = call.group()
    # The command sees the token of the pod, if that has one.
    call.check_pod_tokens(group.spec.token)
    wanted = call.body_as(CommandRequest)
    pod = _pod_of(call, group, wanted.pod)
    place = call.delegate.request_command(call.client, group, pod, wanted.run)
    return ApiAnswer(document=msgspec.to_builtins(place), status=HTTPStatus.CREATED)


def _pod_of(call: ApiCall, group: PodGroup, name: str) -> Pod:
    pod = call.client.get("Pod", name, namespace=group.metadata.namespace)
    assert isinstance(pod, Pod)
    if pod.status.group_uid != group.metadata.uid:
        raise bad_request(f"pod: expected a pod of PodGroup {key_of(group)}, found {name[:80]!r}")
    return pod


def read_command(call: ApiCall) -> StreamAnswer:
    """Return the frames of a session for its user, as they come."""
    group = call.group()
    place = _place_of(call, group)
    after = call.number("after", 0, _MOST_NUMBER) or 0

    def read(delegate: Delegate, stop: Callable[[], bool]) -> Iterator[ExecFrame | None]:
        return delegate.frames_of(place, after)

    async def parts() -> AsyncIterator[bytes]:
        reader = ReaderThread(call, read, size_of=lambda frame: len(frame.data), beats=True)
        async for frames in reader.batches():
            call.renew_rights()
            call.require_of(group)
            yield b"".join(msgspec.json.encode(frame) + b"\n" for frame in frames)

    return StreamAnswer(stream="commands", content_type=NDJSON, parts=parts)


def write_command(call: ApiCall) -> ApiAnswer:
    """Send frames of the user to a command; say whether its session is open."""
    place = _place_of(call, call.group())
    frames = call.body_as(FrameRequest).frames
    if len(frames) > MOST_FRAMES:
        raise bad_request(f"frames: expected at most {MOST_FRAMES}, found {len(frames)}")
    for frame in frames:
        if frame.kind not in OF_USERS:
            raise bad_request(f"frames: expected frames of a user, found {frame.kind}")
        if len(frame.data) > FRAME_BYTES:
            raise bad_request(f"frames: expected at most {FRAME_BYTES} bytes in each")
        if not 0 < frame.number < _MOST_NUMBER:
            raise bad_request(f"frames: expected a number from 1, found {frame.number}")
    return ApiAnswer(document={"isOpen": call.delegate.send_frames(place, frames)})


def _place_of(call: ApiCall, group: PodGroup) -> SessionPlace:
    session, node = call.path["session"], call.text("node")
    if not belongs_to(session, call.identity.user, group.metadata.uid):
        raise ApiProblem(
            HTTPStatus.NOT_FOUND, "NotFound", "you have no such session with a command",
            exit_code=6,
        )  # fmt: skip
    return SessionPlace(session=session, node=node)


T = TypeVar("T")

#: A batch is sent when its items have this size.
_BATCH = 32 * 1024
#: Batches that a reader may be behind; then the thread waits.
_MOST_BATCHES = 16
_LOOK_S = 0.5


class ReaderThread(Generic[T]):
    """Reads items on a connection of its own, which blocks, and hands them to the event loop in
    batches.
    """

    def __init__(
        self,
        call: ApiCall,
        read: Callable[[Delegate, Callable[[], bool]], Iterator[T | None]],
        *,
        size_of: Callable[[T], int],
        beats: bool,
    ) -> None:
        """`read` returns the items, and None when it has to wait for the next; it may ask whether
        the stream is over. `beats`: an empty batch comes twice a second if there is nothing.
        """
        self._call = call
        self._read = read
        self._size_of = size_of
        self._beats = beats
        self._loop = asyncio.get_running_loop()
        self._batches: asyncio.Queue[Sequence[T] | BatchqError | None] = asyncio.Queue(
            _MOST_BATCHES
        )
        self._stopping = threading.Event()
        self._items: list[T] = []
        self._size = 0

    async def batches(self) -> AsyncIterator[Sequence[T]]:
        """Yield the items. Raises the error of the first read."""
        thread = threading.Thread(target=self._run, name="reader", daemon=False)
        thread.start()
        try:
            while True:
                try:
                    found = await asyncio.wait_for(self._batches.get(), _LOOK_S)
                except TimeoutError:
                    if self._beats:
                        yield ()
                    continue
                if found is None or self._call.context.is_ending():
                    return
                if isinstance(found, BatchqError):
                    raise found
                yield found
        finally:
            self._stopping.set()

    def _run(self) -> None:
        try:
            with self._call.context.connect() as delegate:
                for item in self._read(delegate, self._is_over):
                    if item is None:
                        self._hand_over()
                    else:
                        self._items.append(item)
                        self._size += self._size_of(item)
                    if self._size >= _BATCH:
                        self._hand_over()
                    if self._stopping.is_set():
                        return
            self._hand_over()
            self._put(None)
        except BatchqError as error:
            self._put(error)

    def _is_over(self) -> bool:
        # A reader that follows asks after each look at what there is, and then waits.
        self._hand_over()
        return self._stopping.is_set()

    def _hand_over(self) -> None:
        if self._items:
            items, self._items, self._size = tuple(self._items), [], 0
            self._put(items)

    def _put(self, batch: Sequence[T] | BatchqError | None) -> None:
        putting = self._batches.put(batch)
        try:
            done = asyncio.run_coroutine_threadsafe(putting, self._loop)
        except RuntimeError:
            # The loop has ended.
            putting.close()
            self._stopping.set()
            return
        while not self._stopping.is_set():
            try:
                done.result(_LOOK_S)
                return
            except TimeoutError:
                continue
        done.cancel()
