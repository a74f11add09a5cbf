"""Who may do what: roles, bindings, scopes of tokens, and the one function that decides; the texts
of tokens, and the signatures of groups.

A **binding** gives a subject (a user, a group of users or a service account) a role in one
namespace, or in all of them (`*`). A **service account** `NAMESPACE:NAME` is what a program acts
as: it has rights in its own namespace only. An **identity** is what the API knows about a caller. A
**target** is what the caller wants to touch. `decide` answers from these values alone, by the table
`RULES`: what no rule permits is refused. A token's scope is intersected with the rights that its
owner has at that moment, so it can only narrow them.

Reading a group has three tiers, each of which includes the one before it: schedule *facts*, which
explain to the others in the queue why they wait; the *spec*, which says what is run; and the
*output*, with the values of environment variables. `seen` blanks the parts of a group that a tier
hides; a hidden part equals an absent one, so that nothing about it can be inferred. `without_names`
removes the names of other namespaces' groups from a whole answer.

A token is `bqt_<id>_<secret>_<checksum>`, an invitation the same with `bqi_`, the token with which
an agent joins with `bqj_`, the token of a pod's attempt with `bqp_`, where the id is
`<pod>-<attempt>`. Only the SHA-256 of the secret is kept. It needs no slow hash because the secret
has 256 random bits. The checksum tells a typing error from an unknown token, and lets scanners
recognise tokens in text.

A group's *signature* proves to an agent that the HTTP API has seen the group's owner submit what
the group runs. Everything else in the server could have been written by any submitter's
credentials. The key is known to the API and to the agents only, and never to the server.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, structs

from batchq.api.node_report import PodAttempt
from batchq.api.notation import label_problem
from batchq.api.objects import (
    Condition,
    GroupClaim,
    Metadata,
    PodGroup,
    PodGroupSpec,
    PodTemplate,
    Task,
)
from batchq.errors import InvalidInput

EVERYWHERE = "*"


class AccessRole(StrEnum):
    """What a binding gives. Operators and auditors are bound in all namespaces only."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    ADMIN = "admin"
    OPERATOR = "operator"
    AUDITOR = "auditor"


class Verb(StrEnum):
    """What is done to a target."""

    READ = "read"
    CREATE = "create"
    UPDATE = "update"
    CANCEL = "cancel"
    DELETE = "delete"
    #: Run commands in the pods of a group.
    EXEC = "exec"
    #: Act in the name of a user.
    IMPERSONATE = "impersonate"


class TargetKind(StrEnum):
    """What the API serves."""

    GROUPS = "groups"
    #: With priority classes and admission checks.
    QUEUES = "queues"
    NODES = "nodes"
    QUOTAS = "quotas"
    TOKENS = "tokens"
    #: Bindings in one namespace, of the roles that namespaces have.
    BINDINGS = "bindings"
    #: All other bindings.
    CLUSTER_BINDINGS = "cluster-bindings"
    AUDIT = "audit"
    USERS = "users"
    #: With their tokens.
    SERVICE_ACCOUNTS = "service-accounts"
    #: The local ones.
    USER_GROUPS = "user-groups"


class Tier(StrEnum):
    """How much of a group is read; other verbs and kinds do not distinguish tiers."""

    FACTS = "facts"
    SPEC = "spec"
    OUTPUT = "output"


class Visibility(StrEnum):
    """Whose schedule facts a user may read: those of all namespaces, of the user's own namespaces,
    or of the user's own groups (admins and operators: as under `namespaces`).
    """

    OPEN = "open"
    NAMESPACES = "namespaces"
    OWN = "own"


OF_NAMESPACES = frozenset({AccessRole.VIEWER, AccessRole.SUBMITTER, AccessRole.ADMIN})
OF_CLUSTER = frozenset({AccessRole.OPERATOR, AccessRole.AUDITOR})
_EVERY_ROLE = frozenset(AccessRole)


