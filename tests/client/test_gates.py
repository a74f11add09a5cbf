"""Scheduling gates from Python: concurrent controllers, and a record of who opened what."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from batchq.api.objects import PodGroup
from batchq.client import Client
from batchq.client.connection import user_of
from batchq.errors import InvalidInput, NotFound
from batchq.store.redis import RedisStore
from tests.client.stage import Stage
from tests.harness.server import Server

NAMES = [f"gate-{number}" for number in range(8)]
HALF = {
    "apiVersion": "batchq/v1",
    "kind": "PodGroup",
    "metadata": {"name": "half"},
    "spec": {
        "minMember": 1,
        "tasks": [
            {"name": "a", "template": {"command": ["true"]}},
            {
                "name": "b",
                "template": {"command": ["true"], "schedulingGates": [{"name": "data"}]},
            },
        ],
    },
}


def group(client: Client, name: str) -> PodGroup:
    found = client.get("PodGroup", name)
    assert isinstance(found, PodGroup)
    return found


def test_controllers_open_their_gates_at_the_same_moment(
    server: Server, client: Client, stage: Stage
) -> None:
    """Each has its own connection; a conflicting opening is repeated, and none is lost."""
    client.submit(command=["true"], name="g", gates=NAMES)
    stage.turn()
    start = threading.Barrier(len(NAMES))

    def opens(gate: str) -> bool:
        with Client(server.url, component=f"{gate}-controller") as mine:
            start.wait(90)
            return mine.gates.open("g", gate)

    with ThreadPoolExecutor(len(NAMES)) as pool:
        # In another order than they were set.
        assert list(pool.map(opens, reversed(NAMES))) == [True] * len(NAMES)
    found = group(client, "g")
    assert found.spec.scheduling_gates == ()
    by = {one.name: one.by for one in found.status.opened_gates}
    assert sorted(by) == NAMES
    assert by["gate-3"] == f"gate-3-controller ({client.user})"
    stage.turn()
    assert stage.phase("g") == "InQueue"


def test_all_but_the_last_leave_the_group_gated(client: Client, stage: Stage) -> None:
    client.submit(command=["true"], name="g", gates=["a", "b", "c"])
    for gate in ("c", "a"):
        assert client.open_gate("g", gate)
        stage.turn()
        [view] = client.jobs()
        assert (stage.phase("g"), view.shown) == ("Pending", "SchedulingGated")
    assert [blocker.message for blocker in view.blockers] == [
        "Scheduling is blocked due to non-empty scheduling gates: b"
    ]
    assert client.open_gate("g", "b")
    assert client.jobs()[0].shown == "Pending"
    stage.turn()
    assert stage.phase("g") == "InQueue"


def test_opening_an_open_gate_succeeds_and_an_unknown_gate_is_refused(client: Client) -> None:
    client.submit(command=["true"], name="g", gates=["data"])
    assert client.gates.open("g", "data") is True
    assert client.gates.open("g", "data") is False
    assert client.open_gate("g", "data") is False
    with pytest.raises(NotFound):
        client.gates.open("g", "dota")
    assert client.gates.open_all("g") is False


def test_gates_of_pods_are_listed_while_the_group_runs_and_opened(
    client: Client, stage: Stage
) -> None:
    client.submit(HALF)
    client.submit(command=["true"], name="whole", gates=["data"])
    stage.turn()
    stage.start("half")
    listed = [(one.group, one.task, one.gate, one.shown) for one in client.gates.list(gate="data")]
    assert listed == [
        ("default/half", "b", "data", "Running"),
        ("default/whole", "", "data", "SchedulingGated"),
    ]
    assert [pod.metadata.name for pod in stage.pods("half")] == ["half-a-0"]
    client.gates.open("half", "data", task="b")
    stage.turn()
    assert [pod.metadata.name for pod in stage.pods("half")] == ["half-a-0", "half-b-0"]


def test_the_list_is_narrowed_by_place_name_and_age(client: Client, stage: Stage) -> None:
    stage.furnish()
    client.submit(command=["true"], name="g", gates=["data"], namespace="lab")
    assert len(client.gates.list(namespace="lab", queue="default", gate="data")) == 1
    assert client.gates.list(namespace="default") == []
    assert client.gates.list(queue="other") == []
    assert client.gates.list(gate="other") == []
    assert client.gates.list(older_than="1h") == []
    with pytest.raises(InvalidInput) as caught:
        client.gates.list(older_than="soon")
    assert caught.value.message.startswith("older_than: ")


def test_the_submitter_is_recorded_as_the_user_of_the_server_or_machine(server: Server) -> None:
    with Client(server.url) as client:
        assert "@" in client.user
        submitted = client.submit(command=["true"], name="g", gates=["data"])
        assert submitted.status.submitted_by == client.user
    with Client(server.url, component="data-ready") as controller:
        assert controller.user == f"data-ready ({client.user})"
    with pytest.raises(InvalidInput):
        Client(server.url, component="two\nlines")


@pytest.mark.parametrize(
    ("url", "user"),
    [
        ("redis://quota@127.0.0.1:1/0", "quota"),
        ("redis+sentinel://quota:secret@127.0.0.1:1/mymaster/0", "quota"),
        ("redis://:secret@127.0.0.1:1/0", ""),
        ("unix:///nowhere/server.sock", ""),
    ],
)
def test_a_server_that_knows_users_vouches_for_the_name(url: str, user: str) -> None:
    store = RedisStore(url)
    try:
        assert store.link.user == user
        named = user_of(store, "data-ready")
        assert named == (f"data-ready ({user})" if user else f"data-ready ({user_of(store, '')})")
        assert ("@" in named) == (not user)
    finally:
        store.close()
