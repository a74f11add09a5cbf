"""The endpoints of what commands show: groups and queues with computed fields, and waiting;
and of plans, gates and the results of functions.

A view has the fields of the Python client's object of that name. It is computed from everything
that is stored, and then loses what the caller may not see: an answer says no more of other groups
than how many they are and what they hold.

Metrics, of groups, queues and nodes, have the names and the meanings of the scheduler's gauges
(docs/metrics.md), but count only groups that the caller may see, and are computed for each request.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct, structs
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from batchq.api.access import Target, TargetKind, Tier, Verb, seen
from batchq.api.lifecycle import TERMINAL
from batchq.api.manifest import decode
from batchq.api.notation import counted
from batchq.api.objects import NAMESPACED, Node, PodGroup, Unreadable, key_of, kind_of
from batchq.api.reasons import Waiting
from batchq.api.resources import Amounts, units_per_whole
from batchq.api.transaction import POD_GROUPS, Event
from batchq.api.views import (
    GOALS,
    WHOLE_UP_TO,
    GroupView,
    QueueView,
    recent,
    token_of_view,
)
from batchq.api_session import sealed
from batchq.errors import NotFound
from batchq.http.access_endpoints import record_use
from batchq.http.calls import NDJSON, ApiAnswer, ApiCall, StreamAnswer
from batchq.http.group_endpoints import (
    LONGEST_LIST_S,
    MOST_LISTED,
    USUALLY_LISTED,
    opened,
    too_long,
)
from batchq.http.object_endpoints import TARGETS
from batchq.http.problems import bad_request, forbidden

LONGEST_WAIT_S = 30
MOST_EVENTS = 10_000
#: How often a waiting caller looks, though no change of its groups was noticed: pods may end later.
_LOOK_S = 1.0


def view_groups(call: ApiCall) -> ApiAnswer:
    """Return groups as `batchq jobs` shows them: all at once, or a page without positions."""
    call.require_a_role()
    namespace, queue = call.text("namespace"), call.text("queue")
    phases = tuple(filter(None, call.text("phase").split(",")))
    if call.flag("paged"):
        return _page(call, namespace, queue, phases)
    overview = call.client.overview()
    views = overview.groups(namespace=namespace, queue=queue, phases=phases)
    damaged = call.client.unreadable("PodGroup", namespace=namespace)
    return _answer(call, _seen_views(call, views), damaged, at=overview.at)


def _page(call: ApiCall, namespace: str, queue: str, phases: Sequence[str]) -> ApiAnswer:
    limit = call.number("limit", USUALLY_LISTED, MOST_LISTED) or USUALLY_LISTED
    pages = call.client.job_pages(
        namespace=namespace,
        queue=queue,
        phases=phases,
        active=call.flag("active"),
        finished=call.number("finished", None, MOST_LISTED),
        after=opened(call.text("continue")),
        size=limit + 1,
    )
    # The number would count what is beyond the caller's sight.
    hidden = pages.hidden if call.sees(namespace) else 0
    views: list[GroupView] = []
    damaged: list[Unreadable] = []
    at = call.client.now_ms()
    until = monotonic() + LONGEST_LIST_S
    for page in pages:
        at = page.at
        damaged += page.unreadable
        views += _seen_views(call, page.views)
        # The token names a group, so it must be one that the caller sees.
        if len(views) > limit:
            break
        if monotonic() > until:
            raise too_long()
    following = sealed(token_of_view(views[limit - 1])) if len(views) > limit else ""
    return _answer(call, views[:limit], damaged, at=at, hidden=hidden, following=following)


def _answer(
    call: ApiCall,
    views: Sequence[GroupView],
    damaged: Iterable[Unreadable],
    *,
    at: int,
    hidden: int = 0,
    following: str = "",
) -> ApiAnswer:
    document = {
        "at": at,
        "hidden": hidden,
        "continue": following,
        "views": views,
        "unreadable": [one for one in damaged if call.sees(one.key.partition("/")[0])],
    }
    return ApiAnswer(document=msgspec.to_builtins(document))


def _seen_views(call: ApiCall, views: Iterable[GroupView]) -> tuple[GroupView, ...]:
    """Return the views of the groups that the caller may see, as much as it may see of each."""
    found = []
    for view in views:
        tier = call.tier_at(view.key.partition("/")[0], view.owner)
        if tier is Tier.FACTS:
            found.append(_without_messages(view))
        elif tier is not None:
            found.append(view)
    return tuple(found)


def _without_messages(view: GroupView) -> GroupView:
    """Return a view without the sentences that may quote what a pod has printed."""
    evicted = view.evicted
    if evicted is not None:
        evicted = structs.replace(evicted, message="")
    return structs.replace(view, message="", evicted=evicted)


def view_jobs(call: ApiCall) -> ApiAnswer:
    """Return groups as the table of `batchq jobs`; without rows if there are too many for one, no
    such reason, or no group in the queue.
    """
    call.require_a_role()
    queue, phases = call.text("queue"), tuple(filter(None, call.text("phase").split(",")))
    spelled = {str(reason).lower(): reason for reason in Waiting}
    reasons = [spelled.get(word.lower()) for word in filter(None, call.text("reason").split(","))]
    if None in reasons:
        return ApiAnswer(document={"unreadable": 0})
    form: Literal["table", "json"] = "json" if call.text("form") == "json" else "table"
    if call.sees("") and call.client.count("PodGroup") > WHOLE_UP_TO:
        return ApiAnswer(document={"unreadable": 0})
    namespace = call.text("namespace")
    finished = call.number("finished", None, MOST_LISTED)
    overview = call.client.overview()
    found = overview.groups(namespace=namespace, queue=queue, phases=phases)
    views = list(_seen_views(call, found))
    if queue and not views:
        # The command asks for the queue, to say whether there is one.
        return ApiAnswer(document={"unreadable": 0})
    damaged = [
        one
        for one in call.client.unreadable("PodGroup", namespace=namespace)
        if call.sees(one.key.partition("/")[0])
    ]
    owner, names = call.text("owner"), call.identity.names
    views = [one for one in views if (one.owner in names if owner == "me" else one.is_of(owner))]
    views.sort(key=lambda view: (view.uid, view.key))
    if call.flag("active"):
        views = [view for view in views if view.phase not in TERMINAL]
    shown = views if finished is None else recent(views, finished)
    notes = []
    if hidden := len(views) - len(shown):
        notes.append(f"… and {counted(hidden, 'older finished group')} (--all)")
    if reasons:
        shown = [one for one in shown if any(why.reason in reasons for why in one.blockers)]
    waits = any(view.phase not in TERMINAL for view in shown)
    if waits and (unled := call.client.schedulers().unled):
        notes.append(unled)
    table = call.context.table(shown, overview.at, not namespace, form)
    return ApiAnswer(document={**table, "notes": notes, "unreadable": len(damaged)})


def view_explanation(call: ApiCall) -> ApiAnswer:
    """Explain a group, as `batchq why` shows it."""
    group = call.group()
    why = call.client.why(key_of(group), or_defaults=call.flag("defaults"))
    return ApiAnswer(document=msgspec.to_builtins(why))


def view_checks(call: ApiCall) -> ApiAnswer:
    """Return the admission checks of a group."""
    group = call.group()
    tier = call.tier_of(group)
    assert tier is not None
    found = [
        structs.replace(one, group=seen(one.group, tier))
        for one in call.client.checks.views(group=key_of(group))
    ]
    return ApiAnswer(document=msgspec.to_builtins(found))


def view_queues(call: ApiCall) -> ApiAnswer:
    """Return the tree of queues, as `batchq queues` shows it."""
    call.require("")
    overview = call.client.overview()
    return ApiAnswer(document=msgspec.to_builtins({"at": overview.at, "items": overview.queues()}))


def view_queue(call: ApiCall) -> ApiAnswer:
    """Return one queue with the groups in it that the caller may see, and its checks."""
    call.require("")
    name = call.path["name"]
    overview = call.client.overview()
    page = overview.queue_page(name)
    if page is None:
        raise NotFound(f"Queue {name} does not exist")
    page = structs.replace(
        page,
        line=_seen_views(call, page.line),
        not_in_line=_seen_views(call, page.not_in_line),
        first_to_go=tuple(one for one in page.first_to_go if call.knows(one.key)),
    )
    checks = call.client.checks.of_queue(name)
    document = {"at": overview.at, "page": page, "checks": checks}
    return ApiAnswer(document=msgspec.to_builtins(document))


def view_status(call: ApiCall) -> ApiAnswer:
    """Return the server's time and revision, its schedulers, and what is charged by scope."""
    call.require_a_role()
    sees_cluster = call.decide(Target(kind=TargetKind.QUEUES), Verb.READ).allowed
    ledger = {
        scope: amounts
        for scope, amounts in (call.client.ledger().items() if sees_cluster else ())
        if not scope.startswith("ns:") or _may_read_quotas(call, scope.removeprefix("ns:"))
    }
    # A count of all groups would tell how many there are beyond the caller's sight.
    counts = call.client.count("PodGroup") if call.sees("") else 0
    document = {
        "now": call.client.now_ms(),
        "revision": call.delegate.revision(),
        "schedulers": call.client.schedulers(),
        "objectLimit": call.client.object_limit(),
        "groups": counts,
        "ledger": ledger,
    }
    return ApiAnswer(document=msgspec.to_builtins(document))


