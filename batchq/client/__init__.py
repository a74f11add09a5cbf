"""The Python API: what the command line calls, and any program may.

    from batchq import Client

    with Client() as client:
        group = client.submit(command=["python3", "train.py"], cpus=4, mem="8Gi", replicas=2)
        [result] = client.wait([group.metadata.name])
        for line in client.logs(group.metadata.name):
            print(line.pod, line.text)

Groups are named `NAME`, which is in namespace `default`, or `NAMESPACE/NAME`. Instants are integer
milliseconds since the epoch by the server's clock, amounts integer units (cpu in thousandths,
memory in bytes, anything else in thousandths), as everywhere in `batchq.api`; where a quantity or
a duration is passed in, people's notation (`500m`, `8Gi`, `2h`) is meant.

Every method may raise StoreUnavailable. All errors are of `batchq.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic, sleep
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from batchq import changes
from batchq.api.objects import (
    DEFAULT,
    KINDS,
    NAMESPACED,
    Node,
    Object,
    Pod,
    PodGroup,
    ResourceQuota,
    key_of,
)
from batchq.api.transaction import Ledger, Transaction
from batchq.changes.object_writes import find
from batchq.client.cluster import nodes_as_heard
from batchq.client.external import Controlling
from batchq.client.plan import Foretelling
from batchq.client.request import (
    Quantity,
    Request,
    Submitted,
    amounts_of,
    group_of,
    requested,
    with_working_dir,
)
from batchq.client.request_fields import key_named, pod_named
from batchq.client.requests import (
    Applied,
    Effect,
    Objects,
    RequestPlan,
    Step,
    commit_planned,
    decoded,
    plan,
    plan_deletion,
)
from batchq.client.submission import Accepted, Refused, Submitting
from batchq.client.why import Explaining
from batchq.errors import Conflict, NotFound
from batchq.ports import Reader

if TYPE_CHECKING:
    from batchq.api.objects import Unreadable
    from batchq.client.cluster import Schedulers
    from batchq.client.group_pages import GroupLook, GroupPages
    from batchq.client.output import LogLine
    from batchq.client.overview import Explanation, GroupView, Overview
    from batchq.client.queues import QueueView
    from batchq.client.watch import Goal, Result
    from batchq.store.mirror import Change
    from batchq.store.pages import Page
    from batchq.store.redis import Listing, RedisStore

# fmt: off
__all__ = [
    "Accepted", "Applied", "Client", "Effect", "Quantity", "Refused", "Request", "key_named",
    "with_working_dir",
]
# fmt: on


class Client(Foretelling, Explaining, Controlling, Submitting):
    """A connection to the server; a context manager. Not to be shared between threads."""

    def __init__(
        self,
        url: str | None = None,
        *,
        store: RedisStore | None = None,
        tell: Callable[[str], None] = lambda sentence: None,
        patience_s: float | None = 0.0,
        component: str = "",
    ) -> None:
        """Connect to `url`, else to BATCHQ_REDIS_URL, else to this machine's embedded server.

        `store` stands in for a connection; it is left open at the end. `tell` hears, once each,
        that the server went away and came back while something is waited for. `patience_s` is
        how long a server that is away now is waited for, None for ever; `waited_s` how long it was.
        `component` is what a program calls itself beside its `user`, in what is remembered of it.
        Raises InvalidInput for a malformed URL, StoreUnavailable if no server answers, or
        WaitTimedOut if it was waited for.
        """
        from batchq.client.connection import checked_component, connect, connect_patiently
        from batchq.system import RandomIds

        self._ids = RandomIds()
        self._tell = tell
        self._component = checked_component(component)
        self._owned = store is None
        self.waited_s = 0.0
        if store is not None:
            self._store: RedisStore = store
        elif patience_s == 0:
            self._store = connect(url)
        else:
            self._store, self.waited_s = connect_patiently(url, tell, patience_s)

    def close(self) -> None:
        """Let go of the connection."""
        if self._owned:
            self._store.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def patiently(self, timeout_s: float | None = None) -> Iterator[None]:
        """In here, a server that is away is waited for, until time is up; as `wait`, `watch` and
        `logs` with `follow` do.
        """
        from batchq.client.connection import patience_of

        with self._store.link.patiently(patience_of(self._tell, timeout_s)):
            yield

    def now_ms(self) -> int:
        """The server's time."""
        return self._store.now_ms()

    # --- submitting and changing ------------------------------------------------------------

    def submit(
        self,
        group: Submitted = None,
        /,
        *,
        dry_run: bool = False,
        **request: Any,
    ) -> PodGroup:
        """Submit one new group and return it as it is stored, but for its revision.

        Either a `group` (an object or its manifest as plain data), or the fields of a `Request`
        as keywords: `command` (a list of words), or `function` (one of a module, or its name
        "package.module:name"; either may be the first argument, too) with `args` and `kwargs` that
        JSON can hold, `name` (made from what runs if left out, or from `generate_name`, with a
        short suffix), `labels`, `annotations`, `namespace`, `queue`, `cpus` (1), `mem`, `gpus`,
        `resources` (name -> quantity, all per pod), `replicas` (1), `min_member` (all), `array`
        ("0-99" or a number of pods), `walltime` and `grace` ("2h" or seconds), `priority_class`,
        `env`, `after` (names, or `any:NAME`, `failed:NAME`), `gates`, `suspend`, `retries` (0),
        `external`, `working_dir` (the caller's folder for a function; "" leaves it to the agent).

        `dry_run` checks everything and writes nothing.
        Raises InvalidInput, UsageError (contradictions), NotFound (queue, priority class or
        dependency), Conflict (the name is taken), Rejected (limits).
        """
        what = requested(group, request)
        if isinstance(what, Request):
            what = self.group_of(what)
        [applied] = self.submit_all([what], dry_run=dry_run)
        assert isinstance(applied.object, PodGroup)
        return applied.object

    def group_of(self, request: Request) -> PodGroup:
        """The group that a request describes, not submitted; a nameless one gets its name here.

        Raises InvalidInput, UsageError.
        """
        return group_of(request, suffix=self._ids.new_uid()[-5:])

    def submit_all(
        self, objects: Objects, *, dry_run: bool = False, keep_stop: Collection[str] = ()
    ) -> Sequence[Applied]:
        """Submit new groups, and `apply` whatever else is among `objects`: all or nothing.

        Raises what `submit` raises.
        """
        return self._request(objects, self._submit_one, dry_run, keep_stop)

    def apply(
        self, objects: Objects, *, dry_run: bool = False, keep_stop: Collection[str] = ()
    ) -> Sequence[Applied]:
        """Create what is not there and change what is: all of it or, if one is refused, nothing.

        A `status` is ignored, and a queue in `keep_stop`, or whose plain data names no stopPolicy,
        keeps its own. `dry_run` checks everything and writes nothing.
        Raises InvalidInput, NotFound, Conflict (a field that cannot change any more), Rejected.
        """
        return self._request(objects, self._apply_one, dry_run, keep_stop)

    def delete(self, kind: str, name: str, *, namespace: str = DEFAULT) -> None:
        """Delete an object; a finished group takes its pods along.

        Raises NotFound, Conflict (something needs it still), Rejected.
        """
        self.delete_all([(kind, name if kind not in NAMESPACED else key_named(name, namespace))])

    def delete_all(
        self, places: Sequence[tuple[str, str]], *, dry_run: bool = False
    ) -> Sequence[Applied]:
        """Delete objects, given as (kind, key): all of them or, if one is refused, none.

        Raises NotFound, Conflict, Rejected.
        """
        return self._commit(partial(plan_deletion, self._store, places), dry_run=dry_run).applied

    def cancel(self, group: str, *, reason: str = "", namespace: str = DEFAULT) -> None:
        """End a group: it is Cancelled at once, its processes are told to stop.

        Raises NotFound, or Conflict if it has ended already.
        """
        key = key_named(group, namespace)
        self._change(lambda now: changes.cancel(self._store, key, now_ms=now, message=reason))

    def suspend(self, group: str, *, namespace: str = DEFAULT) -> bool:
        """Hold a group back; its running pods are stopped. False if it was suspended already.

        Raises NotFound, or Conflict if it has ended already.
        """
        key = key_named(group, namespace)
        return self._change(lambda now: changes.suspend(self._store, key, now_ms=now))

    def resume(self, group: str, *, namespace: str = DEFAULT) -> bool:
        """Let a suspended group stand in line again. False if it was not suspended.

        Raises NotFound, or Conflict if it has ended already.
        """
        key = key_named(group, namespace)
        return self._change(lambda now: changes.resume(self._store, key, now_ms=now))

    def open_gate(self, group: str, gate: str, *, namespace: str = DEFAULT) -> bool:
        """As `gates.open`: False if it was open already."""
        return self.gates.open(group, gate, namespace=namespace)

    # --- looking ----------------------------------------------------------------------------

    def get(self, kind: str, name: str, *, namespace: str = DEFAULT) -> Object:
        """One object; a pod by its name or its uid.

        Raises NotFound, with the nearest name there is.
        """
        if kind == "Pod":
            return pod_named(self._store, key_named(name, namespace))
        key = key_named(name, namespace) if kind in NAMESPACED else name
        item: Object = find(self._store, KINDS[kind], key)
        return item

    def list(self, kind: str, *, namespace: str = "") -> Sequence[Object]:
        """All objects of a kind, of one namespace or of all, by key."""
        return self._store.list(kind, namespace=namespace)

    def listing(self, kind: str, *, namespace: str = "") -> Listing:
        """As `list`, and what stands among them and cannot be read."""
        return self._store.listing(kind, namespace=namespace)

    def count(self, kind: str) -> int:
        """How many objects of a kind there are, also such as cannot be read."""
        from batchq.store.pages import count_objects

        return count_objects(self._store.link, kind)

    def pages(
        self, kind: str, *, namespace: str = "", after: str = "", size: int = 500
    ) -> Iterator[Page]:
        """As `list`, so many at a time, each page read when it is asked for: its `objects`, and
        what is `unreadable` among them. `after` is `client.listing.token_of_object` of the last
        one of a list that was broken off.
        """
        from batchq.client.group_pages import object_pages

        return object_pages(self._store, kind, namespace=namespace, after=after, size=size)

    def job_pages(
        self,
        *,
        namespace: str = "",
        queue: str = "",
        phases: Sequence[str] = (),
        active: bool = False,
        finished: int | None = None,
        after: str = "",
        size: int = 500,
    ) -> GroupPages:
        """As `jobs`, so many groups at a time, the oldest first, each page read when it is asked
        for: its `views`, without places in line, and what is `unreadable` among them.

        `active` leaves out groups that have ended, and `finished` all of these but so many that
        were submitted last. `after` is `client.listing.token_of_view` of the last one of a list
        that was broken off.
        """
        from batchq.client.group_pages import GroupPages

        return GroupPages(
            self._store,
            namespace=namespace,
            queue=queue,
            phases=phases,
            active=active,
            finished=finished,
            after=after,
            size=size,
        )

    def look(self) -> GroupLook:
        """What shows some groups without looking at all the others."""
        from batchq.client.group_pages import GroupLook

        return GroupLook(self._store)

    def unreadable(self, kind: str, *, namespace: str = "") -> Sequence[Unreadable]:
        """What the last `overview` left out of a kind (and namespace) as unreadable."""
        return [
            one
            for one in self._store.unreadable()
            if one.kind == kind and (not namespace or one.key.startswith(namespace + "/"))
        ]

    def discard(self, record: Unreadable) -> None:
        """Delete a record that cannot be read.

        Raises Conflict if something else stands there by now.
        """
        if not self._store.discard(record.kind, record.key):
            raise Conflict(
                f"{record.kind} {record.key} is not, or no longer, unreadable",
                hint="look again: `batchq get`",
            )

    def watch(
        self, *kinds: str, namespace: str = "", timeout_s: float | None = None
    ) -> Iterator[Change]:
        """What there is, then every change, for `timeout_s` seconds or for ever.

        Each Change has kind, key, revision, and value (None: deleted). Nothing is missed: a
        reader that fell behind lists again.
        """
        from batchq.client.connection import checked_seconds
        from batchq.client.watch import Watch, changes_of

        watch = Watch(self._store, kinds or tuple(KINDS), namespace=namespace)
        return changes_of(watch, checked_seconds(timeout_s), self.patiently)

    def wait_for_change(self, *, most_s: float, least_s: float = 0.0) -> None:
        """Return when anything has been written since the last call, after `most_s` at the latest
        and `least_s` at the earliest.
        """
        started = monotonic()
        self._store.wait_for_change(round(most_s * 1000))
        pause_s = least_s - (monotonic() - started)
        if pause_s > 0:
            sleep(pause_s)

    def jobs(
        self, *, namespace: str = "", queue: str = "", phases: Sequence[str] = ()
    ) -> Sequence[GroupView]:
        """Groups as lists show them: place in line, pods by phase, and why they wait."""
        return self.overview().groups(namespace=namespace, queue=queue, phases=phases)

    def queues(self) -> Sequence[QueueView]:
        """Queues as lists show them: what they hold, what waits, what they deserve; as a tree."""
        return self.overview().queues()

    def overview(self) -> Overview:
        """One look at everything, to ask several things of."""
        from batchq.client.overview import Overview

        return Overview(self._store.snapshot(), self._store.now_ms())

    def explain(self, group: str, *, namespace: str = DEFAULT) -> Explanation:
        """Why a group waits: all reasons with fresh numbers, its place in line, who is ahead.

        Raises NotFound.
        """
        self.get("PodGroup", group, namespace=namespace)
        explanation = self.overview().explain(key_named(group, namespace))
        if explanation is None:
            raise NotFound(f"PodGroup {key_named(group, namespace)} was deleted just now")
        return explanation

    def wait(
        self,
        groups: Sequence[str],
        *,
        for_: Goal = "finished",
        timeout_s: float | None = None,
        namespace: str = DEFAULT,
    ) -> Sequence[Result]:
        """Wait until each group is `finished` (ended, its processes too), `succeeded` (as soon as
        one cannot, all return), `running` or `admitted`; the results in the same order.

        Raises NotFound (also for one that is deleted meanwhile) and WaitTimedOut.
        """
        from batchq.client.watch import wait_for

        keys = [key_named(group, namespace) for group in groups]
        with self.patiently(timeout_s):
            return wait_for(self._store, keys, for_, timeout_s)

    def result(
        self, group: str, *, timeout_s: float | None = None, namespace: str = DEFAULT
    ) -> Any:
        """What the function of a group's only pod returned; waits until the group has ended.

        Raises GroupFailed (with what the function raised), GroupCancelled, NotFound (no such
        group, it runs a command, or its result is gone), UsageError (several pods), WaitTimedOut.
        """
        from batchq.client.output import read_result

        with self.patiently(timeout_s):
            return read_result(self._store, key_named(group, namespace), timeout_s)

    def results(
        self,
        group: str,
        *,
        partial: bool = False,
        timeout_s: float | None = None,
        namespace: str = DEFAULT,
    ) -> dict[str, Any]:
        """What the function of each pod of a group returned, by the pod's name, in the order of
        tasks and indices; waits and raises as `result`. `partial`: what there is, also of a group
        that failed or was cancelled.
        """
        from batchq.client.output import read_results

        key = key_named(group, namespace)
        with self.patiently(timeout_s):
            return read_results(self._store, key, timeout_s, partial=partial)

    def logs(
        self,
        group: str,
        *,
        pod: str = "",
        follow: bool = False,
        tail: int | None = None,
        namespace: str = DEFAULT,
    ) -> Iterator[LogLine]:
        """What the latest attempts of a group's pods have written; of much, the newest MiB each.

        `pod` chooses one by its name or `<task>-<index>`; `tail` the last lines of each. With
        `follow` lines go on coming until the group's processes have ended.
        Raises NotFound.
        """
        from batchq.client import output

        key = key_named(group, namespace)
        if not follow:
            return output.read_output(self._store, key, pod=pod, tail=tail)
        lines = output.follow_output(self._store, key, pod=pod, tail=tail)
        return output.patient(lines, self.patiently)

    def pods(self, group: PodGroup) -> Sequence[Pod]:
        """The pods of a group, those of former admissions too, by task and index."""
        from batchq.client.watch import pods_of

        found = pods_of(self._store, group)
        return sorted(found, key=lambda pod: (pod.spec.task, pod.spec.index, key_of(pod)))

    def ledger(self) -> Ledger:
        """What is charged, by scope: `cluster`, `queue:<name>`, `ns:<namespace>`, `node:<name>`."""
        return self._store.ledger()

    def schedulers(self) -> Schedulers:
        """Who leads, and who stands by to lead."""
        from batchq.client.cluster import schedulers

        return schedulers(self._store)

    # --- nodes, queues and quotas -----------------------------------------------------------

    def nodes(self) -> Sequence[Node]:
        """All nodes by name, `status.heartbeat` being when each was last heard of."""
        return nodes_as_heard(self._store)

    def cordon(self, node: str) -> bool:
        """Let no more pods come to a node. False if it was cordoned already. Raises NotFound."""
        return self._change(lambda now: changes.cordon(self._store, node, now_ms=now))

    def uncordon(self, node: str) -> bool:
        """Let pods come to a node again. False if it was not cordoned. Raises NotFound."""
        return self._change(lambda now: changes.uncordon(self._store, node, now_ms=now))

    def wait_until_empty(self, node: str, *, timeout_s: float | None = None) -> int:
        """Wait until no pod is on a node; how many are there after all, when time is up.

        Raises NotFound.
        """
        from batchq.client import watch as waiting

        self.get("Node", node)
        with self.patiently(timeout_s):
            return waiting.wait_until_empty(self._store, node, timeout_s)

    def set_stop_policy(self, queue: str, policy: Literal["None", "Hold", "HoldAndDrain"]) -> bool:
        """Admit nothing to a queue (`Hold`), send back what was, too (`HoldAndDrain`), or let it go
        on (`None`), with the queues below it. False if it was so already. Raises NotFound.
        """
        return self._change(
            lambda now: changes.set_stop_policy(self._store, queue, policy, now_ms=now)
        )

    def quotas(self, namespace: str = "") -> Sequence[ResourceQuota]:
        """The quotas of one namespace, or of all."""
        found = self._store.list("ResourceQuota", namespace=namespace)
        return [quota for quota in found if isinstance(quota, ResourceQuota)]

    def object_limit(self) -> int | None:
        """How many unfinished groups a namespace may have whose quotas do not say otherwise; None
        if no scheduler has ever led.
        """
        from batchq.store.schedulers import read_object_limit

        return read_object_limit(self._store)

    def set_quota(self, namespace: str, hard: Mapping[str, Quantity]) -> bool:
        """Replace the quota `default` of a namespace. False if it was so already.

        Raises InvalidInput.
        """
        amounts = amounts_of(hard)
        uid = self._ids.new_uid()
        return self._change(
            lambda now: changes.set_quota(self._store, namespace, amounts, now_ms=now, uid=uid)
        )

    # --- parts ------------------------------------------------------------------------------

    def _request(
        self, objects: Objects, step: Step, dry_run: bool, keep_stop: Collection[str]
    ) -> Sequence[Applied]:
        wanted, silent = decoded(objects)
        keep, held = silent.union(keep_stop), self._store.ledger
        build = partial(plan, self._store, wanted, step, keep_stop=keep, held=held)
        return self._commit(build, dry_run=dry_run).applied

    def _submit_one(self, reader: Reader, item: Object) -> Transaction | None:
        if not isinstance(item, PodGroup):
            return self._apply_one(reader, item)
        uid, now_ms = self._ids.new_uid(), self._store.now_ms()
        return changes.create(reader, item, now_ms=now_ms, uid=uid, in_part=True, by=self.user)

    def _apply_one(self, reader: Reader, item: Object) -> Transaction | None:
        uid, now_ms = self._ids.new_uid(), self._store.now_ms()
        return changes.apply(reader, item, now_ms=now_ms, uid=uid, in_part=True, by=self.user)

    def _change(self, build: Callable[[int], Transaction | None]) -> bool:
        """Commit what `build` asks for at an instant; whether there was anything to do."""
        done = self._commit(
            lambda: RequestPlan(applied=(), transaction=build(self._store.now_ms())), dry_run=False
        )
        return done.transaction is not None

    def _commit(self, build: Callable[[], RequestPlan], *, dry_run: bool) -> RequestPlan:
        if dry_run:
            return build()
        return commit_planned(self._store, build, self._ids.new_uid)
