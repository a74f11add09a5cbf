"""Read a described world from manifests: its objects, what will happen to it, and its invariants.

**Time 0** is the latest timestamp in the file: the moment that its author describes. Instants that
lie ahead by nature (`backoffUntil`, a pod's `retryAt`) do not count, nor do the manifests that a
Timeline applies later. Without timestamps it is the epoch. A group without a `creationTimestamp` is
older than all groups with one.

`kind: Timeline` describes what happens to the world from outside, and when. Its `spec` is a list of
steps, each with `at` (a duration from the start) and one verb:

    at: 0     apply: {a manifest}               delete: Kind/namespace/name
    at: 30s   openGate: {podGroup, gate, task}  suspend: namespace/name    resume: namespace/name
              setCheck: {podGroup, check, status, reason, message}
              failNode: name                    recoverNode: name
              finishPod: namespace/name         failPod: namespace/name    (with exitCode)

Every step is read and checked before the world starts; `batchq.lab.simulation` carries the
steps out.

**Invariants** are checked after every event: no node is given more than it has; the ledger is the
sum of its charges, which match the objects; no group is Running below its minMember after a
session; admissions only rise. A violation is a bug: InvariantBroken, with the details.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import cache
from typing import TypeAlias

from msgspec import Struct, structs

from batchq.api import manifest, notation, validation
from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase
from batchq.api.notation import SECOND, Malformed, Path, mapping_at, parse_duration, shown
from batchq.api.objects import (
    API_VERSION,
    DEFAULT,
    KINDS,
    NAMESPACED,
    RUNTIME_ANNOTATION,
    Node,
    Object,
    Pod,
    PodGroup,
    Queue,
    full_name,
    key_of,
    kind_of,
)
from batchq.api.resources import Amounts, of_pod, plus
from batchq.api.transaction import Commit, Ledger, Refusal, Transaction, Word, capacity_of
from batchq.client.changes import (
    COMBINATIONS,
    check_apart,
    explain_refusal,
    first_contradiction,
    rivals,
)
from batchq.config.documents import Document, read_documents
from batchq.core.quota.ledger import charge_with_count, holders_in_store
from batchq.core.session.snapshot import Snapshot
from batchq.core.session.state import GroupState
from batchq.errors import InvalidInput, InvariantBroken, Rejected
from batchq.ports import IdSource
from batchq.scheduler.pod_controller import GroupProgress
from batchq.store.memory import MemoryStore


class DescribedPod(Struct, frozen=True, kw_only=True):
    """A pod, the fields of its spec that the file states, and its place in the file."""

    pod: Pod
    written: frozenset[str]
    where: str


class World(Struct, frozen=True, kw_only=True):
    """Everything that a file describes, in its order; `start_at` is time 0, in milliseconds.

    `places`: (kind, key) -> position in the file, for messages.
    """

    objects: tuple[Object, ...]
    groups: tuple[PodGroup, ...]
    pods: tuple[DescribedPod, ...]
    steps: tuple[Step, ...]
    start_at: int
    documents: int
    places: Mapping[tuple[str, str], str] = {}


def read_world(text: str | bytes, source: str) -> World:
    """Read the world that `text` describes; messages call the file `source`.

    Raises InvalidInput.
    """
    documents = read_documents(text, source)
    if not documents:
        raise InvalidInput(f"{source}: expected at least one manifest, found none")
    steps: list[Step] = []
    objects: list[Object] = []
    pods: list[DescribedPod] = []
    seen: dict[tuple[str, str], str] = {}
    places: dict[tuple[str, str], str] = {}
    for document in documents:
        if document.data.get("kind") == KIND:
            steps += read_steps(document)
            continue
        obj = _read(document)
        if isinstance(obj, Pod):
            pods.append(_described_pod(document, obj))
            continue
        _check_once(seen, (kind_of(obj), key_of(obj)), document)
        if isinstance(obj, PodGroup):
            _check_once(seen, ("uid", obj.metadata.uid), document)
        objects.append(obj)
        places[kind_of(obj), key_of(obj)] = _place_of(document)
    _check_queues(objects, places)
    _check_pod_names(objects, places)
    return World(
        objects=tuple(obj for obj in objects if not isinstance(obj, PodGroup)),
        groups=tuple(obj for obj in objects if isinstance(obj, PodGroup)),
        pods=tuple(pods),
        # `sorted` is stable, so that steps of one instant stay in file order.
        steps=tuple(sorted(steps, key=lambda step: step.after_ms)),
        start_at=_latest([*objects, *(described.pod for described in pods)]),
        documents=len(documents),
        places=places,
    )


def _read(document: Document) -> Object:
    obj = document.decode()
    try:
        validation.check(obj, described=True)
        check_runtimes(obj)
    except InvalidInput as problem:
        raise InvalidInput(f"{document.where()}: {problem.message}", hint=problem.hint) from None
    uid = obj.metadata.uid or str(document.place)
    return structs.replace(obj, metadata=structs.replace(obj.metadata, uid=uid))


def _place_of(document: Document) -> str:
    line = document.line_of(("metadata", "name"))
    return f"{document.where()}, line {line}" if line else document.where()


def _check_queues(objects: Iterable[Object], places: Mapping[tuple[str, str], str]) -> None:
    """Raise InvalidInput if `apply` would refuse the queues together, in any order."""
    queues = [obj for obj in objects if isinstance(obj, Queue)]
    contradiction = first_contradiction(queues)
    if contradiction is not None:
        name, problem = contradiction
        where = places["Queue", name]
        raise InvalidInput(f"{where}: {problem.message}", hint=problem.hint)


def _check_pod_names(objects: Iterable[Object], places: Mapping[tuple[str, str], str]) -> None:
    """Raise InvalidInput if two groups would have pods of the same name."""
    before: dict[str, PodGroup] = {}
    for group in objects:
        if not isinstance(group, PodGroup):
            continue
        for other in rivals(group):
            try:
                if other in before:
                    check_apart(group, before[other])
            except Rejected as problem:
                where = places["PodGroup", key_of(group)]
                raise InvalidInput(f"{where}: {problem.message}", hint=problem.hint) from None
        before[key_of(group)] = group


def _described_pod(document: Document, pod: Pod) -> DescribedPod:
    spec = document.data.get("spec")
    written = frozenset(spec) if isinstance(spec, dict) else frozenset()
    return DescribedPod(pod=pod, written=written, where=document.where())


def _check_once(
    seen: dict[tuple[str, str], str], name: tuple[str, str], document: Document
) -> None:
    place = f"document {document.place}"
    if name in seen:
        kind, key = name
        raise InvalidInput(
            f"{document.where()}: {kind} {key} is given twice, in {seen[name]} and {place};"
            " take one of them out"
        )
    seen[name] = place


def _latest(objects: Iterable[Object]) -> int:
    instants = (at for obj in objects for at in _instants(obj) if at is not None)
    return whole_second(max(instants, default=0))


def _instants(obj: Object) -> Iterator[int | None]:
    yield obj.metadata.creation_timestamp
    match obj:
        case Node():
            yield obj.status.heartbeat
        case Pod():
            pod = obj.status
            yield from (pod.bound_at, pod.started_at, pod.finished_at, pod.terminating_at)
        case PodGroup():
            group = obj.status
            yield from (group.queue_time, group.reserved_at, group.in_queue_at)
            yield from (group.started_at, group.unknown_at, group.finished_at)
            yield from (condition.last_transition_time for condition in group.conditions)
            yield from (check.since for check in group.checks)


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


def whole_second(instant_ms: int) -> int:
    """Return the first whole second at or after an instant in ms: the time step of a world."""
    return -(-instant_ms // SECOND) * SECOND


class VirtualClock:
    """A Clock that only moves when told to, and never backwards."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Return milliseconds since the epoch of the described world."""
        return self._now_ms

    def jump_to(self, instant_ms: int) -> None:
        """Set the time to `instant_ms`. Raises InvariantBroken if that is in the past."""
        if instant_ms < self._now_ms:
            raise InvariantBroken(f"time cannot go back from {self._now_ms} to {instant_ms} ms")
        self._now_ms = instant_ms