def _may_read_quotas(call: ApiCall, namespace: str) -> bool:
    target = Target(kind=TargetKind.QUOTAS, namespace=namespace)
    return call.decide(target, Verb.READ).allowed


def list_events(call: ApiCall) -> ApiAnswer:
    """Return the latest events of what the caller may read, oldest first."""
    call.require_a_role()
    since = call.number("since", 0, 2**53)
    most = call.number("limit", 100, MOST_EVENTS)
    found = call.client.events(
        kind=call.text("kind"),
        key=call.text("key"),
        namespace=call.text("namespace"),
        reason=call.text("reason"),
        since_ms=since or 0,
        most=MOST_EVENTS,
    )
    seen_events = _EventSight(call)
    chosen = [event for event in found if seen_events.shows(event)]
    return ApiAnswer(document=msgspec.to_builtins(chosen[-most:] if most else []))


class _EventSight:
    """Which events a caller may read: their messages quote commands and what pods have printed."""

    def __init__(self, call: ApiCall) -> None:
        self._call = call
        #: Groups by uid, with which the keys of pods begin, and by key.
        self._groups: dict[str, PodGroup] | None = None

    def shows(self, event: Event) -> bool:
        """Return whether the caller may read an event."""
        if event.kind not in NAMESPACED:
            target = Target(kind=TARGETS.get(event.kind, TargetKind.QUEUES))
            return self._call.decide(target, Verb.READ).allowed
        if event.kind == "ResourceQuota":
            return _may_read_quotas(self._call, event.key.partition("/")[0])
        if event.kind == "Pod":
            group = self._named().get(event.key.partition("-")[0])
            # Of a group that is gone, not even the namespace is known.
            namespace = "" if group is None else group.metadata.namespace
            owner = "" if group is None else group.status.submitted_by
        else:
            namespace = event.key.partition("/")[0]
            group = self._named().get(event.key)
            owner = "" if group is None else group.status.submitted_by
        return self._call.tier_at(namespace, owner) in (Tier.SPEC, Tier.OUTPUT)

    def _named(self) -> dict[str, PodGroup]:
        if self._groups is None:
            found = self._call.client.list("PodGroup")
            groups = [item for item in found if isinstance(item, PodGroup)]
            self._groups = {group.metadata.uid: group for group in groups}
            self._groups |= {key_of(group): group for group in groups}
        return self._groups


