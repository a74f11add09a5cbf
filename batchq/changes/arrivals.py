"""Many new groups at once: what they refer to is looked up once for all of them.

`Arrivals.submission` comes to the same transaction as `create`, for a group that `validate.check`
has accepted and whose name is believed to be free. Whether it is, the store says: it refuses the
write of what exists already. So a million groups cost no read each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import structs

from batchq.api.gates import gates_of, with_task_gates
from batchq.api.objects import (
    CheckState,
    Metadata,
    Object,
    PodGroup,
    PodGroupSpec,
    PodGroupStatus,
    key_of,
)
from batchq.api.transaction import Event, Transaction, Write
from batchq.changes.groups import bind_dependencies, check_references, checks_for, circular
from batchq.changes.lookup import title
from batchq.changes.podnames import check_apart, must_not_be_there, rivals
from batchq.changes.records import object_charge
from batchq.errors import Conflict
from batchq.ports import Store

#: What everyday commands change in a group after it was submitted: `suspend`, `resume`.
_MAY_DIFFER = frozenset({"suspend"})


class Arrivals:
    """A Reader for new groups, with a memory: queues, priority classes, and groups depended on.

    What it has read holds until `forget`. Groups that are `noted` count as stored. `before_reading`
    is called before the store is asked for anything. Belongs to one thread.
    """

    def __init__(self, store: Store, *, before_reading: Callable[[], None] = lambda: None) -> None:
        self._store = store
        self._before_reading = before_reading
        self._lists: dict[tuple[str, str], Sequence[Object]] = {}
        self._classes: dict[str, Object | None] = {}
        #: Key -> uid of a group that is there; "" of one that is not.
        self._groups: dict[str, str] = {}
        #: Queue and priority class of a group that was accepted -> the checks of the queue.
        self._accepted: dict[tuple[str, str], tuple[str, ...]] = {}
        #: Those that were found to be there whose names begin those of other groups' pods, by key.
        self._rivals: dict[str, PodGroup] = {}
        #: The names to suggest instead of one that is not there, asked for once: by mistakes only.
        self._neighbours: dict[str, Sequence[Object]] = {}

    def forget(self) -> None:
        """Read queues and priority classes anew when they are asked for next."""
        self._lists.clear()
        self._classes.clear()
        self._accepted.clear()
        self._rivals.clear()

    # --- groups that others depend on ---------------------------------------------------------

    def note(self, group: PodGroup) -> None:
        """The group is stored now, or counts as such."""
        # No more than its identity is kept: there may be many.
        self._groups[key_of(group)] = group.metadata.uid

    def is_noted(self, key: str) -> bool:
        """Whether a group of this name is known to be stored, or counts as such."""
        return bool(self._groups.get(key))

    def find_groups(self, keys: Iterable[str]) -> None:
        """Look up groups that are not known yet, in one round trip. Raises StoreUnavailable."""
        wanted = list(dict.fromkeys(keys))
        if all(key in self._groups for key in wanted):
            return
        self._before_reading()
        unknown = [key for key in wanted if key not in self._groups]
        there = self._store.get_many("PodGroup", unknown)
        for key in unknown:
            item = there.get(key)
            self._groups[key] = item.metadata.uid if item is not None else ""

    def forget_groups(self) -> None:
        """Whatever bears these names later is looked up anew."""
        self._groups.clear()

    def forget_missing(self) -> None:
        """What was not there may have come since."""
        for key in [key for key, uid in self._groups.items() if not uid]:
            del self._groups[key]

    # --- groups whose pods could be called like others' -----------------------------------------

    def note_rivals(self, groups: Iterable[Object]) -> None:
        """These groups are there: what comes is held against them."""
        for group in groups:
            if isinstance(group, PodGroup):
                # No more than what their pods are called by.
                slim = PodGroup(metadata=group.metadata, spec=group.spec)
                self._rivals[key_of(group)] = slim

    def free_names(self, group: PodGroup) -> tuple[Write, ...]:
        """As `podnames.free_names`, without asking the store: of whom nothing is known must not be
        there when the group is written.

        Raises Rejected.
        """
        keys = rivals(group)
        for key in keys:
            if key in self._rivals:
                check_apart(group, self._rivals[key])
        return tuple(must_not_be_there(key) for key in keys if key not in self._rivals)

    # --- as a Reader ----------------------------------------------------------------------------

    def get(self, kind: str, key: str) -> Object | None:
        """The object, as far as new groups refer to it: of a group, no more than its identity.

        Raises StoreUnavailable.
        """
        if kind == "PodGroup":
            self.find_groups((key,))
            namespace, _, name = key.partition("/")
            uid = self._groups[key]
            return (
                PodGroup(metadata=Metadata(name=name, namespace=namespace, uid=uid))
                if uid
                else None
            )
        if kind == "PriorityClass":
            if key not in self._classes:
                self._before_reading()
                self._classes[key] = self._store.get(kind, key)
            return self._classes[key]
        self._before_reading()
        return self._store.get(kind, key)

    def list(self, kind: str, *, namespace: str = "") -> Sequence[Object]:
        """All objects of a kind. Raises StoreUnavailable."""
        kept = self._neighbours if kind == "PodGroup" else None
        found = self._lists.get((kind, namespace)) if kept is None else kept.get(namespace)
        if found is None:
            self._before_reading()
            found = self._store.list(kind, namespace=namespace)
            if kept is None:
                self._lists[kind, namespace] = found
            else:
                kept[namespace] = found
        return found

    # --- what is written ------------------------------------------------------------------------

    def check(self, group: PodGroup) -> tuple[str, ...]:
        """The admission checks of the group's queue, which is there, as is its priority class.

        Raises NotFound, Rejected, StoreUnavailable.
        """
        place = group.spec.queue, group.spec.priority_class_name
        checks = self._accepted.get(place)
        if checks is None:
            check_references(self, group, None, described=False)
            checks = checks_for(self, group.spec.queue)
            self._accepted[place] = checks
        return checks

    def submission(self, group: PodGroup, *, now_ms: int, uid: str, by: str) -> Transaction:
        """As `create` of a group that is right by itself and whose name is free.

        Raises NotFound (a name in it stands for nothing), Rejected, StoreUnavailable.
        """
        if group.spec.depends_on:
            name = group.metadata.name
            if any(dependency.name == name for dependency in group.spec.depends_on):
                raise circular(group, [name, name])
            group = bind_dependencies(self, group, None, described=False)
        checks = self.check(group)
        meta = group.metadata
        key = f"{meta.namespace}/{meta.name}"
        new = PodGroup(
            metadata=Metadata(
                name=meta.name,
                namespace=meta.namespace,
                labels=meta.labels,
                annotations=meta.annotations,
                uid=uid,
                creation_timestamp=now_ms,
            ),
            spec=group.spec,
            status=PodGroupStatus(
                queue_time=now_ms,
                checks=tuple([CheckState(name=name, since=now_ms) for name in checks]),
                submitted_by=by,
            ),
        )
        message = f"to queue {new.spec.queue} by {by}" if by else f"to queue {new.spec.queue}"
        event = Event(kind="PodGroup", key=key, reason="Submitted", message=message, at=now_ms)
        return Transaction(
            subject=f"PodGroup {key}",
            writes=(Write(kind="PodGroup", key=key, expect=0, value=new), *self.free_names(new)),
            charges=(object_charge(new),),
            events=(event,),
        )


# --- what is there already ------------------------------------------------------------------------


def check_same(stored: PodGroup, wanted: PodGroup) -> None:
    """Whether somebody who submits `wanted` may take `stored`, of the same name, for it.

    What has happened since does not count: gates that were opened, suspended and resumed.
    Raises Conflict, which names what differs.
    """
    field = _first_difference(stored, wanted)
    if field:
        raise Conflict(
            f"{title(stored)} exists already, is {stored.status.phase}, and has another {field}",
            hint="choose another name, or delete it once it has finished",
        )


def _first_difference(stored: PodGroup, wanted: PodGroup) -> str:
    for field in ("labels", "annotations"):
        if getattr(stored.metadata, field) != getattr(wanted.metadata, field):
            return f"metadata.{field}"
    if not set(gates_of(stored.spec)) <= set(gates_of(wanted.spec)):
        return "spec.schedulingGates"
    one, other = _comparable(stored.spec), _comparable(wanted.spec)
    fields = zip(PodGroupSpec.__struct_fields__, PodGroupSpec.__struct_encode_fields__, strict=True)
    for name, written in fields:
        if name not in _MAY_DIFFER and getattr(one, name) != getattr(other, name):
            return f"spec.{written}"
    return ""


def _comparable(spec: PodGroupSpec) -> PodGroupSpec:
    """Without gates, and without what batchq has filled in."""
    return structs.replace(
        spec,
        scheduling_gates=(),
        tasks=tuple(with_task_gates(task, ()) for task in spec.tasks),
        depends_on=tuple(structs.replace(one, uid="") for one in spec.depends_on),
    )
