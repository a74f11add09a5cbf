"""Manifests: objects as people write them and as `get -o yaml` prints them.

`decode` is strict: an unknown field, a wrong type or an impossible name is an error of one sentence
that says where. `encode` is its inverse and the canonical form. `batchq.api.validation` checks what
a manifest *means* (whether its numbers fit together).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from keyword import iskeyword
from typing import TypeAlias, get_type_hints

from msgspec import Struct, structs

from batchq.api import notation
from batchq.api import notation as names
from batchq.api.node_features import with_runtime_labels
from batchq.api.notation import Entry, Malformed, Path, Unfold, fields_of, mapping_at, shown
from batchq.api.objects import (
    API_VERSION,
    DEFAULT,
    KINDS,
    NAMESPACED,
    CheckState,
    Metadata,
    Node,
    Object,
    Pod,
    PodGroup,
    PodSpec,
    PodTemplate,
    Queue,
    SchedulingGate,
    kind_of,
)
from batchq.api.resources import named, with_untyped
from batchq.errors import InvalidInput

#: The line of a field in its file, if known.
LineOf: TypeAlias = Callable[[Path], int | None]

#: The API groups of other systems, as their manifests name them.
_NEIGHBOURS = {
    "kueue.x-k8s.io": "Kueue",
    "volcano.sh": "Volcano",
    "scheduling.incubator.k8s.io": "kube-batch",
    "scheduling.sigs.dev": "kube-batch",
}
_TOP = ("apiVersion", "kind", "metadata", "spec", "status")
_TEMPLATE_FIELDS = frozenset(PodTemplate.__struct_encode_fields__)
_POD_FIELDS = frozenset(PodSpec.__struct_encode_fields__)
#: The structs of each kind's spec and status.
_PARTS: dict[str, dict[str, type[Struct]]] = {
    kind: {name: hint for name, hint in get_type_hints(cls).items() if name in ("spec", "status")}
    for kind, cls in KINDS.items()
}


def decode(data: object, *, place: str = "", line_of: LineOf | None = None) -> Object:
    """Return the object that a manifest describes, with its status if it states one.

    `place` names the manifest (`jobs.yaml, document 2`) and `line_of` returns a field's line; both
    only serve messages. Raises InvalidInput.
    """
    try:
        return _decode(data)
    except Malformed as problem:
        line = line_of(problem.path) if line_of else None
        where = ", line ".join(part for part in (place, str(line) if line else "") if part)
        subject = subject_of(data)
        text = ": ".join(part for part in (where, subject, str(problem)) if part)
        raise InvalidInput(text) from None


def encode(obj: Object) -> dict[str, object]:
    """Return an object's manifest: quantities, durations and times as people write them.

    Keys are in a fixed order; defaults are omitted, except for the phase.
    """
    kind = kind_of(obj)
    manifest: dict[str, object] = {"apiVersion": API_VERSION, "kind": kind}
    metadata = notation.write(obj.metadata)
    manifest["metadata"] = metadata
    spec = notation.write(obj.spec)
    if spec:
        manifest["spec"] = spec
    status: Struct | None = getattr(obj, "status", None)
    if status is not None:
        written = notation.write(status, always=frozenset({"phase"}))
        if written:
            manifest["status"] = written
    return manifest


def has_status(data: object) -> bool:
    """Return whether a manifest states a `status`, which `apply` ignores with a warning."""
    return isinstance(data, Mapping) and bool(data.get("status"))


def _decode(data: object) -> Object:
    manifest = mapping_at(data, ())
    kind = _kind(manifest)
    for field in manifest:
        if field not in _TOP:
            raise Malformed((field,), f"there is no such field; {_meant_field(kind, field)}")
    metadata = _metadata(kind, manifest.get("metadata"))
    parts: dict[str, object] = {"metadata": metadata}
    for part in _PARTS[kind]:
        if manifest.get(part) is not None or (kind, part) == ("Pod", "spec"):
            parts[part] = _part(kind, part, manifest.get(part), metadata)
    if kind == "Queue":
        _refuse_no_namespaces(manifest.get("spec"))
    build: Callable[..., Object] = KINDS[kind]
    obj = _with_untyped(build(**parts))
    obj = with_runtime_labels(obj) if isinstance(obj, PodGroup) else obj
    _check_names(obj)
    return obj


def _refuse_no_namespaces(spec: object) -> None:
    """Refuse an empty list, which looks as if it closed the queue, and would open it to all."""
    if isinstance(spec, Mapping) and spec.get("namespaces") == []:
        raise Malformed(
            ("spec", "namespaces"),
            "expected at least one namespace, found an empty list; leave it out to accept all of"
            " them, or state stopPolicy: Hold to admit no group",
        )


def _with_untyped(obj: Object) -> Object:
    """Return a group or node in which every type of a resource counts as the resource, too."""
    if isinstance(obj, Node):
        resources = with_untyped(obj.spec.resources)
        if resources is obj.spec.resources:
            return obj
        return structs.replace(obj, spec=structs.replace(obj.spec, resources=resources))
    if not isinstance(obj, PodGroup) or not any(
        ":" in name for _, amounts in _amounts_in(obj) for name in amounts
    ):
        return obj
    tasks = tuple(
        structs.replace(
            task,
            template=structs.replace(task.template, requests=with_untyped(task.template.requests)),
        )
        for task in obj.spec.tasks
    )
    least = with_untyped(obj.spec.min_resources)
    return structs.replace(obj, spec=structs.replace(obj.spec, tasks=tasks, min_resources=least))


def _kind(manifest: Mapping[str, object]) -> str:
    version = manifest.get("apiVersion")
    if version != API_VERSION:
        raise Malformed(
            ("apiVersion",),
            f"expected {API_VERSION}, found {shown(version)}{_translation(version)}",
        )
    kind = manifest.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        near = notation.nearest(kind, KINDS) if isinstance(kind, str) else ""
        hint = f"; did you mean {near!r}?" if near else ""
        raise Malformed(("kind",), f"expected one of {', '.join(KINDS)}, found {shown(kind)}{hint}")
    return kind


def _meant_field(kind: str, field: str) -> str:
    """Return a question about the field of that name in the spec, or the nearest other one."""
    spec = next((one.type for one in structs.fields(KINDS[kind]) if one.name == "spec"), None)
    inner = structs.fields(spec) if isinstance(spec, type) else ()
    if any(one.encode_name == field for one in inner):
        return f"did you mean 'spec.{field}'?"
    return notation.suggestion(field, _TOP)


def _translation(version: object) -> str:
    """Return where the author of another system's manifest finds batchq's fields."""
    group = version.partition("/")[0] if isinstance(version, str) else ""
    for ending, system in _NEIGHBOURS.items():
        if group == ending or group.endswith(f".{ending}"):
            return f"; docs/coming-from.md has batchq's fields for those of {system}"
    return ""


def _metadata(kind: str, data: object) -> Metadata:
    metadata = notation.read(Metadata, data, ("metadata",))
    if kind not in NAMESPACED:
        if metadata.namespace:
            raise Malformed(("metadata", "namespace"), f"a {kind} has no namespace; leave it out")
        return metadata
    return metadata if metadata.namespace else structs.replace(metadata, namespace=DEFAULT)


def _part(kind: str, part: str, data: object, metadata: Metadata) -> Struct:
    unfold: dict[type, Unfold] = {PodTemplate: _template_entries}
    if kind == "Pod":
        unfold[PodSpec] = lambda written, path: _pod_entries(written, path, metadata.name)
    unfold[CheckState] = _check_entries
    return notation.read(_PARTS[kind][part], data, (part,), unfold=unfold)


def check_status(written: object) -> object:
    """Return the intended status of a check: YAML reads a bare True as a boolean."""
    return {True: "True", False: "False"}[written] if isinstance(written, bool) else written


def _check_entries(written: Mapping[str, object], path: Path) -> Iterator[Entry]:
    for name, value, place in fields_of(written, path):
        yield name, check_status(value) if name == "status" else value, place


def _template_entries(written: Mapping[str, object], path: Path) -> Iterator[Entry]:
    """Yield the fields of a template, in either form.

    People who know Kubernetes write `metadata: {labels, annotations}` and `spec: {...}`; both are
    unfolded into the flat form. A field that is given twice is a contradiction.
    """
    seen: dict[str, Path] = {}
    for name, value, place in _unfolded(written, path):
        if value is None:
            continue
        if name in seen:
            first = notation.path_text(seen[name])
            raise Malformed(place, f"the same field is given at {first} too; keep one of the two")
        seen[name] = place
        yield name, value, place


def _unfolded(written: Mapping[str, object], path: Path) -> Iterator[Entry]:
    for name, value, place in fields_of(written, path):
        if name == "metadata":
            inner = mapping_at(value, place)
            for key in inner:
                if key not in ("labels", "annotations"):
                    raise Malformed(
                        (*place, key), "a template's metadata holds labels and annotations only"
                    )
            yield from fields_of(inner, place)
        elif name == "spec":
            yield from fields_of(mapping_at(value, place), place)
        else:
            yield name, value, place


def _pod_entries(written: Mapping[str, object], path: Path, name: str) -> Iterator[Entry]:
    """Yield a pod's own fields. The template's other fields are checked and left to the group."""
    rest = {key: value for key, value in written.items() if key in _TEMPLATE_FIELDS - _POD_FIELDS}
    notation.read(PodTemplate, rest, path)
    for key, value, place in fields_of(written, path):
        if key not in rest:
            yield key, value, place
    if written.get("task") is None and written.get("index") is None:
        yield from _place_by_name(str(written.get("podGroup")), name, path)


def _place_by_name(group: str, name: str, path: Path) -> Iterable[Entry]:
    """Yield task and index from a pod's name, `<group>-<task>-<index>`."""
    task, dash, index = name.removeprefix(f"{group}-").rpartition("-")
    if name.startswith(f"{group}-") and dash and index.isdecimal() and len(index) <= 9:
        yield "task", task, (*path, "task")
        yield "index", int(index), (*path, "index")


