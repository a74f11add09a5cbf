"""Every route of the API: its right, its parameters, its endpoint; and OpenAPI 3.1 from the same.

A route that is not in this table does not exist. A row without a verb is for every known caller
(`/v1/me`), or, if it is open, for unknown ones, too (`/livez`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from batchq import __version__
from batchq.api.access import TargetKind, Tier, Verb
from batchq.http.access_endpoints import (
    MOST_AUDITED,
    USUALLY_AUDITED,
    BindingRequest,
    TokenRequest,
    create_token,
    grant,
    list_bindings,
    list_tokens,
    read_audit,
    revoke_token,
    show_me,
    withdraw,
)
from batchq.http.calls import ApiAnswer, ApiCall, ApiRoute, QueryParameter
from batchq.http.group_endpoints import (
    MOST_LINES,
    MOST_LISTED,
    USUALLY_LISTED,
    cancel_group,
    get_group,
    group_logs,
    list_groups,
    submit_group,
    why_group,
)
from batchq.http.problems import PROBLEM_JSON, ProblemDocument


def _live(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(document="ok")


def _ready(call: ApiCall) -> ApiAnswer:
    # The server's time is estimated between two answers; this asks.
    call.delegate.revision()
    return ApiAnswer(document="ok")


def _openapi(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(document=call.context.openapi())


_FILTERS = (
    QueryParameter(name="phase", about="Phases, separated by commas."),
    QueryParameter(name="queue", about="The name of a queue."),
    QueryParameter(name="owner", about="The user who submitted the group; `me` for the caller."),
    QueryParameter(name="reason", about="A reason why the group waits."),
    QueryParameter(name="label", about="Labels: `KEY=VALUE`, several separated by commas."),
    QueryParameter(name="q", about="A part of the group's name."),
    QueryParameter(
        name="limit",
        about=f"The most groups in the answer, {USUALLY_LISTED} by default.",
        type="integer",
        most=MOST_LISTED,
    ),
    QueryParameter(name="continue", about="The token of the page before."),
    QueryParameter(
        name="watch", about="Follow changes, as Server-Sent Events or NDJSON.", type="boolean"
    ),
    QueryParameter(
        name="since",
        about="With `watch`: only changes after this revision, without those that exist.",
        type="integer",
        most=2**53,
    ),
)

_GROUP = "/v1/namespaces/{namespace}/groups/{name}"

ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        method="GET", path="/livez", name="livez", is_open=True, is_immediate=True,
        endpoint=_live,
        about="Whether the API runs.",
    ),
    ApiRoute(
        method="GET", path="/readyz", name="readyz", is_open=True, endpoint=_ready,
        about="Whether the API reaches the server.",
    ),
    ApiRoute(
        method="GET", path="/v1/openapi.json", name="openapi", is_open=True,
        is_immediate=True, endpoint=_openapi,
        about="This document.",
    ),
    ApiRoute(
        method="GET", path="/v1/me", name="me", is_immediate=True, endpoint=show_me,
        about="Who the caller is, and which roles it has.",
    ),
    ApiRoute(
        method="GET", path="/v1/groups", name="listGroups", endpoint=list_groups,
        about="List pod groups by name, in pages; or follow their changes.",
        verb=Verb.READ,
        parameters=(QueryParameter(name="namespace", about="A namespace."), *_FILTERS),
        answer="PodGroupList",
    ),
    ApiRoute(
        method="GET", path="/v1/namespaces/{namespace}/groups", name="listGroupsOfNamespace",
        endpoint=list_groups, about="The same for one namespace.", verb=Verb.READ,
        parameters=_FILTERS, answer="PodGroupList",
    ),
    ApiRoute(
        method="POST", path="/v1/namespaces/{namespace}/groups", name="submitGroup",
        endpoint=submit_group, about="Submit a pod group. Repeating it changes nothing.",
        verb=Verb.CREATE, body="PodGroup", answer="PodGroup",
        parameters=(
            QueryParameter(name="dryRun", about="Check everything, write nothing.", type="boolean"),
        ),
    ),
    ApiRoute(
        method="GET", path=_GROUP, name="getGroup", endpoint=get_group, verb=Verb.READ,
        about="Return a pod group, as much of it as the caller may see.", answer="PodGroup",
    ),
    ApiRoute(
        method="POST", path=f"{_GROUP}/cancel", name="cancelGroup", endpoint=cancel_group,
        verb=Verb.CANCEL, about="End a pod group.", body="Reason", answer="PodGroup",
    ),
    ApiRoute(
        method="GET", path=f"{_GROUP}/why", name="explainGroup", endpoint=why_group,
        verb=Verb.READ, tier=Tier.SPEC, is_explanation=True, answer="Explanation",
        about="Explain why a pod group waits, as `batchq why -o json` does.",
    ),
    ApiRoute(
        method="GET", path=f"{_GROUP}/logs", name="readLogs", endpoint=group_logs,
        verb=Verb.READ, tier=Tier.OUTPUT, answer="Lines",
        about="Return the output of a group's pods as text, NDJSON or Server-Sent Events.",
        parameters=(
            QueryParameter(name="pod", about="One pod, by its name or by TASK-INDEX."),
            QueryParameter(name="stream", about="`stdout` or `stderr`; both by default."),
            QueryParameter(
                name="tail", about="Only the last lines of each pod.", type="integer",
                most=MOST_LINES,
            ),
            QueryParameter(name="follow", about="Go on until the group has ended.", type="boolean"),
        ),
    ),
    ApiRoute(
        method="GET", path="/v1/tokens", name="listTokens", endpoint=list_tokens,
        verb=Verb.READ, kind=TargetKind.TOKENS, about="List your tokens, or all as an operator.",
    ),
    ApiRoute(
        method="POST", path="/v1/tokens", name="createToken", endpoint=create_token,
        verb=Verb.CREATE, kind=TargetKind.TOKENS, body="TokenRequest",
        about="Create a token of your own. Its text is in this answer only.",
    ),
    ApiRoute(
        method="DELETE", path="/v1/tokens/{id}", name="revokeToken", endpoint=revoke_token,
        verb=Verb.DELETE, kind=TargetKind.TOKENS, about="Revoke a token.",
    ),
    ApiRoute(
        method="GET", path="/v1/bindings", name="listBindings", endpoint=list_bindings,
        verb=Verb.READ, kind=TargetKind.BINDINGS, about="List the roles that were given.",
    ),
    ApiRoute(
        method="POST", path="/v1/bindings", name="grant", endpoint=grant, body="BindingRequest",
        verb=Verb.CREATE, kind=TargetKind.BINDINGS, about="Give a role to a user or a group.",
    ),
    ApiRoute(
        method="DELETE", path="/v1/bindings", name="withdraw", endpoint=withdraw,
        verb=Verb.DELETE, kind=TargetKind.BINDINGS, about="Take a role away.",
        parameters=(
            QueryParameter(name="subject", about="`user:NAME` or `group:NAME`."),
            QueryParameter(name="role", about="The role."),
            QueryParameter(name="namespace", about="The namespace; all by default."),
        ),
    ),
    ApiRoute(
        method="GET", path="/v1/audit", name="readAudit", endpoint=read_audit,
        verb=Verb.READ, kind=TargetKind.AUDIT, about="Return the latest audit records.",
        parameters=(
            QueryParameter(
                name="limit", about=f"The most records, {USUALLY_AUDITED} by default.",
                type="integer", most=MOST_AUDITED,
            ),
        ),
    ),
)  # fmt: skip


# --- OpenAPI ----------------------------------------------------------------------------------

#: A manifest, as docs/submitting.md describes it; the server checks it field by field.
_MANIFEST = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata"],
    "properties": {
        "apiVersion": {"const": "batchq/v1"},
        "kind": {"const": "PodGroup"},
        "metadata": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string"},
                "namespace": {"type": "string"},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        },
        "spec": {"type": "object"},
        "status": {"type": "object"},
    },
    "additionalProperties": False,
}
_SCHEMAS: dict[str, Any] = {
    "PodGroup": _MANIFEST,
    "PodGroupList": {
        "type": "object",
        "properties": {
            "apiVersion": {"const": "batchq/v1"},
            "kind": {"const": "PodGroupList"},
            "revision": {"type": "integer"},
            "continue": {"type": "string"},
            "items": {"type": "array", "items": {"$ref": "#/components/schemas/PodGroup"}},
            "unreadable": {"type": "array", "items": {"type": "object"}},
        },
    },
    "Reason": {
        "type": "object",
        "properties": {"reason": {"type": "string"}},
        "additionalProperties": False,
    },
    "Explanation": {"type": "object"},
}
_STREAMED = {"PodGroupList": ("text/event-stream", "application/x-ndjson")}
_LINES = ("text/plain", "application/x-ndjson", "text/event-stream")


def openapi_document() -> dict[str, Any]:
    """Return the description of all routes, as OpenAPI 3.1."""
    _, components = msgspec.json.schema_components(
        [ProblemDocument, TokenRequest, BindingRequest], ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "batchq", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**_SCHEMAS, **components},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(route: ApiRoute) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.about,
        "parameters": [*_path_parameters(route), *(_parameter(one) for one in route.parameters)],
        "responses": _responses(route),
    }
    if route.is_open:
        operation["security"] = []
    if route.verb is not None:
        operation["x-batchq-right"] = right_of(route)
    if route.body:
        schema = {"$ref": f"#/components/schemas/{route.body}"}
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return operation


def right_of(route: ApiRoute) -> str:
    """Return the right that a route needs, in words: `read the output of groups`."""
    is_tiered = route.verb is Verb.READ and route.kind is TargetKind.GROUPS
    return f"{route.verb} the {route.tier} of groups" if is_tiered else f"{route.verb} {route.kind}"


def _path_parameters(route: ApiRoute) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in names
    ]


def _parameter(parameter: QueryParameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": parameter.type}
    if parameter.most is not None:
        schema |= {"minimum": 0, "maximum": parameter.most}
    return {
        "name": parameter.name,
        "in": "query",
        "description": parameter.about,
        "schema": schema,
    }


def _responses(route: ApiRoute) -> dict[str, Any]:
    if route.answer == "Lines":
        content = {form: {"schema": {"type": "string"}} for form in _LINES}
    else:
        reference = f"#/components/schemas/{route.answer}"
        schema = {"$ref": reference} if route.answer in _SCHEMAS else {}
        content = {"application/json": {"schema": schema}}
        content |= {
            form: {"schema": {"type": "string"}} for form in _STREAMED.get(route.answer, ())
        }
    problem = {"$ref": "#/components/schemas/ProblemDocument"}
    return {
        "200": {"description": "The answer.", "content": content},
        **(
            {"201": {"description": "It is new.", "content": content}}
            if route.verb is Verb.CREATE
            else {}
        ),
        "default": {"description": "A problem.", "content": {PROBLEM_JSON: {"schema": problem}}},
    }