class Binding(Struct, frozen=True, kw_only=True, rename="camel", order=True):
    """Gives a role to `user:NAME`, `group:NAME` or `serviceaccount:NAMESPACE:NAME`, in one
    namespace or everywhere (`*`).
    """

    subject: str
    role: AccessRole
    namespace: str = EVERYWHERE

    @property
    def key(self) -> str:
        """The binding's name: a binding consists of nothing else."""
        return f"{self.subject} {self.role} {self.namespace}"

    def __str__(self) -> str:
        place = "all namespaces" if self.namespace == EVERYWHERE else f"namespace {self.namespace}"
        return f"{self.subject} is {self.role} in {place}"


class Scope(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a token may be used for at most. An empty tuple does not narrow anything."""

    verbs: tuple[Verb, ...] = ()
    namespaces: tuple[str, ...] = ()

    def permits(self, verb: Verb, namespace: str) -> bool:
        """Return whether the verb may be used there; `namespace` is "" for what has none."""
        if self.verbs and verb not in self.verbs:
            return False
        return not self.namespaces or namespace in self.namespaces


Via: TypeAlias = Literal["socket", "token", "pod"]


class Identity(Struct, frozen=True, kw_only=True):
    """A caller as a door of the API knows it.

    `groups` carry their origin (`unix:gpu`, `oidc:ml`, `local:cv`). `aliases` are other names under
    which this user's groups are recorded: commands without the API record `alice@laptop`. `own` are
    bindings that come with the door, such as those of the account that runs the server. `token` is
    the id of the token that was used. `group` is the group of a pod, which acts in the name of its
    owner. `by` is the caller who acts in the name of `user`, and `reason` says why.
    """

    user: str
    via: Via
    groups: tuple[str, ...] = ()
    aliases: frozenset[str] = frozenset()
    own: tuple[Binding, ...] = ()
    scope: Scope = Scope()
    token: str = ""
    group: str = ""
    by: Identity | None = None
    reason: str = ""

    @property
    def names(self) -> frozenset[str]:
        """The names under which this identity owns things."""
        return self.aliases | {self.user}

    @property
    def subjects(self) -> frozenset[str]:
        """The subjects of bindings that apply to this identity."""
        if self.home:
            return frozenset({f"{OF_ACCOUNT}{self.user}"})
        return frozenset({f"user:{self.user}", *(f"group:{name}" for name in self.groups)})

    @property
    def home(self) -> str:
        """The namespace of a service account; "" for a user."""
        return namespace_of_account(self.user)

    @property
    def title(self) -> str:
        """What messages call it."""
        return title_of(self.user)


class Target(Struct, frozen=True, kw_only=True):
    """What is touched: its kind, its namespace ("" if it has none) and its owner; and whether the
    owner of a group shares its output with the namespace.
    """

    kind: TargetKind
    namespace: str = ""
    owner: str = ""
    is_shared: bool = False


class AccessDecision(Struct, frozen=True, kw_only=True):
    """Whether it is allowed. `because` names the binding that allows it, or what is missing;
    `hint` says who can grant that.
    """

    allowed: bool
    because: str
    hint: str = ""


class AccessRule(Struct, frozen=True, kw_only=True):
    """Which roles permit something.

    `roles` permit it in their namespace, `of_owner` if the target is also the caller's own, and
    `of_shared` if its owner shares it.
    `anywhere` permit it in every namespace, under open visibility; `everywhere` under any.
    `without_role`: the owner needs no role.
    """

    roles: frozenset[AccessRole] = frozenset()
    of_owner: frozenset[AccessRole] = frozenset()
    of_shared: frozenset[AccessRole] = frozenset()
    anywhere: frozenset[AccessRole] = frozenset()
    everywhere: frozenset[AccessRole] = frozenset()
    without_role: bool = False


#: What pods may change, and what they may read: in the namespace of their group, and outside of
#: namespaces.
_OF_PODS = frozenset({TargetKind.GROUPS})
_READ_BY_PODS = _OF_PODS | {TargetKind.QUOTAS}
_OF_CLUSTER_FOR_PODS = frozenset({TargetKind.QUEUES, TargetKind.NODES})
_V, _S, _A, _O, _AUDITOR = AccessRole
_GROUPS, _QUEUES, _NODES, _QUOTAS, _TOKENS, _BINDINGS, _CLUSTER_BINDINGS, _AUDIT, *_OTHERS = (
    TargetKind
)
_USERS, _ACCOUNTS, _USER_GROUPS = _OTHERS
_CHANGING = AccessRule(roles=frozenset({_A, _O}), of_owner=frozenset({_S, _A}))
_OPERATING = AccessRule(roles=frozenset({_O}))
_ADMINISTRATING = AccessRule(roles=frozenset({_A, _O}))
#: Roles that see all groups of a namespace under visibility `own`.
_OVERSEEING = frozenset({_A, _O})

#: Every permission there is; for groups, reading by tier.
RULES: dict[tuple[Verb, TargetKind, Tier | None], AccessRule] = {
    (Verb.READ, _GROUPS, Tier.FACTS): AccessRule(
        roles=OF_NAMESPACES | {_O}, anywhere=OF_NAMESPACES
    ),
    (Verb.READ, _GROUPS, Tier.SPEC): AccessRule(roles=OF_NAMESPACES),
    (Verb.READ, _GROUPS, Tier.OUTPUT): AccessRule(
        roles=frozenset({_A}), of_owner=OF_NAMESPACES, of_shared=OF_NAMESPACES
    ),
    (Verb.CREATE, _GROUPS, None): AccessRule(roles=frozenset({_S, _A})),
    (Verb.UPDATE, _GROUPS, None): _CHANGING,
    (Verb.CANCEL, _GROUPS, None): _CHANGING,
    (Verb.DELETE, _GROUPS, None): _CHANGING,
    # A command that runs as the owner can read the owner's output, which operators may not read.
    (Verb.EXEC, _GROUPS, None): AccessRule(roles=frozenset({_A}), of_owner=frozenset({_S, _A})),
    (Verb.READ, _QUEUES, None): AccessRule(everywhere=OF_NAMESPACES | {_O}),
    (Verb.CREATE, _QUEUES, None): _OPERATING,
    (Verb.UPDATE, _QUEUES, None): _OPERATING,
    (Verb.DELETE, _QUEUES, None): _OPERATING,
    (Verb.READ, _NODES, None): AccessRule(everywhere=OF_NAMESPACES | {_O}),
    (Verb.UPDATE, _NODES, None): _OPERATING,
    (Verb.DELETE, _NODES, None): _OPERATING,
    (Verb.READ, _QUOTAS, None): AccessRule(roles=OF_NAMESPACES | {_O}, anywhere=OF_NAMESPACES),
    (Verb.CREATE, _QUOTAS, None): _OPERATING,
    (Verb.UPDATE, _QUOTAS, None): _OPERATING,
    (Verb.DELETE, _QUOTAS, None): _OPERATING,
    (Verb.READ, _TOKENS, None): AccessRule(roles=frozenset({_O}), without_role=True),
    (Verb.CREATE, _TOKENS, None): AccessRule(of_owner=_EVERY_ROLE),
    (Verb.DELETE, _TOKENS, None): AccessRule(roles=frozenset({_O}), without_role=True),
    (Verb.READ, _BINDINGS, None): _ADMINISTRATING,
    (Verb.CREATE, _BINDINGS, None): _ADMINISTRATING,
    (Verb.DELETE, _BINDINGS, None): _ADMINISTRATING,
    (Verb.READ, _CLUSTER_BINDINGS, None): AccessRule(roles=frozenset({_O})),
    (Verb.CREATE, _CLUSTER_BINDINGS, None): AccessRule(roles=frozenset({_O})),
    (Verb.DELETE, _CLUSTER_BINDINGS, None): AccessRule(roles=frozenset({_O})),
    (Verb.READ, _AUDIT, None): AccessRule(roles=frozenset({_O, _AUDITOR})),
    #: Invite a user.
    (Verb.CREATE, _USERS, None): _OPERATING,
    (Verb.IMPERSONATE, _USERS, None): _OPERATING,
    (Verb.READ, _ACCOUNTS, None): _ADMINISTRATING,
    (Verb.CREATE, _ACCOUNTS, None): _ADMINISTRATING,
    (Verb.DELETE, _ACCOUNTS, None): _ADMINISTRATING,
    # Admins give these groups roles, and must know their members.
    (Verb.READ, _USER_GROUPS, None): AccessRule(everywhere=frozenset({_A, _O})),
    (Verb.CREATE, _USER_GROUPS, None): _OPERATING,
    (Verb.UPDATE, _USER_GROUPS, None): _OPERATING,
    (Verb.DELETE, _USER_GROUPS, None): _OPERATING,
}


def rule_of(
    verb: Verb, kind: TargetKind, tier: Tier, visibility: Visibility = Visibility.OPEN
) -> AccessRule:
    """Return the rule for something; an empty rule, which permits nothing, if there is none."""
    reads_group = verb is Verb.READ and kind is TargetKind.GROUPS
    rule = RULES.get((verb, kind, tier if reads_group else None), AccessRule())
    if visibility is not Visibility.OPEN:
        rule = structs.replace(rule, anywhere=frozenset())
    if reads_group and visibility is Visibility.OWN:
        overseeing = rule.roles & _OVERSEEING
        owning = rule.of_owner | OF_NAMESPACES
        return structs.replace(rule, roles=overseeing, of_owner=owning, of_shared=frozenset())
    return rule


def decide(
    identity: Identity,
    bindings: Iterable[Binding],
    verb: Verb,
    target: Target,
    *,
    tier: Tier = Tier.FACTS,
    visibility: Visibility = Visibility.OPEN,
) -> AccessDecision:
    """Decide whether an identity may do something, from all bindings there are."""
    rule = rule_of(verb, target.kind, tier, visibility)
    what = _what(verb, target, tier)
    if not _is_in_scope(identity, verb, target):
        return AccessDecision(allowed=False, because=f"the token's scope does not include: {what}")
    is_own = target.owner != "" and target.owner in identity.names
    if is_own and rule.without_role:
        return AccessDecision(allowed=True, because=f"it belongs to {identity.title}")
    for binding in bindings_of(identity, bindings):
        is_here = binding.namespace in (EVERYWHERE, target.namespace)
        if (
            (is_here and binding.role in rule.roles)
            or (is_own and binding.role in rule.of_owner and (is_here or not target.namespace))
            or (target.is_shared and is_here and binding.role in rule.of_shared)
            or binding.role in rule.anywhere
            or binding.role in rule.everywhere
        ):
            return AccessDecision(allowed=True, because=str(binding))
    return AccessDecision(
        allowed=False,
        because=_missing(identity, rule, target, what),
        hint="an operator can grant it: `batchq access`" if _is_of_cluster(rule) else "",
    )


def _is_in_scope(identity: Identity, verb: Verb, target: Target) -> bool:
    """Return whether the caller's token may be used for something, whatever its owner may do."""
    if identity.via == "pod":
        if verb is Verb.READ and target.kind in _OF_CLUSTER_FOR_PODS:
            return True
        if target.kind not in (_READ_BY_PODS if verb is Verb.READ else _OF_PODS):
            return False
        # A command runs under the account of the group's owner; the pod of another owner must not
        # get at that account.
        if verb is Verb.EXEC and target.owner not in identity.names:
            return False
    return identity.scope.permits(verb, target.namespace)


def bindings_of(identity: Identity, bindings: Iterable[Binding]) -> Iterator[Binding]:
    """Yield the bindings that apply to an identity, its own first; to a service account, those of
    its namespace only.
    """
    yield from identity.own
    subjects, home = identity.subjects, identity.home
    yield from (one for one in bindings if one.subject in subjects and home in ("", one.namespace))


def may_bind(
    identity: Identity, bindings: Sequence[Binding], verb: Verb, wanted: Binding
) -> AccessDecision:
    """Decide whether an identity may create or delete a binding.

    Users cannot give themselves roles, and admins give roles of their own namespaces only. So no
    sequence of grants adds a right to the user who grants.
    """
    itself = identity if identity.by is None else identity.by
    if verb is Verb.CREATE and wanted.subject in identity.subjects | itself.subjects:
        return AccessDecision(allowed=False, because="a role cannot be given to oneself")
    return decide(identity, bindings, verb, target_of(wanted))


def may_add_members(
    identity: Identity, bindings: Sequence[Binding], verb: Verb, members: Iterable[str]
) -> AccessDecision:
    """Decide whether an identity may create or change a local group so that these users become
    members. Users who added themselves would get the roles of the group.
    """
    itself = identity if identity.by is None else identity.by
    if not {identity.user, itself.user}.isdisjoint(members):
        return AccessDecision(allowed=False, because="users cannot add themselves to a group")
    return decide(identity, bindings, verb, Target(kind=TargetKind.USER_GROUPS))


def target_of(binding: Binding) -> Target:
    """Return a binding as a target."""
    if binding.role in OF_NAMESPACES and binding.namespace != EVERYWHERE:
        return Target(kind=TargetKind.BINDINGS, namespace=binding.namespace)
    return Target(kind=TargetKind.CLUSTER_BINDINGS)


def _what(verb: Verb, target: Target, tier: Tier) -> str:
    of = f"the {tier} of " if verb is Verb.READ and target.kind is TargetKind.GROUPS else ""
    place = f" in namespace {target.namespace}" if target.namespace else ""
    return f"{verb} {of}{target.kind}{place}"


def _is_of_cluster(rule: AccessRule) -> bool:
    """Return whether only roles in the whole cluster permit something, which operators give."""
    permitting = rule.roles | rule.anywhere | rule.everywhere | rule.of_owner | rule.of_shared
    return permitting.isdisjoint(OF_NAMESPACES)


def _missing(identity: Identity, rule: AccessRule, target: Target, what: str) -> str:
    permitting = rule.roles | rule.anywhere | rule.everywhere
    roles = [str(role) for role in AccessRole if role in permitting]
    several = "one of the roles" if len(roles) > 1 else "the role"
    needed = f"{several} {', '.join(roles)}" if roles else "ownership"
    owners = " or, for its owner, a role there" if rule.of_owner and target.namespace else ""
    return f"{identity.title} may not {what}: it takes {needed}{owners}"


#: Begins the subjects that are service accounts.
OF_ACCOUNT = "serviceaccount:"
#: Begins the names of local groups.
OF_LOCAL = "local:"
_LOCAL_SUBJECT = f"group:{OF_LOCAL}"


def local_subject(name: str) -> str:
    """Return the subject of a local group."""
    return f"{_LOCAL_SUBJECT}{name}"


def local_group(subject: str) -> str | None:
    """Return the name of the local group that is a subject; None for all other subjects."""
    name = subject.removeprefix(_LOCAL_SUBJECT)
    return None if name == subject or label_problem(name) else name


def in_local_groups(identity: Identity, memberships: Mapping[str, Sequence[str]]) -> Identity:
    """Return an identity with the local groups that its user is a member of at this moment, in
    place of those of another moment; a service account is a member of none.
    """
    names = () if identity.home else memberships.get(identity.user, ())
    others = tuple(one for one in identity.groups if not one.startswith(OF_LOCAL))
    groups = (*others, *(f"{OF_LOCAL}{name}" for name in names))
    by = None if identity.by is None else in_local_groups(identity.by, memberships)
    return structs.replace(identity, groups=groups, by=by)


def namespace_of_account(user: str) -> str:
    """Return the namespace of a service account; "" for a user, whose name has no colon."""
    namespace, colon, _ = user.partition(":")
    return namespace if colon else ""


def title_of(user: str) -> str:
    """Return what messages call a user or service account."""
    return f"{'service account' if namespace_of_account(user) else 'user'} {user}"


def check_account(name: str) -> str:
    """Return the namespace of a service account's name. Raises InvalidInput if it is none."""
    namespace, _, own = name.partition(":")
    for part, what in ((namespace, "namespace"), (own, "name")):
        if problem := label_problem(part):
            raise InvalidInput(
                f"service account {name[:140]!r}: {what}: {problem}",
                hint="it is written NAMESPACE:NAME, as in ml:ci",
            )
    return namespace


#: The name of a user.
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,127}")
_SUBJECT = re.compile(r"(user|group):[A-Za-z0-9_][A-Za-z0-9._@:+-]{0,127}")


