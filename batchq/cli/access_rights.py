"""`batchq access`, `token` and `acl`: rights at the HTTP API and at the Redis server."""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import click
from msgspec import convert, to_builtins

from batchq.api.access import (
    EVERYWHERE,
    OF_LOCAL,
    OF_NAMESPACES,
    AccessDecision,
    AccessRole,
    Binding,
    Identity,
    MatrixRow,
    Scope,
    Target,
    TargetKind,
    Tier,
    Verb,
    Visibility,
    check_account,
    decide,
    in_local_groups,
    matrix,
    namespace_of_account,
    parse_binding,
    title_of,
)
from batchq.api.notation import counted, parse_duration
from batchq.cli.output import echo
from batchq.cli.output.forms import Columns, ListForm, Output, show_list, tabled
from batchq.cli.output.options import (
    DURATION,
    Globals,
    WholeNumber,
    examples,
    output_option,
    pass_globals,
)
from batchq.client.access_control import (
    MOST_DAYS,
    MOST_LINE_DAYS,
    USUAL_DAYS,
    USUAL_LINE_DAYS,
    Actor,
    Delegate,
    service_accounts,
)
from batchq.client.access_rows import (
    account_row,
    audit_row,
    binding_row,
    listed_token_row,
    token_row,
)
from batchq.errors import InvalidInput, UsageError

if TYPE_CHECKING:
    from batchq.api_session import ApiCredentials

_ROLES = click.Choice([str(role) for role in AccessRole])
_VISIBILITY = click.option(
    "--visibility",
    type=click.Choice([str(one) for one in Visibility]),
    help="As given to `batchq api`.  [default: open; over the API, its own]",
)
_SUBJECT = click.argument("subject", metavar="user:NAME|group:NAME|serviceaccount:NAMESPACE:NAME")
_NAMESPACE = click.option(
    "-n", "--namespace", default=EVERYWHERE, help="The namespace.  [default: all of them]"
)


def delegate_of(shared: Globals) -> Delegate:
    """Return a connection to the Redis server itself, where no API is chosen."""
    return Delegate(shared.redis_url)


@click.group(
    epilog=examples(
        "batchq access grant user:alice submitter -n ml",
        "batchq access why alice cancel groups -n ml --owner bob",
        "batchq access audit",
    )
)
def access() -> None:
    """Give roles to users of the HTTP API, and explain them.

    Users and groups of users have roles in a namespace (viewer, submitter, admin) or in the whole
    cluster (operator, auditor). Service accounts, for programs such as CI, have roles in their own
    namespace. docs/http-api.md has the table of rights.

    The commands use the API if BATCHQ_SERVER names one, or you have logged in to it. In an
    emergency they use the Redis server itself, named by --redis-url, with a user of its role `api`.
    """


@access.command(
    epilog=examples(
        "batchq access grant user:alice submitter -n ml",
        "batchq access grant group:unix:gpu viewer",
        "batchq access grant serviceaccount:ml:ci submitter -n ml",
    )
)
@_SUBJECT
@click.argument("role", type=_ROLES)
@_NAMESPACE
@pass_globals
def grant(shared: Globals, subject: str, role: str, namespace: str) -> None:
    """Give a role, from the next request on.

    Groups are group:unix:NAME, group:oidc:NAME, or group:local:NAME of `batchq access group`.
    """
    binding = parse_binding(subject, role, namespace)
    if (api := shared.api()) is not None:
        asked_of_api(api, "POST", "/v1/bindings", to_builtins(binding))
        echo(str(binding))
        return
    with delegate_of(shared) as delegate:
        is_new = delegate.access.grant(binding, Actor(user=delegate.user, via="redis"))
    echo(f"{binding}{'' if is_new else ', as before'}")


