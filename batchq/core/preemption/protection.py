"""Protection of victims: priority classes that may not evict, and runs that may not be
evicted yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from msgspec import structs

from batchq.api.lifecycle import ON_NODE, PodGroupPhase
from batchq.api.notation import SECOND
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState

if TYPE_CHECKING:
    from batchq.api.objects import Evictions, Pod
    from batchq.core.session.state import Shortage, Victim

#: The plugin in verdicts that evictions must wait because the eviction budget is spent.
EVICTION_BUDGET = "hygiene"


def may_evict(session: Session, group: GroupState) -> bool:
    """Return whether the group's priority class lets it take anything from others."""
    wanted = group.record.spec.priority_class_name
    for item in session.snapshot.priority_classes:
        if item.metadata.name == wanted or (not wanted and item.spec.default):
            return item.spec.preemption_policy != "Never"
    return True


def every_class_may_evict(session: Session) -> bool:
    """Return whether every priority class may evict."""
    return all(item.spec.preemption_policy != "Never" for item in session.snapshot.priority_classes)


RECLAIM = "reclaim"
_RECLAIMABLE = "reclaimable"
#: A group stores the longest runs of at most this many pods.
MOST_RUNS = 10_000
#: Entries of pods that have ended for good are removed each time this many entries are added.
_TIDIED_EVERY = 256
#: Later than all instants; marks the unknown end of protection of a run that has not started.
NEVER = 2**63 - 1
_HAS_RUN = frozenset({PodGroupPhase.RUNNING, PodGroupPhase.UNKNOWN})


def is_protected(session: Session, victim: Victim, point: str) -> bool:
    """Return whether a victim may not be taken yet at this extension point."""
    if _stops_already(victim):
        return False
    return protection_ends_at(session, victim, point) > session.now_ms


def may_lose_pods(session: Session, group: GroupState, point: str) -> bool:
    """Return whether an elastic group has pods that it could lose alone: if a policy keeps its
    minMember, those beyond that, and those that are being stopped already.
    """
    return group.is_elastic and (
        sum(group.placed.values()) > group.min_member
        or any(pod.status.terminating for pod in group.live_pods.values())
        or not any(entry.traits.keeps_min_member for entry in session.plugins.points[point])
    )


def _stops_already(victim: Victim) -> bool:
    """Return whether the victim already stops for another preemptor, so no work is lost."""
    if not victim.pods:
        return not victim.group.reserved
    return all(pod.status.terminating for pod in victim.pods)


def protection_ends_at(session: Session, victim: Victim, point: str) -> int:
    """Return the instant (ms) until which a victim is protected, which may have passed; 0 if
    nothing protects it, NEVER if a protected run has not started.

    A whole group is protected while any of the pods evicted with it is protected.
    """
    group, least_ms = victim.group, session.settings.min_runtime_ms
    costs = group.status.evictions if point == _RECLAIMABLE else None
    if not least_ms and (costs is None or not (costs.longest_run or costs.longest_pod_runs)):
        return 0
    taken_ms = costs.longest_run if costs is not None else 0
    ends = [0]
    if victim.whole and not group.is_array:
        ends.append(_group_ends_at(session, group, least_ms, taken_ms))
        # The gang's own minimum covers the pods that leave with it.
        least_ms = 0
    runs = costs.longest_pod_runs if costs is not None else {}
    if least_ms or runs:
        ends += _pods_end_at(session, group, victim.pods, least_ms, runs)
    return max(ends)


def instants(session: Session, group: GroupState) -> Iterator[int]:
    """Yield the future instants (ms) at which protections of a group's runs end."""
    least_ms, costs = session.settings.min_runtime_ms, group.status.evictions
    if not (least_ms or costs.longest_run or costs.longest_pod_runs):
        return
    runs: list[tuple[int | None, int]] = []
    if not group.is_array and group.phase in _HAS_RUN:
        runs.append((group.status.started_at, costs.longest_run))
    if group.is_elastic:
        runs += [
            (pod.status.started_at, costs.longest_pod_runs.get(_ordinal(group, pod), 0))
            for pod in group.live_pods.values()
            if _may_be_taken(pod)
        ]
    for started_at, taken_ms in runs:
        for span_ms in (least_ms, 2 * taken_ms):
            if started_at is not None and started_at + span_ms > session.now_ms:
                yield started_at + span_ms


