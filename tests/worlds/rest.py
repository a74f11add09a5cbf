"""Rules that hold when the sessions of an instant are over, judged from the records alone.

Every function returns a sentence for each violation. A group that could start now and does not is
wrong, unless another group that waits for running pods keeps it back. Where only a copy of the
sessions' code could tell, the group may wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from batchq.api.lifecycle import ON_NODE, TERMINAL, PodGroupPhase, PodPhase
from batchq.api.objects import PodGroup
from batchq.config import SchedulerConfig
from batchq.core.session.snapshot import Snapshot
from tests.worlds.picture import Amounts, Picture, Place, fits, most_of, total

_IN_TURN = ("StrictFIFO", "Backfill")


class Rest(Picture):
    """A store at rest, with the reasons for which groups wait."""

    def __init__(self, snapshot: Snapshot, now_ms: int, config: SchedulerConfig) -> None:
        super().__init__(snapshot, now_ms, config.settings.overcommit)
        self._config = config
        self._actions = config.actions

    def wrong(self) -> Iterator[str]:
        """Return every violation, a sentence each."""
        if "enqueue" not in self._actions or "allocate" not in self._actions:
            return
        for group in self.snapshot.groups:
            if group.status.phase in TERMINAL or group.spec.controller == "external":
                continue
            if self._is_out_of_line(group) or self._is_a_victim(group):
                continue
            if self._waits_for_its_own(group):
                continue
            if self.is_admitted(group):
                yield from self._wrong_with_pods_of(group)
            elif (
                not self.is_reserved(group)
                and self._could_start(group)
                and not self._is_kept_back(group)
            ):
                yield f"{self.key(group)} waits, although limits and nodes would take it"

    def _is_out_of_line(self, group: PodGroup) -> bool:
        """Return whether a group waits for something other than capacity."""
        spec, status = group.spec, group.status
        if spec.scheduling_gates or spec.suspend or not self.is_leaf(spec.queue):
            return True
        if not self.is_admitted(group) and any(self._stops(name) for name in self.chain(group)):
            # Running groups of a held queue continue, and may get more pods.
            return True
        if not self.is_reserved(group) and not self.accepts(group):
            return True
        if spec.priority_class_name and spec.priority_class_name not in self.classes:
            return True
        if any(not one.uid for one in spec.depends_on):
            return True
        if status.backoff_until is not None and self.now_ms < status.backoff_until:
            return True
        if status.phase == PodGroupPhase.PENDING and self._waits_for_others(group):
            return True
        if spec.controller == "external":
            return False
        replicas = sum(task.replicas for task in spec.tasks)
        least = sum(task.min_available for task in spec.tasks)
        return (
            not spec.tasks
            or replicas < self.min_member(group)
            or least > self.min_member(group)
            or any(task.min_available > task.replicas for task in spec.tasks)
        )

    def _stops(self, name: str) -> bool:
        return name in self.queues and self.queues[name].spec.stop_policy != "None"

    def _waits_for_others(self, group: PodGroup) -> bool:
        """Return whether dependencies or inactive checks hold the group back."""
        for dependency in group.spec.depends_on:
            other = self.groups.get(dependency.uid)
            if other is None and dependency.condition != "any":
                return True
            if other is not None and (other.status.phase not in TERMINAL or self.on_nodes(other)):
                return True
        if any(one.status != "Unknown" for one in group.status.checks):
            return True
        active = {
            one.metadata.name
            for one in self.snapshot.admission_checks
            if one.status.active
            and (one.status.expires_at is None or self.now_ms < one.status.expires_at)
        }
        asked = {
            name
            for queue in self.chain(group)
            if queue in self.queues
            for name in self.queues[queue].spec.admission_checks
        }
        return not asked <= active

    def _waits_for_its_own(self, group: PodGroup) -> bool:
        """Return whether pods of a former admission have not ended: the group keeps its place in
        line, and keeps others back.
        """
        return group.status.phase == PodGroupPhase.PENDING and bool(self.on_nodes(group))

    def _is_a_victim(self, group: PodGroup) -> bool:
        """Return whether a standing pledge names any of its pods: the group then comes after the
        preemptor.
        """
        return any(group.metadata.uid in other.status.pledge.groups for other in self._pledges)

    @cached_property
    def _pledges(self) -> list[PodGroup]:
        return [one for one in self.groups.values() if one.status.pledge.stands]

    def _could_start(self, group: PodGroup) -> bool:
        """Check rules 2 to 4 for a Pending group, as if no other group waited."""
        if group.spec.controller == "external":
            asks = dict(group.spec.min_resources)
            return not self.exceeds_guarantees(group, asks) and not self.over_limit(group, asks)
        gang = self._gang_to_start(group)
        if not gang:
            return False
        asks = most_of(total(one.asks for one in gang), group.spec.min_resources)
        if self.exceeds_guarantees(group, asks) or self.over_limit(group, asks):
            return False
        if not self.put(gang, self.free(self._kept_for_others(group))):
            return False
        # Nodes are kept for groups with this condition; the records do not say which nodes.
        return self.put(gang, self.free(self._anywhere(group)))

    def _gang_to_start(self, group: PodGroup) -> list[Place] | None:
        final = {
            (pod.spec.task, pod.spec.index)
            for pod in self.pods(group)
            if self.is_elastic(group) and self.is_final(group, pod)
        }
        left = [one for one in self.places(group) if one.name not in final]
        if final:
            # How few pods are enough depends on how the others ended, so this requires all.
            return left
        return self.gang(group, left, self.min_member(group))

    def _kept_for_others(self, group: PodGroup) -> dict[str, Amounts]:
        """Return node -> the amounts planned there for preemptors whose victims are ending."""
        kept: dict[str, list[Amounts]] = {}
        for other in self._pledges:
            if other is group:
                continue
            for node, amounts in other.status.pledge.room.items():
                kept.setdefault(node, []).append(amounts)
            for place in self.without_node(other):
                first = sum(task.replicas for task in other.spec.tasks[: place.position])
                node = other.status.pledge.plan.get(str(first + place.index), "")
                if node:
                    kept.setdefault(node, []).append(place.asks)
        return {node: total(many) for node, many in kept.items()}

    def _anywhere(self, group: PodGroup) -> dict[str, Amounts]:
        """Return every node -> the requests of all pods of reserved groups without a node."""
        waiting = [
            place.asks
            for other in self.groups.values()
            if other is not group and self.is_reserved(other)
            for place in self._needed_without_node(other)
        ]
        asks = total(waiting)
        return {node.metadata.name: asks for node in self.open_nodes}

    def _needed_without_node(self, group: PodGroup) -> list[Place]:
        """Return the part of a group's promise that it has not taken yet."""
        if group.spec.controller == "external":
            return []
        waiting = list(self.without_node(group))
        if group.status.phase == PodGroupPhase.PENDING:
            return self.gang(group, waiting, self.min_member(group)) or waiting
        there = {
            (pod.spec.task, pod.spec.index)
            for pod in self.on_nodes(group)
            if not pod.status.terminating
        }
        # Other pods replace those of an elastic group that are being stopped.
        stopping = {
            (pod.spec.task, pod.spec.index)
            for pod in self.on_nodes(group)
            if pod.status.terminating and self.is_elastic(group)
        }
        needed = {one.name for one in self.lacking(group, there, stopping)}
        return [one for one in waiting if one.name in needed]

    def _is_kept_back(self, group: PodGroup) -> bool:
        """Return whether a group that waits for running pods may keep this one back."""
        return any(self._keeps_back(other, group) for other in self._waiting_for_ends)

    @cached_property
    def _waiting_for_ends(self) -> list[PodGroup]:
        """Return the groups in line that lack capacity that others still hold, and transitively the
        groups that they keep back.
        """
        running = {uid for uid, one in self.groups.items() if self._may_end(one)}
        waiting = [
            one
            for one in self.groups.values()
            if one.status.phase not in TERMINAL
            and not self._is_out_of_line(one)
            and not (self.is_reserved(one) and self.on_nodes(one))
        ]
        found = [
            one
            for one in waiting
            if self._waits_for_its_own(one)
            or (running - {one.metadata.uid} and not self._starts_now(one))
        ]
        for other in found:
            # Grows during the iteration.
            found += [
                one
                for one in waiting
                if not any(one is known for known in found) and self._keeps_back(other, one)
            ]
        return found

    def _may_end(self, group: PodGroup) -> bool:
        """Return whether the group holds something that it will return: pods on nodes, the amount
        of an external consumer, a reservation that waits for checks, or one with a time limit.
        """
        if group.spec.controller == "external":
            return bool(group.status.charge)
        reserved = self.is_reserved(group) and group.status.phase != PodGroupPhase.RUNNING
        return reserved or bool(self.on_nodes(group))

    def _starts_now(self, group: PodGroup) -> bool:
        if self.is_admitted(group):
            return any(True for _ in self._bindable(group))
        return not self.is_reserved(group) and self._could_start(group)

    def _keeps_back(self, other: PodGroup, group: PodGroup) -> bool:
        if other is group:
            return False
        if self._has_a_hold(other):
            return True
        if other.spec.queue == group.spec.queue:
            ahead = self.place_in_line(other) < self.place_in_line(group)
            # A preemptor without evictions so far is entitled to its victims by its queue's
            # deserved share, and not in addition to other groups that start there.
            pledge = other.status.pledge
            counts_on_others = pledge.stands and pledge.expires is None
            return ahead and (self._strategy(other) in _IN_TURN or counts_on_others)
        if self._strategy(other) in _IN_TURN:
            return True
        # The reservation of a BestEffortFIFO head binds only groups that would borrow.
        return any(
            name in self.queues and self.queues[name].spec.deserved for name in self.chain(other)
        ) or bool(self._config.settings.min_runtime_ms)

    def _strategy(self, group: PodGroup) -> str:
        return self.queues[group.spec.queue].spec.strategy.type

    def _has_a_hold(self, group: PodGroup) -> bool:
        """Return whether the group has waited long enough to have nodes held for it."""
        since = group.metadata.creation_timestamp or 0
        return since + self._config.settings.in_queue_timeout_ms // 2 <= self.now_ms

    def _wrong_with_pods_of(self, group: PodGroup) -> Iterator[str]:
        if self._is_a_victim(group):
            return
        for place, promised in self._bindable(group):
            if promised or not self._is_kept_back(group):
                yield (
                    f"pod {place.task.name}-{place.index} of {self.key(group)},"
                    f" {'promised' if promised else 'beyond its gang'}, waits, and limits and a"
                    " node would take it"
                )
                return

    def _bindable(self, group: PodGroup) -> Iterator[tuple[Place, bool]]:
        """Return the unbound pods that could have a node now, and whether each is promised one."""
        if group.status.pledge.stands or any(
            pod.status.admission != group.status.admission for pod in self.on_nodes(group)
        ):
            return
        ready = group.status.phase == PodGroupPhase.RUNNING and self._has_its_gang(group)
        needed = self._needed_without_node(group)
        free, shared = self.free(self._kept_for_others(group)), self.free(self._anywhere(group))
        if not ready:
            # A gang starts whole or not at all, even if one of its pods waits for a retry.
            if (
                needed
                and self._has_its_gang(group, needed)
                and self.put(needed, free)
                and self.put(needed, shared)
                and not self._grows(group, needed)
            ):
                yield needed[0], self._is_promised(group, needed)
            return
        for place in self.without_node(group):
            if not (self.put([place], free) and self.put([place], shared)):
                continue
            promised = self._is_promised(group, [place])
            if promised or not self._grows(group, [place]):
                yield place, promised

    def _has_its_gang(self, group: PodGroup, more: Sequence[Place] = ()) -> bool:
        """Return whether pods on nodes, succeeded pods and these are enough; otherwise the group
        waits for more pods, or fails.
        """
        there = [one.task.name for one in more] + [
            pod.spec.task
            for pod in self.counts_now(group)
            if pod.status.phase == PodPhase.SUCCEEDED
            or (pod.status.phase in ON_NODE and not pod.status.terminating)
        ]
        return len(there) >= self.min_member(group) and all(
            there.count(task.name) >= task.min_available for task in group.spec.tasks
        )

    def _is_promised(self, group: PodGroup, places: list[Place]) -> bool:
        """Return whether binding these leaves the group's charge unchanged."""
        held = total([self.held(group), *(one.asks for one in places)])
        return fits(held, self.charges[group.metadata.uid])

    def _grows(self, group: PodGroup, places: list[Place]) -> bool:
        """Return whether binding these exceeds a limit because the group's charge grows."""
        held = total([self.held(group), *(one.asks for one in places)])
        before = self.charges[group.metadata.uid]
        charge = most_of(held, before)
        if all(units <= before.get(name, 0) for name, units in charge.items()):
            return False
        return bool(self.over_limit(group, charge))


