"""New nodes join with one token for a pattern of names, and no node that exists is taken over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from batchq.api.objects import Metadata, Node
from batchq.api.transaction import Transaction, Write
from batchq.client.node_users import check_pattern, is_for
from batchq.errors import InvalidInput
from batchq.store.redis import RedisStore
from tests.harness.guarded import ADMIN
from tests.http.api_process import Got
from tests.http.test_joining import ONE, TWO, Site, folder, shared

__all__ = ["folder", "shared"]

INVITE = "/v1/node-invitations"
NODES = ("gpu-1", "gpu-2", "gpu-3", "gpu-4")


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    """The site, on which no node of the pattern has joined and no token is left."""
    yield shared
    for node in NODES:
        shared.operator("DELETE", f"/v1/nodes/{node}/user")
    with shared.server.as_user(ADMIN) as admin:
        for field, value in admin.hgetall("access:{bq}:tokens").items():
            if b"bqj" in value or b'"node":"gpu' in value:
                admin.hdel("access:{bq}:tokens", field)
        admin.hincrby("access:{bq}:state", "revision", 1)


def invite(site: Site, pattern: str = "gpu-*", uses: int = 2) -> str:
    made = site.operator("POST", INVITE, {"pattern": pattern, "uses": uses})
    assert made.status == 201, made.body
    return str(made.data["join"])


def detail(got: Got) -> str:
    return str(got.data["detail"])


def test_as_many_new_nodes_join_as_the_token_is_for(site: Site) -> None:
    token = invite(site)
    assert site.join(token, "gpu-1", ONE).data["user"] == "worker-gpu-1"
    assert site.join(token, "gpu-2", TWO).status == 200
    third = site.join(token, "gpu-3", ONE)
    assert (third.status, "has been used already" in detail(third)) == (403, True)
    assert site.can_log_in("worker-gpu-1", "one")
    assert site.can_log_in("worker-gpu-2", "two")
    # An agent that has lost the answer asks again, even after the last use.
    assert site.join(token, "gpu-1", ONE).status == 200
    found = site.operator("GET", "/v1/audit").data["items"]
    uses = [one["name"] for one in found if one["user"] == "node:gpu-*" and one["verb"] == "create"]
    assert uses[-2:] == ["user of node gpu-1", "user of node gpu-2"]


def test_a_token_for_new_nodes_does_not_replace_a_password(site: Site) -> None:
    token = invite(site, uses=4)
    assert site.join(token, "gpu-1", ONE).status == 200
    for text in (token, invite(site, uses=4)):
        again = site.join(text, "gpu-1", TWO)
        assert again.status == 403
    assert site.can_log_in("worker-gpu-1", "one")
    assert not site.can_log_in("worker-gpu-1", "two")


def test_a_node_that_has_joined_by_its_own_token_is_not_taken_over(site: Site) -> None:
    assert site.join(site.invite("gpu-1"), "gpu-1", ONE).status == 200
    taken = site.join(invite(site), "gpu-1", TWO)
    assert (taken.status, "there is or was a node gpu-1" in detail(taken)) == (403, True)
    assert site.can_log_in("worker-gpu-1", "one")


def test_a_user_that_an_administrator_has_made_is_not_taken_over(site: Site) -> None:
    """The registrar looks, because no join token tells of it; asking again does not help."""
    with site.server.as_user(ADMIN) as admin:
        admin.acl_setuser("worker-gpu-1", enabled=True, passwords=["+old"], commands=["+ping"])
    token = invite(site)
    for _ in range(2):
        taken = site.join(token, "gpu-1", TWO)
        assert (taken.status, "has a user of the server already" in detail(taken)) == (403, True)
    assert site.can_log_in("worker-gpu-1", "old")
    assert not site.can_log_in("worker-gpu-1", "two")


def test_a_node_that_exists_is_not_taken_over(site: Site) -> None:
    """Its agent may have credentials that no one here knows of."""
    store = RedisStore(site.server.url_of("operator"))
    node = Node(metadata=Metadata(name="gpu-1"))
    write = Write(kind="Node", key="gpu-1", expect=0, value=node)
    store.commit([Transaction(subject="gpu-1", writes=(write,))], request_id="made")
    try:
        taken = site.join(invite(site), "gpu-1", TWO)
        assert (taken.status, "there is or was a node gpu-1" in detail(taken)) == (403, True)
        with site.server.as_user(ADMIN) as admin:
            admin.hset("{bq}:Node", "gpu-1", b"\xff")
        unreadable = site.join(invite(site), "gpu-1", TWO)
        assert unreadable.status == 403
    finally:
        store.close()
        with site.server.as_user(ADMIN) as admin:
            admin.hdel("{bq}:Node", "gpu-1")
            admin.hdel("{bq}:Node:head", "gpu-1")
    assert "worker-gpu-1" not in site.users()


def test_a_revoked_node_does_not_come_back_with_the_token(site: Site) -> None:
    token = invite(site, uses=4)
    assert site.join(token, "gpu-1", ONE).status == 200
    done = site.operator("DELETE", "/v1/nodes/gpu-1/user")
    assert done.data == {"node": "gpu-1", "user": True, "tokens": 1}
    for digest in (ONE, TWO):
        assert site.join(token, "gpu-1", digest).status == 403
    assert site.join(token, "gpu-2", ONE).status == 200
    # An operator lets it in again by its name.
    assert site.join(site.invite("gpu-1"), "gpu-1", TWO).status == 200


def test_a_revoked_token_lets_no_more_nodes_join(site: Site) -> None:
    made = site.operator("POST", INVITE, {"pattern": "gpu-*", "uses": 4}).data
    assert site.join(made["join"], "gpu-1", ONE).status == 200
    assert site.operator("DELETE", f"/v1/tokens/{made['id']}").status == 200
    assert site.join(made["join"], "gpu-2", ONE).status == 403


def test_agents_that_join_at_once_are_not_more_than_the_token_is_for(site: Site) -> None:
    token = invite(site, uses=2)
    found: list[int] = []

    def join(node: str) -> None:
        found.append(site.join(token, node, ONE).status)

    threads = [threading.Thread(target=join, args=(node,)) for node in NODES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(found) == [200, 200, 403, 403]
    assert len(site.users() & {f"worker-{node}" for node in NODES}) == 2


def test_nodes_that_boot_at_once_all_join_by_a_token_for_as_many(site: Site) -> None:
    token, nodes = invite(site, uses=8), [f"gpu-{number}" for number in range(1, 9)]
    at_once = threading.Barrier(8)

    def join(node: str) -> int:
        at_once.wait()
        return site.join(token, node, ONE).status

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(join, nodes)) == [200] * 8


def test_a_revoked_node_that_had_a_token_of_its_own_does_not_come_back_by_a_pattern(
    site: Site,
) -> None:
    pattern, own = invite(site, uses=4), site.invite("gpu-1")
    assert site.join(own, "gpu-1", ONE).status == 200
    assert site.operator("DELETE", "/v1/nodes/gpu-1/user").status == 200
    again = site.join(pattern, "gpu-1", TWO)
    assert (again.status, "there is or was a node gpu-1" in detail(again)) == (403, True)


def test_names_that_do_not_have_the_pattern_are_refused(site: Site) -> None:
    before = site.users()
    token = invite(site)
    for node in ("gpu1", "a-gpu-1", "gpu-", "gpu-1.other", "gpu-*", "GPU-1", "gpu-1%20on"):
        assert site.join(token, node, ONE).status in (400, 403, 404)
    assert site.users() == before


def test_only_operators_make_such_tokens(site: Site) -> None:
    assert site.api.caller(invite(site))("POST", INVITE, {"pattern": "gpu-*"}).status == 401
    for body in (
        {"pattern": "gpu-1"},
        {"pattern": "*"},
        {"pattern": "gpu_*"},
        {"pattern": "gpu-*", "uses": 0},
        {"pattern": "gpu-*", "uses": 1001},
        {"pattern": "gpu-*", "lasts": "8d"},
    ):
        assert site.operator("POST", INVITE, body).status in (400, 422), body


@pytest.mark.parametrize("pattern", ["gpu-1", "*", "**", "-*", ".*", "gpu *", "", "gpu-*[", "G*"])
def test_a_malformed_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidInput, match="the pattern "):
        check_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "node", "fits"),
    [
        ("gpu-*", "gpu-01", True),
        ("gpu-*.lab", "gpu-01.lab", True),
        ("*-gpu", "a-gpu", True),
        ("gpu*1", "gpu1", True),
        ("gpu-*", "gpu-a.b", False),
        ("gpu-*", "gpu-", False),
        ("gpu.*", "gpuxa", False),
        ("gpu-1", "gpu-1", True),
        ("gpu-1", "gpu-11", False),
    ],
)
def test_a_star_stands_for_letters_digits_and_dashes(pattern: str, node: str, fits: bool) -> None:
    assert is_for(pattern, node) is fits