class CountedIds:
    """A deterministic IdSource: numbers from `first` on, except those in `taken`."""

    def __init__(self, first: int = 1, taken: frozenset[str] = frozenset()) -> None:
        self._next = first
        self._taken = taken

    def new_uid(self) -> str:
        """Return the next number as text."""
        while str(self._next) in self._taken:
            self._next += 1
        self._next += 1
        return str(self._next - 1)


def runtime_of(annotations: Mapping[str, str]) -> int | None:
    """Return milliseconds from start to success; None if the pod runs until something ends it."""
    written = annotations.get(RUNTIME_ANNOTATION)
    return None if written is None else _parsed(written)


@cache
def _parsed(written: str) -> int:
    return parse_duration(written)


def check_runtimes(obj: Object) -> None:
    """Check that every runtime stated in an object is valid. Raises InvalidInput."""
    found: list[Mapping[str, str]] = []
    if isinstance(obj, PodGroup):
        found = [task.template.annotations for task in obj.spec.tasks]
    elif isinstance(obj, Pod):
        found = [obj.metadata.annotations]
    for stated in found:
        try:
            runtime_of(stated)
        except ValueError as error:
            raise InvalidInput(
                f"{kind_of(obj)} {full_name(obj)}: annotation {RUNTIME_ANNOTATION}: {error}"
            ) from None


