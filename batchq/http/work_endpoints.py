"""The endpoints of plans, of gates and of the results of functions."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import Struct

from batchq.api.access import Target, Verb
from batchq.api.manifest import decode
from batchq.api.objects import NAMESPACED, PodGroup, key_of, kind_of
from batchq.http.access_endpoints import record_use
from batchq.http.calls import ApiAnswer, ApiCall
from batchq.http.object_endpoints import TARGETS
from batchq.http.problems import bad_request, forbidden

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
            raise forbidden(decision.because)
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
