"""Write several objects in one request, as one transaction: all of it is committed, or nothing.

A request is planned against the stored objects and against the other objects of the request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct, structs

import batchq.client.changes as changes
from batchq.api.objects import (
    NAMESPACED,
    Object,
    PodGroup,
    Queue,
    ResourceQuota,
    key_of,
    kind_of,
)
from batchq.api.transaction import Ledger, Limit, Refusal, Transaction, Word
from batchq.api.views import Applied, Effect
from batchq.client.changes import (
    NewGroups,
    apply,
    create,
    delete,
    differences,
    explain_refusal,
    in_order,
    rivals,
    settled,
    warnings_of,
)
from batchq.client.changes.object_writes import find, title, too_many_groups
from batchq.client.connection import refuse_live_nodes
from batchq.client.request import Act, Objects, Permit, Submitted, class_of, decoded
from batchq.client.request_fields import Drafts
from batchq.errors import BatchqError, Conflict, InvalidInput, StoreUnavailable
from batchq.ports import Reader
from batchq.store.rules import THE_LEDGER

if TYPE_CHECKING:
    from batchq.store.redis import RedisStore

#: How often a request is planned again because another client was faster.
TRIES = 16
#: Wait between two tries while the leader recounts the ledger, which may take some seconds.
_RECOUNTED_WITHIN_S = 0.6
#: How long queues that were read serve further submissions.
_QUEUES_S = 1.0


#: Returns the transaction for one object, as part of the whole; None if nothing changes.
Step: TypeAlias = Callable[[Reader, Object], Transaction | None]


class Overlay:
    """A Reader of the objects as they will be: it shows recorded writes over the stored state."""

    def __init__(self, below: Reader) -> None:
        self._below = below
        self._over: dict[tuple[str, str], Object | None] = {}
        #: Cached, since every group of a request reads all queues.
        self._queues: Sequence[Object] | None = None

    def record(self, transaction: Transaction) -> None:
        """Show the transaction's writes from now on."""
        for write in transaction.writes:
            if write.is_condition:
                continue
            self._over[write.kind, write.key] = write.value
            if write.kind == "Queue":
                self._queues = None

    def get(self, kind: str, key: str) -> Object | None:
        """Return the object as it will be, or None."""
        if (kind, key) in self._over:
            return self._over[kind, key]
        return self._below.get(kind, key)

    def list(self, kind: str, *, namespace: str = "") -> Sequence[Object]:
        """Return all objects of a kind as they will be, ordered by key."""
        if kind != "Queue":
            return self._list(kind, namespace)
        if self._queues is None:
            self._queues = self._list(kind, "")
        return self._queues

    def _list(self, kind: str, namespace: str) -> Sequence[Object]:
        found: dict[str, Object] = {
            key_of(item): item for item in self._below.list(kind, namespace=namespace)
        }
        for (other, key), item in self._over.items():
            if other != kind:
                continue
            if item is None:
                found.pop(key, None)
            elif kind not in NAMESPACED or namespace in ("", item.metadata.namespace):
                found[key] = item
        return tuple(found[key] for key in sorted(found))


class RecentQueues:
    """The queues as a client has read them last, which serve its next submissions for a second.

    A group whose queue was changed meanwhile is treated like one that was submitted before the
    change. Clients of several threads may share them: a change by one of them is seen by all.
    """

    def __init__(self) -> None:
        self._queues: tuple[Object, ...] = ()
        self._until_s = 0.0
        #: How often they were forgotten.
        self._changes = 0

    def read(self, reader: Reader) -> Sequence[Object]:
        """Return all queues, ordered by key; from the reader if the last ones are too old."""
        if monotonic() < self._until_s:
            return self._queues
        before = self._changes
        found = tuple(reader.list("Queue"))
        # Otherwise they were read before a change that another thread has made meanwhile.
        if before == self._changes:
            self._queues, self._until_s = found, monotonic() + _QUEUES_S
        return found

    def forget(self) -> None:
        """Read the queues again at the next submission."""
        self._changes += 1
        self._until_s = 0.0


class LikelyState:
    """A Reader for the first plan of a submission of groups: they do not exist yet, no other group
    has pods of the same names, and the queues have not changed.

    This spares a round trip for each. The commit finds a group that does exist. After that, or
    after an error in the first plan, the request is planned on the present state.
    """

    def __init__(self, below: Reader, groups: Iterable[PodGroup], queues: RecentQueues) -> None:
        self._below = below
        self._absent = {key for one in groups for key in (key_of(one), *rivals(one))}
        self._queues = queues

    def get(self, kind: str, key: str) -> Object | None:
        """Return the object, or None."""
        if kind == "PodGroup" and key in self._absent:
            return None
        return self._below.get(kind, key)

    def list(self, kind: str, *, namespace: str = "") -> Sequence[Object]:
        """Return all objects of a kind, ordered by key."""
        if kind == "Queue":
            return self._queues.read(self._below)
        return self._below.list(kind, namespace=namespace)