def group_outcome(call: ApiCall) -> ApiAnswer:
    """Return how far a group is from a goal: `finished`, `succeeded`, `running`, `admitted`."""
    group = call.group()
    goal = call.text("for") or GOALS[0]
    if goal not in GOALS:
        raise bad_request(f"for: expected one of {', '.join(GOALS)}, found {goal[:80]!r}")
    state = call.delegate.wait_state(key_of(group), goal)
    if call.tier_of(group) is Tier.FACTS:
        result = structs.replace(state.result, message="")
        state = structs.replace(state, result=result)
    return ApiAnswer(document=msgspec.to_builtins(state))


def await_change(call: ApiCall) -> StreamAnswer:
    """Answer when one of some groups has changed after a revision, or when the time is over."""
    call.require_a_role()
    keys = frozenset(filter(None, call.text("groups").split(",")))
    timeout_s = call.number("timeout", LONGEST_WAIT_S, LONGEST_WAIT_S) or 0
    since = call.number("since", None, 2**53)
    if since is None:
        since = call.delegate.revision()

    async def parts() -> AsyncIterator[bytes]:
        until = asyncio.get_running_loop().time() + timeout_s
        feed = call.context.feeds["PodGroup"]
        async for events in feed.watch(since):
            call.renew_rights()
            changed = any(
                not isinstance(event.item, PodGroup)
                or ((not keys or key_of(event.item) in keys) and call.tier_of(event.item))
                for event in events
            )
            is_over = asyncio.get_running_loop().time() >= until or call.context.is_ending()
            if changed or is_over:
                document = {"revision": feed.revision, "changed": changed}
                yield msgspec.json.encode(document) + b"\n"
                return

    return StreamAnswer(stream="watches", content_type=NDJSON, parts=parts)