def parse_binding(subject: str, role: str, namespace: str) -> Binding:
    """Return a binding. Raises InvalidInput if it could never apply."""
    account = subject.removeprefix(OF_ACCOUNT)
    home = check_account(account) if account != subject else ""
    if subject.startswith(_LOCAL_SUBJECT) and local_group(subject) is None:
        name = subject.removeprefix(_LOCAL_SUBJECT)
        raise InvalidInput(f"local group {name[:80]!r}: {label_problem(name)}")
    if not home and not _SUBJECT.fullmatch(subject):
        raise InvalidInput(
            f"expected user:NAME, group:NAME or {OF_ACCOUNT}NAMESPACE:NAME, found {subject[:80]!r}",
            hint="as in user:alice, or group:unix:gpu for the Unix group gpu",
        )
    if home and namespace != home:
        place = "all namespaces" if namespace == EVERYWHERE else f"namespace {namespace[:80]!r}"
        raise InvalidInput(
            f"service account {account} has roles in its own namespace, {home}, only, and a role in"
            f" {place} was asked for",
            hint=f"add -n {home}",
        )
    try:
        found = AccessRole(role)
    except ValueError:
        names = ", ".join(AccessRole)
        raise InvalidInput(f"expected one of the roles {names}, found {role[:80]!r}") from None
    if found in OF_CLUSTER and namespace != EVERYWHERE:
        raise InvalidInput(
            f"the role {found} is for the whole cluster, and was bound in namespace"
            f" {namespace[:80]!r}",
            hint="leave the namespace out",
        )
    if namespace != EVERYWHERE and (problem := label_problem(namespace)):
        raise InvalidInput(f"namespace {namespace[:80]!r}: {problem}")
    return Binding(subject=subject, role=found, namespace=namespace)