class RequestPlan(Struct, frozen=True, kw_only=True):
    """The effect of a request on each of its objects, and the transaction, if anything changes."""

    applied: tuple[Applied, ...]
    transaction: Transaction | None


def plan_steps(
    reader: Reader,
    objects: Sequence[Object],
    step: Step,
    *,
    last_first: bool = False,
    keep_stop: Collection[str] = (),
    held: Callable[[], Ledger] = dict,
) -> RequestPlan:
    """Call `step` for every object, referenced objects first (or last, with `last_first`).

    Queues in `keep_stop` keep their stored stopPolicy. `held` reads the ledger's sums. Nothing is
    written.

    Raises what `step` raises, and InvalidInput for an object that is given twice.
    """
    _check_once(objects)
    overlay = Overlay(reader)
    applied: dict[tuple[str, str], Applied] = {}
    transactions = []
    order = in_order(objects)
    for item in reversed(order) if last_first else order:
        place = kind_of(item), key_of(item)
        before = overlay.get(*place)
        kept = _with_stored_stop(before, item) if key_of(item) in keep_stop else item
        transaction = step(overlay, kept)
        if transaction is not None:
            overlay.record(transaction)
            transactions.append(transaction)
        one = _applied(item, before, overlay.get(*place), transaction is not None)
        applied[place] = structs.replace(one, warnings=_kept_stop_warnings(item, kept))
    whole = settled(reader, merged(transactions)) if transactions else None
    for place, sentences in (warnings_of(reader, whole, held) if whole else {}).items():
        # Not the queue `default`, which may be written along with others.
        if place in applied:
            one = applied[place]
            applied[place] = structs.replace(one, warnings=(*one.warnings, *sentences))
    return RequestPlan(
        applied=tuple(applied[kind_of(item), key_of(item)] for item in objects),
        transaction=whole,
    )


def permitted(step: Step, permit: Permit | None) -> Step:
    """Return a step that asks `permit` about the very state that it goes on from."""
    if permit is None:
        return step

    def asking(reader: Reader, item: Object) -> Transaction | None:
        place = kind_of(item), key_of(item)
        for _ in range(TRIES):
            before = reader.get(*place)
            permit(before, item)
            transaction = step(reader, item)
            expected = 0 if before is None else before.metadata.revision
            writes = () if transaction is None else transaction.writes
            if all(one.expect == expected for one in writes if (one.kind, one.key) == place):
                return transaction
        raise Conflict(f"{title(item)} is being changed by others", hint="try again")

    return asking


def plan_writes(
    store: RedisStore,
    new_uid: Callable[[], str],
    verb: Literal["submit", "apply"],
    objects: Objects,
    user: Callable[[], str],
    keep_stop: Collection[str],
    permit: Permit | None,
    queues: RecentQueues | None,
) -> Callable[[], RequestPlan]:
    """Return a function that plans a request on the present state; see `Client.submit_all` and
    `Client.apply`. With `queues`, its first plan of a submission is on the likely state.

    Raises InvalidInput, Rejected.
    """
    wanted, silent = decoded(objects)
    refuse_groups_beyond_limits(store, wanted)

    def step(reader: Reader, item: Object) -> Transaction | None:
        write = create if verb == "submit" and isinstance(item, PodGroup) else apply
        now_ms, uid = store.now_ms(), new_uid()
        return write(reader, item, now_ms=now_ms, uid=uid, in_part=True, by=user())

    groups = [one for one in wanted if isinstance(one, PodGroup)]
    are_new = verb == "submit" and len(groups) == len(wanted)
    likely = LikelyState(store, groups, queues) if queues and are_new else None

    def plan() -> RequestPlan:
        nonlocal likely
        reader, likely = likely, None
        keep, asking = silent.union(keep_stop), permitted(step, permit)
        if reader is not None:
            try:
                return plan_steps(reader, wanted, asking, keep_stop=keep, held=store.ledger)
            except StoreUnavailable:
                raise
            except BatchqError:
                # The present state may tell otherwise.
                pass
        return plan_steps(store, wanted, asking, keep_stop=keep, held=store.ledger)

    return plan


