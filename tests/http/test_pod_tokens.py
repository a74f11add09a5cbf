"""The token of a pod: what it permits, and when it is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec import structs

from batchq.api.access import (
    Identity,
    Scope,
    Verb,
    attempt_of,
    digest_of_secret,
    parse_binding,
    parse_token,
    token_text,
)
from batchq.api.exec_session import ExecCommand, ExecRequest, is_request_signed
from batchq.api.node_report import PodAttempt
from batchq.api.objects import PodGroup
from batchq.api.transaction import Transaction, Write, fence_of
from batchq.client.access_control import Actor, Delegate
from batchq.http.identities import AccessBook
from batchq.store import keys
from batchq.store.exec_channels import open_requests
from batchq.store.link import Link
from tests.client.stage import Stage
from tests.harness.server import Server
from tests.harness.tls import AUTHORITY, CERTIFICATES
from tests.http.api_process import Caller, RunningApi
from tests.http.conftest import SubmitAs
from tests.http.manifests import groups_of, manifest

SECRET = "s" * 43
ROOT = Actor(user="root@host", via="redis")
DEFAULT, OTHER = groups_of("default"), groups_of("other")


class RunningPod(NamedTuple):
    """A pod of ana's with a token, and a caller with that token."""

    api: RunningApi
    stage: Stage
    delegate: Delegate
    node: str
    attempt: PodAttempt

    @property
    def caller(self) -> Caller:
        return self.with_secret(SECRET)

    def with_secret(self, secret: str) -> Caller:
        return self.api.caller(token_text("pod", self.attempt.id, secret))


@pytest.fixture
def pod(
    server: Server, running_api: RunningApi, stage: Stage, submit_as: SubmitAs
) -> Iterator[RunningPod]:
    """A pod that runs, as its agent has registered it."""
    submit_as("ana", manifest("train", token="self"))
    node, attempt = started(stage, "train")
    with Delegate(server.url) as delegate:
        delegate.access.grant(parse_binding("user:ana", "submitter", "default"), ROOT)
        delegate.access.grant(parse_binding("user:ana", "admin", "other"), ROOT)
        # Of another user, so that the API learns of these roles.
        known = running_api.caller(delegate.access.create_token("ben", ROOT).text)
        assert known("GET", "/v1/me").status == 200
        yield RunningPod(running_api, stage, delegate, node, attempt)


def started(stage: Stage, name: str) -> tuple[str, PodAttempt]:
    """Start the pod of a group, and register a token for it as its agent does."""
    stage.turn()
    stage.start(name)
    [found] = stage.pods(name)
    node, attempt = found.status.node, PodAttempt(found.metadata.uid, found.status.attempt)
    stage.store.alive.renew(node, attempt.pod, attempt.attempt, fence_of(found), 60_000)
    stage.store.alive.put_token(node, attempt, digest_of_secret(SECRET))
    return node, attempt


def test_a_pod_acts_for_the_owner_of_its_group_and_its_children_name_the_group(
    pod: RunningPod,
) -> None:
    made = pod.caller("POST", DEFAULT, manifest("child"))
    assert made.status == 201
    assert made.data["status"]["submittedBy"] == "ana"
    assert made.data["metadata"]["annotations"] == {"batchq/parent": "default/train"}
    asked = {"verb": "submit", "objects": [manifest("second")]}
    assert pod.caller("POST", "/v1/requests", asked).status == 200
    bulk = json_lines(manifest("third"))
    assert pod.caller("POST", f"{DEFAULT}/bulk", bulk, Content_Type=NDJSON).status == 200
    for name in ("second", "third"):
        annotations = pod.caller("GET", f"{DEFAULT}/{name}").data["metadata"]["annotations"]
        assert annotations == {"batchq/parent": "default/train"}
    assert pod.caller("POST", f"{DEFAULT}/child/cancel").status == 200
    assert {one.record.via for one in pod.delegate.access.audit(4)} == {"pod"}
    assert {one.record.token for one in pod.delegate.access.audit(4)} == {pod.attempt.id}


def test_with_a_signing_key_only_pods_of_signed_groups_have_tokens(
    server: Server, stage: Stage
) -> None:
    with Delegate(server.url, signing_key=b"k" * 32) as delegate:
        delegate.client_of("ana").submit(manifest("signed", token="self"))
        _, attempt = started(stage, "signed")
        hold = delegate.pod_hold(attempt)
        assert hold is not None
        assert hold.owner == "ana"
        give_to(stage, "signed", "ben")
        assert delegate.pod_hold(attempt) is None


