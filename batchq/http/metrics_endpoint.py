"""Metrics for callers of the API: groups that the caller sees, queues and nodes.

They have the names and the meanings of the scheduler's gauges (docs/metrics.md), but count only
groups that the caller may see, and are computed for each request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from batchq.api.lifecycle import TERMINAL
from batchq.api.objects import Node
from batchq.api.reasons import Waiting
from batchq.api.resources import Amounts, units_per_whole
from batchq.api.transaction import POD_GROUPS
from batchq.api.views import GroupView, QueueView
from batchq.http.calls import ApiAnswer, ApiCall

#: The names and the help texts, as the scheduler has them.
_HELP = {
    "batchq_groups": "Groups that have not ended, by phase.",
    "batchq_waiting_groups": "Groups that wait, by their most fundamental reason.",
    "batchq_queue_resource": "What a queue with all queues below it may use, uses and asks for.",
    "batchq_queue_share": "The queue's use divided by its deserved share.",
    "batchq_nodes": "Nodes, by whether they take pods.",
}
_Samples = Iterator[tuple[Mapping[str, str], float]]


def show_metrics(call: ApiCall) -> ApiAnswer:
    """Return metrics in Prometheus' text format."""
    call.require("")
    overview = call.client.overview()
    groups = [
        view for view in overview.groups() if view.phase not in TERMINAL and _is_seen(call, view)
    ]
    queues = overview.queues()
    families: Mapping[str, _Samples] = {
        "batchq_groups": _by_phase(groups),
        "batchq_waiting_groups": _by_reason(groups),
        "batchq_queue_resource": _resources(queues),
        "batchq_queue_share": (({"queue": one.name}, float(one.share)) for one in queues),
        "batchq_nodes": _by_state(call.client.nodes()),
    }
    lines = []
    for name, samples in families.items():
        lines += [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} gauge"]
        lines += [_line(name, labels, value) for labels, value in samples]
    return ApiAnswer(document="\n".join(lines))


def _is_seen(call: ApiCall, view: GroupView) -> bool:
    return call.tier_at(view.key.partition("/")[0], view.owner) is not None


def _by_phase(groups: Iterable[GroupView]) -> _Samples:
    counts = Counter((one.queue, str(one.phase)) for one in groups)
    for queue, phase in sorted(counts):
        yield {"queue": queue, "phase": phase}, counts[queue, phase]


def _by_reason(groups: Iterable[GroupView]) -> _Samples:
    counts: Counter[tuple[str, str, str]] = Counter()
    for one in groups:
        if one.blockers:
            counts[one.queue, str(one.phase), str(one.blockers[0].reason)] += 1
        elif one.phase == "Pending":
            counts[one.queue, str(one.phase), str(Waiting.PENDING_EVALUATION)] += 1
    for queue, phase, reason in sorted(counts):
        labels = {"queue": queue, "phase": phase, "reason": reason}
        yield labels, counts[queue, phase, reason]


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
                labels = {"queue": queue.name, "resource": resource, "kind": kind}
                yield labels, amounts.get(resource, 0) / units_per_whole(resource)


def _by_state(nodes: Iterable[Node]) -> _Samples:
    found = {"ready": 0, "cordoned": 0, "silent": 0}
    for node in nodes:
        is_open = not node.spec.unschedulable
        found["silent" if not node.status.ready else "ready" if is_open else "cordoned"] += 1
    for state, count in found.items():
        yield {"state": state}, count


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    written = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    number = "+Inf" if value == float("inf") else f"{value:.15g}"
    return f"{name}{{{written}}} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