@access.command(name="revoke", epilog=examples("batchq access revoke user:alice submitter -n ml"))
@_SUBJECT
@click.argument("role", type=_ROLES)
@_NAMESPACE
@pass_globals
def withdraw(shared: Globals, subject: str, role: str, namespace: str) -> None:
    """Take a role away, from the next request on; open streams lose what it showed them."""
    binding = parse_binding(subject, role, namespace)
    if (api := shared.api()) is not None:
        asked_of_api(api, "DELETE", f"/v1/bindings?{urlencode(to_builtins(binding))}")
    else:
        with delegate_of(shared) as delegate:
            delegate.access.withdraw(binding, Actor(user=delegate.user, via="redis"))
    echo(f"no longer: {binding}")


@access.command(
    epilog=examples("batchq access accounts", "batchq access accounts -n ml -o json"),
)
@click.option("-n", "--namespace", default="", help="Only those of this namespace.")
@output_option("table", "json")
@pass_globals
def accounts(shared: Globals, namespace: str, output: Output) -> None:
    """List the service accounts that have roles or valid tokens.

    Over the API, a namespace must be named: its admins may list its accounts.
    """
    api = shared.api()
    if api is not None:
        if not namespace:
            raise UsageError(
                "over the API, the service accounts of one namespace are listed", hint="add -n"
            )
        path = f"/v1/namespaces/{quote(namespace, safe='')}/service-accounts"
        rows = asked_of_api(api, "GET", path)["items"]
    else:
        with delegate_of(shared) as delegate:
            found = service_accounts(delegate.access.state(), delegate.now_ms())
        rows = [
            account_row(one) for one in found if namespace in ("", namespace_of_account(one.name))
        ]
    columns: Columns[dict[str, Any]] = {
        "ACCOUNT": lambda row: row["name"],
        "ROLES": lambda row: ", ".join(one["role"] for one in row["roles"]) or "none",
        "TOKENS": lambda row: ", ".join(one["id"] for one in row["tokens"]) or "none",
        "EXPIRES": lambda row: max((one["expiresAt"] for one in row["tokens"]), default=""),
    }
    form: ListForm[dict[str, Any]] = ListForm(
        lambda some: tabled(some, columns), "there are no service accounts", row=lambda row: row
    )
    show_list(output, rows, form)


@access.command(name="delete-account", epilog=examples("batchq access delete-account ml:ci"))
@click.argument("account", metavar="NAMESPACE:NAME")
@pass_globals
def delete_account(shared: Globals, account: str) -> None:
    """Revoke all tokens of a service account, and take its roles away.

    Its tokens are refused at once, and its open streams end within a second. Its groups go on.
    """
    namespace, name = check_account(account), account.partition(":")[2]
    if (api := shared.api()) is not None:
        row = asked_of_api(api, "DELETE", f"/v1/namespaces/{namespace}/service-accounts/{name}")
    else:
        with delegate_of(shared) as delegate:
            actor = Actor(user=delegate.user, via="redis")
            row = account_row(delegate.access.delete_account(account, actor))
    had = f"{counted(len(row['tokens']), 'token')} and {counted(len(row['roles']), 'role')}"
    echo(f"service account {account} deleted, which had {had}")


def asked_of_api(
    api: ApiCredentials, method: str, path: str, body: object = None
) -> dict[str, Any]:
    """Return the answer of the HTTP API to a request."""
    from batchq.api_session import ApiSession

    with ApiSession(api) as session:
        answer: dict[str, Any] = session.request(method, path, body)
    return answer


@access.command(name="list", epilog=examples("batchq access list", "batchq access list -o json"))
@output_option("table", "json")
@pass_globals
def list_bindings(shared: Globals, output: Output) -> None:
    """List the roles that were given, as far as you may see them."""
    if (api := shared.api()) is not None:
        empty = "you see no role that has been given"
        rows = asked_of_api(api, "GET", "/v1/bindings")["items"]
    else:
        empty = "no role has been given"
        with delegate_of(shared) as delegate:
            state = delegate.access.state()
        rows = [binding_row(record) for _, record in sorted(state.bindings.items())]
    columns: Columns[dict[str, Any]] = {
        "SUBJECT": itemgetter("subject"),
        "ROLE": itemgetter("role"),
        "NAMESPACE": itemgetter("namespace"),
        "BY": itemgetter("madeBy"),
        "SINCE": itemgetter("madeAt"),
    }
    form: ListForm[dict[str, Any]] = ListForm(
        lambda some: tabled(some, columns), empty, row=lambda row: row
    )
    show_list(output, rows, form)