def check_names(obj: Object) -> None:
    """Check that batchq and its store can hold every name in the object. Raises InvalidInput."""
    try:
        _check_names(obj)
    except Malformed as problem:
        raise InvalidInput(f"{_title(obj)}: {problem}") from None


def _check_names(obj: Object) -> None:
    for path, name, problem_of in _names_in(obj):
        problem = problem_of(name)
        if problem:
            raise Malformed(path, problem)


_Named: TypeAlias = tuple[Path, str, Callable[[str], str]]


def _names_in(obj: Object) -> Iterator[_Named]:
    meta = obj.metadata
    short = kind_of(obj) in ("PodGroup", "ResourceQuota")
    yield ("metadata", "name"), meta.name, names.label_problem if short else names.subdomain_problem
    if meta.namespace:
        yield ("metadata", "namespace"), meta.namespace, names.label_problem
    yield from _labels(meta.labels, ("metadata", "labels"))
    yield from _keys(meta.annotations, ("metadata", "annotations"))
    match obj:
        case PodGroup():
            yield from _names_in_group(obj)
        case Queue():
            if obj.spec.parent:
                yield ("spec", "parent"), obj.spec.parent, names.subdomain_problem
            for place, check in enumerate(obj.spec.admission_checks):
                yield ("spec", "admissionChecks", place), check, names.subdomain_problem
            for place, namespace in enumerate(obj.spec.namespaces):
                yield ("spec", "namespaces", place), namespace, names.label_problem
            # A zero is a statement here, and kept.
            for field, amounts in (
                ("guarantee", obj.spec.guarantee),
                ("deserved", obj.spec.deserved),
            ):
                for resource in sorted(amounts):
                    yield ("spec", field, resource), resource, names.resource_problem
        case Pod():
            yield ("spec", "podGroup"), obj.spec.pod_group, names.label_problem
            yield ("spec", "task"), obj.spec.task, names.label_problem
            yield from _gates(obj.spec.scheduling_gates, ("spec",))
    for path, amounts in _amounts_in(obj):
        for resource in named(amounts):
            yield (*path, resource), resource, names.resource_problem