def plan_deletion(
    store: RedisStore, places: Sequence[tuple[str, str]], *, permit: Permit | None = None
) -> RequestPlan:
    """Plan to delete the objects given as (kind, key), referring objects before referenced ones.

    Raises NotFound, Conflict, Rejected.
    """

    def remove(reader: Reader, item: Object) -> Transaction:
        kind, key = kind_of(item), key_of(item)
        return delete(reader, kind, key, now_ms=store.now_ms(), in_part=True)

    found: list[Object] = [find(store, class_of(kind), key) for kind, key in places]
    refuse_live_nodes(store, found)
    return plan_steps(store, found, permitted(remove, permit), last_first=True)


class RequestWriter:
    """Plans and commits the requests of one client, in whose `user`'s name they are recorded."""

    def __init__(
        self,
        store: RedisStore,
        new_uid: Callable[[], str],
        user: Callable[[], str],
        queues: RecentQueues | None = None,
    ) -> None:
        self._store = store
        self._new_uid = new_uid
        self._user = user
        self._queues = queues or RecentQueues()
        self._drafts = Drafts({})
        self._arrivals = NewGroups(store)
        self._read: Sequence[Object] | None = None

    def submit_likely(
        self, what: Submitted, fields: Mapping[str, Any], permit: Permit | None = None
    ) -> PodGroup | None:
        """Submit one group, and return it as stored. Only its differences from a former group are
        checked, and only queues are read.

        Returns None and writes nothing if the group cannot be accepted in this way; a plan on the
        stored state shows why. `permit` is called with the group, and
        may raise. See `Client.submit`.
        """
        uid = self._new_uid()
        try:
            group = self._drafts.draft_of(what, fields, uid[-5:]).group
            if group.spec.depends_on or group.spec.priority_class_name:
                return None
            queues = self._queues.read(self._store)
            if queues is not self._read:
                self._read = queues
                self._arrivals.take_queues(queues)
            transaction = self._arrivals.submission(
                group, now_ms=self._store.now_ms(), uid=uid, by=self._user()
            )
        except StoreUnavailable:
            raise
        except BatchqError:
            return None
        if permit is not None:
            permit(None, group)
        # The uid is new with each call, so it can stand for the request.
        commit = self._store.commit([transaction], request_id=uid)
        if commit.refused:
            return None
        stored = transaction.writes[0].value
        assert isinstance(stored, PodGroup)
        return stored

    def write(
        self,
        verb: Literal["submit", "apply"],
        objects: Objects,
        dry_run: bool,
        keep_stop: Collection[str],
        permit: Permit | None,
    ) -> Sequence[Applied]:
        """Submit or apply objects; see `Client.submit_all` and `Client.apply`."""
        given = self._store, self._new_uid, verb, objects, self._user, keep_stop, permit
        plan = plan_writes(*given, queues=None if dry_run else self._queues)
        return (plan() if dry_run else self._commit(plan)).applied

    def delete(
        self, places: Sequence[tuple[str, str]], dry_run: bool, permit: Permit | None
    ) -> Sequence[Applied]:
        """Delete objects; see `Client.delete_all`."""
        plan = partial(plan_deletion, self._store, places, permit=permit)
        return (plan() if dry_run else self._commit(plan)).applied

    def act(self, verb: Act, place: str, **given: Any) -> bool:
        """Commit a change of the object at `place`; return whether there was anything to do."""
        build = getattr(changes, verb)
        if verb == "cordon":
            given["user"] = self._user()
        return self.change(lambda now_ms: build(self._store, place, now_ms=now_ms, **given))

    def change(self, build: Callable[[int], Transaction | None]) -> bool:
        """Commit what `build` returns for the present time; return whether it returned anything."""
        now = self._store.now_ms
        done = self._commit(lambda: RequestPlan(applied=(), transaction=build(now())))
        return done.transaction is not None

    def _commit(self, build: Callable[[], RequestPlan]) -> RequestPlan:
        """Plan and commit; plan again if another client has changed what the plan depends on.

        If an answer is lost, the store repeats the call under the same request id, so a refusal is
        never caused by this client's own earlier success.
        """
        for tried in range(1, TRIES + 1):
            planned = build()
            if planned.transaction is None:
                return planned
            commit = self._store.commit([planned.transaction], request_id=self._new_uid())
            if any(one.kind == "Queue" for one in planned.transaction.writes):
                self._queues.forget()
            if not commit.refused:
                return planned
            refusal = commit.refused[0]
            if refusal.answer.word not in (Word.CONFLICT, Word.FENCED) or tried == TRIES:
                raise explain_refusal(refusal)
            wait_for_recount(commit.refused)
        raise AssertionError("the last try returns or raises")