@access.command(name="matrix", epilog=examples("batchq access matrix"))
@_VISIBILITY
@output_option("table", "json")
@pass_globals
def matrix_(shared: Globals, visibility: str | None, output: Output) -> None:
    """Print what each role permits; needs no server.

    all: in every namespace. yes: where the role is given. own: one's own groups or tokens there.
    """
    columns: Columns[MatrixRow] = {
        "VERB": lambda row: str(row.verb),
        "KIND": lambda row: str(row.kind),
        "TIER": lambda row: str(row.tier or ""),
        **{role.upper(): partial(_cell, role) for role in AccessRole},
    }
    form: ListForm[MatrixRow] = ListForm(
        lambda some: tabled(some, columns),
        row=lambda row: {
            "verb": str(row.verb),
            "kind": str(row.kind),
            "tier": None if row.tier is None else str(row.tier),
            **{str(role): cell for role, cell in row.cells.items()},
        },
    )
    show_list(output, matrix(Visibility(visibility or Visibility.OPEN)), form)


def _cell(role: AccessRole, row: MatrixRow) -> str:
    return row.cells[role]


@access.command(
    epilog=examples(
        "batchq access why alice cancel groups -n ml --owner bob",
        "batchq access why alice read groups -n ml --tier output --group unix:gpu",
    )
)
@click.argument("user")
@click.argument("verb", type=click.Choice([str(verb) for verb in Verb]))
@click.argument("kind", type=click.Choice([str(kind) for kind in TargetKind]))
@click.option("-n", "--namespace", default="", help="The namespace of the target.")
@click.option("--owner", default="", help="The owner of the target.")
@click.option(
    "--tier",
    type=click.Choice([str(tier) for tier in Tier]),
    default=str(Tier.FACTS),
    show_default=True,
    help="How much of a group is read.",
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    help="A group of Unix or of an identity provider, as in unix:gpu; repeatable.",
)
@_VISIBILITY
@output_option("text", "json")
@pass_globals
def why(
    shared: Globals,
    user: str,
    verb: str,
    kind: str,
    namespace: str,
    owner: str,
    tier: str,
    groups: tuple[str, ...],
    visibility: str | None,
    output: Output,
) -> int:
    """Say whether USER may do something, and which role allows it or is missing (exit code 12).

    Over the API, operators ask about all users, others about themselves.
    """
    doors = _of_doors(groups)
    if (api := shared.api()) is not None:
        if visibility is not None:
            raise UsageError(
                "--visibility: the API decides with its own", hint="leave the option out"
            )
        query = {"user": user, "verb": verb, "kind": kind, "namespace": namespace}
        query |= {"owner": owner, "tier": tier, "groups": ",".join(doors)}
        path = f"/v1/rights?{urlencode(query)}"
        decision = convert(asked_of_api(api, "GET", path), AccessDecision)
    else:
        with delegate_of(shared) as delegate:
            state = delegate.access.state()
        decision = decide(
            in_local_groups(Identity(user=user, via="token", groups=doors), state.memberships),
            sorted(one.binding for one in state.bindings.values()),
            Verb(verb),
            Target(kind=TargetKind(kind), namespace=namespace, owner=owner),
            tier=Tier(tier),
            visibility=Visibility(visibility or Visibility.OPEN),
        )
    text = f"{'yes' if decision.allowed else 'no'}: {decision.because}"
    output.page(decision, lambda: echo(text))
    return 0 if decision.allowed else 12


def _of_doors(groups: tuple[str, ...]) -> tuple[str, ...]:
    """Return the groups that a user would have by its door. Raises UsageError for local ones."""
    for one in groups:
        if one.startswith(OF_LOCAL):
            raise UsageError(
                f"--group {one[:80]}: the local groups of a user are known",
                hint="leave it out, or see `batchq access group list`",
            )
    return groups