def write(store: MemoryStore, requests: IdSource, transaction: Transaction | None) -> None:
    """Commit a transaction, if there is one.

    All writers of one store, the cycle included, must share one source of request ids: a request
    with a used id would count as a repetition. Raises the error of `explain_refusal`.
    """
    if transaction is None:
        return
    commit = store.commit([transaction], request_id=requests.new_uid())
    if commit.refused:
        raise explain_refusal(commit.refused[0])


def write_once(store: MemoryStore, transaction: Transaction) -> None:
    """Apply a transaction that is never repeated, so that it needs no request id.

    Raises the error of `explain_refusal`.
    """
    answer = store.apply(transaction)
    if answer.word is not Word.OK:
        raise explain_refusal(Refusal(transaction=transaction, answer=answer))


class InvariantWatch:
    """Checks the store after each event; owns what it saw last."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._admissions: dict[str, int] = {}
        self._found_right: dict[str, PodGroup] = {}
        self._over: dict[tuple[str, str], int] = {}
        self._revision = -1
        self._look_at_admissions()
        self.after_outside()

    def after_outside(self) -> None:
        """Check after changes from outside, which may oversubscribe nodes."""
        if not self._has_changed():
            return
        self._over = oversubscribed(self._store)
        self._check_ledger()

    def after_session(self, commit: Commit) -> None:
        """Check after a session's commit; refused groups are decided again by the next session."""
        refused = {
            write.key
            for refusal in commit.refused
            for write in refusal.transaction.writes
            if write.kind == "PodGroup"
        }
        if not self._has_changed():
            return
        over = oversubscribed(self._store)
        for (node, resource), units in over.items():
            if units > self._over.get((node, resource), 0):
                raise InvariantBroken(f"node {node} was given {units} of {resource} too much")
        self._over = over
        self._check_ledger()
        self._check_groups(refused)
        self._look_at_admissions()

    def _has_changed(self) -> bool:
        """Return whether anything was written since the last call."""
        before, self._revision = self._revision, self._store.snapshot().revision
        return before != self._revision

    def _check_ledger(self) -> None:
        counted = recount(self._store.charges())
        kept = self._store.ledger()
        if counted != kept:
            raise InvariantBroken(f"the ledger says {kept}, its charges add up to {counted}")
        pods = {
            f"pod:{pod.metadata.uid}": of_pod(pod.spec.requests)
            for pod in self._store.list("Pod")
            if isinstance(pod, Pod) and pod.status.phase in ON_NODE
        }
        charged = {
            holder: amounts
            for holder, (_, amounts) in self._store.charges().items()
            if holder.startswith("pod:")
        }
        if pods != charged:
            wrong = sorted(
                holder for holder in {*pods, *charged} if pods.get(holder) != charged.get(holder)
            )
            raise InvariantBroken(f"pods and what nodes are charged for them differ: {wrong}")

    def _check_groups(self, spared: Set[str]) -> None:
        snapshot = self._store.snapshot()
        charges = self._store.charges()
        for record in snapshot.groups:
            if record.status.phase in TERMINAL and not record.status.charge:
                continue
            uid = record.metadata.uid
            pods = snapshot.pods.get(uid, ())
            if (not pods and self._found_right.get(uid) is record) or full_name(record) in spared:
                continue
            group = GroupState(record, pods, 0)
            check_charge(group, charges)
            # The pods of an external group are not in the world.
            if group.phase == PodGroupPhase.RUNNING and not group.is_external:
                check_gang(group)
            self._found_right[uid] = record
        objects = {
            f"object:{group.metadata.uid}"
            for group in snapshot.groups
            if group.status.phase not in TERMINAL
        }
        counted = {holder for holder in charges if holder.startswith("object:")}
        if objects != counted:
            raise InvariantBroken(
                f"unfinished groups and what counts as one differ: {sorted(objects ^ counted)}"
            )

    def _look_at_admissions(self) -> None:
        for group in self._store.list("PodGroup"):
            assert isinstance(group, PodGroup)
            uid, now = group.metadata.uid, group.status.admission
            before = self._admissions.get(uid, 0)
            if now < before:
                raise InvariantBroken(
                    f"the admission of {full_name(group)} fell from {before} to {now}"
                )
            self._admissions[uid] = now


