"""`batchq acl`: users of the Redis server with exactly the rights of a role."""

from __future__ import annotations

from pathlib import Path

import click

from batchq.cli.output.forms import Output
from batchq.cli.output.options import examples, output_option
from batchq.cli.output.terminal import echo
from batchq.errors import InvalidInput

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

    ROLE is scheduler, worker, submitter, controller, operator, api or readonly. Redis 7.2 or later
    and Valkey accept such lines in their `aclfile`. Without a password the user is off. A user's
    name should begin with its role, so that `batchq doctor` recognises it. conf/acl/README.md
    describes the steps, docs/security.md the rights of each role. The command needs no server.
    """
    from batchq.client.connection import access, hash_of, role_named

    if password_file is not None and hash_:
        raise click.UsageError("--password-file and --hash exclude each other")
    if password_file is not None:
        hash_ = hash_of(_password_in(password_file))
    found = access(role_named(role), nodes=nodes, user=user, hash_=hash_.lower())
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
        raise InvalidInput(f"the password file {path}: {error.strerror}") from None
    return read.rstrip(b"\r\n")