class MatrixRow(Struct, frozen=True, kw_only=True):
    """What each role permits of something: `all` (in every namespace), `yes` (where it is bound),
    `own` (the caller's own, where it is bound) or `-`.
    """

    verb: Verb
    kind: TargetKind
    tier: Tier | None
    cells: dict[AccessRole, str]


def matrix(visibility: Visibility = Visibility.OPEN) -> list[MatrixRow]:
    """Return every permission, as `decide` decides it."""
    return [
        MatrixRow(
            verb=verb,
            kind=kind,
            tier=tier,
            cells={
                role: _cell(role, verb, kind, tier or Tier.FACTS, visibility) for role in AccessRole
            },
        )
        for verb, kind, tier in RULES
    ]


def _cell(
    role: AccessRole, verb: Verb, kind: TargetKind, tier: Tier, visibility: Visibility
) -> str:
    is_local = kind in (_GROUPS, _QUOTAS, _BINDINGS, _ACCOUNTS)
    bound = "here" if role in OF_NAMESPACES and is_local else EVERYWHERE
    identity = Identity(user="caller", via="token")
    binding = Binding(subject="user:caller", role=role, namespace=bound)

    def allows(owner: str, namespace: str) -> bool:
        target = Target(kind=kind, namespace=namespace if is_local else "", owner=owner)
        return decide(identity, [binding], verb, target, tier=tier, visibility=visibility).allowed

    if allows("another", "elsewhere"):
        return "all"
    if allows("another", "here"):
        return "yes"
    return "own" if allows("caller", "here") else "-"