def _names_in_group(group: PodGroup) -> Iterator[_Named]:
    spec = group.spec
    yield ("spec", "queue"), spec.queue, names.subdomain_problem
    if spec.priority_class_name:
        yield ("spec", "priorityClassName"), spec.priority_class_name, names.subdomain_problem
    yield from _gates(spec.scheduling_gates, ("spec",))
    yield from _keys(spec.topology, ("spec", "topology"))
    for place, dependency in enumerate(spec.depends_on):
        yield ("spec", "dependsOn", place, "name"), dependency.name, names.label_problem
    for place, task in enumerate(spec.tasks):
        path: Path = ("spec", "tasks", place)
        yield (*path, "name"), task.name, names.label_problem
        yield from _labels(task.template.labels, (*path, "template", "labels"))
        yield from _keys(task.template.annotations, (*path, "template", "annotations"))
        yield from _gates(task.template.scheduling_gates, (*path, "template"))
        for field, nodes in (
            ("nodes", task.template.nodes),
            ("excludeNodes", task.template.exclude_nodes),
        ):
            for node in nodes:
                yield (*path, "template", field), node, names.subdomain_problem


def _amounts_in(obj: Object) -> Iterator[tuple[Path, dict[str, int]]]:
    if isinstance(obj, PodGroup):
        yield ("spec", "minResources"), obj.spec.min_resources
        for place, task in enumerate(obj.spec.tasks):
            yield ("spec", "tasks", place, "template", "requests"), task.template.requests


