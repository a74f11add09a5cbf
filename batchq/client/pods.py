"""What comes out of pods and goes into them: output, results, and commands beside their own.

Commands run in running pods:

    session = client.commands.start(pod, ExecCommand(command=("hostname",)))
    for frame in session.receive(1.0):
        ...

A session has one thread that sends and one that receives. It reaches the node over the Redis server
or over the HTTP API, as the client does.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
from msgspec import Struct, to_builtins

from batchq.api.exec_session import (
    COMMAND_STARTED,
    REQUEST_TTL_MS,
    SILENCE_S,
    ExecCommand,
    ExecFrame,
    ExecRequest,
    FrameKind,
    check_command,
    session_of,
    signed_request,
)
from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase, PodPhase
from batchq.api.notation import counted
from batchq.api.objects import (
    Metadata,
    Object,
    Pod,
    PodGroup,
    PodSpec,
    PodStatus,
    full_name,
    group_key_of,
    uid_of_pod,
)
from batchq.api.reasons import Finish
from batchq.api.transaction import Event, Transaction, count_of
from batchq.api.views import LogLine, Result
from batchq.client.changes.object_writes import find, name_hint
from batchq.client.watch import Watch, pods_of, wait_for
from batchq.errors import (
    Conflict,
    GroupCancelled,
    GroupFailed,
    NotFound,
    StoreUnavailable,
    UnreadableRecord,
    UsageError,
)

if TYPE_CHECKING:
    from batchq.api_session import ApiCredentials, ApiSession
    from batchq.store.redis import RedisStore

#: The longest delay of a followed line.
_LATE_MS = 250
#: A longer line is cut here.
_LONGEST_LINE_BYTES = 64 * 1024


class _Reader:
    """Reads one attempt's output; keeps an incomplete last line for the next call."""

    def __init__(
        self, store: RedisStore, pod: Pod, *, node: str = "", attempt: int | None = None
    ) -> None:
        """Read the output of an attempt on a node; by default, of the pod's latest attempt."""
        status = pod.status
        self._store = store
        self._pod = pod
        self._node = node or status.node or status.last_node
        self._attempt = status.attempt if attempt is None else attempt
        self._after = "0"
        self._rests: dict[str, bytes] = {}

    def lines(self) -> Iterator[LogLine]:
        """Yield all complete lines that are available."""
        uid = self._pod.metadata.uid
        while chunks := self._store.read_log(self._node, uid, self._attempt, after=self._after):
            for chunk in chunks:
                self._after = chunk.id
                *whole, rest = (self._rests.get(chunk.stream, b"") + chunk.data).split(b"\n")
                yield from (self._line(chunk.stream, line) for line in whole)
                if len(rest) > _LONGEST_LINE_BYTES:
                    yield self._line(chunk.stream, rest)
                    rest = b""
                self._rests[chunk.stream] = rest

    def last_lines(self) -> Iterator[LogLine]:
        """Yield the rest after the output has ended."""
        yield from self.lines()
        for stream, rest in self._rests.items():
            if rest:
                yield self._line(stream, rest)
        self._rests = {}

    def _line(self, stream: str, line: bytes) -> LogLine:
        return LogLine(
            pod=self._pod.metadata.name,
            attempt=count_of(self._attempt),
            stream=stream,
            text=line.removesuffix(b"\r").decode(errors="replace"),
            admission=self._pod.status.admission,
        )