#: Replaces the value of an environment variable; its name is part of the spec.
HIDDEN = "<hidden>"
#: Replaces the name of a group that the reader may not see.
ANOTHER_GROUP = "another group"

T = TypeVar("T")

#: `namespace/name`. Resources such as `nvidia.com/gpu` have a dot before the slash.
_GROUP_KEY = re.compile(
    r"(?<![\w./-])(?P<namespace>[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)"
    r"/[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?![\w/])"
)


def seen(group: PodGroup, tier: Tier) -> PodGroup:
    """Return what a reader of this tier sees of a group.

    The digest of a consumer's token is in no tier: it is of use to its holder only. The group's
    signature is for agents.
    """
    claim = structs.replace(group.status.claim, token="")
    status = structs.replace(group.status, claim=claim, signature="")
    group = structs.replace(group, status=status)
    if tier is Tier.OUTPUT:
        return group
    if tier is Tier.SPEC:
        tasks = tuple(_without_values(task) for task in group.spec.tasks)
        return structs.replace(group, spec=structs.replace(group.spec, tasks=tasks))
    return _facts(group)


def _without_values(task: Task) -> Task:
    env = dict.fromkeys(task.template.env, HIDDEN)
    return structs.replace(task, template=structs.replace(task.template, env=env))


def bare_metadata(meta: Metadata) -> Metadata:
    """Return metadata without labels and annotations, which may be private.

    Fields are listed, so that a new one is private until it is added here.
    """
    return Metadata(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        creation_timestamp=meta.creation_timestamp,
        revision=meta.revision,
    )