def test_a_command_is_signed_only_where_the_owner_of_the_group_is_proven(
    server: Server, stage: Stage
) -> None:
    key = b"k" * 32
    run = ExecCommand(command=("id",))
    with Delegate(server.url, signing_key=key) as delegate:
        client = delegate.client_of("ana")
        client.submit(manifest("signed"))
        node, _ = started(stage, "signed")
        open_requests(stage.store.link, node)
        [pod] = stage.pods("signed")
        for owner, is_proven in (("ana", True), ("ben", False)):
            give_to(stage, "signed", owner)
            group = client.get("PodGroup", "signed")
            assert isinstance(group, PodGroup)
            delegate.request_command(client, group, pod, run)
            [(_, fields)] = stage.store.link.ask(
                lambda client: client.xrevrange(keys.exec_requests(node), count=1)
            )
            request = msgspec.json.decode(fields[b"request"], type=ExecRequest)
            assert is_request_signed(key, request) is is_proven


def give_to(stage: Stage, name: str, owner: str) -> None:
    """Write another owner into a group, as any user of the Redis server may."""
    group = stage.store.get("PodGroup", f"default/{name}")
    assert isinstance(group, PodGroup)
    status = structs.replace(group.status, submitted_by=owner)
    value = structs.replace(group, status=status)
    write = Write(
        kind="PodGroup", key=f"default/{name}", expect=group.metadata.revision, value=value
    )
    stage.store.commit([Transaction(subject=f"default/{name}", writes=(write,))], request_id=owner)


def test_a_pod_reaches_no_other_namespace_and_nothing_but_groups(pod: RunningPod) -> None:
    assert pod.caller("POST", OTHER, manifest("child")).status == 403
    grant = {"subject": "user:eve", "role": "viewer", "namespace": "default"}
    for method, path, document in (
        ("POST", "/v1/tokens", {}),
        ("POST", "/v1/bindings", grant),
        ("POST", f"/v1/nodes/{pod.node}/cordon", None),
        ("GET", "/v1/audit", None),
    ):
        refused = pod.caller(method, path, document)
        assert (refused.status, path) == (403, path)
    assert pod.caller("GET", "/v1/tokens").data["items"] == []
    assert pod.caller("GET", "/v1/bindings").data["items"] == []
    for path in ("/v1/queues", "/v1/nodes", "/v1/views/jobs", "/v1/views/status"):
        assert pod.caller("GET", path).status == 200


def test_a_pod_may_no_more_than_its_owner_may_now(pod: RunningPod) -> None:
    pod.delegate.access.withdraw(parse_binding("user:ana", "submitter", "default"), ROOT)
    patiently(lambda: pod.caller("POST", DEFAULT, manifest("child")).status == 403)


def test_a_pod_learns_no_counts_of_other_namespaces_whatever_its_owner_may_read(
    pod: RunningPod, submit_as: SubmitAs
) -> None:
    pod.delegate.access.grant(parse_binding("user:ana", "viewer", "*"), ROOT)
    elsewhere = manifest("hidden")
    elsewhere["metadata"]["namespace"] = "other"
    submit_as("ben", elsewhere)
    pod.stage.client.cancel("other/hidden")
    own = pod.api.caller(pod.delegate.access.create_token("ana", ROOT).text)
    patiently(lambda: own("GET", "/v1/views/status").data["groups"] == 2)
    page = "/v1/views/groups?paged=true&finished=0"
    assert own("GET", page).data["hidden"] == 1
    assert pod.caller("GET", "/v1/views/status").data["groups"] == 0
    assert pod.caller("GET", page).data["hidden"] == 0


def test_a_pod_of_the_account_that_runs_the_api_is_no_admin(
    pod: RunningPod, submit_as: SubmitAs
) -> None:
    account = pod.api.caller()("GET", "/v1/me").data["user"]
    submit_as(account, manifest("mine", token="self"))
    _, attempt = started(pod.stage, "mine")
    mine = pod.api.caller(token_text("pod", attempt.id, SECRET))
    assert mine("GET", "/v1/me").data["roles"] == [
        {"role": "submitter", "namespace": "default", "subject": f"user:{account}"}
    ]
    assert mine("POST", DEFAULT, manifest("child")).status == 201
    assert mine("POST", f"{DEFAULT}/train/cancel").status == 403
    assert mine("GET", f"{DEFAULT}/train/logs").status == 403