#: Objects of a plan: a session runs for them, and more sessions for advice.
MOST_PLANNED = 1_000
LONGEST_AGE_MS = 2**53


class PlanRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The body of a request for a plan: manifests, which are not stored.

    `keepStop` names queues whose stopPolicy stays as it is stored. With `advise`, changes that
    would help groups that would wait are tried.
    """

    objects: tuple[dict[str, Any], ...]
    keep_stop: tuple[str, ...] = ()
    advise: bool = True


def view_plan(call: ApiCall) -> ApiAnswer:
    """Return what the next session would decide about new groups of the caller."""
    wanted = call.body_as(PlanRequest)
    call.require_a_role()
    if len(wanted.objects) > MOST_PLANNED:
        raise bad_request(
            f"objects: expected at most {MOST_PLANNED} to plan, found {len(wanted.objects)}"
        )
    objects = [decode(one) for one in wanted.objects]
    for item in objects:
        kind = kind_of(item)
        if isinstance(item, PodGroup):
            call.require(item.metadata.namespace, owner=call.identity.user)
            continue
        if kind not in TARGETS or kind == "Pod":
            raise bad_request(f"kind: expected a kind of object to plan, found {kind}")
        # The plan says what would change of the stored object.
        namespace = item.metadata.namespace if kind in NAMESPACED else ""
        decision = call.decide(Target(kind=TARGETS[kind], namespace=namespace), Verb.READ)
        if not decision.allowed:
            raise forbidden(decision.because, hint=decision.hint)
    plan = call.client.plan(objects, keep_stop=wanted.keep_stop, advise=wanted.advise)
    return ApiAnswer(document=msgspec.to_builtins(plan))


class GateRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request to open a gate, or all of them; of a `task`, or of the whole group."""

    gate: str = ""
    task: str = ""


def view_gates(call: ApiCall) -> ApiAnswer:
    """Return the closed gates of the groups that the caller may see, the oldest first."""
    call.require_a_role()
    age_ms = call.number("age", 0, LONGEST_AGE_MS) or 0
    found = call.client.gates.list(
        namespace=call.text("namespace"),
        queue=call.text("queue"),
        gate=call.text("gate"),
        older_than=age_ms / 1000,
    )
    shown = [
        one for one in found if call.tier_at(one.group.partition("/")[0], one.set_by) is not None
    ]
    return ApiAnswer(document=msgspec.to_builtins(shown))


def open_gates(call: ApiCall) -> ApiAnswer:
    """Open a gate of a group, or all of them."""
    wanted = call.body_as(GateRequest)
    key = key_of(call.group())
    gates = call.client.gates
    if wanted.gate:
        done = gates.open(key, wanted.gate, task=wanted.task)
    else:
        done = gates.open_all(key, task=wanted.task)
    return ApiAnswer(document={"changed": done})