def _facts(group: PodGroup) -> PodGroup:
    spec, status = group.spec, group.status
    return PodGroup(
        metadata=bare_metadata(group.metadata),
        spec=PodGroupSpec(
            queue=spec.queue,
            min_member=spec.min_member,
            min_resources=spec.min_resources,
            priority_class_name=spec.priority_class_name,
            scheduling_gates=spec.scheduling_gates,
            suspend=spec.suspend,
            walltime=spec.walltime,
            controller=spec.controller,
            tasks=tuple(
                Task(
                    name=task.name,
                    replicas=task.replicas,
                    min_available=task.min_available,
                    template=PodTemplate(
                        requests=task.template.requests,
                        priority=task.template.priority,
                        scheduling_gates=task.template.scheduling_gates,
                    ),
                )
                for task in spec.tasks
            ),
        ),
        status=structs.replace(
            status,
            checks=tuple(structs.replace(check, message="") for check in status.checks),
            conditions=tuple(_without_message(one) for one in status.conditions),
            claim=GroupClaim(
                phase=status.claim.phase,
                claimed_at=status.claim.claimed_at,
                expires_at=status.claim.expires_at,
                holding=status.claim.holding,
                stop_reason=status.claim.stop_reason,
                stopped_at=status.claim.stopped_at,
            ),
            reported={},
        ),
    )