def wait_for_recount(refused: Iterable[Refusal]) -> None:
    """Wait a little before the next try if an unreadable sum or charge is the cause."""
    if any(one.answer.subject == THE_LEDGER for one in refused):
        sleep(_RECOUNTED_WITHIN_S)


def merged(transactions: Sequence[Transaction]) -> Transaction:
    """Return one transaction with all writes: all happen or none does."""
    if len(transactions) == 1:
        return transactions[0]
    writes = [write for transaction in transactions for write in transaction.writes]
    written = {(write.kind, write.key) for write in writes if not write.is_condition}
    conditions = {(write.kind, write.key): write for write in writes if write.is_condition}
    # Of two limits of one scope the later counts: it was computed with the earlier objects.
    limits: dict[str, Limit] = {
        limit.scope: limit for transaction in transactions for limit in transaction.limits
    }
    return Transaction(
        subject=f"the request of {len(transactions)} objects",
        writes=(
            *(write for write in writes if not write.is_condition),
            # A condition on an object that this request creates was checked against the overlay.
            *(write for place, write in conditions.items() if place not in written),
        ),
        charges=tuple(charge for transaction in transactions for charge in transaction.charges),
        limits=tuple(limits.values()),
        deliveries=tuple(one for transaction in transactions for one in transaction.deliveries),
        events=tuple(event for transaction in transactions for event in transaction.events),
    )


def _applied(item: Object, before: Object | None, after: Object | None, changed: bool) -> Applied:
    if after is None:
        return Applied(object=before or item, effect=Effect.DELETED)
    if not changed:
        return Applied(object=after, effect=Effect.UNCHANGED)
    if before is None:
        return Applied(object=after, effect=Effect.CREATED)
    changes = differences(before, after)
    return Applied(object=after, effect=Effect.CONFIGURED, changes=changes)


def _with_stored_stop(stored: Object | None, item: Object) -> Object:
    if not isinstance(stored, Queue) or not isinstance(item, Queue):
        return item
    spec = structs.replace(item.spec, stop_policy=stored.spec.stop_policy)
    return structs.replace(item, spec=spec)


def _kept_stop_warnings(item: Object, kept: Object) -> tuple[str, ...]:
    """Return a warning that an applied queue stays stopped, which its author may not expect."""
    if item == kept or not isinstance(kept, Queue):
        return ()
    name, policy = kept.metadata.name, kept.spec.stop_policy
    sentence = (
        f"Queue {name} stays stopped ({policy}), since the manifest does not set stopPolicy;"
        f" `batchq queues resume {name}` resumes it"
    )
    return (sentence,)


def _check_once(objects: Sequence[Object]) -> None:
    seen: set[tuple[str, str]] = set()
    for item in objects:
        place = kind_of(item), key_of(item)
        if place in seen:
            raise InvalidInput(
                f"{title(item)} is given twice in one request", hint="keep one of the two"
            )
        seen.add(place)


def refuse_groups_beyond_limits(store: RedisStore, objects: Sequence[Object]) -> None:
    """Raise Rejected, before anything is planned, if the new groups of a request exceed the limit
    of a namespace. A single group, and a quota in the same request, are left to the commit.
    """
    own = {one.metadata.namespace for one in objects if isinstance(one, ResourceQuota)}
    groups: dict[str, set[str]] = defaultdict(set)
    for one in objects:
        if isinstance(one, PodGroup) and one.metadata.namespace not in own:
            groups[one.metadata.namespace].add(key_of(one))
    for keys in groups.values():
        if len(keys) > 1:
            subject = f"the request of {len(objects)} objects"
            refuse_too_many_groups(store, keys, subject, what="the request")


def refuse_too_many_groups(
    store: RedisStore, keys: Collection[str], subject: str, *, what: str, in_part: bool = False
) -> int | None:
    """Return how many more groups the namespace of these keys permits; None without a limit.

    `what` is the request or the file that the keys are from, `in_part` whether more may follow.

    Raises Rejected, without planning anything, if those that do not exist exceed the limit.
    """
    # A client that sends nothing need not load the store.
    from batchq.store.schedulers import read_object_counts

    namespace = next(iter(keys)).partition("/")[0]
    counts = read_object_counts(store, namespace)
    if counts is None:
        return None
    limit, present = counts
    new = len(keys)
    if present + new > limit:
        new -= len(store.get_many("PodGroup", list(keys)))
    if present + new > limit:
        added = f"{what} adds {new}{' or more' if in_part else ''}"
        raise too_many_groups(subject, namespace, limit=limit, present=present, added=added)
    return limit - present - new