def no_group_waits_that_could_start(
    snapshot: Snapshot, now_ms: int, config: SchedulerConfig
) -> list[str]:
    """Return the groups that wait but could start when the sessions of an instant are over."""
    return list(Rest(snapshot, now_ms, config).wrong())


def preemptors_that_wait_for_nothing(snapshot: Snapshot, now_ms: int) -> list[str]:
    """Return the preemptors that do not start although all of their victims have ended and all of
    their checks have passed.
    """
    groups = {one.metadata.uid: one for one in snapshot.groups}
    stand = [one for one in groups.values() if one.status.pledge.stands]
    if len(stand) > 1:
        # Another preemptor may come before it.
        return []
    alive: Mapping[str, int] = {
        pod.metadata.uid: pod.status.attempt
        for pods in snapshot.pods.values()
        for pod in pods
        if pod.status.phase in ON_NODE
    }
    ready = {
        node.metadata.name
        for node in snapshot.nodes
        if node.status.ready and not node.spec.unschedulable
    }
    found = []
    for one in stand:
        pledge = one.status.pledge
        external = any(
            uid in groups and groups[uid].spec.controller == "external" for uid in pledge.groups
        )
        waits = any(uid in alive for uid in pledge.holds) or external
        asked = any(check.status != "True" for check in one.status.checks)
        # Until its pledge expires, it waits for a node that was lost after its victims were told to
        # stop.
        node_away = bool(pledge.room.keys() - ready) and now_ms < (pledge.expires or 0)
        if not (waits or asked or node_away) and one.status.phase == PodGroupPhase.PENDING:
            name = f"{one.metadata.namespace}/{one.metadata.name}"
            found.append(f"{name} has a pledge, and everything that it waits for has ended")
    return found