def read_output(
    store: RedisStore,
    key: str,
    *,
    pod: str = "",
    tail: int | None = None,
    attempt: int | Literal["all"] | None = None,
) -> Iterator[LogLine]:
    """Yield the kept output of the latest attempt of each pod, of the attempt of this number, or of
    all attempts of all admissions, pod after pod.

    `pod` selects one by its name or by `<task>-<index>`; `tail` limits the output to the last lines
    of each attempt. Raises NotFound, StoreUnavailable.
    """
    wanted, group = pod, find(store, PodGroup, key)
    nodes = [] if attempt is None else [node.metadata.name for node in store.list("Node")]
    existing = _existing(store, group)
    known = [one for one in existing if _matches(one, group, wanted)]
    if attempt == "all":
        known = _in_order([*known, *_former(store, group, existing, wanted, nodes)])
    if wanted and not known:
        raise _no_such_pod(key, existing, wanted)
    for one in known if attempt == "all" else _latest(known):
        if not one.status.attempt:
            continue
        if attempt is None:
            yield from _last(_Reader(store, one).last_lines(), tail)
            continue
        latest = count_of(one.status.attempt)
        for number in range(1, latest + 1) if attempt == "all" else (attempt,):
            if number <= latest:
                yield from _last(_of_attempt(store, one, number, nodes), tail)


#: Former pods are looked for among at most this many keys.
_MOST_PLACES = 50_000
#: Attempts beyond a group's retries, after losses, that are looked for.
_MOST_FREE_ATTEMPTS = 3


def _former(
    store: RedisStore,
    group: PodGroup,
    existing: Sequence[Pod],
    wanted: str,
    nodes: Sequence[str],
) -> list[Pod]:
    """Return pods of former admissions whose records are deleted and whose output is kept, each
    with its latest attempt and that one's node.

    Their uids tell where their output is; their attempts are looked for in the generation of the
    group's other pods and in the present one.
    """
    leader = store.leader()
    numbers = [pod.status.attempt for pod in existing if pod.status.attempt]
    numbers += [leader.epoch] if leader is not None else []
    bases = {number - count_of(number) for number in numbers}
    most = group.spec.retry.limit + 1 + _MOST_FREE_ATTEMPTS
    there = {pod.metadata.uid for pod in existing}
    found: dict[str, Pod] = {}
    places: list[tuple[str, str, int]] = []
    for pod in _deleted(group, there):
        if not _matches(pod, group, wanted):
            continue
        uid = pod.metadata.uid
        found[uid] = pod
        places += [(n, uid, base + m) for base in bases for n in nodes for m in range(1, most + 1)]
        if len(places) > _MOST_PLACES:
            break
    kept = store.have_logs(places)
    for (node, uid, attempt), is_kept in zip(places, kept, strict=True):
        if is_kept and attempt > found[uid].status.attempt:
            status = msgspec.structs.replace(found[uid].status, attempt=attempt, node=node)
            found[uid] = msgspec.structs.replace(found[uid], status=status)
    return list(found.values())


def _deleted(group: PodGroup, existing: Collection[str]) -> Iterator[Pod]:
    """Yield the pods that the group may have had, latest admission first, without those whose uid
    exists.
    """
    meta = group.metadata
    for admission in range(group.status.admission, 0, -1):
        ordinal = 0
        for task in group.spec.tasks:
            for index in range(task.replicas):
                uid = uid_of_pod(meta.uid, admission, ordinal)
                ordinal += 1
                if uid not in existing:
                    name = f"{meta.name}-{task.name}-{index}"
                    yield Pod(
                        metadata=Metadata(name=name, namespace=meta.namespace, uid=uid),
                        spec=PodSpec(pod_group=meta.name, task=task.name, index=index),
                        status=PodStatus(group_uid=meta.uid, admission=admission),
                    )


def _of_attempt(
    store: RedisStore, pod: Pod, attempt: int, nodes: Sequence[str]
) -> Iterator[LogLine]:
    """Yield the output of an attempt; a pod does not know on which node its former attempts ran."""
    status = pod.status
    number = status.attempt - count_of(status.attempt) + attempt
    for node in filter(None, dict.fromkeys((status.node, status.last_node, *nodes))):
        lines = list(_Reader(store, pod, node=node, attempt=number).last_lines())
        if lines:
            return iter(lines)
    return iter(())