def _without_message(condition: Condition) -> Condition:
    """Return the condition without its message, which may quote what a pod has printed."""
    return structs.replace(condition, message="")


#: The fields that the author of an object has written. They are shown unchanged to callers that may
#: read them, because a file name in a command may look like the name of a group.
_WRITTEN = frozenset({"apiVersion", "kind", "metadata", "spec"})


def without_names(document: T, is_visible: Callable[[str], bool]) -> T:
    """Return a JSON document without the names, `namespace/name`, of groups that are hidden; what
    the authors of objects have written stays.
    """

    def shown(found: re.Match[str]) -> str:
        # A fraction such as 2/3 is no name.
        is_shown = found["namespace"].isdigit() or is_visible(found[0])
        return found[0] if is_shown else ANOTHER_GROUP

    def walked(part: object) -> object:
        match part:
            case str():
                return _GROUP_KEY.sub(shown, part)
            case dict():
                written = _WRITTEN if "apiVersion" in part else ()
                return {
                    walked(key): value if key in written else walked(value)
                    for key, value in part.items()
                }
            case list() | tuple():
                return [walked(one) for one in part]
            case _:
                return part

    result: T = walked(document)  # type: ignore[assignment]  # the same shape
    return result


TokenKind: TypeAlias = Literal["token", "invitation", "join", "pod"]

