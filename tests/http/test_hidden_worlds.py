"""Two worlds that differ only in what a reader may not see give the same answers on every path."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from batchq.api.access import Visibility, parse_binding
from batchq.client import Client
from batchq.client.access_control import Actor, Delegate
from batchq.http.calls import ApiRoute
from batchq.http.route_table import ROUTES
from batchq.store.redis import RedisStore
from tests.client.stage import Stage, a_cluster
from tests.effort import sample
from tests.harness.server import Server
from tests.http.api_process import Caller, RunningApi
from tests.http.manifests import manifest

ROOT = Actor(user="root@host", via="redis")
#: Groups of another namespace: one that has ended, one that has failed, one that runs, two that
#: wait, one of them for a gate.
GROUPS = ("ended", "failed", "running", "waiting", "gated")
#: The parts of a path besides a group: names that exist.
NAMES = {"queues": "default", "nodes": "n1", "quotas": "default", "pods": "running-main-0"}
#: What depends on the instant, is random, or counts all writes.
UNSTEADY = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]+Z|\b1[0-9a-z]{15}\b|\b\d{13}\b|\b\d+(\.\d+)?(ms|s|m)\b"
)
COUNTED = {
    *("revision", "now", "at", "instance", "seen_ms_ago", "left_ms", "behind", "id", "uid"),
    "groupUid",
}


def hidden(name: str, word: str, **spec: Any) -> dict[str, Any]:
    """Return a group of cv in which everything that it runs says `word`."""
    group = manifest(name, **spec)
    group["metadata"] |= {"namespace": "cv", "labels": {"w": word}, "annotations": {"w": word}}
    template = group["spec"]["tasks"][0]["template"]
    template |= {"command": [word], "env": {word: word}, "labels": {"w": word}}
    template |= {"workingDir": f"/{word}", "annotations": {"w": word}}
    return group


@contextmanager
def world(word: str, visibility: Visibility) -> Iterator[tuple[Caller, Caller]]:
    """A cluster with bob's groups, which say `word`; yield alice, who is a stranger, and bob."""
    with Server() as server, Client(server.url) as client, Delegate(server.url) as delegate:
        store = RedisStore(server.url)
        stage = Stage(store, client)
        stage.furnish(*a_cluster())
        client.set_quota("cv", {"cpu": 100})
        owner = delegate.client_of("bob")
        for name, code in (("ended", 0), ("failed", 1)):
            owner.submit(hidden(name, word, share="namespace"))
            stage.turn()
            stage.start(name)
            [pod] = stage.pods(name)
            place = pod.status.node, pod.metadata.uid, pod.status.attempt
            store.append_log(*place, "stdout", f"{word}\n".encode())
            store.put_result(*place, json.dumps(word).encode())
            stage.end(name, code, message=f"it said {word}")
        owner.submit(hidden("running", word, share="namespace"))
        stage.turn()
        stage.start("running")
        owner.submit(hidden("waiting", word, cpu="50"))
        owner.submit(hidden("gated", word, schedulingGates=[{"name": "data"}]))
        owner.cancel("cv/waiting", reason=word)
        owner.submit(hidden("waiting2", word, cpu="50"))
        stage.turn()
        store.close()
        access = delegate.access
        for user, role, namespace in (
            ("alice", "submitter", "ml"),
            ("alice", "viewer", "other"),
            ("bob", "submitter", "cv"),
        ):
            access.grant(parse_binding(f"user:{user}", role, namespace), ROOT)
        alice, bob = (access.create_token(user, ROOT).text for user in ("alice", "bob"))
        with RunningApi(server.url, visibility=visibility) as api:
            yield api.caller(alice), api.caller(bob)


def paths_of(route: ApiRoute) -> list[str]:
    """Return paths of a route about bob's groups, and about what both may read."""
    kind = next((part for part in route.path.split("/") if part in NAMES), "")
    names = [NAMES[kind]] if kind else [*GROUPS, "waiting2", "nothing"]
    rest = {"namespace": "cv", "id": "x", "session": "0" * 48}
    found = dict.fromkeys(route.path.format(name=name, **rest) for name in names)
    known = {one.name for one in route.parameters}
    queries = [
        query
        for needs, query in (
            ((), ""),
            (("label",), "?label=w=secret"),
            (("q",), "?q=ing"),
            (("follow",), "?follow=true"),
            (("finished", "paged"), "?paged=true&finished=1"),
            (("form",), "?form=json&namespace=cv"),
            (("kind", "key"), "?kind=PodGroup&key=cv/failed"),
        )
        if known.issuperset(needs)
    ]
    if "timeout" in known:
        # It waits.
        queries = ["?timeout=1"]
    return [f"{path}{query}" for path in found for query in queries]


def answers(alice: Caller) -> dict[str, Any]:
    """Return what alice learns from every route, by method and path."""
    found: dict[str, Any] = {}
    bodies: dict[str, Any] = {
        "viewPlan": {"objects": [manifest("mine")]},
        "changeObjects": {"verb": "delete", "keys": [{"kind": "PodGroup", "key": "cv/waiting2"}]},
        "openGates": {"gate": "data"},
        "submitGroup": manifest("ended"),
        "runCommand": {"pod": "running-main-0", "run": {"command": ["true"]}},
        "writeCommand": {"frames": []},
    }
    for route in ROUTES:
        if (
            route.is_open
            or route.credential != "token"
            or route.name in ("createToken", "rotateToken", "submitGroups")
        ):
            continue
        for path in paths_of(route):
            got = alice(route.method, path, bodies.get(route.name))
            found[f"{route.method} {path}"] = got.status, steady(documents(got.body))
        if any(one.name == "watch" for one in route.parameters):
            path = f"{paths_of(route)[0]}?watch=true"
            with alice.events(path) as events:
                seen = [json.loads(event["data"]) for event in events.until("BOOKMARK")]
            found[f"WATCH {path}"] = steady(seen)
    return found


def documents(body: bytes) -> Any:
    """Return an answer: a document, or lines of them or of text."""
    try:
        return json.loads(body)
    except ValueError:
        return body.decode()


def steady(document: Any) -> Any:
    match document:
        case dict():
            return {key: steady(it) for key, it in document.items() if key not in COUNTED}
        case list():
            return [steady(one) for one in document]
        case int() if document > 10**12:
            return "an instant"
        case str():
            return UNSTEADY.sub("…", document)
        case _:
            return document


@pytest.mark.parametrize("visibility", sample(Visibility, 2))
def test_answers_are_equal_whatever_the_groups_of_others_run(visibility: Visibility) -> None:
    with world("secret", visibility) as (alice, bob):
        one = answers(alice)
        facts = alice("GET", "/v1/groups").data["items"]
        assert b"secret" in bob("GET", "/v1/namespaces/cv/groups").body
        assert b"secret" in bob("GET", "/v1/events").body
    with world("public", visibility) as (alice, _):
        other = answers(alice)
    assert sorted(one) == sorted(other)
    assert {path: one[path] for path in one if one[path] != other[path]} == {}
    # The query asks for a label that only one world has.
    shown = json.dumps({path: it for path, it in one.items() if "label=" not in path})
    assert "secret" not in shown
    # Under open visibility the reader sees that there are groups.
    assert bool(facts) is (visibility is Visibility.OPEN)
    assert len(one) > 100
