"""Commands in running pods: starting one, and the two channels to it.

    session = client.commands.start(pod, ExecCommand(command=("hostname",)))
    for frame in session.receive(1.0):
        ...

A session has one thread that sends and one that receives. It reaches the node over the Redis server
or over the HTTP API, as the client does.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, sleep
from typing import TYPE_CHECKING, Protocol

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
from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Pod
from batchq.api.transaction import Event, Transaction
from batchq.errors import Conflict, StoreUnavailable

if TYPE_CHECKING:
    from batchq.api_session import ApiCredentials, ApiSession
    from batchq.store.redis import RedisStore

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
                hint=f"`batchq describe {pod.metadata.namespace}/{pod.spec.pod_group}` shows its"
                " pods",
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
    key = f"{pod.metadata.namespace}/{pod.spec.pod_group}"
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