def test_a_token_narrowed_to_verbs_gives_pods_no_tokens(pod: RunningPod) -> None:
    scope = Scope(verbs=(Verb.CREATE, Verb.UPDATE, Verb.READ))
    narrow = pod.api.caller(pod.delegate.access.create_token("ana", ROOT, scope=scope).text)
    wide = manifest("wide", token="self")
    wide["metadata"]["namespace"] = "default"
    refused = [narrow("POST", DEFAULT, wide)]
    refused += [
        narrow("POST", "/v1/requests", {"verb": verb, "objects": [wide]})
        for verb in ("submit", "apply")
    ]
    assert [one.status for one in refused] == [403, 403, 403]
    narrow_text = "this token permits no more than create, update, read"
    assert {one.data["detail"] for one in refused} == {
        f"spec.token: {narrow_text}, and tokens of pods would permit more"
    }
    bulk = narrow("POST", f"{DEFAULT}/bulk", json_lines(wide), Content_Type=NDJSON)
    assert json.loads(bulk.body)["code"] == "Forbidden"
    assert pod.caller("GET", f"{DEFAULT}/wide").status == 404
    assert narrow("POST", DEFAULT, manifest("narrow")).status == 201
    in_place = Scope(namespaces=("default",))
    local = pod.api.caller(pod.delegate.access.create_token("ana", ROOT, scope=in_place).text)
    assert local("POST", DEFAULT, wide).status == 201


def test_a_token_is_refused_once_the_lease_of_its_attempt_has_ended(pod: RunningPod) -> None:
    assert pod.caller("GET", "/v1/me").data["via"] == "pod"
    pod.stage.store.end_lease(pod.node, pod.attempt.pod, pod.attempt.attempt)
    refused = pod.caller("GET", "/v1/me")
    assert (refused.status, refused.data["exit"]) == (401, 9)
    assert refused.data["detail"] == "the pod of this token has ended, or is unknown"


def test_a_token_is_refused_once_its_pod_has_ended(pod: RunningPod) -> None:
    pod.stage.end("train")
    assert pod.caller("GET", "/v1/me").status == 401


def test_a_token_of_another_attempt_or_with_another_secret_is_refused(pod: RunningPod) -> None:
    assert pod.with_secret("t" * 43)("GET", "/v1/me").status == 401
    later = PodAttempt(pod.attempt.pod, pod.attempt.attempt + 1)
    pod.stage.store.alive.put_token(pod.node, later, digest_of_secret(SECRET))
    assert pod.api.caller(token_text("pod", later.id, SECRET))("GET", "/v1/me").status == 401
    assert pod.caller("GET", "/v1/me").status == 200


def test_no_agent_can_make_a_token_for_a_pod_whose_group_asks_for_none(
    pod: RunningPod, submit_as: SubmitAs
) -> None:
    submit_as("ana", manifest("silent"))
    _, attempt = started(pod.stage, "silent")
    forged = pod.api.caller(token_text("pod", attempt.id, SECRET))
    assert forged("GET", "/v1/me").status == 401


def test_a_watch_of_a_pod_ends_with_it(pod: RunningPod) -> None:
    with pod.caller.events("/v1/groups?watch=true") as events:
        assert events.until("BOOKMARK")
        pod.stage.store.end_lease(pod.node, pod.attempt.pod, pod.attempt.attempt)
        [*_, last] = events
    assert last["event"] == "ERROR"
    assert "the pod of this token has ended" in last["data"]


def test_a_pod_uses_the_api_of_another_machine_over_tls(
    pod: RunningPod, server: Server, tmp_path: Path
) -> None:
    key, file = tmp_path / "api.key", tmp_path / "token"
    shutil.copy(CERTIFICATES / "server.key", key)
    file.write_text(f"{token_text('pod', pod.attempt.id, SECRET)}\n")
    for path in (key, file):
        path.chmod(0o600)
    with RunningApi(server.url, certificate=CERTIFICATES / "server.crt", key=key) as api:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "batchq.cli", "jobs", "-o", "name"],
            env={
                "BATCHQ_HOME": str(tmp_path / "home"),
                "BATCHQ_SERVER": f"https://localhost:{api.port}",
                "BATCHQ_TOKEN_FILE": str(file),
                "SSL_CERT_FILE": str(AUTHORITY),
            },
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.rpartition("/")[2] for line in done.stdout.splitlines()] == ["train"]


def test_a_token_has_the_form_of_its_kind() -> None:
    text = token_text("pod", "a1-b2-3", SECRET)
    parts = parse_token(text)
    assert parts is not None
    assert (parts.kind, attempt_of(parts.id)) == ("pod", PodAttempt("a1-b2", 3))
    assert parts.matches("pod", digest_of_secret(SECRET))
    assert not parts.matches("token", digest_of_secret(SECRET))
    assert parse_token(text.replace("bqp_", "bqt_")) is None
    assert parse_token(text[:-1] + ("0" if text[-1] != "0" else "1")) is None


