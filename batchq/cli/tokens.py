"""`batchq token`: create, list and revoke tokens of the HTTP API."""

from __future__ import annotations

import click

from batchq.api.access import Scope, Verb
from batchq.api.times import format_instant
from batchq.cli.output.forms import Columns, ListForm, Output, show_list, tabled
from batchq.cli.output.options import Globals, examples, output_option, pass_globals
from batchq.cli.output.terminal import echo
from batchq.client.access_control import MOST_DAYS, USUAL_DAYS, Actor, TokenRecord, token_row


@click.group(
    epilog=examples(
        "batchq token create alice --note 'laptop'",
        "batchq token list",
        "batchq token revoke b3nq7zk2xw",
    )
)
def token() -> None:
    """Create, list and revoke tokens of the HTTP API.

    The commands use the Redis server itself, so they need a user of its role `api`, or one with all
    rights. Users who reach the API by its socket create their own tokens there: POST /v1/tokens.
    """


@token.command(
    epilog=examples(
        "batchq token create alice --note 'laptop'",
        "batchq token create ci --days 365 --verb read --verb create --namespace ml",
    )
)
@click.argument("user")
@click.option(
    "--days",
    type=click.IntRange(1, MOST_DAYS),
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
@click.option("--note", default="", help="What it is for.")
@output_option("text", "json")
@pass_globals
def create(
    shared: Globals,
    user: str,
    days: int,
    verbs: tuple[str, ...],
    namespaces: tuple[str, ...],
    note: str,
    output: Output,
) -> None:
    """Create a token for USER and print it, once.

    It permits what USER may do at each moment, narrowed by --verb and --namespace. USER needs a
    role: see `batchq access grant`.
    """
    from batchq.client.delegation import Delegate

    scope = Scope(verbs=tuple(Verb(verb) for verb in verbs), namespaces=namespaces)
    with Delegate(shared.redis_url) as delegate:
        actor = Actor(user=delegate.user, via="redis")
        made = delegate.access.create_token(user, actor, days=days, scope=scope, note=note)
    output.page({"token": made.text, **token_row(made.record)}, lambda: echo(made.text))
    if output.for_people:
        until = format_instant(made.record.expires_at)
        echo(
            f"Token {made.record.id} of user {user} lasts until {until}; it is not shown again.",
            err=True,
        )


@token.command(name="list", epilog=examples("batchq token list", "batchq token list -o json"))
@click.option("--user", default="", help="Only those of this user.")
@output_option("table", "json")
@pass_globals
def list_(shared: Globals, user: str, output: Output) -> None:
    """List tokens: who has them, since when, until when, and when they were last used."""
    from batchq.client.delegation import Delegate

    with Delegate(shared.redis_url) as delegate:
        found = delegate.access.state().tokens.values()
        used = delegate.access.last_uses()
        now_ms = delegate.now_ms()
    wanted = sorted(
        (one for one in found if user in ("", one.owner)), key=lambda one: (one.made_at, one.id)
    )
    columns: Columns[TokenRecord] = {
        "ID": lambda one: one.id,
        "USER": lambda one: one.owner,
        "STATE": lambda one: _state(one, now_ms),
        "EXPIRES": lambda one: format_instant(one.expires_at),
        "USED": lambda one: _instant(used.get(one.id)) or "",
        "SCOPE": lambda one: ", ".join((*one.scope.verbs, *one.scope.namespaces)),
        "NOTE": lambda one: one.note,
    }
    form: ListForm[TokenRecord] = ListForm(
        lambda some: tabled(some, columns),
        "there are no tokens",
        row=lambda one: token_row(one) | {"usedAt": _instant(used.get(one.id))},
    )
    show_list(output, wanted, form)


@token.command(epilog=examples("batchq token revoke b3nq7zk2xw"))
@click.argument("tokens", nargs=-1, required=True, metavar="ID…")
@pass_globals
def revoke(shared: Globals, tokens: tuple[str, ...]) -> None:
    """Revoke tokens: they are refused at once, and their open streams end within a second."""
    from batchq.client.delegation import Delegate

    with Delegate(shared.redis_url) as delegate:
        actor = Actor(user=delegate.user, via="redis")
        for one in tokens:
            record = delegate.access.revoke_token(one, actor)
            echo(f"token {one} of user {record.owner} revoked")


def _instant(at: int | None) -> str | None:
    return None if at is None else format_instant(at)


def _state(record: TokenRecord, now_ms: int) -> str:
    if record.revoked_at is not None:
        return "revoked"
    return "expired" if record.expires_at <= now_ms else "valid"