@access.command(epilog=examples("batchq access audit", "batchq access audit --most 1000 -o json"))
@click.option(
    "--most", type=WholeNumber(1, 100_000), default=100, show_default=True, help="How many."
)
@output_option("table", "json")
@pass_globals
def audit(shared: Globals, most: int, output: Output) -> int:
    """Print the latest audit records, oldest first, and check their chain (exit code 1 if broken).

    The trail records changes of tokens and roles, uses of rights over groups of others, and refused
    requests. The API returns at most the latest 1000 records.
    """
    if (api := shared.api()) is not None:
        rows = asked_of_api(api, "GET", f"/v1/audit?limit={most}")["items"]
    else:
        with delegate_of(shared) as delegate:
            rows = [audit_row(entry) for entry in delegate.access.audit(most)]
    columns: Columns[dict[str, Any]] = {
        "AT": itemgetter("at"),
        "USER": lambda row: f"{row['user']} (by {row['by']})" if row.get("by") else row["user"],
        "VIA": itemgetter("via"),
        "OUTCOME": lambda row: f"{row['outcome']}{'' if row['isChained'] else ' (not chained)'}",
        "WHAT": lambda row: f"{row['verb']} {row['kind']} {row['name']}",
        "BECAUSE": lambda row: "; ".join(filter(None, (row["because"], row.get("reason")))),
    }
    form: ListForm[dict[str, Any]] = ListForm(
        lambda some: tabled(some, columns), "nothing has been recorded", row=lambda row: row
    )
    show_list(output, rows, form)
    return 0 if all(row["isChained"] for row in rows) else 1


@click.group(
    epilog=examples(
        "batchq token create alice --note 'laptop'",
        "batchq token invite bob --role submitter -n ml",
        "batchq token list",
        "batchq token rotate",
        "batchq token revoke b3nq7zk2xw",
    )
)
def token() -> None:
    """Create, list, rotate and revoke tokens of the HTTP API.

    The commands use the API if BATCHQ_SERVER names one, or you have logged in to it. In an
    emergency they use the Redis server itself, named by --redis-url, with a user of its role `api`.
    """


@token.command(
    epilog=examples(
        "batchq token create alice --note 'laptop'",
        "batchq token create ml:ci --days 365 --verb read --verb create",
    )
)
@click.argument("user")
@click.option(
    "--days",
    type=WholeNumber(1, MOST_DAYS),
    default=USUAL_DAYS,
    show_default=True,
    help="How long it lasts.",
)
@click.option(
    "--verb",
    "verbs",
    multiple=True,
    type=click.Choice([str(verb) for verb in Verb]),
    help="Only for this; repeatable.  [default: all]",
)
@click.option(
    "--namespace", "namespaces", multiple=True, help="Only there; repeatable.  [default: all]"
)
@click.option(
    "--rotate-days",
    type=WholeNumber(0, MOST_LINE_DAYS),
    default=USUAL_LINE_DAYS,
    show_default=True,
    help="How long tokens that replace it may last in all; above a year only over Redis.",
)
@click.option("--note", default="", help="What it is for.")
@output_option("text", "json")
@pass_globals
def create(
    shared: Globals,
    user: str,
    days: int,
    rotate_days: int,
    verbs: tuple[str, ...],
    namespaces: tuple[str, ...],
    note: str,
    output: Output,
) -> None:
    """Create a token for USER and print it, once.

    Over the API, USER is yourself, on its socket or by ssh, or a service account NAMESPACE:NAME, if
    you are an admin of its namespace; others are invited: `batchq token invite`. The token permits
    what USER may do at each moment, narrowed by --verb and --namespace. USER needs a role: see
    `batchq access grant`.
    """
    home = check_account(user) if ":" in user else ""
    if (api := shared.api()) is not None:
        if home:
            path = f"/v1/namespaces/{home}/service-accounts/{user.partition(':')[2]}/tokens"
        else:
            path = _own_tokens(api, user)
        request: dict[str, object] = {"note": note, "days": days, "rotateDays": rotate_days}
        request |= {"verbs": verbs, "namespaces": namespaces}
        row = asked_of_api(api, "POST", path, request)
    else:
        scope = Scope(verbs=tuple(Verb(verb) for verb in verbs), namespaces=namespaces)
        with delegate_of(shared) as delegate:
            actor = Actor(user=delegate.user, via="redis")
            made = delegate.access.create_token(
                user, actor, days=days, rotate_days=rotate_days, scope=scope, note=note
            )
        row = {"token": made.text, **token_row(made.record)}
    output.page(row, lambda: echo(row["token"]))
    if output.for_people:
        echo(
            f"Token {row['id']} of {title_of(user)} lasts until {row['expiresAt']}; it is not shown"
            " again.",
            err=True,
        )


