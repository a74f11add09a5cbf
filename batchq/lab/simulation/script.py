"""`kind: Timeline`: what happens to a described world from outside, and when.

Its `spec` is a list of steps, each with `at` (a duration from the start) and one verb:

    at: 0     apply: {a manifest}               delete: Kind/namespace/name
    at: 30s   openGate: {podGroup, gate, task}  suspend: namespace/name    resume: namespace/name
              setCheck: {podGroup, check, status, reason, message}
              failNode: name                    recoverNode: name
              finishPod: namespace/name         failPod: namespace/name    (with exitCode)

Every step is read and checked before the world starts; `batchq.lab.simulation.player` carries the
steps out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from msgspec import Struct

from batchq.api import manifest, notation, validation
from batchq.api.notation import Malformed, Path, mapping_at, shown
from batchq.api.objects import API_VERSION, DEFAULT, KINDS, NAMESPACED, Object
from batchq.api.times import parse_duration
from batchq.changes.verbs import COMBINATIONS
from batchq.config.documents import Document
from batchq.errors import InvalidInput
from batchq.lab.simulation.clock import check_runtimes

KIND = "Timeline"


class Apply(Struct, frozen=True):
    """Create or change an object, as `batchq apply` would."""

    obj: Object


class Delete(Struct, frozen=True):
    """Delete an object."""

    kind: str
    key: str


class OpenGate(Struct, frozen=True):
    """Open a scheduling gate of a group, or of one of its tasks."""

    group: str
    gate: str
    task: str = ""


class SetCheck(Struct, frozen=True, kw_only=True):
    """Set the answer of an admission check for a group."""

    group: str
    check: str
    status: str
    reason: str = ""
    message: str = ""


class Suspend(Struct, frozen=True):
    """Suspend a group."""

    group: str


class Resume(Struct, frozen=True):
    """Resume a suspended group."""

    group: str


class FailNode(Struct, frozen=True):
    """Make the node not ready, and evict its pods at once."""

    node: str


class RecoverNode(Struct, frozen=True):
    """Make the node ready again."""

    node: str


class FinishPod(Struct, frozen=True):
    """End a running pod with success."""

    pod: str


class FailPod(Struct, frozen=True):
    """End a running pod with `exit_code`."""

    pod: str
    exit_code: int


Deed: TypeAlias = (
    Apply
    | Delete
    | OpenGate
    | SetCheck
    | Suspend
    | Resume
    | FailNode
    | RecoverNode
    | FinishPod
    | FailPod
)


class Step(Struct, frozen=True, kw_only=True):
    """One action, `after_ms` after the start; `where` is its place in the file, for messages."""

    after_ms: int
    deed: Deed
    where: str


def read_steps(document: Document) -> list[Step]:
    """Return the steps of a Timeline, in the order of the file. Raises InvalidInput."""
    try:
        return _steps(document)
    except Malformed as problem:
        raise document.problem(problem.path, f"{KIND}: {problem.text}") from None


def _steps(document: Document) -> list[Step]:
    written = document.data
    version = written.get("apiVersion")
    if version != API_VERSION:
        raise Malformed(("apiVersion",), f"expected {API_VERSION}, found {shown(version)}")
    known = ("apiVersion", "kind", "metadata", "spec")
    for field in written:
        if field not in known:
            hint = notation.suggestion(field, known)
            raise Malformed((field,), f"there is no such field; {hint}")
    spec = written.get("spec")
    if spec is None:
        return []
    if not isinstance(spec, list):
        raise Malformed(("spec",), f"expected a list of steps, found {shown(spec)}")
    return [_step(document, item, ("spec", place)) for place, item in enumerate(spec)]


def _step(document: Document, data: object, path: Path) -> Step:
    written = mapping_at(data, path)
    verbs = [field for field in written if field in _VERBS]
    for field in written:
        if field not in (*_VERBS, "at", "exitCode"):
            hint = notation.suggestion(field, ("at", *_VERBS))
            raise Malformed((*path, field), f"there is no such step; {hint}")
    if len(verbs) != 1:
        found = " and ".join(verbs) or "none"
        raise Malformed(path, f"expected one of {', '.join(_VERBS)} in a step, found {found}")
    verb = verbs[0]
    if "exitCode" in written and verb != "failPod":
        raise Malformed((*path, "exitCode"), "only failPod takes an exit code")
    line = document.line_of((*path, verb))
    return Step(
        after_ms=_at(written, path),
        deed=_VERBS[verb](document, written, (*path, verb)),
        where=f"{document.where()}, line {line}" if line else f"{document.where()}, step {path[1]}",
    )


def _at(written: Mapping[str, object], path: Path) -> int:
    value = written.get("at")
    if not isinstance(value, str | int | float):
        raise Malformed((*path, "at"), f"expected when, such as 30s or 0, found {shown(value)}")
    try:
        return parse_duration(value)
    except ValueError as error:
        raise Malformed((*path, "at"), str(error)) from None


# --- verbs ----------------------------------------------------------------------------------


def _apply(document: Document, written: Mapping[str, object], path: Path) -> Deed:
    def line_of(inner: Path) -> int | None:
        return document.line_of((*path, *inner))

    obj = manifest.decode(written["apply"], place=document.where(), line_of=line_of)
    try:
        validation.check(obj, described=True)
        check_runtimes(obj)
    except InvalidInput as problem:
        raise Malformed(path, problem.message) from None
    return Apply(obj)


def _delete(document: Document, written: Mapping[str, object], path: Path) -> Deed:
    kind, _, name = _text(written, path).partition("/")
    if kind not in KINDS:
        raise Malformed(path, f"there is no kind {shown(kind)}; {notation.suggestion(kind, KINDS)}")
    if kind in NAMESPACED:
        return Delete(kind, _namespaced(name, path))
    if not name or "/" in name:
        raise Malformed(path, f"expected {kind}/name, found {shown(written['delete'])}")
    return Delete(kind, name)


def _open_gate(document: Document, written: Mapping[str, object], path: Path) -> Deed:
    fields = mapping_at(written["openGate"], path)
    for field in fields:
        if field not in ("podGroup", "gate", "task"):
            raise Malformed((*path, field), "there is no such field; known: podGroup, gate, task")
    group = _namespaced(_text(fields, (*path, "podGroup")), (*path, "podGroup"))
    task = _text(fields, (*path, "task")) if fields.get("task") is not None else ""
    return OpenGate(group, _text(fields, (*path, "gate")), task)


def _set_check(document: Document, written: Mapping[str, object], path: Path) -> Deed:
    fields = mapping_at(written["setCheck"], path)
    known = ("podGroup", "check", "status", "reason", "message")
    for field in fields:
        if field not in known:
            raise Malformed((*path, field), f"there is no such field; known: {', '.join(known)}")
    status = manifest.check_status(fields.get("status"))
    if not isinstance(status, str) or status not in COMBINATIONS:
        found = shown(fields.get("status"))
        raise Malformed((*path, "status"), f"expected True, False or Unknown, found {found}")
    texts = {name: fields.get(name) or "" for name in ("reason", "message")}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise Malformed((*path, name), f"expected a text, found {shown(text)}")
    return SetCheck(
        group=_namespaced(_text(fields, (*path, "podGroup")), (*path, "podGroup")),
        check=_text(fields, (*path, "check")),
        status=status,
        reason=str(texts["reason"]),
        message=str(texts["message"]),
    )


def _fail_pod(document: Document, written: Mapping[str, object], path: Path) -> Deed:
    code = written.get("exitCode", 1)
    if isinstance(code, bool) or not isinstance(code, int) or not 1 <= code <= 255:
        place = (*path[:-1], "exitCode")
        raise Malformed(place, f"expected a number from 1 to 255, found {shown(code)}")
    return FailPod(_namespaced(_text(written, path), path), code)


def _on_object(make: Callable[[str], Deed]) -> _Reader:
    """Return the reader of a verb whose value is `namespace/name`."""

    def read(document: Document, written: Mapping[str, object], path: Path) -> Deed:
        return make(_namespaced(_text(written, path), path))

    return read


def _on_node(make: Callable[[str], Deed]) -> _Reader:
    """Return the reader of a verb whose value is the name of a node."""

    def read(document: Document, written: Mapping[str, object], path: Path) -> Deed:
        return make(_text(written, path))

    return read


def _text(written: Mapping[str, object], path: Path) -> str:
    value = written.get(str(path[-1]))
    if not isinstance(value, str) or not value:
        raise Malformed(path, f"expected a name, found {shown(value)}")
    return value


def _namespaced(name: str, path: Path) -> str:
    """Return `namespace/name`; a bare name is in the namespace `default`."""
    parts = name.split("/")
    if len(parts) > 2 or not all(parts):
        raise Malformed(path, f"expected namespace/name, found {shown(name)}")
    return name if len(parts) == 2 else f"{DEFAULT}/{name}"


_Reader: TypeAlias = Callable[[Document, Mapping[str, object], Path], Deed]

_VERBS: dict[str, _Reader] = {
    "apply": _apply,
    "delete": _delete,
    "openGate": _open_gate,
    "setCheck": _set_check,
    "suspend": _on_object(Suspend),
    "resume": _on_object(Resume),
    "failNode": _on_node(FailNode),
    "recoverNode": _on_node(RecoverNode),
    "finishPod": _on_object(FinishPod),
    "failPod": _fail_pod,
}
