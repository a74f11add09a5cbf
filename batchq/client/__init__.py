"""The Python API, which the command line uses and any program may use.

    from batchq import Client

    with Client() as client:
        group = client.submit(command=["python3", "train.py"], cpus=4, mem="8Gi", replicas=2)
        [result] = client.wait([group.metadata.name])
        for line in client.logs(group.metadata.name):
            print(line.pod, line.text)

A group is named `NAME`, which means namespace `default`, or `NAMESPACE/NAME`. As everywhere in
`batchq.api`, instants are integer milliseconds since the epoch by the server's clock, and amounts
are integer units (cpu in thousandths, memory in bytes, other resources in thousandths). Arguments
that are quantities or durations also accept the usual notation (`500m`, `8Gi`, `2h`).

Every method may raise StoreUnavailable. All errors are defined in `batchq.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Literal

from msgspec import structs

from batchq.api.objects import (
    DEFAULT,
    KINDS,
    Node,
    Object,
    Pod,
    PodGroup,
    ResourceQuota,
    key_of,
)
from batchq.api.views import Accepted, Applied, Effect, Refused, Tally
from batchq.client.request import (
    Act,
    GroupName,
    Objects,
    Permit,
    Quantity,
    Request,
    Submitted,
    amounts_of,
    check_lines,
    class_of,
    group_of,
    key_named,
    key_of_kind,
    keys_named,
    with_working_dir,
)
from batchq.core.quota import ROOT
from batchq.errors import BatchqError, Conflict

if TYPE_CHECKING:
    from batchq.api import views
    from batchq.api.objects import Unreadable
    from batchq.api.transaction import Event, Ledger
    from batchq.client.checks import Checks, Gates
    from batchq.client.external import External
    from batchq.client.outcomes import TrialScheduler
    from batchq.client.overview import Overview
    from batchq.client.pods import PodCommands
    from batchq.client.requests import RecentQueues, RequestWriter
    from batchq.client.submission import Existing, Submission
    from batchq.client.watch import GroupLook, GroupPages
    from batchq.ports import IdSource
    from batchq.store.redis import Listing, RedisStore

# fmt: off
__all__ = [
    "ROOT", "Accepted", "Applied", "Client", "Effect", "Quantity", "Refused", "Request",
    "key_named", "with_working_dir",
]
# fmt: on


class Client:
    """A connection to the server; a context manager. One client must not be shared by threads."""

    def __init__(
        self,
        url: str | None = None,
        *,
        store: RedisStore | None = None,
        tell: Callable[[str], None] = lambda sentence: None,
        patience_s: float | None = 0.0,
        component: str = "",
        queues: RecentQueues | None = None,
    ) -> None:
        """Connect to `url`, else to BATCHQ_REDIS_URL, else to this machine's embedded server.

        `store` replaces the connection; `close` leaves it open. `tell` is called with one sentence
        when the server goes away during a wait, and with one when it comes back. `patience_s` is
        the longest wait for a server that does not answer now (seconds; None: for ever), and
        `waited_s` is how long it took. `component` is the program's own name, which is recorded
        beside its `user`. `queues`: what several clients of one program have read last.

        Raises InvalidInput for a malformed URL, StoreUnavailable if no server answers, or
        WaitTimedOut if none answers within `patience_s`.
        """
        from batchq.client.connection import checked_component, connect, connect_patiently

        self._tell = tell
        self._component = checked_component(component)
        self._owned = store is None
        self._queues = queues
        self.waited_s = 0.0
        if store is not None:
            self._store: RedisStore = store
        elif patience_s == 0:
            self._store = connect(url)
        else:
            self._store, self.waited_s = connect_patiently(url, tell, patience_s)

    def close(self) -> None:
        """Close the connection, unless it was passed in as `store`."""
        if self._owned:
            self._store.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def patiently(self, timeout_s: float | None = None) -> Iterator[None]:
        """Wait in this context for a server that is away, for at most `timeout_s` seconds.

        `wait`, `watch` and `logs` with `follow` do so without it.
        """
        from batchq.client.connection import patience_of

        with self._store.link.patiently(patience_of(self._tell, timeout_s)):
            yield

    @cached_property
    def _ids(self) -> IdSource:
        from batchq.system import RandomIds

        return RandomIds()

    def now_ms(self) -> int:
        """Return the server's time."""
        return self._store.now_ms()

    @cached_property
    def user(self) -> str:
        """The name under which the server records this client's requests: the server's user, or
        the login and host, preceded by the `component`.
        """
        from batchq.client.connection import user_of

        return user_of(self._store, self._component)

    @cached_property
    def gates(self) -> Gates:
        """The scheduling gates, opened by people and by controllers of yours."""
        from batchq.client.checks import Gates

        return Gates(self._store, self._writer.change, lambda: self.user)

    @cached_property
    def external(self) -> External:
        """The external groups, claimed and run by programs of yours."""
        from batchq.client.external import External

        return External(self._store, self._writer.change)

    @cached_property
    def checks(self) -> Checks:
        """The admission checks, answered by controllers of yours."""
        from batchq.client.checks import Checks

        return Checks(self._store, self._writer.change, self._tell)

    @cached_property
    def commands(self) -> PodCommands:
        """Commands in running pods."""
        from batchq.client.pods import PodCommands

        return PodCommands(self._store, self._writer.change, lambda: self.user)

    def submit(
        self,
        group: Submitted = None,
        /,
        *more: object,
        dry_run: bool = False,
        **request: Any,
    ) -> PodGroup:
        """Submit one new group and return it as stored, without its revision.

        Pass either a `group` (an object, or its manifest as plain data) or the fields of a
        `Request` as keywords: `command` (a list of words) or `function` (a function of a module, or
        its name "package.module:name"); either may also be the first argument. `args` and `kwargs`
        are the function's and must be representable in JSON. `name` is derived from the command or
        function, or from `generate_name`, with a short suffix if it is left out. The others are
        `labels`, `annotations`, `namespace`, `queue`, `cpus` (1), `mem`, `gpus`, `resources` (name
        -> quantity, all per pod), `node_selector` (label -> value), `nodes` and `exclude_nodes`
        (names), `tolerations` ("KEY=VALUE:NoSchedule"), `topology` (label of nodes -> "required" or
        "preferred": all pods where it has one value), `exclusive` (no pods of other groups on its
        nodes), `max_pods_per_node`, `pack` (on as few nodes as possible), `replicas` (1),
        `min_member` (all), `array` ("0-99" or a number of pods), `walltime` and `grace` ("2h" or
        seconds), `priority_class`, `env`, `after` (names, or `any:NAME`, `failed:NAME`), `gates`,
        `suspend`, `retries` (0), `external`, `api_token` (its pods may use the HTTP API), `share`
        (its namespace may read its output there), `launch` ("torch", "node", "rank", "dask"; with
        `ports`, `processes`, `dialect`, `restart`, `warn`), `working_dir` (a function's default is
        the caller's; "" leaves it to the agent), `env_activate` (the folder of a virtual
        environment), `stdin` (its input stays open), `image`, `runtime` ("auto"), `mounts`
        ("SRC:DST:ro") and `isolate` ("devices").

        `dry_run` checks everything and writes nothing.
        Raises InvalidInput, UsageError (contradictions), NotFound (queue, priority class or
        dependency), Conflict (the name is taken), Rejected (limits).
        """
        from batchq.client.request_fields import requested, submit_one, warn_of_memory

        warn_of_memory(request)
        if not (dry_run or more) and (stored := self.submit_likely(group, request)) is not None:
            return stored
        what = requested(group, request, more)
        return submit_one(what, self.group_of, partial(self.submit_all, dry_run=dry_run))

    def group_of(self, request: Request) -> PodGroup:
        """Return the group that a request describes, with a generated name if it has none.

        Nothing is submitted. Raises InvalidInput, UsageError.
        """
        return group_of(request, suffix=self._ids.new_uid()[-5:])

    def submit_likely(
        self, what: Submitted, fields: Mapping[str, Any], permit: Permit | None = None
    ) -> PodGroup | None:
        """As `submit`, but at less cost, since similar groups are remembered.

        Returns None if the group cannot be accepted so; nothing is written then. `permit` is called
        as by `apply`.
        """
        return self._writer.submit_likely(what, fields, permit)

    def submit_all(
        self,
        objects: Objects,
        *,
        dry_run: bool = False,
        keep_stop: Collection[str] = (),
        permit: Permit | None = None,
    ) -> Sequence[Applied]:
        """Submit the new groups among `objects` and `apply` the others: all or nothing.

        `permit` is called as by `apply`. Raises the errors of `submit`.
        """
        return self._write("submit", objects, dry_run, keep_stop, permit)

    def submit_many(
        self,
        requests: Iterable[Submitted],
        /,
        *,
        existing: Existing = "refuse",
        keep_going: bool = True,
        dry_run: bool = False,
        progress: Callable[[Tally], None] | None = None,
        **defaults: Any,
    ) -> Submission:
        """Submit many new groups in batches, and return an iterator over their outcomes.

        `requests` may be an iterator and is never held in memory as a whole. Each is what `submit`
        accepts as its first argument, or a dict of its keywords, completed by `defaults`. Iterate
        over the result, or call its `all()`: it yields for each request, in order, an `Accepted`
        with its `place` (from 0) and its `group`, or a `Refused` with the `error` that `submit`
        would have raised. Each group is accepted or refused independently, and may depend on
        earlier groups.

        With `existing="keep"`, a request whose name is taken by an equal group is accepted as
        `unchanged`, so an interrupted submission can be repeated. Without `keep_going`, nothing is
        sent after a batch with a refusal. `progress` is called with a `Tally` after each batch.
        `dry_run` checks everything and writes nothing; it holds every name in memory.

        Raises InvalidInput for invalid defaults. The iteration raises StoreUnavailable, after which
        it may continue.
        """
        from batchq.client.submission import Submission

        return Submission(
            self._store,
            self._ids,
            requests,
            defaults,
            user=lambda: self.user,
            existing=existing,
            keep_going=keep_going,
            dry_run=dry_run,
            progress=progress,
        )

    def checker(self, **defaults: Any) -> Callable[[Submitted], BatchqError | None]:
        """Return a function that checks one request and returns its error, or None.

        It checks the request, its queue and its priority class, but not whether its name is taken
        or its dependencies exist. It reads queues and priority classes once.

        Raises InvalidInput for invalid defaults; the function raises StoreUnavailable.
        """
        from batchq.client.submission import Checker

        return Checker(self._store, defaults)

    def apply(
        self,
        objects: Objects,
        *,
        dry_run: bool = False,
        keep_stop: Collection[str] = (),
        permit: Permit | None = None,
    ) -> Sequence[Applied]:
        """Create the objects that do not exist and change the others; all or nothing.

        A `status` is ignored. A queue keeps its stored stopPolicy if it is in `keep_stop` or if its
        plain data has no stopPolicy. `dry_run` checks everything and writes nothing. `permit` is
        called with each object as stored (or None) and as wanted, and may raise.
        Raises InvalidInput, NotFound, Conflict (a field can no longer change), Rejected.
        """
        return self._write("apply", objects, dry_run, keep_stop, permit)

    def delete(self, kind: str, name: str, *, namespace: str = DEFAULT) -> None:
        """Delete an object; the pods of a finished group are deleted with it.

        Raises NotFound, Conflict (another object still needs it), Rejected.
        """
        self.delete_all([(kind, key_of_kind(kind, name, namespace))])

    def delete_all(
        self,
        places: Sequence[tuple[str, str]],
        *,
        dry_run: bool = False,
        permit: Permit | None = None,
    ) -> Sequence[Applied]:
        """Delete objects, given as (kind, key): all of them or, if one is refused, none.

        `permit` is called as by `apply`. Raises NotFound, Conflict, Rejected.
        """
        return self._writer.delete(places, dry_run, permit)

    def cancel(
        self, group: GroupName, *, reason: str = "", namespace: str = DEFAULT, uid: str = ""
    ) -> None:
        """End a group: it becomes Cancelled at once, and its processes are asked to stop.

        With `uid`, only the group of this uid is ended, not a later one of its name.
        Raises NotFound, or Conflict if it has ended already.
        """
        self._act("cancel", key_named(group, namespace), uid=uid, message=reason)

    def suspend(self, group: GroupName, *, namespace: str = DEFAULT, uid: str = "") -> bool:
        """Suspend a group and stop its running pods. Return False if it was suspended already.

        `uid` is as for `cancel`. Raises NotFound, or Conflict if it has ended already.
        """
        return self._act("suspend", key_named(group, namespace), uid=uid)

    def resume(self, group: GroupName, *, namespace: str = DEFAULT, uid: str = "") -> bool:
        """Return a suspended group to the pending queue. Return False if it was not suspended.

        `uid` is as for `cancel`. Raises NotFound, or Conflict if it has ended already.
        """
        return self._act("resume", key_named(group, namespace), uid=uid)

    def open_gate(self, group: GroupName, gate: str, *, namespace: str = DEFAULT) -> bool:
        """Open a gate, as `gates.open` does."""
        return self.gates.open(group, gate, namespace=namespace)

    def get(self, kind: str, name: GroupName, *, namespace: str = DEFAULT) -> Object:
        """Return one object. A pod is found by its name or by its uid.

        Raises NotFound, with the nearest existing name as a hint.
        """
        from batchq.client.changes.object_writes import find
        from batchq.client.connection import with_heartbeats
        from batchq.client.request_fields import pod_named

        if kind == "Pod":
            return pod_named(self._store, key_named(name, namespace))
        key = key_of_kind(kind, name, namespace)
        return with_heartbeats(self._store, [find(self._store, class_of(kind), key)])[0]

    def list(self, kind: str, *, namespace: str = "") -> Sequence[Object]:
        """Return all objects of a kind in one namespace, or in all of them, ordered by key."""
        return self.listing(kind, namespace=namespace).objects

    def listing(self, kind: str, *, namespace: str = "") -> Listing:
        """Return what `list` returns, and the records among them that cannot be read."""
        from batchq.client.connection import with_heartbeats

        found = self._store.listing(class_of(kind).__name__, namespace=namespace)
        return structs.replace(found, objects=with_heartbeats(self._store, found.objects))

    def count(self, kind: str) -> int:
        """Return the number of stored objects of a kind, including unreadable ones."""
        from batchq.store.pages import count_objects

        return count_objects(self._store.link, class_of(kind).__name__)

    def pages(
        self, kind: str, *, namespace: str = "", after: str = "", size: int = 500
    ) -> Iterator[views.Page]:
        """Iterate over what `list` returns, in pages of `size` objects.

        A page is read when the iteration reaches it; it has the `objects` and `unreadable` records.
        `after` continues a list: it is `batchq.client.watch.token_of_object` of its last object.
        """
        from batchq.client.watch import object_pages

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
        """Iterate over what `jobs` returns, oldest group first, in pages of `size` groups.

        A page is read when the iteration reaches it; it has the `views`, without positions in line,
        and the `unreadable` records among them. `active` leaves out the groups that have ended;
        `finished` leaves out all of these except the given number that were submitted last. To
        continue an interrupted list, pass `batchq.client.watch.token_of_view` of its last view as
        `after`.
        """
        from batchq.client.watch import GroupPages

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
        """Return an object that shows some groups without reading all the others."""
        from batchq.client.watch import GroupLook

        return GroupLook(self._store)

    def unreadable(self, kind: str, *, namespace: str = "") -> Sequence[Unreadable]:
        """Return the records of a kind that the last `overview` left out as unreadable."""
        return [
            one
            for one in self._store.unreadable()
            if one.kind == kind and (not namespace or one.key.startswith(namespace + "/"))
        ]

    def discard(self, record: Unreadable) -> None:
        """Delete a record that cannot be read. Raises Conflict if it is readable or gone by now."""
        if not self._store.discard(record.kind, record.key):
            raise Conflict(
                f"{record.kind} {record.key} is not, or no longer, unreadable",
                hint="look again: `batchq get`",
            )

    def watch(
        self, *kinds: str, namespace: str = "", timeout_s: float | None = None
    ) -> Iterator[views.Change]:
        """Yield the objects that exist, then every change, for `timeout_s` seconds or for ever.

        A Change has kind, key, revision, and value (None if the object was deleted). No change is
        lost: a reader that falls behind lists all objects again.
        """
        from batchq.client.connection import checked_seconds
        from batchq.client.watch import Watch, changes_of

        watch = Watch(self._store, kinds or tuple(KINDS), namespace=namespace)
        return changes_of(watch, checked_seconds(timeout_s), self.patiently)

    def wait_for_change(self, *, most_s: float, least_s: float = 0.0) -> None:
        """Wait until something was written after the previous call returned.

        Returns after `most_s` seconds at the latest and `least_s` seconds at the earliest.
        """
        started = monotonic()
        self._store.wait_for_change(round(most_s * 1000))
        sleep(max(0.0, least_s - (monotonic() - started)))

    def jobs(
        self, *, namespace: str = "", queue: str = "", phases: Sequence[str] = ()
    ) -> Sequence[views.GroupView]:
        """Return groups as lists show them: position in line, pods by phase, and why they wait."""
        return self.overview().groups(namespace=namespace, queue=queue, phases=phases)

    def queues(self) -> Sequence[views.QueueView]:
        """Return the queue tree: usage, pending requests and deserved share of each queue."""
        return self.overview().queues()

    def overview(self) -> Overview:
        """Read a snapshot that answers several questions."""
        from batchq.client.connection import scheduler_settings
        from batchq.client.overview import Overview

        settings = partial(scheduler_settings, self._store)
        return Overview(self._store.snapshot(), self._store.now_ms(), settings=settings)

    def why(
        self, group: GroupName, *, namespace: str = DEFAULT, or_defaults: bool = False
    ) -> views.Why:
        """Explain why a group waits: every reason with current numbers and a remedy, its position,
        the groups ahead, why no victims are evicted for it, whether it can ever run, and when it
        may start. For a group that no longer waits: how long it waited, and why.

        The scheduler's own session runs here on the current state; nothing is written.
        Raises NotFound, and InvalidInput if this machine cannot use the scheduler's configuration,
        unless the default one may replace it (`or_defaults`).
        """
        from batchq.client.why import explain_stored

        return explain_stored(self._store, key_named(group, namespace), or_defaults=or_defaults)

    def events(
        self,
        *,
        kind: str = "",
        key: str = "",
        namespace: str = "",
        reason: str = "",
        since_ms: int = 0,
        most: int = 100,
    ) -> Sequence[Event]:
        """Return the latest events, oldest first, filtered by kind, object (`key`), namespace (only
        namespaced objects), reason, and time (not before `since_ms`).

        The server keeps the latest 10,000 events of all objects.
        """
        if not (namespace or reason or since_ms):
            return self._store.events(kind=kind, key=key, most=most)
        from batchq.client.watch import event_filter, latest_events

        wanted = event_filter(kind, key, namespace, reason, since_ms)
        return latest_events(self._store, wanted, most)

    def follow_events(
        self,
        *,
        kind: str = "",
        key: str = "",
        namespace: str = "",
        reason: str = "",
        since_ms: int = 0,
        most: int = 100,
    ) -> Iterator[Sequence[Event]]:
        """Yield the latest events as `events` does, then new ones for ever, in batches.

        An empty batch comes every few seconds, so that the caller may stop. The iteration waits for
        a server that is away.
        """
        from batchq.client.watch import event_filter, followed_events

        wanted = event_filter(kind, key, namespace, reason, since_ms)
        return followed_events(self._store, wanted, most, self.patiently)

    def plan(
        self, objects: Objects, *, keep_stop: Collection[str] = (), advise: bool = True
    ) -> views.Plan:
        """Return what the scheduler's next session would decide about new groups if they were
        submitted now and the other `objects` applied. Nothing is written, and no right to write is
        needed.

        For groups that would wait, it also tries what would help, unless `advise` is False; this
        takes a few more sessions.
        Raises what `submit_all` raises, and InvalidInput if there is no group or this machine
        cannot use the scheduler's configuration.
        """
        from batchq.client.plan import plan_request

        new_uid = self._ids.new_uid
        return plan_request(self._store, objects, new_uid, keep_stop=keep_stop, advise=advise)

    def starts(self, *, namespace: str = "", queue: str = "") -> views.Starts:
        """Return when waiting groups are expected to start, the earliest first; of one namespace,
        of one queue and those below it. Nothing is written, and no right to write is needed.

        Groups ahead count, each for its whole walltime; at most 1,000 groups in line are planned.
        Raises InvalidInput if this machine cannot use the scheduler's configuration.
        """
        from batchq.client.outcomes import TrialScheduler, starts_of

        return starts_of(TrialScheduler.open(self._store), namespace=namespace, queue=queue)

    def deciding(self) -> TrialScheduler:
        """Return the server's state and time, and a scheduler with the configuration that the
        leader has published; nothing is written.

        Raises InvalidInput if this machine cannot use that configuration.
        """
        from batchq.client.outcomes import TrialScheduler

        return TrialScheduler.open(self._store)

    def wait(
        self,
        groups: GroupName | Sequence[GroupName],
        *,
        for_: views.Goal = "finished",
        timeout_s: float | None = None,
        namespace: str = DEFAULT,
    ) -> Sequence[views.Result]:
        """Wait until every group (a list, or one) has reached a goal; return the results in order.

        The goals: `finished` (the group and its processes have ended), `succeeded` (the wait ends
        early if one group can no longer succeed), `running`, `admitted`. Raises InvalidInput for
        another, NotFound (also if a group is deleted during the wait) and WaitTimedOut.
        """
        with self.patiently(timeout_s):
            return self._wait(keys_named(groups, namespace), for_, timeout_s)

    def _wait(
        self, keys: Sequence[str], goal: views.Goal, timeout_s: float | None
    ) -> Sequence[views.Result]:
        from batchq.client.watch import wait_for

        return wait_for(self._store, keys, goal, timeout_s)

    def result(
        self, group: GroupName, *, timeout_s: float | None = None, namespace: str = DEFAULT
    ) -> Any:
        """Return what the function of a group's only pod returned; wait for the group's end.

        Raises GroupFailed (with the function's exception), GroupCancelled, NotFound (there is no
        such group, it runs a command, or its result has expired), UsageError (several pods),
        WaitTimedOut.
        """
        from batchq.client.pods import check_single_result

        with self.patiently(timeout_s):
            check_single_result(self.get("PodGroup", group, namespace=namespace))
            results = self.results(group, timeout_s=timeout_s, namespace=namespace)
            return next(iter(results.values()))

    def results(
        self,
        group: GroupName,
        *,
        partial: bool = False,
        timeout_s: float | None = None,
        namespace: str = DEFAULT,
    ) -> dict[str, Any]:
        """Return what the function of each pod returned, by pod name, ordered by task and index.

        Waits and raises as `result` does. `partial` returns the results that exist, even if the
        group failed or was cancelled.
        """
        from batchq.client.pods import read_results

        key = key_named(group, namespace)
        with self.patiently(timeout_s):
            return read_results(self._store, key, timeout_s, partial=partial)

    def logs(
        self,
        group: GroupName,
        *,
        pod: str = "",
        follow: bool = False,
        tail: int | None = None,
        attempt: int | Literal["all"] | None = None,
        namespace: str = DEFAULT,
        stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[views.LogLine]:
        """Return the output of the latest attempt of each pod, at most the newest MiB of each.

        `pod` selects one by its name or `<task>-<index>`; `tail`, the last lines of each;
        `attempt`, an earlier attempt, from 1, or "all" of all admissions. With `follow`, it ends
        with the processes, or when `stop` returns True, which is asked several times a second.
        Raises NotFound, InvalidInput.
        """
        from batchq.client.pods import follow_output, patient, read_output

        check_lines(tail, attempt)
        key = key_named(group, namespace)
        if not follow:
            return read_output(self._store, key, pod=pod, tail=tail, attempt=attempt)
        lines = follow_output(self._store, key, pod=pod, tail=tail, stop=stop)
        return patient(lines, self.patiently)

    def pods(self, group: PodGroup) -> Sequence[Pod]:
        """Return a group's pods, including those of earlier admissions, by task and index."""
        from batchq.client.watch import pods_of

        found = pods_of(self._store, group)
        return sorted(found, key=lambda pod: (pod.spec.task, pod.spec.index, key_of(pod)))

    def ledger(self) -> Ledger:
        """Return the charges by scope: `cluster`, `queue:NAME`, `ns:NAMESPACE`, `node:NAME`."""
        return self._store.ledger()

    def schedulers(self) -> views.Schedulers:
        """Return the leader and the running schedulers."""
        from batchq.client.connection import schedulers

        return schedulers(self._store)

    def nodes(self) -> Sequence[Node]:
        """Return all nodes by name; `status.heartbeat` is the time of the last heartbeat."""
        return [item for item in self.list("Node") if isinstance(item, Node)]

    def cordon(self, node: str, *, reason: str = "") -> bool:
        """Stop placing pods on a node, which keeps the reason. Return False if it was cordoned
        already, and has no new reason. Raises NotFound.
        """
        return self._act("cordon", node, message=reason)

    def uncordon(self, node: str) -> bool:
        """Allow pods on a node again. Return False if it was not cordoned. Raises NotFound."""
        return self._act("uncordon", node)

    def wait_until_empty(self, node: str, *, timeout_s: float | None = None) -> int:
        """Wait until a node has no pods; return how many it still has at the timeout.

        Raises NotFound.
        """
        from batchq.client import watch as waiting

        self.get("Node", node)
        with self.patiently(timeout_s):
            return waiting.wait_until_empty(self._store, node, timeout_s)

    def set_stop_policy(self, queue: str, policy: Literal["None", "Hold", "HoldAndDrain"]) -> bool:
        """Stop or resume a queue and the queues below it. Return False if nothing changed.

        `Hold` stops admissions, `HoldAndDrain` also evicts admitted groups, and
        `None` resumes the queue. Raises NotFound.
        """
        return self._act("set_stop_policy", queue, policy=policy)

    def quotas(self, namespace: str = "") -> Sequence[ResourceQuota]:
        """Return the quotas of one namespace, or of all."""
        found = self.list("ResourceQuota", namespace=namespace)
        return [quota for quota in found if isinstance(quota, ResourceQuota)]

    def check_group_limit(self, keys: Collection[str], file: str) -> int | None:
        """Check the groups of one namespace that have been read from a file so far; return how many
        more are permitted, None without a limit.

        Raises Rejected if the new ones among them exceed the namespace's limit.
        """
        from batchq.client.requests import refuse_too_many_groups

        return refuse_too_many_groups(self._store, keys, file, what="the file", in_part=True)

    def object_limit(self) -> int | None:
        """Return the number of unfinished groups that a namespace may have by default.

        A quota may set another number. None if no scheduler has ever led.
        """
        from batchq.store.schedulers import read_object_limit

        return read_object_limit(self._store)

    def set_quota(self, namespace: str, hard: Mapping[str, Quantity]) -> bool:
        """Replace the quota `default` of a namespace. Return False if nothing changed.

        Raises InvalidInput.
        """
        return self._act("set_quota", namespace, hard=amounts_of(hard), uid=self._ids.new_uid())

    def _write(
        self,
        verb: Literal["submit", "apply"],
        objects: Objects,
        dry_run: bool,
        keep_stop: Collection[str],
        permit: Permit | None,
    ) -> Sequence[Applied]:
        """Submit or apply objects; see `submit_all` and `apply`."""
        return self._writer.write(verb, objects, dry_run, keep_stop, permit)

    def _act(self, verb: Act, place: str, **given: Any) -> bool:
        """Commit a change of the object at `place`; return whether there was anything to do."""
        return self._writer.act(verb, place, **given)

    @cached_property
    def _writer(self) -> RequestWriter:
        from batchq.client.requests import RequestWriter

        return RequestWriter(self._store, self._ids.new_uid, lambda: self.user, self._queues)
