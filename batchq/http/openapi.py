"""The description of the API's routes as OpenAPI 3.1, made from the route table."""

from __future__ import annotations

from typing import Any

import msgspec

from batchq import __version__
from batchq.api.access import Verb
from batchq.http.access_endpoints import (
    BindingRequest,
    InvitationRequest,
    LoginRequest,
    MembersRequest,
    NodeInvitation,
    NodePassword,
    NodesInvitation,
    RotationRequest,
    TokenRequest,
    UserGroupRequest,
)
from batchq.http.calls import NDJSON, ApiRoute, QueryParameter
from batchq.http.group_endpoints import CommandRequest, FrameRequest
from batchq.http.object_endpoints import ChangeRequest
from batchq.http.problems import PROBLEM_JSON, ProblemDocument
from batchq.http.route_table import ROUTES, right_of
from batchq.http.view_endpoints import GateRequest, PlanRequest

#: A manifest, as docs/submitting.md describes it; the server checks it field by field.
_MANIFEST: dict[str, Any] = {
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
    "Object": {**_MANIFEST, "properties": {**_MANIFEST["properties"], "kind": {"type": "string"}}},
    "ObjectList": {
        "type": "object",
        "properties": {
            "apiVersion": {"const": "batchq/v1"},
            "kind": {"type": "string"},
            "revision": {"type": "integer"},
            "continue": {"type": "string"},
            "items": {"type": "array", "items": {"$ref": "#/components/schemas/Object"}},
            "unreadable": {"type": "array", "items": {"type": "object"}},
        },
    },
    "Changed": {"type": "object", "properties": {"changed": {"type": "boolean"}}},
    # Fields of the Python client's objects, which grow with it.
    "View": {},
}
_STREAMED = {
    "PodGroupList": ("text/event-stream", "application/x-ndjson"),
    "ObjectList": ("text/event-stream", "application/x-ndjson"),
}
_LINES = ("text/plain", "application/x-ndjson", "text/event-stream")


def openapi_document() -> dict[str, Any]:
    """Return the description of all routes, as OpenAPI 3.1."""
    _, components = msgspec.json.schema_components(
        [
            ProblemDocument,
            TokenRequest,
            InvitationRequest,
            LoginRequest,
            NodeInvitation,
            NodePassword,
            NodesInvitation,
            BindingRequest,
            UserGroupRequest,
            MembersRequest,
            RotationRequest,
            ChangeRequest,
            PlanRequest,
            GateRequest,
            CommandRequest,
            FrameRequest,
        ],
        ref_template="#/components/schemas/{name}",
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
        operation["requestBody"] = {"content": {route.takes: {"schema": schema}}}
    return operation


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
    if route.answer == "Frames":
        content = {NDJSON: {"schema": {"type": "string"}}}
    elif route.answer == "Text":
        content = {"text/plain": {"schema": {"type": "string"}}}
    elif route.answer == "Lines":
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
