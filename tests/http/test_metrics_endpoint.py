"""Metrics over the API: Prometheus' text format, of what the caller may see."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from batchq.api.access import Visibility, parse_binding
from batchq.client.access_control import Actor, Delegate
from tests.builders import a_queue
from tests.client.stage import Stage
from tests.harness.server import Server
from tests.http.api_process import Caller, RunningApi
from tests.http.conftest import SubmitAs
from tests.http.manifests import manifest

ROOT = Actor(user="root@host", via="redis")
PATH = "/v1/metrics"


class Users:
    """An API and callers with tokens."""

    def __init__(self, api: RunningApi, delegate: Delegate) -> None:
        self._api, self._delegate = api, delegate

    def caller(self, user: str, *roles: tuple[str, str]) -> Caller:
        access = self._delegate.access
        is_account = ":" in user
        for role, namespace in roles:
            subject = f"{'serviceaccount' if is_account else 'user'}:{user}"
            access.grant(parse_binding(subject, role, namespace), ROOT)
        return self._api.caller(access.create_token(user, ROOT).text)


@pytest.fixture(params=Visibility)
def visibility(request: pytest.FixtureRequest) -> Visibility:
    return Visibility(request.param)


@pytest.fixture
def users(
    server: Server, stage: Stage, submit_as: SubmitAs, visibility: Visibility
) -> Iterator[Users]:
    for namespace, user, name, cpu in (
        ("ml", "alice", "mine", "1"),
        ("ml", "ben", "running", "1"),
        ("cv", "bob", "waiting", "50"),
        ("cv", "bob", "large", "60"),
    ):
        group = manifest(name, cpu=cpu)
        group["metadata"]["namespace"] = namespace
        submit_as(user, group)
    stage.turn()
    with Delegate(server.url) as delegate, RunningApi(server.url, visibility=visibility) as api:
        yield Users(api, delegate)


def metrics(caller: Caller) -> dict[tuple[str, str], float]:
    """Return the values by name and labels."""
    got = caller("GET", PATH)
    assert got.status == 200, got.body
    assert got.headers["content-type"] == "text/plain; charset=utf-8"
    return {
        (one.name, " ".join(f"{name}={it}" for name, it in sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(got.body.decode())
        for one in family.samples
    }


def groups_in(found: dict[tuple[str, str], float]) -> float:
    return sum(value for (name, _), value in found.items() if name == "batchq_groups")


def test_an_operator_scrapes_all_groups_queues_and_nodes(users: Users, stage: Stage) -> None:
    stage.furnish(a_queue("idle"))
    found = metrics(users.caller("olga", ("operator", "*")))
    assert groups_in(found) == 4
    assert found["batchq_groups", "phase=Pending queue=default"] == 2
    waiting = {labels: it for (name, labels), it in found.items() if "waiting" in name}
    assert sum(waiting.values()) >= 2
    assert found["batchq_nodes", "state=ready"] == 1
    amounts = {
        kind: found["batchq_queue_resource", f"kind={kind} queue=default resource=cpu"]
        for kind in ("allocated", "reserved", "pending")
    }
    assert amounts == {"allocated": 2, "reserved": 0, "pending": 110}
    assert ("batchq_queue_share", "queue=default") in found
    assert found["batchq_queue_resource", "kind=allocated queue=idle resource=cpu"] == 0
    assert ("batchq_queue_share", "queue=idle") not in found


def test_a_tenant_scrapes_the_groups_that_it_sees(users: Users, visibility: Visibility) -> None:
    seen = {Visibility.OPEN: 4, Visibility.NAMESPACES: 2, Visibility.OWN: 1}[visibility]
    alice = metrics(users.caller("alice", ("submitter", "ml")))
    assert groups_in(alice) == seen
    olga = metrics(users.caller("olga", ("operator", "*")))
    # What queues and nodes hold is for every role.
    rest = {key: it for key, it in alice.items() if "groups" not in key[0]}
    assert rest == {key: it for key, it in olga.items() if "groups" not in key[0]}


def test_the_token_of_a_service_account_scrapes(users: Users, visibility: Visibility) -> None:
    seen = {Visibility.OPEN: 4, Visibility.NAMESPACES: 2, Visibility.OWN: 0}[visibility]
    assert groups_in(metrics(users.caller("ml:prometheus", ("viewer", "ml")))) == seen


def test_callers_without_a_role_that_reads_queues_are_refused(users: Users) -> None:
    for caller in (users.caller("nina"), users.caller("aud", ("auditor", "*"))):
        refused = caller("GET", PATH)
        assert (refused.status, "may not read queues" in refused.data["detail"]) == (403, True)


def test_no_metric_names_a_group_or_a_user(users: Users) -> None:
    text = users.caller("olga", ("operator", "*"))("GET", PATH).body.decode()
    for name in ("mine", "alice", "bob", "large"):
        assert name not in text