def follow_output(
    store: RedisStore,
    key: str,
    *,
    pod: str = "",
    tail: int | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[LogLine]:
    """Yield what `read_output` yields, then each new line, until the group's processes have ended
    or `stop` returns True, which is asked several times a second.

    `tail` limits the lines that exist at the beginning.
    """
    group = find(store, PodGroup, key)
    uid = group.metadata.uid
    watch = Watch(store, ("PodGroup", "Pod"), namespace=group.metadata.namespace)
    pods: dict[str, Pod] = {}
    readers: dict[tuple[str, int], _Reader] = {}
    block_ms, first = 0, True
    while True:
        for change in watch.poll(block_ms):
            if isinstance(change.value, Pod) and change.value.status.group_uid == uid:
                pods[change.key] = change.value
            elif isinstance(change.value, PodGroup) and change.value.metadata.uid == uid:
                group = change.value
            elif change.value is None:
                pods.pop(change.key, None)
        ended = group.status.phase in TERMINAL and not any(
            one.status.phase in ON_NODE for one in pods.values()
        )
        for one in _in_order(pods.values()):
            if one.status.attempt and _matches(one, group, pod):
                place = one.metadata.uid, one.status.attempt
                reader = readers.setdefault(place, _Reader(store, one))
                lines = reader.last_lines() if ended else reader.lines()
                yield from _last(lines, tail if first else None)
        if ended or stop() or store.get("PodGroup", key) is None:
            return
        block_ms, first = _LATE_MS, False


def patient(
    lines: Iterator[LogLine], patiently: Callable[[], AbstractContextManager[None]]
) -> Iterator[LogLine]:
    """Yield the same lines; wait patiently for each, but not in the caller's code between them."""
    while True:
        with patiently():
            line = next(lines, None)
        if line is None:
            return
        yield line


def _existing(store: RedisStore, group: PodGroup) -> list[Pod]:
    """Return the pods of all admissions of which there is a record, in order."""
    return _in_order(
        pod
        for pod in store.list("Pod", namespace=group.metadata.namespace)
        if isinstance(pod, Pod) and pod.status.group_uid == group.metadata.uid
    )


def _no_such_pod(key: str, existing: Sequence[Pod], wanted: str) -> NotFound:
    names = list(dict.fromkeys(pod.metadata.name for pod in existing))
    return NotFound(f"PodGroup {key} has no pod {wanted[:80]!r}", hint=name_hint(wanted, names))


def _latest(pods: Iterable[Pod]) -> list[Pod]:
    """Return the pod of the latest admission of each name; `pods` are in order."""
    return list({pod.metadata.name: pod for pod in pods}.values())


def _matches(pod: Pod, group: PodGroup, wanted: str) -> bool:
    name = pod.metadata.name
    return wanted in ("", name, name.removeprefix(f"{group.metadata.name}-"))


def _in_order(pods: Iterable[Pod]) -> list[Pod]:
    return sorted(pods, key=lambda pod: (pod.spec.task, pod.spec.index, pod.status.admission))


def _last(lines: Iterator[LogLine], tail: int | None) -> Iterator[LogLine]:
    return lines if tail is None else iter(deque(lines, maxlen=min(tail, sys.maxsize)))


def check_single_result(group: Object) -> None:
    """Raise UsageError if a group has several pods, NotFound if it returns nothing."""
    assert isinstance(group, PodGroup)
    key = full_name(group)
    replicas = sum(task.replicas for task in group.spec.tasks)
    if replicas != 1:
        raise UsageError(
            f"PodGroup {key} has {counted(replicas, 'pod')}, so there are several results",
            hint="use `results`",
        )
    check_calls(group)


def read_results(
    store: RedisStore, key: str, timeout_s: float | None, *, partial: bool = False
) -> dict[str, Any]:
    """Return what each pod of a group returned, by name; see `Client.results`."""
    check_calls(find(store, PodGroup, key))
    [end] = wait_for(store, [key], "finished", timeout_s)
    group = find(store, PodGroup, key)
    pods = pods_of(store, group)
    if not partial:
        _refuse_unfinished(end, pods)
    results: dict[str, Any] = {}
    for pod in _pods_with_result(group, pods):
        status = pod.status
        written = store.read_result(status.node, pod.metadata.uid, status.attempt)
        if written is not None:
            results[pod.metadata.name] = _decoded(written, full_name(pod))
        elif not partial:
            raise NotFound(
                f"the result of Pod {key.partition('/')[0]}/{pod.metadata.name} has expired",
                hint="results are kept for seven days; `partial` leaves out expired ones",
            )
    return results


#: Levels of nesting of a result; printing takes a level of Python's stack for each.
_DEEPEST_RESULT = 200


def _decoded(written: bytes, pod: str) -> Any:
    """Return a result. Raises UnreadableRecord: a node may write anything in its place."""
    # Loads a YAML parser, which `batchq logs` does not need.
    from batchq.config.documents import depth_above

    why = f"it has more than {_DEEPEST_RESULT} levels of nesting"
    try:
        value = json.loads(written)
        if not depth_above(value, _DEEPEST_RESULT):
            return value
    except RecursionError:
        pass
    except ValueError as error:
        why = f"it is not JSON: {error}"
    raise UnreadableRecord(
        f"the result of Pod {pod} is unreadable: {why}",
        hint="the worker of its node, or the function, wrote it; submit the group again",
    )


def check_calls(group: Object) -> None:
    """Raise NotFound if a group calls no function, so that it has no results."""
    assert isinstance(group, PodGroup)
    key = full_name(group)
    if group.spec.controller == "external":
        raise NotFound(
            f"PodGroup {key} is external: the consumer that ran it has its output",
            hint=f"`batchq describe {key}` names the consumer and shows its reports",
        )
    if not any(task.template.function for task in group.spec.tasks):
        raise NotFound(
            f"PodGroup {key} runs a command, which returns nothing",
            hint=f"read its output with `batchq logs {key}`",
        )


def _refuse_unfinished(end: Result, pods: list[Pod]) -> None:
    hint = f"read its pods' output with `batchq logs {end.key}`"
    if not pods:
        hint = f"none of its pods has started; `batchq describe {end.key}` shows its history"
    if end.phase == PodGroupPhase.CANCELLED:
        why = f": {end.message}" if end.message else ""
        raise GroupCancelled(f"PodGroup {end.key} was cancelled{why}", hint=hint)
    if end.phase == PodGroupPhase.FAILED:
        raise GroupFailed(f"PodGroup {end.key} has failed{_why(end, pods)}", hint=hint)


def _why(end: Result, pods: list[Pod]) -> str:
    """Return the message of the first pod that failed for good, or the group's own reason."""
    failed = [pod for pod in pods if pod.status.phase == PodPhase.FAILED]
    # A pod that exceeded its walltime was killed, and its message says no more than that.
    if failed and end.reason != Finish.WALLTIME_EXCEEDED:
        first = min(failed, key=lambda pod: (pod.status.finished_at or 0, pod.metadata.uid))
        message = first.status.message or first.status.reason
        return f": Pod {first.metadata.name}: {message}"
    why = end.message or end.reason
    return f": {why}" if why else ""


def _pods_with_result(group: PodGroup, pods: list[Pod]) -> Iterator[Pod]:
    """Yield pods that have succeeded, by task and index; the latest admission wins."""
    calls = {task.name for task in group.spec.tasks if task.template.function}
    latest: dict[str, Pod] = {}
    for pod in sorted(pods, key=lambda pod: pod.status.admission):
        if pod.status.phase == PodPhase.SUCCEEDED and pod.spec.task in calls:
            latest[pod.metadata.name] = pod
    yield from sorted(latest.values(), key=lambda pod: (pod.spec.task, pod.spec.index))


_LONGEST_NAME = 60
#: The pause before a stream that has broken is opened again.
_AGAIN_S = 0.2


class SessionPlace(Struct, frozen=True, kw_only=True):
    """Where a session is: its name, and its node."""

    session: str
    node: str


class _Channel(Protocol):
    def send(self, frames: Sequence[ExecFrame]) -> bool: ...

    def receive(self, wait_s: float) -> Sequence[ExecFrame]: ...

    def close(self) -> None: ...


class CommandSession:
    """One session, as its user has it."""

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        self._number = 0

    def send(self, kind: FrameKind, data: bytes = b"") -> ExecFrame:
        """Send a frame, and return it. Raises StoreUnavailable, Conflict if the session is over."""
        self._number += 1
        frame = ExecFrame(number=self._number, kind=kind, data=data)
        with _hung_up_without_server():
            is_open = self._channel.send([frame])
        if not is_open:
            raise Conflict("the session with the command is over")
        return frame

    def receive(self, wait_s: float) -> Sequence[ExecFrame]:
        """Return the next frames, after waiting for them. Raises StoreUnavailable."""
        with _hung_up_without_server():
            return self._channel.receive(wait_s)

    def close(self) -> None:
        """Close the connections; a command that still runs is hung up some seconds later."""
        self._channel.close()


@contextmanager
def _hung_up_without_server() -> Iterator[None]:
    """Add to the error of a server that stays away what becomes of the command."""
    try:
        yield
    except StoreUnavailable as error:
        error.message = f"{error.message}; the command in the pod is being hung up"
        raise


class PodCommands:
    """Commands in running pods, over a client's connection."""

    def __init__(
        self,
        store: RedisStore,
        change: Callable[[Callable[[int], Transaction | None]], bool],
        user: Callable[[], str],
    ) -> None:
        self._store = store
        self._change = change
        self._user = user

    def start(self, pod: Pod, command: ExecCommand) -> CommandSession:
        """Run a command in a pod, beside the pod's own. It ends with the pod at the latest.

        Raises InvalidInput, Conflict (the pod does not run, or its node takes no commands).
        """
        place = self.request(pod, command)
        return CommandSession(_ServerChannel(self._store.url, place))

    def request(self, pod: Pod, command: ExecCommand, *, signing_key: bytes = b"") -> SessionPlace:
        """Ask the node of a pod to run a command; return where its session will be.

        Raises as `start` does.
        """
        from batchq.store.exec_channels import post_request

        check_command(command)
        name, node = f"{pod.metadata.namespace}/{pod.metadata.name}", pod.status.node
        if pod.status.phase != PodPhase.RUNNING:
            raise Conflict(
                f"Pod {name} is {pod.status.phase}, and commands run in running pods only",
                hint=f"`batchq describe {group_key_of(pod)}` shows its pods",
            )
        if not self._takes_requests(node):
            raise _no_agent(node)
        user = self._user()
        session = session_of(secrets.token_hex(), user, pod.status.group_uid)
        self._change(lambda now_ms: _started(pod, command, user, now_ms))
        request = ExecRequest(
            session=session,
            pod=pod.metadata.uid,
            attempt=pod.status.attempt,
            command=command,
            user=user,
            expires_at=self._store.now_ms() + REQUEST_TTL_MS,
        )
        if signing_key:
            request = signed_request(signing_key, request)
        if not post_request(self._store.link, node, request):
            raise _no_agent(node)
        return SessionPlace(session=session, node=node)

    def _takes_requests(self, node: str) -> bool:
        from batchq.store.exec_channels import takes_requests

        try:
            return takes_requests(self._store.link, node)
        except StoreUnavailable as error:
            if error.lasts:
                error.hint = "use the HTTP API, or a user of the role operator"
            raise


def _no_agent(node: str) -> Conflict:
    return Conflict(
        f"the agent of node {node} takes no commands for its pods",
        hint="it is of a former version, or its user on the server lacks the rights that"
        " `batchq acl worker` prints",
    )


def _started(pod: Pod, command: ExecCommand, user: str, now_ms: int) -> Transaction:
    """Return the record of a started command: its first word only, without secrets."""
    key = group_key_of(pod)
    word = command.command[0][:_LONGEST_NAME]
    event = Event(
        kind="PodGroup",
        key=key,
        reason=COMMAND_STARTED,
        message=f"{user} runs {word} in pod {pod.metadata.name}",
        at=now_ms,
    )
    return Transaction(subject=key, events=(event,))


class _ServerChannel:
    """The channel of a session on the Redis server, over connections of its own."""

    def __init__(self, url: str, place: SessionPlace, *, after: int = 0) -> None:
        from batchq.store.exec_channels import ExecChannel
        from batchq.store.link import Link

        self._link = Link(url, survives_s=SILENCE_S)
        self._channel = ExecChannel(self._link, place.node, place.session, is_node=False)
        self._channel.received = after

    def send(self, frames: Sequence[ExecFrame]) -> bool:
        return self._channel.send(frames)

    def receive(self, wait_s: float) -> Sequence[ExecFrame]:
        return self._channel.receive(round(wait_s * 1000))

    def close(self) -> None:
        self._link.close()


def frames_of(url: str, place: SessionPlace, after: int) -> Iterator[ExecFrame | None]:
    """Yield the frames of a session after a number, up to its end or a long silence, and None once
    a second if there are none. Raises StoreUnavailable.
    """
    channel = _ServerChannel(url, place, after=after)
    heard_at = monotonic()
    try:
        while monotonic() - heard_at < SILENCE_S:
            frames = channel.receive(1.0)
            if not frames:
                yield None
                continue
            heard_at = monotonic()
            yield from frames
            if frames[-1].kind == "end":
                return
    finally:
        channel.close()


class ApiPodCommands(PodCommands):
    """Commands in running pods, over the HTTP API."""

    def __init__(self, credentials: ApiCredentials, post: Callable[[str, object], object]) -> None:
        self._credentials = credentials
        self._post = post

    def start(self, pod: Pod, command: ExecCommand) -> CommandSession:
        check_command(command)
        group = f"/v1/namespaces/{pod.metadata.namespace}/groups/{pod.spec.pod_group}"
        document = {"pod": pod.metadata.uid, "run": to_builtins(command)}
        answer = self._post(f"{group}/commands", document)
        place = msgspec.convert(answer, SessionPlace)
        return CommandSession(_ApiChannel(self._credentials, f"{group}/commands", place))


class _ApiChannel:
    """The channel of a session through the API: one connection to send, one to receive."""

    def __init__(self, credentials: ApiCredentials, path: str, place: SessionPlace) -> None:
        from batchq.api_session import ApiSession

        self._path = f"{path}/{place.session}?node={place.node}"
        self._sending, self._receiving = ApiSession(credentials), ApiSession(credentials)
        self._received = 0
        self._lines: Iterator[bytes] | None = None
        self._heard_at = monotonic()

    def send(self, frames: Sequence[ExecFrame]) -> bool:
        document = {"frames": to_builtins(list(frames))}
        answer = _patient(self._sending, self._path, document)
        return bool(answer["isOpen"])

    def receive(self, wait_s: float) -> Sequence[ExecFrame]:
        # A line comes at least every few seconds while the session lasts.
        try:
            if self._lines is None:
                self._lines = self._receiving.lines(f"{self._path}&after={self._received}")
            line = next(self._lines, None)
        except StoreUnavailable as error:
            line = None
            if error.lasts or monotonic() - self._heard_at > SILENCE_S:
                raise
        if line is None:
            self._lines = None
            sleep(_AGAIN_S)
            return ()
        self._heard_at = monotonic()
        frame = msgspec.json.decode(line, type=ExecFrame)
        self._received = frame.number
        return (frame,)

    def close(self) -> None:
        self._sending.close()


def _patient(session: ApiSession, path: str, document: object) -> dict[str, object]:
    """Send frames, and again while the API does not answer: they are numbered."""
    give_up_at = monotonic() + SILENCE_S
    while True:
        try:
            found: dict[str, object] = session.request("POST", path, document)
        except StoreUnavailable as error:
            if error.lasts or monotonic() > give_up_at:
                raise
            sleep(_AGAIN_S)
        else:
            return found