def _group_ends_at(session: Session, group: GroupState, least_ms: int, taken_ms: int) -> int:
    started_at = group.status.started_at if group.phase in _HAS_RUN else None
    if started_at is None and not taken_ms:
        return 0
    bound = [
        pod.status.bound_at or 0
        for pod in (() if started_at is not None else group.current())
        if pod.status.phase in ON_NODE
    ]
    return _run_ends_at(session, started_at, min(bound, default=None), least_ms, taken_ms)


def _pods_end_at(
    session: Session, group: GroupState, pods: Iterable[Pod], least_ms: int, runs: dict[str, int]
) -> Iterator[int]:
    for pod in pods:
        if _may_be_taken(pod):
            taken_ms = runs.get(_ordinal(group, pod), 0) if runs else 0
            started_at, bound_at = pod.status.started_at, pod.status.bound_at
            yield _run_ends_at(session, started_at, bound_at, least_ms, taken_ms)


def _may_be_taken(pod: Pod) -> bool:
    """Return whether the pod holds a node and is not being stopped."""
    return pod.status.phase in ON_NODE and not pod.status.terminating


def _run_ends_at(
    session: Session, started_at: int | None, bound_at: int | None, least_ms: int, taken_ms: int
) -> int:
    """Return the instant (ms) until which one run is protected; 0 if it is not."""
    if started_at is not None:
        return started_at + max(least_ms, 2 * taken_ms)
    # A pod bound by this very session can be unbound without loss.
    waits_to_start = bound_at is not None and bound_at < session.now_ms
    return NEVER if taken_ms and waits_to_start else 0


def with_group_run(group: GroupState, now_ms: int) -> Evictions:
    """Return the eviction record of a group after reclaim takes all of it now.

    For an array, each pod is taken separately: see `with_pod_run`.
    """
    spent, started_at = group.status.evictions, group.status.started_at
    on_node = any(pod.status.phase in ON_NODE for pod in group.current())
    if group.is_array or (started_at is None and not on_node):
        return spent
    run_ms = _length(started_at, now_ms)
    return spent if run_ms <= spent.longest_run else structs.replace(spent, longest_run=run_ms)


def with_pod_run(group: GroupState, pod: Pod, now_ms: int) -> Evictions:
    """Return the eviction record of an elastic group after reclaim takes one of its pods now."""
    spent, ordinal = group.status.evictions, _ordinal(group, pod)
    run_ms = _length(pod.status.started_at, now_ms)
    if run_ms <= spent.longest_pod_runs.get(ordinal, 0):
        return spent
    runs = {**spent.longest_pod_runs, ordinal: run_ms}
    if len(runs) % _TIDIED_EVERY == 0:
        runs = _tidied(group, runs)
    return structs.replace(spent, longest_pod_runs=runs)


def _length(started_at: int | None, now_ms: int) -> int:
    """Return the length of a run in ms, at least 1000: twice 0 would protect nothing."""
    return max(1 * SECOND, 0 if started_at is None else now_ms - started_at)


def _tidied(group: GroupState, runs: dict[str, int]) -> dict[str, int]:
    """Return the runs without pods that have ended for good, limited to what one record may hold.

    A record with a million entries would be written and sent at each change of its group. The
    shortest runs are dropped, so these pods may lose as much once more.
    """
    final = {_ordinal(group, pod) for pod in group.current() if group.is_final(pod)}
    kept = [ordinal for ordinal in runs if ordinal not in final]
    longest = sorted(kept, key=lambda ordinal: (-runs[ordinal], int(ordinal)))[:MOST_RUNS]
    return {ordinal: runs[ordinal] for ordinal in sorted(longest, key=int)}


def _ordinal(group: GroupState, pod: Pod) -> str:
    return str(group.shape_of(pod).first + pod.spec.index)


def vote(
    session: Session, point: str, preemptor: GroupState, victim: Victim, shortage: Shortage
) -> bool:
    """Return whether plugins let a group take a victim: at least one agrees, and none refuses.

    A victim that has only just started is protected regardless of the configured plugins.
    """
    if is_protected(session, victim, point):
        return False
    agreed = False
    for entry in session.plugins.points[point]:
        answer: bool | None = entry.function(session, preemptor, victim, shortage)
        if answer is False:
            return False
        agreed = agreed or answer is True
    return agreed