_PREFIXES: dict[str, TokenKind] = {
    "bqt": "token",
    "bqi": "invitation",
    "bqj": "join",
    "bqp": "pod",
}
_TOKEN = re.compile(
    r"(?:(bqt|bqi|bqj)_([a-z0-9]{10})|(bqp)_([a-z0-9-]{1,64}-[0-9]{1,19}))"
    r"_([A-Za-z0-9_-]{43})_([0-9a-f]{6})"
)


class TokenParts(NamedTuple):
    """What a token's text says: its kind, its id, and the digest of its secret."""

    kind: TokenKind
    id: str
    digest: str

    def matches(self, kind: TokenKind, digest: str) -> bool:
        """Return whether this is the token of a kind whose secret has this digest."""
        return self.kind == kind and hmac.compare_digest(self.digest.encode(), digest.encode())


def parse_token(text: str) -> TokenParts | None:
    """Return the parts of a token; None if the text is none, or mistyped."""
    found = _TOKEN.fullmatch(text)
    if found is None:
        return None
    prefix, id_ = found[1] or found[3], found[2] or found[4]
    if _checksum(id_, found[5]) != found[6]:
        return None
    return TokenParts(_PREFIXES[prefix], id_, digest_of_secret(found[5]))


def attempt_of(id_: str) -> PodAttempt:
    """Return the attempt whose token has this id."""
    pod, _, attempt = id_.rpartition("-")
    return PodAttempt(pod, int(attempt))


def token_text(kind: TokenKind, id_: str, secret: str) -> str:
    """Return the text of a token, from its id and its secret (43 characters of base64url)."""
    prefix = next(prefix for prefix, known in _PREFIXES.items() if known == kind)
    return f"{prefix}_{id_}_{secret}_{_checksum(id_, secret)}"


def digest_of_secret(secret: str) -> str:
    """Return what is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _checksum(id_: str, secret: str) -> str:
    return hashlib.sha256(f"{id_}_{secret}".encode()).hexdigest()[:6]


#: The parts of a template that say where, when and for how long its pods run, and which may change
#: after the submission. Everything else, fields to come included, says what they run.
_UNSIGNED = frozenset(
    {
        *("labels", "annotations", "requests", "node_selector", "nodes", "exclude_nodes"),
        *("tolerations", "priority", "scheduling_gates", "termination_grace"),
    }
)
_SIGNED = tuple(name for name in PodTemplate.__struct_fields__ if name not in _UNSIGNED)
_USUAL = PodTemplate()


def signature_of(key: bytes, group: PodGroup) -> str:
    """Return the signature of what a group runs, under which identity, and in whose name.

    A field with its default is left out, so that a version that does not know the field computes
    the same.
    """
    meta = group.metadata
    runs = [
        (
            task.name,
            {
                name: value
                for name in _SIGNED
                if (value := getattr(task.template, name)) != getattr(_USUAL, name)
            },
        )
        for task in group.spec.tasks
    ]
    told = ("PodGroup", meta.uid, meta.namespace, meta.name, group.status.submitted_by, runs)
    text = msgspec.json.encode(told, order="deterministic")
    return hmac.new(key, text, hashlib.sha256).hexdigest()


def is_signed(key: bytes, group: PodGroup) -> bool:
    """Return whether the group's signature is that of its present content."""
    return hmac.compare_digest(signature_of(key, group).encode(), group.status.signature.encode())