def test_any_number_of_pods_is_looked_up_in_as_many_requests_as_one(
    pod: RunningPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, ask, me = [], Link.ask, threading.get_ident()

    def counted(link: Link, work: Any) -> Any:
        if threading.get_ident() == me:
            asked.append(work)
        return ask(link, work)

    def requests_for(attempts: list[PodAttempt]) -> int:
        # The server's clock is read now and then, too, hardly in three look-ups one after another.
        counts = []
        for _ in range(3):
            asked.clear()
            assert set(pod.delegate.pod_holds(attempts)) == {pod.attempt}
            counts.append(len(asked))
        return min(counts)

    monkeypatch.setattr(Link, "ask", counted)
    others = [PodAttempt(f"unknown-{number}", 1) for number in range(200)]
    assert requests_for([*others, pod.attempt]) == requests_for([pod.attempt]) > 0


def test_a_token_is_revoked_while_the_pods_with_streams_are_still_being_looked_up(
    server: Server, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_asked, go_on = threading.Event(), threading.Event()

    def slow(*_: object) -> dict[PodAttempt, object]:
        is_asked.set()
        go_on.wait(60)
        return {}

    monkeypatch.setattr(Delegate, "pod_holds", slow)
    with Delegate(server.url) as delegate, RunningApi(server.url) as api:
        delegate.access.grant(parse_binding("user:ana", "viewer", "default"), ROOT)
        created = delegate.access.create_token("ana", ROOT)
        ana = api.caller(created.text)
        assert ana("GET", "/v1/me").status == 200
        assert is_asked.wait(90)
        delegate.access.revoke_token(created.record.id, ROOT)
        patiently(lambda: ana("GET", "/v1/me").status == 401)
        assert not go_on.is_set()
        go_on.set()


class SlowLookups:
    """Pods are looked up for as long as it pleases the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running = self.most = 0
        self.go_on = threading.Event()
        self._lock = threading.Lock()
        monkeypatch.setattr(Delegate, "pod_hold", self._look_up)

    def _look_up(self, *_: object) -> None:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.go_on.wait(60)
        with self._lock:
            self.running -= 1


def test_tokens_of_unknown_pods_are_looked_up_two_at_a_time_and_delay_no_other_caller(
    server: Server, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups = SlowLookups(monkeypatch)
    with (
        Delegate(server.url) as delegate,
        RunningApi(server.url) as api,
        ThreadPoolExecutor(30) as guesses,
    ):
        delegate.access.grant(parse_binding("user:ana", "viewer", "default"), ROOT)
        ana = api.caller(delegate.access.create_token("ana", ROOT).text)
        found = [
            guesses.submit(api.caller(token_text("pod", f"a-1-{n}-1", SECRET)), "GET", "/v1/me")
            for n in range(30)
        ]
        patiently(lambda: lookups.running == 2)
        assert ana("GET", "/v1/me").status == 200
        lookups.go_on.set()
        assert {one.result().status for one in found} <= {401, 429}
    assert lookups.most == 2


def test_guesses_at_the_secret_of_a_known_pod_are_looked_up_two_at_a_time(
    pod: RunningPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pod.caller("GET", "/v1/me").status == 200
    lookups = SlowLookups(monkeypatch)
    with ThreadPoolExecutor(30) as guesses:
        found = [guesses.submit(pod.with_secret(f"{n:043}"), "GET", "/v1/me") for n in range(30)]
        patiently(lambda: lookups.running == 2)
        lookups.go_on.set()
        assert {one.result().status for one in found} <= {401, 429}
    assert lookups.most == 2


def test_a_stream_ends_with_its_pod_however_rarely_it_is_checked() -> None:
    book, identity = AccessBook(), Identity(user="ana", via="pod", token="a1-b2-3")
    book._read_at = time.monotonic()
    held = {PodAttempt("a1-b2", 3)}
    with book.stream_of(identity):
        book.renew_pods(lambda some: held.intersection(some))
        assert book.recheck(identity) is None
        held.clear()
        book.renew_pods(lambda some: held.intersection(some))
        for _ in range(3):
            problem = book.recheck(identity)
            assert problem is not None
            assert "has ended" in problem.detail
            book.renew_pods(lambda some: held.intersection(some))
    asked: list[PodAttempt] = []
    book.renew_pods(lambda some: asked.extend(some) or ())
    assert asked == []


NDJSON = "application/x-ndjson"


def json_lines(*documents: dict[str, Any]) -> bytes:
    return b"\n".join(json.dumps(document).encode() for document in documents)


def patiently(condition: Any) -> None:
    pause = threading.Event()
    for _ in range(1_200):
        if condition():
            return
        pause.wait(0.05)
    raise AssertionError("the API has not learnt of it")
