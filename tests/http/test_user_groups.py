"""Local groups: users who have roles together, at once and for as long as they are members."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec
import pytest
import redis

from batchq.api.access import parse_binding
from batchq.client import user_groups
from batchq.client.access_control import Actor, Delegate
from batchq.errors import Conflict, InvalidInput, NotFound, Rejected
from batchq.store import keys
from tests.client.stage import Stage
from tests.harness.server import Server
from tests.http.api_process import Caller, RunningApi
from tests.http.manifests import groups_of, manifest

ML = groups_of("ml")
ROOT = Actor(user="root@host", via="redis")
GROUPS = "/v1/user-groups"
SUBMITTER = {"subject": "group:local:ml", "role": "submitter", "namespace": "ml"}


class Lab(NamedTuple):
    """The operators olga and otto, ada, an admin of ml, and ben, who has no role."""

    delegate: Delegate
    api: RunningApi
    olga: Caller
    otto: Caller
    ada: Caller
    ben: Caller

    def group(self, *members: str) -> None:
        """Create the group ml, of submitters in ml."""
        made = self.olga("POST", GROUPS, {"name": "ml", "members": members})
        assert (made.status, made.data["subject"]) == (201, "group:local:ml")
        assert self.ada("POST", "/v1/bindings", SUBMITTER).status == 201

    def audit(self) -> list[tuple[str, str, str, str]]:
        """Return what was done to groups."""
        found = [one.record for one in self.delegate.access.audit(100)]
        return [
            (one.user, one.outcome, one.verb, one.name)
            for one in found
            if one.kind == "user-groups"
        ]


@pytest.fixture
def lab(server: Server, stage: Stage) -> Iterator[Lab]:
    with Delegate(server.url) as delegate, RunningApi(server.url) as api:
        access = delegate.access
        for user, role, namespace in (
            ("olga", "operator", "*"),
            ("otto", "operator", "*"),
            ("ada", "admin", "ml"),
        ):
            access.grant(parse_binding(f"user:{user}", role, namespace), ROOT)
        users = ("olga", "otto", "ada", "ben")
        yield Lab(
            delegate, api, *(api.caller(access.create_token(one, ROOT).text) for one in users)
        )


def test_a_member_has_the_roles_of_its_groups_as_long_as_it_is_one(lab: Lab) -> None:
    lab.group()
    assert lab.ben("POST", ML, manifest("one")).status == 403
    added = lab.olga("POST", f"{GROUPS}/ml/members", {"add": ["ben"]})
    assert (added.status, added.data["members"]) == (200, ["ben"])
    assert lab.ben("POST", ML, manifest("one")).status == 201
    me = lab.ben("GET", "/v1/me").data
    assert (me["groups"], [one["subject"] for one in me["roles"]]) == (
        ["local:ml"],
        ["group:local:ml"],
    )
    removed = lab.olga("POST", f"{GROUPS}/ml/members", {"remove": ["ben"]})
    assert (removed.status, removed.data["members"]) == (200, [])
    refused = lab.ben("POST", ML, manifest("two"))
    assert (refused.status, lab.ben("GET", "/v1/me").data["groups"]) == (403, [])


@pytest.mark.parametrize("does", ["remove", "delete"])
def test_an_open_watch_ends_with_the_membership(lab: Lab, does: str) -> None:
    lab.group("ben")
    with lab.ben.events("/v1/groups?watch=true") as events:
        assert events.until("BOOKMARK")
        # Another process makes the change.
        if does == "remove":
            lab.delegate.groups.change("ml", ROOT, remove=["ben"])
        else:
            lab.delegate.groups.delete("ml", ROOT)
        [*_, last] = events
    assert last["event"] == "ERROR"
    assert "user ben has no role" in last["data"]


def test_a_watch_of_one_who_keeps_another_role_ends_with_a_resync(lab: Lab) -> None:
    lab.group("ben")
    lab.delegate.access.grant(parse_binding("user:ben", "viewer", "cv"), ROOT)
    assert lab.ben("GET", "/v1/groups").status == 200
    with lab.ben.events("/v1/groups?watch=true") as events:
        assert events.until("BOOKMARK")
        lab.delegate.groups.change("ml", ROOT, remove=["ben"])
        [*_, last] = events
    assert last["event"] == "RESYNC"


def test_users_cannot_add_themselves_or_give_roles_to_their_own_groups(lab: Lab) -> None:
    lab.group()
    own = lab.olga("POST", f"{GROUPS}/ml/members", {"add": ["ben", "olga"]})
    assert (own.status, own.data["detail"]) == (403, "users cannot add themselves to a group")
    own = lab.olga("POST", GROUPS, {"name": "mine", "members": ["olga"]})
    assert (own.status, own.data["detail"]) == (403, "users cannot add themselves to a group")
    # Nor in the name of another operator.
    as_otto = {"Batchq_As": "otto", "Batchq_Reason": "curious"}
    own = lab.olga("POST", f"{GROUPS}/ml/members", {"add": ["olga"]}, **as_otto)
    assert (own.status, own.data["detail"]) == (403, "users cannot add themselves to a group")
    assert lab.otto("POST", f"{GROUPS}/ml/members", {"add": ["olga"]}).status == 200
    admin = {"subject": "group:local:ml", "role": "admin", "namespace": "ml"}
    for headers in ({}, as_otto):
        own = lab.olga("POST", "/v1/bindings", admin, **headers)
        assert (own.status, own.data["detail"]) == (403, "a role cannot be given to oneself")


def test_no_operator_gives_itself_a_role_in_the_name_of_another(lab: Lab) -> None:
    wanted = {"subject": "user:olga", "role": "admin", "namespace": "ml"}
    as_otto = {"Batchq_As": "otto", "Batchq_Reason": "curious"}
    refused = lab.olga("POST", "/v1/bindings", wanted, **as_otto)
    assert (refused.status, refused.data["detail"]) == (403, "a role cannot be given to oneself")


def test_only_operators_change_groups_and_admins_read_them(lab: Lab) -> None:
    lab.group("ben")
    for caller in (lab.ada, lab.ben):
        for method, path, body in (
            ("POST", GROUPS, {"name": "cv"}),
            ("POST", f"{GROUPS}/ml/members", {"add": ["eve"]}),
            ("DELETE", f"{GROUPS}/ml", None),
        ):
            assert caller(method, path, body).status == 403
    [row] = lab.ada("GET", GROUPS).data["items"]
    assert (row["name"], row["members"], row["madeBy"]) == ("ml", ["ben"], "olga")
    assert row["roles"] == [{"role": "submitter", "namespace": "ml"}]
    assert lab.ben("GET", GROUPS).status == 403


def test_a_group_that_is_made_again_has_no_roles(lab: Lab) -> None:
    lab.group("ben")
    gone = lab.olga("DELETE", f"{GROUPS}/ml")
    assert (gone.status, gone.data["roles"]) == (200, [{"role": "submitter", "namespace": "ml"}])
    assert lab.olga("POST", GROUPS, {"name": "ml", "members": ["ben"]}).data["roles"] == []
    assert lab.ben("POST", ML, manifest("one")).status == 403
    assert lab.olga("DELETE", f"{GROUPS}/cv").status == 404


def test_a_role_is_given_to_a_group_that_exists(lab: Lab) -> None:
    missing = lab.ada("POST", "/v1/bindings", SUBMITTER)
    assert (missing.status, missing.data["detail"]) == (404, "there is no group local:ml")
    malformed = SUBMITTER | {"subject": "group:local:M L"}
    assert lab.ada("POST", "/v1/bindings", malformed).status == 400


def test_a_role_given_before_groups_existed_does_not_come_to_life(
    lab: Lab, raw: redis.Redis
) -> None:
    """A version without local groups accepts any name of a group."""
    binding = parse_binding("group:local:ml", "admin", "ml")
    raw.hset(
        keys.BINDINGS,
        binding.key,
        b'{"binding":{"subject":"group:local:ml","role":"admin","namespace":"ml"},'
        b'"madeBy":"root","madeAt":0}',
    )
    with pytest.raises(Conflict, match="would have roles at once: group:local:ml is admin in"):
        lab.delegate.groups.create("ml", ["ben"], ROOT)


def test_a_group_is_deleted_while_it_is_given_a_role(lab: Lab) -> None:
    """Whichever comes first, no role is left for a later group of the name."""
    binding = parse_binding("group:local:ml", "submitter", "ml")
    for _ in range(20):
        lab.delegate.groups.create("ml", [], ROOT)

        def give(_: object = None) -> None:
            with Delegate(lab.delegate.access._store.url) as other:
                try:
                    other.access.grant(binding, ROOT)
                except (Conflict, NotFound):
                    return

        with ThreadPoolExecutor(1) as pool:
            given = pool.submit(give)
            while True:
                try:
                    lab.delegate.groups.delete("ml", ROOT)
                except Conflict:
                    continue
                break
            given.result()
        assert lab.delegate.access.state().bindings.keys().isdisjoint({binding.key})


def test_a_group_that_was_given_a_role_since_it_was_looked_up_is_not_deleted(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.delegate.groups.create("ml", [], ROOT)
    former = lab.delegate.access.state()
    lab.delegate.access.grant(parse_binding("group:local:ml", "submitter", "ml"), ROOT)
    with monkeypatch.context() as patched:
        patched.setattr(user_groups.records, "read_access", lambda link: former)
        with pytest.raises(Conflict):
            lab.delegate.groups.delete("ml", ROOT)
    assert lab.delegate.groups.delete("ml", ROOT)["roles"] != []
    assert "group:local:ml submitter ml" not in lab.delegate.access.state().bindings


@pytest.mark.parametrize("source", ["unix:ml", "oidc:ml", "oidc:local:ml", "ml"])
def test_no_other_source_names_a_local_group(lab: Lab, source: str) -> None:
    lab.group()
    made = lab.delegate.access._create("eve", ROOT, 60_000, groups=(source,))
    eve = lab.api.caller(made.text)
    assert eve("POST", ML, manifest("one")).status == 403
    assert lab.ben("POST", ML, manifest("one")).status == 403


def test_a_door_that_claims_a_local_group_is_not_believed(lab: Lab) -> None:
    """The groups of a door are replaced by the memberships, whatever the door says."""
    lab.group()
    made = lab.delegate.access._create("eve", ROOT, 60_000, groups=("local:ml",))
    eve = lab.api.caller(made.text)
    assert (eve("GET", "/v1/me").data["groups"], eve("GET", ML).status) == ([], 403)


def test_a_member_acts_by_its_name_whichever_way_it_comes(lab: Lab) -> None:
    lab.group("ben")
    as_ben = {"Batchq_As": "ben", "Batchq_Reason": "ticket 7"}
    assert lab.olga("POST", ML, manifest("one"), **as_ben).status == 201
    lab.olga("POST", f"{GROUPS}/ml/members", {"remove": ["ben"]})
    assert lab.olga("POST", ML, manifest("two"), **as_ben).status == 403


def test_changes_of_groups_are_in_the_audit_trail(lab: Lab) -> None:
    lab.group("ben", "cyd")
    lab.olga("POST", f"{GROUPS}/ml/members", {"add": ["dan"], "remove": ["cyd", "eve"]})
    lab.olga("POST", f"{GROUPS}/ml/members", {"add": ["dan"]})
    lab.ben("POST", f"{GROUPS}/ml/members", {"add": ["eve"]})
    lab.olga("DELETE", f"{GROUPS}/ml")
    assert lab.audit() == [
        ("olga", "done", "create", "local:ml with ben, cyd"),
        ("olga", "done", "update", "local:ml with dan without cyd"),
        ("ben", "refused", "update", "ml"),
        (
            "olga",
            "done",
            "delete",
            "local:ml with the roles group:local:ml is submitter in namespace ml",
        ),
    ]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"name": "M L"}, "group 'M L'"),
        ({"name": ""}, "group ''"),
        ({"name": "cv", "members": ["ml:ci"]}, "member 'ml:ci': expected the name of a user"),
        ({"name": "cv", "members": ["a b"]}, "member 'a b': expected the name of a user"),
        ({"name": "cv", "members": [7]}, "the body"),
    ],
)
def test_a_malformed_group_is_refused_in_a_sentence(
    lab: Lab, body: dict[str, Any], sentence: str
) -> None:
    refused = lab.olga("POST", GROUPS, body)
    assert refused.status in (400, 422)
    assert sentence in refused.data["detail"]


def test_groups_and_members_are_bounded(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_groups, "MOST_GROUPS", 1)
    monkeypatch.setattr(user_groups, "MOST_MEMBERS", 2)
    groups = lab.delegate.groups
    groups.create("ml", ["a", "b"], ROOT)
    with pytest.raises(Rejected, match="at most 2 members, and 3 were named"):
        groups.change("ml", ROOT, add=["c"])
    assert groups.change("ml", ROOT, add=["c"], remove=["a"]).members == ("b", "c")
    with pytest.raises(Rejected, match="there are 1 local groups"):
        groups.create("cv", [], ROOT)
    with pytest.raises(Conflict, match="exists already"):
        groups.create("ml", [], ROOT)
    with pytest.raises(InvalidInput, match="user 'b' would be added and removed"):
        groups.change("ml", ROOT, add=["b"], remove=["b"])


def test_a_damaged_group_gives_no_rights_and_is_named(lab: Lab, raw: redis.Redis) -> None:
    lab.group("ben")
    # The name of another group within it.
    other = b'{"name":"cv","members":["ben"],"madeBy":"x","madeAt":0}'
    for damage in (b"\xff", b'{"name":"ml"}', other):
        raw.hset(keys.BINDINGS, "group:local:ml", damage)
        state = lab.delegate.access.state()
        assert (state.groups, state.memberships) == ({}, {})
        assert list(state.bindings) == [
            *(f"user:{user} operator *" for user in ("olga", "otto")),
            "user:ada admin ml",
            "group:local:ml submitter ml",
        ]


def test_a_local_group_of_an_earlier_version_can_be_changed_and_given_roles(
    server: Server, raw: redis.Redis
) -> None:
    with Delegate(server.url) as delegate:
        delegate.groups.create("ml", ["ben"], ROOT)
        field = "group:local:ml"
        stored = msgspec.json.decode(raw.hget(keys.BINDINGS, field) or b"")
        stored.pop("rolesGiven", None)
        raw.hset(keys.BINDINGS, field, msgspec.json.encode(stored))
        delegate.groups.change("ml", ROOT, add=["ada"])
        assert delegate.access.grant(parse_binding("group:local:ml", "viewer", "default"), ROOT)
        delegate.groups.delete("ml", ROOT)
        assert delegate.access.state().bindings == {}
