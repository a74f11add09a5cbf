"""The Python client over the API: streams, and submissions whose answers are lost."""

from __future__ import annotations

import inspect
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import batchq
from batchq.api.objects import PodGroup, Queue, key_of
from batchq.api_session import ApiCredentials, ApiSession, credentials_for
from batchq.client import Client
from batchq.client.api_client import ApiClient
from batchq.client.api_views import ApiChecks, ApiGates, ApiGroupPages, ApiOverview
from batchq.client.checks import Checks, Gates
from batchq.client.overview import Overview
from batchq.client.pods import ApiPodCommands, PodCommands
from batchq.client.submission import GROUPS_A_BATCH, ApiSubmission, Submission
from batchq.client.watch import GroupPages
from batchq.errors import BatchqError, Conflict, InvalidInput, NotFound, StoreUnavailable
from batchq.http.connections import Rate
from batchq.system import RandomIds
from tests.client.stage import Stage
from tests.daemon.waiting import until
from tests.harness.server import Server
from tests.http.api_process import RunningApi


@pytest.fixture
def client(running_api: RunningApi) -> Iterator[ApiClient]:
    with ApiClient(ApiCredentials(server=f"unix:{running_api.socket}")) as client:
        yield client


def test_a_watch_yields_what_exists_and_each_change(client: ApiClient, stage: Stage) -> None:
    changes = client.watch("Queue", timeout_s=60)
    first = next(changes)
    assert (first.kind, first.key) == ("Queue", "default")
    stage.client.set_stop_policy("default", "Hold")
    held = next(changes)
    assert isinstance(held.value, Queue)
    assert (held.key, held.value.spec.stop_policy) == ("default", "Hold")


def test_a_watch_ends_at_its_timeout_and_follows_one_kind(client: ApiClient, stage: Stage) -> None:
    stage.client.submit(command=["true"], name="train")

    def found() -> list[str]:
        return [change.key for change in client.watch("PodGroup", timeout_s=0.5)]

    # On a busy machine, a watch may end before the API has answered.
    until(lambda: found() == ["default/train"])
    with pytest.raises(InvalidInput, match="expected one kind of PodGroup, Queue, Node"):
        client.watch("Pod", "Node")


def parameters_of(method: Callable[..., Any]) -> set[str]:
    """Return the names that a method accepts, `**` if it accepts any."""
    kinds = inspect.signature(method).parameters.values()
    return {"**" if one.kind is one.VAR_KEYWORD else one.name for one in kinds}


@pytest.mark.parametrize(
    ("direct", "over_the_api"),
    [
        (Client, ApiClient),
        (Checks, ApiChecks),
        (Gates, ApiGates),
        (Overview, ApiOverview),
        (PodCommands, ApiPodCommands),
        (GroupPages, ApiGroupPages),
        (Submission, ApiSubmission),
    ],
)
def test_methods_over_the_api_accept_what_those_of_the_direct_client_accept(
    direct: type, over_the_api: type
) -> None:
    faults = [
        f"{name} accepts no {missing}"
        for name, method in vars(direct).items()
        if not name.startswith("_") and inspect.isfunction(method)
        for own in [getattr(over_the_api, name, None)]
        if own is not None and "**" not in parameters_of(own)
        for missing in parameters_of(method) - parameters_of(own)
    ]
    assert faults == []


def test_a_request_that_is_refused_before_it_is_sent_whole_says_why(client: ApiClient) -> None:
    annotations = {"note": "x" * 20_000_000}
    with pytest.raises(BatchqError, match=r"the body has 200\d+ bytes; expected at most 8388608"):
        client.submit(command=["true"], name="large", annotations=annotations)
    assert list(client.list("PodGroup")) == []