def group_results(call: ApiCall) -> ApiAnswer:
    """Return what the functions of a group's pods have returned, each as text in JSON."""
    group = call.group()
    if group.status.submitted_by not in call.identity.names:
        record_use(call, call.allowed_by)
    partial = call.flag("partial")
    found = call.client.results(key_of(group), partial=partial, timeout_s=0)
    # Python's JSON knows NaN and lone surrogates, which an answer cannot contain otherwise.
    return ApiAnswer(document={pod: json.dumps(value) for pod, value in found.items()})


#: The values of a metric: those of its labels, in order, and the number.
_Samples: TypeAlias = Iterable[tuple[tuple[str, ...], float]]


def show_live(call: ApiCall) -> ApiAnswer:
    """Answer that this process serves requests."""
    return ApiAnswer(document="ok")


def show_ready(call: ApiCall) -> ApiAnswer:
    """Answer that the server can be reached."""
    # The server's time is estimated between two answers; this asks.
    call.delegate.revision()
    return ApiAnswer(document="ok")


def show_metrics(call: ApiCall) -> ApiAnswer:
    """Return metrics in Prometheus' text format."""
    call.require("")
    overview = call.client.overview()
    groups = [
        view for view in overview.groups() if view.phase not in TERMINAL and _is_seen(call, view)
    ]
    queues = overview.queues()
    families: list[Metric] = [
        _gauge(
            "batchq_groups",
            "Groups that have not ended, by phase.",
            ("queue", "phase"),
            _counted((one.queue, str(one.phase)) for one in groups),
        ),
        _gauge(
            "batchq_waiting_groups",
            "Groups that wait, by their most fundamental reason.",
            ("queue", "phase", "reason"),
            _counted(_reasons(groups)),
        ),
        _gauge(
            "batchq_queue_resource",
            "What a queue with all queues below it may use, uses and asks for.",
            ("queue", "resource", "kind"),
            _resources(queues),
        ),
        _gauge(
            "batchq_queue_share",
            "The queue's use divided by its deserved share.",
            ("queue",),
            (((one.name,), float(one.share)) for one in queues if one.share is not None),
        ),
        _gauge(
            "batchq_nodes",
            "Nodes, by whether they take pods.",
            ("state",),
            _by_state(call.client.nodes()),
        ),
    ]
    registry = CollectorRegistry()
    registry.register(_Families(families))
    return ApiAnswer(document=generate_latest(registry).decode())


class _Families(Collector):
    """Metrics with their values, for a registry."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def _gauge(name: str, text: str, labels: Sequence[str], samples: _Samples) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family


def _is_seen(call: ApiCall, view: GroupView) -> bool:
    return call.tier_at(view.key.partition("/")[0], view.owner) is not None


def _counted(labels: Iterable[tuple[str, ...]]) -> _Samples:
    return sorted(Counter(labels).items())


def _reasons(groups: Iterable[GroupView]) -> Iterator[tuple[str, ...]]:
    for one in groups:
        if one.blockers:
            yield one.queue, str(one.phase), str(one.blockers[0].reason)
        elif one.phase == "Pending":
            yield one.queue, str(one.phase), str(Waiting.PENDING_EVALUATION)


def _resources(queues: Sequence[QueueView]) -> _Samples:
    found = {name for one in queues for name in (*one.charged, *one.pending)}
    # It counts groups, as the groups' own metrics do.
    known = sorted(found - {POD_GROUPS})
    for queue in queues:
        # What a queue may have and does not state is neither 0 nor unlimited.
        stated: Mapping[str, Amounts] = {
            "deserved": queue.deserved,
            "guarantee": queue.guarantee,
            "capability": queue.queue.spec.capability,
        }
        held: Mapping[str, Amounts] = {
            "allocated": queue.used,
            "reserved": queue.reserved,
            "pending": queue.pending,
        }
        for kind, amounts in {**stated, **held}.items():
            for resource in known if kind in held else sorted({*amounts} - {POD_GROUPS}):
                whole = amounts.get(resource, 0) / units_per_whole(resource)
                yield (queue.name, resource, kind), whole


def _by_state(nodes: Iterable[Node]) -> _Samples:
    found = {"ready": 0, "cordoned": 0, "silent": 0}
    for node in nodes:
        is_open = not node.spec.unschedulable
        found["silent" if not node.status.ready else "ready" if is_open else "cordoned"] += 1
    return [((state,), count) for state, count in found.items()]
