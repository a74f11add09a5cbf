"""Commands in pods over the HTTP API: whose they are, and what is recorded of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from batchq.api.access import Scope, Verb, parse_binding
from batchq.api.exec_session import ExecFrame, session_of
from batchq.client.access_control import Actor, Delegate
from batchq.store.exec_channels import ExecChannel, open_requests
from batchq.store.redis import RedisStore
from tests.client.stage import Stage
from tests.harness.server import Server
from tests.http.api_process import Caller, RunningApi
from tests.http.manifests import groups_of, manifest

ML = groups_of("ml")
COMMANDS = f"{ML}/train/commands"
RUN = {"pod": "train-main-0", "run": {"command": ["nvidia-smi", "-L"]}}
ROLES = [
    ("alice", "submitter", "ml"),
    ("bob", "submitter", "ml"),
    ("ada", "admin", "ml"),
    ("eve", "admin", "cv"),
    ("vera", "viewer", "ml"),
    ("olga", "operator", "*"),
    ("aude", "auditor", "*"),
]


@pytest.fixture
def callers(server: Server, stage: Stage) -> Iterator[dict[str, Caller]]:
    """Users with a role each; the group of alice runs, and the agent of its node takes commands."""
    root = Actor(user="root@host", via="redis")
    with Delegate(server.url) as delegate, RunningApi(server.url) as api:
        found = {}
        for user, role, namespace in ROLES:
            delegate.access.grant(parse_binding(f"user:{user}", role, namespace), root)
            found[user] = api.caller(delegate.access.create_token(user, root).text)
        assert found["alice"]("POST", ML, manifest("train")).status == 201
        stage.turn()
        stage.start("train")
        yield found


@contextmanager
def an_agent(stage: Stage) -> Iterator[RedisStore]:
    """Take requests as the agent of the group's node does."""
    store = RedisStore(stage.store.url)
    [pod] = stage.pods("train")
    open_requests(store.link, pod.status.node)
    try:
        yield store
    finally:
        store.close()


@pytest.mark.parametrize(
    ("user", "status"),
    [("alice", 201), ("ada", 201), ("bob", 403), ("vera", 403), ("olga", 403), ("eve", 403)],
)
def test_owners_and_admins_run_commands_and_no_one_else_does(
    callers: dict[str, Caller], stage: Stage, user: str, status: int
) -> None:
    with an_agent(stage):
        assert callers[user]("POST", COMMANDS, RUN).status == status


def test_a_command_is_in_the_audit_trail_without_its_arguments(
    callers: dict[str, Caller], stage: Stage
) -> None:
    with an_agent(stage):
        callers["ada"]("POST", COMMANDS, RUN)
        callers["bob"]("POST", COMMANDS, RUN)
    items = callers["aude"]("GET", "/v1/audit").data["items"][-2:]
    assert [
        (one["user"], one["verb"], one["kind"], one["name"], one["outcome"]) for one in items
    ] == [
        ("ada", "exec", "groups", "ml/train", "done"),
        ("bob", "exec", "groups", "ml/train", "refused"),
    ]
    assert items[0]["because"] == "user:ada is admin in namespace ml"
    events = callers["alice"]("GET", "/v1/events?reason=CommandStarted").data
    assert [one["message"] for one in events] == ["ada runs nvidia-smi in pod train-main-0"]


def test_a_session_is_for_the_user_who_began_it(callers: dict[str, Caller], stage: Stage) -> None:
    with an_agent(stage) as store:
        place = callers["alice"]("POST", COMMANDS, RUN).data
        path = f"{COMMANDS}/{place['session']}?node={place['node']}"
        node = ExecChannel(store.link, place["node"], place["session"], is_node=True)
        node.open()
        sent = {"frames": [{"number": 1, "kind": "stdin", "data": "aGVsbG8="}]}
        assert callers["ada"]("POST", path, sent).status == 404
        assert callers["ada"]("GET", path).status == 404
        assert callers["alice"]("POST", path, sent).data == {"isOpen": True}
        assert node.receive(1_000) == [ExecFrame(number=1, kind="stdin", data=b"hello")]
        node.send(
            [
                ExecFrame(number=1, kind="stdout", data=b"GPU 0\n"),
                ExecFrame(number=2, kind="end", data=b'{"exit_code":0}'),
            ]
        )
        lines = callers["alice"]("GET", path).body.splitlines()
        assert [json.loads(line)["kind"] for line in lines] == ["stdout", "end"]
        lines = callers["alice"]("GET", f"{path}&after=1").body.splitlines()
        assert [json.loads(line)["number"] for line in lines] == [2]
        node.remove()
        assert callers["alice"]("POST", path, sent).data == {"isOpen": False}


