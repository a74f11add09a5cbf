"""Rights: each cell of role, verb, kind and tier; scopes, doors, and grants that cannot rise."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchq.api.access import (
    OF_NAMESPACES,
    AccessRole,
    Binding,
    Identity,
    Scope,
    Target,
    TargetKind,
    Tier,
    Verb,
    Visibility,
    decide,
    in_local_groups,
    matrix,
    may_add_members,
    may_bind,
    parse_binding,
)
from batchq.errors import InvalidInput
from tests.effort import usually

#: What belongs to a namespace.
LOCAL = (
    TargetKind.GROUPS,
    TargetKind.QUOTAS,
    TargetKind.BINDINGS,
    TargetKind.SERVICE_ACCOUNTS,
)
#: `all`: of every namespace. `yes`: of the namespace where the role is bound. `own`: the caller's
#: own there. What has no row here, no role permits.
OPEN = """
verb    kind              tier    viewer submitter admin operator auditor
read    groups            facts   all    all       all   all      -
read    groups            spec    yes    yes       yes   -        -
read    groups            output  own    own       yes   -        -
create  groups            -       -      yes       yes   -        -
update  groups            -       -      own       yes   all      -
cancel  groups            -       -      own       yes   all      -
delete  groups            -       -      own       yes   all      -
exec    groups            -       -      own       yes   -        -
read    queues            -       all    all       all   all      -
create  queues            -       -      -         -     all      -
update  queues            -       -      -         -     all      -
delete  queues            -       -      -         -     all      -
read    nodes             -       all    all       all   all      -
update  nodes             -       -      -         -     all      -
delete  nodes             -       -      -         -     all      -
read    quotas            -       all    all       all   all      -
create  quotas            -       -      -         -     all      -
update  quotas            -       -      -         -     all      -
delete  quotas            -       -      -         -     all      -
read    tokens            -       own    own       own   all      own
create  tokens            -       own    own       own   own      own
delete  tokens            -       own    own       own   all      own
read    bindings          -       -      -         yes   all      -
create  bindings          -       -      -         yes   all      -
delete  bindings          -       -      -         yes   all      -
read    cluster-bindings  -       -      -         -     all      -
create  cluster-bindings  -       -      -         -     all      -
delete  cluster-bindings  -       -      -         -     all      -
read    audit             -       -      -         -     all      all
create  users             -       -      -         -     all      -
impersonate users         -       -      -         -     all      -
read    service-accounts  -       -      -         yes   all      -
create  service-accounts  -       -      -         yes   all      -
delete  service-accounts  -       -      -         yes   all      -
read    user-groups       -       -      -         all   all      -
create  user-groups       -       -      -         -     all      -
update  user-groups       -       -      -         -     all      -
delete  user-groups       -       -      -         -     all      -
"""
#: The rows that differ under another visibility.
OTHERWISE = {
    Visibility.OPEN: "",
    Visibility.NAMESPACES: """
read    groups            facts   yes    yes       yes   all      -
read    quotas            -       yes    yes       yes   all      -
""",
    Visibility.OWN: """
