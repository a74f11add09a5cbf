"""Printed objects can be read back unchanged, for every kind of object."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from batchq.api.manifest import decode, encode
from batchq.api.objects import KINDS, NAMESPACED
from batchq.api.resources import LARGEST
from batchq.config.documents import print_documents, read_documents
from tests.effort import usually

LABEL = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,10}[a-z0-9])?", fullmatch=True)
SUBDOMAIN = st.lists(LABEL, min_size=1, max_size=3).map(".".join)
WORD = st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,10}[A-Za-z0-9])?", fullmatch=True)
QUALIFIED = st.one_of(WORD, st.builds("{}/{}".format, SUBDOMAIN, WORD))
RESOURCE = st.one_of(st.sampled_from(["cpu", "memory", "gpu", "pods"]), QUALIFIED)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
WHOLE = st.integers(-LARGEST, LARGEST)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**60), 2**60), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=5,
)
FORMS: dict[str, st.SearchStrategy[Any]] = {
    "amounts": st.dictionaries(RESOURCE, st.integers(0, LARGEST), max_size=3),
    "duration": st.integers(0, 36525 * 86_400_000),
    "instant": st.integers(0, 4_102_444_800_000),
    "factor": st.integers(0, 1_000_000),
}
#: Fields that contain names, and so accept no arbitrary text.
NAMES = {
    "namespace": st.one_of(st.just(""), LABEL),
    "labels": st.dictionaries(QUALIFIED, st.one_of(st.just(""), WORD), max_size=2),
    "annotations": st.dictionaries(QUALIFIED, TEXT, max_size=2),
    "queue": SUBDOMAIN,
    "admission_checks": st.lists(SUBDOMAIN, max_size=2, unique=True).map(tuple),
    "namespaces": st.lists(LABEL, max_size=2, unique=True).map(tuple),
    "nodes": st.lists(SUBDOMAIN, max_size=2).map(tuple),
    "exclude_nodes": st.lists(SUBDOMAIN, max_size=2).map(tuple),
    "topology": st.dictionaries(LABEL, st.sampled_from(["required", "preferred"]), max_size=2),
    #: A manifest with one of these also gets a node selector.
    "container": st.none(),
    "env_activate": st.just(""),
    "stdin": st.just(False),
    "parent": st.one_of(st.just(""), SUBDOMAIN),
    "priority_class_name": st.one_of(st.just(""), SUBDOMAIN),
    "pod_group": LABEL,
    "task": LABEL,
    "name": LABEL,
    "resource": st.one_of(st.just(""), RESOURCE),
    "need": st.one_of(st.none(), st.integers(0, LARGEST)),
    "limit": st.one_of(st.none(), st.integers(0, LARGEST)),
    "seen": st.one_of(st.none(), st.integers(0, LARGEST)),
}


def values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    match kind:
        case inspect.Metadata(type=inner, extra=extra):
            return FORMS[extra["form"]] if extra else values(inner)
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: field_values(cls, field) for field in fields})
        case inspect.VarTupleType(item_type=item):
            return st.lists(values(item), max_size=2).map(tuple)
        case inspect.DictType(value_type=item):
            return st.dictionaries(TEXT, values(item), max_size=2)
        case inspect.UnionType(types=types):
            return st.one_of([values(member) for member in types])
        case inspect.LiteralType(values=words):
            return st.sampled_from(words)
        case inspect.EnumType(cls=cls):
            return st.sampled_from(list(cls))
        case inspect.RawType():
            return JSON.map(lambda value: msgspec.Raw(msgspec.json.encode(value)))
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            return WHOLE
        case _:
            return TEXT


def field_values(cls: type, field: inspect.Field) -> st.SearchStrategy[Any]:
    if cls.__name__ == "Retry" and field.name == "limit":
        return WHOLE
    return NAMES[field.name] if field.name in NAMES else values(field.type)


@cache
def objects(kind: str) -> st.SearchStrategy[Any]:
    def placed(obj: Any) -> Any:
        namespace = (obj.metadata.namespace or "default") if kind in NAMESPACED else ""
        metadata = msgspec.structs.replace(obj.metadata, namespace=namespace)
        return msgspec.structs.replace(obj, metadata=metadata)

    return values(inspect.type_info(KINDS[kind])).map(placed)


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(data=st.data())
@settings(max_examples=usually(8, 50), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_an_encoded_object_decodes_to_an_equal_one(kind: str, data: st.DataObject) -> None:
    obj = data.draw(objects(kind))
    manifest = encode(obj)
    assert decode(manifest) == obj
    # Encoding again, and through JSON, changes nothing.
    again = decode(json.loads(json.dumps(manifest)))
    assert again == obj
    assert json.dumps(encode(again)) == json.dumps(manifest)


@given(data=st.data())
@settings(max_examples=usually(8, 50), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_an_object_printed_as_yaml_reads_as_an_equal_one(data: st.DataObject) -> None:
    obj = data.draw(objects("PodGroup"))
    text = print_documents([encode(obj)])
    (document,) = read_documents(text, "printed.yaml")
    assert document.decode() == obj