def recount(charges: Mapping[str, tuple[tuple[str, ...], dict[str, int]]]) -> Ledger:
    """Return the ledger as the sum of its charges."""
    sums: Ledger = {}
    for scopes, amounts in charges.values():
        for scope in scopes:
            sums[scope] = plus(sums.get(scope, {}), amounts)
    return {
        scope: {name: units for name, units in amounts.items() if units}
        for scope, amounts in sorted(sums.items())
        if any(amounts.values())
    }


def holdings(snapshot: Snapshot) -> dict[str, Amounts]:
    """Return the total requests of the pods on each node."""
    held: dict[str, Amounts] = {}
    for pods in snapshot.pods.values():
        for pod in pods:
            if pod.status.phase in ON_NODE:
                node = pod.status.node
                held[node] = plus(held.get(node, {}), of_pod(pod.spec.requests))
    return held


def oversubscribed(store: MemoryStore) -> dict[tuple[str, str], int]:
    """Return (node, resource) -> by how much its pods' requests exceed it."""
    over = {}
    for name, amounts in holdings(store.snapshot()).items():
        node = store.get("Node", name)
        capacity = capacity_of(node) if isinstance(node, Node) else {}
        for resource, units in amounts.items():
            if units > capacity.get(resource, 0):
                over[name, resource] = units - capacity.get(resource, 0)
    return over


def check_charge(
    group: GroupState, charges: Mapping[str, tuple[tuple[str, ...], dict[str, int]]]
) -> None:
    """Check that a group is charged what its objects say. Raises InvariantBroken."""
    expected = charge_with_count(group)
    if expected != group.status.charge:
        raise InvariantBroken(
            f"{group.key} is charged {dict(group.status.charge)}, and holds {expected}"
        )
    for holder, (scopes, amounts) in holders_in_store(group.record).items():
        if charges.get(holder) != (scopes, {n: u for n, u in amounts.items() if u}):
            raise InvariantBroken(
                f"{group.key} should count as {holder} for {amounts} in {', '.join(scopes)},"
                f" and does for {charges.get(holder)}"
            )


def check_gang(group: GroupState) -> None:
    """Check that a Running group has as many pods as it needs. Raises InvariantBroken."""
    progress = GroupProgress.of(group)
    if progress.running + progress.succeeded < group.min_member:
        raise InvariantBroken(
            f"{group.key} is Running with {progress.running} pods running and"
            f" {progress.succeeded} succeeded, below its minMember of {group.min_member}"
        )