def _own_tokens(api: ApiCredentials, user: str) -> str:
    """Return where the API makes tokens of its caller. Raises UsageError for another user."""
    me = asked_of_api(api, "GET", "/v1/me")["user"]
    if user != me:
        raise UsageError(
            f"over the API, you cannot create a token of another user: you are {me}",
            hint=f"`batchq token invite {user}` lets user {user} log in",
        )
    return "/v1/tokens"


@token.command(
    epilog=examples(
        "batchq token invite bob --role submitter -n ml",
        "batchq token invite bob --for 3d --note laptop",
    )
)
@click.argument("user")
@click.option("--for", "lasts", type=DURATION, default="24h", show_default=True, help="How long.")
@click.option(
    "--role",
    type=click.Choice([str(role) for role in AccessRole]),
    help="Give USER this role, too.",
)
@click.option("-n", "--namespace", default="", help="The namespace in which the role is given.")
@click.option("--everywhere", is_flag=True, help="Give the role in all namespaces.")
@click.option("--note", default="", help="What the token is for.")
@output_option("text", "json")
@pass_globals
def invite(
    shared: Globals,
    user: str,
    lasts: str,
    role: str | None,
    namespace: str,
    everywhere: bool,
    note: str,
    output: Output,
) -> None:
    """Create an invitation for USER and print it, once.

    USER gives it to `batchq login URL` when that asks for a token, and gets a token of 90 days in
    exchange. It is valid once, so a copy that another user makes of it is noticed.

    The roles viewer, submitter and admin need a namespace, or --everywhere; operators and auditors
    have theirs in the whole cluster.
    """
    place = _place_of(role, namespace, everywhere=everywhere)
    binding = None if role is None else parse_binding(f"user:{user}", role, place)
    api = shared.api()
    if api is not None:
        row = _invited_over_api(api, user, lasts, binding, note)
    else:
        with delegate_of(shared) as delegate:
            actor = Actor(user=delegate.user, via="redis")
            made = delegate.access.invite(user, actor, lasts_ms=parse_duration(lasts), note=note)
            if binding is not None:
                delegate.access.grant(binding, actor)
        row = {**token_row(made.record), "invitation": made.text}
    output.page(row, lambda: echo(str(row["invitation"])))
    if output.for_people:
        given = "" if binding is None else f"{binding}. "
        echo(f"{given}User {user} may log in with it once, until {row['expiresAt']}.", err=True)


def _place_of(role: str | None, namespace: str, *, everywhere: bool) -> str:
    """Return where a role is to be given. Raises UsageError if the options do not say so."""
    if role is None and (namespace or everywhere):
        option = "-n" if namespace else "--everywhere"
        raise UsageError(
            f"{option} says where --role is given", hint="as in --role submitter -n ml"
        )
    if namespace and everywhere:
        raise UsageError("-n and --everywhere exclude each other", hint="keep one")
    if role in OF_NAMESPACES and not (namespace or everywhere):
        raise UsageError(
            f"the role {role} is given in a namespace, and none is named",
            hint=f"as in --role {role} -n ml, or --everywhere for all namespaces",
        )
    return namespace or EVERYWHERE


def _invited_over_api(
    api: ApiCredentials, user: str, lasts: str, binding: Binding | None, note: str
) -> dict[str, object]:
    """Create an invitation over the HTTP API, and return it as a row."""
    request: dict[str, object] = {"lasts": lasts, "note": note}
    if binding is not None:
        request |= {"role": str(binding.role), "namespace": binding.namespace}
    return asked_of_api(api, "POST", f"/v1/users/{quote(user, safe='')}/invitations", request)