def _labels(labels: Mapping[str, str], path: Path) -> Iterator[_Named]:
    yield from _keys(labels, path)
    for key, value in labels.items():
        yield (*path, key), value, names.label_value_problem


def _gates(gates: Iterable[SchedulingGate], path: Path) -> Iterator[_Named]:
    for place, gate in enumerate(gates):
        yield (*path, "schedulingGates", place, "name"), gate.name, names.qualified_problem


def _keys(table: Mapping[str, str], path: Path) -> Iterator[_Named]:
    for key in table:
        yield (*path, key), key, names.qualified_problem


def _title(obj: Object) -> str:
    space = f"{obj.metadata.namespace}/" if obj.metadata.namespace else ""
    return f"{kind_of(obj)} {space}{_short(obj.metadata.name)}"


def subject_of(data: object) -> str:
    """Return `PodGroup default/train`, as far as the manifest states it."""
    if not isinstance(data, Mapping):
        return ""
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        return ""
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str):
        return kind
    space = metadata.get("namespace") if isinstance(metadata, Mapping) else None
    if kind not in NAMESPACED:
        return f"{kind} {_short(name)}"
    return f"{kind} {_short(space if isinstance(space, str) and space else DEFAULT)}/{_short(name)}"


def _short(name: str) -> str:
    return name if len(name) <= 64 else f"{name[:24]}…"


MOST_NAME = 512
#: The bound of a pod's `args` and `kwargs` together, as stored. Larger values belong in a file.
MOST_ARGUMENT_BYTES = 64 * 1024


def function_problem(name: str) -> str:
    """Return "" if `name` has the form of a function's name, else what was expected and found."""
    module, _, path = name.partition(":")
    if len(name) > MOST_NAME or not all(map(_is_name, (*module.split("."), *path.split(".")))):
        return f"expected package.module:name, found {shown(name)}"
    if module == "__main__":
        return "__main__ is another module in every process; put the function in a module"
    return ""


def argument_bytes(template: PodTemplate) -> int:
    """Return the size of a template's arguments, as stored."""
    named = sum(len(name.encode()) for name in template.kwargs)
    return named + sum(len(bytes(raw)) for raw in (*template.args, *template.kwargs.values()))


def _is_name(word: str) -> bool:
    return word.isidentifier() and not iskeyword(word)