def test_a_refused_submission_is_asked_once(
    client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    post = client._post

    def counted(path: str, *given: Any, **named: Any) -> Any:
        asked.append(path)
        return post(path, *given, **named)

    monkeypatch.setattr(client, "_post", counted)
    with pytest.raises(NotFound, match="no-queue"):
        client.submit(command=["true"], queue="no-queue")
    assert asked == ["/v1/requests"]


def test_similar_groups_are_returned_as_they_are_stored(client: ApiClient, stage: Stage) -> None:
    fields: dict[str, Any]
    for number in range(3):
        for fields in (
            {"command": ["echo", str(number)]},
            {"command": ["echo", "x"], "name": f"named-{number}", "labels": {"sweep": "seeds"}},
            {"command": ["echo", "x"], "array": "0-3", "env": {"A": str(number)}, "gpus": 1},
            {"command": ["echo", "x"], "image": "debian.sif", "mounts": ["/data:/data:ro"]},
            {"function": "os.path:basename", "args": [f"/a/{number}"], "walltime": "2h"},
        ):
            submitted = client.submit(**fields)
            stored = stage.client.get("PodGroup", key_of(submitted))
            assert isinstance(stored, PodGroup)
            metadata = structs.replace(stored.metadata, revision=0)
            assert submitted == structs.replace(stored, metadata=metadata)


def test_a_later_group_of_the_same_name_is_not_meant(client: ApiClient, stage: Stage) -> None:
    uid = stage.client.submit(command=["true"], name="train").metadata.uid
    stage.client.cancel("train")
    stage.client.delete("PodGroup", "train")
    stage.client.submit(command=["true"], name="train")
    sentence = "PodGroup default/train was deleted, and another has its name now"
    for act in (client.cancel, client.suspend, client.resume):
        with pytest.raises(NotFound, match=sentence):
            act("train", uid=uid)
    group = stage.client.get("PodGroup", "train")
    assert isinstance(group, PodGroup)
    assert (str(group.status.phase), group.spec.suspend) == ("Pending", False)


class LosingSession(ApiSession):
    """Loses the answer to the first request."""

    def __init__(self, credentials: ApiCredentials) -> None:
        super().__init__(credentials)
        self._has_lost = False

    def _exchange(self, method: str, path: str, body: bytes | None, form: str) -> tuple[bytes, int]:
        found = super()._exchange(method, path, body, form)
        if not self._has_lost:
            self._has_lost, self.has_answered = True, False
            raise StoreUnavailable("the connection was lost")
        return found


def submission(socket: Path, *names: str) -> ApiSubmission:
    """Return a submission of groups, the answer to whose first batch is lost."""
    return ApiSubmission(
        LosingSession(ApiCredentials(server=f"unix:{socket}")),
        lambda ask: ask(),
        RandomIds().new_uid,
        [{"command": ["true"], "name": name} for name in names],
    )


def test_a_batch_whose_answer_was_lost_is_sent_again_and_stored_once(
    running_api: RunningApi, stage: Stage
) -> None:
    sending = submission(running_api.socket, "a", "b")
    with pytest.raises(StoreUnavailable, match="the connection was lost"):
        next(sending)
    tally = sending.all()
    assert (tally.submitted, tally.unchanged, tally.refused) == (2, 0, 0)
    stored = stage.client.list("PodGroup")
    assert [item.metadata.name for item in stored if isinstance(item, PodGroup)] == ["a", "b"]


def test_many_groups_are_stored_as_they_are_one_by_one(client: ApiClient, stage: Stage) -> None:
    first = {"command": ["true"], "env": {"A": "1"}, "labels": {"sweep": "a"}}
    requests: list[dict[str, Any]] = [
        {**first, "name": "a"},
        {**first, "name": "b", "command": ["echo", "b"]},
        {**first, "name": "c", "env": {"A": "2"}},
        {"name": "d", "function": "os.path:join", "args": ["a", 1], "cpus": 2},
        {**first, "name": "e", "command": ["echo", "e"]},
        {**first, "name": "f", "after": ["a"]},
        {**first, "name": "g", "after": ["b"]},
    ]
    assert client.submit_many(requests).all().submitted == 7
    for request in requests:
        one = stage.client.submit(**{**request, "name": f"{request['name']}-again"})
        stored = stage.client.get("PodGroup", str(request["name"]))
        assert isinstance(stored, PodGroup)
        assert stored.spec == one.spec
        assert stored.metadata.labels == one.metadata.labels


def test_a_batch_is_sent_while_the_next_one_is_read(client: ApiClient, stage: Stage) -> None:
    def requests() -> Iterator[dict[str, Any]]:
        for number in range(GROUPS_A_BATCH):
            yield {"command": ["true"], "name": f"a-{number}"}
        yield {"command": ["true"], "name": "b"}
        for _ in range(1000):
            if stage.client.count("PodGroup") == GROUPS_A_BATCH:
                break
        else:
            raise AssertionError("the first batch waits for the second one")

    assert client.submit_many(requests()).all().submitted == GROUPS_A_BATCH + 1


def test_nothing_is_sent_after_a_batch_with_a_refusal(client: ApiClient, stage: Stage) -> None:
    requests = [{"command": ["true"], "name": f"a-{number}"} for number in range(GROUPS_A_BATCH)]
    stage.client.submit(command=["true"], name="a-7")
    rest = [{"command": ["true"], "name": f"b-{number}"} for number in range(3)]
    tally = client.submit_many([*requests, *rest], keep_going=False).all()
    assert (tally.submitted, tally.refused) == (GROUPS_A_BATCH - 1, 1)
    assert stage.client.count("PodGroup") == GROUPS_A_BATCH


def test_a_request_is_sent_in_one_piece(tmp_path: Path) -> None:
    pieces: list[bytes] = []

    def answer_once(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            for _ in range(2):
                pieces.append(connection.recv(65_536))
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        answering = threading.Thread(target=answer_once, args=(listening,))
        answering.start()
        with ApiSession(ApiCredentials(server=f"unix:{tmp_path / 's'}")) as session:
            assert session.request("POST", "/v1/requests", {"verb": "submit"}) == {}
            assert session.request("GET", "/v1/me") == {}
        answering.join(60)
    assert pieces[0].startswith(b"POST /v1/requests HTTP/1.1\r\n")
    assert pieces[0].endswith(b'\r\n\r\n{"verb": "submit"}')
    assert pieces[1].startswith(b"GET /v1/me HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "sent", [b"", b"3\r\n{}\n\r\n", b"3\r\n{}\n", b"9\r\n{}\n", b"3\r\n{}\n\r\n5\r\n"]
)
def test_a_stream_that_is_cut_has_not_ended(tmp_path: Path, sent: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    lines, error = streamed(tmp_path, head + sent)
    assert lines == ([b"{}"] if sent else [])
    assert error is not None


def test_a_stream_that_ends_has_its_last_line(tmp_path: Path) -> None:
    chunks = b"5\r\n{}\n{}\r\n6\r\n\n{}\n{}\r\n0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert streamed(tmp_path, head + chunks) == ([b"{}"] * 4, None)


def streamed(folder: Path, answer: bytes) -> tuple[list[bytes], StoreUnavailable | None]:
    """Return the lines of a stream, and the error that ends it."""

    def answer_once(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(answer)

    found: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "s"))
        listening.listen()
        answering = threading.Thread(target=answer_once, args=(listening,))
        answering.start()
        try:
            with ApiSession(ApiCredentials(server=f"unix:{folder / 's'}")) as session:
                for line in session.lines("/v1/groups?watch=true"):
                    found.append(line)  # noqa: PERF402 - what came before an error counts
        except StoreUnavailable as error:
            return found, error
        finally:
            answering.join(60)
    return found, None


def test_a_client_that_has_sent_too_much_waits_and_goes_on(
    server: Server, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchq.http.application.WRITES", Rate(per_s=1.0, burst=2.0))
    pauses: list[float] = []
    monkeypatch.setattr("batchq.api_session.sleep", pauses.append)
    with (
        RunningApi(server.url) as running,
        ApiClient(ApiCredentials(server=f"unix:{running.socket}")) as client,
    ):
        for name in ("a", "b", "c"):
            client.submit(command=["true"], name=name)
    assert pauses
    assert stage.client.count("PodGroup") == 3


def test_a_name_that_was_taken_before_is_refused(client: ApiClient, stage: Stage) -> None:
    stage.client.submit(command=["true"], name="a")
    [taken, accepted] = client.submit_many(
        [{"command": ["true"], "name": "a"}, {"command": ["true"], "name": "b"}]
    )
    assert isinstance(getattr(taken, "error", None), Conflict)
    assert accepted.place == 1


def test_a_wait_for_thousands_of_groups_names_none_of_them(client: ApiClient) -> None:
    client._await_change([f"default/a-group-with-a-long-name-{n}" for n in range(2_000)], 1.0)
    assert client._revision is not None


class EndingSession(ApiSession):
    """Ends a stream as the API does when the server is away."""

    def lines(self, path: str) -> Iterator[bytes]:
        yield b'{"type":"ERROR","problem":{"status":503,"detail":"the server is away"}}'


def test_a_log_whose_stream_ends_with_a_problem_raises_that_problem(
    running_api: RunningApi,
) -> None:
    credentials = ApiCredentials(server=f"unix:{running_api.socket}")
    with ApiClient(credentials) as client:
        client._session = EndingSession(credentials)
        with pytest.raises(StoreUnavailable, match="the server is away"):
            list(client._lines("/v1/groups"))


def test_an_unknown_goal_of_a_wait_is_refused(client: ApiClient, stage: Stage) -> None:
    stage.client.submit(command=["true"], name="train")
    for goal in ("completed", None):
        with pytest.raises(InvalidInput, match="for_: expected one of finished, succeeded"):
            client.wait("train", for_=goal, timeout_s=0)  # type: ignore[arg-type]


def test_a_client_uses_the_api_of_its_environment_or_of_its_address(
    running_api: RunningApi, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.client.submit(command=["true"], name="train")
    address = f"unix:{running_api.socket}"
    with ApiClient(address) as client:
        assert [one.metadata.name for one in client.list("PodGroup")] == ["train"]
    monkeypatch.setenv("BATCHQ_SERVER", address)
    with batchq.ApiClient() as client:
        assert [one.metadata.name for one in client.list("PodGroup")] == ["train"]


def test_a_token_of_the_environment_is_not_sent_to_another_api(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BATCHQ_HOME", str(tmp_path))
    monkeypatch.setenv("BATCHQ_SERVER", "https://hpc.example:8443")
    monkeypatch.setenv("BATCHQ_TOKEN", "bqt_secret")
    assert credentials_for(None).token == "bqt_secret"
    assert credentials_for("https://hpc.example:8443").token == "bqt_secret"
    assert credentials_for("https://other.example:8443").token == ""


def test_a_client_without_an_api_says_how_to_name_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BATCHQ_HOME", str(tmp_path))
    monkeypatch.delenv("BATCHQ_SERVER", raising=False)
    with pytest.raises(InvalidInput) as caught:
        ApiClient()
    assert caught.value.message == "no API is named"
    assert caught.value.hint == (
        "pass its address, set BATCHQ_SERVER, or log in with `batchq login`"
    )
    for wrong in ("redis://localhost:6379/0", "", 5):
        with pytest.raises(InvalidInput, match="the address of the API: expected"):
            ApiClient(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["https://hpc.example:8443", "unix:/run/api.sock", "ssh://hpc"])
def test_a_client_of_a_redis_server_points_from_an_api_to_the_other_client(address: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Client(address)
    assert caught.value.message == (
        "url: expected the URL of a Redis server, found the address of an HTTP API"
    )
    assert caught.value.hint == "name it with BATCHQ_SERVER, or in Python use batchq.ApiClient"