@token.command(name="list", epilog=examples("batchq token list", "batchq token list -o json"))
@click.option("--user", default="", help="Only those of this user.")
@output_option("table", "json")
@pass_globals
def list_tokens(shared: Globals, user: str, output: Output) -> None:
    """List tokens: who has them, since when, until when, and when they were last used.

    Over the API, these are your own ones; operators see all.
    """
    if (api := shared.api()) is not None:
        rows = asked_of_api(api, "GET", "/v1/tokens")["items"]
    else:
        with delegate_of(shared) as delegate:
            found = delegate.access.state().tokens.values()
            used, now_ms = delegate.access.last_uses(), delegate.now_ms()
        rows = [
            listed_token_row(one, used.get(one.id), now_ms)
            for one in sorted(found, key=lambda one: (one.made_at, one.id))
        ]
    columns: Columns[dict[str, Any]] = {
        "ID": itemgetter("id"),
        "USER": itemgetter("owner"),
        "STATE": lambda row: row.get("state", ""),
        "EXPIRES": itemgetter("expiresAt"),
        "ROTATED UNTIL": lambda row: row.get("rotatedUntil", ""),
        "USED": lambda row: row["usedAt"] or "",
        "SCOPE": lambda row: ", ".join((*row["verbs"], *row["namespaces"])),
        "NOTE": itemgetter("note"),
    }
    form: ListForm[dict[str, Any]] = ListForm(
        lambda some: tabled(some, columns), "there are no tokens", row=lambda row: row
    )
    show_list(output, [row for row in rows if user in ("", row["owner"])], form)


@token.command(
    epilog=examples("batchq token rotate", "batchq token rotate b3nq7zk2xw --overlap 2h > ci.token")
)
@click.argument("token", required=False, metavar="[ID]")
@click.option(
    "--overlap",
    type=DURATION,
    default="24h",
    show_default=True,
    help="How long the former token stays valid.",
)
@output_option("text", "json")
@pass_globals
def rotate(shared: Globals, token: str | None, overlap: str, output: Output) -> None:
    """Replace a token by a new one of the same user, scope and length.

    Without ID, this is the token with which you use the API. The new one takes the place of the
    token that `batchq login` has kept; if you use another one, the new one is printed. With ID, the
    new token is printed. ID may be your own token if you use the API on its socket, that of a
    service account if you are an admin of its namespace, and that of any user if the command uses
    the Redis server itself.

    The last of the tokens that replace each other ends a year after the first was made, or as its
    --rotate-days says. A token can be replaced once; `batchq token revoke` of it revokes its
    successors, too.
    """
    if token is None:
        _rotate_own(shared, overlap, output)
        return
    if (api := shared.api()) is not None:
        path = f"/v1/tokens/{quote(token, safe='')}/rotations"
        row = asked_of_api(api, "POST", path, {"overlap": overlap})
    else:
        with delegate_of(shared) as delegate:
            actor = Actor(user=delegate.user, via="redis")
            made = delegate.access.rotate(token, actor, overlap_ms=parse_duration(overlap))
        row = {"token": made.text, **token_row(made.record)}
    output.page(row, lambda: echo(row["token"]))
    if output.for_people:
        echo(_in_place_of(token, row, overlap), err=True)


def _rotate_own(shared: Globals, overlap: str, output: Output) -> None:
    from batchq.api_session import end_to_warn_of, read_credentials, write_credentials
    from batchq.paths import find_home

    api = shared.api()
    if api is None or not api.token:
        raise UsageError(
            "there is no token with which you use the API", hint="name the ID of a token"
        )
    row = asked_of_api(api, "POST", "/v1/rotations", {"overlap": overlap})
    home = find_home()
    is_kept = home.credentials.exists() and read_credentials(home).token == api.token
    if is_kept:
        new = api._replace(token=row["token"], expires_at=end_to_warn_of(row))
        write_credentials(home, new)
    output.page(row, lambda: None if is_kept else echo(row["token"]))
    if output.for_people:
        echo(_in_place_of(api.token.split("_")[1], row, overlap), err=True)


