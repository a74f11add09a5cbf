"""The endpoints of commands in pods: starting one, its frames for the user, and the user's frames.

The name of a session is random, and says for which user and group it is; the rights to that group
are checked for each request, and again while a stream lasts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from http import HTTPStatus

import msgspec
from msgspec import Struct

from batchq.api.exec_session import (
    FRAME_BYTES,
    OF_USERS,
    ExecCommand,
    ExecFrame,
    belongs_to,
)
from batchq.api.objects import Pod, PodGroup, key_of
from batchq.client.access_control import Delegate
from batchq.client.pod_commands import SessionPlace
from batchq.http.calls import NDJSON, ApiAnswer, ApiCall, StreamAnswer
from batchq.http.problems import ApiProblem, bad_request
from batchq.http.reader_thread import ReaderThread

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
            call.require(group.metadata.namespace, owner=group.status.submitted_by)
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