read    groups            facts   own    own       yes   all      -
read    groups            spec    own    own       yes   -        -
read    quotas            -       yes    yes       yes   all      -
""",
}


def table(visibility: Visibility) -> dict[tuple[str, str, str], dict[str, str]]:
    """Return the cells by verb, kind and tier."""
    titles, *lines = [line.split() for line in OPEN.strip().splitlines()]
    # Of two rows for the same, the later one counts.
    lines += [line.split() for line in OTHERWISE[visibility].strip().splitlines()]
    return {
        (verb, kind, tier): dict(zip(titles[3:], cells, strict=True))
        for verb, kind, tier, *cells in lines
    }


@pytest.mark.parametrize("visibility", Visibility)
@pytest.mark.parametrize("role", AccessRole)
@pytest.mark.parametrize("kind", TargetKind)
def test_each_cell_of_the_matrix(
    visibility: Visibility, role: AccessRole, kind: TargetKind
) -> None:
    rows = table(visibility)
    for verb, tier in itertools.product(Verb, Tier):
        has_tiers = (verb, kind) == (Verb.READ, TargetKind.GROUPS)
        row = rows.get((verb, kind, tier if has_tiers else "-"))
        check_cell("-" if row is None else row[role], visibility, role, verb, kind, tier)


def check_cell(
    cell: str, visibility: Visibility, role: AccessRole, verb: Verb, kind: TargetKind, tier: Tier
) -> None:
    is_local = kind in LOCAL
    bound = "here" if role in OF_NAMESPACES and is_local else "*"
    binding = Binding(subject="user:alice", role=role, namespace=bound)
    alice = Identity(user="alice", via="token")
    for owner, namespace in itertools.product(("alice", "bob"), ("here", "elsewhere")):
        target = Target(kind=kind, namespace=namespace if is_local else "", owner=owner)
        found = decide(alice, [binding], verb, target, tier=tier, visibility=visibility)
        is_here = bound == "*" or namespace == "here"
        expected = {"all": True, "yes": is_here, "own": owner == "alice" and is_here, "-": False}
        assert found.allowed is expected[cell], (verb, tier, owner, namespace, found)


@pytest.mark.parametrize(("owner", "is_allowed"), [("ada", True), ("bob", False)])
def test_a_pod_runs_commands_in_pods_of_its_owner_only(owner: str, is_allowed: bool) -> None:
    """Where pods run as their owners, a command has the account of the other owner."""
    admin = Binding(subject="user:ada", role=AccessRole.ADMIN, namespace="ml")
    target = Target(kind=TargetKind.GROUPS, namespace="ml", owner=owner)
    of_ada = Identity(user="ada", via="pod")
    assert decide(of_ada, [admin], Verb.EXEC, target).allowed is is_allowed
    assert decide(Identity(user="ada", via="token"), [admin], Verb.EXEC, target).allowed


@pytest.mark.parametrize("visibility", Visibility)
def test_the_printed_matrix_says_what_is_decided(visibility: Visibility) -> None:
    printed = {
        (str(row.verb), str(row.kind), str(row.tier or "-")): {
            str(role): cell for role, cell in row.cells.items()
        }
        for row in matrix(visibility)
    }
    assert printed == table(visibility)


TARGETS = [
    Target(kind=kind, namespace=namespace, owner=owner)
    for kind in TargetKind
    for namespace in ("here", "elsewhere", "")
    for owner in ("alice", "bob", "")
]
EVERY_BINDING = [
    Binding(subject=subject, role=role, namespace=namespace)
    for subject in ("user:alice", "group:unix:lab", "user:bob", "serviceaccount:here:ci")
    for role in AccessRole
    for namespace in ("here", "elsewhere", "*")
    if role in OF_NAMESPACES or namespace == "*"
]
BINDINGS = st.lists(st.sampled_from(EVERY_BINDING), max_size=4)


def rights(identity: Identity, bindings: list[Binding]) -> set[tuple[object, ...]]:
    return {
        (verb, target, tier)
        for verb, target, tier in itertools.product(Verb, TARGETS, Tier)
        if decide(identity, bindings, verb, target, tier=tier).allowed
    }


def test_no_binding_no_right_but_to_see_and_revoke_ones_own_tokens() -> None:
    found = rights(Identity(user="alice", via="token"), [])
    assert {(verb, target.kind, target.owner) for verb, target, _ in found} == {  # type: ignore[attr-defined]
        (Verb.READ, TargetKind.TOKENS, "alice"),
        (Verb.DELETE, TargetKind.TOKENS, "alice"),
    }


@given(
    bindings=BINDINGS,
    verbs=st.sets(st.sampled_from(Verb)),
    namespaces=st.sets(st.sampled_from(["here", "elsewhere"])),
)
@settings(max_examples=usually(8, 40), deadline=None)
def test_a_scope_only_narrows(
    bindings: list[Binding], verbs: set[Verb], namespaces: set[str]
) -> None:
    scope = Scope(verbs=tuple(verbs), namespaces=tuple(namespaces))
    whole = rights(Identity(user="alice", via="token"), bindings)
    scoped = rights(Identity(user="alice", via="token", scope=scope), bindings)
    assert scoped <= whole
    assert all(not verbs or verb in verbs for verb, _, _ in scoped)


@given(bindings=BINDINGS, wanted=st.sampled_from(EVERY_BINDING))
@settings(max_examples=usually(15, 100), deadline=None)
def test_a_grant_adds_no_right_to_the_one_who_grants(
    bindings: list[Binding], wanted: Binding
) -> None:
    alice = Identity(user="alice", via="token", groups=("unix:lab",))
    if may_bind(alice, bindings, Verb.CREATE, wanted).allowed:
        assert rights(alice, [*bindings, wanted]) == rights(alice, bindings)


MEMBERS = st.dictionaries(
    st.sampled_from(["lab", "ml"]), st.sets(st.sampled_from(["alice", "bob", "cyd"])), max_size=2
)
OF_GROUPS = [
    Binding(subject=f"group:local:{name}", role=role, namespace=namespace)
    for name in ("lab", "ml")
    for role in AccessRole
    for namespace in ("here", "*")
    if role in OF_NAMESPACES or namespace == "*"
]


@given(
    given_roles=st.lists(st.sampled_from([*EVERY_BINDING, *OF_GROUPS]), max_size=4),
    members=MEMBERS,
    steps=st.lists(
        st.one_of(
            st.sampled_from(OF_GROUPS),
            st.tuples(st.sampled_from(["lab", "ml"]), st.sampled_from(["alice", "bob", "cyd"])),
        ),
        max_size=5,
    ),
)
@settings(max_examples=usually(10, 200), deadline=None)
def test_no_sequence_of_grants_and_members_adds_a_right_to_the_one_who_makes_it(
    given_roles: list[Binding],
    members: dict[str, set[str]],
    steps: list[Binding | tuple[str, str]],
) -> None:
    bindings = list(given_roles)

    def alice() -> Identity:
        memberships: dict[str, list[str]] = {}
        for name in sorted(members):
            for user in members[name]:
                memberships.setdefault(user, []).append(name)
        return in_local_groups(Identity(user="alice", via="token"), memberships)

    before = rights(alice(), bindings)
    for step in steps:
        if isinstance(step, Binding):
            if may_bind(alice(), bindings, Verb.CREATE, step).allowed:
                bindings.append(step)
            continue
        name, user = step
        if may_add_members(alice(), bindings, Verb.UPDATE, [user]).allowed:
            members.setdefault(name, set()).add(user)
    assert rights(alice(), bindings) == before


def test_an_admin_of_a_namespace_grants_its_roles_there_only() -> None:
    alice = Identity(user="alice", via="token")
    bindings = [Binding(subject="user:alice", role=AccessRole.ADMIN, namespace="ml")]

    def may(role: AccessRole, namespace: str) -> bool:
        wanted = Binding(subject="user:bob", role=role, namespace=namespace)
        return may_bind(alice, bindings, Verb.CREATE, wanted).allowed

    assert [may(role, "ml") for role in AccessRole] == [True, True, True, False, False]
    assert not any(may(role, "*") for role in AccessRole)
    assert not any(may(role, "cv") for role in AccessRole)


@pytest.mark.parametrize("visibility", Visibility)
@pytest.mark.parametrize("role", AccessRole)
def test_shared_output_is_for_roles_of_its_namespace_and_nothing_else_is_shared(
    visibility: Visibility, role: AccessRole
) -> None:
    bound = "here" if role in OF_NAMESPACES else "*"
    binding = Binding(subject="user:alice", role=role, namespace=bound)
    alice = Identity(user="alice", via="token")
    for verb, tier, namespace in itertools.product(Verb, Tier, ("here", "elsewhere")):
        own, shared = (
            decide(
                alice,
                [binding],
                verb,
                Target(kind=TargetKind.GROUPS, namespace=namespace, owner="bob", is_shared=one),
                tier=tier,
                visibility=visibility,
            ).allowed
            for one in (False, True)
        )
        is_output = (verb, tier, namespace) == (Verb.READ, Tier.OUTPUT, "here")
        gains = is_output and role in OF_NAMESPACES and visibility is not Visibility.OWN
        assert shared is (own or gains), (verb, tier, namespace)


def test_a_service_account_has_the_roles_of_its_own_namespace_and_no_others() -> None:
    """Whatever is stored: also a binding that no program of this version would create."""
    ci = Identity(user="ml:ci", via="token")
    bindings = [
        Binding(subject=subject, role=role, namespace=namespace)
        for subject in ("serviceaccount:ml:ci", "user:ml:ci")
        for role, namespace in ((AccessRole.ADMIN, "*"), (AccessRole.OPERATOR, "*"))
    ]
    bindings.append(Binding(subject=bindings[0].subject, role=AccessRole.ADMIN, namespace="cv"))
    own = Target(kind=TargetKind.GROUPS, namespace="ml", owner="ml:ci")
    other = Target(kind=TargetKind.GROUPS, namespace="cv", owner="ml:ci")
    assert not decide(ci, bindings, Verb.CREATE, own).allowed
    here = parse_binding("serviceaccount:ml:ci", "submitter", "ml")
    assert decide(ci, [*bindings, here], Verb.CREATE, own).because == str(here)
    assert decide(ci, [here], Verb.CREATE, other).because == (
        "service account ml:ci may not create groups in namespace cv: it takes one of the roles"
        " submitter, admin"
    )


def test_a_decision_names_the_binding_that_allows_or_what_is_missing() -> None:
    bindings = [Binding(subject="group:unix:lab", role=AccessRole.VIEWER, namespace="ml")]
    alice = Identity(user="alice", via="socket", groups=("unix:lab",))
    target = Target(kind=TargetKind.GROUPS, namespace="ml", owner="bob")
    assert decide(alice, bindings, Verb.READ, target).because == (
        "group:unix:lab is viewer in namespace ml"
    )
    assert decide(alice, bindings, Verb.CANCEL, target).because == (
        "user alice may not cancel groups in namespace ml: it takes one of the roles admin,"
        " operator or, for its owner, a role there"
    )


def test_a_name_recorded_without_the_api_belongs_to_the_same_account() -> None:
    alice = Identity(user="alice", via="socket", aliases=frozenset({"alice@laptop"}))
    bindings = [Binding(subject="user:alice", role=AccessRole.SUBMITTER, namespace="ml")]
    for owner, allowed in (("alice@laptop", True), ("alice@desk", False), ("", False)):
        target = Target(kind=TargetKind.GROUPS, namespace="ml", owner=owner)
        assert decide(alice, bindings, Verb.CANCEL, target).allowed is allowed


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("alice", "viewer", "*"), "expected user:NAME, group:NAME or serviceaccount:.*'alice'"),
        (("user:", "viewer", "*"), "expected user:NAME, group:NAME"),
        (("user:a b", "viewer", "*"), "expected user:NAME, group:NAME"),
        (("serviceaccount:ml:ci", "viewer", "*"), "its own namespace, ml, only, .* all namespaces"),
        (
            ("serviceaccount:ml:ci", "viewer", "cv"),
            "its own namespace, ml, only, .* namespace 'cv'",
        ),
        (("serviceaccount:ml", "viewer", "ml"), "service account 'ml': name: "),
        (("serviceaccount:ml:a:b", "viewer", "ml"), "service account 'ml:a:b': name: "),
        (("serviceaccount:ml:", "viewer", "ml"), "service account 'ml:': name: "),
        (("user:alice", "root", "*"), "expected one of the roles viewer, submitter, admin"),
        (("user:alice", "operator", "ml"), "the role operator is for the whole cluster"),
        (("user:alice", "viewer", "M L"), "namespace 'M L'"),
    ],
)
def test_a_binding_that_could_never_apply_is_refused(
    words: tuple[str, str, str], sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        parse_binding(*words)