def _in_place_of(former: str, row: dict[str, Any], overlap: str) -> str:
    # An API of an earlier version says nothing of it.
    until = row.get("rotatedUntil")
    is_last = until is not None and row["expiresAt"] >= until
    rest = " It is the last of its line: ask for another one before that." if is_last else ""
    if until is not None and not is_last:
        rest = f" It can be rotated until {until}."
    return (
        f"Token {row['id']} of {title_of(row['owner'])} lasts until {row['expiresAt']}; token"
        f" {former} ends after {overlap}.{rest}"
    )


@token.command(epilog=examples("batchq token revoke b3nq7zk2xw"))
@click.argument("tokens", nargs=-1, required=True, metavar="ID…")
@pass_globals
def revoke(shared: Globals, tokens: tuple[str, ...]) -> None:
    """Revoke tokens, and those that they were rotated to: they are refused at once, and their open
    streams end within a second.
    """
    if (api := shared.api()) is not None:
        for one in tokens:
            row = asked_of_api(api, "DELETE", f"/v1/tokens/{quote(one, safe='')}")
            echo(_revoked(one, row["owner"]))
        return
    with delegate_of(shared) as delegate:
        actor = Actor(user=delegate.user, via="redis")
        for one in tokens:
            echo(_revoked(one, delegate.access.revoke_token(one, actor).owner))


def _revoked(token: str, owner: str) -> str:
    return f"token {token} of {title_of(owner)} revoked"


_LONGEST_PASSWORD_BYTES = 4096


@click.command(
    epilog=examples(
        "batchq acl submitter --password-file submitter.password",
        "batchq acl worker --node gpu-01 --password-file gpu-01.password",
        "batchq acl readonly --user readonly-dashboard -o json",
    )
)
@click.argument("role")
@click.option(
    "--node", "nodes", multiple=True, help="For a worker: a node that it serves; repeatable."
)
@click.option("--user", default="", help="The user's name.  [default: the role, and the node]")
@click.option(
    "--password-file",
    type=click.Path(allow_dash=True, path_type=Path),
    help="A file with the password in one line; - is stdin. Only its SHA-256 is printed.",
)
@click.option("--hash", "hash_", default="", help="The SHA-256 of the password, instead of a file.")
@output_option("text", "json")
def acl(
    role: str,
    nodes: tuple[str, ...],
    user: str,
    password_file: Path | None,
    hash_: str,
    output: Output,
) -> None:
    """Print a user's line for the server's ACL file.

    ROLE is scheduler, worker, submitter, controller, operator, api, readonly or registrar. Redis
    7.2 or later and Valkey accept such lines in their `aclfile`. Without a password the user is
    off. A user's name should begin with its role, so that `batchq doctor` recognises it.
    conf/acl/README.md describes the steps, docs/security.md the rights of each role. The command
    needs no server.
    """
    from batchq.client.connection import access, hash_of, role_named

    if password_file is not None and hash_:
        raise click.UsageError("--password-file and --hash exclude each other")
    if password_file is not None:
        hash_ = hash_of(_password_in(password_file))
    try:
        found = access(role_named(role), nodes=nodes, user=user, hash_=hash_.lower())
    except InvalidInput as error:
        raise UsageError(error.message, hint=error.hint) from None
    value = {
        "user": found.user,
        "role": found.role.name,
        "purpose": found.role.purpose,
        "nodes": found.nodes,
        "on": bool(found.hash),
        "rules": found.rules,
        "line": found.line,
    }
    output.page(value, lambda: echo(found.line))


def _password_in(path: Path) -> bytes:
    try:
        with click.open_file(str(path), "rb") as file:
            read: bytes = file.read(_LONGEST_PASSWORD_BYTES)
    except OSError as error:
        raise InvalidInput(
            f"the password file {path} cannot be read: {error.strerror}",
            hint=f"`openssl rand -hex 32 > {path}` creates one" if not path.exists() else "",
        ) from None
    return read.rstrip(b"\r\n")
