"""The OpenAPI document: made of the route table, and held against it and against the answers."""

from __future__ import annotations

import json
import re

import jsonschema

from batchq.http.route_table import ROUTES, openapi_document
from tests.http.api_process import Caller
from tests.http.manifests import groups_of, manifest
from tests.tidy.source import ROOT


def test_every_route_needs_a_right_or_is_meant_for_everyone() -> None:
    without = {route.path for route in ROUTES if route.verb is None}
    # For callers with any token, with an invitation, and with a join token.
    known = {"/v1/me", "/v1/rotations", "/v1/invitations", "/v1/nodes/{name}/user"}
    assert without == {"/livez", "/readyz", "/v1/openapi.json", "/v1/login", *known}
    assert {route.path for route in ROUTES if route.is_open} == without - known


def test_the_document_has_every_route_with_its_right_and_its_parameters() -> None:
    document = openapi_document()
    assert document["openapi"] == "3.1.0"
    for route in ROUTES:
        operation = document["paths"][route.path][route.method.lower()]
        named = {one["name"] for one in operation["parameters"]}
        assert named == {one.name for one in route.parameters} | set(
            re.findall(r"{(\w+)}", route.path)
        )
        assert (operation.get("security") == []) is route.is_open
    names = [route.name for route in ROUTES]
    assert len(set(names)) == len(names)


def test_the_committed_document_is_that_of_the_code() -> None:
    committed = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
    # A tuple of the code is a list in JSON.
    assert committed == json.loads(json.dumps(openapi_document())), (
        "the API has changed: write docs/openapi.json again, with an indent of 1"
    )


def test_every_schema_is_valid_and_every_reference_leads_to_one() -> None:
    document = openapi_document()
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    references = set(re.findall(r"#/components/schemas/(\w+)", repr(document)))
    assert references <= set(schemas)


def test_answers_and_problems_have_their_schemas(api: Caller) -> None:
    document = api("GET", "/v1/openapi.json").data
    created = api("POST", groups_of("default"), manifest("train")).data
    listed = api("GET", "/v1/groups").data
    problem = api("GET", f"{groups_of('default')}/missing").data
    for name, answer in (
        ("PodGroup", created),
        ("PodGroupList", listed),
        ("ProblemDocument", problem),
    ):
        schema = {**document, "$ref": f"#/components/schemas/{name}"}
        jsonschema.Draft202012Validator(schema).validate(answer)