@pytest.mark.parametrize(
    ("frames", "sentence"),
    [
        ([{"number": 1, "kind": "stdout"}], "frames: expected frames of a user, found stdout"),
        ([{"number": 0, "kind": "eof"}], "frames: expected a number from 1, found 0"),
        ([{"number": 1, "kind": "eof"}] * 17, "frames: expected at most 16, found 17"),
        (
            [{"number": 1, "kind": "stdin", "data": "QUFB" * 16_384}],
            "frames: expected at most 32768",
        ),
        ([{"number": 1, "kind": "reboot"}], "the body: Invalid enum value 'reboot'"),
    ],
)
def test_frames_that_no_user_sends_are_refused(
    callers: dict[str, Caller], frames: list[dict[str, Any]], sentence: str
) -> None:
    uid = callers["alice"]("GET", f"{ML}/train").data["metadata"]["uid"]
    path = f"{COMMANDS}/{session_of('0' * 64, 'alice', uid)}?node=n1"
    got = callers["alice"]("POST", path, {"frames": frames})
    assert got.status == 400
    assert got.data["detail"].startswith(sentence)


def test_a_session_is_not_reached_through_another_group(
    callers: dict[str, Caller], stage: Stage
) -> None:
    """The rights to the group of the pod would not be checked any more."""
    assert callers["ada"]("POST", ML, manifest("mine")).status == 201
    with an_agent(stage) as store:
        place = callers["ada"]("POST", COMMANDS, RUN).data
        node = ExecChannel(store.link, place["node"], place["session"], is_node=True)
        node.open()
        sent = {"frames": [{"number": 1, "kind": "stdin", "data": "aGVsbG8="}]}
        path = f"{ML}/mine/commands/{place['session']}?node={place['node']}"
        assert callers["ada"]("POST", path, sent).status == 404
        assert callers["ada"]("GET", path).status == 404
        assert node.receive(1) == []


def test_a_token_that_permits_some_verbs_runs_nothing_beside_the_token_of_a_pod(
    callers: dict[str, Caller], stage: Stage, server: Server
) -> None:
    root = Actor(user="root@host", via="redis")
    assert callers["alice"]("POST", ML, manifest("tells", token="self")).status == 201
    stage.turn()
    stage.start("tells")
    scope = Scope(verbs=(Verb.READ, Verb.EXEC))
    with Delegate(server.url) as delegate, RunningApi(server.url) as api:
        token = delegate.access.create_token("alice", root, scope=scope).text
        got = api.caller(token)("POST", f"{ML}/tells/commands", {**RUN, "pod": "tells-main-0"})
    assert got.status == 403
    assert got.data["detail"].startswith("spec.token: this token permits no more than ")


def test_a_pod_of_another_group_is_not_reached_through_ones_own(
    callers: dict[str, Caller], stage: Stage
) -> None:
    assert callers["bob"]("POST", ML, manifest("mine")).status == 201
    got = callers["bob"]("POST", f"{ML}/mine/commands", RUN)
    assert (got.status, got.data["detail"]) == (
        400,
        "pod: expected a pod of PodGroup ml/mine, found 'train-main-0'",
    )


def test_an_agent_that_takes_no_commands_is_named(callers: dict[str, Caller]) -> None:
    got = callers["alice"]("POST", COMMANDS, RUN)
    assert got.status == 409
    assert got.data["detail"] == "the agent of node n1 takes no commands for its pods"
