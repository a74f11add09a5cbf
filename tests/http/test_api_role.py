"""The API under the rights of its role on a server with users: all that it does is permitted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from batchq.cli.main import main
from batchq.client import Client
from batchq.store.redis import RedisStore
from tests.client.stage import Stage, a_cluster
from tests.harness.guarded import GuardedServer
from tests.http.api_process import ApiProcess
from tests.http.manifests import groups_of, manifest

DEFAULT = groups_of("default")


@pytest.fixture
def guarded() -> Iterator[GuardedServer]:
    with GuardedServer() as server:
        yield server


def test_the_role_of_the_api_suffices_for_all_that_it_does(guarded: GuardedServer) -> None:
    store = RedisStore(guarded.url_of("scheduler"))
    assert store.link.keep_scripts()
    with Client(guarded.url_of("operator")) as client:
        stage = Stage(store, client)
        stage.furnish(*a_cluster())
        guarded.refusals()
        with ApiProcess(guarded.url_of("api")) as process:
            api = process.caller()
            assert api("POST", DEFAULT, manifest("train")).status == 201
            stage.turn()
            stage.start("train")
            [pod] = stage.pods("train")
            place = pod.status.node, pod.metadata.uid, pod.status.attempt
            store.append_log(*place, "stdout", b"words\n")
            answers = {
                path: api("GET", path).status
                for path in (
                    *("/readyz", "/v1/me", "/v1/groups", "/v1/tokens", "/v1/bindings", "/v1/audit"),
                    *(f"{DEFAULT}/train{end}" for end in ("", "/why", "/logs")),
                )
            }
            assert answers == dict.fromkeys(answers, 200)
            with api.events("/v1/groups?watch=true") as events:
                assert events.until("BOOKMARK")
                assert api("POST", f"{DEFAULT}/train/cancel").status == 200
                assert events.until("CHANGED")
            [node] = api("GET", "/v1/nodes").data["items"]
            assert api("POST", f"/v1/nodes/{node['metadata']['name']}/cordon").status == 200
            head = {"apiVersion": "batchq/v1"}
            queue = head | {"kind": "Queue", "metadata": {"name": "lab"}}
            assert api("PUT", "/v1/queues/lab", queue).status == 201
            meta = {"name": "default", "namespace": "default"}
            quota = head | {"kind": "ResourceQuota", "metadata": meta, "spec": {"hard": {"cpu": 4}}}
            assert api("PUT", "/v1/namespaces/default/quotas/default", quota).status == 201
            keys = [{"kind": "Queue", "key": "lab"}]
            assert api("POST", "/v1/requests", {"verb": "delete", "keys": keys}).status == 200
            made = api("POST", "/v1/tokens", {"note": "laptop"})
            assert made.status == 201
            alice = {"subject": "user:alice", "role": "viewer", "namespace": "ml"}
            assert api("POST", "/v1/bindings", alice).status == 201
            assert api("DELETE", f"/v1/tokens/{made.data['id']}").status == 200
            log = process.log.read_text()
        assert "level=error" not in log
        assert "level=warning" not in log
    assert guarded.refusals() == set()
    store.close()


def test_a_user_of_another_role_is_refused_at_the_start(guarded: GuardedServer) -> None:
    words = ["--redis-url", guarded.url_of("submitter"), "api", "--listen", "127.0.0.1:0"]
    refused = CliRunner().invoke(main, words)
    assert refused.exit_code == 9
    error, hint = refused.stderr.splitlines()
    assert error.endswith("does not permit this user to do this")
    assert hint == "hint: the API needs a user of the role api: see `batchq acl api`"
