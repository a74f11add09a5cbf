"""`batchq acl`: a user of the server who may do just what a role of batchq needs."""

from __future__ import annotations

from pathlib import Path

import click

from batchq.cli.output.options import examples, output_option
from batchq.cli.output.render import show_data
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
    "--node", "nodes", multiple=True, help="For a worker: a node that it serves; may be repeated."
)
@click.option("--user", default="", help="The user's name; without it, the role's, and the node's.")
@click.option(
    "--password-file",
    type=click.Path(allow_dash=True, path_type=Path),
    help="Where the password stands, one line; - is stdin. It is printed as its SHA-256 only.",
)
@click.option("--hash", "hash_", default="", help="The SHA-256 of the password, instead of a file.")
@output_option("text", "json")
def acl(
    role: str,
    nodes: tuple[str, ...],
    user: str,
    password_file: Path | None,
    hash_: str,
    output: str,
) -> None:
    """Print the line of a user for the server's ACL file.

    ROLE is scheduler, worker, submitter, controller, operator or readonly. Redis 7.2 or later, or
    Valkey, takes such lines in its `aclfile`. Without a password the user is off. A user's name
    should begin with its role, by which `batchq doctor` knows it. conf/acl/README.md has the steps,
    docs/security.md what each role can do. No server is asked.
    """
    from batchq.client.connection import access, hash_of, role_named

    if password_file is not None and hash_:
        raise click.UsageError("--password-file and --hash are two ways to say one thing")
    if password_file is not None:
        hash_ = hash_of(_password_in(password_file))
    found = access(role_named(role), nodes=nodes, user=user, hash_=hash_.lower())
    if output == "json":
        show_data(
            {
                "user": found.user,
                "role": found.role.name,
                "purpose": found.role.purpose,
                "nodes": list(found.nodes),
                "on": bool(found.hash),
                "rules": list(found.rules),
                "line": found.line,
            },
            output,
        )
        return
    echo(found.line)


def _password_in(path: Path) -> bytes:
    try:
        with click.open_file(str(path), "rb") as file:
            read: bytes = file.read(_LONGEST_PASSWORD_BYTES)
    except OSError as error:
        raise InvalidInput(f"the file of the password, {path}: {error.strerror}") from None
    return read.rstrip(b"\r\n")
