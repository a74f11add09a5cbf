"""The endpoints with which agents join: a join token, and the user of the server for one node.

The token is used up before the registrar makes the user, and is good for the same password after
that: an agent that has lost the answer asks again, and another holder of the token
cannot replace the user.
"""

from __future__ import annotations

from http import HTTPStatus

from msgspec import Struct

from batchq.api.notation import subdomain_problem
from batchq.api.times import format_duration, parse_duration
from batchq.client.access_control import USUAL_JOIN_MS, token_row
from batchq.client.node_users import NodeRegistrar
from batchq.errors import Conflict, NotFound
from batchq.http.calls import ApiAnswer, ApiCall
from batchq.http.problems import bad_request, forbidden


class NodeInvitation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request for a join token, which `lasts` a while."""

    lasts: str = format_duration(USUAL_JOIN_MS)


class NodePassword(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of an agent that joins: the SHA-256 of its password, in hexadecimal digits."""

    digest: str


def invite_node(call: ApiCall) -> ApiAnswer:
    """Make a join token for the agent of a node, whose text is in this answer only."""
    decision = call.require("")
    _registrar(call)
    wanted = call.body_as(NodeInvitation)
    try:
        lasts_ms = parse_duration(wanted.lasts)
    except ValueError as error:
        raise bad_request(f"lasts: {error}") from None
    created = call.delegate.access.invite_node(
        call.path["name"], call.actor, lasts_ms=lasts_ms, because=decision.because
    )
    call.context.book.renew(call.delegate.access)
    document = {**token_row(created.record), "join": created.text}
    return ApiAnswer(document=document, status=HTTPStatus.CREATED)


def join_node(call: ApiCall) -> ApiAnswer:
    """Make the user of a node, and return its name and the server's URL."""
    registrar = _registrar(call)
    node, access, book = call.path["name"], call.delegate.access, call.context.book
    book.renew(access)
    record = book.state.tokens.get(call.identity.token)
    if record is None or record.node != node:
        place = "" if record is None else f" is for node {record.node}, and"
        raise forbidden(
            f"join token {call.identity.token}{place} lets nobody join as node {node[:80]}",
            hint="`batchq nodes invite NODE` makes one for another node",
        )
    digest = call.body_as(NodePassword).digest
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise bad_request("digest: expected 64 hexadecimal digits of a SHA-256")
    try:
        access.join(record, digest, call.actor)
    except Conflict as error:
        raise forbidden(error.message, hint=error.hint) from None
    made = registrar.make_user(node, digest)
    if not access.has_joined(record.id, digest):
        # The node was revoked after its token was used up, and maybe before there was a user.
        registrar.remove_user(node)
        raise forbidden(f"node {node} was revoked meanwhile")
    return ApiAnswer(document={"node": node, "user": made.user, "url": made.url})


def revoke_node(call: ApiCall) -> ApiAnswer:
    """Remove the user of a node, whose agent can do nothing more, and its join tokens."""
    decision = call.require("")
    registrar, node = _registrar(call), call.path["name"]
    if problem := subdomain_problem(node):
        raise bad_request(f"node {node[:80]!r}: {problem}")
    tokens = call.delegate.access.revoke_node(node, call.actor, because=decision.because)
    call.context.book.renew(call.delegate.access)
    had_user = registrar.remove_user(node)
    if not had_user and not tokens:
        raise NotFound(f"node {node} has no user of the server, and no join token")
    return ApiAnswer(document={"node": node, "user": had_user, "tokens": tokens})


def _registrar(call: ApiCall) -> NodeRegistrar:
    if call.context.registrar is None:
        raise NotFound(
            "this API makes no users of nodes, because it has no registrar",
            hint="start `batchq registrar`, and `batchq api` with its socket as --registrar",
        )
    return call.context.registrar
